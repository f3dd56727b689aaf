// SPDX-License-Identifier: Apache-2.0
#include "output.hpp"

#include "weft/core/host_memory.hpp"
#include "weft/core/version.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <set>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <thread>
#include <unistd.h>
#include <utility>

namespace weft::tool {

namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string{} : std::string{value};
}

std::string first_of_file(const char* path, std::string_view key) {
  std::ifstream in{path};
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key)) continue;
    const auto colon = line.find(':');
    const auto begin = colon == std::string::npos ? colon : line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? std::string{} : line.substr(begin);
  }
  return {};
}

json host_json() {
  utsname names{};
  json host;
  const bool named = ::uname(&names) == 0;
  host["name"] = named ? json(names.nodename) : json(nullptr);
  host["system"] = named ? json(names.sysname) : json(nullptr);
  host["kernel"] = named ? json(names.release) : json(nullptr);
  host["architecture"] = named ? json(names.machine) : json(nullptr);
  const std::string cpu = first_of_file("/proc/cpuinfo", "model name");
  host["cpu"] = cpu.empty() ? json(nullptr) : json(cpu);
  host["threads"] = std::thread::hardware_concurrency();
  host["memory_bytes"] = memory_of_host().total.value();
  return host;
}

/// Closes a descriptor, and removes the file unless it was kept.
class output_file {
 public:
  output_file(std::string path, int flags) : path_(std::move(path)), descriptor_(::open(path_.c_str(), flags, 0666)) {}
  explicit output_file(int descriptor) : descriptor_(descriptor) {}
  ~output_file() {
    if (descriptor_ >= 0) ::close(descriptor_);
    if (!remove_) return;
    ::unlink(path_.c_str());
    remove_when_ended("");
  }
  output_file(const output_file&) = delete;
  output_file& operator=(const output_file&) = delete;

  [[nodiscard]] bool opened() const { return descriptor_ >= 0; }
  void remove_at_end(bool remove) {
    remove_ = remove;
    remove_when_ended(remove ? path_ : "");
  }
  [[nodiscard]] const std::string& path() const { return path_; }

  /// 0 or the error number.
  [[nodiscard]] int write(std::string_view content) const {
    while (!content.empty()) {
      const ssize_t written = ::write(descriptor_, content.data(), content.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return errno;
      if (written == 0) return ENOSPC;
      content.remove_prefix(static_cast<std::size_t>(written));
    }
    return 0;
  }
  [[nodiscard]] int close_checked() {
    // A full disk may show only here.
    const int synced = ::fsync(descriptor_) == 0 || errno == EINVAL || errno == EROFS ? 0 : errno;
    const int closed = ::close(std::exchange(descriptor_, -1)) == 0 ? 0 : errno;
    return synced != 0 ? synced : closed;
  }

 private:
  std::string path_;
  int descriptor_;
  bool remove_ = false;
};

/// What /dev/stdout, /dev/stderr and /dev/fd/N name. Opened anew, a file there would be written from its beginning.
std::optional<int> descriptor_named(std::string_view path) {
  if (path == "/dev/stdout") return STDOUT_FILENO;
  if (path == "/dev/stderr") return STDERR_FILENO;
  constexpr std::string_view folder = "/dev/fd/";
  int number = -1;
  if (!path.starts_with(folder)) return std::nullopt;
  const auto [end, problem] = std::from_chars(path.data() + folder.size(), path.data() + path.size(), number);
  return problem == std::errc{} && end == path.data() + path.size() ? std::optional{number} : std::nullopt;
}

/// Where links lead that end at no file yet: it is made there, and the link stays.
std::string end_of_links(std::string path) {
  constexpr int most = 40;
  std::error_code problem;
  for (int i = 0; i < most && std::filesystem::is_symlink(path, problem); ++i)
    path = (std::filesystem::path{path}.parent_path() / std::filesystem::read_symlink(path, problem)).string();
  return path;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string made;
  made.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\x1b' && i + 1 < text.size() && text[i + 1] == '[') {
      const auto end = text.find_first_not_of("0123456789;", i + 2);
      if (end != std::string_view::npos && text[end] == 'm') {  // a colour
        made += text.substr(i, end + 1 - i);
        i = end;
        continue;
      }
    }
    const auto byte = static_cast<unsigned char>(c);
    // the second half of a control character of 8 bits, in UTF-8
    const bool is_long = i > 0 && static_cast<unsigned char>(text[i - 1]) == 0xc2 && byte >= 0x80 && byte < 0xa0;
    const bool is_control = byte < 0x20 || byte == 0x7f || is_long;
    if (is_long) made.pop_back();
    if (is_control && c != '\n' && c != '\t') {
      made += fmt::format("\\x{:02x}", static_cast<unsigned>(byte));
    } else {
      made += c;
    }
  }
  return made;
}

