// SPDX-License-Identifier: Apache-2.0
#include "support/samples.hpp"
#include "weft/backend/backend.hpp"
#include "weft/memory/copy.hpp"
#include "weft/runtime/machine.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>

namespace own_backend_test {

weft::result<std::unique_ptr<weft::backend>> broken(const weft::backend_options&) noexcept {
  weft::error cause;
  cause.code = weft::errc::resource_exhausted;
  cause.what = "the driver said 42";
  return cause;
}

weft::result<std::unique_ptr<weft::backend>> misled(const weft::backend_options&) noexcept {
  weft::error cause;
  cause.code = weft::errc::invalid_argument;
  cause.what = "WEFT_MISLED is 2: expected 0 or 1";
  return cause;
}

weft::result<std::unique_ptr<weft::backend>> of_the_host(const weft::backend_options& options) noexcept {
  return weft::find_backend("host")->open(options);
}

/// A variable of the environment, or that it is not set, for as long as it lives. No thread runs when it changes.
class variable {
 public:
  variable(const char* name, const char* value) : name_(name) {
    if (const char* const old = std::getenv(name)) before_ = old;
    set(value);
  }
  ~variable() { set(before_ ? before_->c_str() : nullptr); }
  variable(const variable&) = delete;
  variable& operator=(const variable&) = delete;

 private:
  void set(const char* value) const {
    if (value != nullptr) {
      ::setenv(name_, value, 1);
    } else {
      ::unsetenv(name_);
    }
  }

  const char* name_;
  std::optional<std::string> before_;
};

const weft::backend_status& status_of(const weft::machine& m, std::string_view name) {
  for (const weft::backend_status& b : m.backends()) {
    if (b.name == name) return b;
  }
  throw std::runtime_error("no such backend");
}

TEST(own_backend, a_backend_that_fails_to_open_breaks_nothing_and_says_why) {
  weft::machine_options options;
  options.devices = 2;
  options.more_backends = {{weft::backend_kind::cuda, "broken", &broken}};
  const weft::machine m{options};
  EXPECT_EQ(m.device_count(), 2);
  EXPECT_EQ(m.device_count("host"), 2);
  EXPECT_EQ(m.device_count("cuda"), 0);
  EXPECT_FALSE(status_of(m, "broken").available);
  EXPECT_NE(status_of(m, "broken").why.find("the driver said 42"), std::string::npos);
}

TEST(own_backend, a_backend_that_nobody_named_and_a_wrong_variable_misleads_is_an_error) {
  weft::machine_options options;
  options.more_backends = {{weft::backend_kind::cuda, "misled", &misled}};
  const weft::error refused = samples::error_of([&] { const weft::machine m{options}; });
  EXPECT_EQ(refused.code, weft::errc::invalid_argument);
  EXPECT_NE(refused.what.find("WEFT_MISLED is 2"), std::string::npos) << refused.what;
}

TEST(own_backend, a_backend_that_fails_with_the_driver_of_a_variable_is_noted) {
  const variable none{"WEFT_CUDA_DRIVER", nullptr};
  weft::machine_options options;
  options.more_backends = {{weft::backend_kind::cuda, "cuda", &broken}};
  const auto is_noted = [&] {
    const weft::machine m{options};
    return std::ranges::count(m.notes(), "the driver said 42") == 1;
  };
  EXPECT_FALSE(is_noted()) << "not every computer has a GPU";
  const variable driver{"WEFT_CUDA_DRIVER", "/nowhere/libcuda.so.1"};
  EXPECT_TRUE(is_noted());
  options.check_access = true;
  EXPECT_FALSE(is_noted()) << "it was not opened";
}

TEST(own_backend, a_required_backend_that_fails_is_an_error_with_its_reason) {
  weft::machine_options options;
  options.backend = "broken";
  options.more_backends = {{weft::backend_kind::cuda, "broken", &broken}};
  try {
    const weft::machine m{options};
    FAIL() << "the machine opened";
  } catch (const weft::error_exception& failed) {
    EXPECT_NE(std::string{failed.what()}.find("the driver said 42"), std::string::npos);
  }
}

TEST(own_backend, a_preferred_backend_that_fails_is_replaced_by_the_host_with_a_note) {
  weft::machine_options options;
  options.backend = "broken";
  options.backend_required = false;
  options.more_backends = {{weft::backend_kind::cuda, "broken", &broken}};
  const weft::machine m{options};
  EXPECT_EQ(m[0].kind(), weft::backend_kind::host);
  ASSERT_FALSE(m.notes().empty());
  EXPECT_NE(m.notes().back().find("the driver said 42"), std::string::npos);
  EXPECT_TRUE(status_of(m, "host").available);
  EXPECT_TRUE(status_of(m, "host").looked_at);
  EXPECT_EQ(status_of(m, "host").why, "");
}

TEST(own_backend, a_backend_that_works_is_preferred_and_used) {
  weft::machine_options options;
  options.devices = 3;
  options.more_backends = {{weft::backend_kind::host, "ported", &of_the_host}};
  const weft::machine m{options};
  EXPECT_TRUE(status_of(m, "ported").available);
  EXPECT_EQ(m.device_count(), 3);
  EXPECT_EQ(m.device_count("ported"), 3);
  EXPECT_EQ(m.device_count("host"), 0) << "its devices are of the host's kind, and no other backend was opened";
  EXPECT_EQ(m.devices({.backend = "ported"}).size(), 3U);
  const weft::buffer<int> b{m[2], 3};
  const std::vector<int> sent{5, 7, 9};
  std::vector<int> got(3);
  weft::copy(b, sent);
  weft::copy(got, b);
  EXPECT_EQ(got, sent);
}

}  // namespace own_backend_test
