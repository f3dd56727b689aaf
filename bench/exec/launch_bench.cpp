// SPDX-License-Identifier: Apache-2.0
// launch/…: what a launch over devices costs on the host backend, against a bare hand-over with the same way of
// waiting, a plain pool of one thread for each device, and StarPU. Bars: a launch on one device under 1 us above the
// hand-over; by name under 100 ns above by type; two devices at least 1.8 times as fast as one where two threads are.

#include "bare_handover.hpp"
#include "paired.hpp"
#include "weft/exec/launch_run.hpp"
#include "weft/memory/buffer.hpp"

#include <array>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#ifdef WEFT_BENCH_STARPU
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#include <starpu.h>
#pragma GCC diagnostic pop
#endif

namespace {

using weft::balance;
using weft::range;

WEFT_KERNEL(launch_nothing, (WEFT_INOUT(float) values), { values[i] = values[i]; });
WEFT_KERNEL(launch_logistic, (WEFT_INOUT(float) values, int32_t steps), {
  float x = values[i];
  for (int32_t s = 0; s < steps; ++s) {
    x = 3.7f * x * (1.0f - x);
  }
  values[i] = x;
});

/// One thread for each device and a queue of functions each, as anybody would write it.
class plain_pool {
 public:
  explicit plain_pool(int threads) {
    for (int t = 0; t < threads; ++t) desks_.push_back(std::make_unique<desk>());
    for (auto& d : desks_) d->thread = std::thread{[d = d.get()] { d->serve(); }};
  }
  ~plain_pool() {
    for (auto& d : desks_) {
      d->put({});
      d->thread.join();
    }
  }
  void run_on_all(const std::function<void(int)>& work) {
    std::mutex mutex;
    std::condition_variable done;
    int left = static_cast<int>(desks_.size());
    for (int t = 0; t < static_cast<int>(desks_.size()); ++t) {
      desks_[static_cast<std::size_t>(t)]->put([&, t] {
        work(t);
        const std::lock_guard lock{mutex};
        if (--left == 0) done.notify_one();
      });
    }
    std::unique_lock lock{mutex};
    done.wait(lock, [&] { return left == 0; });
  }

 private:
  struct desk {
    std::mutex mutex;
    std::condition_variable came;
    std::vector<std::function<void()>> work;
    std::thread thread;
    void put(std::function<void()> f) {
      const std::lock_guard lock{mutex};
      work.push_back(std::move(f));
      came.notify_one();
    }
    void serve() {
      for (;;) {
        std::vector<std::function<void()>> mine;
        {
          std::unique_lock lock{mutex};
          came.wait(lock, [&] { return !work.empty(); });
          mine.swap(work);
        }
        for (auto& f : mine) {
          if (!f) return;
          f();
        }
      }
    }
  };
  std::vector<std::unique_ptr<desk>> desks_;
};

weft::machine machine_of(int devices, weft::waiting policy = weft::waiting::adaptive) {
  weft::machine_options chosen;
  chosen.backend = "host";
  chosen.devices = devices;
  chosen.wait_policy = policy;
  return weft::machine{chosen};
}

#ifdef WEFT_BENCH_STARPU
void starpu_nothing(void** buffers, void* /*argument*/) {
  auto* values = reinterpret_cast<float*>(STARPU_VECTOR_GET_PTR(buffers[0]));
  values[0] = values[0] + 0.0F;
}

class starpu_peer {
 public:
  starpu_peer() {
    starpu_conf_init(&conf_);
    conf_.ncuda = 0;
    conf_.nopencl = 0;
    conf_.ncpus = 1;
    conf_.sched_policy_name = "eager";
    works_ = starpu_init(&conf_) == 0;
    if (!works_) return;
    starpu_codelet_init(&codelet_);
    codelet_.cpu_funcs[0] = starpu_nothing;
    codelet_.nbuffers = 1;
    codelet_.modes[0] = STARPU_RW;
    starpu_vector_data_register(&handle_, STARPU_MAIN_RAM, reinterpret_cast<uintptr_t>(values_.data()),
                                static_cast<uint32_t>(values_.size()), sizeof(float));
  }
  ~starpu_peer() {
    if (!works_) return;
    starpu_data_unregister(handle_);
    starpu_shutdown();
  }
  [[nodiscard]] bool works() const { return works_; }
  void submit() { starpu_task_insert(&codelet_, STARPU_RW, handle_, 0); }
  static void wait() { starpu_task_wait_for_all(); }

