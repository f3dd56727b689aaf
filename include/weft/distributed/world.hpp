// SPDX-License-Identifier: Apache-2.0
// The processes of one program on several computers: who takes part, and on which node.
#pragma once

#include "weft/collective/rank_communicator.hpp"
#include "weft/core/internals.hpp"
#include "weft/core/result.hpp"
#include "weft/processes/process_group.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <source_location>
#include <span>
#include <stop_token>
#include <string>
#include <sys/types.h>
#include <vector>

namespace weft {

namespace detail {
class queue_carrier;
class far_copier;
}  // namespace detail

/// The place of a process, as its launcher sets it.
struct world_place {
  rank self;
  int size = 0;
  std::optional<int> local_rank;  // on its node
  std::string host;               // where rank 0 listens, by name or address; of one process, none is needed
  std::uint16_t port = 0;

  /// By the variables that torchrun and most launchers set: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT.
  /// For the first three also Open MPI's (OMPI_COMM_WORLD_…), Slurm's (SLURM_…) and PMI's. The port is
  /// WEFT_MASTER_PORT, else the one after MASTER_PORT, because a program that uses torch has its own store there.
  /// Errors: not_found naming the variable that is missing; invalid_argument naming one with a wrong value.
  static world_place from_environment(std::source_location where = std::source_location::current());
};

/// Gives what every rank said, by rank; called by all in the same order. For a program that can do it already.
/// An exception of it ends the join with its words.
using exchange_function = std::function<std::vector<std::vector<std::byte>>(std::span<const std::byte> mine)>;

/// The library that carries bytes between ranks: UCX (libucp.so.0 from release 1.13) where every rank has it in one
/// release; else MPI where the world was joined by it; else nothing. Asked for by name it has to be there.
enum class world_engine : unsigned char { automatic, ucx, mpi, none };

struct world_options {
  world_engine engine = world_engine::automatic;
  std::chrono::nanoseconds timeout = std::chrono::seconds{60};
  std::stop_token stop{};
  /// A rank that another one waits for and that gives no sign of life for so long counts as dead: its link is cut, or
  /// it stands still. A rank that computes gives signs. The shortest of all ranks holds; 0 of one: none is looked for.
  /// At least 100 ms; without a value WEFT_WORLD_SILENCE, in seconds, else 10 s. With 0 UCX finds a connection that the
  /// other rank has ended within UCX_KEEPALIVE_INTERVAL, and MPI never.
  std::optional<std::chrono::nanoseconds> silence{};
  std::string interface{};  // of the network, by name; empty: WEFT_WORLD_INTERFACE, else as the system routes
  std::string node{};       // ranks of one computer with different ones count as on several nodes: to try that there;
                            // printable, at most 64 bytes; empty: WEFT_WORLD_NODE
  std::string token{};      // empty: WEFT_WORLD_TOKEN, else what is in the file WEFT_WORLD_TOKEN_FILE
};

/// One process of a world, as it told.
struct world_member {
  weft::rank rank;
  int node = 0;           // nodes are numbered by their lowest rank
  weft::rank local;       // its place on the node, by rank
  std::string host;       // name of the computer
  std::string interface;  // that it met the others by; empty where an exchange function did it
  std::string address;
  pid_t pid = 0;
};

/// The ranks that have met. Processes are on one node when they are on one computer and in one network and process
/// namespace, where they can share memory; they form a process_group.
///
/// Rank 0 gathers all: n ranks cost n connections to it, which end with the join. The token proves that a process
/// belongs here; nothing is encrypted. Thread: any; destroy it when no call is under way.
class world {
 public:
  static constexpr int max_size = 4096;

  ~world();
  world(world&&) noexcept;
  world& operator=(world&&) noexcept;

  /// Waits until all have joined, and their nodes have. When it fails for one, it fails for all.
  /// Errors: timed_out naming who is late; cancelled; name_taken (another program has the port); not_found (host,
  /// interface); incompatible (version, size, token, a rank or local rank twice), naming both; peer_dead; unsupported
  /// (more ranks on a node than process_group::max_size); resource_exhausted (threads). Throws invalid_argument for a
  /// place or a node's name that cannot be.
  /// To find the address of `host` may take longer than the timeout: it lasts as long as the system's resolver.
  [[nodiscard]] static result<world> join(const world_place& place, const world_options& options = {},
                                          std::source_location where = std::source_location::current());
  /// The same by the caller's own exchange, which is called twice. It is the caller's to bound it.
  [[nodiscard]] static result<world> join(rank self, int size, const exchange_function& exchange,
                                          const world_options& options = {},
                                          std::source_location where = std::source_location::current());

