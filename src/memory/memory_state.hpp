// SPDX-License-Identifier: Apache-2.0
// What the memory layer keeps per machine: facts for routes, counters, leases, and the lanes of staged copies.
#pragma once

#include "runtime/peer_checks.hpp"
#include "weft/memory/copy.hpp"
#include "weft/memory/peer_access.hpp"
#include "weft/memory/route.hpp"

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <stop_token>
#include <string>
#include <vector>

namespace weft::detail {

/// Two streams and the memory between them: a staged or relayed copy moves chunks through it. Used by one copy at a
/// time; the next one may take it once the last chunk has ended.
struct copy_lane {
  device_id from, to, via;          // via: whose memory the slots are; none for pinned host memory
  stream_handle first{}, second{};  // into the slots, out of the slots
  std::vector<void*> slots;
  std::uint64_t slot_size = 0;
  event_ref last_in, last_out;
  stream_handle order{};  // whose copy it served last

  [[nodiscard]] bool free() const { return (!last_in || last_in->finished()) && (!last_out || last_out->finished()); }
};

class ipc_event_service;
class pool_body;

/// What a grant gives a device a right to: a pool, a mapping, or memory of another process's pool.
struct grant_key {
  const void* at = nullptr;
  std::uint64_t serial = 0;  // of what lies at that address; 0 for a pool
  device_id to;
  friend auto operator<=>(const grant_key&, const grant_key&) = default;
};

class memory_state {
 public:
  explicit memory_state(machine_state& machine);
  ~memory_state();

  /// By facts as of now, over pairs on which data arrives.
  [[nodiscard]] result<route_choice> choose(device_id from, device_id to, bytes size, const route_wish& wish);
  [[nodiscard]] route_facts facts();

  void count(copy_path path, std::uint64_t size) noexcept;
  void count_failure(copy_path path) noexcept;
  [[nodiscard]] copy_counters counters() const noexcept;

  /// A lane with at least `depth` slots of `size`: one that nobody uses, or that of an earlier copy of the same stream,
  /// which this one follows anyway.
  [[nodiscard]] result<copy_lane*> take_lane(device_id from, device_id to, device_id via, std::uint64_t size, int depth,
                                             stream_handle order);
  void give_lane(copy_lane* lane);

  // peers
  void set_measured(device_id from, device_id to, const lane_facts& lane);
  void set_host_lanes(device_id id, const lane_facts& to_host, const lane_facts& from_host);
  [[nodiscard]] pair_facts pair(device_id from, device_id to);

  /// How many leases of a pair there are. The last one holds the mutex while it waits for the devices.
  std::mutex leases_mutex;
  std::map<std::pair<device_id, device_id>, int> leases;
  /// The pairs whose access a lease has enabled, and the program has not since. Held for a call of the driver, never
  /// while anybody waits for a device: commands in streams enable access too.
  std::mutex enabling_mutex;
  std::set<std::pair<device_id, device_id>> enabled_by_lease;

  /// Events between processes; started with the first of them.
  [[nodiscard]] ipc_event_service& events();
  /// Set once there is memory that peer access does not cover: copies then ask about their two ends.
  std::atomic<bool> has_own_access{false};

  /// Rights that grants have given, and how many of them there are.
  struct grant_entry {
    access_right before = access_right::none, given = access_right::none;
    int readers = 0, writers = 0;
  };
  std::mutex grants_mutex;
  std::map<grant_key, grant_entry> grants;

  /// Pools that can be shared, so that memory of theirs is known by its address.
  std::mutex pools_mutex;
  std::vector<std::weak_ptr<pool_body>> pools;

  std::mutex checks_mutex;
  std::vector<peer_check> checks;

  /// Stops when the machine closes: for waits that no work of the machine would end.
  std::stop_source closing;

 private:
  [[nodiscard]] result<route_choice> choose_by_facts(device_id from, device_id to, bytes size, const route_wish& wish);
  [[nodiscard]] std::uint64_t epoch() const;
  void refresh();

  machine_state& machine_;
  peer_checks& peers_;
  std::shared_mutex facts_mutex_;
  route_facts facts_;
  std::uint64_t epoch_ = 0;

  struct tally {
    std::atomic<std::uint64_t> copies{0}, bytes{0}, failed{0};
  };
  std::array<tally, 8> tallies_;

  std::once_flag events_once_;
  std::shared_ptr<ipc_event_service> events_;

  std::mutex lanes_mutex_;
  std::vector<std::unique_ptr<copy_lane>> idle_lanes_;
};

[[nodiscard]] inline memory_state& memory_of(machine_state& machine) {
  return machine.part_of<memory_state>(part::memory);
}

}  // namespace weft::detail
