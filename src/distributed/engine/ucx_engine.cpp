// SPDX-License-Identifier: Apache-2.0
#include "core/errors/make_error.hpp"
#include "distributed/engine/engine.hpp"
#include "distributed/engine/ucp_declarations.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <optional>
#include <sstream>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

extern char** environ;  // NOLINT(readability-redundant-declaration): POSIX declares it only with _GNU_SOURCE

namespace weft::detail {
namespace {

constexpr const char* library_file = "libucp.so.0";
constexpr unsigned am_greeting = 0;  // the active message that says which rank has connected

/// The process's environment with one entry more, for as long as this lives. setenv() may free what another thread
/// reads in this moment; here both arrays stay, and the pointer changes in one store. What another thread takes out of
/// the environment meanwhile is back afterwards. To be made once in a process.
class one_entry_more {
 public:
  explicit one_entry_more(const char* entry) : before_(environ) {
    static auto& all = *new std::vector<char*>;  // never freed: a reader may be in it at any later time
    for (char** e = before_; e != nullptr && *e != nullptr; ++e) all.push_back(*e);
    all.push_back(const_cast<char*>(entry));
    all.push_back(nullptr);
    now_ = all.data();
    std::atomic_ref{environ}.store(now_);
  }
  ~one_entry_more() {
    char** mine = now_;
    std::atomic_ref{environ}.compare_exchange_strong(mine, before_);  // else another thread has set something: it stays
  }
  one_entry_more(const one_entry_more&) = delete;
  one_entry_more& operator=(const one_entry_more&) = delete;

 private:
  char** before_;
  char** now_ = nullptr;
};

/// As it is loaded, UCX writes jumps over the first instructions of mmap(), munmap() and others, for its cache of
/// registered memory, which no engine here needs. A thread that is in one of them comes back into half an instruction:
/// `weft topo` over four virtual GPUs died in 50 of 120 runs. What the user has set stands.
void* loaded() {
  std::optional<one_entry_more> without_hooks;
  if (std::getenv("UCX_MEM_MMAP_HOOK_MODE") == nullptr) without_hooks.emplace("UCX_MEM_MMAP_HOOK_MODE=none");
  return ::dlopen(library_file, RTLD_NOW | RTLD_LOCAL);
}

/// The library stays open: it registers handlers that outlive its last user.
result<const ucp::calls*> opened() {
  struct found {
    ucp::calls calls;
    std::string missing;
  };
  static const found library = [] {
    found made;
    void* handle = loaded();
    if (handle == nullptr) {
      const char* why = ::dlerror();
      made.missing = why != nullptr ? why : std::string{library_file} + " cannot be opened";
      return made;
    }
    const auto find = [&](auto& call, const char* name) {
      void* at = ::dlsym(handle, name);
      if (at == nullptr) made.missing = std::string{library_file} + " has no " + name + ": UCX 1.13 or later is needed";
      call = reinterpret_cast<std::remove_reference_t<decltype(call)>>(at);
    };
    ucp::calls& c = made.calls;
    find(c.get_version, "ucp_get_version");
    find(c.config_read, "ucp_config_read");
    find(c.config_modify, "ucp_config_modify");
    find(c.config_release, "ucp_config_release");
    find(c.init_version, "ucp_init_version");
    find(c.cleanup, "ucp_cleanup");
    find(c.worker_create, "ucp_worker_create");
    find(c.worker_destroy, "ucp_worker_destroy");
    find(c.worker_get_address, "ucp_worker_get_address");
    find(c.worker_release_address, "ucp_worker_release_address");
    find(c.worker_progress, "ucp_worker_progress");
    find(c.worker_get_efd, "ucp_worker_get_efd");
    find(c.worker_arm, "ucp_worker_arm");
    find(c.worker_set_am_recv_handler, "ucp_worker_set_am_recv_handler");
    find(c.ep_create, "ucp_ep_create");
    find(c.ep_print_info, "ucp_ep_print_info");
    find(c.ep_flush_nbx, "ucp_ep_flush_nbx");
    find(c.ep_close_nbx, "ucp_ep_close_nbx");
    find(c.tag_send_nbx, "ucp_tag_send_nbx");
    find(c.tag_recv_nbx, "ucp_tag_recv_nbx");
    find(c.am_send_nbx, "ucp_am_send_nbx");
    find(c.request_cancel, "ucp_request_cancel");
    find(c.request_check_status, "ucp_request_check_status");
    find(c.request_free, "ucp_request_free");
    find(c.status_string, "ucs_status_string");
    return made;
  }();
  if (!library.missing.empty()) return make_error(errc::not_found, "UCX: " + library.missing);
  return &library.calls;
}

class ucx_engine final : public engine {
 public:
  ucx_engine(const ucp::calls& calls, std::string name, int self, int ranks)
      : calls_(calls), name_(std::move(name)), self_(self), peers_(static_cast<std::size_t>(ranks)) {
    to_greet_.reserve(peers_.size());  // it grows in a callback of UCX, which must not throw
    unwanted_.reserve(peers_.size());
  }

