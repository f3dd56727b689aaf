// SPDX-License-Identifier: Apache-2.0
// Messages between ranks by UCX over TCP. Ranks are processes, on one node or on two.
#include "distributed/engine/messenger.hpp"
#include "distributed/meetings.hpp"
#include "weft/collective/rank_communicator.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <dlfcn.h>
#include <string>

namespace {

using namespace meetings;

constexpr auto long_enough = only_a_hang;

std::vector<std::byte> pattern(std::size_t size, int seed) {
  std::vector<std::byte> made(size);
  for (std::size_t n = 0; n < size; ++n)
    made[n] = static_cast<std::byte>(n * 31 + n / 251 + static_cast<unsigned>(seed));
  return made;
}

/// What a rank found wrong: what `work` says, or why it could not join.
template <class F>
std::string as_rank(const world_place& at, const F& work) {
  auto w = world::join(at, with_ucx());
  if (!w) return failure_of(w);
  if (!w->engine().starts_with("ucx 1.")) return "engine: " + w->engine() + w->engine_reason();
  return work(*w);
}

/// Two ranks as processes of this node.
template <class A, class B>
std::string two_ranks(const A& zero, const B& one) {
  const auto port = fresh_port();
  const auto at = [host = host_of_this_test(), port](int r) { return world_place{rank{r}, 2, {}, host, port}; };
  child first{[&] { return as_rank(at(0), zero); }};
  child second{[&] { return as_rank(at(1), one); }};
  return first.said() + second.said();
}

std::string converse(world& w) {
  const rank other{1 - w.self().value()};
  std::string wrong;
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{8}, std::size_t{4096}, std::size_t{65537},
                                 std::size_t{1} << 20U, std::size_t{16} << 20U}) {
    const auto mine = pattern(size, w.self().value());
    std::vector<std::byte> theirs(size);
    const auto send = [&] {
      if (auto sent = w.send(other, 7, mine, long_enough); !sent) wrong += to_string(sent.error()) + "; ";
    };
    const auto receive = [&] {
      auto got = w.receive(other, 7, theirs, long_enough);
      if (!got) {
        wrong += to_string(got.error()) + "; ";
      } else if (*got != size || theirs != pattern(size, other.value())) {
        wrong += "other bytes at " + std::to_string(size) + "; ";
      }
    };
    if (w.self() == rank{0}) send(), receive();
    if (w.self() == rank{1}) receive(), send();
  }
  return wrong;
}

TEST(messages, messages_of_every_size_arrive_as_sent) {
  NEEDS(no_ucx);
  EXPECT_EQ(two_ranks(converse, converse), "");
}

TEST(messages, messages_of_every_size_arrive_on_another_node) {
  NEEDS(no_ucx);
  NEEDS(no_namespaces);
  const auto node = [](int r) {
    return [r] {
      return as_rank({rank{r}, 2, {}, "10.77.0.1", 29501},
                     [](world& w) { return w.nodes() == 2 ? converse(w) : "nodes: " + std::to_string(w.nodes()); });
    };
  };
  EXPECT_EQ(on_two_nodes(node(0), node(1)), "");
}

TEST(messages, messages_keep_the_order_of_their_tag_and_wait_for_no_other_tag) {
  NEEDS(no_ucx);
  const auto zero = [](world& w) {
    for (const auto& [tag, text] : {std::pair{1U, "a"}, {2U, "b"}, {1U, "c"}})
      if (auto sent = w.send(rank{1}, tag, view(text), long_enough); !sent) return failure_of(sent);
    return std::string{};
  };
  const auto one = [](world& w) {
    std::string seen;
    for (const unsigned tag : {2U, 1U, 1U}) {
      std::array<std::byte, 4> room{};
      auto got = w.receive(rank{0}, tag, room, long_enough);  // of tag 1 both are there when tag 2 has come
      if (!got || *got != 1) return got ? "bytes: " + std::to_string(*got) : failure_of(got);
      seen += static_cast<char>(room[0]);
    }
    return seen == "bac" ? std::string{} : seen;
  };
  EXPECT_EQ(two_ranks(zero, one), "");
}

