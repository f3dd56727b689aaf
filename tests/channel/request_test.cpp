// SPDX-License-Identifier: Apache-2.0
#include "weft/channel/request.hpp"

#include "support/samples.hpp"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <set>
#include <stdexcept>
#include <thread>

namespace request_test {

using samples::error_of;
using samples::gpu0;
using samples::gpu1;
using samples::play;
using samples::wired;
using weft::call_id;
using weft::errc;
using weft::machine;
using weft::queue_status;
using weft::request_options;

struct question {
  std::uint64_t a = 0, b = 0;
};
struct answer {
  std::uint64_t sum = 0, product = 0;
  friend bool operator==(const answer&, const answer&) = default;
};
answer solve(const question& asked) { return {asked.a + asked.b, asked.a * asked.b}; }

constexpr std::chrono::nanoseconds briefly = std::chrono::milliseconds{2};
constexpr std::chrono::nanoseconds at_once{0};

weft::request_channel<question, answer> channel(const machine& m, std::size_t outstanding = 64) {
  request_options options;
  options.outstanding = outstanding;
  options.timeout = samples::soon;
  return weft::make_request_channel<question, answer>(m, gpu0, gpu1, options);
}

/// Takes one question that is there.
call_id taken(weft::request_server<question, answer>& server, question& asked) {
  call_id id;
  EXPECT_EQ(server.take(asked, id), queue_status::ok);
  return id;
}

TEST(request, is_answered_by_the_handler_of_the_server) {
  const machine m = play(wired(2));
  for (const auto mode : {weft::transfer_mode::direct, weft::transfer_mode::host_staged}) {
    request_options options;
    options.mode = mode;
    options.timeout = samples::soon;
    auto made = weft::make_request_channel<question, answer>(m, gpu0, gpu1, options);
    auto& client = made.client;
    auto& server = made.server;
    std::thread serving{[&server] { EXPECT_EQ(server.serve(solve), queue_status::closed); }};
    for (std::uint64_t i = 0; i < 500; ++i) {
      const auto result = client.call({i, i + 3});
      ASSERT_EQ(result.status, queue_status::ok);
      ASSERT_EQ(result.response, (answer{2 * i + 3, i * (i + 3)}));
    }
    client.close();
    serving.join();
    EXPECT_EQ(client.statistics(), (weft::client_statistics{500, 500, 0, 0, 0, 0}));
    EXPECT_EQ(server.statistics(), (weft::server_statistics{500, 500, 0, 0}));
  }
}

TEST(request, can_be_finished_in_any_order) {
  const machine m = play(wired(2));
  auto made = channel(m);
  auto& client = made.client;
  auto& server = made.server;
  std::vector<call_id> ids;
  for (std::uint64_t i = 0; i < 40; ++i) {
    const auto begun = client.begin({i, 100});
    ASSERT_TRUE(begun);
    ids.push_back(begun.id);
  }
  EXPECT_EQ(client.outstanding(), 40U);
  for (int i = 0; i < 40; ++i) {
    question asked;
    const call_id id = taken(server, asked);
    ASSERT_EQ(server.answer(id, solve(asked)), queue_status::ok);
  }
  for (std::uint64_t i = 40; i-- != 0;) {
    const auto result = client.finish(ids[i]);
    ASSERT_EQ(result.status, queue_status::ok);
    ASSERT_EQ(result.response, (answer{i + 100, i * 100}));
  }
  EXPECT_EQ(client.outstanding(), 0U);
}

TEST(request, can_be_answered_in_any_order) {
  const machine m = play(wired(2));
  auto made = channel(m);
  auto& client = made.client;
  auto& server = made.server;
  std::vector<call_id> ids;
  std::vector<std::pair<call_id, question>> open;
  for (std::uint64_t i = 0; i < 9; ++i) ids.push_back(client.begin({i, 5}).id);
  for (int i = 0; i < 9; ++i) {
    question asked;
    const call_id id = taken(server, asked);
    open.emplace_back(id, asked);
  }
  EXPECT_EQ(client.try_finish(ids[0]).status, queue_status::empty);
  for (const std::size_t i : {8U, 3U, 5U, 0U, 7U, 1U, 6U, 2U, 4U}) {
    ASSERT_EQ(server.answer(open[i].first, solve(open[i].second)), queue_status::ok);
  }
  for (std::uint64_t i = 0; i < 9; ++i) {
    const auto result = client.finish(ids[i]);
    ASSERT_EQ(result.status, queue_status::ok);
    ASSERT_EQ(result.response.product, 5 * i);
  }
}

TEST(request, whose_answer_is_late_leaves_the_next_call_alone) {
  const machine m = play(wired(2));
  auto made = channel(m, 1);
  auto& client = made.client;
  auto& server = made.server;  // one place: the next call would use the same one
  EXPECT_EQ(client.call_for({1, 1}, briefly).status, queue_status::timed_out);
  EXPECT_EQ(client.statistics().abandoned, 1U);

  question asked;
  const call_id late = taken(server, asked);
  EXPECT_EQ(client.begin({2, 2}).status, queue_status::full) << "the place is kept until the answer has come";
  EXPECT_EQ(client.outstanding(), 1U);
  EXPECT_EQ(server.answer(late, {111, 111}), queue_status::ok);

  const auto begun = client.begin({2, 2});
  ASSERT_EQ(begun.status, queue_status::ok);
  EXPECT_EQ(begun.id.place, late.place);
  EXPECT_NE(begun.id.generation, late.generation);
  EXPECT_EQ(server.answer(late, {222, 222}), queue_status::ok) << "a server that answers twice";
  EXPECT_EQ(client.finish_for(begun.id, briefly).status, queue_status::timed_out);
  const call_id second = taken(server, asked);
  EXPECT_EQ(second, begun.id);
  EXPECT_EQ(server.answer(second, solve(asked)), queue_status::ok);
  const auto result = client.finish(begun.id);
  EXPECT_EQ(result.status, queue_status::ok);
  EXPECT_EQ(result.response, (answer{4, 4}));
  EXPECT_EQ(client.statistics(), (weft::client_statistics{2, 1, 1, 1, 1, 1}));
}

TEST(request, a_cancelled_request_leaves_the_next_call_alone) {
  const machine m = play(wired(2));
  auto made = channel(m, 4);
  auto& client = made.client;
  auto& server = made.server;
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(client.call({1, 1}, stop.get_token()).status, queue_status::cancelled);
  question asked;
  const call_id late = taken(server, asked);
  const auto begun = client.begin({2, 2});
  ASSERT_TRUE(begun);
  EXPECT_EQ(server.answer(late, {111, 111}), queue_status::ok);
  EXPECT_EQ(server.try_serve(solve), queue_status::ok);
  EXPECT_EQ(client.finish(begun.id).response, (answer{4, 4}));
  EXPECT_EQ(client.statistics().late, 1U);
}

TEST(request, an_unanswered_request_ends_with_its_deadline_and_says_so) {
  const machine m = play(wired(2));
  auto made = channel(m);
  auto& client = made.client;
  const auto begin = std::chrono::steady_clock::now();
  const auto result = client.call_for({1, 2}, std::chrono::milliseconds{30});
  EXPECT_EQ(result.status, queue_status::timed_out);
  EXPECT_FALSE(result);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds{30});
}

