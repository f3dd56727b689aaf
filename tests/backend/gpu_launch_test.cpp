// SPDX-License-Identifier: Apache-2.0
// Kernels through the CUDA backend, on the virtual driver: what is launched and with how few calls, what may be given
// in place of a text, and what becomes of kernels that fail.
#include "backends/gpu/cuda/cuda.hpp"
#include "kernel/portable_kernels.hpp"
#include "runtime/machine_state.hpp"
#include "support/periodic_grids.hpp"
#include "support/raw_launch.hpp"
#include "support/samples.hpp"
#include "support/virtual_gpus.hpp"
#include "weft/exec/launch.hpp"
#include "weft/exec/launch_run.hpp"
#include "weft/exec/reduce.hpp"
#include "weft/memory/fill.hpp"
#include "weft/memory/peer_access.hpp"

#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

namespace gpu_launch_test {

using samples::error_of;
using weft::errc;

std::int32_t known_to_the_host_alone(std::int32_t number) { return number + 1; }
WEFT_KERNEL(calls_the_host, (WEFT_INOUT(int32_t) numbers), { numbers[i] = known_to_the_host_alone(numbers[i]); });
WEFT_KERNEL(adds_its_place, (WEFT_IN(uint32_t) input, WEFT_OUT(uint32_t) output, uint32_t factor),
            { output[i] = input[i] * factor + (uint32_t)i; });
WEFT_KERNEL(counts_visits, (WEFT_INOUT(uint8_t) visits), { visits[i] = (uint8_t)(visits[i] + 1); });
WEFT_KERNEL_2D(counts_visits_2d, (WEFT_INOUT(uint8_t) visits, int64_t width),
               { visits[y * width + x] = (uint8_t)(visits[y * width + x] + 1); });
WEFT_KERNEL_3D(counts_visits_3d, (WEFT_INOUT(uint8_t) visits, int64_t width, int64_t height),
               { visits[(z * height + y) * width + x] = (uint8_t)(visits[(z * height + y) * width + x] + 1); });
WEFT_KERNEL(sums_and_finds_least,
            (WEFT_IN(double) values, WEFT_INOUT(double, reduce(sum)) sum, WEFT_INOUT(double, reduce(min)) least), {
              sum[0] += values[i];
              least[0] = weft_fmin(least[0], values[i]);
            });

class gpu_launch : public samples::virtual_cuda_test {};

std::vector<std::uint8_t> once(std::size_t count) { return std::vector<std::uint8_t>(count, std::uint8_t{1}); }

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
  const auto start_of = [&](const portable::value& value) {
    return static_cast<std::size_t>(shift) * weft::size_of(value.type);
  };
  for (std::size_t n = 0; n < one.values.size(); ++n) {
    portable::value& value = one.values[n];
    if (value.direction == weft::parameter_direction::scalar) continue;
    memory.emplace_back(m[0], start_of(value) + value.bytes.size() + 1);
    samples::data bytes(value.bytes.size());
    std::memcpy(bytes.data(), value.bytes.data(), bytes.size());
    weft::copy(memory.back().subspan(start_of(value), bytes.size()), bytes);
    request.arguments[n].address = memory.back().data() + start_of(value);
  }
  const auto done = weft::value_or_raise(by.launch(order.native(), std::move(request)));
  weft::detail::make<weft::event>(weft::detail::state_of(m), done).wait();
  std::size_t next = 0;
  for (portable::value& value : one.values) {
    if (value.direction == weft::parameter_direction::scalar) continue;
    samples::data read(value.bytes.size());
    weft::copy(read, memory[next++].subspan(start_of(value), read.size()));
    std::memcpy(value.bytes.data(), read.data(), read.size());
  }
  return one.values;
}

WEFT_KERNEL(is_prepared, (WEFT_OUT(uint32_t) numbers), { numbers[i] = 7U; });

