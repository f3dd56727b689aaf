// SPDX-License-Identifier: Apache-2.0
#include "conformance/case_tools.hpp"

#include "weft/exec/launch.hpp"
#include "weft/memory/fill.hpp"

#include <array>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <stdexcept>

namespace weft::conformance {
namespace {

std::string placed(const std::string& why, const place& at) {
  const std::string_view file = at.file_name();
  const std::size_t slash = file.rfind('/');
  return why + " (" + std::string{slash == std::string_view::npos ? file : file.substr(slash + 1)} + ":" +
         std::to_string(at.line()) + ")";
}

}  // namespace

void fall_short(const std::string& why, place at) { throw shortfall{placed(why, at)}; }

void require(bool claim, const std::string& otherwise, place at) {
  if (!claim) fall_short(otherwise, at);
}

void not_here(const std::string& why) { throw absent{why}; }

std::string expect_error(std::initializer_list<errc> codes, const std::string& doing, const std::function<void()>& f,
                         place at) {
  std::string wanted;
  for (const errc code : codes) {
    wanted += (wanted.empty() ? "" : " or ") + std::string{to_string(code)};
  }
  try {
    f();
  } catch (const error_exception& e) {
    for (const errc code : codes) {
      if (e.code() == code) {
        require(!e.cause().what.empty(), doing + ": the error says nothing", at);
        return e.cause().what;
      }
    }
    if (e.code() == errc::unsupported) throw;  // the runner knows what may be unsupported
    fall_short(doing + ": expected " + wanted + ", got " + to_string(e.cause()), at);
  }
  fall_short(doing + ": expected " + wanted + ", but it succeeded", at);
}

std::span<const std::size_t> sizes_to_try() {
  static constexpr std::array<std::size_t, 11> sizes{0,    1,    255,   256,     257,           4095,
                                                     4096, 4097, 70001, 1 << 20, (5U << 20) + 3};
  return sizes;
}

std::span<const std::size_t> small_sizes() {
  static constexpr std::array<std::size_t, 9> sizes{0, 1, 255, 256, 257, 4095, 4096, 4097, 70001};
  return sizes;
}

std::uint8_t pattern_at(std::uint64_t seed, std::uint64_t i) {
  std::uint64_t x = (i + 1) * 0x9E3779B97F4A7C15ULL + seed * 0xD6E8FEB86659FD93ULL;
  x ^= x >> 32;
  x *= 0xD6E8FEB86659FD93ULL;
  return static_cast<std::uint8_t>(x >> 56);
}

std::vector<std::uint8_t> pattern(std::size_t count, std::uint64_t seed) {
  std::vector<std::uint8_t> made(count);
  for (std::size_t i = 0; i < count; ++i) made[i] = pattern_at(seed, i);
  return made;
}

void require_same(std::span<const std::uint8_t> got, std::span<const std::uint8_t> expected, const std::string& what,
                  place at) {
  require_equal(got.size(), expected.size(), what + ": size", at);
  if (got.empty() || std::memcmp(got.data(), expected.data(), got.size()) == 0) return;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i] != expected[i]) {
      fall_short(what + ": offset " + std::to_string(i) + " of " + std::to_string(got.size()) + " expected " +
                     std::to_string(expected[i]) + ", got " + std::to_string(got[i]),
                 at);
    }
  }
}

raw_kernel where_kernel() {
  raw_kernel raw;
  raw.name = raw.entry = "conform_where";
  raw.parameters = {{"seen", element_type::uint32, parameter_direction::inout, access::whole()}};
  raw.cuda_source = R"(
#ifndef WEFT_VIRTUAL_CUDA
static __device__ unsigned weft_multiprocessor() {
  unsigned mine;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(mine));
  return mine;
}
#endif
extern "C" __global__ void conform_where(unsigned* seen, long long first, long long last) {
  long long i = first + (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < last) seen[i] = weft_multiprocessor();
})";
  return raw;
}

void warm(const device& on) {
  const stream order{on};
  {
    const buffer<std::uint8_t> first{on, 1};
    fill(order, first, std::uint8_t{0}).wait();
  }
  on.synchronize();
}

buffer<std::uint8_t> filled(const device& on, std::span<const std::uint8_t> data) {
  buffer<std::uint8_t> made{on, data.size()};
  copy(made, data);
  return made;
}

std::vector<std::uint8_t> contents(device_span<const std::uint8_t> memory) {
  std::vector<std::uint8_t> read(memory.size(), 0xA5);
  copy(read, memory);
  return read;
}

