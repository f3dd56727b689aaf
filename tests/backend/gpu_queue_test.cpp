// SPDX-License-Identifier: Apache-2.0
// Queues of CUDA devices, on the virtual driver: the ring lies in page-locked memory, where kernels and the host meet
// while both go on.
#include "channel/queue_state.hpp"
#include "support/couple.hpp"
#include "support/hang.hpp"
#include "support/samples.hpp"
#include "support/virtual_gpus.hpp"
#include "weft/channel/kernel_end.hpp"
#include "weft/channel/shared_queue.hpp"
#include "weft/exec/launch_run.hpp"
#include "weft/memory/copy.hpp"

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <vector>

namespace gpu_queue_test {

using weft::kernel_end;
using weft::machine;
using weft::message_queue;
using weft::queue_status;
using weft::ring_visibility;
using weft::transfer_mode;

constexpr weft::device_id gpu0{0}, gpu1{1};
constexpr std::uint64_t for_ever = ~std::uint64_t{0};  // looks: what would wait that long hangs

WEFT_KERNEL(answers_on_gpu,
            (WEFT_RING in, WEFT_RING out, uint64_t most, uint64_t polls, WEFT_OUT(uint64_t, whole) done), {
              uint64_t message = 0;
              uint64_t n = 0;
              for (; n < most; ++n) {
                if (weft_ring_receive(in, &message, polls) != WEFT_RING_OK) break;
                message = message * 3u + 1u;
                if (weft_ring_send(out, &message, polls) != WEFT_RING_OK) break;
              }
              done[0] = n;
            });

WEFT_KERNEL(sums_up, (WEFT_IN(double) numbers, WEFT_INOUT(double, reduce(sum)) total), { total[0] += numbers[i]; });

template <std::size_t Words>
struct note {
  std::array<std::uint32_t, Words> words;
};

// Messages of up to 1,024 words, each of which depends on the number of the message.
WEFT_KERNEL(sends_notes,
            (WEFT_RING out, uint64_t first, uint64_t count, uint64_t polls, WEFT_OUT(uint64_t, whole) result), {
              uint32_t message[1024];
              uint64_t done = 0;
              int came_to = WEFT_RING_OK;
              for (; done < count; ++done) {
                for (uint32_t word = 0; word < out->bytes / 4; ++word) {
                  message[word] = (uint32_t)(first + done) * 2654435761u + word * 40503u;
                }
                came_to = weft_ring_send(out, message, polls);
                if (came_to != WEFT_RING_OK) break;
              }
              result[0] = done;
              result[1] = (uint64_t)came_to;
            });

WEFT_KERNEL(takes_notes,
            (WEFT_RING in, uint64_t first, uint64_t count, uint64_t polls, WEFT_OUT(uint64_t, whole) result), {
              uint32_t message[1024];
              uint64_t done = 0;
              int came_to = WEFT_RING_OK;
              for (; done < count; ++done) {
                came_to = weft_ring_receive(in, message, polls);
                if (came_to != WEFT_RING_OK) break;
                uint32_t wrong = 0;
                for (uint32_t word = 0; word < in->bytes / 4; ++word) {
                  wrong += message[word] != (uint32_t)(first + done) * 2654435761u + word * 40503u;
                }
                if (wrong != 0) break;
              }
              result[0] = done;
              result[1] = (uint64_t)came_to;
            });

template <std::size_t Words>
note<Words> note_of(std::uint64_t number) {
  note<Words> made{};
  for (std::uint32_t word = 0; word < Words; ++word)
    made.words[word] = static_cast<std::uint32_t>(number) * 2654435761U + word * 40503U;
  return made;
}

struct noted {
  weft::buffer<std::uint64_t> memory;
  explicit noted(const weft::device& on) : memory{on, 2} {}
  [[nodiscard]] std::uint64_t done() const { return read()[0]; }
  [[nodiscard]] int came_to() const { return static_cast<int>(read()[1]); }

 private:
  [[nodiscard]] std::vector<std::uint64_t> read() const {
    std::vector<std::uint64_t> got(2);
    weft::copy(got, memory);
    return got;
  }
};

class gpu_queue : public samples::virtual_cuda_test {
 protected:
  static weft::queue_options for_kernels(std::size_t capacity = 64) {
    weft::queue_options options;
    options.capacity = capacity;
    options.for_kernels = true;
    return options;
  }
  /// Whose memory the slots of a lent end lie in.
  static weft::memory_description slots_of(const machine& m, const kernel_end& end) {
    std::vector<std::uint64_t> words(static_cast<std::size_t>(weft::ring_words));
    weft::copy(words, end.span());
    weft_ring ring;
    std::memcpy(static_cast<void*>(&ring), words.data(), sizeof ring);
    return weft::address_range(m[0], reinterpret_cast<const void*>(ring.slots));
  }
  template <std::size_t Words>
  static void crosses(const machine& m, weft::device_id from, weft::device_id to, std::size_t capacity) {
    SCOPED_TRACE(Words);
    const message_queue<note<Words>> queue{m, from, to, for_kernels(capacity)};
    ASSERT_EQ(queue.mode(), transfer_mode::direct) << queue.why();
    EXPECT_EQ(queue.why(), "");
    auto tx = queue.open_sender();
    auto rx = queue.open_receiver();
    const noted sent{m[from]}, got{m[to]};
    const std::uint64_t count = 10 * capacity + 3;
    {
      const kernel_end out{tx}, in{rx};
      EXPECT_EQ(in.visibility(), ring_visibility::immediate);
      EXPECT_EQ(slots_of(m, in).kind, weft::memory_kind::device);
      EXPECT_EQ(slots_of(m, in).device, to);
      EXPECT_EQ(slots_of(m, out).base, slots_of(m, in).base);
      const weft::stream a{m[from]}, b{m[to]};
      for (std::uint64_t part = 0; part < 2; ++part) {  // a later kernel goes on where an earlier one ended
        const auto taking = weft::launch<takes_notes>(b, weft::range(1), in, part * count, count, for_ever, got.memory);
        const auto sending =
            weft::launch<sends_notes>(a, weft::range(1), out, part * count, count, for_ever, sent.memory);
        sending.wait();
        taking.wait();
        EXPECT_EQ(sent.done(), count);
        EXPECT_EQ(got.done(), count);
      }
    }
    EXPECT_EQ(queue.statistics().received, 2 * count);
    EXPECT_EQ(queue.statistics().direct.messages, 2 * count);
  }