TEST(messages, a_late_message_can_be_waited_for_again) {
  NEEDS(no_ucx);
  const auto zero = [](world& w) {
    std::array<std::byte, 4> room{};
    auto late = w.receive(rank{1}, 1, room, 50ms);
    if (code_of(late) != errc::timed_out || !says(failure_of(late), "receiving from rank 1 (node 0"))
      return failure_of(late);
    std::stop_source stop;
    std::jthread stopper{[&] { stop.request_stop(); }};
    late = w.receive(rank{1}, 1, room, long_enough, stop.get_token());
    if (code_of(late) != errc::cancelled) return failure_of(late);
    if (auto sent = w.send(rank{1}, 1, view("go"), long_enough); !sent) return failure_of(sent);
    auto got = w.receive(rank{1}, 1, room, long_enough);
    return got && *got == 3 ? std::string{} : failure_of(got);
  };
  const auto one = [](world& w) {
    std::array<std::byte, 4> room{};
    if (auto got = w.receive(rank{0}, 1, room, long_enough); !got) return failure_of(got);
    auto sent = w.send(rank{0}, 1, view("now"), long_enough);
    return sent ? std::string{} : failure_of(sent);
  };
  EXPECT_EQ(two_ranks(zero, one), "");
}

// Rank 0 waits for rank 1 alone, which says nothing before the messages of all others to rank 0 are on their way.
TEST(messages, messages_of_ranks_not_waited_for_yet_are_taken_when_many_begin_at_once) {
  NEEDS(no_ucx);
  constexpr int size = 12;
  const auto receive = [](world& w, int from) -> std::string {
    std::vector<std::byte> room(100);
    if (auto got = w.receive(rank{from}, 1, room, long_enough); !got) return failure_of(got);
    return room == pattern(100, from) ? "" : "other bytes from rank " + std::to_string(from);
  };
  const auto port = fresh_port();
  std::vector<std::unique_ptr<child>> all;
  for (int r = 0; r < size; ++r)
    all.push_back(std::make_unique<child>([&, r, host = host_of_this_test()] {
      return as_rank({rank{r}, size, {}, host, port}, [&, r](world& w) -> std::string {
        std::string wrong;
        const auto send = [&](int to) {
          if (auto sent = w.send(rank{to}, 1, pattern(100, r), long_enough); !sent) wrong += failure_of(sent);
        };
        if (r == 1)
          for (int from = 2; from < size; ++from) wrong += receive(w, from);
        if (r != 0) send(0);
        if (r > 1) send(1);
        if (r == 0)
          for (int from = 1; from < size; ++from) wrong += receive(w, from);
        return wrong;
      });
    }));
  for (const auto& one : all) EXPECT_EQ(one->said(), "");
}

/// Returns when no thread of that process runs any more.
void stop(pid_t process) {
  ::kill(process, SIGSTOP);
  for (std::string state; !says(state, ") T ");)
    std::getline(std::ifstream{"/proc/" + std::to_string(process) + "/stat"}, state);
}

TEST(messages, a_message_given_up_while_ranks_connect_leaves_the_connection_and_is_never_received) {
  NEEDS(no_ucx);
  const auto zero = [](world& w) {
    const auto other = w.member(rank{1}).pid;
    stop(other);
    auto sent = w.send(rank{1}, 1, view("lost"), 50ms);
    ::kill(other, SIGCONT);
    if (code_of(sent) != errc::timed_out) return failure_of(sent);
    sent = w.send(rank{1}, 1, view("sent later"), long_enough);
    return sent ? std::string{} : failure_of(sent);
  };
  const auto one = [](world& w) {
    std::array<std::byte, 20> room{};
    auto got = w.receive(rank{0}, 1, room, long_enough);
    return got && *got == view("sent later").size() ? std::string{} : failure_of(got);
  };
  EXPECT_EQ(two_ranks(zero, one), "");
}

