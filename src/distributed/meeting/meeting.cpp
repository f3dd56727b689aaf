// SPDX-License-Identifier: Apache-2.0
#include "distributed/meeting/meeting.hpp"

#include "core/errors/make_error.hpp"
#include "distributed/meeting/greeting.hpp"
#include "os/system_error.hpp"
#include "processes/packet.hpp"
#include "weft/core/log.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <sys/epoll.h>
#include <sys/random.h>
#include <thread>
#include <utility>

namespace weft::detail {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t the_listener = ~std::uint64_t{};
constexpr int strangers = 64;  // that may be connected at a time, besides those that are awaited

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span{&value, 1});
}
std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span{text}); }

std::array<std::byte, 32> random_bytes() {
  std::array<std::byte, 32> made{};
  static_cast<void>(::getrandom(made.data(), made.size(), 0));  // so few never fail after boot
  return made;
}

void put(frame_link& link, frame_kind kind, std::span<const std::byte> payload) {
  link.put(kind, std::span{&payload, 1});
}

/// A refusal as it travels: the code, then the sentence.
void put_refusal(frame_link& link, const error& why) {
  const auto code = static_cast<std::uint8_t>(why.code);
  const std::string text = why.what.substr(0, greeting_text_bytes);
  const std::span<const std::byte> parts[] = {bytes_of(code), bytes_of(text)};
  link.put(frame_kind::refusal, parts);
}

error refusal_of(std::span<const std::byte> payload) {
  const auto code = payload.empty() ? 0 : std::to_integer<std::uint8_t>(payload[0]);
  const bool is_known = code <= static_cast<std::uint8_t>(errc::device_lost) && !payload.empty();
  return make_error(is_known ? static_cast<errc>(code) : errc::corrupt,
                    printable(payload.subspan(payload.empty() ? 0 : 1)), error_scope::process);
}

}  // namespace

meeting::meeting(meeting_place place) : place_(std::move(place)), stop_(place_.stop) {}

result<void> meeting::open() {
  if (place_.size == 1) return {};
  return place_.self.value() == 0 ? host() : attend();
}

result<std::vector<std::vector<std::byte>>> meeting::all_gather(std::span<const std::byte> mine) {
  if (mine.size() > max_said) {
    return make_error(errc::invalid_argument,
                      "a rank says at most " + std::to_string(max_said) + " bytes, not " + std::to_string(mine.size()));
  }
  if (place_.size == 1) return std::vector<std::vector<std::byte>>{{mine.begin(), mine.end()}};
  if (place_.self.value() == 0) return gather_all(mine);
  put(*link_, frame_kind::gather, mine);
  link_->allow(static_cast<std::size_t>(place_.size) * (max_said + sizeof(std::uint32_t)));
  auto answered = next_frame();
  if (!answered) return std::move(answered).error();
  const frame& table = **answered;
  if (table.kind == frame_kind::table) {
    if (auto parsed = parse_table(table.payload, place_.size)) return std::move(*parsed);
  }
  return make_error(errc::corrupt, name() + ": rank 0 did not answer with what the ranks said", error_scope::process);
}

// ---- both sides -----------------------------------------------------------------------------------------------------

std::string meeting::name() const {
  return "the world of " + std::to_string(place_.size) + " at " + place_.host + ":" + std::to_string(place_.port);
}

std::string meeting::late() {
  while (first_late_ < seats_.size() && seats_[first_late_]) ++first_late_;
  const bool is_seating = missing_ > 0;
  std::vector<int> named;
  for (std::size_t r = is_seating ? first_late_ : 1; r < seats_.size() && named.size() < 8; ++r)
    if (is_seating ? !seats_[r] : !guests_[*seats_[r]]->has_said) named.push_back(static_cast<int>(r));
  return ranks_in_words(named, is_seating ? missing_ : silent_);
}

std::string meeting::awaited() {
  if (place_.self.value() == 0) return late() + (remark_.empty() ? "" : "; turned away: " + remark_);
  if (welcomed_) return waits_for_.empty() ? "what the other ranks say" : waits_for_;
  if (link_) {
    return "rank 0: a program listens there and does not greet as weft does. If the port is another program's, set "
           "WEFT_MASTER_PORT to a free one for all ranks";
  }
  return "rank 0" + (failed_to_connect_.empty() ? "" : ", last: " + failed_to_connect_);
}

result<void> meeting::in_time() {
  if (stop_.requested())
    return make_error(errc::cancelled, name() + ": cancelled while it waited for " + awaited(), error_scope::call);
  if (steady_now() < place_.until) return {};
  return make_error(errc::timed_out, name() + ": time is up while it waited for " + awaited(), error_scope::call);
}

