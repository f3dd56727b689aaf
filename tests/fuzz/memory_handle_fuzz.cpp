// SPDX-License-Identifier: Apache-2.0
// Any bytes as a handle, a request to an exporter or its answer: they mean all that is in them, or are refused with a
// reason; what is believed can be written again, bit for bit.
#include "processes/share_ticket.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>

namespace {

template <class T>
bool refused_with_reason(const weft::result<T>& got) {
  if (got) return false;
  const weft::errc code = got.error().code;
  if ((code != weft::errc::corrupt && code != weft::errc::incompatible) || got.error().what.empty()) std::abort();
  return true;
}

template <class Bytes>
void expect_same(const Bytes& written, std::span<const std::byte> read) {
  if (written.size() != read.size() || std::memcmp(written.data(), read.data(), read.size()) != 0) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weft::detail;
  const auto bytes = std::as_bytes(std::span{data, size});
  if (const auto got = decode(bytes); !refused_with_reason(got)) {
    if (got->offset + got->size < got->offset || got->door == 0 || got->key == 0) std::abort();
    expect_same(encode(*got), bytes);
  }
  if (const auto got = decode_request(bytes); !refused_with_reason(got)) expect_same(encode_request(*got), bytes);
  if (const auto got = decode_reply(bytes); !refused_with_reason(got)) expect_same(encode_reply(*got), bytes);

  // fields of the fuzzer's choice under a right checksum: what is written is what is read
  if (size < 45) return 0;
  share_ticket h;
  h.kind = static_cast<share_kind>(1 + data[0] % 5);
  h.family = static_cast<share_family>(data[0] / 5 % 2);
  std::memcpy(&h.process, data + 1, 4);
  std::memcpy(&h.boot, data + 5, 8);
  std::memcpy(&h.door, data + 13, 8);
  std::memcpy(&h.key, data + 21, 8);
  std::memcpy(&h.offset, data + 29, 8);
  std::memcpy(&h.size, data + 37, 8);
  const auto written = encode(h);
  const auto read = decode(written);
  const bool can_be = h.door != 0 && h.key != 0 && h.offset + h.size >= h.offset;
  if (can_be != read.has_value() || (can_be && !(*read == h))) std::abort();
  auto damaged = written;
  const std::size_t bit = (data[0] * 256U + data[1]) % (8 * damaged.size());
  damaged[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
  if (decode(damaged)) std::abort();
  return 0;
}
