// SPDX-License-Identifier: Apache-2.0
// The survivors of a communicator over several nodes, as survivors.hpp asks for them: their words are voted for.
#pragma once

#include "collective/ranks/survivors/rank_survivors.hpp"
#include "collective/ranks/survivors/word_votes.hpp"

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

namespace weft::detail {

/// Every rank talks to every other one by messages; on each node the lowest rank of the new communicator makes the
/// memory of its node. It lives as long as the communicator: what it has promised and voted for stays, and the ranks
/// are connected before one of them dies (to connect to a rank that breaks may end a process, by a fault of UCX's).
class far_survivor_world {
 public:
  explicit far_survivor_world(rank_communicator_body& of);
  ~far_survivor_world();
  far_survivor_world(const far_survivor_world&) = delete;
  far_survivor_world& operator=(const far_survivor_world&) = delete;

  void start(std::chrono::nanoseconds timeout) { time_ = survivor_time{timeout}; }

  void begin() { time_.begin(); }
  [[nodiscard]] bool is_late() const { return time_.is_late(); }
  [[nodiscard]] bool is_here(int r) const;
  void arrive(std::uint32_t p);
  [[nodiscard]] bool has_arrived(int r, std::uint32_t p);
  [[nodiscard]] std::uint64_t word(std::uint32_t p);
  /// Returns once the word is written, by whomever. Errors: throws peer_dead where those that are left are too few to
  /// decide, timed_out where too few answer.
  void write(std::uint32_t p, std::uint64_t set);
  void say_ready(std::uint32_t p);
  [[nodiscard]] std::uint64_t ready(std::uint32_t p);
  void make(std::uint64_t set);
  [[nodiscard]] bool offer(std::uint32_t p, int r);
  [[nodiscard]] bool take(std::uint32_t p, int from, std::uint64_t set);
  void rest();

  /// Once calls have failed: receives what other ranks have sent for them, and nobody wants. To call a message back
  /// would end the connection with a rank that lives.
  void drain();
  void say_gone();
  void drop_offers() { memory_.drop_offers(); }
  [[nodiscard]] std::unique_ptr<rank_communicator_body> made(std::uint64_t set);

 private:
  struct line {
    line() { coming.at = transfer::stage::cancelled; }
    transfer coming;
    word_message come;
  };
  struct unwanted {
    unwanted() { coming.at = transfer::stage::cancelled; }
    transfer coming;
  };
  struct notice {
    int to = 0;
    transfer going;
    word_message said;
  };
  struct rank_words {
    std::uint32_t arrived = 0;  // the last position and 1
    std::uint32_t number = 0;   // of communicators that it has free
    bool is_gone = false;       // and said so
  };

  void listen(int r);
  bool pump();
  void hear(int from, const word_message& m);
  void send(int to, const word_message& m);
  void send_to_all(const word_message& m);
  [[nodiscard]] std::uint64_t those_here() const;
  [[nodiscard]] std::uint64_t near(std::uint64_t set) const;
  [[nodiscard]] rank_carrier& carrier() const;

  rank_communicator_body& of_;
  rank_meeting& m_;
  survivor_time time_;
  survivor_memory memory_;
  std::vector<rank_words> ranks_;
  bool is_gone_ = false;
  std::uint32_t begun_at_ = 0;                    // position of the shrink that is under way
  std::map<std::uint32_t, std::uint64_t> ready_;  // by position
  std::map<std::uint32_t, std::uint64_t> given_;  // by position: those of this node who have the memory
  std::vector<std::unique_ptr<line>> lines_;      // by rank; none for this one
  static constexpr std::size_t drained = 3;       // purposes
  std::deque<unwanted> unwanted_;                 // by rank and purpose; none until calls have failed
  std::deque<notice> notices_;                    // transfers do not move
  word_votes<std::function<void(int, const word_message&)>> votes_;
};

}  // namespace weft::detail
