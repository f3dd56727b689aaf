// SPDX-License-Identifier: Apache-2.0
#include "ipc_bench.hpp"

#include "bench/copy/copy_ways.hpp"
#include "command_line/forked_process.hpp"
#include "command_line/statistics.hpp"
#include "weft/exec/launch.hpp"
#include "weft/memory/copy.hpp"
#include "weft/memory/fill.hpp"
#include "weft/memory/peer_access.hpp"
#include "weft/memory/shared_memory.hpp"
#include "weft/processes/rendezvous.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <span>

namespace weft::tool {

namespace {

using std::chrono::nanoseconds;
using wall = std::chrono::steady_clock;

constexpr std::chrono::seconds ipc_timeout{30};
constexpr std::int64_t page = 4096;
constexpr std::size_t end_size = 64 << 10;  // of the pattern at either end of memory that is not written in full

WEFT_KERNEL(tool_touch_pages, (WEFT_IN(uint8_t) data, WEFT_OUT(uint8_t) seen, int64_t step),
            { seen[i] = data[i * step]; });

void write_ends(const device_span<std::byte>& memory, std::uint64_t seed) {
  const std::size_t size = std::min(end_size, memory.size());
  write_pattern(memory.first(size), seed);
  write_pattern(memory.subspan(memory.size() - size, size), memory.size() > size ? seed + 1 : seed);
}

std::string check_ends(const device_span<const std::byte>& memory, std::uint64_t seed) {
  const std::size_t size = std::min(end_size, memory.size());
  std::string wrong = check_pattern(memory.first(size), seed);
  if (!wrong.empty()) return wrong;
  return check_pattern(memory.subspan(memory.size() - size, size), memory.size() > size ? seed + 1 : seed);
}

// ---- the other process ----------------------------------------------------------------------------------------------

enum class wish : std::uint32_t { hold, write, check };

/// Between two halves of one program: sent as it lies.
struct request {
  wish what = wish::hold;
  std::int32_t device = 0;
  std::uint64_t size = 0;
  std::uint64_t seed = 0;
  std::uint32_t all = 1;
  std::uint32_t number = 0;  // its answer has it in its tag: one that comes too late is no answer to the next request
};

constexpr std::uint64_t request_tag = 1;
constexpr std::uint64_t answer_tag = 2;  // plus the number of the request

std::vector<std::byte> answer_of(char kind, std::span<const std::byte> content) {
  std::vector<std::byte> answer(1 + content.size(), static_cast<std::byte>(kind));
  std::ranges::copy(content, answer.begin() + 1);
  return answer;
}

/// Answers until the first process lets its group go.
int serve(const session& run, rendezvous place) {
  process_group group = value_or_raise(std::move(place).join());
  const machine m = run.open_again();
  shareable_buffer<std::byte> held;
  for (;;) {
    const auto came = group.receive(rank{0}, request_tag, ipc_timeout);
    if (!came && came.error().code == errc::timed_out) continue;  // a long row: its end is seen, too
    if (!came) return 0;
    request asked;
    if (came->payload.size() != sizeof asked) return 1;
    std::memcpy(&asked, came->payload.data(), sizeof asked);
    std::vector<std::byte> answer;
    try {
      std::string text;
      if (asked.what == wish::hold) {
        held = {};
        held = shareable_buffer<std::byte>{m[device_id{asked.device}], asked.size};
        if (asked.all != 0) {
          write_pattern(held, asked.seed);
        } else {
          write_ends(held, asked.seed);
        }
        answer = answer_of('y', held.handle().bytes());
      } else {
        if (asked.what == wish::write) {
          write_pattern(held, asked.seed);
        } else {
          text = check_pattern(held.span(), asked.seed);
        }
        answer = answer_of('y', std::as_bytes(std::span{text}));
      }
    } catch (const error_exception& e) {
      answer = answer_of('n', std::as_bytes(std::span{e.cause().what}));
    }
    if (!group.send(rank{0}, answer_tag + asked.number, answer, {}, ipc_timeout)) return 1;
  }
}

}  // namespace

struct memory_holder::body {
  explicit body(const session& run)
      : places(rendezvous::connected(2)), other([&] {
          rendezvous mine = std::move(places[1]);
          places.clear();
          return serve(run, std::move(mine));
        }) {
    places.pop_back();  // the other's; as long as this process has it too, it does not see the other end
  }

