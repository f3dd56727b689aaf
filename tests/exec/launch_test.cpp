// SPDX-License-Identifier: Apache-2.0
#include "weft/exec/launch.hpp"

#include "support/samples.hpp"
#include "weft/memory/fill.hpp"
#include "weft/memory/peer_access.hpp"

#include <gtest/gtest.h>

#include <numeric>

namespace launch_test {

using samples::error_of;
using weft::buffer;
using weft::errc;
using weft::machine;
using weft::range;
using weft::stream;

WEFT_KERNEL(launch_axpy, (WEFT_IN(float) x, WEFT_INOUT(float) y, float a), { y[i] = a * x[i] + y[i]; });
WEFT_KERNEL(launch_shift, (WEFT_OUT(int32_t) dst, int32_t by), { dst[i + by] = (int32_t)i; });
WEFT_KERNEL_2D(launch_plane, (WEFT_OUT(uint16_t) dst, int64_t width),
               { dst[y * width + x] = (uint16_t)(100 * y + x); });

// ---- what compiles --------------------------------------------------------------------------------------------------

template <class P, class... Args>
struct all_fit;
template <class... P, class... Args>
struct all_fit<weft::detail::parameter_list<P...>, Args...> {
  static constexpr bool value = [] {
    if constexpr (sizeof...(P) != sizeof...(Args)) {
      return false;
    } else {
      return (weft::detail::fits<P, Args>() && ...);
    }
  }();
};
template <class Kernel, class... Args>
inline constexpr bool accepts = all_fit<weft::detail::parameters_of<Kernel>, Args...>::value;

using span_of_float = weft::device_span<float>;
using span_of_const = weft::device_span<const float>;
static_assert(accepts<launch_axpy, buffer<float>, buffer<float>, float>);
static_assert(accepts<launch_axpy, span_of_const, span_of_float, float>);
static_assert(!accepts<launch_axpy, buffer<float>, span_of_const, float>, "a kernel does not write what is const");
static_assert(!accepts<launch_axpy, buffer<double>, buffer<float>, float>);
static_assert(!accepts<launch_axpy, buffer<float>, buffer<float>, double>, "scalars do not convert silently");
static_assert(!accepts<launch_axpy, buffer<float>, buffer<float>, int>);
static_assert(!accepts<launch_axpy, float, buffer<float>, float>, "memory, not a value");
static_assert(!accepts<launch_axpy, buffer<float>, buffer<float>, buffer<float>>, "a value, not memory");
static_assert(!accepts<launch_axpy, buffer<float>, buffer<float>>);
static_assert(!accepts<launch_axpy, buffer<float>, buffer<float>, float, float>);

machine two() { return samples::play(samples::wired(2)); }

std::vector<float> ramp(std::size_t n, float step) {
  std::vector<float> made(n);
  for (std::size_t i = 0; i < n; ++i) made[i] = step * static_cast<float>(i % 1000);
  return made;
}

TEST(launch, by_name_and_by_type_computes_the_same) {
  const machine m = two();
  weft::kernels(m).add<launch_axpy>();
  const std::size_t n = 10'007;
  const buffer<float> x{m[1], n}, y{m[1], n};
  const stream order{m[1]};
  for (const bool by_name : {true, false}) {
    weft::copy(x, ramp(n, 1.5F));
    weft::copy(y, ramp(n, 0.25F));
    if (by_name) {
      weft::launch(order, "launch_axpy", range(static_cast<std::int64_t>(n)), x, y, 2.0F).wait();
    } else {
      weft::launch<launch_axpy>(order, range(static_cast<std::int64_t>(n)), x, y, 2.0F).wait();
    }
    std::vector<float> got(n);
    weft::copy(got, y);
    for (std::size_t i = 0; i < n; ++i)
      ASSERT_EQ(got[i], 2.0F * 1.5F * static_cast<float>(i % 1000) + 0.25F * static_cast<float>(i % 1000)) << i;
  }
}

TEST(launch, by_name_checks_number_type_constness_and_kind_of_each_argument) {
  const machine m = two();
  weft::kernels(m).add<launch_axpy>();
  const stream order{m[0]};
  const buffer<float> x{m[0], 10}, y{m[0], 10};
  const buffer<double> wide{m[0], 10};
  const auto expect = [&](std::string_view text, const auto&... args) {
    const weft::error cause = error_of([&] { weft::launch(order, "launch_axpy", range(10), args...); });
    EXPECT_EQ(cause.code, errc::incompatible) << text;
    EXPECT_NE(cause.what.find(text), std::string::npos) << cause.what;
    EXPECT_NE(cause.what.find("launch_axpy(in float x, inout float y, float a)"), std::string::npos) << cause.what;
    EXPECT_NE(std::string{cause.where.file_name()}.find("launch_test.cpp"), std::string::npos) << "the caller's place";
  };
  expect("takes 3 arguments, got 2", x, y);
  expect("takes 3 arguments, got 4", x, y, 1.0F, 1.0F);
  expect("argument 1 (x) is double, the kernel takes float", wide, y, 1.0F);
  expect("argument 3 (a) is double", x, y, 1.0);
  expect("argument 2 (y) is const", x, weft::device_span<const float>{y}, 1.0F);
  expect("argument 3 (a) must be a value", x, y, x);
  expect("argument 1 (x) must be device memory", 1.0F, y, 1.0F);
  const weft::error flat = error_of([&] { weft::launch(order, "launch_axpy", range(5, 2), x, y, 1.0F); });
  EXPECT_EQ(flat.code, errc::incompatible);
  EXPECT_NE(flat.what.find("runs over 1 dimensions, the range has 2"), std::string::npos) << flat.what;
}

TEST(launch, by_an_unknown_name_is_not_found_with_the_nearest) {
  const machine m = two();
  const stream order{m[0]};
  EXPECT_NE(error_of([&] { weft::launch(order, "launch_axpy", range(1)); }).what.find("register it first"),
            std::string::npos);
  weft::kernels(m).add<launch_axpy, launch_plane>();
  const weft::error cause = error_of([&] { weft::launch(order, "lanch_axpy", range(1)); });
  EXPECT_EQ(cause.code, errc::not_found);
  EXPECT_NE(cause.what.find("did you mean 'launch_axpy'"), std::string::npos) << cause.what;
}

TEST(launch, refuses_ranges_and_memory_that_do_not_fit) {
  const machine m = two(), other = two();
  const stream order{m[0]};
  const buffer<float> x{m[0], 10}, y{m[0], 10}, foreign{other[0], 10};
  EXPECT_EQ(error_of([&] { weft::launch<launch_axpy>(order, range(11), x, y, 1.0F); }).code, errc::out_of_range);
  EXPECT_EQ(error_of([&] { weft::launch<launch_axpy>(order, range(-1), x, y, 1.0F); }).code, errc::invalid_argument);
  EXPECT_EQ(error_of([&] { weft::launch<launch_axpy>(order, range(5), x, foreign, 1.0F); }).code, errc::wrong_device);
  auto freed = std::make_unique<buffer<float>>(m[0], 10);
  const auto dangling = freed->span();
  freed.reset();
  EXPECT_EQ(error_of([&] { weft::launch<launch_axpy>(order, range(5), x, dangling, 1.0F); }).code, errc::not_found);
  weft::launch<launch_axpy>(order, range(0), x, y, 1.0F).wait();
  weft::launch<launch_axpy>(order, range(0), buffer<float>{}, buffer<float>{}, 1.0F).wait();
}

TEST(launch, over_two_dimensions_covers_every_point_once) {
  const machine m = two();
  const stream order{m[0]};
  const buffer<std::uint16_t> plane{m[0], 37 * 11};
  weft::launch<launch_plane>(order, range(37, 11), plane, std::int64_t{37}).wait();
  std::vector<std::uint16_t> got(37 * 11);
  weft::copy(got, plane);
  for (std::size_t y = 0; y < 11; ++y) {
    for (std::size_t x = 0; x < 37; ++x) ASSERT_EQ(got[y * 37 + x], 100 * y + x);
  }
}

TEST(launch, without_a_right_to_an_argument_loses_the_device_and_names_the_argument) {
  const machine m = two();
  const buffer<float> mine{m[0], 10}, theirs{m[1], 10};
  const stream order{m[0]};
  weft::fill(theirs, 1.0F);
  const weft::error cause = error_of([&] { weft::launch<launch_axpy>(order, range(10), mine, theirs, 1.0F).wait(); });
  EXPECT_EQ(cause.code, errc::illegal_access);
  EXPECT_EQ(cause.scope, weft::error_scope::device);
  EXPECT_NE(cause.what.find("argument 2 (y)"), std::string::npos) << cause.what;
  EXPECT_TRUE(m[0].is_lost());
  EXPECT_FALSE(m[1].is_lost());
  std::vector<float> got(10);
  weft::copy(got, theirs);
  EXPECT_EQ(got, std::vector<float>(10, 1.0F)) << "nothing was written";
}

TEST(checked_launch, names_the_parameter_and_loses_the_device) {
  weft::machine_options options;
  options.machine = samples::wired(2);
  options.check_access = true;
  const machine m{options};
  const buffer<std::int32_t> memory{m[0], 100};
  const stream order{m[0]};
  weft::launch<launch_shift>(order, range(100), memory, std::int32_t{0}).wait();
  const weft::error cause =
      error_of([&] { weft::launch<launch_shift>(order, range(100), memory, std::int32_t{1}).wait(); });
  EXPECT_EQ(cause.code, errc::illegal_access);
  EXPECT_NE(cause.what.find("launch_shift"), std::string::npos) << cause.what;
  EXPECT_NE(cause.what.find("dst"), std::string::npos) << cause.what;
  EXPECT_TRUE(m[0].is_lost());
  EXPECT_EQ(error_of([&] { weft::launch<launch_shift>(order, range(1), memory, std::int32_t{0}); }).code,
            errc::device_lost);
}

TEST(launch_traffic, counts_what_a_kernel_reads_and_writes_across_a_link) {
  const weft::topology layout = samples::wired(2);
  const machine m = samples::play(layout);
  const weft::peer_access lease{m, samples::gpu0, samples::gpu1};
  const buffer<float> x{m[1], 100}, y{m[1], 100};
  weft::fill(x, 1.0F);
  weft::fill(y, 1.0F);
  weft::launch<launch_axpy>(stream{m[0]}, range(100), x, y, 1.0F).wait();
  const auto seen = m.traffic().bytes_on_link;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const auto& link = layout.links[i];
    const std::uint64_t expected = link.from == 1 && link.to == 0 ? 800 : link.from == 0 && link.to == 1 ? 400 : 0;
    EXPECT_EQ(seen[i], expected) << link.from << " to " << link.to;
  }
}

