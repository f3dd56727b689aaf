// SPDX-License-Identifier: Apache-2.0
#include "conformance/case_tools.hpp"
#include "weft/memory/fill.hpp"
#include "weft/runtime/device_scope.hpp"
#include "weft/runtime/task.hpp"

#include <array>
#include <atomic>
#include <exception>
#include <stdexcept>
#include <thread>

namespace weft::conformance {
namespace {

using byte_buffer = buffer<std::uint8_t>;

[[noreturn]] void fail_on_purpose() { throw std::runtime_error("the thread snapped"); }

verdict an_event_that_was_never_recorded_is_complete(context& c) {
  const event never;
  require(!never.is_recorded(), "a default-made event claims to be recorded");
  require(never.ready(), "a default-made event is not ready");
  never.wait();
  require(never.wait_for(soon) == wait_outcome::ok, "a timed wait for it");
  require(!never.failure(), "it failed");
  const stream order{c.m()[0]};
  order.wait(never);
  const event after = order.record();
  require(after.is_recorded(), "a recorded event does not claim to be one");
  after.wait();
  return holds();
}

verdict work_of_a_stream_keeps_its_order(context& c) {
  const byte_buffer memory{c.m()[0], 100003};
  const stream order{c.m()[0]};
  std::vector<std::vector<std::uint8_t>> seen(50, std::vector<std::uint8_t>(memory.size()));
  std::vector<std::vector<std::uint8_t>> made;
  for (std::size_t i = 0; i < seen.size(); ++i) made.push_back(pattern(memory.size(), i));
  for (std::size_t i = 0; i < seen.size(); ++i) {
    copy(order, memory, made[i]);
    copy(order, seen[i], memory);
  }
  order.synchronize();
  for (std::size_t i = 0; i < seen.size(); ++i) require_same(seen[i], made[i], "round " + std::to_string(i));
  require(order.idle(), "a stream is not idle after synchronize");
  return holds();
}

verdict an_event_of_one_device_holds_another(context& c) {
  const stream first{c.m()[0]};
  const stream second{c.m()[1]};
  const stream bystander{c.m()[1]};
  const auto data = pattern(70001, 1);
  const byte_buffer src{c.m()[0], data.size()};
  const byte_buffer dst{c.m()[1], data.size()};
  gate closed{c.m(), first};
  copy(first, src, data);
  second.wait(first.record());  // the host goes on
  const event moved = copy(second, dst, src);
  const byte_buffer aside{c.m()[1], 100};
  fill(bystander, aside, std::uint8_t{7}).wait();
  require(!moved.ready(), "work overtook the event it waits for");
  require(moved.wait_for(soon) == wait_outcome::timed_out, "a wait for held work did not time out");
  closed.open();
  require(moved.wait_for(long_enough) == wait_outcome::ok, "work did not go on after its event");
  require_same(contents(dst), data, "data across devices");
  return holds();
}

verdict submitting_never_waits(context& c) {
  const stream held{c.m()[0]};
  const byte_buffer memory{c.m()[0], 64};
  gate closed{c.m(), held};
  event last;
  for (int i = 0; i < 1000; ++i) last = fill(held, memory, static_cast<std::uint8_t>(i));
  require(!last.ready(), "work of a held stream is done");
  require(!held.idle(), "a held stream is idle");
  closed.open();
  last.wait();
  require_equal(contents(memory)[63], static_cast<std::uint8_t>(999), "the last of a thousand fills");
  return holds();
}

verdict a_bounded_wait_ends(context& c) {
  const stream held{c.m()[0]};
  gate closed{c.m(), held};
  const event late = held.record();
  require(late.wait_for(std::chrono::nanoseconds{0}) == wait_outcome::timed_out, "a wait of no time");
  require(late.wait_for(soon) == wait_outcome::timed_out, "a short wait");
  require(held.synchronize_for(soon) == wait_outcome::timed_out, "a short wait for the stream");
  require(c.m()[0].synchronize_for(soon) == wait_outcome::timed_out, "a short wait for the device");
  require(c.m().synchronize_for(soon) == wait_outcome::timed_out, "a short wait for the machine");
  std::stop_source stop;
  stop.request_stop();
  require(late.wait(stop.get_token()) == wait_outcome::cancelled, "a wait that was stopped before");
  require(!late.ready(), "waiting ended the work");
  closed.open();
  require(late.wait_for(long_enough) == wait_outcome::ok, "the wait after the gate");
  require(late.wait(stop.get_token()) == wait_outcome::ok, "a stopped wait for what is done");
  require(c.m().synchronize_for(long_enough) == wait_outcome::ok, "the machine after the gate");
  return holds();
}

verdict elapsed_is_the_time_between_ends(context& c) {
  const stream order{c.m()[0]};
  const byte_buffer memory{c.m()[0], 1U << 20};
  const auto data = pattern(memory.size(), 1);
  event begin, middle, end;
  // A driver that does not answer in time when it is asked what its clock shows leaves the time at which somebody
  // looked.
  for (int round = 0; round == 0 || (round < 20 && elapsed(begin, end).count() <= 0); ++round) {
    begin = order.record();
    middle = copy(order, memory, data);
    end = copy(order, memory, data);
    end.wait();
    require_time(c.m());
  }
  require(elapsed(begin, end).count() > 0, "no time between the ends of two operations");
  require_equal(elapsed(begin, middle).count() + elapsed(middle, end).count(), elapsed(begin, end).count(),
                "the parts do not add up");
  require_equal(elapsed(end, end).count(), 0, "time from an event to itself");
  return holds();
}

verdict a_thread_at_a_device_works_with_all_of_them(context& c) {
  const auto data = pattern(1000, 9);
  const auto works_on_all = [&] {
    for (int d = 0; d < c.m().device_count(); ++d) {
      const stream order{c.m()[d]};
      const byte_buffer memory{c.m()[d], data.size()};
      copy(order, memory, data).wait();
      require(contents(memory) == data, "the bytes of device " + std::to_string(d));
    }
  };
  const device_scope first{c.m()[0]};
  works_on_all();
  {
    const device_scope last{c.m()[c.m().device_count() - 1]};
    works_on_all();
    const device_scope again{c.m()[0]};
    works_on_all();
  }
  works_on_all();
  return holds();
}

verdict elapsed_is_refused_where_it_means_nothing(context& c) {
  const stream order{c.m()[0]};
  const event done = order.record();
  done.wait();
  const event never;
  expect_error({errc::invalid_argument}, "elapsed from what was never recorded",
               [&] { static_cast<void>(elapsed(never, done)); });
  expect_error({errc::invalid_argument}, "elapsed to what was never recorded",
               [&] { static_cast<void>(elapsed(done, never)); });
  if (c.m().device_count() > 1) {
    const stream other{c.m()[1]};
    const event there = other.record();
    there.wait();
    expect_error({errc::wrong_device}, "elapsed across devices", [&] { static_cast<void>(elapsed(done, there)); });
  }
  gate closed{c.m(), order};
  const event late = order.record();
  expect_error({errc::not_ready}, "elapsed to what has not ended", [&] { static_cast<void>(elapsed(done, late)); });
  closed.open();
  late.wait();
  return holds();
}

verdict a_failure_is_told_with_its_root(context& c) {
  const stream order{c.m()[0]};
  const event failed = order.call(fail_on_purpose);
  for (const char* const time : {"the first time", "again"}) {
    const std::string root = expect_error({errc::kernel_failed}, "a call that throws", [&] { failed.wait(); });
    require(root.find("the thread snapped") != std::string::npos,
            std::string{"the cause is not told "} + time + ": " + root);
    require(root.find(to_string(c.m()[0].id())) != std::string::npos,
            std::string{"the device is not named "} + time + ": " + root);
  }
  require(failed.ready(), "a failed event is not ready");
  require(failed.failure().has_value(), "failure() is empty");
  return holds();
}

verdict what_depends_on_a_failure_is_skipped(context& c) {
  const stream order{c.m()[0]};
  const stream elsewhere{c.m()[c.m().device_count() - 1]};
  const auto old = pattern(257, 3);
  const byte_buffer mine = filled(c.m()[0], old);
  const byte_buffer theirs = filled(elsewhere.on(), old);
  event in_stream;
  event dependent;
  event failed;
  {
    gate closed{c.m(), order};
    failed = order.call(fail_on_purpose);
    in_stream = fill(order, mine, std::uint8_t{1});
    elsewhere.wait(failed);
    dependent = fill(elsewhere, theirs, std::uint8_t{1});
    closed.open();
  }
  const std::string root = expect_error({errc::kernel_failed}, "the failed call", [&] { failed.wait(); });
  require(expect_error({errc::kernel_failed}, "later work of the stream", [&] { in_stream.wait(); }) == root,
          "later work of the stream gives another cause");
  require(expect_error({errc::kernel_failed}, "work that waits elsewhere", [&] { dependent.wait(); }) == root,
          "dependent work gives another cause");
  const auto kept = in_stream.failure();
  require(kept && kept->what == root, "failure() gives another cause");
  require_same(contents(mine), old, "memory of skipped work");
  require_same(contents(theirs), old, "memory of skipped dependent work");
  return holds();
}

verdict after_the_report_new_work_runs(context& c) {
  const stream order{c.m()[0]};
  const event failed = order.call(fail_on_purpose);
  expect_error({errc::kernel_failed}, "the failed call", [&] { failed.wait(); });
  const byte_buffer memory{c.m()[0], 257};
  fill(order, memory, std::uint8_t{5}).wait();
  require_equal(contents(memory)[256], std::uint8_t{5}, "work after the report");
  order.synchronize();
  return holds();
}

verdict a_discarded_event_loses_nothing(context& c) {
  const stream order{c.m()[0]};
  const byte_buffer memory{c.m()[0], 257};
  fill(order, memory, std::uint8_t{9});
  order.synchronize();
  require_equal(contents(memory)[0], std::uint8_t{9}, "discarded work");
  const auto told = [&](const std::string& by, const std::function<void()>& synchronize) {
    order.call(fail_on_purpose);
    const std::string what = expect_error({errc::kernel_failed}, by, synchronize);
    require(what.find("the thread snapped") != std::string::npos, by + " gives another cause: " + what);
    synchronize();  // told once
  };
  told("synchronizing the stream", [&] { order.synchronize(); });
  told("synchronizing the device", [&] { c.m()[0].synchronize(); });
  told("synchronizing the machine", [&] { c.m().synchronize(); });
  return holds();
}

verdict looking_does_not_report(context& c) {
  const stream order{c.m()[0]};
  const event failed = order.call(fail_on_purpose);
  while (!failed.failure()) {
    if (c.m().clock() == clock_kind::virtual_time) break;  // time passes only while somebody waits
    std::this_thread::yield();
  }
  expect_error({errc::kernel_failed}, "synchronizing after a look", [&] { order.synchronize(); });
  return holds();
}

verdict synchronizing_one_device_waits_for_that_one(context& c) {
  const stream held{c.m()[1]};
  gate closed{c.m(), held};
  const byte_buffer memory{c.m()[0], 257};
  const stream order{c.m()[0]};
  const event done = fill(order, memory, std::uint8_t{4});
  c.m()[0].synchronize();
  require(done.ready(), "work of a synchronized device is pending");
  require(c.m()[1].synchronize_for(soon) == wait_outcome::timed_out, "the held device is idle");
  closed.open();
  c.m().synchronize();
  require(held.idle(), "the machine is synchronized and a stream is not idle");
  return holds();
}

verdict wait_all_waits_for_all(context& c) {
  const stream good{c.m()[0]};
  const stream bad{c.m()[0]};
  const byte_buffer memory{c.m()[0], 1U << 20};
  const event failed = bad.call(fail_on_purpose);
  const event fine = fill(good, memory, std::uint8_t{3});
  const std::array events{event{}, failed, fine};
  const std::string what = expect_error({errc::kernel_failed}, "waiting for all", [&] { wait_all(events); });
  require(what.find("the thread snapped") != std::string::npos, "another cause: " + what);
  require(fine.ready(), "wait_all did not wait for all");
  const std::array two{fine, event{}};
  wait_all(two);
  return holds();
}

task<int> through_two_devices(const machine& m, const byte_buffer& a, const byte_buffer& b,
                              std::vector<std::uint8_t>& out, const std::vector<std::uint8_t>& in) {
  const stream first{m[0]};
  const stream second{m[m.device_count() - 1]};
  co_await copy(first, a, in);
  co_await copy(second, b, a);
  co_await copy(second, out, b);
  co_return static_cast<int>(out.size());
}

task<> failing(const machine& m) {
  const stream order{m[0]};
  co_await order.call(fail_on_purpose);
}

verdict events_can_be_awaited(context& c) {
  const auto data = pattern(70001, 5);
  const byte_buffer a{c.m()[0], data.size()};
  const byte_buffer b{c.m()[c.m().device_count() - 1], data.size()};
  std::vector<std::uint8_t> out(data.size());
  require_equal(sync_wait(through_two_devices(c.m(), a, b, out, data)), static_cast<int>(data.size()),
                "the task's value");
  require_same(out, data, "data through a task");
  const std::string what = expect_error({errc::kernel_failed}, "a task that fails", [&] { sync_wait(failing(c.m())); });
  require(what.find("the thread snapped") != std::string::npos, "another cause: " + what);
  return holds();
}

verdict a_callback_comes_once_and_after(context& c) {
  const stream order{c.m()[0]};
  auto calls = std::make_shared<std::atomic<int>>(0);
  auto worked = std::make_shared<std::atomic<bool>>(false);
  auto early = std::make_shared<std::atomic<bool>>(false);
  event done;
  {
    gate closed{c.m(), order};
    done = order.call([worked] { worked->store(true); });
    done.on_done([calls, worked, early] {
      if (!worked->load()) early->store(true);
      calls->fetch_add(1);
      calls->notify_all();
    });
    require_equal(calls->load(), 0, "callbacks before the end");
    closed.open();
  }
  done.wait();
  c.m().synchronize();
  const auto heard = [&](int wanted) {
    const auto limit = std::chrono::steady_clock::now() + long_enough;
    while (calls->load() < wanted && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
    return calls->load();
  };
  require_equal(heard(1), 1, "callbacks after the end");
  require(!early->load(), "the callback came before the work");
  done.on_done([calls] { calls->fetch_add(1); });
  require_equal(heard(2), 2, "callbacks of an event that had ended");
  return holds();
}

verdict an_adopted_stream_is_the_same_stream(context& c) {
  const stream owner{c.m()[0]};
  const byte_buffer memory{c.m()[0], 257};
  {
    const stream other = stream::adopt(c.m()[0], owner.native());
    gate closed{c.m(), owner};
    fill(owner, memory, std::uint8_t{1});
    const event second = fill(other, memory, std::uint8_t{2});
    require(!second.ready(), "work of the adopted stream overtook that of its owner");
    closed.open();
    second.wait();
  }
  require_equal(contents(memory)[128], std::uint8_t{2}, "the later of two fills");
  fill(owner, memory, std::uint8_t{3}).wait();  // ending the adoption ended nothing
  return holds();
}

verdict a_stream_that_goes_waits_for_its_work(context& c) {
  const byte_buffer memory{c.m()[0], 1U << 20};
  event last;
  {
    const stream brief{c.m()[0]};
    for (int i = 0; i < 20; ++i) last = fill(brief, memory, static_cast<std::uint8_t>(i));
  }
  require(last.ready(), "a stream went before its work");
  require_equal(contents(memory)[1000], std::uint8_t{19}, "the last fill");
  return holds();
}

verdict an_event_of_another_machine_is_refused(context& c) {
  const machine other = c.open();
  const stream there{other[0]};
  const stream here{c.m()[0]};
  const event foreign = there.record();
  expect_error({errc::wrong_device}, "waiting for an event of another machine", [&] { here.wait(foreign); });
  return holds();
}

verdict streams_have_priorities(context& c) {
  const stream low{c.m()[0], {.priority = -1}};
  const stream high{c.m()[0], {.priority = 1}};
  const byte_buffer memory{c.m()[0], 257};
  fill(low, memory, std::uint8_t{1}).wait();
  fill(high, memory, std::uint8_t{2}).wait();
  require_equal(contents(memory)[0], std::uint8_t{2}, "work of a stream with a priority");
  return holds();
}

// ---- words that streams write and wait for --------------------------------------------------------------------------

/// What a machine does not offer is no shortfall, but for the host's, which has all of it.
template <class F>
event offered(context& c, F&& submit) {
  try {
    return submit();
  } catch (const error_exception& e) {
    if (e.code() == errc::unsupported && c.m()[0].kind() != backend_kind::host) not_here(e.cause().what);
    throw;
  }
}

/// Where a case breaks off, what still waits for a value ends with its machine.
class end_of_waits {
 public:
  explicit end_of_waits(const machine& m) : machine_(m) {}
  end_of_waits(const end_of_waits&) = delete;
  end_of_waits& operator=(const end_of_waits&) = delete;
  ~end_of_waits() {
    if (std::uncaught_exceptions() > before_) machine_.close();
  }

 private:
  machine machine_;
  int before_ = std::uncaught_exceptions();
};

template <class Word>
void require_order_by_word(context& c) {
  const stream writer{c.m()[0]};
  const stream reader{c.m()[0]};
  const buffer<Word> word{c.m()[0], 3};
  Word* const at = word.data() + 2;
  const auto data = pattern(70001, 6);
  const byte_buffer memory{c.m()[0], data.size()};
  const byte_buffer seen{c.m()[0], data.size()};
  const end_of_waits end{c.m()};
  offered(c, [&] { return writer.write_value(at, Word{4}); }).wait();
  gate closed{c.m(), writer};
  const event reached = reader.wait_value(at, Word{5}, word_comparison::equal);
  const event done = copy(reader, seen, memory);
  copy(writer, memory, data);
  const event written = writer.write_value(at, Word{5});
  require(reached.wait_for(soon) == wait_outcome::timed_out, "a wait ended before the value was written");
  require(!done.ready() && !written.ready(), "work behind a wait for a value is done");
  closed.open();
  written.wait();
  require(done.wait_for(long_enough) == wait_outcome::ok, "work did not go on after the value");
  require(reached.ready(), "work went on before the wait had ended");
  require_same(contents(seen), data, "what was written before the value");
  std::vector<Word> left(3);
  copy(left, word);
  require(left[2] == Word{5}, "the word has another value than the last that was written");
}

verdict a_value_comes_after_the_work_before_it(context& c) {
  require_order_by_word<std::uint32_t>(c);
  return holds();
}

verdict a_long_value_comes_after_the_work_before_it(context& c) {
  require_order_by_word<std::uint64_t>(c);
  return holds();
}

verdict a_wait_holds_until_the_host_stores_the_value(context& c) {
  const stream order{c.m()[0]};
  const pinned_buffer<std::uint32_t> word{c.m()[0], 1};
  std::atomic_ref<std::uint32_t> mine{word.host()[0]};
  mine.store(1);
  const byte_buffer memory{c.m()[0], 257};
  fill(order, memory, std::uint8_t{1}).wait();
  const end_of_waits end{c.m()};
  const event reached = offered(c, [&] { return order.wait_value(word.data(), 2); });
  const event done = fill(order, memory, std::uint8_t{2});
  require(done.wait_for(soon) == wait_outcome::timed_out,
          "work behind a wait is done before the host stored the value");
  require(order.synchronize_for(soon) == wait_outcome::timed_out, "a stream that waits for a value is idle");
  mine.store(2);
  require(done.wait_for(long_enough) == wait_outcome::ok, "work did not go on after the host's store");
  require(reached.ready(), "work went on before the wait had ended");
  require_equal(contents(memory)[256], std::uint8_t{2}, "work behind the wait");
  order.write_value(word.data(), 7).wait();
  require_equal(mine.load(), std::uint32_t{7}, "what the host sees of a value that a stream wrote");
  return holds();
}

struct comparison_case {
  word_comparison how;
  std::uint32_t value, too_early, enough;
};

void require_comparisons(context& c, std::initializer_list<comparison_case> all) {
  const stream writer{c.m()[0]};
  const stream reader{c.m()[0]};
  const buffer<std::uint32_t> word{c.m()[0], 1};
  const end_of_waits end{c.m()};
  for (const comparison_case& one : all) {
    const std::string name = std::string{to_string(one.how)} + " with " + std::to_string(one.value);
    offered(c, [&] { return writer.write_value(word.data(), one.too_early); }).wait();
    const event reached = offered(c, [&] { return reader.wait_value(word.data(), one.value, one.how); });
    require(reached.wait_for(soon) == wait_outcome::timed_out,
            name + " holds already for " + std::to_string(one.too_early));
    writer.write_value(word.data(), one.enough).wait();
    require(reached.wait_for(long_enough) == wait_outcome::ok,
            name + " does not hold for " + std::to_string(one.enough));
    require(reader.wait_value(word.data(), one.value, one.how).wait_for(long_enough) == wait_outcome::ok,
            name + " does not hold at once where the value is there");
  }
}

verdict values_compare_as_they_say(context& c) {
  require_comparisons(c, {{word_comparison::equal, 5, 6, 5}, {word_comparison::bits_any, 0b110, 0b1001, 0b1010}});
  return holds();
}

verdict greater_equal_wraps_around(context& c) {
  require_comparisons(c, {{word_comparison::greater_equal, 5, 4, 6},
                          {word_comparison::greater_equal, 3, 0xfffffff0U, 7},
                          {word_comparison::greater_equal, 0xfffffff0U, 0x7ffffff0U, 2}});
  return holds();
}

verdict values_compare_by_nor(context& c) {
  require_comparisons(c, {{word_comparison::nor, 0xfffffff0U, 0xfU, 0xeU}, {word_comparison::nor, 0, ~0U, 1}});
  return holds();
}

verdict a_word_that_is_none_is_refused(context& c) {
  const stream order{c.m()[0]};
  const byte_buffer odd{c.m()[0], 14};
  const auto at = [&](std::size_t offset) { return reinterpret_cast<std::uint32_t*>(odd.data() + offset); };
  const auto long_at = [&](std::size_t offset) { return reinterpret_cast<std::uint64_t*>(odd.data() + offset); };
  std::uint32_t mine = 0;
  using refusal = std::initializer_list<errc>;
  const auto both = [&](refusal codes, const std::string& doing, auto* word) {
    expect_error(codes, "a write " + doing, [&] { order.write_value(word, 1); });
    expect_error(codes, "a wait " + doing, [&] { order.wait_value(word, 1); });
  };
  both({errc::invalid_argument}, "at an odd address", at(1));
  both({errc::invalid_argument}, "of 8 bytes at a multiple of 4", long_at(4));
  both({errc::invalid_argument}, "at null", static_cast<std::uint32_t*>(nullptr));
  both({errc::out_of_range}, "that passes the end", at(12));
  both({errc::not_found}, "in memory that the machine does not know", &mine);
  expect_error({errc::invalid_argument}, "a wait for any of no bits",
               [&] { order.wait_value(at(0), 0, word_comparison::bits_any); });
  expect_error({errc::invalid_argument}, "a wait for a bit that neither has, of which the value has all",
               [&] { order.wait_value(at(0), ~0U, word_comparison::nor); });
  order.synchronize();
  return holds();
}

verdict peers_wait_for_each_others_words(context& c) {
  const device_pair pair = offered_pair(c.m());
  const peer_access lease{c.m(), pair.from, pair.to};
  const stream there{c.m()[pair.from]};
  const stream here{c.m()[pair.to]};
  const buffer<std::uint32_t> words{c.m()[pair.to], 2};
  fill(here, words, 0U).wait();
  const end_of_waits end{c.m()};
  const event ping = offered(c, [&] { return here.wait_value(words.data(), 1, word_comparison::equal); });
  const event pong = here.write_value(words.data() + 1, 1);
  const event answered = there.wait_value(words.data() + 1, 1, word_comparison::equal);
  require(answered.wait_for(soon) == wait_outcome::timed_out, "an answer came before the question");
  const stream asking{c.m()[pair.from]};
  asking.write_value(words.data(), 1).wait();
  require(pong.wait_for(long_enough) == wait_outcome::ok, "the question was not seen");
  require(ping.ready(), "it was answered before it had been seen");
  require(answered.wait_for(long_enough) == wait_outcome::ok, "the answer did not come");
  return holds();
}

verdict a_word_without_access_is_an_illegal_access(context& c) {
  const device_pair pair = offered_pair(c.m());
  {
    const peer_access asked{c.m(), pair.from, pair.to};
  }
  const stream there{c.m()[pair.from]};
  const buffer<std::uint32_t> word{c.m()[pair.to], 1};
  const event written = offered(c, [&] { return there.write_value(word.data(), 1); });
  expect_error({errc::illegal_access}, "a write to a word of a device without access to it", [&] { written.wait(); });
  require(c.m()[pair.from].is_lost(), "the device is not lost, as it is by a kernel");
  return holds();
}

verdict a_wait_for_a_value_behind_a_failure_is_skipped(context& c) {
  const stream order{c.m()[0]};
  const buffer<std::uint32_t> word{c.m()[0], 1};
  fill(order, word, 0U).wait();
  const end_of_waits end{c.m()};
  order.call(fail_on_purpose);
  const event skipped = offered(c, [&] { return order.wait_value(word.data(), 1, word_comparison::equal); });
  expect_error({errc::kernel_failed}, "a wait for a value that never comes, behind a failure",
               [&] { static_cast<void>(skipped.wait_for(long_enough)); });
  return holds();
}

verdict closing_ends_waits_for_values_that_never_come(context& c) {
  machine brief = c.open();
  const stream held{brief[0]};
  const stream behind{brief[brief.device_count() - 1]};
  const buffer<std::uint32_t> word{brief[0], 1};
  const byte_buffer memory{brief[0], 257};
  fill(held, memory, std::uint8_t{1}).wait();
  fill(held, word, 0U).wait();
  const end_of_waits end{brief};
  std::vector<event> pending;
  pending.push_back(offered(c, [&] { return held.wait_value(word.data(), 1, word_comparison::equal); }));
  pending.push_back(fill(held, memory, std::uint8_t{2}));
  behind.wait(pending.front());
  pending.push_back(behind.record());
  require(pending.back().wait_for(soon) == wait_outcome::timed_out, "work behind a value that never came is done");
  brief.close();
  for (const event& e : pending) {
    require(e.ready(), "closing left work pending");
    expect_error({errc::cancelled, errc::machine_closed}, "work that was pending", [&] { e.wait(); });
  }
  return holds();
}

}  // namespace

void add_streams_events(case_list& list) {
  constexpr std::string_view group = "streams_events";
  constexpr auto pair = feature::two_devices;
  list.insert(
      list.end(),
      {{"an event that was never recorded counts as complete", group, an_event_that_was_never_recorded_is_complete},
       {"work of one stream runs in the order of submission", group, work_of_a_stream_keeps_its_order},
       {"an event of one device holds a stream of another, and nothing else", group,
        an_event_of_one_device_holds_another, pair},
       {"submitting never waits for earlier work", group, submitting_never_waits},
       {"a thread at a device works with that one and with all others", group,
        a_thread_at_a_device_works_with_all_of_them},
       {"every wait can be bounded or stopped, without ending the work", group, a_bounded_wait_ends},
       {"elapsed time is that between the ends of two operations", group, elapsed_is_the_time_between_ends,
        feature::timing},
       {"elapsed time is refused across devices, for what was never recorded and for what has not ended", group,
        elapsed_is_refused_where_it_means_nothing, feature::timing},
       {"a failed operation tells its cause", group, a_failure_is_told_with_its_root},
       {"what depends on a failure is skipped, on any device, with the same cause", group,
        what_depends_on_a_failure_is_skipped},
       {"once a failure was reported, new work runs", group, after_the_report_new_work_runs},
       {"a discarded event loses neither its work nor its error, which is told once", group,
        a_discarded_event_loses_nothing},
       {"looking at a failure does not report it", group, looking_does_not_report},
       {"synchronizing one device waits for that one, synchronizing the machine for all", group,
        synchronizing_one_device_waits_for_that_one, pair},
       {"waiting for several events waits for all, and tells the first failure", group, wait_all_waits_for_all},
       {"events can be awaited in a task, failures too", group, events_can_be_awaited},
       {"a callback comes once, after the work", group, a_callback_comes_once_and_after},
       {"an adopted stream is the same stream, and its owner keeps it", group, an_adopted_stream_is_the_same_stream},
       {"a stream that goes out of scope waits for its work", group, a_stream_that_goes_waits_for_its_work},
       {"an event of another machine is refused", group, an_event_of_another_machine_is_refused},
       {"streams have priorities", group, streams_have_priorities, feature::priorities},
       {"a value that a stream writes comes after the work before it, and lets go on who waits for it", group,
        a_value_comes_after_the_work_before_it},
       {"words of eight bytes are written and waited for like those of four", group,
        a_long_value_comes_after_the_work_before_it},
       {"a wait for a value holds what is behind it until the host stores the value", group,
        a_wait_holds_until_the_host_stores_the_value, feature::pinned_memory},
       {"values compare as they say", group, values_compare_as_they_say},
       {"greater_equal lets counters wrap around", group, greater_equal_wraps_around},
       {"values compare by nor", group, values_compare_by_nor},
       {"a word that is misaligned, passes the end, or never compares is refused", group,
        a_word_that_is_none_is_refused},
       {"devices with access wait for each other's words", group, peers_wait_for_each_others_words,
        feature::peer_access},
       {"a word of a device without access fails as a kernel's argument does", group,
        a_word_without_access_is_an_illegal_access, feature::peer_access},
       {"a wait for a value behind a failure in its stream is skipped", group,
        a_wait_for_a_value_behind_a_failure_is_skipped},
       {"closing a machine ends waits for values that never come", group,
        closing_ends_waits_for_values_that_never_come}});
}

}  // namespace weft::conformance
