// SPDX-License-Identifier: Apache-2.0
// Pairs of the virtual CUDA driver that lose data in one way or another, as drivers were seen to do: nothing wrong is
// ever handed out.
#include "support/samples.hpp"
#include "support/virtual_gpus.hpp"
#include "weft/core/log.hpp"
#include "weft/exec/launch.hpp"
#include "weft/memory/mapping.hpp"
#include "weft/memory/peer_access.hpp"
#include "weft/memory/pool.hpp"

namespace gpu_peer_arrival_test {

using samples::error_of;
using samples::gpu0;
using samples::gpu1;
using weft::access_right;
using weft::buffer;
using weft::errc;
using weft::machine;

WEFT_KERNEL(gpu_arrival_triple, (WEFT_IN(int32_t) in, WEFT_OUT(int32_t) out), { out[i] = in[i] * 3; });

constexpr unsigned copies = 1, allocations = 2, pools = 4, blocks = 8;

class gpu_peer_arrival : public samples::virtual_cuda_test {
 protected:
  void SetUp() override {
    virtual_cuda_test::SetUp();
    before_ = weft::set_log_hook([this](weft::log_level, std::string_view text) { log.emplace_back(text); });
  }
  void TearDown() override {
    weft::set_log_hook(std::move(before_));
    driver.drop(0, 1, 0);
    virtual_cuda_test::TearDown();
  }
  static buffer<std::int32_t> made(const weft::device& on, std::int32_t value) {
    buffer<std::int32_t> memory{on, 1000};
    weft::copy(memory, std::vector<std::int32_t>(1000, value));
    return memory;
  }
  template <class Memory>
  static std::vector<std::int32_t> read(const Memory& memory) {
    std::vector<std::int32_t> got(1000);
    weft::copy(got, memory);
    return got;
  }
  static machine open_with(weft::peer_verification when) {
    auto options = samples::virtual_cuda_options();
    options.verify_peers = when;
    return machine{options};
  }
  static void expect_refused(const weft::error& refused, std::string_view words) {
    EXPECT_EQ(refused.code, errc::peer_unsupported) << refused.what;
    EXPECT_NE(refused.what.find(words), std::string::npos) << refused.what;
  }

  std::vector<std::string> log;

