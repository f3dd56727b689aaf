// SPDX-License-Identifier: Apache-2.0
// Runs the example programs as a reader would.
#include "image_pipeline/sample_images.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <sys/wait.h>

namespace {

namespace fs = std::filesystem;

struct outcome {
  int code = -1;
  std::string text;  // what it wrote, errors included
};

outcome run(const std::string& command) {
  outcome ended;
  std::FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return ended;
  std::array<char, 4096> part{};
  while (const std::size_t count = std::fread(part.data(), 1, part.size(), pipe)) ended.text.append(part.data(), count);
  const int status = ::pclose(pipe);
  ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return ended;
}

std::string program(const std::string& name) { return std::string{WEFT_BIN_DIR} + "/" + name; }

std::string text_of(const fs::path& file) {
  std::ifstream in{file};
  return {std::istreambuf_iterator<char>{in}, {}};
}

TEST(programs, hello_prints_what_the_readme_says) {
  const outcome ended = run(program("hello"));
  EXPECT_EQ(ended.code, 0);
  EXPECT_EQ(ended.text, "gpu0 -> gpu1: 4 KiB, direct\n2 * 1023 + 1 = 2047\n");
}

TEST(programs, the_readme_shows_hello_as_it_is) {
  const std::string readme = text_of(fs::path{WEFT_SOURCE_DIR} / "README.md");
  const std::string hello = text_of(fs::path{WEFT_SOURCE_DIR} / "examples" / "hello.cpp");
  ASSERT_FALSE(hello.empty());
  EXPECT_NE(readme.find("```cpp\n" + hello + "```\n"), std::string::npos);
}

TEST(programs, peer_copy_is_direct_while_the_lease_lasts_and_staged_otherwise) {
  const outcome ended = run(program("peer_copy") + " two_socket_8");
  EXPECT_EQ(ended.code, 0) << ended.text;
  EXPECT_NE(ended.text.find("before access is enabled: 4 MiB staged, verified\n"
                            "while a lease is held: 4 MiB direct, verified\n"
                            "after the lease has ended: 4 MiB staged, verified\n"
                            "1 direct, 2 staged\n"),
            std::string::npos)
      << ended.text;
}

TEST(programs, peer_copy_says_which_devices_are_no_peers) {
  const outcome ended = run(program("peer_copy") + " ring_3_no_p2p");
  EXPECT_EQ(ended.code, 0) << ended.text;
  EXPECT_NE(ended.text.find("gpu0\t-\tno\tno\n"), std::string::npos) << ended.text;
  EXPECT_NE(ended.text.find("0 direct, 2 staged\n"), std::string::npos) << ended.text;
}

TEST(programs, ordering_orders) {
  const outcome ended = run(program("ordering"));
  EXPECT_EQ(ended.code, 0) << ended.text;
  EXPECT_EQ(ended.text, "ready before copied: yes\n20 + 2 + 20 + 1 = 43\n");
}

TEST(programs, test_without_gpus_finds_the_link_that_lies) {
  const outcome ended = run(program("test_without_gpus"));
  EXPECT_EQ(ended.code, 0) << ended.text;
  EXPECT_EQ(ended.text,
            "one: arrived\npair_nvlink: arrived\nring_3_no_p2p: arrived\ntwo_socket_8: arrived\n"
            "broken link: lost, as it should be\n"
            "gpu0 -> gpu1 lies\ngpu1 -> gpu0 works\n"
            "broken link, checked: arrived\n");
}

TEST(programs, ticks_arrive_in_order_and_average_to_the_plain_sum) {
  const outcome ended = run(program("ticks"));
  EXPECT_EQ(ended.code, 0) << ended.text;
  EXPECT_TRUE(ended.text.starts_with("gpu0 -> gpu1: direct\nafter 250000 ticks: ")) << ended.text;
  EXPECT_NE(ended.text.find("1000000 sent, 1000000 received, 0 out of order, 0 lost; 1000000 direct, 0 staged\n"
                            "the same as a plain sum\n"),
            std::string::npos)
      << ended.text;
}

TEST(programs, ticks_go_through_the_host_where_the_devices_are_no_peers) {
  const outcome ended = run(program("ticks") + " ring_3_no_p2p");
  EXPECT_EQ(ended.code, 0) << ended.text;
  EXPECT_TRUE(ended.text.starts_with("gpu0 -> gpu1: host_staged, gpu0 has no peer access to gpu1")) << ended.text;
  EXPECT_NE(ended.text.find("0 direct, 1000000 staged\nthe same as a plain sum\n"), std::string::npos) << ended.text;
}

class image_pipeline_program : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "weft-program-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder = name;
  }
  void TearDown() override { fs::remove_all(folder); }

  [[nodiscard]] outcome process(const std::string& more = "") const {
    return run(program("image_pipeline") + " " + (folder / "in").string() + " " + (folder / "out").string() + more);
  }

  fs::path folder;
};

TEST_F(image_pipeline_program, blurs_a_folder_and_counts_what_it_skipped) {
  const auto files = weft::images::make_sample_images(folder / "in");
  std::ofstream{folder / "in" / "notes.txt"} << "not a picture";
  const outcome ended = process(" --sim dgx_h100");
  EXPECT_EQ(ended.code, 0) << ended.text;
  EXPECT_NE(ended.text.find("12 images"), std::string::npos) << ended.text;
  EXPECT_NE(ended.text.find("1 files skipped"), std::string::npos) << ended.text;
  EXPECT_NE(ended.text.find("notes.txt is neither a JPEG nor a PNG"), std::string::npos) << ended.text;
  EXPECT_NE(ended.text.find("gpu3 processed 3 images"), std::string::npos) << ended.text;
  EXPECT_EQ(ended.text.find("WRONG"), std::string::npos) << ended.text;
  EXPECT_EQ(weft::images::load_images(folder / "out").images.size(), files.size());
}

TEST_F(image_pipeline_program, a_folder_without_pictures_is_an_error) {
  fs::create_directory(folder / "in");
  const outcome ended = process();
  EXPECT_EQ(ended.code, 1);
  EXPECT_NE(ended.text.find("no JPEG or PNG in " + (folder / "in").string()), std::string::npos) << ended.text;
}

TEST_F(image_pipeline_program, results_never_overwrite_their_images) {
  weft::images::make_sample_images(folder / "in");
  const std::string in = (folder / "in").string();
  const outcome ended = run(program("image_pipeline") + " " + in + " " + in + "/../in");
  EXPECT_EQ(ended.code, 2);
  EXPECT_NE(ended.text.find("would overwrite"), std::string::npos) << ended.text;
}

TEST_F(image_pipeline_program, wrong_words_give_the_usage) {
  for (const char* words : {"", "one", "one two three", "one two --devices 0", "one two --devices x", "one two --sim",
                            "one two --unknown"}) {
    const outcome ended = run(program("image_pipeline") + " " + words);
    EXPECT_EQ(ended.code, 2) << words;
    EXPECT_TRUE(ended.text.starts_with("usage: ")) << ended.text;
  }
}

}  // namespace