TEST(request, after_a_stop_while_it_waits_is_cancelled) {
  const machine m = play(wired(2));
  auto made = channel(m);
  auto& client = made.client;
  auto& server = made.server;
  std::stop_source stop;
  std::thread stopping{[&server, &stop] {
    question asked;
    (void)taken(server, asked);  // the call is on its way: its caller waits, or is about to
    stop.request_stop();
  }};
  EXPECT_EQ(client.call({1, 2}, stop.get_token()).status, queue_status::cancelled);
  stopping.join();
}

TEST(request, goes_on_after_a_wait_that_timed_out) {
  const machine m = play(wired(2));
  auto made = channel(m);
  auto& client = made.client;
  auto& server = made.server;
  const auto begun = client.begin({6, 7});
  EXPECT_EQ(client.finish_for(begun.id, at_once).status, queue_status::timed_out);
  EXPECT_EQ(client.finish_for(begun.id, briefly).status, queue_status::timed_out);
  EXPECT_EQ(server.try_serve(solve), queue_status::ok);
  EXPECT_EQ(client.finish_for(begun.id, std::chrono::nanoseconds::max()).response, (answer{13, 42}));
}

TEST(request, is_refused_while_too_many_are_without_an_answer) {
  const machine m = play(wired(2));
  for (const std::size_t outstanding : {1U, 2U, 12U, 13U, 16U, 64U, 100U}) {
    auto made = channel(m, outstanding);
    auto& client = made.client;
    auto& server = made.server;
    for (int round = 0; round < 5; ++round) {
      std::vector<call_id> ids;
      for (std::size_t i = 0; i < outstanding; ++i) {
        const auto begun = client.begin({i, 1});
        ASSERT_EQ(begun.status, queue_status::ok) << i << " of " << outstanding << ", round " << round;
        ids.push_back(begun.id);
      }
      ASSERT_EQ(client.begin({0, 0}).status, queue_status::full);
      for (std::size_t i = 0; i < outstanding; ++i) ASSERT_EQ(server.try_serve(solve), queue_status::ok);
      ASSERT_EQ(server.try_serve(solve), queue_status::empty);
      ASSERT_EQ(client.begin({0, 0}).status, queue_status::full) << "an answer keeps its place until it was fetched";
      for (std::size_t i = 0; i < outstanding; ++i) ASSERT_EQ(client.finish(ids[i]).response.sum, i + 1);
    }
    EXPECT_EQ(client.statistics().refused, 10U);
  }
}

