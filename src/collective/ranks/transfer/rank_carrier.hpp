// SPDX-License-Identifier: Apache-2.0
// The carrier of bytes between ranks that share no memory.
#pragma once

#include "weft/collective/data_type.hpp"
#include "weft/collective/reduction_op.hpp"
#include "weft/collective/schedule.hpp"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace weft::detail {

/// One message on its way. It stays where it is until it has ended.
struct transfer {
  enum class stage : std::uint8_t { under_way, done, cancelled, failed };
  std::atomic<stage> at{stage::under_way};  // written last: another thread may progress the engine
  std::size_t bytes = 0;                    // that were received; until then, for how many there is room
  std::string why;                          // it failed
  void* native = nullptr;                   // the engine's, while it is under way
  std::atomic<bool>* news = nullptr;        // set when it has ended; lives longer

  void end(stage how) noexcept {
    std::atomic<bool>* const told = news;  // its owner may look, and let it go, at once
    at.store(how, std::memory_order_release);
    if (told != nullptr) told->store(true, std::memory_order_release);
  }

  [[nodiscard]] bool is_under_way() const noexcept { return at.load(std::memory_order_acquire) == stage::under_way; }
};

/// A collective that the engine has of its own, over all ranks of a communicator; in elements.
struct engine_call {
  collective what{};
  data_type type{};
  reduction_op::kind op{};  // sum, product, min or max
  int root = 0, self = 0, ranks = 1;
  std::span<const std::byte> in;         // of a broadcast: at the root
  std::span<std::byte> out;              // empty where this rank takes nothing out
  std::span<const std::int64_t> counts;  // as schedule.hpp has them
};

/// Ranks are those of one communicator, whose messages no other communicator receives. Thread: any, several at a time.
class rank_carrier {
 public:
  /// Messages to one rank for one purpose arrive in order; purposes do not wait for each other.
  enum class purpose : std::uint8_t { entrance, trouble, move, exchange, survivors };

  rank_carrier() = default;
  rank_carrier(const rank_carrier&) = delete;
  rank_carrier& operator=(const rank_carrier&) = delete;
  virtual ~rank_carrier() = default;

  /// The memory stays the caller's until the transfer has ended.
  virtual void send(transfer& t, int to, purpose what, std::span<const std::byte> bytes) = 0;
  virtual void receive(transfer& t, int from, purpose what, std::span<std::byte> into) = 0;
  /// Ends a transfer that is under way; a message that is being sent may end the connection with that rank.
  virtual void cancel(transfer& t, int other) = 0;

  /// Ends a receive that nothing has come for yet; what is coming already goes on.
  virtual void withdraw(transfer& t) = 0;

  /// Why the engine has no collectives of its own for these ranks; empty where it has.
  [[nodiscard]] virtual std::string lacks_collectives() const { return "this engine has none"; }
  /// All ranks call it in the same order. The memory is copied: what an engine has begun with it may go on with.
  virtual void start(transfer&, const engine_call&) {}
  /// The engine goes on alone with what start() began.
  virtual void forget(transfer&) {}

  /// Moves on what is under way. False when there was nothing to do.
  virtual bool progress() = 0;
  /// Sleeps until something may have arrived.
  virtual void rest(std::chrono::steady_clock::time_point until) = 0;

  /// Why nothing reaches that rank any more; empty as long as it may be there.
  [[nodiscard]] virtual std::optional<std::string> failure(int rank) const = 0;
  [[nodiscard]] virtual std::string name_of(int rank) const = 0;
  /// That rank's place among all that could take part.
  [[nodiscard]] virtual int member(int rank) const = 0;

  /// Of this communicator, among all that its ranks have made of each other.
  [[nodiscard]] virtual std::uint32_t number() const = 0;
  /// A number that no communicator of this process has; the largest one that its members name is free for all of them.
  [[nodiscard]] virtual std::uint32_t free_number() const = 0;
  /// For a communicator of some of these ranks, in that order, and its number.
  [[nodiscard]] virtual std::unique_ptr<rank_carrier> among(std::span<const int> ranks, std::uint32_t number) = 0;
};

}  // namespace weft::detail
