// SPDX-License-Identifier: Apache-2.0
#include "virtual_driver/driver/call.hpp"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

namespace weft::virtual_cuda {
namespace {

constexpr CUresult never = -1;  // in place of a code: the call does not return

struct planned {
  std::uint64_t nth = 0;  // 0: each
  CUresult code = 0;
  bool kill = false;
};

struct call_book {
  std::mutex mutex;
  std::unordered_map<std::string, std::uint64_t> counts;
  std::unordered_map<std::string, std::vector<planned>> plans;
  std::uint64_t all = 0;
};

// Named after the function, or "*" for the n-th call of any.
void read_plan(call_book& book, const std::string& text) {
  book.plans.clear();
  std::size_t at = 0;
  while (at < text.size()) {
    std::size_t end = text.find(',', at);
    if (end == std::string::npos) end = text.size();
    const std::string one = text.substr(at, end - at);
    at = end + 1;
    const std::size_t nth = one.find('@');
    const std::size_t code = one.find('=');
    if (nth == std::string::npos || code == std::string::npos || code < nth) {
      std::fprintf(stderr, "weft virtual CUDA driver: fault '%s': expected function@n=code, =kill or =hang\n",
                   one.c_str());
      continue;
    }
    planned p;
    p.nth = std::strtoull(one.c_str() + nth + 1, nullptr, 10);
    p.kill = one.substr(code + 1) == "kill";
    p.code = one.substr(code + 1) == "hang" ? never : std::atoi(one.c_str() + code + 1);
    book.plans[one.substr(0, nth)].push_back(p);
  }
}

call_book& book() {
  static auto* const kept = [] {
    auto* const made = new call_book;
    const char* const plan = std::getenv("WEFT_VIRTUAL_CUDA_FAIL");  // NOLINT(concurrency-mt-unsafe): once
    if (plan != nullptr) read_plan(*made, plan);
    return made;
  }();
  return *kept;
}

CUresult look_up(const call_book& b, const std::string& name, std::uint64_t count) {
  const auto it = b.plans.find(name);
  if (it == b.plans.end()) return 0;
  for (const planned& p : it->second) {
    if (p.nth != 0 && p.nth != count) continue;
    if (p.kill) ::kill(::getpid(), SIGKILL);
    return p.code;
  }
  return 0;
}

CUresult counted(const char* name, bool is_call) {
  call_book& b = book();
  const std::lock_guard lock{b.mutex};
  const std::uint64_t count = ++b.counts[name];
  if (is_call) ++b.all;
  if (const CUresult code = look_up(b, name, count); code != 0 || !is_call) return code;
  return look_up(b, "*", b.all);
}

CUresult begin(const char* name, bool is_call) noexcept {
  try {
    const CUresult code = counted(name, is_call);
    while (code == never) ::pause();
    return code;
  } catch (...) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
}

pid_t home_process = 0;

}  // namespace

CUresult begin_kernel() noexcept { return begin("device.launch", false); }

CUresult begin_call(const char* name) noexcept { return begin(name, true); }

CUresult begin_driver_call(const char* name) noexcept {
  if (given().stub_code != 0) return given().stub_code;
  if (const CUresult code = begin_call(name); code != 0) return code;
  if (inside_host_function()) return CUDA_ERROR_NOT_PERMITTED;
  if (std::strcmp(name, "cuInit") == 0) {
    if (home_process == 0) home_process = ::getpid();
  } else if (!is_open()) {
    return CUDA_ERROR_NOT_INITIALIZED;
  }
  return home_process == ::getpid() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;  // fork leaves the threads behind
}

std::uint64_t calls_of(const std::string& name) {
  call_book& b = book();
  const std::lock_guard lock{b.mutex};
  if (name == "*") return b.all;
  const auto it = b.counts.find(name);
  return it == b.counts.end() ? 0 : it->second;
}

void plan_faults(const std::string& plan) {
  call_book& b = book();
  const std::lock_guard lock{b.mutex};
  read_plan(b, plan);
  b.counts.clear();
  b.all = 0;
}

void count_from_zero() {
  call_book& b = book();
  const std::lock_guard lock{b.mutex};
  b.counts.clear();
  b.all = 0;
}

}  // namespace weft::virtual_cuda