std::vector<std::uint32_t> numbers(std::size_t count, std::uint32_t seed) {
  std::vector<std::uint32_t> made(count);
  for (std::size_t i = 0; i < count; ++i) {
    made[i] = static_cast<std::uint32_t>(i) * 2654435761U + seed * 40503U + 7U;
  }
  return made;
}

event weave(const stream& by, device_span<const std::uint32_t> src, device_span<std::uint32_t> dst, std::uint32_t k) {
  return launch<conform_weave>(by, range(static_cast<std::int64_t>(src.size())), src, dst, k);
}

void require_reach(context& c, device_id by, const buffer<std::uint32_t>& memory, const std::string& what, place at) {
  const std::size_t count = memory.size();
  const auto start = numbers(count, 11);
  copy(memory, start);
  const stream order{c.m()[by]};
  buffer<std::uint32_t> mine{c.m()[by], count};
  weave(order, memory, mine, 5).wait();
  std::vector<std::uint32_t> got(count);
  copy(got, mine);
  require_all<std::uint32_t>(got, [&](std::size_t i) { return woven(start[i], 5, i); }, what + ": reading", at);
  weave(order, mine, memory, 9).wait();
  std::vector<std::uint32_t> back(count);
  copy(back, memory);
  require_all<std::uint32_t>(back, [&](std::size_t i) { return woven(got[i], 9, i); }, what + ": writing", at);
}

std::string expect_fault(context& c, device_id by, device_span<const std::uint32_t> memory, const std::string& what,
                         place at) {
  const device on = c.m()[by];
  const stream order{on};
  buffer<std::uint32_t> mine{on, memory.size()};
  std::string message;
  {
    const event ended = weave(order, memory, mine, 1);
    message = expect_error({errc::illegal_access}, what, [&] { ended.wait(); }, at);
  }
  require(on.is_lost(), what + ": " + to_string(by) + " is not lost", at);
  const auto cause = on.lost_cause();
  require(cause && cause->what.find(message) != std::string::npos, what + ": the cause of the loss is not the access",
          at);
  return message;
}

std::string text(const device_pair& pair) { return to_string(pair.from) + " -> " + to_string(pair.to); }

std::vector<device_pair> all_pairs(const machine& m) {
  std::vector<device_pair> pairs;
  for (int from = 0; from < m.device_count(); ++from) {
    for (int to = 0; to < m.device_count(); ++to) {
      if (from != to) pairs.push_back({device_id{from}, device_id{to}});
    }
  }
  return pairs;
}

device_pair offered_pair(const machine& m) {
  for (const device_pair& pair : all_pairs(m)) {
    if (can_access_peer(m, pair.from, pair.to)) return pair;
  }
  if (m.device_count() < 2) not_here("the machine has " + std::to_string(m.device_count()) + " device(s)");
  return {device_id{0}, device_id{1}};
}

std::optional<device_pair> pair_without_path(const machine& m) {
  for (const device_pair& pair : all_pairs(m)) {
    if (!can_access_peer(m, pair.from, pair.to)) return pair;
  }
  return std::nullopt;
}

device_id unknown_device(const machine& m) { return device_id{m.device_count()}; }

void require_time(const machine& m) {
  if (m.clock() == clock_kind::virtual_time && m.layout().to_host[0].bytes_per_second <= 0) {
    not_here("in virtual time nothing takes time on a machine without figures");
  }
}

struct gate::latch {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_open = false;

  void open() {
    const std::lock_guard lock{mutex};
    is_open = true;
    changed.notify_all();
  }
  void wait() {
    std::unique_lock lock{mutex};
    if (!changed.wait_for(lock, long_enough, [this] { return is_open; })) {
      throw std::runtime_error("nobody opened the gate");
    }
  }
};

gate::gate(const machine& m, const stream& held) {
  if (m.device_count() < 2) {
    if (m.clock() == clock_kind::virtual_time) not_here("in virtual time only a second device can hold a stream");
    latch_ = std::make_shared<latch>();
    held.call([kept = latch_] { kept->wait(); });
    return;
  }
  const device_id here = held.on().id();
  const device_id other{here.value() == 0 ? 1 : 0};
  barrier_.emplace(m, std::vector{here, other});
  key_.emplace(m[other]);
  barrier_->arrive_and_order(held);
}

gate::~gate() {
  try {
    open();
  } catch (const error_exception&) {  // the machine was closed: nothing is held any more
  }
}

void gate::open() {
  if (latch_) latch_->open();
  latch_.reset();
  if (barrier_ && key_) {
    barrier_->arrive(*key_);
    key_.reset();
  }
}

}  // namespace weft::conformance
