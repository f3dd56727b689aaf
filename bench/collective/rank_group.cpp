// SPDX-License-Identifier: Apache-2.0
#include "collective/rank_group.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <fcntl.h>
#include <fstream>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace weft::bench {

namespace {

constexpr double longest_turn = 150;  // seconds
constexpr double farewell = 3;

void send_to_file(const std::string& path) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (file < 0) return;
  ::dup2(file, STDOUT_FILENO);
  ::dup2(file, STDERR_FILENO);
  ::close(file);
}

[[noreturn]] void become(const group_plan& plan, const std::string& block, const std::string& folder) {
  for (const auto& [name, value] : plan.environment) ::setenv(name.c_str(), value.c_str(), 1);
  std::vector<std::string> words = plan.program;
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (std::string& word : words) {
    if (word == "$BLOCK") word = block;
    if (word == "$FOLDER") word = folder;
    arguments.push_back(word.data());
  }
  arguments.push_back(nullptr);
  ::execvp(arguments[0], arguments.data());
  static_cast<void>(!::write(STDERR_FILENO, "cannot be started\n", 18));
  ::_exit(127);
}

[[noreturn]] void be_rank(const group_plan& plan, const std::string& path, int rank) {
  int value = 0;
  try {
    plan.play(open_block(path), rank);
  } catch (const std::exception& e) {
    const std::string text = "rank " + std::to_string(rank) + ": " + e.what() + "\n";
    static_cast<void>(!::write(STDERR_FILENO, text.data(), text.size()));
    value = 1;
  }
  ::_exit(value);
}

std::string last_line(const std::string& path) {
  std::ifstream file{path};
  std::string last;
  for (std::string line; std::getline(file, line);) {
    const bool is_rule = line.find_first_not_of("-= ") == std::string::npos;
    if (!is_rule) last = line;
  }
  return last;
}

}  // namespace

rank_group::rank_group(group_plan plan, int ranks, const std::string& folder)
    : plan_(std::move(plan)), ranks_(ranks), log_(folder + "/log") {
  failure_ = plan_.missing;
  if (!failure_.empty()) return;
  try {
    start(folder);
  } catch (const std::exception& e) {
    failure_ = e.what();
  }
}

rank_group::rank_group(rank_group&& other) noexcept
    : plan_(std::move(other.plan_)),
      ranks_(other.ranks_),
      block_(std::exchange(other.block_, nullptr)),
      log_(std::move(other.log_)),
      processes_(std::move(other.processes_)),
      failure_(std::move(other.failure_)) {
  other.processes_.clear();
}

rank_group::~rank_group() { end(); }

void rank_group::start(const std::string& folder) {
  const std::string path = folder + "/block";
  block_ = &make_block(path, ranks_);
  block_->pinned = plan_.pinned;
  const int count = plan_.play ? ranks_ : 1;
  processes_.reserve(static_cast<std::size_t>(count));
  for (int rank = 0; rank < count; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGTERM);
      send_to_file(log_);
      if (plan_.play) be_rank(plan_, path, rank);
      become(plan_, path, folder);
    }
    if (child < 0) {
      failure_ = std::string{"cannot fork: "} + std::strerror(errno);
      end();
      return;
    }
    processes_.push_back(child);
  }
}

// Waits for the ranks' posts, and looks after the processes meanwhile: one that has ended posts nothing.
bool rank_group::wait_for(double seconds, int posts) {
  timespec start{};
  ::clock_gettime(CLOCK_MONOTONIC, &start);
  while (posts > 0) {
    timespec until{};
    ::clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 200'000'000;
    if (until.tv_nsec >= 1'000'000'000) {
      until.tv_nsec -= 1'000'000'000;
      ++until.tv_sec;
    }
    if (::sem_timedwait(&block_->done, &until) == 0) {
      --posts;
      const turn_block::answer* all = block_->answers;
      if (std::any_of(all, all + ranks_, [](const auto& a) { return a.failure[0] != '\0'; })) return false;
      continue;
    }
    for (const pid_t process : processes_) {
      siginfo_t gone{};
      if (::waitid(P_PID, static_cast<id_t>(process), &gone, WEXITED | WNOHANG | WNOWAIT) == 0 && gone.si_pid != 0)
        return false;
    }
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    if (static_cast<double>(now.tv_sec - start.tv_sec) > seconds) return false;
  }
  return true;
}

std::string rank_group::account_of(bool came) const {
  for (int r = 0; r < ranks_; ++r)
    if (block_->answers[r].failure[0] != '\0') return block_->answers[r].failure;
  if (!came) {
    const std::string said = last_line(log_);
    return said.empty() ? "ended, or did not answer in time" : said;
  }
  for (int r = 0; r < ranks_; ++r) {
    const auto& a = block_->answers[r];
    if (a.wrong != 0)
      return "rank " + std::to_string(r) + ": " + std::to_string(a.wrong) + " wrong, the first at " +
             std::to_string(a.first_wrong) + ": expected " + std::to_string(a.expected) + ", got " +
             std::to_string(a.got);
  }
  return {};
}

turn_result rank_group::play(std::uint64_t bytes, std::uint64_t iterations) {
  turn_result result;
  result.failure = failure_;
  if (!failure_.empty()) return result;
  block_->bytes = bytes;
  block_->iterations = iterations;
  for (int r = 0; r < ranks_; ++r) ::sem_post(&block_->go[r]);
  const bool came = wait_for(longest_turn, ranks_);
  for (int r = 0; r < ranks_; ++r) {
    const auto& a = block_->answers[r];
    result.seconds = std::max(result.seconds, a.seconds / static_cast<double>(iterations));
    result.cpu_seconds += a.cpu_seconds;
    result.wrong += a.wrong;
  }
  result.algorithm = block_->answers[0].algorithm;
  result.failure = account_of(came);
  if (!came) {
    failure_ = result.failure;  // its ranks are no longer in step
    end();
  }
  return result;
}

void rank_group::end() {
  if (block_ == nullptr) return;
  block_->bytes = 0;
  for (int r = 0; r < ranks_; ++r) ::sem_post(&block_->go[r]);
  const auto gone_within = [this](double seconds) {
    for (int looks = 0; looks < static_cast<int>(seconds * 100); ++looks) {
      std::erase_if(processes_, [](pid_t process) { return ::waitpid(process, nullptr, WNOHANG) != 0; });
      if (processes_.empty()) return true;
      ::usleep(10'000);
    }
    return false;
  };
  if (!gone_within(farewell)) {
    for (const pid_t process : processes_) ::kill(process, SIGTERM);
    if (!gone_within(farewell))
      for (const pid_t process : processes_) ::kill(process, SIGKILL);
    gone_within(farewell);
  }
  block_ = nullptr;
}

}  // namespace weft::bench
