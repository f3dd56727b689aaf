// SPDX-License-Identifier: Apache-2.0
// Variables and files that a program's user may choose, and those that he may not.
#include "core/environment.hpp"

#include "core/documents/file_text.hpp"
#include "support/samples.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

namespace environment_test {

using weft::errc;
using weft::detail::environment;
using weft::detail::environment_switch;
using weft::detail::file_text;

constexpr const char* variable = "WEFT_CUDA_DRIVER";
constexpr int heard = 10, deaf = 11;

/// A folder that goes away with the object.
class folder {
 public:
  folder() {
    std::string name = (std::filesystem::temp_directory_path() / "weft-environment-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~folder() { std::filesystem::remove_all(path_); }
  folder(const folder&) = delete;
  folder& operator=(const folder&) = delete;
  [[nodiscard]] std::string operator/(const char* name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

/// Has no name among the tests: another process runs it, with rights that differ from its user's or not.
TEST(environment, DISABLED_tells_with_its_exit_code_what_it_hears) { ::_exit(environment(variable) ? heard : deaf); }

/// The exit code of `program` run as another user.
int run_as_nobody(const std::string& program) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv(variable, "/tmp/evil.so", 1);  // NOLINT(concurrency-mt-unsafe): the child has one thread
    if (::setresgid(65534, 65534, 65534) != 0 || ::setresuid(65534, 65534, 65534) != 0) ::_exit(1);
    ::execl(program.c_str(), "setuid", "--gtest_also_run_disabled_tests", "--gtest_filter=environment.DISABLED_tells*",
            nullptr);
    ::_exit(2);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(environment, chooses_nothing_in_a_program_with_rights_that_its_user_has_not) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can make a program run with the rights of another user";
  const folder place;
  std::filesystem::permissions(place / "", std::filesystem::perms{0755});
  const std::string program = place / "program";
  std::filesystem::copy_file("/proc/self/exe", program);
  ASSERT_EQ(::chmod(program.c_str(), 0755), 0);
  const int plain = run_as_nobody(program);
  if (plain == 1) GTEST_SKIP() << "this root cannot become another user";
  if (plain == 2) GTEST_SKIP() << "another user cannot run programs in " << program;
  EXPECT_EQ(plain, heard);
  struct statvfs about{};
  ASSERT_EQ(::statvfs(program.c_str(), &about), 0);
  if ((about.f_flag & ST_NOSUID) != 0) GTEST_SKIP() << program << " lies where setuid has no effect";
  ASSERT_EQ(::chmod(program.c_str(), 04755), 0);
  EXPECT_EQ(run_as_nobody(program), deaf);
}

TEST(environment, switches_are_0_or_1) {
  const auto with = [](const char* value) {
    ::setenv("WEFT_STRICT", value, 1);  // NOLINT(concurrency-mt-unsafe): nobody else reads it now
    const struct unset {
      ~unset() { ::unsetenv("WEFT_STRICT"); }  // NOLINT(concurrency-mt-unsafe)
    } at_the_end;
    return environment_switch("WEFT_STRICT");
  };
  EXPECT_EQ(with("1"), true);
  EXPECT_EQ(with("0"), false);
  EXPECT_EQ(with(""), std::nullopt);
  const weft::error e = samples::error_of([&] { static_cast<void>(with("2")); });
  EXPECT_EQ(e.code, errc::invalid_argument);
  EXPECT_EQ(e.what, "WEFT_STRICT is '2': expected 0 or 1");
}

TEST(file_text, is_all_of_a_regular_file) {
  const folder place;
  const std::string file = place / "file";
  const std::string text(200'000, 'x');
  std::ofstream{file} << text;
  EXPECT_EQ(weft::value_or_raise(file_text(file, text.size())), text);
  EXPECT_EQ(file_text(file, text.size() - 1).error().code, errc::out_of_range);
  EXPECT_FALSE(weft::value_or_raise(file_text("/proc/self/status", 1 << 20)).empty()) << "which has no size";
  std::ofstream{place / "empty"}.flush();
  EXPECT_EQ(weft::value_or_raise(file_text(place / "empty", 0)), "");
}

TEST(file_text, is_not_waited_for_where_there_is_no_file) {
  const folder place;
  const std::string fifo = place / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(file_text(fifo, 100).error().what,
            fifo + ": is a pipe or a device, not a file: save what it gives, and name that");
  EXPECT_EQ(file_text("/dev/zero", 100).error().code, errc::io_failed);
  EXPECT_EQ(file_text(place / "none", 100).error().code, errc::not_found);
  EXPECT_NE(file_text(place / "", 100).error().what.find("is a directory"), std::string::npos);
}

}  // namespace environment_test
