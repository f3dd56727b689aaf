// SPDX-License-Identifier: Apache-2.0
// What carries bytes between the ranks of a world: a library that exists, opened at run time.
#pragma once

#include "collective/ranks/transfer/rank_carrier.hpp"
#include "weft/core/error.hpp"
#include "weft/core/result.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace weft::detail {

/// Which message: of the caller's, or of the library's own.
struct message_tag {
  std::uint32_t number = 0;
  bool is_own = false;

  static constexpr std::uint32_t most_own = 32'767;  // what MPI grants
};

/// Keeps the collectives of one communicator apart from those of others.
class engine_group {
 public:
  engine_group() = default;
  engine_group(const engine_group&) = delete;
  engine_group& operator=(const engine_group&) = delete;
  virtual ~engine_group() = default;
};

/// Thread: one at a time; the caller sees to it.
class engine {
 public:
  engine() = default;
  engine(const engine&) = delete;
  engine& operator=(const engine&) = delete;
  virtual ~engine() = default;

  [[nodiscard]] virtual const std::string& name() const noexcept = 0;  // with its version: "ucx 1.13.1"
  /// By which other ranks connect.
  [[nodiscard]] virtual result<std::vector<std::byte>> address() = 0;
  /// Once, before the first message: where the ranks are. Connections are made when they are needed.
  virtual void introduce(std::vector<std::vector<std::byte>> addresses) = 0;

  /// Messages of one rank with one tag arrive in order; tags do not wait for each other. The memory stays the
  /// caller's until the transfer has ended.
  virtual void send(transfer& t, int to, message_tag tag, std::span<const std::byte> bytes) = 0;
  virtual void receive(transfer& t, int from, message_tag tag, std::span<std::byte> into) = 0;
  /// From whatever rank; makes no connection, so that nobody's death ends it.
  virtual void receive_any(transfer& t, message_tag tag, std::span<std::byte> into) = 0;
  /// Ends a transfer that is under way. A message to a connected rank cannot be called back: the connection ends with
  /// it.
  virtual void cancel(transfer& t, int peer) = 0;
  /// Ends a receive that nothing has come for yet; what is coming already goes on.
  virtual void withdraw(transfer& t) = 0;
  /// Ends the connection with that rank as soon as it is made. UCX at the other end sees that within
  /// UCX_KEEPALIVE_INTERVAL (20 s); MPI has none to end.
  virtual void disconnect(int) {}
  /// Why nothing reaches that rank any more; null as long as it may be there.
  [[nodiscard]] virtual const std::string* failure(int rank) const noexcept = 0;

  /// Collectives of the engine's own over all ranks, as rank_carrier has them. Collective, in the same order on all
  /// ranks; waits for nobody. Null where it has none.
  [[nodiscard]] virtual std::shared_ptr<engine_group> all_ranks() { return nullptr; }
  /// Whether nothing is under way for it any more.
  [[nodiscard]] virtual bool is_settled(engine_group&) { return true; }
  virtual void start(transfer&, const std::shared_ptr<engine_group>&, const engine_call&) {}
  virtual void forget(transfer&) {}

  /// By what messages to that rank go: "tcp/eth0". Empty: it does not tell, or there is no connection.
  [[nodiscard]] virtual std::string transport_to(int rank) const = 0;

  /// Moves on what is under way. False when there was nothing to do.
  virtual bool progress() = 0;
  /// Readable when there may be something to do, once arm() said so; −1 where nothing tells. arm() gives false when
  /// there is something already.
  [[nodiscard]] virtual int wake_file() const noexcept = 0;
  [[nodiscard]] virtual bool arm() noexcept = 0;
};

/// "ucx 1.13.1". Errors: not_found, with what is missing.
[[nodiscard]] result<std::string> version_of_ucx();
/// UCX, from release 1.13 on. Errors: not_found, with what is missing.
[[nodiscard]] result<std::unique_ptr<engine>> open_ucx(int self, int ranks);

}  // namespace weft::detail
