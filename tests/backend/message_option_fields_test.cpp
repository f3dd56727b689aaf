// SPDX-License-Identifier: Apache-2.0
// Each field of the options of queues, requests, connections and meetings changes something, or is refused.
#include "channel/queue_state.hpp"
#include "support/option_rows.hpp"
#include "support/processes.hpp"
#include "support/threads.hpp"
#include "weft/channel/message_queue.hpp"
#include "weft/channel/request.hpp"
#include "weft/channel/shared_queue.hpp"
#include "weft/processes/rendezvous.hpp"

#include <chrono>
#include <future>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

namespace message_option_fields_test {

using samples::error_of;
using weft::device_id;
using weft::errc;
using weft::machine;
using weft::queue_options;
using weft::queue_status;
using namespace std::chrono_literals;

using number = std::uint64_t;
using queue = weft::message_queue<number>;

queue between(const machine& m, const queue_options& how) { return {m, device_id{0}, device_id{1}, how}; }

/// Sends without a receiver until one is not taken, or for long; how many were taken.
std::size_t taken(const queue& q) {
  auto tx = q.open_sender();
  std::size_t count = 0;
  while (count < 10'000 && tx.try_send(count) == queue_status::ok) ++count;
  return count;
}
/// Sends and receives eight messages, one after the other.
weft::queue_statistics passed(const queue& q) {
  auto tx = q.open_sender();
  auto rx = q.open_receiver();
  for (number k = 0; k < 8; ++k) EXPECT_EQ(tx.send(k), queue_status::ok);
  for (number k = 0, got = 0; k < 8; ++k) EXPECT_EQ(rx.receive(got), queue_status::ok);
  return q.statistics();
}
std::uint64_t parks(const queue& q, std::chrono::nanoseconds timeout) {
  auto rx = q.open_receiver();
  number got = 0;
  EXPECT_EQ(rx.receive_for(got, timeout), queue_status::timed_out);
  return q.statistics().receiver_parks;
}
/// Whether `seen` holds of a wait. On a busy machine a short one is over before it began: then of one twice as long.
template <class F>
bool holds_of_a_wait(F&& seen) {
  for (std::chrono::nanoseconds timeout = 5ms; timeout < samples::only_a_hang; timeout *= 2) {
    if (seen(timeout)) return true;
  }
  return false;
}
std::stop_token stopped() {
  std::stop_source source;
  source.request_stop();
  return source.get_token();
}
template <class F>
bool is_soon(F&& f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::steady_clock::now() - begin < 4s;  // the defaults are 5 s and more; only a hang takes so long
}

class message_option_fields : public samples::option_test {};
INSTANTIATE_TEST_SUITE_P(queues, message_option_fields, samples::each_backend, samples::name_of_backend);

TEST_P(message_option_fields, each_option_of_a_queue_has_an_effect) {
  using weft::backpressure;
  using weft::transfer_mode;
  const samples::option_row rows[] = {
      {"capacity", "the ring", [](const machine& m) { return between(m, {.capacity = 64}).capacity() == 64; }},
      {"mode", "the way",
       [](const machine& m) {
         return between(m, {.mode = transfer_mode::host_staged}).mode() == transfer_mode::host_staged &&
                error_of([&] { between(m, {.mode = transfer_mode::rdma}); }).code == errc::unsupported;
       }},
      {"when_full", "what a send does then",
       [](const machine& m) { return taken(between(m, {.when_full = backpressure::drop_newest})) == 10'000; }},
      {"timeout", "how long waiting forms wait",
       [](const machine& m) {
         const queue q = between(m, {.timeout = 1ms});
         return weft::detail::deadline_of(*weft::detail::state_of(q), {true, {}, {}}) -
                    std::chrono::steady_clock::now() <
                1s;
       }},
      {"batch_size", "a batch",
       [](const machine& m) {
         const queue q = between(m, {.batch_size = 3});
         auto tx = q.open_sender();
         auto rx = q.open_receiver();
         for (number k = 0; k < 8; ++k) EXPECT_EQ(tx.send(k), queue_status::ok);
         std::vector<number> some;
         for (std::size_t k = 0; k < 8; k += some.size()) {
           some = rx.receive_batch();
           if (some.empty() || some.size() > 3) return false;
         }
         return true;
       }},
      {"pinned", "the memory of a staged ring",
       [](const machine& m) {
         // the backend fills memory that it knows, and no other
         const auto is_known = [&](bool pinned) {
           const queue q = between(m, {.mode = transfer_mode::host_staged, .pinned = pinned});
           const weft::stream order{m[0]};
           weft::fill_request same;
           same.dst = reinterpret_cast<void*>(weft::detail::state_of(q)->lanes.front()->sender.ring.slots);
           same.count = same.pattern_size = 1;
           same.pattern[0] = *static_cast<const std::byte*>(same.dst);
           return weft::detail::state_of(m)->backend_of(device_id{0}).fill(order.native(), same).has_value();
         };
         return is_known(true) && !is_known(false);
       }},
      {"staging_size", "what moves at a time",
       [](const machine& m) {
         const auto comes_to = [&](weft::bytes at_a_time, auto&& holds) {
           const queue q = between(m, {.mode = transfer_mode::host_staged, .staging_size = at_a_time});
           auto tx = q.open_sender();
           auto rx = q.open_receiver();
           tx.send_batch(std::vector<number>(8, 1));  // published at once: the forwarder sees none or all
           for (number k = 0, got = 0; k < 8; ++k) EXPECT_EQ(rx.receive(got), queue_status::ok);
           return processes::comes_true([&] { return holds(q.statistics().staged); });
         };
         if (weft::detail::state_of(between(m, {.mode = transfer_mode::host_staged}))->lies_in_host_memory)
           return true;  // one ring
         // the forwarder counts an operation after what it moved may be received
         return comes_to(weft::bytes{1}, [](const auto& told) { return told.operations == told.messages; }) &&
                comes_to(weft::bytes{1U << 20}, [](const auto& told) { return told.operations + 1 < told.messages; });
       }},
      {"validate", "what travels with a message",
       [](const machine& m) {
         return weft::detail::state_of(between(m, {.validate = true}))->shape.bytes >
                weft::detail::state_of(between(m, {}))->shape.bytes;
       }},
      {"producers", "the ends that may send",
       [](const machine& m) {
         const auto two = [&](int producers) {
           const queue q = between(m, {.producers = producers});
           const auto first = q.open_sender();
           return error_of([&] { static_cast<void>(q.open_sender()); }).what == "nothing failed";
         };
         return two(2) && !two(1);
       }},
      {"spill_limit", "how much is kept",
       [](const machine& m) {
         const auto kept = [&](std::uint64_t messages) {
           return taken(between(m, {.capacity = 16,
                                    .when_full = backpressure::spill,
                                    .spill_limit = weft::bytes{messages * sizeof(number)}}));
         };
         return kept(100) == kept(10) + 90;
       }},
      {"sample_every", "what is measured",
       [](const machine& m) {
         return passed(between(m, {.sample_every = 1})).queueing.samples == 8 &&
                passed(between(m, {})).queueing.samples == 0;
       }},
      {"wait_policy", "whether waiting forms sleep",
       [](const machine& m) {
         return holds_of_a_wait([&](auto timeout) {
                  return parks(between(m, {.wait_policy = weft::waiting::park}), timeout) > 0;
                }) &&
                parks(between(m, {.wait_policy = weft::waiting::spin}), 5ms) == 0;
       }},
      {"for_kernels", "who may use the ends",
       [](const machine& m) {
         return between(m, {.for_kernels = true}).open_sender().try_send(1) == queue_status::failed;
       }},
  };
  samples::expect_each<queue_options>(open(), rows);
}

TEST_P(message_option_fields, each_option_of_requests_has_an_effect) {
  using weft::request_options;
  const auto client = [](const machine& m, const request_options& how) {
    return weft::make_request_channel<number, number>(m, device_id{0}, device_id{1}, how);
  };
  const auto of_queues = [](const request_options& how) { return weft::detail::options_of_requests(how, {}); };
  const samples::option_row rows[] = {
      {"outstanding", "how many calls may be open",
       [&](const machine& m) {
         auto both = client(m, {.outstanding = 2});
         for (number k = 0; k < 3; ++k) static_cast<void>(both.client.begin(k));
         return both.client.statistics().calls == 2 && both.client.statistics().refused == 1;
       }},
      {"mode", "the way",
       [&](const machine& m) {
         return error_of([&] { client(m, {.mode = weft::transfer_mode::rdma}); }).code == errc::unsupported;
       }},
      {"timeout", "how long a call waits",
       [&](const machine& m) {
         auto both = client(m, {.timeout = 1ms});
         return is_soon([&] { EXPECT_EQ(both.client.call(1).status, queue_status::timed_out); });
       }},
      {"validate", "what travels with a message",
       [&](const machine& m) {
         const auto taken_by = [&](bool validate) {
           const auto before = m[1].free_memory();
           const auto both = client(m, {.outstanding = 4'096, .validate = validate});
           return before.value() - m[1].free_memory().value();
         };
         if (taken_by(true) > taken_by(false)) return true;
         // rings in host memory: nobody counts it, so what the queues are asked for has to do
         return m[0].kind() != weft::backend_kind::host && of_queues({.validate = true}).validate;
       }},
      {"wait_policy", "whether waiting forms sleep",
       [&](const machine& m) {
         const auto sleeps = [&](weft::waiting policy, std::chrono::nanoseconds timeout) {
           auto both = client(m, {.timeout = timeout, .wait_policy = policy});
           const long before = samples::sleeps_of_this_thread();
           EXPECT_EQ(both.client.call(1).status, queue_status::timed_out);
           return samples::sleeps_of_this_thread() - before;
         };
         // a lock of the driver may make a call sleep that spins itself, but not each
         return holds_of_a_wait([&](auto timeout) { return sleeps(weft::waiting::park, timeout) > 0; }) &&
                holds_of_a_wait([&](auto timeout) { return sleeps(weft::waiting::spin, timeout) == 0; });
       }},
  };
  samples::expect_each<request_options>(open(), rows);
}

/// Two processes of a group, played by two threads.
template <class F>
void meet(F&& f, const weft::join_options& mine = {}) {
  auto places = weft::rendezvous::connected(2);
  auto other = std::async(std::launch::async, [&] {
    weft::rendezvous place = std::move(places[1]);
    auto joined = std::move(place).join(mine);
    if (joined) f(*joined, false);
  });
  weft::rendezvous place = std::move(places[0]);
  auto joined = std::move(place).join();
  if (joined) f(*joined, true);
  other.get();
}

TEST(message_option_fields, each_option_of_a_connection_has_an_effect) {
  const auto to_nobody = [](const weft::connect_options& how) {
    weft::error said;
    std::promise<void> done;
    meet([&](weft::process_group& group, bool is_first) {
      if (!is_first) return done.get_future().wait();  // is there, and offers nothing
      said = error_of([&] { static_cast<void>(weft::connect_sender<number>(group, weft::rank{1}, 1, {}, how)); });
      done.set_value();
    });
    return said.code;
  };
  const samples::option_row rows[] = {
      {"timeout", "how long they look for each other",
       [&](const machine&) { return is_soon([&] { EXPECT_EQ(to_nobody({.timeout = 2ms}), errc::timed_out); }); }},
      {"stop", "whether they go on", [&](const machine&) { return to_nobody({.stop = stopped()}) == errc::cancelled; }},
      {"largest", "what is accepted",
       [](const machine&) {
         weft::error said;
         meet([&](weft::process_group& group, bool is_first) {
           if (is_first) {
             said = error_of([&] {
               static_cast<void>(
                   weft::connect_sender<number>(group, weft::rank{1}, 1, {}, {.largest = weft::bytes{64}}));
             });
           } else {
             error_of([&] { static_cast<void>(weft::connect_receiver<number>(group, weft::rank{0}, 1)); });
           }
         });
         return said.what.find("connect_options::largest") != std::string::npos;
       }},
  };
  samples::expect_each<weft::connect_options>(machine{{.backend = "host"}}, rows);
}

TEST(message_option_fields, each_option_of_a_meeting_has_an_effect) {
  const auto alone = [](const weft::join_options& how) {
    auto places = weft::rendezvous::connected(2);
    auto joined = std::move(places[0]).join(how);
    return joined ? errc::not_ready : joined.error().code;
  };
  const samples::option_row rows[] = {
      {"announcement", "what the others see",
       [](const machine&) {
         const std::byte said[] = {std::byte{7}};
         std::vector<std::byte> heard;
         meet(
             [&](weft::process_group& group, bool is_first) {
               if (is_first)
                 heard.assign(group.peer(weft::rank{1}).announcement.begin(),
                              group.peer(weft::rank{1}).announcement.end());
             },
             {.announcement = said});
         return heard == std::vector<std::byte>{std::byte{7}};
       }},
      {"timeout", "how long they gather",
       [&](const machine&) { return is_soon([&] { EXPECT_EQ(alone({.timeout = 2ms}), errc::timed_out); }); }},
      {"stop", "whether they go on", [&](const machine&) { return alone({.stop = stopped()}) == errc::cancelled; }},
  };
  samples::expect_each<weft::join_options>(machine{{.backend = "host"}}, rows);
}

}  // namespace message_option_fields_test
