// SPDX-License-Identifier: Apache-2.0
// The suite with a process for each group, over a driver that hangs or ends the process.
#include "support/paths.hpp"
#include "virtual_driver/loaded_driver.hpp"

#include <array>
#include <cstdio>
#include <string>

namespace isolation_test {

/// What the suite prints, without what it is not asked for; `plan` is what happens to calls in each of its processes.
std::string suite(const std::string& arguments, const std::string& plan = "") {
  const std::string driver = samples::virtual_cuda_library();
  const std::string command = "exec env WEFT_CUDA_DRIVER='" + driver + "' WEFT_CUDA_NVRTC='" + driver +
                              "' WEFT_CUDA_NVML='" + driver +
                              "' WEFT_VIRTUAL_CUDA_DEVICES=2 XDG_CACHE_HOME=/dev/null WEFT_VIRTUAL_CUDA_FAIL='" + plan +
                              "' '" + samples::program_folder() + "/weft-conform' --backend cuda " + arguments;
  std::FILE* const out = ::popen(command.c_str(), "r");
  std::string said;
  std::array<char, 4096> part{};
  for (std::size_t size = 1; size != 0; said.append(part.data(), size))
    size = std::fread(part.data(), 1, part.size(), out);
  return said + "status " + std::to_string(WEXITSTATUS(::pclose(out))) + "\n";
}

TEST(isolated_suite, says_what_the_suite_says_in_one_process) {
  const std::string said = suite("--filter address_range --isolate");
  EXPECT_EQ(said, suite("--filter address_range"));
  EXPECT_NE(said.find(" 0 fall short\n\nstatus 0"), std::string::npos) << said;
}

TEST(isolated_suite, loses_one_sentence_to_a_call_that_never_returns) {
  const std::string said = suite("--filter address_range --sentence-limit 10", "cuMemAllocManaged@1=hang");
  EXPECT_NE(said.find("inside unified memory gives base, size, kind and device: falls short: not ended after 10 s\n"),
            std::string::npos)
      << said;
  EXPECT_NE(said.find(": 4 hold, 0 not offered, 1 fall short\n\nstatus 1"), std::string::npos) << said;
}

TEST(isolated_suite, loses_one_sentence_to_the_end_of_its_process) {
  const std::string said = suite("--filter address_range --isolate", "cuMemAllocManaged@1=kill");
  EXPECT_NE(said.find("kind and device: falls short: ended by signal 9\n"), std::string::npos) << said;
  EXPECT_NE(said.find(": 4 hold, 0 not offered, 1 fall short\n\nstatus 1"), std::string::npos) << said;
}

TEST(isolated_suite, loses_to_a_driver_that_never_opens_each_sentence_and_ends) {
  const std::string said = suite("--filter address_range --sentence-limit 1", "cuInit@1=hang");
  EXPECT_EQ(said.find(": holds"), std::string::npos) << said;
  EXPECT_NE(said.find(": 0 hold, 0 not offered, 5 fall short\n\nstatus 1"), std::string::npos) << said;
}

}  // namespace isolation_test
