// SPDX-License-Identifier: Apache-2.0
// The conformance suite on the backends of GPUs over a driver of which one call fails: no crash, no hang, and what does
// not hold says why. A sample, chosen by WEFT_SEED; or the campaign, WEFT_SWEEP=all: every function, every one of its
// calls, every code. WEFT_SWEEP=2/8 is the second of eight shares of it, for several processes; WEFT_SWEEP_CASES and
// WEFT_SWEEP_FUNCTIONS are parts of names that it keeps to.
#include "backends/gpu/cuda/nvml_functions.hpp"
#include "conformance/conformance.hpp"
#include "support/paths.hpp"
#include "virtual_driver/loaded_driver.hpp"
#include "virtual_driver/virtual_machine.hpp"
#include "weft/core/log.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <functional>
#include <iterator>
#include <optional>
#include <random>
#include <regex>
#include <string>
#include <vector>

namespace failing_calls_test {

using virtual_cuda::be_bounded;
using virtual_cuda::open_hip_machine;
using virtual_cuda::open_machine;

std::string environment_of(const char* name) {
  const char* const text = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): in the one thread of a test
  return text == nullptr ? "" : text;
}

std::vector<std::string> groups() {
  std::vector<std::string> all;
  for (const weft::conformance_case& one : weft::conformance_cases()) {
    if (std::find(all.begin(), all.end(), one.group) == all.end()) all.emplace_back(one.group);
  }
  return all;
}

std::string name_of(const testing::TestParamInfo<std::string>& one) { return one.param; }

/// The face of the driver that this process's children have: fork passes it on.
struct face {
  std::string library;
  weft::machine (*open)();
  bool keeps_contexts;  // a fault ends the process, and contexts stay
};
face played{samples::virtual_cuda_library(), &open_machine, false};

// ---- one run --------------------------------------------------------------------------------------------------------

/// "cuMemAlloc", 3, "2": its third call answers 2. "kill": it ends the process.
struct failing_call {
  std::string function;  // "*": of any
  unsigned long long n = 0;
  std::string code;

  [[nodiscard]] std::string plan() const { return function + "@" + std::to_string(n) + "=" + code; }
};

// Whether a case that did not hold says that a call failed.
bool tells_of_a_failure(const std::string& why) {
  for (const char* const words : {"CUDA_ERROR_", "NVRTC_ERROR_", "hipError", "HIPRTC error",
                                  "it failed: ", "did not open: ", "is lost", "closing the machine failed: "}) {
    if (why.find(words) != std::string::npos) return true;
  }
  return false;
}

// Wrong bytes, as the cases say it. Anything else that a case finds may be how it sees work that failed: it has ended.
bool tells_of_wrong_data(const std::string& why) {
  static const std::regex words{"(offset|element) [0-9]+ .*expected [^ ]+, got"};
  return std::regex_search(why, words);
}

bool is_sticky(const std::string& code) { return code == "700" || code == "719"; }

/// Functions that give something back: where one of them fails, what it was to give back stays.
bool gives_back(const std::string& function) {
  for (const char* const words : {"Release", "Free", "Unmap", "Destroy", "Close", "Reset", "Unload", "*"}) {
    if (function.find(words) != std::string::npos) return true;
  }
  return false;
}

/// Where contexts stay: a fault keeps all memory until the process ends, and the calls that give memory back make the
/// device current first.
bool keeps_memory(const failing_call& failing) {
  return played.keeps_contexts && (is_sticky(failing.code) || failing.function.rfind("device.", 0) == 0 ||
                                   failing.function.rfind("cuCtx", 0) == 0);
}

/// When its machine is closed, memory and contexts are back: once the plan is over, nothing of the driver is in use.
void expect_nothing_kept() {
  for (int device = 0; device < 4; ++device) {
    if (!played.keeps_contexts) {
      const virtual_cuda::loaded_driver cu;
      int count = 0;
      if (cu.cuDeviceGetCount(&count) != weft::gpu::CUDA_SUCCESS || device >= count) return;  // it was never started
      unsigned flags = 0;
      int is_active = 0;
      EXPECT_EQ(cu.cuDevicePrimaryCtxGetState(device, &flags, &is_active), weft::gpu::CUDA_SUCCESS);
      EXPECT_EQ(is_active, 0) << "the context of device " << device << " was not given back";
    }
    EXPECT_EQ(virtual_cuda::find<unsigned long long(int)>("weft_virtual_used")(device), 0U)
        << "bytes of device " << device << " that nobody gave back";
  }
}

