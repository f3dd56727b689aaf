// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/backend/backend.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace weft::host {

class host_stream;

/// The streams of a machine by handle. A look-up takes no lock, since every operation does one; so a stream object
/// stays until the machine goes, and serves again as a later stream under a new handle.
/// Thread: any.
class stream_table {
 public:
  stream_table();
  ~stream_table();

  /// The stream, or null for a handle that was destroyed or never given.
  [[nodiscard]] host_stream* find(stream_handle handle) const noexcept;

  /// A stream with a handle of its own: one that was given back, or what `make` makes. Null when there are too many.
  [[nodiscard]] host_stream* add(const std::function<std::unique_ptr<host_stream>()>& make);
  /// From here on the handle is not found.
  void remove(host_stream& stream) noexcept;

  template <class F>
  void for_each(F&& f) const {
    for_each_made([&](host_stream& s) {
      if (is_open(s)) f(s);
    });
  }
  /// Also those whose handle was destroyed: work may still be on its way to them.
  template <class F>
  void for_each_made(F&& f) const {
    const std::uint64_t end = count_.load(std::memory_order_acquire);  // pairs with release in add
    for (std::uint64_t place = 0; place < end; ++place) {
      if (host_stream* s = at(place)) f(*s);
    }
  }

 private:
  static constexpr std::uint64_t place_bits = 20;
  static constexpr std::uint64_t chunk_size = 256;
  using chunk = std::array<std::atomic<host_stream*>, chunk_size>;

  [[nodiscard]] host_stream* at(std::uint64_t place) const noexcept;
  [[nodiscard]] static bool is_open(const host_stream& stream) noexcept;

  std::array<std::atomic<chunk*>, (std::uint64_t{1} << place_bits) / chunk_size> chunks_{};
  std::atomic<std::uint64_t> count_{0};
  std::mutex mutex_;
  std::vector<std::unique_ptr<chunk>> owned_chunks_;
  std::vector<std::unique_ptr<host_stream>> owned_;
  std::vector<host_stream*> idle_;
  std::uint64_t generation_ = 0;
};

}  // namespace weft::host
