// SPDX-License-Identifier: Apache-2.0
// What the tool says and how it ends: data on stdout, progress and remarks on stderr, one exit code.
#pragma once

#include "interruption.hpp"
#include "options.hpp"
#include "statistics.hpp"
#include "weft/core/topology.hpp"
#include "weft/runtime/machine.hpp"

#include <nlohmann/json.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace weft::tool {

using json = nlohmann::ordered_json;

/// The tool's contract with scripts.
enum class exit_code : int {
  ok = 0,
  falls_short = 1,  // a verification failed
  usage = 2,
  absent = 3,  // the backend or device that was asked for is not here
  runtime = 4,
  timed_out = 5,
  nothing_measured = 6,  // a benchmark of which no row could run
  interrupted = 130,
};

/// Ends a command with a message and a code.
class failure : public std::runtime_error {
 public:
  failure(exit_code code, const std::string& message) : std::runtime_error(message), code_(code) {}
  [[nodiscard]] exit_code code() const noexcept { return code_; }

 private:
  exit_code code_;
};

/// The code that an error of the library ends a command with.
[[nodiscard]] exit_code exit_code_of(const error& cause);

/// Text from outside for a terminal: control characters, but for ends of lines, tabs and colours, as \xNN.
[[nodiscard]] std::string printable(std::string_view text);
/// Writes it so to stderr.
void say(std::string_view text);
/// Writes to stdout as it is. What stdout does not take is an error of finish_output().
void show(std::string_view text);

/// What the system says of an `errno`.
[[nodiscard]] std::string reason_of(int number);

enum class style : std::uint8_t { plain, heading, good, bad, caution, faint };

/// How wide the terminal is that stdout leads to; 0 where it leads elsewhere.
[[nodiscard]] std::size_t terminal_columns();

/// Whether colour is wanted: the flag, then NO_COLOR, CLICOLOR_FORCE and TERM=dumb, then whether `is_terminal`.
[[nodiscard]] bool wants_colour(colour_choice choice, bool is_terminal);

/// Takes the pieces of a text that is not in memory whole.
using text_sink = std::function<void(std::string_view)>;

/// One run of the tool: its options, its machine, its warnings.
class session {
 public:
  explicit session(global_options options);

  [[nodiscard]] const global_options& options() const { return options_; }
  /// Opens the machine that the options ask for, once. Errors: failure with the code that fits. What measures pairs
  /// and looks at all data itself opens it without verification, so that a link that loses data is shown, not avoided.
  [[nodiscard]] const machine& open_machine(std::optional<peer_verification> verify = {});
  /// Opens one more machine with the same options.
  [[nodiscard]] machine open_again() const;
  /// Opens another machine with the same options, played from this topology.
  [[nodiscard]] machine open_topology(std::string_view name) const;

  void warn(std::string text);
  [[nodiscard]] std::string paint(style wanted, std::string_view text) const;
  /// Writes to stdout unless a JSON document is wanted there; in a terminal, no line is wider than that.
  void print(std::string_view text) const;
  /// Writes a remark to stderr, unless quiet.
  void note(std::string_view text) const;

  /// The start of every document: schema, tool, host, time_utc, argv, machine, clock, simulated, warnings.
  [[nodiscard]] json document(std::string_view schema) const;
  /// Writes the document to stdout when JSON is wanted there.
  void emit(const json& document) const;
  /// The same of a document whose "pairs" is null so far: `each` gives them one after the other, so that a million of
  /// them are not in memory together.
  using json_sink = std::function<void(const json&)>;
  static void emit(const json& document, const std::function<void(const json_sink&)>& each, const text_sink& to);

  [[nodiscard]] bool simulated() const;
  /// True when times are those of a virtual clock.
  [[nodiscard]] bool virtual_time() const;
  /// True when a device is the virtual driver's, which says so in the name: GPUs that are played on the processor.
  [[nodiscard]] bool virtual_driver() const;
  /// Of what the figures are where they are no GPU's and no model's; empty for GPUs and a virtual clock.
  [[nodiscard]] std::optional<std::string> figures_note() const;
  /// "dgx_h100 (simulated)", "4 host devices: CPU memory, not a GPU figure", …
  [[nodiscard]] std::string machine_title() const;

 private:
  [[nodiscard]] machine open(const std::optional<std::string>& sim) const;

  global_options options_;
  std::optional<peer_verification> verify_peers_;
  std::optional<machine> machine_;
  std::vector<std::string> warnings_;
  bool colour_ = false;
};

/// A progress line on stderr: redrawn on a terminal once work takes longer than a second, else one line per 10 s.
class progress {
 public:
  progress(const session& owner, std::string what, std::size_t total);
  ~progress();
  progress(const progress&) = delete;
  progress& operator=(const progress&) = delete;

  void step(std::size_t done, std::string_view label);

 private:
  std::string what_;
  std::size_t total_;
  bool enabled_;
  bool terminal_;
  std::chrono::steady_clock::time_point started_;
  std::chrono::steady_clock::time_point last_;
};

/// Rows of text with columns as wide as their widest cell. In a terminal, columns that do not fit come below, beside
/// the first one again. Columns named in `right` are right-aligned.
class text_table {
 public:
  explicit text_table(std::vector<std::string> header, std::vector<bool> right = {});
  void row(std::vector<std::string> cells, std::vector<style> styles = {});
  void row(std::vector<std::string> cells, style of_last);
  [[nodiscard]] std::string render(const session& painter) const;

 private:
  struct line {
    std::vector<std::string> cells;
    std::vector<style> styles;
  };
  std::vector<line> lines_;
  std::vector<bool> right_;
};

/// The device of that number. Errors: failure (absent).
device_id require_device(const topology& machine, int number);

/// Whether this computer's processor and memory play it: a device of the host, or of a virtual driver.
[[nodiscard]] bool is_played(const device& one);

/// Writes a file whole or not at all: beside the target first, then renamed onto it. Devices, pipes and what
/// /dev/stdout, /dev/stderr and /dev/fd/N name are written directly. Errors: failure that names the path and the
/// reason.
void write_file(const std::string& path, std::string_view content);
/// The same of a text that `produce` gives in pieces.
void write_file(const std::string& path, const std::function<void(const text_sink&)>& produce);

/// Before all is measured: a file that cannot be written would take it along. write_file() finds out the rest.
/// Errors: failure, as of write_file().
void require_place(const std::string& path);

/// Makes a folder with its parents. Errors: failure that names it.
void make_folder(const std::string& path);

/// Flushes stdout; a full disk there is a failure too.
void finish_output();

/// "1.25 us", "3.4 ms": three significant digits.
[[nodiscard]] std::string time_text(double seconds);
/// The median of times, and "1.25 us..1.4 us" from the 5th to the 95th percentile; "-" without any.
[[nodiscard]] std::string median_text(const std::optional<statistics>& seconds);
[[nodiscard]] std::string spread_text(const std::optional<statistics>& seconds);
/// "12.3 GB/s", with 1 GB = 1e9 bytes.
[[nodiscard]] std::string rate_text(double bytes_per_second);
/// "64MiB", "8B": exact, as used in names.
[[nodiscard]] std::string size_name(std::uint64_t size);

/// A number, or null where it is absent.
template <class T>
[[nodiscard]] json or_null(const std::optional<T>& value) {
  return value ? json(*value) : json(nullptr);
}

}  // namespace weft::tool
