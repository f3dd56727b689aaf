// SPDX-License-Identifier: Apache-2.0
#include "weft/kernel/ring.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace ring_test {

// Both ends of one ring and their memory, each part an allocation of its own: the address sanitizer sees its borders.
class ring_pair {
 public:
  // `slots_or_lines` is a power of two. The packed layout holds one line's messages less than its lines have places.
  ring_pair(std::uint32_t bytes, std::uint64_t slots_or_lines, bool packed) {
    const std::uint32_t per_line = packed ? WEFT_RING_LINE_PAYLOAD / bytes : 0;
    const std::uint32_t stride = packed ? 0 : (bytes + 4 + 7) / 8 * 8;
    const std::size_t size = slots_or_lines * (packed ? WEFT_RING_LINE : stride);
    memory_ = std::make_unique<std::uint64_t[]>(size / 8);
    size_ = size;
    writer_.slots = reinterpret_cast<std::uintptr_t>(memory_.get());
    writer_.credit = reinterpret_cast<std::uintptr_t>(credit_.get());
    writer_.fin = reinterpret_cast<std::uintptr_t>(fin_.get());
    writer_.mask = slots_or_lines - 1;
    writer_.capacity = packed ? (slots_or_lines - 1) * per_line : slots_or_lines;
    writer_.shift = static_cast<std::uint32_t>(std::countr_zero(slots_or_lines));
    writer_.bytes = bytes;
    writer_.stride = stride;
    writer_.per_line = per_line;
    reader_ = writer_;
    writer_.stop = reinterpret_cast<std::uintptr_t>(writer_stop_.get());
    reader_.stop = reinterpret_cast<std::uintptr_t>(reader_stop_.get());
    *fin_ = WEFT_RING_OPEN;
  }

  /// The pieces layout, of messages of up to 48 bytes.
  static ring_pair in_pieces(std::uint32_t bytes, std::uint64_t slots) {
    const std::uint32_t pieces = (bytes + WEFT_RING_PIECE_PAYLOAD - 1) / WEFT_RING_PIECE_PAYLOAD;
    ring_pair made(pieces * WEFT_RING_PIECE - 4, slots, false);
    for (weft_ring* end : {&made.writer_, &made.reader_}) {
      end->bytes = bytes;
      end->pieces = pieces;
    }
    return made;
  }

  /// As if `position` messages had passed; in the packed layout a whole number of lines.
  void start_at(std::uint64_t position) {
    const std::uint64_t slots = writer_.mask + 1;
    const bool packed = writer_.stride == 0;
    const std::uint64_t first = packed ? position / writer_.per_line : position;
    for (weft_ring* end : {&writer_, &reader_}) {
      end->position = position;
      end->credit_seen = position;
      end->line = packed ? first : 0;
      end->index = 0;
    }
    *credit_ = position;
    for (std::uint64_t at = first >= slots ? first - slots : 0; at < first; ++at) {
      if (packed) {
        *line_word(at & writer_.mask) = ((at + 1) << 8) | writer_.per_line;
      } else {
        const auto lap = static_cast<std::uint32_t>(at >> writer_.shift) + 1;
        *stamp(at & writer_.mask) = lap;
        for (std::uint32_t i = 0; i < writer_.pieces; ++i) *piece_stamp(at & writer_.mask, i) = lap;
      }
    }
  }

  weft_ring* writer() { return &writer_; }
  weft_ring* reader() { return &reader_; }
  std::uint64_t& credit() { return *credit_; }
  std::uint64_t& fin() { return *fin_; }
  std::uint32_t& stop(bool of_writer) { return of_writer ? *writer_stop_ : *reader_stop_; }
  std::uint8_t* bytes() { return reinterpret_cast<std::uint8_t*>(memory_.get()); }
  std::size_t size() const { return size_; }
  std::uint32_t* stamp(std::uint64_t slot) {
    return reinterpret_cast<std::uint32_t*>(bytes() + slot * writer_.stride + writer_.stride - 4);
  }
  std::uint32_t* piece_stamp(std::uint64_t slot, std::uint32_t piece) {
    return reinterpret_cast<std::uint32_t*>(bytes() + slot * writer_.stride + piece * WEFT_RING_PIECE +
                                            WEFT_RING_PIECE_PAYLOAD);
  }
  std::uint64_t* line_word(std::uint64_t line) {
    return reinterpret_cast<std::uint64_t*>(bytes() + line * WEFT_RING_LINE + WEFT_RING_LINE_PAYLOAD);
  }

