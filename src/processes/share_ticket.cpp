// SPDX-License-Identifier: Apache-2.0
#include "processes/share_ticket.hpp"

#include "core/errors/make_error.hpp"

#include <cstring>
#include <fcntl.h>
#include <string>
#include <sys/random.h>
#include <unistd.h>

namespace weft::detail {
namespace {

constexpr std::uint32_t handle_magic = 0x53544657;   // "WFTS"
constexpr std::uint32_t request_magic = 0x51544657;  // "WFTQ"
constexpr std::uint32_t reply_magic = 0x41544657;    // "WFTA"
constexpr std::uint8_t version = 1;

/// Writes and reads numbers of fixed width, lowest byte first, whatever the machine does.
class cursor {
 public:
  explicit cursor(std::byte* at) : at_(at) {}
  template <class T>
  void put(T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i) *at_++ = static_cast<std::byte>(value >> (8 * i));
  }
  template <class T>
  T take() {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) value |= std::to_integer<std::uint64_t>(*at_++) << (8 * i);
    return static_cast<T>(value);
  }

 private:
  std::byte* at_;
};

/// Finds accidents, not forgeries: those the exporter finds.
std::uint64_t checksum(std::span<const std::byte> bytes) {
  std::uint64_t sum = 0xcbf29ce484222325;
  for (const std::byte b : bytes) {
    sum = (sum ^ std::to_integer<std::uint64_t>(b)) * 0x9e3779b97f4a7c15;
    sum ^= sum >> 29;
  }
  return sum;
}

constexpr std::size_t checked = shared_bytes_size - 8;

}  // namespace

std::string_view to_string(share_kind kind) {
  switch (kind) {
    case share_kind::memory:
      return "memory";
    case share_kind::event:
      return "an event";
    case share_kind::pool:
      return "a pool";
    case share_kind::pool_memory:
      return "memory of a pool";
    case share_kind::block:
      return "a block";
  }
  return "memory";
}

std::string_view to_string(share_family family) {
  switch (family) {
    case share_family::host:
      return "host";
    case share_family::cuda:
      return "CUDA";
    case share_family::hip:
      return "HIP";
  }
  return "unknown";
}

result<void> check_family(const share_ticket& h, share_family here) {
  if (h.family == here) return {};
  const std::string theirs{to_string(h.family)};
  return make_error(errc::incompatible, "process " + std::to_string(h.process) + " exported memory of the " + theirs +
                                            " backend, and the " + std::string{to_string(here)} +
                                            " backend cannot map it: open it on a device of the " + theirs +
                                            " backend");
}

shared_bytes encode(const share_ticket& h) {
  shared_bytes out{};
  cursor to{out.data()};
  to.put(handle_magic);
  to.put(version);
  to.put(static_cast<std::uint8_t>(h.kind));
  to.put(static_cast<std::uint16_t>(h.family));
  to.put(h.boot);
  to.put(h.door);
  to.put(h.key);
  to.put(h.offset);
  to.put(h.size);
  to.put(h.process);
  to.put(std::uint32_t{0});
  to.put(checksum(std::span{out}.first(checked)));
  return out;
}

