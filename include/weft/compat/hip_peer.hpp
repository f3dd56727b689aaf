// SPDX-License-Identifier: Apache-2.0
// HIP's six peer-to-peer functions over any machine of weft: the peer logic of a HIP program runs with its own names
// and gets the results it would get, on devices of every vendor and on the virtual devices of a laptop.
#pragma once

#include "weft/runtime/machine.hpp"
#include "weft/runtime/stream.hpp"

#include <cstddef>

#if !defined(USE_PEER_NON_UNIFIED)
#define USE_PEER_NON_UNIFIED 1
#endif

// NOLINTBEGIN(readability-identifier-naming): the names and numbers of HIP
namespace weft::compat::hip {

/// HIP's numbers.
enum hipError_t : int {
  hipSuccess = 0,
  hipErrorInvalidValue = 1,
  hipErrorOutOfMemory = 2,
  hipErrorDeinitialized = 4,
  hipErrorNoDevice = 100,
  hipErrorInvalidDevice = 101,
  hipErrorNotFound = 500,
  hipErrorIllegalAddress = 700,
  hipErrorPeerAccessAlreadyEnabled = 704,
  hipErrorPeerAccessNotEnabled = 705,
  hipErrorContextIsDestroyed = 709,
  hipErrorLaunchFailure = 719,
  hipErrorUnknown = 999,
};
/// "hipErrorInvalidDevice"
[[nodiscard]] const char* hipGetErrorName(hipError_t error) noexcept;

using hipDeviceptr_t = void*;
/// A stream of the machine; null is the default stream.
using hipStream_t = const stream*;

/// The machine that the functions below work on, while it lives. Devices are numbered as in the machine.
/// While it lives, `m` may be neither moved from nor destroyed.
/// Thread: made and ended while no thread is in one of the functions. Errors: closed, where another one lives.
class peer_session {
 public:
  explicit peer_session(const machine& m);
  peer_session(const peer_session&) = delete;
  peer_session& operator=(const peer_session&) = delete;
  ~peer_session();
};

/// The device of the calling thread, 0 at first in each session. Errors: InvalidDevice; of the second InvalidValue for
/// null.
hipError_t hipSetDevice(int deviceId) noexcept;
hipError_t hipGetDevice(int* deviceId) noexcept;

// Every function: NoDevice where no peer_session lives; those that ask the machine: ContextIsDestroyed where it was
// closed. Thread: any.

/// Whether kernels of a device may be given access to the memory of a peer, 1 or 0; 0 for a device and itself.
/// Errors, first that applies: InvalidValue for null, InvalidDevice.
hipError_t hipDeviceCanAccessPeer(int* canAccessPeer, int deviceId, int peerDeviceId) noexcept;
/// Gives the current device access to all memory of a peer, that which exists and that which will.
/// Errors, first that applies: InvalidValue for flags that are not 0; InvalidDevice for an unknown device, the current
///   one itself, and one without a path; PeerAccessAlreadyEnabled; Unknown where the table of peers is full
///   (max_peers).
hipError_t hipDeviceEnablePeerAccess(int peerDeviceId, unsigned int flags) noexcept;
/// Errors, first that applies: InvalidDevice as above, PeerAccessNotEnabled.
hipError_t hipDeviceDisablePeerAccess(int peerDeviceId) noexcept;
/// Copies after all earlier work, in every stream, of both devices and of those whose memory it is, and has copied
/// when it returns. Whose memory it is the addresses say.
/// Errors, first that applies: InvalidDevice; then a size of 0 does nothing; InvalidValue for null, for what lies in no
///   memory of the machine; what that work failed with, if no wait has reported it; InvalidValue for past the end, and
///   for ends that overlap.
hipError_t hipMemcpyPeer(void* dst, int dstDeviceId, const void* src, int srcDeviceId, std::size_t sizeBytes) noexcept;
/// The same in the order of a stream, not waiting; in the default stream as hipMemcpyPeer().
/// Errors: ContextIsDestroyed, before all others, for a stream of another machine; then those, at once. A closed stream
///   is as a closed machine: a size of 0 is Success.
hipError_t hipMemcpyPeerAsync(void* dst, int dstDeviceId, const void* src, int srcDevice, std::size_t sizeBytes,
                              hipStream_t stream) noexcept;
/// The allocation that an address lies in; either result may be null. Errors: NotFound.
hipError_t hipMemGetAddressRange(hipDeviceptr_t* pbase, std::size_t* psize, hipDeviceptr_t dptr) noexcept;

}  // namespace weft::compat::hip
// NOLINTEND(readability-identifier-naming)