 private:
  std::unique_ptr<std::uint64_t[]> memory_;
  std::size_t size_ = 0;
  std::unique_ptr<std::uint64_t> credit_ = std::make_unique<std::uint64_t>(0);
  std::unique_ptr<std::uint64_t> fin_ = std::make_unique<std::uint64_t>(0);
  std::unique_ptr<std::uint32_t> writer_stop_ = std::make_unique<std::uint32_t>(0);
  std::unique_ptr<std::uint32_t> reader_stop_ = std::make_unique<std::uint32_t>(0);
  weft_ring writer_{};
  weft_ring reader_{};
};

std::uint8_t byte_of(std::uint64_t message, std::size_t at) {
  return static_cast<std::uint8_t>((message * 131 + at * 7 + (message >> 8)) & 0xff);
}

void fill(std::uint8_t* to, std::uint64_t message, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; ++at) to[at] = byte_of(message, at);
}

bool is_message(const std::uint8_t* from, std::uint64_t message, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; ++at) {
    if (from[at] != byte_of(message, at)) return false;
  }
  return true;
}

int send(ring_pair& ring, std::uint64_t message) {
  std::vector<std::uint8_t> it(ring.writer()->bytes);
  fill(it.data(), message, it.size());
  return weft_ring_try_send(ring.writer(), it.data());
}

// WEFT_RING_OK only when the message received is that one.
int receive(ring_pair& ring, std::uint64_t message) {
  std::vector<std::uint8_t> it(ring.reader()->bytes);
  const int came_to = weft_ring_try_receive(ring.reader(), it.data());
  return came_to == WEFT_RING_OK && !is_message(it.data(), message, it.size()) ? -1 : came_to;
}

// Fills the ring until it says so, empties it until it says so, `laps` times, with numbers that go on.
void fill_and_empty(ring_pair& ring, int laps, const std::string& what) {
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
  for (int lap = 0; lap < laps; ++lap) {
    while (send(ring, sent) == WEFT_RING_OK) sent += 1;
    ASSERT_EQ(send(ring, sent), WEFT_RING_FULL) << what;
    ASSERT_EQ(sent - received, ring.writer()->capacity) << what;
    while (received != sent) {
      ASSERT_EQ(receive(ring, received), WEFT_RING_OK) << what << ", message " << received;
      received += 1;
    }
    ASSERT_EQ(receive(ring, received), WEFT_RING_EMPTY) << what;
    ASSERT_EQ(ring.credit(), ring.reader()->position) << what;
  }
  // one at a time, so that every place of the ring is once the first of a batch
  for (std::uint64_t i = 0; i <= ring.writer()->capacity; ++i) {
    ASSERT_EQ(send(ring, sent++), WEFT_RING_OK) << what;
    ASSERT_EQ(receive(ring, received++), WEFT_RING_OK) << what;
  }
}

// As fill_and_empty, in batches of changing length.
void exchange_batches(ring_pair& ring, std::uint64_t messages, const std::string& what) {
  weft_ring* writer = ring.writer();
  weft_ring* reader = ring.reader();
  const std::uint32_t bytes = writer->bytes;
  const std::uint64_t most = writer->capacity + 3;
  std::vector<std::uint8_t> out(most * bytes);
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
  for (std::uint64_t turn = 0; received < messages; ++turn) {
    const std::uint64_t wanted = 1 + turn * 5 % most;
    for (std::uint64_t i = 0; i < wanted; ++i) fill(out.data() + i * bytes, sent + i, bytes);
    int why = -1;
    const std::uint64_t done = writer->stride == 0
                                   ? weft_ring_put_lines(writer, out.data(), wanted, bytes, writer->per_line, &why)
                                   : weft_ring_put_slots(writer, out.data(), wanted, bytes, writer->stride, &why);
    ASSERT_LE(done, wanted) << what;
    ASSERT_EQ(why, done == 0 ? WEFT_RING_FULL : WEFT_RING_OK) << what;
    sent += done;
    ASSERT_LE(sent - received, writer->capacity) << what;

    const std::uint64_t asked = 1 + turn * 3 % most;
    std::vector<std::uint8_t> in(asked * bytes);  // exactly as long as asked: nothing may be written behind it
    const std::uint64_t got = reader->stride == 0
                                  ? weft_ring_get_lines(reader, in.data(), asked, bytes, reader->per_line)
                                  : weft_ring_get_slots(reader, in.data(), asked, bytes, reader->stride);
    ASSERT_EQ(got, std::min(asked, sent - received)) << what;
    for (std::uint64_t i = 0; i < got; ++i) {
      ASSERT_TRUE(is_message(in.data() + i * bytes, received + i, bytes)) << what << ", message " << received + i;
    }
    received += got;
    if (got < asked) {
      ASSERT_EQ(weft_ring_nothing(reader), WEFT_RING_EMPTY) << what;
    }
  }
}