TEST(messages, messages_of_a_communicator_given_up_while_ranks_connect_are_gone_with_it) {
  NEEDS(no_ucx);
  const auto port = fresh_port();
  const auto join = [host = host_of_this_test(), port](int r) {
    world_options options = with_ucx();
    options.node = std::to_string(r);
    return weft::value_or_raise(world::join({rank{r}, 2, {}, host, port}, options));
  };
  child second{[&] {
    world w = join(1);
    std::array<std::byte, 20> room{};
    auto got = w.receive(rank{0}, 1, room, long_enough);
    return got && *got == view("it goes on").size() ? std::string{} : failure_of(got);
  }};
  child first{[&] {
    world w = join(0);
    const auto other = w.member(rank{1}).pid;
    stop(other);
    weft::machine_options one_device;
    one_device.backend = "host";
    one_device.devices = 1;
    const weft::machine m{one_device};
    weft::rank_communicator_options soon;
    soon.timeout = 100ms;
    const weft::error late = error_of([&] { static_cast<void>(w.communicator(m[0], soon)); });
    ::kill(other, SIGCONT);
    if (late.code != errc::timed_out) return to_string(late);
    auto sent = w.send(rank{1}, 1, view("it goes on"), long_enough);
    return sent ? std::string{} : failure_of(sent);
  }};
  EXPECT_EQ(first.said() + second.said(), "");
}

TEST(messages, to_a_rank_that_stands_still_from_the_start_are_given_up_and_the_sender_can_leave) {
  NEEDS(no_ucx);
  const auto zero = [](world& w) {
    const auto other = w.member(rank{1}).pid;
    stop(other);
    auto sent = w.send(rank{1}, 1, view("lost"), 50ms);
    return code_of(sent) == errc::timed_out ? std::string{} : failure_of(sent);
  };
  const auto one = [](world& w) {
    std::array<std::byte, 20> room{};
    return failure_of(w.receive(rank{0}, 1, room, long_enough));
  };
  const auto port = fresh_port();
  const auto at = [host = host_of_this_test(), port](int r) { return world_place{rank{r}, 2, {}, host, port}; };
  child second{[&] { return as_rank(at(1), one); }};
  child first{[&] { return as_rank(at(0), zero); }};
  EXPECT_EQ(first.said(), "");
  second.kill(SIGKILL);
  EXPECT_EQ(second.said(), "ended by signal 9");
}

TEST(messages, that_break_off_say_why_and_those_that_are_taken_back_have_not_failed) {
  NEEDS(no_ucx);
  using stage = weft::detail::transfer::stage;
  static_cast<void>(with_ucx());
  auto a = weft::value_or_raise(weft::detail::open_ucx(0, 2)), b = weft::value_or_raise(weft::detail::open_ucx(1, 2));
  const std::vector addresses{weft::value_or_raise(a->address()), weft::value_or_raise(b->address())};
  a->introduce(addresses);
  b->introduce(addresses);
  std::array<std::byte, 5> room{};
  const auto much = pattern(std::size_t{16} << 20U, 0);
  weft::detail::transfer small, came, large, never;
  a->send(small, 1, {1, false}, view("small"));
  b->receive(came, 0, {1, false}, room);
  while (small.is_under_way() || came.is_under_way()) a->progress(), b->progress();
  a->receive(never, 1, {2, false}, room);
  a->withdraw(never);
  while (never.is_under_way()) a->progress();
  EXPECT_EQ(never.at.load(), stage::cancelled);
  a->send(large, 1, {2, false}, much);  // which nobody receives
  b.reset();
  while (large.is_under_way()) a->progress();
  EXPECT_EQ(large.at.load(), stage::failed);
  EXPECT_NE(large.why, "");
}

/// The first bytes of these functions, and what the environment says of them.
std::string functions_that_ucx_would_rewrite() {
  std::string found;
  void* const libc = ::dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);  // a sanitizer puts its own before these
  for (const char* const name : {"mmap", "munmap", "mremap", "madvise", "shmat", "shmdt", "brk"})
    found.append(static_cast<const char*>(::dlsym(libc, name)), 16);
  const char* const mode = std::getenv("UCX_MEM_MMAP_HOOK_MODE");
  return found + (mode != nullptr ? mode : "");
}

