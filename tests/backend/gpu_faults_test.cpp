// SPDX-License-Identifier: Apache-2.0
// Faults of the CUDA backend, on the virtual driver and in processes of their own: a kernel that faults, a device
// without memory, code for another architecture, and processes that free or die while others use what they share.
#include "backends/gpu/cuda/nvrtc.hpp"
#include "support/hang.hpp"
#include "support/processes.hpp"
#include "support/raw_launch.hpp"
#include "support/samples.hpp"
#include "support/virtual_gpus.hpp"
#include "weft/exec/launch.hpp"
#include "weft/exec/launch_run.hpp"
#include "weft/memory/fill.hpp"
#include "weft/memory/peer_access.hpp"
#include "weft/memory/shared_memory.hpp"
#include "weft/runtime/device_scope.hpp"

#include <array>
#include <atomic>
#include <cstdlib>
#include <fcntl.h>
#include <future>
#include <optional>
#include <poll.h>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

namespace gpu_faults_test {

using samples::error_of;
using weft::errc;
using byte = std::uint8_t;

constexpr std::size_t shared_size = 70001;

WEFT_KERNEL(adds_two, (WEFT_INOUT(uint32_t) numbers), { numbers[i] = numbers[i] + 2U; });
WEFT_KERNEL(takes_all, (WEFT_IN(uint32_t) from, WEFT_OUT(uint32_t) to), { to[i] = from[i]; });

weft::raw_kernel raw_of(const char* name, const char* body) {
  weft::raw_kernel raw;
  raw.name = raw.entry = name;
  raw.parameters = {{"word", weft::element_type::uint8, weft::parameter_direction::inout, {}, false}};
  raw.cuda_source = std::string{"extern \"C\" __global__ void "} + name +
                    "(volatile unsigned char* word, long long, long long) {" + body + "}";
  return raw;
}

weft::kernel_argument argument_of(void* address) {
  weft::kernel_argument made;
  made.type = weft::element_type::uint8;
  made.direction = weft::parameter_direction::inout;
  made.address = address;
  made.count = 1;
  return made;
}

/// The device does as it should.
void expect_work_on(const weft::device& on) {
  const weft::buffer<std::uint32_t> numbers{on, 1000};
  weft::fill(numbers, 5U);
  weft::launch<adds_two>(weft::stream{on}, weft::range(1000), numbers).wait();
  std::vector<std::uint32_t> came(1000);
  weft::copy(came, numbers);
  EXPECT_EQ(came, std::vector<std::uint32_t>(1000, 7U));
}

// ---- other processes ------------------------------------------------------------------------------------------------

/// One of the processes below, new from the start: CUDA does not work in the child of a fork. They tell each other of
/// their steps by lines.
class other_process {
 public:
  explicit other_process(const char* role, std::vector<std::pair<std::string, std::string>> variables = {}) {
    std::array<int, 2> in{};
    std::array<int, 2> out{};
    if (::pipe2(in.data(), O_CLOEXEC) != 0 || ::pipe2(out.data(), O_CLOEXEC) != 0) std::abort();
    to_ = in[1];
    from_ = out[0];
    child_.emplace([&] {
      ::setenv("WEFT_TEST_IN", std::to_string(::dup(in[0])).c_str(), 1);
      ::setenv("WEFT_TEST_OUT", std::to_string(::dup(out[1])).c_str(), 1);
      for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
      const std::string filter = std::string{"--gtest_filter=gpu_other_process.DISABLED_"} + role;
      ::execl("/proc/self/exe", "other", "--gtest_also_run_disabled_tests", filter.c_str(), nullptr);
      return 98;
    });
    ::close(in[0]);
    ::close(out[1]);
  }
  other_process(const other_process&) = delete;
  other_process& operator=(const other_process&) = delete;
  ~other_process() {
    ::close(to_);
    ::close(from_);
  }

  void say(const std::string& line) const { write_line(to_, line); }
  [[nodiscard]] std::string hear() const { return read_line(from_); }
  [[nodiscard]] int end() { return child_->wait(); }
  void kill() const { child_->kill(SIGKILL); }

