// SPDX-License-Identifier: Apache-2.0
#include "processes/gathering.hpp"

#include "core/errors/make_error.hpp"
#include "processes/rendezvous_address.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

namespace weft::detail {
namespace {

constexpr std::size_t max_guests = 128;
constexpr std::chrono::milliseconds first_pace{1};
constexpr std::chrono::milliseconds longest_pace{20};

std::string process_name(pid_t pid) { return "process " + std::to_string(pid); }

std::string member_name(const peer_process& who) { return to_string(who.rank) + " (" + process_name(who.pid) + ")"; }

refusal_code code_of(errc code) {
  switch (code) {
    case errc::timed_out:
      return refusal_code::timed_out;
    case errc::peer_dead:
      return refusal_code::peer_dead;
    case errc::incompatible:
      return refusal_code::incompatible;
    default:
      return refusal_code::closed;
  }
}

error refusal_of(const packet& p, const std::string& who) {
  errc code = errc::closed;
  switch (static_cast<refusal_code>(p.tag)) {
    case refusal_code::timed_out:
      code = errc::timed_out;
      break;
    case refusal_code::peer_dead:
      code = errc::peer_dead;
      break;
    case refusal_code::incompatible:
      code = errc::incompatible;
      break;
    case refusal_code::closed:
      break;
  }
  return make_error(code, who + ": " + printable(p.payload));
}

std::uint64_t bit(int r) { return std::uint64_t{1} << r; }

descriptor packet_socket() { return descriptor{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)}; }

}  // namespace

gathering::gathering(std::string name, rank self, int size, std::vector<descriptor> links, const join_options& options)
    : name_(std::move(name)),
      self_(self),
      size_(size),
      links_(std::move(links)),
      options_(options),
      stop_(options.stop),
      until_(deadline_after(steady_now(), options.timeout)),
      pace_(first_pace),
      room_(max_packet_bytes + 1),
      seats_(static_cast<std::size_t>(size)),
      present_(bit(self.value())) {
  for (int r = 0; r < size; ++r) seats_[static_cast<std::size_t>(r)].info.rank = rank{r};
  peer_process& me = seats_[self.index()].info;
  me.pid = ::getpid();
  me.uid = ::geteuid();
  me.start_time = start_time_of(me.pid);
  me.announcement.assign(options.announcement.begin(), options.announcement.end());
}

result<std::unique_ptr<process_group::body>> gathering::gather() {
  const bool hosts = self_.value() == 0;
  auto done = size_ == 1 ? prepare() : hosts ? host() : attend();
  if (!done) {
    for (const guest& g : guests_) refuse(g.link.get(), done.error());
    for (const member& m : seats_) {
      if (hosts && m.link) refuse(m.link.get(), done.error());
    }
    return std::move(done).error();
  }
  return std::make_unique<process_group::body>(self_, std::move(seats_), std::move(watchers_), refused_);
}

// ---- rank 0 -------------------------------------------------------------------------------------------------------

