// SPDX-License-Identifier: Apache-2.0
// Every example on OpenCL devices, and on a host device beside them: it does what it shows, or says what is missing.
#include "examples/program.hpp"
#include "image_pipeline/sample_images.hpp"
#include "support/paths.hpp"
#include "weft/runtime/machine.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace opencl_programs_test {

using programs::outcome;
using programs::program;
using programs::run;

/// Why there is no OpenCL here; empty if there is. What is set here holds for the programs as well.
std::string why_no_opencl() {
  static const std::string why = [] {
    // NOLINTBEGIN(concurrency-mt-unsafe): before PoCL is loaded, in the one thread of a test
    setenv("POCL_DEVICES", "pthread pthread pthread pthread", 0);
    setenv("POCL_CACHE_DIR", (samples::build_folder() + "/pocl_cache").c_str(), 0);
    // NOLINTEND(concurrency-mt-unsafe)
    try {
      weft::machine_options options;
      options.backend = "opencl";
      const weft::machine m{options};
      std::string few;
      if (m.device_count() < 4) few = "too few devices";
      return few;
    } catch (const weft::error_exception& absent) {
      return absent.cause().what;
    }
  }();
  return why;
}

constexpr int absent = 3;  // what the program needs is not offered; see examples/play.hpp

struct example {
  const char* name;
  int on_opencl = 0;
  int mixed = 0;
  const char* why = "";  // part of what it says where it cannot
};

constexpr example examples[] = {
    {"hello"},
    {"ordering"},
    {"peer_copy"},
    {"reduce_sum"},
    {"scatter_gather"},
    {"data_parallel"},
    {"global_statistics"},
    {"gradient_averaging"},
    {"ticks"},
    {"jacobi"},
    {"automatic_balance"},     // on the virtual clock, which is the host's
    {"three_stage_pipeline"},  // likewise
    {"test_without_gpus"},     // machines that are played
    {"ring_peer"},             // it asks for devices of the host as many as it needs
    {"ring_ipc", absent, 0, "does not offer handles of memory"},
    {"ring_blocks", absent, 0, "does not offer blocks"},
    {"selective_access", absent, absent, "unsupported"},
};

std::string on(const char* backend) {
  // one device of the host, so that the second is another backend's
  std::string words{"WEFT_DEVICES=1 WEFT_BACKEND="};
  words.append(backend).append(" ");
  return words;
}

class opencl_programs : public testing::TestWithParam<example> {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_opencl(); !why.empty()) GTEST_SKIP() << why;
  }
};

TEST_P(opencl_programs, do_what_they_show_on_opencl_devices_or_say_why_not) {
  const outcome ended = run(on("opencl") + program(GetParam().name));
  EXPECT_EQ(ended.code, GetParam().on_opencl) << ended.text;
  if (GetParam().on_opencl != 0) {
    EXPECT_NE(ended.text.find(GetParam().why), std::string::npos) << ended.text;
  }
}

TEST_P(opencl_programs, do_what_they_show_on_a_mixed_machine_or_say_why_not) {
  const outcome ended = run(on("host,opencl") + program(GetParam().name));
  EXPECT_EQ(ended.code, GetParam().mixed) << ended.text;
  if (GetParam().mixed != 0) {
    EXPECT_NE(ended.text.find(GetParam().why), std::string::npos) << ended.text;
  }
}

INSTANTIATE_TEST_SUITE_P(all, opencl_programs, testing::ValuesIn(examples),
                         [](const testing::TestParamInfo<example>& one) { return std::string{one.param.name}; });

TEST(opencl_image_pipeline, is_right_to_the_pixel_on_opencl_and_on_a_mixed_machine) {
  if (const std::string why = why_no_opencl(); !why.empty()) GTEST_SKIP() << why;
  const programs::scratch_folder folder;
  weft::images::make_sample_images(folder / "in");
  for (const char* const large : {"gradient_colour.jpg", "rings_colour.jpg", "waves_colour.png", "waves_grey.jpg"})
    std::filesystem::remove(folder / "in" / large);
  for (const char* const backend : {"opencl", "host,opencl"}) {
    const outcome ended =
        run(on(backend) + program("image_pipeline") + " " + (folder / "in").string() + " " + (folder / "out").string());
    EXPECT_EQ(ended.code, 0) << backend << "\n" << ended.text;
  }
}

}  // namespace opencl_programs_test
