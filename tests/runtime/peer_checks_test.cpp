// SPDX-License-Identifier: Apache-2.0
// When a pair is tried, what follows from it, and what the next process is spared.
#include "runtime/peer_checks.hpp"

#include "support/samples.hpp"
#include "weft/core/log.hpp"
#include "weft/memory/peer_access.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

namespace peer_checks_test {

using samples::gpu0;
using samples::gpu1;
using samples::gpu2;
using weft::errc;
using weft::machine;
using weft::peer_delivery;
using weft::peer_outcome;
using weft::peer_verification;
using weft::peer_way;

/// What the driver below answers, and how often it was asked.
struct answers {
  std::atomic<int> asked{0};
  weft::result<peer_delivery> of_commands{peer_delivery{}};
  std::string driver = "driver 1";
};
answers* given = nullptr;

/// Three devices of a driver that can try its pairs, and nothing else.
class pairs final : public weft::backend {
 public:
  pairs() : backend(identity()) {}
  ~pairs() override { close(); }

 private:
  static weft::backend_identity identity() {
    weft::backend_identity of{weft::backend_kind::cuda, gpu0, {}, weft::host_topology(3, weft::bytes{1024})};
    for (int i = 0; i < 3; ++i) {
      weft::device_description made;
      made.name = "one of a pair";
      made.kind = weft::backend_kind::cuda;
      made.pci_address = "0000:0" + std::to_string(i) + ":00.0";
      made.driver = given->driver;
      of.devices.push_back(made);
    }
    return of;
  }
  [[nodiscard]] weft::result<peer_delivery> do_verify_peer(weft::device_id, weft::device_id, peer_way way) override {
    ++given->asked;
    return way == peer_way::commands ? given->of_commands : weft::result<peer_delivery>{peer_delivery{}};
  }
};

weft::result<std::unique_ptr<weft::backend>> open_pairs(const weft::backend_options&) noexcept {
  return std::unique_ptr<weft::backend>{std::make_unique<pairs>()};
}

class peer_checks : public testing::Test {
 protected:
  void SetUp() override {
    cache_ = std::filesystem::temp_directory_path() / ("weft-peers-" + std::to_string(::getpid()));
    std::filesystem::remove_all(cache_);
    std::filesystem::create_directories(cache_);
    ::setenv("XDG_CACHE_HOME", cache_.c_str(), 1);
    given = &driver;
    before_ = weft::set_log_hook([this](weft::log_level, std::string_view text) { log.emplace_back(text); });
  }
  void TearDown() override {
    weft::set_log_hook(std::move(before_));
    std::filesystem::remove_all(cache_);
  }
  static machine open(std::optional<peer_verification> when = {}) {
    weft::machine_options options;
    options.more_backends = {{weft::backend_kind::cuda, "pairs", &open_pairs}};
    options.backend = "pairs";
    options.verify_peers = when;
    return machine{options};
  }
  [[nodiscard]] std::filesystem::path file() const { return cache_ / "weft" / "peers"; }
  /// Whether a new machine asks the driver for what an earlier one found out.
  [[nodiscard]] bool is_asked_again(std::optional<peer_verification> when = {}) {
    const int before = driver.asked;
    const machine m = open(when);
    static_cast<void>(weft::detail::peers_of(*weft::detail::state_of(m)).refusal(gpu0, gpu1, peer_way::commands));
    return driver.asked != before;
  }

  answers driver;
  std::vector<std::string> log;
  std::filesystem::path cache_;

 private:
  weft::log_hook before_;
};

TEST_F(peer_checks, try_each_way_of_each_ordered_pair_once) {
  const machine m = open();
  auto& peers = weft::detail::peers_of(*weft::detail::state_of(m));
  EXPECT_EQ(driver.asked, 0) << "opening a machine uses no pair";
  for (int again = 0; again < 3; ++again) {
    EXPECT_EQ(peers.refusal(gpu0, gpu1, peer_way::commands), nullptr);
    EXPECT_EQ(driver.asked, 1);
  }
  EXPECT_EQ(peers.refusal(gpu1, gpu0, peer_way::commands), nullptr);
  EXPECT_EQ(driver.asked, 2) << "the other direction is another pair";
  EXPECT_EQ(peers.refusal(gpu0, gpu1, peer_way::blocks), nullptr);
  EXPECT_EQ(driver.asked, 3) << "blocks may differ";
  EXPECT_EQ(peers.refusal(gpu0, gpu0, peer_way::commands), nullptr);
  EXPECT_EQ(driver.asked, 3) << "a device is not a peer of itself";
}

TEST_F(peer_checks, many_threads_at_once_try_a_pair_once) {
  const machine m = open();
  auto& peers = weft::detail::peers_of(*weft::detail::state_of(m));
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&] { EXPECT_EQ(peers.refusal(gpu0, gpu1, peer_way::commands), nullptr); });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(driver.asked, 1);
}

