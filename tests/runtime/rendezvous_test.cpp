// SPDX-License-Identifier: Apache-2.0
// Ranks are processes wherever one of them dies, is stopped, is another user or runs another program; where only their
// talk matters they are threads of this process, which the rendezvous does not mind and ThreadSanitizer can watch.
#include "weft/runtime/rendezvous.hpp"

#include "runtime/packet.hpp"
#include "runtime/packet_socket.hpp"
#include "runtime/rendezvous_address.hpp"
#include "support/samples.hpp"
#include "weft/core/raise.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <poll.h>
#include <random>
#include <set>
#include <signal.h>
#include <sstream>
#include <string>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {

using namespace std::chrono_literals;
using samples::error_of;
using samples::pattern;
using samples::soon;
using weft::descriptor;
using weft::errc;
using weft::join_options;
using weft::peer_message;
using weft::process_group;
using weft::rank;
using weft::rendezvous;
using weft::detail::packet;
using weft::detail::packet_io;
using weft::detail::packet_kind;
namespace wire = weft::detail;

using stopwatch = std::chrono::steady_clock;

std::span<const std::byte> view(const samples::data& d) { return std::as_bytes(std::span{d}); }
std::span<const std::byte> view(std::string_view s) { return std::as_bytes(std::span{s}); }
samples::data data_of(const std::vector<std::byte>& bytes) {
  samples::data made(bytes.size());
  std::transform(bytes.begin(), bytes.end(), made.begin(),
                 [](std::byte b) { return std::to_integer<std::uint8_t>(b); });
  return made;
}
std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator all{"/proc/self/fd"};  // itself one of them
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

/// Takes the free numbers below the highest open one, so that a limit leaves room for exactly as many as it says.
std::vector<descriptor> fill_holes() {
  int highest = 0;
  for (const auto& entry : std::filesystem::directory_iterator{"/proc/self/fd"}) {
    highest = std::max(highest, std::stoi(entry.path().filename()));
  }
  std::vector<descriptor> fill;
  do fill.emplace_back(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0));
  while (fill.back().get() <= highest);
  return fill;
}

/// A name that no other test of this machine has.
std::string fresh_name() {
  static std::atomic<int> next{0};
  return "test." + std::to_string(::getpid()) + "." + std::to_string(next++);
}

join_options within(std::chrono::nanoseconds limit) {
  join_options made;
  made.limit = limit;
  return made;
}

template <class T>
std::string failure_of(const weft::result<T>& r) {
  return r ? std::string{"nothing failed"} : to_string(r.error());
}
/// The code of a failure; not_ready when nothing failed.
template <class T>
errc code_of(const weft::result<T>& r) {
  return r ? errc::not_ready : r.error().code;
}
bool says(const std::string& text, std::string_view what) { return text.find(what) != std::string::npos; }

/// A process that does one thing, and what it says about it: nothing when all went well. Killed with its owner.
class child {
 public:
  explicit child(const std::function<std::string()>& work) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error{"pipe"};
    const pid_t parent = ::getpid();
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(3);
      ::close(ends[0]);
      std::string said;
      try {
        said = work();
      } catch (const std::exception& e) {
        said = std::string{"threw "} + e.what();
      }
      static_cast<void>(!::write(ends[1], said.data(), said.size()));
      ::_exit(0);
    }
    ::close(ends[1]);
    said_ = descriptor{ends[0]};
  }
  child(child&&) noexcept = default;
  ~child() {
    if (said_) {
      kill(SIGKILL);
      static_cast<void>(said());
    }
  }

  [[nodiscard]] pid_t pid() const { return pid_; }
  void kill(int signal) const { ::kill(pid_, signal); }

  /// Waits for its end; kills it after a minute, so that a failing test ends.
  std::string said() {
    std::string text;
    std::array<char, 4096> part;
    while (true) {
      pollfd p{said_.get(), POLLIN, 0};
      if (::poll(&p, 1, 60'000) == 0) {
        kill(SIGKILL);
        text += "hung; ";
      }
      const ssize_t got = ::read(said_.get(), part.data(), part.size());
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) break;
      text.append(part.data(), static_cast<std::size_t>(got));
    }
    said_.reset();
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    if (WIFSIGNALED(status))
      text += "ended by signal " + std::to_string(WTERMSIG(status));
    else if (WEXITSTATUS(status) != 0)
      text += "exit code " + std::to_string(WEXITSTATUS(status));
    return text;
  }

 private:
  pid_t pid_ = -1;
  descriptor said_;
};

/// One T that parent and children share.
template <class T>
class shared {
 public:
  shared() : at_(new(::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) T{}) {}
  shared(const shared&) = delete;
  shared& operator=(const shared&) = delete;
  ~shared() { ::munmap(at_, sizeof(T)); }
  T* operator->() const { return at_; }
  T& operator*() const { return *at_; }

 private:
  T* at_;
};

template <class Done>
bool eventually(Done done) {
  const auto until = stopwatch::now() + 30s;
  while (!done()) {
    if (stopwatch::now() > until) return false;
    std::this_thread::yield();
  }
  return true;
}

/// A group whose ranks are all in this process.
std::vector<process_group> together(int size, const std::function<join_options(int)>& options = nullptr) {
  auto places = rendezvous::connected(size);
  std::vector<std::optional<weft::result<process_group>>> made(places.size());
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      const auto i = static_cast<std::size_t>(r);
      made[i].emplace(std::move(places[i]).join(options ? options(r) : within(soon)));
    });
  }
  for (std::thread& t : threads) t.join();
  std::vector<process_group> all;
  for (auto& m : made) all.push_back(weft::value_or_raise(std::move(*m)));
  return all;
}

descriptor memory_with(const samples::data& content) {
  descriptor made{static_cast<int>(::syscall(SYS_memfd_create, "test", MFD_CLOEXEC))};
  if (::write(made.get(), content.data(), content.size()) != static_cast<ssize_t>(content.size())) made.reset();
  return made;
}
samples::data content_of(const descriptor& memory, std::size_t count) {
  samples::data read(count, 0xa5);
  const ssize_t got = ::pread(memory.get(), read.data(), count, 0);
  read.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
  return read;
}

/// What every rank does in a healthy group: sees the others, sends each of them a message with memory, meets.
std::string converse(process_group& group, const std::vector<pid_t>& pids = {}) {
  const int self = group.self().value();
  for (int r = 0; r < group.size(); ++r) {
    const auto& p = group.peer(rank{r});
    if (p.rank != rank{r} || p.uid != ::geteuid() || p.start_time == 0) return "does not know " + to_string(p.rank);
    if (!pids.empty() && p.pid != pids[static_cast<std::size_t>(r)]) return "wrong pid of " + to_string(p.rank);
    if (text_of(p.announcement) != "devices of " + std::to_string(r)) return "announcement of " + to_string(p.rank);
    if (!group.alive(rank{r})) return to_string(p.rank) + " should be alive";
  }
  for (int r = 0; r < group.size(); ++r) {
    if (r == self) continue;
    const auto seed = static_cast<std::uint64_t>(100 * self + r);
    const auto memory = memory_with(pattern(5000, seed));
    const std::array<int, 1> with{memory.get()};
    if (auto sent = group.send(rank{r}, 7, view(pattern(33, seed)), with, soon); !sent) return failure_of(sent);
  }
  for (int r = 0; r < group.size(); ++r) {
    if (r == self) continue;
    const auto seed = static_cast<std::uint64_t>(100 * r + self);
    auto got = group.receive(rank{r}, 7, soon);
    if (!got) return failure_of(got);
    if (data_of(got->payload) != pattern(33, seed)) return "payload from " + to_string(rank{r});
    if (got->descriptors.size() != 1 || (::fcntl(got->descriptors[0].get(), F_GETFD) & FD_CLOEXEC) == 0) {
      return "descriptor from " + to_string(rank{r});
    }
    if (content_of(got->descriptors[0], 6000) != pattern(5000, seed)) return "memory from " + to_string(rank{r});
  }
  for (int i = 0; i < 20; ++i) {
    if (auto met = group.barrier(soon); !met) return failure_of(met);
  }
  const auto all = group.all_gather(view(pattern(static_cast<std::size_t>(self) * 1000, 3)), soon);
  if (!all) return failure_of(all);
  for (int r = 0; r < group.size(); ++r) {
    const auto i = static_cast<std::size_t>(r);
    if (data_of((*all)[i]) != pattern(i * 1000, 3)) return "gathered from " + to_string(rank{r});
  }
  return "";
}