TEST(request, never_makes_the_server_wait_for_a_client_that_has_given_up) {
  const machine m = play(wired(2));
  auto made = channel(m, 16);
  auto& client = made.client;
  auto& server = made.server;
  for (int round = 0; round < 20; ++round) {
    int asked = 0;
    while (client.call_for({1, 1}, at_once).status == queue_status::timed_out && asked < 16) ++asked;
    // nobody reads the answers now, and yet none of these may wait
    const auto begin = std::chrono::steady_clock::now();
    while (server.try_serve(solve) == queue_status::ok) {
    }
    ASSERT_LT(std::chrono::steady_clock::now() - begin, samples::soon / 2);
  }
  EXPECT_EQ(server.statistics().unsent, 0U);
  const auto begun = client.begin({3, 4});
  ASSERT_TRUE(begun);
  ASSERT_EQ(server.try_serve(solve), queue_status::ok);
  EXPECT_EQ(client.finish(begun.id).response, (answer{7, 12}));
}

TEST(request, waits_for_a_place_when_all_are_taken) {
  const machine m = play(wired(2));
  auto made = channel(m, 1);
  auto& client = made.client;
  auto& server = made.server;
  EXPECT_EQ(client.call_for({1, 1}, at_once).status, queue_status::timed_out);
  std::thread serving{[&server] { EXPECT_EQ(server.serve(solve), queue_status::closed); }};
  const auto result = client.call({5, 6});
  EXPECT_EQ(result.status, queue_status::ok);
  EXPECT_EQ(result.response, (answer{11, 30}));
  client.close();
  serving.join();
}

TEST(request, to_a_server_that_has_closed_is_closed) {
  const machine m = play(wired(2));
  auto made = channel(m);
  auto& client = made.client;
  auto& server = made.server;
  const auto answered = client.begin({1, 2});
  EXPECT_EQ(server.try_serve(solve), queue_status::ok);
  const auto unanswered = client.begin({3, 4});
  ASSERT_TRUE(unanswered);
  server.close();
  EXPECT_EQ(client.finish(unanswered.id).status, queue_status::closed);
  EXPECT_EQ(client.finish(answered.id).response, (answer{3, 2})) << "what was answered before is there";
  EXPECT_EQ(client.call({1, 1}).status, queue_status::closed);
  EXPECT_EQ(client.begin({1, 1}).status, queue_status::closed) << "though the questions have room";
  EXPECT_EQ(client.try_finish(unanswered.id).status, queue_status::closed);
}

