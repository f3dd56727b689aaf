// SPDX-License-Identifier: Apache-2.0
// Ends of a queue between processes, lent to kernels of either.
#include "support/couple.hpp"
#include "support/samples.hpp"
#include "weft/channel/kernel_end.hpp"
#include "weft/channel/shared_queue.hpp"
#include "weft/exec/kernels.hpp"
#include "weft/exec/launch.hpp"

#include <gtest/gtest.h>

#include <thread>

namespace shared_kernel_end_test {

using processes::couple;
using processes::shared;
using samples::error_of;
using samples::play;
using samples::wired;
using weft::connect_receiver;
using weft::connect_sender;
using weft::errc;
using weft::kernel_end;
using weft::machine;
using weft::process_group;
using weft::queue_options;
using weft::queue_status;
using weft::rank;
using namespace std::chrono_literals;

constexpr rank here{0}, there{1};
constexpr std::uint64_t patience = 200'000'000'000;  // polls, which take minutes: only a hang comes to it

WEFT_KERNEL(sends_squares, (WEFT_RING out, uint64_t first, uint64_t count, uint64_t polls, WEFT_OUT(int32_t) outcome), {
  outcome[i] = 0;
  for (uint64_t n = first; n < first + count && outcome[i] == 0; ++n) {
    const uint64_t message = n * n;
    outcome[i] = weft_ring_send(out, &message, polls);
  }
});

// How many squares came in order, and what ended it.
WEFT_KERNEL(takes_squares,
            (WEFT_RING in, uint64_t first, uint64_t count, uint64_t polls, WEFT_OUT(uint64_t) good,
             WEFT_OUT(int32_t) outcome),
            {
              outcome[i] = 0;
              good[i] = 0;
              uint64_t message = 0;
              for (uint64_t n = first; n < first + count && outcome[i] == 0; ++n) {
                outcome[i] = weft_ring_receive(in, &message, polls);
                if (outcome[i] == 0 && message == n * n) good[i] += 1;
              }
            });

template <class T>
T first_of(const weft::buffer<T>& memory) {
  std::vector<T> got(1);
  weft::copy(got, memory);
  return got[0];
}

queue_options small() {
  queue_options options;
  options.capacity = 32;
  options.timeout = samples::only_a_hang;
  return options;
}

/// Sends squares by a kernel of a machine of its own.
int send_by_kernel(process_group& group, std::uint64_t count) {
  auto tx = connect_sender<std::uint64_t>(group, here, 3, small());
  const machine m = play(wired(2));
  const weft::buffer<std::int32_t> outcome{m[1], 1};
  const kernel_end out{tx, m[1]};
  weft::launch<sends_squares>(weft::stream{m[1]}, weft::range(1), out, std::uint64_t{0}, count, patience, outcome)
      .wait();
  return first_of(outcome);
}

TEST(shared_kernel_end, a_kernel_sends_to_a_thread_of_another_process_that_sleeps) {
  queue_options options = small();
  options.wait_policy = weft::waiting::park;
  constexpr std::uint64_t count = 2000;
  couple pair{[&](process_group& group) { return send_by_kernel(group, count); }};
  auto rx = connect_receiver<std::uint64_t>(pair.group, there, 3, options);
  std::uint64_t got = 0;
  for (std::uint64_t n = 0; n < count; ++n) {
    ASSERT_EQ(rx.receive(got), queue_status::ok) << n;
    ASSERT_EQ(got, n * n);
  }
  EXPECT_EQ(rx.receive(got), queue_status::closed) << "the sender was let go of after its loan";
  EXPECT_EQ(pair.other.wait(), 0);
}

TEST(shared_kernel_end, a_thread_that_waits_for_kernels_of_another_process_looks_by_itself) {
  queue_options options = small();
  options.wait_policy = weft::waiting::park;
  shared<std::atomic<int>> lent, seen;
  couple pair{[&](process_group& group) {
    auto tx = connect_sender<std::uint64_t>(group, here, 3, small());
    const machine m = play(wired(2));
    const kernel_end out{tx, m[1]};
    lent->store(1);
    while (seen->load() == 0) std::this_thread::yield();
    return 0;
  }};
  auto rx = connect_receiver<std::uint64_t>(pair.group, there, 3, options);
  while (lent->load() == 0) std::this_thread::yield();
  const auto looks = [&] {
    const std::uint64_t before = rx.statistics().receiver_parks;
    std::uint64_t got = 0;
    EXPECT_EQ(rx.receive_for(got, 200ms), queue_status::timed_out);
    return rx.statistics().receiver_parks - before;
  };
  // Asleep until somebody wakes it, it would look after 1, 2, 4, 8, 16 ms and then every 20: 15 times at most, however
  // fast the machine. Tried again, for it may have got no turn.
  EXPECT_TRUE(processes::comes_true([&] { return looks() > 20; }));
  seen->store(1);
  EXPECT_EQ(pair.other.wait(), 0);
}

TEST(shared_kernel_end, kernels_of_two_processes_talk_while_both_run) {
  constexpr std::uint64_t count = 5000;  // far more than the ring holds
  couple pair{[&](process_group& group) { return send_by_kernel(group, count); }};
  auto rx = connect_receiver<std::uint64_t>(pair.group, there, 3, small());
  const machine m = play(wired(2));
  const weft::buffer<std::int32_t> outcome{m[0], 1};
  const weft::buffer<std::uint64_t> good{m[0], 1};
  {
    const kernel_end in{rx, m[0]};
    EXPECT_EQ(in.visibility(), weft::ring_visibility::immediate);
    std::uint64_t held = 0;
    EXPECT_EQ(rx.try_receive(held), queue_status::failed) << "it is lent";
    const weft::stream order{m[0]};
    for (const std::uint64_t first : {std::uint64_t{0}, count / 2}) {  // a later kernel goes on where the first ended
      weft::launch<takes_squares>(order, weft::range(1), in, first, count / 2, patience, good, outcome).wait();
      EXPECT_EQ(first_of(outcome), WEFT_RING_OK);
      EXPECT_EQ(first_of(good), count / 2);
    }
  }
  EXPECT_EQ(pair.other.wait(), 0);
  std::uint64_t got = 0;
  EXPECT_EQ(rx.receive(got), queue_status::closed) << "the end is the host's again";
}

TEST(shared_kernel_end, a_kernel_gets_all_that_a_killed_process_had_sent_and_is_stopped_behind_it) {
  shared<std::atomic<int>> sent;
  couple pair{[&](process_group& group) {
    auto tx = connect_sender<std::uint64_t>(group, here, 3, small());
    for (std::uint64_t n = 0; n < 20; ++n) {
      if (tx.send(n * n) != queue_status::ok) return 1;
    }
    sent->store(1);
    for (;;) ::pause();
  }};
  auto rx = connect_receiver<std::uint64_t>(pair.group, there, 3, small());
  const machine m = play(wired(2));
  const weft::buffer<std::int32_t> outcome{m[0], 1};
  const weft::buffer<std::uint64_t> good{m[0], 1};
  {
    const kernel_end in{rx, m[0]};
    const weft::stream order{m[0]};
    const auto running = weft::launch<takes_squares>(order, weft::range(1), in, std::uint64_t{0}, std::uint64_t{1000},
                                                     ~std::uint64_t{0}, good, outcome);
    while (sent->load() == 0) std::this_thread::yield();
    pair.other.kill(SIGKILL);
    running.wait();  // its polls would last for longer than any test
    EXPECT_EQ(first_of(outcome), WEFT_RING_STOPPED);
    EXPECT_EQ(first_of(good), 20U);
  }
  std::uint64_t got = 0;
  EXPECT_EQ(rx.receive(got), queue_status::failed);
  ASSERT_TRUE(rx.failure());
  EXPECT_EQ(rx.failure()->code, errc::peer_dead);
}

TEST(shared_kernel_end, a_machine_that_is_closed_stops_its_kernels_and_the_other_process_hears_why) {
  shared<std::atomic<int>> closed;
  couple pair{[&](process_group& group) {
    auto tx = connect_sender<std::uint64_t>(group, here, 3, small());
    machine m = play(wired(2));
    const weft::buffer<std::int32_t> outcome{m[1], 1};
    const kernel_end out{tx, m[1]};
    // a second loan is refused, and changes nothing of the first
    const bool is_refused =
        error_of([&] { const kernel_end again{tx, m[1]}; }).what.find("lent already") != std::string::npos;
    const weft::stream order{m[1]};
    const auto running = weft::launch<sends_squares>(order, weft::range(1), out, std::uint64_t{0},
                                                     std::uint64_t{1} << 40, ~std::uint64_t{0}, outcome);
    m.close();
    closed->store(is_refused ? 1 : 2);
    for (;;) ::pause();
    return 0;
  }};
  auto rx = connect_receiver<std::uint64_t>(pair.group, there, 3, small());
  while (closed->load() == 0) std::this_thread::yield();
  ASSERT_EQ(closed->load(), 1) << "a second loan";
  std::uint64_t got = 0;
  queue_status status = queue_status::ok;
  while (status == queue_status::ok) status = rx.receive(got);
  EXPECT_EQ(status, queue_status::failed);
  ASSERT_TRUE(rx.failure());
  EXPECT_EQ(rx.failure()->code, errc::device_lost);
  EXPECT_NE(rx.failure()->what.find("machine was closed"), std::string::npos) << rx.failure()->what;
}

TEST(shared_kernel_end, an_end_of_a_queue_with_checksums_is_refused_on_either_side) {
  // the checksums are the receiver's choice, and in no option of the sender's
  queue_options checked = small();
  checked.validate = true;
  couple pair{[&](process_group& group) {
    auto tx = connect_sender<std::uint64_t>(group, here, 3, small());
    const machine m = play(wired(2));
    return error_of([&] { const kernel_end out{tx, m[0]}; }).code == errc::unsupported ? 0 : 1;
  }};
  auto rx = connect_receiver<std::uint64_t>(pair.group, there, 3, checked);
  const machine m = play(wired(2));
  EXPECT_EQ(error_of([&] { const kernel_end in{rx, m[0]}; }).code, errc::unsupported);
  EXPECT_EQ(pair.other.wait(), 0);
}

TEST(shared_kernel_end, is_lent_to_a_device_that_is_named) {
  couple pair{[&](process_group& group) {
    auto rx = connect_receiver<std::uint64_t>(group, here, 3, small());
    return 0;
  }};
  auto tx = connect_sender<std::uint64_t>(pair.group, there, 3, small());
  const auto refused = error_of([&] { const kernel_end nowhere{tx}; });
  EXPECT_EQ(refused.code, errc::invalid_argument);
  EXPECT_NE(refused.what.find("kernel_end{end, machine[0]}"), std::string::npos) << refused.what;
  EXPECT_EQ(pair.other.wait(), 0);

  const machine m = play(wired(2));
  const weft::message_queue<std::uint64_t> within{m, samples::gpu0, samples::gpu1, small()};
  auto own = within.open_sender();
  EXPECT_EQ(error_of([&] { const kernel_end other{own, m[1]}; }).code, errc::wrong_device);
  const kernel_end good{own, m[0]};
}

}  // namespace shared_kernel_end_test
