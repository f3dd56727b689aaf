// SPDX-License-Identifier: Apache-2.0
// threads/…: small work that is handed from thread to thread. On one stream; from stream to stream, by event and by
// value; a sum; a tiny launch over more and more devices, against a pool of one thread for each core. With 1, 2 and all
// cores. Bars: chained streams and the sum 10 us; launches 1.5 times the pool.
#include "paired.hpp"
#include "weft/exec/launch_run.hpp"
#include "weft/exec/map_reduce.hpp"
#include "weft/memory/buffer.hpp"
#include "weft/memory/fill.hpp"
#include "weft/runtime/machine.hpp"
#include "weft/runtime/stream.hpp"

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <sched.h>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {

using namespace weft::bench;

WEFT_KERNEL(threads_nothing, (WEFT_INOUT(float) values), { values[i] = values[i]; });

/// As many threads as cores, one queue, sleeping when it is empty.
class pool {
 public:
  explicit pool(unsigned threads) {
    for (unsigned t = 0; t < threads; ++t) threads_.emplace_back([this] { serve(); });
  }
  ~pool() {
    {
      const std::lock_guard lock{mutex_};
      ended_ = true;
    }
    came_.notify_all();
    for (auto& t : threads_) t.join();
  }
  void run(int tasks, const std::function<void(int)>& work) {
    std::unique_lock lock{mutex_};
    work_ = &work;
    next_ = 0;
    tasks_ = left_ = tasks;
    came_.notify_all();
    done_.wait(lock, [&] { return left_ == 0; });
  }

 private:
  void serve() {
    std::unique_lock lock{mutex_};
    for (;;) {
      came_.wait(lock, [&] { return ended_ || next_ < tasks_; });
      if (ended_) return;
      const int mine = next_++;
      const auto* const work = work_;
      lock.unlock();
      (*work)(mine);
      lock.lock();
      if (--left_ == 0) done_.notify_one();
    }
  }
  std::mutex mutex_;
  std::condition_variable came_, done_;
  const std::function<void(int)>* work_ = nullptr;
  int next_ = 0, tasks_ = 0, left_ = 0;
  bool ended_ = false;
  std::vector<std::thread> threads_;
};

weft::machine play(int devices) {
  weft::machine_options options;
  options.backend = "host";
  options.devices = devices;
  return weft::machine{options};
}

/// Everything, in a process that may use so many cores.
void measure(const options& how, unsigned cores) {
  const std::string on = " (" + std::to_string(cores) + (cores == 1 ? " core)" : " cores)");
  pool plain{cores};
  const auto pool_of = [&](int tasks) {
    static const std::function<void(int)> nothing = [](int) {};
    return contender{"pool of " + std::to_string(cores),
                     [&plain, tasks] { return seconds_of(100, [&] { plain.run(tasks, nothing); }); }};
  };
  {
    const weft::machine m = play(2);
    const weft::stream one{m[0]}, two{m[1]};
    compare("threads/submit and wait" + on,
            {{"weft", [&] { return seconds_of(200, [&] { one.record().wait(); }); }}, pool_of(1)}, how);
    compare("threads/two chained streams" + on,
            {{"weft",
              [&] {
                return seconds_of(200, [&] {
                  two.wait(one.record());
                  two.record().wait();
                });
              }},
             pool_of(1)},
            how);
    const weft::pinned_buffer<std::uint32_t> word{m[0], 1};
    std::uint32_t turn = 0;
    compare("threads/a value from stream to stream" + on,
            {{"weft",
              [&] {
                return seconds_of(200, [&] {
                  ++turn;
                  static_cast<void>(two.wait_value(word.data(), turn));
                  static_cast<void>(one.write_value(word.data(), turn));
                  two.record().wait();
                });
              }},
             pool_of(1)},
            how);
    const weft::buffer<float> numbers{m[0], 4096};
    weft::fill(numbers, 1.0F);
    compare("threads/sum of 4,096" + on,
            {{"weft", [&] { return seconds_of(200, [&] { static_cast<void>(weft::sum(m, numbers)); }); }}, pool_of(1)},
            how);
  }
  for (const int devices : {1, 2, 4, 8, 16, 64}) {
    const weft::machine m = play(devices);
    weft::array<float> values{m, 64U * static_cast<unsigned>(devices), 0.0F};
    const auto all = weft::range(devices * 64);
    compare("threads/launch over " + std::to_string(devices) + " devices" + on,
            {{"weft", [&] { return seconds_of(20, [&] { weft::launch<threads_nothing>(m, all, values).wait(); }); }},
             pool_of(devices)},
            how);
  }
}

/// The process again, with so many cores: what is asked once, how many there are, is asked anew.
int with_cores(int count, char** argv) {
  cpu_set_t all, some;
  if (::sched_getaffinity(0, sizeof all, &all) != 0) return 1;
  CPU_ZERO(&some);
  for (int cpu = 0, left = count; cpu < static_cast<int>(CPU_SETSIZE) && left > 0; ++cpu) {
    const auto at = static_cast<std::size_t>(cpu);
    if (!CPU_ISSET(at, &all)) continue;
    CPU_SET(at, &some);
    --left;
  }
  if (::sched_setaffinity(0, sizeof some, &some) != 0) return 1;
  ::setenv("WEFT_BENCH_CORES", std::to_string(count).c_str(), 1);
  ::execv("/proc/self/exe", argv);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  const options how = parse(argc, argv);
  if (const char* const cores = std::getenv("WEFT_BENCH_CORES"); cores != nullptr) {
    measure(how, static_cast<unsigned>(std::atoi(cores)));
    return 0;
  }
  print_machine(how);
  std::fflush(nullptr);
  const int most = static_cast<int>(std::thread::hardware_concurrency());
  for (const int count : {1, 2, most}) {
    if (count > most) continue;
    const pid_t child = ::fork();
    if (child == 0) ::_exit(with_cores(count, argv));
    int status = 0;
    if (child < 0 || ::waitpid(child, &status, 0) < 0 || status != 0) return 1;
    if (count == most) break;
  }
  return 0;
}