TEST(ring, messages_of_every_size_pass_through_slots_over_several_laps) {
  std::vector<std::uint32_t> sizes;
  for (std::uint32_t bytes = 1; bytes <= 600; ++bytes) sizes.push_back(bytes);
  sizes.push_back(4097);
  for (const std::uint32_t bytes : sizes) {
    ring_pair ring(bytes, 4, false);
    fill_and_empty(ring, 3, std::to_string(bytes) + " bytes");
    ring_pair batches(bytes, 8, false);
    exchange_batches(batches, 40, std::to_string(bytes) + " bytes in batches");
  }
}

TEST(ring, messages_of_up_to_24_bytes_pass_through_packed_lines_over_several_laps) {
  for (std::uint32_t bytes = 1; bytes <= 24; ++bytes) {
    for (const std::uint64_t lines : {2U, 4U, 16U}) {
      ring_pair ring(bytes, lines, true);
      fill_and_empty(ring, 3, std::to_string(bytes) + " bytes");
      ring_pair batches(bytes, lines, true);
      exchange_batches(batches, batches.writer()->capacity * 7, std::to_string(bytes) + " bytes in batches");
    }
  }
}

TEST(ring, messages_of_up_to_48_bytes_pass_in_pieces_over_several_laps) {
  for (std::uint32_t bytes = 1; bytes <= WEFT_RING_MOST_PIECES * WEFT_RING_PIECE_PAYLOAD; ++bytes) {
    ring_pair ring = ring_pair::in_pieces(bytes, 4);
    fill_and_empty(ring, 3, std::to_string(bytes) + " bytes in pieces");
  }
}

TEST(ring, a_message_is_taken_when_all_its_pieces_are_there_whichever_comes_last) {
  for (std::uint32_t late = 0; late < 4; ++late) {
    ring_pair ring = ring_pair::in_pieces(44, 4);
    ASSERT_EQ(send(ring, 7), WEFT_RING_OK);
    *ring.piece_stamp(0, late) = 0;
    std::vector<std::uint8_t> it(44, 0xee);
    EXPECT_EQ(weft_ring_try_receive(ring.reader(), it.data()), WEFT_RING_EMPTY) << "piece " << late;
    EXPECT_EQ(it, std::vector<std::uint8_t>(44, 0xee)) << "piece " << late;
    *ring.piece_stamp(0, late) = 1;
    EXPECT_EQ(receive(ring, 7), WEFT_RING_OK) << "piece " << late;
  }
}

TEST(ring, a_stamp_of_any_piece_that_cannot_be_is_damage) {
  for (std::uint32_t piece = 0; piece < 3; ++piece) {
    for (const std::uint32_t wrong : {3U, 0U, ~0U}) {
      ring_pair ring = ring_pair::in_pieces(36, 4);
      for (std::uint64_t i = 0; i < 4; ++i) {
        ASSERT_EQ(send(ring, i), WEFT_RING_OK);
        ASSERT_EQ(receive(ring, i), WEFT_RING_OK);
      }
      *ring.piece_stamp(0, piece) = wrong;  // of the first lap, or the second
      EXPECT_EQ(receive(ring, 4), WEFT_RING_CORRUPT) << "piece " << piece << ", stamp " << wrong;
    }
  }
}

TEST(ring, single_messages_and_batches_mix) {
  for (const bool packed : {false, true}) {
    ring_pair ring(12, 8, packed);
    std::mt19937 random(7);
    std::uint64_t sent = 0;
    std::uint64_t received = 0;
    for (int turn = 0; turn < 20000; ++turn) {
      const std::uint64_t count = random() % 9;
      std::vector<std::uint8_t> it(count * 12);
      switch (random() % 4) {
        case 0:
          sent += send(ring, sent) == WEFT_RING_OK;
          break;
        case 1: {
          for (std::uint64_t i = 0; i < count; ++i) fill(it.data() + i * 12, sent + i, 12);
          int why = -1;
          sent += packed ? weft_ring_put_lines(ring.writer(), it.data(), count, 12, 4, &why)
                         : weft_ring_put_slots(ring.writer(), it.data(), count, 12, 16, &why);
          break;
        }
        case 2: {
          const int came_to = receive(ring, received);
          ASSERT_EQ(came_to, sent == received ? WEFT_RING_EMPTY : WEFT_RING_OK);
          received += came_to == WEFT_RING_OK;
          break;
        }
        default: {
          const std::uint64_t got = packed ? weft_ring_get_lines(ring.reader(), it.data(), count, 12, 4)
                                           : weft_ring_get_slots(ring.reader(), it.data(), count, 12, 16);
          ASSERT_EQ(got, std::min(count, sent - received));
          for (std::uint64_t i = 0; i < got; ++i) ASSERT_TRUE(is_message(it.data() + i * 12, received + i, 12));
          received += got;
        }
      }
      ASSERT_LE(sent - received, ring.writer()->capacity);
    }
    EXPECT_GT(received, 10000U);
  }
}

