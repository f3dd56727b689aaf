// SPDX-License-Identifier: Apache-2.0
#include "processes/packet_socket.hpp"

#include "core/errors/make_error.hpp"

#include <algorithm>
#include <array>
#include <ctime>

namespace weft::detail {

std::chrono::nanoseconds steady_now() noexcept { return std::chrono::steady_clock::now().time_since_epoch(); }

stop_signal::stop_signal(const std::stop_token& stop) : stop_(stop) {
  if (!stop_.stop_possible()) return;
  bell_ = event_bell::make();
  if (bell_) callback_.emplace(stop_, ring{bell_.file()});
}

void stop_signal::poll(std::vector<pollfd>& these, wait_deadline until) {
  auto left = until == no_deadline ? no_deadline : until - steady_now();
  if (left < std::chrono::nanoseconds{0}) left = std::chrono::nanoseconds{0};
  if (stop_.stop_possible() && !bell_) left = std::min<std::chrono::nanoseconds>(left, std::chrono::milliseconds{10});
  timespec timeout{};
  timeout.tv_sec = static_cast<std::time_t>(left.count() / 1'000'000'000);
  timeout.tv_nsec = static_cast<long>(left.count() % 1'000'000'000);
  if (bell_) these.push_back({bell_.file(), POLLIN, 0});
  // interrupted by a signal it returns early, and so it may: whoever waits looks again
  if (::ppoll(these.data(), these.size(), left == no_deadline ? nullptr : &timeout, nullptr) < 0) {
    for (pollfd& p : these) p.revents = 0;
  }
  if (bell_) these.pop_back();
}

constexpr const char* a_process = "a process of the group";

result<packet_io> read_packet(int socket, std::span<std::byte> room, raw_packet& into) {
  auto got = receive_packet(socket, room, into, a_process);
  if (!got || *got != packet_io::done) return got;
  if (into.is_cut) {
    return make_error(errc::corrupt, "expected a packet of at most " + std::to_string(room.size() - 1) + " bytes",
                      error_scope::endpoint);
  }
  if (into.bytes.empty())
    return make_error(errc::corrupt, "expected a packet, got an empty one", error_scope::endpoint);
  return got;
}

result<packet_io> write_packet(int socket, const packet& p, std::span<const int> descriptors, bool with_credentials) {
  packet announced = p;
  announced.descriptors = static_cast<std::uint8_t>(descriptors.size());
  auto bytes = packet_header(announced);
  const std::array<iovec, 2> parts{iovec{bytes.data(), bytes.size()},
                                   iovec{const_cast<std::byte*>(p.payload.data()), p.payload.size()}};
  return send_packet(socket, std::span{parts}.first(p.payload.empty() ? 1 : 2), descriptors, with_credentials,
                     a_process);
}

result<packet> checked_packet(const raw_packet& raw) {
  auto parsed = parse_packet(raw.bytes);
  if (!parsed) return parsed;
  if (raw.descriptors.size() != parsed->descriptors) {
    if (raw.lost_descriptors && raw.descriptors.size() < parsed->descriptors)
      return parsed;  // no room here: not its fault
    return make_error(errc::corrupt,
                      "expected " + std::to_string(parsed->descriptors) + " descriptors with a packet, got " +
                          std::to_string(raw.descriptors.size()) + (raw.lost_descriptors ? " or more" : ""),
                      error_scope::endpoint);
  }
  return parsed;
}

}  // namespace weft::detail
