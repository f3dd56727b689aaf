// SPDX-License-Identifier: Apache-2.0
#include "two_cores.hpp"

#include "paired.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <pthread.h>
#include <sched.h>

namespace weft::bench {

namespace {

constexpr double longest_wait = 20;  // seconds
// of two lines: two threads of one core take 60 to 80 ns, two cores of one chip 200 and more
constexpr double one_core_ns = 130;
constexpr double disturbed_ns = 900;  // somebody else ran meanwhile

bool set_priority(bool raised) {
  sched_param parameter{};
  parameter.sched_priority = raised ? 1 : 0;
  return pthread_setschedparam(pthread_self(), raised ? SCHED_FIFO : SCHED_OTHER, &parameter) == 0;
}

}  // namespace

void patience::look_at_the_clock() {
  if (since_ == 0) {
    since_ = now();
  } else if (now() - since_ > longest_wait) {
    std::fprintf(stderr, "waited %.0f s in vain: %s\n", longest_wait, what_);
    std::_Exit(1);
  }
}

void meeting::meet(side who) {
  auto& mine = here_[who == side::first ? 0 : 1].value;
  const auto& other = here_[who == side::first ? 1 : 0].value;
  const std::uint32_t turn = mine.load(std::memory_order_relaxed) + 1;
  mine.store(turn, std::memory_order_release);  // pairs with acquire below, on the other side
  patience wait{"the other side of a run"};
  while (static_cast<std::int32_t>(other.load(std::memory_order_acquire) - turn) < 0) wait();
}

bounce_time meeting::bounce(side who) {
  bounce_time took;
  took.one_line_ns = bounce_in(who, there_.value, there_.value);
  took.two_lines_ns = bounce_in(who, there_.value, back_.value);
  return took;
}

double meeting::bounce_in(side who, std::atomic<std::uint32_t>& there, std::atomic<std::uint32_t>& back) {
  constexpr int groups = 5;  // the best of them
  constexpr std::uint32_t rounds = 100;
  meet(who);
  if (who == side::first) {
    there.store(0, std::memory_order_relaxed);
    back.store(0, std::memory_order_relaxed);
  }
  meet(who);
  double best = 1e9;
  std::uint32_t turn = 0;
  for (int group = 0; group < groups; ++group) {
    const double start = now();
    for (std::uint32_t i = 0; i < rounds; ++i) {
      patience wait{"a line to bounce"};
      if (who == side::first) {
        there.store(turn + 1, std::memory_order_release);
        while (back.load(std::memory_order_acquire) != turn + 2) wait();
      } else {
        while (there.load(std::memory_order_acquire) != turn + 1) wait();
        back.store(turn + 2, std::memory_order_release);
      }
      turn += 2;
    }
    best = std::min(best, (now() - start) / rounds);
  }
  return best * 1e9;
}

std::string_view to_string(placement where) {
  switch (where) {
    case placement::two_cores:
      return "two cores";
    case placement::one_core:
      return "one core";
    case placement::moved:
      return "moved";
    case placement::disturbed:
      return "disturbed";
  }
  return "";
}

placement reading::where() const {
  if (std::max(before.two_lines_ns, after.two_lines_ns) > disturbed_ns) return placement::disturbed;
  const bool one_before = before.two_lines_ns < one_core_ns;
  const bool one_after = after.two_lines_ns < one_core_ns;
  if (one_before != one_after) return placement::moved;
  return one_before ? placement::one_core : placement::two_cores;
}

cores find_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  cores found;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return found;
  int seen = 0;
  for (std::size_t core = 0; core < CPU_SETSIZE && seen < 2; ++core) {
    if (!CPU_ISSET(core, &allowed)) continue;
    if (seen++ == 0) found.first = core;
    found.second = core;
  }
  return found;
}

void pin_to(std::size_t core) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  if (pthread_setaffinity_np(pthread_self(), sizeof one, &one) != 0) {
    std::fprintf(stderr, "cannot run on core %zu\n", core);
    std::_Exit(1);
  }
}

undisturbed::undisturbed(bool wanted) : raised_(wanted && set_priority(true)) {}
undisturbed::~undisturbed() {
  if (raised_) set_priority(false);
}
bool undisturbed::is_granted() {
  const undisturbed probe{true};
  return probe.raised_;
}

reading run_side(meeting& at, side who, const run_length& length, const side_work& work) {
  const undisturbed here{length.priority};
  reading came_to;
  at.meet(who);
  came_to.before = at.bounce(who);
  work(0, length.warm);
  at.meet(who);
  const double start = now();
  work(length.warm, length.timed);
  at.meet(who);
  came_to.seconds = now() - start;
  came_to.after = at.bounce(who);
  at.meet(who);
  return came_to;
}

pinned::pinned(std::size_t core) {
  CPU_ZERO(&before_);
  pthread_getaffinity_np(pthread_self(), sizeof before_, &before_);
  pin_to(core);
}
pinned::~pinned() { pthread_setaffinity_np(pthread_self(), sizeof before_, &before_); }

second_thread::second_thread(const cores& where)
    : where_(where), thread_([this] {
        pin_to(where_.second);
        serve();
      }) {}

second_thread::~second_thread() {
  {
    const std::lock_guard hold{guard_};
    end_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void second_thread::serve() {
  std::unique_lock hold{guard_};
  for (;;) {
    changed_.wait(hold, [this] { return end_ || job_; });
    if (end_) return;
    job_();
    job_ = nullptr;
    changed_.notify_all();
  }
}

reading second_thread::run(const run_length& length, const side_work& first, const side_work& second) {
  const pinned here{where_.first};
  {
    const std::lock_guard hold{guard_};
    job_ = [&] { static_cast<void>(run_side(at_, side::second, length, second)); };
  }
  changed_.notify_all();
  const reading came_to = run_side(at_, side::first, length, first);
  std::unique_lock hold{guard_};
  changed_.wait(hold, [this] { return !job_; });
  return came_to;
}

}  // namespace weft::bench
