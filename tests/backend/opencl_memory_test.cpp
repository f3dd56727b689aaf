// SPDX-License-Identifier: Apache-2.0
// Memory of the OpenCL backend: addresses of what has none, limits, copies that no single command does, and what is
// refused with the reason.
#include "kernel/portable_kernels.hpp"
#include "memory/memory_state.hpp"
#include "runtime/machine_state.hpp"
#include "support/opencl_machines.hpp"
#include "support/samples.hpp"
#include "weft/exec/launch.hpp"
#include "weft/exec/launch_run.hpp"
#include "weft/memory/fill.hpp"
#include "weft/memory/peer_access.hpp"
#include "weft/memory/pool.hpp"

#include <cstring>
#include <string>
#include <vector>

namespace opencl_memory_test {

using samples::byte_buffer;
using samples::error_of;
using samples::opencl_memory;

WEFT_KERNEL(increments, (WEFT_INOUT(uint32_t) values), { values[i] = values[i] + 1U; });

class opencl_memory_map : public samples::opencl_test {};
INSTANTIATE_TEST_SUITE_P(memories, opencl_memory_map, samples::both_memories, samples::name_of_memory);

weft::backend& backend_of(const weft::machine& m) { return *weft::detail::state_of(m)->backends().front(); }

TEST_P(opencl_memory_map, gives_every_allocation_an_address_range_of_its_own) {
  const weft::machine m = open();
  std::vector<byte_buffer> all;
  for (int i = 0; i < 40; ++i) all.emplace_back(m[i % m.device_count()], static_cast<std::size_t>(1 + i * 1777));
  for (std::size_t a = 0; a < all.size(); ++a) {
    for (std::size_t b = a + 1; b < all.size(); ++b) {
      const bool apart =
          all[a].data() + all[a].size() <= all[b].data() || all[b].data() + all[b].size() <= all[a].data();
      EXPECT_TRUE(apart) << a << " and " << b;
    }
  }
}

TEST_P(opencl_memory_map, refuses_what_is_larger_than_the_device_gives_at_a_time_and_goes_on) {
  const weft::machine m = open();
  const auto free = m[0].free_memory();
  const weft::error cause = error_of([&] { const byte_buffer all{m[0], free.size()}; });
  if (cause.code != weft::errc::not_ready) {
    EXPECT_EQ(cause.code, weft::errc::out_of_memory) << to_string(cause);
    EXPECT_NE(cause.what.find("gpu0"), std::string::npos) << cause.what;
  }
  EXPECT_EQ(m[0].free_memory().value(), free.value());
  const auto data = samples::pattern(4097, 1);
  EXPECT_TRUE(samples::same(samples::contents(samples::filled(m[0], data)), data));
}

TEST_P(opencl_memory_map, gives_memory_back_that_went_while_its_work_was_running) {
  const weft::machine m = open();
  const auto free = m[0].free_memory();
  {
    const byte_buffer brief{m[0], 1U << 20};
    weft::fill(m[0].default_stream(), brief, std::uint8_t{1});
  }
  m[0].synchronize();
  EXPECT_EQ(m[0].free_memory().value(), free.value());
}

TEST_P(opencl_memory_map, fills_at_places_that_are_no_multiple_of_the_pattern) {
  const weft::machine m = open();
  auto expected = samples::pattern(4099, 2);
  const byte_buffer memory = samples::filled(m[0], expected);
  for (const std::uint32_t size : {1U, 2U, 4U, 8U, 16U}) {
    for (const std::size_t offset : {std::size_t{0}, std::size_t{3}, std::size_t{17}}) {
      weft::fill_request request;
      request.dst = const_cast<std::uint8_t*>(memory.data()) + offset;
      request.count = 37;
      request.pattern_size = size;
      for (std::size_t b = 0; b < size; ++b) request.pattern[b] = static_cast<std::byte>(b * 7 + offset + size);
      const weft::stream order{m[0]};
      weft::detail::make<weft::event>(weft::detail::state_of(m),
                                      weft::value_or_raise(backend_of(m).fill(order.native(), request)))
          .wait();
      for (std::size_t k = 0; k < 37 * size; ++k)
        expected[offset + k] = static_cast<std::uint8_t>(request.pattern[k % size]);
      ASSERT_TRUE(samples::same(samples::contents(memory), expected)) << size << " bytes at " << offset;
    }
  }
}

TEST_P(opencl_memory_map, copies_boxes_whose_rows_pass_a_pitch_and_whose_slices_are_no_number_of_rows) {
  const weft::machine m = open();
  struct shape {
    std::size_t pitch, slice, offset;
  };
  constexpr std::size_t width = 37, height = 5, depth = 3;
  for (const shape& s : {shape{40, 40 * 5, 0}, shape{41, 41 * 6, 39}, shape{40, 40 * 5 + 7, 1}, shape{37, 37 * 5, 0}}) {
    for (const shape& d : {shape{64, 64 * 5, 0}, shape{40, 40 * 7 + 3, 38}}) {
      const auto data = samples::pattern(s.offset + s.slice * depth + width, 3);
      auto expected = samples::pattern(d.offset + d.slice * depth + width, 4);
      const byte_buffer src = samples::filled(m[0], data);
      const byte_buffer dst = samples::filled(m[0], expected);
      weft::copy_request request;
      request.dst = const_cast<std::uint8_t*>(dst.data()) + d.offset;
      request.src = src.data() + s.offset;
      request.shape = {width, height, depth, d.pitch, d.slice, s.pitch, s.slice};
      const weft::stream order{m[0]};
      weft::detail::make<weft::event>(weft::detail::state_of(m),
                                      weft::value_or_raise(backend_of(m).copy(order.native(), request)))
          .wait();
      for (std::size_t z = 0; z < depth; ++z) {
        for (std::size_t y = 0; y < height; ++y) {
          std::memcpy(expected.data() + d.offset + z * d.slice + y * d.pitch,
                      data.data() + s.offset + z * s.slice + y * s.pitch, width);
        }
      }
      ASSERT_TRUE(samples::same(samples::contents(dst), expected))
          << "pitches " << s.pitch << " and " << d.pitch << ", slices " << s.slice << " and " << d.slice;
    }
  }
}

TEST_P(opencl_memory_map, copies_a_box_inside_one_allocation_to_another_pitch) {
  const weft::machine m = open();
  constexpr std::size_t width = 37, height = 5, from = 10'000;
  auto expected = samples::pattern(20'000, 6);
  const byte_buffer both = samples::filled(m[0], expected);
  weft::copy_request request;
  request.dst = const_cast<std::uint8_t*>(both.data());
  request.src = both.data() + from;
  request.shape = {width, height, 1, 64, 0, 40, 0};
  const weft::stream order{m[0]};
  weft::detail::make<weft::event>(weft::detail::state_of(m),
                                  weft::value_or_raise(backend_of(m).copy(order.native(), request)))
      .wait();
  for (std::size_t y = 0; y < height; ++y)
    std::memcpy(expected.data() + y * 64, expected.data() + from + y * 40, width);
  EXPECT_TRUE(samples::same(samples::contents(both), expected));
}

TEST_P(opencl_memory_map, copies_boxes_of_several_slices_inside_one_allocation_wherever_they_begin) {
  const weft::machine m = open();
  using box = weft::box<std::uint8_t>;
  for (const std::size_t width : {1U, 3U}) {
    for (const std::size_t height : {1U, 2U}) {
      const std::size_t extent = 2 * width * height;  // two slices without gaps
      for (std::size_t from = extent; from < extent + 4; ++from) {
        auto expected = samples::pattern(64, 7);
        const byte_buffer both = samples::filled(m[0], expected);
        weft::copy_box(box{both.span(), {}, 0, width, width * height},
                       box{both.span().subspan(from, 64 - from), {}, 0, width, width * height}, {width, height, 2});
        std::memcpy(expected.data(), expected.data() + from, extent);
        EXPECT_TRUE(samples::same(samples::contents(both), expected)) << width << " x " << height << " at " << from;
      }
    }
  }
}

TEST_P(opencl_memory_map, refuses_pinned_memory_larger_than_any_address_space) {
  const weft::machine m = open();
  const auto refused = [&](std::size_t size) {
    return samples::error_of([&] { const weft::pinned_buffer<std::uint8_t> all{m[0], size}; }).code;
  };
  EXPECT_EQ(refused(~std::size_t{0}), weft::errc::out_of_memory);
  EXPECT_EQ(refused(~std::size_t{0} - 4095), weft::errc::out_of_memory);
}

TEST_P(opencl_memory_map, copies_between_memories_of_the_host_in_the_order_of_the_stream) {
  const weft::machine m = open();
  const auto data = samples::pattern(70001, 5);
  weft::pinned_buffer<std::uint8_t> first{m[0], data.size()};
  weft::pinned_buffer<std::uint8_t> second{m[0], data.size()};
  const byte_buffer memory = samples::filled(m[0], data);
  const weft::stream order{m[0]};
  weft::copy(order, first, memory);
  weft::copy(order, second, first);
  samples::data got(data.size());
  weft::copy(order, got, second).wait();
  EXPECT_TRUE(samples::same(got, data));
}

TEST_P(opencl_memory_map, lets_kernels_use_pinned_memory_where_it_is_shared_and_says_so_elsewhere) {
  const weft::machine m = open();
  weft::pinned_buffer<std::uint32_t> memory{m[0], 1003};
  for (std::size_t i = 0; i < memory.size(); ++i) memory.host()[i] = static_cast<std::uint32_t>(3 * i);
  const weft::error cause =
      error_of([&] { weft::launch<increments>(weft::stream{m[0]}, weft::range(1003), memory).wait(); });
  if (m[0].has(weft::capability::peer_to_peer) || m[0].has(weft::capability::unified_memory)) {
    EXPECT_EQ(cause.code, weft::errc::not_ready) << to_string(cause);
    for (std::size_t i = 0; i < memory.size(); ++i) ASSERT_EQ(memory.host()[i], 3 * i + 1) << i;
  } else {
    EXPECT_EQ(cause.code, weft::errc::unsupported) << to_string(cause);
    EXPECT_FALSE(m[0].is_lost());
  }
}

TEST_P(opencl_memory_map, has_one_memory_in_unified_buffers_and_copies_nothing_for_kernels) {
  const weft::machine m = open();
  if (!m[0].has(weft::capability::unified_memory)) GTEST_SKIP() << "no unified memory";
  weft::unified_buffer<std::uint32_t> memory{m[0], 1003};
  for (std::size_t i = 0; i < memory.size(); ++i) memory.host()[i] = static_cast<std::uint32_t>(7 * i);
  const auto sink = std::make_shared<weft::trace_sink>();
  m.trace_to(sink);
  for (const weft::device& d : m.devices()) weft::launch<increments>(weft::stream{d}, weft::range(1003), memory).wait();
  m.trace_to(nullptr);
  const auto added = static_cast<std::uint32_t>(m.device_count());
  for (std::size_t i = 0; i < memory.size(); ++i) ASSERT_EQ(memory.host()[i], 7 * i + added) << i;
  std::size_t kernels = 0;
  for (const weft::trace_record& one : sink->take()) {
    EXPECT_NE(one.kind, weft::trace_kind::copy) << one.name;
    kernels += one.kind == weft::trace_kind::kernel ? 1 : 0;
  }
  EXPECT_EQ(kernels, static_cast<std::size_t>(m.device_count()));
}

TEST_P(opencl_memory_map, host_memory_is_used_by_all_devices_of_a_launch_without_peer_access) {
  const weft::machine m = open();
  if (!m[0].has(weft::capability::unified_memory)) GTEST_SKIP() << "no unified memory";
  std::vector<std::uint32_t> memory(50'000, 5);
  weft::spread_options how;
  how.strategy = weft::balance::static_equal;
  how.unified_memory = true;
  const weft::launch_run run = weft::launch<increments>(m, how, weft::range(50'000), memory);
  run.wait();
  for (std::size_t i = 0; i < memory.size(); ++i) ASSERT_EQ(memory[i], 6U) << i;
  for (const weft::device_account& one : run.report().devices) {
    EXPECT_EQ(one.failed_pieces, 0) << to_string(one.device);
    EXPECT_EQ(one.items, 50'000 / m.device_count()) << to_string(one.device);
  }
}

TEST_P(opencl_memory_map, refuses_unified_memory_with_the_reason_where_there_is_none) {
  const weft::machine m = open();
  if (m[0].has(weft::capability::unified_memory)) GTEST_SKIP() << "there is unified memory";
  const weft::error cause = error_of([&] { const weft::unified_buffer<int> memory(m[0], 10); });
  EXPECT_EQ(cause.code, weft::errc::unsupported) << to_string(cause);
  EXPECT_NE(cause.what.find("shared memory"), std::string::npos) << cause.what;
}

TEST_P(opencl_memory_map, copies_as_before_once_a_shareable_pool_makes_copies_ask_for_rights) {
  const weft::machine m = open();
  if (m.device_count() < 3) GTEST_SKIP() << "needs three devices";
  constexpr weft::device_id gpu0{0}, gpu1{1}, gpu2{2};
  for (const auto& [from, to] : {std::pair{gpu0, gpu1}, std::pair{gpu1, gpu2}, std::pair{gpu0, gpu2}}) {
    if (!weft::capability_between(m, from, to)->can_copy) GTEST_SKIP() << "the driver does not join the devices";
  }
  weft::detail::memory_state& memory = weft::detail::memory_of(*weft::detail::state_of(m));
  for (const auto& [from, to] : {std::pair{gpu0, gpu1}, std::pair{gpu1, gpu2}})
    memory.set_measured(from, to, {100e9, 1e-9});
  memory.set_measured(gpu0, gpu2, {1e3, 1});  // a detour is faster
  const weft::memory_pool pool{m[0], {.shareable = true}};
  const auto data = samples::pattern(std::size_t{1} << 20, 3);
  const byte_buffer from = samples::filled(m[0], data), near{m[1], data.size()}, far{m[2], data.size()};
  EXPECT_EQ(weft::copy(near, from).path, weft::copy_path::direct);
  EXPECT_EQ(weft::copy(far, from).path, weft::copy_path::relayed);
  EXPECT_TRUE(samples::same(samples::contents(near), data));
  EXPECT_TRUE(samples::same(samples::contents(far), data));
}

TEST_P(opencl_memory_map, counts_what_crosses_the_links_to_the_host) {
  const weft::machine m = open();
  const auto data = samples::pattern(70001, 6);
  const byte_buffer memory{m[0], data.size()};
  const auto before = m.traffic().bytes_on_link;
  weft::copy(memory, data);
  const auto after = m.traffic().bytes_on_link;
  const int link = m.layout().from_host[0].links.at(0);
  for (std::size_t i = 0; i < after.size(); ++i)
    EXPECT_EQ(after[i] - before[i], static_cast<int>(i) == link ? data.size() : 0U) << "link " << i;
}

TEST_P(opencl_memory_map, writes_a_trace_of_copies_fills_and_kernels_with_times_in_order) {
  const weft::machine m = open();
  const weft::buffer<std::uint32_t> memory{m[0], 1003};
  const std::vector<std::uint32_t> data(1003, 1);
  const auto sink = std::make_shared<weft::trace_sink>();
  m.trace_to(sink);
  const weft::stream order{m[0]};
  weft::copy(order, memory, data);
  weft::fill(order, memory, 5U);
  weft::launch<increments>(order, weft::range(1003), memory);
  order.call([] {});
  order.synchronize();
  m.trace_to(nullptr);
  const auto records = sink->take();
  ASSERT_EQ(records.size(), 4U);
  const weft::trace_kind kinds[] = {weft::trace_kind::copy, weft::trace_kind::fill, weft::trace_kind::kernel,
                                    weft::trace_kind::host_call};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(records[i].kind, kinds[i]) << i;
    EXPECT_LE(records[i].submitted, records[i].started) << i;
    EXPECT_LE(records[i].started, records[i].ended) << i;
    EXPECT_LE(records[i > 0 ? i - 1 : 0].ended, records[i].ended) << i;
  }
  EXPECT_EQ(records[0].bytes, data.size() * sizeof(std::uint32_t));
  EXPECT_EQ(records[2].items, 1003);
  EXPECT_EQ(records[2].name, "increments");
}

}  // namespace opencl_memory_test
