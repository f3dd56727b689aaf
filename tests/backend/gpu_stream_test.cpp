// SPDX-License-Identifier: Apache-2.0
// Streams and events of the CUDA backend, on the virtual driver: order among streams and devices, who is told of an
// end and how, also by a driver that does not call, times, and what a reset leaves.
#include "runtime/machine_state.hpp"
#include "support/processes.hpp"
#include "support/raw_launch.hpp"
#include "support/samples.hpp"
#include "support/untold_stream.hpp"
#include "support/virtual_gpus.hpp"
#include "weft/exec/launch.hpp"
#include "weft/memory/fill.hpp"
#include "weft/memory/peer_access.hpp"
#include "weft/profile/profiler.hpp"

#include <atomic>
#include <chrono>
#include <future>
#include <stdexcept>
#include <stop_token>
#include <thread>
#include <vector>

namespace gpu_stream_test {

using samples::error_of;
using samples::gpu0;
using samples::gpu1;
using samples::soon;
using weft::errc;
using weft::wait_outcome;

WEFT_KERNEL(adds_one, (WEFT_INOUT(uint32_t) numbers), { numbers[i] = numbers[i] + 1U; });
/// Runs until the host sets the word to 1, and then to 2.
std::shared_ptr<const weft::kernel_code> waits_for_a_word() {
  weft::raw_kernel raw;
  raw.name = raw.entry = "waits_for_a_word";
  raw.parameters = {{"word", weft::element_type::uint8, weft::parameter_direction::inout, {}, false}};
  raw.cuda_source =
      "extern \"C\" __global__ void waits_for_a_word(volatile unsigned char* word, long long, long long) {"
      " if (threadIdx.x == 0) { while (word[0] == 0) { } word[0] = 2; } }";
  return weft::make_kernel_code(raw);
}

class gpu_stream : public samples::virtual_cuda_test {
 protected:
  [[nodiscard]] static weft::backend& of(const weft::machine& m) { return weft::detail::state_of(m)->backend_of(gpu0); }
};

/// A kernel that runs until it is let go.
class endless_kernel {
 public:
  // no test resets device 3, which would take this memory away
  endless_kernel(const weft::machine& m, const weft::stream& order) : word_(m[3], 1) {
    word_.data()[0] = 0;
    weft::kernel_argument argument;
    argument.type = weft::element_type::uint8;
    argument.direction = weft::parameter_direction::inout;
    argument.address = word_.data();
    argument.count = 1;
    running_ = samples::raw_launch{waits_for_a_word(), 1, {argument}}.in(m, order);
  }
  ~endless_kernel() { end(); }
  void end() { std::atomic_ref{word_.data()[0]}.store(1); }
  /// After end(): the kernel looks at the word no more, which may go. Only where the driver lets it run.
  [[nodiscard]] bool has_ended() const {
    return processes::comes_true([&] { return std::atomic_ref{word_.data()[0]}.load() == 2; });
  }
  [[nodiscard]] const weft::event& running() const { return running_; }

