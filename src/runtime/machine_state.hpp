// SPDX-License-Identifier: Apache-2.0
// What a machine is behind its handles: the opened backends, and a place for what the layers above keep per machine.
// Owners that outlive the machine keep this object; after close() every backend call in it answers machine_closed.
#pragma once

#include "backend/calls/callback_thread.hpp"
#include "os/fork_watch.hpp"
#include "runtime/host_options.hpp"
#include "weft/backend/backend.hpp"
#include "weft/core/log.hpp"
#include "weft/core/raise.hpp"
#include "weft/runtime/machine.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace weft::detail {

/// Layers above that keep state per machine, one place each.
enum class part : std::size_t { peers, memory, channel, kernels, launches, escorts, profile, count };

class machine_state : public std::enable_shared_from_this<machine_state> {
 public:
  explicit machine_state(const machine_options& options);
  ~machine_state();

  [[nodiscard]] backend& backend_of(device_id id) const {
    backend& b = *backends_.front();
    const int first = b.first_device().value();
    if (id.value() >= first && id.value() < first + static_cast<int>(b.devices().size())) return b;
    raise_unknown(id);
  }
  [[nodiscard]] const device_description& description_of(device_id id) const {
    const backend& b = backend_of(id);
    return b.devices()[static_cast<std::size_t>(id.value() - b.first_device().value())];
  }
  /// The backend that knows an address, or whose error says that it does not.
  [[nodiscard]] backend& backend_of(const void*) const { return *backends_.front(); }

  /// One: several are a mixed_backend.
  [[nodiscard]] const std::vector<std::unique_ptr<backend>>& backends() const { return backends_; }
  [[nodiscard]] int device_count() const { return static_cast<int>(backend_names_.size()); }
  /// Under which the device's backend was opened. The device is one of this machine.
  [[nodiscard]] const std::string& backend_name(device_id id) const { return backend_names_[id.index()]; }
  [[nodiscard]] const std::vector<backend_status>& statuses() const { return statuses_; }
  [[nodiscard]] const std::vector<std::string>& notes() const { return notes_; }
  [[nodiscard]] const machine_options& options() const { return options_; }
  [[nodiscard]] bool checks_access() const;
  [[nodiscard]] bool checks_order() const { return checks_order_; }
  [[nodiscard]] const topology& layout() const { return backends_.front()->layout(); }
  [[nodiscard]] std::chrono::nanoseconds now() const { return backends_.front()->now(); }
  /// The machine's clock for a duration: from any zero, and without a call of the backend where time is real.
  [[nodiscard]] std::chrono::nanoseconds ticks() const {
    return options_.clock == clock_kind::virtual_time ? now() : std::chrono::steady_clock::now().time_since_epoch();
  }
  /// Of a device; the backend is asked once. Relaxed: a handle is a number, and the backend looks it up under its own
  /// order. Errors: as the backend's.
  [[nodiscard]] result<stream_handle> default_stream(device_id id) const {
    backend& b = backend_of(id);
    auto& known = default_streams_[static_cast<std::size_t>(id.value() - b.first_device().value())];
    if (const auto seen = known.load(std::memory_order_relaxed); seen != stream_handle::none) return seen;
    auto asked = b.default_stream(id);
    if (asked) known.store(*asked, std::memory_order_relaxed);
    return asked;
  }

  [[nodiscard]] bool closed() const { return closed_.load(std::memory_order_acquire); }
  /// In the child of a fork, which has none of the machine's threads.
  [[nodiscard]] bool forked() const noexcept { return here_.forked(); }
  void require_open(std::source_location where = {}) const {
    if (closed())
      raise(errc::machine_closed, "the machine was closed; buffers and streams of it cannot be used any more", where);
  }
  void close() noexcept;
  /// Runs `f` when the machine is closed, before its work is ended; not at all when it is closed already.
  void before_close(std::function<void()> f);
  /// Adds work that no stream knows of yet: synchronize() calls `f` with its deadline before it waits for the streams.
  /// `f` waits, and gives the first failure that nobody has been told of. Errors are values.
  using pending_work = std::function<result<wait_outcome>(wait_deadline)>;
  void before_synchronize(pending_work f);
  [[nodiscard]] result<wait_outcome> finish_pending(wait_deadline deadline);
  struct unreported {
    device_id device;  // none: of a launch over devices
    stream_handle stream = stream_handle::none;
    error cause;
  };
  /// Keeps a failure that a wait for several streams found, which reports one; the next wait reports the next. One that
  /// is kept already, as where it went from stream to stream, counts once.
  void add_unreported(device_id device, stream_handle stream, error cause);
  /// The first that fits, to be reported now. Cost: a load where none is kept.
  template <class F>
  [[nodiscard]] std::optional<error> take_unreported(const F& fits) {
    // acquire: pairs with the release stores, here and in add_unreported
    if (!has_unreported_.load(std::memory_order_acquire)) return std::nullopt;
    const std::lock_guard lock{unreported_mutex_};
    const auto found = std::find_if(unreported_.begin(), unreported_.end(), fits);
    if (found == unreported_.end()) return std::nullopt;
    std::optional<error> taken{std::move(found->cause)};
    unreported_.erase(found);
    has_unreported_.store(!unreported_.empty(), std::memory_order_release);
    return taken;
  }
  /// Runs `f`, which waits for work, here or, on a thread that does that work, on one of its own.
  template <class F>
  void off_workers(F f) noexcept {
    if (!on_worker()) return f();  // takes no memory: streams and machines end when there is none too
    on_another_thread(std::move(f));
  }
  /// Closes, here or, on a thread inside work or a call of the machine's, on one of its own: closing waits for both.
  void close_from_anywhere() noexcept;

