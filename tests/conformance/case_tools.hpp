// SPDX-License-Identifier: Apache-2.0
// What the cases are written with: claims that say where they broke, patterns, gates, and a few kernels.
#pragma once

#include "conformance/conformance.hpp"
#include "support/hang.hpp"
#include "weft/backend/kernel_code.hpp"
#include "weft/kernel/define.hpp"
#include "weft/memory/buffer.hpp"
#include "weft/memory/copy.hpp"
#include "weft/memory/peer_access.hpp"
#include "weft/runtime/barrier.hpp"
#include "weft/runtime/machine.hpp"
#include "weft/runtime/stream.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <source_location>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace weft::conformance {

using place = std::source_location;

/// Ends a case: what was claimed is not so.
struct shortfall {
  std::string why;
};
/// Ends a case: this machine has nothing to try it on.
struct absent {
  std::string why;
};

[[nodiscard]] inline verdict holds() { return {}; }
[[noreturn]] void fall_short(const std::string& why, place at = place::current());
void require(bool claim, const std::string& otherwise, place at = place::current());
[[noreturn]] void not_here(const std::string& why);

template <class A, class B>
void require_equal(const A& got, const B& expected, const std::string& what, place at = place::current()) {
  if (!(got == static_cast<A>(expected))) {
    if constexpr (std::is_arithmetic_v<A>) {
      fall_short(what + ": expected " + std::to_string(expected) + ", got " + std::to_string(got), at);
    } else {
      fall_short(what, at);
    }
  }
}

/// Runs `f`, which must fail with one of `codes`; gives the message.
std::string expect_error(std::initializer_list<errc> codes, const std::string& doing, const std::function<void()>& f,
                         place at = place::current());

/// 0, 1, alignment and page ± 1, more than one chunk.
[[nodiscard]] std::span<const std::size_t> sizes_to_try();
[[nodiscard]] std::span<const std::size_t> small_sizes();

[[nodiscard]] std::uint8_t pattern_at(std::uint64_t seed, std::uint64_t i);
[[nodiscard]] std::vector<std::uint8_t> pattern(std::size_t count, std::uint64_t seed);
/// Falls short with the first bad offset, what was expected there and what was got.
void require_same(std::span<const std::uint8_t> got, std::span<const std::uint8_t> expected, const std::string& what,
                  place at = place::current());
template <class T>
void require_all(std::span<const T> got, const std::function<T(std::size_t)>& expected, const std::string& what,
                 place at = place::current()) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i] != expected(i)) {
      fall_short(what + ": element " + std::to_string(i) + " expected " + std::to_string(expected(i)) + ", got " +
                     std::to_string(got[i]),
                 at);
    }
  }
}

[[nodiscard]] buffer<std::uint8_t> filled(const device& on, std::span<const std::uint8_t> data);
[[nodiscard]] std::vector<std::uint8_t> contents(device_span<const std::uint8_t> memory);

/// CUDA's "conform_where": each thread writes which multiprocessor it runs on into one array, `seen`.
[[nodiscard]] raw_kernel where_kernel();
/// What a device takes once for itself is taken: from now on its free memory is what allocations leave.
void warm(const device& on);

/// A wish for a path.
[[nodiscard]] inline copy_options by_way(copy_path path, device_id via = {}) {
  copy_options options;
  options.route.path = path;
  options.route.via = via;
  return options;
}
[[nodiscard]] inline copy_options until(const std::stop_source& stop) {
  copy_options options;
  options.stop = stop.get_token();
  return options;
}

struct device_pair {
  device_id from;
  device_id to;
};
[[nodiscard]] std::string text(const device_pair& pair);
/// Every ordered pair of different devices.
[[nodiscard]] std::vector<device_pair> all_pairs(const machine& m);
/// The first pair with access; (0, 1) where there is none, so that what is tried there is refused.
[[nodiscard]] device_pair offered_pair(const machine& m);
[[nodiscard]] std::optional<device_pair> pair_without_path(const machine& m);
[[nodiscard]] device_id unknown_device(const machine& m);
/// Ends a case where a copy takes no time: in virtual time on a machine without figures.
void require_time(const machine& m);

inline constexpr std::chrono::nanoseconds soon = std::chrono::milliseconds{5};
inline constexpr std::chrono::nanoseconds long_enough = samples::only_a_hang;

/// Holds a stream until it is opened or goes: a second device is late for a barrier. Where there is no second device a
/// host function waits in the stream, which takes a worker and stops virtual time.
class gate {
 public:
  gate(const machine& m, const stream& held);
  ~gate();
  gate(const gate&) = delete;
  gate& operator=(const gate&) = delete;
  void open();

 private:
  struct latch;
  std::shared_ptr<latch> latch_;
  std::optional<device_barrier> barrier_;
  std::optional<stream> key_;
};

// dst = 3 src + k + i; own = own + peer + i
WEFT_KERNEL(conform_weave, (WEFT_IN(uint32_t) src, WEFT_OUT(uint32_t) dst, uint32_t k),
            { dst[i] = src[i] * 3U + k + (uint32_t)i; });
WEFT_KERNEL(conform_add, (WEFT_INOUT(uint32_t) own, WEFT_IN(uint32_t) peer),
            { own[i] = own[i] + peer[i] + (uint32_t)i; });

[[nodiscard]] constexpr std::uint32_t woven(std::uint32_t src, std::uint32_t k, std::size_t i) {
  return src * 3U + k + static_cast<std::uint32_t>(i);
}
/// Position-dependent numbers.
[[nodiscard]] std::vector<std::uint32_t> numbers(std::size_t count, std::uint32_t seed);

/// Runs conform_weave on `by`, wherever the memory is.
event weave(const stream& by, device_span<const std::uint32_t> src, device_span<std::uint32_t> dst, std::uint32_t k);
/// Whether `by` reads and writes `memory` rightly, by a kernel. Errors: what the kernel ends with.
void require_reach(context& c, device_id by, const buffer<std::uint32_t>& memory, const std::string& what,
                   place at = place::current());
/// A kernel of `by` over `memory` must end as illegal_access and take `by` down. Gives the message.
std::string expect_fault(context& c, device_id by, device_span<const std::uint32_t> memory, const std::string& what,
                         place at = place::current());

// One list per file.
using case_list = std::vector<conformance_case>;
void add_selection(case_list& list);
void add_peer_query(case_list& list);
void add_peer_enable(case_list& list);
void add_peer_copy(case_list& list);
void add_peer_map(case_list& list);
void add_blocks(case_list& list);
void add_streams_events(case_list& list);
void add_barriers(case_list& list);
void add_memory(case_list& list);
void add_address_range(case_list& list);
void add_routes(case_list& list);
void add_kernels(case_list& list);
void add_faults(case_list& list);
void add_library_wide(case_list& list);

}  // namespace weft::conformance