TEST_F(peer_checks, end_the_use_of_a_pair_that_loses_data_and_say_so_once) {
  driver.of_commands = peer_delivery{false, "a copy: at byte 8 expected 0x01, got 0x00"};
  const machine m = open();
  auto& peers = weft::detail::peers_of(*weft::detail::state_of(m));
  const std::uint64_t before = peers.epoch();
  const auto why = peers.refusal(gpu0, gpu1, peer_way::commands);
  ASSERT_NE(why, nullptr);
  EXPECT_NE(why->find("from gpu0 to gpu1 does not arrive (a copy: at byte 8 expected 0x01, got 0x00)"),
            std::string::npos)
      << *why;
  EXPECT_NE(peers.epoch(), before);
  EXPECT_NE(peers.refusal(gpu0, gpu1, peer_way::blocks), nullptr) << "no way of the pair is trusted any more";
  EXPECT_EQ(driver.asked, 1);
  EXPECT_EQ(peers.failure(gpu0, gpu1), *why);
  EXPECT_EQ(peers.failure(gpu1, gpu0), "");
  ASSERT_EQ(log.size(), 1U);
  EXPECT_NE(log[0].find(*why), std::string::npos) << log[0];
  EXPECT_EQ(samples::error_of([&] { peers.require(gpu0, gpu1, peer_way::pools, "a use"); }).code,
            errc::peer_unsupported);
}

TEST_F(peer_checks, call_the_log_hook_under_no_lock) {
  driver.of_commands = peer_delivery{false, "a copy: lost"};
  const machine m = open();
  auto& peers = weft::detail::peers_of(*weft::detail::state_of(m));
  std::string asked;
  weft::set_log_hook([&](weft::log_level, std::string_view) { asked = peers.failure(gpu0, gpu1); });
  EXPECT_NE(peers.refusal(gpu0, gpu1, peer_way::commands), nullptr);
  EXPECT_NE(asked, "") << "the hook may ask what it is told of";
}

TEST_F(peer_checks, do_not_keep_what_was_tried_in_part) {
  driver.of_commands = peer_delivery{true, "stores and loads of kernels were not tried: no compiler"};
  EXPECT_TRUE(is_asked_again());
  EXPECT_TRUE(is_asked_again()) << "the next process may have the compiler";
}

TEST_F(peer_checks, let_a_pair_be_used_that_cannot_be_tried_and_warn_once) {
  driver.of_commands = weft::error{.code = errc::out_of_memory, .what = "nothing left"};
  const machine m = open();
  auto& peers = weft::detail::peers_of(*weft::detail::state_of(m));
  for (int again = 0; again < 3; ++again) EXPECT_EQ(peers.refusal(gpu0, gpu1, peer_way::commands), nullptr);
  EXPECT_EQ(driver.asked, 1);
  ASSERT_EQ(log.size(), 1U);
  EXPECT_NE(log[0].find("nothing left"), std::string::npos) << log[0];
  EXPECT_TRUE(is_asked_again()) << "what was not found out is not kept";
}

TEST_F(peer_checks, never_try_a_pair_where_the_program_or_the_environment_says_so) {
  EXPECT_FALSE(is_asked_again(peer_verification::never));
  ::setenv("WEFT_VERIFY_PEERS", "never", 1);
  EXPECT_FALSE(is_asked_again());
  EXPECT_TRUE(is_asked_again(peer_verification::first_use)) << "what the program says goes first";
  ::setenv("WEFT_VERIFY_PEERS", "sometimes", 1);
  const weft::error refused = samples::error_of([] { static_cast<void>(open()); });
  EXPECT_EQ(refused.code, errc::invalid_argument);
  EXPECT_NE(refused.what.find("'sometimes'"), std::string::npos) << refused.what;
  ::unsetenv("WEFT_VERIFY_PEERS");
}