// The count of a credit has 63 bits, so a ring ends at 2^63 messages: 29 years of ten thousand million a second.
TEST(ring, counts_go_on_where_a_stamp_or_a_line_number_starts_again) {
  for (const std::uint64_t laps : {std::uint64_t{1} << 31, std::uint64_t{1} << 32, std::uint64_t{1} << 33}) {
    ring_pair slots(20, 8, false);
    slots.start_at(laps * 8 - 21);
    fill_and_empty(slots, 6, "slots");
    ring_pair pieces = ring_pair::in_pieces(20, 8);
    pieces.start_at(laps * 8 - 21);
    fill_and_empty(pieces, 6, "pieces");
    ring_pair batches(20, 8, false);
    batches.start_at(laps * 8 - 21);
    exchange_batches(batches, 60, "slots in batches");
  }
  ring_pair last(20, 8, false);
  last.start_at((std::uint64_t{1} << 63) - 100);
  fill_and_empty(last, 6, "slots before 2^63");
  for (const std::uint64_t lines : {std::uint64_t{1} << 24, std::uint64_t{1} << 32, std::uint64_t{1} << 56}) {
    ring_pair packed(12, 8, true);
    packed.start_at((lines - 13) * 4);
    fill_and_empty(packed, 4, "packed");
    ring_pair batches(12, 8, true);
    batches.start_at((lines - 13) * 4);
    exchange_batches(batches, 140, "packed in batches");
  }
}

TEST(ring, a_close_is_seen_after_the_last_message_and_only_then) {
  for (const bool packed : {false, true}) {
    ring_pair ring(8, 4, packed);
    EXPECT_EQ(receive(ring, 0), WEFT_RING_EMPTY);
    for (std::uint64_t i = 0; i < 3; ++i) ASSERT_EQ(send(ring, i), WEFT_RING_OK);
    weft_ring_close_writer(ring.writer());
    for (std::uint64_t i = 0; i < 3; ++i) ASSERT_EQ(receive(ring, i), WEFT_RING_OK);
    EXPECT_EQ(receive(ring, 3), WEFT_RING_CLOSED);
    EXPECT_EQ(receive(ring, 3), WEFT_RING_CLOSED);
  }
}

TEST(ring, a_close_that_arrives_before_its_messages_is_not_believed_yet) {
  ring_pair ring(8, 4, false);
  ASSERT_EQ(send(ring, 0), WEFT_RING_OK);
  ring.fin() = 2;
  ASSERT_EQ(receive(ring, 0), WEFT_RING_OK);
  EXPECT_EQ(receive(ring, 1), WEFT_RING_EMPTY);
  ASSERT_EQ(send(ring, 1), WEFT_RING_OK);
  ASSERT_EQ(receive(ring, 1), WEFT_RING_OK);
  EXPECT_EQ(receive(ring, 2), WEFT_RING_CLOSED);
}

TEST(ring, a_writer_learns_that_the_reader_closed_and_a_late_look_does_not_take_it_back) {
  ring_pair ring(8, 16, false);
  for (std::uint64_t i = 0; i < 3; ++i) ASSERT_EQ(send(ring, i), WEFT_RING_OK);
  for (std::uint64_t i = 0; i < 3; ++i) ASSERT_EQ(receive(ring, i), WEFT_RING_OK);
  ASSERT_NE(ring.credit(), ring.reader()->position);  // three are owed
  weft_ring_close_reader(ring.reader());
  EXPECT_EQ(receive(ring, 3), WEFT_RING_EMPTY);
  for (std::uint64_t i = 3; i < 16; ++i) ASSERT_EQ(send(ring, i), WEFT_RING_OK);
  EXPECT_EQ(send(ring, 16), WEFT_RING_CLOSED);
  int why = -1;
  const std::uint64_t messages[2] = {};
  EXPECT_EQ(weft_ring_put_slots(ring.writer(), messages, 2, 8, 16, &why), 0U);
  EXPECT_EQ(why, WEFT_RING_CLOSED);
}