  ~ucx_engine() override {
    if (worker_ != nullptr) {
      // Before 1.14 UCX ends the process where a connection is closed that it still makes, as with a rank that stands
      // still: the worker is left to the end of the process then.
      if (!close_all() && minor_ < 14) return;
      take_what_nobody_received();
      calls_.worker_destroy(worker_);
    }
    if (context_ != nullptr) calls_.cleanup(context_);
  }

  result<void> open(unsigned minor) {
    minor_ = minor;
    ucp::config* settings = nullptr;
    if (const auto failed = calls_.config_read(nullptr, nullptr, &settings))
      return refused("read its settings", failed);
    // Over TCP, UCX moves 8 KiB at a time, and with errors handled it has no better way for large messages: 1 MiB goes
    // at 0.6 of its own best, and near that best with these (bench_distributed_messages). What the user sets stands.
    // Before 1.17 the name goes without that of the transport; untested from there on, where a wrong one is a warning
    // of UCX's.
    for (const char* variable : {"UCX_TCP_TX_SEG_SIZE", "UCX_TCP_RX_SEG_SIZE"})
      if (std::getenv(variable) == nullptr)
        static_cast<void>(calls_.config_modify(settings, variable + (minor < 17 ? 8 : 4), "256k"));
    ucp::params wanted;
    wanted.field_mask = ucp::params::has_features | ucp::params::has_estimated_eps;
    wanted.features = ucp::params::tags | ucp::params::active_messages | ucp::params::wakeup;
    wanted.estimated_num_eps = peers_.size();
    const auto failed = calls_.init_version(1, 13, &wanted, settings, &context_);
    calls_.config_release(settings);
    if (failed != ucp::ok) return refused("start", failed);
    ucp::worker_params how;
    how.field_mask = ucp::worker_params::has_thread_mode;
    how.thread_mode = ucp::worker_params::serialized;
    if (const auto none = calls_.worker_create(context_, &how, &worker_)) return refused("make a worker", none);
    if (const auto none = calls_.worker_get_efd(worker_, &wake_file_))
      return refused("tell when something arrives", none);
    ucp::message_handler greeting;
    greeting.field_mask =
        ucp::message_handler::has_id | ucp::message_handler::has_call | ucp::message_handler::has_user;
    greeting.id = am_greeting;
    greeting.user = this;
    greeting.call = [](void* user, const void* header, std::size_t size, void*, std::size_t, const void*) {
      static_cast<ucx_engine*>(user)->greeted_by(header, size);
      return ucp::ok;
    };
    if (const auto none = calls_.worker_set_am_recv_handler(worker_, &greeting)) return refused("take messages", none);
    return {};
  }

  const std::string& name() const noexcept override { return name_; }

  result<std::vector<std::byte>> address() override {
    ucp::address* at = nullptr;
    std::size_t size = 0;
    if (const auto failed = calls_.worker_get_address(worker_, &at, &size)) return refused("tell its address", failed);
    const auto* bytes = reinterpret_cast<const std::byte*>(at);
    std::vector<std::byte> made{bytes, bytes + size};
    calls_.worker_release_address(worker_, at);
    return made;
  }

  void introduce(std::vector<std::vector<std::byte>> addresses) override {
    for (std::size_t r = 0; r < peers_.size(); ++r) peers_[r].address = std::move(addresses[r]);
  }

  void send(transfer& t, int to, message_tag tag, std::span<const std::byte> bytes) override {
    peer& p = peers_[index(to)];
    connect(p);
    if (p.failure) return fail(t, *p.failure);
    if (!p.is_open()) {
      p.waiting.push_back({&t, full_tag(self_, tag), bytes});
      t.native = &p;
      return;
    }
    begin_to_send(p, {&t, full_tag(self_, tag), bytes});
  }

  void receive(transfer& t, int from, message_tag tag, std::span<std::byte> into) override {
    receive_matching(t, full_tag(from, tag), ~std::uint64_t{}, into);
    // Its death is seen by the end of a connection: there has to be one.
    if (t.is_under_way()) connect(peers_[index(from)]);
  }

  void receive_any(transfer& t, message_tag tag, std::span<std::byte> into) override {
    receive_matching(t, full_tag(0, tag), full_tag(0, {~std::uint32_t{}, true}), into);
  }