result<void> gathering::host() {
  descriptor listener;
  if (!name_.empty()) {
    auto made = listen();
    if (!made) return std::move(made).error();
    listener = std::move(made).value();
  }
  for (std::size_t i = 0; i < links_.size(); ++i) {
    accept_credentials(links_[i].get(), true);
    guests_.push_back({std::move(links_[i]), static_cast<int>(i) + 1});
  }
  const std::uint64_t everybody = size_ == 64 ? ~std::uint64_t{0} : bit(size_) - 1;
  std::vector<pollfd> these;
  while (present_ != everybody) {
    if (auto ok = in_time(absent()); !ok) return ok;
    these.clear();
    if (listener) these.push_back({listener.get(), POLLIN, 0});
    for (const guest& g : guests_) these.push_back({g.link.get(), POLLIN, 0});
    for (const member& m : seats_) {
      if (!m.link) continue;
      these.push_back({m.link.get(), POLLIN, 0});
      these.push_back({m.process.get(), POLLIN, 0});
    }
    stop_.poll(these, until_);
    for (member& m : seats_) {
      if (!m.link) continue;
      if (auto heard = hear(m, packet_kind::refusal); !heard) return std::move(heard).error();
    }
    for (std::size_t i = 0; i < guests_.size();) {
      auto sat = seat(guests_[i]);
      if (!sat) return std::move(sat).error();
      if (*sat == seating::later) {
        ++i;
      } else {
        guests_.erase(guests_.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
    if (listener) {
      if (auto ok = accept_all(listener.get()); !ok) return ok;
    }
  }
  listener.reset();
  guests_.clear();
  if (auto ok = introduce(); !ok) return ok;
  if (auto ok = prepare(); !ok) return ok;
  if (auto ok = await_ready(); !ok) return ok;
  for (const member& m : seats_) {
    // Who has died by now is in the group, and its death is seen there: the others have gone already.
    if (m.link) static_cast<void>(put(m, plain(packet_kind::go)));
  }
  return {};
}

result<descriptor> gathering::listen() {
  const auto [address, length] = rendezvous_address(name_, ::geteuid());
  const auto* at = reinterpret_cast<const sockaddr*>(&address);
  while (true) {
    descriptor made = packet_socket();
    if (!made) return system_error("cannot listen at " + meeting_name(), errno);
    if (::bind(made.get(), at, length) == 0) {
      if (::listen(made.get(), static_cast<int>(max_guests)) != 0) {
        return system_error("cannot listen at " + meeting_name(), errno);
      }
      return made;
    }
    if (errno != EADDRINUSE) return system_error("cannot take the name of " + meeting_name(), errno);
    // Ask the holder who it is.
    const descriptor question = packet_socket();
    if (!question) return system_error("cannot ask who holds " + meeting_name(), errno);
    if (::connect(question.get(), at, length) == 0) {
      const auto holder = maker_of(question.get());
      const std::string who = holder ? process_name(holder->pid) : "another process";
      if (holder && holder->uid != ::geteuid()) {
        return make_error(errc::name_taken, meeting_name() + " is held by " + who + " of user " +
                                                std::to_string(holder->uid) + ", and this is user " +
                                                std::to_string(::geteuid()) + ": choose another name");
      }
      return make_error(errc::name_taken, "another rank 0, " + who + ", is gathering a group at " + meeting_name() +
                                              ": choose another name, or give this process another rank");
    }
    if (errno != ECONNREFUSED && errno != EAGAIN) {
      return make_error(errc::name_taken, meeting_name() + " is held by a socket of another kind: choose another name",
                        error_scope::call, errno);
    }
    // held, and not listening: another one that begins, or ends
    if (auto ok = in_time("the name, which another process holds"); !ok) {
      if (ok.error().code == errc::timed_out) ok.error().code = errc::name_taken;
      return std::move(ok).error();
    }
    pace();
  }
}

result<void> gathering::accept_all(int listener) {
  // bounded, so that a flood of connections does not keep those from being heard who are here
  for (std::size_t round = 0; round < max_guests; ++round) {
    descriptor link{::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC)};
    if (!link) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN) return {};
      return system_error("cannot accept a process at " + meeting_name(), errno);
    }
    const auto maker = maker_of(link.get());
    if (!maker || maker->uid != ::geteuid()) {
      ++refused_;
      remark_ = "a connection of user " + (maker ? std::to_string(maker->uid) : std::string{"unknown"});
      continue;
    }
    if (guests_.size() >= max_guests) {
      ++refused_;
      remark_ = "connections that say nothing";
      guests_.erase(guests_.begin());
    }
    accept_credentials(link.get(), true);
    make_room(link.get(), max_packet_bytes);
    guests_.push_back({std::move(link), -1});
  }
  return {};
}

gathering::seating gathering::turn_away(const guest& g, const error& why) {
  ++refused_;
  remark_ = why.what;
  accept_credentials(g.link.get(), false);
  refuse(g.link.get(), why);
  return seating::turned_away;
}