TEST(ring, a_stop_ends_both_waits) {
  for (const bool packed : {false, true}) {
    ring_pair ring(8, 4, packed);
    ring.stop(false) = 1;
    EXPECT_EQ(receive(ring, 0), WEFT_RING_STOPPED);
    std::uint64_t sent = 0;
    while (send(ring, sent) == WEFT_RING_OK) sent += 1;
    ring.stop(true) = 1;
    EXPECT_EQ(send(ring, sent), WEFT_RING_STOPPED);
    for (std::uint64_t i = 0; i < sent; ++i) EXPECT_EQ(receive(ring, i), WEFT_RING_OK);
  }
}

TEST(ring, a_wait_ends_after_its_polls) {
  ring_pair ring(8, 4, false);
  std::uint64_t it = 0;
  EXPECT_EQ(weft_ring_receive(ring.reader(), &it, 10), WEFT_RING_EMPTY);
  EXPECT_EQ(ring.reader()->waits, 11U);
  for (std::uint64_t i = 0; i < 4; ++i) ASSERT_EQ(weft_ring_send(ring.writer(), &i, 10), WEFT_RING_OK);
  EXPECT_EQ(weft_ring_send(ring.writer(), &it, 10), WEFT_RING_FULL);
  EXPECT_EQ(ring.writer()->waits, 11U);
}

TEST(ring, credit_comes_a_quarter_at_a_time_and_when_nothing_is_left) {
  ring_pair ring(8, 16, false);
  for (std::uint64_t i = 0; i < 6; ++i) ASSERT_EQ(send(ring, i), WEFT_RING_OK);
  for (std::uint64_t i = 0; i < 3; ++i) ASSERT_EQ(receive(ring, i), WEFT_RING_OK);
  EXPECT_EQ(ring.credit(), 0U);
  ASSERT_EQ(receive(ring, 3), WEFT_RING_OK);
  EXPECT_EQ(ring.credit(), 4U);
  for (std::uint64_t i = 4; i < 6; ++i) ASSERT_EQ(receive(ring, i), WEFT_RING_OK);
  EXPECT_EQ(ring.credit(), 4U);
  EXPECT_EQ(receive(ring, 6), WEFT_RING_EMPTY);
  EXPECT_EQ(ring.credit(), 6U);
}

// ---- what the other side may have written ---------------------------------------------------------------------------

TEST(ring, a_credit_beyond_what_was_sent_or_below_an_earlier_one_is_corrupt) {
  for (const bool packed : {false, true}) {
    ring_pair ring(8, 4, packed);
    std::uint64_t sent = 0;
    while (send(ring, sent) == WEFT_RING_OK) sent += 1;
    for (const std::uint64_t credit : {sent + 1, sent + 2, std::uint64_t{1} << 40, ~std::uint64_t{0},
                                       (std::uint64_t{1} << 63) - 1, (std::uint64_t{1} << 63) + sent + 1}) {
      ring.credit() = credit;
      EXPECT_EQ(send(ring, sent), WEFT_RING_CORRUPT) << credit;
      int why = -1;
      const std::uint64_t it[3] = {};
      EXPECT_EQ(packed ? weft_ring_put_lines(ring.writer(), it, 3, 8, 7, &why)
                       : weft_ring_put_slots(ring.writer(), it, 3, 8, 16, &why),
                0U);
      EXPECT_EQ(why, WEFT_RING_CORRUPT) << credit;
    }
    ring.credit() = 3;
    ASSERT_EQ(send(ring, sent), WEFT_RING_OK);
    while (send(ring, sent) == WEFT_RING_OK) sent += 1;
    ring.credit() = 2;
    EXPECT_EQ(send(ring, sent), WEFT_RING_CORRUPT);
  }
}

TEST(ring, a_close_below_what_was_received_is_corrupt) {
  ring_pair ring(8, 4, false);
  for (std::uint64_t i = 0; i < 2; ++i) {
    ASSERT_EQ(send(ring, i), WEFT_RING_OK);
    ASSERT_EQ(receive(ring, i), WEFT_RING_OK);
  }
  ring.fin() = 1;
  EXPECT_EQ(receive(ring, 2), WEFT_RING_CORRUPT);
}

TEST(ring, a_stamp_that_is_neither_this_lap_nor_the_one_before_is_corrupt) {
  ring_pair ring(8, 4, false);
  fill_and_empty(ring, 2, "before");
  const std::uint64_t at = ring.reader()->position;
  const std::uint32_t lap = static_cast<std::uint32_t>(at / 4) + 1;
  for (const std::uint32_t stamp : {lap + 1, lap - 2, 0U, 0xffffffffU, 0x80000000U}) {
    *ring.stamp(at & 3) = stamp;
    EXPECT_EQ(receive(ring, 0), WEFT_RING_CORRUPT) << stamp;
  }
  *ring.stamp(at & 3) = lap - 1;
  EXPECT_EQ(receive(ring, 0), WEFT_RING_EMPTY);
}