  void cancel(transfer& t, int rank) override {
    if (!t.is_under_way() || t.native == nullptr) return;  // one that was never started has nothing of UCX's
    if (std::erase_if(peers_[index(rank)].waiting, [&](const message& m) { return m.as == &t; }) > 0) {
      t.native = nullptr;
      return t.end(transfer::stage::cancelled);
    }
    calls_.request_cancel(worker_, t.native);
    // What is being sent does not obey: UCX ends it with its connection.
    for (int n = 0; n < 1000 && t.is_under_way(); ++n) calls_.worker_progress(worker_);
    if (t.is_under_way()) {
      peer& gone = peers_[index(rank)];
      lost(gone, "a message to it was given up");
      if (gone.ep != nullptr) close(gone);
      while (t.is_under_way()) calls_.worker_progress(worker_);
    }
  }

  void disconnect(int rank) override {
    unwanted_.push_back(&peers_[index(rank)]);
    close_unwanted();
  }

  void withdraw(transfer& t) override {
    if (t.is_under_way() && t.native != nullptr) calls_.request_cancel(worker_, t.native);
  }

  const std::string* failure(int rank) const noexcept override {
    const auto& why = peers_[index(rank)].failure;
    return why ? &*why : nullptr;
  }

  // UCX before 1.14 tells it to people only: "#  lane[0]:  1:tcp/eth0.0 md[1] -> ..."
  std::string transport_to(int rank) const override {
    ucp::endpoint* const ep = peers_[index(rank)].ep;
    char* text = nullptr;
    std::size_t size = 0;
    std::FILE* const told = ep != nullptr ? ::open_memstream(&text, &size) : nullptr;
    if (told == nullptr) return {};
    calls_.ep_print_info(ep, told);
    std::fclose(told);
    std::string made;
    std::istringstream lines{std::string{text, size}};
    std::free(text);
    for (std::string line; std::getline(lines, line);) {
      const std::size_t lane = line.find("lane["), name = lane == std::string::npos ? lane : line.find(':', lane);
      if (name == std::string::npos) continue;
      std::istringstream words{line.substr(name + 1)};
      std::string one;
      words >> one;  // "1:tcp/eth0.0"
      one = one.substr(one.find(':') + 1);
      one = one.substr(0, one.rfind('.'));
      if (one.empty() || ("+" + made + "+").find("+" + one + "+") != std::string::npos) continue;
      made += (made.empty() ? "" : "+") + one;
    }
    return made;
  }

  bool progress() override {
    bool moved = calls_.worker_progress(worker_) != 0;
    while (!to_greet_.empty()) {
      moved = true;
      peer& next = *to_greet_.back();
      to_greet_.pop_back();  // first: more may greet while it connects
      connect(next);
    }
    return close_unwanted() || moved;
  }
  int wake_file() const noexcept override { return wake_file_; }
  bool arm() noexcept override { return to_greet_.empty() && calls_.worker_arm(worker_) != ucp::busy; }

 private:
  struct message {
    transfer* as;
    std::uint64_t tag;
    std::span<const std::byte> bytes;
  };
  struct peer {
    std::vector<std::byte> address;
    ucp::endpoint* ep = nullptr;
    std::optional<std::string> failure;
    // While UCX connects two ranks, neither may close its end: the other one's would meet assertions of UCX that end
    // the process. So each says to the other when its own end is there; messages wait here until both have said it.
    bool has_greeted = false, was_greeted = false;
    std::vector<message> waiting;

    [[nodiscard]] bool is_open() const noexcept { return has_greeted && was_greeted; }
  };

  static std::size_t index(int rank) noexcept { return static_cast<std::size_t>(rank); }
  static std::uint64_t full_tag(int from, message_tag tag) noexcept {
    return static_cast<std::uint64_t>(tag.is_own) << 63U | static_cast<std::uint64_t>(from) << 32U | tag.number;
  }

  void receive_matching(transfer& t, std::uint64_t tag, std::uint64_t mask, std::span<std::byte> into) {
    t.bytes = into.size();
    ucp::request_params how = calling(t);
    // A message that is here already is told by the call as well: UCX before 1.16 gives its size in no other way.
    how.field_mask |= ucp::request_params::never_at_once;
    how.call.received = [](void* request, ucp::status status, const ucp::tag_info* got, void* user) {
      ended(request, status, got->length, user);
    };
    begun(t, calls_.tag_recv_nbx(worker_, into.data(), into.size(), tag, mask, &how));
  }