  std::vector<std::byte> ask(request wanted) {
    if (!group) {
      rendezvous mine = std::move(places.front());
      places.clear();
      group.emplace(value_or_raise(std::move(mine).join()));
    }
    wanted.number = asked++;
    value_or_raise(group->send(rank{1}, request_tag, std::as_bytes(std::span{&wanted, 1}), {}, ipc_timeout));
    std::vector<std::byte> answer =
        value_or_raise(group->receive(rank{1}, answer_tag + wanted.number, ipc_timeout)).payload;
    const bool well = !answer.empty() && answer.front() == std::byte{'y'};
    if (!answer.empty()) answer.erase(answer.begin());
    if (!well) {
      throw failure{exit_code::runtime,
                    "the other process: " + std::string{reinterpret_cast<const char*>(answer.data()), answer.size()}};
    }
    return answer;
  }

  std::vector<rendezvous> places;
  forked_process other;
  std::uint32_t asked = 0;
  std::optional<process_group> group;  // goes first, which ends the other process
};

memory_holder::memory_holder(const session& run) : body_(std::make_unique<body>(run)) {}
memory_holder::~memory_holder() = default;

std::vector<std::byte> memory_holder::hold(device_id on, std::uint64_t size, std::uint64_t seed, bool all) {
  request wanted;
  wanted.device = on.value();
  wanted.size = size;
  wanted.seed = seed;
  wanted.all = all ? 1 : 0;
  return body_->ask(wanted);
}

void memory_holder::write(std::uint64_t seed) {
  request wanted;
  wanted.what = wish::write;
  wanted.seed = seed;
  static_cast<void>(body_->ask(wanted));
}

std::string memory_holder::check(std::uint64_t seed) {
  request wanted;
  wanted.what = wish::check;
  wanted.seed = seed;
  const std::vector<std::byte> answer = body_->ask(wanted);
  return {reinterpret_cast<const char*>(answer.data()), answer.size()};
}

// ---- this process ---------------------------------------------------------------------------------------------------

namespace {

class ipc_runner {
 public:
  ipc_runner(session& run, const machine& m, const ipc_plan& plan, memory_holder& other)
      : run_(run), m_(m), plan_(plan), other_(other), budget_(plan.budget) {}

  std::vector<ipc_row> all() {
    std::vector<ipc_row> rows = planned();
    progress line{run_, "ipc", rows.size()};
    // the rows of both paths are measured together, so that what disturbs one disturbs the other
    for (std::size_t i = 0; i < rows.size();) {
      const std::size_t count = rows[i].kind == ipc_kind::open ? 1 : 2;
      const std::span<ipc_row> together{rows.data() + i, count};
      line.step(i, together.front().name);
      i += count;
      if (const std::string why = budget_.over(); !why.empty()) {
        for (ipc_row& row : together) budget_.leave_out(row, why);
        continue;
      }
      deadline_ = wall::now() + budget_.share_of(rows.size() - i + count) * count;
      measure(together);
    }
    budget_.tell(run_, rows.size());
    return rows;
  }

 private:
  static void end(std::span<ipc_row> rows, row_state state, const std::string& why) {
    for (ipc_row& row : rows) {
      end_row(row, state, why);
      row.share_of_one_process.reset();
    }
  }

  std::vector<ipc_row> planned() const {
    std::vector<ipc_row> rows;
    const auto add = [&](ipc_kind kind, ipc_path path, std::uint64_t size,
                         const std::pair<device_id, device_id>& pair) {
      ipc_row row;
      row.kind = kind;
      row.path = path;
      row.src = pair.first;
      row.dst = pair.second;
      row.size = size;
      row.name = fmt::format("ipc/{}/{}/{}/{}-{}", to_string(kind), to_string(path), size_name(size),
                             to_string(row.src), to_string(row.dst));
      rows.push_back(std::move(row));
    };
    for (const auto& pair : plan_.pairs) {
      add(ipc_kind::open, ipc_path::between_processes, plan_.open_size, pair);
      add(ipc_kind::first_touch, ipc_path::between_processes, plan_.touch_size, pair);
      add(ipc_kind::first_touch, ipc_path::one_process, plan_.touch_size, pair);
    }
    for (const std::uint64_t size : plan_.sizes) {
      for (const auto& pair : plan_.pairs) {
        for (const ipc_kind kind : {ipc_kind::read, ipc_kind::write}) {
          add(kind, ipc_path::between_processes, size, pair);
          add(kind, ipc_path::one_process, size, pair);
        }
      }
    }
    return rows;
  }

