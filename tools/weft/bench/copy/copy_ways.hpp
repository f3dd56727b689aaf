// SPDX-License-Identifier: Apache-2.0
// The two ways to have one copy made: by a command of the driver, which its copy engine does, or by a kernel of ours.
#pragma once

#include "weft/memory/buffer.hpp"
#include "weft/memory/copy.hpp"
#include "weft/runtime/stream.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

namespace weft::tool {

/// Writes the pattern of `seed` into device memory.
void write_pattern(const device_span<std::byte>& range, std::uint64_t seed);
void write_pattern(const device_span<std::uint64_t>& range, std::uint64_t seed);
/// Empty when the pattern is there; else the first bad offset, expected and got.
[[nodiscard]] std::string check_pattern(const device_span<const std::byte>& range, std::uint64_t seed);
[[nodiscard]] std::string check_pattern(const device_span<const std::uint64_t>& range, std::uint64_t seed);

/// weft::copy, on the way that the options name.
class engine_copy {
 public:
  engine_copy(const machine& m, device_id src, device_id dst, std::uint64_t size, copy_options how);
  void write(std::uint64_t seed) const { write_pattern(src_, seed); }
  void blank() const;
  [[nodiscard]] std::string check(std::uint64_t seed) const { return check_pattern(dst_, seed); }
  /// In a stream, with a limit: what may hang is found out once.
  [[nodiscard]] wait_outcome once_within(std::chrono::nanoseconds timeout) const;
  void once() const { static_cast<void>(weft::copy(dst_, src_, how_)); }

 private:
  copy_options how_;
  buffer<std::byte> src_, dst_;
  stream order_;
};

/// A kernel of the device `by`, which must reach both memories. It moves whole words of 8 bytes: up to 7 more than
/// asked.
class kernel_copy {
 public:
  kernel_copy(const machine& m, device_id by, device_id src, device_id dst, std::uint64_t size);
  void write(std::uint64_t seed) const { write_pattern(src_, seed); }
  void blank() const;
  [[nodiscard]] std::string check(std::uint64_t seed) const { return check_pattern(dst_, seed); }
  [[nodiscard]] wait_outcome once_within(std::chrono::nanoseconds timeout) const {
    return launched().wait_for(timeout);
  }
  void once() const { launched().wait(); }

 private:
  [[nodiscard]] event launched() const;

  buffer<std::uint64_t> src_, dst_;
  stream order_;
};

}  // namespace weft::tool
