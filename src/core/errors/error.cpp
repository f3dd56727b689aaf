// SPDX-License-Identifier: Apache-2.0
#include "weft/core/error.hpp"

#include "weft/core/result.hpp"

namespace weft {

namespace detail {

void place_error(weft::error* place, weft::error&& from) noexcept { std::construct_at(place, std::move(from)); }
void place_error(weft::error* place, const weft::error& from) { std::construct_at(place, from); }
void end_error(weft::error* place) noexcept { std::destroy_at(place); }

}  // namespace detail

std::string_view to_string(errc code) {
  switch (code) {
    case errc::invalid_argument:
      return "invalid_argument";
    case errc::invalid_device:
      return "invalid_device";
    case errc::wrong_device:
      return "wrong_device";
    case errc::out_of_range:
      return "out_of_range";
    case errc::not_found:
      return "not_found";
    case errc::incompatible:
      return "incompatible";
    case errc::invalid_topology:
      return "invalid_topology";
    case errc::already_enabled:
      return "already_enabled";
    case errc::not_enabled:
      return "not_enabled";
    case errc::not_ready:
      return "not_ready";
    case errc::machine_closed:
      return "machine_closed";
    case errc::name_taken:
      return "name_taken";
    case errc::unsupported:
      return "unsupported";
    case errc::peer_unsupported:
      return "peer_unsupported";
    case errc::too_many_peers:
      return "too_many_peers";
    case errc::out_of_memory:
      return "out_of_memory";
    case errc::resource_exhausted:
      return "resource_exhausted";
    case errc::cancelled:
      return "cancelled";
    case errc::timed_out:
      return "timed_out";
    case errc::closed:
      return "closed";
    case errc::corrupt:
      return "corrupt";
    case errc::io_failed:
      return "io_failed";
    case errc::copy_failed:
      return "copy_failed";
    case errc::kernel_failed:
      return "kernel_failed";
    case errc::illegal_access:
      return "illegal_access";
    case errc::peer_dead:
      return "peer_dead";
    case errc::device_lost:
      return "device_lost";
  }
  return "invalid_argument";
}

std::string_view to_string(error_scope scope) {
  switch (scope) {
    case error_scope::call:
      return "call";
    case error_scope::endpoint:
      return "endpoint";
    case error_scope::device:
      return "device";
    case error_scope::process:
      return "process";
  }
  return "call";
}

std::string to_string(const error& e) {
  std::string text{to_string(e.code)};
  text += ": ";
  text += e.what;
  if (e.native_code != 0) text += " [native code " + std::to_string(e.native_code) + "]";
  if (e.where.line() != 0) {
    std::string_view file = e.where.file_name();
    if (const auto slash = file.rfind('/'); slash != std::string_view::npos) file.remove_prefix(slash + 1);
    text += " (";
    text += file;
    text += ":" + std::to_string(e.where.line()) + ")";
  }
  return text;
}

}  // namespace weft