result<gathering::seating> gathering::seat(guest& g) {
  raw_packet raw;
  const auto got = read_packet(g.link.get(), room_, raw);
  if (got && *got == packet_io::later) return seating::later;
  if (got && *got == packet_io::ended) {
    if (g.expected < 0) return seating::turned_away;  // went away without a word: nobody's loss
    return make_error(errc::peer_dead, to_string(rank{g.expected}) + " ended before it joined", error_scope::process);
  }
  auto parsed = got ? checked_packet(raw) : result<packet>{got.error()};
  // A connected place has no second chance: what is wrong with it is wrong with the meeting.
  const auto away = [&](error why) -> result<seating> {
    const auto verdict = turn_away(g, why);
    if (g.expected < 0) return verdict;
    return why;
  };
  if (!parsed) return away(std::move(parsed).error());
  const packet& p = *parsed;
  const std::string who = raw.sender ? process_name(raw.sender->pid) : "a process";
  if (p.kind != packet_kind::hello) {
    return away(make_error(errc::corrupt, "expected the first packet of " + who + " to be hello"));
  }
  if (p.size != static_cast<std::uint32_t>(size_)) {
    return away(make_error(errc::incompatible, who + " came to " + meeting_name() + " as rank " +
                                                   std::to_string(p.rank) + " of " + std::to_string(p.size) +
                                                   "; expected a group of " + std::to_string(size_)));
  }
  const int r = static_cast<int>(p.rank);
  if (r == 0 || (g.expected >= 0 && r != g.expected)) {
    return away(make_error(errc::incompatible,
                           who + " came to " + meeting_name() + " as rank " + std::to_string(r) + ", expected " +
                               (r == 0 ? "1 to " + std::to_string(size_ - 1) : "rank " + std::to_string(g.expected))));
  }
  member& place = seats_[static_cast<std::size_t>(r)];
  if (place.link) {
    return away(make_error(errc::incompatible, who + " came to " + meeting_name() + " as " +
                                                   to_string(place.info.rank) + ", which is process " +
                                                   std::to_string(place.info.pid) +
                                                   " already: give each process a rank of its own"));
  }
  member arrival;
  arrival.info.rank = rank{r};
  if (auto known = identify(arrival, p, raw); !known) {
    if (known.error().code == errc::resource_exhausted) return std::move(known).error();
    return away(std::move(known).error());
  }
  accept_credentials(g.link.get(), false);
  arrival.link = std::move(g.link);
  place = std::move(arrival);
  if (auto ok = put(place, about_self(packet_kind::welcome), {}, true); !ok) {
    return std::move(ok).error();
  }
  present_ |= bit(r);
  packet progress = plain(packet_kind::progress);
  progress.tag = present_;
  for (const member& m : seats_) {
    // for the text of a deadline only: one that finds no room is dropped
    if (m.link) static_cast<void>(write_packet(m.link.get(), progress));
  }
  return seating::seated;
}

result<void> gathering::introduce() {
  const auto tell = [&](const member& to, const member& whom, const descriptor& end) {
    packet p = plain(packet_kind::peer);
    p.rank = static_cast<std::uint32_t>(whom.info.rank.value());
    p.pid = static_cast<std::uint32_t>(whom.info.pid);
    p.uid = whom.info.uid;
    p.start_time = whom.info.start_time;
    p.payload = whom.info.announcement;
    const std::array<int, 2> with{whom.process.get(), end.get()};
    return put(to, p, with);
  };
  for (std::size_t i = 1; i < seats_.size(); ++i) {
    for (std::size_t j = i + 1; j < seats_.size(); ++j) {
      auto ends = connected_sockets(max_packet_bytes);
      if (!ends) return std::move(ends).error();
      if (auto ok = tell(seats_[i], seats_[j], ends->first); !ok) return ok;
      if (auto ok = tell(seats_[j], seats_[i], ends->second); !ok) return ok;
    }
  }
  for (std::size_t i = 1; i < seats_.size(); ++i) {
    if (auto ok = put(seats_[i], plain(packet_kind::complete)); !ok) return ok;
  }
  return {};
}

result<void> gathering::await_ready() {
  std::uint64_t waiting = present_ & ~bit(0);
  std::vector<pollfd> these;
  while (waiting != 0) {
    std::string awaited;
    these.clear();
    for (const member& m : seats_) {
      if ((waiting & bit(m.info.rank.value())) == 0) continue;
      awaited += (awaited.empty() ? "" : ", ") + member_name(m.info);
      these.push_back({m.link.get(), POLLIN, 0});
      these.push_back({m.process.get(), POLLIN, 0});
    }
    if (auto ok = in_time(awaited + " to be ready"); !ok) return ok;
    stop_.poll(these, until_);
    for (member& m : seats_) {
      if ((waiting & bit(m.info.rank.value())) == 0) continue;
      auto heard = hear(m, packet_kind::ready);
      if (!heard) return std::move(heard).error();
      if (*heard) waiting &= ~bit(m.info.rank.value());
    }
  }
  return {};
}

