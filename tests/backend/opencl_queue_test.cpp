// SPDX-License-Identifier: Apache-2.0
// Queues of OpenCL devices: over one memory with the host, where a kernel and the other end go on together, and over
// buffers, where each launch works on an image of its end.
#include "support/couple.hpp"
#include "support/hang.hpp"
#include "support/opencl_machines.hpp"
#include "support/paths.hpp"
#include "support/rounds.hpp"
#include "support/samples.hpp"
#include "weft/channel/kernel_end.hpp"
#include "weft/channel/shared_queue.hpp"
#include "weft/exec/launch_run.hpp"

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace opencl_queue_test {

using samples::error_of;
using samples::gpu0;
using samples::gpu1;
using weft::backpressure;
using weft::errc;
using weft::kernel_end;
using weft::machine;
using weft::message_queue;
using weft::queue_options;
using weft::queue_status;
using weft::ring_visibility;
using weft::transfer_mode;

constexpr std::uint64_t for_ever = ~std::uint64_t{0};  // looks: what would wait that long hangs

// Changes every word, so that a message that the kernel has not seen cannot come back.
WEFT_KERNEL(answers, (WEFT_RING in, WEFT_RING out, uint64_t most, uint64_t polls, WEFT_OUT(uint64_t, whole) result), {
  uint32_t message[1024];
  uint64_t done = 0;
  int came_to = WEFT_RING_OK;
  for (; done < most; ++done) {
    came_to = weft_ring_receive(in, &message, polls);
    if (came_to != WEFT_RING_OK) break;
    for (uint32_t word = 0; word < in->bytes / 4; ++word) {
      message[word] = message[word] * 3u + word;
    }
    came_to = weft_ring_send(out, &message, polls);
    if (came_to != WEFT_RING_OK) break;
  }
  result[0] = done;
  result[1] = (uint64_t)came_to;
});

WEFT_KERNEL(counts_up, (WEFT_RING out, uint64_t first, uint64_t most, uint64_t polls, WEFT_OUT(uint64_t, whole) result),
            {
              uint64_t done = 0;
              int came_to = WEFT_RING_OK;
              for (; done < most && came_to == WEFT_RING_OK; ++done) {
                uint64_t message = first + done;
                came_to = weft_ring_send(out, &message, polls);
              }
              result[0] = came_to == WEFT_RING_OK ? done : done - 1;
              result[1] = (uint64_t)came_to;
            });

WEFT_KERNEL(counts_up_and_closes, (WEFT_RING out, uint64_t most), {
  for (uint64_t n = 0; n < most; ++n) {
    weft_ring_try_send(out, &n);
  }
  weft_ring_close_writer(out);
});

// result: how many, how it ended, and how many did not follow the one before by one
WEFT_KERNEL(follows, (WEFT_RING in, uint64_t first, uint64_t most, uint64_t polls, WEFT_OUT(uint64_t, whole) result), {
  uint64_t done = 0;
  uint64_t wrong = 0;
  int came_to = WEFT_RING_OK;
  while (done < most) {
    uint64_t message = 0;
    came_to = weft_ring_receive(in, &message, polls);
    if (came_to != WEFT_RING_OK) break;
    wrong += message != first + done ? 1 : 0;
    ++done;
  }
  result[0] = done;
  result[1] = (uint64_t)came_to;
  result[2] = wrong;
});

WEFT_KERNEL(closes_its_reader, (WEFT_RING in), { weft_ring_close_reader(in); });

void known_to_the_host_alone(const weft_ring* /*in*/) {}
WEFT_KERNEL(calls_the_host, (WEFT_RING in), { known_to_the_host_alone(in); });

struct outcome {
  std::uint64_t done = 0;
  int came_to = 0;
  std::uint64_t wrong = 0;
};

/// What a kernel came to.
class noted {
 public:
  explicit noted(const weft::device& on) : memory_{on, 3} {}
  [[nodiscard]] const weft::buffer<std::uint64_t>& memory() const { return memory_; }
  [[nodiscard]] outcome read() const {
    std::vector<std::uint64_t> got(3);
    weft::copy(got, memory_);
    return {got[0], static_cast<int>(got[1]), got[2]};
  }

 private:
  weft::buffer<std::uint64_t> memory_;
};

template <std::size_t Bytes>
struct note {
  std::array<std::uint32_t, Bytes / 4> words;

  explicit note(std::uint64_t seed = 0) {
    for (std::size_t i = 0; i < words.size(); ++i)
      words[i] = static_cast<std::uint32_t>(seed * 2654435761U) ^ static_cast<std::uint32_t>(i * 40503U + 7U);
  }
  [[nodiscard]] note answered() const {
    note made = *this;
    for (std::size_t i = 0; i < words.size(); ++i) made.words[i] = words[i] * 3U + static_cast<std::uint32_t>(i);
    return made;
  }
  friend bool operator==(const note& a, const note& b) { return a.words == b.words; }
};

class opencl_queue : public samples::opencl_test {
 protected:
  static bool is_shared() { return GetParam() == samples::opencl_memory::shared; }
};
INSTANTIATE_TEST_SUITE_P(memories, opencl_queue, samples::both_memories, samples::name_of_memory);

queue_options of_capacity(std::size_t capacity) {
  queue_options options;
  options.capacity = capacity;
  options.timeout = samples::only_a_hang;
  return options;
}

// ---- ends that the host uses ----------------------------------------------------------------------------------------

TEST_P(opencl_queue, says_what_moves_its_messages_and_why) {
  const machine m = open();
  for (const auto& [from, to] : {std::pair{gpu0, gpu1}, std::pair{gpu1, gpu1}}) {
    for (const transfer_mode asked : {transfer_mode::adaptive, transfer_mode::direct, transfer_mode::host_staged}) {
      queue_options options = of_capacity(16);
      options.mode = asked;
      const message_queue<int> queue{m, from, to, options};
      const bool direct = is_shared() && asked != transfer_mode::host_staged;
      EXPECT_EQ(queue.mode(), direct ? transfer_mode::direct : transfer_mode::host_staged);
      const bool explains = !is_shared() && asked != transfer_mode::host_staged;
      EXPECT_EQ(queue.why().find("by commands only") != std::string::npos, explains) << queue.why();
      EXPECT_EQ(queue.why().find("no fine-grained shared memory") != std::string::npos, explains) << queue.why();
      auto tx = queue.open_sender();
      auto rx = queue.open_receiver();
      for (int n = 0; n < 40; ++n) {
        int got = -1;
        ASSERT_EQ(tx.send(n), queue_status::ok);
        ASSERT_EQ(rx.receive(got), queue_status::ok);
        ASSERT_EQ(got, n);
      }
      const auto s = queue.statistics();
      EXPECT_EQ((direct ? s.direct : s.staged).messages, 40U);
      EXPECT_EQ((direct ? s.direct : s.staged).bytes, 40 * sizeof(int));
      EXPECT_EQ((direct ? s.staged : s.direct), weft::moved{});
    }
  }
}

struct odd_size {
  std::uint64_t number;
  std::array<std::uint8_t, 29> rest;
};

TEST_P(opencl_queue, keeps_every_policy_between_threads_of_the_host) {
  const machine m = open();
  for (const backpressure policy : {backpressure::block, backpressure::spill, backpressure::overwrite_oldest}) {
    for (const bool validate : {false, true}) {
      queue_options options = of_capacity(64);
      options.when_full = policy;
      options.validate = validate;
      const message_queue<odd_size> queue{m, gpu0, gpu1, options};
      constexpr std::uint64_t count = 5000;
      auto rx = queue.open_receiver();
      std::jthread sending{[tx = queue.open_sender()]() mutable {
        for (std::uint64_t n = 0; n < count; ++n) {
          if (tx.send({n, {static_cast<std::uint8_t>(n)}}) != queue_status::ok) return;
        }
      }};
      std::uint64_t seen = 0, next = 0;
      odd_size got{};
      for (; rx.receive(got) == queue_status::ok; ++seen) {
        ASSERT_GE(got.number, next) << weft::to_string(policy);
        ASSERT_EQ(got.rest[0], static_cast<std::uint8_t>(got.number));
        next = got.number + 1;
      }
      const auto s = queue.statistics();
      EXPECT_EQ(s.sent, count) << weft::to_string(policy) << (validate ? ", validated" : "");
      EXPECT_EQ(seen + s.lost, count) << weft::to_string(policy) << (validate ? ", validated" : "");
      if (policy != backpressure::overwrite_oldest) {
        EXPECT_EQ(s.lost, 0U);
      }
    }
  }
}

TEST_P(opencl_queue, a_queue_with_several_producers_keeps_the_order_of_each) {
  const machine m = open();
  queue_options options = of_capacity(16);
  options.producers = 3;
  const message_queue<std::array<std::uint64_t, 2>> queue{m, gpu0, gpu1, options};
  auto rx = queue.open_receiver();
  constexpr std::uint64_t count = 2000;
  std::vector<std::jthread> sending;
  for (std::uint64_t p = 0; p < 3; ++p) {
    sending.emplace_back([p, tx = queue.open_sender()]() mutable {
      for (std::uint64_t n = 0; n < count && tx.send({p, n}) == queue_status::ok;) ++n;
    });
  }
  std::array<std::uint64_t, 3> next{};
  std::array<std::uint64_t, 2> got{};
  while (rx.receive(got) == queue_status::ok) ASSERT_EQ(got[1], next.at(got[0])++);
  EXPECT_EQ(next, (std::array<std::uint64_t, 3>{count, count, count}));
}

// ---- ends that kernels use ------------------------------------------------------------------------------------------

TEST_P(opencl_queue, lends_an_end_and_says_when_what_it_does_is_seen) {
  const machine m = open();
  queue_options options = of_capacity(1024);
  options.staging_size = weft::bytes{100 * sizeof(note<12>)};
  const message_queue<note<12>> queue{m, gpu0, gpu1, options};
  auto tx = queue.open_sender();
  const kernel_end out{tx};
  EXPECT_EQ(out.visibility(), is_shared() ? ring_visibility::immediate : ring_visibility::launch_boundary);
  EXPECT_EQ(weft::to_string(out.visibility()), is_shared() ? "immediate" : "launch_boundary");
  EXPECT_EQ(out.per_launch(), is_shared() ? std::nullopt : std::optional<std::size_t>{64})
      << "a power of two that fits";
  EXPECT_EQ(tx.try_send(note<12>{1}), queue_status::failed);
  EXPECT_NE(tx.failure()->what.find("lent"), std::string::npos);
  EXPECT_EQ(error_of([&] { const kernel_end twice{tx}; }).code, errc::unsupported);
}

TEST_P(opencl_queue, lends_ends_to_kernels_whose_other_ends_are_in_another_process) {
  constexpr std::uint64_t count = 200;
  constexpr weft::rank here{0}, there{1};
  processes::couple pair{[&](weft::process_group& group) {  // without OpenCL, which a fork does not survive
    auto [tx, rx] = weft::connect_both<std::uint64_t>(group, here, 5, of_capacity(1024));
    for (std::uint64_t n = 0; n < count; ++n) {
      if (tx.send(n) != queue_status::ok) return 1;
    }
    for (std::uint64_t n = 0; n < count; ++n) {
      std::uint64_t got = 0;
      if (rx.receive_for(got, samples::only_a_hang) != queue_status::ok || got != 3 * n + (std::uint64_t{1} << 32))
        return 2;
    }
    return 0;
  }};
  auto [tx, rx] = weft::connect_both<std::uint64_t>(pair.group, there, 5, of_capacity(1024));
  const machine m = open();
  const noted result{m[0]};
  const weft::stream order{m[0]};
  {
    const kernel_end in{rx, m[0]}, out{tx, m[0]};
    // PoCL's devices are this process's processors: where they share memory with the host they share all of it
    EXPECT_EQ(in.visibility(), is_shared() ? ring_visibility::immediate : ring_visibility::launch_boundary);
    auto deadline = std::chrono::steady_clock::now() + samples::only_a_hang;  // without one message
    std::uint64_t done = 0;
    while (done < count && std::chrono::steady_clock::now() < deadline) {
      weft::launch<answers>(order, weft::range(1), in, out, count - done, for_ever, result.memory()).wait();
      const std::uint64_t more = result.read().done;
      if (more != 0) deadline = std::chrono::steady_clock::now() + samples::only_a_hang;
      done += more;
    }
    EXPECT_EQ(done, count);
  }
  EXPECT_EQ(pair.other.wait(), 0);
}

/// `capacity`: a ring that a kernel shares gives space back by quarters, so that 32 messages need a larger one.
template <std::size_t Bytes>
void echo(const machine& m, std::size_t capacity) {
  SCOPED_TRACE(Bytes);
  const message_queue<note<Bytes>> there{m, gpu1, gpu0, of_capacity(capacity)},
      back{m, gpu0, gpu1, of_capacity(capacity)};
  auto tx = there.open_sender();
  auto rx = back.open_receiver();
  auto kernels_rx = there.open_receiver();
  auto kernels_tx = back.open_sender();
  const kernel_end in{kernels_rx}, out{kernels_tx};
  const weft::stream order{m[0]};
  const noted result{m[0]};
  std::uint64_t sent = 0, got = 0;
  for (const std::uint64_t batch : {1U, 5U, 32U, 0U, 7U, 31U, 32U, 2U}) {
    for (std::uint64_t n = 0; n < batch; ++n) ASSERT_EQ(tx.try_send(note<Bytes>{sent++}), queue_status::ok);
    weft::launch<answers>(order, weft::range(1), in, out, batch, for_ever, result.memory()).wait();
    ASSERT_EQ(result.read().done, batch);
    ASSERT_EQ(result.read().came_to, WEFT_RING_OK);
    for (; got < sent; ++got) {
      note<Bytes> answer;
      ASSERT_EQ(rx.receive(answer), queue_status::ok);
      ASSERT_TRUE(answer == note<Bytes>{got}.answered()) << "message " << got;
    }
    note<Bytes> more;
    ASSERT_EQ(rx.try_receive(more), queue_status::empty) << "who finds nothing has given all space back";
  }
}

TEST_P(opencl_queue, brings_messages_of_every_size_to_a_kernel_and_back) {
  const machine m = open();
  const std::size_t capacity = is_shared() ? 64 : 32;
  echo<4>(m, capacity);
  echo<8>(m, capacity);
  echo<12>(m, capacity);
  echo<20>(m, capacity);
  echo<24>(m, capacity);
  echo<28>(m, capacity);
  echo<60>(m, capacity);
  echo<100>(m, capacity);
  echo<516>(m, capacity);
  echo<4092>(m, capacity);
}

TEST_P(opencl_queue, takes_more_than_it_holds_from_a_kernel_over_several_launches) {
  const machine m = open();
  for (const std::uint64_t staging : {std::uint64_t{1} << 20, std::uint64_t{1}}) {
    queue_options options = of_capacity(64);
    options.staging_size = weft::bytes{staging};
    const message_queue<std::uint64_t> queue{m, gpu0, gpu1, options};
    auto tx = queue.open_sender();
    auto rx = queue.open_receiver();
    const weft::stream order{m[0]};
    const noted result{m[0]};
    std::uint64_t sent = 0, got = 0, message = 0;
    {
      const kernel_end out{tx};
      const std::uint64_t most = std::min(out.per_launch().value_or(64), std::size_t{64});
      while (sent < 1000) {
        weft::launch<counts_up>(order, weft::range(1), out, sent, std::uint64_t{1000}, std::uint64_t{5},
                                result.memory())
            .wait();
        const outcome came = result.read();
        ASSERT_EQ(came.came_to, WEFT_RING_FULL) << "space has an end";
        ASSERT_GE(came.done, got == 0 ? most : 1U);
        sent += came.done;
        for (; got < sent; ++got) {
          ASSERT_EQ(rx.try_receive(message), queue_status::ok) << "message " << got;
          ASSERT_EQ(message, got);
        }
        ASSERT_EQ(rx.try_receive(message), queue_status::empty);
      }
    }
    EXPECT_EQ(queue.statistics().sent, sent);
    ASSERT_EQ(tx.send(77), queue_status::ok) << "and the host goes on where the kernels were";
    ASSERT_EQ(rx.receive(message), queue_status::ok);
    EXPECT_EQ(message, 77U);
  }
}

TEST_P(opencl_queue, gives_a_kernel_what_was_sent_and_its_space_back_to_a_sender_that_waits) {
  const machine m = open();
  const message_queue<std::uint64_t> queue{m, gpu0, gpu1, of_capacity(32)};
  auto rx = queue.open_receiver();
  const kernel_end in{rx};
  constexpr std::uint64_t count = 2000;
  std::jthread sending{[tx = queue.open_sender()]() mutable {
    for (std::uint64_t n = 0; n < count && tx.send(n) == queue_status::ok;) ++n;
  }};
  const weft::stream order{m[1]};
  const noted result{m[1]};
  std::uint64_t got = 0;
  outcome came;
  auto deadline = std::chrono::steady_clock::now() + samples::only_a_hang;  // without one message
  while (came.came_to != WEFT_RING_CLOSED && std::chrono::steady_clock::now() < deadline) {
    weft::launch<follows>(order, weft::range(1), in, got, for_ever >> 1, std::uint64_t{100}, result.memory()).wait();
    came = result.read();
    if (came.done != 0) deadline = std::chrono::steady_clock::now() + samples::only_a_hang;
    got += came.done;
    ASSERT_EQ(came.wrong, 0U);
  }
  EXPECT_EQ(came.came_to, WEFT_RING_CLOSED) << "the sender has closed, and everything was received";
  EXPECT_EQ(got, count);
}

TEST_P(opencl_queue, joins_kernels_of_two_devices_launch_by_launch) {
  const machine m = open();
  const message_queue<std::uint64_t> queue{m, gpu0, gpu1, of_capacity(256)};
  auto tx = queue.open_sender();
  auto rx = queue.open_receiver();
  kernel_end out{tx}, in{rx};
  const weft::stream a{m[0]}, b{m[1]};
  const noted sent{m[0]}, received{m[1]};
  for (std::uint64_t part = 0; part < 10; ++part) {
    // nobody waits in between: the launch of the receiver is ordered behind that of the sender, as any other work
    const auto sending =
        weft::launch<counts_up>(a, weft::range(1), out, part * 200, std::uint64_t{200}, for_ever, sent.memory());
    b.wait(sending);
    weft::launch<follows>(b, weft::range(1), in, part * 200, std::uint64_t{200}, for_ever, received.memory()).wait();
    ASSERT_EQ(received.read().done, 200U);
    ASSERT_EQ(received.read().wrong, 0U);
  }
  out.end();
  in.end();
  EXPECT_EQ(queue.statistics().received, 2000U);
  EXPECT_EQ(queue.statistics().sent, 2000U);
}

TEST_P(opencl_queue, orders_launches_that_share_an_end_and_nobody_waits_for) {
  const machine m = open();
  const message_queue<note<20>> there{m, gpu1, gpu0, of_capacity(64)}, back{m, gpu0, gpu1, of_capacity(64)};
  auto tx = there.open_sender();
  auto rx = back.open_receiver();
  auto kernels_rx = there.open_receiver();
  auto kernels_tx = back.open_sender();
  const kernel_end in{kernels_rx}, out{kernels_tx};
  const noted result{m[0]};
  for (std::uint64_t n = 0; n < 60; ++n) ASSERT_EQ(tx.send(note<20>{n}), queue_status::ok);
  const weft::stream one{m[0]}, other{m[0]};
  std::optional<weft::event> last;
  for (int part = 0; part < 20; ++part) {
    const weft::stream& order = part % 3 == 0 ? one : other;
    if (last && is_shared()) order.wait(*last);  // images see to it themselves
    last = weft::launch<answers>(order, weft::range(1), in, out, std::uint64_t{3}, for_ever, result.memory());
  }
  last->wait();
  for (std::uint64_t n = 0; n < 60; ++n) {
    note<20> answer;
    ASSERT_EQ(rx.receive(answer), queue_status::ok);
    ASSERT_TRUE(answer == note<20>{n}.answered()) << "message " << n;
  }
}

TEST_P(opencl_queue, tells_a_kernel_that_its_writer_has_closed) {
  const machine m = open();
  const message_queue<std::uint64_t> queue{m, gpu0, gpu1, of_capacity(16)};
  auto tx = queue.open_sender();
  auto rx = queue.open_receiver();
  {
    const kernel_end out{tx};
    weft::launch<counts_up_and_closes>(weft::stream{m[0]}, weft::range(1), out, std::uint64_t{5}).wait();
  }
  std::uint64_t message = 0;
  for (std::uint64_t n = 0; n < 5; ++n) {
    ASSERT_EQ(rx.receive(message), queue_status::ok);
    EXPECT_EQ(message, n);
  }
  EXPECT_EQ(rx.receive(message), queue_status::closed);
}

TEST_P(opencl_queue, tells_a_kernel_that_its_reader_has_closed) {
  const machine m = open();
  const message_queue<std::uint64_t> queue{m, gpu0, gpu1, of_capacity(16)};
  auto tx = queue.open_sender();
  static_cast<void>(queue.open_receiver());  // and gone
  const kernel_end out{tx};
  const noted result{m[0]};
  weft::launch<counts_up>(weft::stream{m[0]}, weft::range(1), out, std::uint64_t{0}, std::uint64_t{100}, for_ever,
                          result.memory())
      .wait();
  EXPECT_EQ(result.read().came_to, WEFT_RING_CLOSED);
}

TEST_P(opencl_queue, closes_an_end_that_is_lent_when_it_comes_back) {
  const machine m = open();
  const message_queue<std::uint64_t> queue{m, gpu0, gpu1, of_capacity(16)};
  auto rx = queue.open_receiver();
  auto tx = queue.open_sender();
  const noted result{m[0]};
  std::optional<kernel_end> out{tx};
  const weft::stream order{m[0]};
  weft::launch<counts_up>(order, weft::range(1), *out, std::uint64_t{0}, std::uint64_t{3}, for_ever, result.memory())
      .wait();
  tx.close();
  weft::launch<counts_up>(order, weft::range(1), *out, std::uint64_t{3}, std::uint64_t{3}, for_ever, result.memory())
      .wait();
  EXPECT_EQ(result.read().done, 3U);
  std::uint64_t message = 0;
  for (std::uint64_t n = 0; n < 6; ++n) {
    ASSERT_EQ(rx.try_receive(message), queue_status::ok);
    EXPECT_EQ(message, n);
  }
  EXPECT_EQ(rx.try_receive(message), queue_status::empty) << "its kernels may still send";
  out.reset();
  EXPECT_EQ(rx.try_receive(message), queue_status::closed);
  EXPECT_EQ(tx.try_send(1), queue_status::closed);
}

TEST_P(opencl_queue, closes_a_receiver_that_is_lent_when_it_comes_back) {
  const machine m = open();
  const message_queue<std::uint64_t> queue{m, gpu0, gpu1, of_capacity(16)};
  auto tx = queue.open_sender();
  auto rx = queue.open_receiver();
  const noted result{m[1]};
  std::optional<kernel_end> in{rx};
  const weft::stream order{m[1]};
  std::uint64_t sent = 0;
  for (int round = 0; round < 3; ++round) {
    while (tx.try_send(sent) == queue_status::ok) ++sent;
    weft::launch<follows>(order, weft::range(1), *in, sent - 16, std::uint64_t{16}, std::uint64_t{0}, result.memory())
        .wait();
    ASSERT_EQ(result.read().done, 16U);
    ASSERT_EQ(result.read().wrong, 0U);
    rx.close();
  }
  ASSERT_EQ(tx.try_send(sent), queue_status::ok);
  in.reset();
  queue_status status = queue_status::ok;
  for (int n = 0; n < 17 && status == queue_status::ok; ++n) status = tx.try_send(sent);
  EXPECT_EQ(status, queue_status::closed);
}

TEST_P(opencl_queue, stays_closed_by_a_kernel_that_receives_when_the_next_one_is_launched) {
  const machine m = open();
  const message_queue<std::uint64_t> queue{m, gpu0, gpu1, of_capacity(16)};
  auto tx = queue.open_sender();
  auto rx = queue.open_receiver();
  for (std::uint64_t n = 0; n < 16; ++n) ASSERT_EQ(tx.try_send(n), queue_status::ok);
  const kernel_end in{rx};
  const noted result{m[1]};
  const weft::stream order{m[1]};
  weft::launch<closes_its_reader>(order, weft::range(1), in).wait();
  EXPECT_EQ(tx.try_send(16), queue_status::closed);
  weft::launch<follows>(order, weft::range(1), in, std::uint64_t{0}, std::uint64_t{0}, for_ever, result.memory())
      .wait();
  EXPECT_EQ(tx.try_send(16), queue_status::closed);
}

TEST_P(opencl_queue, a_queue_closed_with_both_ends_lent_stops_the_next_launches) {
  const machine m = open();
  message_queue<std::uint64_t> queue{m, gpu0, gpu1, of_capacity(16)};
  auto tx = queue.open_sender();
  auto rx = queue.open_receiver();
  const kernel_end out{tx}, in{rx};
  const noted sent{m[0]}, received{m[1]};
  queue.close();
  weft::launch<counts_up>(weft::stream{m[0]}, weft::range(1), out, std::uint64_t{0}, std::uint64_t{100}, for_ever,
                          sent.memory())
      .wait();
  weft::launch<follows>(weft::stream{m[1]}, weft::range(1), in, std::uint64_t{0}, std::uint64_t{100}, for_ever,
                        received.memory())
      .wait();
  EXPECT_EQ(sent.read().came_to, WEFT_RING_STOPPED);
  if (!is_shared()) {
    EXPECT_EQ(sent.read().done, 0U) << "it was closed when the launch began";
  }
  EXPECT_EQ(received.read().came_to, WEFT_RING_STOPPED);
}

TEST_P(opencl_queue, ends_when_its_machine_is_closed_while_an_end_is_lent) {
  machine m = open();
  const message_queue<std::uint64_t> queue{m, gpu0, gpu1, of_capacity(16)};
  auto tx = queue.open_sender();
  auto rx = queue.open_receiver();
  kernel_end out{tx};
  m.close();
  std::uint64_t message = 0;
  EXPECT_EQ(rx.receive(message), queue_status::failed);
  EXPECT_EQ(rx.failure()->code, errc::machine_closed);
  out.end();
}

// ---- what only an image has -----------------------------------------------------------------------------------------

class opencl_ring_image : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = samples::why_no_opencl(); !why.empty()) GTEST_SKIP() << why;
  }
  const machine m{samples::why_no_opencl().empty() ? samples::opencl_options(samples::opencl_memory::buffers)
                                                   : weft::machine_options{}};
};

