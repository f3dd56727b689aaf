// SPDX-License-Identifier: Apache-2.0
// Each field of the options that open a machine, play a simulation or choose devices changes something, or is refused.
#include "backends/host/factory.hpp"
#include "runtime/peer_checks.hpp"
#include "support/option_rows.hpp"
#include "support/threads.hpp"
#include "weft/core/log.hpp"
#include "weft/exec/launch.hpp"
#include "weft/memory/fill.hpp"
#include "weft/memory/peer_access.hpp"
#include "weft/memory/route.hpp"

#include <chrono>
#include <future>
#include <memory>
#include <unistd.h>
#include <utility>
#include <vector>

namespace machine_option_fields_test {

using samples::error_of;
using samples::gpu0;
using samples::gpu1;
using weft::bytes;
using weft::errc;
using weft::machine;
using weft::machine_options;
using namespace std::chrono_literals;

WEFT_KERNEL(machine_fields_shift, (WEFT_IN(int32_t, whole) from, WEFT_OUT(int32_t) to, int64_t by),
            { to[i] = from[i + by]; });

/// A machine for one question; constructors throw where a backend refuses the options.
machine opened(const machine_options& asked) { return machine{asked}; }

std::string notes_of(const machine& m) {
  std::string all;
  for (const std::string& note : m.notes()) all += note + "\n";
  return all;
}

class machine_option_fields : public samples::option_test {
 protected:
  [[nodiscard]] static bool is_host() { return GetParam() == "host"; }
  [[nodiscard]] static machine_options plain() {
    if (GetParam() == "cuda") return samples::virtual_cuda_options();
    if (GetParam() == "opencl") return samples::opencl_options();
    machine_options options;
    options.backend = "host";
    return options;
  }
  /// The options of the backend, one of them changed.
  template <class F>
  [[nodiscard]] static machine_options with(F&& set) {
    machine_options options = plain();
    set(options);
    return options;
  }
  /// A field that only the host obeys: seen there; elsewhere refused with an error, or named in a note of the machine.
  template <class F, class Seen>
  [[nodiscard]] static bool only_on_host(const char* name, F&& set, Seen&& is_seen) {
    if (is_host()) return is_seen(with(set));
    std::string said;
    const weft::error refused = error_of([&] { said = notes_of(opened(with(set))); });
    return refused.code == errc::unsupported || refused.code == errc::invalid_argument ||
           said.find(name) != std::string::npos;
  }
};
INSTANTIATE_TEST_SUITE_P(machines, machine_option_fields, samples::each_backend, samples::name_of_backend);

/// Whether the host may follow a pointer.
bool is_readable(const void* address) {
  int ends[2];
  if (::pipe(ends) != 0) return false;
  const bool read = ::write(ends[1], address, 1) == 1;
  ::close(ends[0]);
  ::close(ends[1]);
  return read;
}

/// A kernel that reads `by` elements beyond what it was given.
weft::error shifted(const machine& m, std::int64_t by) {
  const weft::stream order{m[0]};
  const weft::buffer<std::int32_t> from{m[0], 64}, to{m[0], 64};
  return error_of([&] { weft::launch<machine_fields_shift>(order, weft::range(64), from, to, by).wait(); });
}

/// How often the thread that waits for an operation has slept.
long sleeps_of_a_wait(const machine& m) {
  const weft::stream order{m[0]};
  samples::gate gate;
  const weft::event last = gate.hold(order);
  std::promise<void> begins;
  auto slept = std::async(std::launch::async, [&] {
    const long before = samples::sleeps_of_this_thread();
    begins.set_value();
    last.wait();
    return samples::sleeps_of_this_thread() - before;
  });
  begins.get_future().wait();
  static_cast<void>(slept.wait_for(20ms));  // no order is needed: a thread that is late only shows nothing this time
  gate.open();
  return slept.get();
}

TEST_P(machine_option_fields, each_option_of_a_machine_has_an_effect) {
  const auto layout = [](const machine_options& asked) { return opened(asked).layout().name; };
  const auto count = [](const machine_options& asked) { return opened(asked).device_count(); };
  const samples::option_row rows[] = {
      {"backend", "the backend",
       [](const machine& m) {
         return opened(with([](machine_options& o) { o.backend = "null"; }))[0].kind() != m[0].kind();
       }},
      {"backend_required", "what becomes of a name that nobody has",
       [](const machine&) {
         const auto named = [](bool required) {
           return error_of([&] {
             opened(with([&](machine_options& o) { o.backend = "no_such", o.backend_required = required; }));
           });
         };
         return named(true).code == errc::not_found && named(false).what == "nothing failed";
       }},
      {"keep_duplicates", "devices that two backends see",
       [](const machine& m) {
         if (is_host() || (m[0].uuid().empty() && m[0].pci_address().empty()))
           return true;  // the host's devices are nobody else's, and of one without a name nobody knows
         const auto devices = [&](bool keep) {
           return opened(with([&](machine_options& o) {
                    o.more_backends.push_back({m[0].kind(), "again", o.more_backends.front().open});
                    *o.backend += ",again";
                    o.keep_duplicates = keep;
                  }))
               .device_count();
         };
         return devices(true) == 2 * devices(false);
       }},
      {"sim", "the topology",
       [&](const machine&) {
         return only_on_host(
             "topology", [](machine_options& o) { o.sim = "pair_nvlink"; },
             [&](const machine_options& asked) { return layout(asked) == "pair_nvlink"; });
       }},
      {"machine", "the topology",
       [&](const machine&) {
         return only_on_host(
             "topology", [](machine_options& o) { o.machine = samples::wired(3); },
             [&](const machine_options& asked) { return layout(asked) == "wired"; });
       }},
      {"devices", "how many there are",
       [&](const machine&) {
         return only_on_host(
             "devices", [](machine_options& o) { o.devices = 3; },
             [&](const machine_options& asked) { return count(asked) == 3; });
       }},
      {"memory_per_device", "their memory",
       [](const machine&) {
         const machine small{with([](machine_options& o) { o.memory_per_device = bytes{1U << 20}; })};
         return small[0].total_memory() == bytes{1U << 20} &&
                error_of([&] { samples::byte_buffer{small[0], 2U << 20}; }).code == errc::out_of_memory;
       }},
      {"logical_devices", "how many there are",
       [](const machine& m) {
         const machine parts{with([](machine_options& o) { o.logical_devices = 2; })};
         return parts.device_count() == 2 * m.device_count() || notes_of(parts).find("split") != std::string::npos;
       }},
      {"clock", "what the time is",
       [](const machine&) {
         return only_on_host(
             "virtual", [](machine_options& o) { o.clock = weft::clock_kind::virtual_time; },
             [](const machine_options& asked) { return opened(asked).now().count() == 0; });
       }},
      {"strict", "whether the host may follow a device's pointers",
       [](const machine&) {
         const auto set = [](bool strict) { return [strict](machine_options& o) { o.strict = strict; }; };
         const auto readable = [](const machine_options& asked) {
           const machine m{asked};
           const samples::byte_buffer memory = samples::filled(m[0], samples::pattern(4'096, 1));
           return is_readable(memory.data());
         };
         return only_on_host("strict", set(true), [&](const machine_options& asked) {
#ifdef WEFT_TSAN
           return readable(asked);  // one address for each allocation
#else
           return !readable(asked) && readable(with(set(false)));
#endif
         });
       }},
      {"check_access", "whether a kernel's indices are checked",
       [](const machine&) {
         return only_on_host(
             "check_access", [](machine_options& o) { o.check_access = true; },
             [](const machine_options& asked) { return shifted(opened(asked), 1).code == errc::illegal_access; });
       }},
      {"check_order", "whether missing orders are found",
       [](const machine&) {
         return only_on_host(
             "check_order", [](machine_options& o) { o.check_order = true; },
             [](const machine_options& asked) {
               const auto before = weft::set_log_hook([](weft::log_level, std::string_view) {});
               machine_options in_turn = asked;  // in no order that the streams know, and not at the same time
               in_turn.max_in_flight = 1;
               const machine m{in_turn};
               const samples::byte_buffer memory{m[0], 64};
               const weft::stream one{m[0]}, other{m[0]};
               const auto first = weft::fill(one, memory, std::uint8_t{1});
               weft::fill(other, memory, std::uint8_t{2}).wait();
               first.wait();
               weft::set_log_hook(before);
               return m.order_violations().size() == 1;
             });
       }},
      {"fill_new_memory", "what new memory holds",
       [](const machine&) {
         return only_on_host(
             "fill_new_memory", [](machine_options& o) { o.fill_new_memory = std::byte{7}; },
             [](const machine_options& asked) {
               const machine m{asked};
               return samples::contents(samples::byte_buffer{m[0], 64}) == samples::data(64, 7);
             });
       }},
      {"max_in_flight", "how many operations a device does at a time",
       [](const machine&) {
         return only_on_host(
             "max_in_flight", [](machine_options& o) { o.max_in_flight = 1; },
             [](const machine_options& asked) {
               const auto goes_on = [](const machine& m, std::chrono::nanoseconds limit) {
                 const weft::stream held{m[0]}, other{m[0]};
                 std::promise<void> begun, let_go;
                 held.call([&] {  // it has the place from when it says so
                   begun.set_value();
                   let_go.get_future().wait();
                 });
                 begun.get_future().wait();
                 const samples::byte_buffer memory{m[0], 64};
                 const auto second = weft::fill(other, memory, std::uint8_t{1});
                 const bool done = second.wait_for(limit) == weft::wait_outcome::ok;
                 let_go.set_value();
                 m.synchronize();
                 return done;
               };
               return !goes_on(opened(asked), 20ms) && goes_on(opened(plain()), samples::soon);
             });
       }},
      {"more_backends", "the backends that are known",
       [](const machine& m) {
         const machine more{with([](machine_options& o) {
           o.more_backends.push_back({weft::backend_kind::host, "another", &weft::host::open});
         })};
         return more.backends().size() == m.backends().size() + 1;
       }},
      {"verify_peers", "whether a pair that loses data is found",
       [](const machine& m) {
         if (m[0].kind() == weft::backend_kind::opencl)
           weft::raise(errc::unsupported, "nothing makes a pair of OpenCL devices lose data");
         const auto found = [&](weft::peer_verification when) {
           const auto before = weft::set_log_hook([](weft::log_level, std::string_view) {});
           const machine loses{with([&](machine_options& o) {
             o.verify_peers = when;
             if (!is_host()) return samples::virtual_cuda{}.drop(0, 1, 1);
             o.machine = samples::shipped("pair_nvlink");
             weft::topology_fault fault;
             fault.what = weft::topology_fault::kind::drops_data;
             fault.from = gpu0, fault.to = gpu1;
             o.machine->faults.push_back(fault);
           })};
           const auto leases = weft::enable_all_peers(loses);
           const auto from = samples::filled(loses[0], samples::pattern(4'096, 1));
           const samples::byte_buffer there{loses[1], 4'096};
           weft::copy(there, from);
           if (!is_host()) samples::virtual_cuda{}.drop(0, 1, 0);
           weft::set_log_hook(before);
           return !weft::detail::peers_of(*weft::detail::state_of(loses)).failure(gpu0, gpu1).empty();
         };
         return found(weft::peer_verification::always) && !found(weft::peer_verification::never);
       }},
      {"wait_policy", "whether a thread that waits gives its processor away",
       [](const machine&) {
         const auto sleeps = [](weft::waiting policy) {
           return sleeps_of_a_wait(opened(with([&](machine_options& o) { o.wait_policy = policy; })));
         };
         for (int round = 0; round < 100; ++round) {
           if (sleeps(weft::waiting::park) > sleeps(weft::waiting::spin)) return true;
         }
         return false;
       }},
      {"model", "the times of a virtual clock",
       [](const machine&) {
         return only_on_host(
             "model",
             [](machine_options& o) {
               o.model.launch_latency = 1s;
               if (is_host()) o.clock = weft::clock_kind::virtual_time;
             },
             [](const machine_options& asked) {
               const machine m{asked};
               shifted(m, 0);
               return m.now() >= 1s;
             });
       }},
  };
  samples::expect_each<machine_options>(opened(plain()), rows);
}

// All other fields are a machine's as well, and the rows above look at them.
static_assert(samples::fields<weft::backend_options>() == 16, "a new field needs a row here, or in machine_options");

TEST_P(machine_option_fields, each_option_set_by_a_machine_for_its_backends_has_an_effect) {
  const auto open_it = [](const weft::backend_options& asked) {
    if (is_host()) return weft::value_or_raise(weft::host::open(asked));
    return weft::value_or_raise(plain().more_backends.front().open(asked));
  };
  weft::backend_options asked;
  const auto as_it_is = open_it(asked);
  asked.first_device = weft::device_id{5};
  EXPECT_EQ(open_it(asked)->first_device(), weft::device_id{5});
  asked = {};
  int seen = 0;
  asked.leave_out = [&](const weft::device_description&) { return seen++ > 0; };
  if (!is_host()) {  // whose devices are nobody else's
    EXPECT_EQ(open_it(asked)->devices().size(), 1U);
    EXPECT_EQ(static_cast<std::size_t>(seen), as_it_is->devices().size());
  }
  asked = {};
  asked.epoch = std::chrono::steady_clock::now() - 1h;
  EXPECT_GE(open_it(asked)->now(), 1h);
  EXPECT_LT(as_it_is->now(), 1h);
}

// ---- on a virtual clock ---------------------------------------------------------------------------------------------

/// How long ten tiny kernels take, in two streams of a device.
std::chrono::nanoseconds time_of_kernels(const weft::simulation& model) {
  const machine m{{.backend = "host", .clock = weft::clock_kind::virtual_time, .model = model}};
  const weft::stream one{m[0]}, other{m[0]};
  const weft::buffer<std::int32_t> from{m[0], 64}, to{m[0], 64}, there{m[0], 64};
  for (int k = 0; k < 5; ++k) {
    weft::launch<machine_fields_shift>(one, weft::range(64), from, to, std::int64_t{0});
    weft::launch<machine_fields_shift>(other, weft::range(64), from, there, std::int64_t{0});
  }
  m.synchronize();
  return m.now();
}
/// The order in which eight calls go that are ready at the same instant.
std::string order_of_equals(const weft::simulation& model) {
  const machine m{{.backend = "host", .clock = weft::clock_kind::virtual_time, .model = model}};
  std::vector<weft::stream> streams;
  std::string order;
  for (char name = 'a'; name < 'i'; ++name) {
    streams.emplace_back(m[0]);
    streams.back().call([&order, name] { order += name; });
  }
  m.synchronize();
  return order;
}

TEST(machine_option_fields, each_option_of_a_simulation_has_an_effect) {
  using weft::simulation;
  const auto usual = time_of_kernels({});
  EXPECT_EQ(usual, time_of_kernels({}));
  const samples::option_row rows[] = {
      {"launch_latency", "the time before a kernel's items",
       [&](const machine&) { return time_of_kernels({.launch_latency = 1ms}) > usual + 1ms; }},
      {"noise", "a kernel's time", [&](const machine&) { return time_of_kernels({.noise = 0.5}) != usual; }},
      {"seed", "which noise",
       [](const machine&) {
         return time_of_kernels({.noise = 0.5, .seed = 1}) != time_of_kernels({.noise = 0.5, .seed = 2});
       }},
      {"shuffle", "the order of what is ready at the same instant",
       [](const machine&) { return order_of_equals({.shuffle = 1}) != order_of_equals({.shuffle = 2}); }},
      {"delay", "when operations begin",
       [](const machine&) { return time_of_kernels({.shuffle = 1, .delay = 1ms}) > time_of_kernels({.shuffle = 1}); }},
  };
  samples::expect_each<simulation>(machine{{.backend = "host"}}, rows);
}

// ---- which devices, and which way -----------------------------------------------------------------------------------

TEST_P(machine_option_fields, each_option_of_a_device_query_has_an_effect) {
  using weft::device_query;
  const auto ids = [](const machine& m, const device_query& wanted) {
    std::vector<int> found;
    for (const weft::device& d : m.find_devices(wanted)) found.push_back(d.id().value());
    return found;
  };
  using list = std::vector<int>;
  const samples::option_row rows[] = {
      {"ids", "who", [&](const machine& m) { return ids(m, {.ids = {gpu1, gpu0}}) == list{1, 0}; }},
      {"needs", "who can",
       [&](const machine& m) {
         const auto all = static_cast<weft::capability>(~std::uint32_t{0});  // some of them nobody has
         return ids(m, {.needs = all}).empty() && !ids(m, {.needs = weft::capability::none}).empty();
       }},
      {"min_compute_units", "who is large enough",
       [&](const machine& m) { return ids(m, {.min_compute_units = 1'000'000}).empty(); }},
      {"min_memory", "who has room",
       [&](const machine& m) { return ids(m, {.min_memory = bytes{std::uint64_t{1} << 60}}).empty(); }},
      {"exclude", "who not", [&](const machine& m) { return ids(m, {.exclude = {gpu0}}).front() == 1; }},
      {"backend", "whose",
       [&](const machine& m) { return ids(m, {.backend = "no_such", .backend_required = true}).empty(); }},
      {"backend_required", "who instead",
       [&](const machine& m) { return !ids(m, {.backend = "no_such", .backend_required = false}).empty(); }},
      {"score", "the order",
       [&](const machine& m) {
         const auto later = [](const weft::device& d) { return static_cast<double>(d.id().value()); };
         return ids(m, {.score = later}).back() == 0;
       }},
      {"at_most", "how many", [&](const machine& m) { return ids(m, {.at_most = 1}) == list{0}; }},
  };
  samples::expect_each<device_query>(opened(plain()), rows);
}

TEST(machine_option_fields, each_option_of_a_route_wish_has_an_effect) {
  using weft::copy_path;
  using weft::route_wish;
  const auto facts = weft::route_facts_of(samples::wired(3, {.peer_rate = 40e9, .peer_latency = 500}));
  const auto way = [&](const route_wish& wish) {
    return weft::value_or_raise(weft::route(facts, gpu0, gpu1, bytes{1U << 20}, wish));
  };
  ASSERT_EQ(way({}).path, copy_path::direct);
  const samples::option_row rows[] = {
      {"path", "the way", [&](const machine&) { return way({.path = copy_path::staged}).path == copy_path::staged; }},
      {"via", "over whom",
       [&](const machine&) { return way({.path = copy_path::relayed, .via = samples::gpu2}).via == samples::gpu2; }},
      {"min_bytes_per_second", "which links are too slow",
       [&](const machine&) { return way({.min_bytes_per_second = 50e9}).path != copy_path::direct; }},
      {"max_latency", "which links take too long",
       [&](const machine&) { return way({.max_latency = 100ns}).path != copy_path::direct; }},
  };
  samples::expect_each<route_wish>(machine{{.backend = "host"}}, rows);
}

}  // namespace machine_option_fields_test
