// SPDX-License-Identifier: Apache-2.0
#include "trace_file.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

namespace weft::tool {

namespace {

using any_json = nlohmann::json;  // members in any order

error wrong(std::string what) { return error{errc::invalid_argument, error_scope::call, 0, std::move(what)}; }

std::string_view kind_of(const any_json& value) {
  switch (value.type()) {
    case any_json::value_t::null:
      return "null";
    case any_json::value_t::object:
      return "an object";
    case any_json::value_t::array:
      return "a list";
    case any_json::value_t::string:
      return "a text";
    case any_json::value_t::boolean:
      return "true or false";
    default:
      return "a number";
  }
}

const any_json* member(const any_json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

std::string text_or(const any_json* value, std::string otherwise) {
  return value != nullptr && value->is_string() ? value->get<std::string>() : std::move(otherwise);
}

/// 30 years: beyond it a double does not tell microseconds apart, and no program ran that long.
constexpr double longest = 1e15;

result<double> time_at(const any_json& event, const char* name, std::size_t index, double least) {
  const any_json* value = member(event, name);
  if (value == nullptr) return wrong(fmt::format("traceEvents[{}] has no \"{}\"", index, name));
  if (!value->is_number())
    return wrong(
        fmt::format("traceEvents[{}].{} is {}, expected a number of microseconds", index, name, kind_of(*value)));
  const double time = value->get<double>();
  if (!std::isfinite(time) || time < least || time > longest)
    return wrong(
        fmt::format("traceEvents[{}].{} is {}, expected {} to {} microseconds", index, name, time, least, longest));
  return time;
}

/// Ids are numbers, and texts in the traces of some programs; an event without one is of process or thread 0.
result<std::string> id_at(const any_json& event, const char* name, std::size_t index) {
  const any_json* value = member(event, name);
  if (value == nullptr) return std::string{"0"};
  if (value->is_string()) return value->get<std::string>();
  if (value->is_number_integer()) return value->dump();
  return wrong(fmt::format("traceEvents[{}].{} is {}, expected a whole number", index, name, kind_of(*value)));
}

struct named {
  std::string name;
  double order = 0;
};

struct thread_place {
  named self;
  std::vector<traced_event> events;
};

struct process_place {
  named self;
  std::map<std::string, thread_place> threads;
};

/// What its program sorted by, then numbers by their value: 10 after 9.
constexpr auto by_order = [](const auto& a, const auto& b) {
  if (a.second->self.order != b.second->self.order) return a.second->self.order < b.second->self.order;
  return a.first.size() != b.first.size() ? a.first.size() < b.first.size() : a.first < b.first;
};

class reader {
 public:
  std::optional<error> add(const any_json& event, std::size_t index) {
    if (!event.is_object())
      return wrong(fmt::format("traceEvents[{}] is {}, expected an object", index, kind_of(event)));
    const any_json* phase = member(event, "ph");
    if (phase == nullptr) return wrong(fmt::format("traceEvents[{}] has no \"ph\"", index));
    if (!phase->is_string())
      return wrong(fmt::format("traceEvents[{}].ph is {}, expected a text", index, kind_of(*phase)));
    const auto& letter = phase->get_ref<const std::string&>();
    if (letter != "M" && letter != "X") {
      ++file_.not_drawn;
      return std::nullopt;
    }
    const auto process = id_at(event, "pid", index);
    if (!process) return process.error();
    const auto thread = id_at(event, "tid", index);
    if (!thread) return thread.error();
    if (processes_[*process].threads.try_emplace(*thread).second && ++threads_ > most_threads)
      return wrong(fmt::format("it has more than {} threads", most_threads));
    if (letter == "M") {
      describe(event, *process, *thread);
      return std::nullopt;
    }
    const auto start = time_at(event, "ts", index, -longest);
    if (!start) return start.error();
    const auto duration = time_at(event, "dur", index, 0);
    if (!duration) return duration.error();
    const any_json* arguments = member(event, "args");
    const any_json* failed = arguments == nullptr ? nullptr : member(*arguments, "failed");
    traced_event made{text_or(member(event, "name"), "without a name"), text_or(member(event, "cat"), ""), *start,
                      *duration, failed != nullptr && failed->is_boolean() && failed->get<bool>()};
    if (file_.events == most_trace_events)
      return wrong(fmt::format("it has more than {} events: record less of the program", most_trace_events));
    file_.start = file_.events == 0 ? *start : std::min(file_.start, *start);
    file_.end = file_.events == 0 ? *start + *duration : std::max(file_.end, *start + *duration);
    ++file_.events;
    processes_[*process].threads[*thread].events.push_back(std::move(made));
    return std::nullopt;
  }

  /// Names and orders may stand anywhere, so tracks are made at the end.
  trace_file finish() {
    std::vector<std::pair<std::string, process_place*>> processes;
    processes.reserve(processes_.size());
    for (auto& [id, place] : processes_) processes.emplace_back(id, &place);
    std::sort(processes.begin(), processes.end(), by_order);
    for (auto& [id, process] : processes) {
      std::vector<std::pair<std::string, thread_place*>> threads;
      threads.reserve(process->threads.size());
      for (auto& [thread_id, place] : process->threads) threads.emplace_back(thread_id, &place);
      std::sort(threads.begin(), threads.end(), by_order);
      for (auto& [thread_id, thread] : threads) {
        if (thread->events.empty()) continue;
        // the longer of two that start together goes first: what lies within it is drawn on it
        std::sort(thread->events.begin(), thread->events.end(), [](const traced_event& a, const traced_event& b) {
          return a.start != b.start ? a.start < b.start : a.duration > b.duration;
        });
        file_.tracks.push_back({process->self.name.empty() ? "process " + id : process->self.name,
                                thread->self.name.empty() ? "thread " + thread_id : thread->self.name,
                                std::move(thread->events)});
      }
    }
    return std::move(file_);
  }

  trace_file& file() { return file_; }

 private:
  void describe(const any_json& event, const std::string& process, const std::string& thread) {
    const any_json* arguments = member(event, "args");
    if (arguments == nullptr) return;
    const std::string what = text_or(member(event, "name"), "");
    const bool of_process = what.starts_with("process_");
    if (!of_process && !what.starts_with("thread_")) return;
    named& place = of_process ? processes_[process].self : processes_[process].threads[thread].self;
    if (what.ends_with("_name")) place.name = text_or(member(*arguments, "name"), "");
    const any_json* order = member(*arguments, "sort_index");
    if (what.ends_with("_sort_index") && order != nullptr && order->is_number()) place.order = order->get<double>();
  }

  static constexpr std::size_t most_threads = 100'000;

  trace_file file_;
  std::map<std::string, process_place> processes_;
  std::size_t threads_ = 0;
};

/// Ends the parsing.
struct refused {
  std::string what;
};

/// Takes a trace apart while it is parsed: of its document one event at a time is in memory.
class trace_parser {
 public:
  /// Takes one part, as the JSON library comes to it. False: the library need not keep it.
  bool take(int depth, any_json::parse_event_t part, any_json& value) {
    using event = any_json::parse_event_t;
    const bool begins = part == event::object_start || part == event::array_start;
    if (begins && depth > most_depth) throw refused{fmt::format("it is nested deeper than {} levels", most_depth)};
    if (depth == 0) {
      if (part == event::array_start) begin_events(1);
      if (part == event::value) root_ = kind_of(value);
      if (part == event::object_start) root_ = kind_of(any_json::object());
      return true;
    }
    if (part == event::key && depth == 1) {
      const auto& name = value.get_ref<const std::string&>();
      where_ = name == "traceEvents" ? place::events : name == "otherData" ? place::other : place::elsewhere;
      return where_ != place::elsewhere;
    }
    if (depth == 1 && where_ == place::events && events_depth_ != 1) {
      if (part == event::array_start) {
        begin_events(2);
      } else if (part == event::object_start || part == event::value) {
        throw refused{fmt::format("traceEvents is {}, expected a list",
                                  part == event::value ? kind_of(value) : kind_of(any_json::object()))};
      }
      return true;
    }
    if (where_ == place::events) {
      if (begins && depth - events_depth_ > most_levels)
        throw refused{fmt::format("traceEvents[{}] is nested deeper than {} levels", index_, most_levels)};
      if (begins || part == event::key || depth != events_depth_) return true;
      if (auto problem = reader_.add(value, index_++)) throw refused{std::move(problem->what)};
      return false;
    }
    // outside of the events only otherData.clock and otherData.dropped_records are read
    if (begins) return depth == 1 && where_ == place::other;
    if (part != event::key) return true;
    const auto& name = value.get_ref<const std::string&>();
    return name == "clock" || name == "dropped_records";
  }

  [[nodiscard]] result<trace_file> finish(const any_json& document) {
    if (!has_events_)
      return wrong(root_ == kind_of(any_json::object())
                       ? std::string{"it has no \"traceEvents\": this is no Chrome trace"}
                       : fmt::format("it is {}: this is no Chrome trace", root_));
    trace_file& file = reader_.file();
    if (const any_json* other = member(document, "otherData")) {
      file.clock = text_or(member(*other, "clock"), "");
      const any_json* dropped = member(*other, "dropped_records");
      if (dropped != nullptr && dropped->is_number_unsigned()) file.dropped = dropped->get<std::uint64_t>();
    }
    file.simulated = file.clock.find("simulated") != std::string::npos || file.clock == "virtual";
    return reader_.finish();
  }

  [[nodiscard]] std::string where() const { return has_events_ ? fmt::format("traceEvents[{}]: ", index_) : ""; }

 private:
  enum class place : std::uint8_t { elsewhere, events, other };
  static constexpr int most_levels = 64;
  static constexpr int most_depth = 1'000'000;  // of what is not read either: the parser keeps a bit for each level

  void begin_events(int depth) {
    has_events_ = true;
    where_ = place::events;
    events_depth_ = depth;
  }

  reader reader_;
  place where_ = place::elsewhere;
  std::string_view root_;
  int events_depth_ = 0;
  bool has_events_ = false;
  std::size_t index_ = 0;
};

}  // namespace

result<trace_file> read_trace(std::string_view text) {
  if (text.size() > most_trace_bytes)
    return wrong(fmt::format("it has {} bytes, and traces of up to {} are drawn: record less of the program",
                             text.size(), most_trace_bytes));
  trace_parser parser;
  any_json document;
  try {
    document = any_json::parse(text, [&](int depth, any_json::parse_event_t part, any_json& value) {
      return parser.take(depth, part, value);
    });
  } catch (const refused& why) {
    return wrong(why.what);
  } catch (const any_json::exception& problem) {
    // the library's own text begins with a code that means nothing here
    const std::string_view what = problem.what();
    const auto from = what.find("] ");
    const std::string_view words = from == std::string_view::npos ? what : what.substr(from + 2);
    const bool has_place = dynamic_cast<const any_json::parse_error*>(&problem) != nullptr;
    return wrong(fmt::format("{}{}{}", has_place ? "it is not JSON: " : "", has_place ? "" : parser.where(), words));
  }
  return parser.finish(document);
}

}  // namespace weft::tool
