// SPDX-License-Identifier: Apache-2.0
#include "processes/packet.hpp"

#include "core/errors/make_error.hpp"

#include <climits>
#include <cstring>

namespace weft::detail {
namespace {

// Where each field lies. Integers are in the order of this machine: both ends are on it.
enum offset : std::size_t {
  at_magic = 0,
  at_version = 4,
  at_kind = 6,
  at_descriptors = 7,
  at_rank = 8,
  at_size = 12,
  at_tag = 16,
  at_start_time = 24,
  at_pid = 32,
  at_uid = 36,
  at_payload = 40,
  at_reserved = 44,
};

template <class T>
T take(std::span<const std::byte> bytes, offset at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

template <class T>
void put(std::array<std::byte, packet_header_bytes>& bytes, offset at, T value) {
  static_assert(std::is_integral_v<T>);
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

// What a kind may carry beside rank and size.
struct rule {
  const char* name = nullptr;
  std::size_t max_payload = 0;
  std::uint8_t min_descriptors = 0;
  std::uint8_t max_descriptors = 0;
  bool has_tag = false;
  bool has_start_time = false;
  bool has_process = false;  // pid and uid
};

const rule* rule_of(std::uint8_t kind) {
  static constexpr auto announced = process_group::max_announcement;
  static constexpr auto full = process_group::max_payload;
  static constexpr auto many = static_cast<std::uint8_t>(process_group::max_descriptors);
  static constexpr rule rules[] = {
      {"hello", announced, 0, 0, false, true, false}, {"welcome", announced, 0, 0, false, true, false},
      {"progress", 0, 0, 0, true, false, false},      {"peer", announced, 2, 2, false, true, true},
      {"complete", 0, 0, 0, false, false, false},     {"ready", 0, 0, 0, false, false, false},
      {"go", 0, 0, 0, false, false, false},           {"refusal", max_refusal_text, 0, 0, true, false, false},
      {"message", full, 0, many, true, false, false}, {"barrier", 0, 0, 0, true, false, false},
      {"gather", full, 0, 0, true, false, false},     {"farewell", 0, 0, 0, false, false, false},
  };
  return kind >= 1 && kind <= std::size(rules) ? &rules[kind - 1] : nullptr;
}

error corrupt(std::string what) { return make_error(errc::corrupt, std::move(what), error_scope::endpoint); }

}  // namespace

std::array<std::byte, packet_header_bytes> packet_header(const packet& p) noexcept {
  std::array<std::byte, packet_header_bytes> bytes{};
  std::memcpy(bytes.data() + at_magic, packet_magic.data(), packet_magic.size());
  put(bytes, at_version, packet_version);
  put(bytes, at_kind, static_cast<std::uint8_t>(p.kind));
  put(bytes, at_descriptors, p.descriptors);
  put(bytes, at_rank, p.rank);
  put(bytes, at_size, p.size);
  put(bytes, at_tag, p.tag);
  put(bytes, at_start_time, p.start_time);
  put(bytes, at_pid, p.pid);
  put(bytes, at_uid, p.uid);
  put(bytes, at_payload, static_cast<std::uint32_t>(p.payload.size()));
  return bytes;
}

result<packet> parse_packet(std::span<const std::byte> bytes) {
  // Magic and version come first and stay where they are in every version, so that two of them can say so.
  if (bytes.size() < at_kind || std::memcmp(bytes.data(), packet_magic.data(), packet_magic.size()) != 0) {
    return corrupt("expected a packet that begins with \"weft\" and a version, got " + std::to_string(bytes.size()) +
                   " bytes that do not");
  }
  if (const auto version = take<std::uint16_t>(bytes, at_version); version != packet_version) {
    return make_error(errc::incompatible,
                      "the other process speaks version " + std::to_string(version) +
                          " of the rendezvous, this one version " + std::to_string(packet_version) +
                          ": use the same weft in both",
                      error_scope::endpoint);
  }
  if (bytes.size() < packet_header_bytes) {
    return corrupt("expected a header of " + std::to_string(packet_header_bytes) + " bytes, got " +
                   std::to_string(bytes.size()));
  }
  const auto kind = take<std::uint8_t>(bytes, at_kind);
  const rule* allowed = rule_of(kind);
  if (allowed == nullptr) return corrupt("expected a kind of packet from 1 to 12, got " + std::to_string(kind));
  const auto what = [&] { return std::string{"a packet of kind "} + allowed->name; };  // a good one allocates nothing

  packet made;
  made.kind = static_cast<packet_kind>(kind);
  made.descriptors = take<std::uint8_t>(bytes, at_descriptors);
  made.rank = take<std::uint32_t>(bytes, at_rank);
  made.size = take<std::uint32_t>(bytes, at_size);
  made.tag = take<std::uint64_t>(bytes, at_tag);
  made.start_time = take<std::uint64_t>(bytes, at_start_time);
  made.pid = take<std::uint32_t>(bytes, at_pid);
  made.uid = take<std::uint32_t>(bytes, at_uid);
  made.payload = bytes.subspan(packet_header_bytes);

  const auto announced = take<std::uint32_t>(bytes, at_payload);
  if (announced != made.payload.size()) {
    return corrupt(what() + " announces a payload of " + std::to_string(announced) + " bytes and has " +
                   std::to_string(made.payload.size()));
  }
  if (announced > allowed->max_payload) {
    return corrupt(what() + " has a payload of " + std::to_string(announced) + " bytes, expected at most " +
                   std::to_string(allowed->max_payload));
  }
  if (made.size < 1 || made.size > static_cast<std::uint32_t>(process_group::max_size)) {
    return corrupt(what() + " speaks of a group of " + std::to_string(made.size) + ", expected 1 to " +
                   std::to_string(process_group::max_size));
  }
  if (made.rank >= made.size) {
    return corrupt(what() + " speaks of rank " + std::to_string(made.rank) + " in a group of " +
                   std::to_string(made.size));
  }
  if (made.descriptors < allowed->min_descriptors || made.descriptors > allowed->max_descriptors) {
    return corrupt(what() + " announces " + std::to_string(made.descriptors) + " descriptors, expected " +
                   std::to_string(allowed->min_descriptors) + " to " + std::to_string(allowed->max_descriptors));
  }
  if ((!allowed->has_tag && made.tag != 0) || (!allowed->has_start_time && made.start_time != 0) ||
      (!allowed->has_process && (made.pid != 0 || made.uid != 0)) || take<std::uint32_t>(bytes, at_reserved) != 0) {
    return corrupt(what() + " has a value where its kind has none");
  }
  if (allowed->has_process && (made.pid == 0 || made.pid > static_cast<std::uint32_t>(INT_MAX))) {
    return corrupt(what() + " names the process " + std::to_string(made.pid));
  }
  if (made.kind == packet_kind::progress) {
    const std::uint64_t outside = made.size == 64 ? 0 : ~std::uint64_t{0} << made.size;
    if ((made.tag & outside) != 0 || (made.tag & 1) == 0) {
      return corrupt(what() + " counts ranks that a group of " + std::to_string(made.size) + " has not");
    }
  }
  if (made.kind == packet_kind::refusal &&
      (made.tag < 1 || made.tag > static_cast<std::uint64_t>(refusal_code::closed))) {
    return corrupt(what() + " gives the reason " + std::to_string(made.tag) + ", expected 1 to 4");
  }
  return made;
}

std::string printable(std::span<const std::byte> text) {
  std::string made;
  made.reserve(text.size());
  for (const std::byte b : text) {
    const char c = static_cast<char>(b);
    made += c >= 0x20 && c < 0x7f ? c : '?';
  }
  return made;
}

}  // namespace weft::detail
