// SPDX-License-Identifier: Apache-2.0
// How ranks on several nodes find each other: rank 0 listens, the others connect, and what each says is gathered and
// given to all. Nothing of a program's data goes this way.
#pragma once

#include "distributed/meeting/frame_link.hpp"
#include "distributed/meeting/network_interface.hpp"
#include "distributed/meeting/sha256.hpp"
#include "processes/packet_socket.hpp"
#include "weft/core/result.hpp"
#include "weft/processes/process_group.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

namespace weft::detail {

struct meeting_place {
  rank self;
  int size = 0;
  std::string host;  // of rank 0
  std::uint16_t port = 0;
  std::string interface;  // empty: as the system routes
  std::string token;      // empty: whoever can connect may take part
  std::string who;        // how errors of others name this process
  std::string version;    // of weft
  wait_deadline until = no_deadline;
  std::stop_token stop;
};

class meeting {
 public:
  static constexpr std::size_t max_said = 16UL * 1024;  // by one rank in one round

  explicit meeting(meeting_place place);

  /// Waits until every rank is there. When it ends for one, it ends for all.
  /// Errors: timed_out naming who is late; cancelled; name_taken (the port); not_found (host, interface); incompatible
  /// (version, size, a rank that is there twice, the token), with both sides named; peer_dead; closed (another rank
  /// gave up); resource_exhausted.
  result<void> open();
  /// What every rank said, by rank: the same for all. As open() otherwise.
  result<std::vector<std::vector<std::byte>>> all_gather(std::span<const std::byte> mine);

  /// Of this process, where it listens or is connected from; the interface is empty where it listens on all.
  [[nodiscard]] const std::string& address() const noexcept { return address_; }
  [[nodiscard]] const std::string& interface() const noexcept { return interface_; }

 private:
  using nonce = std::array<std::byte, 32>;
  struct guest {
    guest(frame_link with, std::string address, std::size_t at)
        : link(std::move(with)), from(std::move(address)), place(at) {}

    frame_link link;
    std::string from;   // its address
    std::size_t place;  // in guests_
    nonce asked{};
    int rank = -1;    // not seated
    std::string who;  // once seated
    std::vector<std::byte> said;
    bool has_said = false;
  };

  // rank 0
  result<void> host();
  result<void> listen();
  result<void> seat_all();
  result<void> accept_all();
  result<void> hear(std::size_t place, bool is_seating);
  result<void> seat(std::size_t place, std::span<const std::byte> hello);
  void turn_away(std::size_t place, const std::string& why);
  void report_progress();
  result<std::vector<std::vector<std::byte>>> gather_all(std::span<const std::byte> mine);
  result<void> flush_all();
  /// Waits until a guest or the listener has something, and calls for each.
  template <class F>
  result<void> step(const F& handle);
  result<void> watch(std::size_t place);
  error dismissed(error cause);

  // the others
  result<void> attend();
  result<bool> connect(const network_address& to);
  result<bool> greet();
  result<std::optional<frame>> next_frame();

  // both
  [[nodiscard]] result<void> in_time();
  [[nodiscard]] std::string awaited();
  [[nodiscard]] std::string late();
  [[nodiscard]] std::string name() const;
  void pace();

  meeting_place place_;
  stop_signal stop_;
  std::string address_;
  std::string interface_;

  descriptor listener_;
  descriptor poll_;                                // epoll: of the listener and the guests
  std::vector<std::optional<guest>> guests_;       // by place; those that went leave theirs
  std::vector<std::size_t> free_places_;           // of guests_
  std::vector<std::optional<std::size_t>> seats_;  // by rank: the place in guests_
  std::size_t first_late_ = 1;                     // every rank below it is seated
  int missing_ = 0;                                // ranks that were not seated yet
  int unknown_ = 0;                                // guests that were not seated
  int silent_ = 0;                                 // ranks that have not spoken in this round
  std::string remark_;                             // on the last guest that was turned away

  std::optional<frame_link> link_;                                // to rank 0
  std::chrono::nanoseconds pace_ = std::chrono::milliseconds{1};  // until it looks for rank 0 again
  bool welcomed_ = false;
  std::string waits_for_;  // what rank 0 said last
  std::string failed_to_connect_;
};

}  // namespace weft::detail