// ---- raw kernels ----------------------------------------------------------------------------------------------------

weft::raw_kernel raw(std::string name, weft::host_entry host) {
  weft::raw_kernel made;
  made.name = std::move(name);
  weft::kernel_parameter data;
  data.name = "data";
  data.type = weft::element_type::int32;
  data.direction = weft::parameter_direction::inout;
  made.parameters.push_back(data);
  made.host = host;
  made.entry = "entry";
  return made;
}

void double_it(const weft::kernel_range& over, std::span<const weft::kernel_argument> arguments) {
  auto* data = static_cast<std::int32_t*>(arguments[0].address);
  for (std::int64_t i = over.begin[0]; i < over.end[0]; ++i) data[i] *= 2;
}
void refuse(const weft::kernel_range&, std::span<const weft::kernel_argument>) {
  throw std::runtime_error{"the raw kernel refused"};
}
void refuse_oddly(const weft::kernel_range&, std::span<const weft::kernel_argument>) { throw 42; }

TEST(raw_kernel, runs_on_the_host_by_its_name) {
  const machine m = two();
  weft::kernels(m).add(weft::make_kernel_code(raw("raw_double", &double_it)));
  const buffer<std::int32_t> memory{m[1], 1000};
  std::vector<std::int32_t> values(1000);
  std::iota(values.begin(), values.end(), -500);
  weft::copy(memory, values);
  weft::launch(stream{m[1]}, "raw_double", range(1000), memory).wait();
  std::vector<std::int32_t> got(1000);
  weft::copy(got, memory);
  for (std::size_t i = 0; i < 1000; ++i) ASSERT_EQ(got[i], 2 * values[i]);
}

