// SPDX-License-Identifier: Apache-2.0
#include "distributed/meeting/frame_link.hpp"
#include "distributed/meeting/greeting.hpp"
#include "distributed/meeting/meeting.hpp"
#include "distributed/meetings.hpp"
#include "weft/core/log.hpp"
#include "weft/core/version.hpp"

#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <utility>

namespace {

using namespace meetings;
namespace wire = weft::detail;

TEST(world, four_ranks_know_each_other_and_form_a_group_on_their_node) {
  const auto port = fresh_port();
  const auto worlds =
      join_all({2, 0, 3, 1}, [&](int r) { return world::join(place(r, 4, port), within(only_a_hang)); });
  for (const auto& w : worlds) {
    ASSERT_TRUE(w) << failure_of(w);
    EXPECT_EQ(w->size(), 4);
    EXPECT_EQ(w->nodes(), 1);
    ASSERT_EQ(w->ranks_of(0).size(), 4U);
    for (int r = 0; r < 4; ++r) {
      const weft::world_member& m = w->member(rank{r});
      EXPECT_EQ(m.rank, rank{r});
      EXPECT_EQ(m.local, rank{r});
      EXPECT_EQ(m.pid, ::getpid());
      EXPECT_EQ(m.interface, "lo");
      EXPECT_FALSE(m.host.empty());
    }
    EXPECT_EQ(w->node_group()->self(), w->self());
    EXPECT_EQ(w->node_group()->size(), 4);
  }
  EXPECT_EQ(error_of([&] { static_cast<void>(worlds[0]->member(rank{4})); }).code, errc::invalid_argument);
  EXPECT_EQ(error_of([&] { static_cast<void>(worlds[0]->ranks_of(1)); }).code, errc::invalid_argument);
}

TEST(world, a_world_of_one_rank_needs_nobody) {
  const auto w = world::join({rank{0}, 1, {}, {}, 0});
  ASSERT_TRUE(w) << failure_of(w);
  EXPECT_EQ(w->nodes(), 1);
  EXPECT_EQ(to_string(w->member(rank{0})).substr(0, 15), "rank 0 (node 0,");
}

TEST(world, a_world_of_sixty_four_ranks_meets) {
  const auto port = fresh_port();
  std::vector<int> ranks(64);
  for (int r = 0; r < 64; ++r) ranks[static_cast<std::size_t>(r)] = r;
  for (const auto& w : join_all(ranks, [&](int r) { return world::join(place(r, 64, port), within(only_a_hang)); }))
    ASSERT_TRUE(w) << failure_of(w);
}

TEST(world, names_who_is_late_to_everybody_who_is_there) {
  const auto port = fresh_port();
  // rank 0 has the shorter limit, and tells the others why it ends
  const auto ended = join_all({0, 2}, [&](int r) {
    return world::join(place(r, 5, port), within(r == 0 ? std::chrono::nanoseconds{500ms} : only_a_hang));
  });
  for (const auto& w : ended) {
    EXPECT_EQ(code_of(w), errc::timed_out);
    EXPECT_TRUE(says(failure_of(w), "rank 1, ")) << failure_of(w);
    EXPECT_TRUE(says(failure_of(w), "rank 3, rank 4")) << failure_of(w);
  }
}

TEST(world, without_a_rank_0_says_where_it_looked) {
  const auto w = world::join(place(1, 2, 19999), within(200ms));
  EXPECT_EQ(code_of(w), errc::timed_out);
  EXPECT_TRUE(says(failure_of(w), "waited for rank 0")) << failure_of(w);
  EXPECT_TRUE(says(failure_of(w), host_of_this_test())) << failure_of(w);
}

TEST(world, with_a_rank_twice_ends_for_all_and_names_both) {
  const auto port = fresh_port();
  const auto ended = join_all({0, 1, 1}, [&](int r) { return world::join(place(r, 3, port), within(only_a_hang)); });
  for (const auto& w : ended) {
    EXPECT_EQ(code_of(w), errc::incompatible);
    EXPECT_TRUE(says(failure_of(w), "is there twice; the first is rank 1")) << failure_of(w);
  }
}

TEST(world, a_world_of_two_sizes_ends_for_all_and_says_so) {
  const auto port = fresh_port();
  const auto ended =
      join_all({0, 1}, [&](int r) { return world::join(place(r, r == 0 ? 3 : 4, port), within(only_a_hang)); });
  for (const auto& w : ended) {
    EXPECT_EQ(code_of(w), errc::incompatible);
    EXPECT_TRUE(says(failure_of(w), "is in a world of 4")) << failure_of(w);
  }
}

TEST(world, takes_only_who_knows_the_token_and_meets_without_the_others) {
  const auto port = fresh_port();
  std::vector<std::thread> ranks;
  std::optional<result<world>> first;
  std::optional<result<world>> second;
  ranks.emplace_back([&] { first.emplace(world::join(place(0, 2, port), within(only_a_hang, "right"))); });
  const auto stranger = world::join(place(1, 2, port), within(only_a_hang, "wrong"));
  EXPECT_EQ(code_of(stranger), errc::incompatible);
  EXPECT_TRUE(says(failure_of(stranger), "token")) << failure_of(stranger);
  EXPECT_FALSE(says(failure_of(stranger), "right"));
  ranks.emplace_back([&] { second.emplace(world::join(place(1, 2, port), within(only_a_hang, "right"))); });
  for (std::thread& t : ranks) t.join();
  EXPECT_TRUE(*first) << failure_of(*first);
  EXPECT_TRUE(*second) << failure_of(*second);
}

// ---- who is not a rank of weft's
// --------------------------------------------------------------------------------------

sockaddr_in address(std::uint16_t port) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(port);
  ::inet_pton(AF_INET, host_of_this_test().c_str(), &at.sin_addr);
  return at;
}