 private:
  weft::log_hook before_;
};

TEST_F(gpu_peer_arrival, lost_copies_are_found_and_go_through_the_host) {
  driver.drop(0, 1, copies);
  const machine m = open();
  const auto leases = weft::enable_all_peers(m);
  const auto from = made(m[0], 5), to = made(m[1], 1);
  EXPECT_EQ(weft::copy(to, from).path, weft::copy_path::staged);
  EXPECT_EQ(read(to), std::vector<std::int32_t>(1000, 5));
  EXPECT_EQ(weft::copy(from, to).path, weft::copy_path::direct) << "the other direction is well";
  EXPECT_FALSE(weft::capability_between(m, gpu0, gpu1)->trusted);
  ASSERT_EQ(log.size(), 1U) << log.back();
  EXPECT_NE(log[0].find("gpu0 to gpu1"), std::string::npos) << log[0];
}

TEST_F(gpu_peer_arrival, lost_stores_of_kernels_are_found_and_the_launch_is_refused) {
  driver.drop(0, 1, allocations);
  const machine m = open();
  const auto leases = weft::enable_all_peers(m);
  const auto from = made(m[0], 5), to = made(m[1], 1);
  const auto triple = [&] { weft::launch<gpu_arrival_triple>(weft::stream{m[0]}, weft::range(1000), from, to).wait(); };
  expect_refused(error_of(triple), "argument 2 is memory of gpu1");
  expect_refused(error_of(triple), "stores: at byte 0");
  EXPECT_EQ(log.size(), 1U);
  expect_refused(error_of([&] { weft::enable_peer(m, gpu0, gpu1); }), "does not arrive");
}

TEST_F(gpu_peer_arrival, pools_and_blocks_that_lose_stores_are_refused_each_by_itself) {
  for (const unsigned lost : {pools, blocks}) {
    driver.drop(0, 1, lost);
    const machine m = open();
    const auto leases = weft::enable_all_peers(m);
    const auto from = made(m[0], 5), to = made(m[1], 1);
    weft::launch<gpu_arrival_triple>(weft::stream{m[0]}, weft::range(1000), from, to).wait();
    EXPECT_EQ(read(to), std::vector<std::int32_t>(1000, 15)) << "allocations are well";
    const auto use = [&] {
      if (lost == pools) {
        weft::pool_options options;
        options.shareable = true;
        weft::memory_pool{m[1], options}.set_access(m[0], access_right::read_write);
      } else {
        weft::mapping{weft::physical_block{m[1], weft::bytes{std::uint64_t{2} << 20}}}.grant(gpu0,
                                                                                             access_right::read_write);
      }
    };
    expect_refused(error_of(use), lost == pools ? "in memory of pools" : "in mapped blocks");
  }
}

TEST_F(gpu_peer_arrival, a_pair_that_is_well_is_tried_once) {
  const machine m = open();
  const auto leases = weft::enable_all_peers(m);
  const auto from = made(m[0], 5), to = made(m[1], 1);
  const auto copies_of = [&](auto&& f) {
    const auto count = [&] {
      unsigned long long all = 0;
      for (const char* const name :
           {"cuMemcpyPeerAsync", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuMemcpyDtoDAsync", "cuMemcpyAsync"})
        all += driver.calls(name);
      return all;
    };
    const auto before = count();
    f();
    return count() - before;
  };
  const auto copy = [&] { EXPECT_EQ(weft::copy(to, from).path, weft::copy_path::direct); };
  EXPECT_EQ(copies_of(copy), 5U) << "two patterns, over the pair, back, and the copy itself";
  EXPECT_EQ(copies_of(copy), 1U);
  EXPECT_TRUE(log.empty()) << log.front();
}

TEST_F(gpu_peer_arrival, a_kernel_is_not_loaded_on_a_device_whose_work_may_wait_for_the_caller) {
  driver.drop(0, 1, allocations);
  const machine m = open();
  const auto leases = weft::enable_all_peers(m);
  const buffer<std::uint32_t> word{m[1], 1};
  samples::gate held;
  const weft::stream busy{m[0]};
  held.hold(busy);
  const weft::stream order{m[0]};
  order.write_value(word.data(), std::uint32_t{1});
  order.write_value(word.data(), std::uint32_t{2});
  ASSERT_EQ(log.size(), 1U) << "once for the pair";
  EXPECT_NE(log[0].find("is not verified"), std::string::npos) << log[0];
  held.open();
  m.synchronize();
  expect_refused(error_of([&] { order.write_value(word.data(), std::uint32_t{3}); }), "stores: at byte 0");
}

// so that the tests above can fail
TEST_F(gpu_peer_arrival, data_is_lost_where_nothing_is_verified) {
  driver.drop(0, 1, copies | allocations);
  const machine m = open_with(weft::peer_verification::never);
  const auto leases = weft::enable_all_peers(m);
  const auto from = made(m[0], 5), to = made(m[1], 1);
  EXPECT_EQ(weft::copy(to, from).path, weft::copy_path::direct);
  EXPECT_EQ(read(to), std::vector<std::int32_t>(1000, 1));
  weft::launch<gpu_arrival_triple>(weft::stream{m[0]}, weft::range(1000), from, to).wait();
  EXPECT_EQ(read(to), std::vector<std::int32_t>(1000, 1));
}

TEST_F(gpu_peer_arrival, verify_peers_finds_each_way_in_which_data_is_lost) {
  for (const auto& [lost, words] : std::vector<std::pair<unsigned, const char*>>{
           {copies, "a copy: at byte 0"}, {allocations, "stores: at byte 0"}, {pools, "stores"}, {blocks, "stores"}}) {
    driver.drop(0, 1, lost);
    const machine m = open();
    for (const weft::peer_check& check : weft::verify_peers(m)) {
      const bool is_bad = check.from == gpu0 && check.to == gpu1;
      EXPECT_EQ(check.arrived, !is_bad) << to_string(check.from) << to_string(check.to) << lost << check.why;
      EXPECT_EQ(check.why.find(words) != std::string::npos, is_bad) << check.why;
    }
  }
}

}  // namespace gpu_peer_arrival_test
