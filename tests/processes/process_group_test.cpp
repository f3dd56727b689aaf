// SPDX-License-Identifier: Apache-2.0
#include "groups.hpp"
#include "processes/process_group_body.hpp"

namespace process_group_test {

using namespace groups;

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

TEST(process_group, knows_that_a_peer_left_also_where_its_last_messages_filled_the_connection) {
  for (const std::size_t size : {std::size_t{100}, process_group::max_payload}) {
    auto all = together(2);
    const auto data = pattern(size, 1);
    const auto what = view(data);
    std::size_t sent = 0;
    while (all[1].send(rank{0}, 4, what, {}, 0ns)) ++sent;
    all.pop_back();
    for (std::size_t n = 0; n < sent; ++n) {
      const auto got = all[0].receive(rank{1}, 4, soon);
      ASSERT_TRUE(got) << failure_of(got);
    }
    EXPECT_EQ(code_of(all[0].receive(rank{1}, 4, soon)), errc::closed) << size;
    EXPECT_EQ(code_of(all[0].wait_death(0ns)), errc::timed_out) << "to leave is not to die";
  }
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
    r.link.reset();
    pollfd death{r.victim->death_descriptor(), POLLIN, 0};
    EXPECT_EQ(::poll(&death, 1, 0), 0) << "its process lives";
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

TEST(process_group, a_wait_for_room_beside_the_one_that_watches_hears_what_others_have_read) {
  using body = process_group::body;
  std::vector<body::member> alone(1);
  auto on = body::watchers::of(alone);
  ASSERT_TRUE(on) << failure_of(on);
  body group{rank{0}, std::move(alone), std::move(*on), 0};
  group.watched = true;
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const descriptor never_writable{ends[0]}, open{ends[1]};
  const int no_room = never_writable.get();
  std::atomic<bool> has_asked{false};
  bool is_read = false;  // with the mutex held
  std::thread waits{[&] {
    std::unique_lock lock{group.mutex};
    const auto how = group.wait(
        lock, only_a_hang, {}, [&] { return is_read; },
        [&] {
          has_asked = true;
          return std::span{&no_room, 1};
        });
    EXPECT_EQ(how, body::outcome::ok);
  }};
  EXPECT_TRUE(eventually([&] { return has_asked.load(); }));
  {
    const std::lock_guard lock{group.mutex};
    is_read = true;
    group.tell();
  }
  waits.join();
}

TEST(process_group, goes_on_with_the_member_that_has_room_when_it_waits_for_room_at_two) {
  auto all = together(3);
  std::array<std::size_t, 3> sent{};
  const samples::data payload(1000);
  for (const std::size_t r : {std::size_t{1}, std::size_t{2}}) {
    EXPECT_EQ(code_of(all[r].barrier(0ns)), errc::timed_out) << "it has arrived";
    while (all[0].send(rank{static_cast<int>(r)}, 7, view(payload), {}, 0ns)) ++sent[r];
  }
  std::atomic<long> its_thread{0};
  std::thread late{[&] {
    its_thread = ::gettid();
    EXPECT_TRUE(all[0].barrier(only_a_hang));
  }};
  EXPECT_TRUE(eventually([&] { return its_thread != 0; }));
  std::string state;  // "S": it sleeps, so that nothing but room wakes it
  EXPECT_TRUE(eventually([&] {
    std::ifstream{"/proc/self/task/" + std::to_string(its_thread) + "/stat"} >> state >> state >> state;
    return state == "S";
  }));
  for (const std::size_t r : {std::size_t{1}, std::size_t{2}}) {
    for (std::size_t n = 0; n < sent[r]; ++n) EXPECT_TRUE(all[r].receive(rank{0}, 7, only_a_hang));
    EXPECT_TRUE(all[r].barrier(only_a_hang)) << "rank " << r;
  }
  late.join();
}

TEST(process_group, whose_unread_messages_may_hide_an_arrival_says_so_and_meets_once_they_are_received) {
  auto all = together(2);
  std::thread peer{[&] {
    for (std::size_t n = 0; n < process_group::max_unread; ++n)
      EXPECT_TRUE(all[1].send(rank{0}, 7, {}, {}, only_a_hang));
    EXPECT_TRUE(all[1].barrier(only_a_hang));
  }};
  weft::result<void> hidden;
  EXPECT_TRUE(eventually([&] { return code_of(hidden = all[0].barrier(0ns)) != errc::timed_out; }));
  EXPECT_EQ(code_of(hidden), errc::resource_exhausted) << failure_of(hidden);
  EXPECT_TRUE(says(failure_of(hidden), "256 messages that came first, the first with tag 7: receive them"))
      << failure_of(hidden);
  for (std::size_t n = 0; n < process_group::max_unread; ++n) EXPECT_TRUE(all[0].receive(rank{1}, 7, only_a_hang));
  EXPECT_TRUE(all[0].barrier(only_a_hang));
  peer.join();
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
  const auto dead = group.wait_death(only_a_hang);
  return dead ? "" : failure_of(dead);
}

TEST(process_group, sees_at_the_first_question_that_one_of_forty_has_left_whose_process_still_runs) {
  constexpr int size = 40;
  int left[2], hold[2];
  ASSERT_EQ(::pipe2(left, O_CLOEXEC), 0);
  ASSERT_EQ(::pipe2(hold, O_CLOEXEC), 0);
  descriptor told{left[0]}, tells{left[1]}, held{hold[0]}, holds{hold[1]};
  std::optional<process_group> group;
  std::vector<child> others;
  auto places = rendezvous::connected(size);
  for (int r = 1; r < size; ++r) {
    others.emplace_back([&, r]() -> std::string {
      auto mine = std::move(places[static_cast<std::size_t>(r)]);
      places.clear();
      holds = {};
      std::string failure;
      {
        const auto made = std::move(mine).join(within(only_a_hang));
        if (!made) failure = failure_of(made);
      }
      const auto who = static_cast<char>(r);
      char end = 0;
      if (::write(tells.get(), &who, 1) != 1 || ::read(held.get(), &end, 1) != 0) return "a pipe failed";
      return failure;
    });
  }
  auto mine = std::move(places.front());
  places.clear();
  tells = {};  // the reading ends if all of them do
  group.emplace(weft::value_or_raise(std::move(mine).join(within(only_a_hang))));
  char last = 0;
  for (int r = 1; r < size; ++r) ASSERT_EQ(::read(told.get(), &last, 1), 1);
  EXPECT_FALSE(group->alive(rank{last}));
  holds = {};
  for (child& other : others) EXPECT_EQ(other.said(), "");
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
  EXPECT_EQ(::poll(&p, 1, milliseconds_of(only_a_hang)), 1);
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
             const auto met = group.barrier(only_a_hang);
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
             const auto got = group.receive(rank{0}, 1, only_a_hang);
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

}  // namespace process_group_test
