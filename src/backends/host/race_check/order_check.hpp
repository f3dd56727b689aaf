// SPDX-License-Identifier: Apache-2.0
// Finds accesses that nothing orders, as they are submitted: whether they would have met in this run does not matter.
//
// Each operation has a clock: how far every stream had come among what the operation comes after. One access comes
// before another if the clock of the other says so. The host has one clock for all of its threads: what one thread has
// waited for, or has seen ready, comes before whatever any thread submits later. A clock per thread would find more,
// and would raise an alarm about programs whose threads hand over by mutexes, which nobody here can see.
//
// What the host decides later (a gate; a host function or a kernel with a ring, which may wait for the host) comes
// after all that the host had seen by then. So a verdict that hangs on one is put off until it opens.
#pragma once

#include "weft/backend/backend.hpp"
#include "weft/backend/order_violation.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace weft::host {

/// What an operation is, as far as a sentence needs it.
struct order_operation {
  enum class kind : std::uint8_t { copy, fill, launch, prefetch, other };
  kind what = kind::other;
  device_id on;        // of its stream
  device_id from, to;  // copies; none is the host
  std::uint64_t size = 0;
  std::shared_ptr<const kernel_code> kernel;
  std::source_location where{};
};

/// Bytes that an operation touches.
struct order_access {
  std::uintptr_t begin = 0;
  std::uint64_t size = 0;
  bool writes = false;
  std::uint32_t argument = 0;  // of a kernel, from 1; 0: it has none
  std::uintptr_t base = 0;     // of the allocation
};

/// Vector clocks over streams, and for each byte the accesses that are not known to be over.
/// Thread: any. Cost: a lock and an allocation for each operation; memory for accesses that the host has not waited
/// for.
class order_check {
 public:
  struct gate;
  struct mark;
  /// What somebody comes after who waits for an operation, a recorded event or a gate.
  using mark_ref = std::shared_ptr<const mark>;

  order_check();
  ~order_check();
  order_check(const order_check&) = delete;
  order_check& operator=(const order_check&) = delete;

  /// An operation is submitted; it comes after what its stream holds, and after what the host has seen.
  mark_ref submitted(stream_handle stream, order_operation operation, std::span<const order_access> accesses);
  [[nodiscard]] mark_ref recorded(stream_handle stream) { return submitted(stream, {}, {}); }
  /// Later operations of the stream come after `event`.
  void wait(stream_handle stream, const mark_ref& event);
  /// Later operations of the stream come after all that was submitted so far: for events of which nothing is known.
  void wait_for_all(stream_handle stream);

  /// What the host will decide: what it has seen when it opens the gate comes before whatever waits for that.
  [[nodiscard]] mark_ref create_gate();
  void open_gate(const mark_ref& gate);
  /// The same where nobody knows what it was opened by: all that was submitted so far comes before.
  void open_gate_after_all(const mark_ref& gate);
  /// An operation that may talk to the host while it runs: what follows it in its stream comes after a gate that opens
  /// when it ends.
  [[nodiscard]] mark_ref hold(stream_handle stream);

  void host_waited(const mark_ref& event);
  void stream_synchronized(stream_handle stream);
  /// The stream is gone, and all its work has ended.
  void stream_gone(stream_handle stream);
  /// The bytes begin a new life: what was done with them is over.
  void freed(std::uintptr_t begin, std::uint64_t size);

  /// What was found, oldest first: each pair of source lines once, and no more than `most_kept`.
  [[nodiscard]] std::vector<order_violation> violations() const;
  /// How many were found, those that are not kept included.
  [[nodiscard]] std::uint64_t found() const;
  /// Pieces of memory with accesses of their own, and parts of all clocks: what the bounds are about.
  [[nodiscard]] std::size_t pieces() const;
  [[nodiscard]] std::size_t clock_parts() const;

  static constexpr std::size_t most_kept = 1000;

 private:
  struct clock;
  using clock_ref = std::shared_ptr<const clock>;
  enum class verdict : std::uint8_t { ordered, unordered, later };

  struct stream_state {
    std::uint64_t submitted = 0;
    clock_ref base;
    std::uint64_t seen_of_host = 0;         // version of the host's clock that base has
    std::shared_ptr<const gate> last_hold;  // opens after all earlier ones of this stream
  };
  /// An access that a later one may still meet.
  struct held {
    mark_ref by;
    std::uint32_t argument = 0;
    bool writes = false;
    friend bool operator==(const held&, const held&) = default;
  };
  struct piece {
    std::uintptr_t end = 0;
    std::vector<held> accesses;
  };
  struct pair {
    held first, second;
    std::uintptr_t base = 0, begin = 0, end = 0;
  };

  stream_state& state_of(stream_handle stream);
  void open(const mark_ref& opened, bool after_all);
  static verdict contains(const clock& known, std::uint64_t stream, std::uint64_t number);
  static verdict before(const mark& a, const mark& b);
  static verdict either(const mark& a, const mark& b);
  static void join(clock_ref& into, const clock& other);
  static void join(clock_ref& into, const mark& event);
  static void add_into(clock& into, const clock& other);
  void touch(const held& now, const order_access& access, std::vector<pair>& bad);
  void meet(piece& where, const held& now, std::uintptr_t begin, const order_access& access, std::vector<pair>& bad);
  std::map<std::uintptr_t, piece>::iterator split(std::uintptr_t at);
  void sweep();
  [[nodiscard]] std::vector<std::string> report(const std::vector<pair>& bad);

  mutable std::mutex mutex_;
  std::unordered_map<std::uint64_t, stream_state> streams_;
  clock_ref host_;
  std::uint64_t host_version_ = 1;
  std::map<std::uintptr_t, piece> pieces_;
  std::size_t pieces_limit_ = 1024;
  std::size_t streams_gone_ = 0;
  std::vector<pair> put_off_;
  std::vector<order_violation> violations_;
  std::set<std::pair<std::string, std::string>> told_;
  std::uint64_t found_ = 0;
};

}  // namespace weft::host