TEST(messages, by_ucx_leave_the_functions_of_a_process_with_threads_as_they_are) {
  NEEDS(no_ucx);
  EXPECT_EQ(child{[] {
              ::unsetenv("UCX_MEM_MMAP_HOOK_MODE");
              const std::string before = functions_that_ucx_would_rewrite();
              auto opened = weft::detail::open_ucx(0, 1);
              if (!opened) return failure_of(opened);
              return functions_that_ucx_would_rewrite() == before ? std::string{} : "they were rewritten";
            }}.said(),
            "");
}

TEST(messages, too_long_a_message_is_refused_and_the_next_one_arrives) {
  NEEDS(no_ucx);
  const auto zero = [](world& w) {
    for (const std::size_t size : {std::size_t{5}, std::size_t{4}})
      if (auto sent = w.send(rank{1}, 1, pattern(size, 0), long_enough); !sent) return failure_of(sent);
    return std::string{};
  };
  const auto one = [](world& w) {
    std::array<std::byte, 4> room{};
    auto got = w.receive(rank{0}, 1, room, long_enough);
    if (code_of(got) != errc::incompatible || !says(failure_of(got), "longer")) return failure_of(got);
    got = w.receive(rank{0}, 1, room, long_enough);
    return got && *got == 4 ? std::string{} : failure_of(got);
  };
  EXPECT_EQ(two_ranks(zero, one), "");
}

TEST(messages, go_from_several_threads_at_once) {
  NEEDS(no_ucx);
  const auto work = [](world& w) {
    const rank other{1 - w.self().value()};
    std::array<std::string, 6> wrong;
    std::vector<std::jthread> threads;
    threads.reserve(wrong.size());
    for (std::uint32_t tag = 0; tag < wrong.size(); ++tag) {
      threads.emplace_back([&, tag] {
        const bool sends_first = (tag % 2 == 0) == (w.self() == rank{0});
        for (int n = 0; n < 50; ++n) {
          std::array<std::byte, 64> room{};
          for (const bool sends : {sends_first, !sends_first}) {
            if (sends) {
              if (auto sent = w.send(other, tag, pattern(64, n), long_enough); !sent) wrong[tag] += failure_of(sent);
            } else if (auto got = w.receive(other, tag, room, long_enough); !got) {
              wrong[tag] += failure_of(got);
            } else if (!std::ranges::equal(room, pattern(64, n))) {
              wrong[tag] += "other bytes; ";
            }
          }
        }
      });
    }
    threads.clear();
    std::string all;
    for (const auto& one : wrong) all += one;
    return all;
  };
  EXPECT_EQ(two_ranks(work, work), "");
}

TEST(messages, from_a_rank_that_is_killed_end_with_its_name) {
  NEEDS(no_ucx);
  NEEDS(no_namespaces);
  // The victim tells its pid, and stops in the middle of a receive.
  const auto first = [] {
    return as_rank({rank{0}, 2, {}, "10.77.0.1", 29501}, [](world& w) {
      std::array<std::byte, 4> room{};
      if (auto got = w.receive(rank{1}, 1, room, long_enough); !got) return failure_of(got);
      ::kill(w.member(rank{1}).pid, SIGKILL);
      auto got = w.receive(rank{1}, 1, room, long_enough);
      std::string told = failure_of(got);
      if (code_of(got) != errc::peer_dead || !says(told, "rank 1 (node 1, host ")) return told;
      auto sent = w.send(rank{1}, 1, pattern(8, 0), long_enough);
      return code_of(sent) == errc::peer_dead ? std::string{} : failure_of(sent);
    });
  };
  const auto second = [] {
    return as_rank({rank{1}, 2, {}, "10.77.0.1", 29501}, [](world& w) {
      static_cast<void>(w.send(rank{0}, 1, view("here"), long_enough));
      std::array<std::byte, 4> room{};
      static_cast<void>(w.receive(rank{0}, 2, room, long_enough));
      return std::string{"it lives"};
    });
  };
  EXPECT_EQ(on_two_nodes(first, second), "ended by signal 9") << "the victim, and nothing else to say";
}

