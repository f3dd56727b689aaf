// SPDX-License-Identifier: Apache-2.0
// The ranks of a communicator that are on other nodes. The first rank of each node is its leader. In each call the
// leaders tell each other what the ranks of their nodes have entered with, and write what they hear into the memory of
// their own node, where those ranks would have written it: so every rank meets all others in the memory of its node.
#pragma once

#include "collective/ranks/control_block.hpp"
#include "collective/ranks/transfer/rank_carrier.hpp"

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

namespace weft::detail {

/// Thread: that of the communicator; tell() from any, one at a time.
class far_ranks {
 public:
  /// `nodes` of each rank; `by` knows the ranks by the same numbers.
  far_ranks(std::unique_ptr<rank_carrier> by, std::vector<int> nodes, int self);
  ~far_ranks();
  far_ranks(const far_ranks&) = delete;
  far_ranks& operator=(const far_ranks&) = delete;

  [[nodiscard]] rank_carrier& carrier() const { return *carrier_; }
  [[nodiscard]] const std::vector<int>& nodes() const { return nodes_; }
  [[nodiscard]] bool is_near(int rank) const { return nodes_[index(rank)] == nodes_[index(self_)]; }
  [[nodiscard]] int near_count() const { return static_cast<int>(near_.size()); }
  /// A rank's place among those of its node.
  [[nodiscard]] int local(int rank) const { return locals_[index(rank)]; }
  [[nodiscard]] bool is_leader() const { return near_.front() == self_; }
  /// Of the leader: another one that has died, or whose node is cut off; −1 for none.
  [[nodiscard]] int lost_leader(const control_block& block) const;

  /// Of the leader, once for each call: expects what the other nodes enter with.
  void begin(std::uint64_t number);
  /// Of the leader, until it gives true: moves on. Once all near ranks have entered, with `brought` bytes each if their
  /// calls match, it tells the other leaders; what those have told is in the memory. Errors: corrupt.
  [[nodiscard]] bool exchange(const control_block& block, std::uint64_t brought);
  /// True while it is the network alone that this rank waits for.
  [[nodiscard]] bool is_waiting() const { return is_waiting_; }
  void set_waiting(bool is_it) { is_waiting_ = is_it; }

  /// Of the leader: tells the others why the communicator has ended; 0: that this rank lets it go.
  void tell(std::uint64_t ended, std::string_view why) noexcept;
  /// Of the leader: whether another one has told so. Then the memory says it.
  bool hear(const control_block& block);

  static constexpr std::size_t most_brought = small_bytes;

 private:
  struct news {
    transfer coming, going;
    std::vector<std::byte> come, said;
  };
  struct node {
    std::vector<int> ranks;
    transfer coming, going;
    std::vector<std::byte> come;
    bool is_heard = false;
    bool has_left = false;  // and said so
    news trouble;
    [[nodiscard]] int leader() const { return ranks.front(); }
  };

  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  void write_entrance(const control_block& block, std::uint64_t brought);
  void read_entrance(const control_block& block, const node& from, std::uint64_t brought);
  void listen(node& to);
  void stop(transfer& t, int other) noexcept;

  std::unique_ptr<rank_carrier> carrier_;
  std::vector<int> nodes_;
  std::vector<int> locals_;
  int self_;
  std::vector<int> near_;
  std::deque<node> others_;        // transfers do not move
  std::vector<std::byte> saying_;  // what this node enters with
  std::uint64_t number_ = 0;
  bool is_said_ = false;
  bool is_waiting_ = false;
  std::atomic<bool> has_told_{false};
};

}  // namespace weft::detail