std::string join_and_converse(rendezvous place, int self, const std::vector<pid_t>& pids = {}) {
  const std::string devices = "devices of " + std::to_string(self);
  join_options options = within(soon);
  options.announcement = view(devices);
  auto group = std::move(place).join(options);
  return group ? converse(*group, pids) : failure_of(group);
}

/// A connection to whoever gathers at a name, for speaking without the library.
descriptor raw_connection(const std::string& name, uid_t uid) {
  const auto [address, length] = wire::rendezvous_address(name, uid);
  descriptor made{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
  eventually(
      [&, &a = address, n = length] { return ::connect(made.get(), reinterpret_cast<const sockaddr*>(&a), n) == 0; });
  return made;
}

/// Reads one packet without the library's checks; empty at the end of the connection.
std::vector<std::byte> raw_read(const descriptor& from) {
  std::vector<std::byte> room(wire::max_packet_bytes);
  pollfd p{from.get(), POLLIN, 0};
  ::poll(&p, 1, 20'000);
  const ssize_t got = ::recv(from.get(), room.data(), room.size(), 0);
  room.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
  return room;
}

// A program started by exec is this test again, with a ticket in its environment.
const bool is_started_with_a_ticket = [] {
  const char* ticket = std::getenv("WEFT_TEST_TICKET");
  if (ticket == nullptr) return false;
  std::string said;
  try {
    const std::string text = ticket;
    said = join_and_converse(rendezvous::inherited(text), text[5] - '0');
  } catch (const std::exception& e) {
    said = e.what();
  }
  static_cast<void>(!::write(STDERR_FILENO, said.data(), said.size()));
  ::_exit(said.empty() ? 0 : 1);
}();

// ---- gathering ----------------------------------------------------------------------------------------------------

class rendezvous_of : public testing::TestWithParam<int> {};

TEST_P(rendezvous_of, processes_by_name_gives_every_two_of_them_a_connection) {
  const std::string name = fresh_name();
  const auto started = stopwatch::now();
  shared<std::array<std::atomic<std::int64_t>, 64>> joined;
  std::vector<child> ranks;
  for (int r = GetParam() - 1; r >= 0; --r) {  // rank 0 last: the others wait for it
    ranks.emplace_back([&, r] {
      const std::string devices = "devices of " + std::to_string(r);
      join_options options = within(soon);
      options.announcement = view(devices);
      auto group = rendezvous::at(name, rank{r}, GetParam()).join(options);
      (*joined)[static_cast<std::size_t>(r)] = (stopwatch::now() - started).count();
      return group ? converse(*group) : failure_of(group);
    });
  }
  for (child& c : ranks) EXPECT_EQ(c.said(), "");
  std::int64_t last = 0;
  for (const auto& t : *joined) last = std::max(last, t.load());
  RecordProperty("all_joined_microseconds", std::to_string(last / 1000));
}

TEST_P(rendezvous_of, processes_over_inherited_connections_needs_no_name) {
  auto places = rendezvous::connected(GetParam());
  std::vector<child> ranks;
  for (int r = 0; r < GetParam(); ++r) {
    ranks.emplace_back([&, r] {
      auto mine = std::move(places[static_cast<std::size_t>(r)]);
      places.clear();
      return join_and_converse(std::move(mine), r);
    });
  }
  places.clear();
  for (child& c : ranks) EXPECT_EQ(c.said(), "");
}

INSTANTIATE_TEST_SUITE_P(rendezvous, rendezvous_of, testing::Values(1, 2, 4, 8),
                         [](const auto& one) { return std::to_string(one.param); });

TEST(rendezvous, of_sixty_four_is_the_largest) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_max < 20'000) GTEST_SKIP() << "64 ranks in one process need about 9000 descriptors";
  const rlimit before = limit;
  limit.rlim_cur = 20'000;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  {
    auto all = together(process_group::max_size);
    EXPECT_TRUE(all.back().send(rank{62}, 1, {}, {}, soon));
    EXPECT_TRUE(all[62].receive(rank{63}, 1, soon));
  }
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(error_of([] { static_cast<void>(rendezvous::connected(65)); }).code, errc::invalid_argument);
}

TEST(rendezvous, lets_a_parent_start_other_programs_with_a_ticket) {
  auto places = rendezvous::connected(3);
  std::vector<child> ranks;
  for (int r = 1; r < 3; ++r) {
    ranks.emplace_back([&, r] {
      const std::string ticket = "WEFT_TEST_TICKET=" + places[static_cast<std::size_t>(r)].ticket();
      const std::array<const char*, 2> arguments{"rank", nullptr};
      const std::array<const char*, 2> environment{ticket.c_str(), nullptr};
      ::execve("/proc/self/exe", const_cast<char* const*>(arguments.data()),
               const_cast<char* const*>(environment.data()));
      return std::string{"exec failed"};
    });
  }
  auto mine = std::move(places.front());
  places.clear();
  EXPECT_EQ(join_and_converse(std::move(mine), 0), "");
  for (child& c : ranks) EXPECT_EQ(c.said(), "");
}

TEST(rendezvous, refuses_what_is_not_a_ticket) {
  auto places = rendezvous::connected(2);
  const std::string good = places[1].ticket();
  const std::string fd = good.substr(9, good.size() - 10);
  for (const std::string& bad :
       {std::string{}, std::string{"weft"}, std::string{"weft:"}, std::string{"weft:1:2"}, "weft:1:2:" + fd,
        "weft:2:2:" + fd + ",", "weft:1:65:" + fd + ",", "weft:-1:2:" + fd + ",", "weft:0:3:" + fd + "," + fd + ",",
        std::string{"weft:1:2:999999,"}, std::string{"weft:1:2:0,"}, std::string{"weft:1:2:99999999999999,"},
        "weft:1:2:" + fd + "," + fd + ",", "weft:1:2:" + fd + ",x"}) {
    EXPECT_EQ(error_of([&] { static_cast<void>(rendezvous::inherited(bad)); }).code, errc::invalid_argument) << bad;
  }
}

TEST(rendezvous, refuses_a_name_rank_or_size_that_cannot_be) {
  const auto code = [](std::string_view name, int r, int size) {
    return error_of([&] { static_cast<void>(rendezvous::at(name, rank{r}, size)); }).code;
  };
  EXPECT_EQ(code("", 0, 2), errc::invalid_argument);
  EXPECT_EQ(code("a b", 0, 2), errc::invalid_argument);
  EXPECT_EQ(code(std::string(65, 'a'), 0, 2), errc::invalid_argument);
  EXPECT_EQ(code(std::string_view{"a\0b", 3}, 0, 2), errc::invalid_argument);
  EXPECT_EQ(code("a", 2, 2), errc::invalid_argument);
  EXPECT_EQ(code("a", -1, 2), errc::invalid_argument);
  EXPECT_EQ(code("a", 0, 0), errc::invalid_argument);
  EXPECT_EQ(code("a", 0, 65), errc::invalid_argument);
  EXPECT_EQ(code(std::string(64, 'a'), 1, 2), errc::not_ready) << "the longest name";
}

TEST(rendezvous, names_the_ranks_that_are_missing_when_time_is_up) {
  const std::string name = fresh_name();
  child other{[&] {
    const auto group = rendezvous::at(name, rank{2}, 5).join(within(soon));
    return failure_of(group);  // rank 0 gives up first, and says so to all
  }};
  const auto group = rendezvous::at(name, rank{0}, 5).join(within(500ms));
  EXPECT_EQ(code_of(group), errc::timed_out);
  EXPECT_TRUE(says(failure_of(group), "ranks 1, 3, 4 of 5")) << failure_of(group);
  const std::string said = other.said();
  EXPECT_TRUE(says(said, "timed_out") && says(said, "ranks 1, 3, 4 of 5")) << said;
}

TEST(rendezvous, tells_a_later_rank_who_is_missing_too) {
  auto places = rendezvous::connected(3);
  std::thread host{[&] { EXPECT_EQ(code_of(std::move(places[0]).join(within(soon))), errc::timed_out); }};
  const auto group = std::move(places[1]).join(within(500ms));
  EXPECT_EQ(code_of(group), errc::timed_out);
  EXPECT_TRUE(says(failure_of(group), "rank 2 of 3")) << failure_of(group);
  host.join();
}

TEST(rendezvous, without_rank_0_says_that_nobody_listens) {
  const auto group = rendezvous::at(fresh_name(), rank{1}, 2).join(within(20ms));
  EXPECT_EQ(code_of(group), errc::timed_out);
  EXPECT_TRUE(says(failure_of(group), "rank 0, which does not listen")) << failure_of(group);
}

