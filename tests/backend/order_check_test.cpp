// SPDX-License-Identifier: Apache-2.0
#include "backends/host/race_check/order_check.hpp"

#include "weft/core/log.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bitset>
#include <random>
#include <string>
#include <vector>

namespace order_check_test {

using weft::host::order_access;
using weft::host::order_check;
using weft::host::order_operation;

constexpr std::uintptr_t memory = 0x10000;

weft::stream_handle stream(int number) { return static_cast<weft::stream_handle>(number); }

order_access bytes_at(std::uint64_t offset, std::uint64_t size, bool writes) {
  return {memory + offset, size, writes, 0, memory};
}

/// A fill whose device is its name: without a source line, the text is what tells two operations apart.
order_operation named(std::uint64_t name) {
  order_operation made;
  made.what = order_operation::kind::fill;
  made.on = weft::device_id{static_cast<int>(name)};
  made.size = 8;
  return made;
}

class rig {
 public:
  order_check check;
  order_check::mark_ref write(int on, std::uint64_t offset, std::uint64_t size) {
    return access(on, bytes_at(offset, size, true));
  }
  order_check::mark_ref read(int on, std::uint64_t offset, std::uint64_t size) {
    return access(on, bytes_at(offset, size, false));
  }
  order_check::mark_ref access(int on, const order_access& one) {
    return check.submitted(stream(on), named(++names_), {&one, 1});
  }
  [[nodiscard]] std::size_t found() const { return check.violations().size(); }

