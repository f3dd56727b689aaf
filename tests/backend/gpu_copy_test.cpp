// SPDX-License-Identifier: Apache-2.0
// Copies and fills of the CUDA backend, on the virtual driver: every pair of places and shape against a copy made by
// hand, batches in one call, rights looked at when a copy starts, and failures of the driver.
#include "runtime/machine_state.hpp"
#include "support/processes.hpp"
#include "support/samples.hpp"
#include "support/virtual_gpus.hpp"
#include "weft/memory/mapping.hpp"
#include "weft/memory/peer_access.hpp"
#include "weft/memory/physical_block.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <malloc.h>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace gpu_copy_test {

using samples::error_of;
using samples::gpu0;
using samples::gpu1;
using weft::errc;

enum class lies { device, other_device, pinned, plain };

struct pair_of_places {
  lies from, to;
};

/// Memory of one kind of `size` bytes, and what is in it.
class place {
 public:
  place(const weft::machine& m, lies where, std::size_t size) : where_(where), host_(size) {
    if (where == lies::plain) return;
    if (where == lies::pinned) {
      pinned_ = weft::pinned_buffer<std::uint8_t>{m[0], size};
    } else {
      device_ = samples::byte_buffer{m[where == lies::device ? 0 : 1], size};
    }
  }
  [[nodiscard]] void* address() {
    return where_ == lies::plain ? host_.data() : where_ == lies::pinned ? pinned_.data() : device_.data();
  }
  [[nodiscard]] bool is_host() const { return where_ == lies::plain; }
  void set(const samples::data& bytes) {
    if (where_ == lies::plain) host_ = bytes;
    if (where_ == lies::pinned) std::memcpy(pinned_.data(), bytes.data(), bytes.size());
    if (where_ == lies::device || where_ == lies::other_device) weft::copy(device_, bytes);
  }
  [[nodiscard]] samples::data get() const {
    if (where_ == lies::plain) return host_;
    if (where_ == lies::pinned) return {pinned_.data(), pinned_.data() + pinned_.size()};
    return samples::contents(device_);
  }

 private:
  lies where_;
  samples::data host_;
  weft::pinned_buffer<std::uint8_t> pinned_;
  samples::byte_buffer device_;
};

weft::copy_request request_for(place& to, std::size_t dst_offset, place& from, std::size_t src_offset,
                               const weft::copy_shape& shape) {
  weft::copy_request request;
  request.dst = static_cast<std::uint8_t*>(to.address()) + dst_offset;
  request.src = static_cast<const std::uint8_t*>(from.address()) + src_offset;
  request.dst_is_host = to.is_host();
  request.src_is_host = from.is_host();
  request.shape = shape;
  return request;
}

void by_hand(samples::data& to, std::size_t dst_offset, const samples::data& from, std::size_t src_offset,
             const weft::copy_shape& s) {
  for (std::size_t z = 0; z < s.depth; ++z) {
    for (std::size_t y = 0; y < s.height; ++y) {
      std::memcpy(to.data() + dst_offset + z * s.dst_slice + y * s.dst_pitch,
                  from.data() + src_offset + z * s.src_slice + y * s.src_pitch, s.width);
    }
  }
}

weft::copy_shape line(std::uint64_t width) {
  weft::copy_shape shape;
  shape.width = width;
  return shape;
}

void wait_for(const weft::machine& m, const weft::result<weft::event_ref>& done) {
  ASSERT_TRUE(done) << to_string(done.error());
  if (*done) weft::detail::make<weft::event>(weft::detail::state_of(m), *done).wait();
}

class gpu_copy : public samples::virtual_cuda_test, public testing::WithParamInterface<pair_of_places> {
 protected:
  [[nodiscard]] static weft::backend& of(const weft::machine& m) { return weft::detail::state_of(m)->backend_of(gpu0); }
};

std::string name_of(lies where) {
  switch (where) {
    case lies::device:
      return "device";
    case lies::other_device:
      return "other_device";
    case lies::pinned:
      return "pinned";
    case lies::plain:
      return "plain";
  }
  return "";
}