TEST_F(gpu_launch, loads_nothing_that_was_prepared) {
  const weft::machine m = open();
  const weft::buffer<std::uint32_t> numbers{m[0], 10};
  weft::prepare<is_prepared>(m[0]);
  const auto loaded = driver.calls("cuModuleLoadDataEx");
  EXPECT_NE(loaded, 0U);
  weft::launch<is_prepared>(m[0].default_stream(), weft::range(10), numbers).wait();
  EXPECT_EQ(driver.calls("cuModuleLoadDataEx"), loaded);
}

TEST_F(gpu_launch, a_launch_of_portable_kernels_has_the_bits_of_the_host) {
  const weft::machine m = open();
  for (const portable::run& one : portable::exact_runs()) {
    const auto expected = portable::on_host(one);
    const auto got = on_device(m, one, 3);
    for (std::size_t n = 0; n < expected.size(); ++n)
      EXPECT_EQ(got[n].bytes, expected[n].bytes) << one.code->name << ", '" << one.code->parameters[n].name << "'";
  }
}

TEST_F(gpu_launch, visits_every_item_once_in_one_two_and_three_dimensions) {
  const weft::machine m = open();
  const weft::stream order{m[1]};
  for (const std::size_t count : {std::size_t{1}, std::size_t{255}, std::size_t{257}, std::size_t{100'003}}) {
    const weft::buffer<std::uint8_t> visits{m[1], count};
    weft::fill(visits, std::uint8_t{0});
    weft::launch<counts_visits>(order, weft::range(static_cast<std::int64_t>(count)), visits).wait();
    EXPECT_EQ(samples::contents(visits), once(count));
  }
  const weft::buffer<std::uint8_t> plane{m[1], 67 * 41};
  weft::fill(plane, std::uint8_t{0});
  weft::launch<counts_visits_2d>(order, weft::range(67, 41), plane, std::int64_t{67}).wait();
  EXPECT_EQ(samples::contents(plane), once(67 * 41));
  const weft::buffer<std::uint8_t> cube{m[1], 33 * 7 * 5};
  weft::fill(cube, std::uint8_t{0});
  weft::launch<counts_visits_3d>(order, weft::range(33, 7, 5), cube, std::int64_t{33}, std::int64_t{7}).wait();
  EXPECT_EQ(samples::contents(cube), once(33 * 7 * 5));
}

TEST_F(gpu_launch, more_rows_than_a_grid_may_have_take_several_grids_and_one_visit_each) {
  const weft::machine m = open();
  const weft::stream order{m[0]};
  constexpr std::int64_t rows = 65'535 * 8 + 100;  // a grid has 65535 blocks of eight rows
  const weft::buffer<std::uint8_t> visits{m[0], rows};
  weft::fill(visits, std::uint8_t{0});
  const auto before = driver.calls("cuLaunchKernel");
  weft::launch<counts_visits_2d>(order, weft::range(1, rows), visits, std::int64_t{1}).wait();
  EXPECT_EQ(driver.calls("cuLaunchKernel") - before, 2U);
  EXPECT_EQ(samples::contents(visits), once(rows));
}

TEST_F(gpu_launch, is_five_calls_of_the_driver_and_the_kernel_is_compiled_and_loaded_once) {
  const weft::machine m = open();
  const weft::stream order{m[0]};
  const weft::buffer<std::uint8_t> visits{m[0], 1000};
  weft::launch<counts_visits>(order, weft::range(1000), visits).wait();
  const auto loaded = driver.calls("cuModuleLoadDataEx");
  // the calls of the launch itself, the stream being busy
  samples::gate shut;
  const auto held = shut.hold(order);
  weft::event last;
  for (int n = 0; n < 3; ++n) last = weft::launch<counts_visits>(order, weft::range(1000), visits);
  shut.open();
  last.wait();
  EXPECT_EQ(driver.calls("cuModuleLoadDataEx"), loaded);
  const auto of_a_launch = [this] {
    unsigned long long all = 0;
    for (const char* name :
         {"cuCtxGetCurrent", "cuCtxPushCurrent", "cuLaunchKernel", "cuEventRecord", "cuCtxPopCurrent"})
      all += driver.calls(name);
    return all;
  };
  // others are made only where something else looks at the same time, and a kernel that begins counts as one
  unsigned long long named = ~0ULL;
  unsigned long long any = ~0ULL;
  for (int n = 0; n < 50; ++n) {
    const auto before_named = of_a_launch();
    const auto before = driver.calls("*");
    const auto kernel = weft::launch<counts_visits>(order, weft::range(1000), visits);
    any = std::min(any, driver.calls("*") - before);
    named = std::min(named, of_a_launch() - before_named);
    kernel.wait();
  }
  EXPECT_EQ(named, 5U);
  EXPECT_LE(any, 6U);
}

TEST_F(gpu_launch, with_reductions_joins_all_items_with_what_was_there_and_has_the_same_bits_again) {
  const weft::machine m = open();
  const weft::stream order{m[0]};
  for (const std::size_t count : {std::size_t{1}, std::size_t{1000}, std::size_t{200'001}}) {
    std::vector<double> data(count);
    for (std::size_t i = 0; i < count; ++i) data[i] = static_cast<double>(i * 2'654'435'761U % 2'001) / 7 - 100;
    const weft::buffer<double> values{m[0], count};
    weft::copy(values, data);
    const weft::buffer<double> sum{m[0], 1};
    const weft::buffer<double> least{m[0], 1};
    std::vector<double> first;
    for (int again = 0; again < 2; ++again) {
      weft::fill(sum, 1000.0);
      weft::fill(least, 1000.0);
      weft::launch<sums_and_finds_least>(order, weft::range(static_cast<std::int64_t>(count)), values, sum, least)
          .wait();
      std::vector<double> got(2);
      weft::copy(std::span{got}.first(1), sum);
      weft::copy(std::span{got}.last(1), least);
      EXPECT_NEAR(got[0], std::accumulate(data.begin(), data.end(), 1000.0), 1e-6 * static_cast<double>(count));
      EXPECT_EQ(got[1], *std::min_element(data.begin(), data.end()));
      if (again == 0) {
        first = got;
      } else {
        EXPECT_EQ(std::memcmp(first.data(), got.data(), 2 * sizeof(double)), 0);
      }
    }
  }
}

TEST_F(gpu_launch, over_all_devices_gives_each_its_piece) {
  const weft::machine m = open();
  std::vector<std::uint32_t> data(100'003);
  std::iota(data.begin(), data.end(), 5U);
  const weft::array<std::uint32_t> input{m, data};
  weft::array<std::uint32_t> output{m, data.size(), 0U};
  weft::launch<adds_its_place>(m, weft::range(static_cast<std::int64_t>(data.size())), input, output, 3U).wait();
  const auto got = output.host();
  for (std::size_t i = 0; i < data.size(); ++i) ASSERT_EQ(got[i], data[i] * 3U + static_cast<std::uint32_t>(i));
}

// ---- items that threads share ---------------------------------------------------------------------------------------

WEFT_KERNEL(marks_lanes, (WEFT_OUT(uint32_t, rows(16)) marks), {
  for (int32_t k = 0; k < 16; ++k) marks[16 * i + k] = (uint32_t)(1000 * i + k);
});

/// Each thread writes which lane of which item it is to its own place in the order of all threads.
std::shared_ptr<const weft::kernel_code> lanes_by_place() {
  return weft::with_form_for_gpus(
      *weft::make_kernel_code<marks_lanes>(),
      {16, "",
       "const uint32_t behind = weft_lane_behind((uint32_t)lane, 3);\n"
       "const bool is_right = behind == (uint32_t)(lane < 13 ? lane + 3 : lane);\n"
       "const int64_t first = i - (blockIdx.x * blockDim.x + threadIdx.x) / item_lanes;\n"
       "marks[16 * first + blockIdx.x * blockDim.x + threadIdx.x] = is_right ? (uint32_t)(1000 * i + lane) : 0u;"});
}

std::vector<std::uint32_t> marks_of(const weft::machine& m, std::int64_t items) {
  const weft::buffer<std::uint32_t> marks{m[0], static_cast<std::size_t>(16 * items)};
  weft::fill(marks, 7U);
  const weft::stream order{m[0]};
  weft::kernel_argument argument;
  argument.type = weft::element_type::uint32;
  argument.direction = weft::parameter_direction::out;
  argument.address = marks.data();
  argument.count = 16 * items;
  samples::raw_launch{lanes_by_place(), items, {argument}}.in(m, order).wait();
  std::vector<std::uint32_t> read(marks.size());
  weft::copy(read, marks);
  return read;
}

std::vector<std::uint32_t> each_lane_in_its_place(std::int64_t items) {
  std::vector<std::uint32_t> marks;
  for (std::int64_t i = 0; i < items; ++i) {
    for (std::int64_t k = 0; k < 16; ++k) marks.push_back(static_cast<std::uint32_t>(1000 * i + k));
  }
  return marks;
}

TEST_F(gpu_launch, over_devices_brings_periodic_halos) { samples::expect_periodic_loops(open()); }

TEST_F(gpu_launch, neighbouring_threads_have_neighbouring_lanes_of_a_shared_item) {
  const weft::machine m = open();
  for (const std::int64_t items : {1, 16, 17, 100}) {
    EXPECT_EQ(marks_of(m, items), each_lane_in_its_place(items)) << items;
    const weft_virtual_launch shape = driver.last_launch();
    EXPECT_EQ(shape.block.x, 256U);
    EXPECT_EQ(shape.grid.x, static_cast<unsigned>((items * 16 + 255) / 256)) << items;
  }
}

TEST_F(gpu_launch, blocks_and_parts_end_at_borders_of_shared_items) {
  for (const unsigned threads : {100U, 20U}) {
    driver.limit_launches(threads, 3);
    const weft::machine m = open();
    constexpr std::int64_t items = 31;
    const std::int64_t in_a_block = threads == 100 ? 4 : 1;
    const auto before = driver.calls("cuLaunchKernel");
    EXPECT_EQ(marks_of(m, items), each_lane_in_its_place(items)) << threads;
    EXPECT_EQ(driver.last_launch().block.x, in_a_block * 16) << threads;
    EXPECT_GE(driver.calls("cuLaunchKernel") - before,
              static_cast<unsigned long long>((items + 3 * in_a_block - 1) / (3 * in_a_block)));
  }
}

TEST_F(gpu_launch, a_shared_item_that_fits_no_block_is_refused) {
  const weft::machine m = open();
  driver.limit_launches(8, 3);
  const auto cause = error_of([&] { static_cast<void>(marks_of(m, 1)); });
  EXPECT_EQ(cause.code, errc::incompatible) << to_string(cause);
  EXPECT_NE(cause.what.find("needs blocks of 16 threads"), std::string::npos) << cause.what;
}

/// Of every length that a block can end with, by any operation; what a block holds is odder from one to the next.
template <class T>
std::vector<portable::run> reductions_of_odd_numbers() {
  using limits = std::numeric_limits<T>;
  std::vector<portable::run> runs;
  constexpr std::array<std::size_t, 9> counts{1, 2, 17, 33, 1023, 1024, 1025, 4 * 1024 - 30, 5 * 1024 + 3};
  for (const std::size_t count : counts) {
    for (const auto op : {weft::reduce_op::sum, weft::reduce_op::product, weft::reduce_op::min, weft::reduce_op::max}) {
      runs.push_back(portable::reduction_run<T>(op, count));
      portable::run odd = runs.back();
      auto* const numbers = reinterpret_cast<T*>(odd.values[0].bytes.data());
      for (std::size_t k = 0; k < count; ++k) {
        if constexpr (std::is_floating_point_v<T>) {
          const std::array<T, 8> all{T{0.1F},
                                     -T{0.0F},
                                     T{0},
                                     T{-3.7F},
                                     limits::denorm_min(),
                                     T{1e30F},
                                     limits::infinity(),
                                     limits::quiet_NaN()};
          const std::array<std::size_t, 4> used{3, 6, 8, 7};
          const std::size_t kind = (k / 1024 + count) % used.size();
          const bool is_first = k % 1024 == 0;  // what min and max begin with
          numbers[k] = kind == 2 && is_first ? limits::quiet_NaN() : all[(k * 2654435761U >> 5) % used[kind]];
        } else {
          numbers[k] = k % 3 == 0 ? limits::min() : k % 3 == 1 ? limits::max() : static_cast<T>(k * 37);
        }
      }
      runs.push_back(odd);
      if (odd.range.end[0] > 2) {
        odd.range.begin[0] = 1;
        runs.push_back(std::move(odd));
      }
    }
  }
  return runs;
}

/// The bits, but that what is not a number is one: its sign and payload differ between processors.
std::vector<std::uint64_t> numbers_of(const portable::value& value) {
  std::vector<std::uint64_t> bits(value.bytes.size() / sizeof(std::uint64_t));
  std::memcpy(bits.data(), value.bytes.data(), value.bytes.size());
  if (value.type != weft::element_type::float64) return bits;
  for (std::uint64_t& one : bits) {
    if (std::isnan(std::bit_cast<double>(one))) one = ~std::uint64_t{0};
  }
  return bits;
}

template <class T>
void expect_the_hosts_bits(const weft::machine& m) {
  for (const portable::run& one : reductions_of_odd_numbers<T>()) {
    const auto expected = numbers_of(portable::on_host(one)[1]);
    for (const std::int64_t shift : {0, 3}) {  // aligned to words of four bytes, and not
      EXPECT_EQ(numbers_of(on_device(m, one, shift)[1]), expected)
          << one.code->name << ", " << one.values[0].bytes.size() / sizeof(T) << " elements, operation "
          << static_cast<int>(one.values[3].bytes[0]) << ", shifted by " << shift;
    }
  }
}

TEST_F(gpu_launch, reductions_of_every_type_length_and_odd_number_have_the_bits_of_the_host) {
  const weft::machine m = open();
  expect_the_hosts_bits<std::int8_t>(m);
  expect_the_hosts_bits<std::int16_t>(m);
  expect_the_hosts_bits<std::int32_t>(m);
  expect_the_hosts_bits<std::int64_t>(m);
  expect_the_hosts_bits<std::uint8_t>(m);
  expect_the_hosts_bits<std::uint16_t>(m);
  expect_the_hosts_bits<std::uint32_t>(m);
  expect_the_hosts_bits<std::uint64_t>(m);
  expect_the_hosts_bits<float>(m);
  expect_the_hosts_bits<double>(m);
}

TEST_F(gpu_launch, a_reduction_has_a_thread_for_every_running_number_of_a_block) {
  const weft::machine m = open();
  constexpr unsigned blocks = 100;
  static_cast<void>(on_device(m, portable::reduction_run<float>(weft::reduce_op::sum, 1024 * blocks), 0));
  EXPECT_EQ(driver.last_launch().grid.x, (16 * blocks + 255) / 256);
  static_cast<void>(on_device(m, portable::reduction_run<std::int8_t>(weft::reduce_op::sum, 1024 * blocks), 0));
  EXPECT_EQ(driver.last_launch().grid.x, (32 * blocks + 255) / 256);
}

TEST_F(gpu_launch, a_sum_over_all_devices_has_the_bits_of_the_host) {
  const weft::machine gpus = open();
  weft::machine_options options;
  options.backend = "host";
  const weft::machine host{options};
  std::vector<float> values(100'003);
  for (std::size_t k = 0; k < values.size(); ++k) values[k] = 1.0F / static_cast<float>(k % 1013 + 1);
  EXPECT_EQ(std::bit_cast<std::uint64_t>(weft::sum(gpus, values)),
            std::bit_cast<std::uint64_t>(weft::sum(host, values)));
}

// ---- in place of a text -------------------------------------------------------------------------------------------

void triples(const weft_virtual_launch*, void** arguments) {
  auto* const numbers = *static_cast<std::uint8_t**>(arguments[0]);
  const auto begin = *static_cast<std::int64_t*>(arguments[1]);
  const auto end = *static_cast<std::int64_t*>(arguments[2]);
  for (std::int64_t i = begin; i < end; ++i) numbers[i] = static_cast<std::uint8_t>(3 * numbers[i]);
}

void* function_of_the_program() {
  static const auto cu = weft::gpu::load_cuda(samples::virtual_cuda_library());
  weft::gpu::CUmodule module = nullptr;
  weft::gpu::CUfunction function = nullptr;
  if (!cu || (*cu)->cuModuleLoadDataEx(&module, "weft:registered", 0, nullptr, nullptr) != 0) return nullptr;
  static_cast<void>((*cu)->cuModuleGetFunction(&function, module, "triples"));
  return function;
}

weft::raw_kernel raw_triples() {
  weft::raw_kernel raw;
  raw.name = raw.entry = "triples";
  raw.parameters = {{"numbers", weft::element_type::uint8, weft::parameter_direction::inout, {}, false}};
  return raw;
}

TEST_F(gpu_launch, has_the_blocks_that_were_asked_for) {
  const weft::machine m = open();
  const weft::buffer<std::uint8_t> visits{m[0], 1000};
  const auto block = [&] {
    const weft_virtual_launch last = driver.last_launch();
    return std::array{last.block.x, last.block.y, last.block.z};
  };
  weft::fill(visits, std::uint8_t{0});
  weft::launch<counts_visits>(weft::stream{m[0]}, {.block = {96, 0, 0}}, weft::range(1000), visits).wait();
  EXPECT_EQ(block(), (std::array{96U, 1U, 1U}));
  EXPECT_EQ(driver.last_launch().grid.x, 11U);
  EXPECT_EQ(samples::contents(visits), once(1000));
  weft::fill(visits, std::uint8_t{0});
  weft::launch<counts_visits_3d>(weft::stream{m[0]}, {.block = {2, 4, 16}}, weft::range(10, 10, 10), visits,
                                 std::int64_t{10}, std::int64_t{10})
      .wait();
  EXPECT_EQ(block(), (std::array{2U, 4U, 16U}));
  EXPECT_EQ(samples::contents(visits), once(1000));

  weft::array<std::uint8_t> all{m, 1000, std::uint8_t{0}};
  weft::launch<counts_visits>(m, {.strategy = weft::balance::static_equal, .block = {64, 1, 1}}, weft::range(1000), all)
      .wait();
  EXPECT_EQ(block()[0], 64U);
  EXPECT_EQ(all.host(), once(1000));
}

TEST_F(gpu_launch, refuses_blocks_that_the_device_or_the_kernel_cannot_have) {
  const weft::machine m = open();
  const weft::buffer<std::uint8_t> visits{m[0], 1000};
  const weft::buffer<double> numbers{m[0], 1000};
  const auto code = [&](std::array<int, 3> block) {
    return error_of([&] {
             weft::launch<counts_visits>(weft::stream{m[0]}, {.block = block}, weft::range(1000), visits).wait();
           })
        .code;
  };
  EXPECT_EQ(code({1025, 1, 1}), errc::invalid_argument);
  EXPECT_EQ(code({-1, 1, 1}), errc::invalid_argument);
  EXPECT_EQ(code({8, 8, 1}), errc::invalid_argument) << "a kernel of one dimension";
  EXPECT_EQ(error_of([&] {
              weft::launch<counts_visits_3d>(weft::stream{m[0]}, {.block = {1, 1, 128}}, weft::range(10, 10, 10),
                                             visits, std::int64_t{10}, std::int64_t{10})
                  .wait();
            }).code,
            errc::unsupported);
  EXPECT_EQ(error_of([&] {
              weft::launch<sums_and_finds_least>(weft::stream{m[0]}, {.block = {64, 1, 1}}, weft::range(1000), numbers,
                                                 numbers.subspan(0, 1), numbers.subspan(1, 1))
                  .wait();
            }).code,
            errc::unsupported)
      << "the bits of a reduction depend on its blocks";
}

TEST_F(gpu_launch, takes_an_image_or_a_function_of_the_program_in_place_of_a_text) {
  const std::array<unsigned, 3> sizes{8, 8, 8};
  const std::array<unsigned char, 3> is_pointer{1, 0, 0};
  driver.add_kernel("triples", &triples, 3, sizes.data(), is_pointer.data());
  weft::raw_kernel image = raw_triples();
  image.cuda_image = "weft:registered";
  weft::raw_kernel function = raw_triples();
  function.cuda_function = &function_of_the_program;
  weft::raw_kernel source = raw_triples();
  source.cuda_source =
      "extern \"C\" __global__ void triples(unsigned char* numbers, long long begin, long long end) {"
      " const long long i = begin + (long long)blockIdx.x * blockDim.x + threadIdx.x;"
      " if (i < end) numbers[i] = 3 * numbers[i]; }";
  const weft::machine m = open();
  for (const weft::raw_kernel& raw : {image, function, source}) {
    const weft::stream order{m[1]};
    const weft::buffer<std::uint8_t> numbers{m[1], 1000};
    weft::fill(numbers, std::uint8_t{7});
    weft::kernel_argument argument = samples::argument(weft::parameter_direction::inout, numbers);
    samples::raw_launch{weft::make_kernel_code(raw), 1000, {argument}}.in(m, order).wait();
    EXPECT_EQ(samples::contents(numbers), std::vector<std::uint8_t>(1000, 21));
  }
}

TEST_F(gpu_launch, a_kernel_without_cuda_code_is_unsupported_and_nonsense_incompatible) {
  const weft::machine m = open();
  const weft::stream order{m[0]};
  weft::raw_kernel raw = raw_triples();
  EXPECT_EQ(error_of([&] { (void)samples::raw_launch{weft::make_kernel_code(raw)}.in(m, order); }).code,
            errc::unsupported);
  raw.cuda_image = "neither PTX nor a cubin";
  const auto nonsense = error_of([&] { (void)samples::raw_launch{weft::make_kernel_code(raw)}.in(m, order); });
  EXPECT_EQ(nonsense.code, errc::incompatible) << nonsense.what;
  EXPECT_NE(nonsense.what.find("triples"), std::string::npos) << nonsense.what;
  weft::raw_kernel no_function = raw_triples();
  no_function.cuda_function = [] { return static_cast<void*>(nullptr); };
  EXPECT_EQ(error_of([&] { (void)samples::raw_launch{weft::make_kernel_code(no_function)}.in(m, order); }).code,
            errc::incompatible);
  raw = raw_triples();
  raw.cuda_source = "extern \"C\" __global__ void another(unsigned char* n, long long b, long long e) {}";
  const auto nameless = error_of([&] { (void)samples::raw_launch{weft::make_kernel_code(raw)}.in(m, order); });
  EXPECT_NE(nameless.what.find("triples"), std::string::npos) << nameless.what;
}

TEST_F(gpu_launch, loads_a_module_once_though_its_kernel_is_not_found_each_time) {
  const weft::machine m = open();
  const weft::stream order{m[0]};
  weft::raw_kernel raw = raw_triples();
  raw.cuda_source = "extern \"C\" __global__ void another(unsigned char* n, long long b, long long e) {}";
  const auto before = driver.calls("cuModuleLoadDataEx");
  const auto kernel = weft::make_kernel_code(raw);
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(error_of([&] { (void)samples::raw_launch{kernel}.in(m, order); }).code, errc::not_found);
  }
  EXPECT_EQ(driver.calls("cuModuleLoadDataEx"), before + 1);
}

TEST_F(gpu_launch, a_compile_error_names_the_file_of_the_kernel) {
  const weft::machine m = open();
  const weft::buffer<std::int32_t> numbers{m[0], 100};
  const auto cause =
      error_of([&] { weft::launch<calls_the_host>(weft::stream{m[0]}, weft::range(100), numbers).wait(); });
  EXPECT_EQ(cause.code, errc::incompatible) << to_string(cause);
  EXPECT_NE(cause.what.find("gpu_launch_test.cpp:"), std::string::npos) << cause.what;
  EXPECT_NE(cause.what.find("known_to_the_host_alone"), std::string::npos) << cause.what;
}

// ---- failures -----------------------------------------------------------------------------------------------------

TEST_F(gpu_launch, a_launch_refused_by_the_driver_skips_the_following_until_its_failure_is_told) {
  const weft::machine m = open();
  const weft::stream order{m[0]};
  const weft::buffer<std::uint8_t> visits{m[0], 100};
  weft::fill(visits, std::uint8_t{0});
  weft::launch<counts_visits>(order, weft::range(100), visits).wait();
  driver.fail("cuLaunchKernel@1=701");
  const auto refused = weft::launch<counts_visits>(order, weft::range(100), visits);
  const auto skipped = weft::launch<counts_visits>(order, weft::range(100), visits);
  const auto cause = error_of([&] { refused.wait(); });
  EXPECT_EQ(cause.code, errc::resource_exhausted) << to_string(cause);
  EXPECT_EQ(cause.native_code, 701);
  EXPECT_NE(cause.what.find("counts_visits"), std::string::npos) << cause.what;
  EXPECT_EQ(error_of([&] { skipped.wait(); }).what, cause.what);
  weft::launch<counts_visits>(order, weft::range(100), visits).wait();
  EXPECT_EQ(samples::contents(visits), std::vector<std::uint8_t>(100, 2));
}

TEST_F(gpu_launch, a_faulting_launch_loses_its_device_and_no_other_until_a_reset) {
  for (const int code : {700, 710, 715, 716, 719, 214}) {
    weft::machine m = open();
    const weft::stream order{m[1]};
    const weft::buffer<std::uint8_t> visits{m[1], 100};
    const weft::buffer<std::uint8_t> others{m[2], 100};
    weft::fill(others, std::uint8_t{0});
    samples::gate shut;
    static_cast<void>(shut.hold(order));
    const auto kernel = weft::launch<counts_visits>(order, weft::range(100), visits);
    const std::string plan = "cuLaunchKernel@1=" + std::to_string(code);
    driver.fail(plan.c_str());
    shut.open();
    const auto cause = error_of([&] { kernel.wait(); });
    EXPECT_EQ(cause.native_code, code) << to_string(cause);
    EXPECT_EQ(cause.scope, weft::error_scope::device) << to_string(cause);
    ASSERT_TRUE(m[1].is_lost()) << code;
    EXPECT_EQ(error_of([&] { (void)weft::launch<counts_visits>(order, weft::range(100), visits); }).code,
              errc::device_lost);
    EXPECT_FALSE(m[2].is_lost());
    weft::launch<counts_visits>(weft::stream{m[2]}, weft::range(100), others).wait();
    EXPECT_EQ(samples::contents(others), once(100));
    driver.fail("");
    m[1].reset();
    EXPECT_FALSE(m[1].is_lost());
    const weft::buffer<std::uint8_t> again{m[1], 100};
    weft::fill(again, std::uint8_t{0});
    weft::launch<counts_visits>(order, weft::range(100), again).wait();
    EXPECT_EQ(samples::contents(again), once(100));
  }
}

TEST_F(gpu_launch, with_memory_of_a_device_without_access_is_an_illegal_access_before_it_starts) {
  const weft::machine m = open();
  const weft::stream order{m[0]};
  const weft::buffer<std::uint8_t> theirs{m[1], 100};
  const auto kernels = driver.calls("device.launch");
  const auto kernel = weft::launch<counts_visits>(order, weft::range(100), theirs);
  EXPECT_EQ(error_of([&] { kernel.wait(); }).code, errc::illegal_access);
  EXPECT_EQ(driver.calls("device.launch"), kernels);
  EXPECT_TRUE(m[0].is_lost());
  EXPECT_FALSE(m[1].is_lost());
}

}  // namespace gpu_launch_test