 private:
  std::uint64_t names_ = 0;
};

TEST(order_check, reports_a_read_that_nothing_orders_after_a_write) {
  rig r;
  r.write(1, 0, 100);
  r.read(2, 60, 100);
  const auto found = r.check.violations();
  ASSERT_EQ(found.size(), 1U);
  EXPECT_TRUE(found[0].first.writes);
  EXPECT_FALSE(found[0].second.writes);
  EXPECT_EQ(found[0].first.what, "fill of 8 B on gpu1");
  EXPECT_EQ(found[0].first.stream, 1U);
  EXPECT_EQ(found[0].second.what, "fill of 8 B on gpu2");
  EXPECT_EQ(found[0].second.stream, 2U);
  EXPECT_EQ(found[0].base, reinterpret_cast<const void*>(memory));
  EXPECT_EQ(found[0].offset, weft::bytes{60});
  EXPECT_EQ(found[0].size, weft::bytes{40});
}

TEST(order_check, reports_a_write_after_a_read_and_two_writes_but_not_two_reads) {
  rig r;
  r.read(1, 0, 8);
  r.read(2, 0, 8);
  EXPECT_EQ(r.found(), 0U);
  r.write(3, 0, 8);
  EXPECT_EQ(r.found(), 2U) << "one for each read";
  r.write(4, 0, 8);
  EXPECT_EQ(r.found(), 3U);
}

TEST(order_check, takes_an_event_and_the_order_of_a_stream_as_order) {
  rig r;
  r.write(1, 0, 8);
  r.write(1, 0, 8);
  const auto event = r.check.recorded(stream(1));
  r.check.wait(stream(2), event);
  r.read(2, 0, 8);
  EXPECT_EQ(r.found(), 0U);
  r.read(3, 0, 8);
  EXPECT_EQ(r.found(), 1U);
}

TEST(order_check, an_event_says_more_after_its_stream_has_waited_for_another) {
  rig r;
  r.write(1, 0, 8);
  const auto one = r.check.recorded(stream(1));
  const auto early = r.check.recorded(stream(2));
  r.check.wait(stream(2), one);
  const auto late = r.check.recorded(stream(2));
  r.check.wait(stream(3), early);
  r.check.wait(stream(3), late);
  r.read(3, 0, 8);
  EXPECT_EQ(r.found(), 0U);
}

TEST(order_check, what_the_host_waited_for_comes_before_all_that_follows) {
  rig r;
  const auto done = r.write(1, 0, 8);
  r.check.host_waited(done);
  r.write(2, 0, 8);
  r.check.stream_synchronized(stream(2));
  r.write(3, 0, 8);
  r.check.stream_gone(stream(3));
  r.write(4, 0, 8);
  EXPECT_EQ(r.found(), 0U);
}

TEST(order_check, memory_that_was_freed_begins_anew) {
  rig r;
  r.write(1, 0, 64);
  r.check.freed(memory + 16, 16);
  r.write(2, 16, 16);
  EXPECT_EQ(r.found(), 0U);
  r.write(2, 8, 16);
  ASSERT_EQ(r.found(), 1U);
  EXPECT_EQ(r.check.violations()[0].offset, weft::bytes{8});
  EXPECT_EQ(r.check.violations()[0].size, weft::bytes{8}) << "the half that was not freed";
}

TEST(order_check, puts_a_verdict_off_until_the_gate_it_hangs_on_opens) {
  for (const bool waited : {true, false}) {
    rig r;
    const auto gate = r.check.create_gate();
    r.check.wait(stream(1), gate);
    r.write(1, 0, 8);                     // runs when the host says so …
    const auto other = r.write(2, 0, 8);  // … which may be after this, submitted later as it is
    EXPECT_EQ(r.found(), 0U);
    if (waited) r.check.host_waited(other);
    r.check.open_gate(gate);
    EXPECT_EQ(r.found(), waited ? 0U : 1U);
  }
}

TEST(order_check, what_follows_work_that_talks_to_the_host_is_judged_when_that_ends) {
  rig r;
  const auto before = r.write(2, 0, 8);
  const auto talk = r.check.hold(stream(1));
  r.read(1, 0, 8);
  EXPECT_EQ(r.found(), 0U);
  r.check.host_waited(before);
  r.check.open_gate(talk);
  EXPECT_EQ(r.found(), 0U);
  const auto again = r.check.hold(stream(1));
  r.write(1, 0, 8);
  r.read(3, 0, 8);
  r.check.open_gate(again);
  EXPECT_EQ(r.found(), 1U);
}

TEST(order_check, an_event_says_more_after_work_that_talks_to_the_host) {
  rig r;
  const auto other = r.write(2, 0, 8);
  const auto early = r.write(1, 8, 8);
  const auto talk = r.check.hold(stream(1));
  const auto late = r.check.recorded(stream(1));
  r.check.wait(stream(3), early);
  r.check.wait(stream(3), late);
  r.read(3, 0, 8);
  r.check.host_waited(other);
  r.check.open_gate(talk);
  EXPECT_EQ(r.found(), 0U);
}

TEST(order_check, reports_a_pair_of_source_lines_once) {
  rig r;
  const auto one = [&](int on) {
    order_operation op = named(r.found() + 1);
    op.where = std::source_location::current();
    const order_access touched = bytes_at(0, 8, true);
    static_cast<void>(r.check.submitted(stream(on), op, {&touched, 1}));
  };
  for (int i = 1; i < 20; ++i) one(i);
  EXPECT_EQ(r.found(), 1U);
  EXPECT_EQ(r.check.found(), 1U);
}

TEST(order_check, keeps_a_thousand_and_counts_on) {
  rig r;
  for (int i = 1; i <= 1101; ++i) r.write(i, 0, 8);
  EXPECT_EQ(r.found(), order_check::most_kept);
  EXPECT_EQ(r.check.found(), 1100U);
}

TEST(order_check, says_in_a_sentence_what_is_missing_and_tells_the_log) {
  std::vector<std::string> told;
  auto before = weft::set_log_hook([&](weft::log_level, std::string_view text) { told.emplace_back(text); });
  order_check check;
  auto code = std::make_shared<weft::kernel_code>();
  code->name = "consume";
  code->parameters.push_back({"x", weft::element_type::float32, weft::parameter_direction::in, {}, false});
  order_operation copy;
  copy.what = order_operation::kind::copy;
  copy.on = copy.to = weft::device_id{0};
  copy.size = 4096;
  copy.where = std::source_location::current();
  order_operation kernel;
  kernel.what = order_operation::kind::launch;
  kernel.on = weft::device_id{1};
  kernel.kernel = code;
  kernel.where = std::source_location::current();
  order_access written = bytes_at(0, 4096, true);
  order_access read = bytes_at(0, 4096, false);
  read.argument = 1;
  static_cast<void>(check.submitted(stream(1), copy, {&written, 1}));
  static_cast<void>(check.submitted(stream(2), kernel, {&read, 1}));
  weft::set_log_hook(std::move(before));
  const auto found = check.violations();
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].first.what, "copy of 4 KiB from the host to gpu0");
  EXPECT_EQ(found[0].second.what, "kernel 'consume' on gpu1, argument 1 (x)");
  EXPECT_EQ(found[0].what, "the kernel 'consume' on gpu1 (order_check_test.cpp:" + std::to_string(kernel.where.line()) +
                               ") reads what the copy of 4 KiB from the host to gpu0 (order_check_test.cpp:" +
                               std::to_string(copy.where.line()) +
                               ") writes, and nothing orders them; make its stream wait for the event of the copy, or "
                               "wait for that on the host before it is submitted");
  EXPECT_EQ(told, std::vector<std::string>{found[0].what});
}