TEST(raw_kernel, a_kernel_that_throws_has_failed_and_its_device_lives) {
  const machine m = two();
  weft::kernels(m).add(weft::make_kernel_code(raw("raw_refuse", &refuse)));
  weft::kernels(m).add(weft::make_kernel_code(raw("raw_refuse_oddly", &refuse_oddly)));
  const buffer<std::int32_t> memory{m[0], 10};
  const stream order{m[0]};
  for (const char* name : {"raw_refuse", "raw_refuse_oddly"}) {
    const weft::error cause = error_of([&] { weft::launch(order, name, range(10), memory).wait(); });
    EXPECT_EQ(cause.code, errc::kernel_failed) << cause.what;
    EXPECT_NE(cause.what.find("kernel '" + std::string{name} + "' on gpu0 threw"), std::string::npos) << cause.what;
  }
  EXPECT_FALSE(m[0].is_lost());
  order.call([] {}).wait();
}

TEST(raw_kernel, without_a_host_version_is_not_offered_by_the_host) {
  const machine m = two();
  weft::raw_kernel only_text = raw("raw_cuda_only", nullptr);
  only_text.cuda_source = "extern \"C\" __global__ void entry(int* data, long long begin, long long end) {}";
  weft::kernels(m).add(weft::make_kernel_code(only_text));
  const buffer<std::int32_t> memory{m[0], 10};
  EXPECT_EQ(error_of([&] { weft::launch(stream{m[0]}, "raw_cuda_only", range(10), memory).wait(); }).code,
            errc::unsupported);
}