TEST(rendezvous, with_a_limit_that_is_nothing_or_past_looks_once) {
  for (const auto limit : {0ns, -1ns, std::chrono::nanoseconds::min()}) {
    EXPECT_EQ(code_of(rendezvous::at(fresh_name(), rank{0}, 2).join(within(limit))), errc::timed_out);
    EXPECT_EQ(code_of(rendezvous::at(fresh_name(), rank{1}, 2).join(within(limit))), errc::timed_out);
  }
  const auto all = together(2, [](int) { return within(std::chrono::nanoseconds::max()); });
  EXPECT_EQ(all.size(), 2U);
}

TEST(rendezvous, is_cancelled_by_a_stop_token_on_either_side) {
  for (const int r : {0, 1}) {
    std::stop_source source;
    join_options options = within(soon);
    options.stop = source.get_token();
    std::thread stopper{[&] { source.request_stop(); }};
    const auto group = rendezvous::at(fresh_name(), rank{r}, 2).join(options);
    stopper.join();
    EXPECT_EQ(code_of(group), errc::cancelled) << failure_of(group);
  }
}

TEST(rendezvous, whose_name_another_rank_0_holds_says_which_process_that_is) {
  const std::string name = fresh_name();
  std::stop_source source;
  std::atomic<bool> over{false};
  std::thread first{[&] {
    join_options options = within(soon);
    options.stop = source.get_token();
    EXPECT_EQ(code_of(rendezvous::at(name, rank{0}, 2).join(options)), errc::cancelled);
    over = true;
  }};
  raw_connection(name, ::geteuid()).reset();  // now it listens
  const auto second = rendezvous::at(name, rank{0}, 2).join(within(soon));
  const std::string told = failure_of(second);
  EXPECT_EQ(code_of(second), errc::name_taken) << told;
  EXPECT_TRUE(says(told, "process " + std::to_string(::getpid()))) << told;
  EXPECT_FALSE(over) << "asking who holds a name does not disturb the holder";
  source.request_stop();
  first.join();
}

TEST(rendezvous, gives_two_hundred_groups_one_after_the_other_the_same_name_and_keeps_no_descriptor) {
  const std::string name = fresh_name();
  const auto cycle = [&](int self) -> std::string {
    std::size_t before = 0;
    for (int i = 0; i < 201; ++i) {
      if (i == 1) before = open_descriptors();
      auto group = rendezvous::at(name, rank{self}, 3).join(within(soon));
      if (!group) return "cycle " + std::to_string(i) + ": " + failure_of(group);
      if (auto met = group->barrier(soon); !met) return "cycle " + std::to_string(i) + ": " + failure_of(met);
    }
    const auto after = open_descriptors();
    return after == before ? "" : std::to_string(after) + " descriptors, before " + std::to_string(before);
  };
  child one{[&] { return cycle(1); }};
  child two{[&] { return cycle(2); }};
  EXPECT_EQ(cycle(0), "");
  EXPECT_EQ(one.said(), "");
  EXPECT_EQ(two.said(), "");
  std::ifstream sockets{"/proc/net/unix"};
  const std::string listed{std::istreambuf_iterator<char>{sockets}, {}};
  EXPECT_FALSE(says(listed, name)) << "a name outlived its rendezvous";
}

TEST(rendezvous, makes_nothing_in_shared_memory_and_no_lasting_name) {
  const auto listing = [] {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator{"/dev/shm"}) names.insert(entry.path().filename());
    return names;
  };
  // those that this process holds: other tests run at the same time, with sockets of their own
  const auto named_sockets = [] {
    std::set<std::string> own;
    for (const auto& entry : std::filesystem::directory_iterator{"/proc/self/fd"}) {
      std::error_code gone;
      own.insert(std::filesystem::read_symlink(entry.path(), gone).string());
    }
    std::ifstream sockets{"/proc/net/unix"};
    int count = 0;
    for (std::string line; std::getline(sockets, line);) {
      std::istringstream words{line};
      std::string number, references, protocol, flags, type, state, inode, path;
      words >> number >> references >> protocol >> flags >> type >> state >> inode >> path;
      count += static_cast<int>(path.starts_with('@') && own.contains("socket:[" + inode + "]"));
    }
    return count;
  };
  const auto before = listing();
  const auto sockets_before = named_sockets();
  const auto all = together(3);
  EXPECT_EQ(listing(), before);
  EXPECT_EQ(named_sockets(), sockets_before) << "the kernel names a socket that sends while it asks for credentials";
}

TEST(rendezvous, of_other_sizes_or_the_same_rank_twice_names_both_sides) {
  const std::string name = fresh_name();
  std::thread host{[&] {
    const auto group = rendezvous::at(name, rank{0}, 3).join(within(soon));
    EXPECT_EQ(code_of(group), errc::peer_dead);
    EXPECT_TRUE(says(failure_of(group), "rank 1 (process " + std::to_string(::getpid()) + ") died while"))
        << failure_of(group);
  }};
  const auto larger = rendezvous::at(name, rank{1}, 4).join(within(soon));
  EXPECT_EQ(code_of(larger), errc::incompatible);
  EXPECT_TRUE(says(failure_of(larger), "rank 1 of 4") && says(failure_of(larger), "expected a group of 3"))
      << failure_of(larger);

  descriptor first = raw_connection(name, ::geteuid());
  packet hello;
  hello.kind = packet_kind::hello;
  hello.rank = 1;
  hello.size = 3;
  hello.start_time = wire::start_time_of(::getpid());
  ASSERT_TRUE(wire::write_packet(first.get(), hello, {}, true));
  ASSERT_FALSE(raw_read(first).empty()) << "it has its seat";
  const auto second = rendezvous::at(name, rank{1}, 3).join(within(soon));
  EXPECT_EQ(code_of(second), errc::incompatible);
  EXPECT_TRUE(says(failure_of(second), "which is process " + std::to_string(::getpid()) + " already"))
      << failure_of(second);
  first.reset();  // it dies, and nobody waits for the third
  host.join();
}

TEST(rendezvous, turns_garbage_and_other_versions_away_and_completes) {
  const std::string name = fresh_name();
  const std::size_t before = open_descriptors();
  std::thread host{[&] {
    const auto group = rendezvous::at(name, rank{0}, 2).join(within(soon));
    ASSERT_TRUE(group) << failure_of(group);
    EXPECT_GE(group->refused(), 303U);
  }};
  const uid_t me = ::geteuid();
  {
    const descriptor garbage = raw_connection(name, me);
    const auto noise = pattern(100, 1);
    ::send(garbage.get(), noise.data(), noise.size(), 0);
    const auto reply = raw_read(garbage);
    const auto parsed = wire::parse_packet(reply);
    ASSERT_TRUE(parsed) << parsed.error().what;
    EXPECT_EQ(parsed->kind, packet_kind::refusal);
    EXPECT_TRUE(says(wire::printable(parsed->payload), "expected a packet that begins with"));
  }
  {
    const descriptor later = raw_connection(name, me);
    packet hello;
    hello.kind = packet_kind::hello;
    hello.rank = 1;
    hello.size = 2;
    auto bytes = wire::packet_header(hello);
    bytes[4] = std::byte{9};
    ::send(later.get(), bytes.data(), bytes.size(), 0);
    const auto reply = raw_read(later);
    const auto parsed = wire::parse_packet(reply);
    ASSERT_TRUE(parsed) << parsed.error().what;
    EXPECT_TRUE(says(wire::printable(parsed->payload), "speaks version 9 of the rendezvous, this one version 1"));
  }
  {
    const descriptor anonymous = raw_connection(name, me);  // of a process that has ended, by its start time
    packet hello;
    hello.kind = packet_kind::hello;
    hello.rank = 1;
    hello.size = 2;
    hello.start_time = 1;  // not when this process began
    const auto wrote = wire::write_packet(anonymous.get(), hello, {}, true);
    ASSERT_TRUE(wrote);
    const auto reply = raw_read(anonymous);
    const auto parsed = wire::parse_packet(reply);
    ASSERT_TRUE(parsed) << parsed.error().what;
    EXPECT_EQ(parsed->kind, packet_kind::refusal);
    EXPECT_TRUE(says(wire::printable(parsed->payload), "another one has its number"));
  }
  for (int i = 0; i < 300; ++i) {
    const descriptor flood = raw_connection(name, me);
    ::send(flood.get(), "x", 1, 0);
  }
  std::vector<descriptor> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(raw_connection(name, me));
  EXPECT_TRUE(rendezvous::at(name, rank{1}, 2).join(within(soon)));
  host.join();
  silent.clear();
  EXPECT_EQ(open_descriptors(), before);
}

