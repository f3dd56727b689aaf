// SPDX-License-Identifier: Apache-2.0
#include "weft/backend/kernel_text.hpp"

#include "portable_kernels.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>

namespace {

using weft::dialect;

bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

WEFT_KERNEL(passes_on, (WEFT_RING in, WEFT_IN(float) scale, WEFT_RING out), {
  float message[2];
  if (weft_ring_receive(in, &message, 100) == WEFT_RING_OK) {
    message[0] = message[0] * scale[i];
    weft_ring_send(out, &message, 100);
  }
});

std::string ring_header() {
  std::ostringstream text;
  text << std::ifstream(std::string(WEFT_SOURCE_DIR) + "/include/weft/kernel/ring.h").rdbuf();
  return text.str();
}

TEST(kernel_text, for_cuda_declares_every_parameter_and_the_hidden_range) {
  const std::string text = weft::kernel_text(*weft::make_kernel_code<portable::saxpy>(), dialect::cuda);
  EXPECT_TRUE(holds(text,
                    "extern \"C\" __global__ void saxpy_kernel(const float* __restrict__ input, float* __restrict__ "
                    "output, const float scale, const int32_t unused, const int64_t weft_begin_x, const int64_t "
                    "weft_end_x) {\n"))
      << text;
  EXPECT_TRUE(holds(text, "if (i >= weft_end_x) return;\n")) << text;
}

TEST(kernel_text, for_hip_is_that_for_cuda) {
  const auto code = weft::make_kernel_code<portable::blur_5x5>();
  EXPECT_EQ(weft::kernel_text(*code, dialect::hip), weft::kernel_text(*code, dialect::cuda));
}

TEST(kernel_text, for_opencl_names_the_address_space_and_forbids_contraction) {
  const std::string text = weft::kernel_text(*weft::make_kernel_code<portable::blur_5x5>(), dialect::opencl);
  EXPECT_TRUE(text.starts_with("#pragma OPENCL FP_CONTRACT OFF\n"));
  EXPECT_TRUE(holds(text,
                    "__kernel void blur_5x5_kernel(__global const uint8_t* restrict in, __global uint8_t* restrict "
                    "out, const int32_t width, const int32_t height, const int64_t weft_begin_x, const int64_t "
                    "weft_end_x, const int64_t weft_begin_y, const int64_t weft_end_y) {\n"))
      << text;
}

TEST(kernel_text, asks_for_doubles_only_where_they_occur) {
  const std::string extension = "cl_khr_fp64";
  EXPECT_TRUE(
      holds(weft::kernel_text(*weft::make_kernel_code<portable::double_arithmetic>(), dialect::opencl), extension));
  EXPECT_FALSE(holds(weft::kernel_text(*weft::make_kernel_code<portable::saxpy>(), dialect::opencl), extension));
}

TEST(kernel_text, leads_back_to_the_line_of_the_definition) {
  const auto code = weft::make_kernel_code<portable::write_index>();
  const std::string text = weft::kernel_text(*code, dialect::opencl);
  EXPECT_TRUE(
      holds(text, "\n#line " + std::to_string(code->line) + " \"" + code->file + "\"\n" + code->body_text + "\n"))
      << text;
}

TEST(kernel_text, quotes_a_path_with_backslashes) {
  weft::kernel_code code = *weft::make_kernel_code<portable::saxpy>();
  code.file = "C:\\my \"work\"\\kernels.cpp";
  EXPECT_TRUE(holds(weft::kernel_text(code, dialect::cuda), " \"C:\\\\my \\\"work\\\"\\\\kernels.cpp\"\n"));
}

TEST(kernel_text, of_a_raw_kernel_is_its_source_and_empty_where_there_is_none) {
  weft::raw_kernel raw;
  raw.name = "mine";
  raw.entry = "my_entry";
  raw.cuda_source = "extern \"C\" __global__ void my_entry() {}";
  const auto code = weft::make_kernel_code(raw);
  EXPECT_EQ(weft::kernel_text(*code, dialect::cuda), raw.cuda_source);
  EXPECT_EQ(weft::kernel_text(*code, dialect::opencl), "");
  EXPECT_EQ(weft::kernel_entry(*code), "my_entry");
}

TEST(kernel_text, of_a_kernel_with_rings_has_the_header_of_the_ring_before_it) {
  const std::string header = ring_header();
  ASSERT_TRUE(holds(header, "weft_ring_try_send"));
  const auto code = weft::make_kernel_code<passes_on>();
  for (const dialect language : {dialect::cuda, dialect::hip, dialect::opencl}) {
    const std::string text = weft::kernel_text(*code, language);
    const std::size_t ring = text.find("#line 1 \"weft/kernel/ring.h\"\n" + header);
    EXPECT_NE(ring, std::string::npos);
    EXPECT_LT(text.find(" weft_uint64;\n"), ring) << "the types that it uses come first";
    EXPECT_LT(ring, text.find("passes_on_kernel("));
    EXPECT_FALSE(holds(weft::kernel_text(*weft::make_kernel_code<portable::saxpy>(), language), "weft_ring"));
  }
  EXPECT_TRUE(holds(weft::kernel_text(*code, dialect::cuda),
                    "passes_on_kernel(weft_ring* in, const float* __restrict__ scale, weft_ring* out, const int64_t"));
  EXPECT_TRUE(holds(
      weft::kernel_text(*code, dialect::opencl),
      "passes_on_kernel(__global weft_ring* in, __global const float* restrict scale, __global weft_ring* out, "));
}

TEST(kernel_text, with_rings_asks_for_the_opencl_that_has_atomics) {
  const auto rings = weft::make_kernel_code<passes_on>();
  const auto none = weft::make_kernel_code<portable::saxpy>();
  EXPECT_EQ(weft::kernel_options(*rings, dialect::opencl, 200), std::vector<std::string>{"-cl-std=CL2.0"});
  EXPECT_EQ(weft::kernel_options(*rings, dialect::opencl, 300), std::vector<std::string>{"-cl-std=CL3.0"});
  EXPECT_EQ(weft::kernel_options(*none, dialect::opencl, 300), std::vector<std::string>{"-cl-std=CL1.2"});
  for (const dialect language : {dialect::cuda, dialect::hip}) {
    EXPECT_EQ(weft::kernel_options(*rings, language, 0), weft::kernel_options(language));
  }
}

TEST(kernel_text, speaks_none_of_the_words_that_only_the_host_knows) {
  for (const portable::run& one : portable::exact_runs()) {
    for (const dialect language : {dialect::cuda, dialect::hip, dialect::opencl}) {
      const std::string text = weft::kernel_text(*one.code, language);
      EXPECT_FALSE(holds(text, "WEFT_IN") || holds(text, "WEFT_OUT")) << text;
    }
  }
}

TEST(kernel_text, is_compiled_without_fused_multiply_add) {
  const std::vector<std::string> cuda = weft::kernel_options(dialect::cuda);
  EXPECT_NE(std::find(cuda.begin(), cuda.end(), "--fmad=false"), cuda.end());
  const std::vector<std::string> hip = weft::kernel_options(dialect::hip);
  EXPECT_NE(std::find(hip.begin(), hip.end(), "-ffp-contract=off"), hip.end());
  EXPECT_EQ(weft::kernel_options(dialect::opencl), std::vector<std::string>{"-cl-std=CL1.2"});
}

}  // namespace