TEST_F(peer_checks, spare_the_next_machine_what_one_found_out) {
  EXPECT_TRUE(is_asked_again());
  EXPECT_FALSE(is_asked_again());
  EXPECT_TRUE(is_asked_again(peer_verification::always)) << "always does not believe it";
  driver.driver = "driver 2";
  EXPECT_TRUE(is_asked_again()) << "another driver may be mended, or broken";
  EXPECT_FALSE(is_asked_again());
  driver.driver = "";
  EXPECT_TRUE(is_asked_again()) << "a driver of the program's is nobody else's";
  EXPECT_TRUE(is_asked_again());
}

TEST_F(peer_checks, make_the_folders_of_a_user_who_has_none_for_that_user_alone) {
  std::filesystem::remove_all(cache_);
  EXPECT_TRUE(is_asked_again());
  EXPECT_FALSE(is_asked_again());
  for (const auto& folder : {cache_, cache_ / "weft"})
    EXPECT_EQ(std::filesystem::status(folder).permissions(), std::filesystem::perms::owner_all) << folder;
}

TEST_F(peer_checks, tell_the_next_machine_of_a_pair_that_loses_data) {
  driver.of_commands = peer_delivery{false, "a copy: at byte 8\texpected\n0x01"};
  EXPECT_TRUE(is_asked_again());
  EXPECT_FALSE(is_asked_again());
  ASSERT_EQ(log.size(), 2U) << "each machine says it";
  EXPECT_NE(log[1].find("(a copy: at byte 8 expected 0x01)"), std::string::npos) << log[1];
}

TEST_F(peer_checks, forget_what_was_found_before_the_computer_started) {
  EXPECT_TRUE(is_asked_again());
  std::string text;
  {
    std::ifstream in{file()};
    text.assign(std::istreambuf_iterator<char>{in}, {});
  }
  const std::size_t end = text.find('\n');
  ASSERT_NE(end, std::string::npos) << text;
  std::ofstream{file()} << "weft peers 1 12345" << text.substr(end);
  EXPECT_TRUE(is_asked_again());
  EXPECT_FALSE(is_asked_again()) << "and a new file was begun";
}

TEST_F(peer_checks, do_without_a_file_that_is_not_theirs_to_use) {
  EXPECT_TRUE(is_asked_again());
  const std::string good = [&] {
    std::ifstream in{file()};
    return std::string{std::istreambuf_iterator<char>{in}, {}};
  }();
  const auto elsewhere = cache_ / "elsewhere";
  std::ofstream{elsewhere} << good;
  std::filesystem::remove(file());
  std::filesystem::create_symlink(elsewhere, file());
  EXPECT_TRUE(is_asked_again()) << "a link";
  std::filesystem::remove(file());
  ASSERT_EQ(::mkfifo(file().c_str(), 0600), 0);
  EXPECT_TRUE(is_asked_again()) << "a pipe, which would hang";
  std::filesystem::remove(file());
  for (const std::string& text :
       {std::string{"weft"}, good.substr(0, good.size() - 1), good.substr(0, good.find('\n') + 1) + "a\tb\tc\n",
        std::string(4096, '\t'), std::string(std::size_t{2} << 20, 'x')}) {
    std::ofstream{file()} << text;
    EXPECT_TRUE(is_asked_again()) << text.substr(0, 80);
    std::filesystem::remove(file());
  }
  std::filesystem::remove_all(cache_);
  std::ofstream{cache_} << "no folder";
  EXPECT_TRUE(is_asked_again());
}

/// Two devices that are played with this fault, and tried by commands.
machine with_faults(std::vector<weft::topology_fault> faults, weft::clock_kind clock = weft::clock_kind::wall) {
  weft::topology layout = samples::wired(2);
  layout.faults = std::move(faults);
  return samples::play(std::move(layout), clock);
}