TEST_F(opencl_ring_image, ends_every_wait_of_its_kernel_at_the_first_look) {
  const message_queue<std::uint64_t> queue{m, gpu0, gpu1, of_capacity(16)};
  auto tx = queue.open_sender();
  auto rx = queue.open_receiver();
  const noted result{m[1]};
  const weft::stream order{m[1]};
  {
    const kernel_end in{rx};
    weft::launch<follows>(order, weft::range(1), in, std::uint64_t{0}, std::uint64_t{5}, for_ever, result.memory())
        .wait();
    EXPECT_EQ(result.read().came_to, WEFT_RING_EMPTY) << "what is sent later is not for this launch";
    ASSERT_EQ(tx.send(0), queue_status::ok);
    weft::launch<follows>(order, weft::range(1), in, std::uint64_t{0}, std::uint64_t{5}, for_ever, result.memory())
        .wait();
    EXPECT_EQ(result.read().done, 1U);
    EXPECT_EQ(result.read().came_to, WEFT_RING_EMPTY);
  }
  const noted sent{m[0]};
  const kernel_end out{tx};
  weft::launch<counts_up>(weft::stream{m[0]}, weft::range(1), out, std::uint64_t{1}, for_ever >> 1, for_ever,
                          sent.memory())
      .wait();
  EXPECT_EQ(sent.read().came_to, WEFT_RING_FULL);
  EXPECT_EQ(sent.read().done, 16U);
  EXPECT_EQ(queue.statistics().empty, 2U) << "a look for each launch that found nothing";
  EXPECT_EQ(queue.statistics().full, 1U);
}