 private:
  weft::pinned_buffer<std::uint8_t> word_;
  weft::event running_;
};

TEST_F(gpu_stream, a_question_for_a_failure_or_for_the_time_between_sees_an_end_that_nobody_waits_for) {
  const weft::machine m = open();
  const weft::stream order{m[0]};
  const weft::buffer<std::uint32_t> memory{m[0], 64};
  const weft::event first = weft::fill(order, memory, 1U), second = weft::fill(order, memory, 2U);
  EXPECT_TRUE(processes::comes_true(
      [&] { return error_of([&] { static_cast<void>(weft::elapsed(first, second)); }).what == "nothing failed"; }));
  const weft::event failed = order.call([] { throw std::runtime_error{"on purpose"}; });
  EXPECT_TRUE(processes::comes_true([&] { return failed.failure().has_value(); }));
  EXPECT_EQ(error_of([&] { order.synchronize(); }).code, errc::kernel_failed) << "the question told nobody";
}

TEST_F(gpu_stream, a_stream_waits_for_one_of_another_device_in_the_driver) {
  const weft::machine m = open();
  const weft::stream first{m[0]};
  const weft::stream second{m[1]};
  const weft::pinned_buffer<std::uint32_t> numbers{m[0], 1000};
  for (std::uint32_t& one : numbers.host()) one = 0;
  endless_kernel busy{m, first};
  weft::event done;
  for (int round = 0; round < 10; ++round) {
    const auto here = weft::launch<adds_one>(first, weft::range(1000), numbers);
    second.wait(here);
    const auto there = weft::launch<adds_one>(second, weft::range(1000), numbers);
    first.wait(there);
    done = there;
  }
  EXPECT_FALSE(done.ready());
  // all of it is in the driver's hands: nobody here waits for any of it
  EXPECT_GE(driver.calls("cuStreamWaitEvent"), 19U);
  busy.end();
  done.wait();
  for (const std::uint32_t one : numbers.host()) ASSERT_EQ(one, 20U);
}

TEST_F(gpu_stream, tells_a_waiter_with_a_limit_of_the_end_and_one_that_gives_up_of_nothing) {
  const weft::machine m = open();
  const weft::stream order{m[0]};
  endless_kernel busy{m, order};
  EXPECT_EQ(busy.running().wait_for(std::chrono::milliseconds{1}), wait_outcome::timed_out);
  std::stop_source stop;
  auto given_up = std::async(std::launch::async,
                             [&] { return of(m).wait(*busy.running().record(), weft::no_deadline, stop.get_token()); });
  stop.request_stop();
  EXPECT_EQ(given_up.get(), wait_outcome::cancelled);
  auto waited = std::async(std::launch::async, [&] { return busy.running().wait_for(soon); });
  busy.end();
  EXPECT_EQ(waited.get(), wait_outcome::ok);
}

TEST_F(gpu_stream, tells_whoever_asked_without_anybody_waiting) {
  const weft::machine m = open();
  const weft::stream order{m[0]};
  std::promise<void> told;
  auto is_told = told.get_future();
  endless_kernel busy{m, order};
  busy.running().on_done([&] { told.set_value(); });
  EXPECT_NE(is_told.wait_for(std::chrono::seconds{0}), std::future_status::ready);
  busy.end();
  EXPECT_EQ(is_told.wait_for(soon), std::future_status::ready);
}

TEST_F(gpu_stream, tells_of_an_earlier_end_while_a_later_kernel_runs_on) {
  const weft::machine m = open();
  const weft::stream order{m[0]};
  const weft::stream other{m[0]};
  const weft::buffer<std::uint32_t> numbers{m[0], 100};
  endless_kernel first{m, other};
  order.wait(first.running());
  const auto early = weft::launch<adds_one>(order, weft::range(100), numbers);
  endless_kernel late{m, order};
  // asked for in the wrong order, and told in the right one
  std::promise<void> late_told;
  late.running().on_done([&] { late_told.set_value(); });
  std::promise<void> early_told;
  early.on_done([&] { early_told.set_value(); });
  first.end();
  EXPECT_EQ(early_told.get_future().wait_for(soon), std::future_status::ready);
  EXPECT_FALSE(late.running().ready());
  late.end();
  EXPECT_EQ(late_told.get_future().wait_for(soon), std::future_status::ready);
}

TEST_F(gpu_stream, whose_device_is_lost_tells_its_waiters_though_the_driver_never_calls) {
  for (const bool asks_to_be_called : {false, true}) {
    const weft::machine m = open();
    const weft::stream order{m[2]};
    endless_kernel busy{m, order};
    std::promise<void> told;
    auto called = told.get_future();
    if (asks_to_be_called) busy.running().on_done([&] { told.set_value(); });
    auto waited =
        std::async(std::launch::async, [&] { return of(m).wait(*busy.running().record(), of(m).now() + soon, {}); });
    driver.lose(2, 710);
    EXPECT_EQ(waited.get(), wait_outcome::failed);
    EXPECT_TRUE(m[2].is_lost());
    EXPECT_EQ(busy.running().failure()->native_code, 710);
    if (asks_to_be_called) {
      EXPECT_EQ(called.wait_for(soon), std::future_status::ready);
    }
    EXPECT_FALSE(m[0].is_lost());
    m[2].reset();
    const weft::buffer<std::uint32_t> numbers{m[2], 100};
    weft::fill(numbers, 1U);
    weft::launch<adds_one>(order, weft::range(100), numbers).wait();
    EXPECT_FALSE(m[2].is_lost());
  }
}

TEST_F(gpu_stream, a_stream_waiting_for_a_lost_device_fails_with_its_cause_and_goes_on) {
  const weft::machine m = open();
  const weft::stream lost{m[1]};
  const weft::stream waits{m[0]};
  const weft::buffer<std::uint32_t> numbers{m[0], 100};
  endless_kernel busy{m, lost};
  waits.wait(busy.running());
  const auto after = weft::launch<adds_one>(waits, weft::range(100), numbers);
  driver.lose(1, 700);
  const auto cause = error_of([&] { after.wait(); });
  EXPECT_EQ(cause.native_code, 700) << to_string(cause);
  EXPECT_TRUE(m[1].is_lost());
  EXPECT_FALSE(m[0].is_lost());
  weft::launch<adds_one>(waits, weft::range(100), numbers).wait();
}

TEST_F(gpu_stream, is_told_also_where_the_driver_refuses_to_call) {
  const weft::machine m = open();
  const weft::stream order{m[0]};
  endless_kernel busy{m, order};
  driver.fail("cuLaunchHostFunc@1=801");
  auto waited = std::async(std::launch::async, [&] { return busy.running().wait_for(soon); });
  busy.end();
  EXPECT_EQ(waited.get(), wait_outcome::ok);
}

TEST_F(gpu_stream, is_told_also_where_a_call_fails_that_asks_to_be_told) {
  const auto calls_of = [&](auto&& work) {
    const auto before = driver.calls("*");
    work();
    return driver.calls("*") - before;
  };
  const auto ask = [&](const endless_kernel& busy, std::promise<void>& told) {
    busy.running().on_done([&] { told.set_value(); });
  };
  // the thread that tells has seen all that it was called for: a call that came too early is used up
  const auto has_looked_on = [](const weft::machine& on) {
    const weft::buffer<std::uint32_t> numbers{on[0], 10};
    const weft::stream beside{on[0]};
    std::promise<void> seen;
    weft::fill(beside, numbers, 1U).on_done([&] { seen.set_value(); });
    ASSERT_EQ(seen.get_future().wait_for(soon), std::future_status::ready);
  };
  unsigned long long calls = 0;
  {  // closed before a call fails: memory on its way back may be in one
    const weft::machine m = open();
    const weft::stream order{m[0]};
    endless_kernel busy{m, order};
    std::promise<void> told;
    calls = calls_of([&] { ask(busy, told); });
    busy.end();
    ASSERT_EQ(told.get_future().wait_for(soon), std::future_status::ready);
    order.synchronize();
  }
  ASSERT_GT(calls, 2U);
  for (const int code : {2, 700, 999}) {
    for (unsigned long long n = 1; n <= calls; ++n) {
      const weft::machine other = open();
      const weft::stream there{other[1]};
      endless_kernel busy{other, there};
      std::promise<void> told;
      driver.fail(("*@" + std::to_string(n) + "=" + std::to_string(code)).c_str());
      ask(busy, told);
      driver.fail("");
      has_looked_on(other);
      SCOPED_TRACE("call " + std::to_string(n) + ", " + std::to_string(code));
      auto is_told = told.get_future();
      const bool is_fault = code == 700;  // with that the driver may have said that the work is over
      if (!is_fault) {
        ASSERT_EQ(is_told.wait_for(std::chrono::seconds{0}), std::future_status::timeout) << "it runs on";
      }
      busy.end();
      ASSERT_EQ(is_told.wait_for(soon), std::future_status::ready);
      ASSERT_TRUE(busy.has_ended()) << "else the word goes with a device that is lost for this library alone";
      if (!is_fault) {
        ASSERT_FALSE(busy.running().failure()) << "a call that failed is not the work";
      }
    }
  }
}

TEST_F(gpu_stream, is_told_also_where_the_driver_fails_once_who_looks_for_its_end) {
  for (const int code : {2, 700}) {
    const weft::machine m = open();
    const weft::stream order{m[1]};
    endless_kernel busy{m, order};
    std::promise<void> told;
    auto is_told = told.get_future();
    busy.running().on_done([&] { told.set_value(); });
    driver.fail(("cuEventQuery@1=" + std::to_string(code)).c_str());
    if (code == 2) {
      while (driver.calls("cuEventQuery") < 3) std::this_thread::yield();  // a thread looks, and looks again
      EXPECT_NE(is_told.wait_for(std::chrono::seconds{0}), std::future_status::ready);
    } else {
      // what it said of the end it says to the one who was called, though the driver has changed its mind
      ASSERT_EQ(is_told.wait_for(soon), std::future_status::ready);
      EXPECT_EQ(busy.running().failure()->native_code, 700);
    }
    busy.end();
    ASSERT_EQ(is_told.wait_for(soon), std::future_status::ready) << code;
    if (code == 2) {
      EXPECT_FALSE(busy.running().failure());
    }
  }
}

TEST_F(gpu_stream, asks_the_driver_to_call_after_the_work_and_not_before) {
  const weft::machine m = open();
  const weft::stream order{m[0]};
  endless_kernel busy{m, order};
  const auto waits = driver.calls("cuStreamWaitEvent");
  const auto calls = driver.calls("cuLaunchHostFunc");
  std::promise<void> told;
  busy.running().on_done([&] { told.set_value(); });
  // a call that comes too early is not seen from outside: the end is then found late, by a thread that looks
  EXPECT_EQ(driver.calls("cuStreamWaitEvent"), waits + 1);
  EXPECT_EQ(driver.calls("cuLaunchHostFunc"), calls + 1);
  busy.end();
  EXPECT_EQ(told.get_future().wait_for(soon), std::future_status::ready);
}

TEST_F(gpu_stream, refuses_work_without_waiting_for_what_runs_before_it) {
  const weft::machine m = open();
  const weft::stream order{m[0]};
  const weft::buffer<std::uint32_t> numbers{m[0], 100};
  weft::fill(numbers, 0U);
  for (const char* const plan : {"cuLaunchKernel@1=701", "cuEventRecord@1=2"}) {
    endless_kernel busy{m, order};
    driver.fail(plan);
    const auto refused = weft::launch<adds_one>(order, weft::range(100), numbers);  // this thread must end the other
    const auto skipped = weft::launch<adds_one>(order, weft::range(100), numbers);
    driver.fail("");
    EXPECT_FALSE(busy.running().ready());
    EXPECT_FALSE(refused.ready()) << "it is told in its turn";
    busy.end();
    const auto cause = error_of([&] { refused.wait(); });
    EXPECT_NE(cause.native_code, 0) << to_string(cause);
    EXPECT_EQ(error_of([&] { skipped.wait(); }).what, cause.what);
    EXPECT_FALSE(busy.running().failure());
    weft::launch<adds_one>(order, weft::range(100), numbers).wait();
  }
}

TEST_F(gpu_stream, runs_host_functions_in_order_and_gives_on_what_they_throw) {
  const weft::machine m = open();
  const weft::stream order{m[0]};
  const weft::pinned_buffer<std::uint32_t> numbers{m[0], 10};
  for (std::uint32_t& one : numbers.host()) one = 0;
  static_cast<void>(weft::launch<adds_one>(order, weft::range(10), numbers));
  std::uint32_t seen = 99;
  static_cast<void>(order.call([&] {
    seen = numbers.host()[9];
    numbers.host()[9] = 10;
  }));
  weft::launch<adds_one>(order, weft::range(10), numbers).wait();
  EXPECT_EQ(seen, 1U);
  EXPECT_EQ(numbers.host()[9], 11U);
  const auto thrown = order.call([] { throw std::runtime_error{"it rains"}; });
  const auto cause = error_of([&] { thrown.wait(); });
  EXPECT_EQ(cause.code, errc::kernel_failed);
  EXPECT_NE(cause.what.find("it rains"), std::string::npos) << cause.what;
}

TEST_F(gpu_stream, gives_priorities_the_driver_has_and_no_others) {
  const weft::machine m = open();
  for (const int priority : {-100, 0, 3, 100}) {
    weft::stream_options options;
    options.priority = priority;
    const weft::stream order{m[0], options};
    const weft::buffer<std::uint32_t> numbers{m[0], 10};
    EXPECT_NO_THROW(weft::fill(order, numbers, 1U).wait()) << priority;
  }
}

/// Whether a claim about times holds in one of several rounds, each with a machine of its own. The driver has 200 ms to
/// say what its clock shows; where this process was kept from its core for longer, weft takes the time at which it
/// looked.
template <class Holds>
bool in_some_round(Holds holds) {
  for (int round = 0; round < 20; ++round) {
    if (holds()) return true;
  }
  return false;
}

TEST_F(gpu_stream, a_traced_stream_records_when_its_work_ran) {
  EXPECT_TRUE(in_some_round([] {
    const weft::machine m = open();
    const weft::stream order{m[0]};
    const weft::buffer<std::uint32_t> numbers{m[0], 1000};
    weft::fill(numbers, 0U);
    const auto before = weft::detail::state_of(m)->backend_of(gpu0).now();
    const auto records = samples::traced(m, [&] {
      for (int n = 0; n < 5; ++n) static_cast<void>(weft::launch<adds_one>(order, weft::range(1000), numbers));
      order.synchronize();
    });
    const auto after = weft::detail::state_of(m)->backend_of(gpu0).now();
    std::vector<weft::trace_record> kernels;
    for (const auto& one : records) {
      if (one.kind == weft::trace_kind::kernel) kernels.push_back(one);
    }
    EXPECT_EQ(kernels.size(), 5U);
    bool in_order = true;
    auto last = before;
    for (const auto& one : kernels) {
      in_order = in_order && last <= one.started && one.started <= one.ended && one.ended <= after;
      EXPECT_EQ(one.name, "adds_one");
      last = one.ended;
    }
    return in_order;
  })) << "kernels that overlap, or ran before they were launched or after they were waited for";
}

TEST_F(gpu_stream, knows_how_long_work_ran_that_nobody_traced_and_only_the_last_was_waited_for) {
  EXPECT_TRUE(in_some_round([&] {
    const weft::machine m = open();
    const weft::stream order{m[0]};
    const auto begun = driver.calls("device.launch");
    const weft::event before = order.record();
    endless_kernel busy{m, order};
    const weft::event after = order.record();
    EXPECT_TRUE(processes::comes_true([&] { return driver.calls("device.launch") > begun; }));
    constexpr std::chrono::milliseconds least{60};
    const auto begin = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - begin < least)
      std::this_thread::yield();  // the time that it is to have run
    busy.end();
    after.wait();
    // the clocks are compared to some microseconds, and on a busy machine as late as threads there run: not by half
    return weft::elapsed(before, after) >= least / 2;
  })) << "the end of what was before it was taken for the time at which somebody looked";
}

