// SPDX-License-Identifier: Apache-2.0
#include "weft/backend/kernel_code.hpp"

#include "portable_kernels.hpp"
#include "support/paths.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <set>
#include <sstream>

namespace kernel_code_test {

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

WEFT_KERNEL(relays, (WEFT_RING in, WEFT_RING out, uint64_t count), {
  uint32_t message[2];
  for (uint64_t n = 0; n < count; ++n) {
    if (weft_ring_receive(in, &message, 10) != WEFT_RING_OK) return;
    weft_ring_send(out, &message, 10);
  }
});

// As docs/reference/kernels.md has it, word for word.
// clang-format off
WEFT_KERNEL(relay, (WEFT_RING in, WEFT_RING out, uint64_t count), {
  struct tick {
    uint32_t number;
    float price;
  };
  struct tick message;
  for (uint64_t n = 0; n < count; ++n) {
    if (weft_ring_receive(in, &message, 1000000) != WEFT_RING_OK) return;
    message.price *= 2.0f;
    if (weft_ring_send(out, &message, 1000000) != WEFT_RING_OK) return;
  }
  weft_ring_close_writer(out);
});
// clang-format on

std::string without_blanks(std::string text) {
  std::erase_if(text, [](char c) { return c == ' ' || c == '\n'; });
  return text;
}

void raw_host(const weft::kernel_range& range, std::span<const weft::kernel_argument> arguments) {
  for (std::int64_t i = range.begin[0]; i < range.end[0]; ++i) {
    static_cast<float*>(arguments[0].address)[i] = static_cast<float>(i);
  }
}

WEFT_KERNEL(straight, (WEFT_IN(float) a, WEFT_OUT(float) b), { b[i] = a[i] > 0 ? weft_sqrt(a[i]) : a[i]; });
WEFT_KERNEL(looping, (WEFT_IN(float) a, WEFT_OUT(float) b), {
  b[i] = 0;
  for (int k = 0; k < 4; ++k) b[i] += a[i];
});
WEFT_KERNEL(calling, (WEFT_IN(float) a, WEFT_OUT(float) b), { b[i] = std::abs(a[i]); });
WEFT_KERNEL(receiving, (WEFT_RING from, WEFT_OUT(uint64_t) b), {
  if (i == 0) weft_ring_receive(from, &b[0], 8);
});

TEST(kernel_code, is_brief_for_few_items_without_loops_rings_and_functions_of_the_program) {
  EXPECT_GE(weft::make_kernel_code<straight>()->brief_items, 64);
  EXPECT_LE(weft::make_kernel_code<straight>()->brief_items, 4096);
  EXPECT_EQ(weft::make_kernel_code<looping>()->brief_items, 0);
  EXPECT_EQ(weft::make_kernel_code<calling>()->brief_items, 0);
  EXPECT_EQ(weft::make_kernel_code<receiving>()->brief_items, 0);
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

TEST(kernel_parameters, a_ring_has_a_name_and_no_type) {
  const std::vector<parameter_words> expected = {
      {"RING", "", "", "in"}, {"RING", "", "", "out"}, {"IN", "float", "", "x"}};
  EXPECT_EQ(weft::parse_parameters("(WEFT_RING in,\n WEFT_RING\tout , WEFT_IN(float) x)"), expected);
  EXPECT_EQ(weft::parse_parameters("WEFT_RINGS x"), (std::vector<parameter_words>{{"", "WEFT_RINGS", "", "x"}}));
  EXPECT_EQ(weft::parse_parameters("WEFT_RING"), (std::vector<parameter_words>{{"", "WEFT_RING", "", ""}}));
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

TEST(kernel_code, a_ring_is_memory_of_one_device_that_the_whole_launch_reaches) {
  const auto code = weft::make_kernel_code<relays>();
  const weft::kernel_parameter ring{"in", weft::element_type::uint64, weft::parameter_direction::inout,
                                    weft::access::whole(), true};
  EXPECT_EQ(code->parameters[0], ring);
  EXPECT_EQ(code->parameters[1].name, "out");
  EXPECT_FALSE(code->parameters[2].is_ring);
  EXPECT_EQ(weft::signature_of(*code), "relays(ring in, ring out, uint64_t count)");
  EXPECT_TRUE(weft::has_ring(*code));
  EXPECT_FALSE(weft::has_ring(*weft::make_kernel_code<reduces>()));
  EXPECT_EQ(weft::ring_words * 8, static_cast<std::int64_t>(sizeof(weft_ring)));
}

TEST(kernel_code, the_ring_kernel_in_the_documentation_is_compiled_here) {
  std::ostringstream page;
  page << std::ifstream(samples::source_folder() + "/docs/reference/kernels.md").rdbuf();
  const auto code = weft::make_kernel_code<relay>();
  const std::string shown = "```cpp\nWEFT_KERNEL(relay," + code->parameter_text + "," + code->body_text + ");\n```";
  EXPECT_NE(without_blanks(page.str()).find(without_blanks(shown)), std::string::npos) << shown;
}

TEST(kernel_code, a_ring_changes_the_hash_of_a_raw_kernel) {
  weft::raw_kernel raw;
  raw.name = "own";
  raw.host = raw_host;
  raw.parameters = {
      {"end", weft::element_type::uint64, weft::parameter_direction::inout, weft::access::whole(), false}};
  const auto memory = weft::make_kernel_code(raw);
  raw.parameters[0].is_ring = true;
  EXPECT_NE(weft::make_kernel_code(raw)->hash, memory->hash);
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

TEST(kernel_code, with_a_form_for_gpus_is_the_same_for_the_host_and_has_a_hash_of_all_of_it) {
  const auto plain = weft::make_kernel_code<first::twin>();
  const auto with = [&](int lanes, const char* functions, const char* body) {
    return weft::with_form_for_gpus(*plain, {lanes, functions, body});
  };
  const auto one = with(16, "a", "b");
  EXPECT_EQ(one->host, plain->host);
  EXPECT_EQ(one->host_checked, plain->host_checked);
  EXPECT_EQ(one->body_text, plain->body_text);
  EXPECT_EQ(one->hash, with(16, "a", "b")->hash);
  const std::set<std::uint64_t> hashes{plain->hash,
                                       one->hash,
                                       with(32, "a", "b")->hash,
                                       with(16, "c", "b")->hash,
                                       with(16, "a", "c")->hash,
                                       with(16, "ab", "")->hash};
  EXPECT_EQ(hashes.size(), 6U);
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

TEST(kernel_arguments, arguments_that_fit_are_accepted) {
  portable::run one = portable::saxpy_run(4);
  EXPECT_FALSE(weft::argument_mismatch(*one.code, portable::arguments_of(one)));
  one.values[0].direction = weft::parameter_direction::inout;  // who may write it may also read it
  EXPECT_FALSE(weft::argument_mismatch(*one.code, portable::arguments_of(one)));
}

TEST(kernel_arguments, a_wrong_number_type_or_direction_is_named) {
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

TEST(kernel_arguments, a_ring_is_named_as_one_and_takes_no_other_size) {
  const auto code = weft::make_kernel_code<relays>();
  weft_ring in{}, out{};
  const auto end = [](weft_ring& at) {
    weft::kernel_argument made;
    made.type = weft::element_type::uint64;
    made.direction = weft::parameter_direction::inout;
    made.address = &at;
    made.count = weft::ring_words;
    return made;
  };
  weft::kernel_argument count;
  count.type = weft::element_type::uint64;
  std::vector<weft::kernel_argument> arguments = {end(in), end(out), count};
  EXPECT_FALSE(weft::argument_mismatch(*code, arguments));
  const std::string words = std::to_string(weft::ring_words);
  const std::string start =
      "relays(ring in, ring out, uint64_t count): argument 2, 'out', must be one end of a ring, memory of exactly " +
      words + " uint64_t in which a weft_ring lies; this is ";
  for (const std::int64_t wrong : {weft::ring_words - 1, weft::ring_words + 1, std::int64_t{0}}) {
    arguments[1].count = wrong;
    EXPECT_EQ(weft::argument_mismatch(*code, arguments), start + std::to_string(wrong) + " uint64_t");
  }
  arguments[1] = end(out);
  arguments[1].type = weft::element_type::float64;
  EXPECT_EQ(weft::argument_mismatch(*code, arguments), start + words + " double");
  arguments[1] = count;
  EXPECT_TRUE(weft::argument_mismatch(*code, arguments)) << "a value is no ring";
}

TEST(kernel_arguments, the_slab_of_an_array_is_what_one_outermost_step_holds) {
  EXPECT_EQ(weft::slab_of(weft::access::halo(2), 640 * 480 * 3, 480), 640 * 3);
  EXPECT_EQ(weft::slab_of(weft::access::rows(2), 640 * 480, 240), 640);
  EXPECT_EQ(weft::slab_of({}, 100, 7), 0);
  EXPECT_EQ(weft::slab_of({}, 100, 0), 0);
}

}  // namespace kernel_code_test
