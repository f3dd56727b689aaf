// SPDX-License-Identifier: Apache-2.0
// What a communicator keeps between its calls.
#pragma once

#include "collective/schedule/schedule_run.hpp"
#include "weft/collective/communicator.hpp"
#include "weft/memory/peer_access.hpp"

#include <cstdint>
#include <memory>
#include <mutex>
#include <source_location>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

namespace weft {

struct collective_run::body : detail::collective_call {
  [[nodiscard]] wait_outcome wait_until(wait_deadline until) const;
  [[nodiscard]] error named(const std::shared_ptr<const error>& cause) const;
  [[nodiscard]] error late() const;
};

struct communicator::body {
  body(std::span<const device> devices, const communicator_options& with);
  body(const body&) = delete;
  body& operator=(const body&) = delete;
  ~body();

  collective_run start(collective what, data_type type, const detail::rank_memory& in, const detail::rank_memory& out,
                       const reduction_op* op, const collective_options& o, std::source_location where);
  collective_run send(rank from, const detail::memory_ref& src, rank to, const detail::memory_ref& dst,
                      const collective_options& o, std::source_location where);
  collective_run barrier(const collective_options& o, std::source_location where);

  void abort(std::string_view why);
  [[nodiscard]] std::optional<error> failure() const;  // from any thread
  [[nodiscard]] std::size_t checked(rank of, const char* what, std::source_location where) const;
  [[nodiscard]] std::string name(std::size_t rank) const { return ranks->name(static_cast<int>(rank)); }

  communicator_options options;
  std::shared_ptr<const detail::collective_ranks> ranks;
  std::vector<device_id> ids;
  detail::collective_streams streams;
  std::vector<peer_access> leases;
  std::string no_access;  // why ranks may not use each other's memory
  std::stop_source stop;

 private:
  /// A plan, and what a call of it returns that is over already.
  struct kept_plan {
    std::shared_ptr<const detail::collective_plan> plan;
    std::shared_ptr<const collective_run::body> over;
  };
  struct traffic_word {
    std::uint64_t id = 0;
    std::uint64_t count = 0;  // bytes; written here, read by the backend
  };

  void require_usable(std::source_location where) const;
  // the call that is being made: checked, and as a wish for a plan
  void take(collective what, data_type type, const detail::rank_memory& in, const detail::rank_memory& out,
            const reduction_op* op, const collective_options& o, std::source_location where);
  void take_op(const reduction_op* op, std::source_location where);
  void place(std::span<const detail::memory_ref> given, std::vector<detail::memory_ref>& into, bool only_root,
             const char* side, std::source_location where);
  void take_counts(std::span<const std::int64_t> counts, std::source_location where);
  void check_sizes(std::source_location where) const;
  void check_overlap(std::source_location where);
  void check_device(std::size_t rank, std::source_location where) const;
  void check_memory(std::source_location where) const;  // and the devices
  /// Why direct may not be used with this memory now; empty when it may.
  [[nodiscard]] std::string why_not_direct();

  [[nodiscard]] const kept_plan& plan(std::source_location where);
  [[nodiscard]] collective_choice choose(std::source_location where) const;
  [[nodiscard]] bool try_here(const detail::collective_plan& plan, std::source_location where);
  [[nodiscard]] collective_run run_empty(std::string_view what, const kept_plan& kept, const collective_options& o);
  void count_traffic(const detail::collective_plan& plan);
  void grow_scratch(const std::vector<std::int64_t>& elements);
  void clear_streams(const collective_options& o);
  [[nodiscard]] std::shared_ptr<collective_run::body> new_call(std::string_view what, const collective_options& o);
  [[nodiscard]] event_ref record_start(std::size_t rank);
  [[nodiscard]] bool writes_arrive();

  detail::collective_plan wish_;
  detail::collective_buffers memory_, windows_;
  std::vector<std::shared_ptr<std::byte>> held_;  // windows_, while they are used

  std::vector<kept_plan> plans_;                              // used last first
  std::vector<std::shared_ptr<collective_run::body>> calls_;  // that have not ended, and some to use again
  detail::collective_workspace* space_ = nullptr;             // of the call that is being made
  bool may_run_here_ = false;
  std::uint64_t access_epoch_ = 0;
  std::optional<std::uint64_t> verified_;               // peer_checks::epoch() of when all pairs were found to work
  std::string denied_;                                  // access that was leased, and that somebody took back
  std::vector<std::unique_ptr<traffic_word>> traffic_;  // [from * ranks + to]

  mutable std::mutex failing_;
  std::optional<error> failure_;  // there before `stop` is
};

}  // namespace weft
