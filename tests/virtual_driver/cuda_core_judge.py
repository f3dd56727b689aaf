# SPDX-License-Identifier: Apache-2.0
# Judges the virtual CUDA driver through NVIDIA's own package for Python, cuda.core: what a program there finds must be
# what the documents promise, and every byte right. Started by scripts/check-cuda-core, on four virtual devices of which
# each reaches each. What the package asks the CUDA runtime for, as Device.properties, is not among it.
import sys

import numpy
from cuda.core import (
    Device,
    DeviceMemoryResource,
    DeviceMemoryResourceOptions,
    EventOptions,
    LaunchConfig,
    LegacyPinnedMemoryResource,
    Program,
    ProgramOptions,
    StreamOptions,
    VirtualMemoryResource,
    launch,
    system,
)

COUNT = 1 << 16
KERNELS = """
extern "C" __global__ void ramp(int* out, int n, int first) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = first + i;
}
template <class T>
__global__ void scale(T* data, T by, size_t n) {
  for (size_t i = threadIdx.x + blockIdx.x * blockDim.x; i < n; i += size_t(blockDim.x) * gridDim.x) data[i] *= by;
}
extern "C" __global__ void sum(const int* in, long long* out, int n) {
  __shared__ long long part[256];
  long long mine = 0;
  for (int i = threadIdx.x; i < n; i += 256) mine += in[i];
  part[threadIdx.x] = mine;
  __syncthreads();
  for (int half = 128; half != 0; half /= 2) {
    if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) *out = part[0];
}
"""
checks = 0


def check(claim, text):
    global checks
    checks += 1
    if not claim:
        sys.exit(f"cuda_core_judge: not so: {text}")


def host_memory(stream, kind, count=COUNT):
    buffer = LegacyPinnedMemoryResource().allocate(count * numpy.dtype(kind).itemsize, stream=stream)
    return buffer, numpy.from_dlpack(buffer).view(kind)


def compiled(device, kind="cubin"):
    options = ProgramOptions(std="c++17", arch="sm_" + device.arch)
    return Program(KERNELS, "c++", options).compile(kind, name_expressions=("scale<float>",))


def devices():
    all_of_them = Device.get_all_devices()
    check(len(all_of_them) == 4 and system.get_num_devices() == 4, "there are four devices")
    check(len({d.uuid for d in all_of_them}) == 4, "each has an identifier of its own")
    for device in all_of_them:
        check(tuple(device.compute_capability) == (9, 0), "the compute capability is the one that was set")
        for other in all_of_them:
            check(device == other or device.can_access_peer(other), "each reaches each other")


def streams_and_events(device):
    stream = device.create_stream(options=StreamOptions(nonblocking=True, priority=-1))
    check(stream.is_nonblocking and stream.priority == -1, "a stream is as it was asked for")
    check(stream.device == device and stream.context == device.context, "a stream knows its device and context")
    timed = EventOptions(timing_enabled=True)
    first, last = device.create_event(timed), device.create_event(timed)
    other = device.create_stream()
    stream.record(first)
    other.wait(first)
    other.record(last)
    last.sync()
    check(first.is_done and last.is_done, "an event that was waited for is done")
    check(last - first >= 0, "what was recorded behind an event is no earlier")
    other.close()
    check(other.is_closed, "a stream that was closed is closed")


def memory(device):
    stream = device.create_stream()
    pinned, numbers = host_memory(stream, numpy.uint32)
    back, answer = host_memory(stream, numpy.uint32)
    check(pinned.is_host_accessible and pinned.is_device_accessible, "both sides reach pinned memory")
    numbers[:] = numpy.arange(COUNT, dtype=numpy.uint32) * 2654435761
    answer[:] = 0
    block = device.allocate(pinned.size, stream=stream)
    check(block.is_device_accessible and not block.is_host_accessible, "the device alone reaches its memory")
    check(block.size == pinned.size and block.device_id == device.device_id, "a block is as it was asked for")
    block.copy_from(pinned, stream=stream)
    block.copy_to(back, stream=stream)
    stream.sync()
    check((answer == numbers).all(), "a copy there and back gives every byte")
    for value in (numpy.uint8(0xA5), numpy.uint16(0xBEEF), numpy.uint32(0x12345678)):
        block.fill(value, stream=stream)
        block.copy_to(back, stream=stream)
        stream.sync()
        check((answer.view(value.dtype) == value).all(), f"a fill with words of {value.itemsize} bytes")
    block.close(stream)

    pool = DeviceMemoryResource(device, DeviceMemoryResourceOptions(max_size=8 << 20))
    part = pool.allocate(1 << 20, stream=stream)
    check(pool.attributes.used_mem_current >= 1 << 20, "a pool counts what it gave")
    check(pool.attributes.used_mem_high >= pool.attributes.used_mem_current, "the highest use is no lower than today's")
    try:
        pool.allocate(16 << 20, stream=stream)
        check(False, "a pool gives no more than its limit")
    except Exception as error:
        check("OUT_OF_MEMORY" in str(error), "more than a pool's limit is OUT_OF_MEMORY")
    part.close(stream)
    stream.sync()
    check(pool.attributes.used_mem_current == 0, "what was given back is not in use")

    mapped = VirtualMemoryResource(device).allocate(1, stream=stream)
    check(mapped.size % (2 << 20) == 0, "a mapping is a multiple of the granularity")
    mapped.fill(numpy.uint8(7), stream=stream)
    stream.sync()
    mapped.close()


