// SPDX-License-Identifier: Apache-2.0
// Ranks that give no sign of life. Two ranks in one process beat when the test says so; then processes that are stopped
// and a cable that is cut.
#include "distributed/engine/life_watch.hpp"

#include "distributed/meetings.hpp"
#include "support/processes.hpp"
#include "weft/distributed/world_queue.hpp"

#include <gtest/gtest.h>

namespace {

using namespace meetings;
using weft::detail::life_watch;
using weft::detail::messenger;

/// Ranks 0 and 1 of a world, each with its messages and its watch.
struct watched_pair {
  struct side {
    std::shared_ptr<messenger> messages;
    std::optional<life_watch> watch;
  };
  watched_pair() {
    static_cast<void>(with_ucx());
    std::vector<std::unique_ptr<weft::detail::engine>> engines;
    std::vector<std::vector<std::byte>> addresses;
    for (int r = 0; r < 2; ++r) {
      engines.push_back(weft::value_or_raise(weft::detail::open_ucx(r, 2)));
      addresses.push_back(weft::value_or_raise(engines.back()->address()));
    }
    for (int r = 0; r < 2; ++r) {
      engines[static_cast<std::size_t>(r)]->introduce(addresses);
      side& made = r == 0 ? a : b;
      made.messages = std::make_shared<messenger>(std::move(engines[static_cast<std::size_t>(r)]),
                                                  [](int other) { return "rank " + std::to_string(other); });
      made.watch.emplace(made.messages, r, 2, 2s);
    }
  }
  ~watched_pair() { a.watch.reset(), b.watch.reset(); }

  /// What one rank, which waits for the other, knows after so many beats.
  static std::string after(int beats, side& waits, int other) {
    for (int n = 0; n < beats; ++n) {
      static_cast<void>(waits.messages->failure(other));
      waits.watch->beat();
    }
    return waits.messages->failure(other).value_or("");
  }
  /// The same of rank 0, to which the other answers after each of them.
  std::string after_answers(int count) {
    for (int n = 0; n < count; ++n) {
      if (std::string lost = after(1, a, 1); !lost.empty()) return lost;
      const bool is_answered = processes::comes_true([&] {
        b.watch->listen();
        a.watch->listen();
        return !a.watch->is_asking(1);
      });
      if (!is_answered) return "no answer";
    }
    return "";
  }

