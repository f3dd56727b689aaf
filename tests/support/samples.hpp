// SPDX-License-Identifier: Apache-2.0
// What the tests of several layers share: data that differs at every place, machines made by hand, and gates.
#pragma once

#include "support/hang.hpp"
#include "weft/core/raise.hpp"
#include "weft/memory/buffer.hpp"
#include "weft/memory/copy.hpp"
#include "weft/runtime/machine.hpp"
#include "weft/runtime/stream.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <vector>

namespace samples {

using byte_buffer = weft::buffer<std::uint8_t>;
using data = std::vector<std::uint8_t>;

/// Bytes that differ by place and by seed, so that what is shifted, stale or swapped is seen.
data pattern(std::size_t count, std::uint64_t seed);

testing::AssertionResult same(const data& got, const data& expected);

/// Each byte is that of `one` or of `other` at its place.
testing::AssertionResult each_is_of_one(const data& got, const data& one, const data& other);

inline byte_buffer filled(const weft::device& on, const data& values) {
  byte_buffer made{on, values.size()};
  weft::copy(made, values);
  return made;
}

template <class Memory>
data contents(const Memory& memory) {
  data read(memory.size(), 0xa5);
  weft::copy(read, memory);
  return read;
}

/// The error that a call throws; errc::not_ready and a text when it throws none.
template <class F>
weft::error error_of(F&& f) {
  try {
    f();
  } catch (const weft::error_exception& e) {
    return e.cause();
  }
  weft::error none;
  none.code = weft::errc::not_ready;
  none.what = "nothing failed";
  return none;
}

/// Rates in bytes per second, latencies in nanoseconds. Any two devices are joined by a link of their own.
struct wiring {
  double host_rate = 10e9;
  std::int64_t host_latency = 1000;
  double peer_rate = 40e9;
  std::int64_t peer_latency = 500;
  bool half_duplex = false;  // both directions of each connection share a wire
};

/// N devices on one socket.
inline weft::topology wired(int devices, const wiring& with = {}, std::uint64_t memory = std::uint64_t{256} << 20) {
  weft::topology made = weft::host_topology(devices, weft::bytes{memory});
  made.name = "wired";
  made.simulated = true;
  for (weft::topology_link& link : made.links) {
    const bool host = link.from == devices || link.to == devices;
    link.kind = host ? weft::link_kind::pcie : weft::link_kind::nvlink;
    link.bytes_per_second = host ? with.host_rate : with.peer_rate;
    link.latency = std::chrono::nanoseconds{host ? with.host_latency : with.peer_latency};
  }
  if (with.half_duplex) {
    for (weft::topology_link& link : made.links) {
      for (const weft::topology_link& other : made.links) {
        if (other.from == link.to && other.to == link.from) link.wire = std::min(link.wire, other.wire);
      }
    }
  }
  auto complete = weft::complete_topology(std::move(made));
  if (!complete) weft::raise(complete.error());
  return *complete;
}

inline weft::topology shipped(std::string_view name) { return weft::value_or_raise(weft::load_topology(name)); }

inline weft::machine play(weft::topology layout, weft::clock_kind clock = weft::clock_kind::wall) {
  weft::machine_options options;
  options.machine = std::move(layout);
  options.clock = clock;
  return weft::machine{options};
}

/// Keeps a stream busy until opened; lets go by itself in the end, so that a failing test ends.
class gate {
 public:
  weft::event hold(const weft::stream& order) const {
    return order.call([opened = opened_] { opened.wait_for(only_a_hang); });
  }
  void open() { promise_.set_value(); }

 private:
  std::promise<void> promise_;
  std::shared_future<void> opened_{promise_.get_future().share()};
};

inline constexpr weft::device_id gpu0{0};
inline constexpr weft::device_id gpu1{1};
inline constexpr weft::device_id gpu2{2};
inline constexpr std::chrono::seconds soon = only_a_hang;

}  // namespace samples