TEST_F(gpu_stream, gives_back_every_event_by_which_it_told_times) {
  const auto made = driver.calls("cuEventCreate"), destroyed = driver.calls("cuEventDestroy");
  {
    const weft::machine m = open();
    const weft::stream order{m[0]};
    const weft::event first = order.record(), last = order.record();
    last.wait();
    static_cast<void>(weft::elapsed(first, last));
  }
  EXPECT_EQ(driver.calls("cuEventDestroy") - destroyed, driver.calls("cuEventCreate") - made);
}

TEST_F(gpu_stream, times_of_a_closed_machine_are_told_without_the_driver) {
  weft::machine m = open();
  const weft::stream order{m[0]};
  const weft::event first = order.record(), last = order.record();
  last.wait();
  m.close();
  const auto calls = driver.calls("*");
  EXPECT_GE(weft::elapsed(first, last).count(), 0);
  EXPECT_EQ(driver.calls("*"), calls);
}

TEST_F(gpu_stream, refuses_what_the_driver_has_no_stream_or_event_for) {
  const weft::machine m = open();
  driver.fail("cuStreamCreateWithPriority@1=2");
  EXPECT_EQ(error_of([&] { const weft::stream order{m[3]}; }).code, errc::out_of_memory);
  driver.fail("");
  const weft::stream order{m[3]};
  const weft::buffer<std::uint32_t> numbers{m[3], 10};
  weft::fill(order, numbers, 1U).wait();
  driver.fail("cuEventRecord@1=2");
  const auto refused = weft::fill(order, numbers, 2U);
  EXPECT_EQ(error_of([&] { refused.wait(); }).code, errc::out_of_memory);
  weft::fill(order, numbers, 3U).wait();
}

TEST_F(gpu_stream, the_end_of_a_machine_ends_the_work_held_back_in_a_stream) {
  weft::event held;
  samples::gate shut;
  {
    const weft::machine m = open();
    const weft::stream order{m[0]};
    const weft::buffer<std::uint32_t> numbers{m[0], 10};
    static_cast<void>(shut.hold(order));
    held = weft::launch<adds_one>(order, weft::range(10), numbers);
    shut.open();
  }
  EXPECT_TRUE(held.ready());
}

TEST_F(gpu_stream, has_the_profile_count_how_long_it_stood_still_for_another) {
  const weft::machine m = open();
  const weft::stream first{m[0]}, second{m[1]};
  const weft::profiler watch{m};
  samples::gate gate;
  second.wait(gate.hold(first));
  gate.open();
  m.synchronize();
  const weft::machine_profile p = watch.profile();
  EXPECT_EQ(p.devices[1].waits, 1U);
  EXPECT_GT(p.devices[1].synchronisation.count(), 0);
}

TEST_F(gpu_stream, behind_its_failure_is_left_to_the_owner_that_alone_is_told) {
  const weft::machine m = open();
  EXPECT_EQ(samples::untold_stream_fault(m, gpu0), "");
}

}  // namespace gpu_stream_test