TEST_F(opencl_ring_image, tells_of_the_end_only_when_a_launch_has_everything) {
  queue_options options = of_capacity(64);
  options.staging_size = weft::bytes{1};
  const message_queue<std::uint64_t> queue{m, gpu0, gpu1, options};
  auto rx = queue.open_receiver();
  {
    auto tx = queue.open_sender();
    for (std::uint64_t n = 0; n < 40; ++n) ASSERT_EQ(tx.send(n), queue_status::ok);
  }
  const kernel_end in{rx};
  ASSERT_EQ(in.per_launch(), 16U);
  const weft::stream order{m[1]};
  const noted result{m[1]};
  for (std::uint64_t first = 0; first < 40; first += 16) {
    weft::launch<follows>(order, weft::range(1), in, first, for_ever >> 1, for_ever, result.memory()).wait();
    EXPECT_EQ(result.read().done, std::min<std::uint64_t>(16, 40 - first));
    EXPECT_EQ(result.read().wrong, 0U);
    EXPECT_EQ(result.read().came_to, first == 32 ? WEFT_RING_CLOSED : WEFT_RING_EMPTY);
  }
}

// Says that it has sent more than there was space for.
WEFT_KERNEL(lies, (WEFT_RING out, uint64_t position), { out->position = position; });