  // Begins to connect with that rank, once.
  void connect(peer& p) {
    if (p.failure || p.ep != nullptr) return;
    // First UCX looks at its connections. It makes an endpoint out of one that the other rank has opened to us; if that
    // is broken by now, sending over it fails before UCX expects it, and an assertion of UCX ends the process. This
    // makes it rare.
    for (int n = 0; n < 10'000 && calls_.worker_progress(worker_) != 0; ++n) {
    }
    ucp::endpoint_params how;
    how.field_mask = ucp::endpoint_params::has_address | ucp::endpoint_params::has_error_mode |
                     ucp::endpoint_params::has_error_handler;
    how.to = reinterpret_cast<const ucp::address*>(p.address.data());
    how.error_mode = ucp::endpoint_params::peer_errors;
    how.on_error.user = &p;
    how.on_error.call = [](void* user, ucp::endpoint*, ucp::status why) {
      lost(*static_cast<peer*>(user), text_of(why));
    };
    if (const auto failed = calls_.ep_create(worker_, &how, &p.ep); failed != ucp::ok) return lost(p, text_of(failed));
    ucp::request_params plain{};
    const ucp::started greeting = calls_.am_send_nbx(p.ep, am_greeting, &self_, sizeof self_, nullptr, 0, &plain);
    if (ucp::is_error(greeting)) return lost(p, text_of(ucp::error_of(greeting)));
    if (greeting != nullptr) calls_.request_free(greeting);  // once it has ended
    plain.field_mask = ucp::request_params::has_callback | ucp::request_params::has_user_data;
    plain.user_data = &p;
    plain.call.sent = [](void* request, ucp::status how_it_ended, void* user) {
      greeted(*static_cast<peer*>(user), how_it_ended);
      (*opened())->request_free(request);
    };
    const ucp::started flush = calls_.ep_flush_nbx(p.ep, &plain);
    if (flush == nullptr || ucp::is_error(flush)) greeted(p, ucp::error_of(flush));
  }

  static void greeted(peer& p, ucp::status how) {
    if (how != ucp::ok) return lost(p, text_of(how));
    p.has_greeted = true;
    send_what_waits(p);
  }

  // In a callback of UCX, which must not connect.
  void greeted_by(const void* header, std::size_t size) {
    int rank = -1;
    if (size != sizeof rank) return;
    std::memcpy(&rank, header, sizeof rank);
    if (rank < 0 || index(rank) >= peers_.size()) return;
    peer& p = peers_[index(rank)];
    p.was_greeted = true;
    if (p.ep == nullptr) return to_greet_.push_back(&p);
    send_what_waits(p);
  }

  static void lost(peer& p, std::string why) {
    if (!p.failure) p.failure = std::move(why);
    for (const message& m : std::exchange(p.waiting, {})) {
      m.as->native = nullptr;
      fail(*m.as, *p.failure);
    }
  }

  static void send_what_waits(peer& p) {
    if (!p.is_open() || p.failure) return;
    for (const message& m : std::exchange(p.waiting, {})) begin_to_send(p, m);
  }

  static void begin_to_send(peer& p, const message& m) {
    ucp::request_params how = calling(*m.as);
    how.call.sent = [](void* request, ucp::status status, void* user) { ended(request, status, 0, user); };
    begun(*m.as, (*opened())->tag_send_nbx(p.ep, m.bytes.data(), m.bytes.size(), m.tag, &how));
  }

  static ucp::request_params calling(transfer& t) noexcept {
    ucp::request_params how;
    how.field_mask = ucp::request_params::has_callback | ucp::request_params::has_user_data;
    how.user_data = &t;
    return how;
  }

  static void end(transfer& t, ucp::status how, std::size_t bytes) {
    // A message that was here already may end well, and be longer than what was copied.
    const bool is_cut = how == ucp::message_truncated || (how == ucp::ok && bytes > t.bytes);
    t.bytes = bytes;
    t.native = nullptr;
    if (is_cut) {
      fail(t, "the message is longer than the memory for it");
    } else if (how == ucp::ok) {
      t.end(transfer::stage::done);
    } else if (how == ucp::cancelled) {
      t.end(transfer::stage::cancelled);
    } else {
      fail(t, text_of(how));
    }
  }

  static void ended(void* request, ucp::status how, std::size_t bytes, void* user) {
    end(*static_cast<transfer*>(user), how, bytes);
    (*opened())->request_free(request);
  }

  static void begun(transfer& t, ucp::started s) {
    if (!t.is_under_way()) return;  // it was told while it was started
    if (s == nullptr || ucp::is_error(s)) return end(t, ucp::error_of(s), 0);
    t.native = s;
  }

