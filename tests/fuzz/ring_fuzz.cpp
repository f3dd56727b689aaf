// SPDX-License-Identifier: Apache-2.0
// Any words from the other side, in any order with any calls: every call ends, says something that it may say, and
// touches nothing but the ring and the messages. Where nothing was damaged, what arrives is what was sent.
#include "weft/kernel/ring.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

namespace {

class input {
 public:
  input(const std::uint8_t* data, std::size_t size) : at_(data), end_(data + size) {}
  bool is_empty() const { return at_ == end_; }
  std::uint64_t next(std::size_t bytes) {
    std::uint64_t value = 0;
    const std::size_t have = std::min(bytes, static_cast<std::size_t>(end_ - at_));
    if (have != 0) std::memcpy(&value, at_, have);
    at_ += have;
    return value;
  }

 private:
  const std::uint8_t* at_;
  const std::uint8_t* end_;
};

void expect(bool claim) {
  if (!claim) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  input in(data, size);
  const bool packed = in.next(1) % 2 != 0;
  const std::uint32_t bytes = static_cast<std::uint32_t>(packed ? 1 + in.next(1) % 24 : 1 + in.next(2) % 300);
  const std::uint32_t shift = static_cast<std::uint32_t>(packed ? 1 + in.next(1) % 4 : in.next(1) % 5);
  const std::uint64_t places = std::uint64_t{1} << shift;

  weft_ring writer{};
  writer.per_line = packed ? WEFT_RING_LINE_PAYLOAD / bytes : 0;
  writer.stride = packed ? 0 : (bytes + 4 + 7) / 8 * 8;
  // an allocation of its own for each part: the address sanitizer sees the borders
  const auto slots = std::make_unique<std::uint64_t[]>(places * (packed ? WEFT_RING_LINE : writer.stride) / 8);
  const auto credit = std::make_unique<std::uint64_t>(0);
  const auto fin = std::make_unique<std::uint64_t>(WEFT_RING_OPEN);
  const auto stop = std::make_unique<std::uint32_t>(0);
  writer.slots = reinterpret_cast<std::uintptr_t>(slots.get());
  writer.credit = reinterpret_cast<std::uintptr_t>(credit.get());
  writer.fin = reinterpret_cast<std::uintptr_t>(fin.get());
  writer.stop = reinterpret_cast<std::uintptr_t>(stop.get());
  writer.mask = places - 1;
  writer.capacity = packed ? (places - 1) * writer.per_line : places;
  writer.shift = shift;
  writer.bytes = bytes;
  weft_ring reader = writer;

  const auto control = [&](std::uint64_t which, std::uint64_t word) {
    std::uint8_t* memory = reinterpret_cast<std::uint8_t*>(slots.get());
    const std::uint64_t slot = which / 4 % places;
    switch (which % 4) {
      case 0:
        *credit = word;
        break;
      case 1:
        *fin = word;
        break;
      case 2:
        *stop = static_cast<std::uint32_t>(word);
        break;
      default:
        if (packed) {
          std::memcpy(memory + slot * WEFT_RING_LINE + WEFT_RING_LINE_PAYLOAD, &word, 8);
        } else {
          std::memcpy(memory + slot * writer.stride + writer.stride - 4, &word, 4);
        }
    }
  };

  std::deque<std::uint8_t> sent;  // the first byte of each message that is under way
  std::uint8_t number = 0;
  bool is_damaged = false;
  bool is_closed = false;
  std::uint64_t lost = 0;
  while (!in.is_empty()) {
    const std::uint64_t call = in.next(1);
    const std::uint64_t count = call / 16;
    std::vector<std::uint8_t> it(std::max<std::uint64_t>(count, 1) * bytes);
    std::uint64_t done = 0;
    int came_to = WEFT_RING_OK;
    switch (call % 8) {
      case 0:
      case 1: {
        if (is_closed) break;
        const std::uint64_t wanted = call % 8 == 0 ? 1 : count;
        for (std::uint64_t i = 0; i < wanted; ++i) {
          std::memset(it.data() + i * bytes, static_cast<std::uint8_t>(number + i), bytes);
        }
        if (call % 8 == 0) {
          came_to = weft_ring_try_send(&writer, it.data());
          done = came_to == WEFT_RING_OK;
        } else if (packed) {
          done = weft_ring_put_lines(&writer, it.data(), count, bytes, writer.per_line, &came_to);
        } else {
          done = weft_ring_put_slots(&writer, it.data(), count, bytes, writer.stride, &came_to);
        }
        expect(done <= wanted);
        for (std::uint64_t i = 0; i < done; ++i) sent.push_back(number++);
        expect(is_damaged || sent.size() <= writer.capacity);
        expect(is_damaged || came_to == WEFT_RING_OK || came_to == WEFT_RING_FULL);
        break;
      }
      case 2:
      case 3: {
        const std::uint64_t wanted = call % 8 == 2 ? 1 : count;
        if (call % 8 == 2) {
          came_to = weft_ring_try_receive(&reader, it.data());
          done = came_to == WEFT_RING_OK;
        } else {
          done = packed ? weft_ring_get_lines(&reader, it.data(), count, bytes, reader.per_line)
                        : weft_ring_get_slots(&reader, it.data(), count, bytes, reader.stride);
          if (done == 0) came_to = weft_ring_nothing(&reader);
        }
        expect(done <= wanted);
        if (is_damaged) break;
        expect(done == std::min<std::uint64_t>(wanted, sent.size()));
        for (std::uint64_t i = 0; i < done; ++i) {
          for (std::uint32_t at = 0; at < bytes; ++at) expect(it[i * bytes + at] == sent.front());
          sent.pop_front();
        }
        if (done == 0 && sent.empty()) expect(came_to == (is_closed ? WEFT_RING_CLOSED : WEFT_RING_EMPTY));
        break;
      }
      case 4:
        weft_ring_close_writer(&writer);
        is_closed = true;
        break;
      case 5:
      case 6:
        control(in.next(1), call % 8 == 5 ? in.next(8) : (call % 16 < 8 ? reader.position : writer.line << 8) + count);
        is_damaged = true;
        break;
      default: {
        if (packed || bytes % 4 != 0) break;
        is_damaged = true;
        std::vector<std::uint32_t> words(bytes / 4);
        came_to = call % 16 < 8 ? weft_ring_put_over(&writer, words.data())
                                : weft_ring_get_over(&reader, words.data(), &lost);
      }
    }
    expect(came_to >= WEFT_RING_OK && came_to <= WEFT_RING_CORRUPT);
    expect(!packed || (writer.index < writer.per_line && reader.index < reader.per_line));
  }
  return 0;
}