TEST_F(opencl_ring_image, an_impossible_image_ends_the_queue_as_corrupt) {
  for (const std::uint64_t position : {std::uint64_t{17}, for_ever}) {
    const message_queue<std::uint64_t> queue{m, gpu0, gpu1, of_capacity(16)};
    auto tx = queue.open_sender();
    auto rx = queue.open_receiver();
    const kernel_end out{tx};
    const weft::error cause =
        error_of([&] { weft::launch<lies>(weft::stream{m[0]}, weft::range(1), out, position).wait(); });
    EXPECT_EQ(cause.code, errc::corrupt) << to_string(cause);
    std::uint64_t message = 0;
    EXPECT_EQ(rx.receive(message), queue_status::failed);
    EXPECT_EQ(rx.failure()->code, errc::corrupt);
  }
}

TEST_F(opencl_ring_image, shows_nothing_of_a_kernel_before_its_launch_has_ended) {
  const message_queue<std::uint64_t> queue{m, gpu0, gpu1, of_capacity(16)};
  auto tx = queue.open_sender();
  auto rx = queue.open_receiver();
  const kernel_end out{tx};
  const weft::stream order{m[0]};
  const noted result{m[0]};
  samples::gate gate;
  gate.hold(order);
  const auto sending = weft::launch<counts_up>(order, weft::range(1), out, std::uint64_t{0}, std::uint64_t{4}, for_ever,
                                               result.memory());
  std::uint64_t message = 0;
  EXPECT_EQ(rx.try_receive(message), queue_status::empty);
  gate.open();
  sending.wait();
  EXPECT_EQ(queue.size(), 4U);
  for (std::uint64_t n = 0; n < 4; ++n) {
    ASSERT_EQ(rx.try_receive(message), queue_status::ok);
    EXPECT_EQ(message, n);
  }
}

