// SPDX-License-Identifier: Apache-2.0
// Hands out descriptors of memory files to processes of the same user that know a random number, and fetches them.
#pragma once

#include "os/event_bell.hpp"
#include "os/fork_watch.hpp"
#include "os/memory_file.hpp"
#include "processes/share_ticket.hpp"
#include "weft/core/result.hpp"
#include "weft/core/unique_handle.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

namespace weft::detail {

/// What is handed out for one key.
struct share_grant {
  int file = -1;
  std::shared_ptr<const void> keep;  // the file stays open as long as this is held
  std::uint64_t size = 0;
  std::uint64_t device = 0;
  int second = -1;  // a descriptor of the backend's driver that belongs to it, or none
};

/// The exporter's side: one thread, started with the first offer, that answers requests.
///
/// Its address is an abstract socket whose name is random and which this process holds while the server lives, so that
/// nobody can take it and nothing is left of it after a crash. Who connects is asked of the kernel before a byte is
/// read. Connections that say nothing are few and short-lived: a flood of them costs neither memory nor descriptors.
/// Thread: any, but for the destructor.
class share_server {
 public:
  static constexpr std::size_t max_pending = 32;                       // connections that have not asked yet
  static constexpr std::chrono::milliseconds max_silence{250};         // of one of them
  using source = std::function<std::shared_ptr<const share_grant>()>;  // null once what was offered is gone

  share_server() = default;
  share_server(const share_server&) = delete;
  share_server& operator=(const share_server&) = delete;
  ~share_server() { stop(); }

  /// The number that names this server, once it answers. Errors: resource_exhausted.
  [[nodiscard]] result<std::uint64_t> door();
  /// From now on `key` is answered with what `what` gives, asked on the server's thread.
  void offer(std::uint64_t key, share_kind kind, source what);
  void withdraw(std::uint64_t key) noexcept;
  /// Joins the thread; later offers are never answered.
  void stop() noexcept;

  /// 0 before the first offer.
  [[nodiscard]] std::uint64_t known_door() const noexcept { return door_.load(std::memory_order_acquire); }

 private:
  struct entry {
    share_kind kind;
    source what;
  };
  enum class turn : std::uint8_t { done, silent };
  void serve(int listener, int bell) noexcept;
  [[nodiscard]] turn answer(int connection) noexcept;
  [[nodiscard]] std::shared_ptr<const share_grant> find(const share_ticket& asked, share_answer& answer);

  fork_watch here_;
  std::mutex mutex_;
  std::map<std::uint64_t, entry> offers_;
  descriptor listener_;
  event_bell bell_;
  bool stopped_ = false;
  std::atomic<std::uint64_t> door_{0};
  std::thread thread_;
};

/// Another process, watched without a thread: the kernel is asked at most every few milliseconds.
/// Thread: any.
class process_watch {
 public:
  process_watch(descriptor process, std::uint32_t pid) : process_(std::move(process)), pid_(pid) {}

  /// False from a few milliseconds after its death on.
  [[nodiscard]] bool alive() noexcept;
  /// Asks the kernel now.
  [[nodiscard]] bool alive_now() noexcept;
  [[nodiscard]] std::uint32_t pid() const noexcept { return pid_; }

 private:
  descriptor process_;
  std::uint32_t pid_;
  std::atomic<bool> dead_{false};
  std::atomic<std::int64_t> next_look_{0};
};
/// Errors: peer_dead, resource_exhausted.
[[nodiscard]] result<std::shared_ptr<process_watch>> watch_of(std::uint32_t pid);

/// What an exporter has given.
struct fetched_share {
  descriptor file;    // sealed against shrinking, and at least as large as the answer says; of a block: not checked
  descriptor second;  // of the exporter's driver, where it has one; checked by nobody yet
  std::shared_ptr<process_watch> exporter;
  share_reply reply;
};

/// Asks the exporter that a handle names. `known` is its watch if there is one already.
/// Errors: incompatible (another machine or boot); invalid_argument, native 201, for a handle of this process;
/// peer_dead
///   (the exporter, or its machine, is gone); closed (what was exported is freed); timed_out; resource_exhausted;
///   corrupt (what answered is no exporter); unsupported (an exporter in a PID namespace that is not seen from here).
[[nodiscard]] result<fetched_share> fetch_share(const share_ticket& h, std::chrono::nanoseconds timeout,
                                                const std::shared_ptr<process_watch>& known = nullptr);

}  // namespace weft::detail