namespace {

std::atomic<bool> progress_is_drawn{false};  // the cursor of stderr stands behind it
int error_of_stdout = 0;                     // the first one: a later flush does not tell it again

/// Where stderr takes nothing, nobody is there to be told.
void to_stderr(std::string_view text) { static_cast<void>(std::fwrite(text.data(), 1, text.size(), stderr)); }

void end_progress_line() {
  if (progress_is_drawn.exchange(false)) to_stderr("\r\x1b[K");
}

}  // namespace

void say(std::string_view text) {
  end_progress_line();
  to_stderr(printable(text));
}

void show(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() && error_of_stdout == 0) error_of_stdout = errno;
}

std::string reason_of(int number) { return std::error_code{number, std::generic_category()}.message(); }

exit_code exit_code_of(const error& cause) {
  switch (cause.code) {
    case errc::invalid_topology:
      return exit_code::usage;
    case errc::invalid_device:
    case errc::unsupported:
      return exit_code::absent;
    case errc::timed_out:
      return exit_code::timed_out;
    case errc::corrupt:
      return exit_code::falls_short;
    case errc::cancelled:
      return interrupted() ? exit_code::interrupted : exit_code::runtime;
    default:
      return exit_code::runtime;
  }
}

bool wants_colour(colour_choice choice, bool is_terminal) {
  if (choice != colour_choice::automatic) return choice == colour_choice::always;
  if (!environment("NO_COLOR").empty()) return false;
  const std::string force = environment("CLICOLOR_FORCE");
  if (!force.empty() && force != "0") return true;
  return is_terminal && environment("TERM") != "dumb";
}

session::session(global_options options)
    : options_(std::move(options)), colour_(wants_colour(options_.colour, ::isatty(STDOUT_FILENO) == 1)) {}

machine session::open(const std::optional<std::string>& sim) const {
  machine_options wanted;
  wanted.verify_peers = verify_peers_;
  wanted.backend = options_.backend;
  wanted.logical_devices = options_.logical_devices;
  wanted.clock = options_.clock;
  if (sim) {
    if (options_.backend && *options_.backend != "host") {
      throw failure{exit_code::usage,
                    fmt::format("--sim {} is played by the host backend; drop --backend {}", *sim, *options_.backend)};
    }
    auto loaded = load_topology(*sim);
    if (!loaded) throw failure{exit_code::usage, loaded.error().what};
    wanted.machine = std::move(loaded).value();
  }
  try {
    return machine{wanted};
  } catch (const error_exception& e) {
    const bool named = options_.backend.has_value() || !environment("WEFT_BACKEND").empty();
    exit_code code = exit_code_of(e.cause());
    if (e.code() == errc::not_found) code = named ? exit_code::absent : exit_code::usage;
    if (e.code() == errc::invalid_argument) code = exit_code::usage;
    throw failure{code, e.cause().what};
  }
}

const machine& session::open_machine(std::optional<peer_verification> verify) {
  if (!machine_) {
    verify_peers_ = verify;
    machine_.emplace(open(options_.sim));
    for (const std::string& remark : machine_->notes()) warn(remark);
  }
  return *machine_;
}

