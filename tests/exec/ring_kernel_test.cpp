// SPDX-License-Identifier: Apache-2.0
// Kernels of two devices that talk through rings, which are laid out by hand here.
#include "support/samples.hpp"
#include "weft/exec/launch.hpp"
#include "weft/memory/fill.hpp"
#include "weft/memory/peer_access.hpp"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <ostream>

namespace ring_kernel_test {

using samples::error_of;
using weft::buffer;
using weft::errc;
using weft::machine;
using weft::pinned_buffer;
using weft::range;
using weft::stream;

// Every word of message n differs by n and by place; 64 bytes hold the largest message here.
WEFT_KERNEL(sends_numbers,
            (WEFT_RING out, WEFT_OUT(uint64_t, whole) result, uint64_t first, uint64_t count, uint64_t polls), {
              uint32_t message[16];
              uint64_t done = 0;
              int came_to = WEFT_RING_OK;
              for (; done < count; ++done) {
                for (uint32_t word = 0; word < out->bytes / 4; ++word) {
                  message[word] = (uint32_t)((first + done) * 2654435761u) ^ (word * 40503u + 7u);
                }
                came_to = weft_ring_send(out, &message, polls);
                if (came_to != WEFT_RING_OK) break;
              }
              result[0] = done;
              result[1] = (uint64_t)came_to;
            });

// The sum takes in place and order, so that the host can check it without the formula above.
WEFT_KERNEL(receives_numbers,
            (WEFT_RING in, WEFT_OUT(uint64_t, whole) result, uint64_t first, uint64_t count, uint64_t polls), {
              uint32_t message[16];
              uint64_t done = 0;
              uint64_t wrong = 0;
              uint64_t sum = 0;
              int came_to = WEFT_RING_OK;
              for (; done < count; ++done) {
                came_to = weft_ring_receive(in, &message, polls);
                if (came_to != WEFT_RING_OK) break;
                for (uint32_t word = 0; word < in->bytes / 4; ++word) {
                  if (message[word] != ((uint32_t)((first + done) * 2654435761u) ^ (word * 40503u + 7u))) wrong += 1;
                  sum = sum * 31 + message[word];
                }
              }
              result[0] = done;
              result[1] = (uint64_t)came_to;
              result[2] = wrong;
              result[3] = sum;
            });

// A message is a plain struct here, and the answer is made from the question.
WEFT_KERNEL(asks, (WEFT_RING out, WEFT_RING in, WEFT_OUT(uint64_t, whole) result, uint64_t count, uint64_t polls), {
  struct question {
    uint32_t number;
    float value;
  };
  struct question asked;
  struct question answer;
  uint64_t done = 0;
  uint64_t wrong = 0;
  for (; done < count; ++done) {
    asked.number = (uint32_t)done * 3u + 1u;
    asked.value = (float)(done % 1000) + 0.5f;
    if (weft_ring_send(out, &asked, polls) != WEFT_RING_OK) break;
    if (weft_ring_receive(in, &answer, polls) != WEFT_RING_OK) break;
    if (answer.number != asked.number + 5u || answer.value != asked.value * 2.0f) wrong += 1;
  }
  weft_ring_close_writer(out);
  result[0] = done;
  result[2] = wrong;
});
WEFT_KERNEL(answers, (WEFT_RING in, WEFT_RING out, WEFT_OUT(uint64_t, whole) result, uint64_t polls), {
  struct question {
    uint32_t number;
    float value;
  };
  struct question message;
  uint64_t done = 0;
  int came_to = weft_ring_receive(in, &message, polls);
  while (came_to == WEFT_RING_OK) {
    message.number += 5u;
    message.value = message.value * 2.0f;
    came_to = weft_ring_send(out, &message, polls);
    if (came_to == WEFT_RING_OK) {
      done += 1;
      came_to = weft_ring_receive(in, &message, polls);
    }
  }
  result[0] = done;
  result[1] = (uint64_t)came_to;
});

constexpr std::uint64_t for_long = 300'000'000;  // polls: some ten seconds
constexpr auto ok = static_cast<std::uint64_t>(WEFT_RING_OK);

std::uint64_t sum_of(std::uint64_t first, std::uint64_t count, std::uint32_t bytes) {
  std::uint64_t sum = 0;
  for (std::uint64_t n = first; n < first + count; ++n) {
    for (std::uint32_t word = 0; word < bytes / 4; ++word) {
      sum = sum * 31 + (static_cast<std::uint32_t>(n * 2654435761U) ^ (word * 40503U + 7U));
    }
  }
  return sum;
}

// ---- a ring by hand -------------------------------------------------------------------------------------------------

using words = buffer<std::uint64_t>;
using word_span = weft::device_span<std::uint64_t>;
constexpr auto end_words = static_cast<std::size_t>(weft::ring_words);

// Writes into an end the addresses under which its device sees what belongs to it: only on the device are they known.
void wire_end(const weft::kernel_range&, std::span<const weft::kernel_argument> arguments) {
  const auto address = [&](std::size_t n) { return reinterpret_cast<std::uintptr_t>(arguments[n].address); };
  auto* end = static_cast<weft_ring*>(arguments[0].address);
  end->slots = address(1);
  end->credit = address(2);
  end->fin = address(3);
  end->stop = address(4);
}

const std::shared_ptr<const weft::kernel_code>& wiring() {
  static const auto& code = *new std::shared_ptr<const weft::kernel_code>([] {
    weft::raw_kernel raw;
    raw.name = "wire_end";
    for (const char* name : {"end", "slots", "credit", "fin", "stop"}) {
      raw.parameters.push_back(
          {name, weft::element_type::uint64, weft::parameter_direction::inout, weft::access::whole(), false});
    }
    raw.host = &wire_end;
    return weft::make_kernel_code(std::move(raw));
  }());
  return code;
}

struct layout {
  const char* name;
  std::uint32_t bytes;
  std::uint32_t stride;  // 0: packed