TEST_F(opencl_ring_image, has_what_was_sent_before_the_launch_began_and_not_only_before_it_was_submitted) {
  const message_queue<std::uint64_t> queue{m, gpu0, gpu1, of_capacity(16)};
  auto tx = queue.open_sender();
  auto rx = queue.open_receiver();
  const kernel_end in{rx};
  const weft::stream order{m[1]};
  const noted result{m[1]};
  samples::gate gate;
  gate.hold(order);
  const auto receiving =
      weft::launch<follows>(order, weft::range(1), in, std::uint64_t{0}, std::uint64_t{9}, for_ever, result.memory());
  for (std::uint64_t n = 0; n < 7; ++n) ASSERT_EQ(tx.send(n), queue_status::ok);
  gate.open();
  receiving.wait();
  EXPECT_EQ(result.read().done, 7U);
}

TEST_F(opencl_ring_image, wakes_a_receiver_that_sleeps) {
  queue_options options = of_capacity(16);
  options.wait_policy = weft::waiting::park;
  const message_queue<std::uint64_t> queue{m, gpu0, gpu1, options};
  auto tx = queue.open_sender();
  const kernel_end out{tx};
  std::promise<queue_status> got;
  std::jthread receiving{[&got, rx = queue.open_receiver()]() mutable {
    std::uint64_t message = 0;
    got.set_value(rx.receive(message));
  }};
  const noted result{m[0]};
  weft::launch<counts_up>(weft::stream{m[0]}, weft::range(1), out, std::uint64_t{0}, std::uint64_t{1}, for_ever,
                          result.memory())
      .wait();
  EXPECT_EQ(got.get_future().get(), queue_status::ok);
}