TEST(order_check, forgets_what_the_host_has_waited_for) {
  rig r;
  for (int i = 0; i < 50000; ++i) {
    const int on = 1 + i;
    r.write(on, static_cast<std::uint64_t>(i) * 64, 32);
    r.check.stream_gone(stream(on));
  }
  EXPECT_LT(r.check.pieces(), 5000U);
  EXPECT_LT(r.check.clock_parts(), 2000U);
  EXPECT_EQ(r.found(), 0U);
}

TEST(order_check, forgets_pieces_of_a_stream_that_stays_and_queued_talks_but_the_last) {
  rig r;
  std::vector<order_check::mark_ref> talks;
  for (std::uint64_t i = 0; i < 5000; ++i) {
    r.check.host_waited(r.write(1, i * 64, 32));
    talks.push_back(r.check.hold(stream(2)));
  }
  EXPECT_LT(r.check.pieces(), 1100U);
  EXPECT_LT(r.check.clock_parts(), 100U);
  for (const auto& talk : talks) r.check.open_gate(talk);
}

TEST(order_check, a_whole_is_one_piece_again_after_it_was_touched_in_chunks) {
  rig r;
  for (std::uint64_t i = 0; i < 100; ++i) r.write(1, i * 8, 8);
  EXPECT_EQ(r.check.pieces(), 100U);
  r.write(1, 0, 800);
  EXPECT_EQ(r.check.pieces(), 1U);
}

/// A random program, and what brute force says of it: operations are nodes, what orders them is an edge, and two that
/// conflict are unordered if neither can be reached from the other.
class oracle {
 public:
  static constexpr std::size_t most = 128;

  struct node {
    std::bitset<most> after;  // everything that comes before it
    bool is_access = false, writes = false;
    std::uint64_t begin = 0, end = 0;
  };

  std::size_t add() {
    nodes_.emplace_back();
    return nodes_.size() - 1;
  }
  void edge(std::size_t from, std::size_t to) { edges_.emplace_back(from, to); }
  [[nodiscard]] node& at(std::size_t i) { return nodes_[i]; }
  [[nodiscard]] std::size_t size() const { return nodes_.size(); }

  void close() {
    for (bool changed = true; changed;) {
      changed = false;
      for (const auto& [from, to] : edges_) {
        std::bitset<most> more = nodes_[to].after | nodes_[from].after;
        more.set(from);
        changed = changed || more != nodes_[to].after;
        nodes_[to].after = more;
      }
    }
  }
  [[nodiscard]] bool race(std::size_t a, std::size_t b) const {
    const node& x = nodes_[a];
    const node& y = nodes_[b];
    return a != b && x.is_access && y.is_access && (x.writes || y.writes) && x.begin < y.end && y.begin < x.end &&
           !x.after.test(b) && !y.after.test(a);
  }
  [[nodiscard]] bool covers(std::size_t a, std::uint64_t byte) const {
    return nodes_[a].begin <= byte && byte < nodes_[a].end;
  }

 private:
  std::vector<node> nodes_;
  std::vector<std::pair<std::size_t, std::size_t>> edges_;
};

