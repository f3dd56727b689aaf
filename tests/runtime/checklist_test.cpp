// SPDX-License-Identifier: Apache-2.0
// Contracts of machines, devices and streams that need a machine or an environment made for them;
// docs/porting/checklist.md says which is where.
#include "support/hang.hpp"
#include "weft/memory/buffer.hpp"
#include "weft/memory/copy.hpp"
#include "weft/memory/fill.hpp"
#include "weft/memory/peer_access.hpp"
#include "weft/runtime/barrier.hpp"
#include "weft/runtime/machine.hpp"
#include "weft/runtime/stream.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <future>
#include <mutex>
#include <optional>
#include <sched.h>
#include <thread>
#include <unistd.h>

namespace checklist_test {

using weft::device_id;
using weft::errc;
using weft::machine;
using weft::machine_options;
using byte_buffer = weft::buffer<std::uint8_t>;

template <class F>
weft::error error_of(F&& f) {
  try {
    f();
  } catch (const weft::error_exception& e) {
    return e.cause();
  }
  weft::error none;
  none.what = "nothing failed";
  none.code = errc::not_ready;
  return none;
}

/// Sets a variable of the environment for as long as it lives.
class environment {
 public:
  environment(const char* name, const char* value) : name_(name) {
    if (const char* const old = std::getenv(name)) before_ = old;
    if (value != nullptr) {
      ::setenv(name, value, 1);
    } else {
      ::unsetenv(name);
    }
  }
  ~environment() {
    if (before_) {
      ::setenv(name_, before_->c_str(), 1);
    } else {
      ::unsetenv(name_);
    }
  }
  environment(const environment&) = delete;
  environment& operator=(const environment&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

machine_options host(std::optional<int> devices = std::nullopt) {
  machine_options options;
  options.backend = "host";
  options.devices = devices;
  return options;
}

// ---- how a machine is put together ----------------------------------------------------------------------------------

TEST(machine_environment, chooses_the_number_of_host_devices) {
  const environment none{"WEFT_TOPOLOGY", nullptr};
  const environment seven{"WEFT_DEVICES", "7"};
  EXPECT_EQ(machine{host()}.device_count(), 7);
  EXPECT_EQ(machine{host(3)}.device_count(), 3) << "what the program says comes first";
}

TEST(machine_environment, chooses_a_topology_by_name) {
  const environment two{"WEFT_TOPOLOGY", "pair_nvlink"};
  const machine m;
  EXPECT_EQ(m.device_count(), 2);
  EXPECT_EQ(m.layout().name, "pair_nvlink");
  EXPECT_TRUE(m.simulated());
}

TEST(machine_environment, a_senseless_value_is_an_error_that_names_the_variable) {
  const environment none{"WEFT_TOPOLOGY", nullptr};
  for (const char* const value : {"banana", "0", "-1", "99999999999999999999", "3 "}) {
    const environment bad{"WEFT_DEVICES", value};
    const weft::error e = error_of([] { const machine m{host()}; });
    EXPECT_EQ(e.code, errc::invalid_argument) << value << ": " << e.what;
    EXPECT_NE(e.what.find("WEFT_DEVICES"), std::string::npos) << e.what;
  }
}

TEST(machine_environment, with_an_unknown_topology_is_not_found_and_guessed) {
  const environment bad{"WEFT_TOPOLOGY", "dgx_h10"};
  const weft::error e = error_of([] { const machine m; });
  EXPECT_EQ(e.code, errc::not_found) << e.what;
  EXPECT_NE(e.what.find("dgx_h100"), std::string::npos) << e.what;
}

TEST(machine_backend, a_required_but_absent_backend_is_an_error_with_the_reason) {
  machine_options options;
  options.backend = "abacus";
  const weft::error unknown = error_of([&] { const machine m{options}; });
  EXPECT_EQ(unknown.code, errc::not_found) << unknown.what;
  EXPECT_NE(unknown.what.find("abacus"), std::string::npos) << unknown.what;
}

TEST(machine_backend, a_preferred_but_absent_backend_is_replaced_and_mentioned) {
  machine_options options;
  options.backend = "abacus";
  options.backend_required = false;
  const machine m{options};
  EXPECT_GT(m.device_count(), 0);
  ASSERT_FALSE(m.notes().empty());
  EXPECT_NE(m.notes().front().find("abacus"), std::string::npos) << m.notes().front();
}

TEST(machine_backend, every_backend_is_available_or_says_why_not) {
  weft::topology layout = *weft::load_topology("pair_nvlink");
  machine_options options;
  options.machine = layout;
  const machine m{options};
  for (const weft::backend_status& b : m.backends()) {
    EXPECT_TRUE(b.available || !b.why.empty()) << b.name;
  }
  EXPECT_EQ(m.device_count(), 2);
}

TEST(machine_layout, a_wrong_layout_is_refused) {
  machine_options options = host();
  options.devices = 10000;
  const weft::error many = error_of([&] { const machine m{options}; });
  EXPECT_TRUE(many.code == errc::invalid_argument || many.code == errc::invalid_topology) << many.what;
  weft::topology layout = *weft::load_topology("pair_nvlink");
  layout.links[0].bytes_per_second = -1;
  machine_options negative;
  negative.machine = layout;
  EXPECT_EQ(error_of([&] { const machine m{negative}; }).code, errc::invalid_topology);
}

// ---- small machines -------------------------------------------------------------------------------------------------

TEST(small_machine, a_machine_of_one_device_copies_and_has_no_peers) {
  const machine m{host(1)};
  EXPECT_EQ(m.device_count(), 1);
  EXPECT_FALSE(m[0].has(weft::capability::peer_to_peer));
  EXPECT_TRUE(weft::enable_all_peers(m).empty());
  EXPECT_TRUE(weft::peer_topology(m).empty());
  EXPECT_TRUE(weft::verify_peers(m).empty());
  weft::measure_peers(m);
  EXPECT_TRUE(m.find_devices({.needs = weft::capability::peer_to_peer}).empty());
  const byte_buffer memory{m[0], 4097};
  weft::fill(memory, std::uint8_t{3});
  std::vector<std::uint8_t> got(4097);
  weft::copy(got, memory);
  EXPECT_EQ(std::count(got.begin(), got.end(), std::uint8_t{3}), 4097);
}

TEST(small_machine, on_one_core_runs_devices_that_wait_for_each_other) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run = [] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<std::size_t>(sched_getcpu()), &one);
    if (sched_setaffinity(0, sizeof(one), &one) != 0) _exit(7);
    const machine m{host(4)};
    const auto leases = weft::enable_all_peers(m);
    weft::device_barrier barrier{m, {device_id{0}, device_id{1}, device_id{2}, device_id{3}}};
    std::vector<weft::stream> streams;
    for (const weft::device& d : m.devices()) streams.emplace_back(d);
    std::vector<byte_buffer> ring;
    for (const weft::device& d : m.devices()) ring.emplace_back(d, 100003);
    for (int round = 0; round < 20; ++round) {
      for (std::size_t i = 0; i < 4; ++i) {
        weft::fill(streams[i], ring[i], static_cast<std::uint8_t>(round * 4) + static_cast<std::uint8_t>(i));
        barrier.arrive_and_order(streams[i]);
      }
      for (std::size_t i = 0; i < 4; ++i) barrier.arrive_and_order(streams[i]);
    }
    if (m.synchronize_for(samples::only_a_hang) != weft::wait_outcome::ok) _exit(8);
    std::vector<std::uint8_t> got(100003);
    weft::copy(got, ring[3]);
    _exit(got[100002] == 79 ? 0 : 9);
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "");
}

