// SPDX-License-Identifier: Apache-2.0
#include "weft/core/log.hpp"

#include "core/errors/decision_log.hpp"
#include "support/hang.hpp"
#include "support/processes.hpp"

#include <gtest/gtest.h>

#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

namespace log_test {

using weft::log_level;

class log_hook : public testing::Test {
 protected:
  void SetUp() override { before_ = weft::set_log_hook({}); }
  void TearDown() override { weft::set_log_hook(std::move(before_)); }

 private:
  weft::log_hook before_;
};

TEST_F(log_hook, a_message_without_a_hook_is_silent) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  weft::log(log_level::error, "nobody hears this");
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST_F(log_hook, hears_level_and_text) {
  std::vector<std::string> heard;
  weft::set_log_hook([&](log_level level, std::string_view text) {
    heard.push_back((level == log_level::warning ? "w:" : "e:") + std::string{text});
  });
  weft::log(log_level::warning, "one");
  weft::log(log_level::error, "two");
  EXPECT_EQ(heard, (std::vector<std::string>{"w:one", "e:two"}));
}

TEST_F(log_hook, hears_only_what_is_as_grave_as_it_wants) {
  std::vector<std::string> heard;
  const auto listen = [&](log_level level, std::string_view text) {
    heard.push_back(std::string{to_string(level)} + ":" + std::string{text});
  };
  EXPECT_FALSE(weft::is_logged(log_level::error));
  weft::set_log_hook(listen);
  EXPECT_TRUE(weft::is_logged(log_level::warning));
  EXPECT_FALSE(weft::is_logged(log_level::info));
  weft::log(log_level::info, "unheard");
  weft::set_log_hook(listen, log_level::info);
  weft::log(log_level::debug, "unheard");
  weft::log(log_level::info, "heard");
  EXPECT_EQ(heard, std::vector<std::string>{"info:heard"});
}

TEST_F(log_hook, hears_a_decision_at_info_once_and_at_debug_again) {
  std::vector<std::string> heard;
  weft::set_log_hook(
      [&](log_level level, std::string_view text) {
        heard.push_back(std::string{to_string(level)} + ":" + std::string{text});
      },
      log_level::debug);
  for (const char* text : {"decided so", "decided so", "decided otherwise"}) weft::detail::log_decision(text);
  EXPECT_EQ(heard, (std::vector<std::string>{"info:decided so", "debug:decided so", "info:decided otherwise"}));
}

TEST_F(log_hook, gives_back_the_one_before) {
  int first = 0;
  weft::set_log_hook([&](log_level, std::string_view) { ++first; });
  const weft::log_hook old = weft::set_log_hook({});
  weft::log(log_level::warning, "unheard");
  EXPECT_EQ(first, 0);
  ASSERT_TRUE(old);
  old(log_level::warning, "heard");
  EXPECT_EQ(first, 1);
}

TEST_F(log_hook, may_throw_without_harm) {
  weft::set_log_hook([](log_level, std::string_view) { throw std::runtime_error{"no"}; });
  weft::log(log_level::error, "text");
  SUCCEED();
}

/// In a child: a lock that is waited for without end is the process's.
template <class F>
void expect_in_child(F&& is_so) {
  processes::child child{[&] {
    ::alarm(samples::only_a_hang.count());
    return is_so() ? 0 : 1;
  }};
  EXPECT_EQ(child.wait(), 0) << "minus the signal SIGALRM: it hangs";
}

TEST_F(log_hook, may_replace_itself) {
  expect_in_child([] {
    int heard = 0;
    weft::log_hook before;
    weft::set_log_hook([&](log_level, std::string_view) {
      before = weft::set_log_hook({});
      ++heard;
    });
    for (const char* text : {"heard", "unheard"}) weft::log(log_level::warning, text);
    return heard == 1 && before;
  });
}

TEST_F(log_hook, may_log_and_does_not_hear_that) {
  expect_in_child([] {
    std::vector<std::string> heard;
    weft::set_log_hook(
        [&](log_level, std::string_view text) {
          heard.emplace_back(text);
          weft::log(log_level::error, "of the hook");
          weft::detail::log_decision("decided by what the hook calls");
          if (heard.size() == 1) throw std::runtime_error{"no"};
        },
        log_level::debug);
    for (const char* text : {"one", "two"}) weft::log(log_level::warning, text);
    return heard == std::vector<std::string>{"one", "two"};
  });
}

TEST_F(log_hook, is_not_running_any_more_once_another_thread_has_replaced_it) {
  std::promise<void> began, go_on;
  bool ended = false;  // plain on purpose: replacing the hook comes after its call
  weft::set_log_hook([&, opened = go_on.get_future().share()](log_level, std::string_view) {
    began.set_value();
    opened.wait_for(samples::only_a_hang);
    ended = true;
  });
  std::thread logs{[] { weft::log(log_level::warning, "x"); }};
  EXPECT_EQ(began.get_future().wait_for(samples::only_a_hang), std::future_status::ready);
  std::thread replaces{[&] {
    weft::set_log_hook({});
    EXPECT_TRUE(ended);
  }};
  go_on.set_value();
  replaces.join();
  logs.join();
}

TEST_F(log_hook, is_called_one_call_at_a_time) {
  int inside = 0, worst = 0, calls = 0;  // plain on purpose: the hook is promised one call at a time
  weft::set_log_hook([&](log_level, std::string_view) {
    worst = std::max(worst, ++inside);
    ++calls;
    --inside;
  });
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 500; ++i) weft::log(log_level::warning, "x");
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(worst, 1);
  EXPECT_EQ(calls, 2000);
}

}  // namespace log_test