TEST(rendezvous, refuses_another_user_before_it_reads_a_byte) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const std::string name = fresh_name();
  child foreign{[&]() -> std::string {
    if (::setresgid(65534, 65534, 65534) != 0 || ::setresuid(65534, 65534, 65534) != 0) return "cannot become nobody";
    const descriptor link = raw_connection(name, 0);
    packet hello;  // perfect but for its user
    hello.kind = packet_kind::hello;
    hello.rank = 1;
    hello.size = 2;
    hello.start_time = wire::start_time_of(::getpid());
    const auto wrote = wire::write_packet(link.get(), hello, {}, true);
    if (!wrote) return failure_of(wrote);
    const auto reply = raw_read(link);
    return reply.empty() ? "" : "got " + std::to_string(reply.size()) + " bytes";
  }};
  std::thread host{[&] {
    const auto group = rendezvous::at(name, rank{0}, 2).join(within(soon));
    ASSERT_TRUE(group) << failure_of(group);
    EXPECT_EQ(group->refused(), 1U);
    EXPECT_EQ(group->peer(rank{1}).pid, ::getpid());
  }};
  EXPECT_EQ(foreign.said(), "");
  EXPECT_TRUE(rendezvous::at(name, rank{1}, 2).join(within(soon)));
  host.join();
}

TEST(rendezvous, whose_name_another_user_squats_says_so_on_both_sides_and_tells_it_nothing) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const std::string name = fresh_name();
  shared<std::atomic<bool>> listens;
  shared<std::atomic<bool>> enough;
  child squatter{[&]() -> std::string {
    if (::setresgid(65534, 65534, 65534) != 0 || ::setresuid(65534, 65534, 65534) != 0) return "cannot become nobody";
    const auto [address, length] = wire::rendezvous_address(name, 0);
    const descriptor door{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
    if (::bind(door.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) return "cannot bind";
    ::listen(door.get(), 8);
    *listens = true;
    for (int i = 0; i < 2; ++i) {
      const descriptor link{::accept(door.get(), nullptr, nullptr)};
      if (!raw_read(link).empty()) return "was told something";
    }
    if (!eventually([&] { return enough->load(); })) return "never ended";
    return "";
  }};
  ASSERT_TRUE(eventually([&] { return listens->load(); }));
  const std::string holder = "process " + std::to_string(squatter.pid()) + " of user 65534";
  for (const int r : {0, 1}) {
    const auto group = rendezvous::at(name, rank{r}, 2).join(within(soon));
    EXPECT_EQ(code_of(group), errc::name_taken) << failure_of(group);
    EXPECT_TRUE(says(failure_of(group), holder)) << failure_of(group);
  }
  *enough = true;
  EXPECT_EQ(squatter.said(), "");
}

TEST(rendezvous, without_a_descriptor_to_spare_names_the_limit_and_keeps_nothing) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "UBSan, which comes with ASan here, opens a pipe to look at an object, and finds it invalid without";
#endif
  const std::string name = fresh_name();
  child poor{[&]() -> std::string {
    const auto fill = fill_holes();
    const std::size_t before = open_descriptors();
    // at each rung something else does not fit: the name, the links, the connections, what watches them
    for (rlim_t spare = 0; spare < 12; ++spare) {
      auto places = rendezvous::connected(2);
      const rlim_t held = 2;
      std::atomic<bool> limited{false};
      errc other_code{};
      std::thread other{[&] {
        while (!limited) std::this_thread::yield();
        other_code = code_of(std::move(places[1]).join(within(50ms)));
      }};
      const rlimit limit{before - 1 + held + spare, 4096};  // the listing was one of them
      ::setrlimit(RLIMIT_NOFILE, &limit);
      limited = true;
      const errc code = code_of(std::move(places[0]).join(within(50ms)));
      other.join();
      for (const errc c : {code, other_code}) {
        if (spare == 0 && c == errc::not_ready) return "joined without descriptors";
      }
      const rlimit tight{before - 1 + spare, 4096};
      ::setrlimit(RLIMIT_NOFILE, &tight);
      const errc pairs = error_of([] { static_cast<void>(rendezvous::connected(2)); }).code;
      if (pairs != (spare < 2 ? errc::resource_exhausted : errc::not_ready)) return "made connections of nothing";
      for (const int r : {0, 1}) {
        const auto group = rendezvous::at(name, rank{r}, 2).join(within(1ms));
        if (code_of(group) == errc::resource_exhausted && !says(failure_of(group), "ulimit -n")) {
          return failure_of(group);
        }
        if (spare == 0 && code_of(group) != errc::resource_exhausted) return to_string(rank{r}) + failure_of(group);
      }
      const rlimit enough{4096, 4096};
      ::setrlimit(RLIMIT_NOFILE, &enough);
      if (open_descriptors() != before) return "descriptors left at rung " + std::to_string(spare);
    }
    return "";
  }};
  EXPECT_EQ(poor.said(), "");
}

// ---- messages -----------------------------------------------------------------------------------------------------

TEST(process_group, keeps_messages_of_other_tags_until_they_are_asked_for) {
  auto all = together(2);
  for (std::uint64_t tag = 0; tag < 5; ++tag) {
    for (std::uint64_t n = 0; n < 3; ++n) {
      ASSERT_TRUE(all[0].send(rank{1}, tag, view(pattern(n * 7, tag)), {}, soon));
    }
  }
  for (std::uint64_t tag = 5; tag-- > 0;) {
    for (std::uint64_t n = 0; n < 3; ++n) {
      const auto got = all[1].receive(rank{0}, tag, soon);
      ASSERT_TRUE(got) << failure_of(got);
      EXPECT_EQ(data_of(got->payload), pattern(n * 7, tag));
    }
  }
  EXPECT_EQ(code_of(all[1].receive(rank{0}, 0, 0ns)), errc::timed_out);
}

TEST(process_group, carries_every_size_up_to_the_largest_and_sixteen_descriptors) {
  auto all = together(2);
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{4095}, std::size_t{4096},
                                 std::size_t{4097}, process_group::max_payload - 1, process_group::max_payload}) {
    ASSERT_TRUE(all[1].send(rank{0}, size, view(pattern(size, size)), {}, soon));
    const auto got = all[0].receive(rank{1}, size, soon);
    ASSERT_TRUE(got) << failure_of(got);
    EXPECT_TRUE(samples::same(data_of(got->payload), pattern(size, size)));
  }
  std::vector<descriptor> memories;
  std::vector<int> fds;
  for (std::uint64_t i = 0; i < process_group::max_descriptors; ++i) {
    memories.push_back(memory_with(pattern(100 + i, i)));
    fds.push_back(memories.back().get());
  }
  const std::size_t before = open_descriptors();
  {
    ASSERT_TRUE(all[0].send(rank{1}, 1, {}, fds, soon));
    auto got = all[1].receive(rank{0}, 1, soon);
    ASSERT_TRUE(got) << failure_of(got);
    ASSERT_EQ(got->descriptors.size(), fds.size());
    for (std::uint64_t i = 0; i < fds.size(); ++i) {
      EXPECT_EQ(content_of(got->descriptors[i], 1000), pattern(100 + i, i)) << "in the order they were sent";
    }
  }
  EXPECT_EQ(open_descriptors(), before) << "what the receiver did not take is closed";
}

TEST(process_group, refuses_a_call_that_cannot_be_right) {
  auto all = together(2);
  const std::vector<int> many(process_group::max_descriptors + 1, 0);
  const samples::data large(process_group::max_payload + 1);
  const std::array<int, 1> closed{987654};
  const auto code = [](auto&& f) { return error_of([&] { static_cast<void>(f()); }).code; };
  EXPECT_EQ(code([&] { return all[0].send(rank{1}, 1, {}, many, soon); }), errc::invalid_argument);
  EXPECT_EQ(code([&] { return all[0].send(rank{1}, 1, view(large), {}, soon); }), errc::invalid_argument);
  EXPECT_EQ(code([&] { return all[0].send(rank{1}, 1, {}, closed, soon); }), errc::invalid_argument);
  EXPECT_EQ(code([&] { return all[0].send(rank{0}, 1, {}, {}, soon); }), errc::invalid_argument);
  EXPECT_EQ(code([&] { return all[0].send(rank{2}, 1, {}, {}, soon); }), errc::invalid_argument);
  EXPECT_EQ(code([&] { return all[0].receive(rank{-1}, 1, soon); }), errc::invalid_argument);
  EXPECT_EQ(code([&] { return all[0].receive(rank{0}, 1, soon); }), errc::invalid_argument);
  EXPECT_EQ(code([&] { return all[0].all_gather(view(large), soon); }), errc::invalid_argument);
  EXPECT_EQ(code([&] { return all[0].alive(rank{2}); }), errc::invalid_argument);
  EXPECT_TRUE(all[0].send(rank{1}, 1, {}, {}, soon)) << "and stays usable";
  EXPECT_TRUE(all[1].receive(rank{0}, 1, soon));
}

