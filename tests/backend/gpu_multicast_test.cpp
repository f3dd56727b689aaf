// SPDX-License-Identifier: Apache-2.0
// Multicast objects of the CUDA backend, on the virtual driver: kernels of the library store to all replicas and join
// them. What the hardware has no instruction for is refused.
#include "support/hang.hpp"
#include "support/samples.hpp"
#include "support/virtual_gpus.hpp"
#include "weft/memory/buffer.hpp"
#include "weft/memory/copy.hpp"
#include "weft/memory/fill.hpp"
#include "weft/memory/mapping.hpp"
#include "weft/memory/multicast.hpp"
#include "weft/memory/peer_access.hpp"
#include "weft/runtime/barrier.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace gpu_multicast_test {

using samples::error_of;
using samples::gpu0;
using samples::gpu1;
using samples::gpu2;
using weft::access_right;
using weft::device_id;
using weft::errc;
using weft::multicast_reduction;
using namespace std::chrono_literals;
using namespace weft::literals;

constexpr device_id gpu3{3};  // not in the team
constexpr std::array<device_id, 3> all{gpu0, gpu1, gpu2};

class gpu_multicast : public samples::virtual_cuda_test {
 protected:
  void SetUp() override {
    samples::virtual_cuda_test::SetUp();
    if (!IsSkipped()) m.emplace(open());
  }

  /// Three devices that have joined, each with its own mapping of its replica, which is full of `start`.
  void join(std::uint8_t start) {
    group = weft::multicast_object{*m, all, 1_MiB};
    for (const device_id id : all) group.add(id);
    for (const device_id id : all) {
      const weft::physical_block block{(*m)[id], group.size()};
      weft::value_or_raise(group.bind(block, samples::only_a_hang));
      replicas.emplace_back(block);
      replicas.back().grant(id, access_right::read_write);
      weft::fill(replicas.back().span<std::uint8_t>(), start);
    }
  }
  template <class T>
  [[nodiscard]] weft::device_span<T> on(device_id id) const {
    return replicas[id.index()].span<T>();
  }
  /// Element i of each replica is `at(id, i)`.
  template <class T, class F>
  void write(std::size_t count, const F& at) const {
    for (const device_id id : all) {
      std::vector<T> data(count);
      for (std::size_t i = 0; i < count; ++i) data[i] = at(id.value(), i);
      weft::copy(on<T>(id).first(count), data);
    }
  }
  template <class T>
  [[nodiscard]] std::vector<T> load(std::size_t count, multicast_reduction how, std::size_t first = 0) const {
    const weft::buffer<T> out{(*m)[1], count};
    group.load(weft::stream{(*m)[1]}, out, first, how).wait();
    std::vector<T> got(count);
    weft::copy(got, out);
    return got;
  }

  std::optional<weft::machine> m;
  weft::multicast_object group;
  std::vector<weft::mapping> replicas;
};

std::vector<std::uint8_t> pattern(std::size_t count, unsigned seed) {
  std::vector<std::uint8_t> made(count);
  for (std::size_t i = 0; i < count; ++i) made[i] = static_cast<std::uint8_t>(i * 7 + seed + (i >> 8));
  return made;
}

template <class T>
std::vector<T> read(weft::device_span<T> memory) {
  std::vector<T> got(memory.size());
  weft::copy(got, memory);
  return got;
}

TEST_F(gpu_multicast, store_of_any_place_and_size_reaches_every_replica_and_nothing_beside_it) {
  join(0xEE);
  const weft::stream order{(*m)[1]};
  const auto data = pattern(5003, 3);
  const weft::buffer<std::uint8_t> mine{(*m)[1], data.size()};
  weft::copy(mine, data);
  std::vector<std::uint8_t> expected(6000, 0xEE);
  for (const std::size_t size : {std::size_t{1}, std::size_t{2}, std::size_t{3}, std::size_t{4}, std::size_t{15},
                                 std::size_t{16}, std::size_t{17}, std::size_t{37}, std::size_t{4500}}) {
    for (const std::size_t to : {std::size_t{0}, std::size_t{1}, std::size_t{3}, std::size_t{4}, std::size_t{14}}) {
      for (const std::size_t from : {std::size_t{0}, std::size_t{1}, std::size_t{14}}) {
        const std::size_t at = 32 + to;
        group.store(order, at, mine.subspan(from, size)).wait();
        for (std::size_t i = 0; i < size; ++i) expected[at + i] = data[from + i];
        for (const device_id id : all) {
          ASSERT_EQ(read(on<std::uint8_t>(id).first(expected.size())), expected)
              << to_string(id) << ": " << size << " bytes of " << from << " at " << at;
        }
      }
    }
  }
}

