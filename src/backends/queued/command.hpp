// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/queued/queue_driver.hpp"
#include "weft/backend/event_record.hpp"
#include "weft/core/error.hpp"
#include "weft/core/topology.hpp"
#include "weft/core/trace.hpp"

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

namespace weft::queued {

class queued_stream;

/// What a trace says of a command.
struct command_note {
  trace_kind kind = trace_kind::mark;  // a mark is not recorded
  std::uint64_t bytes = 0;
  std::int64_t items = 0;
  std::uint64_t launch = 0;
  device_id from, to;
};

/// One operation of a stream, and the event that users hold. It becomes one or several commands of the stream's queue,
/// or runs on a thread of the host. Backends derive theirs.
class command : public event_record {
 public:
  enum class place : unsigned char { driver, host };

  explicit command(place where) : where_(where) {}
  ~command() override;

  /// Puts it into the queue; `last` becomes an event that ends with the last of it, and belongs to the command. Not
  /// waiting, under the stream's lock. After an error the command ends, failed, once the queue holds nothing of it.
  [[nodiscard]] virtual result<void> hand_over(native_queue queue, native_event* last);
  /// Does it, on a thread of the stream's own.
  [[nodiscard]] virtual std::shared_ptr<const error> run_here();
  /// It has ended because nobody goes on waiting (queue_driver::give_up), and has not done what it was for. Asked once,
  /// when the driver has ended it.
  [[nodiscard]] virtual bool was_given_up() noexcept { return false; }
  /// Does the host's part, once the queue's has ended well. Perhaps where the driver calls.
  virtual void deliver() noexcept {}
  /// Whether there is such a part: then the end in the queue is not the command's end, and later commands are held
  /// back.
  [[nodiscard]] virtual bool delivers() const noexcept { return false; }
  /// Lets go of memory, and of all else that nobody needs once it has ended. Perhaps where the driver calls.
  virtual void let_go() noexcept = 0;
  [[nodiscard]] virtual std::string name() const { return std::string{to_string(note.kind)}; }

  [[nodiscard]] bool is_for_driver() const noexcept { return where_ == place::driver; }

  // set by who makes it
  command_note note;
  const link_path* path = nullptr;  // what it moves over these links is counted when it has ended well
  std::stop_token stop;
  event_ref dependency;  // starts after it, and not at all if that failed

  /// Asks the driver where it was not asked at the end.
  [[nodiscard]] span times() const noexcept override;

  /// Of the queue, from when it was handed to the driver until this record goes.
  [[nodiscard]] native_event native() const noexcept { return shown_.load(std::memory_order_acquire); }

 private:
  friend class scheduler;
  friend class queued_stream;

  void watched() noexcept override;
  void keep(const std::shared_ptr<queue_driver>& driver, native_event made) noexcept;

  const place where_;
  std::shared_ptr<queue_driver> driver_;  // whose event it has
  std::atomic<native_event> shown_{nullptr};
  end_call at_end_;
  queued_stream* home_ = nullptr;
  command* next_waiting_ = nullptr;       // in its stream, of those that are held back
  command* next_flying_ = nullptr;        // … and of those in the driver's queue
  command* next_to_arm_ = nullptr;        // of those that the driver is to be told of
  command* next_looked_at_ = nullptr;     // of those whose ends the scheduler's thread looks for
  bool is_looked_at_ = false;             // with the scheduler's mutex
  std::uint64_t sequence_ = 0;            // 1 for the first of its stream
  std::shared_ptr<const error> refused_;  // by the driver, when it was handed over
  bool failed_here_ = false;              // not because of another command
  std::chrono::nanoseconds submitted_{0};
  std::chrono::steady_clock::time_point epoch_;  // what times count from
  std::chrono::nanoseconds turn_{0};             // when it was its stream's turn to wait for the dependency
  bool has_times_ = false;                       // the driver was asked at the end, or does not know
  mutable std::optional<span> told_;             // what it said when it was asked later
  bool follows_dependency_ = false;              // the stream is taken forward when that ends
  bool is_watched_ = false;                      // under the stream's lock: the driver is to call when it has ended
  bool is_armed_ = false;                        // … and has been told so, or is about to be
};

/// A command made of a function; for what is not worth a class. `Kept` keeps memory while the command uses it.
template <class Kept>
class driver_command final : public command {
 public:
  using work = std::function<result<void>(native_queue queue, native_event* last)>;

  explicit driver_command(work f) : command(place::driver), work_(std::move(f)) {}

  std::vector<Kept> memory;      // stays as long as the command does
  std::function<void()> at_end;  // what deliver() calls; throws nothing
  bool is_delivering = false;    // whether at_end was set: let_go() clears that

  [[nodiscard]] result<void> hand_over(native_queue queue, native_event* last) override { return work_(queue, last); }
  void deliver() noexcept override {
    if (at_end) at_end();
  }
  [[nodiscard]] bool delivers() const noexcept override { return is_delivering; }
  void let_go() noexcept override {
    work_ = nullptr;
    at_end = nullptr;
    memory.clear();
  }

 private:
  work work_;
};

/// The same for a thread of the host.
template <class Kept>
class host_command final : public command {
 public:
  using work = std::function<std::shared_ptr<const error>()>;

  explicit host_command(work f) : command(place::host), work_(std::move(f)) {}

  std::vector<Kept> memory;

  [[nodiscard]] std::shared_ptr<const error> run_here() override { return work_(); }
  void let_go() noexcept override {
    work_ = nullptr;
    memory.clear();
  }
  [[nodiscard]] std::string name() const override {
    return note.kind == trace_kind::host_call ? "host call" : command::name();
  }

 private:
  work work_;
};

}  // namespace weft::queued
