// SPDX-License-Identifier: Apache-2.0
// Any bytes offered as the header of a queue between processes are refused, or are the header of a ring that this side
// would have made itself. The checksum is repaired, so that the numbers behind it are reached.
#include "channel/shared_region.hpp"

#include <cstdlib>
#include <cstring>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weft::detail;
  const message_type type{96, 8, hash_of_name("a message")};
  static_cast<void>(read_header(reinterpret_cast<const std::byte*>(data), size, type));
  region_header h = describe(type, shape_of(96, 8, 64, true), 0);
  std::memcpy(&h, data, size < sizeof h ? size : sizeof h);
  h.magic = region_header::the_magic;
  h.version = region_header::the_version;
  h.size = type.size;
  h.alignment = type.alignment;
  h.name_hash = type.name_hash;
  h.check = h.computed_check();
  const auto read = read_header(reinterpret_cast<const std::byte*>(&h), sizeof h, type);
  if (!read) return 0;
  const bool validates = (read->flags & region_header::validates) != 0;
  const bool overwrites = (read->flags & region_header::overwrites) != 0;
  const ring_shape own =
      shape_of(carried_size(type.size, validates, overwrites), type.alignment, read->capacity, !overwrites);
  if (own.bytes != read->bytes || own.stride != read->stride || own.places != read->places) std::abort();
  if (region_size(own) > std::uint64_t{1} << 50) std::abort();
  return 0;
}