TEST_F(gpu_multicast, store_takes_memory_of_the_host_as_it_is_when_the_stream_comes_to_it) {
  join(0);
  auto data = pattern(100'001, 5);
  const weft::stream order{(*m)[0]};
  weft::device_barrier meeting{*m, {gpu0, gpu3}};
  const weft::stream late{(*m)[3]};
  const auto held = meeting.arrive_and_order(order);
  const auto stored = group.store(order, 7, data);
  data[50'000] = 0xAB;
  const auto opened = meeting.arrive_and_order(late);
  stored.wait();
  held.wait();
  opened.wait();
  for (const device_id id : all) {
    const auto got = read(on<std::uint8_t>(id).first(data.size() + 8));
    EXPECT_EQ(std::vector<std::uint8_t>(got.begin() + 7, got.end() - 1), data) << to_string(id);
  }
}

TEST_F(gpu_multicast, store_takes_pinned_memory_and_memory_of_a_peer_that_may_be_used) {
  join(0);
  const weft::stream order{(*m)[0]};
  const weft::buffer<float> theirs{(*m)[2], 10};
  weft::fill(theirs, 2.5F);
  EXPECT_EQ(error_of([&] { group.store(order, 0, theirs); }).code, errc::invalid_argument) << "gpu0 may not read it";
  const weft::peer_access access{*m, gpu0, gpu2};
  group.store(order, 0, theirs).wait();
  for (const device_id id : all) EXPECT_EQ(read(on<float>(id).first(10)), std::vector<float>(10, 2.5F));
  const weft::pinned_buffer<float> here{(*m)[0], 10};
  std::fill(here.data(), here.data() + here.size(), 3.5F);
  group.store(order, 0, here).wait();
  for (const device_id id : all) EXPECT_EQ(read(on<float>(id).first(10)), std::vector<float>(10, 3.5F));
}

TEST_F(gpu_multicast, load_joins_what_the_hardware_has_instructions_for) {
  join(0);
  constexpr std::size_t count = 1003;
  const auto check = [&]<class T>(T, const auto& at) {
    write<T>(count, at);
    const auto sums = load<T>(count, multicast_reduction::sum);
    const auto least = load<T>(count, multicast_reduction::min);
    const auto most = load<T>(count, multicast_reduction::max);
    for (std::size_t i = 0; i < count; ++i) {
      const std::array<T, 3> of{at(0, i), at(1, i), at(2, i)};
      using plain = std::make_unsigned_t<T>;
      ASSERT_EQ(sums[i], static_cast<T>(plain(of[0]) + plain(of[1]) + plain(of[2]))) << i;
      ASSERT_EQ(least[i], *std::min_element(of.begin(), of.end())) << i;
      ASSERT_EQ(most[i], *std::max_element(of.begin(), of.end())) << i;
    }
  };
  check(std::int32_t{}, [](int d, std::size_t i) { return static_cast<std::int32_t>(i) * (d == 1 ? -7 : d + 3); });
  check(std::uint32_t{}, [](int d, std::size_t i) { return 0xffffffffU - static_cast<std::uint32_t>(i) * (d == 1); });
  check(std::int64_t{}, [](int d, std::size_t i) {
    return d == 0 ? std::numeric_limits<std::int64_t>::min() + static_cast<std::int64_t>(i) : -5 * d;
  });
  check(std::uint64_t{}, [](int d, std::size_t i) { return (std::uint64_t{1} << 63U) + i * static_cast<unsigned>(d); });
}

TEST_F(gpu_multicast, load_adds_floats_wherever_they_begin) {
  join(0);
  constexpr std::size_t count = 1003;
  const auto at = [](int d, std::size_t i) { return 0.25 * d + static_cast<double>(i); };
  write<float>(count, [&](int d, std::size_t i) { return static_cast<float>(at(d, i)); });
  for (const std::size_t first : {std::size_t{0}, std::size_t{1}, std::size_t{4}}) {
    const auto got = load<float>(count - first, multicast_reduction::sum, first);
    for (std::size_t i = 0; i < got.size(); ++i)
      ASSERT_EQ(got[i], static_cast<float>(0.75 + 3.0 * static_cast<double>(i + first))) << first << ": " << i;
  }
  write<double>(count, at);
  std::vector<double> here(count);
  group.load(weft::stream{(*m)[2]}, here, 0).wait();
  for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(here[i], 0.75 + 3.0 * static_cast<double>(i)) << i;
}

TEST_F(gpu_multicast, load_refuses_what_the_hardware_has_no_instruction_for_by_its_name) {
  join(0);
  const weft::stream order{(*m)[0]};
  const auto refused = [&](auto element, multicast_reduction how) {
    std::vector<decltype(element)> to(4);
    const weft::error cause = error_of([&] { group.load(order, to, 0, how); });
    EXPECT_EQ(cause.code, errc::unsupported);
    return cause.what;
  };
  for (const auto how : {multicast_reduction::sum, multicast_reduction::min, multicast_reduction::max}) {
    refused(std::int8_t{}, how);
    refused(std::uint8_t{}, how);
    refused(std::int16_t{}, how);
    refused(std::uint16_t{}, how);
  }
  refused(double{}, multicast_reduction::max);
  const std::string why = refused(float{}, multicast_reduction::min);
  EXPECT_NE(why.find("the least of float over"), std::string::npos) << why;
  EXPECT_NE(refused(std::uint8_t{}, multicast_reduction::sum).find("the sum of uint8"), std::string::npos);
}

TEST_F(gpu_multicast, is_used_by_its_team_inside_its_bounds_and_when_all_have_bound) {
  join(0);
  const std::vector<std::uint8_t> data(8, 1);
  EXPECT_EQ(error_of([&] { group.store(weft::stream{(*m)[3]}, 0, data); }).code, errc::wrong_device);
  const weft::stream order{(*m)[0]};
  EXPECT_EQ(error_of([&] { group.store(order, group.size().size() - 7, data); }).code, errc::out_of_range);
  group.store(order, group.size().size() - 8, data).wait();
  group.store(order, 0, std::span<const std::uint8_t>{}).wait();
  group.unbind(gpu2);
  const weft::error cause = error_of([&] { group.store(order, 0, data); });
  EXPECT_EQ(cause.code, errc::not_ready);
  EXPECT_NE(cause.what.find("gpu2"), std::string::npos) << cause.what;
  weft::value_or_raise(group.bind(weft::physical_block{(*m)[2], group.size()}, samples::only_a_hang));
  group.store(order, 0, data).wait();
  EXPECT_EQ(read(on<std::uint8_t>(gpu2).first(8)), std::vector<std::uint8_t>(8, 0)) << "another block is bound now";
}

TEST_F(gpu_multicast, keeps_its_blocks_bound_while_work_uses_them) {
  join(0);
  const std::vector<std::uint8_t> data(8, 9);
  const weft::stream order{(*m)[0]};
  weft::device_barrier meeting{*m, {gpu0, gpu3}};
  const auto held = meeting.arrive_and_order(order);
  const auto stored = group.store(order, 0, data);
  EXPECT_EQ(error_of([&] { group.unbind(gpu1); }).code, errc::not_ready);
  const auto opened = meeting.arrive_and_order(weft::stream{(*m)[3]});
  stored.wait();
  held.wait();
  opened.wait();
  group.unbind(gpu1);
  EXPECT_EQ(read(on<std::uint8_t>(gpu1).first(8)), data);
}

TEST_F(gpu_multicast, keeps_a_block_that_the_driver_does_not_unbind) {
  join(0);
  driver.fail("cuMulticastUnbind@1=2");
  EXPECT_EQ(error_of([&] { group.unbind(gpu1); }).code, errc::out_of_memory);
  const std::vector<std::uint8_t> data(8, 9);
  group.store(weft::stream{(*m)[0]}, 0, data).wait();
  EXPECT_EQ(read(on<std::uint8_t>(gpu1).first(8)), data);
  group.unbind(gpu1);
}

TEST_F(gpu_multicast, released_while_a_store_waits_is_stored_to_and_then_leaves_nothing_behind) {
  join(0);
  const auto unbound = driver.calls("cuMulticastUnbind");
  const auto unmapped = driver.calls("cuMemUnmap");
  const std::vector<std::uint8_t> data(8, 9);
  weft::stream order{(*m)[0]};
  weft::device_barrier meeting{*m, {gpu0, gpu3}};
  const auto held = meeting.arrive_and_order(order);
  const auto stored = group.store(order, 0, data);
  group = {};
  EXPECT_EQ(driver.calls("cuMulticastUnbind"), unbound);
  const auto opened = meeting.arrive_and_order(weft::stream{(*m)[3]});
  stored.wait();
  held.wait();
  opened.wait();
  EXPECT_EQ(read(on<std::uint8_t>(gpu2).first(8)), data);
  static_cast<void>((*m)[0].free_memory());  // has the library look at what has ended
  EXPECT_EQ(driver.calls("cuMulticastUnbind"), unbound + 3);
  EXPECT_EQ(driver.calls("cuMemUnmap"), unmapped + 1);
}

TEST_F(gpu_multicast, ends_with_the_reset_of_a_device_that_has_joined) {
  join(0);
  const std::vector<std::uint8_t> data(8, 9);
  const weft::stream order{(*m)[0]};
  group.store(order, 0, data).wait();
  (*m)[1].reset();
  EXPECT_EQ(error_of([&] { group.store(order, 0, data); }).code, errc::not_found);
}

TEST_F(gpu_multicast, takes_two_devices_and_none_that_is_a_part) {
  EXPECT_EQ(error_of([&] { weft::multicast_object(*m, std::span{all}.first(1), 1_MiB); }).code, errc::unsupported);
  weft::machine_options options = samples::virtual_cuda_options();
  options.logical_devices = 2;
  const weft::machine parts{options};
  EXPECT_EQ(error_of([&] { weft::multicast_object(parts, std::span{all}.first(2), 1_MiB); }).code, errc::unsupported);
}

TEST_F(gpu_multicast, counts_a_message_for_each_other_replica) {
  join(0);
  const std::vector<std::uint8_t> data(1000, 9);
  const auto sum = [&] {
    std::uint64_t all_links = 0;
    for (const std::uint64_t one : m->traffic().bytes_on_link) all_links += one;
    return all_links;
  };
  const weft::buffer<std::uint8_t> mine{(*m)[1], data.size()};
  weft::copy(mine, data);
  const std::uint64_t before = sum();
  group.store(weft::stream{(*m)[1]}, 0, mine).wait();
  EXPECT_GE(sum(), before + 2000);
}

TEST_F(gpu_multicast, says_what_failed_and_works_again_when_a_call_of_the_driver_fails) {
  const std::vector<std::uint32_t> data(100, 7);
  const auto use_once = [&] {
    std::vector<std::uint32_t> sums(100);
    replicas.clear();
    join(0);
    group.store(weft::stream{(*m)[0]}, 0, data).wait();
    group.load(weft::stream{(*m)[1]}, sums, 0).wait();
    EXPECT_EQ(sums, std::vector<std::uint32_t>(100, 21));
  };
  use_once();  // compiled and loaded now
  // three of each are the replicas' own
  for (const std::string call :
       {"cuMulticastCreate@1", "cuMulticastAddDevice@2", "cuMulticastBindMem@3", "cuMemAddressReserve@4", "cuMemMap@4",
        "cuMemSetAccess@4", "cuLaunchKernel@1", "cuLaunchKernel@2"}) {
    driver.fail((call + "=2").c_str());
    const weft::error cause = error_of(use_once);
    driver.fail("");
    EXPECT_EQ(cause.code, errc::out_of_memory) << call << ": " << to_string(cause);
    group = {};
  }
  use_once();
}

}  // namespace gpu_multicast_test