/// Both nodes answer each other; in between the first takes its end of the cable down, and `meanwhile` goes on.
template <class F>
std::string over_a_cut_cable(const F& meanwhile) {
  const auto first = [&] {
    return as_rank({rank{0}, 2, {}, "10.77.0.1", 29501}, [&](world& w) {
      std::array<std::byte, 4> room{};
      if (auto got = w.receive(rank{1}, 1, room, long_enough); !got) return failure_of(got);
      run("PATH=$PATH:/usr/sbin:/sbin; ip link set weft0 down");
      return meanwhile(w);
    });
  };
  const auto second = [] {
    return as_rank({rank{1}, 2, {}, "10.77.0.1", 29501}, [](world& w) {
      if (auto sent = w.send(rank{0}, 1, view("here"), long_enough); !sent) return failure_of(sent);
      for (int n = 0; n < 100; ++n) {  // each waits for an answer: whatever is lost, is missed
        auto sent = w.send(rank{0}, 2, pattern(5000, n), long_enough);
        std::array<std::byte, 4> room{};
        if (sent) static_cast<void>(w.receive(rank{0}, 3, room, long_enough));
      }
      return std::string{};
    });
  };
  return on_two_nodes(first, second);
}

TEST(messages, wait_for_a_cable_that_is_cut_for_300_ms_and_lose_nothing) {
  NEEDS(no_ucx);
  NEEDS(no_namespaces);
  const auto meanwhile = [](world& w) {
    std::jthread mender{[] { run("PATH=$PATH:/usr/sbin:/sbin; sleep 0.3; ip link set weft0 up"); }};  // the cut itself
    for (int n = 0; n < 100; ++n) {
      std::vector<std::byte> room(5000);
      if (auto got = w.receive(rank{1}, 2, room, long_enough); !got) return failure_of(got);
      if (room != pattern(5000, n)) return "other bytes in message " + std::to_string(n);
      if (auto sent = w.send(rank{1}, 3, view("next"), long_enough); !sent) return failure_of(sent);
    }
    return std::string{};
  };
  EXPECT_EQ(over_a_cut_cable(meanwhile), "");
}

TEST(messages, over_a_cable_that_stays_cut_end_with_the_name_of_the_node) {
  NEEDS(no_ucx);
  NEEDS(no_namespaces);
  const auto meanwhile = [](world& w) {
    std::vector<std::byte> room(5000);
    for (int n = 0; n < 100; ++n) {  // what was on the way before the cut still comes
      auto got = w.receive(rank{1}, 2, room, 500ms);
      if (got) continue;
      ::kill(w.member(rank{1}).pid, SIGKILL);  // which would wait for its own limit
      std::string told = failure_of(got);
      return code_of(got) == errc::timed_out && says(told, "receiving from rank 1 (node 1, host ") ? std::string{}
                                                                                                   : told;
    }
    return std::string{"nothing was cut"};
  };
  EXPECT_EQ(over_a_cut_cable(meanwhile), "ended by signal 9");
}

TEST(messages, need_an_engine_that_all_ranks_have) {
  const auto port = fresh_port();
  const auto without = join_all({0, 1}, [&](int r) { return world::join(place(r, 2, port), within(only_a_hang)); });
  for (auto& w : without) {
    ASSERT_TRUE(w) << failure_of(w);
    EXPECT_EQ(w->engine(), "");
    EXPECT_TRUE(says(w->engine_reason(), "rank 0 (host ")) << w->engine_reason();
  }
  const weft::error cause =
      error_of([&] { static_cast<void>(const_cast<world&>(*without[0]).send(rank{1}, 0, {}, long_enough)); });
  EXPECT_EQ(cause.code, errc::unsupported);
  EXPECT_TRUE(says(cause.what, "it is to do without")) << cause.what;
}

TEST(messages, asked_for_by_an_engine_that_one_rank_does_without_end_the_join) {
  NEEDS(no_ucx);
  const auto port = fresh_port();
  const std::string host = host_of_this_test();
  child ucx{[&] { return failure_of(world::join({rank{1}, 2, {}, host, port}, with_ucx())); }};
  EXPECT_EQ(code_of(world::join(place(0, 2, port), within(only_a_hang))), errc::incompatible);
  const std::string told = ucx.said();
  EXPECT_TRUE(says(told, "incompatible")) << told;
  EXPECT_TRUE(says(told, "rank 0 (host ")) << told;
}

}  // namespace