TEST(request, that_is_polled_for_fails_at_the_end_of_the_machine) {
  machine m = play(wired(2));
  auto made = channel(m, 1);
  const auto begun = made.client.begin({1, 2});
  EXPECT_EQ(made.client.try_finish(begun.id).status, queue_status::empty);
  m.close();
  EXPECT_EQ(made.client.begin({3, 4}).status, queue_status::failed) << "though there is no place";
  EXPECT_EQ(made.client.try_finish(begun.id).status, queue_status::failed);
  EXPECT_EQ(made.client.try_finish(begun.id).status, queue_status::failed) << "and goes on saying so";
}

TEST(request, that_is_polled_for_fails_after_the_loss_of_a_device) {
  weft::topology layout = wired(2);
  weft::topology_fault lost;
  lost.what = weft::topology_fault::kind::device_lost;
  lost.device = gpu1;
  layout.faults.push_back(lost);
  const machine m = play(std::move(layout));
  auto made = channel(m, 1);
  const auto begun = made.client.begin({1, 2});
  EXPECT_EQ(error_of([&] { m[1].default_stream().call([] {}).wait(); }).code, errc::device_lost);
  queue_status status = queue_status::empty;
  for (int polls = 0; polls < 4096 && status == queue_status::empty; ++polls) {  // a receiver asks every 1024 looks
    status = made.client.try_finish(begun.id).status;
  }
  EXPECT_EQ(status, queue_status::failed);
  EXPECT_EQ(made.client.begin({3, 4}).status, queue_status::failed) << "though there is no place";
}

/// A channel with checksums, and the rings in which a message can be damaged.
struct checked_channel {
  explicit checked_channel(const machine& m, std::size_t places = 4)
      : outstanding(places),
        there(m, gpu0, gpu1, options()),
        back(m, gpu1, gpu0, options()),
        client([&] {
          auto out = there.open_sender();
          asking = weft::detail::internals::native(out);
          return weft::request_client<question, answer>{std::move(out), back.open_receiver(), outstanding,
                                                        samples::soon};
        }()),
        server([&] {
          auto out = back.open_sender();
          answering = weft::detail::internals::native(out);
          return weft::request_server<question, answer>{there.open_receiver(), std::move(out)};
        }()) {}

  static weft::queue_options options() {
    weft::queue_options made;
    made.capacity = 16;
    made.validate = true;
    made.timeout = samples::soon;
    return made;
  }
  /// Flips a bit of the body of the message that was sent last.
  static void damage(const weft::detail::queue_end* sent) {
    const auto& ring = sent->ring;
    ASSERT_NE(ring.stride, 0U);
    reinterpret_cast<std::uint8_t*>(ring.slots)[((ring.position - 1) & ring.mask) * ring.stride + 20] ^= 0x10;
  }
  /// As many calls as there are places get their answers.
  void expect_all_places() {
    std::vector<call_id> ids;
    for (std::uint64_t i = 0; i < outstanding; ++i) {
      const auto begun = client.begin({i, 3});
      ASSERT_EQ(begun.status, queue_status::ok) << i;
      ids.push_back(begun.id);
    }
    for (std::uint64_t i = 0; i < outstanding; ++i) {
      ASSERT_EQ(server.try_serve(solve), queue_status::ok);
      ASSERT_EQ(client.finish(ids[i]).response, (answer{i + 3, i * 3}));
    }
    EXPECT_EQ(client.outstanding(), 0U);
  }

  const std::size_t outstanding;
  weft::message_queue<weft::numbered_request<question>> there;
  weft::message_queue<weft::numbered_response<answer>> back;
  const weft::detail::queue_end *asking = nullptr, *answering = nullptr;
  weft::request_client<question, answer> client;
  weft::request_server<question, answer> server;
};