TEST(ring, a_line_word_that_cannot_be_is_corrupt) {
  ring_pair ring(8, 4, true);
  fill_and_empty(ring, 2, "before");
  std::uint64_t next = 0;
  while (ring.reader()->index != 0) {  // to the start of a line
    ASSERT_EQ(send(ring, next), WEFT_RING_OK);
    ASSERT_EQ(receive(ring, next), WEFT_RING_OK);
    next += 1;
  }
  const std::uint64_t line = ring.reader()->line;
  std::uint64_t* word = ring.line_word(line & 3);
  const std::uint64_t before = *word;
  ASSERT_EQ(before, ((line - 3) << 8) | 7);
  for (const std::uint64_t wrong : {(line + 1) << 8, (line + 2) << 8 | 1, line << 8 | 7, (line - 3) << 8 | 6,
                                    std::uint64_t{0}, ~std::uint64_t{0}}) {
    *word = wrong;
    EXPECT_EQ(receive(ring, 0), WEFT_RING_CORRUPT) << std::hex << wrong;
  }
  *word = before;
  EXPECT_EQ(receive(ring, 0), WEFT_RING_EMPTY);
}

// Any words at all: every call ends, says something it may say, and touches nothing but the ring and the messages.
TEST(ring, random_words_of_the_other_side_never_lead_out_of_the_ring) {
  for (const unsigned seed : {1U, 2U, 3U, 4U}) {
    std::mt19937_64 random(seed);
    for (const std::uint32_t bytes : {4U, 8U, 12U, 20U, 24U, 40U, 256U}) {
      for (const bool packed : {false, true}) {
        if (packed && bytes > 24) continue;
        ring_pair ring(bytes, 4, packed);
        weft_ring* writer = ring.writer();
        weft_ring* reader = ring.reader();
        std::vector<std::uint8_t> it(9 * bytes);
        std::vector<std::uint32_t> words(bytes / 4);
        std::uint64_t lost = 0;
        const auto near = [&](std::uint64_t value) { return random() % 3 == 0 ? random() : value + random() % 7 - 3; };
        for (int turn = 0; turn < 4000; ++turn) {
          ring.credit() = near(writer->position - 2) & (random() % 8 == 0 ? ~std::uint64_t{0} : ~std::uint64_t{0} >> 1);
          ring.fin() = near(reader->position);
          for (std::uint64_t slot = 0; slot < 4; ++slot) {
            if (packed) {
              *ring.line_word(slot) = near(((reader->line + 1) << 8) | reader->index);
            } else {
              *ring.stamp(slot) = static_cast<std::uint32_t>(near((reader->position >> reader->shift) + 1));
            }
          }
          const std::uint64_t count = random() % 10;
          int came_to = WEFT_RING_OK;
          switch (random() % 6) {
            case 0:
              came_to = weft_ring_try_send(writer, it.data());
              break;
            case 1:
              came_to = weft_ring_try_receive(reader, it.data());
              break;
            case 2: {
              const std::uint64_t done = packed
                                             ? weft_ring_put_lines(writer, it.data(), std::min<std::uint64_t>(count, 9),
                                                                   bytes, writer->per_line, &came_to)
                                             : weft_ring_put_slots(writer, it.data(), std::min<std::uint64_t>(count, 9),
                                                                   bytes, writer->stride, &came_to);
              ASSERT_LE(done, std::min<std::uint64_t>(count, 9));
              break;
            }
            case 3: {
              const std::uint64_t asked = std::min<std::uint64_t>(count, 9);
              const std::uint64_t done = packed ? weft_ring_get_lines(reader, it.data(), asked, bytes, reader->per_line)
                                                : weft_ring_get_slots(reader, it.data(), asked, bytes, reader->stride);
              ASSERT_LE(done, asked);
              break;
            }
            case 4:
              if (!packed) came_to = weft_ring_get_over(reader, words.data(), &lost);
              break;
            default:
              if (!packed) came_to = weft_ring_put_over(writer, words.data());
          }
          ASSERT_GE(came_to, WEFT_RING_OK);
          ASSERT_LE(came_to, WEFT_RING_CORRUPT);
          ASSERT_LT(packed ? writer->index : 0U, packed ? writer->per_line : 1U);
          ASSERT_LT(packed ? reader->index : 0U, packed ? reader->per_line : 1U);
        }
      }
    }
  }
}

// ---- overwriting ----------------------------------------------------------------------------------------------------

void fill_words(std::vector<std::uint32_t>& words, std::uint64_t message) {
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = static_cast<std::uint32_t>(message * 64 + i);
}

