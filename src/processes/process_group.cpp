// SPDX-License-Identifier: Apache-2.0
#include "weft/processes/process_group.hpp"

#include "core/errors/called_from.hpp"
#include "core/errors/make_error.hpp"
#include "processes/process_group_body.hpp"
#include "weft/core/raise.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <utility>

namespace weft {
namespace {

using namespace std::chrono_literals;
using detail::packet;
using detail::packet_io;
using detail::packet_kind;

std::string milliseconds(std::chrono::nanoseconds timeout) {
  return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count()) + " ms";
}

}  // namespace

process_group::body::body(rank who, std::vector<member> everybody, watchers on, std::uint64_t refused)
    : self(who),
      members(std::move(everybody)),
      turned_away(refused),
      watch(std::move(on.watch)),
      deaths(std::move(on.deaths)),
      nudge(std::move(on.nudge)),
      room(detail::max_packet_bytes + 1) {}

process_group::body::~body() {
  // In the child of a fork everything is shared with the parent, even the set of watched descriptors: only close.
  if (::getpid() != owner) return;
  packet last;
  last.kind = packet_kind::farewell;
  last.rank = static_cast<std::uint32_t>(self.value());
  last.size = static_cast<std::uint32_t>(members.size());
  for (member& m : members) {
    if (!m.link || m.state != presence::here) continue;
    if (auto said = detail::write_packet(m.link.get(), last); said && *said == packet_io::later) {
      // without it, who has read nothing for long takes this end for a death
      detail::make_room(m.link.get(), detail::max_packet_bytes * 3 / 2);
      static_cast<void>(detail::write_packet(m.link.get(), last));
    }
  }
}

result<process_group::body::watchers> process_group::body::watchers::of(const std::vector<member>& members) {
  watchers made{descriptor{::epoll_create1(EPOLL_CLOEXEC)}, descriptor{::epoll_create1(EPOLL_CLOEXEC)},
                detail::event_bell::make()};
  if (!made.watch || !made.deaths || !made.nudge)
    return detail::system_error("cannot watch the processes of a group", errno);
  const auto add = [](const descriptor& set, const descriptor& fd, std::uint32_t events, std::size_t index) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = index;
    return ::epoll_ctl(set.get(), EPOLL_CTL_ADD, fd.get(), &event) == 0;
  };
  for (std::size_t i = 0; i < members.size(); ++i) {
    const member& m = members[i];
    if (!m.link) continue;
    // a hang-up is always told, so the connections are in `deaths` without an event asked for
    if (!add(made.watch, m.link, EPOLLIN, 2 * i) || !add(made.watch, m.process, EPOLLIN, 2 * i + 1) ||
        !add(made.deaths, m.link, 0, 2 * i) || !add(made.deaths, m.process, EPOLLIN, 2 * i + 1)) {
      return detail::system_error("cannot watch " + to_string(m.info.rank), errno);
    }
  }
  return made;
}

void process_group::body::require_member(const char* doing) const {
  if (const pid_t here = ::getpid(); here != owner) {
    raise(errc::closed, std::string{doing} + ": the group belongs to process " + std::to_string(owner) +
                            ", and its fork, process " + std::to_string(here) +
                            ", does not inherit membership: join again in the child, or fork before joining");
  }
}

process_group::body::member& process_group::body::at(rank which) {
  if (which.value() < 0 || which.index() >= members.size()) {
    raise(errc::invalid_argument,
          to_string(which) + " is not in a group of " + std::to_string(members.size()) + " processes");
  }
  return members[which.index()];
}

process_group::body::member& process_group::body::other(rank which, const char* doing) {
  member& m = at(which);
  if (which == self) raise(errc::invalid_argument, std::string{doing} + ": " + to_string(self) + " is this process");
  return m;
}

std::string process_group::body::name_of(const member& m) const {
  return to_string(m.info.rank) + " (process " + std::to_string(m.info.pid) + ")";
}

void process_group::body::forget(const descriptor& set, const member& m) noexcept {
  ::epoll_ctl(set.get(), EPOLL_CTL_DEL, m.link.get(), nullptr);
  ::epoll_ctl(set.get(), EPOLL_CTL_DEL, m.process.get(), nullptr);
}

void process_group::body::pause(member& m, bool on) noexcept {
  epoll_event event{};
  event.events = on ? 0U : static_cast<std::uint32_t>(EPOLLIN);
  event.data.u64 = 2 * m.info.rank.index();
  ::epoll_ctl(watch.get(), EPOLL_CTL_MOD, m.link.get(), &event);
  m.paused = on;
}

