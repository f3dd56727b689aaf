// SPDX-License-Identifier: Apache-2.0
#include "conformance/isolation.hpp"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <optional>
#include <poll.h>
#include <span>
#include <spawn.h>
#include <string_view>
#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

namespace weft {
namespace {

using clock = std::chrono::steady_clock;

constexpr int answers = 3;                    // the descriptor of the process that answers
constexpr std::chrono::seconds for_death{5};  // a driver may keep a process that was killed for ever

/// Before the reason of each answer.
struct answer_head {
  double seconds = 0;
  std::uint32_t kind = 0;
  std::uint32_t size = 0;
};

class answering_process {
 public:
  explicit answering_process(const std::vector<std::string>& arguments) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
      how_it_ended_ = std::string{"there is no pipe: "} + std::strerror(errno);  // NOLINT(concurrency-mt-unsafe)
      return;
    }
    std::string name{"weft-conform"};
    std::vector<std::string> words{arguments};
    std::vector<char*> argv{name.data()};
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, ends[1], answers);
    const int status = ::posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, argv.data(), environ);
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    answers_ = ends[0];
    ::fcntl(answers_, F_SETFL, O_NONBLOCK);
    if (status == 0) return;
    pid_ = -1;
    how_it_ended_ = std::string{"no process: "} + std::strerror(status);  // NOLINT(concurrency-mt-unsafe)
  }
  answering_process(const answering_process&) = delete;
  answering_process& operator=(const answering_process&) = delete;
  ~answering_process() {
    if (answers_ >= 0) ::close(answers_);
  }

  /// True with the next answer; false when the process has ended, or was killed after `limit` without one.
  bool hear(case_result& into, std::chrono::seconds limit) {
    const auto until = clock::now() + limit;
    while (!take(into)) {
      // asked first, so that what it said before its end is read behind it
      const bool is_over = pid_ < 0 || reap();
      if (read_all()) continue;
      if (is_over) return false;
      if (clock::now() >= until) {
        how_it_ended_ = "not ended after " + std::to_string(limit.count()) + " s";
        kill();
        return false;
      }
      // the end is asked for, since a grandchild may keep the pipe open behind it
      pollfd one{answers_, POLLIN, 0};
      ::poll(&one, is_closed_ ? 0 : 1, 20);
    }
    return true;
  }
  /// Empty when it ended well.
  [[nodiscard]] const std::string& how_it_ended() const { return how_it_ended_; }

 private:
  bool take(case_result& into) {
    answer_head head;
    if (said_.size() < sizeof head) return false;
    std::memcpy(&head, said_.data(), sizeof head);
    if (said_.size() - sizeof head < head.size) return false;
    into.verdict = static_cast<verdict_kind>(head.kind);
    into.seconds = head.seconds;
    into.why = said_.substr(sizeof head, head.size);
    said_.erase(0, sizeof head + head.size);
    return true;
  }
  bool read_all() {
    std::array<char, 4096> part{};
    bool is_more = false;
    while (answers_ >= 0 && !is_closed_) {
      const ssize_t size = ::read(answers_, part.data(), part.size());
      if (size < 0 && errno == EINTR) continue;
      is_closed_ = size == 0;
      if (size <= 0) break;
      said_.append(part.data(), static_cast<std::size_t>(size));
      is_more = true;
    }
    return is_more;
  }
  bool reap() {
    int status = 0;
    if (::waitpid(pid_, &status, WNOHANG) != pid_) return false;
    pid_ = -1;
    if (!how_it_ended_.empty()) return true;
    if (WIFSIGNALED(status)) how_it_ended_ = "ended by signal " + std::to_string(WTERMSIG(status));
    if (WIFEXITED(status) && WEXITSTATUS(status) != 0)
      how_it_ended_ = "its process ended with " + std::to_string(WEXITSTATUS(status));
    return true;
  }
  void kill() {
    ::kill(pid_, SIGKILL);
    const auto until = clock::now() + for_death;
    while (!reap()) {
      if (clock::now() >= until) {
        how_it_ended_ += ", and its process cannot be killed";
        return;
      }
      ::poll(nullptr, 0, 20);
    }
  }

  pid_t pid_ = -1;
  int answers_ = -1;
  bool is_closed_ = false;
  std::string said_;
  std::string how_it_ended_;
};

bool write_all(std::span<const char> data) {
  while (!data.empty()) {
    const ssize_t size = ::write(answers, data.data(), data.size());
    if (size < 0 && errno != EINTR) return false;
    if (size > 0) data = data.subspan(static_cast<std::size_t>(size));
  }
  return true;
}

}  // namespace

std::vector<case_result> run_isolated(const isolation& how, const run_options& options) {
  const std::vector<conformance_case> cases = conformance_cases();
  std::vector<case_result> results;
  const auto tell = [&](case_result result) {
    results.push_back(std::move(result));
    if (options.after_each) options.after_each(results.back());
  };
  for (std::size_t at = 0; at < cases.size();) {
    const std::string_view group = cases[at].group;
    std::vector<std::string> arguments = how.arguments;
    arguments.push_back(std::to_string(at));
    std::optional<answering_process> process;
    bool is_answering = true;
    for (; is_answering && at < cases.size() && cases[at].group == group; ++at) {
      if (!is_among(cases[at], options.filter)) continue;
      if (!process) process.emplace(arguments);
      case_result result{std::string{cases[at].name}, std::string{group}, verdict_kind::falls_short, {}, 0};
      is_answering = process->hear(result, how.limit);
      if (!is_answering)
        result.why = process->how_it_ended().empty() ? "its process ended before it" : process->how_it_ended();
      tell(std::move(result));
    }
    if (!process || !is_answering) continue;
    case_result last{"a process ends well behind its last case", std::string{group}, verdict_kind::falls_short, {}, 0};
    if (process->hear(last, how.limit) || process->how_it_ended().empty()) continue;
    last.why = process->how_it_ended();
    tell(std::move(last));
  }
  return results;
}

void answer_group(std::size_t first, const std::function<machine()>& open, const run_options& options) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::fcntl(answers, F_SETFD, FD_CLOEXEC);
  const std::vector<conformance_case> cases = conformance_cases();
  for (std::size_t at = first; at < cases.size() && cases[at].group == cases[first].group; ++at) {
    if (!is_among(cases[at], options.filter)) continue;
    const case_result result = run_case(cases[at], open, options.fault);
    const answer_head head{result.seconds, static_cast<std::uint32_t>(result.verdict),
                           static_cast<std::uint32_t>(result.why.size())};
    std::array<char, sizeof head> bytes{};
    std::memcpy(bytes.data(), &head, sizeof head);
    if (!write_all(bytes) || !write_all(result.why)) return;
  }
}

}  // namespace weft