result<bool> gathering::hear(member& m, packet_kind expected) {
  raw_packet raw;
  const bool has_ended = is_readable(m.process.get());  // a fork may hold its connection; what it had sent is read
  const auto got = read_packet(m.link.get(), room_, raw);
  const std::string who = member_name(m.info);
  if (!got) return got.error();
  if (*got == packet_io::later && !has_ended) return false;
  if (*got != packet_io::done) return died(who);
  auto parsed = checked_packet(raw);
  if (!parsed) return std::move(parsed).error();
  if (parsed->kind == packet_kind::refusal) return refusal_of(*parsed, who + " gave up");
  if (parsed->kind == expected) return true;
  return make_error(errc::corrupt, who + " sent a packet of a kind that does not belong into a gathering",
                    error_scope::endpoint);
}

// ---- the others ---------------------------------------------------------------------------------------------------

result<descriptor> gathering::connect() {
  const auto [address, length] = rendezvous_address(name_, ::geteuid());
  while (true) {
    descriptor made = packet_socket();
    if (!made) return system_error("cannot connect to " + meeting_name(), errno);
    if (::connect(made.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0) {
      const auto holder = maker_of(made.get());
      if (!holder || holder->uid != ::geteuid()) {
        return make_error(errc::name_taken,
                          meeting_name() + " is held by " +
                              (holder ? process_name(holder->pid) + " of user " + std::to_string(holder->uid)
                                      : std::string{"an unknown process"}) +
                              ", and this is user " + std::to_string(::geteuid()) + ": choose another name");
      }
      make_room(made.get(), max_packet_bytes);
      return made;
    }
    if (errno == EPROTOTYPE) {
      return make_error(errc::name_taken, meeting_name() + " is held by a socket of another kind: choose another name",
                        error_scope::call, errno);
    }
    // nobody listens yet, or more have come than rank 0 has looked at
    if (errno != ECONNREFUSED && errno != EAGAIN && errno != EINTR) {
      return system_error("cannot connect to " + meeting_name(), errno);
    }
    if (auto ok = in_time("rank 0, which does not listen: it has not started, or the group is complete"); !ok) {
      return std::move(ok).error();
    }
    pace();
  }
}

result<void> gathering::attend() {
  descriptor& link = seats_.front().link;
  while (true) {
    if (name_.empty()) {
      link = std::move(links_.front());
    } else {
      auto made = connect();
      if (!made) return std::move(made).error();
      link = std::move(made).value();
    }
    auto wrote = write_packet(link.get(), about_self(packet_kind::hello), {}, true);
    if (!wrote) return std::move(wrote).error();
    // Only once it is written: a socket that asks for credentials is given a name by the kernel when it sends.
    accept_credentials(link.get(), true);
    bool ended = *wrote == packet_io::ended;
    result<void> failed;
    while (!ended && failed) {
      failed = in_time(present_ == bit(self_.value()) ? "rank 0, which does not answer" : absent());
      if (!failed) break;
      const descriptor& process = seats_.front().process;
      std::vector<pollfd> these{{link.get(), POLLIN, 0}, {process.get(), POLLIN, 0}};
      stop_.poll(these, until_);
      const bool has_ended = is_readable(process.get());
      raw_packet raw;
      const auto got = read_packet(link.get(), room_, raw);
      if (!got) {
        failed = got.error();
      } else if (*got != packet_io::done) {
        ended = has_ended || *got == packet_io::ended;
      } else {
        auto parsed = checked_packet(raw);
        if (!parsed) {
          failed = std::move(parsed).error();
          break;
        }
        auto next = follow(*parsed, raw);
        if (!next) {
          failed = std::move(next).error();
        } else if (*next == answer::go) {
          return {};
        }
      }
    }
    if (!failed) {
      accept_credentials(link.get(), false);
      refuse(link.get(), failed.error());
      return failed;
    }
    // Without a welcome this was a rank 0 of before, whose name was about to go: look for ours.
    const bool welcomed = seats_.front().process.get() >= 0;
    if (welcomed || name_.empty()) return died(welcomed ? member_name(seats_.front().info) : "rank 0");
    link.reset();
    if (auto ok = in_time("rank 0, which closes the connection"); !ok) return ok;
    pace();
  }
}

result<gathering::answer> gathering::follow(const packet& p, raw_packet& raw) {
  member& host = seats_.front();
  const bool welcomed = static_cast<bool>(host.process);
  if (p.kind == packet_kind::refusal) {
    return refusal_of(
        p, (welcomed ? member_name(host.info) : std::string{"rank 0"}) + " of " + meeting_name() + " refused");
  }
  const auto unexpected = [&](const std::string& why) {
    return make_error(errc::corrupt, "rank 0 of " + meeting_name() + " " + why, error_scope::endpoint);
  };
  if (p.size != static_cast<std::uint32_t>(size_)) {
    return make_error(errc::incompatible, "rank 0 of " + meeting_name() + " gathers a group of " +
                                              std::to_string(p.size) + "; expected " + std::to_string(size_));
  }
  if (p.kind != packet_kind::peer && p.rank != 0) return unexpected("says that it is rank " + std::to_string(p.rank));
  if (welcomed == (p.kind == packet_kind::welcome)) return unexpected("did not begin with one welcome");
  switch (p.kind) {
    case packet_kind::welcome: {
      if (auto known = identify(host, p, raw); !known) return std::move(known).error();
      accept_credentials(host.link.get(), false);
      present_ |= bit(0);
      return answer::more;
    }
    case packet_kind::progress:
      present_ = p.tag;
      return answer::more;
    case packet_kind::peer: {
      const int r = static_cast<int>(p.rank);
      member& m = seats_[static_cast<std::size_t>(r)];
      if (complete_ || r == 0 || r == self_.value() || m.link) {
        return unexpected("introduced rank " + std::to_string(r) + " where that cannot be");
      }
      if (raw.descriptors.size() < p.descriptors) {
        return make_error(errc::resource_exhausted, "no room for the connection to rank " + std::to_string(r) +
                                                        ": a group of " + std::to_string(size_) + " takes " +
                                                        std::to_string(2 * size_ + 1) +
                                                        " descriptors; raise the process's limit (ulimit -n)");
      }
      if (!is_process_descriptor(raw.descriptors[0].get()) || !is_packet_socket(raw.descriptors[1].get()) ||
          p.uid != ::geteuid()) {
        return unexpected("introduced rank " + std::to_string(r) + " with descriptors of another kind or another user");
      }
      m.info.pid = static_cast<pid_t>(p.pid);
      m.info.uid = p.uid;
      m.info.start_time = p.start_time;
      m.info.announcement.assign(p.payload.begin(), p.payload.end());
      m.process = std::move(raw.descriptors[0]);
      m.link = std::move(raw.descriptors[1]);
      present_ |= bit(r);
      return answer::more;
    }
    case packet_kind::complete: {
      for (const member& m : seats_) {
        if (m.info.rank != self_ && !m.process) return unexpected("never introduced " + to_string(m.info.rank));
      }
      complete_ = true;
      if (auto ok = prepare(); !ok) return std::move(ok).error();
      if (auto ok = put(host, plain(packet_kind::ready)); !ok) return std::move(ok).error();
      return answer::more;
    }
    case packet_kind::go:
      if (!complete_) return unexpected("let the group go before it was complete");
      return answer::go;
    default:
      return unexpected("sent a packet of a kind that does not belong into a gathering");
  }
}

// ---- both ---------------------------------------------------------------------------------------------------------

result<void> gathering::prepare() {
  auto made = process_group::body::watchers::of(seats_);
  if (!made) return std::move(made).error();
  watchers_ = std::move(made).value();
  return {};
}

packet gathering::plain(packet_kind kind) const {
  packet p;
  p.kind = kind;
  p.rank = static_cast<std::uint32_t>(self_.value());
  p.size = static_cast<std::uint32_t>(size_);
  return p;
}

packet gathering::about_self(packet_kind kind) const {
  packet p = plain(kind);
  p.start_time = seats_[self_.index()].info.start_time;
  p.payload = options_.announcement;
  return p;
}

std::string gathering::meeting_name() const {
  return name_.empty() ? "the connected rendezvous" : "the rendezvous \"" + name_ + "\"";
}

std::string gathering::absent() const {
  std::string made;
  int count = 0;
  for (int r = 0; r < size_; ++r) {
    if ((present_ & bit(r)) != 0) continue;
    made += (count++ == 0 ? "" : ", ") + std::to_string(r);
  }
  if (count == 0) return "rank 0 to let the group go";
  return (count == 1 ? "rank " : "ranks ") + made + " of " + std::to_string(size_);
}

result<void> gathering::identify(member& m, const packet& p, const raw_packet& raw) const {
  if (!raw.sender) return make_error(errc::corrupt, to_string(m.info.rank) + " came without its credentials");
  const credentials who = *raw.sender;
  if (who.uid != ::geteuid()) {
    return make_error(errc::incompatible, to_string(m.info.rank) + ", " + process_name(who.pid) + ", belongs to user " +
                                              std::to_string(who.uid) + "; expected user " +
                                              std::to_string(::geteuid()));
  }
  if (who.pid <= 0) {
    return make_error(errc::incompatible, to_string(m.info.rank) +
                                              " is in a pid namespace that this process does not "
                                              "see: start the group in one namespace");
  }
  auto watched = watch_process(who.pid, p.start_time);
  if (!watched) return std::move(watched).error();
  m.process = std::move(watched).value();
  m.info.pid = who.pid;
  m.info.uid = who.uid;
  m.info.start_time = p.start_time;
  m.info.announcement.assign(p.payload.begin(), p.payload.end());
  return {};
}

error gathering::died(const std::string& who) const {
  return make_error(errc::peer_dead, who + " died while the group of " + meeting_name() + " gathered",
                    error_scope::process);
}

result<void> gathering::put(const member& to, const packet& p, std::span<const int> descriptors,
                            bool with_credentials) {
  while (true) {
    auto wrote = write_packet(to.link.get(), p, descriptors, with_credentials);
    if (wrote && *wrote == packet_io::done) return {};
    if ((wrote && *wrote == packet_io::ended) || is_readable(to.process.get())) return died(member_name(to.info));
    const bool crowded = !wrote && wrote.error().native_code == ETOOMANYREFS;  // until others have received theirs
    if (!wrote && !crowded) return std::move(wrote).error();
    if (auto ok = in_time(member_name(to.info) + ", which does not read"); !ok) return ok;
    if (crowded) {
      pace();
    } else {
      std::vector<pollfd> these{{to.link.get(), POLLOUT, 0}, {to.process.get(), POLLIN, 0}};
      stop_.poll(these, until_);
    }
  }
}

result<void> gathering::in_time(const std::string& awaited) const {
  if (stop_.requested()) {
    return make_error(errc::cancelled, "joining " + meeting_name() + " was cancelled; it waited for " + awaited);
  }
  if (until_ == no_deadline || steady_now() < until_) return {};
  const auto timeout = std::chrono::duration_cast<std::chrono::milliseconds>(options_.timeout).count();
  std::string what = meeting_name() + " waited " + std::to_string(timeout) + " ms for " + awaited;
  if (refused_ != 0) what += "; " + std::to_string(refused_) + " turned away, the last: " + remark_;
  return make_error(errc::timed_out, std::move(what));
}

void gathering::pace() {
  std::vector<pollfd> nothing;
  stop_.poll(nothing, std::min<wait_deadline>(until_, steady_now() + pace_));
  pace_ = std::min<std::chrono::nanoseconds>(2 * pace_, longest_pace);
}

void gathering::refuse(int link, const error& why) const {
  packet p = plain(packet_kind::refusal);
  p.tag = static_cast<std::uint64_t>(code_of(why.code));
  const auto text = std::as_bytes(std::span{why.what});
  p.payload = text.first(std::min(text.size(), max_refusal_text));
  static_cast<void>(write_packet(link, p));  // with the best will: who is gone does not listen
}

}  // namespace weft::detail
