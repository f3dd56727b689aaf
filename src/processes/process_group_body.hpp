// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "processes/packet_socket.hpp"
#include "weft/processes/process_group.hpp"

#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unistd.h>
#include <vector>

namespace weft {

// One mutex guards it all and every read is made under it; only the sleep is outside. One waiting thread at a time, the
// watcher, sleeps in poll for everybody; the others sleep on `changed`.
struct process_group::body {
  struct entry {
    detail::packet_kind kind = detail::packet_kind::message;
    std::uint64_t tag = 0;
    std::vector<std::byte> payload;
    std::vector<descriptor> descriptors;
    std::optional<error> failure;  // what the caller gets instead
  };

  enum class presence : unsigned char { here, left, dead };

  struct member {
    peer_process info;
    descriptor link;     // stays open while the group lives: a waiting thread may be polling it
    descriptor process;  // pidfd
    presence state = presence::here;
    std::optional<error> broken;  // what it sent that no weft sends; nothing is read from it any more
    std::list<entry> unread;      // lists: what was read goes there without an allocation
    std::list<entry> meetings;    // its arrivals; it can be one ahead
    bool paused = false;          // its connection is left unread
  };

  struct meeting {
    detail::packet_kind kind;
    std::vector<std::byte> mine;
    std::vector<bool> sent;
  };

  /// Tells what there is to read and who has ended.
  struct watchers {
    descriptor watch;          // epoll: connections to read, processes that end
    descriptor deaths;         // epoll: hang-ups and processes that end, each until wait_death() has told it
    detail::event_bell nudge;  // wakes the watcher when another thread has read what it waits for

    /// Errors: resource_exhausted.
    static result<watchers> of(const std::vector<member>& members);
  };

  body(rank who, std::vector<member> everybody, watchers on, std::uint64_t turned_away);
  ~body();
  body(const body&) = delete;
  body& operator=(const body&) = delete;

  void require_member(const char* doing) const;
  member& at(rank which);
  member& other(rank which, const char* doing);
  [[nodiscard]] std::string name_of(const member& m) const;

  // all with the mutex held
  void look();
  /// Something has changed: whoever waits asks again, also who sleeps as the one that watches.
  void tell();
  void read_from(member& m, bool everything);
  /// Stores it in `place`, which has room for its payload.
  void take(member& m, const detail::packet& p, detail::raw_packet& raw, std::list<entry>& place);
  void conclude(member& m, presence how);
  void give_up(member& m, error why);
  void forget(const descriptor& set, const member& m) noexcept;
  void pause(member& m, bool on) noexcept;
  [[nodiscard]] error gone(const member& m) const;
  [[nodiscard]] result<detail::packet_io> write(member& m, const detail::packet& p, std::span<const int> descriptors);

  enum class outcome : unsigned char { ok, timed_out, cancelled };
  /// Waits until attempt() succeeds; where room_on() gives connections, also for one of them to take more.
  outcome wait(std::unique_lock<std::mutex>& lock, std::chrono::nanoseconds timeout, const std::stop_token& stop,
               const std::function<bool()>& attempt, const std::function<std::span<const int>()>& room_on = nullptr);

  result<std::vector<std::vector<std::byte>>> meet(detail::packet_kind kind, std::span<const std::byte> mine,
                                                   std::chrono::nanoseconds timeout, const std::stop_token& stop);

  const pid_t owner = ::getpid();
  const rank self;
  std::vector<member> members;  // one per rank; self has no link
  std::uint64_t turned_away;

  std::mutex mutex;
  std::condition_variable_any changed;
  bool watched = false;  // a thread sleeps in poll
  descriptor watch, deaths;
  detail::event_bell nudge;
  std::vector<std::byte> room;
  std::deque<rank> untold;
  std::optional<meeting> current;
  bool meeting_now = false;
  std::uint64_t met = 0;  // meetings that have ended here
};

}  // namespace weft
