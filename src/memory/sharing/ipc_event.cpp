// SPDX-License-Identifier: Apache-2.0
#include "weft/memory/ipc_event.hpp"

#include "core/errors/called_from.hpp"
#include "core/errors/make_error.hpp"
#include "memory/memory_state.hpp"
#include "memory/sharing/ipc_event_body.hpp"
#include "os/parking.hpp"
#include "processes/packet_socket.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <new>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <system_error>
#include <unistd.h>

namespace weft {
namespace detail {
namespace {

using clock_type = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::size_t page_bytes = 4096;
constexpr milliseconds between_looks{5};  // at who may have died

std::string who(std::uint32_t pid) { return "process " + std::to_string(pid); }

clock_type::time_point after(std::chrono::nanoseconds timeout) {
  return clock_type::time_point{deadline_after(steady_now(), timeout)};
}

std::string waited(std::uint64_t number, std::uint64_t recorded) {
  return "record " + std::to_string(number) + " of an event between processes" +
         (recorded < number ? ", of which " + std::to_string(recorded) + " were made," : "");
}

/// When this process started. It is looked up once, and again in the child of a fork.
std::uint64_t own_start_time() {
  static std::atomic<std::uint64_t> started{0};
  static std::atomic<pid_t> of{0};
  const pid_t self = ::getpid();
  if (of.load(std::memory_order_acquire) != self) {
    started.store(start_time_of(self), std::memory_order_relaxed);
    of.store(self, std::memory_order_release);  // pairs with the acquire above
  }
  return started.load(std::memory_order_relaxed);
}

bool is_of(std::uint64_t number, std::uint64_t claim) { return claim >> 32 == (number & 0xffff'ffff); }

}  // namespace

ipc_event_body::ipc_event_body(std::shared_ptr<machine_state> state, descriptor file,
                               std::shared_ptr<process_watch> owner)
    : state_(std::move(state)), file_(std::move(file)), owner_(std::move(owner)) {
  void* at = ::mmap(nullptr, page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
  if (at == MAP_FAILED) raise(system_error("mapping an event between processes", errno));
  if (!owner_) {
    page_ = ::new (at) ipc_event_page{};
    page_->magic = ipc_event_page::the_magic;
    return;
  }
  page_ = static_cast<ipc_event_page*>(at);
  if (page_->magic != ipc_event_page::the_magic) {
    ::munmap(at, page_bytes);
    raise(errc::corrupt, who(owner_->pid()) + " shares no event under this handle");
  }
}

ipc_event_body::~ipc_event_body() {
  // in the child of a fork this is a copy: the event lives on in the parent
  if (is_owner() && !state_->forked()) {
    if (key != 0) memory_of(*state_).events().server.withdraw(key);
    page_->owner_gone.store(1, std::memory_order_release);  // pairs with acquire in look
    ring();
  }
  ::munmap(page_, page_bytes);
}

void ipc_event_body::ring() noexcept {
  page_->bell.fetch_add(1, std::memory_order_release);  // pairs with acquire before a sleep
  parking::wake_all(page_->bell, parking::word_scope::shared);
}

bool ipc_event_body::is_dead(std::uint32_t pid, std::optional<std::uint64_t> start) {
  if (pid == static_cast<std::uint32_t>(::getpid())) return false;
  if (owner_ && owner_->pid() == pid) return !owner_->alive();
  const std::lock_guard lock{mutex_};
  const std::uint64_t started = start.value_or(0);
  if (!start) recorders_.erase({pid, started});  // the number may have gone to another process since
  // A page has room for so many recorders. Where more have been seen, somebody writes garbage: forget them all, because
  // each holds a descriptor.
  if (recorders_.size() >= page_->records.size() && !recorders_.contains({pid, started})) recorders_.clear();
  const auto [it, is_new] = recorders_.try_emplace({pid, started});
  if (is_new) {
    auto watched = watch_process(static_cast<pid_t>(pid), started);
    if (watched) {
      it->second = std::make_shared<process_watch>(descriptor{watched->release()}, pid);
    } else if (watched.error().code != errc::peer_dead) {
      recorders_.erase(it);  // no descriptor for it now: look again later
      return false;
    }
  }
  return !it->second || !it->second->alive();
}

ipc_event_body::verdict ipc_event_body::look(std::uint64_t number) {
  auto& record = page_->records[number % page_->records.size()];
  const std::uint64_t made = page_->recorded.load(std::memory_order_acquire);  // the claims of so many are seen below
  const std::uint64_t word = record.word.load(std::memory_order_acquire);      // pairs with release in end
  const std::uint64_t at = word >> 8;
  if (at > number) {  // its place was used again, which only happens once it has ended, or whoever made it
    if (record.lost.load(std::memory_order_relaxed) < number) return {true, std::nullopt};
    return {true, make_error(errc::kernel_failed, "how " + waited(number, at) + " ended is not known any more, as " +
                                                      std::to_string(page_->records.size()) +
                                                      " were made since; it failed, or a later one at its place")};
  }
  const std::uint64_t claim = record.claim.load(std::memory_order_acquire);       // pairs with the exchange in begin
  const bool is_near = number <= made || number - made <= page_->records.size();  // so the low half names it
  const bool is_claimed = at < number && is_near && is_of(number, claim);         // and no more: `pid` is another's
  if (at == number || is_claimed) {
    const auto state = is_claimed ? ipc_event_page::begun : word & 0xff;
    if (state == ipc_event_page::done) return {true, std::nullopt};
    const std::uint32_t pid =
        is_claimed ? static_cast<std::uint32_t>(claim) : record.pid.load(std::memory_order_relaxed);
    if (state == ipc_event_page::failed) {
      const std::uint32_t code = record.code.load(std::memory_order_relaxed);
      const errc why =
          code <= static_cast<std::uint32_t>(errc::device_lost) ? static_cast<errc>(code) : errc::kernel_failed;
      const bool ends_a_device = why == errc::device_lost || why == errc::illegal_access;  // there, not here
      return {true, make_error(ends_a_device ? errc::kernel_failed : why,
                               "work that " + who(pid) + " recorded as number " + std::to_string(number) +
                                   " of an event failed there: " + std::string{to_string(why)})};
    }
    if (!(is_claimed ? is_dead(pid, std::nullopt) : is_dead(pid, record.started.load(std::memory_order_relaxed))))
      return {};
    if (record.word.load(std::memory_order_acquire) != word) return {};  // it ended, and then died: the next look tells
    return {true, make_error(errc::peer_dead, who(pid) + ", which made " + waited(number, number) + " has died",
                             error_scope::process)};
  }
  if (number <= made) {  // it was claimed, and the claim in its place is a later one
    if (record.word.load(std::memory_order_acquire) != word) return {};
    return {true, make_error(errc::peer_dead, "the process that made " + waited(number, number) + " has died",
                             error_scope::process)};
  }
  if (!owner_) return {};
  if (page_->owner_gone.load(std::memory_order_acquire) != 0) {
    return {true, make_error(errc::closed, who(owner_->pid()) + " let an event go before " +
                                               waited(number, page_->recorded.load()) + " was made")};
  }
  if (!owner_->alive()) {
    return {true, make_error(errc::peer_dead,
                             who(owner_->pid()) + ", which owns the event, died before " +
                                 waited(number, page_->recorded.load()) + " was made",
                             error_scope::process)};
  }
  return {};
}

std::uint64_t ipc_event_body::begin() {
  const auto self = static_cast<std::uint32_t>(::getpid());
  const std::uint64_t started = own_start_time();  // may find no memory, which a claim would not outlive
  for (;;) {
    std::uint64_t before = page_->recorded.load(std::memory_order_acquire);
    const std::uint64_t number = before + 1;
    auto& record = page_->records[number % page_->records.size()];
    const std::uint64_t word = record.word.load(std::memory_order_acquire);
    std::uint64_t claim = record.claim.load(std::memory_order_acquire);       // pairs with the exchange below
    if (page_->recorded.load(std::memory_order_acquire) != before) continue;  // so the claim is of no later number
    if (is_of(number, claim)) {  // whoever made it may have died before it was counted
      page_->recorded.compare_exchange_weak(before, number, std::memory_order_acq_rel);
      continue;
    }
    const bool begun = (word & 0xff) == ipc_event_page::begun;
    const bool taken = number > page_->records.size() && (word >> 8) < number - page_->records.size();
    if ((begun || taken) && !(taken ? is_dead(static_cast<std::uint32_t>(claim), std::nullopt)
                                    : is_dead(record.pid.load(std::memory_order_relaxed),
                                              record.started.load(std::memory_order_relaxed)))) {
      raise(errc::resource_exhausted, "record " + std::to_string(number - page_->records.size()) + " of an event, " +
                                          std::to_string(page_->records.size()) +
                                          " before this one, has not ended; wait for it first");
    }
    if (record.word.load(std::memory_order_acquire) != word) continue;  // it ended, or began, before the death
    if (!record.claim.compare_exchange_weak(claim, number << 32 | self, std::memory_order_acq_rel)) continue;
    page_->recorded.compare_exchange_strong(before, number, std::memory_order_acq_rel);  // or another one has
    if (taken)
      record.lost.store(number - page_->records.size(), std::memory_order_relaxed);
    else if ((word & 0xff) == ipc_event_page::failed || begun)
      record.lost.store(word >> 8, std::memory_order_relaxed);
    record.pid.store(self, std::memory_order_relaxed);
    record.started.store(started, std::memory_order_relaxed);
    record.word.store(number << 8 | ipc_event_page::begun, std::memory_order_release);  // pairs with acquire in look
    return number;
  }
}

void ipc_event_body::end(std::uint64_t number, const error* cause) noexcept {
  auto& record = page_->records[number % page_->records.size()];
  if (cause != nullptr) record.code.store(static_cast<std::uint32_t>(cause->code), std::memory_order_relaxed);
  record.word.store(number << 8 | (cause != nullptr ? ipc_event_page::failed : ipc_event_page::done),
                    std::memory_order_release);  // pairs with acquire in look
  ring();
}

// ---- streams that wait ----------------------------------------------------------------------------------------------

void ipc_event_service::add(waiting one) {
  const std::lock_guard lock{mutex_};
  if (stops_.load(std::memory_order_relaxed)) return;  // the gate ends with the machine
  fresh_.push_back(std::move(one));
  bell_.fetch_add(1, std::memory_order_release);          // pairs with acquire in serve
  parking::wake_all(bell_, parking::word_scope::shared);  // it is waited for beside words of others
  if (thread_.joinable()) return;
  try {
    thread_ = std::thread{[this] { serve(); }};
  } catch (const std::bad_alloc&) {
    fresh_.pop_back();
    throw;
  } catch (const std::system_error&) {
    fresh_.pop_back();
    raise(errc::resource_exhausted,
          "no thread could be started that waits for events of other processes; raise the "
          "limit of threads (ulimit -u)");
  }
}

void ipc_event_service::stop() noexcept {
  std::thread ends;
  {
    const std::lock_guard lock{mutex_};
    stops_.store(true, std::memory_order_release);  // pairs with acquire in serve
    ends.swap(thread_);
  }
  bell_.fetch_add(1, std::memory_order_release);
  parking::wake_all(bell_, parking::word_scope::shared);  // it is waited for beside words of others
  if (ends.joinable()) {
    if (here_.forked()) {
      ends.detach();
    } else {
      ends.join();
    }
  }
  // What the thread had not looked at yet holds the machine, and the machine holds this; the backend ends its gates.
  std::vector<waiting> unseen;
  {
    const std::lock_guard lock{mutex_};
    unseen.swap(fresh_);
  }
  unseen.clear();
  server.stop();
}

namespace {

/// Sleeps until any of these words has changed, or for a while.
void park_any(std::vector<std::pair<std::atomic<std::uint32_t>*, std::uint32_t>>& words,
              std::chrono::nanoseconds timeout) {
  struct one_word {
    std::uint64_t value, address;
    std::uint32_t flags, reserved;
  };
  constexpr long futex_waitv = 449;
  constexpr std::uint32_t of_32_bits = 2;
  std::vector<one_word> list;
  for (std::size_t i = 0; i < std::min<std::size_t>(words.size(), 128); ++i) {
    list.push_back({words[i].second, reinterpret_cast<std::uintptr_t>(words[i].first), of_32_bits, 0});
  }
  timespec until{};
  ::clock_gettime(CLOCK_MONOTONIC, &until);
  const std::int64_t ns = until.tv_nsec + timeout.count();
  until.tv_sec += static_cast<std::time_t>(ns / 1'000'000'000);
  until.tv_nsec = static_cast<long>(ns % 1'000'000'000);
  if (::syscall(futex_waitv, list.data(), list.size(), 0, &until, CLOCK_MONOTONIC) < 0 && errno != EAGAIN &&
      errno != EINTR && errno != ETIMEDOUT) {
    const timespec nap{0, 200'000};  // a kernel before 5.16 waits for one word only, and a filter of calls may refuse
    ::nanosleep(&nap, nullptr);
  }
}

}  // namespace

void ipc_event_service::serve() noexcept {
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
  ::pthread_setname_np(::pthread_self(), "weft-events");
  std::vector<waiting> all_waiting;
  for (;;) {
    try {
      std::vector<std::pair<std::atomic<std::uint32_t>*, std::uint32_t>> words;
      words.emplace_back(&bell_, bell_.load(std::memory_order_acquire));
      if (stops_.load(std::memory_order_acquire)) return;
      {
        const std::lock_guard lock{mutex_};
        all_waiting.reserve(all_waiting.size() + fresh_.size());
        std::move(fresh_.begin(), fresh_.end(), std::back_inserter(all_waiting));
        fresh_.clear();
      }
      const auto now = clock_type::now();
      auto next = clock_type::time_point::max();
      std::erase_if(all_waiting, [&](waiting& one) {
        auto& bell = one.body->page().bell;
        const std::uint32_t seen = bell.load(std::memory_order_acquire);
        auto verdict = one.body->look(one.number);
        if (!verdict.ended && now >= one.until) {
          verdict.ended = true;
          verdict.cause = make_error(errc::timed_out, "a stream waited for " +
                                                          waited(one.number, one.body->page().recorded.load()) +
                                                          " until its timeout had passed");
        }
        if (!verdict.ended) {
          next = std::min(next, one.until);
          words.emplace_back(&bell, seen);
          return false;
        }
        one.owner->open_gate(one.gate,
                             verdict.cause ? std::make_shared<const error>(std::move(*verdict.cause)) : nullptr);
        return true;
      });
      std::chrono::nanoseconds timeout = all_waiting.empty() ? std::chrono::seconds{1} : between_looks;
      if (next != clock_type::time_point::max()) timeout = std::min<std::chrono::nanoseconds>(timeout, next - now);
      park_any(words, std::max(timeout, std::chrono::nanoseconds{0}));
    } catch (const std::bad_alloc&) {
      // who waits is told, and who comes later is served
      for (waiting& one : all_waiting) {
        if (one.gate) one.owner->open_gate(one.gate, no_memory_);  // none where it was being moved
      }
      all_waiting.clear();
    }
  }
}

}  // namespace detail

ipc_event::ipc_event(const machine& m, std::source_location where) {
  const called_from here{where};
  detail::state_of(m)->require_open();
  body_ = std::make_shared<detail::ipc_event_body>(
      detail::state_of(m),
      value_or_raise(
          detail::make_memory_file("weft-event", detail::page_bytes, detail::memory_file_pages::all_there, "an event")),
      nullptr);
}

ipc_event::ipc_event(const machine& m, const event_handle& handle, std::chrono::nanoseconds timeout,
                     std::source_location where) {
  const called_from here{where};
  detail::state_of(m)->require_open();
  const auto h = value_or_raise(detail::decode(handle.bytes()));
  if (h.kind != detail::share_kind::event) raise(errc::invalid_argument, "this is no handle of an event");
  auto got = value_or_raise(detail::fetch_share(h, timeout));
  if (got.reply.size != detail::page_bytes) raise(errc::corrupt, "an event of another size than those of this version");
  body_ = std::make_shared<detail::ipc_event_body>(detail::state_of(m), std::move(got.file), std::move(got.exporter));
}

event_handle ipc_event::handle(std::source_location where) const {
  const called_from here{where};
  if (!detail::not_moved_from(body_, "ipc_event")->is_owner()) {
    raise(errc::invalid_argument, "this event was opened here: pass on the handle it was opened with");
  }
  body_->state()->require_open();
  auto& events = detail::memory_of(*body_->state()).events();
  const std::uint64_t door = value_or_raise(events.server.door());
  static std::mutex naming;
  const std::lock_guard lock{naming};
  if (body_->key == 0) {
    body_->key = detail::random_number();
    events.server.offer(body_->key, detail::share_kind::event, [weak = std::weak_ptr{body_}] {
      struct held {
        detail::share_grant grant;
        std::shared_ptr<detail::ipc_event_body> body;
      };
      std::shared_ptr<const detail::share_grant> none;
      auto body = weak.lock();
      if (!body) return none;
      auto made = std::make_shared<held>();
      made->grant.file = body->file();
      made->grant.size = detail::page_bytes;
      made->body = std::move(body);
      return std::shared_ptr<const detail::share_grant>{made, &made->grant};
    });
  }
  detail::share_ticket h;
  h.kind = detail::share_kind::event;
  h.process = static_cast<std::uint32_t>(::getpid());
  h.boot = detail::this_boot();
  h.door = door;
  h.key = body_->key;
  h.size = detail::page_bytes;
  return event_handle{detail::encode(h)};
}

std::uint64_t ipc_event::record(const stream& order, std::source_location where) const {
  const called_from here{where};
  if (detail::state_of(order) != detail::not_moved_from(body_, "ipc_event")->state())
    raise(errc::wrong_device, "the event belongs to another machine than the stream");
  const event done = order.record();
  const std::uint64_t number = body_->begin();
  if (const event_ref& work = done.record()) {
    try {
      work->on_complete([body = body_, number, work = work.get()] { body->end(number, work->cause().get()); });
    } catch (const std::bad_alloc&) {
      const error untold = no_host_memory();
      body_->end(number, &untold);  // others may wait for the number
      throw;
    }
  } else {
    body_->end(number, nullptr);
  }
  return number;
}

std::uint64_t ipc_event::recorded(std::source_location where) const {
  const called_from here{where};
  return detail::not_moved_from(body_, "ipc_event")->page().recorded.load(std::memory_order_acquire);
}

namespace {

void require_number(std::uint64_t number) {
  if (number == 0 || number > std::uint64_t{1} << 55)
    raise(errc::invalid_argument, "records of an event are numbered from 1; " + std::to_string(number) + " is none");
}

}  // namespace

bool ipc_event::ready(std::uint64_t number, std::source_location where) const {
  const called_from here{where};
  require_number(number);
  return detail::not_moved_from(body_, "ipc_event")->look(number).ended;
}

wait_outcome ipc_event::wait(std::uint64_t number, std::chrono::nanoseconds timeout, const std::stop_token& stop,
                             std::source_location where) const {
  const called_from here{where};
  require_number(number);
  const auto until = detail::after(timeout);
  auto& bell = detail::not_moved_from(body_, "ipc_event")->page().bell;
  for (;;) {
    const std::uint32_t seen = bell.load(std::memory_order_acquire);  // pairs with release in ring
    auto verdict = body_->look(number);
    if (verdict.ended) {
      if (verdict.cause) raise(std::move(*verdict.cause));
      return wait_outcome::ok;
    }
    body_->state()->require_open();
    if (stop.stop_requested()) return wait_outcome::cancelled;
    const auto now = detail::clock_type::now();
    if (now >= until) return wait_outcome::timed_out;
    parking::park(bell, seen, std::min(until, now + detail::between_looks), parking::word_scope::shared);
  }
}

event ipc_event::wait(const stream& order, std::uint64_t number, std::chrono::nanoseconds timeout,
                      std::source_location where) const {
  const called_from here{where};
  require_number(number);
  if (detail::state_of(order) != detail::not_moved_from(body_, "ipc_event")->state())
    raise(errc::wrong_device, "the event belongs to another machine than the stream");
  body_->state()->require_open();
  backend& own = body_->state()->backend_of(order.on().id());
  const auto over = detail::make<event>(body_->state(), value_or_raise(own.create_gate()));
  order.wait(over);
  try {
    detail::memory_of(*body_->state()).events().add({body_, number, detail::after(timeout), &own, over.record()});
  } catch (...) {
    own.open_gate(over.record(), nullptr);  // nobody else would
    throw;
  }
  return over;
}

}  // namespace weft
