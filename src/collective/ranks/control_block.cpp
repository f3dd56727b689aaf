// SPDX-License-Identifier: Apache-2.0
#include "collective/ranks/control_block.hpp"

#include "collective/ranks/transfer/rank_wire.hpp"
#include "core/errors/make_error.hpp"
#include "os/memory_file.hpp"
#include "weft/core/bytes.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

namespace weft::detail {
namespace {

constexpr std::uint64_t page = 4096;

constexpr std::uint64_t in_pages(std::uint64_t size) { return (size + page - 1) / page * page; }

errc code_of(int number) {
  return number == ENOMEM || number == ENOSPC ? errc::out_of_memory : errc::resource_exhausted;
}

}  // namespace

control_shape control_shape::of(int ranks, int near, std::uint64_t staging) {
  control_shape made;
  made.ranks = ranks;
  made.near = near;
  made.half = std::clamp<std::uint64_t>(in_pages(staging / 2), page, std::uint64_t{1} << 30);
  const auto pairs = static_cast<std::uint64_t>(near) * static_cast<std::uint64_t>(near);
  made.wire = std::clamp<std::uint64_t>(std::bit_floor((std::uint64_t{4} << 20) / pairs), 4096, 65536);
  return made;
}

std::uint64_t control_shape::areas_at() const { return page; }
std::uint64_t control_shape::staging_at() const {
  return areas_at() + in_pages(static_cast<std::uint64_t>(ranks) * sizeof(rank_area));
}
std::uint64_t control_shape::wires_at() const { return staging_at() + static_cast<std::uint64_t>(near) * 2 * half; }
std::uint64_t control_shape::size() const {
  return wires_at() +
         in_pages(static_cast<std::uint64_t>(near) * static_cast<std::uint64_t>(near) * (wire_words_bytes + wire));
}

std::uint64_t control_header::computed_check() const noexcept {
  std::byte raw[sizeof(control_header)];
  std::memcpy(raw, this, sizeof raw);
  std::uint64_t sum = the_magic;
  for (std::size_t i = 0; i < offsetof(control_header, check); ++i) {
    sum = (sum ^ std::to_integer<std::uint64_t>(raw[i])) * 0x9e3779b97f4a7c15;
    sum ^= sum >> 29;
  }
  return sum;
}

result<control_header> read_control_header(const std::byte* data, std::size_t size, int ranks, int near) {
  control_header h;
  if (size < sizeof h) return make_error(errc::corrupt, "what was offered as a communicator's memory is too small");
  std::memcpy(&h, data, sizeof h);
  if (h.magic != control_header::the_magic) {
    return make_error(errc::corrupt, "what was offered is not the memory of a communicator of weft");
  }
  if (h.version != control_header::the_version) {
    return make_error(errc::incompatible, "the other process speaks version " + std::to_string(h.version) +
                                              " of communicators, this one " +
                                              std::to_string(control_header::the_version));
  }
  if (h.check != h.computed_check()) return make_error(errc::corrupt, "the header of a communicator is damaged");
  if (h.ranks != static_cast<std::uint32_t>(ranks)) {
    return make_error(errc::incompatible, "a communicator of " + std::to_string(h.ranks) +
                                              " ranks was offered to one of " + std::to_string(ranks));
  }
  if (h.near != static_cast<std::uint32_t>(near)) {
    return make_error(errc::incompatible, "a communicator with " + std::to_string(h.near) +
                                              " ranks on this node was offered to one with " + std::to_string(near));
  }
  // recomputed, not believed
  const control_shape shape = control_shape::of(ranks, near, h.half > std::uint64_t{1} << 30 ? 0 : h.half * 2);
  if (h.half != shape.half || h.wire != shape.wire) {
    return make_error(errc::corrupt, "the header of a communicator has numbers that cannot be");
  }
  return h;
}

void control_place_traits::release(type& place) noexcept { ::munmap(place.base, place.size); }

result<descriptor> control_block::make(const control_shape& shape, std::uint64_t id) {
  auto memory = make_memory_file("weft-communicator", shape.size(), memory_file_pages::all_there, "a communicator");
  if (!memory) return std::move(memory).error();
  descriptor file{memory->release()};
  control_header header;
  header.magic = control_header::the_magic;
  header.version = control_header::the_version;
  header.ranks = static_cast<std::uint32_t>(shape.ranks);
  header.near = static_cast<std::uint32_t>(shape.near);
  header.half = shape.half;
  header.wire = shape.wire;
  header.id = id;
  header.check = header.computed_check();
  if (::pwrite(file.get(), &header, sizeof header, 0) != static_cast<ssize_t>(sizeof header)) {
    return make_error(errc::resource_exhausted,
                      "a communicator's memory could not be set up: " + std::string{std::strerror(errno)},
                      error_scope::call, errno);
  }
  return file;
}

result<control_block> control_block::open(int file, int ranks, int near) {
  constexpr std::string_view what = "the memory of a communicator";
  if (auto checked = check_memory_file(file, page, memory_file_pages::any, what); !checked)
    return std::move(checked).error();
  std::array<std::byte, sizeof(control_header)> raw{};
  const auto got = ::pread(file, raw.data(), raw.size(), 0);
  auto header = read_control_header(raw.data(), got < 0 ? 0 : static_cast<std::size_t>(got), ranks, near);
  if (!header) return std::move(header).error();
  control_block made;
  made.shape_ = control_shape::of(ranks, near, header->half * 2);
  made.id_ = header->id;
  const std::uint64_t size = made.shape_.size();
  if (auto checked = check_memory_file(file, size, memory_file_pages::all_there, what); !checked)
    return std::move(checked).error();
  void* base = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
  if (base == MAP_FAILED) {
    return make_error(
        code_of(errno),
        "the memory of a communicator, " + to_string(bytes{size}) + ", could not be mapped: " + std::strerror(errno),
        error_scope::call, errno);
  }
  // a child of a fork would be a second writer
  static_cast<void>(::madvise(base, size, MADV_DONTFORK));
  made.place_ = unique_handle<control_place_traits>{control_place{static_cast<std::byte*>(base), size}};
  return made;
}

group_words& control_block::words() const {
  static_assert(sizeof(control_header) <= 128 && 128 + sizeof(group_words) <= page);
  return *reinterpret_cast<group_words*>(place_.get().base + 128);
}

rank_area& control_block::area(int rank) const {
  return reinterpret_cast<rank_area*>(place_.get().base + shape_.areas_at())[rank];
}

std::byte* control_block::staging(int rank, int half) const {
  return place_.get().base + shape_.staging_at() + static_cast<std::uint64_t>(rank * 2 + half) * shape_.half;
}

std::byte* control_block::wire(int from, int to) const {
  return place_.get().base + shape_.wires_at() +
         static_cast<std::uint64_t>(from * shape_.near + to) * (wire_words_bytes + shape_.wire);
}

}  // namespace weft::detail