  void measure(std::span<ipc_row> rows) {
    ipc_row& first = rows.front();
    if (const auto why = does_not_fit(first)) {
      end(rows, row_state::skipped, *why);
      run_.warn(first.name + ": " + *why);
      return;
    }
    if (run_.virtual_time() && !first.is_copy()) {
      end(rows, row_state::not_offered, "a virtual clock has no model of opening memory or of its pages");
      return;
    }
    try {
      switch (first.kind) {
        case ipc_kind::open:
          measure_open(first);
          break;
        case ipc_kind::first_touch:
          measure_touch(first, rows[1]);
          break;
        case ipc_kind::read:
        case ipc_kind::write:
          measure_copy(first, rows[1]);
          break;
      }
    } catch (const error_exception& e) {
      end(rows, state_after(e.cause(), {errc::peer_unsupported, errc::unsupported}), e.cause().what);
    } catch (const failure& e) {
      end(rows, row_state::failed, e.what());
    }
  }

  /// Memory that is opened and not used needs none but its ends; the rest has to fit like a copy.
  std::optional<std::string> does_not_fit(const ipc_row& row) const {
    copy_row copied;
    copied.src = row.src;
    copied.dst = row.dst;
    copied.size = row.size;
    if (row.kind != ipc_kind::open) {
      copied.size = times(row.size, 2);  // both paths at once
      return too_large(m_, copied);
    }
    const bytes free = m_[row.src].free_memory();
    if (row.size <= free.value()) return std::nullopt;
    return fmt::format("{} need more than the {} that are free on {}", to_string(bytes{row.size}), to_string(free),
                       to_string(row.src));
  }

  std::uint64_t next_seed() { return (seed_ += 2) * 0x2545F4914F6CDD1DULL; }

  static void judge(ipc_row& row, const std::string& wrong) {
    row.verified = row.verified.value_or(true) && wrong.empty();
    if (!wrong.empty() && row.why.empty()) row.why = wrong;
  }

  /// True while there are too few samples and time for more.
  bool more(std::size_t samples) const {
    return !(interrupted() && samples > 0) && !are_enough(samples, plan_.samples, deadline_);
  }

  void measure_open(ipc_row& row) {
    const std::uint64_t seed = next_seed();
    const auto handle = memory_handle::from_bytes(other_.hold(row.src, row.size, seed, false));
    judge(row, check_ends(opened_memory<std::byte>{m_[row.dst], handle}.span(), seed));
    std::vector<double> samples;
    while (more(samples.size())) {
      const auto start = wall::now();
      const opened_memory<std::byte> open{m_[row.dst], handle};
      samples.push_back(seconds_since(start));
    }
    row.seconds = summarise(std::move(samples));
    judge(row, check_ends(opened_memory<std::byte>{m_[row.dst], handle}.span(), seed));
  }

  void measure_touch(ipc_row& between, ipc_row& one) {
    const std::uint64_t seed = next_seed();
    const auto handle = memory_handle::from_bytes(other_.hold(between.src, between.size, seed, true));
    const auto pages = static_cast<std::int64_t>((between.size + page - 1) / page);
    const device by = m_[between.dst];
    const stream order{by};
    const buffer<std::uint8_t> own{by, between.size};  // this process has it and has written it
    const buffer<std::uint8_t> seen{by, static_cast<std::size_t>(pages)};
    write_pattern(own.span().as<std::byte>(), seed);
    std::vector<std::uint8_t> expected(static_cast<std::size_t>(pages)), got(expected.size());
    const auto touch = [&](const device_span<std::uint8_t>& memory, std::vector<std::uint8_t>& into) {
      fill(seen, std::uint8_t{0xEE});
      const auto start = wall::now();
      weft::launch<tool_touch_pages>(order, range(pages), memory, seen, std::int64_t{page}).wait();
      const double seconds = seconds_since(start);
      weft::copy(into, seen);
      return seconds;
    };
    static_cast<void>(touch(own, expected));
    judge(one, check_pattern(own.span().as<std::byte>(), seed));
    std::vector<double> first, later;
    while (more(first.size())) {
      {
        const opened_memory<std::uint8_t> open{by, handle};  // each opening has its pages before it
        first.push_back(touch(open, got));
        judge(between, got == expected ? "" : "the first byte of a page is not what the other process has written");
      }
      later.push_back(touch(own, got));
      judge(one, got == expected ? "" : "the first byte of a page is not what was written");
    }
    between.seconds = summarise(std::move(first));
    one.seconds = summarise(std::move(later));
  }

