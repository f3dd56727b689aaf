// SPDX-License-Identifier: Apache-2.0
// What went wrong, as one value. The table below is the only place that says which outcomes are errors: queries and
// try_ functions give ordinary outcomes as values (not_enabled, already_enabled, timed_out, not_ready); functions
// that were asked to do something and did not give an error.
#pragma once

#include <cstdint>
#include <source_location>
#include <string>
#include <string_view>

namespace weft {

/// Why an operation did not do what it was asked. Grouped by what the caller can do about it.
enum class errc : std::uint8_t {
  // The call was wrong: fix the caller.
  invalid_argument,  // null pointer, bad size, overlap, bad option
  invalid_device,    // no such device, or a device that cannot take part (a pair without a path)
  wrong_device,      // the object belongs to another device or machine
  out_of_range,      // a range reaches past the end of its memory
  not_found,         // unknown pointer, name or file
  incompatible,      // count, type or version does not match
  invalid_topology,  // a topology that cannot be: the message has line, key and what was expected
  // The state does not allow it now.
  already_enabled,  // peer access was on already
  not_enabled,      // peer access was not on
  not_ready,        // asked for a result that is not there yet
  machine_closed,   // the machine of this object was closed
  name_taken,       // another process holds the name
  // The machine cannot do it.
  unsupported,         // capability would have told
  peer_unsupported,    // no peer path between two devices
  too_many_peers,      // a device's table of peers is full
  out_of_memory,       // a device's memory is exhausted
  resource_exhausted,  // descriptors, threads, mappings
  // It was started and ended otherwise.
  cancelled,
  timed_out,
  closed,
  corrupt,        // data failed verification
  io_failed,      // reading or writing a file
  copy_failed,    // the link or engine reported a failure
  kernel_failed,  // a kernel reported a failure
  // A device or peer is gone.
  illegal_access,  // a device touched memory without right; the device is lost
  peer_dead,       // another process of the group has died
  device_lost,     // the device failed earlier and answers nothing any more
};

/// How much is lost: the call only, the endpoint (stream, queue), the device, or the process.
enum class error_scope : std::uint8_t { call, endpoint, device, process };

[[nodiscard]] std::string_view to_string(errc code);
[[nodiscard]] std::string_view to_string(error_scope scope);

/// One failure, complete: code, scope, the vendor's number if there is one, a sentence that names the objects, and the
/// place in the program's source of the call that failed, where it is known: never one in weft's own sources.
struct error {
  errc code = errc::invalid_argument;
  error_scope scope = error_scope::call;
  int native_code = 0;
  std::string what;
  std::source_location where{};  // line 0: unknown
};

/// "out_of_memory: gpu1 … (main.cpp:12)": the text that error_exception::what() returns.
[[nodiscard]] std::string to_string(const error& e);

}  // namespace weft