  static void write_line(int to, const std::string& line) {
    const std::string all = line + "\n";
    static_cast<void>(!::write(to, all.data(), all.size()));
  }
  /// Empty when nothing came in time.
  static std::string read_line(int from) {
    std::string line;
    for (char c = 0;;) {
      pollfd one{from, POLLIN, 0};
      constexpr int limit = std::chrono::milliseconds{samples::only_a_hang}.count();
      if (::poll(&one, 1, limit) != 1 || ::read(from, &c, 1) != 1) return {};
      if (c == '\n') return line;
      line += c;
    }
  }

 private:
  int to_ = -1;
  int from_ = -1;
  std::optional<processes::child> child_;
};

class gpu_other_process : public samples::virtual_cuda_test {
 protected:
  static void say(const std::string& line) { other_process::write_line(number("WEFT_TEST_OUT"), line); }
  static std::string hear() { return other_process::read_line(number("WEFT_TEST_IN")); }

 private:
  static int number(const char* name) {
    const char* const text = std::getenv(name);  // NOLINT(concurrency-mt-unsafe)
    return text == nullptr ? -1 : std::atoi(text);
  }
};

TEST_F(gpu_other_process, DISABLED_runs_a_kernel_that_faults) {
  weft::machine m = open();
  const weft::stream order{m[1]};
  const weft::buffer<byte> word{m[1], 1};
  const auto peers = weft::enable_all_peers(m);
  const std::vector<std::uint32_t> fives(1000, 5U);
  const weft::array<std::uint32_t> held{m, fives};
  weft::array<std::uint32_t> there{m, 1000}, elsewhere{m, 1000};
  weft::launch<takes_all>(m, {.devices = {.ids = {m[1].id()}}}, weft::range(1000), held, there).wait();
  const auto code = weft::make_kernel_code(raw_of("writes_nowhere", "*(volatile unsigned char*)16 = 1;"));
  const auto faulty = samples::raw_launch{code, 1, {argument_of(word.data())}}.in(m, order);
  const auto fault = error_of([&] { static_cast<void>(faulty.wait_for(samples::soon)); });
  EXPECT_EQ(fault.code, errc::illegal_access) << to_string(fault);
  EXPECT_EQ(fault.native_code, 700);
  EXPECT_TRUE(m[1].is_lost());
  EXPECT_EQ(error_of([&] { weft::fill(word, byte{1}); }).code, errc::device_lost);
  for (const int other : {0, 2, 3}) {
    EXPECT_FALSE(m[other].is_lost()) << other;
    expect_work_on(m[other]);
  }
  // what the host holds too is taken from there
  weft::launch<takes_all>(m, {.devices = {.ids = {m[0].id(), m[2].id()}}}, weft::range(1000), held, elsewhere).wait();
  EXPECT_EQ(elsewhere.host(), fives);
  const auto refused = error_of([&] { m[1].reset(); });
  EXPECT_EQ(refused.code, errc::device_lost) << to_string(refused);
  EXPECT_NE(refused.what.find("restart the process"), std::string::npos) << refused.what;
  EXPECT_TRUE(m[1].is_lost());
  expect_work_on(m[2]);
  say("done");
}

TEST_F(gpu_other_process, DISABLED_fills_one_device) {
  const weft::machine m = open();
  constexpr std::size_t most = 48U << 20;
  {
    const weft::buffer<byte> first{m[0], most};
    const auto cause = error_of([&] { const weft::buffer<byte> second{m[0], most}; });
    EXPECT_EQ(cause.code, errc::out_of_memory) << to_string(cause);
    EXPECT_NE(cause.what.find("gpu0"), std::string::npos) << cause.what;
    EXPECT_FALSE(m[0].is_lost());
    const weft::buffer<byte> elsewhere{m[1], most};
    expect_work_on(m[0]);
    expect_work_on(m[1]);
  }
  const weft::buffer<byte> again{m[0], most};
  say("done");
}

TEST_F(gpu_other_process, DISABLED_frees_what_others_use) {
  const weft::machine m = open();
  std::optional<weft::shareable_buffer<byte>> mine{std::in_place, m[0], shared_size};
  weft::fill(mine->span(), byte{7});
  say(mine->handle().text());
  hear();
  mine.reset();
  say("freed");
  hear();
}

TEST_F(gpu_other_process, DISABLED_runs_a_kernel_until_it_is_killed) {
  const weft::machine m = open();
  const weft::shareable_buffer<byte> mine{m[0], shared_size};
  weft::fill(mine.span(), byte{7});
  const weft::pinned_buffer<byte> words{m[0], 2};
  words.data()[0] = words.data()[1] = 0;
  auto raw = raw_of("runs_on", "word[1] = 1; while (word[0] == 0) { }");
  auto argument = argument_of(words.data());
  argument.count = 2;
  const weft::stream order{m[0]};
  const auto running = samples::raw_launch{weft::make_kernel_code(raw), 1, {argument}}.in(m, order);
  EXPECT_TRUE(processes::comes_true([&] { return std::atomic_ref{words.data()[1]}.load() == 1; }));
  say(mine.handle().text());
  hear();  // for ever
  std::atomic_ref{words.data()[0]}.store(1);
}

TEST_F(gpu_other_process, DISABLED_opens_what_others_free) {
  const weft::machine m = open();
  {
    const weft::opened_memory<byte> theirs{m[0], weft::memory_handle::from_text(hear()), samples::only_a_hang};
    say("open");
    hear();  // or for ever
  }
  say("closed");
  hear();
}

TEST_F(gpu_other_process, DISABLED_opens_and_forks) {
  const weft::machine m = open();
  std::optional<weft::opened_memory<byte>> theirs{std::in_place, m[0], weft::memory_handle::from_text(hear()),
                                                  samples::only_a_hang};
  processes::child stays{[] { return ::pause(); }};
  say("open");
  hear();
  theirs.reset();
  say("closed");
  hear();
  stays.kill(SIGKILL);
}

TEST_F(gpu_other_process, DISABLED_opens_with_other_parts) {
  weft::machine_options options = samples::virtual_cuda_options();
  options.logical_devices = 2;
  const weft::machine m{options};
  const weft::opened_memory<byte> theirs{m[0], weft::memory_handle::from_text(hear()), samples::only_a_hang};
  say(to_string(theirs.owner()));
}

class gpu_faults : public samples::virtual_cuda_test {};

TEST_F(gpu_faults, an_access_of_two_machines_stays_when_the_first_of_them_disables_it) {
  const weft::machine first = open(), second = open();
  weft::enable_peer(first, samples::gpu0, samples::gpu1);
  const weft::peer_access lease{second, samples::gpu0, samples::gpu1};
  const weft::buffer<std::uint32_t> there{second[1], 1000};
  weft::fill(there, 5U);
  weft::disable_peer(first, samples::gpu0, samples::gpu1);
  weft::launch<adds_two>(weft::stream{second[0]}, weft::range(1000), there).wait();
  EXPECT_FALSE(second[0].is_lost());
}

TEST_F(gpu_faults, a_fault_of_a_kernel_takes_every_part_of_its_gpu_and_a_refused_access_one) {
  weft::machine_options options = samples::virtual_cuda_options();
  options.logical_devices = 2;
  const weft::machine m{options};
  const weft::buffer<byte> word{m[0], 1}, other{m[1], 1};
  const auto run = [&](const char* name, const char* body, void* address) {
    const auto code = weft::make_kernel_code(raw_of(name, body));
    return error_of([&] { samples::raw_launch{code, 1, {argument_of(address)}}.in(m, weft::stream{m[0]}).wait(); });
  };
  EXPECT_EQ(run("writes_a_neighbour", "word[0] = 1;", other.data()).code, errc::illegal_access);
  EXPECT_TRUE(m[0].is_lost());
  EXPECT_FALSE(m[1].is_lost()) << "the GPU has met no fault";
  m[0].reset();
  const weft::buffer<byte> again{m[0], 1};
  const auto fault = run("writes_past_all", "*(volatile unsigned char*)16 = 1;", again.data());
  EXPECT_EQ(fault.native_code, 700) << to_string(fault);
  ASSERT_TRUE(m[1].is_lost());
  EXPECT_EQ(m[1].lost_cause()->what, fault.what) << "the cause, not what the driver answers afterwards";
  EXPECT_EQ(error_of([&, d = m[1]] { weft::stream{d}.synchronize(); }).code, errc::device_lost);
  EXPECT_EQ(error_of([&, d = m[1]] { const weft::device_scope late{d}; }).code, errc::device_lost);
  EXPECT_FALSE(m[2].is_lost()) << "another GPU";
}

TEST_F(gpu_faults, memory_open_in_another_process_is_freed_only_after_its_close) {
  // the second has forked a child meanwhile, which lives on
  for (const char* const role : {"opens_what_others_free", "opens_and_forks"}) {
    other_process user{role};
    const weft::machine m = open();
    std::optional<weft::shareable_buffer<byte>> mine{std::in_place, m[0], shared_size};
    user.say(mine->handle().text());
    ASSERT_EQ(user.hear(), "open");
    driver.fail("");  // counts from here
    mine.reset();
    static_cast<void>(m[0].free_memory());  // looks what may go back
    EXPECT_EQ(driver.calls("cuMemFree"), 0U) << "the driver gives it to others at once";
    user.say("close it");
    ASSERT_EQ(user.hear(), "closed");
    EXPECT_TRUE(processes::comes_true([&] { return driver.calls("cuMemFree") == 1; })) << role;
    user.say("end");
    EXPECT_EQ(user.end(), 0);
  }
}

TEST_F(gpu_faults, memory_open_in_another_process_counts_against_the_limit) {
  other_process user{"opens_what_others_free"};
  weft::machine_options options = samples::virtual_cuda_options();
  options.memory_per_device = weft::bytes{8 << 20};
  const weft::machine m{options};
  std::optional<weft::shareable_buffer<byte>> mine{std::in_place, m[0], 6U << 20U};
  user.say(mine->handle().text());
  ASSERT_EQ(user.hear(), "open");
  mine.reset();
  EXPECT_EQ(error_of([&] { const weft::buffer<byte> more{m[0], 6U << 20U}; }).code, errc::out_of_memory);
  user.say("close it");
  ASSERT_EQ(user.hear(), "closed");
  EXPECT_TRUE(processes::comes_true([&] { return m[0].free_memory() >= weft::bytes{6U << 20U}; }));
  const weft::buffer<byte> more{m[0], 6U << 20U};
  user.say("end");
  EXPECT_EQ(user.end(), 0);
}

TEST_F(gpu_faults, another_split_does_not_hide_the_owner_of_opened_memory) {
  other_process user{"opens_with_other_parts"};
  const weft::machine m = open();
  const weft::shareable_buffer<byte> mine{m[2], shared_size};
  user.say(mine.handle().text());
  EXPECT_EQ(user.hear(), "gpu4") << "the first part of that GPU";
  EXPECT_EQ(user.end(), 0);
}

TEST_F(gpu_faults, memory_gone_with_a_reset_ends_the_work_held_back_for_it) {
  const weft::machine m = open();
  const weft::peer_access lease{m, m[1].id(), m[0].id()};
  std::optional<weft::buffer<byte>> old{std::in_place, m[0], 5000};
  const weft::buffer<byte> other{m[1], 5000};
  weft::fill(other, byte{1});
  const weft::stream order{m[1]}, second{m[1]}, third{m[1]};
  std::promise<void> go;
  auto gone = go.get_future().share();
  for (const weft::stream* one : {&order, &second, &third}) one->call([gone] { gone.wait(); });
  const auto copied = weft::copy(order, *old, other.span());
  const auto filled = weft::fill(second, *old, byte{3});
  const auto launched =
      samples::raw_launch{weft::make_kernel_code(raw_of("sets_old", "word[0] = 9;")), 1, {argument_of(old->data())}}.in(
          m, third);
  m[0].reset();
  const void* const place = old->data();
  old.reset();
  const weft::buffer<byte> fresh{m[0], 5000};
  EXPECT_EQ(fresh.data(), place) << "the driver gives the place out again";
  weft::fill(fresh, byte{7});
  go.set_value();
  for (const weft::event* one : {&copied, &filled, &launched})
    EXPECT_EQ(error_of([&] { one->wait(); }).code, errc::not_found);
  std::vector<byte> came(5000);
  weft::copy(came, fresh);
  EXPECT_EQ(came, std::vector<byte>(5000, 7));
  EXPECT_FALSE(m[1].is_lost());
}

TEST_F(gpu_faults, the_death_of_a_process_frees_the_memory_that_it_had_open) {
  other_process user{"opens_what_others_free"};
  const weft::machine m = open();
  std::optional<weft::shareable_buffer<byte>> mine{std::in_place, m[0], shared_size};
  user.say(mine->handle().text());
  ASSERT_EQ(user.hear(), "open");
  driver.fail("");
  mine.reset();
  EXPECT_EQ(driver.calls("cuMemFree"), 0U);
  user.kill();
  EXPECT_EQ(user.end(), -SIGKILL);
  EXPECT_TRUE(processes::comes_true([&] { return driver.calls("cuMemFree") == 1; }));
}

TEST_F(gpu_faults, memory_open_in_another_process_holds_up_neither_a_reset_nor_the_end) {
  other_process user{"opens_what_others_free"};
  {
    const weft::machine m = open();
    std::optional<weft::shareable_buffer<byte>> mine{std::in_place, m[0], shared_size};
    user.say(mine->handle().text());
    ASSERT_EQ(user.hear(), "open");
    mine.reset();
    m[0].reset();
    expect_work_on(m[0]);
  }
  user.say("close it");
  EXPECT_EQ(user.hear(), "closed");
  user.say("end");
  EXPECT_EQ(user.end(), 0);
}

TEST_F(gpu_faults, a_piece_begins_again_with_its_values_where_the_gpu_is_lost_after_its_kernel_has_run) {
  const weft::machine m = open();
  weft::array<std::uint32_t> numbers{m, std::vector<std::uint32_t>(1000, 5U)};
  // The two threads that would see the kernel end are kept busy until the GPU is lost.
  std::promise<void> let_go, is_busy;
  const auto busy = [until = let_go.get_future().share()] { until.wait_for(samples::only_a_hang); };
  const weft::pinned_buffer<byte> words{m[3], 1};
  words.data()[0] = 0;
  const auto code = weft::make_kernel_code(raw_of("runs_on", "while (word[0] == 0) { }"));
  const weft::stream order{m[3]};
  const auto running = samples::raw_launch{code, 1, {argument_of(words.data())}}.in(m, order);
  running.record()->on_complete([&] {
    is_busy.set_value();
    busy();
  });
  std::atomic_ref{words.data()[0]}.store(1);
  EXPECT_EQ(is_busy.get_future().wait_for(samples::only_a_hang), std::future_status::ready);
  weft::detail::state_of(m)->deciders().soon(busy);

  const weft::launch_run run = weft::launch<adds_two>(m,
                                                      {.devices = {.ids = {samples::gpu0, samples::gpu1}},
                                                       .strategy = weft::balance::static_equal,
                                                       .keep_on_device = false,
                                                       .on_failure = weft::failure_policy::retry_elsewhere},
                                                      weft::range(1000), numbers);
  {
    const weft::device_scope here{m[0]};
    driver.finish();
  }
  driver.lose(0, weft::gpu::CUDA_ERROR_ECC_UNCORRECTABLE);
  let_go.set_value();
  run.wait();
  EXPECT_TRUE(m[0].is_lost());
  EXPECT_EQ(numbers.host(), std::vector<std::uint32_t>(1000, 7U));
}

TEST_F(gpu_faults, a_faulting_kernel_loses_its_device_while_others_and_the_process_go_on) {
  other_process one{"runs_a_kernel_that_faults"};
  EXPECT_EQ(one.hear(), "done");
  EXPECT_EQ(one.end(), 0);
}

TEST_F(gpu_faults, a_lack_of_memory_is_one_devices_and_passes_when_some_is_given_back) {
  other_process one{"fills_one_device", {{"WEFT_VIRTUAL_CUDA_MEMORY", "64MiB"}}};
  EXPECT_EQ(one.hear(), "done");
  EXPECT_EQ(one.end(), 0);
}

TEST_F(gpu_faults, code_for_another_architecture_is_refused_with_the_reason) {
  const auto compiler = weft::gpu::load_nvrtc(samples::virtual_cuda_library(), 0);
  ASSERT_TRUE(compiler) << compiler.error().what;
  weft::raw_kernel raw = raw_of("sets_a_word", "word[0] = 9;");
  const auto compiled = (*compiler)->compile(*weft::make_kernel_code(raw), 120);
  ASSERT_TRUE(compiled) << compiled.error().what;
  raw.cuda_source.clear();
  raw.cuda_image = compiled->bytes;
  const weft::machine m = open();
  const weft::buffer<byte> word{m[0], 1};
  const auto run = [&] {
    samples::raw_launch{weft::make_kernel_code(raw), 1, {argument_of(word.data())}}.in(m, weft::stream{m[0]}).wait();
  };
  const auto cause = error_of(run);
  EXPECT_EQ(cause.code, errc::incompatible) << to_string(cause);
  EXPECT_EQ(cause.native_code, 209);
  for (const char* const words : {"sets_a_word", "compute capability 9.0", "another architecture"})
    EXPECT_NE(cause.what.find(words), std::string::npos) << cause.what;
  EXPECT_FALSE(m[0].is_lost());
  expect_work_on(m[0]);
}

TEST_F(gpu_faults, a_process_that_frees_shared_memory_ends_its_use_by_others_and_no_device) {
  other_process owner{"frees_what_others_use"};
  const std::string handle = owner.hear();
  ASSERT_FALSE(handle.empty());
  const weft::machine m = open();
  const weft::opened_memory<byte> theirs{m[0], weft::memory_handle::from_text(handle), samples::only_a_hang};
  std::vector<byte> data(shared_size);
  weft::copy(data, theirs.span());
  EXPECT_EQ(data, std::vector<byte>(shared_size, 7));
  owner.say("free it");
  ASSERT_EQ(owner.hear(), "freed");
  const auto cause = error_of([&] { weft::copy(data, theirs.span()); });
  EXPECT_EQ(cause.code, errc::closed) << to_string(cause);
  EXPECT_EQ(error_of([&] { weft::fill(theirs.span(), byte{1}); }).code, errc::closed);
  const auto code = weft::make_kernel_code(raw_of("sets_a_word", "word[0] = 9;"));
  const samples::raw_launch kernel{code, 1, {argument_of(theirs.span().data())}};
  EXPECT_EQ(error_of([&] { kernel.in(m, weft::stream{m[0]}).wait(); }).code, errc::closed);
  EXPECT_FALSE(m[0].is_lost());
  expect_work_on(m[0]);
  owner.say("end");
  EXPECT_EQ(owner.end(), 0);
}

TEST_F(gpu_faults, a_process_killed_in_its_kernel_is_told_to_the_users_of_its_memory) {
  other_process owner{"runs_a_kernel_until_it_is_killed"};
  const std::string handle = owner.hear();
  ASSERT_FALSE(handle.empty());
  const weft::machine m = open();
  const weft::opened_memory<byte> theirs{m[0], weft::memory_handle::from_text(handle), samples::only_a_hang};
  std::vector<byte> data(shared_size);
  weft::copy(data, theirs.span());
  EXPECT_EQ(data, std::vector<byte>(shared_size, 7));
  owner.kill();
  EXPECT_EQ(owner.end(), -SIGKILL);
  // its death is seen a little later: a copy until then has its pages still
  weft::error cause;
  EXPECT_TRUE(processes::comes_true([&] {
    try {
      EXPECT_EQ(weft::copy(weft::stream{m[0]}, data, theirs.span()).wait_for(samples::soon), weft::wait_outcome::ok);
      return false;
    } catch (const weft::error_exception& failed) {
      cause = failed.cause();
      return true;
    }
  }));
  EXPECT_EQ(cause.code, errc::peer_dead) << to_string(cause);
  const weft::memory_handle name = weft::memory_handle::from_text(handle);
  EXPECT_EQ(error_of([&] { const weft::opened_memory<byte> again{m[0], name, samples::only_a_hang}; }).code,
            errc::peer_dead);
  EXPECT_FALSE(m[0].is_lost());
  expect_work_on(m[0]);
}

}  // namespace gpu_faults_test
