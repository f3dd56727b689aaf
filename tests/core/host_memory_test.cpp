// SPDX-License-Identifier: Apache-2.0
// Memory of the host as a process may have it, from trees of files as systems have them.
#include "core/host_memory.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace host_memory_test {

using weft::detail::memory_below;

constexpr std::uint64_t mib = std::uint64_t{1} << 20;

class host_memory : public testing::Test {
 protected:
  host_memory() {
    std::string name = (std::filesystem::temp_directory_path() / "weft-host-memory-XXXXXX").string();
    root_ = ::mkdtemp(name.data());
    file("/proc/meminfo", "MemTotal:       16777216 kB\nMemFree:         1048576 kB\nMemAvailable:    8388608 kB\n");
  }
  ~host_memory() override { std::filesystem::remove_all(root_); }

  void file(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path{root_ + name}.parent_path());
    std::ofstream{root_ + name} << text;
  }
  void expect(std::uint64_t total, std::uint64_t free) const {
    const weft::host_memory found = memory_below(root_);
    EXPECT_EQ(found.total.value() / mib, total);
    EXPECT_EQ(found.free.value() / mib, free);
  }

  std::string root_;
};

TEST_F(host_memory, without_groups_is_that_of_the_computer) { expect(16384, 8192); }

TEST_F(host_memory, memory_in_a_group_of_version_2_is_what_the_group_may_have) {
  file("/proc/self/cgroup", "0::/user.slice/job\n");
  file("/proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n");
  file("/sys/fs/cgroup/user.slice/job/memory.max", "max\n");
  expect(16384, 8192);
  file("/sys/fs/cgroup/user.slice/job/memory.max", "268435456\n");
  file("/sys/fs/cgroup/user.slice/job/memory.current", "104857600\n");
  file("/sys/fs/cgroup/user.slice/job/memory.stat", "anon 52428800\ninactive_file 52428800\n");
  expect(256, 206);
}

TEST_F(host_memory, is_limited_by_groups_above_too) {
  file("/proc/self/cgroup", "0::/user.slice/job\n");
  file("/proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  file("/sys/fs/cgroup/user.slice/job/memory.max", "268435456\n");
  file("/sys/fs/cgroup/user.slice/job/memory.current", "0\n");
  file("/sys/fs/cgroup/user.slice/memory.max", "134217728\n");
  file("/sys/fs/cgroup/user.slice/memory.current", "134217728\n");
  expect(128, 0);
  file("/sys/fs/cgroup/user.slice/memory.max", "536870912\n");
  file("/sys/fs/cgroup/user.slice/memory.current", "503316480\n");
  expect(256, 32);
}

TEST_F(host_memory, memory_in_a_container_of_version_1_is_what_its_group_may_have) {
  file("/proc/self/cgroup", "5:devices:/docker/abc\n4:cpu,memory:/docker/abc\n0::/\n");
  file("/proc/self/mountinfo",
       "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
       "35 31 0:31 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
  file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912\n");
  file("/sys/fs/cgroup/memory/memory.usage_in_bytes", "104857600\n");
  file("/sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 0\n");
  expect(512, 412);
}

TEST_F(host_memory, files_that_say_something_else_leave_the_memory_of_the_computer) {
  file("/proc/self/cgroup", "nonsense\n0::\n");
  file("/proc/self/mountinfo", "nonsense\n - cgroup2\n30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  file("/sys/fs/cgroup/memory.max", "many\n");
  expect(16384, 8192);
}

TEST(memory_of_this_host, is_something) {
  EXPECT_GT(weft::memory_of_host().total.value(), 0U);
  EXPECT_LE(weft::memory_of_host().free, weft::memory_of_host().total);
}

}  // namespace host_memory_test