void process_group::body::conclude(member& m, presence how) {
  if (m.state != presence::here) return;
  m.state = how;
  forget(watch, m);
  if (how == presence::dead) {
    untold.push_back(m.info.rank);  // stays in `deaths`, which is readable until the death is told
  } else {
    forget(deaths, m);
  }
}

void process_group::body::give_up(member& m, error why) {
  why.what = name_of(m) + ": " + why.what;
  m.broken = std::move(why);
  // its process is still watched
  for (const descriptor* set : {&watch, &deaths}) ::epoll_ctl(set->get(), EPOLL_CTL_DEL, m.link.get(), nullptr);
}

error process_group::body::gone(const member& m) const {
  if (m.broken) return *m.broken;
  if (m.state == presence::left)
    return make_error(errc::closed, name_of(m) + " has left the group", error_scope::endpoint);
  return make_error(errc::peer_dead, name_of(m) + " has died", error_scope::process);
}

void process_group::body::take(member& m, const packet& p, detail::raw_packet& raw, std::list<entry>& place) {
  if (p.rank != static_cast<std::uint32_t>(m.info.rank.value()) || p.size != members.size()) {
    give_up(m, make_error(errc::corrupt,
                          "expected a packet of rank " + std::to_string(m.info.rank.value()) + " of " +
                              std::to_string(members.size()) + ", got one of rank " + std::to_string(p.rank) + " of " +
                              std::to_string(p.size),
                          error_scope::endpoint));
    return;
  }
  entry& made = place.front();
  made.kind = p.kind;
  made.tag = p.tag;
  made.payload.assign(p.payload.begin(), p.payload.end());
  made.descriptors = std::move(raw.descriptors);
  switch (p.kind) {
    case packet_kind::message:
      m.unread.splice(m.unread.end(), place);
      if (made.descriptors.size() < p.descriptors) {
        made.failure = no_host_memory();  // unless there is some for a text
        made.failure->what = "a message of " + name_of(m) + " came with " + std::to_string(p.descriptors) +
                             " descriptors, and this process had room for " + std::to_string(made.descriptors.size()) +
                             ": raise its limit (ulimit -n), then have it sent again";
        made.descriptors.clear();
      }
      return;
    case packet_kind::barrier:
    case packet_kind::gather:
      // Nobody can be further ahead: the next meeting needs our arrival at this one.
      if (m.meetings.size() < 2) {
        m.meetings.splice(m.meetings.end(), place);
        return;
      }
      break;
    case packet_kind::farewell:
      conclude(m, presence::left);
      return;
    default:
      break;
  }
  give_up(m, make_error(errc::corrupt, "sent a packet of a kind that does not belong here", error_scope::endpoint));
}

void process_group::body::read_from(member& m, bool everything) {
  detail::raw_packet raw;
  while (m.state == presence::here && !m.broken) {
    if (!everything && m.unread.size() >= max_unread) {
      if (!m.paused) pause(m, true);
      return;
    }
    const auto bytes = detail::next_packet_bytes(m.link.get());
    if (!bytes) return;
    // A good packet leaves the socket once there is memory for it: without, the caller is told, and the next one gets
    // it.
    std::list<entry> place(1);
    place.front().payload.reserve(*bytes - std::min(*bytes, detail::packet_header_bytes));
    const auto got = detail::read_packet(m.link.get(), room, raw);
    if (!got) {
      give_up(m, got.error());
    } else if (*got == packet_io::later) {
      return;
    } else if (*got == packet_io::ended) {
      conclude(m, presence::dead);
    } else if (const auto parsed = detail::checked_packet(raw); parsed) {
      take(m, *parsed, raw, place);
    } else {
      give_up(m, parsed.error());
    }
  }
}

void process_group::body::look() {
  std::array<epoll_event, std::size_t{2} * max_size> events;  // all that there can be: alive() asks once
  const int count = ::epoll_wait(watch.get(), events.data(), static_cast<int>(events.size()), 0);
  if (count > 0) tell();  // first, as memory may run out below; whoever wakes waits for the mutex
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events[static_cast<std::size_t>(i)];
    member& m = members[event.data.u64 / 2];
    const bool ended = event.data.u64 % 2 == 1;
    // Who is gone sends nothing more: what it had sent is bounded by its connection, and all of it is kept.
    read_from(m, ended || (event.events & (EPOLLHUP | EPOLLERR)) != 0);
    // A fork of the dead may still hold the connection, which then does not end.
    if (ended) conclude(m, presence::dead);
  }
}

