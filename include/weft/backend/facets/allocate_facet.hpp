// SPDX-License-Identifier: Apache-2.0
// Memory and its addresses: values that the host must not follow, but for pinned, unified and adopted memory.
#pragma once

#include "weft/backend/bus_window.hpp"
#include "weft/backend/event_record.hpp"
#include "weft/backend/facets/discover_facet.hpp"
#include "weft/core/memory_description.hpp"
#include "weft/core/stream_handle.hpp"

#include <cstddef>
#include <memory>
#include <string_view>

namespace weft {

class allocate_facet : public discover_facet {
 protected:
  using discover_facet::discover_facet;
  ~allocate_facet() = default;

  /// `kind` is device, pinned or unified; unified only where the device has that capability.
  [[nodiscard]] virtual result<void*> do_allocate(device_id, bytes, memory_kind) { return not_offered("memory"); }
  /// Memory of a device in which a running kernel sees what the host, engines and other devices write meanwhile, and
  /// they what it writes: where all memory of a device is such, it is that.
  [[nodiscard]] virtual result<void*> do_allocate_coherent(device_id device, bytes size) {
    return do_allocate(device, size, memory_kind::device);
  }
  /// What a device lacks that has no unified memory.
  [[nodiscard]] virtual std::string_view do_why_no_unified() const noexcept {
    return "no memory that the host and every device see at the same address";
  }
  /// The memory goes back once work submitted before has ended. Errors: not_found for what was not allocated here.
  [[nodiscard]] virtual result<void> do_release(void*) { return not_offered("memory"); }
  /// Errors: not_found.
  [[nodiscard]] virtual result<memory_description> do_find(const void*) {
    error cause = not_offered("memory");
    cause.code = errc::not_found;
    return cause;
  }
  /// Registers memory that the caller owns, so that the device may use it. Ended by release(), which frees nothing.
  [[nodiscard]] virtual result<void> do_adopt(device_id, void*, bytes) { return not_offered("adopted memory"); }
  /// A range of unified memory.
  [[nodiscard]] virtual result<event_ref> do_prefetch(stream_handle, void*, bytes) { return not_offered("prefetch"); }
  /// A range of unified memory; advice may change nothing.
  [[nodiscard]] virtual result<void> do_advise(void*, bytes, memory_advice, device_id) { return not_offered("advice"); }
  /// Where the host's own loads and stores reach a range of an allocation as device `by` does, coherent with the
  /// devices'. The memory stays, and is reached, while anybody holds this, as long as the backend exists: released or
  /// not, and whatever right is withdrawn. Errors:
  /// unsupported where the memory of a device is reached by commands only; illegal_access without peer access.
  [[nodiscard]] virtual result<std::shared_ptr<std::byte>> do_host_window(device_id, void*, bytes) {
    return not_offered("host windows");
  }
  /// Stores of the host into a range of device memory without a host window. Errors: unsupported where there is no way.
  [[nodiscard]] virtual result<std::shared_ptr<bus_window>> do_open_bus_window(void*, bytes) {
    return not_offered("windows for stores");
  }
};

}  // namespace weft