weft::descriptor listen_at(std::uint16_t port) {
  weft::descriptor made{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  const int on = 1;
  ::setsockopt(made.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const sockaddr_in at = address(port);
  if (::bind(made.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0 || ::listen(made.get(), 8) != 0)
    throw std::runtime_error{std::strerror(errno)};
  return made;
}

/// Connects as soon as somebody listens.
weft::descriptor connect_to(std::uint16_t port) {
  const sockaddr_in at = address(port);
  for (;;) {
    weft::descriptor made{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    if (::connect(made.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0) return made;
    std::this_thread::yield();
  }
}

/// The next frame, or what ended the connection.
result<std::optional<wire::frame>> next(wire::frame_link& link) {
  for (;;) {
    static_cast<void>(link.flush());
    auto got = link.pull();
    if (!got || *got) return got;
    pollfd p{link.file(), POLLIN, 0};
    if (::poll(&p, 1, groups::milliseconds_of(only_a_hang)) == 0) throw std::runtime_error{"hung"};
  }
}

template <class T>
void put(wire::frame_link& link, wire::frame_kind kind, const T& record) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span{&record, 1});
  link.put(kind, std::span{&bytes, 1});
}

TEST(world, is_not_kept_from_meeting_by_strangers) {
  const auto port = fresh_port();
  std::thread host{[&] {
    const auto w = world::join(place(0, 2, port), within(only_a_hang));
    EXPECT_TRUE(w) << failure_of(w);
  }};
  std::vector<weft::descriptor> silent;
  silent.reserve(100);
  for (int n = 0; n < 100; ++n) silent.push_back(connect_to(port));  // more than are kept
  std::mt19937 random{7};
  for (int n = 0; n < 40; ++n) {
    std::string said(random() % 400 + 20, '\0');
    for (char& c : said) c = static_cast<char>(random());
    if (n % 4 == 0) said = "GET / HTTP/1.1\r\n\r\n";
    if (n % 4 == 1) {  // a frame of 4 GiB: it must not be believed
      const wire::frame_header big{wire::frame_header::is_weft, 2, ~0U};
      said.assign(reinterpret_cast<const char*>(&big), sizeof big);
    }
    const auto link = connect_to(port);
    static_cast<void>(!::send(link.get(), said.data(), said.size(), MSG_NOSIGNAL));
    char rest[512];
    while (::recv(link.get(), rest, sizeof rest, 0) > 0 && n % 2 != 0) {
    }
  }
  const auto w = world::join(place(1, 2, port), within(only_a_hang));
  host.join();
  EXPECT_TRUE(w) << failure_of(w);
}

TEST(world, says_that_another_program_has_its_port) {
  const auto port = fresh_port();
  const auto other = listen_at(port);
  const auto host = world::join(place(0, 2, port), within(only_a_hang));
  EXPECT_EQ(code_of(host), errc::name_taken);
  EXPECT_TRUE(says(failure_of(host), "WEFT_MASTER_PORT")) << failure_of(host);
  const auto guest = world::join(place(1, 2, port), within(200ms));
  EXPECT_EQ(code_of(guest), errc::timed_out);
  EXPECT_TRUE(says(failure_of(guest), "WEFT_MASTER_PORT")) << failure_of(guest);
}

TEST(world, does_not_believe_a_rank_0_without_the_token) {
  const auto port = fresh_port();
  const auto listener = listen_at(port);
  std::thread impostor{[&] {
    wire::frame_link link{weft::descriptor{::accept(listener.get(), nullptr, nullptr)}, 4096};
    put(link, wire::frame_kind::challenge, wire::challenge_record{});
    wire::hello_record hello;
    const auto got = next(link);
    ASSERT_TRUE(got && (**got).payload.size() == sizeof hello);
    std::memcpy(&hello, (**got).payload.data(), sizeof hello);
    put(link, wire::frame_kind::welcome, wire::welcome_proof("guessed", hello));
    EXPECT_FALSE(next(link));
  }};
  const auto w = world::join(place(1, 2, port), within(only_a_hang));
  impostor.join();
  EXPECT_EQ(code_of(w), errc::incompatible);
  EXPECT_TRUE(says(failure_of(w), "does not know the token")) << failure_of(w);
}

/// Says, as rank 1 of 2, who it is; what rank 0 answers, if anything.
std::optional<wire::frame_kind> greet(wire::frame_link& link, const std::string& version) {
  wire::challenge_record challenge;
  auto got = next(link);
  if (!got || (**got).payload.size() != sizeof challenge) return {};
  std::memcpy(&challenge, (**got).payload.data(), sizeof challenge);
  wire::hello_record hello;
  hello.rank = 1;
  hello.size = 2;
  hello.set_version(version);
  hello.set_who("host b, pid 7");
  hello.proof = hello.proof_by("of this test", challenge.asked);
  put(link, wire::frame_kind::hello, hello);
  got = next(link);
  return got ? std::optional{(**got).kind} : std::nullopt;
}

TEST(world, leaves_a_slow_rank_its_connection_however_many_strangers_came_and_went) {
  const auto port = fresh_port();
  std::thread host{[&] {
    const auto w = world::join(place(0, 2, port), within(only_a_hang));
    EXPECT_EQ(code_of(w), errc::peer_dead) << failure_of(w);
  }};
  for (int n = 0; n < 100; ++n) {
    const auto link = connect_to(port);
    static_cast<void>(!::send(link.get(), "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL));
    char rest[512];
    while (::recv(link.get(), rest, sizeof rest, 0) > 0) {
    }
  }
  {
    wire::frame_link slow{connect_to(port), 4096};
    wire::frame_link stranger{connect_to(port), 4096};
    EXPECT_TRUE(next(stranger));
    EXPECT_EQ(greet(slow, std::string{weft::library_version()}), wire::frame_kind::welcome);
  }
  host.join();
}

TEST(world, names_a_rank_of_another_version) {
  const auto port = fresh_port();
  std::thread other{[&] {
    wire::frame_link link{connect_to(port), 4096};
    EXPECT_EQ(greet(link, "9.9.9"), wire::frame_kind::refusal);
  }};
  const auto w = world::join(place(0, 2, port), within(only_a_hang));
  other.join();
  EXPECT_EQ(code_of(w), errc::incompatible);
  EXPECT_TRUE(says(failure_of(w), "rank 1 (host b, pid 7")) << failure_of(w);
  EXPECT_TRUE(says(failure_of(w), "runs weft 9.9.9")) << failure_of(w);
  EXPECT_TRUE(says(failure_of(w), "runs weft " + std::string{weft::library_version()})) << failure_of(w);
}

// ---- how it ends otherwise
// --------------------------------------------------------------------------------------------

TEST(world, ends_for_all_when_a_rank_is_killed_while_they_gather) {
  const auto port = fresh_port();
  const std::string host = host_of_this_test();
  child victim{[&] {
    world_place at = place(1, 3, port);
    at.host = host;
    return failure_of(world::join(at, within(only_a_hang)));
  }};
  // Once rank 0 lists rank 2 alone as missing, the victim is seated: a stranger cannot ask, so the log tells.
  std::atomic<bool> is_seated{false};
  weft::set_log_hook(
      [&](weft::log_level, std::string_view text) {
        if (text.ends_with("waits for rank 2")) {
          is_seated = true;
          is_seated.notify_all();
        }
      },
      weft::log_level::info);
  std::optional<result<world>> first;
  std::jthread zero{[&] { first.emplace(world::join(place(0, 3, port), within(only_a_hang))); }};
  is_seated.wait(false);
  weft::set_log_hook({});
  victim.kill(SIGKILL);
  zero.join();
  EXPECT_EQ(code_of(*first), errc::peer_dead);
  EXPECT_TRUE(says(failure_of(*first), "rank 1 (")) << failure_of(*first);
  EXPECT_TRUE(says(failure_of(*first), std::to_string(victim.pid()))) << failure_of(*first);
}

TEST(world, ends_when_its_token_of_stopping_says_so) {
  std::stop_source stop;
  world_options options = within(only_a_hang);
  options.stop = stop.get_token();
  std::jthread stopper{[&] { stop.request_stop(); }};
  EXPECT_EQ(code_of(world::join(place(0, 2, fresh_port()), options)), errc::cancelled);
  EXPECT_EQ(code_of(world::join(place(1, 2, fresh_port()), options)), errc::cancelled);
}

TEST(world, names_the_interfaces_that_there_are_when_the_one_asked_for_is_not) {
  world_options options = within(only_a_hang);
  options.interface = "weft9";
  const auto w = world::join(place(1, 2, fresh_port()), options);
  EXPECT_EQ(code_of(w), errc::not_found);
  EXPECT_TRUE(says(failure_of(w), "\"weft9\"")) << failure_of(w);
  EXPECT_TRUE(says(failure_of(w), "lo")) << failure_of(w);
}

TEST(world, throws_for_a_place_that_cannot_be) {
  const auto code = [](world_place at) { return error_of([&] { static_cast<void>(world::join(at)); }).code; };
  EXPECT_EQ(code({rank{2}, 2, {}, "127.0.0.1", 1}), errc::invalid_argument);
  EXPECT_EQ(code({rank{-1}, 2, {}, "127.0.0.1", 1}), errc::invalid_argument);
  EXPECT_EQ(code({rank{0}, 0, {}, "127.0.0.1", 1}), errc::invalid_argument);
  EXPECT_EQ(code({rank{0}, world::max_size + 1, {}, "127.0.0.1", 1}), errc::invalid_argument);
  EXPECT_EQ(code({rank{0}, 2, {}, "", 1}), errc::invalid_argument);
  EXPECT_EQ(code({rank{0}, 2, {}, "127.0.0.1", 0}), errc::invalid_argument);
  for (const auto& [node, is_good] : {std::pair{std::string(64, 'x'), true}, std::pair{std::string(65, 'x'), false},
                                      std::pair{std::string{"a\tb"}, false}, std::pair{std::string{"a\x7f"}, false}}) {
    weft::world_options options = within(only_a_hang);
    options.node = node;
    const weft::error e = error_of([&] { static_cast<void>(world::join({rank{0}, 1, {}, {}, 0}, options)); });
    EXPECT_EQ(e.code == errc::invalid_argument && says(e.what, "world_options::node"), !is_good) << node << e.what;
  }
}

TEST(world, refuses_one_local_rank_twice_on_a_node) {
  const auto port = fresh_port();
  const auto ended = join_all({0, 1}, [&](int r) {
    world_place at = place(r, 2, port);
    at.local_rank = 0;
    return world::join(at, within(only_a_hang));
  });
  for (const auto& w : ended) {
    EXPECT_EQ(code_of(w), errc::incompatible);
    EXPECT_TRUE(says(failure_of(w), "both have LOCAL_RANK 0")) << failure_of(w);
  }
}

// ---- by the caller's own exchange
// -------------------------------------------------------------------------------------

/// An exchange among threads.
class blackboard {
 public:
  explicit blackboard(int size) : said_(static_cast<std::size_t>(size)), meet_(size) {}

  std::vector<std::vector<std::byte>> exchange(int self, std::span<const std::byte> mine) {
    said_[static_cast<std::size_t>(self)].assign(mine.begin(), mine.end());
    meet_.arrive_and_wait();
    auto all = said_;
    meet_.arrive_and_wait();
    return all;
  }

 private:
  std::vector<std::vector<std::byte>> said_;
  std::barrier<> meet_;
};

TEST(world, joins_by_an_exchange_of_the_caller) {
  blackboard board{3};
  const auto worlds = join_all({0, 1, 2}, [&](int r) {
    return world::join(
        rank{r}, 3, [&, r](std::span<const std::byte> mine) { return board.exchange(r, mine); }, within(only_a_hang));
  });
  for (const auto& w : worlds) {
    ASSERT_TRUE(w) << failure_of(w);
    EXPECT_EQ(w->node_group()->size(), 3);
    EXPECT_EQ(w->member(rank{1}).interface, "");
  }
}

TEST(world, ends_for_all_when_one_rank_gets_no_thread_to_look_for_lost_ranks) {
  NEEDS(no_ucx);
  blackboard board{2};
  pthread_attr_t usual{}, none{};  // what threads begin with
  ASSERT_EQ(::pthread_getattr_default_np(&usual), 0);
  ASSERT_EQ(::pthread_getattr_default_np(&none), 0);
  ASSERT_EQ(::pthread_attr_setstacksize(&none, std::size_t{1} << 47U), 0);
  std::atomic<bool> is_ready{false};  // rank 0, which has its thread then
  const world_options shared = with_ucx();
  const auto ended = join_all({0, 1}, [&](int r) {
    world_options options = shared;
    options.node = std::to_string(r);
    int round = 0;
    const auto exchange = [&](std::span<const std::byte> mine) {
      if (++round == 2 && r == 0) is_ready = true, is_ready.notify_all();
      auto all = board.exchange(r, mine);
      if (round == 1 && r == 1) is_ready.wait(false), ::pthread_setattr_default_np(&none);
      return all;
    };
    return world::join(rank{r}, 2, exchange, options);
  });
  ::pthread_setattr_default_np(&usual);
  EXPECT_EQ(code_of(ended[0]), errc::peer_dead) << failure_of(ended[0]);
  EXPECT_TRUE(says(failure_of(ended[0]), "rank 1 (node 1, host ") && says(failure_of(ended[0]), "ulimit -u"));
  EXPECT_EQ(code_of(ended[1]), errc::resource_exhausted) << failure_of(ended[1]);
}

TEST(world, does_not_believe_an_exchange_that_mixes_ranks_up_or_gives_garbage) {
  blackboard board{2};
  const auto ended = join_all({0, 1}, [&](int r) {
    return world::join(
        rank{r}, 2, [&, r](std::span<const std::byte> mine) { return board.exchange(1 - r, mine); },
        within(only_a_hang));
  });
  for (const auto& w : ended) EXPECT_EQ(code_of(w), errc::incompatible) << failure_of(w);
  const auto join_with = [](const std::vector<std::vector<std::byte>>& all) {
    return code_of(world::join(rank{0}, 1, [all](std::span<const std::byte>) { return all; }));
  };
  EXPECT_EQ(join_with({}), errc::incompatible);
  EXPECT_EQ(join_with({std::vector<std::byte>(500)}), errc::corrupt);
  EXPECT_EQ(join_with({{}}), errc::corrupt);
  for (const std::size_t parts : {0U, 2U}) {
    bool is_second = false;
    EXPECT_EQ(code_of(world::join(rank{0}, 1,
                                  [&](std::span<const std::byte> mine) {
                                    const std::vector<std::byte> own(mine.begin(), mine.end()), other(9);
                                    std::vector<std::vector<std::byte>> all{own};
                                    if (std::exchange(is_second, true)) all.assign(parts, other);
                                    return all;
                                  })),
              errc::incompatible)
        << parts;
  }
  const auto thrown = world::join(rank{0}, 1, [](std::span<const std::byte>) -> std::vector<std::vector<std::byte>> {
    throw std::runtime_error{"no network today"};
  });
  EXPECT_TRUE(says(failure_of(thrown), "no network today")) << failure_of(thrown);
}

// ---- several nodes
// ------------------------------------------------------------------------------------------------------

TEST(world, spans_two_nodes_and_forms_a_group_on_each) {
  if (const std::string reason = no_namespaces(); !reason.empty()) GTEST_SKIP() << reason;
  const auto rank_of = [](int r) {
    const auto w = world::join({rank{r}, 4, r % 2, "10.77.0.1", 29501}, within(only_a_hang));
    if (!w) return failure_of(w);
    std::string wrong;
    if (w->nodes() != 2) wrong += "nodes: " + std::to_string(w->nodes()) + "; ";
    for (int n = 0; n < 4; ++n) {
      const weft::world_member& m = w->member(rank{n});
      if (m.node != n / 2 || m.local != rank{n % 2}) wrong += to_string(m) + " is elsewhere; ";
      if (m.interface != (n < 2 ? "weft0" : "weft1")) wrong += to_string(m) + " came by " + m.interface + "; ";
      if (n >= 2 && m.address != "10.77.0.2") wrong += to_string(m) + " has " + m.address + "; ";
    }
    auto& group = *w->node_group();
    if (group.size() != 2 || group.self() != w->member(w->self()).local) wrong += "another group; ";
    if (auto met = group.barrier(only_a_hang); !met) wrong += to_string(met.error());
    return wrong;
  };
  const auto pair = [&](int first) {
    child other{[&] { return rank_of(first + 1); }};
    const std::string said = rank_of(first);
    return said + other.said();
  };
  EXPECT_EQ(on_two_nodes([&] { return pair(0); }, [&] { return pair(2); }), "");
}

/// One of two ranks that say as much as they may, each of which leaves when it knows all.
std::string say_much(int self) {
  wire::meeting_place at;
  at.self = rank{self};
  at.size = 2;
  at.host = "127.0.0.1";
  at.port = 29501;
  at.until = weft::deadline_after(wire::steady_now(), only_a_hang);
  wire::meeting ranks{at};
  if (auto open = ranks.open(); !open) return failure_of(open);
  const std::vector<std::vector<std::byte>> said(2, std::vector<std::byte>(wire::meeting::max_said));
  const auto all = ranks.all_gather(said[0]);
  return !all ? failure_of(all) : *all == said ? "" : "something else was said";
}

TEST(world, tells_all_to_a_rank_whose_connection_takes_a_little_at_a_time) {
  NEEDS(no_namespaces);
  const std::string said = child{[] {
                             if (const std::string reason = leave_the_network(); !reason.empty()) return reason;
                             run("PATH=$PATH:/usr/sbin:/sbin; ip link set lo up");
                             for (const char* buffers : {"/proc/sys/net/ipv4/tcp_wmem", "/proc/sys/net/ipv4/tcp_rmem"})
                               write_file(buffers, "4096 8192 8192");
                             child other{[] { return say_much(1); }};
                             const std::string said_here = say_much(0);
                             return said_here + other.said();
                           }}.said();
  if (says(said, "cannot write /proc/sys")) GTEST_SKIP() << said;  // containers may have it for reading
  EXPECT_EQ(said, "");
}

TEST(world, takes_the_interface_that_it_is_told_to) {
  if (const std::string reason = no_namespaces(); !reason.empty()) GTEST_SKIP() << reason;
  const auto join = [](int r, const char* interface) {
    world_options options = within(only_a_hang);
    options.interface = interface;
    const auto w = world::join({rank{r}, 2, {}, "10.77.0.1", 29501}, options);
    if (!w) return failure_of(w);
    return w->member(rank{1}).interface == "weft1" ? std::string{} : "came by " + w->member(rank{1}).interface;
  };
  EXPECT_EQ(on_two_nodes([&] { return join(0, "weft0"); }, [&] { return join(1, "weft1"); }), "");
}

// ---- places from variables
// -----------------------------------------------------------------------------------------------

class variables {
 public:
  explicit variables(const std::vector<std::pair<const char*, const char*>>& set) {
    for (const char* name :
         {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "WEFT_MASTER_PORT", "OMPI_COMM_WORLD_RANK",
          "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID",
          "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"})
      ::unsetenv(name);
    for (const auto& [name, value] : set) ::setenv(name, value, 1);
  }
};

TEST(world_place, is_read_from_the_variables_of_launchers) {
  variables torchrun{
      {{"RANK", "3"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "29500"}}};
  const world_place p = world_place::from_environment();
  EXPECT_EQ(p.self, rank{3});
  EXPECT_EQ(p.size, 8);
  EXPECT_EQ(p.local_rank, 1);
  EXPECT_EQ(p.host, "a");
  EXPECT_EQ(p.port, 29501);
  variables open_mpi{
      {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"WEFT_MASTER_PORT", "77"}}};
  EXPECT_EQ(world_place::from_environment().self, rank{1});
  EXPECT_EQ(world_place::from_environment().port, 77);
  EXPECT_FALSE(world_place::from_environment().local_rank);
  variables slurm{{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}}};
  EXPECT_EQ(world_place::from_environment().size, 1) << "one process needs no address";
}

TEST(world_place, names_the_variable_that_is_missing_or_wrong) {
  const auto failure = [](const std::vector<std::pair<const char*, const char*>>& set) {
    variables these{set};
    return error_of([] { static_cast<void>(world_place::from_environment()); });
  };
  EXPECT_TRUE(says(failure({}).what, "WORLD_SIZE"));
  EXPECT_EQ(failure({}).code, errc::not_found);
  EXPECT_TRUE(says(failure({{"WORLD_SIZE", "2"}}).what, "RANK"));
  EXPECT_TRUE(says(failure({{"WORLD_SIZE", "2"}, {"RANK", "0"}}).what, "MASTER_ADDR"));
  EXPECT_TRUE(says(failure({{"WORLD_SIZE", "2"}, {"RANK", "0"}, {"MASTER_ADDR", "a"}}).what, "MASTER_PORT"));
  EXPECT_EQ(failure({{"WORLD_SIZE", "2"}, {"RANK", "2"}}).code, errc::invalid_argument);
  EXPECT_EQ(failure({{"WORLD_SIZE", "two"}}).code, errc::invalid_argument);
  EXPECT_EQ(failure({{"WORLD_SIZE", "2"}, {"RANK", "0"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "65536"}}).code,
            errc::invalid_argument);
}

}  // namespace