void process_group::body::tell() {
  changed.notify_all();
  if (watched) nudge.ring();
}

process_group::body::outcome process_group::body::wait(std::unique_lock<std::mutex>& lock,
                                                       std::chrono::nanoseconds timeout, const std::stop_token& stop,
                                                       const std::function<bool()>& attempt,
                                                       const std::function<std::span<const int>()>& room_on) {
  // Once it has succeeded it is not tried again: it may have taken a message.
  bool succeeded = false;
  const auto done = [&] { return succeeded = succeeded || attempt(); };
  look();
  if (done()) return outcome::ok;
  const auto until = deadline_after(detail::steady_now(), timeout);
  std::optional<detail::stop_signal> signal;
  std::vector<pollfd> these;
  these.reserve(4 + members.size());
  while (true) {
    if (stop.stop_requested()) return outcome::cancelled;
    if (until != no_deadline && detail::steady_now() >= until) return outcome::timed_out;
    const std::span<const int> writable = room_on ? room_on() : std::span<const int>{};
    if (watched && writable.empty()) {
      if (until == no_deadline) {
        changed.wait(lock, stop, [&] { return done() || !watched; });
      } else {
        changed.wait_until(lock, stop, std::chrono::steady_clock::time_point{until},
                           [&] { return done() || !watched; });
      }
    } else {
      if (!signal) signal.emplace(stop);
      const bool mine = !watched;
      these.clear();
      these.push_back({watch.get(), POLLIN, 0});
      for (const int link : writable) these.push_back({link, POLLOUT, 0});
      if (mine) these.push_back({nudge.file(), POLLIN, 0});
      if (mine) watched = true;
      lock.unlock();
      // the nudge is the watcher's: a second one looks now and then at what others have read
      signal->poll(these, mine ? until : std::min<wait_deadline>(until, detail::steady_now() + 10ms));
      lock.lock();
      if (mine) {
        watched = false;
        nudge.silence();
        changed.notify_all();  // another may want to watch
      }
      look();
    }
    if (done()) return outcome::ok;
  }
}

result<packet_io> process_group::body::write(member& m, const packet& p, std::span<const int> descriptors) {
  packet addressed = p;
  addressed.rank = static_cast<std::uint32_t>(self.value());
  addressed.size = static_cast<std::uint32_t>(members.size());
  auto wrote = detail::write_packet(m.link.get(), addressed, descriptors);
  if (wrote && *wrote == packet_io::ended) {
    read_from(m, true);
    conclude(m, presence::dead);
    tell();
  }
  return wrote;
}

// ---- messages -----------------------------------------------------------------------------------------------------

process_group::process_group(std::unique_ptr<body> made) : body_(std::move(made)) {}
process_group::~process_group() = default;
process_group::process_group(process_group&&) noexcept = default;
process_group& process_group::operator=(process_group&&) noexcept = default;

rank process_group::self() const { return body_->self; }
int process_group::size() const { return static_cast<int>(body_->members.size()); }
const peer_process& process_group::peer(rank which, std::source_location where) const {
  const called_from here{where};
  return body_->at(which).info;
}
std::uint64_t process_group::refused() const { return body_->turned_away; }

result<void> process_group::send(rank to, std::uint64_t tag, std::span<const std::byte> payload,
                                 std::span<const int> descriptors, std::chrono::nanoseconds timeout,
                                 const std::stop_token& stop, std::source_location where) {
  const called_from here{where};
  body& b = *body_;
  b.require_member("send");
  auto& m = b.other(to, "send");
  if (payload.size() > max_payload || descriptors.size() > max_descriptors) {
    raise(errc::invalid_argument, "a message to " + to_string(to) + " has " + std::to_string(payload.size()) +
                                      " bytes and " + std::to_string(descriptors.size()) + " descriptors; at most " +
                                      std::to_string(max_payload) + " and " + std::to_string(max_descriptors) +
                                      ": share memory and send its descriptor instead");
  }
  packet p;
  p.kind = packet_kind::message;
  p.tag = tag;
  p.payload = payload;
  std::unique_lock lock{b.mutex};
  std::optional<error> failure;
  const auto done = [&] {
    if (m.broken || m.state != body::presence::here) {
      failure = b.gone(m);
      return true;
    }
    const auto wrote = b.write(m, p, descriptors);
    if (!wrote)
      failure = wrote.error();
    else if (*wrote == packet_io::ended)
      failure = b.gone(m);
    else
      return *wrote == packet_io::done;
    return true;
  };
  const int link = m.link.get();
  const auto how = b.wait(lock, timeout, stop, done, [&] { return std::span{&link, 1}; });
  if (how == body::outcome::ok) {
    if (!failure) return {};
    if (failure->code == errc::invalid_argument) raise(*std::move(failure));
    return *std::move(failure);
  }
  const std::string what = "a message of " + std::to_string(payload.size()) + " bytes to " + b.name_of(m);
  if (how == body::outcome::cancelled) return make_error(errc::cancelled, what + " was cancelled");
  return make_error(errc::timed_out,
                    what + " found no room for " + milliseconds(timeout) + ": the peer reads nothing, or is stopped");
}

