// SPDX-License-Identifier: Apache-2.0
#include "backends/host/engine/fault_plan.hpp"
#include "support/samples.hpp"

#include <gtest/gtest.h>

#include <array>

namespace host_fault_plan_test {

using samples::gpu0;
using samples::gpu1;
using samples::gpu2;
using weft::device_id;
using weft::topology_fault;
using weft::host::fault_plan;
using kind = topology_fault::kind;

weft::topology with(topology_fault fault) {
  weft::topology made = samples::wired(3);
  made.faults.push_back(std::move(fault));
  return made;
}

TEST(fault_plan, without_faults_is_empty_and_does_nothing) {
  fault_plan plan{samples::wired(2)};
  EXPECT_TRUE(plan.empty());
  EXPECT_FALSE(plan.on_call("copy"));
  EXPECT_FALSE(plan.on_copy({}, gpu0, gpu1).fails);
  EXPECT_FALSE(plan.on_operation(gpu0).lost);
  EXPECT_FALSE(plan.drops(gpu0, gpu1));
}

TEST(fault_plan, strikes_the_nth_time_and_only_then) {
  fault_plan plan{with({.what = kind::copy_fails, .from = gpu0, .to = gpu1, .nth = 3})};
  std::vector<bool> failed;
  for (int i = 0; i < 6; ++i) failed.push_back(plan.on_copy({}, gpu0, gpu1).fails);
  EXPECT_EQ(failed, (std::vector<bool>{false, false, true, false, false, false}));
}

TEST(fault_plan, strikes_every_time_when_told_so) {
  fault_plan plan{with({.what = kind::corrupts, .from = gpu0, .to = gpu1, .nth = 0})};
  for (int i = 0; i < 5; ++i) {
    const auto verdict = plan.on_copy({}, gpu0, gpu1);
    EXPECT_TRUE(verdict.corrupts);
    EXPECT_FALSE(verdict.fails);
  }
}

TEST(fault_plan, counts_only_the_copies_that_it_is_about) {
  fault_plan plan{with({.what = kind::copy_fails, .from = gpu0, .to = gpu1, .nth = 2})};
  EXPECT_FALSE(plan.on_copy({}, gpu1, gpu0).fails);
  EXPECT_FALSE(plan.on_copy({}, gpu0, gpu2).fails);
  EXPECT_FALSE(plan.on_copy({}, gpu0, device_id{}).fails);
  EXPECT_FALSE(plan.on_copy({}, gpu0, gpu1).fails) << "the first";
  EXPECT_TRUE(plan.on_copy({}, gpu0, gpu1).fails) << "the second";
}

TEST(fault_plan, a_fault_of_a_link_strikes_any_copy_over_it_and_names_the_link) {
  fault_plan plan{with({.what = kind::copy_fails, .link = 2, .nth = 2})};
  const std::array<int, 2> over{1, 2};
  const std::array<int, 2> beside{1, 3};
  EXPECT_FALSE(plan.on_copy(over, gpu0, gpu1).fails);
  EXPECT_FALSE(plan.on_copy(beside, gpu0, gpu1).fails);
  const auto verdict = plan.on_copy(over, gpu2, device_id{});
  EXPECT_TRUE(verdict.fails);
  EXPECT_EQ(verdict.link, 2);
}

TEST(fault_plan, a_fault_of_a_device_strikes_its_operations) {
  fault_plan lost{with({.what = kind::device_lost, .device = gpu1, .nth = 2})};
  EXPECT_FALSE(lost.on_operation(gpu1).lost);
  EXPECT_FALSE(lost.on_operation(gpu0).lost);
  EXPECT_TRUE(lost.on_operation(gpu1).lost);
  fault_plan stalls{
      with({.what = kind::device_stalls, .device = gpu0, .nth = 1, .duration = std::chrono::milliseconds{7}})};
  EXPECT_EQ(stalls.on_operation(gpu0).stall, std::chrono::milliseconds{7});
  EXPECT_EQ(stalls.on_operation(gpu0).stall.count(), 0);
}

TEST(fault_plan, a_fault_of_a_call_strikes_that_function) {
  fault_plan plan{with({.what = kind::call_fails, .call = "allocate", .nth = 2})};
  EXPECT_FALSE(plan.on_call("allocate"));
  EXPECT_FALSE(plan.on_call("copy"));
  const auto cause = plan.on_call("allocate");
  ASSERT_TRUE(cause);
  EXPECT_NE(cause->what.find("allocate"), std::string::npos) << cause->what;
}

TEST(fault_plan, changes_what_goes_over_the_link_of_a_pair_and_not_through_the_host) {
  fault_plan plan{with({.what = kind::corrupts, .from = gpu0, .to = gpu1, .nth = 0})};
  EXPECT_TRUE(plan.on_copy({}, gpu0, gpu1).corrupts);
  EXPECT_FALSE(plan.on_copy({}, gpu0, gpu1, true).corrupts);
  EXPECT_TRUE(plan.always_corrupts({}, gpu0, gpu1));
  EXPECT_FALSE(plan.always_corrupts({}, gpu1, gpu0));
}

TEST(fault_plan, drops_what_one_device_writes_to_another_in_that_direction) {
  fault_plan plan{with({.what = kind::drops_data, .from = gpu0, .to = gpu1})};
  EXPECT_TRUE(plan.drops(gpu0, gpu1));
  EXPECT_FALSE(plan.drops(gpu1, gpu0));
  EXPECT_FALSE(plan.drops(gpu0, gpu2));
}

TEST(call_fault, a_fault_of_a_device_spares_the_calls_for_other_devices) {
  const weft::machine m = samples::play(with({.what = kind::call_fails, .device = gpu1, .call = "allocate", .nth = 1}));
  const samples::byte_buffer spared{m[0], 100};
  EXPECT_EQ(samples::error_of([&] { const samples::byte_buffer struck{m[1], 100}; }).code,
            weft::errc::resource_exhausted);
  const samples::byte_buffer after{m[1], 100};
}

TEST(call_fault, a_fault_of_a_device_strikes_work_for_its_streams) {
  const weft::machine m = samples::play(with({.what = kind::call_fails, .device = gpu1, .call = "record", .nth = 1}));
  const weft::stream spared{m[0]}, struck{m[1]};
  spared.record().wait();
  EXPECT_EQ(samples::error_of([&] { static_cast<void>(struck.record()); }).code, weft::errc::resource_exhausted);
  struck.record().wait();
}

}  // namespace host_fault_plan_test