machine session::open_again() const { return open(options_.sim); }

machine session::open_topology(std::string_view name) const { return open(std::string{name}); }

void session::warn(std::string text) {
  say("warning: " + text + "\n");
  warnings_.push_back(std::move(text));
}

std::string session::paint(style wanted, std::string_view text) const {
  if (!colour_ || wanted == style::plain || text.empty()) return std::string{text};
  const char* code = "0";
  switch (wanted) {
    case style::heading:
      code = "1";
      break;
    case style::good:
      code = "32";
      break;
    case style::bad:
      code = "1;31";
      break;
    case style::caution:
      code = "33";
      break;
    case style::faint:
      code = "2";
      break;
    case style::plain:
      break;
  }
  return fmt::format("\x1b[{}m{}\x1b[0m", code, text);
}

namespace {

/// Lines that are longer than `most` go on in the next one, as far in as they began. Colours have no width. A word that
/// is longer than a line stays whole: it is a path that somebody copies.
std::string folded(const std::string& text, std::size_t most) {
  std::string made;
  for (const std::string_view line : split(text, '\n')) {
    if (!made.empty() || line.data() != text.data()) made += '\n';
    if (line.substr(std::min(line.find_first_not_of(' '), line.size())).starts_with("$ ")) {  // a command, to be copied
      made += line;
      continue;
    }
    const std::size_t indent = std::min(line.find_first_not_of(' '), line.size());
    std::size_t width = 0;
    std::size_t blank = std::string::npos;  // the last one of this line in `made`
    std::size_t since_blank = 0;
    bool is_colour = false;
    for (const char letter : line) {
      if (letter == '\x1b') is_colour = true;
      made += letter;
      if (is_colour) {
        is_colour = letter != 'm';
        continue;
      }
      if ((static_cast<unsigned char>(letter) & 0xC0U) == 0x80U) continue;  // inside a UTF-8 letter
      ++width;
      ++since_blank;
      if (letter == ' ' && width > indent + 1) {
        blank = made.size() - 1;
        since_blank = 0;
      }
      if (width <= most || blank == std::string::npos || indent + since_blank > most) continue;
      made.replace(blank, 1, "\n" + std::string(indent, ' '));
      blank = std::string::npos;
      width = indent + since_blank;
    }
  }
  return made;
}

}  // namespace

std::size_t terminal_columns() {
  winsize size{};
  if (::isatty(STDOUT_FILENO) != 1 || ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return 0;
  return size.ws_col;
}

void session::print(std::string_view text) const {
  if (options_.json) return;
  const std::size_t columns = terminal_columns();
  const std::string safe = printable(text);
  show(columns == 0 ? safe : folded(safe, columns));
}

void session::note(std::string_view text) const {
  if (!options_.quiet) say(std::string{text} + "\n");
}

bool session::simulated() const { return machine_ && (machine_->simulated() || virtual_time()); }

bool session::virtual_time() const { return options_.clock == clock_kind::virtual_time; }

namespace {

bool is_of_virtual_driver(const device& one) { return one.name().starts_with("Virtual "); }

}  // namespace

bool session::virtual_driver() const {
  return machine_ && std::ranges::any_of(machine_->devices(), is_of_virtual_driver);
}

std::optional<std::string> session::figures_note() const {
  if (!machine_ || virtual_time()) return std::nullopt;
  if (virtual_driver()) return "a virtual driver: CPU memory, not a GPU figure";
  if ((*machine_)[0].kind() == backend_kind::host) return "host devices: CPU memory, not a GPU figure";
  return std::nullopt;
}

std::string session::machine_title() const {
  if (!machine_) return "no machine";
  const int count = machine_->device_count();
  if (machine_->simulated()) return fmt::format("{} (simulated)", machine_->layout().name);
  const auto devices = machine_->devices();
  const bool host = std::ranges::all_of(devices, [](const device& d) { return d.kind() == backend_kind::host; });
  if (host) {
    return fmt::format("{} host device{}: CPU memory, not a GPU figure{}", count, count == 1 ? "" : "s",
                       virtual_time() ? " (simulated clock)" : "");
  }
  const std::string plain = fmt::format("{} device{}", count, count == 1 ? "" : "s");
  return virtual_driver() ? plain + " of a virtual driver: CPU memory, not a GPU figure" : plain;
}

json session::document(std::string_view schema) const {
  json doc;
  doc["schema"] = schema;
  doc["tool"] = {{"name", "weft"}, {"version", library_version()}, {"commit", library_commit()}};
  doc["host"] = host_json();
  const std::time_t now = std::time(nullptr);
  doc["time_utc"] = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now));
  doc["argv"] = options_.argv;
  doc["machine"] = nullptr;
  if (machine_) {
    const topology& layout = machine_->layout();
    std::set<std::string> models;
    std::set<std::string> drivers;
    for (const device& d : machine_->devices()) {
      models.insert(d.name());
      if (!d.driver().empty()) drivers.insert(d.driver());
    }
    doc["machine"] = {{"name", layout.name},
                      {"description", layout.description},
                      {"devices", machine_->device_count()},
                      {"models", models},
                      {"drivers", drivers}};
  }
  doc["clock"] = virtual_time() ? "virtual" : "wall";
  doc["simulated"] = simulated();
  doc["virtual_driver"] = virtual_driver();
  doc["warnings"] = warnings_;
  return doc;
}

