// SPDX-License-Identifier: Apache-2.0
// Runs the example programs as a reader would.
#include "examples/program.hpp"
#include "image_pipeline/sample_images.hpp"
#include "support/paths.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

namespace programs_test {

namespace fs = std::filesystem;

using programs::outcome;
using programs::program;
using programs::run;

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
  const std::string readme = text_of(fs::path{samples::source_folder()} / "README.md");
  const std::string hello = text_of(fs::path{samples::source_folder()} / "examples" / "hello.cpp");
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

TEST(programs, test_without_gpus_finds_the_link_that_loses_data) {
  const outcome ended = run(program("test_without_gpus"));
  EXPECT_EQ(ended.code, 0) << ended.text;
  EXPECT_EQ(ended.text,
            "one: arrived\npair_nvlink: arrived\nring_3_no_p2p: arrived\ntwo_socket_8: arrived\n"
            "broken link, not verified: lost, as it should be\nbroken link: arrived\n"
            "gpu0 -> gpu1 failed verification\ngpu1 -> gpu0 works\n");
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

TEST(programs, jacobi_exchanges_halos_in_three_ways_and_has_the_bits_of_a_plain_loop) {
  const outcome ended = run(program("jacobi"));
  EXPECT_EQ(ended.code, 0) << ended.text;
  EXPECT_EQ(ended.text,
            "residual 43.615695134690782\nresidual 30.808008739407978\nresidual 25.100208777906118\n"
            "stores: the bits of a plain loop on 4 devices\ncopies: the bits of a plain loop on 4 devices\n"
            "queues: the bits of a plain loop on 4 devices\n");
}

TEST(programs, jacobi_copies_and_queues_where_no_kernel_reaches_another_device) {
  const outcome ended = run(program("jacobi") + " ring_3_no_p2p");
  EXPECT_EQ(ended.code, 0) << ended.text;
  EXPECT_NE(ended.text.find("stores: not here: peer_unsupported: gpu0 cannot map gpu1"), std::string::npos)
      << ended.text;
  EXPECT_NE(ended.text.find("copies: the bits of a plain loop on 3 devices\n"
                            "queues: the bits of a plain loop on 3 devices\n"),
            std::string::npos)
      << ended.text;
}

TEST(programs, jacobi_writes_a_trace_in_which_copies_run_beside_the_rows_between) {
  const programs::scratch_folder folder;
  const outcome ended = run("cd " + (folder / "").string() + " && " + program("jacobi") + " dgx_h100 --trace");
  EXPECT_EQ(ended.code, 0) << ended.text;
  for (const char* const file : {"jacobi_stores.json", "jacobi_copies.json", "jacobi_queues.json"})
    EXPECT_NE(text_of(folder / file).find("\"relax"), std::string::npos) << file;
  double all = 0, beside = 0;
  const std::size_t at = ended.text.find("jacobi_copies.json: ");
  ASSERT_NE(at, std::string::npos) << ended.text;
  ASSERT_EQ(std::sscanf(ended.text.c_str() + at, "jacobi_copies.json: %lf us of copies, %lf us of them", &all, &beside),
            2)
      << ended.text;
  EXPECT_GT(all, 0);
  EXPECT_GT(beside, 0.9 * all);
}

TEST(programs, data_parallel_gives_each_device_the_same_and_loses_nothing) {
  const outcome ended = run(program("data_parallel"));
  EXPECT_EQ(ended.code, 0) << ended.text;
  std::string expected;
  for (int d = 0; d < 8; ++d) expected += "gpu" + std::to_string(d) + ": 131072 items\n";
  EXPECT_EQ(ended.text, expected + "1048576 of 1048576 are right\n");
}

TEST(programs, automatic_balance_finds_the_speeds_and_divides_by_them) {
  const outcome ended = run(program("automatic_balance"));
  EXPECT_EQ(ended.code, 0) << ended.text;
  EXPECT_TRUE(ended.text.starts_with("static_equal gpu0 33.3 %  gpu1 33.3 %  gpu2 33.3 %  efficiency 75.0 % (simul"))
      << ended.text;
  EXPECT_NE(ended.text.find("\nguided       gpu0 45.0 %  gpu1 30.0 %  gpu2 25.0 %  efficiency 100.0 % (simul"),
            std::string::npos)
      << ended.text;
  EXPECT_NE(ended.text.find("\nautomatic    gpu0 45.0 %  gpu1 30.0 %  gpu2 25.0 %  efficiency 100.0 % (simul"),
            std::string::npos)
      << ended.text;
  EXPECT_NE(ended.text.find("every item was done once\n"), std::string::npos) << ended.text;
}

TEST(programs, three_stage_pipeline_gives_a_batch_each_time_a_stage_takes) {
  const outcome ended = run(program("three_stage_pipeline"));
  EXPECT_EQ(ended.code, 0) << ended.text;
  for (const char* device : {"gpu0\n", "gpu1\n", "gpu2\n"}) {
    EXPECT_NE(ended.text.find(device), std::string::npos) << "a device of its own for each stage\n" << ended.text;
  }
  // (20 + 3 - 1) * 50 ms, and a little for the copies
  EXPECT_NE(ended.text.find("20 batches in 1100 ms, one every 50 ms (simulated)\n200000 of 200000 are right\n"),
            std::string::npos)
      << ended.text;
}

TEST(programs, scatter_gather_by_hand_and_in_one_line_give_the_same) {
  const outcome ended = run(program("scatter_gather"));
  EXPECT_EQ(ended.code, 0) << ended.text;
  EXPECT_EQ(ended.text, "3 devices, 1000003 elements\nboth ways give the same bits\n");
}

TEST(programs, reduce_sum_counts_the_tail) {
  const outcome ended = run(program("reduce_sum"));
  EXPECT_EQ(ended.code, 0) << ended.text;
  EXPECT_EQ(ended.text, "1 numbers: -1000\n1023 numbers: -4944\n1000003 numbers: -2026\n");
}

/// A program as several processes of a world, on nodes of two processes each or on one node.
outcome run_as_ranks(int ranks, bool on_nodes_of_two, const std::string& command) {
  // an address of the loopback interface where no other test meets
  static std::atomic<int> number{32};
  const int pid = ::getpid();
  const std::string host = "127." + std::to_string(number.fetch_add(1)) + "." + std::to_string(pid / 256 % 256) + "." +
                           std::to_string(pid % 256);
  return run("export WORLD_SIZE=" + std::to_string(ranks) + " MASTER_PORT=29500 MASTER_ADDR=" + host +
             " WEFT_WORLD_TOKEN=of_this_test UCX_TLS=tcp,self; for r in $(seq 1 " + std::to_string(ranks - 1) +
             "); do RANK=$r WEFT_WORLD_NODE=" + (on_nodes_of_two ? "n$((r / 2)) " : "n0 ") + command +
             " & done; RANK=0 WEFT_WORLD_NODE=n0 " + command + "; code=$?; wait; exit $code");
}
bool no_engine(const outcome& ended) { return ended.text.find("nothing carries messages") != std::string::npos; }

TEST(programs, jacobi_has_the_bits_of_a_plain_loop_on_processes_of_one_node_and_of_two) {
  struct {
    int ranks;
    bool on_two;
    const char *machine, *said;
  } const cases[] = {{2, false, " pair_nvlink", "2 devices, 2 processes, 1 node"},
                     {2, false, " pcie_4", "4 devices, 2 processes, 1 node"},
                     {3, true, " pair_nvlink", "4 devices, 3 processes, 2 nodes"},
                     {4, true, " pair_nvlink", "4 devices, 4 processes, 2 nodes"}};
  for (const auto& c : cases) {
    const outcome ended = run_as_ranks(c.ranks, c.on_two, program("jacobi") + c.machine);
    if (c.on_two && no_engine(ended)) GTEST_SKIP() << ended.text;
    EXPECT_EQ(ended.code, 0) << ended.text;
    std::string expected = "residual 43.615695134690782\nresidual 30.808008739407978\nresidual 25.100208777906118\n";
    for (const char* const way : {"stores", "copies", "queues"})
      expected.append(way).append(": the bits of a plain loop on ").append(c.said).append("\n");
    EXPECT_EQ(ended.text, expected);
  }
}

TEST(programs, jacobi_of_several_processes_leaves_out_a_way_that_one_of_them_has_not) {
  const outcome ended = run_as_ranks(2, false, program("jacobi") + " ring_3_no_p2p");
  EXPECT_EQ(ended.code, 0) << ended.text;
  EXPECT_NE(ended.text.find("stores: not here: peer_unsupported: gpu0 cannot map gpu2"), std::string::npos)
      << ended.text;
  EXPECT_NE(ended.text.find("queues: the bits of a plain loop on 3 devices, 2 processes, 1 node\n"), std::string::npos)
      << ended.text;
}

TEST(programs, gradient_averaging_learns_by_the_same_bits_as_four_processes_on_one_node_and_on_two) {
  for (const bool on_two : {false, true}) {
    const outcome ended = run_as_ranks(4, on_two, program("gradient_averaging"));
    if (on_two && no_engine(ended)) GTEST_SKIP() << ended.text;
    EXPECT_EQ(ended.code, 0) << ended.text;
    EXPECT_NE(ended.text.find(on_two ? "4 ranks on 2 nodes, by ucx" : "4 ranks on 1 node, by shared memory"),
              std::string::npos)
        << ended.text;
    EXPECT_NE(ended.text.find("every loss and every weight on every rank is the same"), std::string::npos)
        << ended.text;
  }
}

TEST(programs, gradient_averaging_learns_by_the_same_bits_on_one_two_and_four_devices) {
  for (const char* machine : {"", " dgx_h100", " ring_3_no_p2p"}) {
    const outcome ended = run(program("gradient_averaging") + machine);
    const bool three = std::string{machine} == " ring_3_no_p2p";  // has no four
    EXPECT_EQ(ended.code, three ? 2 : 0) << ended.text;
    if (three) {
      EXPECT_EQ(ended.text, "usage: gradient_averaging [topology of at least 4 devices]\n");
      continue;
    }
    EXPECT_TRUE(ended.text.starts_with("epoch   loss\n    0   1.235")) << ended.text;
    EXPECT_NE(ended.text.find("\n  399   0.00"), std::string::npos) << ended.text;
    for (const char* devices : {"1 device: ", "2 devices: ", "4 devices: "}) {
      EXPECT_NE(ended.text.find(std::string{devices} + "every loss and every weight on every rank is the same\n"),
                std::string::npos)
          << ended.text;
    }
  }
}

TEST(programs, global_statistics_gives_every_device_what_a_plain_loop_finds) {
  const outcome ended = run(program("global_statistics"));
  EXPECT_EQ(ended.code, 0) << ended.text;
  EXPECT_EQ(ended.text,
            "sensor 0: sum -1766, average -0.431152, from -10005 to 10001\n"
            "sensor 333: sum 1367368, average 333.83, from -9668 to 10338\n"
            "sensor 666: sum 2716491, average 663.206, from -9336 to 10669\n"
            "sensor 999: sum 4105636, average 1002.35, from -9005 to 11001\n"
            "1000 sensors on 8 devices: 0 wrong\n");
  const outcome staged = run(program("global_statistics") + " ring_3_no_p2p");
  EXPECT_EQ(staged.code, 0) << staged.text;
  EXPECT_NE(staged.text.find("1000 sensors on 3 devices: 0 wrong\n"), std::string::npos) << staged.text;
}

/// What a ring of `size` prints at its end for each GPU, in any of its three forms.
class rings : public testing::TestWithParam<const char*> {
 protected:
  static std::size_t times(const std::string& text, const std::string& part) {
    std::size_t found = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
    return found;
  }
};

TEST_P(rings, every_gpu_writes_into_the_next_one_by_a_kernel_and_no_copy_is_made) {
  for (const int size : {2, 3, 8}) {
    const outcome ended = run(program(GetParam()) + " " + std::to_string(size));
    EXPECT_EQ(ended.code, 0) << ended.text;
    std::size_t from_last = 0;
    for (int self = 0; self < size; ++self) {
      const std::string from = "gpu" + std::to_string((self + size - 1) % size), to = "gpu" + std::to_string(self);
      const std::size_t at = ended.text.find(from + " wrote to " + to + ": 300007 words, 0 wrong, 0 copies\n");
      EXPECT_NE(at, std::string::npos) << to << "\n" << ended.text;
      EXPECT_GE(at, from_last) << "in the order of the ring\n" << ended.text;
      from_last = at;
      for (int other = 0; other < size; ++other) {
        const std::string line = to + " -> gpu" + std::to_string(other) + ": access yes, performance rank 0, native";
        EXPECT_EQ(times(ended.text, line), other == self ? 0U : 1U) << line << "\n" << ended.text;
      }
    }
    EXPECT_EQ(times(ended.text, "\n"), static_cast<std::size_t>(size * size)) << "and nothing else\n" << ended.text;
  }
}

TEST_P(rings, other_numbers_of_gpus_give_the_usage) {
  for (const char* words : {" 1", " 9", " x", " 22", " 2 2"}) {
    const outcome ended = run(program(GetParam()) + words);
    EXPECT_EQ(ended.code, 2) << words;
    EXPECT_TRUE(ended.text.starts_with("usage: ")) << ended.text;
  }
}

INSTANTIATE_TEST_SUITE_P(all, rings, testing::Values("ring_peer", "ring_ipc", "ring_blocks"),
                         [](const auto& form) { return std::string{form.param}; });

TEST(programs, selective_access_shows_one_buffer_where_peer_access_shows_both) {
  const outcome ended = run(program("selective_access"));
  EXPECT_EQ(ended.code, 0) << ended.text;
  EXPECT_EQ(ended.text,
            "peer access, the first buffer: read\npeer access, the second buffer: read\n"
            "blocks, the one that was granted: read\nblocks, the one that was not: illegal_access\n");
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
  EXPECT_NE(ended.text.find("divided by rows (automatic): the same bits as on one device"), std::string::npos)
      << ended.text;
  EXPECT_EQ(ended.text.find("WRONG"), std::string::npos) << ended.text;
  EXPECT_EQ(weft::images::load_images(folder / "out").images.size(), files.size());
}

TEST_F(image_pipeline_program, divides_one_image_by_the_strategy_that_was_asked_for) {
  weft::images::make_sample_images(folder / "in");
  const outcome ended = process(" --devices 2 --strategy static_equal");
  EXPECT_EQ(ended.code, 0) << ended.text;
  EXPECT_NE(ended.text.find("divided by rows (static_equal): the same bits as on one device\n"
                            "gpu0 blurred 1024 rows in 1 pieces\ngpu1 blurred 1024 rows in 1 pieces\n"),
            std::string::npos)
      << ended.text;
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
                            "one two --unknown", "one two --strategy", "one two --strategy weighted"}) {
    const outcome ended = run(program("image_pipeline") + " " + words);
    EXPECT_EQ(ended.code, 2) << words;
    EXPECT_TRUE(ended.text.starts_with("usage: ")) << ended.text;
  }
}

}  // namespace programs_test
