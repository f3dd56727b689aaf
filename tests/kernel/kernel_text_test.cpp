// SPDX-License-Identifier: Apache-2.0
#include "backend/kernels/kernel_text.hpp"

#include "portable_kernels.hpp"
#include "support/paths.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>

namespace kernel_text_test {

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
  text << std::ifstream(samples::source_folder() + "/include/weft/kernel/ring.h").rdbuf();
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
  weft::kernel_code code = *weft::make_kernel_code<portable::saxpy>();
  code.body_text = "{ output[i] = (float)((double)input[i] * scale); }";
  EXPECT_TRUE(holds(weft::kernel_text(code, dialect::opencl), extension)) << "in the body alone";
  code.body_text = "{ const float is_double = scale, doubled = is_double; output[i] = doubled; }";
  EXPECT_FALSE(holds(weft::kernel_text(code, dialect::opencl), extension)) << "in longer names";
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

TEST(kernel_text, the_text_of_a_raw_kernel_is_its_source_and_empty_without_one) {
  weft::raw_kernel raw;
  raw.name = "mine";
  raw.entry = "my_entry";
  raw.cuda_source = "extern \"C\" __global__ void my_entry() {}";
  const auto code = weft::make_kernel_code(raw);
  EXPECT_EQ(weft::kernel_text(*code, dialect::cuda), raw.cuda_source);
  EXPECT_EQ(weft::kernel_text(*code, dialect::opencl), "");
  EXPECT_EQ(weft::kernel_entry(*code), "my_entry");
}

TEST(kernel_text, a_kernel_with_rings_has_the_header_of_the_ring_before_it) {
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

TEST(kernel_text, a_reduction_is_two_kernels_around_the_body_as_a_function) {
  const auto code = weft::make_kernel_code<portable::adds_up>();
  ASSERT_TRUE(weft::has_reduction(*code));
  EXPECT_EQ(weft::combine_entry(*code), "adds_up_combine");
  const std::string opencl = weft::kernel_text(*code, dialect::opencl);
  EXPECT_TRUE(
      holds(opencl,
            "__kernel void adds_up_kernel(__global const int32_t* restrict values, __global int64_t* restrict "
            "total, const int64_t weft_begin_x, const int64_t weft_end_x, __global uint8_t* weft_scratch, const "
            "int64_t weft_count_0, const int64_t weft_step) {\n"))
      << opencl;
  EXPECT_TRUE(holds(opencl,
                    "__kernel void adds_up_combine(__global uint8_t* weft_scratch, const int64_t weft_groups, const "
                    "int64_t weft_group, __global int64_t* weft_whole_0, const int64_t weft_first_0, const int64_t "
                    "weft_count_0) {\n"))
      << opencl;
  const std::string cuda = weft::kernel_text(*code, dialect::cuda);
  EXPECT_TRUE(holds(cuda, "extern \"C\" __global__ void adds_up_combine(uint8_t* weft_scratch, const int64_t "))
      << cuda;
  for (const std::string& text : {opencl, cuda}) {
    const std::size_t function = text.find("adds_up_item(");
    const std::size_t body =
        text.find("#line " + std::to_string(code->line) + " \"" + code->file + "\"\n" + code->body_text + "\n}\n");
    EXPECT_LT(function, body) << text;
    EXPECT_LT(body, text.find("adds_up_kernel(")) << text;
  }
}

TEST(kernel_text, a_form_for_gpus_replaces_the_body_for_cuda_and_hip_but_not_for_opencl) {
  const auto portable = weft::make_kernel_code<portable::saxpy>();
  const auto code = weft::with_form_for_gpus(*portable, {8, "// what it calls", "// what it does"});
  EXPECT_EQ(weft::kernel_text(*code, dialect::opencl), weft::kernel_text(*portable, dialect::opencl));
  for (const dialect language : {dialect::cuda, dialect::hip}) {
    const std::string text = weft::kernel_text(*code, language);
    EXPECT_TRUE(holds(text, "constexpr int item_lanes = 8;\n")) << text;
    EXPECT_TRUE(
        holds(text, "// what it calls\nextern \"C\" __global__ void saxpy_kernel(const float* __restrict__ input, "))
        << text;
    EXPECT_TRUE(text.ends_with("\n// what it does\n}\n")) << text;
    EXPECT_FALSE(holds(text, portable->body_text)) << text;
    // AMD's waves have 64 threads, and its compiler has no masks of 32
    EXPECT_EQ(holds(text, "__shfl_down_sync"), language == dialect::cuda);
  }
}

TEST(kernel_text, a_raw_kernel_is_never_a_reduction) {
  weft::raw_kernel raw;
  raw.name = raw.entry = "mine";
  raw.parameters = {{"total", weft::element_type::int64, weft::parameter_direction::inout,
                     weft::access::reduce(weft::reduce_op::sum)}};
  EXPECT_FALSE(weft::has_reduction(*weft::make_kernel_code(raw)));
  EXPECT_FALSE(weft::has_reduction(*weft::make_kernel_code<portable::saxpy>()));
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

TEST(portable_kernels, call_every_function_that_a_body_may_call) {
  std::ostringstream header;
  header << std::ifstream(samples::source_folder() + "/include/weft/kernel/math.hpp").rdbuf();
  const std::string text = header.str();
  std::string bodies;
  std::vector<portable::run> runs = portable::exact_runs();
  for (const portable::run& one :
       {portable::float_division_run(), portable::float_function_run(), portable::double_function_run()})
    runs.push_back(one);
  for (const portable::run& one : runs) bodies += one.code->body_text;
  int functions = 0;
  for (std::size_t at = text.find(" weft_"); at != std::string::npos; at = text.find(" weft_", at + 1)) {
    const std::size_t end = text.find_first_not_of("abcdefghijklmnopqrstuvwxyz_", at + 1);
    if (text[end] != '(') continue;
    const std::string name = text.substr(at + 1, end - at);
    EXPECT_TRUE(holds(bodies, name)) << name << " is compared with the host by no test";
    ++functions;
  }
  EXPECT_GT(functions, 30) << "the header was not read";
}

TEST(kernel_text, is_compiled_without_fused_multiply_add) {
  const std::vector<std::string> cuda = weft::kernel_options(dialect::cuda);
  EXPECT_NE(std::find(cuda.begin(), cuda.end(), "--fmad=false"), cuda.end());
  const std::vector<std::string> hip = weft::kernel_options(dialect::hip);
  EXPECT_NE(std::find(hip.begin(), hip.end(), "-ffp-contract=off"), hip.end());
  EXPECT_EQ(weft::kernel_options(dialect::opencl), std::vector<std::string>{"-cl-std=CL1.2"});
}

}  // namespace kernel_text_test
