// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/runtime/device.hpp"
#include "weft/runtime/stream.hpp"

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace weft::detail {

/// A stream of the library's own: what fails in it is told by whoever submitted it, not by synchronize().
class own_stream {
 public:
  explicit own_stream(const device& on);
  [[nodiscard]] const stream& face() const { return face_; }

 private:
  unique_handle<stream_traits> owned_;
  stream face_;
};

/// The streams of launches on one device: one for kernels, and for data that comes and goes while a kernel runs, one
/// each.
class lane {
 public:
  explicit lane(const device& on) : on_(on), compute_(on), in_(on), out_(on) {}

  [[nodiscard]] const device& on() const { return on_; }
  [[nodiscard]] const stream& compute() const { return compute_.face(); }
  [[nodiscard]] const stream& in() const { return in_.face(); }
  [[nodiscard]] const stream& out() const { return out_.face(); }
  [[nodiscard]] bool idle() const { return compute().idle() && in().idle() && out().idle(); }
  /// Something failed in it: what it is given from now on may be skipped.
  [[nodiscard]] bool is_spoiled() const { return is_spoiled_.load(std::memory_order_relaxed); }
  void spoil() noexcept { is_spoiled_.store(true, std::memory_order_relaxed); }

 private:
  std::atomic<bool> is_spoiled_{false};  // who waits for the launch sees it by the launch's mutex
  device on_;
  own_stream compute_, in_, out_;
};

/// The lanes of a machine. A launch takes one that nobody uses; when a device has as many as it may, one that others
/// have queued work in. What fails then skips what is queued behind it, as in any stream.
/// Thread: any.
class lane_pool {
 public:
  [[nodiscard]] std::shared_ptr<lane> take(const device& on);
  /// Gives it to nobody any more: something failed in it. That of a lost device stays, since no other can be made.
  void drop(const std::shared_ptr<lane>& spoiled) noexcept;
  void clear() noexcept;

 private:
  static constexpr std::size_t per_device = 8;

  std::mutex mutex_;
  std::map<device_id, std::vector<std::shared_ptr<lane>>> lanes_;
  std::size_t next_ = 0;
};

}  // namespace weft::detail