namespace {

std::string text_of(const json& document) { return document.dump(2, ' ', false, json::error_handler_t::replace); }

}  // namespace

void session::emit(const json& document) const {
  if (!options_.json) return;
  show(text_of(document) + "\n");
}

void session::emit(const json& document, const std::function<void(const json_sink&)>& each, const text_sink& to) {
  constexpr std::string_view absent = "\n  \"pairs\": null";  // at the beginning of a line: in no text
  constexpr std::size_t piece = std::size_t{64} << 10;
  const std::string whole = text_of(document) + "\n";
  const std::size_t at = whole.find(absent);
  std::string text = whole.substr(0, at) + "\n  \"pairs\": [";
  bool is_first = true;
  each([&](const json& one) {
    text += is_first ? "\n    " : ",\n    ";
    is_first = false;
    for (const char c : text_of(one)) {
      text += c;
      if (c == '\n') text += "    ";
    }
    if (text.size() < piece) return;
    to(text);
    text.clear();
  });
  to(text + (is_first ? "]" : "\n  ]") + whole.substr(at + absent.size()));
}

progress::progress(const session& owner, std::string what, std::size_t total)
    : what_(std::move(what)),
      total_(total),
      enabled_(!owner.options().quiet),
      terminal_(::isatty(STDERR_FILENO) == 1 && environment("TERM") != "dumb"),
      started_(std::chrono::steady_clock::now()),
      last_(started_) {}

progress::~progress() { end_progress_line(); }

void progress::step(std::size_t done, std::string_view label) {
  using namespace std::chrono_literals;
  if (!enabled_ || total_ == 0) return;
  const auto now = std::chrono::steady_clock::now();
  if (terminal_ ? now - started_ < 1s || now - last_ < 100ms : now - last_ < 10s) return;
  last_ = now;
  const double spent = std::chrono::duration<double>(now - started_).count();
  const double left = done == 0 ? 0 : spent * static_cast<double>(total_ - done) / static_cast<double>(done);
  const std::string line = printable(fmt::format("{} {}/{} {}, about {:.0f} s left", what_, done, total_, label, left));
  if (terminal_) {
    progress_is_drawn = true;
    winsize size{};
    // a line that is folded by the terminal cannot be taken back
    const bool has_size = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
    to_stderr("\r\x1b[K" + (has_size ? line.substr(0, size.ws_col - 1U) : line));
  } else {
    to_stderr(line + "\n");
  }
}

text_table::text_table(std::vector<std::string> header, std::vector<bool> right) : right_(std::move(right)) {
  right_.resize(header.size());
  lines_.push_back({std::move(header), {}});
}

