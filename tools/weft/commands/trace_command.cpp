// SPDX-License-Identifier: Apache-2.0
#include "command_line/commands.hpp"
#include "pictures/trace_file.hpp"
#include "pictures/trace_picture.hpp"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <filesystem>
#include <memory>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

namespace weft::tool {

namespace {

/// All of a regular file, or of standard input where the name is "-": opening anything else could wait for ever.
std::string read_file(const std::string& path) {
  const auto fail = [&](int number) {
    throw failure{exit_code::runtime, fmt::format("cannot read {}: {}", path, reason_of(number))};
  };
  const auto too_large = [&](std::uint64_t size) {
    throw failure{exit_code::usage, fmt::format("{} has {} bytes, and traces of up to {} are drawn: record less of the "
                                                "program",
                                                path, size, most_trace_bytes)};
  };
  const bool is_input = path == "-";
  const int number = is_input ? ::dup(STDIN_FILENO) : ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (number < 0) fail(errno);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file{::fdopen(number, "rb"), &std::fclose};
  if (!file) fail(errno);
  struct stat about{};
  if (!is_input && ::fstat(number, &about) != 0) fail(errno);
  if (S_ISDIR(about.st_mode)) fail(EISDIR);
  if (!is_input && !S_ISREG(about.st_mode)) {
    throw failure{exit_code::usage,
                  fmt::format("{} is a pipe or a device, not a file: let it go to standard input, and "
                              "name the trace \"-\"",
                              path)};
  }
  if (static_cast<std::uint64_t>(about.st_size) > most_trace_bytes)
    too_large(static_cast<std::uint64_t>(about.st_size));
  std::string text;
  std::array<char, 65536> part{};
  while (text.size() <= most_trace_bytes) {
    errno = 0;
    const std::size_t size = std::fread(part.data(), 1, part.size(), file.get());
    text.append(part.data(), size);
    if (size == part.size()) continue;
    if (std::ferror(file.get()) != 0) fail(errno);
    break;
  }
  return text;
}

/// A file may be called by any bytes; a picture has letters only.
std::string readable(const std::string& name) {
  return json::parse(json(name).dump(-1, ' ', false, json::error_handler_t::replace)).get<std::string>();
}

std::string picture_of(const std::string& input) {
  std::filesystem::path path{input};
  // "trace.json" beside "trace.svg"; what has another ending keeps it
  if (path.extension() == ".json") path.replace_extension();
  return path.string() + ".svg";
}

}  // namespace

exit_code run_trace_view(session& run, const trace_view_options& options) {
  if (options.input == "-" && options.output.empty())
    throw failure{exit_code::usage, "a trace from standard input has no name: name the picture with -o"};
  const std::string output = options.output.empty() ? picture_of(options.input) : options.output;
  std::error_code absent;
  const std::string read_from = options.input == "-" ? "/dev/stdin" : options.input;
  if (std::filesystem::is_regular_file(read_from, absent) && std::filesystem::equivalent(read_from, output, absent)) {
    throw failure{exit_code::usage, fmt::format("{} is the trace itself: name another file for the picture", output)};
  }
  const auto trace = read_trace(read_file(options.input));
  if (!trace) throw failure{exit_code::usage, fmt::format("{}: {}", options.input, trace.error().what)};
  if (trace->dropped > 0)
    run.warn(fmt::format("{} records were lost before {} was written", trace->dropped, options.input));
  if (trace->not_drawn > 0) {
    run.note(fmt::format("{} events of other kinds than \"X\" are not drawn", trace->not_drawn));
  }
  write_file(output, trace_svg(*trace, readable(std::filesystem::path{options.input}.filename().string())));

  json doc = run.document("weft.trace.view/1");
  doc["clock"] = trace->simulated ? "virtual" : "wall";
  doc["simulated"] = trace->simulated;
  doc["input"] = options.input;
  doc["output"] = output;
  doc["events"] = trace->events;
  doc["not_drawn"] = trace->not_drawn;
  doc["dropped"] = trace->dropped;
  doc["seconds"] = (trace->end - trace->start) / 1e6;
  json tracks = json::array();
  for (const trace_track& track : trace->tracks) {
    double busy = 0;
    for (const traced_event& event : track.events) busy += event.duration;
    tracks.push_back({{"process", track.process},
                      {"name", track.name},
                      {"events", track.events.size()},
                      {"busy_seconds", busy / 1e6}});
  }
  doc["tracks"] = std::move(tracks);
  run.emit(doc);
  run.print(fmt::format("{}: {} event{} on {} track{}, {}{}\n", options.input, trace->events,
                        trace->events == 1 ? "" : "s", trace->tracks.size(), trace->tracks.size() == 1 ? "" : "s",
                        time_text((trace->end - trace->start) / 1e6), trace->simulated ? " (simulated)" : ""));
  run.note("wrote " + output);
  return exit_code::ok;
}

}  // namespace weft::tool
