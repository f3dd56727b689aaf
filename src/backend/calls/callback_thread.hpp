// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/backend/clock_hold.hpp"
#include "weft/backend/event_record.hpp"

#include <functional>
#include <memory>
#include <thread>

namespace weft::detail {

/// The one thread on which a machine runs callbacks and resumes coroutines: never a driver's thread, never a device's.
/// It also notices completion where a backend only moves when somebody waits (the virtual clock, polled drivers).
class callback_thread {
 public:
  struct kind {
    const char* name = "weft-callbacks";
    bool polls = true;                 // false: an event that nobody waits for ends when it ends
    std::shared_ptr<clock_hold> hold;  // held from the end of an event until its callback has run
  };
  callback_thread() : callback_thread(kind{}) {}
  explicit callback_thread(kind what);
  ~callback_thread();

  /// Runs `f` after the event has ended; on the calling thread once this one has gone. Thread: any.
  void after(const event_ref& event, std::function<void()> f);
  /// Runs `f` as soon as the thread is free; on the calling thread once this one has gone. Thread: any.
  void soon(std::function<void()> f);
  /// Runs what is left, and ends. Events must have ended by then. Never call it from a callback.
  void end() noexcept;
  /// Whether the calling thread is this one.
  [[nodiscard]] bool is_current() const noexcept;

 private:
  // Shared with the thread, which may outlive this object when the last handle of a machine goes inside a callback.
  struct desk;

  std::shared_ptr<desk> desk_;
  std::thread thread_;
};

}  // namespace weft::detail