  void measure_copy(ipc_row& between, ipc_row& one) {
    const bool reads = between.kind == ipc_kind::read;
    const device there = m_[reads ? between.src : between.dst], here = m_[reads ? between.dst : between.src];
    std::vector<peer_access> leases;
    for (const auto& [by, owner] : {std::pair{here.id(), there.id()}, std::pair{there.id(), here.id()}}) {
      if (by != owner && can_access_peer(m_, by, owner)) leases.emplace_back(m_, by, owner);
    }
    if (m_[between.src].kind() == backend_kind::host && !run_.virtual_time()) {
      between.limit = one.limit = {host_copy_rate(between.size), "host_copy", {}};
    } else {
      between.limit.why = one.limit.why = "a limit is known for devices of the host and the wall clock only";
    }

    const std::uint64_t before = next_seed(), after = next_seed();
    const auto handle = memory_handle::from_bytes(other_.hold(there.id(), between.size, before, true));
    const opened_memory<std::byte> theirs{here, handle};
    const buffer<std::byte> mine{here, between.size}, beside{there, between.size};
    const auto copy_between = [&] { static_cast<void>(reads ? weft::copy(mine, theirs) : weft::copy(theirs, mine)); };
    const auto copy_one = [&] { static_cast<void>(reads ? weft::copy(mine, beside) : weft::copy(beside, mine)); };
    // Each path brings a pattern of its own, which was not there before.
    const auto verify = [&](std::uint64_t seed) {
      if (reads) {
        other_.write(seed);
        write_pattern(beside, seed + 1);
        copy_between();
        judge(between, check_pattern(mine, seed));
        copy_one();
        judge(one, check_pattern(mine, seed + 1));
      } else {
        write_pattern(mine, seed);
        copy_between();
        judge(between, other_.check(seed));
        copy_one();
        judge(one, check_pattern(beside, seed));
      }
    };
    verify(before);

    const auto timed = [&](const auto& copy, int repeats) {
      const nanoseconds start = m_.now();
      for (int i = 0; i < repeats; ++i) copy();
      return std::chrono::duration<double>(m_.now() - start).count() / repeats;
    };
    const double once = std::max(timed(copy_between, 1), timed(copy_one, 1));
    const int repeats = repeats_of(run_, once, 20e-6);
    std::vector<double> first, second, shares;
    while (more(first.size())) {
      // whoever comes second finds warmer caches: in turn
      if (first.size() % 2 == 0) {
        first.push_back(timed(copy_between, repeats));
        second.push_back(timed(copy_one, repeats));
      } else {
        second.push_back(timed(copy_one, repeats));
        first.push_back(timed(copy_between, repeats));
      }
      if (first.back() > 0) shares.push_back(second.back() / first.back());
    }
    between.seconds = summarise(std::move(first));
    one.seconds = summarise(std::move(second));
    if (!shares.empty()) between.share_of_one_process = summarise(std::move(shares)).median;
    verify(after);
  }

  session& run_;
  const machine& m_;
  const ipc_plan& plan_;
  memory_holder& other_;
  row_budget budget_;
  wall::time_point deadline_;
  std::uint64_t seed_ = 0;
};

}  // namespace

std::string_view to_string(ipc_kind kind) {
  switch (kind) {
    case ipc_kind::open:
      return "open";
    case ipc_kind::first_touch:
      return "first_touch";
    case ipc_kind::read:
      return "read";
    case ipc_kind::write:
      return "write";
  }
  return "?";
}

std::string_view to_string(ipc_path path) {
  return path == ipc_path::between_processes ? "between_processes" : "one_process";
}

std::optional<double> ipc_row::bytes_per_second() const {
  if (!is_copy() || !seconds || seconds->median <= 0) return std::nullopt;
  return static_cast<double>(size) / seconds->median;
}

std::optional<double> ipc_row::share() const {
  const auto rate = bytes_per_second();
  if (!rate || !limit.bytes_per_second) return std::nullopt;
  return *rate / *limit.bytes_per_second;
}

std::vector<ipc_row> run_ipc(session& run, const machine& m, const ipc_plan& plan, memory_holder& other) {
  return ipc_runner{run, m, plan, other}.all();
}

json rows_json(const std::vector<ipc_row>& rows) {
  json list = json::array();
  for (const ipc_row& row : rows) {
    json one;
    one["name"] = row.name;
    one["src"] = row.src.value();
    one["dst"] = row.dst.value();
    one["path"] = to_string(row.path);
    one["kind"] = to_string(row.kind);
    one["bytes"] = row.size;
    one["seconds"] = seconds_json(row.seconds);
    one["bytes_per_second"] = or_null(row.bytes_per_second());
    one["limit_bytes_per_second"] = or_null(row.limit.bytes_per_second);
    one["limit_from"] = row.limit.from.empty() ? json(nullptr) : json(row.limit.from);
    one["share_of_limit"] = or_null(row.share());
    one["share_of_one_process"] = or_null(row.share_of_one_process);
    one["verified"] = or_null(row.verified);
    const std::string& why = row.why.empty() ? row.limit.why : row.why;
    one["why"] = why.empty() ? json(nullptr) : json(why);
    list.push_back(std::move(one));
  }
  return list;
}

}  // namespace weft::tool