 private:
  starpu_conf conf_{};
  starpu_codelet codelet_{};
  starpu_data_handle_t handle_{};
  std::vector<float> values_ = std::vector<float>(64);
  bool works_ = false;
};
#endif

void overhead(const weft::bench::options& how) {
  using namespace weft::bench;
  for (const weft::waiting policy : {weft::waiting::spin, weft::waiting::park}) {
    const bool spin = policy == weft::waiting::spin;
    const weft::machine m = machine_of(1, policy);
    weft::buffer<float> values{m[0], 64};
    weft::array<float> logical{m, 64, 1.0F};
    bare_handover bare{policy};
    weft::kernels(m).add<launch_nothing>();
    const int repeats = spin ? 300 : 100;
    compare(
        spin ? "launch/spin: 64 items on one device, submitted and waited for"
             : "launch/park: 64 items on one device, submitted and waited for",
        {{"launch over the machine",
          [&] { return seconds_of(repeats, [&] { weft::launch<launch_nothing>(m, range(64), values).wait(); }); }},
         {"bare hand-over", [&] { return seconds_of(repeats, [&] { bare.round_trip(); }); }},
         {"launch by name",
          [&] { return seconds_of(repeats, [&] { weft::launch(m, "launch_nothing", range(64), values).wait(); }); }},
         {"launch on an array<T>",
          [&] { return seconds_of(repeats, [&] { weft::launch<launch_nothing>(m, range(64), logical).wait(); }); }}},
        how);
  }
}

void queued(const weft::bench::options& how) {
  using namespace weft::bench;
  constexpr int launches = 1000;
  const weft::machine m = machine_of(1);
  weft::buffer<float> values{m[0], 64};
  weft::array<float> logical{m, 64, 1.0F};
  weft::kernels(m).add<launch_nothing>();
  std::vector<contender> all{
      {"by type",
       [&] {
         return seconds_of(1,
                           [&] {
                             for (int i = 0; i < launches; ++i)
                               static_cast<void>(weft::launch<launch_nothing>(m, range(64), values));
                             m.synchronize();
                           }) /
                launches;
       }},
      {"by name",
       [&] {
         return seconds_of(1,
                           [&] {
                             for (int i = 0; i < launches; ++i)
                               static_cast<void>(weft::launch(m, "launch_nothing", range(64), values));
                             m.synchronize();
                           }) /
                launches;
       }},
      {"on an array<T>", [&] {
         return seconds_of(1,
                           [&] {
                             for (int i = 0; i < launches; ++i)
                               static_cast<void>(weft::launch<launch_nothing>(m, range(64), logical));
                             m.synchronize();
                           }) /
                launches;
       }}};
#ifdef WEFT_BENCH_STARPU
  starpu_peer starpu;
  if (starpu.works()) {
    all.push_back({"StarPU (eager, one CPU worker)", [&] {
                     return seconds_of(1,
                                       [&] {
                                         for (int i = 0; i < launches; ++i) starpu.submit();
                                         starpu_peer::wait();
                                       }) /
                            launches;
                   }});
  } else {
    std::puts("StarPU is installed and does not start here: left out");
  }
#else
  std::puts("StarPU is not installed (scripts/setup bench): left out");
#endif
  compare("queued/1000: per launch of 1,000 chained on one device, then waited for", all, how);
}

void scaling(const weft::bench::options& how) {
  using namespace weft::bench;
  constexpr std::int64_t items = 1 << 19;
  constexpr std::int32_t steps = 64;
  const weft::machine one = machine_of(1);
  const weft::machine two = machine_of(2);
  weft::array<float> a{one, items, 0.3F};
  weft::array<float> b{two, items, 0.3F};
  std::vector<float> plain(items, 0.3F);
  plain_pool pool{2};
  const auto hand = [&](std::int64_t first, std::int64_t end) {
    weft::kernel_argument values;
    values.address = plain.data();
    values.count = items;
    weft::kernel_argument count;
    std::memcpy(count.scalar.data(), &steps, sizeof steps);
    const std::array<weft::kernel_argument, 2> list{values, count};
    weft::host_entry_of<launch_logistic>({1, {first, 0, 0}, {end, 1, 1}}, list);
  };
  compare("scaling/two: 524,288 items of 64 steps, resident; the ratio is how many times as fast",
          {{"weft, one device",
            [&] { return seconds_of(1, [&] { weft::launch<launch_logistic>(one, range(items), a, steps).wait(); }); }},
           {"weft, two devices",
            [&] {
              return seconds_of(1, [&] {
                weft::launch<launch_logistic>(two, {.strategy = balance::static_equal}, range(items), b, steps).wait();
              });
            }},
           {"one thread by hand", [&] { return seconds_of(1, [&] { hand(0, items); }); }},
           {"a pool of two threads",
            [&] {
              return seconds_of(1, [&] { pool.run_on_all([&](int t) { hand(t * items / 2, (t + 1) * items / 2); }); });
            }}},
          how);
}

void small_on_two(const weft::bench::options& how) {
  using namespace weft::bench;
  const weft::machine m = machine_of(2);
  weft::array<float> a{m, 128, 1.0F};
  plain_pool pool{2};
  std::vector<float> plain(128, 1.0F);
  compare("split/two: 128 items over two devices, submitted and waited for",
          {{"weft, static_equal",
            [&] {
              return seconds_of(100, [&] {
                weft::launch<launch_nothing>(m, {.strategy = balance::static_equal}, range(128), a).wait();
              });
            }},
           {"a pool of two threads",
            [&] {
              return seconds_of(
                  100, [&] { pool.run_on_all([&](int t) { plain[static_cast<std::size_t>(t) * 64] += 0.0F; }); });
            }}},
          how);
}

}  // namespace

int main(int argc, char** argv) {
  const weft::bench::options how = weft::bench::parse(argc, argv);
  weft::bench::print_machine(how);
  overhead(how);
  queued(how);
  small_on_two(how);
  scaling(how);
  return 0;
}
