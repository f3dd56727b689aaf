// SPDX-License-Identifier: Apache-2.0
#include "weft/processes/rendezvous.hpp"

#include "core/errors/called_from.hpp"
#include "processes/gathering.hpp"
#include "processes/rendezvous_address.hpp"
#include "weft/core/raise.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fcntl.h>
#include <utility>

namespace weft {
namespace {

void require_size(int size) {
  if (size < 1 || size > process_group::max_size) {
    raise(errc::invalid_argument,
          "a group has 1 to " + std::to_string(process_group::max_size) + " processes, not " + std::to_string(size));
  }
}

void require_rank(rank self, int size) {
  require_size(size);
  if (self.value() < 0 || self.value() >= size) {
    raise(errc::invalid_argument, to_string(self) + " is not in a group of " + std::to_string(size));
  }
}

}  // namespace

rendezvous rendezvous::at(std::string_view name, rank self, int size, std::source_location where) {
  const called_from here{where};
  require_rank(self, size);
  constexpr std::string_view allowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  if (name.empty() || name.size() > detail::max_rendezvous_name ||
      name.find_first_not_of(allowed) != std::string_view::npos) {
    raise(errc::invalid_argument, "a rendezvous is named with 1 to " + std::to_string(detail::max_rendezvous_name) +
                                      " of the characters A-Z a-z 0-9 . _ -");
  }
  rendezvous made;
  made.name_ = name;
  made.self_ = self;
  made.size_ = size;
  return made;
}

std::vector<rendezvous> rendezvous::connected(int size, std::source_location where) {
  const called_from here{where};
  require_size(size);
  std::vector<rendezvous> places;
  for (int r = 0; r < size; ++r) {
    rendezvous place;
    place.self_ = rank{r};
    place.size_ = size;
    if (r > 0) {
      auto ends = value_or_raise(detail::connected_sockets(detail::max_packet_bytes));
      places.front().links_.push_back(std::move(ends.first));
      place.links_.push_back(std::move(ends.second));
    }
    places.push_back(std::move(place));
  }
  return places;
}

std::string rendezvous::ticket(std::source_location where) const {
  const called_from here{where};
  if (!name_.empty()) raise(errc::invalid_argument, "a place with a name needs no ticket: the name finds it");
  std::string text = "weft:" + std::to_string(self_.value()) + ":" + std::to_string(size_) + ":";
  for (const descriptor& link : links_) {
    const int flags = ::fcntl(link.get(), F_GETFD);
    if (flags < 0 || ::fcntl(link.get(), F_SETFD, flags & ~FD_CLOEXEC) < 0) {
      raise(detail::system_error("cannot let a connection outlive exec", errno));
    }
    text += std::to_string(link.get()) + ",";
  }
  return text;
}

rendezvous rendezvous::inherited(std::string_view ticket, std::source_location where) {
  const called_from here{where};
  const auto refuse = [&](const std::string& why) {
    raise(errc::invalid_argument,
          "\"" + detail::printable(std::as_bytes(std::span{ticket}).first(std::min<std::size_t>(ticket.size(), 80))) +
              "\" is not a ticket to a rendezvous: " + why);
  };
  std::string_view rest = ticket;
  const auto number = [&](char end) {
    int value = -1;
    const auto [at, failure] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
    if (failure != std::errc{} || at == rest.data() + rest.size() || *at != end || value < 0) {
      refuse(std::string{"expected a number and '"} + end + "' at \"" + std::string{rest.substr(0, 8)} + "\"");
    }
    rest.remove_prefix(static_cast<std::size_t>(at - rest.data()) + 1);
    return value;
  };
  if (!rest.starts_with("weft:")) refuse("expected it to begin with \"weft:\"");
  rest.remove_prefix(5);
  rendezvous made;
  made.self_ = rank{number(':')};
  made.size_ = number(':');
  require_rank(made.self_, made.size_);
  std::vector<int> fds;
  while (!rest.empty()) fds.push_back(number(','));
  const std::size_t expected = made.self_.value() == 0 ? static_cast<std::size_t>(made.size_ - 1) : 1;
  if (fds.size() != expected) {
    refuse("expected " + std::to_string(expected) + " connections, got " + std::to_string(fds.size()));
  }
  for (const int fd : fds) {
    if (std::count(fds.begin(), fds.end(), fd) != 1) refuse("descriptor " + std::to_string(fd) + " is there twice");
    if (!detail::is_packet_socket(fd)) {
      refuse("descriptor " + std::to_string(fd) + " is no connection of a rendezvous; was it closed on exec?");
    }
    // ticket() clears the flag, and whoever takes the connection sets it again
    if ((::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0) refuse("descriptor " + std::to_string(fd) + " was taken already");
  }
  for (const int fd : fds) {
    made.links_.emplace_back(fd);
    ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
  return made;
}

result<process_group> rendezvous::join(const join_options& options, std::source_location where) && {
  const called_from here{where};
  if (options.announcement.size() > process_group::max_announcement) {
    raise(errc::invalid_argument, "an announcement has at most " + std::to_string(process_group::max_announcement) +
                                      " bytes, not " + std::to_string(options.announcement.size()));
  }
  if (size_ > 1 && name_.empty() && links_.empty()) {
    raise(errc::invalid_argument, "this place at a rendezvous was used already");
  }
  detail::gathering all{std::exchange(name_, {}), self_, size_, std::exchange(links_, {}), options};
  auto body = all.gather();
  if (!body) return std::move(body).error();
  return detail::make<process_group>(std::move(body).value());
}

}  // namespace weft