/// In a child: the case with a call that fails.
void run_failing(const weft::conformance_case& one, const failing_call& failing) {
  be_bounded();
  virtual_cuda::library_path() = played.library;
  static std::atomic<int> remarks{0};  // of what has nobody to throw to, such as a stream that goes out of scope
  weft::set_log_hook([](weft::log_level, std::string_view) { ++remarks; });
  const weft::case_result result = weft::run_case(one, played.open);
  virtual_cuda::find<void(const char*)>("weft_virtual_fail")("");
  if (!gives_back(failing.function) && !keeps_memory(failing)) expect_nothing_kept();
  if (result.verdict == weft::verdict_kind::holds) return;  // done otherwise, or again
  EXPECT_FALSE(result.why.empty());
  EXPECT_EQ(result.why.find("CUDA_SUCCESS"), std::string::npos) << "a failure without its cause: " << result.why;
  if (remarks == 0 && !tells_of_a_failure(result.why)) {
    EXPECT_FALSE(tells_of_wrong_data(result.why)) << result.why;
  }
  if (!is_sticky(failing.code) && failing.function.rfind("device.", 0) != 0) {
    EXPECT_EQ(result.why.find("is lost"), std::string::npos) << "a device lost by a call that may fail: " << result.why;
  }
}

/// What the run ended with, in words; empty where all is well.
std::string fault_of(const weft::conformance_case& one, const failing_call& failing) {
  std::fflush(nullptr);  // or the child says it again
  processes::child child{[&] {
    virtual_cuda::keep_nothing_between_processes();
    ::setenv("WEFT_VIRTUAL_CUDA_FAIL", failing.plan().c_str(), 1);
    const int before = virtual_cuda::failures_so_far();
    run_failing(one, failing);
    std::fflush(nullptr);
    return virtual_cuda::failures_so_far() > before ? 1 : 0;
  }};
  const int status = child.wait();
  if (status == 0 || (status == -SIGKILL && failing.code == "kill")) return {};
  const std::string which = failing.plan() + " in '" + std::string{one.name} + "' (" + std::string{one.group} + ")";
  if (status == 1) return which + ": see above";
  if (status == -SIGALRM) return which + ": hangs: not ended after " + std::to_string(virtual_cuda::run_seconds) + " s";
  if (status < 0) return which + ": ended by signal " + std::to_string(-status);
  return which + ": ended with " + std::to_string(status);
}

/// True where the run was well. What was not is told at once, on stderr: a campaign takes hours.
bool expect_well(const weft::conformance_case& one, const failing_call& failing) {
  const std::string fault = fault_of(one, failing);
  if (fault.empty()) return true;
  std::fprintf(stderr, "FAULT %s\n", fault.c_str());
  ADD_FAILURE() << fault;
  return false;
}

// ---- calls ----------------------------------------------------------------------------------------------------------

constexpr const char* functions[] = {"*", "device.launch", "cuGetProcAddress",
#define WEFT_NAME(name, version, parameters) #name,
                                     WEFT_GPU_DRIVER_FUNCTIONS(WEFT_NAME, WEFT_NAME)
#undef WEFT_NAME
#define WEFT_NAME(name, parameters) #name,
                                         WEFT_GPU_NVRTC_FUNCTIONS(WEFT_NAME) WEFT_GPU_NVML_FUNCTIONS(WEFT_NAME)
#undef WEFT_NAME
};
using counts = std::array<unsigned long long, std::size(functions)>;

/// Calls of each function that work makes when nothing fails, told by a child.
counts calls_of(const std::function<void()>& work) {
  const processes::shared<counts> count;
  virtual_cuda::in_child({}, [&] {
    be_bounded();
    virtual_cuda::library_path() = played.library;
    work();
    for (std::size_t f = 0; f < std::size(functions); ++f)
      (*count)[f] = virtual_cuda::find<unsigned long long(const char*)>("weft_virtual_calls")(functions[f]);
  });
  return *count;
}

counts calls_of_case(const weft::conformance_case& one) {
  return calls_of([&] { static_cast<void>(weft::run_case(one, played.open)); });
}

/// Every case opens a machine, with the same calls: one group is enough for those.
counts calls_before(const std::string& group) {
  return group == "selection" ? counts{} : calls_of([] { static_cast<void>(played.open()); });
}

// ---- a sample -------------------------------------------------------------------------------------------------------