def kernels(device):
    stream = device.create_stream()
    out, numbers = host_memory(stream, numpy.int32)
    block = device.allocate(out.size, stream=stream)
    total = device.allocate(8, stream=stream)
    one, answer = host_memory(stream, numpy.int64, 1)
    code = compiled(device)
    grid = LaunchConfig(grid=COUNT // 256, block=256)
    launch(stream, grid, code.get_kernel("ramp"), block, numpy.int32(COUNT), numpy.int32(-7))
    launch(stream, LaunchConfig(grid=1, block=256), code.get_kernel("sum"), block, total, numpy.int32(COUNT))
    block.copy_to(out, stream=stream)
    total.copy_to(one, stream=stream)
    stream.sync()
    check((numbers == numpy.arange(COUNT, dtype=numpy.int32) - 7).all(), "a kernel wrote every element")
    check(answer[0] == int(numbers.astype(numpy.int64).sum()), "threads of a block share memory and wait for each other")

    data, floats = host_memory(stream, numpy.float32)
    floats[:] = numpy.arange(COUNT)
    copy = device.allocate(data.size, stream=stream)
    copy.copy_from(data, stream=stream)
    launch(stream, LaunchConfig(grid=8, block=128), code.get_kernel("scale<float>"), copy, numpy.float32(0.5),
           numpy.uint64(COUNT))
    copy.copy_to(data, stream=stream)
    stream.sync()
    check((floats == numpy.arange(COUNT, dtype=numpy.float32) * 0.5).all(), "a template's kernel is found by its name")
    check(compiled(device, "ptx").get_kernel("ramp") is not None, "the text for a virtual architecture is loaded too")
    try:
        code.get_kernel("nothing")
        check(False, "a kernel that is not there is not found")
    except Exception as error:
        check("NOT_FOUND" in str(error), "a kernel that is not there is NOT_FOUND")
    try:
        Program('extern "C" __global__ void k() { missing(); }', "c++",
                ProgramOptions(arch="sm_" + device.arch)).compile("cubin")
        check(False, "a wrong text is not compiled")
    except Exception as error:
        check("missing" in str(error), "the compiler's log names what is wrong")


def peers(device, other):
    stream = device.create_stream()
    pool = DeviceMemoryResource(device, DeviceMemoryResourceOptions())
    pool.peer_accessible_by = [other.device_id]
    check({d.device_id for d in pool.peer_accessible_by} == {other.device_id}, "a pool is open to the peer that it names")
    block = pool.allocate(COUNT * 4, stream=stream)
    stream.sync()
    other.set_current()
    far = other.create_stream()
    out, numbers = host_memory(far, numpy.int32)
    launch(far, LaunchConfig(grid=COUNT // 256, block=256), compiled(other).get_kernel("ramp"), block,
           numpy.int32(COUNT), numpy.int32(3))
    mine = other.allocate(COUNT * 4, stream=far)
    mine.copy_from(block, stream=far)
    mine.copy_to(out, stream=far)
    far.sync()
    check((numbers == numpy.arange(COUNT, dtype=numpy.int32) + 3).all(), "a kernel writes memory of another device")
    device.set_current()


devices()
for ordinal in (0, 3):
    here = Device(ordinal)
    here.set_current()
    streams_and_events(here)
    memory(here)
    kernels(here)
Device(0).set_current()
peers(Device(0), Device(2))
print(f"cuda_core_judge: {checks} claims hold")