TEST(small_machine, with_little_memory_says_who_holds_it) {
  machine_options options = host(2);
  options.memory_per_device = weft::bytes{std::uint64_t{64} << 20};
  const machine m{options};
  EXPECT_EQ(m[0].total_memory().value(), std::uint64_t{64} << 20);
  const byte_buffer large{m[0], std::size_t{40} << 20};
  const byte_buffer small{m[0], std::size_t{1} << 20};
  const weft::error e = error_of([&] { const byte_buffer more(m[0], std::size_t{30} << 20); });
  EXPECT_EQ(e.code, errc::out_of_memory) << e.what;
  for (const char* const word : {"gpu0", "30 MiB", "40 MiB"})
    EXPECT_NE(e.what.find(word), std::string::npos) << word << ": " << e.what;
  const byte_buffer elsewhere{m[1], std::size_t{60} << 20};
  EXPECT_EQ(elsewhere.size(), std::size_t{60} << 20);
  EXPECT_EQ(m.find_devices({.min_memory = weft::bytes{std::uint64_t{10} << 20}}).size(), 1U);
}

// ---- streams --------------------------------------------------------------------------------------------------------

struct held_slot {
  std::promise<void> open;
  std::shared_future<void> opened{open.get_future()};
};

TEST(stream_priority, lets_the_higher_go_first_where_one_operation_runs_at_a_time) {
  machine_options options = host(1);
  options.max_in_flight = 1;
  const machine m{options};
  const weft::stream blocking{m[0]};
  const weft::stream low{m[0], {.priority = -5}};
  const weft::stream high{m[0], {.priority = 5}};
  held_slot slot;
  std::promise<void> started;
  blocking.call([&, opened = slot.opened] {
    started.set_value();
    opened.wait_for(samples::only_a_hang);
  });
  started.get_future().wait_for(samples::only_a_hang);
  std::mutex mutex;
  std::string order;
  const auto note = [&](char who) {
    return [&, who] {
      const std::lock_guard lock{mutex};
      order += who;
    };
  };
  for (int i = 0; i < 3; ++i) low.call(note('l'));
  for (int i = 0; i < 3; ++i) high.call(note('h'));
  slot.open.set_value();
  m.synchronize();
  EXPECT_EQ(order, "hhhlll");
}