  /// Where continuations run. Started when first needed.
  [[nodiscard]] callback_thread& callbacks();
  /// Where launches over devices decide what comes next: a thread that runs nothing of the user's, so that a virtual
  /// clock can wait for it. Started when first needed.
  [[nodiscard]] callback_thread& deciders();

  /// Records of all backends go to `sink` from now on; null: nowhere.
  void trace_to(const std::shared_ptr<trace_sink>& sink);
  /// Where records go, or null: for layers that add their own.
  [[nodiscard]] std::shared_ptr<trace_sink> trace() const {
    return tracing_.load(std::memory_order_acquire) ? locked_trace() : nullptr;
  }

  /// What a layer above keeps here, made when first asked for.
  template <class T>
  [[nodiscard]] T& part_of(part which) {
    auto& place = parts_[static_cast<std::size_t>(which)];
    // acquire: pairs with the release below
    if (void* made = place.seen.load(std::memory_order_acquire)) return *static_cast<T*>(made);
    const std::lock_guard lock{parts_mutex_};
    if (!place.owner) {
      auto made = std::make_shared<T>(*this);
      place.seen.store(made.get(), std::memory_order_release);
      place.owner = std::move(made);
    }
    return *static_cast<T*>(place.owner.get());
  }

 private:
  [[noreturn]] void raise_unknown(device_id id) const;
  /// The last handle of a machine, or a stream, may have been captured by work and go with it.
  [[nodiscard]] bool on_worker() const noexcept;
  template <class F>
  void on_another_thread(F f) noexcept {
    try {
      start_thread(std::move(f));
    } catch (const std::exception&) {
      log(log_level::error, "a machine or stream went inside its own work, and no thread could be started to end it");
    }
  }
  void start_thread(std::function<void()> f);
  [[nodiscard]] std::shared_ptr<trace_sink> locked_trace() const;
  void read_environment();
  void log_opened() const;
  [[nodiscard]] std::optional<std::string> backend_of_environment();
  void open_backends();
  void drop_unknown(std::vector<std::string>& wanted, std::span<const backend_entry> entries);
  bool open_one(const backend_entry& entry, const backend_options& plan, backend_status& status,
                std::optional<error>& why_not);
  void open_several(std::span<const std::string> wanted, std::span<const backend_entry> entries, backend_options& plan,
                    std::optional<error>& why_not);
  void require_mixable(std::span<const std::string> wanted) const;
  [[nodiscard]] const device_description* known_twin(const device_description& device) const;
  void join_backends(const backend_options& plan);

  struct serving {
    std::once_flag once;
    std::unique_ptr<callback_thread> thread;
    std::atomic<callback_thread*> seen{nullptr};
  };
  [[nodiscard]] static callback_thread& started(serving& place, callback_thread::kind what);

  struct slot {
    std::shared_ptr<void> owner;
    std::atomic<void*> seen{nullptr};
  };

  fork_watch here_;
  machine_options options_;
  host_options host_only_;
  bool checks_order_ = false;
  std::vector<std::unique_ptr<backend>> backends_;
  std::vector<backend_status> statuses_;
  std::vector<std::string> notes_;
  std::vector<std::string> backend_names_;                           // of each device
  mutable std::vector<std::atomic<stream_handle>> default_streams_;  // none: not asked for yet
  std::atomic<bool> closed_{false};
  std::atomic<bool> ended_{false};
  std::recursive_mutex parts_mutex_;  // one part may be made of another
  std::array<slot, static_cast<std::size_t>(part::count)> parts_;
  std::mutex closing_mutex_;
  std::vector<std::function<void()>> closing_;
  std::vector<pending_work> pending_;
  std::atomic<bool> has_unreported_{false};
  std::mutex unreported_mutex_;
  std::vector<unreported> unreported_;
  serving callbacks_, deciders_;
  std::shared_ptr<clock_hold> hold_;  // null on the wall clock
  std::atomic<bool> tracing_{false};
  mutable std::mutex trace_mutex_;
  std::shared_ptr<trace_sink> trace_;
};

/// Whether two errors tell of one failure: the words are the same, and so is the place in the program, where both name
/// one.
[[nodiscard]] bool is_same_failure(const error& a, const error& b);

/// Ends a wait: the failure of work becomes an exception, which names the wait where the work names no place.
[[noreturn]] void raise_failure(error cause, std::source_location where);

}  // namespace weft::detail