TEST(request, whose_answer_is_damaged_fails_and_leaves_its_place) {
  const machine m = play(wired(2));
  checked_channel made{m};
  auto& client = made.client;
  auto& server = made.server;
  for (int round = 0; round < 10; ++round) {  // more often than there are places
    const auto answered = client.begin({1, 2}), damaged = client.begin({3, 4}), abandoned = client.begin({5, 6});
    ASSERT_TRUE(abandoned);
    ASSERT_EQ(server.try_serve(solve), queue_status::ok);
    ASSERT_EQ(server.try_serve(solve), queue_status::ok);
    made.damage(made.answering);
    ASSERT_TRUE(client.abandon(abandoned.id));
    const auto begun = client.begin({7, 8});  // takes what has come
    ASSERT_TRUE(begun);
    EXPECT_EQ(client.try_finish(damaged.id).status, queue_status::failed);
    EXPECT_EQ(client.finish(damaged.id).status, queue_status::failed);
    EXPECT_EQ(client.finish(answered.id).response, (answer{3, 2})) << "what had come before is there";
    ASSERT_EQ(server.try_serve(solve), queue_status::ok);
    ASSERT_EQ(server.try_serve(solve), queue_status::ok);
    EXPECT_EQ(client.finish(begun.id).response, (answer{15, 56})) << "what was begun after the damage goes on";
    made.expect_all_places();
  }
  EXPECT_EQ(client.statistics().abandoned, 20U);
  EXPECT_EQ(client.statistics().late, 10U) << "answers to what was given up";
  EXPECT_EQ(client.statistics().strays, 0U);
  EXPECT_EQ(made.back.statistics().corrupted, 10U);
}

TEST(request, that_is_damaged_itself_fails_and_leaves_its_place) {
  const machine m = play(wired(2));
  checked_channel made{m};
  auto& client = made.client;
  auto& server = made.server;
  for (int round = 0; round < 10; ++round) {
    const auto damaged = client.begin({1, 2});
    ASSERT_TRUE(damaged);
    made.damage(made.asking);
    ASSERT_EQ(server.try_serve(solve), queue_status::failed);
    EXPECT_EQ(client.finish(damaged.id).status, queue_status::failed);
    made.expect_all_places();
  }
  EXPECT_EQ(client.statistics().abandoned, 10U);
  EXPECT_EQ(client.statistics().strays, 0U);
  EXPECT_EQ(server.statistics().taken, 40U);
  EXPECT_EQ(server.statistics().answered, 40U);
}

TEST(request, after_a_damaged_answer_waits_for_a_place_until_the_other_answers_have_come) {
  const machine m = play(wired(2));
  checked_channel made{m, 11};  // as many as a ring of 16 is made for
  auto& client = made.client;
  auto& server = made.server;
  std::vector<call_id> owed;
  const auto ask = [&] {
    for (std::uint64_t i = 0; i < made.outstanding; ++i) {
      if (!client.begin({i, 3})) continue;
      question asked;
      owed.push_back(taken(server, asked));
    }
  };
  for (int round = 0; round < 3; ++round) {
    owed.clear();
    ask();
    ASSERT_EQ(owed.size(), made.outstanding);
    ASSERT_EQ(server.answer(owed.front(), {}), queue_status::ok);
    made.damage(made.answering);
    owed.erase(owed.begin());
    ask();  // takes the damaged answer
    for (const call_id id : owed) ASSERT_EQ(server.answer(id, {}), queue_status::ok) << "the ring has space for it";
    made.expect_all_places();
  }
  EXPECT_EQ(client.statistics().late, 30U);
  EXPECT_EQ(client.statistics().strays, 0U);
  EXPECT_EQ(server.statistics().unsent, 0U);
}

