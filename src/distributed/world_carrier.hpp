// SPDX-License-Identifier: Apache-2.0
// The messages of one communicator between ranks of a world.
#pragma once

#include "collective/ranks/transfer/rank_carrier.hpp"
#include "distributed/engine/messenger.hpp"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

namespace weft::detail {

class world_carrier final : public rank_carrier {
 public:
  /// `members` of the communicator, by rank, as ranks of the world. `numbers`: how many communicators this process has
  /// made of others. A number is even for communicators of all ranks, and odd for those of others. `all` for the
  /// engine's own collectives, which there are for communicators of all ranks alone.
  world_carrier(std::shared_ptr<messenger> by, std::shared_ptr<std::atomic<std::uint32_t>> numbers,
                std::vector<int> members, std::uint32_t number, std::shared_ptr<engine_group> all = {})
      : by_(std::move(by)),
        numbers_(std::move(numbers)),
        members_(std::move(members)),
        number_(number),
        all_(std::move(all)) {}

  void send(transfer& t, int to, purpose what, std::span<const std::byte> bytes) override {
    by_->start_send(t, member(to), tag(what), bytes);
  }
  void receive(transfer& t, int from, purpose what, std::span<std::byte> into) override {
    by_->start_receive(t, member(from), tag(what), into);
  }
  void cancel(transfer& t, int other) override { by_->cancel(t, member(other)); }
  void withdraw(transfer& t) override { by_->withdraw(t); }
  std::string lacks_collectives() const override {
    if (all_) return {};
    return number_ % 2 != 0 ? "they are of all ranks of a world, and this communicator has some of them"
                            : "this world's messages are not carried by MPI: join it with world_engine::mpi";
  }
  void start(transfer& t, const engine_call& call) override { by_->start(t, all_, call); }
  void forget(transfer& t) override { by_->forget(t); }
  bool progress() override { return by_->progress(); }
  void rest(std::chrono::steady_clock::time_point until) override { by_->rest(until.time_since_epoch()); }
  std::optional<std::string> failure(int rank) const override { return by_->failure(member(rank)); }
  std::string name_of(int rank) const override { return by_->name_of(member(rank)); }
  int member(int rank) const override { return members_[static_cast<std::size_t>(rank)]; }

  std::uint32_t number() const override { return number_; }
  std::uint32_t free_number() const override { return numbers_->load(); }
  std::unique_ptr<rank_carrier> among(std::span<const int> ranks, std::uint32_t number) override {
    numbers_->store(std::max(numbers_->load(), number + 1));
    std::vector<int> members;
    members.reserve(ranks.size());
    for (const int r : ranks) members.push_back(member(r));
    return std::make_unique<world_carrier>(by_, numbers_, std::move(members), 2 * number + 1);
  }

 private:
  // Numbers come round after 4,094 communicators; the last tags are those of the world itself.
  [[nodiscard]] message_tag tag(purpose what) const {
    constexpr std::uint32_t purposes = 8;
    return {number_ % (message_tag::most_own / purposes - 1) * purposes + static_cast<std::uint32_t>(what), true};
  }

  std::shared_ptr<messenger> by_;
  std::shared_ptr<std::atomic<std::uint32_t>> numbers_;
  std::vector<int> members_;
  std::uint32_t number_;
  std::shared_ptr<engine_group> all_;
};

}  // namespace weft::detail