/// Ways in which a launch with lent ends comes to nothing.
class failed_launch : public opencl_ring_image {
 protected:
  void SetUp() override {
    opencl_ring_image::SetUp();
    if (IsSkipped()) return;
    for (std::uint64_t n = 0; n < 9; ++n) ASSERT_EQ(tx.send(note<20>{n}), queue_status::ok);
  }
  /// Nothing was received or sent by it, and the next launch does what it was to do.
  void expect_nothing_lost() {
    EXPECT_EQ(there.size(), 9U);
    EXPECT_EQ(back.size(), 0U);
    const noted result{m[0]};
    const weft::stream next{m[0]};
    weft::launch<answers>(next, weft::range(1), in, out, std::uint64_t{9}, for_ever, result.memory()).wait();
    for (std::uint64_t n = 0; n < 9; ++n) {
      note<20> answer;
      ASSERT_EQ(rx.try_receive(answer), queue_status::ok);
      ASSERT_TRUE(answer == note<20>{n}.answered()) << "message " << n;
    }
    note<20> more;
    EXPECT_EQ(rx.try_receive(more), queue_status::empty);
  }

  const message_queue<note<20>> there{m, gpu1, gpu0, of_capacity(32)}, back{m, gpu0, gpu1, of_capacity(32)};
  weft::sender<note<20>> tx = there.open_sender();
  weft::receiver<note<20>> rx = back.open_receiver();
  weft::receiver<note<20>> kernels_rx = there.open_receiver();
  weft::sender<note<20>> kernels_tx = back.open_sender();
  kernel_end in{kernels_rx}, out{kernels_tx};
};