TEST(request, gets_the_place_of_an_abandoned_one_whose_answer_is_damaged) {
  const machine m = play(wired(2));
  checked_channel made{m};
  for (std::size_t i = 0; i < made.outstanding; ++i) {
    const auto begun = made.client.begin({i, i});
    ASSERT_TRUE(begun);
    ASSERT_TRUE(made.client.abandon(begun.id));
  }
  for (std::size_t i = 0; i < made.outstanding; ++i) {
    ASSERT_EQ(made.server.try_serve(solve), queue_status::ok);
    made.damage(made.answering);
  }
  std::thread serving{[&] { EXPECT_EQ(made.server.serve(solve), queue_status::closed); }};
  EXPECT_EQ(made.client.call({5, 6}).response, (answer{11, 30}));
  made.client.close();
  serving.join();
}

TEST(request, a_closed_client_leaves_the_server_with_closed) {
  const machine m = play(wired(2));
  auto made = channel(m);
  auto& client = made.client;
  auto& server = made.server;
  ASSERT_TRUE(client.begin({1, 2}));
  client.close();
  EXPECT_EQ(client.begin({1, 2}).status, queue_status::closed);
  EXPECT_EQ(client.call({1, 2}).status, queue_status::closed);
  EXPECT_EQ(server.serve(solve), queue_status::closed);
  EXPECT_EQ(server.statistics().taken, 1U) << "what was asked before was taken";
  server.close();
  EXPECT_EQ(server.answer({0, 1}, {}), queue_status::closed);
}

TEST(server, whose_handler_throws_tells_the_caller_and_lets_the_exception_go_on) {
  const machine m = play(wired(2));
  auto made = channel(m);
  auto& client = made.client;
  auto& server = made.server;
  const auto begun = client.begin({1, 2});
  EXPECT_THROW((void)server.try_serve([](const question&) -> answer { throw std::runtime_error{"no"}; }),
               std::runtime_error);
  EXPECT_EQ(client.finish(begun.id).status, queue_status::failed);
  EXPECT_EQ(server.statistics(), (weft::server_statistics{1, 1, 1, 0}));
  const auto next = client.begin({3, 4});
  EXPECT_EQ(server.try_serve(solve), queue_status::ok);
  EXPECT_EQ(client.finish(next.id).response, (answer{7, 12}));
}

TEST(server, stops_when_it_is_told_to) {
  const machine m = play(wired(2));
  auto made = channel(m);
  auto& client = made.client;
  auto& server = made.server;
  std::stop_source stop;
  std::thread serving{[&server, &stop] { EXPECT_EQ(server.serve(solve, stop.get_token()), queue_status::cancelled); }};
  EXPECT_EQ(client.call({1, 2}).response, (answer{3, 2}));
  stop.request_stop();
  serving.join();
  EXPECT_EQ(server.serve(solve, stop.get_token()), queue_status::cancelled);
  const auto begun = client.begin({5, 5});
  EXPECT_EQ(server.try_serve(solve), queue_status::ok) << "and can go on";
  EXPECT_EQ(client.finish(begun.id).response, (answer{10, 25}));
}

TEST(request, with_a_number_that_is_no_call_fails) {
  const machine m = play(wired(2));
  auto made = channel(m);
  auto& client = made.client;
  EXPECT_EQ(client.finish({}).status, queue_status::failed);
  EXPECT_EQ(client.finish({1000, 1}).status, queue_status::failed);
  EXPECT_FALSE(client.abandon({1000, 1}));
  const auto begun = client.begin({1, 2});
  EXPECT_TRUE(client.abandon(begun.id));
  EXPECT_FALSE(client.abandon(begun.id));
  EXPECT_EQ(client.finish(begun.id).status, queue_status::failed);
  EXPECT_EQ(client.try_finish(begun.id).status, queue_status::failed);
}

TEST(request, channel_for_no_calls_is_refused) {
  const machine m = play(wired(2));
  EXPECT_EQ(error_of([&] { (void)channel(m, 0); }).code, errc::invalid_argument);
  EXPECT_EQ(error_of([&] { (void)channel(m, std::numeric_limits<std::size_t>::max()); }).code, errc::invalid_argument);
}