// ---- the registry ---------------------------------------------------------------------------------------------------

TEST(kernel_registry, takes_the_same_definition_twice_and_no_other_of_that_name) {
  const machine m = two();
  auto registry = weft::kernels(m);
  registry.add<launch_axpy>().add<launch_axpy>();
  EXPECT_EQ(registry.names(), std::vector<std::string>{"launch_axpy"});
  const weft::error cause = error_of([&] { registry.add(weft::make_kernel_code(raw("launch_axpy", &double_it))); });
  EXPECT_EQ(cause.code, errc::incompatible);
  EXPECT_NE(cause.what.find("launch_test.cpp:"), std::string::npos) << cause.what;
  EXPECT_EQ(registry.at("launch_axpy")->parameters.size(), 3U) << "the first one stays";
}

TEST(kernel_registry, says_that_it_was_moved_from) {
  const machine m = two();
  auto left = weft::kernels(m);
  const auto moved = std::move(left);
  // NOLINTBEGIN(bugprone-use-after-move): that is the question
  EXPECT_EQ(error_of([&] { static_cast<void>(left.names()); }).what, "an empty kernel registry: it was moved from");
  EXPECT_EQ(error_of([&] { static_cast<void>(left.at("any")); }).code, errc::invalid_argument);
  // NOLINTEND(bugprone-use-after-move)
  EXPECT_TRUE(moved.names().empty());
}

TEST(kernel_registry, belongs_to_its_machine) {
  const machine m = two(), other = two();
  weft::kernels(m).add<launch_axpy>();
  EXPECT_TRUE(weft::kernels(other).names().empty());
  EXPECT_EQ(error_of([&] { static_cast<void>(weft::kernels(other).at("launch_axpy")); }).code, errc::not_found);
}

}  // namespace launch_test
