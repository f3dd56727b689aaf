// SPDX-License-Identifier: Apache-2.0
// Kernels through the OpenCL backend: what their text became, where their arguments begin, and what a compiler says.
#include "kernel/function_error.hpp"
#include "kernel/portable_kernels.hpp"
#include "runtime/machine_state.hpp"
#include "support/opencl_machines.hpp"
#include "support/samples.hpp"
#include "weft/exec/launch.hpp"
#include "weft/memory/fill.hpp"

#include <numeric>
#include <string>

namespace opencl_kernel_test {

using samples::error_of;

class opencl_kernel : public samples::opencl_test {};
INSTANTIATE_TEST_SUITE_P(memories, opencl_kernel, samples::both_memories, samples::name_of_memory);

std::int32_t known_to_the_host_alone(std::int32_t number) { return number + 1; }
WEFT_KERNEL(calls_the_host, (WEFT_INOUT(int32_t) numbers), { numbers[i] = known_to_the_host_alone(numbers[i]); });
WEFT_KERNEL(adds_its_place, (WEFT_IN(uint32_t) input, WEFT_OUT(uint32_t) output, uint32_t factor),
            { output[i] = input[i] * factor + (uint32_t)i; });

/// Runs it in memory of a device, whose arguments begin `shift` elements into larger memory.
std::vector<portable::value> on_device(const weft::machine& m, portable::run one, std::int64_t shift) {
  weft::backend& by = weft::detail::state_of(m)->backend_of(weft::device_id{0});
  const weft::stream order{m[0]};
  std::vector<samples::byte_buffer> memory;
  memory.reserve(one.values.size());
  weft::launch_request request;
  request.kernel = one.code;
  request.range = one.range;
  request.arguments = portable::arguments_of(one);
  for (std::size_t n = 0; n < one.values.size(); ++n) {
    portable::value& value = one.values[n];
    if (value.direction == weft::parameter_direction::scalar) continue;
    const auto before = static_cast<std::size_t>(shift) * weft::size_of(value.type);
    memory.emplace_back(m[0], before + value.bytes.size() + 1);
    const samples::data bytes(reinterpret_cast<const std::uint8_t*>(value.bytes.data()),
                              reinterpret_cast<const std::uint8_t*>(value.bytes.data()) + value.bytes.size());
    weft::copy(memory.back().subspan(before, bytes.size()), bytes);
    request.arguments[n].address = memory.back().data() + before;
  }
  const auto done = weft::value_or_raise(by.launch(order.native(), std::move(request)));
  weft::detail::make<weft::event>(weft::detail::state_of(m), done).wait();
  std::size_t next = 0;
  for (portable::value& value : one.values) {
    if (value.direction == weft::parameter_direction::scalar) continue;
    const auto before = static_cast<std::size_t>(shift) * weft::size_of(value.type);
    samples::data read(value.bytes.size());
    weft::copy(read, memory[next++].subspan(before, read.size()));
    std::memcpy(value.bytes.data(), read.data(), read.size());
  }
  return one.values;
}

// Both memories in one process: PoCL compiles each kernel for two seconds and then has it.
TEST(opencl_kernel_of_each_memory, a_portable_kernel_has_the_bits_of_the_host) {
  if (const std::string why = samples::why_no_opencl(); !why.empty()) GTEST_SKIP() << why;
  const std::vector<portable::run> runs = portable::exact_runs();
  for (const auto memory : {samples::opencl_memory::shared, samples::opencl_memory::buffers}) {
    const weft::machine m{samples::opencl_options(memory)};
    for (const portable::run& one : runs) {
      const auto expected = portable::on_host(one);
      for (const std::int64_t shift : {0, 3}) {
        const auto got = on_device(m, one, shift);
        for (std::size_t n = 0; n < expected.size(); ++n) {
          EXPECT_EQ(got[n].bytes, expected[n].bytes)
              << one.code->name << ", '" << one.code->parameters[n].name << "', " << shift << " elements in, "
              << (memory == samples::opencl_memory::shared ? "shared" : "buffers");
        }
      }
    }
  }
}

TEST_P(opencl_kernel, divides_and_takes_roots_with_the_bits_of_the_host_or_within_the_stated_error) {
  const weft::machine m = open();
  const portable::run one = portable::float_division_run();
  const auto expected = portable::on_host(one);
  const auto got = on_device(m, one, 0);
  // PoCL rounds correctly; a device that does not says so, and this test then has nothing to hold it to
  for (std::size_t n = 0; n < expected.size(); ++n) EXPECT_EQ(got[n].bytes, expected[n].bytes) << n;
}

TEST_P(opencl_kernel, keeps_the_stated_errors_of_its_functions) {
  const weft::machine m = open();
  const auto single = portable::errors_of<float, double>(on_device(m, portable::float_function_run(), 0));
  const auto twofold = portable::errors_of<double, long double>(on_device(m, portable::double_function_run(), 0));
  for (std::size_t f = 0; f < portable::function_count; ++f) {
    EXPECT_LE(single[f], portable::functions[f].opencl_float) << portable::functions[f].name;
    EXPECT_LE(twofold[f], portable::functions[f].opencl_double + 0.01) << portable::functions[f].name;
  }
}

TEST_P(opencl_kernel, sees_its_own_elements_wherever_its_arguments_begin) {
  const weft::machine m = open();
  constexpr std::size_t count = 1003;
  std::vector<std::uint32_t> data(3 * count);
  std::iota(data.begin(), data.end(), 17U);
  const weft::buffer<std::uint32_t> in{m[0], data.size()};
  weft::copy(in, data);
  for (const std::size_t offset : {std::size_t{0}, std::size_t{1}, std::size_t{31}, std::size_t{1001}}) {
    const weft::buffer<std::uint32_t> out{m[0], data.size()};
    weft::fill(out, 0xeeeeeeeeU);
    weft::launch<adds_its_place>(weft::stream{m[0]}, weft::range(count), in.subspan(offset, count),
                                 out.subspan(2 * offset, count).first(count), 5U)
        .wait();
    std::vector<std::uint32_t> got(out.size());
    weft::copy(got, out);
    for (std::size_t k = 0; k < got.size(); ++k) {
      const bool inside = k >= 2 * offset && k < 2 * offset + count;
      const std::size_t i = k - 2 * offset;
      ASSERT_EQ(got[k], inside ? data[offset + i] * 5U + static_cast<std::uint32_t>(i) : 0xeeeeeeeeU)
          << "offset " << offset << ", element " << k;
    }
  }
}

WEFT_KERNEL(counts_places, (WEFT_IN(int32_t) places, WEFT_INOUT(uint32_t, reduce(sum)) seen),
            { seen[places[i]] += 1; });
WEFT_KERNEL_2D(counts_columns, (WEFT_IN(uint8_t) values, WEFT_INOUT(uint64_t, reduce(sum)) totals, int64_t width),
               { totals[x % 3] += values[y * width + x]; });

TEST_P(opencl_kernel, with_a_reduced_parameter_loses_no_items_contribution) {
  const weft::machine m = open();
  const weft::stream order{m[0]};
  for (const std::int64_t count : {1, 255, 1023, 100'003}) {
    std::vector<std::int32_t> data(static_cast<std::size_t>(count));
    std::int64_t sum = 1000;
    for (std::size_t i = 0; i < data.size(); ++i)
      sum += data[i] = static_cast<std::int32_t>(i * 2654435761U % 2001U) - 1000;
    const weft::buffer<std::int32_t> values{m[0], data.size()};
    weft::copy(values, data);
    const weft::buffer<std::int64_t> totals{m[0], 3};
    weft::fill(totals, std::int64_t{1000});
    weft::launch<portable::adds_up>(order, weft::range(count), values, totals.subspan(1, 1)).wait();
    std::vector<std::int64_t> got(3);
    weft::copy(got, totals);
    EXPECT_EQ(got, (std::vector<std::int64_t>{1000, sum, 1000})) << count << " items";
  }
  constexpr std::int64_t width = 67, height = 151;
  const weft::buffer<std::uint8_t> ones{m[0], width * height};
  weft::fill(ones, std::uint8_t{1});
  const weft::buffer<std::uint64_t> columns{m[0], 3};
  weft::fill(columns, std::uint64_t{0});
  weft::launch<counts_columns>(order, weft::range(width, height), ones, columns, width).wait();
  std::vector<std::uint64_t> got(3);
  weft::copy(got, columns);
  EXPECT_EQ(got, (std::vector<std::uint64_t>{23 * height, 22 * height, 22 * height}));
}

TEST_P(opencl_kernel, a_reduction_has_the_results_of_the_host_wherever_its_memory_begins) {
  const weft::machine m = open();
  for (const portable::run& one : portable::reduce_runs()) {
    const auto expected = portable::on_host(one);
    for (const std::int64_t shift : {0, 3}) {
      const auto got = on_device(m, one, shift);
      for (std::size_t n = 0; n < expected.size(); ++n) {
        EXPECT_EQ(got[n].bytes, expected[n].bytes)
            << one.code->name << ", '" << one.code->parameters[n].name << "', " << shift << " elements in";
      }
    }
  }
}

TEST_P(opencl_kernel, a_sum_of_floats_has_the_same_bits_in_every_run) {
  const weft::machine m = open();
  const portable::run one = portable::float_adding_run(100'003);
  const float first = on_device(m, one, 0)[1].as<float>()[0];
  for (int repeat = 0; repeat < 100; ++repeat)
    ASSERT_EQ(on_device(m, one, repeat % 2)[1].as<float>()[0], first) << "run " << repeat;
}

TEST_P(opencl_kernel, a_reduction_over_more_elements_than_items_loses_none) {
  const weft::machine m = open();
  constexpr std::int64_t items = 1000, elements = 50'021;
  const weft::buffer<std::int32_t> places{m[0], items};
  const auto data = portable::filled<std::int32_t>(items, [](std::size_t k) { return k * 7919 % elements; });
  weft::copy(places, data);
  const weft::buffer<std::uint32_t> seen{m[0], elements};
  weft::fill(seen, 3U);
  weft::launch<counts_places>(weft::stream{m[0]}, weft::range(items), places, seen).wait();
  std::vector<std::uint32_t> expected(elements, 3U), got(elements);
  for (const std::int32_t place : data) ++expected[static_cast<std::size_t>(place)];
  weft::copy(got, seen);
  EXPECT_EQ(got, expected);
}

TEST_P(opencl_kernel, a_kernel_with_a_compile_error_is_incompatible_and_its_line_named) {
  const weft::machine m = open();
  const weft::buffer<std::int32_t> numbers{m[0], 100};
  weft::fill(numbers, 3);
  const weft::error cause =
      error_of([&] { weft::launch<calls_the_host>(weft::stream{m[0]}, weft::range(100), numbers).wait(); });
  EXPECT_EQ(cause.code, weft::errc::incompatible) << to_string(cause);
  const auto code = weft::make_kernel_code<calls_the_host>();
  const std::string at = "error: " + code->file + ":" + std::to_string(code->line) + ":";
  EXPECT_NE(cause.what.find(at), std::string::npos) << cause.what;
  EXPECT_NE(cause.what.find("known_to_the_host_alone"), std::string::npos) << cause.what;
  std::vector<std::int32_t> got(100);
  weft::copy(got, numbers);
  EXPECT_EQ(got, std::vector<std::int32_t>(100, 3)) << "a kernel that was refused has written";
  EXPECT_FALSE(m[0].is_lost());
}

weft::raw_kernel raw_of(std::string name, std::string source) {
  weft::raw_kernel raw;
  raw.name = raw.entry = std::move(name);
  raw.parameters = {{"values", weft::element_type::uint32, weft::parameter_direction::inout, weft::access::whole()}};
  raw.opencl_source = std::move(source);
  return raw;
}

TEST_P(opencl_kernel, has_the_groups_that_were_asked_for) {
  const weft::machine m = open();
  weft::raw_kernel raw = raw_of("tells_its_group",
                                "__kernel void tells_its_group(__global uint* values, long first, long last) {\n"
                                "  long i = first + (long)get_global_id(0);\n"
                                "  if (i < last) values[i] = (uint)get_local_size(0);\n"
                                "}\n");
  raw.host = [](const weft::kernel_range&, std::span<const weft::kernel_argument>) {};
  weft::kernels(m).add(weft::make_kernel_code(raw));
  const weft::buffer<std::uint32_t> groups{m[0], 1000};
  for (const int asked : {96, 5, 0}) {
    weft::launch(weft::stream{m[0]}, {.block = {asked, 0, 0}}, "tells_its_group", weft::range(1000), groups).wait();
    std::vector<std::uint32_t> got(1000);
    weft::copy(got, groups);
    EXPECT_EQ(got, std::vector<std::uint32_t>(1000, asked == 0 ? 256U : static_cast<std::uint32_t>(asked)));
  }
}

weft::event launch_raw(const weft::machine& m, const weft::raw_kernel& raw, const weft::buffer<std::uint32_t>& memory,
                       std::size_t offset) {
  weft::launch_request request;
  request.kernel = weft::make_kernel_code(raw);
  const auto count = static_cast<std::int64_t>(memory.size() - offset);
  request.range = {1, {0, 0, 0}, {count, 1, 1}};
  weft::kernel_argument argument;
  argument.type = weft::element_type::uint32;
  argument.direction = weft::parameter_direction::inout;
  argument.address = const_cast<std::uint32_t*>(memory.data()) + offset;
  argument.count = count;
  request.arguments = {argument};
  const weft::stream order{m[0]};
  return weft::detail::make<weft::event>(
      weft::detail::state_of(m),
      weft::value_or_raise(
          weft::detail::state_of(m)->backend_of(weft::device_id{0}).launch(order.native(), std::move(request))));
}

TEST_P(opencl_kernel, a_raw_kernel_runs_from_its_source_wherever_its_memory_begins) {
  const weft::machine m = open();
  const weft::raw_kernel raw = raw_of("triples",
                                      "__kernel void triples(__global uint* values, long first, long last) {\n"
                                      "  long i = first + (long)get_global_id(0);\n"
                                      "  if (i < last) values[i] = values[i] * 3U + (uint)i;\n"
                                      "}\n");
  for (const std::size_t offset : {std::size_t{0}, std::size_t{7}}) {
    std::vector<std::uint32_t> data(5003);
    std::iota(data.begin(), data.end(), 1U);
    const weft::buffer<std::uint32_t> memory{m[0], data.size()};
    weft::copy(memory, data);
    launch_raw(m, raw, memory, offset).wait();
    std::vector<std::uint32_t> got(data.size());
    weft::copy(got, memory);
    for (std::size_t k = 0; k < got.size(); ++k) {
      const auto i = static_cast<std::uint32_t>(k - offset);
      ASSERT_EQ(got[k], k < offset ? data[k] : data[k] * 3U + i) << "offset " << offset << ", element " << k;
    }
  }
}

TEST_P(opencl_kernel, a_raw_kernel_without_opencl_source_is_unsupported) {
  const weft::machine m = open();
  const weft::buffer<std::uint32_t> memory{m[0], 10};
  const weft::error cause = error_of([&] { launch_raw(m, raw_of("silent", ""), memory, 0).wait(); });
  EXPECT_EQ(cause.code, weft::errc::unsupported) << to_string(cause);
  EXPECT_NE(cause.what.find("silent"), std::string::npos) << cause.what;
}

TEST_P(opencl_kernel, a_wrong_raw_kernel_is_incompatible_and_its_error_named) {
  const weft::machine m = open();
  const weft::buffer<std::uint32_t> memory{m[0], 10};
  const weft::error wrong = error_of([&] {
    launch_raw(m, raw_of("wrong", "__kernel void wrong(__global uint* v) { v[0] = missing; }"), memory, 0).wait();
  });
  EXPECT_EQ(wrong.code, weft::errc::incompatible) << to_string(wrong);
  EXPECT_NE(wrong.what.find("missing"), std::string::npos) << wrong.what;
  const weft::error other = error_of([&] {
    launch_raw(m, raw_of("absent", "__kernel void present(__global uint* v, long a, long b) {}"), memory, 0).wait();
  });
  EXPECT_EQ(other.code, weft::errc::incompatible) << to_string(other);
  EXPECT_NE(other.what.find("absent"), std::string::npos) << other.what;
}

TEST_P(opencl_kernel, a_kernel_of_many_threads_keeps_the_arguments_of_each_apart) {
  const weft::machine m = open();
  constexpr std::size_t count = 999;
  std::vector<std::uint32_t> data(count);
  std::iota(data.begin(), data.end(), 5U);
  const weft::buffer<std::uint32_t> in{m[0], count};
  weft::copy(in, data);
  std::vector<std::vector<std::uint32_t>> got(6, std::vector<std::uint32_t>(count));
  {
    std::vector<std::jthread> threads;
    threads.reserve(got.size());
    for (std::size_t t = 0; t < got.size(); ++t) {
      threads.emplace_back([&, t] {
        const weft::buffer<std::uint32_t> out{m[0], count};
        const weft::stream order{m[0]};
        for (int round = 0; round < 20; ++round)
          weft::launch<adds_its_place>(order, weft::range(count), in, out, static_cast<std::uint32_t>(t));
        weft::copy(order, got[t], out).wait();
      });
    }
  }
  for (std::size_t t = 0; t < got.size(); ++t) {
    for (std::size_t i = 0; i < count; ++i)
      ASSERT_EQ(got[t][i], data[i] * static_cast<std::uint32_t>(t) + i) << "thread " << t << ", element " << i;
  }
}

}  // namespace opencl_kernel_test