TEST(process_group, bounds_what_a_peer_that_is_not_read_can_pile_up) {
  auto all = together(2);
  std::size_t sent = 0;
  weft::result<peer_message> hidden{weft::error{}};
  weft::result<void> last;
  do {
    while ((last = all[0].send(rank{1}, sent, view(pattern(1000, sent)), {}, 0ns))) ++sent;
    EXPECT_EQ(last.error().code, errc::timed_out);
    EXPECT_TRUE(says(last.error().what, "rank 1 (process ")) << last.error().what;
    hidden = all[1].receive(rank{0}, 1'000'000, 0ns);
  } while (code_of(hidden) == errc::timed_out && sent < 10'000);
  EXPECT_EQ(code_of(hidden), errc::resource_exhausted) << failure_of(hidden);
  EXPECT_TRUE(says(failure_of(hidden), "the first with tag 0")) << failure_of(hidden);
  while (all[0].send(rank{1}, sent, view(pattern(1000, sent)), {}, 0ns)) ++sent;
  EXPECT_EQ(code_of(all[1].receive(rank{0}, 1'000'000, 0ns)), errc::resource_exhausted);
  EXPECT_EQ(code_of(all[0].send(rank{1}, sent, {}, {}, 0ns)), errc::timed_out) << "looking takes no more of them";
  for (std::size_t tag = 0; tag < sent; ++tag) {
    const auto got = all[1].receive(rank{0}, tag, soon);
    ASSERT_TRUE(got) << tag << ": " << failure_of(got);
    ASSERT_EQ(data_of(got->payload), pattern(1000, tag));
  }
  EXPECT_TRUE(all[0].send(rank{1}, 1, {}, {}, soon)) << "room again";
}

TEST(process_group, gives_each_of_several_threads_its_own_tag) {
  constexpr std::uint64_t tags = 4;
  constexpr std::uint64_t messages = 300;
  auto all = together(2);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (std::uint64_t tag = 0; tag < tags; ++tag) {
    threads.emplace_back([&, tag] {
      for (std::uint64_t n = 0; n < messages; ++n) {
        const auto got = all[1].receive(rank{0}, tag, soon);
        if (!got || data_of(got->payload) != pattern(n % 50, tag * messages + n)) ++wrong;
      }
    });
    threads.emplace_back([&, tag] {
      for (std::uint64_t n = 0; n < messages; ++n) {
        if (!all[0].send(rank{1}, tag, view(pattern(n % 50, tag * messages + n)), {}, soon)) ++wrong;
      }
    });
  }
  std::stop_source source;
  std::thread watcher{[&] { EXPECT_EQ(code_of(all[1].wait_death(soon, source.get_token())), errc::cancelled); }};
  for (std::thread& t : threads) t.join();
  source.request_stop();
  watcher.join();
  EXPECT_EQ(wrong, 0);
}

TEST(process_group, is_cancelled_by_a_stop_token_in_every_wait) {
  auto all = together(2);
  while (all[0].send(rank{1}, 9, view(pattern(60'000, 1)), {}, 0ns)) {
  }
  const auto cancelled = [&](auto&& call) {
    std::stop_source source;
    std::thread stopper{[&] { source.request_stop(); }};
    const errc code = call(source.get_token());
    stopper.join();
    return code == errc::cancelled;
  };
  for (int i = 0; i < 50; ++i) {
    EXPECT_TRUE(cancelled([&](auto stop) { return code_of(all[0].receive(rank{1}, 1, soon, stop)); }));
    EXPECT_TRUE(cancelled(
        [&](auto stop) { return code_of(all[0].send(rank{1}, 9, view(pattern(60'000, 1)), {}, soon, stop)); }));
    EXPECT_TRUE(cancelled([&](auto stop) { return code_of(all[0].wait_death(soon, stop)); }));
    EXPECT_TRUE(cancelled([&](auto stop) { return code_of(all[0].barrier(soon, stop)); }));
  }
}

TEST(process_group, delivers_what_was_sent_before_a_peer_left_and_then_says_that_it_left) {
  auto all = together(2);
  for (std::uint64_t n = 0; n < 10; ++n) ASSERT_TRUE(all[1].send(rank{0}, 4, view(pattern(n, n)), {}, soon));
  all.pop_back();
  EXPECT_FALSE(all[0].alive(rank{1}));
  for (std::uint64_t n = 0; n < 10; ++n) {
    const auto got = all[0].receive(rank{1}, 4, soon);
    ASSERT_TRUE(got) << failure_of(got);
    EXPECT_EQ(data_of(got->payload), pattern(n, n));
  }
  const auto over = all[0].receive(rank{1}, 4, soon);
  EXPECT_EQ(code_of(over), errc::closed);
  EXPECT_TRUE(says(failure_of(over), "rank 1 (process ")) << failure_of(over);
  EXPECT_EQ(code_of(all[0].send(rank{1}, 4, {}, {}, soon)), errc::closed);
  EXPECT_EQ(code_of(all[0].barrier(soon)), errc::closed);
  EXPECT_EQ(code_of(all[0].wait_death(0ns)), errc::timed_out) << "to leave is not to die";
}

/// Rank 1 of a pair, spoken by hand: what it sends is up to the test.
struct rogue {
  std::optional<process_group> victim;
  descriptor link;

  rogue() {
    auto places = rendezvous::connected(2);
    const std::string ticket = places[1].ticket();
    link = descriptor{::fcntl(std::stoi(ticket.substr(9)), F_DUPFD_CLOEXEC, 0)};
    places.pop_back();
    packet p;
    p.kind = packet_kind::hello;
    p.rank = 1;
    p.size = 2;
    p.start_time = wire::start_time_of(::getpid());
    if (auto wrote = wire::write_packet(link.get(), p, {}, true); !wrote) weft::raise(wrote.error());
    p = {};
    p.kind = packet_kind::ready;
    p.rank = 1;
    p.size = 2;
    std::thread answers{[&] {
      while (true) {
        const auto bytes = raw_read(link);
        const auto got = wire::parse_packet(bytes);
        if (!got || got->kind == packet_kind::go) return;
        if (got->kind == packet_kind::complete) static_cast<void>(wire::write_packet(link.get(), p));
      }
    }};
    auto made = std::move(places[0]).join(within(soon));
    answers.join();
    victim.emplace(weft::value_or_raise(std::move(made)));
  }

  void send_raw(std::span<const std::byte> bytes, std::span<const int> fds = {}) const {
    iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    std::vector<char> control(CMSG_SPACE(fds.size_bytes()));
    msghdr head{};
    head.msg_iov = &part;
    head.msg_iovlen = 1;
    if (!fds.empty()) {
      head.msg_control = control.data();
      head.msg_controllen = control.size();
      cmsghdr* c = CMSG_FIRSTHDR(&head);
      c->cmsg_level = SOL_SOCKET;
      c->cmsg_type = SCM_RIGHTS;
      c->cmsg_len = CMSG_LEN(fds.size_bytes());
      std::memcpy(CMSG_DATA(c), fds.data(), fds.size_bytes());
    }
    ASSERT_EQ(::sendmsg(link.get(), &head, MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size())) << std::strerror(errno);
  }
};

packet message_packet(std::uint64_t tag) {
  packet p;
  p.kind = packet_kind::message;
  p.rank = 1;
  p.size = 2;
  p.tag = tag;
  return p;
}

TEST(process_group, closes_descriptors_that_were_not_announced_or_are_too_many) {
  for (const std::size_t extra :
       {std::size_t{1}, std::size_t{2}, process_group::max_descriptors + 1, std::size_t{100}}) {
    const rogue r;
    const std::size_t before = open_descriptors();
    packet p = message_packet(3);
    p.descriptors = extra == 2 ? 1 : extra > 16 ? 16 : 0;
    const std::vector<int> fds(extra, r.link.get());
    r.send_raw(wire::packet_header(p), fds);
    const auto got = const_cast<process_group&>(*r.victim).receive(rank{1}, 3, soon);
    EXPECT_EQ(code_of(got), errc::corrupt) << extra << ": " << failure_of(got);
    EXPECT_TRUE(says(failure_of(got), "descriptors with a packet")) << failure_of(got);
    EXPECT_EQ(open_descriptors(), before) << extra;
  }
}

TEST(process_group, calls_a_peer_that_sends_garbage_corrupt_and_not_dead) {
  const std::vector<std::pair<std::string, std::function<void(std::vector<std::byte>&)>>> faults{
      {"begins with", [](auto& b) { b[0] = std::byte{'x'}; }},
      {"header of 48 bytes", [](auto& b) { b.resize(20); }},
      {"begins with", [](auto& b) { b.resize(3); }},
      {"got an empty one", [](auto& b) { b.clear(); }},
      {"a kind of packet", [](auto& b) { b[6] = std::byte{77}; }},
      {"does not belong", [](auto& b) { b[6] = std::byte{6}, b[16] = std::byte{0}; }},
      {"announces a payload", [](auto& b) { b.push_back(std::byte{1}); }},
      {"speaks of rank 7", [](auto& b) { b[8] = std::byte{7}; }},
      {"of rank 0 of 2", [](auto& b) { b[8] = std::byte{0}; }},
      {"of rank 1 of 3", [](auto& b) { b[12] = std::byte{3}; }},
      {"at most", [](auto& b) { b.resize(wire::max_packet_bytes + 5000); }},
  };
  for (const auto& [expected, spoil] : faults) {
    rogue r;
    const auto good = wire::packet_header(message_packet(3));
    r.send_raw(good);
    std::vector<std::byte> bad{good.begin(), good.end()};
    spoil(bad);
    r.send_raw(bad);
    EXPECT_TRUE(r.victim->receive(rank{1}, 3, soon)) << "what came before is good";
    const auto got = r.victim->receive(rank{1}, 3, soon);
    EXPECT_EQ(code_of(got), errc::corrupt) << expected;
    EXPECT_TRUE(says(failure_of(got), expected) && says(failure_of(got), "rank 1 (process")) << failure_of(got);
    EXPECT_EQ(code_of(r.victim->barrier(soon)), errc::corrupt);
    EXPECT_TRUE(r.victim->alive(rank{1}));
  }
  rogue r;
  std::vector<std::byte> later(48);
  const auto good = wire::packet_header(message_packet(3));
  std::copy(good.begin(), good.end(), later.begin());
  later[4] = std::byte{2};
  r.send_raw(later);
  EXPECT_EQ(code_of(r.victim->receive(rank{1}, 3, soon)), errc::incompatible);
}

TEST(process_group, without_room_for_a_descriptor_loses_that_message_and_works_on) {
  child receiver{[]() -> std::string {
    auto all = together(2);
    const auto memory = memory_with(pattern(10, 1));
    const std::array<int, 4> four{memory.get(), memory.get(), memory.get(), memory.get()};
    if (auto sent = all[0].send(rank{1}, 1, {}, four, soon); !sent) return failure_of(sent);
    const auto fill = fill_holes();
    const std::size_t open = open_descriptors();
    const rlimit tight{open - 1 + 2, 4096};  // the listing was one of them
    ::setrlimit(RLIMIT_NOFILE, &tight);
    const auto got = all[1].receive(rank{0}, 1, soon);
    if (code_of(got) != errc::resource_exhausted || !says(failure_of(got), "room for 2"))
      return "got " + failure_of(got);
    const rlimit enough{4096, 4096};
    ::setrlimit(RLIMIT_NOFILE, &enough);
    if (open_descriptors() != open) return "kept what came of a message that was lost";
    if (auto sent = all[0].send(rank{1}, 1, {}, four, soon); !sent) return failure_of(sent);
    const auto again = all[1].receive(rank{0}, 1, soon);
    return again && again->descriptors.size() == 4 ? "" : "again: " + failure_of(again);
  }};
  EXPECT_EQ(receiver.said(), "");
}

// ---- meetings -----------------------------------------------------------------------------------------------------

TEST(process_group, meets_ten_thousand_times_and_nobody_is_ahead) {
  constexpr int size = 3;
  constexpr int rounds = 3000;
  auto all = together(size);
  std::array<std::atomic<int>, size> at{};
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      for (int i = 0; i < rounds; ++i) {
        at[r] = i;
        if (!all[r].barrier(soon)) ++wrong;
        for (const auto& other : at) {
          if (other < i || other > i + 1) ++wrong;
        }
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
}

TEST(process_group, gathers_from_everybody_more_than_the_connections_hold) {
  constexpr int size = 3;
  auto all = together(size);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (std::size_t r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      for (std::uint64_t i = 0; i < 40; ++i) {
        const auto got = all[r].all_gather(view(pattern(process_group::max_payload - r, 10 * i + r)), soon);
        if (!got) {
          ++wrong;
          continue;
        }
        for (std::size_t from = 0; from < size; ++from) {
          if (data_of((*got)[from]) != pattern(process_group::max_payload - from, 10 * i + from)) ++wrong;
        }
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
}

TEST(process_group, keeps_its_arrival_when_a_barrier_is_late_and_names_who_is_not_there) {
  auto all = together(3);
  const auto late = all[0].barrier(10ms);
  EXPECT_EQ(code_of(late), errc::timed_out);
  EXPECT_TRUE(says(failure_of(late), "rank 1 (process") && says(failure_of(late), "rank 2 (process"))
      << failure_of(late);
  EXPECT_EQ(error_of([&] { static_cast<void>(all[0].all_gather({}, soon)); }).code, errc::invalid_argument);
  EXPECT_EQ(code_of(all[1].barrier(0ns)), errc::timed_out);
  EXPECT_TRUE(all[2].barrier(soon)) << "the others have arrived";
  EXPECT_TRUE(all[1].barrier(soon));
  EXPECT_TRUE(all[0].barrier(soon));
  std::thread one{[&] { EXPECT_TRUE(all[1].barrier(soon)); }};
  std::thread two{[&] { EXPECT_TRUE(all[2].barrier(soon)); }};
  EXPECT_TRUE(all[0].barrier(soon)) << "and the next one is a new one";
  one.join();
  two.join();
}

TEST(process_group, finds_two_ranks_in_different_meetings) {
  auto all = together(2);
  std::thread one{[&] { EXPECT_EQ(code_of(all[1].all_gather({}, soon)), errc::incompatible); }};
  const auto met = all[0].barrier(soon);
  one.join();
  EXPECT_EQ(code_of(met), errc::incompatible);
  EXPECT_TRUE(says(failure_of(met), "barrier number 1 met all_gather number 1 of rank 1")) << failure_of(met);
}

// ---- death --------------------------------------------------------------------------------------------------------

/// Ranks 1 … size−1 as processes, rank 0 here.
struct family {
  std::vector<child> ranks;
  std::optional<process_group> group;

  family(int size, const std::function<std::string(process_group&)>& work) {
    auto places = rendezvous::connected(size);
    for (int r = 1; r < size; ++r) {
      ranks.emplace_back([&, r]() -> std::string {
        auto mine = std::move(places[static_cast<std::size_t>(r)]);
        places.clear();
        auto made = std::move(mine).join(within(soon));
        return made ? work(*made) : failure_of(made);
      });
    }
    auto mine = std::move(places.front());
    places.clear();
    group.emplace(weft::value_or_raise(std::move(mine).join(within(soon))));
  }
};

std::string wait_for_the_end(process_group& group) {
  const auto dead = group.wait_death(60s);
  return dead ? "" : failure_of(dead);
}

TEST(process_group, tells_each_death_once_and_again_to_nobody) {
  family f{4, wait_for_the_end};
  EXPECT_EQ(code_of(f.group->wait_death(0ns)), errc::timed_out);
  const pollfd before{f.group->death_descriptor(), POLLIN, 0};
  pollfd p = before;
  EXPECT_EQ(::poll(&p, 1, 0), 0);
  EXPECT_TRUE(f.group->alive(rank{2}));
  f.ranks[1].kill(SIGKILL);  // rank 2; the others end when they see it
  std::set<rank> dead;
  p = before;
  EXPECT_EQ(::poll(&p, 1, 20'000), 1);
  auto one = f.group->wait_death(soon);
  ASSERT_TRUE(one) << failure_of(one);
  EXPECT_EQ(*one, rank{2});
  EXPECT_FALSE(f.group->alive(rank{2}));
  const auto got = f.group->receive(rank{2}, 1, soon);
  EXPECT_EQ(code_of(got), errc::peer_dead);
  EXPECT_TRUE(says(failure_of(got), "rank 2 (process " + std::to_string(f.ranks[1].pid()) + ") has died"))
      << failure_of(got);
  EXPECT_EQ(code_of(f.group->send(rank{2}, 1, {}, {}, soon)), errc::peer_dead);
  EXPECT_EQ(code_of(f.group->barrier(soon)), errc::peer_dead);
  EXPECT_EQ(f.ranks[0].said(), "");
  EXPECT_EQ(f.ranks[2].said(), "");
  EXPECT_FALSE(f.group->alive(rank{1}));
  EXPECT_EQ(code_of(f.group->wait_death(0ns)), errc::timed_out) << "the others left with a farewell";
  p = before;
  EXPECT_EQ(::poll(&p, 1, 0), 0);
  EXPECT_TRUE(f.group->alive(rank{0}));
}

TEST(process_group, keeps_its_death_descriptor_readable_until_the_death_is_told) {
  family f{2, wait_for_the_end};
  f.ranks[0].kill(SIGKILL);
  EXPECT_EQ(code_of(f.group->receive(rank{1}, 1, soon)), errc::peer_dead) << "one part of a program sees it";
  pollfd p{f.group->death_descriptor(), POLLIN, 0};
  EXPECT_EQ(::poll(&p, 1, 0), 1) << "and the event loop of another part as well";
  EXPECT_TRUE(f.group->wait_death(0ns));
  EXPECT_EQ(::poll(&p, 1, 0), 0);
}

TEST(process_group, sees_a_death_although_a_fork_of_the_dead_holds_its_connection) {
  shared<std::atomic<pid_t>> grandchild;
  family f{2, [&](process_group& group) {
             const pid_t made = ::fork();
             if (made == 0) {
               ::prctl(PR_SET_PDEATHSIG, 0);
               while (true) ::pause();
             }
             *grandchild = made;
             return wait_for_the_end(group);
           }};
  ASSERT_TRUE(eventually([&] { return grandchild->load() != 0; }));
  f.ranks[0].kill(SIGKILL);
  const auto dead = f.group->wait_death(soon);
  EXPECT_TRUE(dead) << failure_of(dead);
  EXPECT_FALSE(f.group->alive(rank{1}));
  ::kill(*grandchild, SIGKILL);
}

TEST(process_group, does_not_take_a_stopped_process_for_a_dead_one) {
  family f{2, [](process_group& group) {
             const auto met = group.barrier(60s);
             return met ? "" : failure_of(met);
           }};
  f.ranks[0].kill(SIGSTOP);
  int status = 0;
  ASSERT_EQ(::waitpid(f.ranks[0].pid(), &status, WUNTRACED), f.ranks[0].pid());
  ASSERT_TRUE(WIFSTOPPED(status));
  EXPECT_EQ(code_of(f.group->wait_death(200ms)), errc::timed_out);
  EXPECT_TRUE(f.group->alive(rank{1}));
  EXPECT_EQ(code_of(f.group->receive(rank{1}, 5, 10ms)), errc::timed_out);
  f.ranks[0].kill(SIGCONT);
  EXPECT_TRUE(f.group->barrier(soon));
  EXPECT_EQ(f.ranks[0].said(), "");
}

TEST(process_group, is_not_inherited_by_a_fork) {
  family f{2, [](process_group& group) {
             const auto got = group.receive(rank{0}, 1, 60s);
             return got && data_of(got->payload) == pattern(50, 5) ? "" : failure_of(got);
           }};
  child fork{[&]() -> std::string {
    std::string told;
    const auto refused = [&](auto&& call) {
      const weft::error e = error_of([&] { static_cast<void>(call()); });
      told = e.what;
      return e.code == errc::closed;
    };
    process_group& g = *f.group;
    const samples::data wrong = pattern(50, 6);
    if (!refused([&] { return g.send(rank{1}, 1, view(wrong), {}, soon); })) return "send";
    if (!says(told, "does not inherit")) return told;
    if (!refused([&] { return g.receive(rank{1}, 1, soon); })) return "receive";
    if (!refused([&] { return g.barrier(soon); })) return "barrier";
    if (!refused([&] { return g.all_gather({}, soon); })) return "all_gather";
    if (!refused([&] { return g.alive(rank{1}); })) return "alive";
    if (!refused([&] { return g.wait_death(soon); })) return "wait_death";
    if (!refused([&] { return g.death_descriptor(); })) return "death_descriptor";
    if (g.size() != 2 || g.peer(rank{1}).pid == 0) return "what is only remembered may be asked";
    f.group.reset();  // closes, and says no farewell in the parent's name
    return "";
  }};
  EXPECT_EQ(fork.said(), "");
  EXPECT_TRUE(f.group->alive(rank{1}));
  EXPECT_TRUE(f.group->send(rank{1}, 1, view(pattern(50, 5)), {}, soon));
  EXPECT_EQ(f.ranks[0].said(), "");
}

/// Kills for each test; a nightly run does more.
int kills() { return std::getenv("WEFT_NIGHTLY") != nullptr ? 400 : 50; }

std::string percentiles(std::vector<std::int64_t>& ns) {
  if (ns.empty()) return "none";
  std::sort(ns.begin(), ns.end());
  const auto at = [&](std::size_t percent) { return std::to_string(ns[(ns.size() - 1) * percent / 100] / 1000); };
  return "p50 " + at(50) + " us, p99 " + at(99) + " us, max " + std::to_string(ns.back() / 1000) + " us of " +
         std::to_string(ns.size());
}

TEST(process_group, tells_all_survivors_of_a_kill_at_any_instant_and_delivers_what_was_sent) {
  constexpr int size = 4;
  struct scene {
    std::atomic<int> joined{0};
    std::array<std::atomic<std::int64_t>, size> seen{};
    std::array<std::atomic<std::uint64_t>, size> sent{};  // by each rank to the next one
  };
  const unsigned seed = std::random_device{}();
  RecordProperty("seed", std::to_string(seed));
  std::mt19937 random{seed};
  std::vector<std::int64_t> latencies;
  const std::string name = fresh_name();
  for (int i = 0; i < kills(); ++i) {
    SCOPED_TRACE("kill " + std::to_string(i) + ", seed " + std::to_string(seed));
    shared<scene> stage;
    const int victim = static_cast<int>(random() % size);
    const int kind = i % 3;  // of what goes on: meetings, messages, nothing
    std::vector<child> ranks;
    for (int r = 0; r < size; ++r) {
      ranks.emplace_back([&, r]() -> std::string {
        const auto before = open_descriptors();
        {
          auto made = rendezvous::at(name, rank{r}, size).join(within(soon));
          if (!made) return failure_of(made);
          ++stage->joined;
          process_group& group = *made;
          const auto self = static_cast<std::size_t>(r);
          const int next = (r + 1) % size;
          const int previous = (r + size - 1) % size;
          std::uint64_t received = 0;
          weft::error why;
          for (std::uint64_t n = 0;; ++n) {
            if (kind == 0) {
              if (auto met = group.barrier(soon); !met) {
                why = met.error();
                break;
              }
            } else if (kind == 1) {
              auto sent = group.send(rank{next}, 1, view(pattern(200, n)), {}, soon);
              if (sent) ++stage->sent[self];
              auto got = group.receive(rank{previous}, 1, sent ? soon : 0ns);
              if (got && data_of(got->payload) != pattern(200, received)) return "a torn message";
              if (got) ++received;
              if (!sent || !got) {
                why = sent ? got.error() : sent.error();
                break;
              }
            } else {
              auto dead = group.wait_death(soon);
              why = dead ? weft::error{errc::peer_dead, {}, 0, to_string(*dead), {}} : dead.error();
              break;
            }
          }
          // A neighbour that has seen the death may have left already; the death itself is told all the same.
          const auto dead =
              why.code == errc::peer_dead && kind == 2 ? weft::result<rank>{rank{victim}} : group.wait_death(soon);
          stage->seen[self] = stopwatch::now().time_since_epoch().count();
          if (!dead || *dead != rank{victim}) return to_string(why) + "; then " + failure_of(dead);
          if (why.code != errc::peer_dead && why.code != errc::closed) return to_string(why);
          if (kind == 2 && why.what != to_string(rank{victim})) return why.what;
          if (kind == 1 && previous == victim) {
            while (auto got = group.receive(rank{previous}, 1, soon)) {
              if (data_of(got->payload) != pattern(200, received)) return "a torn message";
              ++received;
            }
            const auto published = stage->sent[static_cast<std::size_t>(victim)].load();
            if (received != published && received != published + 1) {
              return std::to_string(received) + " received of " + std::to_string(published) + " sent";
            }
          }
        }
        const auto after = open_descriptors();
        return after == before ? "" : "descriptors: " + std::to_string(after) + ", before " + std::to_string(before);
      });
    }
    ASSERT_TRUE(eventually([&] { return stage->joined == size; }));
    const auto instant = stopwatch::now() + std::chrono::microseconds{random() % 3000};
    while (stopwatch::now() < instant) std::this_thread::yield();
    const auto killed = stopwatch::now().time_since_epoch().count();
    ranks[static_cast<std::size_t>(victim)].kill(SIGKILL);
    for (int r = 0; r < size; ++r) {
      const auto index = static_cast<std::size_t>(r);
      EXPECT_EQ(ranks[index].said(), r == victim ? "ended by signal 9" : "") << to_string(rank{r});
      if (r != victim) latencies.push_back(stage->seen[index] - killed);
    }
    if (HasFailure()) break;
  }
  RecordProperty("death_seen", percentiles(latencies));
}

TEST(rendezvous, ends_for_all_when_a_process_is_killed_while_they_gather) {
  constexpr int size = 4;
  const unsigned seed = std::random_device{}();
  RecordProperty("seed", std::to_string(seed));
  std::mt19937 random{seed};
  const std::string name = fresh_name();
  for (int i = 0; i < kills(); ++i) {
    SCOPED_TRACE("kill " + std::to_string(i) + ", seed " + std::to_string(seed));
    const int victim = static_cast<int>(random() % size);
    std::vector<child> ranks;
    for (int r = 0; r < size; ++r) {
      ranks.emplace_back([&, r]() -> std::string {
        const auto before = open_descriptors();
        {
          auto group = rendezvous::at(name, rank{r}, size).join(within(400ms));
          if (group) {
            // in the group before the end: news like any other, of who died or of who left because of it
            weft::result<void> met;
            while ((met = group->barrier(soon))) {
            }
            if (code_of(met) != errc::peer_dead && code_of(met) != errc::closed) return failure_of(met);
          } else if (code_of(group) != errc::peer_dead && code_of(group) != errc::timed_out &&
                     code_of(group) != errc::closed) {
            return failure_of(group);
          }
        }
        return open_descriptors() == before ? "" : "descriptors left";
      });
    }
    const auto instant = stopwatch::now() + std::chrono::microseconds{random() % 4000};
    while (stopwatch::now() < instant) std::this_thread::yield();
    ranks[static_cast<std::size_t>(victim)].kill(SIGKILL);
    for (int r = 0; r < size; ++r) {
      EXPECT_EQ(ranks[static_cast<std::size_t>(r)].said(), r == victim ? "ended by signal 9" : "")
          << to_string(rank{r});
    }
    if (HasFailure()) break;
  }
}

// ---- packets ------------------------------------------------------------------------------------------------------

std::vector<std::byte> bytes_of(const packet& p) {
  const auto head = wire::packet_header(p);
  std::vector<std::byte> made(head.size() + p.payload.size());  // g++ 12 sees an overflow in an insert that cannot be
  std::copy(head.begin(), head.end(), made.begin());
  std::copy(p.payload.begin(), p.payload.end(), made.begin() + static_cast<std::ptrdiff_t>(head.size()));
  return made;
}

/// One of each kind, as full as it may be.
std::vector<packet> every_packet(const samples::data& payload) {
  std::vector<packet> all;
  for (std::uint8_t kind = 1; kind <= 12; ++kind) {
    packet p;
    p.kind = static_cast<packet_kind>(kind);
    p.rank = 3;
    p.size = 5;
    switch (p.kind) {
      case packet_kind::peer:
        p.pid = 17;
        p.uid = 18;
        p.descriptors = 2;
        [[fallthrough]];
      case packet_kind::hello:
      case packet_kind::welcome:
        p.start_time = 0x123456789a;
        p.payload = view(payload);
        break;
      case packet_kind::progress:
        p.tag = 0b10101;
        break;
      case packet_kind::refusal:
        p.tag = 2;
        p.payload = view(payload);
        break;
      case packet_kind::message:
        p.descriptors = 16;
        [[fallthrough]];
      case packet_kind::gather:
        p.payload = view(payload);
        [[fallthrough]];
      case packet_kind::barrier:
        p.tag = 0xfedcba9876543210;
        break;
      default:
        break;
    }
    all.push_back(p);
  }
  return all;
}

TEST(packet, of_every_kind_reads_as_it_was_written) {
  const auto payload = pattern(100, 1);
  for (const packet& p : every_packet(payload)) {
    const auto bytes = bytes_of(p);
    const auto got = wire::parse_packet(bytes);
    ASSERT_TRUE(got) << failure_of(got);
    EXPECT_EQ(got->kind, p.kind);
    EXPECT_EQ(got->descriptors, p.descriptors);
    EXPECT_EQ(got->rank, p.rank);
    EXPECT_EQ(got->size, p.size);
    EXPECT_EQ(got->tag, p.tag);
    EXPECT_EQ(got->start_time, p.start_time);
    EXPECT_EQ(got->pid, p.pid);
    EXPECT_EQ(got->uid, p.uid);
    EXPECT_TRUE(std::equal(got->payload.begin(), got->payload.end(), p.payload.begin(), p.payload.end()));
  }
}

TEST(packet, that_was_cut_anywhere_is_refused) {
  const auto payload = pattern(100, 1);
  for (const packet& p : every_packet(payload)) {
    const auto bytes = bytes_of(p);
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_EQ(code_of(wire::parse_packet(std::span{bytes}.first(size))), errc::corrupt) << size;
    }
  }
}

TEST(packet, with_a_value_where_its_kind_has_none_is_refused) {
  for (const packet& good : every_packet({})) {
    for (const std::size_t at : {7U, 16U, 24U, 32U, 36U, 44U}) {
      auto bytes = bytes_of(good);
      if (bytes[at] != std::byte{0}) continue;
      bytes[at + (at == 7 ? 0 : 1)] = std::byte{200};
      const auto got = wire::parse_packet(bytes);
      if (!got) {
        EXPECT_EQ(got.error().code, errc::corrupt);
        continue;
      }
      // the kinds that have that value
      EXPECT_TRUE(
          (at == 16 && got->tag != 0 && got->kind >= packet_kind::message && got->kind < packet_kind::farewell) ||
          (at == 24 && got->start_time != 0) || (at == 36 && got->kind == packet_kind::peer))
          << "byte " << at << " of kind " << static_cast<int>(good.kind);
    }
  }
}

TEST(packet, that_was_changed_at_random_is_refused_or_holds_to_its_rules) {
  const unsigned seed = std::random_device{}();
  RecordProperty("seed", std::to_string(seed));
  std::mt19937 random{seed};
  const auto payload = pattern(100, 1);
  const auto originals = every_packet(payload);
  int accepted = 0;
  for (int i = 0; i < 200'000; ++i) {
    auto bytes = bytes_of(originals[random() % originals.size()]);
    for (auto n = 1 + random() % 3; n > 0; --n) {
      const std::size_t at = random() % std::min<std::size_t>(bytes.size(), 52);
      switch (random() % 4) {
        case 0:
          bytes[at] ^= static_cast<std::byte>(1U << random() % 8);
          break;
        case 1:
          bytes[at] = static_cast<std::byte>(random());
          break;
        case 2:
          bytes.resize(random() % (bytes.size() + 20) + 1);
          break;
        default:
          bytes[at] = random() % 2 == 0 ? std::byte{0xff} : std::byte{0};
      }
    }
    const auto got = wire::parse_packet(bytes);
    if (!got) {
      ASSERT_TRUE(got.error().code == errc::corrupt || got.error().code == errc::incompatible) << failure_of(got);
      continue;
    }
    ++accepted;
    ASSERT_LT(got->rank, got->size);
    ASSERT_LE(got->size, 64U);
    ASSERT_EQ(got->payload.size() + wire::packet_header_bytes, bytes.size());
    ASSERT_LE(got->descriptors, 16);
    ASSERT_TRUE(bytes_of(*got) == bytes) << "what is accepted means all that is in it";
  }
  EXPECT_GT(accepted, 0);
}

TEST(packet, shows_no_control_characters_of_another_process) {
  EXPECT_EQ(wire::printable(view(std::string_view{"a\x1b[2Jb\n\0c\xff", 10})), "a?[2Jb??c?");
}

}  // namespace