TEST(overwriting_ring, the_newest_messages_remain_and_the_loss_is_counted_exactly) {
  for (const std::uint64_t start :
       {std::uint64_t{0}, (std::uint64_t{1} << 31) * 16 - 40, (std::uint64_t{1} << 32) * 16 - 40}) {
    for (const std::uint64_t sent : {1U, 5U, 15U, 16U, 17U, 31U, 32U, 33U, 47U, 48U, 49U, 500U}) {
      ring_pair ring(12, 16, false);
      ring.start_at(start);
      // stamps count in halves here: those before are of the lap before
      for (std::uint64_t slot = 0; slot < 16; ++slot) {
        if (start != 0) {
          const std::uint64_t at = start - 16 + ((slot - start) & 15);
          *ring.stamp(at & 15) = 2 * (static_cast<std::uint32_t>(at / 16) + 1);
        }
      }
      std::vector<std::uint32_t> words(3);
      std::vector<std::uint32_t> expected(3);
      for (std::uint64_t i = 0; i < sent; ++i) {
        fill_words(words, i);
        ASSERT_EQ(weft_ring_put_over(ring.writer(), words.data()), WEFT_RING_OK);
      }
      weft_ring_close_writer(ring.writer());
      std::uint64_t lost = 0;
      const std::uint64_t gone = sent > 16 ? sent - 16 : 0;
      for (std::uint64_t i = gone; i < sent; ++i) {
        ASSERT_EQ(weft_ring_get_over(ring.reader(), words.data(), &lost), WEFT_RING_OK) << sent;
        fill_words(expected, i);
        ASSERT_EQ(words, expected);
        ASSERT_EQ(lost, gone);
      }
      EXPECT_EQ(weft_ring_get_over(ring.reader(), words.data(), &lost), WEFT_RING_CLOSED);
    }
  }
}

TEST(overwriting_ring, a_reader_far_behind_finds_the_oldest_message_of_a_long_ring_at_once) {
  for (const std::uint64_t sent : {65536U + 1, 65536U + 65, 65536U + 40000, 2 * 65536U - 1, 3 * 65536U + 12345}) {
    ring_pair ring(4, 65536, false);
    std::vector<std::uint32_t> words(1);
    for (std::uint64_t i = 0; i < sent; ++i) {
      words[0] = static_cast<std::uint32_t>(i);
      ASSERT_EQ(weft_ring_put_over(ring.writer(), words.data()), WEFT_RING_OK);
    }
    std::uint64_t lost = 0;
    ASSERT_EQ(weft_ring_get_over(ring.reader(), words.data(), &lost), WEFT_RING_OK) << sent;
    EXPECT_EQ(words[0], sent - 65536);
    EXPECT_EQ(lost, sent - 65536);
  }
}

TEST(overwriting_ring, a_message_being_written_is_not_read) {
  ring_pair ring(8, 4, false);
  std::vector<std::uint32_t> words(2, 1);
  std::uint64_t lost = 0;
  *ring.stamp(0) = 1;
  EXPECT_EQ(weft_ring_get_over(ring.reader(), words.data(), &lost), WEFT_RING_EMPTY);
  *ring.stamp(0) = 2;
  EXPECT_EQ(weft_ring_get_over(ring.reader(), words.data(), &lost), WEFT_RING_OK);
  EXPECT_EQ(lost, 0U);
}

TEST(overwriting_ring, its_writer_learns_of_a_close_and_of_a_stop_within_a_lap) {
  ring_pair closed(8, 4, false);
  std::vector<std::uint32_t> words(2, 1);
  ASSERT_EQ(weft_ring_put_over(closed.writer(), words.data()), WEFT_RING_OK);
  weft_ring_close_reader(closed.reader());
  for (int i = 0; i < 3; ++i) ASSERT_EQ(weft_ring_put_over(closed.writer(), words.data()), WEFT_RING_OK);
  EXPECT_EQ(weft_ring_put_over(closed.writer(), words.data()), WEFT_RING_CLOSED);
  ring_pair stopped(8, 4, false);
  stopped.stop(true) = 1;
  EXPECT_EQ(weft_ring_put_over(stopped.writer(), words.data()), WEFT_RING_STOPPED);
}

// ---- two threads ----------------------------------------------------------------------------------------------------