  friend void PrintTo(const layout& one, std::ostream* to) { *to << one.name; }
};
constexpr layout packed_8{"packed_8", 8, 0};
constexpr layout packed_24{"packed_24", 24, 0};
constexpr layout slots_60{"slots_60", 60, 64};

weft_ring shape_of(const layout& of, std::uint32_t shift) {
  weft_ring made{};
  const std::uint64_t places = std::uint64_t{1} << shift;
  made.mask = places - 1;
  made.shift = shift;
  made.bytes = of.bytes;
  made.stride = of.stride;
  made.per_line = of.stride == 0 ? WEFT_RING_LINE_PAYLOAD / of.bytes : 0;
  // a line is written again only when all of it was read, so one line is never counted on
  made.capacity = of.stride == 0 ? (places - 1) * made.per_line : places;
  return made;
}

std::array<std::uint64_t, end_words> as_words(const weft_ring& end) {
  return std::bit_cast<std::array<std::uint64_t, end_words>>(end);
}

/// Both ends and all they share, each where its reader is, seen by the other device through a peer mapping.
class device_ring {
 public:
  device_ring(const machine& m, weft::device_id from, weft::device_id to, const layout& of, std::uint32_t shift)
      : shape_(shape_of(of, shift)),
        there_(m, from, to),
        back_(m, to, from),
        sender_(m[from], end_words),
        receiver_(m[to], end_words),
        credit_(m[from], 1),
        sender_stop_(m[from], 1),
        fin_(m[to], 1),
        receiver_stop_(m[to], 1),
        slots_(m[to], (shape_.mask + 1) * (of.stride == 0 ? WEFT_RING_LINE : of.stride) / 8),
        slots_seen_(m, slots_.span(), from),
        fin_seen_(m, fin_.span(), from),
        credit_seen_(m, credit_.span(), to) {
    weft::copy(sender_, as_words(shape_));
    weft::copy(receiver_, as_words(shape_));
    weft::fill(credit_, std::uint64_t{0});
    weft::fill(sender_stop_, std::uint64_t{0});
    weft::fill(receiver_stop_, std::uint64_t{0});
    weft::fill(fin_, std::uint64_t{WEFT_RING_OPEN});
    weft::fill(slots_, std::uint64_t{0});
    weft::kernels(m).add(wiring());
    wire(m[from], sender_, slots_seen_.span(), credit_, fin_seen_.span(), sender_stop_);
    wire(m[to], receiver_, slots_, credit_seen_.span(), fin_, receiver_stop_);
  }