TEST(client, drops_answers_that_belong_to_no_call) {
  const machine m = play(wired(2));
  weft::queue_options options;
  options.capacity = 16;
  const weft::message_queue<weft::numbered_request<question>> there{m, gpu0, gpu1, options};
  const weft::message_queue<weft::numbered_response<answer>> back{m, gpu1, gpu0, options};
  weft::request_client<question, answer> client{there.open_sender(), back.open_receiver(), 4, samples::soon};
  auto rogue = back.open_sender();
  auto ear = there.open_receiver();
  const auto begun = client.begin({1, 2});
  // every number but the right one: out of the table, of another use of the place, of a place that is free
  for (const call_id wrong : {call_id{4, 1}, call_id{0xffffffffU, 1}, call_id{begun.id.place, begun.id.generation + 1},
                              call_id{begun.id.place, 0}, call_id{begun.id.place + 1, 0}, call_id{2, 7}}) {
    ASSERT_EQ(rogue.try_send({wrong, 1, {666, 666}}), queue_status::ok);
  }
  EXPECT_EQ(client.finish_for(begun.id, briefly).status, queue_status::timed_out);
  EXPECT_EQ(client.statistics().strays, 6U);
  ASSERT_EQ(rogue.try_send({begun.id, 1, {3, 2}}), queue_status::ok);
  EXPECT_EQ(client.finish(begun.id).response, (answer{3, 2}));
}

TEST(call_table, never_gives_a_number_out_twice) {
  weft::detail::call_table table{8};
  std::set<std::pair<std::uint32_t, std::uint32_t>> seen;
  std::vector<call_id> open;
  for (std::size_t i = 0; i < 4000; ++i) {
    if (open.size() < 8 && i % 3 != 2) {
      open.push_back(table.open());
      ASSERT_TRUE(seen.emplace(open.back().place, open.back().generation).second);
      continue;
    }
    const call_id id = open[i % open.size()];
    std::erase(open, id);
    if (i % 2 == 0) {
      ASSERT_TRUE(table.abandon(id));
      ASSERT_EQ(table.arrive(id), weft::detail::call_table::arrival::late);
    } else {
      ASSERT_EQ(table.arrive(id), weft::detail::call_table::arrival::awaited);
      table.close(id);
    }
    ASSERT_EQ(table.arrive(id), weft::detail::call_table::arrival::stray);
    ASSERT_EQ(table.outstanding(), open.size());
  }
}

TEST(request, storm_of_calls_and_cancellations_never_mixes_answers_up) {
  const machine m = play(wired(2));
  auto made = channel(m, 8);
  auto& client = made.client;
  auto& server = made.server;
  std::thread serving{[&server] {
    // keeps some questions back, and answers them out of turn
    std::vector<std::pair<call_id, question>> open;
    question asked;
    call_id id;
    for (std::uint64_t turn = 0;; ++turn) {
      const queue_status status = server.try_take(asked, id);
      if (status == queue_status::ok) open.emplace_back(id, asked);
      if (!open.empty() && (open.size() >= 3 || turn % 7 == 0)) {
        const std::size_t at = turn % open.size();
        (void)server.answer(open[at].first, solve(open[at].second));
        open.erase(open.begin() + static_cast<std::ptrdiff_t>(at));
      }
      if (status == queue_status::empty) std::this_thread::yield();
      if (status == queue_status::closed) break;
    }
  }};
  std::uint64_t x = 88172645463325252ULL, good = 0;
  const auto next = [&x] {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return x;
  };
  for (std::uint64_t i = 1; i <= 3000; ++i) {
    const auto limit = next() % 4 == 0 ? std::chrono::nanoseconds{static_cast<std::int64_t>(next() % 20000)}
                                       : std::chrono::nanoseconds{samples::soon};
    const auto result = client.call_for({i, i * 2}, limit);
    if (result) {
      ++good;
      ASSERT_EQ(result.response, (answer{3 * i, 2 * i * i})) << "the answer of another call";
    } else {
      ASSERT_EQ(result.status, queue_status::timed_out);
    }
  }
  EXPECT_GE(good, 2000U);
  EXPECT_EQ(client.statistics().strays, 0U);
  client.close();
  serving.join();
}

}  // namespace request_test
