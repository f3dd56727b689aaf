// SPDX-License-Identifier: Apache-2.0
#include "process_ring.hpp"

#include "command_line/forked_process.hpp"
#include "weft/exec/launch.hpp"
#include "weft/memory/copy.hpp"
#include "weft/memory/peer_access.hpp"
#include "weft/memory/shared_memory.hpp"
#include "weft/processes/rendezvous.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>

namespace weft::tool {

namespace {

constexpr std::chrono::seconds ring_timeout{20};
constexpr std::int64_t words = 1 << 18;  // 1 MiB

WEFT_KERNEL(tool_pass_on, (WEFT_OUT(uint32_t) next, uint32_t from),
            { next[i] = (uint32_t)i * 2654435761u + (from + 1u) * 40503u; });

std::uint64_t wrong_words(const std::vector<std::uint32_t>& got, int from) {
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i] != static_cast<std::uint32_t>(i) * 2654435761U + (static_cast<std::uint32_t>(from) + 1U) * 40503U)
      ++wrong;
  }
  return wrong;
}

/// Everybody's value, or the first reason why somebody has none: an error of one is told to all, and nobody waits for
/// one that has given up.
template <class T, class F>
std::vector<T> exchange(process_group& group, F&& mine) {
  std::vector<std::byte> told;
  try {
    const T value = mine();
    told.assign(1 + sizeof(T), std::byte{'y'});
    std::memcpy(told.data() + 1, &value, sizeof(T));
  } catch (const error_exception& e) {
    const std::string why = fmt::format("process {}: {}", group.self().value(), e.cause().what);
    told.assign(1 + why.size(), std::byte{'n'});
    std::memcpy(told.data() + 1, why.data(), why.size());
  }
  const auto all = value_or_raise(group.all_gather(told, ring_timeout));
  std::vector<T> values;
  for (const auto& one : all) {
    T value{};
    if (one.size() != 1 + sizeof(T) || one.front() != std::byte{'y'}) {
      const std::string why{reinterpret_cast<const char*>(one.data()), one.size()};
      throw failure{exit_code::runtime, why.empty() ? "a process said nothing" : why.substr(1)};
    }
    std::memcpy(&value, one.data() + 1, sizeof(T));
    values.push_back(value);
  }
  return values;
}

/// Devices in turn where each reaches the next; else the first one for all.
std::vector<device_id> devices_of(const machine& m, int size) {
  std::vector<device_id> ids;
  ids.reserve(static_cast<std::size_t>(size));
  for (int r = 0; r < size; ++r) ids.emplace_back(r % m.device_count());
  for (std::size_t r = 0; r < ids.size(); ++r) {
    const device_id next = ids[(r + 1) % ids.size()];
    if (ids[r] != next && !can_access_peer(m, ids[r], next)) return std::vector<device_id>(ids.size(), device_id{0});
  }
  return ids;
}

std::vector<ring_report::passage> pass_on(const session& run, process_group& group) {
  const int self = group.self().value(), size = group.size();
  const machine m = run.open_again();
  const std::vector<device_id> ids = devices_of(m, size);
  const auto next = static_cast<std::size_t>((self + 1) % size);
  const int previous = (self + size - 1) % size;
  const device gpu = m[ids[static_cast<std::size_t>(self)]];

  shareable_buffer<std::uint32_t> inbox;
  const auto handles = exchange<shared_bytes>(group, [&] {
    inbox = shareable_buffer<std::uint32_t>{gpu, static_cast<std::size_t>(words)};
    return inbox.handle().bytes();
  });
  static_cast<void>(exchange<int>(group, [&] {
    const opened_memory<std::uint32_t> there{gpu, memory_handle::from_bytes(handles[next])};
    launch<tool_pass_on>(stream{gpu}, range(words), there.span(), static_cast<std::uint32_t>(self)).wait();
    return 0;
  }));  // all have written
  return exchange<ring_report::passage>(group, [&] {
    std::vector<std::uint32_t> got(static_cast<std::size_t>(words));
    weft::copy(got, inbox);
    return ring_report::passage{previous, self, ::getpid(), gpu.id().value(), wrong_words(got, previous)};
  });
}

}  // namespace

bool ring_report::verified() const {
  return !passages.empty() && std::ranges::all_of(passages, [](const passage& p) { return p.wrong == 0; });
}

ring_report run_process_ring(const session& run, int processes) {
  std::vector<rendezvous> places = rendezvous::connected(processes);
  const auto join = [&places](int rank) {
    rendezvous mine = std::move(places[static_cast<std::size_t>(rank)]);
    places.clear();  // those of the others: as long as one is held here, its end is not seen
    join_options how;
    how.timeout = ring_timeout;
    return value_or_raise(std::move(mine).join(how));
  };
  std::vector<forked_process> others;
  for (int r = 1; r < processes; ++r) {
    others.emplace_back([&] {
      process_group group = join(r);
      static_cast<void>(pass_on(run, group));
      return 0;
    });
  }
  ring_report report;
  report.size = static_cast<std::uint64_t>(words) * sizeof(std::uint32_t);
  try {
    process_group group = join(0);
    report.passages = pass_on(run, group);
    const bool one_device =
        std::ranges::all_of(report.passages, [](const ring_report::passage& p) { return p.device == 0; });
    if (one_device) report.why = "all on gpu0: not every device reaches the next one, or there is no other";
  } catch (const error_exception& e) {
    report.why = e.cause().what;
  } catch (const failure& e) {
    if (e.code() != exit_code::runtime) throw;  // the machine that was asked for is not there
    report.why = e.what();
  }
  return report;
}

std::string ring_text(const session& run, const ring_report& report) {
  std::string text;
  for (const ring_report::passage& p : report.passages) {
    text += fmt::format("  process {} -> process {} (pid {}, gpu{}): {}, {}\n", p.from, p.to, p.process, p.device,
                        to_string(bytes{report.size}),
                        p.wrong == 0 ? run.paint(style::good, "verified")
                                     : run.paint(style::bad, fmt::format("{} words WRONG", p.wrong)));
  }
  return report.why.empty() ? text : text + "  " + report.why + "\n";
}

json ring_json(const ring_report& report) {
  json passages = json::array();
  for (const ring_report::passage& p : report.passages) {
    passages.push_back(
        {{"from", p.from}, {"to", p.to}, {"process", p.process}, {"device", p.device}, {"words_wrong", p.wrong}});
  }
  return {{"bytes", report.size},
          {"passages", std::move(passages)},
          {"verified", report.passages.empty() ? json(nullptr) : json(report.verified())},
          {"why", report.why.empty() ? json(nullptr) : json(report.why)}};
}

}  // namespace weft::tool