  [[nodiscard]] const words& sender() const { return sender_; }
  [[nodiscard]] const words& receiver() const { return receiver_; }
  [[nodiscard]] const words& sender_stop() const { return sender_stop_; }
  [[nodiscard]] std::uint64_t capacity() const { return shape_.capacity; }

  [[nodiscard]] static weft_ring look(const words& end) {
    std::array<std::uint64_t, end_words> got{};
    weft::copy(got, end);
    return std::bit_cast<weft_ring>(got);
  }

 private:
  static void wire(const weft::device& on, const words& end, word_span slots, word_span credit, word_span fin,
                   word_span stop) {
    weft::launch(stream{on}, "wire_end", range(1), end, slots, credit, fin, stop).wait();
  }

  weft_ring shape_;
  weft::peer_access there_, back_;
  words sender_, receiver_;
  words credit_, sender_stop_, fin_, receiver_stop_;
  words slots_;
  weft::peer_mapping<std::uint64_t> slots_seen_, fin_seen_, credit_seen_;
};

machine two(bool check_access = false) {
  weft::machine_options options;
  options.machine = samples::wired(2);
  options.check_access = check_access;
  return machine{options};
}

struct outcome {
  words memory;
  explicit outcome(const weft::device& on) : memory(on, 4) { weft::fill(memory, ~std::uint64_t{0}); }
  [[nodiscard]] std::array<std::uint64_t, 4> get() const {
    std::array<std::uint64_t, 4> got{};
    weft::copy(got, memory);
    return got;
  }
};

void send_and_receive(const machine& m, const layout& of, std::uint32_t shift, std::uint64_t count) {
  const device_ring ring{m, samples::gpu0, samples::gpu1, of, shift};
  const outcome sent{m[0]}, received{m[1]};
  const stream from{m[0]}, to{m[1]};
  const auto sending = weft::launch<sends_numbers>(from, range(1), ring.sender(), sent.memory, std::uint64_t{0}, count,
                                                   std::uint64_t{for_long});
  const auto receiving = weft::launch<receives_numbers>(to, range(1), ring.receiver(), received.memory,
                                                        std::uint64_t{0}, count, std::uint64_t{for_long});
  sending.wait();
  receiving.wait();
  EXPECT_EQ(sent.get()[0], count);
  EXPECT_EQ(sent.get()[1], ok);
  EXPECT_EQ(received.get(), (std::array<std::uint64_t, 4>{count, ok, 0, sum_of(0, count, of.bytes)}));
  EXPECT_EQ(device_ring::look(ring.sender()).position, count);
  EXPECT_EQ(device_ring::look(ring.receiver()).position, count);
}

class ring_kernels : public testing::TestWithParam<layout> {};
INSTANTIATE_TEST_SUITE_P(layouts, ring_kernels, testing::Values(packed_8, packed_24, slots_60),
                         [](const auto& one) { return std::string(one.param.name); });

// ---- two devices ----------------------------------------------------------------------------------------------------

TEST_P(ring_kernels, two_devices_stream_a_hundred_thousand_messages_in_order) {
  send_and_receive(two(), GetParam(), 10, 100'000);
}

TEST_P(ring_kernels, checked_kernels_stream_messages_in_order) { send_and_receive(two(true), GetParam(), 6, 5'000); }

TEST_P(ring_kernels, go_on_in_a_later_launch_where_an_earlier_one_ended) {
  const machine m = two();
  const device_ring ring{m, samples::gpu0, samples::gpu1, GetParam(), 5};
  const outcome sent{m[0]}, received{m[1]};
  const stream from{m[0]}, to{m[1]};
  // both ends stop at other places, in the middle of lines, more than a lap in all
  std::vector<weft::event> work;
  std::uint64_t first = 0;
  for (const std::uint64_t count : {57U, 1U, 140U, 802U}) {
    work.push_back(
        weft::launch<sends_numbers>(from, range(1), ring.sender(), sent.memory, first, count, std::uint64_t{for_long}));
    first += count;
  }
  first = 0;
  for (const std::uint64_t count : {31U, 333U, 1U, 635U}) {
    weft::launch<receives_numbers>(to, range(1), ring.receiver(), received.memory, first, count,
                                   std::uint64_t{for_long})
        .wait();
    EXPECT_EQ(received.get(), (std::array<std::uint64_t, 4>{count, ok, 0, sum_of(first, count, GetParam().bytes)}));
    first += count;
    EXPECT_EQ(device_ring::look(ring.receiver()).position, first);
  }
  for (const weft::event& one : work) one.wait();
  EXPECT_EQ(device_ring::look(ring.sender()).position, 1000U);
}

TEST_P(ring_kernels, come_back_when_their_polls_are_used_up) {
  const machine m = two();
  const device_ring ring{m, samples::gpu0, samples::gpu1, GetParam(), 4};
  const outcome sent{m[0]}, received{m[1]};
  const std::uint64_t some = 25, polls = 300;
  weft::launch<receives_numbers>(stream{m[1]}, range(1), ring.receiver(), received.memory, std::uint64_t{0}, some,
                                 polls)
      .wait();
  EXPECT_EQ(received.get(), (std::array<std::uint64_t, 4>{0, WEFT_RING_EMPTY, 0, 0}));
  EXPECT_EQ(device_ring::look(ring.receiver()).waits, polls + 1);

  weft::launch<sends_numbers>(stream{m[0]}, range(1), ring.sender(), sent.memory, std::uint64_t{0},
                              ring.capacity() + some, polls)
      .wait();
  EXPECT_EQ(sent.get()[0], ring.capacity());
  EXPECT_EQ(sent.get()[1], std::uint64_t{WEFT_RING_FULL});
  EXPECT_EQ(device_ring::look(ring.sender()).waits, polls + 1);

  weft::fill(ring.sender_stop(), std::uint64_t{1});
  weft::launch<sends_numbers>(stream{m[0]}, range(1), ring.sender(), sent.memory, std::uint64_t{0}, some, polls).wait();
  EXPECT_EQ(sent.get()[0], 0U);
  EXPECT_EQ(sent.get()[1], std::uint64_t{WEFT_RING_STOPPED});

  // nothing was lost by all that
  weft::launch<receives_numbers>(stream{m[1]}, range(1), ring.receiver(), received.memory, std::uint64_t{0},
                                 ring.capacity() + some, polls)
      .wait();
  EXPECT_EQ(received.get(), (std::array<std::uint64_t, 4>{ring.capacity(), WEFT_RING_EMPTY, 0,
                                                          sum_of(0, ring.capacity(), GetParam().bytes)}));
}

TEST(ring_kernel, asks_another_device_and_gets_its_answers_until_it_closes) {
  const machine m = two();
  const layout slots_8{"slots_8", 8, 16};
  for (const layout& of : {packed_8, slots_8}) {
    const std::uint64_t count = 2'000;
    const device_ring there{m, samples::gpu0, samples::gpu1, of, 4}, back{m, samples::gpu1, samples::gpu0, of, 4};
    const outcome asked{m[0]}, answered{m[1]};
    const stream one{m[0]}, other{m[1]};
    const auto answering = weft::launch<answers>(other, range(1), there.receiver(), back.sender(), answered.memory,
                                                 std::uint64_t{for_long});
    weft::launch<asks>(one, range(1), there.sender(), back.receiver(), asked.memory, count, std::uint64_t{for_long})
        .wait();
    answering.wait();
    EXPECT_EQ(asked.get()[0], count);
    EXPECT_EQ(asked.get()[2], 0U) << "wrong answers";
    EXPECT_EQ(answered.get()[0], count);
    EXPECT_EQ(answered.get()[1], std::uint64_t{WEFT_RING_CLOSED});
  }
}

TEST(ring_kernel, reaches_a_ring_in_pinned_memory_from_either_device) {
  const machine m = two();
  for (const layout& of : {packed_24, slots_60}) {
    const std::uint64_t count = 20'000;
    const weft_ring shape = shape_of(of, 7);
    const pinned_buffer<std::uint64_t> slots{m[0], 128 * 8}, control{m[0], 4}, ends{m[0], 2 * end_words};
    std::fill(slots.host().begin(), slots.host().end(), 0U);
    std::fill(control.host().begin(), control.host().end(), 0U);
    control.host()[1] = WEFT_RING_OPEN;
    for (std::size_t n : {0U, 1U}) {
      std::ranges::copy(as_words(shape), ends.host().begin() + static_cast<std::ptrdiff_t>(n * end_words));
    }
    weft::kernels(m).add(wiring());
    const word_span sender = ends.subspan(0, end_words), receiver = ends.subspan(end_words, end_words);
    const auto wire = [&](const weft::device& on, word_span end, std::size_t stop) {
      weft::launch(stream{on}, "wire_end", range(1), end, slots, control.subspan(0, 1), control.subspan(1, 1),
                   control.subspan(stop, 1))
          .wait();
    };
    wire(m[0], sender, 2);
    wire(m[1], receiver, 3);
    const outcome sent{m[0]}, received{m[1]};
    const stream from{m[0]}, to{m[1]};
    const auto receiving = weft::launch<receives_numbers>(to, range(1), receiver, received.memory, std::uint64_t{0},
                                                          count, std::uint64_t{for_long});
    weft::launch<sends_numbers>(from, range(1), sender, sent.memory, std::uint64_t{0}, count, std::uint64_t{for_long})
        .wait();
    receiving.wait();
    EXPECT_EQ(received.get(), (std::array<std::uint64_t, 4>{count, ok, 0, sum_of(0, count, of.bytes)}));
  }
}

// ---- what a launch checks -------------------------------------------------------------------------------------------

TEST(ring_kernel, is_refused_memory_that_is_not_the_size_of_a_ring) {
  const machine m = two();
  const words small{m[0], end_words - 1}, large{m[0], end_words + 1}, result{m[0], 4};
  const buffer<double> numbers{m[0], end_words};
  const stream order{m[0]};
  weft::kernels(m).add<sends_numbers>();
  const auto expect = [&](std::string_view text, const auto& end) {
    const weft::error cause = error_of([&] {
      weft::launch(order, "sends_numbers", range(1), end, result, std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1});
    });
    EXPECT_EQ(cause.code, errc::incompatible);
    EXPECT_NE(cause.what.find(text), std::string::npos) << cause.what;
    EXPECT_NE(cause.what.find("sends_numbers(ring out, "), std::string::npos) << cause.what;
  };
  const std::string start =
      "argument 1 (out) must be one end of a ring, memory of exactly " + std::to_string(end_words);
  expect(start + " uint64_t in which a weft_ring lies; this is " + std::to_string(end_words - 1) + " uint64_t", small);
  expect(start + " uint64_t in which a weft_ring lies; this is " + std::to_string(end_words + 1) + " uint64_t", large);
  expect(start + " uint64_t in which a weft_ring lies; this is " + std::to_string(end_words) + " double", numbers);
  expect("argument 1 (out) must be device memory, not a value", std::uint64_t{7});
  const weft::error typed = error_of([&] {
    weft::launch<sends_numbers>(order, range(1), large, result, std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1});
  });
  EXPECT_EQ(typed.code, errc::incompatible);
  EXPECT_NE(typed.what.find(start), std::string::npos) << typed.what;
}

TEST(ring_kernel, on_a_device_without_a_right_to_the_end_loses_that_device) {
  const machine m = two();
  const device_ring ring{m, samples::gpu0, samples::gpu1, packed_8, 4};
  const words theirs{m[1], end_words}, result{m[0], 4};
  weft::disable_peer(m, samples::gpu0, samples::gpu1);
  const weft::error cause = error_of([&] {
    weft::launch<sends_numbers>(stream{m[0]}, range(1), theirs, result, std::uint64_t{0}, std::uint64_t{1},
                                std::uint64_t{1})
        .wait();
  });
  EXPECT_EQ(cause.code, errc::illegal_access);
  EXPECT_NE(cause.what.find("argument 1 (out)"), std::string::npos) << cause.what;
}

}  // namespace ring_kernel_test