void text_table::row(std::vector<std::string> cells, std::vector<style> styles) {
  lines_.push_back({std::move(cells), std::move(styles)});
}

void text_table::row(std::vector<std::string> cells, style of_last) {
  std::vector<style> styles(cells.size(), style::plain);
  styles.back() = of_last;
  row(std::move(cells), std::move(styles));
}

namespace {

/// Ends of blocks of columns, each of which fits into `most` characters beside the first column; one block where `most`
/// is 0. A column that is too wide alone stands alone.
std::vector<std::size_t> block_ends(const std::vector<std::size_t>& widths, std::size_t most) {
  constexpr std::size_t gap = 2;
  std::vector<std::size_t> ends;
  std::size_t width = widths.empty() ? 0 : widths[0];
  for (std::size_t c = 1; c < widths.size(); ++c) {
    const bool is_first = ends.empty() ? c == 1 : c == ends.back();
    if (most != 0 && !is_first && width + gap + widths[c] > most) {
      ends.push_back(c);
      width = widths[0];
    }
    width += gap + widths[c];
  }
  ends.push_back(widths.size());
  return ends;
}

/// A letter of UTF-8 is one, however many bytes it has.
std::size_t letters_of(std::string_view text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

}  // namespace

std::string text_table::render(const session& painter) const {
  std::vector<std::size_t> widths(right_.size());
  for (const line& l : lines_) {
    for (std::size_t c = 0; c < l.cells.size(); ++c) widths[c] = std::max(widths[c], letters_of(l.cells[c]));
  }
  std::string text;
  const auto cell = [&](std::size_t r, std::size_t c, bool is_last) {
    const line& l = lines_[r];
    const style wanted = r == 0 ? style::heading : c < l.styles.size() ? l.styles[c] : style::plain;
    const std::string padding(widths[c] - letters_of(l.cells[c]), ' ');
    if (right_[c]) text += padding;
    text += painter.paint(wanted, l.cells[c]);
    if (!right_[c] && !is_last) text += padding;
    if (!is_last) text += "  ";
  };
  std::size_t begin = 1;
  for (const std::size_t end : block_ends(widths, terminal_columns())) {
    if (begin > 1) text += '\n';  // the next columns, beside the same first one
    for (std::size_t r = 0; r < lines_.size(); ++r) {
      if (lines_[r].cells.empty()) continue;
      const std::size_t last = std::min(end, lines_[r].cells.size());
      cell(r, 0, last <= begin);
      for (std::size_t c = begin; c < last; ++c) cell(r, c, c + 1 == last);
      text += '\n';
    }
    begin = end;
  }
  return text;
}

device_id require_device(const topology& machine, int number) {
  const int count = machine.device_count();
  if (number < count) return device_id{number};
  throw failure{exit_code::absent, fmt::format("there is no gpu{}: {} has {} device{}", number, machine.name, count,
                                               count == 1 ? "" : "s")};
}

bool is_played(const device& one) { return one.kind() == backend_kind::host || is_of_virtual_driver(one); }

void write_file(const std::string& path, std::string_view content) {
  write_file(path, [&](const text_sink& to) { to(content); });
}

void write_file(const std::string& path, const std::function<void(const text_sink&)>& produce) {
  const auto fail = [&](const std::string& target, int number, std::string_view kept) {
    throw failure{exit_code::runtime, fmt::format("cannot write {}: {}{}", target, reason_of(number), kept)};
  };
  const auto write_all = [&](output_file& out, std::string_view kept) {
    produce([&](std::string_view piece) {
      if (const int number = out.write(piece); number != 0) fail(path, number, kept);
    });
  };
  if (const auto number = descriptor_named(path)) {
    static_cast<void>(std::fflush(stdout));  // what was printed before stands before it; finish_output tells errors
    output_file out{::fcntl(*number, F_DUPFD_CLOEXEC, 0)};
    if (!out.opened()) fail(path, errno, "");
    write_all(out, "");
    return;
  }
  struct stat status{};
  const bool exists = ::stat(path.c_str(), &status) == 0;
  if (!exists && errno != ENOENT) fail(path, errno, "");
  if (exists && S_ISDIR(status.st_mode)) fail(path, EISDIR, "");
  if (exists && !S_ISREG(status.st_mode)) {
    // A device or a pipe must not be replaced by a file.
    output_file out{path, O_WRONLY | O_CLOEXEC};
    if (!out.opened()) fail(path, errno, "");
    write_all(out, "");
    return;
  }
  std::error_code ignored;
  const std::string target = exists ? std::filesystem::canonical(path, ignored).string() : end_of_links(path);
  if (exists && ::access(target.c_str(), W_OK) != 0) fail(path, errno, "");
  output_file out{fmt::format("{}.{}.tmp", target, ::getpid()), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC};
  if (!out.opened()) fail(path, errno, "");
  out.remove_at_end(true);
  const std::string_view kept = exists ? "; the file that was there is unchanged" : "; nothing was left behind";
  write_all(out, kept);
  if (const int number = out.close_checked(); number != 0) fail(path, number, kept);
  if (exists) ::chmod(out.path().c_str(), status.st_mode & 07777U);
  if (::rename(out.path().c_str(), target.c_str()) != 0) fail(path, errno, kept);
  out.remove_at_end(false);
}

void require_place(const std::string& path) {
  if (descriptor_named(path)) return;
  std::error_code ignored;
  const std::string target = end_of_links(path), folder = std::filesystem::path{target}.parent_path().string();
  errno = EISDIR;
  if (!std::filesystem::is_directory(target, ignored)) {
    if (::access(target.c_str(), W_OK) == 0) return;
    if (errno == ENOENT && ::access(folder.empty() ? "." : folder.c_str(), W_OK) == 0) return;
  }
  throw failure{exit_code::runtime, fmt::format("cannot write {}: {}", path, reason_of(errno))};
}

void make_folder(const std::string& path) {
  std::error_code problem;
  std::filesystem::create_directories(path, problem);
  if (problem) throw failure{exit_code::runtime, fmt::format("cannot make the folder {}: {}", path, problem.message())};
}

void finish_output() {
  errno = 0;
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    const int number = error_of_stdout != 0 ? error_of_stdout : errno;
    throw failure{exit_code::runtime, fmt::format("cannot write to standard output: {}",
                                                  number == 0 ? std::string{"it failed"} : reason_of(number))};
  }
}

