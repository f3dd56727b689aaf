// SPDX-License-Identifier: Apache-2.0
#include "distributed/meeting/frame_link.hpp"

#include "core/errors/make_error.hpp"
#include "os/system_error.hpp"

#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string>
#include <sys/socket.h>
#include <utility>

namespace weft::detail {
namespace {

static_assert(std::endian::native == std::endian::little, "frames are little-endian");

constexpr const char* to_another_rank = "the connection to another rank";

error ended() { return make_error(errc::closed, "the other side ended the connection", error_scope::endpoint); }
error corrupt(std::string what) { return make_error(errc::corrupt, std::move(what), error_scope::endpoint); }

}  // namespace

frame_link::frame_link(descriptor socket, std::size_t most_payload)
    : socket_(std::move(socket)), most_payload_(most_payload) {}

frame_link::bytes frame_link::frame_of(frame_kind kind, std::span<const std::span<const std::byte>> parts) {
  frame_header head;
  head.kind = static_cast<std::uint32_t>(kind);
  for (const auto& part : parts) head.length += static_cast<std::uint32_t>(part.size());
  const auto first = std::as_bytes(std::span{&head, 1});
  auto made = std::make_shared<std::vector<std::byte>>(first.begin(), first.end());
  made->reserve(first.size() + head.length);
  for (const auto& part : parts) made->insert(made->end(), part.begin(), part.end());
  return made;
}

result<packet_io> frame_link::flush() {
  while (has_unsent()) {
    const auto left = std::span{*out_.front()}.subspan(sent_);
    const ssize_t sent = ::send(file(), left.data(), left.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) {
      sent_ += static_cast<std::size_t>(sent);
      if (sent_ < out_.front()->size()) continue;
      out_.pop_front();
      sent_ = 0;
    } else if (errno == EAGAIN) {
      return packet_io::later;
    } else if (errno == EPIPE || errno == ECONNRESET) {
      return packet_io::ended;
    } else if (errno != EINTR) {
      return system_error(std::string{"cannot write to "} + to_another_rank, errno);
    }
  }
  return packet_io::done;
}

result<std::optional<frame>> frame_link::pull() {
  in_.erase(in_.begin(), in_.begin() + static_cast<std::ptrdiff_t>(std::exchange(taken_, 0)));
  for (;;) {
    frame_header head;
    std::size_t whole = sizeof head;
    if (in_.size() >= sizeof head) {
      std::memcpy(&head, in_.data(), sizeof head);
      if (head.magic != frame_header::is_weft || head.kind < static_cast<std::uint32_t>(frame_kind::challenge) ||
          head.kind > static_cast<std::uint32_t>(frame_kind::table))
        return corrupt("what it sent is not of weft's");
      if (head.length > most_payload_) {
        return corrupt("it announced " + std::to_string(head.length) + " bytes where at most " +
                       std::to_string(most_payload_) + " are due");
      }
      whole += head.length;
      if (in_.size() >= whole) {
        taken_ = whole;
        return std::optional{
            frame{static_cast<frame_kind>(head.kind), std::span{in_}.subspan(sizeof head, head.length)}};
      }
    }
    std::array<std::byte, 16384> room;
    const ssize_t got = ::recv(file(), room.data(), std::min(room.size(), whole - in_.size()), MSG_DONTWAIT);
    if (got > 0) {
      in_.insert(in_.end(), room.begin(), room.begin() + got);
    } else if (got == 0 || errno == ECONNRESET) {
      return ended();
    } else if (errno == EAGAIN) {
      return std::optional<frame>{};
    } else if (errno != EINTR) {
      return system_error(std::string{"cannot read from "} + to_another_rank, errno);
    }
  }
}

}  // namespace weft::detail
