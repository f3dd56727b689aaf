// SPDX-License-Identifier: Apache-2.0
// The ranks of a communicator of the program's: what they say to each other when they join, and their messages.
#pragma once

#include "distributed/engine/engine.hpp"
#include "distributed/mpi/mpi_library.hpp"
#include "weft/core/waiting.hpp"

#include <memory>
#include <stop_token>
#include <vector>

namespace weft::detail::mpi {

/// Copies of a communicator, in which nobody else sends: one for the program's messages, one for the library's.
class ranks {
 public:
  /// Of `communicator`, which points to the program's MPI_Comm; of MPI_COMM_WORLD where it is null. Collective.
  /// Errors: not_found without an initialised MPI; timed_out, cancelled; closed, with MPI's words.
  static result<std::shared_ptr<ranks>> of(const void* communicator, wait_deadline until, const std::stop_token& stop);
  ranks(const library& calls, handle comm, handle own_comm) : calls_(calls), comm_(comm), own_comm_(own_comm) {}
  ranks(const ranks&) = delete;
  ranks& operator=(const ranks&) = delete;
  ~ranks();

  [[nodiscard]] const library& calls() const noexcept { return calls_; }
  [[nodiscard]] handle comm() const noexcept { return comm_; }
  [[nodiscard]] handle own_comm() const noexcept { return own_comm_; }
  [[nodiscard]] int self() const;
  [[nodiscard]] int size() const;
  /// Whether a thread of the library's may call MPI while the program does.
  [[nodiscard]] bool takes_any_thread() const;

  /// What every rank said, by rank. Collective. Errors: as of().
  result<std::vector<std::vector<std::byte>>> all_gather(std::span<const std::byte> mine, wait_deadline until,
                                                         const std::stop_token& stop) const;

 private:
  const library& calls_;
  handle comm_;
  handle own_comm_;
};

/// MPI's point-to-point messages. They are copied when they are sent, because MPI may read them after a limit has
/// passed. Tags go to 32,767, and a message has less than 2 GiB.
[[nodiscard]] std::unique_ptr<engine> open_messages(std::shared_ptr<ranks> of);

}  // namespace weft::detail::mpi
