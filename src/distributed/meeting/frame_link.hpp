// SPDX-License-Identifier: Apache-2.0
// Frames over one TCP connection, never waiting. What arrives is not trusted: its size is checked before memory is
// taken.
#pragma once

#include "os/socket.hpp"
#include "weft/core/descriptor.hpp"
#include "weft/core/result.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace weft::detail {

enum class frame_kind : std::uint8_t { challenge = 1, hello, welcome, waiting, refusal, gather, table };

/// Every frame begins with it. Integers are little-endian on the wire.
struct frame_header {
  static constexpr std::uint32_t is_weft = 0x77746657;  // "Wftw"
  std::uint32_t magic = is_weft;
  std::uint32_t kind = 0;
  std::uint32_t length = 0;  // bytes that follow
};

struct frame {
  frame_kind kind;
  std::span<const std::byte> payload;  // until the next pull()
};

class frame_link {
 public:
  frame_link(descriptor socket, std::size_t most_payload);

  [[nodiscard]] int file() const noexcept { return socket_.get(); }
  /// What a frame may have from now on.
  void allow(std::size_t most_payload) noexcept { most_payload_ = most_payload; }

  using bytes = std::shared_ptr<const std::vector<std::byte>>;
  /// A frame of these parts in a row, which several connections may send.
  [[nodiscard]] static bytes frame_of(frame_kind kind, std::span<const std::span<const std::byte>> parts);
  /// Queues a frame.
  void put(bytes whole) { out_.push_back(std::move(whole)); }
  void put(frame_kind kind, std::span<const std::span<const std::byte>> parts) { put(frame_of(kind, parts)); }
  /// Sends what there is room for; `later` while something is left. Errors: as system_error().
  [[nodiscard]] result<packet_io> flush();
  [[nodiscard]] bool has_unsent() const noexcept { return !out_.empty(); }

  /// The next frame, or nothing while it is not whole.
  /// Errors: closed (the other side ended), corrupt (no frame of weft's, or a longer one than is allowed).
  [[nodiscard]] result<std::optional<frame>> pull();

 private:
  descriptor socket_;
  std::size_t most_payload_;
  std::vector<std::byte> in_;
  std::size_t taken_ = 0;  // of in_: the frames that were given
  std::deque<bytes> out_;
  std::size_t sent_ = 0;  // of the first
};

}  // namespace weft::detail