TEST_F(peer_checks, go_on_using_a_pair_that_something_else_kept_them_from_trying) {
  weft::topology_fault no_memory;
  no_memory.what = weft::topology_fault::kind::call_fails;
  no_memory.call = "allocate";
  no_memory.device = gpu1;
  const machine m = with_faults({no_memory});
  const auto found = weft::verify_peers(m);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].outcome, peer_outcome::not_tried);
  EXPECT_FALSE(found[0].arrived);
  EXPECT_NE(found[0].why.find("injected fault"), std::string::npos) << found[0].why;
  EXPECT_TRUE(weft::capability_between(m, gpu0, gpu1)->trusted);
  EXPECT_EQ(found[1].outcome, peer_outcome::arrived) << found[1].why;
  EXPECT_TRUE(log.empty()) << log.front();
  EXPECT_EQ(weft::verify_peers(m, true)[0].outcome, peer_outcome::arrived);
}

TEST_F(peer_checks, do_not_forgive_a_pair_that_they_could_not_try_again) {
  weft::topology_fault drops, fails;
  drops.what = weft::topology_fault::kind::drops_data;
  drops.from = gpu0;
  drops.to = gpu1;
  fails.what = weft::topology_fault::kind::call_fails;
  fails.call = "copy";
  fails.nth = 5;  // two patterns, over the pair, and back: then the next check
  const machine m = with_faults({drops, fails});
  const weft::peer_access lease{m, gpu0, gpu1};
  auto& peers = weft::detail::peers_of(*weft::detail::state_of(m));
  EXPECT_EQ(peers.try_all(gpu0, gpu1).outcome, peer_outcome::wrong_data);
  const std::string why = peers.failure(gpu0, gpu1);
  EXPECT_NE(why, "");
  EXPECT_EQ(peers.try_all(gpu0, gpu1).outcome, peer_outcome::not_tried);
  EXPECT_EQ(peers.failure(gpu0, gpu1), why);
}

TEST_F(peer_checks, go_on_using_a_pair_whose_devices_may_have_had_other_work) {
  weft::topology_fault stalls;
  stalls.what = weft::topology_fault::kind::device_stalls;
  stalls.device = gpu1;
  stalls.duration = std::chrono::minutes{1};
  const machine m = with_faults({stalls}, weft::clock_kind::virtual_time);
  auto& peers = weft::detail::peers_of(*weft::detail::state_of(m));
  const auto found = peers.try_all(gpu0, gpu1);
  EXPECT_EQ(found.outcome, peer_outcome::failed);
  EXPECT_NE(found.why.find("did not end a small copy in time"), std::string::npos) << found.why;
  EXPECT_EQ(peers.failure(gpu0, gpu1), "");
}

TEST_F(peer_checks, end_the_use_of_a_pair_whose_copy_fails) {
  weft::topology_fault fails;
  fails.what = weft::topology_fault::kind::copy_fails;
  fails.from = gpu0;
  fails.to = gpu1;
  const machine m = with_faults({fails});
  const weft::peer_access lease{m, gpu0, gpu1};
  auto& peers = weft::detail::peers_of(*weft::detail::state_of(m));
  EXPECT_EQ(peers.try_all(gpu0, gpu1).outcome, peer_outcome::failed);
  EXPECT_NE(peers.failure(gpu0, gpu1), "");
  EXPECT_EQ(peers.try_all(gpu0, gpu1).outcome, peer_outcome::arrived);
  EXPECT_EQ(peers.failure(gpu0, gpu1), "") << "the fault was the first copy's alone";
}

TEST_F(peer_checks, go_on_using_the_pairs_of_a_device_that_is_lost_before_or_while_they_are_tried) {
  weft::topology_fault loses;
  loses.what = weft::topology_fault::kind::device_lost;
  loses.device = gpu1;
  const machine m = with_faults({loses});
  for (const weft::peer_check& found : weft::verify_peers(m)) {
    EXPECT_EQ(found.outcome, peer_outcome::not_tried) << found.why;
    EXPECT_NE(found.why.find("gpu1"), std::string::npos) << found.why;
    EXPECT_TRUE(weft::capability_between(m, found.from, found.to)->trusted);
  }
  EXPECT_TRUE(log.empty()) << log.front();
  m[1].reset();
  for (const weft::peer_check& found : weft::verify_peers(m, true))
    EXPECT_EQ(found.outcome, peer_outcome::arrived) << found.why;
}

}  // namespace peer_checks_test