std::vector<pair_of_places> all_pairs() {
  std::vector<pair_of_places> all;
  for (const lies from : {lies::device, lies::other_device, lies::pinned, lies::plain}) {
    for (const lies to : {lies::device, lies::other_device, lies::pinned, lies::plain}) all.push_back({from, to});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(places, gpu_copy, testing::ValuesIn(all_pairs()),
                         [](const testing::TestParamInfo<pair_of_places>& one) {
                           return name_of(one.param.from) + "_to_" + name_of(one.param.to);
                         });

TEST_P(gpu_copy, lines_and_boxes_of_any_pitch_are_copied_as_by_hand_with_nothing_else_touched) {
  const weft::machine m = open();
  const weft::peer_access there{m, gpu0, gpu1};
  const weft::stream order{m[0]};
  constexpr std::size_t size = 20'000;
  place from{m, GetParam().from, size};
  place to{m, GetParam().to, size};
  const samples::data source = samples::pattern(size, 1);
  std::mt19937_64 random{7};
  const auto any = [&](std::uint64_t least, std::uint64_t most) { return least + random() % (most - least + 1); };
  for (int round = 0; round < 40; ++round) {
    weft::copy_shape s;
    s.width = any(1, 60);
    s.height = round % 4 == 0 ? 1 : any(1, 9);
    s.depth = round % 3 == 0 ? any(1, 5) : 1;
    s.dst_pitch = s.width + any(0, 9);
    s.src_pitch = s.width + any(0, 9);
    // every other slice is no whole number of rows
    s.dst_slice = s.dst_pitch * s.height + (round % 2 == 0 ? s.dst_pitch * any(0, 2) : any(0, 30));
    s.src_slice = s.src_pitch * s.height + (round % 2 == 0 ? s.src_pitch * any(0, 2) : any(0, 30));
    if (round % 5 == 0) {  // without gaps
      s.dst_pitch = s.src_pitch = s.width;
      s.dst_slice = s.src_slice = s.width * s.height;
    }
    if (round == 1) s = line(size / 2);
    const std::size_t dst_at = any(0, size - s.extent(s.dst_pitch, s.dst_slice));
    const std::size_t src_at = any(0, size - s.extent(s.src_pitch, s.src_slice));
    from.set(source);
    samples::data expected = samples::pattern(size, 100 + static_cast<std::uint64_t>(round));
    to.set(expected);
    weft::copy_request request = request_for(to, dst_at, from, src_at, s);
    request.wait = round % 2 == 1;
    wait_for(m, of(m).copy(order.native(), request));
    by_hand(expected, dst_at, source, src_at, s);
    ASSERT_TRUE(samples::same(to.get(), expected)) << "round " << round;
  }
}

TEST_P(gpu_copy, a_copy_in_a_busy_stream_comes_after_the_earlier_work) {
  const weft::machine m = open();
  const weft::peer_access there{m, gpu0, gpu1};
  const weft::stream order{m[0]};
  place from{m, GetParam().from, 5000};
  place to{m, GetParam().to, 5000};
  const samples::data before = samples::pattern(5000, 1);
  from.set(before);
  to.set(samples::pattern(5000, 2));
  samples::gate shut;
  static_cast<void>(shut.hold(order));
  const auto done = of(m).copy(order.native(), request_for(to, 0, from, 0, line(5000)));
  ASSERT_TRUE(done) << to_string(done.error());
  EXPECT_FALSE(of(m).ready(**done));
  shut.open();
  wait_for(m, done);
  EXPECT_TRUE(samples::same(to.get(), before));
}

class gpu_move : public samples::virtual_cuda_test {
 protected:
  [[nodiscard]] static weft::backend& of(const weft::machine& m) { return weft::detail::state_of(m)->backend_of(gpu0); }
};

TEST_F(gpu_move, makes_no_thread_wait_for_little_plain_memory_and_one_for_much) {
  const weft::machine m = open();
  const weft::stream order{m[0]};
  constexpr std::size_t much = (std::size_t{1} << 20) + 1;
  place there{m, lies::device, much};
  place here{m, lies::plain, much};
  wait_for(m, of(m).copy(order.native(), request_for(there, 0, here, 0, line(1))));
  const auto waits = [this] { return driver.calls("cuStreamSynchronize"); };
  for (const std::size_t size : {std::size_t{1}, std::size_t{5000}, std::size_t{64} << 10, much - 1}) {
    const samples::data bytes = samples::pattern(much, size);
    there.set(bytes);
    here.set(samples::pattern(much, 3));
    const auto before = waits();
    for (int n = 0; n < 3; ++n)
      static_cast<void>(of(m).copy(order.native(), request_for(here, 0, there, 0, line(size))));
    wait_for(m, of(m).copy(order.native(), request_for(here, 0, there, 0, line(size))));
    samples::data expected = samples::pattern(much, 3);
    std::copy_n(bytes.begin(), size, expected.begin());
    EXPECT_TRUE(samples::same(here.get(), expected)) << size;
    if (size <= std::size_t{64} << 10)
      wait_for(m, of(m).copy(order.native(), request_for(there, 1, here, 1, line(size))));
    EXPECT_EQ(waits(), before) << size;
  }
  const auto before = waits();
  wait_for(m, of(m).copy(order.native(), request_for(here, 0, there, 0, line(much))));
  EXPECT_EQ(waits(), before + 1);
}

TEST_F(gpu_move, has_what_passes_through_plain_memory_there_before_anything_reads_it) {
  const weft::machine m = open();
  const weft::stream order{m[0]};
  const weft::stream other{m[1]};
  constexpr std::size_t size = 5000;
  place from{m, lies::device, size};
  place through{m, lies::plain, size};
  place back{m, lies::device, size};
  place there{m, lies::other_device, size};
  for (std::uint64_t round = 0; round < 20; ++round) {
    const samples::data bytes = samples::pattern(size, round);
    from.set(bytes);
    through.set(samples::pattern(size, 100));
    samples::gate shut;
    if (round % 2 == 0) static_cast<void>(shut.hold(order));
    const auto landed = of(m).copy(order.native(), request_for(through, 0, from, 0, line(size)));
    ASSERT_TRUE(landed) << to_string(landed.error());
    other.wait(weft::detail::make<weft::event>(weft::detail::state_of(m), *landed));
    const auto behind = of(m).copy(order.native(), request_for(back, 0, through, 0, line(size)));
    const auto elsewhere = of(m).copy(other.native(), request_for(there, 0, through, 0, line(size)));
    if (round % 2 == 0) shut.open();
    wait_for(m, behind);
    wait_for(m, elsewhere);
    EXPECT_TRUE(samples::same(back.get(), bytes)) << round;
    EXPECT_TRUE(samples::same(there.get(), bytes)) << round;
  }
}

TEST_F(gpu_move, has_arrived_in_plain_memory_before_a_word_behind_it_says_so) {
  const weft::machine m = open();
  const weft::stream order{m[0]};
  const weft::stream other{m[0]};
  place from{m, lies::device, 5000};
  for (const bool elsewhere : {false, true}) {
    const weft::pinned_buffer<std::uint64_t> word{m[0], 1};
    word.data()[0] = 0;
    place to{m, lies::plain, 5000};
    from.set(samples::pattern(5000, 1));
    to.set(samples::pattern(5000, 2));
    const auto copied = of(m).copy(order.native(), request_for(to, 0, from, 0, line(5000)));
    ASSERT_TRUE(copied);
    const auto arrived = weft::detail::make<weft::event>(weft::detail::state_of(m), *copied);
    if (elsewhere) other.wait(arrived);
    static_cast<void>((elsewhere ? other : order).write_value(word.data(), 1));
    // nobody asks weft: only the word tells
    EXPECT_TRUE(processes::comes_true([&] { return __atomic_load_n(word.data(), __ATOMIC_ACQUIRE) == 1; }));
    EXPECT_TRUE(samples::same(to.get(), samples::pattern(5000, 1))) << elsewhere;
    m.synchronize();
  }
}

TEST_F(gpu_move, a_failed_move_to_plain_memory_leaves_its_target_as_it_was) {
  const weft::machine m = open();
  const weft::stream order{m[0]};
  place from{m, lies::device, 5000};
  place to{m, lies::plain, 5000};
  from.set(samples::pattern(5000, 1));
  to.set(samples::pattern(5000, 2));
  driver.fail("cuMemcpyDtoHAsync@1=1");
  const auto refused = of(m).copy(order.native(), request_for(to, 0, from, 0, line(5000)));
  EXPECT_EQ(error_of([&] { wait_for(m, refused); }).code, errc::copy_failed);
  EXPECT_TRUE(samples::same(to.get(), samples::pattern(5000, 2)));
  driver.fail("");
  wait_for(m, of(m).copy(order.native(), request_for(to, 0, from, 0, line(5000))));
  EXPECT_TRUE(samples::same(to.get(), samples::pattern(5000, 1)));
}

TEST_F(gpu_move, needs_no_thread_after_a_reset_either) {
  const weft::machine m = open();
  const weft::stream order{m[0]};
  const auto registered = driver.calls("cuMemHostRegister");
  m[0].reset();
  EXPECT_GT(driver.calls("cuMemHostRegister"), registered) << "a registration ends with its context";
  place from{m, lies::device, 5000};
  place to{m, lies::plain, 5000};
  from.set(samples::pattern(5000, 1));
  const auto waits = driver.calls("cuStreamSynchronize");
  const auto copied = of(m).copy(order.native(), request_for(to, 0, from, 0, line(5000)));
  EXPECT_EQ(driver.calls("cuStreamSynchronize"), waits);
  wait_for(m, copied);
  EXPECT_TRUE(samples::same(to.get(), samples::pattern(5000, 1)));
}

TEST_F(gpu_move, brings_all_of_a_batch_of_which_another_device_has_to_copy_a_part) {
  const weft::machine m = open();
  const weft::stream order{m[0]};
  place from{m, lies::device, 5000};
  place to{m, lies::plain, 5000};
  place far{m, lies::other_device, 5000};
  const weft::physical_block block{m[1], weft::bytes{std::uint64_t{1} << 20}};
  weft::mapping shown{block};
  shown.grant(gpu1, weft::access_right::read_write);
  from.set(samples::pattern(5000, 1));
  to.set(samples::pattern(5000, 2));
  far.set(samples::pattern(5000, 3));
  weft::copy_request into_block = request_for(far, 0, far, 0, line(5000));
  into_block.dst = shown.span<std::uint8_t>(gpu1).data();
  const std::vector<weft::copy_request> all{request_for(to, 0, from, 0, line(5000)), into_block};
  wait_for(m, of(m).copy_batch(order.native(), all));
  EXPECT_TRUE(samples::same(to.get(), samples::pattern(5000, 1)));
}

TEST_F(gpu_move, copies_a_batch_of_lines_in_one_call_and_of_boxes_one_by_one) {
  const weft::machine m = open();
  const weft::stream order{m[0]};
  const samples::data source = samples::pattern(10'000, 3);
  place from{m, lies::pinned, source.size()};
  place to{m, lies::device, source.size()};
  from.set(source);
  samples::data expected = samples::pattern(source.size(), 4);
  to.set(expected);
  std::vector<weft::copy_request> all;
  for (std::size_t n = 0; n < 20; ++n) {
    all.push_back(request_for(to, 500 * n, from, 17 * n, line(1 + 13 * n)));
    by_hand(expected, 500 * n, source, 17 * n, line(1 + 13 * n));
  }
  all.push_back(request_for(to, 0, from, 0, line(0)));
  const auto batches = driver.calls("cuMemcpyBatchAsync");
  const auto lines = driver.calls("cuMemcpyHtoDAsync");
  wait_for(m, of(m).copy_batch(order.native(), all));
  EXPECT_EQ(driver.calls("cuMemcpyBatchAsync"), batches + 1);
  EXPECT_EQ(driver.calls("cuMemcpyHtoDAsync"), lines);
  EXPECT_TRUE(samples::same(to.get(), expected));
  weft::copy_shape box = line(10);
  box.height = 3;
  box.dst_pitch = 20;
  box.src_pitch = 30;
  all.push_back(request_for(to, 9000, from, 9000, box));
  by_hand(expected, 9000, source, 9000, box);
  wait_for(m, of(m).copy_batch(order.native(), all));
  EXPECT_EQ(driver.calls("cuMemcpyBatchAsync"), batches + 1);
  EXPECT_TRUE(samples::same(to.get(), expected));
}

TEST_F(gpu_move, copies_a_batch_of_as_many_lines_as_the_driver_takes_at_once_and_of_more) {
  const weft::machine m = open();
  const weft::stream order{m[0]};
  for (const std::size_t count : {std::size_t{1024}, std::size_t{1025}, std::size_t{2048}}) {
    place from{m, lies::pinned, count};
    place to{m, lies::device, count};
    samples::data expected = samples::pattern(count, 3);
    from.set(expected);
    std::reverse(expected.begin(), expected.end());
    std::vector<weft::copy_request> all;
    for (std::size_t n = 0; n < count; ++n) all.push_back(request_for(to, count - 1 - n, from, n, line(1)));
    const auto batches = driver.calls("cuMemcpyBatchAsync");
    wait_for(m, of(m).copy_batch(order.native(), all));
    EXPECT_EQ(driver.calls("cuMemcpyBatchAsync"), batches + (count + 1023) / 1024);
    EXPECT_TRUE(samples::same(to.get(), expected)) << count;
  }
}

TEST_F(gpu_move, refuses_null_overlap_unknown_memory_and_what_passes_an_end) {
  const weft::machine m = open();
  const weft::stream order{m[0]};
  const samples::byte_buffer memory{m[0], 1000};
  std::vector<std::uint8_t> mine(1000);
  weft::copy_request request;
  request.shape = line(100);
  const auto code_of = [&](void* dst, const void* src) {
    request.dst = dst;
    request.src = src;
    const auto done = of(m).copy(order.native(), request);
    return done ? errc::not_ready : done.error().code;
  };
  EXPECT_EQ(code_of(nullptr, memory.data()), errc::invalid_argument);
  EXPECT_EQ(code_of(memory.data(), nullptr), errc::invalid_argument);
  EXPECT_EQ(code_of(memory.data(), memory.data() + 50), errc::invalid_argument);
  EXPECT_EQ(code_of(memory.data() + 901, memory.data()), errc::out_of_range);
  EXPECT_EQ(code_of(memory.data(), mine.data()), errc::not_found);
}

TEST_F(gpu_move, looks_at_rights_when_a_copy_starts) {
  const weft::machine m = open();
  const weft::stream order{m[0]};
  const samples::byte_buffer mine{m[0], 1000};
  const samples::byte_buffer theirs{m[1], 1000};
  ASSERT_TRUE(of(m).enable_peer(gpu0, gpu1));
  samples::gate shut;
  static_cast<void>(shut.hold(order));
  weft::copy_request request;
  request.dst = mine.data();
  request.src = theirs.data();
  request.shape = line(1000);
  const auto done = of(m).copy(order.native(), request);
  ASSERT_TRUE(done);
  ASSERT_TRUE(of(m).disable_peer(gpu0, gpu1));
  shut.open();
  EXPECT_EQ(error_of([&] { wait_for(m, done); }).code, errc::not_enabled);
  EXPECT_FALSE(m[0].is_lost());
}

void fills_right(const weft::machine& m) {
  const weft::stream order{m[0]};
  const weft::peer_access there{m, gpu0, gpu1};
  for (const lies where : {lies::device, lies::other_device, lies::pinned}) {
    place memory{m, where, 3000};
    for (const std::uint32_t size : {1U, 2U, 4U, 8U, 16U}) {
      for (const std::size_t offset : {std::size_t{0}, std::size_t{1}, std::size_t{2}, std::size_t{12}}) {
        for (const bool repeats : {false, true}) {
          samples::data expected = samples::pattern(3000, 8);
          memory.set(expected);
          weft::fill_request request;
          request.dst = static_cast<std::uint8_t*>(memory.address()) + offset;
          request.count = 2500 / size;
          request.pattern_size = size;
          for (std::size_t n = 0; n < size; ++n)
            request.pattern[n] = static_cast<std::byte>(repeats ? 0x40 + n % 2 : 0x31 * n + 5);
          wait_for(m, weft::detail::state_of(m)->backend_of(gpu0).fill(order.native(), request));
          for (std::size_t n = 0; n < request.count * size; ++n)
            expected[offset + n] = static_cast<std::uint8_t>(request.pattern[n % size]);
          ASSERT_TRUE(samples::same(memory.get(), expected))
              << name_of(where) << ", pattern of " << size << " at " << offset << (repeats ? ", repeating" : "");
        }
      }
    }
  }
}

TEST_F(gpu_move, fills_with_patterns_of_every_size_at_every_alignment) { fills_right(open()); }

TEST_F(gpu_move, fills_the_same_where_there_is_no_compiler) {
  weft::machine_options options;
  options.more_backends = {{weft::backend_kind::cuda, "no_compiler", [](const weft::backend_options& with) noexcept {
                              weft::gpu::settings wanted;
                              wanted.driver = samples::virtual_cuda_library();
                              wanted.compiler = "/nowhere/libnvrtc.so";
                              wanted.management = "none";
                              return weft::gpu::open_with(with, wanted);
                            }}};
  options.backend = "no_compiler";
  const auto launches = driver.calls("cuLaunchKernel");
  fills_right(weft::machine{options});
  EXPECT_EQ(driver.calls("cuLaunchKernel"), launches);
}

TEST_F(gpu_move, fills_with_a_pattern_that_the_driver_has_not_in_one_launch) {
  const weft::machine m = open();
  const weft::stream order{m[0]};
  const samples::byte_buffer memory{m[0], 100'000};
  weft::fill_request request;
  for (const std::uint32_t size : {4U, 8U, 16U}) {
    request.dst = memory.data() + (size == 4 ? 1 : 3 * size);
    request.count = 99'000 / size;
    request.pattern_size = size;
    for (std::size_t n = 0; n < size; ++n) request.pattern[n] = static_cast<std::byte>(n + 1);
    const auto launches = driver.calls("cuLaunchKernel");
    const auto copies = driver.calls("cuMemcpyAsync");
    const auto words = driver.calls("cuMemsetD8Async") + driver.calls("cuMemsetD32Async");
    wait_for(m, of(m).fill(order.native(), request));
    EXPECT_EQ(driver.calls("cuLaunchKernel"), launches + 1) << size;
    EXPECT_EQ(driver.calls("cuMemcpyAsync"), copies) << size;
    EXPECT_EQ(driver.calls("cuMemsetD8Async") + driver.calls("cuMemsetD32Async"), words) << size;
  }
}

TEST_F(gpu_move, fills_memory_that_its_own_device_may_not_write_without_losing_that_device) {
  const weft::machine m = open();
  weft::mapping shown{weft::physical_block{m[1], weft::granularity(m).minimum}};
  shown.grant(gpu0, weft::access_right::read_write);
  const weft::stream order{m[0]};
  weft::fill_request request;
  request.dst = shown.address();
  request.count = 1000;
  request.pattern_size = 16;
  for (std::size_t n = 0; n < 16; ++n) request.pattern[n] = static_cast<std::byte>(n + 1);
  static_cast<void>(error_of([&] { wait_for(m, of(m).fill(order.native(), request)); }));
  EXPECT_FALSE(m[0].is_lost());
  EXPECT_FALSE(m[1].is_lost());
}

/// A fill of the first bytes of a mapping.
weft::fill_request bytes_at(const weft::mapping& shown) {
  weft::fill_request request;
  request.dst = shown.address();
  request.count = 1000;
  request.pattern_size = 1;
  return request;
}

TEST_F(gpu_move, a_right_withdrawn_under_work_is_taken_from_the_driver_once_that_has_ended) {
  using weft::access_right;
  const weft::machine m = open();
  for (const access_right left : {access_right::none, access_right::read}) {
    weft::mapping shown{weft::physical_block{m[0], weft::granularity(m).minimum}};
    shown.grant(gpu0, access_right::read_write);
    const weft::stream order{m[0]};
    samples::gate gate;
    gate.hold(order);
    const auto filled = of(m).fill(order.native(), bytes_at(shown));
    shown.grant(gpu0, access_right::none);
    shown.grant(gpu0, left);
    EXPECT_EQ(driver.right(0, shown.address()), weft::gpu::access_read_write) << "work may have begun";
    gate.open();
    EXPECT_EQ(error_of([&] { wait_for(m, filled); }).code, errc::not_enabled);
    const unsigned long long wanted = left == access_right::read ? weft::gpu::access_read : weft::gpu::access_none;
    const auto until = std::chrono::steady_clock::now() + samples::only_a_hang;
    while (driver.right(0, shown.address()) != wanted && std::chrono::steady_clock::now() < until)
      static_cast<void>(m[0].free_memory());  // which has done what was put off
    EXPECT_EQ(driver.right(0, shown.address()), wanted);
  }
}

TEST_F(gpu_move, a_right_is_withdrawn_before_the_driver_hears_of_it_and_given_after_that) {
  using weft::access_right;
  using rights = std::vector<access_right>;
  const weft::machine m = open();
  weft::mapping shown{weft::physical_block{m[0], weft::granularity(m).minimum}};
  static thread_local const weft::mapping* watched = nullptr;
  static thread_local rights seen;
  driver.listen_to_own_work([](int step) {
    if (step > 0 || watched == nullptr) return;  // the driver has done something for this thread
    const weft::mapping* const it = std::exchange(watched, nullptr);
    seen.push_back(it->access_of(gpu0));
    watched = it;
  });
  const auto seen_during = [&](access_right next) {
    seen.clear();
    watched = &shown;
    const weft::error cause = error_of([&] { shown.grant(gpu0, next); });
    watched = nullptr;
    EXPECT_EQ(cause.code, errc::not_ready) << cause.what;
    return seen;
  };
  EXPECT_EQ(seen_during(access_right::read_write), rights{access_right::none});
  EXPECT_EQ(seen_during(access_right::read), rights{access_right::read});
  EXPECT_EQ(seen_during(access_right::none), rights{access_right::none});
  driver.listen_to_own_work(nullptr);

  shown.grant(gpu0, access_right::read);
  for (const access_right next : {access_right::none, access_right::read_write}) {
    driver.fail("cuMemSetAccess@1=999");
    EXPECT_NE(error_of([&] { shown.grant(gpu0, next); }).code, errc::not_ready);
    EXPECT_EQ(shown.access_of(gpu0), access_right::read) << "where the driver refuses";
  }
  driver.fail("");
}

TEST_F(gpu_move, rights_withdrawn_again_and_again_under_work_take_no_more_memory_each_time) {
  using weft::access_right;
  const weft::machine m = open();
  weft::mapping shown{weft::physical_block{m[0], weft::granularity(m).minimum}};
  shown.grant(gpu0, access_right::read_write);
  const weft::stream order{m[0]};
  samples::gate gate;
  gate.hold(order);
  const auto filled = of(m).fill(order.native(), bytes_at(shown));
  const auto in_use = [] { return static_cast<std::int64_t>(::mallinfo2().uordblks); };
  const std::int64_t before = in_use();
  constexpr int times = 10'000;
  for (int i = 0; i < times; ++i) {
    shown.grant(gpu0, access_right::none);
    shown.grant(gpu0, access_right::read_write);
  }
  EXPECT_LT(in_use() - before, 10 * times);
  gate.open();
  wait_for(m, filled);
}

TEST_F(gpu_move, a_refused_move_fails_with_its_code_and_a_sticky_error_loses_the_device) {
  const weft::machine m = open();
  const weft::stream order{m[0]};
  place from{m, lies::device, 100};
  place to{m, lies::device, 100};
  driver.fail("cuMemcpyDtoDAsync@1=1");
  const auto refused = of(m).copy(order.native(), request_for(to, 0, from, 0, line(100)));
  const auto cause = error_of([&] { wait_for(m, refused); });
  EXPECT_EQ(cause.code, errc::copy_failed) << to_string(cause);
  EXPECT_EQ(cause.native_code, 1);
  EXPECT_FALSE(m[0].is_lost());
  driver.fail("");
  wait_for(m, of(m).copy(order.native(), request_for(to, 0, from, 0, line(100))));
  driver.fail("cuMemcpyDtoDAsync@1=220");
  const auto broken = of(m).copy(order.native(), request_for(to, 0, from, 0, line(100)));
  EXPECT_EQ(error_of([&] { wait_for(m, broken); }).code, errc::device_lost);
  EXPECT_TRUE(m[0].is_lost());
  EXPECT_FALSE(m[1].is_lost());
}

}  // namespace gpu_copy_test
