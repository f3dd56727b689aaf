// SPDX-License-Identifier: Apache-2.0
// The results and the order of errors are those of HIP's documents and its own tests; where its implementation does
// other than they say, the documents count (a device that is not there is InvalidDevice, also beside itself).
#include "weft/compat/hip_peer.hpp"

#include "core/errors/make_error.hpp"
#include "weft/memory/buffer.hpp"
#include "weft/memory/copy.hpp"
#include "weft/memory/peer_access.hpp"

#include <atomic>
#include <exception>
#include <memory>
#include <type_traits>
#include <utility>

// NOLINTBEGIN(readability-identifier-naming): the names of HIP
namespace weft::compat::hip {
namespace {

// one machine at a time; who calls holds no lock, since a session ends only while nobody calls
std::atomic<const machine*> used{nullptr};
std::atomic<unsigned> sessions{0};

/// The device of this thread in the session that there is.
int& current() {
  thread_local unsigned session = 0;
  thread_local int device = 0;
  const unsigned now = sessions.load(std::memory_order_acquire);
  if (std::exchange(session, now) != now) device = 0;
  return device;
}

hipError_t code_of(const error& cause) noexcept {
  switch (cause.code) {
    case errc::out_of_memory:
      return hipErrorOutOfMemory;
    case errc::invalid_device:
    case errc::peer_unsupported:
      return hipErrorInvalidDevice;
    case errc::not_found:
    case errc::out_of_range:
    case errc::invalid_argument:
      return hipErrorInvalidValue;
    case errc::already_enabled:
      return hipErrorPeerAccessAlreadyEnabled;
    case errc::not_enabled:
      return hipErrorPeerAccessNotEnabled;
    case errc::machine_closed:
      return hipErrorContextIsDestroyed;
    case errc::illegal_access:
      return hipErrorIllegalAddress;
    case errc::kernel_failed:
    case errc::device_lost:
      return hipErrorLaunchFailure;
    default:
      return hipErrorUnknown;
  }
}

/// Calls it with the machine; what it throws becomes a code.
template <class F>
hipError_t with_machine(F&& f) noexcept {
  const machine* const m = used.load(std::memory_order_acquire);
  if (m == nullptr) return hipErrorNoDevice;
  try {
    return f(*m);
  } catch (const error_exception& failed) {
    return code_of(failed.cause());
  } catch (const std::bad_alloc&) {
    return hipErrorOutOfMemory;
  } catch (const std::exception&) {
    return hipErrorUnknown;
  }
}

bool is_there(const machine& m, int device) { return device >= 0 && device < m.device_count(); }

/// Of a peer of the current device.
hipError_t wrong_peer(const machine& m, int peer) {
  if (!is_there(m, peer) || peer == current()) return hipErrorInvalidDevice;
  return can_access_peer(m, device_id{current()}, device_id{peer}) ? hipSuccess : hipErrorInvalidDevice;
}

template <class Order>
hipError_t copy_between(const machine& m, const Order& order, void* dst, int to, const void* src, int from,
                        std::size_t size) {
  if (!is_there(m, to) || !is_there(m, from)) return hipErrorInvalidDevice;
  if (size == 0) return hipSuccess;
  if (dst == nullptr || src == nullptr) return hipErrorInvalidValue;
  const device_id target = address_range(m[0], dst).device;
  const device_id source = address_range(m[0], src).device;
  // HIP's null stream waits for all others, a default stream does not. Pinned memory may be in use by a device that is
  // named and does not own it.
  if constexpr (std::is_same_v<Order, machine>) {
    for (const device_id one : {source, target, device_id{from}, device_id{to}}) m[one].synchronize();
  }
  static_cast<void>(copy_peer(order, dst, target, src, source, bytes{size}));
  return hipSuccess;
}

}  // namespace

peer_session::peer_session(const machine& m) {
  const machine* none = nullptr;
  if (used.compare_exchange_strong(none, &m, std::memory_order_acq_rel)) {
    sessions.fetch_add(1, std::memory_order_acq_rel);
    return;
  }
  raise(errc::closed, "another peer_session lives: HIP's functions work on one machine at a time");
}

peer_session::~peer_session() { used.store(nullptr, std::memory_order_release); }

const char* hipGetErrorName(hipError_t error) noexcept {
  switch (error) {
    case hipSuccess:
      return "hipSuccess";
    case hipErrorInvalidValue:
      return "hipErrorInvalidValue";
    case hipErrorOutOfMemory:
      return "hipErrorOutOfMemory";
    case hipErrorDeinitialized:
      return "hipErrorDeinitialized";
    case hipErrorNoDevice:
      return "hipErrorNoDevice";
    case hipErrorInvalidDevice:
      return "hipErrorInvalidDevice";
    case hipErrorNotFound:
      return "hipErrorNotFound";
    case hipErrorIllegalAddress:
      return "hipErrorIllegalAddress";
    case hipErrorPeerAccessAlreadyEnabled:
      return "hipErrorPeerAccessAlreadyEnabled";
    case hipErrorPeerAccessNotEnabled:
      return "hipErrorPeerAccessNotEnabled";
    case hipErrorContextIsDestroyed:
      return "hipErrorContextIsDestroyed";
    case hipErrorLaunchFailure:
      return "hipErrorLaunchFailure";
    case hipErrorUnknown:
      return "hipErrorUnknown";
  }
  return "hipErrorUnknown";
}

hipError_t hipSetDevice(int deviceId) noexcept {
  return with_machine([&](const machine& m) {
    if (!is_there(m, deviceId)) return hipErrorInvalidDevice;
    current() = deviceId;
    return hipSuccess;
  });
}

hipError_t hipGetDevice(int* deviceId) noexcept {
  return with_machine([&](const machine&) {
    if (deviceId == nullptr) return hipErrorInvalidValue;
    *deviceId = current();
    return hipSuccess;
  });
}

hipError_t hipDeviceCanAccessPeer(int* canAccessPeer, int deviceId, int peerDeviceId) noexcept {
  return with_machine([&](const machine& m) {
    if (canAccessPeer == nullptr) return hipErrorInvalidValue;
    if (!is_there(m, deviceId) || !is_there(m, peerDeviceId)) return hipErrorInvalidDevice;
    *canAccessPeer = can_access_peer(m, device_id{deviceId}, device_id{peerDeviceId}) ? 1 : 0;
    return hipSuccess;
  });
}

hipError_t hipDeviceEnablePeerAccess(int peerDeviceId, unsigned int flags) noexcept {
  return with_machine([&](const machine& m) {
    if (flags != 0) return hipErrorInvalidValue;
    if (const hipError_t wrong = wrong_peer(m, peerDeviceId); wrong != hipSuccess) return wrong;
    const auto done = enable_peer(m, device_id{current()}, device_id{peerDeviceId});
    return done == enable_outcome::enabled ? hipSuccess : hipErrorPeerAccessAlreadyEnabled;
  });
}

hipError_t hipDeviceDisablePeerAccess(int peerDeviceId) noexcept {
  return with_machine([&](const machine& m) {
    if (const hipError_t wrong = wrong_peer(m, peerDeviceId); wrong != hipSuccess) return wrong;
    const auto done = disable_peer(m, device_id{current()}, device_id{peerDeviceId});
    return done == disable_outcome::disabled ? hipSuccess : hipErrorPeerAccessNotEnabled;
  });
}

hipError_t hipMemcpyPeer(void* dst, int dstDeviceId, const void* src, int srcDeviceId, std::size_t sizeBytes) noexcept {
  return with_machine(
      [&](const machine& m) { return copy_between(m, m, dst, dstDeviceId, src, srcDeviceId, sizeBytes); });
}

hipError_t hipMemcpyPeerAsync(void* dst, int dstDeviceId, const void* src, int srcDevice, std::size_t sizeBytes,
                              hipStream_t stream) noexcept {
  if (stream == nullptr) return hipMemcpyPeer(dst, dstDeviceId, src, srcDevice, sizeBytes);
  return with_machine([&](const machine& m) {
    if (detail::state_of(*stream) != detail::state_of(m)) return hipErrorContextIsDestroyed;
    return copy_between(m, *stream, dst, dstDeviceId, src, srcDevice, sizeBytes);
  });
}

hipError_t hipMemGetAddressRange(hipDeviceptr_t* pbase, std::size_t* psize, hipDeviceptr_t dptr) noexcept {
  return with_machine([&](const machine& m) {
    try {
      const memory_description found = address_range(m[0], dptr);
      if (pbase != nullptr) *pbase = found.base;
      if (psize != nullptr) *psize = found.size.size();
      return hipSuccess;
    } catch (const error_exception& failed) {
      return failed.code() == errc::not_found ? hipErrorNotFound : code_of(failed.cause());
    }
  });
}

}  // namespace weft::compat::hip
// NOLINTEND(readability-identifier-naming)
