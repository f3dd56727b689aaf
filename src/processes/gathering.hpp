// SPDX-License-Identifier: Apache-2.0
// How the places of a rendezvous become a group. Rank 0 seats the others, makes a connection for every two of them and
// hands out the ends; nobody is in the group before everybody holds all of it.
#pragma once

#include "processes/packet_socket.hpp"
#include "processes/process_group_body.hpp"
#include "weft/processes/rendezvous.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace weft::detail {

class gathering {
 public:
  using member = process_group::body::member;

  /// `links` are those of connected places, whose name is empty.
  gathering(std::string name, rank self, int size, std::vector<descriptor> links, const join_options& options);

  result<std::unique_ptr<process_group::body>> gather();

 private:
  struct guest {
    descriptor link;
    int expected = -1;  // the rank of a connected place
  };
  enum class seating : unsigned char { later, seated, turned_away };
  enum class answer : unsigned char { more, go };

  // rank 0
  result<void> host();
  result<descriptor> listen();
  result<void> accept_all(int listener);
  result<seating> seat(guest& g);
  result<void> introduce();
  result<void> await_ready();
  result<bool> hear(member& m, packet_kind expected);
  seating turn_away(const guest& g, const error& why);

  // the others
  result<void> attend();
  result<descriptor> connect();
  result<answer> follow(const packet& p, raw_packet& raw);

  // both
  /// Makes what a member needs, before it tells the others that nothing is missing. Errors: resource_exhausted.
  result<void> prepare();
  [[nodiscard]] packet about_self(packet_kind kind) const;
  [[nodiscard]] packet plain(packet_kind kind) const;
  [[nodiscard]] std::string meeting_name() const;
  [[nodiscard]] std::string absent() const;
  result<void> identify(member& m, const packet& p, const raw_packet& raw) const;
  /// Waits for room where there is none. Errors: peer_dead when the other side is gone.
  result<void> put(const member& to, const packet& p, std::span<const int> descriptors = {},
                   bool with_credentials = false);
  [[nodiscard]] error died(const std::string& who) const;
  /// Errors: timed_out and cancelled, with what was waited for.
  [[nodiscard]] result<void> in_time(const std::string& awaited) const;
  /// Sleeps a little, until something can have changed that no descriptor tells.
  void pace();
  void refuse(int link, const error& why) const;

  std::string name_;
  rank self_;
  int size_;
  std::vector<descriptor> links_;
  const join_options& options_;
  stop_signal stop_;
  wait_deadline until_;
  std::chrono::nanoseconds pace_;
  std::vector<std::byte> room_;

  std::vector<member> seats_;  // by rank; without a link where nobody sits yet, and for self
  process_group::body::watchers watchers_;
  std::vector<guest> guests_;  // connected, not seated
  std::uint64_t present_ = 0;  // ranks that are there, a bit each; of the others, as rank 0 told
  bool complete_ = false;      // told so by rank 0
  std::uint64_t refused_ = 0;  // connections that rank 0 turned away
  std::string remark_;         // on the last one that was turned away
};

}  // namespace weft::detail
