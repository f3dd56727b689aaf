// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/opencl/memory_map.hpp"
#include "weft/backend/event_record.hpp"
#include "weft/core/topology.hpp"
#include "weft/core/trace.hpp"

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

namespace weft::opencl {

class cl_stream;

/// Whether event_record says when somebody asks to be called at the end. It does not yet: so the driver is asked to
/// call for the oldest command of every stream, wanted or not, which costs a launch above a microsecond.
inline constexpr bool records_tell = false;

/// What a trace says of a command.
struct command_note {
  trace_kind kind = trace_kind::mark;  // a mark is not recorded
  std::uint64_t bytes = 0;
  std::int64_t items = 0;
  std::uint64_t launch = 0;
  device_id from, to;
};

/// One operation of a stream, and the event that users hold. It becomes one or several commands of the stream's queue,
/// or runs on a thread of the host.
class command : public event_record {
 public:
  enum class place : unsigned char { driver, host };

  explicit command(place where) : where_(where) {}

  /// Puts it into the queue; `ended` is its last command's event. Not waiting, under the stream's lock.
  [[nodiscard]] virtual result<void> hand_over(cl_command_queue, cl_event*) { return {}; }
  /// Does it, on a thread of the stream's own.
  [[nodiscard]] virtual std::shared_ptr<const error> run_here() { return nullptr; }
  /// Lets go of memory, and of all else that nobody needs once it has ended.
  virtual void let_go() noexcept = 0;
  [[nodiscard]] virtual std::string name() const { return std::string{to_string(note.kind)}; }

  [[nodiscard]] bool is_for_driver() const noexcept { return where_ == place::driver; }

  cl_stream* home = nullptr;
  std::uint64_t sequence = 0;  // 1 for the first of its stream
  command_note note;
  const link_path* path = nullptr;  // what it moves over these links is counted when it has ended well
  std::stop_token stop;
  event_ref dependency;                  // starts after it, and not at all if that failed
  std::shared_ptr<const error> refused;  // by the driver, when it was handed over
  std::chrono::nanoseconds submitted{0};
  bool follows_dependency = false;  // the stream is taken forward when that ends
  bool is_watched = false;          // under the stream's lock: the driver is to call when it has ended
  bool is_armed = false;            // … and has been told so

  /// Of the queue, from when it was handed to the driver until this record goes.
  [[nodiscard]] cl_event native_event() const noexcept { return shown_.load(std::memory_order_acquire); }
  void keep(event_handle made) {
    ended_ = std::move(made);
    shown_.store(ended_.get(), std::memory_order_release);
  }

 protected:
  /// Somebody asked to be called at the end: see records_tell.
  virtual void watched() noexcept;

 private:
  const place where_;
  event_handle ended_;
  std::atomic<cl_event> shown_{nullptr};
};

/// A command made of a function; for what is not a kernel.
class driver_command final : public command {
 public:
  using work = std::function<result<void>(cl_command_queue queue, cl_event* ended)>;

  explicit driver_command(work f) : command(place::driver), work_(std::move(f)) {}

  std::vector<pin> memory;  // stays as long as the command does

  [[nodiscard]] result<void> hand_over(cl_command_queue queue, cl_event* last) override { return work_(queue, last); }
  void let_go() noexcept override {
    work_ = nullptr;
    memory.clear();
  }

 private:
  work work_;
};

/// The same for a thread of the host.
class host_command final : public command {
 public:
  using work = std::function<std::shared_ptr<const error>()>;

  explicit host_command(work f) : command(place::host), work_(std::move(f)) {}

  std::vector<pin> memory;

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

}  // namespace weft::opencl
