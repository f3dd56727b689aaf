// SPDX-License-Identifier: Apache-2.0
#include "distributed/meeting/network_interface.hpp"

#include "core/errors/make_error.hpp"
#include "os/system_error.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <functional>
#include <ifaddrs.h>
#include <memory>
#include <net/if.h>
#include <netdb.h>

namespace weft::detail {
namespace {

network_address address_from(const sockaddr* from, socklen_t size) noexcept {
  network_address made;
  made.size = std::min(size, static_cast<socklen_t>(sizeof made.bytes));
  std::memcpy(&made.bytes, from, made.size);
  return made;
}

network_address asked(int socket, int (*which)(int, sockaddr*, socklen_t*)) noexcept {
  network_address made;
  made.size = sizeof made.bytes;
  if (which(socket, reinterpret_cast<sockaddr*>(&made.bytes), &made.size) != 0) made.size = 0;
  return made;
}

// Calls for each address of an interface that is up, until one is taken.
result<void> visit_interfaces(const std::function<bool(const char*, const network_address&)>& take) {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return system_error("cannot list the network interfaces", errno);
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> kept{all, &::freeifaddrs};
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || (one->ifa_flags & IFF_UP) == 0) continue;
    const int family = one->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (take(one->ifa_name, address_from(one->ifa_addr, size))) break;
  }
  return {};
}

}  // namespace

bool network_address::is_loopback() const noexcept {
  if (family() == AF_INET)
    return (ntohl(reinterpret_cast<const sockaddr_in*>(&bytes)->sin_addr.s_addr) >> 24U) == IN_LOOPBACKNET;
  return family() == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(&bytes)->sin6_addr);
}

void network_address::set_port(std::uint16_t port) noexcept {
  if (family() == AF_INET) reinterpret_cast<sockaddr_in*>(&bytes)->sin_port = htons(port);
  if (family() == AF_INET6) reinterpret_cast<sockaddr_in6*>(&bytes)->sin6_port = htons(port);
}

std::string network_address::text() const {
  std::array<char, NI_MAXHOST> name{};
  if (size == 0 || ::getnameinfo(get(), size, name.data(), name.size(), nullptr, 0, NI_NUMERICHOST) != 0) return "?";
  return name.data();
}

result<std::vector<network_address>> addresses_of(const std::string& host) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* all = nullptr;
  const int failed = ::getaddrinfo(host.c_str(), nullptr, &wanted, &all);
  if (failed != 0) {
    return make_error(errc::not_found, "no address is known of the host \"" + host + "\": " + ::gai_strerror(failed));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> kept{all, &::freeaddrinfo};
  std::vector<network_address> made;
  for (const addrinfo* one = all; one != nullptr; one = one->ai_next)
    made.push_back(address_from(one->ai_addr, one->ai_addrlen));
  return made;
}

result<network_address> address_of_interface(const std::string& name, int family) {
  network_address made;
  std::string others;
  auto visited = visit_interfaces([&](const char* one, const network_address& address) {
    if (address.family() == family && name == one) made = address;
    if (others.find(one) == std::string::npos) others += (others.empty() ? "" : ", ") + std::string{one};
    return made.size != 0;
  });
  if (!visited) return std::move(visited).error();
  if (made.size == 0) {
    return make_error(errc::not_found, "no network interface \"" + name + "\" is up with an " +
                                           (family == AF_INET6 ? "IPv6" : "IPv4") + " address; there are: " + others);
  }
  return made;
}

std::string interface_of(const network_address& address) {
  std::string found;
  network_address wanted = address;
  wanted.set_port(0);
  static_cast<void>(visit_interfaces([&](const char* one, const network_address& its) {
    const bool is_both_loopback = its.is_loopback() && wanted.is_loopback();  // which has more than it lists
    if (its.family() == wanted.family() && (is_both_loopback || its.text() == wanted.text())) found = one;
    return !found.empty();
  }));
  return found;
}

network_address own_address(int socket) noexcept { return asked(socket, &::getsockname); }
network_address peer_address(int socket) noexcept { return asked(socket, &::getpeername); }

}  // namespace weft::detail