TEST_F(failed_launch, whose_kernel_does_not_compile_has_moved_nothing) {
  const weft::stream order{m[0]};
  EXPECT_EQ(error_of([&] { weft::launch<calls_the_host>(order, weft::range(1), in).wait(); }).code, errc::incompatible);
  expect_nothing_lost();
}

TEST_F(failed_launch, behind_work_that_failed_has_moved_nothing) {
  const weft::stream order{m[0]};
  const noted result{m[0]};
  order.call([] { throw std::runtime_error{"broken on purpose"}; });
  const auto launched =
      weft::launch<answers>(order, weft::range(1), in, out, std::uint64_t{9}, for_ever, result.memory());
  EXPECT_NE(error_of([&] { launched.wait(); }).what.find("broken on purpose"), std::string::npos);
  expect_nothing_lost();
}

TEST_F(failed_launch, a_cancelled_launch_has_moved_nothing) {
  const weft::stream order{m[0]};
  const noted result{m[0]};
  std::stop_source source;
  samples::gate gate;
  gate.hold(order);
  const auto launched = weft::launch<answers>(order, weft::launch_options{source.get_token(), {}}, weft::range(1), in,
                                              out, std::uint64_t{9}, for_ever, result.memory());
  source.request_stop();
  gate.open();
  EXPECT_EQ(error_of([&] { launched.wait(); }).code, errc::cancelled);
  expect_nothing_lost();
}

TEST_F(failed_launch, a_launch_beyond_its_loan_has_moved_nothing_and_says_why) {
  const weft::stream order{m[0]};
  const noted result{m[0]};
  samples::gate gate;
  gate.hold(order);
  const auto launched =
      weft::launch<answers>(order, weft::range(1), in, out, std::uint64_t{9}, for_ever, result.memory());
  in.end();
  out.end();
  gate.open();
  const weft::error cause = error_of([&] { launched.wait(); });
  EXPECT_EQ(cause.code, errc::closed) << to_string(cause);
  EXPECT_NE(cause.what.find("taken back before the launch ended"), std::string::npos) << cause.what;
  EXPECT_EQ(there.size(), 9U);
  EXPECT_EQ(back.size(), 0U);
  for (std::uint64_t n = 0; n < 9; ++n) {
    note<20> got;
    ASSERT_EQ(kernels_rx.try_receive(got), queue_status::ok);
    ASSERT_TRUE(got == note<20>{n});
  }
}

TEST_F(failed_launch, over_devices_is_refused_with_the_way_that_works) {
  const noted result{m[0]};
  const weft::error cause = error_of(
      [&] { weft::launch<answers>(m, weft::range(1), in, out, std::uint64_t{9}, for_ever, result.memory()).wait(); });
  EXPECT_EQ(cause.code, errc::unsupported) << to_string(cause);
  EXPECT_NE(cause.what.find("launch it in a stream"), std::string::npos) << cause.what;
  expect_nothing_lost();
}

TEST_F(opencl_ring_image, gives_a_loan_back_to_the_next_one) {
  const message_queue<std::uint64_t> queue{m, gpu0, gpu1, of_capacity(16)};
  auto tx = queue.open_sender();
  auto rx = queue.open_receiver();
  const weft::stream order{m[0]};
  const noted result{m[0]};
  std::uint64_t message = 0;
  for (std::uint64_t n = 0; n < 60; n += 3) {
    ASSERT_EQ(tx.send(n), queue_status::ok);
    {
      const kernel_end out{tx};
      weft::launch<counts_up>(order, weft::range(1), out, n + 1, std::uint64_t{2}, for_ever, result.memory()).wait();
    }
    for (std::uint64_t k = n; k < n + 3; ++k) {
      ASSERT_EQ(rx.try_receive(message), queue_status::ok);
      ASSERT_EQ(message, k);
    }
  }
}

class random_numbers {
 public:
  explicit random_numbers(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15ULL + 1) {}
  std::uint64_t below(std::uint64_t n) {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return (state_ >> 20) % n;
  }

 private:
  std::uint64_t state_;
};