void meeting::pace() {
  std::vector<pollfd> none;
  stop_.poll(none, std::min(place_.until, steady_now() + pace_));
  pace_ = std::min<std::chrono::nanoseconds>(2 * pace_, 50ms);
}

// ---- rank 0 ---------------------------------------------------------------------------------------------------------

result<void> meeting::host() {
  seats_.resize(static_cast<std::size_t>(place_.size));
  missing_ = place_.size - 1;
  if (auto listens = listen(); !listens) return listens;
  if (auto seated = seat_all(); !seated) return dismissed(std::move(seated).error());
  listener_.reset();
  for (std::size_t place = 0; place < guests_.size(); ++place)
    if (guests_[place] && guests_[place]->rank < 0) turn_away(place, "everybody is there");
  return {};
}

result<void> meeting::listen() {
  auto known = addresses_of(place_.host);
  if (!known) return std::move(known).error();
  poll_ = descriptor{::epoll_create1(EPOLL_CLOEXEC)};
  if (!poll_) return system_error("cannot watch connections", errno);
  int failed = 0;
  const auto try_at = [&](network_address at) {
    at.set_port(place_.port);
    descriptor made{::socket(at.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
    const int on = 1;
    ::setsockopt(made.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (made && ::bind(made.get(), at.get(), at.size) == 0 && ::listen(made.get(), 4096) == 0) {
      address_ = at.text();
      interface_ = interface_of(at);
      listener_ = std::move(made);
      return true;
    }
    failed = errno;
    return false;
  };
  bool is_open = false;
  for (std::size_t n = 0; n < known->size() && !is_open; ++n) is_open = try_at((*known)[n]);
  if (!is_open && failed == EADDRNOTAVAIL) {  // the name leads here by way of somebody else: listen on every interface
    network_address any = known->front();
    if (!place_.interface.empty()) {
      auto chosen = address_of_interface(place_.interface, any.family());
      if (!chosen) return std::move(chosen).error();
      any = *chosen;
    } else {
      const auto family = static_cast<sa_family_t>(any.family());
      any.bytes = {};
      any.bytes.ss_family = family;
    }
    is_open = try_at(any);
  }
  if (!is_open) {
    if (failed == EADDRINUSE) {
      return make_error(errc::name_taken, name() +
                                              ": another program listens on this port. Set WEFT_MASTER_PORT to a "
                                              "free one for all ranks");
    }
    return system_error(name() + ": rank 0 cannot listen", failed);
  }
  if (place_.token.empty() && !own_address(listener_.get()).is_loopback()) {
    log(log_level::warning,
        name() + " has no token: whoever reaches " + address_ +
            " can take a rank's place. Set WEFT_WORLD_TOKEN or WEFT_WORLD_TOKEN_FILE for all ranks");
  }
  epoll_event event{EPOLLIN, {}};
  event.data.u64 = the_listener;
  if (::epoll_ctl(poll_.get(), EPOLL_CTL_ADD, listener_.get(), &event) != 0)
    return system_error("cannot watch connections", errno);
  return {};
}

template <class F>
result<void> meeting::step(const F& handle) {
  if (auto ok = in_time(); !ok) return ok;
  std::vector<pollfd> these{{poll_.get(), POLLIN, 0}};
  stop_.poll(these, place_.until);
  std::array<epoll_event, 64> events;
  const int count = ::epoll_wait(poll_.get(), events.data(), static_cast<int>(events.size()), 0);
  for (int n = 0; n < count; ++n) {
    const std::uint64_t which = events[static_cast<std::size_t>(n)].data.u64;
    // one that went while this list was worked off may still be in it
    if (which != the_listener && !guests_[which]) continue;
    if (auto ok = handle(which); !ok) return ok;
  }
  return {};
}

// Asks to be told of what the guest's connection is ready for.
result<void> meeting::watch(std::size_t place) {
  guest& g = *guests_[place];
  epoll_event event{static_cast<std::uint32_t>(EPOLLIN) | (g.link.has_unsent() ? EPOLLOUT : 0U), {}};
  event.data.u64 = place;
  const bool is_watched = ::epoll_ctl(poll_.get(), EPOLL_CTL_MOD, g.link.file(), &event) == 0 ||
                          (errno == ENOENT && ::epoll_ctl(poll_.get(), EPOLL_CTL_ADD, g.link.file(), &event) == 0);
  return is_watched ? result<void>{} : system_error("cannot watch a connection", errno);
}

result<void> meeting::seat_all() {
  while (missing_ > 0) {
    auto went = step([&](std::uint64_t which) { return which == the_listener ? accept_all() : hear(which, true); });
    if (!went) return went;
  }
  return {};
}

result<void> meeting::accept_all() {
  for (;;) {
    descriptor made{::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
    if (!made) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      return errno == EAGAIN ? result<void>{} : system_error(name() + ": rank 0 cannot accept a connection", errno);
    }
    if (unknown_ >= missing_ + strangers) {  // the one that says nothing for longest goes
      const auto oldest = std::ranges::find_if(guests_, [](const auto& g) { return g && g->rank < 0; });
      turn_away(static_cast<std::size_t>(oldest - guests_.begin()), "it did not say who it is");
    }
    if (free_places_.empty()) {
      free_places_.push_back(guests_.size());
      guests_.emplace_back();
    }
    const std::size_t place = free_places_.back();
    free_places_.pop_back();
    const std::string from = peer_address(made.get()).text();
    ++unknown_;
    guest& g = guests_[place].emplace(frame_link{std::move(made), sizeof(hello_record)}, from, place);
    g.asked = random_bytes();
    challenge_record challenge;
    challenge.set_version(place_.version);
    challenge.asked = g.asked;
    put(g.link, frame_kind::challenge, bytes_of(challenge));
    static_cast<void>(g.link.flush());
    if (auto ok = watch(place); !ok) return ok;
  }
}

void meeting::turn_away(std::size_t place, const std::string& why) {
  remark_ = guests_[place]->from + " (" + why + ")";
  guests_[place].reset();  // which closes it
  --unknown_;
  free_places_.push_back(place);
}

result<void> meeting::hear(std::size_t place, bool is_seating) {
  guest& g = *guests_[place];
  if (g.link.has_unsent()) {
    auto sent = g.link.flush();
    if (sent && *sent != packet_io::ended)
      if (auto ok = watch(place); !ok) return ok;
  }
  for (;;) {
    auto got = g.link.pull();
    if (g.rank < 0) {
      const bool is_hello = got && *got && (**got).kind == frame_kind::hello;
      if (got && !*got) return {};
      if (is_hello) return seat(place, (**got).payload);
      turn_away(place, got ? "it did not begin with who it is" : got.error().what);
      return {};
    }
    if (!got) {
      const bool gave_up = got.error().code == errc::closed;
      return make_error(gave_up ? errc::peer_dead : got.error().code,
                        name() + ": " + g.who + (gave_up ? " died or gave up" : ": " + got.error().what),
                        error_scope::process);
    }
    if (!*got) return {};
    if ((**got).kind != frame_kind::gather || g.has_said)
      return make_error(errc::corrupt, name() + ": " + g.who + " spoke out of turn", error_scope::process);
    g.said.assign((**got).payload.begin(), (**got).payload.end());
    g.has_said = true;
    --silent_;
    if (is_seating) return {};  // the rest is for the next round
  }
}

result<void> meeting::seat(std::size_t place, std::span<const std::byte> payload) {
  guest& g = *guests_[place];
  hello_record hello;
  if (payload.size() != sizeof hello) {
    turn_away(place, "what it says of itself has another length");
    return {};
  }
  std::memcpy(&hello, payload.data(), sizeof hello);
  if (!are_equal_in_constant_time(hello.proof, hello.proof_by(place_.token, g.asked))) {
    put_refusal(g.link, make_error(errc::incompatible, name() + ": the token of this process is not rank 0's"));
    static_cast<void>(g.link.flush());
    turn_away(place, "another token");
    return {};
  }
  const std::string who =
      "rank " + std::to_string(hello.rank) + " (" + printable(text_bytes(hello.who)) + ", from " + g.from + ")";
  const auto differ = [&](const std::string& theirs, const std::string& ours) {
    return make_error(errc::incompatible, name() + ": " + who + " " + theirs + "; rank 0 (" + place_.who + ") " + ours,
                      error_scope::process);
  };
  if (hello.protocol != greeting_protocol || printable(text_bytes(hello.version)) != place_.version)
    return differ("runs weft " + printable(text_bytes(hello.version)), "runs weft " + place_.version);
  if (hello.size != static_cast<std::uint32_t>(place_.size))
    return differ("is in a world of " + std::to_string(hello.size), "in one of " + std::to_string(place_.size));
  if (hello.rank == 0) return differ("takes part as well", "is there already");
  if (hello.rank >= hello.size) return differ("is in no world of that size", "cannot seat it");
  if (auto& taken = seats_[hello.rank]) {
    return make_error(errc::incompatible, name() + ": " + who + " is there twice; the first is " + guests_[*taken]->who,
                      error_scope::process);
  }
  seats_[hello.rank] = place;
  g.rank = static_cast<int>(hello.rank);
  g.who = who;
  g.link.allow(max_said);
  --missing_;
  --unknown_;
  put(g.link, frame_kind::welcome, welcome_proof(place_.token, hello));
  if (missing_ > 0) put(g.link, frame_kind::waiting, bytes_of(late()));
  if (std::has_single_bit(static_cast<unsigned>(missing_))) report_progress();
  static_cast<void>(g.link.flush());
  return watch(place);
}

// Tells the log and all ranks who is missing: 1, 2, 4, 8 … of them, so that n ranks cost n log n messages.
void meeting::report_progress() {
  const std::string missing = late();
  log(log_level::info, name() + " waits for " + missing);
  for (auto& g : guests_) {
    if (!g || g->rank < 0) continue;
    put(g->link, frame_kind::waiting, bytes_of(missing));
    static_cast<void>(g->link.flush());
    static_cast<void>(watch(g->place));
  }
}

result<std::vector<std::vector<std::byte>>> meeting::gather_all(std::span<const std::byte> mine) {
  silent_ = 0;
  for (const auto& g : guests_) silent_ += g && g->rank > 0 && !g->has_said ? 1 : 0;
  while (silent_ > 0) {
    auto went = step([&](std::uint64_t which) { return hear(which, false); });
    if (!went) return dismissed(std::move(went).error());
  }
  std::vector<std::vector<std::byte>> all{{mine.begin(), mine.end()}};
  for (std::size_t r = 1; r < seats_.size(); ++r) {
    guest& g = *guests_[*seats_[r]];
    all.push_back(std::exchange(g.said, {}));
    g.has_said = false;
  }
  const std::vector<std::byte> said = table_of(all);
  const std::span<const std::byte> part{said};
  const auto table = frame_link::frame_of(frame_kind::table, std::span{&part, 1});
  for (auto& g : guests_)
    if (g && g->rank > 0) g->link.put(table);
  if (auto sent = flush_all(); !sent) return dismissed(std::move(sent).error());
  return all;
}

result<void> meeting::flush_all() {
  const auto flush = [&](std::size_t place) -> result<void> {
    auto sent = guests_[place]->link.flush();
    if (!sent) return std::move(sent).error();
    if (*sent == packet_io::ended) {
      return make_error(errc::peer_dead, name() + ": " + guests_[place]->who + " died or gave up",
                        error_scope::process);
    }
    return watch(place);
  };
  std::size_t unsent = 0;
  for (std::size_t place = 0; place < guests_.size(); ++place) {
    if (!guests_[place] || guests_[place]->rank < 0) continue;
    if (auto ok = flush(place); !ok) return ok;
    if (guests_[place]->link.has_unsent()) ++unsent;
  }
  while (unsent > 0) {
    auto went = step([&](std::uint64_t which) -> result<void> {
      if (!guests_[which]->link.has_unsent()) return hear(which, false);
      auto ok = flush(which);
      if (ok && !guests_[which]->link.has_unsent()) --unsent;
      return ok;
    });
    if (!went) return went;
  }
  return {};
}

// Tells every guest why it ended, and gives each a second to hear it: a connection that is closed with something unread
// in it would take the news back.
error meeting::dismissed(error cause) {
  std::size_t there = 0;
  for (auto& g : guests_) {
    if (!g) continue;
    put_refusal(g->link, cause);
    static_cast<void>(g->link.flush());
    static_cast<void>(watch(g->place));
    ++there;
  }
  listener_.reset();
  place_.until = steady_now() + 1s;
  while (there > 0 && steady_now() < place_.until) {
    std::vector<pollfd> these{{poll_.get(), POLLIN, 0}};
    stop_.poll(these, place_.until);
    if (stop_.requested()) break;
    std::array<epoll_event, 64> events;
    const int count = ::epoll_wait(poll_.get(), events.data(), static_cast<int>(events.size()), 0);
    for (int n = 0; n < count; ++n) {
      auto& g = guests_[events[static_cast<std::size_t>(n)].data.u64];
      if (!g) continue;
      auto sent = g->link.flush();
      auto got = g->link.pull();
      while (got && *got) got = g->link.pull();
      if (got && sent && *sent != packet_io::ended) {
        static_cast<void>(watch(g->place));
        continue;
      }
      g.reset();
      --there;
    }
  }
  return cause;
}

// ---- the others -----------------------------------------------------------------------------------------------------

result<void> meeting::attend() {
  auto known = addresses_of(place_.host);
  if (!known) return std::move(known).error();
  for (;;) {
    for (network_address to : *known) {
      if (auto ok = in_time(); !ok) return ok;
      to.set_port(place_.port);
      auto connected = connect(to);
      if (!connected) return std::move(connected).error();
      if (!*connected) continue;
      auto welcomed = greet();
      if (!welcomed) return std::move(welcomed).error();
      if (*welcomed) return {};
    }
    pace();  // rank 0 does not listen yet
  }
}

// False where nobody listens there, yet.
result<bool> meeting::connect(const network_address& to) {
  link_.reset();
  descriptor made{::socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  if (!made) return system_error("cannot make a connection to rank 0", errno);
  if (!place_.interface.empty()) {
    auto chosen = address_of_interface(place_.interface, to.family());
    if (!chosen) return std::move(chosen).error();
    if (::bind(made.get(), chosen->get(), chosen->size) != 0)
      return system_error("cannot connect from the network interface " + place_.interface, errno);
  }
  int failed = ::connect(made.get(), to.get(), to.size) == 0 ? 0 : errno;
  while (failed == EINPROGRESS || failed == EINTR) {
    if (auto ok = in_time(); !ok) return std::move(ok).error();
    std::vector<pollfd> these{{made.get(), POLLOUT, 0}};
    stop_.poll(these, place_.until);
    if (these.front().revents == 0) continue;
    socklen_t size = sizeof failed;
    ::getsockopt(made.get(), SOL_SOCKET, SO_ERROR, &failed, &size);
  }
  if (failed != 0) {
    failed_to_connect_ = to.text() + ": " + system_error("cannot connect", failed).what;
    return false;
  }
  const network_address own = own_address(made.get());
  address_ = own.text();
  interface_ = interface_of(own);
  link_.emplace(std::move(made), sizeof(challenge_record));
  return true;
}

// The next frame that is no news. Errors: what rank 0 refused with; closed when it ended.
result<std::optional<frame>> meeting::next_frame() {
  for (;;) {
    if (auto ok = in_time(); !ok) return std::move(ok).error();
    if (auto sent = link_->flush(); !sent) return std::move(sent).error();
    auto got = link_->pull();
    if (!got) {
      if (welcomed_ && got.error().code == errc::closed)
        return make_error(errc::peer_dead, name() + ": rank 0 died", error_scope::process);
      return got;
    }
    if (!*got) {
      const bool writes = link_->has_unsent();
      std::vector<pollfd> these{{link_->file(), static_cast<short>(POLLIN | (writes ? POLLOUT : 0)), 0}};
      stop_.poll(these, place_.until);
      continue;
    }
    if ((**got).kind == frame_kind::refusal) return refusal_of((**got).payload);
    if ((**got).kind != frame_kind::waiting) return got;
    waits_for_ = printable((**got).payload);
  }
}

// False where it was a rank 0 of before, which went meanwhile.
result<bool> meeting::greet() {
  const auto or_again = [](error cause) -> result<bool> {
    if (cause.code == errc::closed && cause.scope == error_scope::endpoint) return false;
    return cause;
  };
  const auto strange = [&] { return make_error(errc::corrupt, name() + ": " + awaited(), error_scope::process); };
  link_->allow(std::max(sizeof(challenge_record), greeting_text_bytes + 1));
  auto got = next_frame();
  if (!got) return got.error().code == errc::corrupt ? result<bool>{strange()} : or_again(std::move(got).error());
  challenge_record challenge;
  if ((**got).kind != frame_kind::challenge || (**got).payload.size() != sizeof challenge) return strange();
  std::memcpy(&challenge, (**got).payload.data(), sizeof challenge);
  hello_record hello;
  hello.rank = static_cast<std::uint32_t>(place_.self.value());
  hello.size = static_cast<std::uint32_t>(place_.size);
  hello.set_version(place_.version);
  hello.set_who(place_.who);
  hello.asked = random_bytes();
  hello.proof = hello.proof_by(place_.token, challenge.asked);
  put(*link_, frame_kind::hello, bytes_of(hello));
  got = next_frame();
  if (!got) return or_again(std::move(got).error());
  if ((**got).kind != frame_kind::welcome) return strange();
  if (!are_equal_in_constant_time((**got).payload, welcome_proof(place_.token, hello))) {
    return make_error(errc::incompatible, name() + ": who answers as rank 0 does not know the token",
                      error_scope::process);
  }
  welcomed_ = true;
  return true;
}

}  // namespace weft::detail
