// SPDX-License-Identifier: Apache-2.0
// The page of an event between processes, what one process knows of it, and who opens the gates of streams that wait.
#pragma once

#include "core/errors/make_error.hpp"
#include "processes/share_server.hpp"
#include "runtime/machine_state.hpp"
#include "weft/memory/ipc_event.hpp"

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace weft::detail {

/// Everything in it may be written by any process of the group: it is read once, and believed only as far as it hurts
/// nobody but those processes.
struct ipc_event_page {
  static constexpr std::uint64_t the_magic = 0x3356454354464557;
  /// Of one record: number << 8 | state.
  enum state : std::uint64_t { none = 0, begun = 1, done = 2, failed = 3 };
  struct record {
    std::atomic<std::uint64_t> claim;  // who makes the next record here: the low half of its number, and a pid
    std::atomic<std::uint64_t> word;
    std::atomic<std::uint64_t> started;  // of the recorder: with its pid, names it for good
    std::atomic<std::uint32_t> pid;
    std::atomic<std::uint32_t> code;  // why it failed
    std::atomic<std::uint64_t> lost;  // the last number here that was overwritten and had not ended well
  };

  std::uint64_t magic;
  std::atomic<std::uint32_t> bell;  // changes, and wakes, whenever anything else has
  std::atomic<std::uint32_t> owner_gone;
  std::atomic<std::uint64_t> recorded;  // a record is claimed first, and counted by whoever sees that
  std::array<record, ipc_event::max_outstanding> records;
};
static_assert(sizeof(ipc_event_page) <= 4096);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);

class ipc_event_body {
 public:
  /// Makes the page, or maps that of another process.
  ipc_event_body(std::shared_ptr<machine_state> state, descriptor file, std::shared_ptr<process_watch> owner);
  ipc_event_body(const ipc_event_body&) = delete;
  ipc_event_body& operator=(const ipc_event_body&) = delete;
  ~ipc_event_body();

  /// How a record stands. Empty: not ended yet. No value: ended well.
  struct verdict {
    bool ended = false;
    std::optional<error> cause;
  };
  [[nodiscard]] verdict look(std::uint64_t number);
  [[nodiscard]] std::uint64_t begin();
  void end(std::uint64_t number, const error* cause) noexcept;
  void ring() noexcept;

  [[nodiscard]] ipc_event_page& page() const { return *page_; }
  [[nodiscard]] const std::shared_ptr<machine_state>& state() const { return state_; }
  [[nodiscard]] int file() const { return file_.get(); }
  [[nodiscard]] bool is_owner() const { return owner_ == nullptr; }

  std::uint64_t key = 0;  // owner: under which it is offered; 0 before

 private:
  /// A claim has no start.
  [[nodiscard]] bool is_dead(std::uint32_t pid, std::optional<std::uint64_t> start);

  std::shared_ptr<machine_state> state_;
  descriptor file_;
  std::shared_ptr<process_watch> owner_;  // null in the owner
  ipc_event_page* page_ = nullptr;
  std::mutex mutex_;
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::shared_ptr<process_watch>> recorders_;  // null: dead
};

/// One thread per machine that serves events between processes: it opens the gates of streams that wait for them.
class ipc_event_service {
 public:
  ipc_event_service() = default;
  ipc_event_service(const ipc_event_service&) = delete;
  ipc_event_service& operator=(const ipc_event_service&) = delete;
  ~ipc_event_service() { stop(); }

  struct waiting {
    std::shared_ptr<ipc_event_body> body;
    std::uint64_t number;
    std::chrono::steady_clock::time_point until;
    backend* owner;
    event_ref gate;
  };
  void add(waiting one);
  void stop() noexcept;

  share_server server;

 private:
  void serve() noexcept;

  const std::shared_ptr<const error> no_memory_ = shared_error(no_host_memory());  // there when memory is not
  fork_watch here_;
  std::mutex mutex_;
  std::vector<waiting> fresh_;
  std::atomic<std::uint32_t> bell_{0};
  std::atomic<bool> stops_{false};
  std::thread thread_;
};

}  // namespace weft::detail
