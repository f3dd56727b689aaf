// SPDX-License-Identifier: Apache-2.0
#include "weft/channel/router.hpp"

#include <string>

namespace weft::detail {
namespace {

/// A bijection of 64 bits in which every bit of the input moves about half of the output's.
constexpr std::uint64_t mixed(std::uint64_t x) {
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ULL;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ULL;
  return x ^ (x >> 32);
}

constexpr std::uint64_t drawn(std::uint64_t key, device_id member) {
  return mixed(key ^ mixed(member.index() + 0x9e3779b97f4a7c15ULL));
}

}  // namespace

std::size_t owner_of_key(std::uint64_t key, std::span<const member_statistics> members) noexcept {
  // Keys are often 0, 1, 2, …: mixed first, or neighbours would draw alike.
  const std::uint64_t spread = mixed(key + 0x632be59bd9b4e019ULL);
  std::size_t best = 0;
  for (std::size_t at = 1; at < members.size(); ++at) {
    const std::uint64_t a = drawn(spread, members[at].member), b = drawn(spread, members[best].member);
    // equal draws go to the lower id, so that the order of the members has no say
    if (a > b || (a == b && members[at].member < members[best].member)) best = at;
  }
  return best;
}

error no_such_member(device_id asked, std::span<const member_statistics> members) {
  error made;
  made.code = errc::not_found;
  if (members.empty()) {
    made.what = "the router has no members: join() one first";
    return made;
  }
  made.what = to_string(asked) + " is not a member of this router; its members are";
  for (const member_statistics& member : members) {
    made.what += (&member == members.data() ? " " : ", ") + to_string(member.member);
  }
  return made;
}

void check_new_member(device_id member, bool is_open, std::span<const member_statistics> members,
                      std::source_location where) {
  if (!is_open) {
    raise(errc::invalid_argument,
          to_string(member) + " cannot join the router: the sender to it is closed; open another queue", where);
  }
  for (const member_statistics& other : members) {
    if (other.member == member) {
      raise(errc::invalid_argument, to_string(member) + " is a member of this router already; leave() first", where);
    }
  }
}

}  // namespace weft::detail