TEST(order_check, agrees_with_brute_force_on_random_programs) {
  int with = 0, without = 0;
  for (std::uint32_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random{seed};
    const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
    order_check check;
    oracle truth;
    const std::size_t streams = 2 + below(4);
    const std::uint64_t space = 8 + below(24);
    const std::size_t careless = 1 + below(6);  // how seldom the program orders anything
    struct event {
      order_check::mark_ref mark;
      std::size_t node;
    };
    struct gate : event {
      bool open = false;
    };
    constexpr std::size_t none = oracle::most;
    std::vector<event> events;
    std::vector<event> accesses;
    // Half of the programs order nearly all of what they do, by the events of the operations themselves.
    const bool careful = below(2) == 0;
    const std::size_t slips = 20 + below(80);
    std::vector<gate> gates;
    std::vector<std::vector<std::size_t>> pending(streams);  // what the next operation of a stream comes after
    std::vector<std::size_t> last(streams, none);
    std::size_t host = truth.add();
    // Whoever waits for an event on the host waits for what comes before it: only what no closed gate keeps back ends.
    const auto may_have_ended = [&](std::size_t of) {
      truth.close();
      return std::none_of(gates.begin(), gates.end(),
                          [&](const gate& g) { return !g.open && (truth.at(of).after.test(g.node) || of == g.node); });
    };
    const auto op_node = [&](std::size_t s) {
      const std::size_t made = truth.add();
      truth.edge(host, made);
      if (last[s] != none) truth.edge(last[s], made);
      for (const std::size_t from : pending[s]) truth.edge(from, made);
      pending[s].clear();
      return last[s] = made;
    };
    const auto host_sees = [&](std::size_t node) {
      const std::size_t made = truth.add();
      truth.edge(host, made);
      truth.edge(node, made);
      host = made;
    };
    const auto open = [&](gate& g) {
      truth.edge(host, g.node);
      check.open_gate(g.mark);
      g.open = true;
    };
    const std::size_t length = 10 + below(60);
    for (std::size_t step = 0; step < length; ++step) {
      const std::size_t s = below(streams);
      const auto handle = stream(static_cast<int>(s + 1));
      const std::size_t what = below(5 + careless * 3);
      if (what == 0 && !events.empty()) {
        const event& e = events[below(events.size())];
        check.wait(handle, e.mark);
        pending[s].push_back(e.node);
      } else if (what == 1 && !events.empty()) {
        const event& e = events[below(events.size())];
        if (below(2) == 0 && may_have_ended(e.node)) {
          check.host_waited(e.mark);
          host_sees(e.node);
        }
      } else if (what == 2) {
        const std::size_t n = op_node(s);
        events.push_back({check.recorded(handle), n});
      } else if (what == 3 && below(3) == 0 && last[s] != none) {
        const std::size_t n = op_node(s);
        if (may_have_ended(n)) {
          check.stream_synchronized(handle);
          host_sees(n);
        }
      } else if (what == 4 && below(2) == 0) {
        const auto closed = std::find_if(gates.begin(), gates.end(), [](const gate& g) { return !g.open; });
        if (closed != gates.end()) {
          // what holds its own stream opens when all that is before it has ended
          if (may_have_ended(host)) open(*closed);
        } else {
          gate made;
          made.node = truth.add();
          if (below(2) == 0) {
            made.mark = check.create_gate();
            check.wait(handle, made.mark);
          } else {
            made.mark = check.hold(handle);
          }
          pending[s].push_back(made.node);
          gates.push_back(made);
        }
      } else {
        oracle::node plan;
        plan.is_access = true;
        plan.writes = below(2) == 0;
        plan.begin = below(space);
        plan.end = plan.begin + 1 + below(space);
        for (const event& a : accesses) {
          const oracle::node& other = truth.at(a.node);
          if (!careful || !(plan.writes || other.writes) || below(slips) == 0) continue;
          check.wait(handle, a.mark);
          pending[s].push_back(a.node);
        }
        const std::size_t n = op_node(s);
        truth.at(n) = plan;
        const oracle::node& node = truth.at(n);
        const order_access touched = bytes_at(node.begin, node.end - node.begin, node.writes);
        const auto mark = check.submitted(handle, named(n), {&touched, 1});
        accesses.push_back({mark, n});
        if (below(3) == 0) events.push_back({mark, n});
      }
      if (truth.size() > oracle::most - 8) break;
    }
    for (gate& g : gates) {
      if (!g.open) open(g);
    }
    truth.close();

    std::vector<std::pair<std::size_t, std::size_t>> found;
    for (const weft::order_violation& v : check.violations()) {
      const auto node_of = [](const weft::unordered_operation& op) {
        return static_cast<std::size_t>(std::stoul(op.what.substr(std::string{"fill of 8 B on gpu"}.size())));
      };
      found.emplace_back(node_of(v.first), node_of(v.second));
      ASSERT_TRUE(truth.race(found.back().first, found.back().second)) << v.what;
    }
    for (std::uint64_t byte = 0; byte < 2 * space; ++byte) {
      bool expected = false;
      for (std::size_t a = 0; a < truth.size() && !expected; ++a) {
        for (std::size_t b = 0; b < a && !expected; ++b) {
          expected = truth.covers(a, byte) && truth.covers(b, byte) && truth.race(a, b);
        }
      }
      const bool reported = std::any_of(found.begin(), found.end(), [&](const auto& pair) {
        return truth.covers(pair.first, byte) && truth.covers(pair.second, byte);
      });
      ASSERT_EQ(reported, expected) << "byte " << byte;
    }
    ++(found.empty() ? without : with);
  }
  EXPECT_GT(with, 200);
  EXPECT_GT(without, 200);
}

TEST(order_check, takes_all_that_was_submitted_as_past_once_a_wait_for_a_value_has_ended) {
  rig r;
  const auto waits = r.check.hold(stream(2));
  r.read(2, 0, 100);
  r.write(1, 0, 100);
  EXPECT_EQ(r.found(), 0U) << "the value may come from behind the write";
  r.check.open_gate_after_all(waits);
  EXPECT_EQ(r.found(), 0U);
  r.write(3, 0, 100);
  EXPECT_EQ(r.found(), 2U) << "what comes after that is ordered with neither";
}

}  // namespace order_check_test
