// SPDX-License-Identifier: Apache-2.0
// Every example on the CUDA and the HIP backend over the virtual driver, and on one GPU that is offered as four: it
// does what it shows, with the words that it has on every machine.
#include "examples/program.hpp"
#include "image_pipeline/sample_images.hpp"
#include "support/paths.hpp"

#include <gtest/gtest.h>

#include <ostream>
#include <string>

namespace virtual_gpu_programs_test {

using programs::outcome;
using programs::program;
using programs::run;

struct example {
  const char* name;
  const char* says = "";  // part of what it writes on these machines
};

void PrintTo(const example& one, std::ostream* out) { *out << one.name; }

constexpr example examples[] = {
    {"hello", "gpu0 -> gpu1: 4 KiB, direct\n2 * 1023 + 1 = 2047\n"},
    {"ordering", "20 + 2 + 20 + 1 = 43\n"},
    {"peer_copy", "1 direct, 2 staged\n"},
    {"reduce_sum", "1000003 numbers: -2026\n"},
    {"scatter_gather", "both ways give the same bits\n"},
    {"data_parallel", "1048576 of 1048576 are right\n"},
    {"global_statistics", "1000 sensors on 4 devices: 0 wrong\n"},
    {"gradient_averaging", "4 devices: every loss and every weight on every rank is the same\n"},
    {"ticks", "the same as a plain sum\n"},
    {"jacobi", "queues: the bits of a plain loop on 4 devices\n"},
    {"automatic_balance", "every item was done once\n"},       // on the virtual clock, which is the host's
    {"three_stage_pipeline", "200000 of 200000 are right\n"},  // likewise
    {"test_without_gpus", "broken link: arrived\n"},           // machines that are played
    {"ring_peer", "gpu2 wrote to gpu3: 300007 words, 0 wrong, 0 copies\n"},
    {"ring_ipc", "gpu2 wrote to gpu3: 300007 words, 0 wrong, 0 copies\n"},
    {"ring_blocks", "gpu2 wrote to gpu3: 300007 words, 0 wrong, 0 copies\n"},
    {"selective_access", "blocks, the one that was not: illegal_access\n"},
};

std::string on(const std::string& gpus) {
  std::string words;
  for (const char* const which : {"WEFT_CUDA_DRIVER=", "WEFT_CUDA_NVRTC=", "WEFT_CUDA_NVML="})
    words.append(which).append(samples::virtual_cuda_library() + " ");
  for (const char* const which : {"WEFT_HIP_DRIVER=", "WEFT_HIP_HIPRTC="})
    words.append(which).append(samples::virtual_hip_library() + " ");
  return words.append(gpus).append(" ");
}

constexpr const char* machines[] = {
    "WEFT_BACKEND=cuda WEFT_VIRTUAL_CUDA_DEVICES=4",
    "WEFT_BACKEND=cuda WEFT_VIRTUAL_CUDA_DEVICES=1 WEFT_VIRTUAL_CUDA_SMS=32 WEFT_LOGICAL_DEVICES=4",
    "WEFT_BACKEND=hip WEFT_VIRTUAL_CUDA_DEVICES=4"};

class virtual_gpu_programs : public testing::TestWithParam<example> {};

TEST_P(virtual_gpu_programs, do_what_they_show) {
  for (const char* const gpus : machines) {
    const outcome ended = run(on(gpus) + program(GetParam().name));
    EXPECT_EQ(ended.code, 0) << gpus << "\n" << ended.text;
    EXPECT_NE(ended.text.find(GetParam().says), std::string::npos) << gpus << "\n" << ended.text;
  }
}

INSTANTIATE_TEST_SUITE_P(all, virtual_gpu_programs, testing::ValuesIn(examples),
                         [](const testing::TestParamInfo<example>& one) { return std::string{one.param.name}; });

TEST(virtual_gpu_image_pipeline, is_right_to_the_pixel) {
  const programs::scratch_folder folder;
  weft::images::make_sample_images(folder / "in");
  for (const char* const large : {"gradient_colour.jpg", "rings_colour.jpg", "waves_colour.png", "waves_grey.jpg"})
    std::filesystem::remove(folder / "in" / large);
  for (const char* const gpus : machines) {
    const outcome ended =
        run(on(gpus) + program("image_pipeline") + " " + (folder / "in").string() + " " + (folder / "out").string());
    EXPECT_EQ(ended.code, 0) << gpus << "\n" << ended.text;
  }
}

}  // namespace virtual_gpu_programs_test
