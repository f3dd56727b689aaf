// SPDX-License-Identifier: Apache-2.0
#include "processes/share_server.hpp"

#include "core/errors/make_error.hpp"
#include "os/process.hpp"
#include "os/socket.hpp"
#include "os/system_error.hpp"
#include "processes/packet_socket.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <poll.h>
#include <pthread.h>
#include <string>
#include <sys/socket.h>
#include <sys/un.h>
#include <system_error>
#include <unistd.h>
#include <vector>

namespace weft::detail {
namespace {

using clock_type = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

/// The abstract address of a door: no file, and gone with the process that holds it.
std::pair<sockaddr_un, socklen_t> address_of(std::uint64_t door) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const int length = std::snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "weft.share.%016llx",
                                   static_cast<unsigned long long>(door));
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<std::size_t>(length))};
}

std::string process_name(std::uint32_t pid) { return "process " + std::to_string(pid); }

void nap(nanoseconds time) noexcept {
  timespec timeout{};
  timeout.tv_nsec = static_cast<long>(std::min<std::int64_t>(time.count(), 999'999'999));
  static_cast<void>(::ppoll(nullptr, 0, &timeout, nullptr));
}

/// A thread that is started meanwhile handles no signal of a program that does not know of it.
class all_signals_blocked {
 public:
  all_signals_blocked() noexcept {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  all_signals_blocked(const all_signals_blocked&) = delete;
  all_signals_blocked& operator=(const all_signals_blocked&) = delete;
  ~all_signals_blocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace

// ---- the exporter ---------------------------------------------------------------------------------------------------

result<std::uint64_t> share_server::door() {
  const std::lock_guard lock{mutex_};
  if (stopped_) return make_error(errc::machine_closed, "the machine is closed");
  if (const std::uint64_t open = door_.load(std::memory_order_relaxed)) return open;
  event_bell bell = event_bell::make();
  if (!bell) return system_error("cannot serve shared memory", errno);
  descriptor listener{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  if (!listener) return system_error("cannot serve shared memory", errno);
  const std::uint64_t fresh = random_number();
  const auto [address, length] = address_of(fresh);
  if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      ::listen(listener.get(), 64) != 0) {
    return system_error("cannot serve shared memory", errno);
  }
  const all_signals_blocked quiet;
  try {
    thread_ = std::thread{[this, door = listener.get(), wake = bell.file()] { serve(door, wake); }};
  } catch (const std::system_error&) {
    return make_error(errc::resource_exhausted,
                      "no thread could be started to serve shared memory; raise the limit of "
                      "threads (ulimit -u)");
  }
  listener_ = std::move(listener);
  bell_ = std::move(bell);
  door_.store(fresh, std::memory_order_release);
  return fresh;
}

void share_server::offer(std::uint64_t key, share_kind kind, source what) {
  const std::lock_guard lock{mutex_};
  offers_.insert_or_assign(key, entry{kind, std::move(what)});
}

void share_server::withdraw(std::uint64_t key) noexcept {
  source gone;  // ends outside of the lock: it may hold the last of what was offered
  const std::lock_guard lock{mutex_};
  if (const auto it = offers_.find(key); it != offers_.end()) {
    gone = std::move(it->second.what);
    offers_.erase(it);
  }
}

void share_server::stop() noexcept {
  std::thread ends;
  {
    const std::lock_guard lock{mutex_};
    stopped_ = true;
    ends.swap(thread_);
  }
  if (ends.joinable()) {
    if (here_.forked()) {
      ends.detach();  // it runs in the parent
    } else {
      bell_.ring();
      ends.join();
    }
  }
  listener_.reset();
  bell_.reset();
}

std::shared_ptr<const share_grant> share_server::find(const share_ticket& asked, share_answer& answer) {
  source what;
  {
    const std::lock_guard lock{mutex_};
    answer = share_answer::refused;
    if (asked.door != door_.load(std::memory_order_relaxed)) return nullptr;
    answer = share_answer::gone;
    const auto it = offers_.find(asked.key);
    if (it == offers_.end()) return nullptr;
    answer = share_answer::refused;
    if (it->second.kind != asked.kind) return nullptr;
    what = it->second.what;
  }
  auto got = what();
  if (!got) {
    answer = share_answer::gone;
  } else if (asked.offset > got->size || asked.size > got->size - asked.offset) {
    got.reset();  // a forged range
  } else {
    answer = share_answer::granted;
  }
  return got;
}

share_server::turn share_server::answer(int connection) noexcept {
  std::array<std::byte, request_size + 1> room;
  ssize_t got;
  do got = ::recv(connection, room.data(), room.size(), MSG_DONTWAIT | MSG_TRUNC);
  while (got < 0 && errno == EINTR);
  if (got < 0 && errno == EAGAIN) return turn::silent;
  if (got <= 0 || static_cast<std::size_t>(got) > room.size()) return turn::done;
  try {
    share_reply reply;
    std::shared_ptr<const share_grant> grant;
    if (auto asked = decode_request(std::span{room}.first(static_cast<std::size_t>(got)))) {
      grant = find(*asked, reply.answer);
      if (grant) {
        reply.size = grant->size;
        reply.device = grant->device;
      }
    }
    auto bytes = encode_reply(reply);
    const iovec part{bytes.data(), bytes.size()};
    std::array<int, 2> files{};
    std::size_t count = 0;
    if (grant) {
      files[count++] = grant->file;
      if (grant->second >= 0) files[count++] = grant->second;
    }
    // a connection has room for one packet: what does not go is not waited for, and the importer asks again
    static_cast<void>(send_packet(connection, {&part, 1}, std::span{files}.first(count), false, "an importer"));
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): the importer sees the hang-up, and asks again
  }
  return turn::done;
}

void share_server::serve(int listener, int bell) noexcept {
  ::pthread_setname_np(::pthread_self(), "weft-share");
  struct waiting_one {
    descriptor connection;
    clock_type::time_point since;
  };
  std::array<waiting_one, max_pending> pending;  // oldest first
  std::size_t count = 0;
  const auto drop = [&](std::size_t at) {
    std::move(pending.begin() + static_cast<std::ptrdiff_t>(at) + 1,
              pending.begin() + static_cast<std::ptrdiff_t>(count), pending.begin() + static_cast<std::ptrdiff_t>(at));
    pending[--count].connection.reset();
  };
  auto rest_until = clock_type::time_point::min();  // descriptors ran out: let go of the listener for a while
  for (;;) {
    std::array<pollfd, max_pending + 2> these;
    const auto now = clock_type::now();
    const bool rests = now < rest_until;
    these[0] = {bell, POLLIN, 0};
    these[1] = {rests ? -1 : listener, POLLIN, 0};
    for (std::size_t i = 0; i < count; ++i) these[i + 2] = {pending[i].connection.get(), POLLIN, 0};
    auto timeout = nanoseconds::max();
    if (count != 0) timeout = pending[0].since + max_silence - now;
    if (rests) timeout = std::min<nanoseconds>(timeout, rest_until - now);
    timeout = std::max(timeout, nanoseconds{0});
    timespec time{static_cast<std::time_t>(timeout.count() / 1'000'000'000),
                  static_cast<long>(timeout.count() % 1'000'000'000)};
    if (::ppoll(these.data(), count + 2, timeout == nanoseconds::max() ? nullptr : &time, nullptr) < 0) {
      if (errno == ENOMEM) nap(milliseconds{10});
      continue;
    }
    if (these[0].revents != 0) return;
    const auto seen = clock_type::now();
    for (std::size_t i = count; i-- > 0;) {
      if ((these[i + 2].revents != 0 && answer(pending[i].connection.get()) == turn::done) ||
          seen - pending[i].since >= max_silence) {
        drop(i);
      }
    }
    if ((these[1].revents & POLLIN) == 0) continue;
    descriptor connection{::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
    if (!connection) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
        rest_until = seen + milliseconds{5};
      }
      continue;
    }
    if (const auto who = maker_of(connection.get()); !who || who->uid != ::geteuid()) continue;
    if (answer(connection.get()) == turn::done) continue;
    if (count == max_pending) drop(0);
    pending[count++] = {std::move(connection), seen};
  }
}

// ---- the importer ---------------------------------------------------------------------------------------------------

bool process_watch::alive_now() noexcept {
  if (dead_.load(std::memory_order_relaxed)) return false;
  if (is_readable(process_.get())) dead_.store(true, std::memory_order_relaxed);
  return !dead_.load(std::memory_order_relaxed);
}

bool process_watch::alive() noexcept {
  if (dead_.load(std::memory_order_relaxed)) return false;
  constexpr std::int64_t pause = 5'000'000;
  const std::int64_t now = clock_type::now().time_since_epoch().count();
  if (now < next_look_.load(std::memory_order_relaxed)) return true;
  next_look_.store(now + pause, std::memory_order_relaxed);
  return alive_now();
}

result<std::shared_ptr<process_watch>> watch_of(std::uint32_t pid) {
  auto process = watch_process(static_cast<pid_t>(pid), 0);
  if (!process) return std::move(process).error();
  return std::make_shared<process_watch>(std::move(*process), pid);
}

namespace {

enum class attempt : std::uint8_t { done, again };

/// One connection to the exporter. `again` when it was cut off before an answer, as in a flood.
result<attempt> try_fetch(const share_ticket& h, wait_deadline until, fetched_share& into) {
  const std::string exporter = process_name(h.process);
  descriptor connection{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  if (!connection) return system_error("cannot ask " + exporter + " for what it shares", errno);
  const auto [address, length] = address_of(h.door);
  if (::connect(connection.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    if (errno == EAGAIN || errno == EINTR) return attempt::again;  // its queue of connections is full
    if (errno == ECONNREFUSED) {
      return make_error(errc::peer_dead,
                        exporter + ", which exported this handle, or its machine, is gone" +
                            (into.exporter && into.exporter->alive_now() ? "; the process itself lives" : ""),
                        error_scope::process);
    }
    return system_error("cannot ask " + exporter + " for what it shares", errno);
  }
  const auto who = maker_of(connection.get());
  if (!who || who->uid != ::geteuid()) {
    return make_error(errc::corrupt, "the address in this handle is held by another user; nothing was said to it");
  }
  if (who->pid == ::getpid()) {
    return make_error(errc::invalid_argument,
                      "this handle was exported by this very process; use what it names, a handle is for others",
                      error_scope::call, 201);
  }
  if (who->pid == 0) {
    return make_error(errc::unsupported,
                      "the exporter is in a PID namespace that is not seen from here, so its death would "
                      "not be noticed; start both in one");
  }
  // Watched before it is asked: whoever answers lived when it was watched, so the number is its own.
  if (!into.exporter || into.exporter->pid() != static_cast<std::uint32_t>(who->pid)) {
    auto watched = watch_of(static_cast<std::uint32_t>(who->pid));
    if (!watched) return std::move(watched).error();
    into.exporter = std::move(*watched);
  }
  const auto request = encode_request(h);
  if (::send(connection.get(), request.data(), request.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    if (errno == EPIPE || errno == ECONNRESET || errno == EAGAIN || errno == EINTR) return attempt::again;
    return system_error("cannot ask " + exporter + " for what it shares", errno);
  }
  for (;;) {
    std::array<std::byte, reply_size + 1> room;
    raw_packet raw;
    const auto got = receive_packet(connection.get(), room, raw, exporter.c_str());
    if (!got) return error{got.error()};
    if (*got == packet_io::later) {
      const auto left = until - steady_now();
      if (left <= nanoseconds{0}) return attempt::again;
      // An exporter that forked leaves its socket to a child that answers nobody: its death ends the wait.
      if (!into.exporter->alive_now()) {
        return make_error(errc::peer_dead, exporter + " has died before it handed out what it shares",
                          error_scope::process);
      }
      pollfd state{connection.get(), POLLIN, 0};
      const auto slice = std::min<nanoseconds>(left, milliseconds{20});
      const timespec time{0, static_cast<long>(slice.count())};
      static_cast<void>(::ppoll(&state, 1, &time, nullptr));
      continue;
    }
    if (raw.bytes.empty()) return attempt::again;
    std::vector<descriptor>& files = raw.descriptors;
    auto reply = decode_reply(raw.bytes);
    if (!reply) return std::move(reply).error();
    if (reply->answer == share_answer::gone) {
      return make_error(errc::closed, "stale: " + exporter + " has freed what this handle names");
    }
    if (reply->answer != share_answer::granted) {
      return make_error(errc::corrupt, exporter + " refused this handle: it names no range of what was exported");
    }
    if (files.empty() || files.size() > 2) {
      if (raw.lost_descriptors) {
        return make_error(errc::resource_exhausted, "no descriptor is left for what " + exporter +
                                                        " shares; raise the process's limit of open files (ulimit -n)");
      }
      return make_error(errc::corrupt, exporter + " answered without what it shares");
    }
    if (h.kind != share_kind::block) {  // a block is the driver's own file, and the driver checks it
      auto checked = check_memory_file(files[0].get(), reply->size, memory_file_pages::any, "memory of " + exporter);
      if (!checked) return std::move(checked).error();
    }
    if (h.offset > reply->size || h.size > reply->size - h.offset)
      return make_error(errc::corrupt, "what " + exporter + " shares is smaller than its handle says");
    into.file = std::move(files[0]);
    if (files.size() == 2) into.second = std::move(files[1]);
    into.reply = *reply;
    return attempt::done;
  }
}

}  // namespace

result<fetched_share> fetch_share(const share_ticket& h, nanoseconds timeout,
                                  const std::shared_ptr<process_watch>& known) {
  if (h.boot != this_boot()) {
    return make_error(errc::incompatible, "this handle is from another computer, or from before this one was started");
  }
  const wait_deadline until = deadline_after(steady_now(), timeout);
  fetched_share got;
  got.exporter = known;
  for (;;) {
    auto tried = try_fetch(h, until, got);
    if (!tried) return std::move(tried).error();
    if (*tried == attempt::done) return got;
    const auto left = until - steady_now();
    if (left <= nanoseconds{0}) {
      return make_error(errc::timed_out, process_name(h.process) + " did not hand out what it shares within " +
                                             std::to_string(std::chrono::duration_cast<milliseconds>(timeout).count()) +
                                             " ms; is it stopped?");
    }
    nap(std::min<nanoseconds>(left, milliseconds{1}));
  }
}

}  // namespace weft::detail
