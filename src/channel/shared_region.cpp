// SPDX-License-Identifier: Apache-2.0
#include "channel/shared_region.hpp"

#include "core/errors/make_error.hpp"
#include "core/fnv.hpp"
#include "os/memory_file.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <sys/mman.h>
#include <unistd.h>

namespace weft::detail {
namespace {

errc code_of(int number) {
  return number == ENOMEM || number == ENOSPC ? errc::out_of_memory : errc::resource_exhausted;
}

constexpr std::uint64_t populated_bytes = std::uint64_t{16} << 20;

std::string described(std::uint64_t size, std::uint64_t alignment) {
  return std::to_string(size) + " bytes aligned to " + std::to_string(alignment);
}

}  // namespace

std::uint64_t hash_of_name(const char* name) noexcept {
  fnv hash;
  hash.add_text(name);
  return hash.value();
}

std::uint64_t region_header::computed_check() const noexcept {
  std::byte raw[sizeof(region_header)];
  std::memcpy(raw, this, sizeof raw);
  std::uint64_t sum = the_magic;
  for (std::size_t i = 0; i < offsetof(region_header, check); ++i) {
    sum = (sum ^ std::to_integer<std::uint64_t>(raw[i])) * 0x9e3779b97f4a7c15;
    sum ^= sum >> 29;
  }
  return sum;
}

region_header describe(const message_type& type, const ring_shape& shape, std::uint32_t flags) {
  region_header h;
  h.magic = region_header::the_magic;
  h.version = region_header::the_version;
  h.flags = flags;
  h.size = type.size;
  h.alignment = type.alignment;
  h.name_hash = type.name_hash;
  h.bytes = shape.bytes;
  h.stride = shape.stride;
  h.per_line = shape.per_line;
  h.capacity = shape.capacity;
  h.places = shape.places;
  h.creator = getpid();
  h.check = h.computed_check();
  return h;
}

ring_shape shape_in(const region_header& h) {
  ring_shape shape;
  shape.bytes = h.bytes;
  shape.stride = h.stride;
  shape.per_line = h.per_line;
  shape.capacity = h.capacity;
  shape.places = h.places;
  return shape;
}

std::uint64_t region_size(const ring_shape& shape) { return slots_offset + shape.slots_size(); }

result<region_header> read_header(const std::byte* data, std::size_t size, const message_type& wanted) {
  if (size < sizeof(region_header)) {
    return make_error(errc::corrupt, "an offered queue has a header of " + std::to_string(size) + " bytes, not " +
                                         std::to_string(sizeof(region_header)));
  }
  region_header h;
  std::memcpy(&h, data, sizeof h);
  if (h.magic != region_header::the_magic) return make_error(errc::corrupt, "what was offered is not a queue of weft");
  if (h.version != region_header::the_version) {
    return make_error(errc::incompatible, "the other process speaks version " + std::to_string(h.version) +
                                              " of shared queues, this one " +
                                              std::to_string(region_header::the_version));
  }
  if (h.check != h.computed_check()) return make_error(errc::corrupt, "the header of an offered queue is damaged");
  if (h.size != wanted.size || h.alignment != wanted.alignment || h.name_hash != wanted.name_hash) {
    const bool same_layout = h.size == wanted.size && h.alignment == wanted.alignment;
    return make_error(errc::incompatible, "the receiver's messages have " + described(h.size, h.alignment) +
                                              ", the sender's " + described(wanted.size, wanted.alignment) +
                                              (same_layout ? ", but their types have different names" : ""));
  }
  if ((h.flags & ~(region_header::validates | region_header::overwrites)) != 0 || h.reserved != 0) {
    return make_error(errc::incompatible, "the other process uses options of queues that this one does not know");
  }
  const bool validates = (h.flags & region_header::validates) != 0;
  const bool overwrites = (h.flags & region_header::overwrites) != 0;
  // recomputed, not believed
  if (h.capacity < 16 || h.capacity > std::uint64_t{1} << 32 ||
      shape_in(h) !=
          shape_of(carried_size(wanted.size, validates, overwrites), wanted.alignment, h.capacity, !overwrites)) {
    return make_error(errc::corrupt, "the header of an offered queue has numbers that cannot be");
  }
  return h;
}

void mapped_range_traits::release(type& range) noexcept {
  if (range.mapped_by == ::getpid()) ::munmap(range.base, range.size);
}

result<descriptor> make_region(const region_header& header) {
  const std::uint64_t size = region_size(shape_in(header));
  auto memory = make_memory_file("weft-queue", size, memory_file_pages::all_there, "a queue");
  if (!memory) return std::move(memory).error();
  descriptor file{memory->release()};
  auto mapped = map_region(file.get(), size);
  if (!mapped) return std::move(mapped).error();
  std::byte* base = mapped->get().base;
  std::memcpy(base, &header, sizeof header);
  auto* words = ::new (base + words_offset) region_words;
  words->credit = 0;
  words->fin = WEFT_RING_OPEN;
  words->receiver_broken = words->sender_broken = end_in_use;
  words->receiver_lent = words->sender_lent = 0;
  words->receiver_stop = words->sender_stop = 0;
  words->receiver_waits.store(0, std::memory_order_relaxed);
  words->sender_waits.store(0, std::memory_order_relaxed);
  return file;
}

result<mapped_region> map_region(int file, std::uint64_t size) {
  if (auto checked = check_memory_file(file, size, memory_file_pages::all_there, "a queue's memory"); !checked)
    return std::move(checked).error();
  // pages of a large one are mapped when they are touched: a limit of time holds for any size
  const int at_once = size <= populated_bytes ? MAP_POPULATE : 0;
  void* base = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | at_once, file, 0);
  if (base == MAP_FAILED) {
    return make_error(code_of(errno),
                      "a queue of " + to_string(bytes{size}) + " could not be mapped: " + std::strerror(errno),
                      error_scope::call, errno);
  }
  // a child of a fork would be a second writer
  static_cast<void>(::madvise(base, size, MADV_DONTFORK));
  return mapped_region{mapped_range{static_cast<std::byte*>(base), size, ::getpid()}};
}

}  // namespace weft::detail
