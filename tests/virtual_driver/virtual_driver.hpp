// SPDX-License-Identifier: Apache-2.0
// What the virtual driver exports besides the driver's own functions. Found by dlsym, like those.
#pragma once

#include "virtual_driver/driver/device_side.h"

extern "C" {

using weft_virtual_kernel_function = void (*)(const weft_virtual_launch* shape, void** arguments);

/// Calls of a function so far, or of all ("*"). "device.launch" counts kernels as they begin to run; "*" does not.
unsigned long long weft_virtual_calls(const char* name);
/// "cuMemAlloc@3=2,cuLaunchKernel@1=kill,cuMemFree@2=hang,*@17=999": from now on, counted from here. Empty: nothing
/// fails.
void weft_virtual_fail(const char* plan);
void weft_virtual_count_from_zero();
/// Copies between devices: those that went directly, or through the host because no access was enabled.
unsigned long long weft_virtual_copies(int staged);
/// Takes a device's context away with this code, as a fault does; kernels that run are ended.
void weft_virtual_lose(int device, int code);
/// Devices that a fault has lost are as a new process finds them.
void weft_virtual_heal(void);
/// What a device sends into the memory of another never arrives, and nobody says so. `ways`: 1 for copies, 2 for what
/// kernels write into allocations, 4 into pools, 8 into mappings; of memory that is made, or made open, after this.
void weft_virtual_drop(int from, int to, unsigned ways);
/// A kernel for modules that are loaded from the text "weft:registered".
void weft_virtual_register_kernel(const char* name, weft_virtual_kernel_function body, unsigned count,
                                  const unsigned* sizes, const unsigned char* is_pointer);
/// How large a block and how long a grid may be from now on: 1024 and 2147483647 unless this says otherwise. A machine
/// asks for the second when it is opened.
void weft_virtual_limit_launches(unsigned threads_per_block, unsigned blocks_along_x);
/// Holds up the next values that streams write, as many as that, until none are to be held up.
void weft_virtual_hold_values(unsigned count);
/// Hardware queues of a context that is made after this, and as many for copies to and from the host: streams take them
/// in turn, and a wait holds up all that shares its queue. 0, as unless this says otherwise: each stream has its own.
void weft_virtual_limit_connections(unsigned count);
/// The shape of the last launch that the driver took.
weft_virtual_launch weft_virtual_last_launch();
/// Called with +1 where a thread begins work of the driver's own, and with -1 where that ends or calls the program
/// back.
void weft_virtual_listen_to_own_work(void (*listener)(int));
/// Streams that somebody holds now, those without a name and those that went with their context included.
unsigned long long weft_virtual_streams();
/// Of a stream: the lower goes first. 1 where there is no such stream.
int weft_virtual_priority(void* stream);
/// Bytes that are charged to a device now, but for what its primary context takes.
unsigned long long weft_virtual_used(int device);
}
