// SPDX-License-Identifier: Apache-2.0
// Addresses of this computer and of others, by name.
#pragma once

#include "weft/core/result.hpp"

#include <netinet/in.h>
#include <string>
#include <sys/socket.h>
#include <vector>

namespace weft::detail {

struct network_address {
  sockaddr_storage bytes{};
  socklen_t size = 0;

  [[nodiscard]] int family() const noexcept { return bytes.ss_family; }
  [[nodiscard]] const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&bytes); }
  [[nodiscard]] bool is_loopback() const noexcept;
  void set_port(std::uint16_t port) noexcept;
  [[nodiscard]] std::string text() const;  // without the port
};

/// Every address that a host has, in the order to try. Waits as long as the resolver does.
/// Errors: not_found, with the resolver's reason.
[[nodiscard]] result<std::vector<network_address>> addresses_of(const std::string& host);
/// The address of an interface in that family. Errors: not_found naming the interfaces that there are.
[[nodiscard]] result<network_address> address_of_interface(const std::string& name, int family);
/// The interface that has this address; empty where none has it.
[[nodiscard]] std::string interface_of(const network_address& address);
/// The addresses that a socket is bound to and connected to; size 0 where it is not.
[[nodiscard]] network_address own_address(int socket) noexcept;
[[nodiscard]] network_address peer_address(int socket) noexcept;

}  // namespace weft::detail
