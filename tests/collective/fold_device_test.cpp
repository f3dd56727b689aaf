// SPDX-License-Identifier: Apache-2.0
// Folds in streams of devices that see each other's memory: the bits of a fold on this thread, and the bytes that pass.
#include "fold_tools.hpp"
#include "support/samples.hpp"
#include "weft/memory/peer_access.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <type_traits>

namespace fold_device_test {

using namespace folds;
using samples::error_of;
using weft::errc;
using weft::detail::fold_here;
using weft::detail::fold_in;

/// Four devices that all see each other's memory.
struct four {
  explicit four(bool check = false) : m(options(check)) {
    for (int from = 0; from < 4; ++from) {
      for (int to = 0; to < 4; ++to) {
        if (from != to) leases.emplace_back(m, weft::device_id{from}, weft::device_id{to});
      }
    }
  }
  static weft::machine_options options(bool check) {
    weft::machine_options made;
    made.machine = samples::wired(4);
    made.check_access = check;
    made.check_order = check;
    return made;
  }
  weft::machine m;
  std::vector<weft::peer_access> leases;
};

template <class T>
void expect_the_bits_of_here(const four& devices, std::size_t number, std::size_t count) {
  using stored = std::conditional_t<is_sixteen<T>, std::uint16_t, T>;
  for (const kind op : all_kinds) {
    std::vector<std::vector<T>> memory;
    std::vector<weft::buffer<stored>> buffers;
    std::vector<void*> there;
    for (std::size_t n = 0; n < number; ++n) {
      memory.push_back(elements<T>(count, n));
      buffers.emplace_back(devices.m[static_cast<int>(n % 4)], count);
      std::vector<stored> bits(count);
      std::memcpy(bits.data(), memory[n].data(), count * sizeof(T));
      weft::copy(buffers[n], bits);
      there.push_back(buffers[n].data());
    }
    const weft::stream order{devices.m[2]};
    const auto in_device = request_of<T>(op, count, there, there);
    fold_in(order, in_device, {}, std::source_location::current()).wait();
    const auto here = addresses(memory);
    fold_here(request_of<T>(op, count, here, here));
    for (std::size_t n = 0; n < number; ++n) {
      std::vector<stored> bits(count);
      weft::copy(bits, buffers[n]);
      ASSERT_EQ(std::memcmp(bits.data(), memory[n].data(), count * sizeof(T)), 0)
          << to_string(in_device.type) << ", operation " << static_cast<int>(op) << ", output " << n;
    }
  }
}

template <class T>
class fold_in_a_stream_of : public testing::Test {};
TYPED_TEST_SUITE(fold_in_a_stream_of, all_types);

TYPED_TEST(fold_in_a_stream_of, memory_of_all_devices_has_the_bits_of_this_thread) {
  const four devices;
  expect_the_bits_of_here<TypeParam>(devices, 4, 1111);
  expect_the_bits_of_here<TypeParam>(devices, 11, 513);
}

TYPED_TEST(fold_in_a_stream_of, memory_of_all_devices_keeps_to_what_its_kernels_declare) {
  const four devices{true};
  expect_the_bits_of_here<TypeParam>(devices, 3, 777);
  expect_the_bits_of_here<TypeParam>(devices, 9, 512);
}

std::uint64_t moved(const weft::machine& m, int from, int to) {
  const auto seen = m.traffic().bytes_on_link;
  std::uint64_t sum = 0;
  for (std::size_t n = 0; n < seen.size(); ++n) {
    if (m.layout().links[n].from == from && m.layout().links[n].to == to) sum += seen[n];
  }
  return sum;
}

TEST(fold_in_a_stream, moves_each_element_once_for_each_input_and_output_of_a_peer) {
  const four devices;
  std::vector<weft::buffer<float>> buffers;
  std::vector<void*> places;
  for (int n = 0; n < 4; ++n) {
    buffers.emplace_back(devices.m[n], 700U);
    weft::copy(buffers.back(), elements<float>(700, static_cast<std::uint64_t>(n)));
    places.push_back(buffers.back().data());
  }
  const std::uint64_t before = moved(devices.m, 1, 0);
  const std::uint64_t back = moved(devices.m, 0, 1);
  const std::uint64_t third = moved(devices.m, 3, 0);
  const weft::stream order{devices.m[0]};
  // 700 is no whole number of blocks
  fold_in(order, request_of<float>(kind::sum, 700, places, std::span{places}.first(2)), {},
          std::source_location::current())
      .wait();
  EXPECT_EQ(moved(devices.m, 1, 0) - before, 700 * sizeof(float));
  EXPECT_EQ(moved(devices.m, 0, 1) - back, 700 * sizeof(float));
  EXPECT_EQ(moved(devices.m, 3, 0) - third, 700 * sizeof(float));
  EXPECT_EQ(moved(devices.m, 0, 3), 0U);
}

TEST(fold_in_a_stream, by_a_kernel_of_the_user_has_the_bits_of_this_thread) {
  const four devices;
  std::vector<std::vector<std::int32_t>> memory;
  std::vector<weft::buffer<std::int32_t>> buffers;
  std::vector<void*> there;
  for (std::size_t n = 0; n < 5; ++n) {
    memory.push_back(elements<std::int32_t>(900, n));
    buffers.emplace_back(devices.m[static_cast<int>(n % 4)], 900U);
    weft::copy(buffers[n], memory[n]);
    there.push_back(buffers[n].data());
  }
  const auto expected = affine_of(memory);
  const weft::stream order{devices.m[1]};
  fold_in(order, affine_request(there, there), {}, std::source_location::current()).wait();
  for (const auto& each : buffers) {
    std::vector<std::int32_t> got(900);
    weft::copy(got, each);
    EXPECT_TRUE(same(got.data(), expected));
  }
}

TEST(fold_in_a_stream, a_fold_of_nothing_gives_an_event_all_the_same) {
  const four devices;
  const weft::stream order{devices.m[0]};
  void* const nowhere[] = {nullptr};
  const auto done =
      fold_in(order, request_of<float>(kind::sum, 0, nowhere, nowhere), {}, std::source_location::current());
  EXPECT_TRUE(done.is_recorded());
  done.wait();
  const weft::buffer<float> one{devices.m[0], 8};
  void* const place[] = {one.data()};
  const auto copied =
      fold_in(order, request_of<float>(kind::sum, 8, place, place), {}, std::source_location::current());
  EXPECT_TRUE(copied.is_recorded());
  copied.wait();
}

TEST(fold_in_a_stream, over_memory_that_the_device_may_not_reach_fails_and_names_the_argument) {
  const weft::machine m = samples::play(samples::wired(2));
  const weft::buffer<float> own{m[0], 64};
  const weft::buffer<float> other{m[1], 64};
  void* const places[] = {own.data(), other.data()};
  const weft::stream order{m[0]};
  const auto done = fold_in(order, request_of<float>(kind::sum, 64, places, std::span{places}.first(1)), {},
                            std::source_location::current());
  const weft::error cause = error_of([&] { done.wait(); });
  EXPECT_EQ(cause.code, errc::illegal_access);
  EXPECT_NE(cause.what.find("weft_fold_float32"), std::string::npos) << cause.what;
  EXPECT_NE(cause.what.find("argument 2 (in1)"), std::string::npos) << cause.what;
}

}  // namespace fold_device_test