  static weft::queue_options small() {
    weft::queue_options options;
    options.capacity = 4;
    options.timeout = samples::only_a_hang;
    return options;
  }
  /// So large that its memory is nobody's once it is freed.
  static weft::queue_options large() {
    weft::queue_options options;
    options.capacity = std::size_t{1} << 16;
    return options;
  }
};

template <class T>
std::uint32_t pieces_between(const machine& m, weft::device_id from, weft::device_id to,
                             const weft::queue_options& options = {}) {
  message_queue<T> queue{m, from, to, options};
  return weft::detail::state_of(queue)->shape.pieces;
}

TEST_F(gpu_queue, cuts_short_messages_into_pieces_where_a_kernel_may_be_at_the_other_side_of_a_link) {
  const machine m = open();
  EXPECT_EQ(pieces_between<std::uint32_t>(m, gpu0, gpu1), 1U);
  EXPECT_EQ(pieces_between<note<3>>(m, gpu0, gpu1), 1U);
  EXPECT_EQ(pieces_between<note<4>>(m, gpu0, gpu1), 2U);
  EXPECT_EQ(pieces_between<note<12>>(m, gpu0, gpu1), 4U);
  EXPECT_EQ(pieces_between<note<13>>(m, gpu0, gpu1), 0U) << "more than a line";
  EXPECT_EQ(pieces_between<std::uint32_t>(m, gpu0, gpu1, for_kernels()), 1U);
  weft::queue_options checked;
  checked.validate = true;
  EXPECT_EQ(pieces_between<std::uint32_t>(m, gpu0, gpu1, checked), 0U) << "kernels know no checksums";
  EXPECT_EQ(pieces_between<std::uint32_t>(samples::play(samples::wired(2)), gpu0, gpu1), 0U) << "no link of a bus";
}

TEST_F(gpu_queue, a_queue_in_pieces_serves_threads_as_any_other) {
  const machine m = open();
  weft::queue_options options;
  options.capacity = 16;
  message_queue<note<7>> queue{m, gpu0, gpu1, options};
  auto out = queue.open_sender();
  auto in = queue.open_receiver();
  const auto made = [](std::uint32_t number) {
    note<7> one{};
    for (std::size_t i = 0; i < 7; ++i) one.words[i] = number * 100 + static_cast<std::uint32_t>(i);
    return one;
  };
  const auto is = [&](const note<7>& one, std::uint32_t number) { return one.words == made(number).words; };
  std::uint32_t sent = 0, got = 0;
  for (int lap = 0; lap < 5; ++lap) {
    std::vector<note<7>> batch;
    for (std::uint32_t i = 0; i < 12; ++i) batch.push_back(made(sent + i));
    ASSERT_EQ(out.send_batch(batch).count, 12U);
    sent += 12;
    ASSERT_EQ(out.try_send(made(sent++)), queue_status::ok);
    const note<7>* const first = in.front();
    ASSERT_NE(first, nullptr);
    EXPECT_TRUE(is(*first, got));
    in.pop();
    ++got;
    note<7> one{};
    ASSERT_EQ(in.try_peek(one), queue_status::ok);
    EXPECT_TRUE(is(one, got));
    EXPECT_EQ(queue.size(), 12U) << "what was looked at is still there";
    EXPECT_EQ(queue.statistics().in_flight, 12U);
    EXPECT_EQ(queue.statistics().received, got);
    ASSERT_EQ(in.receive(one), queue_status::ok);
    EXPECT_TRUE(is(one, got++));
    std::vector<note<7>> rest(11);
    ASSERT_EQ(in.receive_batch(rest, 11).count, 11U);
    for (const note<7>& each : rest) EXPECT_TRUE(is(each, got++));
    EXPECT_EQ(in.try_receive(one), queue_status::empty);
  }
  ASSERT_EQ(out.try_send(made(sent++)), queue_status::ok);
  ASSERT_NE(in.front(), nullptr);
  EXPECT_EQ(samples::error_of([&] { const kernel_end lent{in}; }).code, weft::errc::not_ready) << "it has that message";
  in.pop();
  static_cast<void>(kernel_end{in});
  note<7> none{};
  EXPECT_EQ(in.try_receive(none), queue_status::empty);
  for (int i = 0; i < 16; ++i) ASSERT_EQ(out.try_send(made(sent++)), queue_status::ok);
  EXPECT_EQ(out.try_send(made(sent)), queue_status::full);
  EXPECT_EQ(out.reserve(1).status(), queue_status::failed) << "a place is no message of the user's";
  EXPECT_EQ(in.clear(), 16U);
  out.close();
  EXPECT_EQ(in.try_receive(none), queue_status::closed);
}

TEST_F(gpu_queue, moves_messages_between_devices_through_page_locked_memory_and_says_why) {
  const machine m{samples::virtual_cuda_options()};
  message_queue<std::uint64_t> queue{m, gpu0, gpu1, small()};
  EXPECT_EQ(queue.mode(), transfer_mode::host_staged);
  EXPECT_NE(queue.why().find("by commands only"), std::string::npos) << queue.why();
  auto tx = queue.open_sender();
  auto rx = queue.open_receiver();
  for (std::uint64_t n = 0; n < 100; ++n) {
    ASSERT_EQ(tx.try_send(n), queue_status::ok);
    std::uint64_t got = 0;
    ASSERT_EQ(rx.try_receive(got), queue_status::ok);
    EXPECT_EQ(got, n);
  }
}

TEST_F(gpu_queue, is_answered_by_a_kernel_that_goes_on_while_the_host_asks) {
  const machine m{samples::virtual_cuda_options()};
  message_queue<std::uint64_t> there{m, gpu1, gpu0, small()}, back{m, gpu0, gpu1, small()};
  auto tx = there.open_sender();
  auto rx = back.open_receiver();
  auto kernels_rx = there.open_receiver();
  auto kernels_tx = back.open_sender();
  const weft::buffer<std::uint64_t> done{m[gpu0], 1};
  const weft::stream order{m[gpu0]};
  constexpr std::uint64_t many = 500;  // far more than the ring holds: nobody could answer them after the launch
  {
    const kernel_end in{kernels_rx}, out{kernels_tx};
    EXPECT_EQ(in.visibility(), ring_visibility::immediate);
    EXPECT_EQ(in.per_launch(), std::nullopt);
    const auto running = weft::launch<answers_on_gpu>(order, weft::range(1), in, out, many, for_ever, done);
    for (std::uint64_t n = 0; n < many; ++n) {
      ASSERT_EQ(tx.send(n), queue_status::ok);
      std::uint64_t got = 0;
      ASSERT_EQ(rx.receive(got), queue_status::ok);
      ASSERT_EQ(got, n * 3 + 1);
    }
    running.wait();
  }
  std::vector<std::uint64_t> came(1);
  weft::copy(came, done);
  EXPECT_EQ(came[0], many);
  // the ends are the host's again, and go on where the kernel stopped
  ASSERT_EQ(tx.try_send(7), queue_status::ok);
  std::uint64_t got = 0;
  ASSERT_EQ(kernels_rx.try_receive(got), queue_status::ok);
  EXPECT_EQ(got, 7U);
}

TEST_F(gpu_queue, gives_up_waiting_in_a_kernel_that_nobody_asks) {
  const machine m{samples::virtual_cuda_options()};
  message_queue<std::uint64_t> there{m, gpu1, gpu0, small()}, back{m, gpu0, gpu1, small()};
  auto kernels_rx = there.open_receiver();
  auto kernels_tx = back.open_sender();
  const weft::buffer<std::uint64_t> done{m[gpu0], 1};
  const kernel_end in{kernels_rx}, out{kernels_tx};
  weft::launch<answers_on_gpu>(weft::stream{m[gpu0]}, weft::range(1), in, out, std::uint64_t{1}, std::uint64_t{1000},
                               done)
      .wait();
  std::vector<std::uint64_t> came(1);
  weft::copy(came, done);
  EXPECT_EQ(came[0], 0U);
}

TEST_F(gpu_queue, tells_who_waits_that_the_device_of_the_kernel_is_lost) {
  const machine m{samples::virtual_cuda_options()};
  message_queue<std::uint64_t> queue{m, gpu0, gpu1, small()};
  auto rx = queue.open_receiver();
  auto tx = queue.open_sender();
  const weft::buffer<std::uint64_t> touched{m[gpu0], 1};
  driver.lose(0, 719);
  EXPECT_THROW(weft::copy(std::vector<std::uint64_t>(1), touched), weft::error_exception);
  std::uint64_t got = 0;
  EXPECT_EQ(rx.receive_for(got, samples::only_a_hang), queue_status::failed);
}

TEST_F(gpu_queue, says_that_it_is_over_when_its_machine_is_closed_and_keeps_its_ring) {
  machine m{samples::virtual_cuda_options()};
  message_queue<std::uint64_t> queue{m, gpu0, gpu1, large()};
  auto tx = queue.open_sender();
  auto rx = queue.open_receiver();
  ASSERT_EQ(tx.try_send(1), queue_status::ok);
  m.close();
  // what need not wait goes on, and may say so no earlier than when the ring is full or empty
  const std::uint64_t most = 2 * large().capacity;
  queue_status status = queue_status::ok;
  for (std::uint64_t n = 0; n < most && status == queue_status::ok; ++n) status = tx.try_send(n);
  EXPECT_EQ(status, queue_status::failed);
  std::uint64_t got = 0;
  status = queue_status::ok;
  for (std::uint64_t n = 0; n < most && status == queue_status::ok; ++n) status = rx.try_receive(got);
  EXPECT_EQ(status, queue_status::failed);
}

TEST_F(gpu_queue, keeps_its_ring_over_a_reset_of_its_device) {
  const machine m{samples::virtual_cuda_options()};
  message_queue<std::uint64_t> queue{m, gpu0, gpu1, large()};
  auto tx = queue.open_sender();
  auto rx = queue.open_receiver();
  ASSERT_EQ(tx.try_send(1), queue_status::ok);
  m[gpu0].reset();
  m[gpu1].reset();
  for (std::uint64_t n = 0; n < 20; ++n) {
    const queue_status sent = tx.try_send(n);
    EXPECT_TRUE(sent == queue_status::ok || sent == queue_status::full || sent == queue_status::failed);
    std::uint64_t got = 0;
    const queue_status received = rx.try_receive(got);
    EXPECT_TRUE(received == queue_status::ok || received == queue_status::empty || received == queue_status::failed);
  }
}

TEST_F(gpu_queue, for_kernels_lies_in_the_memory_of_the_device_that_receives) {
  const machine m{samples::virtual_cuda_options()};
  crosses<1>(m, gpu0, gpu1, 16);
  crosses<2>(m, gpu0, gpu1, 256);
  crosses<14>(m, gpu1, gpu0, 64);
  crosses<64>(m, gpu0, gpu0, 64);
  crosses<1024>(m, gpu0, gpu1, 32);
}

TEST_F(gpu_queue, for_kernels_is_refused_to_threads_of_the_host_on_every_backend) {
  weft::machine_options played;
  played.backend = "host";
  for (const weft::machine_options& options : {samples::virtual_cuda_options(), played}) {
    const machine m{options};
    message_queue<std::uint64_t> queue{m, gpu0, gpu1, for_kernels()};
    auto tx = queue.open_sender();
    auto rx = queue.open_receiver();
    EXPECT_EQ(tx.try_send(1), queue_status::failed);
    EXPECT_EQ(tx.send(1), queue_status::failed);
    EXPECT_NE(tx.failure()->what.find("for_kernels"), std::string::npos) << tx.failure()->what;
    std::uint64_t got = 0;
    EXPECT_EQ(rx.try_receive(got), queue_status::failed);
    EXPECT_EQ(rx.receive(got), queue_status::failed);
    EXPECT_EQ(rx.clear(), 0U);
    weft::queue_options checked = for_kernels();
    checked.validate = true;
    EXPECT_EQ(samples::error_of([&] { const message_queue<int> none{m, gpu0, gpu1, checked}; }).code,
              weft::errc::unsupported);
  }
}

TEST_F(gpu_queue, for_kernels_tells_one_kernel_that_the_other_end_was_closed) {
  const machine m{samples::virtual_cuda_options()};
  const noted sent{m[gpu0]}, got{m[gpu1]};
  const weft::stream a{m[gpu0]}, b{m[gpu1]};
  for (const bool sender_closes : {true, false}) {
    const message_queue<std::uint64_t> queue{m, gpu0, gpu1, for_kernels()};
    auto tx = queue.open_sender();
    auto rx = queue.open_receiver();
    std::optional<kernel_end> out{tx}, in{rx};
    const auto send = [&](std::uint64_t most) {
      return weft::launch<sends_notes>(a, weft::range(1), *out, std::uint64_t{0}, most, for_ever, sent.memory);
    };
    const auto take = [&](std::uint64_t most) {
      return weft::launch<takes_notes>(b, weft::range(1), *in, std::uint64_t{0}, most, for_ever, got.memory);
    };
    if (sender_closes) {
      const auto taking = take(1000);
      send(20).wait();
      tx.close();
      out.reset();  // how much was sent is known now, and so the end is told
      taking.wait();
      EXPECT_EQ(got.done(), 20U);
      EXPECT_EQ(got.came_to(), WEFT_RING_CLOSED);
    } else {
      const auto sending = send(1000);
      take(10).wait();
      rx.close();
      in.reset();
      sending.wait();
      EXPECT_LT(sent.done(), 1000U);
      EXPECT_EQ(sent.came_to(), WEFT_RING_CLOSED);
    }
  }
}

TEST_F(gpu_queue, for_kernels_stops_kernels_that_wait_when_it_is_closed) {
  const machine m{samples::virtual_cuda_options()};
  message_queue<std::uint64_t> queue{m, gpu0, gpu1, for_kernels()};
  auto rx = queue.open_receiver();
  const kernel_end in{rx};
  const noted got{m[gpu1]};
  const weft::stream order{m[gpu1]};
  const auto taking =
      weft::launch<takes_notes>(order, weft::range(1), in, std::uint64_t{0}, std::uint64_t{1}, for_ever, got.memory);
  queue.close();
  taking.wait();
  EXPECT_EQ(got.came_to(), WEFT_RING_STOPPED);
}

TEST_F(gpu_queue, gives_memory_back_beside_a_kernel_that_stays) {
  const machine m{samples::virtual_cuda_options()};
  message_queue<note<2>> queue{m, gpu0, gpu1, small()};
  auto rx = queue.open_receiver();
  auto tx = queue.open_sender();
  const noted got{m[gpu1]};
  const weft::stream order{m[gpu1]};
  const kernel_end in{rx};
  {
    // a reduction works in memory of its stream, which goes with it
    const weft::buffer<double> numbers{m[gpu1], 1000}, sum{m[gpu1], 1};
    weft::launch<sums_up>(weft::stream{m[gpu1]}, weft::range(1000), numbers, sum).wait();
  }
  const auto taking =
      weft::launch<takes_notes>(order, weft::range(1), in, std::uint64_t{0}, std::uint64_t{1}, for_ever, got.memory);
  std::atomic<bool> freed{false};
  std::jthread freeing{[&] {
    const weft::bytes free = m[gpu1].free_memory();
    {
      const weft::buffer<std::byte> one{m[gpu1], 1U << 20}, peers{m[gpu0], 1U << 20};
    }
    EXPECT_EQ(m[gpu1].free_memory(), free) << "it is nobody's, although the driver does not have it yet";
    {
      const weft::pinned_buffer<std::byte> one{m[gpu1], 5000};
    }
    {
      const weft::buffer<double> numbers{m[gpu1], 100'000}, sum{m[gpu1], 1};
      const weft::stream other{m[gpu1]};
      weft::launch<sums_up>(other, weft::range(1000), numbers.subspan(0, 1000), sum).wait();
      weft::launch<sums_up>(other, weft::range(100'000), numbers, sum).wait();  // outgrows it
    }
    freed = true;
    freed.notify_all();
  }};
  const auto until = std::chrono::steady_clock::now() + samples::only_a_hang;
  while (!freed && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  EXPECT_TRUE(freed) << "somebody waits for the kernel";
  EXPECT_EQ(tx.send(note_of<2>(0)), queue_status::ok);
  taking.wait();
  EXPECT_EQ(got.done(), 1U);
}

TEST_F(gpu_queue, for_kernels_lies_in_host_memory_where_a_self_test_fails) {
  const machine m{samples::virtual_cuda_options()};
  const noted sent{m[gpu0]}, got{m[gpu1]};
  static_cast<void>(message_queue<std::uint64_t>{m, gpu0, gpu1, for_kernels()});  // kernels are loaded
  driver.fail("cuLaunchKernel@2=1");
  const message_queue<std::uint64_t> queue{m, gpu0, gpu1, for_kernels()};
  driver.fail("");
  EXPECT_EQ(queue.mode(), transfer_mode::host_staged);
  EXPECT_NE(queue.why().find("self-test"), std::string::npos) << queue.why();
  auto tx = queue.open_sender();
  auto rx = queue.open_receiver();
  const kernel_end out{tx}, in{rx};
  EXPECT_EQ(slots_of(m, in).kind, weft::memory_kind::pinned);
  weft::launch<sends_notes>(weft::stream{m[gpu0]}, weft::range(1), out, std::uint64_t{0}, std::uint64_t{9}, for_ever,
                            sent.memory)
      .wait();
  weft::launch<takes_notes>(weft::stream{m[gpu1]}, weft::range(1), in, std::uint64_t{0}, std::uint64_t{9}, for_ever,
                            got.memory)
      .wait();
  EXPECT_EQ(got.done(), 9U);
}

TEST_F(gpu_queue, for_kernels_closes_although_the_close_of_another_one_failed) {
  const machine m{samples::virtual_cuda_options()};
  {
    const message_queue<std::uint64_t> failing{m, gpu0, gpu1, for_kernels()};
    auto rx = failing.open_receiver();
    driver.fail("cuStreamWriteValue64@1=2");
    rx.close();
  }
  const message_queue<std::uint64_t> queue{m, gpu0, gpu1, for_kernels()};
  EXPECT_EQ(queue.mode(), transfer_mode::direct) << queue.why();
}

TEST_F(gpu_queue, for_kernels_is_not_lent_once_a_reset_has_taken_its_ring) {
  for (const weft::device_id reset : {gpu0, gpu1}) {
    const machine m{samples::virtual_cuda_options()};
    const message_queue<std::uint64_t> queue{m, gpu0, gpu1, for_kernels()};
    auto tx = queue.open_sender();
    auto rx = queue.open_receiver();
    m[reset].reset();
    // also of the device that is as it was: its kernels would write to the other's memory
    const auto sends = samples::error_of([&] { const kernel_end out{tx}; });
    const auto receives = samples::error_of([&] { const kernel_end in{rx}; });
    EXPECT_EQ(sends.code, weft::errc::device_lost) << sends.what;
    EXPECT_EQ(receives.code, weft::errc::device_lost) << receives.what;
    EXPECT_NE(receives.what.find("make a new queue"), std::string::npos) << receives.what;
  }
}

// ---- messages of the host that are brought to the memory of the GPU whose kernel receives them ----------------------

class gpu_feed : public gpu_queue {
 protected:
  static machine with_windows() {
    weft::machine_options options;
    options.more_backends = {
        {weft::backend_kind::cuda, "virtual_cuda_with_windows", &samples::open_virtual_cuda_with_windows}};
    options.backend = "virtual_cuda_with_windows";
    return machine{options};
  }
  static weft::queue_options asked(transfer_mode mode, std::size_t capacity = 64) {
    weft::queue_options options;
    options.capacity = capacity;
    options.mode = mode;
    options.timeout = samples::only_a_hang;
    return options;
  }
  /// A queue to gpu1, and how far its messages are.
  template <std::size_t Words>
  struct fed {
    const machine& m;
    message_queue<note<Words>> queue;
    weft::sender<note<Words>> tx = queue.open_sender();
    weft::receiver<note<Words>> rx = queue.open_receiver();
    noted got{m[gpu1]};
    weft::stream order{m[gpu1]};
    std::uint64_t sent = 0, taken = 0;

    fed(const machine& of, const weft::queue_options& options) : m(of), queue{of, gpu0, gpu1, options} {}
    void send(std::uint64_t count) {
      for (; count != 0; --count) ASSERT_EQ(tx.send(note_of<Words>(sent++)), queue_status::ok);
    }
    [[nodiscard]] weft::event take(const kernel_end& in, std::uint64_t count) {
      return weft::launch<takes_notes>(order, weft::range(1), in, taken, count, for_ever, got.memory);
    }
    void has_taken(const weft::event& taking, std::uint64_t count, int came_to = WEFT_RING_OK) {
      taking.wait();
      EXPECT_EQ(got.done(), count);
      EXPECT_EQ(got.came_to(), came_to);
      taken += count;
    }
    void takes_what_is_sent_meanwhile(const kernel_end& in, std::uint64_t count) {
      const auto taking = take(in, count);
      send(count);
      has_taken(taking, count);
    }
    void host_takes(std::uint64_t count) {
      for (; count != 0; --count) {
        note<Words> one{};
        ASSERT_EQ(rx.receive(one), queue_status::ok);
        ASSERT_EQ(one.words, note_of<Words>(taken).words) << taken;
        ++taken;
      }
    }
  };
  template <std::size_t Words>
  static void is_brought(const machine& m, transfer_mode mode, weft::ring_delivery delivery) {
    SCOPED_TRACE(Words);
    fed<Words> f{m, asked(mode)};
    f.send(5);  // before there is a loan
    std::uint64_t brought = 0;
    {
      const kernel_end in{f.rx};
      EXPECT_EQ(in.delivery(), delivery);
      EXPECT_EQ(in.visibility(), ring_visibility::immediate);
      EXPECT_EQ(slots_of(m, in).kind, weft::memory_kind::device);
      EXPECT_EQ(slots_of(m, in).device, gpu1);
      f.has_taken(f.take(in, 5), 5);
      f.takes_what_is_sent_meanwhile(in, 643);  // ten laps
      f.takes_what_is_sent_meanwhile(in, 7);
      f.send(9);
      const auto are_brought = [&] {
        const auto now = f.queue.statistics();
        return now.fed_by_stores.messages + now.fed_by_copies.messages == f.sent;
      };
      if (delivery == weft::ring_delivery::stores && Words < 1024) {
        EXPECT_TRUE(are_brought()) << "who sends brings it at once";
      }
      f.has_taken(f.take(in, 6), 6);
      EXPECT_TRUE(processes::comes_true(are_brought)) << "copies take their time, and end with the loan";
      brought = f.sent;
    }
    f.host_takes(3);  // that kernels have left
    f.send(20);
    f.host_takes(20);
    const auto counted = f.queue.statistics();
    EXPECT_EQ(counted.received, f.sent);
    EXPECT_EQ(counted.fed_by_stores.messages + counted.fed_by_copies.messages, brought);
    EXPECT_EQ(counted.fed_by_stores.bytes + counted.fed_by_copies.bytes, brought * 4 * Words);
    EXPECT_EQ(counted.fed_by_stores.messages != 0, delivery == weft::ring_delivery::stores && Words < 1024);
    // a second loan goes on where the host is
    const kernel_end again{f.rx};
    f.takes_what_is_sent_meanwhile(again, 70);
  }
};

TEST_F(gpu_feed, by_copies_brings_what_the_host_sends_while_the_kernel_runs) {
  const machine m = open();
  is_brought<1>(m, transfer_mode::direct, weft::ring_delivery::copies);
  is_brought<4>(m, transfer_mode::direct, weft::ring_delivery::copies);
  is_brought<14>(m, transfer_mode::direct, weft::ring_delivery::copies);
  is_brought<1024>(m, transfer_mode::direct, weft::ring_delivery::copies);
}

TEST_F(gpu_feed, by_stores_brings_what_the_host_sends_while_the_kernel_runs) {
  const machine m = with_windows();
  for (const transfer_mode mode : {transfer_mode::direct, transfer_mode::adaptive}) {
    is_brought<1>(m, mode, weft::ring_delivery::stores);
    is_brought<12>(m, mode, weft::ring_delivery::stores);
    is_brought<14>(m, mode, weft::ring_delivery::stores);
    is_brought<1024>(m, mode, weft::ring_delivery::stores);
  }
}

TEST_F(gpu_feed, copies_what_is_too_much_for_stores) {
  const machine m = with_windows();
  fed<256> f{m, asked(transfer_mode::direct)};
  f.send(20);  // 20 KiB, at once when the loan begins
  const kernel_end in{f.rx};
  EXPECT_EQ(f.queue.statistics().fed_by_copies.operations, 1U);
  EXPECT_EQ(f.queue.statistics().fed_by_copies.messages, 20U);
  f.has_taken(f.take(in, 20), 20);
}

TEST_F(gpu_feed, is_not_where_nobody_asked_and_it_would_take_copies) {
  const machine without = open();
  const machine with = with_windows();
  for (const auto& [m, mode] : {std::pair{&without, transfer_mode::adaptive},
                                {&without, transfer_mode::host_staged},
                                {&with, transfer_mode::host_staged}}) {
    fed<4> f{*m, asked(mode)};
    const kernel_end in{f.rx}, out{f.tx};
    EXPECT_EQ(in.delivery(), weft::ring_delivery::in_place);
    EXPECT_EQ(out.delivery(), weft::ring_delivery::in_place);
    EXPECT_EQ(slots_of(*m, in).kind, weft::memory_kind::pinned);
  }
}

TEST_F(gpu_feed, brings_what_a_kernel_of_the_other_device_sends) {
  for (const machine& m : {open(), with_windows()}) {
    fed<4> f{m, asked(transfer_mode::direct)};
    const noted sent{m[gpu0]};
    const kernel_end out{f.tx}, in{f.rx};
    const auto taking = f.take(in, 200);
    weft::launch<sends_notes>(weft::stream{m[gpu0]}, weft::range(1), out, std::uint64_t{0}, std::uint64_t{200},
                              for_ever, sent.memory)
        .wait();
    EXPECT_EQ(sent.done(), 200U);
    f.has_taken(taking, 200);
  }
}

TEST_F(gpu_feed, tells_the_kernel_of_the_end_behind_the_last_message) {
  for (const machine& m : {open(), with_windows()}) {
    fed<14> f{m, asked(transfer_mode::direct)};
    const kernel_end in{f.rx};
    const auto taking = f.take(in, 1000);
    f.send(100);
    f.tx.close();
    f.has_taken(taking, 100, WEFT_RING_CLOSED);
  }
}

TEST_F(gpu_feed, stops_the_kernel_when_the_queue_is_closed) {
  for (const machine& m : {open(), with_windows()}) {
    fed<14> f{m, asked(transfer_mode::direct)};
    const kernel_end in{f.rx};
    const auto taking = f.take(in, 1000);
    f.queue.close();
    taking.wait();
    EXPECT_EQ(f.got.came_to(), WEFT_RING_STOPPED);
  }
}

TEST_F(gpu_feed, DISABLED_copies_what_has_arrived_on_this_driver) {
  const machine m = open();
  fed<4> f{m, asked(transfer_mode::direct)};
  const kernel_end in{f.rx};
  f.takes_what_is_sent_meanwhile(in, 200);
  EXPECT_EQ(driver.calls("cuStreamWriteValue64"), 0U);
}

TEST_F(gpu_feed, ends_the_queue_with_the_cause_when_a_copy_fails) {
  const machine m = open();
  fed<14> f{m, asked(transfer_mode::direct)};
  const kernel_end in{f.rx};
  const auto taking = f.take(in, 1000);
  driver.fail("cuMemcpyHtoDAsync@0=2,cuMemcpyAsync@0=2");
  queue_status status = queue_status::ok;
  for (std::uint64_t n = 0; n < 1000 && status == queue_status::ok; ++n) status = f.tx.send(note_of<14>(n));
  taking.wait();
  EXPECT_EQ(f.got.came_to(), WEFT_RING_STOPPED);
  EXPECT_EQ(status, queue_status::failed);
  ASSERT_TRUE(f.tx.failure());
  EXPECT_EQ(f.tx.failure()->code, weft::errc::out_of_memory) << f.tx.failure()->what;
  driver.fail("");
  fed<14> other{m, asked(transfer_mode::direct)};
  const kernel_end next{other.rx};
  other.takes_what_is_sent_meanwhile(next, 100);
}

TEST_F(gpu_feed, is_refused_with_the_reason_where_its_memory_is_not_to_be_had) {
  const machine m = open();
  fed<4> f{m, asked(transfer_mode::direct)};
  driver.fail("cuMemAlloc@0=2");
  EXPECT_EQ(samples::error_of([&] { const kernel_end in{f.rx}; }).code, weft::errc::out_of_memory);
  driver.fail("");
  f.send(3);
  f.host_takes(3);  // the end is the host's still
}

TEST_F(gpu_feed, ends_with_its_machine) {
  for (machine m : {open(), with_windows()}) {
    fed<4> f{m, asked(transfer_mode::direct)};
    const kernel_end in{f.rx};
    f.send(3);
    m.close();
    EXPECT_EQ(f.tx.send(note_of<4>(3)), queue_status::failed);
  }
}

TEST_F(gpu_feed, writes_no_more_into_memory_that_went_with_a_reset) {
  const machine m = with_windows();
  fed<4> f{m, asked(transfer_mode::direct)};
  const kernel_end in{f.rx};
  f.send(3);
  const auto stored = driver.calls("gdr_copy_to_mapping");
  EXPECT_GT(stored, 0U);
  m[gpu1].reset();
  EXPECT_EQ(driver.calls("gdr_unmap"), driver.calls("gdr_map"));
  for (std::uint64_t n = 0; n < 10; ++n) static_cast<void>(f.tx.try_send(note_of<4>(n)));
  EXPECT_EQ(driver.calls("gdr_copy_to_mapping"), stored);
}

TEST_F(gpu_feed, gives_its_window_back) {
  const machine m = with_windows();
  fed<4> f{m, asked(transfer_mode::direct)};
  const auto pinned = driver.calls("gdr_pin_buffer"), unpinned = driver.calls("gdr_unpin_buffer");
  {
    const kernel_end in{f.rx};
  }
  EXPECT_EQ(driver.calls("gdr_pin_buffer"), pinned + 1);
  EXPECT_EQ(driver.calls("gdr_unpin_buffer"), unpinned + 1);
  // where nothing can be pinned it is brought by copies
  driver.fail("gdr_pin_buffer@0=12");
  const kernel_end in{f.rx};
  EXPECT_EQ(in.delivery(), weft::ring_delivery::copies);
  f.takes_what_is_sent_meanwhile(in, 100);
}

TEST_F(gpu_queue, DISABLED_tells_another_process_that_the_device_of_its_kernel_is_lost) {
  constexpr weft::rank here{0}, there{1};
  processes::couple pair{[&](weft::process_group& group) {
    auto tx = weft::connect_sender<std::uint64_t>(group, here, 5, small());
    const machine m{samples::virtual_cuda_options()};
    const kernel_end out{tx, m[gpu0]};
    const weft::buffer<std::uint64_t> touched{m[gpu0], 1};
    driver.lose(0, 719);
    EXPECT_THROW(weft::copy(std::vector<std::uint64_t>(1), touched), weft::error_exception);
    for (;;) ::pause();  // the loan goes on
    return 0;
  }};
  auto rx = weft::connect_receiver<std::uint64_t>(pair.group, there, 5, small());
  std::uint64_t got = 0;
  ASSERT_EQ(rx.receive_for(got, samples::only_a_hang), queue_status::failed);
  EXPECT_EQ(rx.failure()->code, weft::errc::device_lost) << rx.failure()->what;
}

TEST_F(gpu_queue, DISABLED_joins_kernels_of_this_new_process_and_its_child) {
  constexpr std::uint64_t many = 500;
  constexpr weft::rank here{0}, there{1};
  processes::couple pair{[&](weft::process_group& group) {
    auto [tx, rx] = weft::connect_both<std::uint64_t>(group, here, 5, small());
    const machine m{samples::virtual_cuda_options()};
    const weft::buffer<std::uint64_t> done{m[gpu0], 1};
    const kernel_end in{rx, m[gpu0]}, out{tx, m[gpu0]};
    if (in.visibility() != ring_visibility::immediate) return 1;
    weft::launch<answers_on_gpu>(weft::stream{m[gpu0]}, weft::range(1), in, out, many, for_ever, done).wait();
    return 0;
  }};
  auto [tx, rx] = weft::connect_both<std::uint64_t>(pair.group, there, 5, small());
  const machine m{samples::virtual_cuda_options()};
  const weft::buffer<std::uint64_t> done{m[gpu1], 1};
  driver.fail("cuMemHostRegister@0=801");
  const auto refused = samples::error_of([&] { const kernel_end in{rx, m[gpu1]}; });
  driver.fail("");
  EXPECT_EQ(refused.code, weft::errc::unsupported) << "no image: a kernel of CUDA would take it for addresses";
  EXPECT_NE(refused.what.find("its memory is not taken"), std::string::npos) << refused.what;
  ASSERT_EQ(tx.send(1), queue_status::ok);  // what goes to and fro between the kernels
  {
    const kernel_end in{rx, m[gpu1]}, out{tx, m[gpu1]};
    weft::launch<answers_on_gpu>(weft::stream{m[gpu1]}, weft::range(1), in, out, many - 1, for_ever, done).wait();
  }
  std::uint64_t got = 0;
  ASSERT_EQ(rx.receive_for(got, samples::only_a_hang), queue_status::ok);
  std::uint64_t expected = 1;
  for (std::uint64_t n = 0; n < 2 * many - 1; ++n) expected = expected * 3 + 1;
  EXPECT_EQ(got, expected);
  EXPECT_EQ(pair.other.wait(), 0);
}

TEST_F(gpu_queue, DISABLED_for_kernels_finds_that_messages_arrive_in_parts) {
  const machine m{samples::virtual_cuda_options()};
  const message_queue<std::uint64_t> queue{m, gpu0, gpu1, for_kernels()};
  EXPECT_EQ(queue.mode(), transfer_mode::host_staged);
  EXPECT_NE(queue.why().find("does not deliver 16 bytes at once"), std::string::npos) << queue.why();
}

/// Runs a test in a new process: CUDA does not work in the child of a fork that has used it before.
int run_anew(const char* test, const char* setting = nullptr, const std::string& value = "0") {
  processes::child anew{[&] {
    if (setting != nullptr) ::setenv(setting, value.c_str(), 1);  // NOLINT(concurrency-mt-unsafe): of a new process
    const std::string filter = std::string{"--gtest_filter=*.DISABLED_"} + test;
    ::execl("/proc/self/exe", "anew", "--gtest_also_run_disabled_tests", filter.c_str(), nullptr);
    return 98;
  }};
  return anew.wait();
}

TEST_F(gpu_queue, joins_kernels_of_two_processes_while_both_run) {
  EXPECT_EQ(run_anew("joins_kernels_of_this_new_process_and_its_child"), 0);
}

TEST_F(gpu_queue, a_queue_between_processes_ends_with_the_loss_of_a_kernels_device) {
  EXPECT_EQ(run_anew("tells_another_process_that_the_device_of_its_kernel_is_lost"), 0);
}

TEST_F(gpu_queue, for_kernels_is_not_trusted_to_a_way_that_delivers_messages_in_parts) {
  const char* const compiler = std::getenv("CXX");  // NOLINT(concurrency-mt-unsafe): nobody sets it
  const std::string tears = std::string{compiler != nullptr ? compiler : "c++"} + " -DWEFT_VIRTUAL_TEARS=3";
  EXPECT_EQ(run_anew("for_kernels_finds_that_messages_arrive_in_parts", "CXX", tears), 0);
}

TEST_F(gpu_feed, copies_what_has_arrived_where_streams_write_no_long_words) {
  EXPECT_EQ(run_anew("copies_what_has_arrived_on_this_driver", "WEFT_VIRTUAL_CUDA_MEMOPS"), 0);
}

}  // namespace gpu_queue_test