result<share_ticket> decode(std::span<const std::byte> bytes) {
  if (bytes.size() != shared_bytes_size) {
    return make_error(errc::corrupt, "a handle has " + std::to_string(shared_bytes_size) + " bytes, this has " +
                                         std::to_string(bytes.size()) + "; send all of it");
  }
  shared_bytes copy;
  std::memcpy(copy.data(), bytes.data(), copy.size());
  cursor from{copy.data()};
  if (from.take<std::uint32_t>() != handle_magic) {
    return make_error(errc::corrupt, "these 64 bytes are no handle of weft; was it never set?");
  }
  const auto speaks = from.take<std::uint8_t>();
  const auto kind = from.take<std::uint8_t>();
  const auto family = from.take<std::uint16_t>();
  share_ticket h;
  h.boot = from.take<std::uint64_t>();
  h.door = from.take<std::uint64_t>();
  h.key = from.take<std::uint64_t>();
  h.offset = from.take<std::uint64_t>();
  h.size = from.take<std::uint64_t>();
  h.process = from.take<std::uint32_t>();
  const auto unused = from.take<std::uint32_t>();
  if (from.take<std::uint64_t>() != checksum(std::span{copy}.first(checked))) {
    return make_error(errc::corrupt, "a handle was damaged on its way; its checksum does not fit");
  }
  if (speaks != version) {
    return make_error(errc::incompatible, "the exporter speaks version " + std::to_string(speaks) +
                                              " of handles, this process version " + std::to_string(version));
  }
  if (kind < static_cast<std::uint8_t>(share_kind::memory) || kind > static_cast<std::uint8_t>(share_kind::block) ||
      family > static_cast<std::uint16_t>(share_family::hip) || unused != 0 || h.door == 0 || h.key == 0 ||
      h.offset + h.size < h.offset) {
    return make_error(errc::corrupt, "a handle says what cannot be");
  }
  h.kind = static_cast<share_kind>(kind);
  h.family = static_cast<share_family>(family);
  return h;
}

std::uint64_t identity_of(std::string_view uuid) { return checksum(std::as_bytes(std::span{uuid})); }

std::uint64_t random_number() {
  std::uint64_t value = 0;
  while (value == 0) {
    if (::getrandom(&value, sizeof value, 0) != static_cast<ssize_t>(sizeof value)) value = 0;
  }
  return value;
}

std::uint64_t this_boot() {
  static const std::uint64_t boot = [] {
    std::byte text[64]{};
    const int file = ::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t got = 0;
    if (file >= 0) {
      got = ::read(file, text, sizeof text);
      ::close(file);
    }
    return checksum({text, got > 0 ? static_cast<std::size_t>(got) : 0});
  }();
  return boot;
}

request_bytes encode_request(const share_ticket& h) {
  request_bytes out{};
  cursor to{out.data()};
  to.put(request_magic);
  to.put(std::uint32_t{version});
  const shared_bytes handle = encode(h);
  std::memcpy(out.data() + 8, handle.data(), handle.size());
  return out;
}

result<share_ticket> decode_request(std::span<const std::byte> bytes) {
  if (bytes.size() != request_size) {
    return make_error(errc::corrupt, "a request for shared memory has " + std::to_string(request_size) +
                                         " bytes, not " + std::to_string(bytes.size()));
  }
  std::byte head[8];
  std::memcpy(head, bytes.data(), sizeof head);
  cursor from{head};
  if (from.take<std::uint32_t>() != request_magic) return make_error(errc::corrupt, "no request for shared memory");
  if (const auto speaks = from.take<std::uint32_t>(); speaks != version) {
    return make_error(errc::incompatible, "a request for shared memory in version " + std::to_string(speaks));
  }
  return decode(bytes.subspan(8));
}

reply_bytes encode_reply(const share_reply& r) {
  reply_bytes out{};
  cursor to{out.data()};
  to.put(reply_magic);
  to.put(std::uint16_t{version});
  to.put(static_cast<std::uint16_t>(r.answer));
  to.put(r.size);
  to.put(r.device);
  return out;
}

result<share_reply> decode_reply(std::span<const std::byte> bytes) {
  if (bytes.size() != reply_size) return make_error(errc::corrupt, "the exporter's answer has an impossible size");
  reply_bytes copy;
  std::memcpy(copy.data(), bytes.data(), copy.size());
  cursor from{copy.data()};
  if (from.take<std::uint32_t>() != reply_magic)
    return make_error(errc::corrupt, "what answered is no exporter of weft");
  if (const auto speaks = from.take<std::uint16_t>(); speaks != version) {
    return make_error(errc::incompatible, "the exporter answers in version " + std::to_string(speaks));
  }
  const auto answer = from.take<std::uint16_t>();
  if (answer > static_cast<std::uint16_t>(share_answer::refused)) {
    return make_error(errc::corrupt, "the exporter's answer says what cannot be");
  }
  share_reply r;
  r.answer = static_cast<share_answer>(answer);
  r.size = from.take<std::uint64_t>();
  r.device = from.take<std::uint64_t>();
  return r;
}

}  // namespace weft::detail
