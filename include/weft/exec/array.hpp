// SPDX-License-Identifier: Apache-2.0
// An array that belongs to a machine, not to a device. Launches bring its parts to where they are needed and leave them
// there; the next launch finds them, and what nobody needs elsewhere never moves.
#pragma once

#include "weft/core/bytes.hpp"
#include "weft/core/internals.hpp"
#include "weft/core/raise.hpp"
#include "weft/kernel/parameter.hpp"
#include "weft/runtime/machine.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <source_location>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace weft {

/// Elements that are valid in one place.
struct array_part {
  device_id device;  // none: host memory
  std::int64_t first = 0;
  std::int64_t count = 0;
  friend bool operator==(const array_part&, const array_part&) = default;
};

/// What an array has moved since it was made.
struct array_traffic {
  std::uint64_t host_to_device = 0;   // bytes
  std::uint64_t device_to_host = 0;   // bytes
  std::uint64_t between_devices = 0;  // bytes
  std::uint64_t within_devices = 0;   // bytes from one memory of a device to another, where a part or its halo grew
  std::uint64_t copies = 0;
  std::uint64_t redundant = 0;  // bytes of the first three that had been there before, unchanged, and had been dropped
};

namespace detail {

class array_body;

struct array_shape {
  std::uint64_t count = 0;
  std::size_t element = 1;  // bytes
};
[[nodiscard]] std::shared_ptr<array_body> make_array(const machine& m, const array_shape& shape,
                                                     std::source_location where);
/// Every element becomes the pattern; nothing is written until a device needs it.
void set_array(array_body& array, std::span<const std::byte> pattern);
void write_array(array_body& array, std::uint64_t first, std::span<const std::byte> from, std::source_location where);
void read_array(const array_body& array, std::uint64_t first, std::span<std::byte> to, std::source_location where);
[[nodiscard]] std::vector<array_part> parts_of(const array_body& array);
[[nodiscard]] array_traffic traffic_of(const array_body& array);
void free_replicas(array_body& array);

}  // namespace detail

/// `count` elements somewhere in a machine. Launches over devices order themselves by the arrays they use: one that
/// reads what another writes starts after it, on whatever devices.
///
/// New elements are undefined until something writes them; reading them is an error, not a number.
/// Thread: any; two launches that use one array are ordered as they were submitted.
template <class T>
class array {
  static_assert(kernel_element<T>, "an array holds what a kernel can take: 8- to 64-bit integers, float or double");

 public:
  using value_type = T;
  using element_type = T;

  array() = default;
  array(const machine& m, std::size_t count, std::source_location where = std::source_location::current())
      : body_(detail::make_array(m, {count, sizeof(T)}, where)), count_(count) {}
  array(const machine& m, std::size_t count, T value, std::source_location where = std::source_location::current())
      : array(m, count, where) {
    if (count != 0) detail::set_array(*body_, std::as_bytes(std::span{&value, 1}));
  }
  array(const machine& m, std::span<const T> values, std::source_location where = std::source_location::current())
      : array(m, values.size(), where) {
    write(values, 0, where);
  }
  array(array&& other) noexcept : body_(std::move(other.body_)), count_(std::exchange(other.count_, 0)) {}
  array& operator=(array&& other) noexcept {
    if (this != &other) {
      body_ = std::move(other.body_);
      count_ = std::exchange(other.count_, 0);
    }
    return *this;
  }
  array(const array&) = delete;
  array& operator=(const array&) = delete;
  ~array() = default;  // launches that use it keep what they need

  [[nodiscard]] std::size_t size() const { return count_; }
  [[nodiscard]] bool empty() const { return count_ == 0; }
  [[nodiscard]] bytes size_bytes() const { return bytes{count_ * sizeof(T)}; }

  /// Copies to the host, from wherever the parts are; waits for the launches that write them.
  /// Errors: out_of_range; invalid_argument for elements that nothing has written; the root cause of a launch that
  ///   failed to write them. A launch that is refused (no piece or copy submitted, nothing waited for) leaves them as
  ///   they are.
  void read(std::span<T> to, std::size_t first = 0,
            std::source_location where = std::source_location::current()) const {
    if (body_) return detail::read_array(*body_, first, std::as_writable_bytes(to), where);
    if (!to.empty()) refuse(to.size(), where);
  }
  /// All elements on the host.
  [[nodiscard]] std::vector<T> host(std::source_location where = std::source_location::current()) const {
    std::vector<T> made(count_);
    read(made, 0, where);
    return made;
  }
  /// Replaces elements by the host's; they stay there until a launch needs them. Waits for launches that use them.
  /// Errors: out_of_range.
  void write(std::span<const T> from, std::size_t first = 0,
             std::source_location where = std::source_location::current()) {
    if (body_) return detail::write_array(*body_, first, std::as_bytes(from), where);
    if (!from.empty()) refuse(from.size(), where);
  }

  /// Where which elements are valid, by place and index; elements on several devices are listed for each.
  [[nodiscard]] std::vector<array_part> parts() const {
    return body_ ? detail::parts_of(*body_) : std::vector<array_part>{};
  }
  [[nodiscard]] array_traffic traffic() const { return body_ ? detail::traffic_of(*body_) : array_traffic{}; }
  /// Gives back memory that holds nothing but copies of what is valid elsewhere.
  void free_replicas() {
    if (body_) detail::free_replicas(*body_);
  }

 private:
  friend struct detail::internals;
  [[nodiscard]] const std::shared_ptr<detail::array_body>& body() const { return body_; }
  [[noreturn]] static void refuse(std::size_t count, std::source_location where) {
    raise(errc::out_of_range, std::to_string(count) + " elements of an empty array: it was moved from, or never made",
          where);
  }

  std::shared_ptr<detail::array_body> body_;
  std::size_t count_ = 0;
};

}  // namespace weft
