// SPDX-License-Identifier: Apache-2.0
#include "groups.hpp"

namespace rendezvous_test {

using namespace groups;

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

TEST(rendezvous, a_rendezvous_of_sixty_four_is_the_largest) {
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
  const std::string_view cut{good.data(), good.size() - 1};  // with what is missing behind it
  const weft::error e = error_of([&] { static_cast<void>(rendezvous::inherited(cut)); });
  EXPECT_TRUE(says(e.what, "expected a number and ',' at \"" + fd + "\"")) << e.what;
}

TEST(rendezvous, takes_a_ticket_once) {
  auto places = rendezvous::connected(2);
  descriptor own{::fcntl(std::stoi(places[1].ticket().substr(9)), F_DUPFD, 0)};  // as another program inherits it
  const std::string ticket = "weft:1:2:" + std::to_string(own.get()) + ",";
  const rendezvous taken = rendezvous::inherited(ticket);
  static_cast<void>(own.release());
  const weft::error e = error_of([&] { static_cast<void>(rendezvous::inherited(ticket)); });
  EXPECT_EQ(e.code, errc::invalid_argument);
  EXPECT_TRUE(says(e.what, "was taken already")) << e.what;
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

/// A meeting of which somebody stays away, with a limit that the others need not keep to: who comes too late is missing
/// as well, and they meet again with twice the time. The first meeting that names nobody but who stayed away, or the
/// last one.
template <class Meeting>
auto meet_in_vain(std::string_view missing, Meeting meeting) {
  std::chrono::nanoseconds limit = 250ms;
  auto ended = meeting(limit);
  while (!says(ended.told, missing) && limit < only_a_hang / 4) ended = meeting(limit *= 2);
  return ended;
}

TEST(rendezvous, names_the_ranks_that_are_missing_when_time_is_up) {
  struct outcome {
    errc code;
    std::string told, other;
  };
  constexpr std::string_view missing = "ranks 1, 3, 4 of 5";
  const outcome ended = meet_in_vain(missing, [&](std::chrono::nanoseconds limit) {
    const std::string name = fresh_name();
    child other{[&] {
      const auto group = rendezvous::at(name, rank{2}, 5).join(within(soon));
      return failure_of(group);  // rank 0 gives up first, and says so to all
    }};
    const auto group = rendezvous::at(name, rank{0}, 5).join(within(limit));
    const std::string told = failure_of(group);
    return outcome{code_of(group), told, says(told, missing) ? other.said() : "was not there"};
  });
  EXPECT_EQ(ended.code, errc::timed_out);
  EXPECT_TRUE(says(ended.told, missing)) << ended.told;
  EXPECT_TRUE(says(ended.other, "timed_out") && says(ended.other, missing)) << ended.other;
}

TEST(rendezvous, tells_a_later_rank_who_is_missing_too) {
  struct outcome {
    errc code, host;
    std::string told;
  };
  const outcome ended = meet_in_vain("rank 2 of 3", [](std::chrono::nanoseconds limit) {
    auto places = rendezvous::connected(3);
    errc hosts{};
    std::thread host{[&] { hosts = code_of(std::move(places[0]).join(within(soon))); }};
    const auto group = std::move(places[1]).join(within(limit));
    host.join();
    return outcome{code_of(group), hosts, failure_of(group)};
  });
  EXPECT_EQ(ended.code, errc::timed_out);
  EXPECT_EQ(ended.host, errc::timed_out);
  EXPECT_TRUE(says(ended.told, "rank 2 of 3")) << ended.told;
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
  const auto sockets_before = named_sockets();
  std::vector<process_group> all;
  // what other programs make there meanwhile is not of each group
  EXPECT_TRUE(eventually([&] {
    const auto before = listing();
    all = together(3);
    return listing() == before;
  }));
  EXPECT_EQ(named_sockets(), sockets_before) << "the kernel names a socket that sends while it asks for credentials";
}

TEST(rendezvous, a_rendezvous_of_two_sizes_or_with_a_rank_twice_names_both_sides) {
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

TEST(rendezvous, joins_all_or_none_however_few_descriptors_one_of_them_has_left) {
  for (const std::size_t poor : {0U, 1U}) {
    for (rlim_t spare = 0; spare < 7; ++spare) {
      auto places = rendezvous::connected(2);
      child one{[&]() -> std::string {
        auto mine = std::move(places[poor]);
        places.clear();
        const auto fill = fill_holes();
        const rlimit tight{open_descriptors() - 1 + spare, 4096};  // the listing was one of them
        ::setrlimit(RLIMIT_NOFILE, &tight);
        const auto group = std::move(mine).join(within(only_a_hang));
        return group ? "joined" : failure_of(group);
      }};
      auto mine = std::move(places[1 - poor]);
      places.clear();
      const auto group = std::move(mine).join(within(only_a_hang));
      const std::string said = one.said();
      EXPECT_EQ(said == "joined", static_cast<bool>(group)) << said << "; " << failure_of(group);
      EXPECT_TRUE(says(said, "resource_exhausted") || spare > 3) << said;
      EXPECT_TRUE(said == "joined" || spare < 6) << said;
    }
  }
}

/// A process that plays a rank by hand, and whose fork keeps all of its connections when it is killed.
class forked_player {
 public:
  explicit forked_player(const std::function<void()>& work)
      : plays_([&]() -> std::string {
          work();
          const pid_t made = ::fork();
          if (made == 0) ::prctl(PR_SET_PDEATHSIG, 0);
          if (made != 0) *fork_ = made;
          while (true) ::pause();
        }) {}
  ~forked_player() {
    if (*fork_ > 0) ::kill(*fork_, SIGKILL);  // before the end of plays_ is waited for
  }
  void kill() {
    ASSERT_TRUE(eventually([&] { return *fork_ != 0; }));
    plays_.kill(SIGKILL);
  }
  [[nodiscard]] std::string name(int r) const {
    return "rank " + std::to_string(r) + " (process " + std::to_string(plays_.pid()) + ") died while";
  }

 private:
  shared<std::atomic<pid_t>> fork_;
  child plays_;
};

packet packet_of(packet_kind kind, int r, int size) {
  packet p;
  p.kind = kind;
  p.rank = static_cast<std::uint32_t>(r);
  p.size = static_cast<std::uint32_t>(size);
  if (kind == packet_kind::hello || kind == packet_kind::welcome) p.start_time = wire::start_time_of(::getpid());
  return p;
}

descriptor says_hello(const std::string& name, int r, int size, std::span<const std::byte> announcement = {}) {
  descriptor link = raw_connection(name, ::geteuid());
  packet hello = packet_of(packet_kind::hello, r, size);
  hello.payload = announcement;
  EXPECT_TRUE(wire::write_packet(link.get(), hello, {}, true));
  return link;
}

void read_until(const descriptor& link, packet_kind kind) {
  for (auto bytes = raw_read(link); !bytes.empty(); bytes = raw_read(link)) {
    const auto parsed = wire::parse_packet(bytes);
    if (parsed && parsed->kind == kind) return;
  }
}

TEST(rendezvous, sees_the_death_of_a_rank_whose_fork_holds_its_connection) {
  const std::pair<int, packet_kind> scenes[] = {{3, packet_kind::welcome}, {2, packet_kind::complete}};
  for (const auto& [size, reached] : scenes) {  // another one is missing; all are there, and it is not ready
    const std::string name = fresh_name();
    descriptor link;
    forked_player one{[&, n = size, kind = reached] {
      link = says_hello(name, 1, n);
      read_until(link, kind);
    }};
    std::thread killer{[&] { one.kill(); }};
    const auto group = rendezvous::at(name, rank{0}, size).join(within(only_a_hang));
    killer.join();
    EXPECT_EQ(code_of(group), errc::peer_dead) << failure_of(group);
    EXPECT_TRUE(says(failure_of(group), one.name(1))) << failure_of(group);
  }
}

TEST(rendezvous, sees_the_death_of_a_rank_that_reads_nothing_and_whose_fork_holds_its_connection) {
  constexpr int size = 40;
  const std::string name = fresh_name();
  const samples::data large(process_group::max_announcement);
  descriptor link;
  forked_player one{[&] {
    link = says_hello(name, 1, size);
    read_until(link, packet_kind::peer);  // and of those that follow there are more than a connection holds
  }};
  weft::result<process_group> group{weft::error{}};
  std::thread host{[&] { group = rendezvous::at(name, rank{0}, size).join(within(only_a_hang)); }};
  std::vector<descriptor> others;
  for (int r = 2; r < size; ++r) others.push_back(says_hello(name, r, size, view(large)));
  one.kill();
  host.join();
  EXPECT_EQ(code_of(group), errc::peer_dead) << failure_of(group);
  EXPECT_TRUE(says(failure_of(group), one.name(1))) << failure_of(group);
}

TEST(rendezvous, sees_the_death_of_rank_0_whose_fork_holds_the_connection) {
  const std::string name = fresh_name();
  descriptor door, link;
  forked_player host{[&] {
    const auto [address, length] = wire::rendezvous_address(name, ::geteuid());
    door = descriptor{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
    if (::bind(door.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) return;
    ::listen(door.get(), 8);
    link = descriptor{::accept(door.get(), nullptr, nullptr)};
    read_until(link, packet_kind::hello);
    static_cast<void>(wire::write_packet(link.get(), packet_of(packet_kind::welcome, 0, 2), {}, true));
    static_cast<void>(wire::write_packet(link.get(), packet_of(packet_kind::complete, 0, 2)));
    read_until(link, packet_kind::ready);
  }};
  std::thread killer{[&] { host.kill(); }};
  const auto group = rendezvous::at(name, rank{1}, 2).join(within(only_a_hang));
  killer.join();
  EXPECT_EQ(code_of(group), errc::peer_dead) << failure_of(group);
  EXPECT_TRUE(says(failure_of(group), host.name(0))) << failure_of(group);
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
      const auto gathers = [&, r]() -> std::string {
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
      };
      ranks.emplace_back([&, r] {
        std::string said = gathers();
        while (r == victim) ::pause();  // its kill comes, however early it has ended
        return said;
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

}  // namespace rendezvous_test