std::string time_text(double seconds) {
  const auto three = [](double value, std::string_view unit) {
    const int digits = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
    return fmt::format("{:.{}f} {}", value, digits, unit);
  };
  if (seconds < 999.5e-9) return fmt::format("{:.0f} ns", seconds * 1e9);
  if (seconds < 999.5e-6) return three(seconds * 1e6, "us");
  if (seconds < 999.5e-3) return three(seconds * 1e3, "ms");
  return three(seconds, "s");
}

std::string median_text(const std::optional<statistics>& seconds) { return seconds ? time_text(seconds->median) : "-"; }

std::string spread_text(const std::optional<statistics>& seconds) {
  return seconds ? fmt::format("{}..{}", time_text(seconds->p5), time_text(seconds->p95)) : "-";
}

std::string rate_text(double bytes_per_second) {
  if (bytes_per_second < 1e6) return fmt::format("{:.3g} kB/s", bytes_per_second / 1e3);
  if (bytes_per_second < 1e9) return fmt::format("{:.3g} MB/s", bytes_per_second / 1e6);
  const double value = bytes_per_second / 1e9;
  const int digits = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f} GB/s", value, digits);
}

std::string size_name(std::uint64_t size) {
  static constexpr std::string_view units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  std::size_t unit = 0;
  while (size != 0 && size % 1024 == 0 && unit + 1 < std::size(units)) {
    size /= 1024;
    ++unit;
  }
  return fmt::format("{}{}", size, units[unit]);
}

}  // namespace weft::tool
