// SPDX-License-Identifier: Apache-2.0
// A copy must never run on what a failed operation left behind, however the timing falls.
#include "weft/memory/copy.hpp"
#include "weft/memory/peer_access.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <stdexcept>

namespace ordered_after_failure_test {

weft::machine pair() {
  weft::machine_options options;
  options.machine = weft::value_or_raise(weft::load_topology("pair_nvlink"));
  return weft::machine{options};
}

void fail() { throw std::runtime_error("not written"); }

TEST(copy_after_a_failure, a_copy_after_an_unreported_failure_is_skipped_even_if_the_other_stream_is_idle) {
  const weft::machine m = pair();
  const weft::buffer<int> a{m[0], 64}, b{m[1], 64};
  const weft::stream beside = m[0].default_stream();
  const weft::event failed = beside.call(fail);
  while (!failed.ready()) {
  }
  EXPECT_THROW(weft::copy(b, a), weft::error_exception) << "what gpu0 should have written never was";
  EXPECT_THROW(m[0].synchronize(), weft::error_exception);
  EXPECT_NO_THROW(weft::copy(b, a));
}

TEST(copy_after_a_failure, a_copy_after_a_failure_of_another_device_is_skipped_despite_an_older_reported_one) {
  const weft::machine m = pair();
  const weft::buffer<int> a{m[0], 64}, b{m[1], 64};
  const weft::stream order{m[1]}, other{m[0]};
  EXPECT_THROW(order.call(fail).wait(), weft::error_exception);
  const weft::event second = other.call(fail);
  order.wait(second);
  EXPECT_THROW(weft::copy(order, b, a).wait(), weft::error_exception);
  EXPECT_NO_THROW(weft::copy(order, b, a).wait());
}

TEST(copy_after_a_failure, a_copy_of_pinned_or_unified_memory_comes_after_the_work_of_the_device_it_is_of) {
  const weft::machine m = pair();
  const weft::buffer<int> a{m[0], 64};
  const weft::pinned_buffer<int> pinned{m[1], 64};
  const weft::unified_buffer<int> unified{m[1], 64};
  std::vector<int> host(64);
  const std::vector<std::function<void()>> copies{
      [&] { weft::copy(a, pinned); },
      [&] { weft::copy(pinned, a); },
      [&] { weft::copy(host, unified); },
      [&] { weft::copy(unified, pinned); },
      [&] { weft::copy_peer(m, a.data(), m[0], pinned.data(), m[1], a.size_bytes()); },
      [&] { weft::copy_box(weft::box<int>{a.span(), {}}, weft::box<int>{unified.span(), {}}, {64}); },
  };
  for (std::size_t i = 0; i < copies.size(); ++i) {
    const weft::event failed = m[1].default_stream().call(fail);
    while (!failed.ready()) {
    }
    EXPECT_THROW(copies[i](), weft::error_exception) << i << ": gpu1 should have written or read it";
    EXPECT_THROW(m[1].synchronize(), weft::error_exception) << i;
    EXPECT_NO_THROW(copies[i]()) << i;
  }
}

TEST(synchronize, tells_once_of_failures_whose_events_nobody_kept) {
  const weft::machine m = pair();
  const weft::stream order{m[1]};
  static_cast<void>(m[0].default_stream().call(fail));
  static_cast<void>(order.call(fail));
  EXPECT_THROW(m[0].synchronize(), weft::error_exception);
  EXPECT_THROW(m.synchronize(), weft::error_exception) << "of gpu1; that of gpu0 was told";
  EXPECT_NO_THROW(m.synchronize());
  static_cast<void>(order.call(fail));
  EXPECT_THROW(order.synchronize(), weft::error_exception);
  EXPECT_NO_THROW(m.synchronize());
}

TEST(staged_copies, many_staged_copies_in_one_stream_bring_the_right_data) {
  const weft::machine m = pair();
  const std::size_t n = (std::size_t{1} << 20) + 3;
  std::vector<unsigned char> data(n), got(n);
  for (std::size_t i = 0; i < n; ++i) data[i] = static_cast<unsigned char>(i * 131 + i / 257);
  const weft::buffer<unsigned char> a{m[0], n}, b{m[1], n};
  weft::copy(a, data);
  const weft::stream order{m[0]};
  weft::copy_options staged;
  staged.route.path = weft::copy_path::staged;
  for (int i = 0; i < 200; ++i) static_cast<void>(weft::copy(order, b, a, staged));
  order.synchronize();
  weft::copy(got, b);
  EXPECT_EQ(got, data);
}

TEST(sizes, sizes_that_wrap_around_are_refused_for_every_kind_of_memory) {
  const weft::machine m = pair();
  constexpr auto huge = std::numeric_limits<std::size_t>::max();
  for (const std::size_t size : {huge, huge - (std::size_t{1} << 20), huge / 2}) {
    EXPECT_THROW((weft::buffer<std::byte>{m[0], size}), weft::error_exception);
    EXPECT_THROW((weft::pinned_buffer<std::byte>{m[0], size}), weft::error_exception);
    EXPECT_THROW((weft::unified_buffer<std::byte>{m[0], size}), weft::error_exception);
  }
  const weft::buffer<std::uint64_t> a{m[0], 8}, b{m[0], 8};
  weft::box<std::uint64_t> to{a.span(), {}, (std::size_t{1} << 61) + 1, 0, 0}, from{b.span(), {}, 0, 0, 0};
  EXPECT_THROW(weft::copy_box(to, from, {1, 1, 1}), weft::error_exception);
}

}  // namespace ordered_after_failure_test