  // Progresses until a request has ended, or a peer has failed, whose requests may never end; no longer than `until`.
  void wait_for(ucp::started s, const peer& p, std::chrono::steady_clock::time_point until) {
    if (s == nullptr || ucp::is_error(s)) return;
    while (calls_.request_check_status(s) > ucp::ok && !p.failure && std::chrono::steady_clock::now() < until)
      calls_.worker_progress(worker_);
    calls_.request_free(s);
  }

  // What is in flight is lost.
  void close(peer& p) {
    ucp::request_params how;
    how.field_mask = ucp::request_params::has_flags;
    how.flags = ucp::request_params::close_by_force;
    wait_for(calls_.ep_close_nbx(std::exchange(p.ep, nullptr), &how), p, steady_second());
  }

  // A connection that is still being made stays for later.
  bool close_unwanted() {
    return std::erase_if(unwanted_, [this](peer* p) {
             if (!p->is_open() && !p->failure) return false;
             if (p->ep != nullptr) close(*p);  // first: for a peer that is lost it would not wait
             lost(*p, "this rank ended the connection");
             return true;
           }) > 0;
  }

  // First both ends of every connection are there, and what was sent leaves this process; for a second at most: a rank
  // that stands still takes nothing. False where a connection is still being made, which stays as it is before 1.14.
  bool close_all() {
    if (!to_greet_.empty()) progress();
    const auto until = steady_second();
    const auto is_connecting = [](const peer& p) { return p.ep != nullptr && !p.failure && !p.is_open(); };
    while (std::ranges::any_of(peers_, is_connecting) && std::chrono::steady_clock::now() < until) progress();
    const ucp::request_params plain{};
    std::vector<std::pair<peer*, ucp::started>> leaving;
    for (peer& p : peers_)
      if (p.is_open() && !p.failure) leaving.emplace_back(&p, calls_.ep_flush_nbx(p.ep, &plain));
    for (const auto& [p, flush] : leaving) wait_for(flush, *p, until);
    const bool all_are_made = std::ranges::none_of(peers_, is_connecting);
    for (peer& p : peers_)
      if (p.ep != nullptr && (minor_ >= 14 || !is_connecting(p))) close(p);
    return all_are_made;
  }

  // UCX warns of messages that are left, on the standard output of the program.
  void take_what_nobody_received() {
    for (bool came = true; came;) {
      transfer& any = last_;
      any.at = transfer::stage::under_way;
      receive_matching(any, 0, 0, left_over_);
      for (int n = 0; n < 100 && any.is_under_way(); ++n) calls_.worker_progress(worker_);
      came = !any.is_under_way();
      if (came) continue;
      calls_.request_cancel(worker_, any.native);
      for (int n = 0; n < 1000 && any.is_under_way(); ++n) calls_.worker_progress(worker_);
    }
  }

  static std::chrono::steady_clock::time_point steady_second() {
    return std::chrono::steady_clock::now() + std::chrono::seconds{1};
  }

  static std::string text_of(ucp::status why) { return (*opened())->status_string(why); }

  error refused(const char* doing, ucp::status why) const {
    error cause = make_error(errc::not_found, name_ + " cannot " + doing + ": " + calls_.status_string(why));
    cause.native_code = why;
    return cause;
  }
  static void fail(transfer& t, std::string why) {
    t.why = std::move(why);
    t.end(transfer::stage::failed);
  }

  const ucp::calls& calls_;
  std::string name_;
  int self_;
  std::vector<peer> peers_;                // by rank; it never grows: endpoints point into it
  std::array<std::byte, 64> left_over_{};  // what nobody received, cut; with `last_`, there until the worker has gone
  transfer last_;
  std::vector<peer*> to_greet_, unwanted_;
  ucp::context* context_ = nullptr;
  ucp::worker* worker_ = nullptr;
  int wake_file_ = -1;
  unsigned minor_ = 0;  // of its release 1.x
};

}  // namespace

result<std::string> version_of_ucx() {
  const auto calls = opened();
  if (!calls) return calls.error();
  unsigned major = 0, minor = 0, release = 0;
  (*calls)->get_version(&major, &minor, &release);
  return "ucx " + std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(release);
}

result<std::unique_ptr<engine>> open_ucx(int self, int ranks) {
  const auto calls = opened();
  if (!calls) return calls.error();
  auto made = std::make_unique<ucx_engine>(**calls, *version_of_ucx(), self, ranks);
  unsigned major = 0, minor = 0, release = 0;
  (*calls)->get_version(&major, &minor, &release);
  if (auto open = made->open(minor); !open) return std::move(open).error();
  return std::unique_ptr<engine>{std::move(made)};
}

}  // namespace weft::detail