  /// By the MPI of the program, between MPI_Init and MPI_Finalize: over a copy of MPI_COMM_WORLD, or of the
  /// communicator that `communicator` points to (an MPI_Comm of the program's). Collective over it. The world has to go
  /// before MPI_Finalize. Threads of the program that call MPI while others wait in weft need MPI_THREAD_MULTIPLE; over
  /// MPI's messages so do world_options::silence, queues between nodes and offered_memory, on every rank.
  /// Errors: as above; not_found without an initialised MPI; closed with MPI's words.
  [[nodiscard]] static result<world> join_mpi(const void* communicator = nullptr, const world_options& options = {},
                                              std::source_location where = std::source_location::current());

  [[nodiscard]] rank self() const;
  [[nodiscard]] int size() const;
  [[nodiscard]] int nodes() const;
  /// Errors: invalid_argument for a rank outside the world.
  [[nodiscard]] const world_member& member(rank which,
                                           std::source_location where = std::source_location::current()) const;
  /// The ranks of a node, in order. Errors: invalid_argument.
  [[nodiscard]] std::span<const rank> ranks_of(int node,
                                               std::source_location where = std::source_location::current()) const;
  /// The processes of this node; a process's rank there is member(self()).local.
  [[nodiscard]] const std::shared_ptr<process_group>& node_group() const;

  /// The library that carries messages, with its version: "ucx 1.13.1". Empty: there is none, for engine_reason().
  [[nodiscard]] const std::string& engine() const;
  [[nodiscard]] const std::string& engine_reason() const;

  /// By what messages to that rank go, as UCX tells it: "tcp/eth0", "posix/memory+tcp/eth0". Empty: it does not tell,
  /// or nothing was sent yet. Errors: throws as send.
  [[nodiscard]] std::string transport(rank to, std::source_location where = std::source_location::current()) const;

  /// Sends bytes to one rank. Returns when the memory is the caller's again: small messages are copied, and of large
  /// ones the receiver has what it needs. Order: messages to one rank with one tag arrive in order.
  /// Errors of both: timed_out, cancelled, peer_dead (that rank died or left) with the rank and its node. A message
  /// that was given up once two ranks are connected ends their connection. Throws invalid_argument for self and ranks
  /// outside; unsupported without an engine. Thread: any, several at a time. Messages move while some thread of the
  /// process is in one of these calls.
  result<void> send(rank to, std::uint32_t tag, std::span<const std::byte> bytes, std::chrono::nanoseconds timeout,
                    const std::stop_token& stop = {}, std::source_location where = std::source_location::current());
  /// The next message of that rank with that tag; gives its size. What was sent before that rank left still arrives.
  /// Errors: incompatible for a message that is longer than the memory for it, which is lost.
  result<std::size_t> receive(rank from, std::uint32_t tag, std::span<std::byte> into, std::chrono::nanoseconds timeout,
                              const std::stop_token& stop = {},
                              std::source_location where = std::source_location::current());

  /// Collectives over all ranks: each calls it with a device of its own. The calls are the same as on one node; what
  /// differs is said in docs/reference/worlds.md. Thread: one at a time makes communicators of a world, split()
  /// included: all ranks make them in the same order. Errors: unsupported (no engine, more than 64 ranks); peer_dead,
  /// timed_out, resource_exhausted, out_of_memory.
  [[nodiscard]] rank_communicator communicator(const device& mine, const rank_communicator_options& options = {},
                                               std::source_location where = std::source_location::current());

  struct body;

 private:
  friend struct detail::internals;
  explicit world(std::unique_ptr<body> made);
  /// For connect_sender() and connect_receiver(). Errors: throws unsupported without an engine.
  [[nodiscard]] const std::shared_ptr<detail::queue_carrier>& queues() const;
  /// For copies to and from the memory of other ranks. Errors: the same.
  [[nodiscard]] const std::shared_ptr<detail::far_copier>& far_copies() const;

  std::unique_ptr<body> body_;
};

/// The libraries that could carry messages between ranks, as this process has them. Cost: opens the library at the
/// first call.
struct world_engine_status {
  std::string name;  // "ucx", "mpi"
  bool available = false;
  std::string what;  // "ucx 1.13.1"; or why it is absent
};
[[nodiscard]] std::vector<world_engine_status> world_engines();

/// Name of a member in messages: "rank 3 (node 1, host b, pid 4711)".
[[nodiscard]] std::string to_string(const world_member& member);

}  // namespace weft
