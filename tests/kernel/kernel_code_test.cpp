// SPDX-License-Identifier: Apache-2.0
#include "weft/backend/kernel_code.hpp"

#include "portable_kernels.hpp"

#include <gtest/gtest.h>

namespace {

using weft::parameter_words;

namespace first {
WEFT_KERNEL(twin, (WEFT_OUT(float) out), { out[i] = 1.0f; });
}  // namespace first
namespace second {
WEFT_KERNEL(twin, (WEFT_OUT(float) out), { out[i] = 2.0f; });
}  // namespace second
namespace third {
WEFT_KERNEL(twin, (WEFT_OUT(float) out), { out[i] = 1.0f; });
}  // namespace third

// Neither is a macro of the device's compiler, so the text must keep the name and not what it stands for.
#define USER_CONSTANT 42
WEFT_KERNEL(uses_a_macro, (WEFT_OUT(int32_t) out), { out[i] = USER_CONSTANT; });
WEFT_KERNEL(reduces, (WEFT_IN(double) input, WEFT_INOUT(double, reduce(max)) largest),
            { largest[0] = weft_fmax(largest[0], input[i]); });

void raw_host(const weft::kernel_range& range, std::span<const weft::kernel_argument> arguments) {
  for (std::int64_t i = range.begin[0]; i < range.end[0]; ++i) {
    static_cast<float*>(arguments[0].address)[i] = static_cast<float>(i);
  }
}

TEST(kernel_parameters, are_split_at_commas_outside_parentheses) {
  const std::vector<parameter_words> expected = {
      {"IN", "uint8_t", "halo(2)", "in"}, {"OUT", "float", "", "out"}, {"", "int32_t", "", "width"}};
  EXPECT_EQ(weft::parse_parameters("(WEFT_IN(uint8_t, halo(2)) in, WEFT_OUT(float) out, int32_t width)"), expected);
  EXPECT_EQ(weft::parse_parameters("WEFT_IN(uint8_t, halo(2)) in, WEFT_OUT(float) out, int32_t width"), expected);
}

TEST(kernel_parameters, may_have_blanks_anywhere_and_parentheses_in_their_words) {
  const std::vector<parameter_words> expected = {{"INOUT", "unsigned char", "halo((1 + (2)), 3)", "a_1"},
                                                 {"", "const unsigned int", "", "n"}};
  EXPECT_EQ(weft::parse_parameters(
                "\n ( WEFT_INOUT\t( unsigned char , halo((1 + (2)), 3) )a_1 ,\n  const unsigned int\tn ) "),
            expected);
}

TEST(kernel_parameters, an_empty_list_has_none) {
  EXPECT_TRUE(weft::parse_parameters("").empty());
  EXPECT_TRUE(weft::parse_parameters("( )").empty());
}

TEST(kernel_parameters, broken_text_gives_words_and_never_fails) {
  EXPECT_EQ(weft::parse_parameters("float"), (std::vector<parameter_words>{{"", "float", "", ""}}));
  EXPECT_EQ(weft::parse_parameters("WEFT_IN(float").size(), 1U);
  EXPECT_EQ(weft::parse_parameters("WEFT_IN() x"), (std::vector<parameter_words>{{"IN", "", "", "x"}}));
  EXPECT_EQ(weft::parse_parameters(")(,,").size(), 3U);
  EXPECT_EQ(weft::parse_parameters(",").size(), 2U);
}

TEST(kernel_code, keeps_name_parameters_text_and_place) {
  const auto code = weft::make_kernel_code<portable::blur_5x5>();
  EXPECT_EQ(code->name, "blur_5x5");
  EXPECT_EQ(code->dimensions, 2);
  const std::vector<weft::kernel_parameter> expected = {
      {"in", weft::element_type::uint8, weft::parameter_direction::in, weft::access::halo(2)},
      {"out", weft::element_type::uint8, weft::parameter_direction::out, {}},
      {"width", weft::element_type::int32, weft::parameter_direction::scalar, {}},
      {"height", weft::element_type::int32, weft::parameter_direction::scalar, {}}};
  EXPECT_EQ(code->parameters, expected);
  EXPECT_EQ(code->parameter_text,
            "(WEFT_IN(uint8_t, halo(2)) in, WEFT_OUT(uint8_t) out, int32_t width, int32_t height)");
  EXPECT_TRUE(code->body_text.starts_with("{ int32_t sum = 0; for (int32_t dy = -2;")) << code->body_text;
  EXPECT_TRUE(code->file.ends_with("portable_kernels.hpp")) << code->file;
  EXPECT_GT(code->line, 0);
  EXPECT_NE(code->host, nullptr);
  EXPECT_NE(code->host_checked, nullptr);
}

TEST(kernel_code, knows_every_element_type) {
  const auto code = weft::make_kernel_code<portable::integer_mix>();
  std::vector<std::string_view> names;
  for (const weft::kernel_parameter& parameter : code->parameters) {
    names.push_back(weft::name_of(parameter.type));
  }
  EXPECT_EQ(names, (std::vector<std::string_view>{"int8_t", "uint16_t", "int32_t", "uint64_t", "uint8_t", "int16_t",
                                                  "uint32_t", "int64_t", "uint8_t", "int64_t"}));
  EXPECT_EQ(weft::size_of(weft::element_type::float64), 8U);
  EXPECT_EQ(weft::size_of(weft::element_type::uint16), 2U);
}

TEST(kernel_code, describes_a_reduction) {
  const auto code = weft::make_kernel_code<reduces>();
  EXPECT_EQ(code->parameters[1].access, weft::access::reduce(weft::reduce_op::max));
  EXPECT_EQ(code->parameters[1].type, weft::element_type::float64);
}

TEST(kernel_code, text_keeps_the_user_s_macros_unexpanded) {
  EXPECT_EQ(weft::make_kernel_code<uses_a_macro>()->body_text, "{ out[i] = USER_CONSTANT; }");
}

TEST(kernel_code, one_name_with_two_bodies_has_two_hashes) {
  const auto one = weft::make_kernel_code<first::twin>();
  EXPECT_NE(one->hash, weft::make_kernel_code<second::twin>()->hash);
  EXPECT_EQ(one->hash, weft::make_kernel_code<third::twin>()->hash) << "the place of a definition is no difference";
  EXPECT_EQ(one->hash, weft::make_kernel_code<first::twin>()->hash);
}

TEST(kernel_code, a_raw_kernel_has_its_host_function_and_no_check) {
  weft::raw_kernel raw;
  raw.name = "iota";
  raw.parameters = {{"out", weft::element_type::float32, weft::parameter_direction::out, {}}};
  raw.host = raw_host;
  raw.entry = "iota";
  const auto code = weft::make_kernel_code(raw);
  EXPECT_EQ(code->host, &raw_host);
  EXPECT_EQ(code->host_checked, nullptr);
  EXPECT_EQ(portable::on_host({code, portable::range_of(3), {portable::out<float>(3)}})[0].as<float>(),
            (std::vector<float>{0, 1, 2}));
  raw.opencl_source = "__kernel void iota() {}";
  EXPECT_NE(weft::make_kernel_code(raw)->hash, code->hash);
}

TEST(kernel_arguments, that_fit_are_accepted) {
  portable::run one = portable::saxpy_run(4);
  EXPECT_FALSE(weft::argument_mismatch(*one.code, portable::arguments_of(one)));
  one.values[0].direction = weft::parameter_direction::inout;  // who may write it may also read it
  EXPECT_FALSE(weft::argument_mismatch(*one.code, portable::arguments_of(one)));
}

TEST(kernel_arguments, of_the_wrong_number_type_or_direction_are_named) {
  portable::run one = portable::saxpy_run(4);
  const std::string signature = "saxpy(in float input, inout float output, float scale, int32_t unused)";
  std::vector<weft::kernel_argument> arguments = portable::arguments_of(one);
  arguments.pop_back();
  EXPECT_EQ(weft::argument_mismatch(*one.code, arguments), signature + " takes 4 arguments, but 3 were given");

  arguments = portable::arguments_of(one);
  arguments[2].type = weft::element_type::float64;
  EXPECT_EQ(weft::argument_mismatch(*one.code, arguments),
            signature + ": argument 3, 'scale', must be float, but is double");

  arguments = portable::arguments_of(one);
  arguments[1].direction = weft::parameter_direction::in;
  EXPECT_EQ(weft::argument_mismatch(*one.code, arguments),
            signature + ": argument 2, 'output', must be inout float, but is in float");
}

TEST(kernel_arguments, the_slab_of_an_array_is_what_one_outermost_step_holds) {
  EXPECT_EQ(weft::slab_of(weft::access::halo(2), 640 * 480 * 3, 480), 640 * 3);
  EXPECT_EQ(weft::slab_of(weft::access::rows(2), 640 * 480, 240), 640);
  EXPECT_EQ(weft::slab_of({}, 100, 7), 0);
  EXPECT_EQ(weft::slab_of({}, 100, 0), 0);
}

}  // namespace