  side a, b;
};

TEST(life_watch, loses_nobody_who_answers) {
  NEEDS(no_ucx);
  watched_pair p;
  EXPECT_EQ(p.after_answers(3 * life_watch::beats_to_answer), "");
}

TEST(life_watch, loses_a_rank_that_does_not_answer_in_time_and_tells_it_so_later) {
  NEEDS(no_ucx);
  watched_pair p;
  EXPECT_EQ(watched_pair::after(life_watch::beats_to_answer + 1, p.a, 1), "");
  EXPECT_EQ(watched_pair::after(1, p.a, 1), "it gave no sign of life for 2 s");
  // it comes back: what it asks is answered
  static_cast<void>(watched_pair::after(1, p.b, 0));
  std::string told;
  EXPECT_TRUE(processes::comes_true([&] {
    p.a.watch->listen();
    p.b.watch->listen();
    told = p.b.messages->failure(0).value_or("");
    return !told.empty();
  }));
  EXPECT_EQ(told, "it ended the connection: this rank gave it no sign of life, or it gave up a copy or a message");
}

TEST(life_watch, tells_a_rank_that_waits_that_its_connection_was_ended_here) {
  NEEDS(no_ucx);
  watched_pair p;
  ASSERT_EQ(p.after_answers(1), "");  // they are connected
  p.a.messages->lose(1, "a copy was given up");
  std::string told;
  static_cast<void>(watched_pair::after(1, p.b, 0));  // it asks
  EXPECT_TRUE(processes::comes_true([&] {
    p.a.watch->listen();
    p.b.watch->listen();
    told = p.b.messages->failure(0).value_or("");
    return !told.empty();
  }));
  EXPECT_TRUE(says(told, "it ended the connection: ")) << told;
}

TEST(life_watch, loses_a_rank_that_takes_nothing_so_that_it_cannot_even_be_asked) {
  NEEDS(no_ucx);
  watched_pair p;
  ASSERT_EQ(p.after_answers(1), "");                  // they are connected
  static_cast<void>(watched_pair::after(1, p.b, 0));  // it asks, and stands still then
  const std::vector<std::byte> much(1000);
  std::vector<weft::detail::transfer> sent(40'000);
  for (auto& one : sent) {
    one.at = weft::detail::transfer::stage::under_way;
    p.a.messages->start_send(one, 1, {7, false}, much);
  }
  p.a.watch->listen();  // the answer stands behind all that
  EXPECT_EQ(watched_pair::after(life_watch::beats_to_answer + 2, p.a, 1), "it gave no sign of life for 2 s");
  for (auto& one : sent)
    if (one.is_under_way()) p.a.messages->cancel(one, 1);
}

TEST(life_watch, asks_nobody_who_is_not_waited_for) {
  NEEDS(no_ucx);
  watched_pair p;
  for (int n = 0; n < 100; ++n) p.a.watch->beat();
  EXPECT_EQ(p.a.messages->failure(1), std::nullopt);
  EXPECT_FALSE(p.b.messages->progress()) << "nothing has come";
}

TEST(life_watch, believes_no_notice_that_cannot_be) {
  NEEDS(no_ucx);
  watched_pair p;
  struct {
    std::uint32_t what;
    std::int32_t from;
  } const lies[] = {{3, 0}, {1, 0}, {1, 2}, {1, -1}, {1, 1'000'000}, {9, 1}, {0, 1}};
  const auto say = [&](std::span<const std::byte> bytes) {
    weft::detail::transfer t;
    p.b.messages->start_send(t, 0, {weft::detail::message_tag::most_own - 2, true}, bytes);
    while (t.is_under_way()) static_cast<void>(p.b.messages->progress()), static_cast<void>(p.a.messages->progress());
  };
  for (const auto& one : lies) say(std::as_bytes(std::span{&one, 1}));
  say(view("a notice is not as long as this"));
  say({});
  EXPECT_EQ(p.after_answers(3 * life_watch::beats_to_answer), "");
}

// ---- processes ------------------------------------------------------------------------------------------------------

world_options with_a_short_silence() {
  world_options made = with_ucx();
  made.silence = 500ms;
  return made;
}

/// What rank 0 says of rank 1, which stands still from the moment at which both are ready.
template <class Zero, class One>
std::string beside_a_stopped_rank(const Zero& zero, const One& one) {
  const auto port = fresh_port();
  const std::string host = host_of_this_test();
  const auto join = [&](int r) {
    world_options options = with_a_short_silence();
    options.node = "n" + std::to_string(r);
    return weft::value_or_raise(world::join(world_place{rank{r}, 2, {}, host, port}, options));
  };
  child stopped{[&]() -> std::string {
    world w = join(1);
    [[maybe_unused]] const auto held = one(w);
    std::array<std::byte, 1> room{};
    static_cast<void>(w.send(rank{0}, 1, view("!"), only_a_hang));
    static_cast<void>(w.receive(rank{0}, 1, room, only_a_hang));
    return "it goes on";
  }};
  child waiting{[&]() -> std::string {
    world w = join(0);
    return zero(w, [&] {
      std::array<std::byte, 1> room{};
      static_cast<void>(w.receive(rank{1}, 1, room, only_a_hang));
      ::kill(w.member(rank{1}).pid, SIGSTOP);
    });
  }};
  std::string said = waiting.said();
  stopped.kill(SIGKILL);
  return said;
}

TEST(silence, a_stopped_rank_ends_a_wait_for_its_message) {
  NEEDS(no_ucx);
  const auto waits = [](world& w, const auto& stop_it) -> std::string {
    stop_it();
    std::array<std::byte, 4> room{};
    const auto got = w.receive(rank{1}, 2, room, weft::no_deadline);
    std::string told = failure_of(got);
    const bool is_named = says(told, "rank 1 (node 1, host ") && says(told, "no sign of life for 0.5 s");
    if (code_of(got) != errc::peer_dead || !is_named) return told;
    const auto sent = w.send(rank{1}, 2, room, weft::no_deadline);
    return code_of(sent) == errc::peer_dead ? "" : "and then: " + failure_of(sent);
  };
  EXPECT_EQ(beside_a_stopped_rank(waits, [](world&) { return 0; }), "");
}

TEST(silence, a_stopped_rank_ends_its_queues) {
  NEEDS(no_ucx);
  const auto waits = [](world& w, const auto& stop_it) -> std::string {
    auto rx = weft::connect_receiver<int>(w, rank{1}, 7);
    stop_it();
    int message = 0;
    const auto came = rx.receive(message);
    const auto why = rx.failure();
    if (came != weft::queue_status::failed || !why) return "no failure";
    return why->code == errc::peer_dead && says(why->what, "rank 1 (node 1, host ") ? "" : why->what;
  };
  EXPECT_EQ(beside_a_stopped_rank(waits, [](world& w) { return weft::connect_sender<int>(w, rank{0}, 7); }), "");
}

TEST(silence, a_node_behind_a_cut_cable_ends_a_wait_with_its_name) {
  NEEDS(no_ucx);
  NEEDS(no_namespaces);
  const auto join = [](int r) {
    return weft::value_or_raise(world::join({rank{r}, 2, {}, "10.77.0.1", 29501}, with_a_short_silence()));
  };
  const auto first = [&]() -> std::string {
    world w = join(0);
    std::array<std::byte, 4> room{};
    if (auto got = w.receive(rank{1}, 1, room, only_a_hang); !got) return failure_of(got);
    run("PATH=$PATH:/usr/sbin:/sbin; ip link set weft0 down");
    const auto got = w.receive(rank{1}, 1, room, weft::no_deadline);
    return code_of(got) == errc::peer_dead && says(failure_of(got), "rank 1 (node 1, host ") ? "" : failure_of(got);
  };
  const auto second = [&]() -> std::string {
    world w = join(1);
    std::array<std::byte, 4> room{};
    if (auto sent = w.send(rank{0}, 1, view("here"), only_a_hang); !sent) return failure_of(sent);
    const auto got = w.receive(rank{0}, 1, room, weft::no_deadline);
    return code_of(got) == errc::peer_dead && says(failure_of(got), "rank 0 (node 0, host ") ? "" : failure_of(got);
  };
  EXPECT_EQ(on_two_nodes(first, second), "");
}

TEST(silence, is_none_or_at_least_a_tenth_of_a_second) {
  for (const auto wrong : {std::chrono::nanoseconds{-1}, std::chrono::nanoseconds{99ms}}) {
    world_options options = within(only_a_hang);
    options.silence = wrong;
    EXPECT_EQ(error_of([&] { static_cast<void>(world::join(place(0, 1, fresh_port()), options)); }).code,
              errc::invalid_argument);
  }
  ::setenv("WEFT_WORLD_SILENCE", "soon", 1);
  const weft::error e =
      error_of([&] { static_cast<void>(world::join(place(0, 1, fresh_port()), within(only_a_hang))); });
  ::unsetenv("WEFT_WORLD_SILENCE");
  EXPECT_EQ(e.what, "WEFT_WORLD_SILENCE is \"soon\"; expected a number from 0 to 86400");
}

}  // namespace