template <std::size_t Bytes>
void behave_as_deques(const machine& m, std::uint64_t seed) {
  SCOPED_TRACE(std::to_string(Bytes) + " bytes, seed " + std::to_string(seed));
  random_numbers chance{seed * 31 + Bytes};
  queue_options options = of_capacity(std::size_t{16} << chance.below(3));
  if (chance.below(2) == 0) options.staging_size = weft::bytes{16 * Bytes};
  const message_queue<note<Bytes>> there{m, gpu1, gpu0, options}, back{m, gpu0, gpu1, options};
  auto tx = there.open_sender();
  auto rx = back.open_receiver();
  auto kernels_rx = there.open_receiver();
  auto kernels_tx = back.open_sender();
  std::optional<kernel_end> in{kernels_rx}, out{kernels_tx};
  const weft::stream order{m[0]};
  const noted result{m[0]};
  std::deque<note<Bytes>> asked, answered;
  std::uint64_t number = 0;
  for (int step = 0; step < 120; ++step) {
    switch (chance.below(6)) {
      case 0:
      case 1:
        for (std::uint64_t n = chance.below(20); n != 0; --n) {
          const note<Bytes> message{number};
          const queue_status status = tx.try_send(message);
          // space comes back whole when a launch has ended
          ASSERT_EQ(status, asked.size() < there.capacity() ? queue_status::ok : queue_status::full);
          if (status != queue_status::ok) break;
          asked.push_back(message);
          ++number;
        }
        break;
      case 2:
      case 3: {
        // as many as the kernel can surely pass on: what it has taken and cannot send is its own loss
        const std::uint64_t limit = in->per_launch().value();
        const std::uint64_t space = std::min<std::uint64_t>(
            limit, back.capacity() * 3 / 4 - std::min<std::uint64_t>(answered.size(), back.capacity() * 3 / 4));
        const std::uint64_t most = chance.below(space + 1);
        weft::launch<answers>(order, weft::range(1), *in, *out, most, for_ever, result.memory()).wait();
        const std::uint64_t done = std::min<std::uint64_t>(most, asked.size());
        ASSERT_EQ(result.read().done, done);
        for (std::uint64_t n = 0; n < done; ++n) {
          answered.push_back(asked.front().answered());
          asked.pop_front();
        }
        break;
      }
      case 4:
        for (std::uint64_t n = chance.below(20); n != 0; --n) {
          note<Bytes> message;
          const queue_status status = rx.try_receive(message);
          ASSERT_EQ(status, answered.empty() ? queue_status::empty : queue_status::ok);
          if (status != queue_status::ok) break;
          ASSERT_TRUE(message == answered.front());
          answered.pop_front();
        }
        break;
      default:  // the host takes an end back and lends it again
        in.reset();
        if (!asked.empty() && chance.below(2) == 0) {
          note<Bytes> message;
          ASSERT_EQ(kernels_rx.try_receive(message), queue_status::ok);
          ASSERT_TRUE(message == asked.front());
          asked.pop_front();
          // space comes back in quarters from a receiver of the host, and whole where it finds nothing
          while (kernels_rx.try_receive(message) == queue_status::ok) {
            ASSERT_TRUE(message == asked.front());
            asked.pop_front();
          }
        }
        in.emplace(kernels_rx);
    }
    ASSERT_EQ(there.size(), asked.size());
    ASSERT_EQ(back.size(), answered.size());
  }
}

/// Variables of the environment, for a while.
class variables {
 public:
  // NOLINTBEGIN(concurrency-mt-unsafe): in the one thread of a test
  explicit variables(std::map<std::string, std::string> values) : before_(std::move(values)) {
    for (auto& [name, value] : before_) {
      const char* const was = std::getenv(name.c_str());
      const std::string then = was == nullptr ? "" : was;
      ::setenv(name.c_str(), value.c_str(), 1);
      value = then;
    }
  }
  ~variables() {
    for (const auto& [name, value] : before_)
      static_cast<void>(value.empty() ? ::unsetenv(name.c_str()) : ::setenv(name.c_str(), value.c_str(), 1));
  }
  // NOLINTEND(concurrency-mt-unsafe)
  variables(const variables&) = delete;
  variables& operator=(const variables&) = delete;

 private:
  std::map<std::string, std::string> before_;
};

TEST_F(opencl_ring_image, a_packed_queue_from_a_buffer_to_a_gpu_is_read_where_it_lies) {
  const std::string driver = samples::virtual_cuda_library();
  if (driver.empty()) GTEST_SKIP() << "the virtual CUDA driver is not built";
  if (samples::is_sanitized) GTEST_SKIP() << "the virtual CUDA driver is not instrumented";
  const variables ours{std::map<std::string, std::string>{{"WEFT_CUDA_DRIVER", driver},
                                                          {"WEFT_CUDA_NVRTC", driver},
                                                          {"WEFT_CUDA_NVML", "none"},
                                                          {"WEFT_CUDA_GDRCOPY", "none"}}};
  weft::machine_options both = samples::opencl_options(samples::opencl_memory::buffers);
  both.backend = "opencl_buffers,cuda";
  const machine mixed{both};
  int gpu = 0;
  while (mixed[gpu].kind() != weft::backend_kind::cuda) ++gpu;
  queue_options options = of_capacity(16);
  options.mode = transfer_mode::direct;  // which has messages brought where they can be
  const message_queue<std::uint64_t> queue{mixed, gpu0, mixed[gpu].id(), options};
  auto tx = queue.open_sender();
  auto rx = queue.open_receiver();
  for (std::uint64_t n = 0; n < 5; ++n) ASSERT_EQ(tx.try_send(n), queue_status::ok);
  const kernel_end in{rx};
  EXPECT_EQ(in.delivery(), weft::ring_delivery::in_place);
  const noted result{mixed[gpu]};
  weft::launch<follows>(weft::stream{mixed[gpu]}, weft::range(1), in, std::uint64_t{0}, std::uint64_t{5},
                        std::uint64_t{1000}, result.memory())
      .wait();
  EXPECT_EQ(result.read().done, 5U);
  EXPECT_EQ(result.read().wrong, 0U);
}

TEST_F(opencl_ring_image, behaves_as_a_deque_under_every_schedule) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    behave_as_deques<4>(m, seed);
    behave_as_deques<12>(m, seed);
    behave_as_deques<24>(m, seed);
    behave_as_deques<28>(m, seed);
    behave_as_deques<100>(m, seed);
    behave_as_deques<4092>(m, seed);
    if (HasFatalFailure()) return;
  }
}

}  // namespace opencl_queue_test
