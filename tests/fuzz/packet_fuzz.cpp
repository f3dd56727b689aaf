// SPDX-License-Identifier: Apache-2.0
// Any bytes that another process sends give a packet that means all that is in them, or the reason why not.
#include "processes/packet.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span{data, size});
  const auto got = weft::detail::parse_packet(bytes);
  if (!got) {
    const weft::errc code = got.error().code;
    if ((code != weft::errc::corrupt && code != weft::errc::incompatible) || got.error().what.empty()) std::abort();
    return 0;
  }
  if (got->size < 1 || got->size > static_cast<std::uint32_t>(weft::process_group::max_size)) std::abort();
  if (got->rank >= got->size || got->descriptors > weft::process_group::max_descriptors) std::abort();
  const auto header = weft::detail::packet_header(*got);
  if (size != header.size() + got->payload.size() || std::memcmp(header.data(), data, header.size()) != 0) std::abort();
  for (const char c : weft::detail::printable(got->payload)) {
    if (c < ' ' || c > '~') std::abort();
  }
  return 0;
}