TEST(stream_limit, operations_in_flight_stay_within_the_limit) {
  machine_options options = host(1);
  options.max_in_flight = 2;
  const machine m{options};
  std::vector<weft::stream> streams;
  for (int i = 0; i < 6; ++i) streams.emplace_back(m[0]);
  std::atomic<int> now{0};
  std::atomic<int> most{0};
  for (int round = 0; round < 50; ++round) {
    for (const weft::stream& s : streams) {
      s.call([&] {
        const int mine = now.fetch_add(1) + 1;
        int seen = most.load();
        while (mine > seen && !most.compare_exchange_weak(seen, mine)) {
        }
        for (int spin = 0; spin < 200; ++spin) std::this_thread::yield();
        now.fetch_sub(1);
      });
    }
  }
  m.synchronize();
  EXPECT_LE(most.load(), 2);
  EXPECT_GE(most.load(), 1);
  EXPECT_EQ(now.load(), 0);
}

TEST(stream_of_a_closed_machine, refuses_work_and_goes_quietly) {
  std::optional<machine> m{host(2)};
  const weft::stream order{(*m)[0]};
  m->close();
  EXPECT_TRUE(m->closed());
  EXPECT_EQ(error_of([&] { order.call([] {}); }).code, errc::machine_closed);
  EXPECT_EQ(error_of([&] { order.synchronize(); }).code, errc::machine_closed);
  m.reset();
}

TEST(machine_copies, share_one_machine_which_ends_with_the_last) {
  std::optional<machine> first{host(2)};
  const machine second = *first;
  EXPECT_TRUE(second == *first);
  first.reset();
  EXPECT_FALSE(second.closed());
  const byte_buffer memory{second[0], 100};
  weft::fill(memory, std::uint8_t{1});
}

// ---- virtual time ---------------------------------------------------------------------------------------------------

machine virtual_machine(std::string_view name) {
  machine_options options;
  options.sim = std::string{name};
  options.clock = weft::clock_kind::virtual_time;
  return machine{options};
}

std::vector<std::int64_t> times_of_a_run() {
  const machine m = virtual_machine("pcie_4");
  const auto leases = weft::enable_all_peers(m);
  std::vector<weft::stream> streams;
  std::vector<byte_buffer> memory;
  for (const weft::device& d : m.devices()) {
    streams.emplace_back(d);
    memory.emplace_back(d, 2U << 20);  // the upper half is the neighbour's to write: nothing orders it and the fill
  }
  std::vector<std::int64_t> times;
  for (std::size_t round = 0; round < 8; ++round) {
    for (std::size_t i = 0; i < 4; ++i) {
      weft::fill(streams[i], memory[i].subspan(0, 1U << 20), static_cast<std::uint8_t>(i));
      weft::copy(streams[i], memory[(i + 1) % 4].subspan(1U << 20, 1000 * (round + 1)),
                 memory[i].subspan(5000, 1000 * (round + 1)));
    }
    m.synchronize();
    times.push_back(m.now().count());
  }
  return times;
}

TEST(virtual_time, is_the_same_in_every_run) {
  const auto once = times_of_a_run();
  EXPECT_EQ(times_of_a_run(), once);
  EXPECT_TRUE(std::is_sorted(once.begin(), once.end()));
  EXPECT_GT(once.back(), once.front());
}

TEST(virtual_time, passes_in_a_wait_that_nobody_ends) {
  const machine m = virtual_machine("pair_nvlink");
  weft::device_barrier barrier{m, {device_id{0}, device_id{1}}};
  const weft::stream order{m[0]};
  const weft::event late = barrier.arrive(order);
  const auto begin = m.now();
  EXPECT_EQ(late.wait_for(std::chrono::hours{1}), weft::wait_outcome::timed_out)
      << "an hour of the model, not of the day";
  EXPECT_EQ(m.now() - begin, std::chrono::hours{1});
}

TEST(virtual_time, shows_a_device_that_stalls) {
  const auto run = [](bool stalls) {
    weft::topology layout = *weft::load_topology("pair_nvlink");
    if (stalls) {
      weft::topology_fault fault;
      fault.what = weft::topology_fault::kind::device_stalls;
      fault.device = device_id{0};
      fault.nth = 1;
      fault.duration = std::chrono::milliseconds{50};
      layout.faults.push_back(fault);
    }
    machine_options options;
    options.machine = layout;
    options.clock = weft::clock_kind::virtual_time;
    const machine m{options};
    const byte_buffer memory{m[0], 4096};
    const auto begin = m.now();
    weft::fill(memory, std::uint8_t{1});
    return m.now() - begin;
  };
  EXPECT_EQ(run(true) - run(false), std::chrono::milliseconds{50});
}

}  // namespace checklist_test