/// One call of each case of a group, for each code.
void sample_failures_of(const std::string& group) {
  const std::string text = environment_of("WEFT_SEED");
  const unsigned long long seed = text.empty() ? 1 : std::strtoull(text.c_str(), nullptr, 10);
  std::printf("WEFT_SEED=%llu\n", seed);
  std::mt19937_64 random{seed};
  const unsigned long long opening = calls_before(group)[0];
  for (const weft::conformance_case& one : weft::conformance_cases()) {
    if (one.group != group) continue;
    const unsigned long long calls = calls_of_case(one)[0];
    if (calls <= opening) continue;
    for (const char* const code : {"2", "999", "700"})
      static_cast<void>(expect_well(one, {"*", opening + 1 + random() % (calls - opening), code}));
  }
}

class virtual_cuda_failures : public testing::TestWithParam<std::string> {};

class hip_face : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { played = {samples::virtual_hip_library(), &open_hip_machine, true}; }
  void TearDown() override { played = {samples::virtual_cuda_library(), &open_machine, false}; }
};
class virtual_hip_failures : public hip_face {};

TEST_P(virtual_cuda_failures, a_failing_call_of_any_function_ends_in_an_error_that_is_told) {
  sample_failures_of(GetParam());
}

TEST_P(virtual_hip_failures, a_failing_call_of_any_function_ends_in_an_error_that_is_told) {
  sample_failures_of(GetParam());
}

INSTANTIATE_TEST_SUITE_P(groups, virtual_hip_failures, testing::ValuesIn(groups()), name_of);
INSTANTIATE_TEST_SUITE_P(groups, virtual_cuda_failures, testing::ValuesIn(groups()), name_of);

// ---- the campaign ---------------------------------------------------------------------------------------------------

/// The share of the runs that this process does. Chosen by what a run is, so that shares do not depend on how often a
/// polling thread called.
struct share {
  std::size_t number = 1, of = 1;

  [[nodiscard]] bool has(const weft::conformance_case& one, const failing_call& failing) const {
    return std::hash<std::string>{}(std::string{one.name} + failing.plan()) % of == number - 1;
  }
  static std::optional<share> wanted() {
    const std::string text = environment_of("WEFT_SWEEP");
    if (text.empty()) return std::nullopt;
    share made;
    if (text == "all") return made;
    if (std::sscanf(text.c_str(), "%zu/%zu", &made.number, &made.of) != 2 || made.number < 1 || made.number > made.of) {
      ADD_FAILURE() << "WEFT_SWEEP: expected all, or a share as 2/8, got '" << text << "'";
      return std::nullopt;
    }
    return made;
  }
};

void sweep(const std::string& group) {
  const auto mine = share::wanted();
  if (!mine) GTEST_SKIP() << "some hours: WEFT_SWEEP=all runs it, WEFT_SWEEP=2/8 a share of it";
  const std::string cases = environment_of("WEFT_SWEEP_CASES");
  const std::string kept = environment_of("WEFT_SWEEP_FUNCTIONS");
  const counts before = calls_before(group);
  for (const weft::conformance_case& one : weft::conformance_cases()) {
    if (one.group != group || one.name.find(cases) == std::string_view::npos) continue;
    const auto began = std::chrono::steady_clock::now();
    const counts calls = calls_of_case(one);
    int runs = 0;
    int faults = 0;
    for (std::size_t f = 1; f < std::size(functions); ++f) {  // of any function is of each
      if (std::string{functions[f]}.find(kept) == std::string::npos) continue;
      for (unsigned long long n = before[f] + 1; n <= calls[f]; ++n) {
        for (const char* const code : {"2", "700", "719", "999", "kill"}) {
          const failing_call failing{functions[f], n, code};
          if (!mine->has(one, failing)) continue;
          ++runs;
          faults += expect_well(one, failing) ? 0 : 1;
        }
      }
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    std::fprintf(stderr, "sweep %s: %d runs, %d faults, %.1f s: %s\n", group.c_str(), runs, faults, took.count(),
                 std::string{one.name}.c_str());
  }
}

class virtual_cuda_sweep : public testing::TestWithParam<std::string> {};
class virtual_hip_sweep : public hip_face {};

TEST_P(virtual_cuda_sweep, every_call_of_every_function_may_fail_with_every_code) { sweep(GetParam()); }
TEST_P(virtual_hip_sweep, every_call_of_every_function_may_fail_with_every_code) { sweep(GetParam()); }

INSTANTIATE_TEST_SUITE_P(groups, virtual_hip_sweep, testing::ValuesIn(groups()), name_of);
INSTANTIATE_TEST_SUITE_P(groups, virtual_cuda_sweep, testing::ValuesIn(groups()), name_of);

}  // namespace failing_calls_test