void exchange_between_threads(ring_pair ring, bool in_batches) {
  const std::uint32_t bytes = ring.writer()->bytes;
  const bool packed = ring.writer()->stride == 0;
  // a ring with one place changes hands with every message: on a busy machine each may cost a switch of threads
  const std::uint64_t messages = std::min<std::uint64_t>(30000, 1000 + 500 * ring.writer()->capacity);
  std::thread other([&] {
    weft_ring* writer = ring.writer();
    std::vector<std::uint8_t> it(5 * bytes);
    for (std::uint64_t sent = 0; sent < messages;) {
      const std::uint64_t wanted = in_batches ? std::min<std::uint64_t>(1 + sent % 5, messages - sent) : 1;
      for (std::uint64_t i = 0; i < wanted; ++i) fill(it.data() + i * bytes, sent + i, bytes);
      int why = WEFT_RING_OK;
      if (!in_batches) {
        why = weft_ring_send(writer, it.data(), 50);
        sent += why == WEFT_RING_OK;
      } else {
        sent += packed ? weft_ring_put_lines(writer, it.data(), wanted, bytes, writer->per_line, &why)
                       : weft_ring_put_slots(writer, it.data(), wanted, bytes, writer->stride, &why);
      }
      if (why != WEFT_RING_OK) std::this_thread::yield();
    }
    weft_ring_close_writer(writer);
  });
  weft_ring* reader = ring.reader();
  std::vector<std::uint8_t> it(7 * bytes);
  std::uint64_t received = 0;
  std::uint64_t wrong = 0;
  int came_to = WEFT_RING_OK;
  while (came_to != WEFT_RING_CLOSED && came_to != WEFT_RING_CORRUPT) {
    std::uint64_t got = 0;
    if (!in_batches) {
      came_to = weft_ring_receive(reader, it.data(), 50);
      got = came_to == WEFT_RING_OK;
    } else {
      const std::uint64_t asked = 1 + received % 7;
      got = packed ? weft_ring_get_lines(reader, it.data(), asked, bytes, reader->per_line)
                   : weft_ring_get_slots(reader, it.data(), asked, bytes, reader->stride);
      if (got == 0) came_to = weft_ring_nothing(reader);
    }
    for (std::uint64_t i = 0; i < got; ++i) wrong += !is_message(it.data() + i * bytes, received + i, bytes);
    received += got;
    if (got == 0) std::this_thread::yield();
  }
  other.join();
  EXPECT_EQ(came_to, WEFT_RING_CLOSED);
  EXPECT_EQ(received, messages);
  EXPECT_EQ(wrong, 0U);
}

TEST(ring, two_threads_exchange_every_message_in_order_in_every_layout) {
  for (const bool in_batches : {false, true}) {
    for (const std::uint32_t bytes : {1U, 8U, 24U}) {
      exchange_between_threads(ring_pair(bytes, 2, true), in_batches);
      exchange_between_threads(ring_pair(bytes, 64, true), in_batches);
    }
    for (const std::uint32_t bytes : {8U, 60U, 300U}) {
      exchange_between_threads(ring_pair(bytes, 1, false), in_batches);
      exchange_between_threads(ring_pair(bytes, 4, false), in_batches);
      exchange_between_threads(ring_pair(bytes, 256, false), in_batches);
    }
  }
  for (const std::uint32_t bytes : {4U, 12U, 16U, 48U}) {
    exchange_between_threads(ring_pair::in_pieces(bytes, 1), false);
    exchange_between_threads(ring_pair::in_pieces(bytes, 64), false);
  }
}

TEST(overwriting_ring, between_threads_no_message_is_torn_and_none_is_missing_from_the_count) {
  for (const std::uint64_t slots : {2U, 8U, 64U, 1024U}) {
    constexpr std::uint64_t messages = 100000;
    ring_pair ring(24, slots, false);
    std::thread other([&] {
      std::vector<std::uint32_t> words(6);
      for (std::uint64_t i = 0; i < messages; ++i) {
        fill_words(words, i);
        if (weft_ring_put_over(ring.writer(), words.data()) != WEFT_RING_OK) return;
        if (i % 64 == 63) std::this_thread::yield();
      }
      weft_ring_close_writer(ring.writer());
    });
    std::vector<std::uint32_t> words(6);
    std::vector<std::uint32_t> expected(6);
    std::uint64_t received = 0;
    std::uint64_t lost = 0;
    std::uint64_t wrong = 0;
    for (int came_to = WEFT_RING_OK; came_to != WEFT_RING_CLOSED;) {
      came_to = weft_ring_get_over(ring.reader(), words.data(), &lost);
      if (came_to == WEFT_RING_EMPTY) std::this_thread::yield();
      if (came_to != WEFT_RING_OK) continue;
      fill_words(expected, received + lost);
      wrong += words != expected;
      received += 1;
    }
    other.join();
    EXPECT_EQ(received + lost, messages);
    EXPECT_EQ(wrong, 0U);
    EXPECT_GE(received, 1U);
  }
}

}  // namespace ring_test
