// SPDX-License-Identifier: Apache-2.0
#include "groups.hpp"

namespace packet_test {

using namespace groups;

// ---- packets ------------------------------------------------------------------------------------------------------

std::vector<std::byte> bytes_of(const packet& p) {
  const auto head = wire::packet_header(p);
  std::vector<std::byte> made(head.size() + p.payload.size());  // g++ 12 sees an overflow in an insert that cannot be
  std::copy(head.begin(), head.end(), made.begin());
  std::copy(p.payload.begin(), p.payload.end(), made.begin() + static_cast<std::ptrdiff_t>(head.size()));
  return made;
}

/// One of each kind, as full as it may be.
std::vector<packet> every_packet(const samples::data& payload) {
  std::vector<packet> all;
  for (std::uint8_t kind = 1; kind <= 12; ++kind) {
    packet p;
    p.kind = static_cast<packet_kind>(kind);
    p.rank = 3;
    p.size = 5;
    switch (p.kind) {
      case packet_kind::peer:
        p.pid = 17;
        p.uid = 18;
        p.descriptors = 2;
        [[fallthrough]];
      case packet_kind::hello:
      case packet_kind::welcome:
        p.start_time = 0x123456789a;
        p.payload = view(payload);
        break;
      case packet_kind::progress:
        p.tag = 0b10101;
        break;
      case packet_kind::refusal:
        p.tag = 2;
        p.payload = view(payload);
        break;
      case packet_kind::message:
        p.descriptors = 16;
        [[fallthrough]];
      case packet_kind::gather:
        p.payload = view(payload);
        [[fallthrough]];
      case packet_kind::barrier:
        p.tag = 0xfedcba9876543210;
        break;
      default:
        break;
    }
    all.push_back(p);
  }
  return all;
}

TEST(packet, a_packet_of_every_kind_reads_as_written) {
  const auto payload = pattern(100, 1);
  for (const packet& p : every_packet(payload)) {
    const auto bytes = bytes_of(p);
    const auto got = wire::parse_packet(bytes);
    ASSERT_TRUE(got) << failure_of(got);
    EXPECT_EQ(got->kind, p.kind);
    EXPECT_EQ(got->descriptors, p.descriptors);
    EXPECT_EQ(got->rank, p.rank);
    EXPECT_EQ(got->size, p.size);
    EXPECT_EQ(got->tag, p.tag);
    EXPECT_EQ(got->start_time, p.start_time);
    EXPECT_EQ(got->pid, p.pid);
    EXPECT_EQ(got->uid, p.uid);
    EXPECT_TRUE(std::equal(got->payload.begin(), got->payload.end(), p.payload.begin(), p.payload.end()));
  }
}

TEST(packet, a_packet_cut_anywhere_is_refused) {
  const auto payload = pattern(100, 1);
  for (const packet& p : every_packet(payload)) {
    const auto bytes = bytes_of(p);
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_EQ(code_of(wire::parse_packet(std::span{bytes}.first(size))), errc::corrupt) << size;
    }
  }
}

TEST(packet, with_a_value_where_its_kind_has_none_is_refused) {
  for (const packet& good : every_packet({})) {
    for (const std::size_t at : {7U, 16U, 24U, 32U, 36U, 44U}) {
      auto bytes = bytes_of(good);
      if (bytes[at] != std::byte{0}) continue;
      bytes[at + (at == 7 ? 0 : 1)] = std::byte{200};
      const auto got = wire::parse_packet(bytes);
      if (!got) {
        EXPECT_EQ(got.error().code, errc::corrupt);
        continue;
      }
      // the kinds that have that value
      EXPECT_TRUE(
          (at == 16 && got->tag != 0 && got->kind >= packet_kind::message && got->kind < packet_kind::farewell) ||
          (at == 24 && got->start_time != 0) || (at == 36 && got->kind == packet_kind::peer))
          << "byte " << at << " of kind " << static_cast<int>(good.kind);
    }
  }
}

TEST(packet, of_a_group_of_one_to_sixty_four_is_read_and_of_any_other_refused) {
  for (const std::uint32_t size : {0U, 1U, 2U, 64U, 65U, ~0U}) {
    packet p;
    p.kind = packet_kind::complete;
    p.size = size;
    const auto got = wire::parse_packet(bytes_of(p));
    EXPECT_EQ(code_of(got), size >= 1 && size <= 64 ? errc::not_ready : errc::corrupt) << size;
  }
}

TEST(packet, a_packet_changed_at_random_is_refused_or_keeps_its_rules) {
  const unsigned seed = std::random_device{}();
  RecordProperty("seed", std::to_string(seed));
  std::mt19937 random{seed};
  const auto payload = pattern(100, 1);
  const auto originals = every_packet(payload);
  int accepted = 0;
  for (int i = 0; i < 200'000; ++i) {
    auto bytes = bytes_of(originals[random() % originals.size()]);
    for (auto n = 1 + random() % 3; n > 0; --n) {
      const std::size_t at = random() % std::min<std::size_t>(bytes.size(), 52);
      switch (random() % 4) {
        case 0:
          bytes[at] ^= static_cast<std::byte>(1U << random() % 8);
          break;
        case 1:
          bytes[at] = static_cast<std::byte>(random());
          break;
        case 2:
          bytes.resize(random() % (bytes.size() + 20) + 1);
          break;
        default:
          bytes[at] = random() % 2 == 0 ? std::byte{0xff} : std::byte{0};
      }
    }
    const auto got = wire::parse_packet(bytes);
    if (!got) {
      ASSERT_TRUE(got.error().code == errc::corrupt || got.error().code == errc::incompatible) << failure_of(got);
      continue;
    }
    ++accepted;
    ASSERT_LT(got->rank, got->size);
    ASSERT_LE(got->size, 64U);
    ASSERT_EQ(got->payload.size() + wire::packet_header_bytes, bytes.size());
    ASSERT_LE(got->descriptors, 16);
    ASSERT_TRUE(bytes_of(*got) == bytes) << "what is accepted means all that is in it";
  }
  EXPECT_GT(accepted, 0);
}

TEST(packet, shows_no_control_characters_of_another_process) {
  EXPECT_EQ(wire::printable(view(std::string_view{"a\x1b[2Jb\n\0c\xff", 10})), "a?[2Jb??c?");
}

}  // namespace packet_test
