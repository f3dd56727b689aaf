// SPDX-License-Identifier: Apache-2.0
#include "weft/profile/chrome_trace.hpp"

#include "weft/core/version.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <functional>
#include <map>
#include <queue>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

namespace weft {
namespace {

using std::chrono::nanoseconds;

/// Length of the UTF-8 letter that `text` begins with; 0 when it begins with none (RFC 3629: no surrogates, no form
/// that is longer than needed, nothing past U+10FFFF).
std::size_t letter_length(std::string_view text) {
  const auto byte = [&text](std::size_t i) -> unsigned {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  const auto follows = [&byte](std::size_t i, unsigned low = 0x80, unsigned high = 0xbf) {
    return byte(i) >= low && byte(i) <= high;
  };
  const unsigned first = byte(0);
  if (first < 0x80) return text.empty() ? 0 : 1;
  if (first >= 0xc2 && first <= 0xdf) return follows(1) ? 2 : 0;
  if (first >= 0xe0 && first <= 0xef) {
    const unsigned low = first == 0xe0 ? 0xa0 : 0x80;
    const unsigned high = first == 0xed ? 0x9f : 0xbf;
    return follows(1, low, high) && follows(2) ? 3 : 0;
  }
  if (first >= 0xf0 && first <= 0xf4) {
    const unsigned low = first == 0xf0 ? 0x90 : 0x80;
    const unsigned high = first == 0xf4 ? 0x8f : 0xbf;
    return follows(1, low, high) && follows(2) && follows(3) ? 4 : 0;
  }
  return 0;
}

/// `text` as a JSON string, with its quotes.
void append_string(std::string& json, std::string_view text) {
  static constexpr std::string_view digits = "0123456789abcdef";
  json += '"';
  while (!text.empty()) {
    const std::size_t length = letter_length(text);
    const char c = text.front();
    if (length == 0) {
      json += "\\ufffd";
    } else if (c == '"' || c == '\\') {
      json += '\\';
      json += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      json += "\\u00";
      json += digits[static_cast<unsigned char>(c) >> 4U];
      json += digits[static_cast<unsigned char>(c) & 15U];
    } else {
      json += text.substr(0, length);
    }
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  json += '"';
}

template <class Integer>
void append_number(std::string& json, Integer value) {
  std::array<char, 24> text{};
  const auto [end, problem] = std::to_chars(text.data(), text.data() + text.size(), value);
  static_cast<void>(problem);  // 24 letters hold any 64-bit number
  json.append(text.data(), end);
}

/// Nanoseconds as microseconds, the format's unit: exact, since the fraction is written and not computed.
void append_microseconds(std::string& json, std::uint64_t ns) {
  append_number(json, ns / 1000);
  const auto fraction = static_cast<unsigned>(ns % 1000);
  if (fraction == 0) return;
  json += '.';
  for (const unsigned place : {100U, 10U, 1U}) json += static_cast<char>('0' + fraction / place % 10);
}

/// Without overflow, whatever the times.
std::uint64_t nanoseconds_between(nanoseconds from, nanoseconds to) {
  return to <= from ? 0 : static_cast<std::uint64_t>(to.count()) - static_cast<std::uint64_t>(from.count());
}

/// A virtual clock begins at 0, and all its records have the time.
bool is_known(nanoseconds submitted, const chrome_trace_context& context) {
  return context.simulated || submitted.count() != 0;
}

/// Neither process 0 nor thread 0: Perfetto takes those for the idle task.
constexpr std::int64_t host_process = 1;
std::int64_t process_of(device_id device) {
  return device.value() < 0 ? host_process : host_process + 1 + device.value();
}

struct track_key {
  std::int64_t process = 0;
  std::uint64_t stream = 0;
  std::size_t level = 0;  // 0 but where records of one stream overlap
  friend auto operator<=>(const track_key&, const track_key&) = default;
};

/// Which level of its stream each record goes to: the lowest one that is free. Records come by start.
class levels {
 public:
  std::size_t place(nanoseconds started, nanoseconds ended) {
    for (; !busy_.empty() && busy_.top().first <= started; busy_.pop()) free_.push(busy_.top().second);
    const std::size_t level = free_.empty() ? busy_.size() : free_.top();
    if (!free_.empty()) free_.pop();
    busy_.emplace(ended, level);
    return level;
  }

 private:
  using busy_until = std::pair<nanoseconds, std::size_t>;
  std::priority_queue<busy_until, std::vector<busy_until>, std::greater<>> busy_;
  std::priority_queue<std::size_t, std::vector<std::size_t>, std::greater<>> free_;
};

class writer {
 public:
  explicit writer(const chrome_trace_context& context) : context_(context) {
    json_ = "{\"displayTimeUnit\":\"ns\",\"otherData\":{\"tool\":";
    append_string(json_, "weft " + std::string{library_version()});
    json_ += ",\"clock\":";
    append_string(json_, context.simulated ? "virtual, simulated: not a measurement" : "wall");
    json_ += ",\"dropped_records\":";
    append_number(json_, context.dropped);
    json_ += "},\n\"traceEvents\":[";
  }

  void add(const trace_record& r, nanoseconds origin, const track_key& key) {
    const bool instant = r.kind == trace_kind::mark;
    begin(instant ? "i" : "X", key.process, thread_of(key));
    json_ += ",\"name\":";
    append_string(json_, r.name.empty() ? to_string(r.kind) : std::string_view{r.name});
    json_ += ",\"cat\":";
    append_string(json_, to_string(r.kind));
    json_ += ",\"ts\":";
    append_microseconds(json_, nanoseconds_between(origin, r.started));
    if (instant) {
      json_ += ",\"s\":\"t\"";
    } else {
      json_ += ",\"dur\":";
      append_microseconds(json_, nanoseconds_between(r.started, r.ended));
    }
    add_details(r);
    json_ += '}';
  }

  /// An arrow from a copy to the kernel that it ran before.
  void add_flow(const trace_record& copy, const track_key& from, const trace_record& kernel, const track_key& to,
                nanoseconds origin) {
    ++flows_;
    const auto end = [&](std::string_view phase, const track_key& key, nanoseconds at) {
      begin(phase, key.process, thread_of(key));
      json_ += ",\"name\":\"data\",\"cat\":\"flow\",\"id\":";
      append_number(json_, flows_);
      json_ += ",\"ts\":";
      append_microseconds(json_, nanoseconds_between(origin, at));
      json_ += phase == "f" ? ",\"bp\":\"e\"}" : "}";
    };
    end("s", from, copy.started);
    end("f", to, kernel.started);
  }

  /// A value that goes up and down, as a track of its own.
  void add_counter(std::string_view name, std::int64_t process, nanoseconds at, nanoseconds origin,
                   std::int64_t value) {
    begin("C", process, 0);
    json_ += ",\"name\":";
    append_string(json_, name);
    json_ += ",\"ts\":";
    append_microseconds(json_, nanoseconds_between(origin, at));
    json_ += ",\"args\":{\"value\":";
    append_number(json_, value);
    json_ += "}}";
  }

  /// The names come last, when every track is known; readers collect them from anywhere.
  [[nodiscard]] std::string finish() {
    for (const std::int64_t process : processes_) name_process(process);
    for (const auto& [key, thread] : threads_) {
      std::string name = "stream " + std::to_string(key.stream);
      if (key.level > 0) name += " (" + std::to_string(key.level + 1) + ")";
      name_it("thread_name", key.process, thread, name);
      begin("M", key.process, thread);
      json_ += ",\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":";
      append_number(json_, ++sorted_);
      json_ += "}}";
    }
    return std::move(json_) + "\n]}\n";
  }

 private:
  void begin(std::string_view phase, std::int64_t process, int thread) {
    json_ += any_ ? ",\n{\"ph\":\"" : "\n{\"ph\":\"";
    any_ = true;
    processes_.insert(process);
    json_ += phase;
    json_ += "\",\"pid\":";
    append_number(json_, process);
    json_ += ",\"tid\":";
    append_number(json_, thread);
  }

  void add_details(const trace_record& r) {
    std::string_view before = ",\"args\":{\"";
    const auto field = [&](std::string_view name) {
      json_ += before;
      json_ += name;
      json_ += "\":";
      before = ",\"";
    };
    const std::uint64_t queued = nanoseconds_between(r.submitted, r.started);
    if (is_known(r.submitted, context_) && queued != 0) {
      field("queued_us");
      append_microseconds(json_, queued);
    }
    if (r.kind == trace_kind::copy) {
      field("from");
      append_string(json_, place(r.from));
      field("to");
      append_string(json_, place(r.to));
    }
    if (r.bytes != 0) {
      field("bytes");
      append_number(json_, r.bytes);
    }
    if (r.items != 0) {
      field("items");
      append_number(json_, r.items);
    }
    if (r.launch != 0) {
      field("launch");
      append_number(json_, r.launch);
    }
    if (r.failed) {
      field("failed");
      json_ += "true";
    }
    if (before == ",\"") json_ += '}';
  }

  [[nodiscard]] static std::string place(device_id id) { return id.value() < 0 ? "host" : to_string(id); }

  /// Threads are counted over all processes: some readers know a thread by its number alone.
  int thread_of(const track_key& key) {
    const auto [found, added] = threads_.try_emplace(key, static_cast<int>(threads_.size()) + 1);
    return found->second;
  }

  void name_process(std::int64_t process) {
    std::string name = "host";
    if (process != host_process) {
      const device_id device{static_cast<int>(process - host_process - 1)};
      name = to_string(device);
      if (device.index() < context_.device_names.size() && context_.device_names[device.index()] != name) {
        name += " " + context_.device_names[device.index()];
      }
    }
    if (context_.simulated) name += " (simulated)";
    name_it("process_name", process, 0, name);
    begin("M", process, 0);
    json_ += ",\"name\":\"process_sort_index\",\"args\":{\"sort_index\":";
    append_number(json_, process);
    json_ += "}}";
  }

  void name_it(std::string_view what, std::int64_t process, int thread, std::string_view name) {
    begin("M", process, thread);
    json_ += ",\"name\":";
    append_string(json_, what);
    json_ += ",\"args\":{\"name\":";
    append_string(json_, name);
    json_ += "}}";
  }

  const chrome_trace_context& context_;
  std::string json_;
  std::set<std::int64_t> processes_;
  std::map<track_key, int> threads_;
  int sorted_ = 0;
  std::uint64_t flows_ = 0;
  bool any_ = false;
};

/// The copy that a kernel waited for: the last one that had ended, brought data to the kernel's device, and belongs to
/// the same launch, or ran in the same stream.
void add_flows(writer& out, const std::vector<const trace_record*>& order, const std::vector<track_key>& keys) {
  using group = std::tuple<int, bool, std::uint64_t>;  // a device, and a launch or a stream
  std::map<group, std::size_t> last;                   // copies that have started, by what could wait for them
  const auto groups_of = [](const trace_record& r, device_id device) {
    std::vector<group> found{{device.value(), false, r.stream}};
    if (r.launch != 0) found.push_back({device.value(), true, r.launch});
    return found;
  };
  for (std::size_t i = 0; i < order.size(); ++i) {
    const trace_record& r = *order[i];
    if (r.kind == trace_kind::copy && r.to.value() >= 0) {
      for (const group& one : groups_of(r, r.to)) last[one] = i;
    } else if (r.kind == trace_kind::kernel) {
      for (const group& one : groups_of(r, r.device)) {
        const auto found = last.find(one);
        if (found == last.end() || order[found->second]->ended > r.started) continue;
        out.add_flow(*order[found->second], keys[found->second], r, keys[i], order.front()->started);
        last.erase(found);  // one arrow for each copy
        break;
      }
    }
  }
}

/// Bytes that copies have under way, and how much work of each device is submitted and not over.
void add_counters(writer& out, const std::vector<const trace_record*>& order, const chrome_trace_context& context) {
  using change = std::tuple<nanoseconds, std::int64_t, std::int64_t>;  // when, whose process, by how much
  const auto write = [&](std::string_view name, std::vector<change> changes) {
    std::sort(changes.begin(), changes.end());
    std::map<std::int64_t, std::int64_t> values;
    for (std::size_t i = 0; i < changes.size(); ++i) {
      const auto& [at, process, by] = changes[i];
      values[process] += by;
      const bool is_last =
          i + 1 == changes.size() || std::get<0>(changes[i + 1]) != at || std::get<1>(changes[i + 1]) != process;
      if (is_last) out.add_counter(name, process, at, order.front()->started, values[process]);
    }
  };
  std::vector<change> moving;
  std::vector<change> queued;
  for (const trace_record* r : order) {
    if (r->kind == trace_kind::copy && r->bytes != 0) {
      moving.emplace_back(r->started, host_process, static_cast<std::int64_t>(r->bytes));
      moving.emplace_back(std::max(r->started, r->ended), host_process, -static_cast<std::int64_t>(r->bytes));
    }
    if (r->device.value() >= 0 && r->kind != trace_kind::mark && is_known(r->submitted, context)) {
      queued.emplace_back(std::max(r->submitted, order.front()->started), process_of(r->device), 1);
      queued.emplace_back(std::max(r->started, r->ended), process_of(r->device), -1);
    }
  }
  write("bytes in flight", std::move(moving));
  write("work submitted", std::move(queued));
}

}  // namespace

std::string chrome_trace(std::span<const trace_record> records, const chrome_trace_context& context) {
  std::vector<const trace_record*> order;
  order.reserve(records.size());
  for (const trace_record& r : records) order.push_back(&r);
  // of what starts together the shortest goes first: what took no time leaves its track to the next
  std::sort(order.begin(), order.end(), [](const trace_record* a, const trace_record* b) {
    if (a->started != b->started) return a->started < b->started;
    return a->ended != b->ended ? a->ended < b->ended : a < b;
  });
  writer out{context};
  std::map<std::pair<std::int64_t, std::uint64_t>, levels> streams;
  std::vector<track_key> keys;
  keys.reserve(order.size());
  for (const trace_record* r : order) {
    track_key key{process_of(r->device), r->stream, 0};
    if (r->kind != trace_kind::mark) {
      key.level = streams[{key.process, key.stream}].place(r->started, std::max(r->started, r->ended));
    }
    out.add(*r, order.front()->started, key);
    keys.push_back(key);
  }
  add_flows(out, order, keys);
  add_counters(out, order, context);
  return out.finish();
}

}  // namespace weft