result<peer_message> process_group::receive(rank from, std::uint64_t tag, std::chrono::nanoseconds timeout,
                                            const std::stop_token& stop, std::source_location where) {
  const called_from here{where};
  body& b = *body_;
  b.require_member("receive");
  auto& m = b.other(from, "receive");
  const std::string what = "a message of " + b.name_of(m) + " with tag " + std::to_string(tag);
  std::unique_lock lock{b.mutex};
  std::optional<body::entry> found;
  std::optional<error> failure;
  const auto done = [&] {
    const auto it = std::find_if(m.unread.begin(), m.unread.end(), [&](const body::entry& e) { return e.tag == tag; });
    if (it != m.unread.end()) {
      found = std::move(*it);
      m.unread.erase(it);
      if (m.paused && m.state == body::presence::here && !m.broken) b.pause(m, false);
    } else if (m.broken || m.state != body::presence::here) {
      failure = b.gone(m);
    }
    return found || failure;
  };
  const auto how = b.wait(lock, timeout, stop, done);
  if (how == body::outcome::cancelled) return make_error(errc::cancelled, "the wait for " + what + " was cancelled");
  if (how == body::outcome::timed_out && m.unread.size() >= max_unread) {
    // not before time is up: another thread may be about to receive them
    return make_error(errc::resource_exhausted,
                      what + " may be hidden: " + std::to_string(m.unread.size()) +
                          " messages with other tags came first, the first with tag " +
                          std::to_string(m.unread.front().tag) + ": receive them",
                      error_scope::endpoint);
  }
  if (how == body::outcome::timed_out) {
    return make_error(errc::timed_out, what + " did not come within " + milliseconds(timeout));
  }
  if (!failure && found->failure) failure = std::move(found->failure);
  if (failure) {
    failure->what = "waiting for " + what + ": " + failure->what;
    return *std::move(failure);
  }
  return peer_message{from, tag, std::move(found->payload), std::move(found->descriptors)};
}

// ---- meetings -----------------------------------------------------------------------------------------------------

result<void> process_group::barrier(std::chrono::nanoseconds timeout, const std::stop_token& stop,
                                    std::source_location where) {
  const called_from here{where};
  body_->require_member("barrier");
  auto met = body_->meet(packet_kind::barrier, {}, timeout, stop);
  if (!met) return std::move(met).error();
  return {};
}

result<std::vector<std::vector<std::byte>>> process_group::all_gather(std::span<const std::byte> mine,
                                                                      std::chrono::nanoseconds timeout,
                                                                      const std::stop_token& stop,
                                                                      std::source_location where) {
  const called_from here{where};
  body_->require_member("all_gather");
  if (mine.size() > max_payload) {
    raise(errc::invalid_argument, "all_gather of " + std::to_string(mine.size()) + " bytes; at most " +
                                      std::to_string(max_payload) + " of each rank");
  }
  return body_->meet(packet_kind::gather, mine, timeout, stop);
}

// Everybody tells everybody: one step, and no rank whose death would leave the others without news.
result<std::vector<std::vector<std::byte>>> process_group::body::meet(packet_kind kind, std::span<const std::byte> mine,
                                                                      std::chrono::nanoseconds timeout,
                                                                      const std::stop_token& stop) {
  std::string what = kind == packet_kind::barrier ? "barrier" : "all_gather";
  std::unique_lock lock{mutex};
  if (meeting_now)
    raise(errc::invalid_argument, what + ": another thread of this process is in a meeting of the group");
  if (!current) {
    current = meeting{kind, {mine.begin(), mine.end()}, std::vector<bool>(members.size(), false)};
    ++met;
  } else if (current->kind != kind ||
             !std::equal(mine.begin(), mine.end(), current->mine.begin(), current->mine.end())) {
    raise(errc::invalid_argument, what +
                                      ": the last meeting of this process ended early and is unfinished: call it "
                                      "again with the same bytes until it ends");
  }
  meeting_now = true;
  struct leaving {
    bool& flag;
    ~leaving() { flag = false; }
  } const leave{meeting_now};

  packet p;
  p.kind = kind;
  p.tag = met;
  p.payload = current->mine;
  std::optional<error> failure;
  std::vector<int> full;  // connections that had no room
  full.reserve(members.size());
  const auto done = [&] {
    full.clear();
    bool complete = true;
    for (member& m : members) {
      if (!m.link) continue;
      const std::size_t index = m.info.rank.index();
      if (!current->sent[index] && m.state == presence::here && !m.broken) {
        const auto wrote = write(m, p, {});
        if (!wrote) {
          failure = wrote.error();
          return true;
        }
        if (*wrote == packet_io::done) current->sent[index] = true;
        if (*wrote == packet_io::later) {
          full.push_back(m.link.get());
          complete = false;
        }
      }
      // after it has heard from us, so that it finds the same
      if (!m.meetings.empty() && (m.meetings.front().kind != kind || m.meetings.front().tag != met)) {
        failure = make_error(errc::incompatible,
                             what + " number " + std::to_string(met) + " met " +
                                 (m.meetings.front().kind == packet_kind::barrier ? "barrier" : "all_gather") +
                                 " number " + std::to_string(m.meetings.front().tag) + " of " + name_of(m) +
                                 ": all ranks must call the same meetings in the same order",
                             error_scope::endpoint);
        return true;
      }
      if (m.meetings.empty()) {
        complete = false;
        // Who died is the cause, and who left because of it is not.
        if ((m.broken || m.state != presence::here) && (!failure || failure->code == errc::closed)) {
          failure = gone(m);
          failure->what = what + ": " + failure->what;
        }
      }
    }
    return complete || failure;
  };
  const auto how = wait(lock, timeout, stop, done, [&] { return std::span<const int>{full}; });
  if (failure) return *std::move(failure);
  if (how != outcome::ok) {
    std::string missing;
    bool hidden = false;
    for (const member& m : members) {
      if (!m.link || (!m.meetings.empty() && current->sent[m.info.rank.index()])) continue;
      missing += (missing.empty() ? "" : ", ") + name_of(m);
      if (!m.meetings.empty() || m.unread.size() < max_unread) continue;
      hidden = true;
      missing += ", whose arrival may be hidden by " + std::to_string(m.unread.size()) +
                 " messages that came first, the first with tag " + std::to_string(m.unread.front().tag) +
                 ": receive them";
    }
    if (how == outcome::cancelled) return make_error(errc::cancelled, what + " was cancelled; not there: " + missing);
    what += ": not there within " + milliseconds(timeout) + ": " + missing;
    if (hidden) return make_error(errc::resource_exhausted, what, error_scope::endpoint);
    return make_error(errc::timed_out, what);
  }
  std::vector<std::vector<std::byte>> all(members.size());
  for (member& m : members) {
    if (!m.link) {
      all[m.info.rank.index()] = std::move(current->mine);
    } else {
      all[m.info.rank.index()] = std::move(m.meetings.front().payload);
      m.meetings.pop_front();
    }
  }
  current.reset();
  return all;
}

// ---- death --------------------------------------------------------------------------------------------------------

bool process_group::alive(rank which, std::source_location where) const {
  const called_from here{where};
  body& b = *body_;
  b.require_member("alive");
  auto& m = b.at(which);
  if (!m.link) return true;
  const std::lock_guard lock{b.mutex};
  b.look();
  if (m.state == body::presence::here && detail::is_readable(m.process.get())) {
    b.read_from(m, true);
    b.conclude(m, body::presence::dead);
    b.tell();
  }
  return m.state == body::presence::here;
}

result<rank> process_group::wait_death(std::chrono::nanoseconds timeout, const std::stop_token& stop,
                                       std::source_location where) {
  const called_from here{where};
  body& b = *body_;
  b.require_member("wait_death");
  std::unique_lock lock{b.mutex};
  const auto how = b.wait(lock, timeout, stop, [&] { return !b.untold.empty(); });
  if (how == body::outcome::cancelled) return make_error(errc::cancelled, "the wait for a death was cancelled");
  if (how == body::outcome::timed_out) {
    return make_error(errc::timed_out, "nobody has died within " + milliseconds(timeout));
  }
  const rank who = b.untold.front();
  b.untold.pop_front();
  b.forget(b.deaths, b.at(who));
  return who;
}

int process_group::death_descriptor() const {
  body_->require_member("death_descriptor");
  return body_->deaths.get();
}

}  // namespace weft
