// SPDX-License-Identifier: Apache-2.0
#include "weft/exec/kernels.hpp"

#include "conformance/case_tools.hpp"
#include "weft/exec/launch.hpp"
#include "weft/memory/fill.hpp"

#include <cstring>
#include <map>
#include <set>
#include <stdexcept>

namespace weft::conformance {
namespace {

WEFT_KERNEL(conform_scale, (WEFT_IN(float) input, WEFT_OUT(float) output, float factor),
            { output[i] = input[i] * factor + 1.0f; });
WEFT_KERNEL_2D(conform_transpose,
               (WEFT_IN(int32_t, whole) input, WEFT_OUT(int32_t) output, int64_t width, int64_t height),
               { output[y * width + x] = input[x * height + y]; });
WEFT_KERNEL_3D(conform_number, (WEFT_OUT(int64_t) output, int64_t width, int64_t height),
               { output[(z * height + y) * width + x] = 1000000 * z + 1000 * y + x; });
WEFT_KERNEL(conform_mixture,
            (WEFT_IN(int8_t) a, WEFT_IN(uint8_t) b, WEFT_IN(int16_t) c, WEFT_IN(uint16_t) d, WEFT_IN(int32_t) e,
             WEFT_IN(uint32_t) f, WEFT_IN(int64_t) g, WEFT_IN(uint64_t) h, WEFT_IN(float) p, WEFT_IN(double) q,
             WEFT_OUT(double) sum, int8_t sa, uint16_t sd, int64_t sg, double sq),
            {
              double small = (double)a[i] + (double)b[i] + (double)c[i] + (double)d[i];
              double large = (double)e[i] + (double)f[i] + (double)g[i] + (double)h[i];
              sum[i] = small + large + (double)p[i] + q[i] + (double)sa + (double)sd + (double)sg + sq;
            });
WEFT_KERNEL(conform_smooth, (WEFT_IN(int32_t, halo(1)) input, WEFT_OUT(int32_t) output, int64_t last), {
  int32_t left = i > 0 ? input[i - 1] : 0;
  int32_t right = i < last ? input[i + 1] : 0;
  output[i] = left + 2 * input[i] + right;
});
WEFT_KERNEL(conform_grow, (WEFT_INOUT(uint32_t) values), { values[i] = values[i] * 5U + (uint32_t)i; });

namespace impostor {
WEFT_KERNEL(conform_grow, (WEFT_INOUT(uint32_t) values), { values[i] = values[i] + 1U; });
}  // namespace impostor

verdict a_kernel_runs_by_name_and_by_type(context& c) {
  kernels(c.m()).add<conform_scale>();
  for (const device& d : c.m().devices()) {
    for (const std::size_t count : small_sizes()) {
      std::vector<float> data(count);
      for (std::size_t i = 0; i < count; ++i) data[i] = static_cast<float>(i % 1000) * 0.25F;
      const buffer<float> in{d, count};
      const buffer<float> out{d, count};
      copy(in, data);
      const stream order{d};
      launch(order, "conform_scale", range(static_cast<std::int64_t>(count)), in, out, 2.0F).wait();
      std::vector<float> got(count);
      copy(got, out);
      require_all<float>(got, [&](std::size_t i) { return data[i] * 2.0F + 1.0F; }, "by name on " + to_string(d.id()));
      launch<conform_scale>(order, range(static_cast<std::int64_t>(count)), in, out, 4.0F).wait();
      copy(got, out);
      require_all<float>(got, [&](std::size_t i) { return data[i] * 4.0F + 1.0F; }, "by type on " + to_string(d.id()));
    }
  }
  return holds();
}

verdict two_dimensions(context& c) {
  constexpr std::int64_t width = 67, height = 31;
  std::vector<std::int32_t> data(static_cast<std::size_t>(width * height));
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::int32_t>(i * 7 + 3);
  const buffer<std::int32_t> in{c.m()[0], data.size()};
  const buffer<std::int32_t> out{c.m()[0], data.size()};
  copy(in, data);
  launch<conform_transpose>(stream{c.m()[0]}, range(width, height), in, out, width, height).wait();
  std::vector<std::int32_t> got(data.size());
  copy(got, out);
  require_all<std::int32_t>(
      got,
      [&](std::size_t i) {
        const std::size_t x = i % width;
        const std::size_t y = i / width;
        return data[x * height + y];
      },
      "transposed");
  return holds();
}

verdict three_dimensions(context& c) {
  constexpr std::int64_t width = 13, height = 7, depth = 5;
  const buffer<std::int64_t> out{c.m()[0], static_cast<std::size_t>(width * height * depth)};
  launch<conform_number>(stream{c.m()[0]}, range(width, height, depth), out, width, height).wait();
  std::vector<std::int64_t> got(out.size());
  copy(got, out);
  require_all<std::int64_t>(
      got,
      [&](std::size_t i) {
        const auto at = static_cast<std::int64_t>(i);
        return 1000000 * (at / (width * height)) + 1000 * (at / width % height) + at % width;
      },
      "numbered");
  return holds();
}

template <class T>
buffer<T> ramp(const device& on, std::size_t count, int factor) {
  std::vector<T> data(count);
  for (std::size_t i = 0; i < count; ++i) data[i] = static_cast<T>(static_cast<int>(i % 50) * factor);
  buffer<T> made{on, count};
  copy(made, data);
  return made;
}

verdict every_type_can_be_a_parameter(context& c) {
  constexpr std::size_t count = 1003;
  const device on = c.m()[0];
  const buffer<double> sum{on, count};
  launch<conform_mixture>(stream{on}, range(count), ramp<std::int8_t>(on, count, -1), ramp<std::uint8_t>(on, count, 2),
                          ramp<std::int16_t>(on, count, -3), ramp<std::uint16_t>(on, count, 4),
                          ramp<std::int32_t>(on, count, -5), ramp<std::uint32_t>(on, count, 6),
                          ramp<std::int64_t>(on, count, -7), ramp<std::uint64_t>(on, count, 8),
                          ramp<float>(on, count, 9), ramp<double>(on, count, 10), sum, std::int8_t{-100},
                          std::uint16_t{60000}, std::int64_t{-1} << 40, 0.5)
      .wait();
  std::vector<double> got(count);
  copy(got, sum);
  const double constant = -100.0 + 60000.0 - 1099511627776.0 + 0.5;
  require_all<double>(
      got,
      [&](std::size_t i) { return static_cast<double>(i % 50) * (-1 + 2 - 3 + 4 - 5 + 6 - 7 + 8 + 9 + 10) + constant; },
      "sum over all types");
  return holds();
}

verdict a_halo_reaches_its_neighbours(context& c) {
  constexpr std::size_t count = 70001;
  std::vector<std::int32_t> data(count);
  for (std::size_t i = 0; i < count; ++i) data[i] = static_cast<std::int32_t>(i * i % 1009);
  const buffer<std::int32_t> in{c.m()[0], count};
  const buffer<std::int32_t> out{c.m()[0], count};
  copy(in, data);
  launch<conform_smooth>(stream{c.m()[0]}, range(count), in, out, static_cast<std::int64_t>(count) - 1).wait();
  std::vector<std::int32_t> got(count);
  copy(got, out);
  require_all<std::int32_t>(
      got, [&](std::size_t i) { return (i > 0 ? data[i - 1] : 0) + 2 * data[i] + (i + 1 < count ? data[i + 1] : 0); },
      "smoothed");
  return holds();
}

verdict kernels_keep_the_order_of_their_stream(context& c) {
  constexpr std::size_t count = 4099;
  constexpr int rounds = 50;
  auto expected = numbers(count, 1);
  const buffer<std::uint32_t> values{c.m()[0], count};
  const stream order{c.m()[0]};
  copy(values, expected);
  event last;
  for (int r = 0; r < rounds; ++r) last = launch<conform_grow>(order, range(count), values);
  std::vector<std::uint32_t> got(count);
  copy(order, got, values).wait();
  require(last.ready(), "a copy after kernels of its stream overtook one");
  for (int r = 0; r < rounds; ++r) {
    for (std::size_t i = 0; i < count; ++i) expected[i] = expected[i] * 5U + static_cast<std::uint32_t>(i);
  }
  require_all<std::uint32_t>(got, [&](std::size_t i) { return expected[i]; }, "after fifty kernels");
  return holds();
}

verdict nothing_to_run_over_is_legal(context& c) {
  const buffer<std::uint32_t> values{c.m()[0], 10};
  fill(values, 3U);
  launch<conform_grow>(stream{c.m()[0]}, range(0), values).wait();
  std::vector<std::uint32_t> got(10);
  copy(got, values);
  require_all<std::uint32_t>(got, [](std::size_t) { return 3U; }, "after a kernel over nothing");
  return holds();
}

verdict wrong_arguments_are_refused_now(context& c) {
  kernels(c.m()).add<conform_scale>();
  const stream order{c.m()[0]};
  const buffer<float> in{c.m()[0], 100};
  const buffer<float> out{c.m()[0], 100};
  fill(in, 1.0F);
  fill(out, 7.0F);
  const buffer<double> wide{c.m()[0], 100};
  const device_span<const float> constant = out;
  const auto refused = [&](const std::string& doing, const std::string& named, const std::function<void()>& f) {
    const std::string what = expect_error({errc::incompatible}, doing, f);
    require(what.find(named) != std::string::npos, doing + ": the error does not say " + named + ": " + what);
  };
  refused("one argument too few", "conform_scale", [&] { launch(order, "conform_scale", range(100), in, out); });
  refused("one argument too many", "conform_scale",
          [&] { launch(order, "conform_scale", range(100), in, out, 1.0F, 2); });
  refused("an argument of another type", "output", [&] { launch(order, "conform_scale", range(100), in, wide, 1.0F); });
  refused("a scalar of another type", "factor", [&] { launch(order, "conform_scale", range(100), in, out, 1.0); });
  refused("memory for a scalar", "factor", [&] { launch(order, "conform_scale", range(100), in, out, in); });
  refused("const memory to write to", "output",
          [&] { launch(order, "conform_scale", range(100), in, constant, 1.0F); });
  refused("two dimensions for one", "conform_scale",
          [&] { launch(order, "conform_scale", range(10, 10), in, out, 1.0F); });
  expect_error({errc::out_of_range}, "a range past the end of an argument",
               [&] { launch(order, "conform_scale", range(101), in, out, 1.0F).wait(); });
  expect_error({errc::out_of_range}, "an argument shorter than the range",
               [&] { launch(order, "conform_scale", range(100), in, out.subspan(1, 99), 1.0F).wait(); });
  expect_error({errc::invalid_argument, errc::out_of_range}, "a negative range",
               [&] { launch(order, "conform_scale", range(-1), in, out, 1.0F).wait(); });
  std::vector<float> got(100);
  copy(got, out);
  require_all<float>(got, [](std::size_t) { return 7.0F; }, "output of refused kernels");
  launch(order, "conform_scale", range(100), in, out, 1.0F).wait();  // nothing is lost by a refusal
  return holds();
}

verdict freed_memory_is_refused(context& c) {
  device_span<std::uint32_t> gone;
  {
    const buffer<std::uint32_t> brief{c.m()[0], 100};
    gone = brief.span();
  }
  c.m()[0].synchronize();
  expect_error({errc::not_found}, "a kernel over freed memory",
               [&] { launch<conform_grow>(stream{c.m()[0]}, range(100), gone).wait(); });
  require(!c.m()[0].is_lost(), "a refused kernel took the device down");
  return holds();
}

verdict an_unknown_kernel_is_not_found_but_guessed(context& c) {
  kernels(c.m()).add<conform_scale>().add<conform_grow>();
  const std::string what = expect_error({errc::not_found}, "a misspelt kernel",
                                        [&] { launch(stream{c.m()[0]}, "conform_scalee", range(1)); });
  require(what.find("conform_scale") != std::string::npos, "the nearest name is not told: " + what);
  require_equal(kernels(c.m()).names().size(), 2U, "names in the registry");
  require(kernels(c.m()).at("conform_grow")->name == "conform_grow", "the registry gives another kernel");
  return holds();
}

verdict one_name_is_one_kernel(context& c) {
  kernels(c.m()).add<conform_grow>();
  kernels(c.m()).add<conform_grow>();
  const std::string what = expect_error({errc::incompatible}, "one name for two bodies",
                                        [&] { kernels(c.m()).add<impostor::conform_grow>(); });
  require(what.find("conform_grow") != std::string::npos, "the error does not name the kernel: " + what);
  const buffer<std::uint32_t> values{c.m()[0], 10};
  fill(values, 3U);
  launch(stream{c.m()[0]}, "conform_grow", range(10), values).wait();
  std::vector<std::uint32_t> got(10);
  copy(got, values);
  require_all<std::uint32_t>(
      got, [](std::size_t i) { return 15U + static_cast<std::uint32_t>(i); }, "the first definition");
  return holds();
}

verdict an_argument_of_another_device_needs_access(context& c) {
  const auto pairs = all_pairs(c.m());
  const device_pair pair = pairs.front();
  const buffer<std::uint32_t> theirs{c.m()[pair.to], 1000};
  const auto start = numbers(1000, 2);
  copy(theirs, start);
  require(!peer_enabled(c.m(), pair.from, pair.to), "access is enabled from the start");
  const std::string what = expect_fault(c, pair.from, theirs, "a kernel over memory without access");
  require(what.find(to_string(pair.from)) != std::string::npos && what.find(to_string(pair.to)) != std::string::npos,
          "the error does not name both devices: " + what);
  std::vector<std::uint32_t> got(1000);
  copy(got, theirs);
  require_all<std::uint32_t>(got, [&](std::size_t i) { return start[i]; }, "memory that was accessed without right");
  return holds();
}

void raw_on_host(const kernel_range& over, std::span<const kernel_argument> arguments) {
  auto* const values = static_cast<std::uint32_t*>(arguments[0].address);
  std::uint32_t factor = 0;
  std::memcpy(&factor, arguments[1].scalar.data(), sizeof(factor));
  for (std::int64_t i = over.begin[0]; i < over.end[0]; ++i) {
    values[i] = values[i] * factor + static_cast<std::uint32_t>(i);
  }
}

verdict a_raw_kernel_runs(context& c) {
  raw_kernel raw;
  raw.name = "conform_raw";
  raw.parameters = {{"values", element_type::uint32, parameter_direction::inout, access::whole()},
                    {"factor", element_type::uint32, parameter_direction::scalar, {}}};
  raw.host = raw_on_host;
  raw.entry = "conform_raw";
  raw.cuda_source =
      "extern \"C\" __global__ void conform_raw(unsigned* values, unsigned factor, long long first, long long last) {\n"
      "  long long i = first + (long long)blockIdx.x * blockDim.x + threadIdx.x;\n"
      "  if (i < last) values[i] = values[i] * factor + (unsigned)i;\n"
      "}\n";
  raw.hip_source = raw.cuda_source;
  raw.opencl_source =
      "__kernel void conform_raw(__global uint* values, uint factor, long first, long last) {\n"
      "  long i = first + (long)get_global_id(0);\n"
      "  if (i < last) values[i] = values[i] * factor + (uint)i;\n"
      "}\n";
  kernels(c.m()).add(make_kernel_code(std::move(raw)));
  const auto start = numbers(5003, 4);
  const buffer<std::uint32_t> values{c.m()[0], start.size()};
  copy(values, start);
  const stream order{c.m()[0]};
  launch(order, "conform_raw", range(5003), values, 7U).wait();
  std::vector<std::uint32_t> got(start.size());
  copy(got, values);
  require_all<std::uint32_t>(
      got, [&](std::size_t i) { return start[i] * 7U + static_cast<std::uint32_t>(i); }, "after a raw kernel");
  expect_error({errc::incompatible}, "a raw kernel with a scalar of another type",
               [&] { launch(order, "conform_raw", range(5003), values, 7.0F); });
  return holds();
}

verdict parts_run_on_their_own(context& c) {
  std::vector<device> parts;
  for (const device& one : c.m().devices()) {
    if (parts.empty() ? !one.part_of().empty() : one.part_of() == parts.front().part_of()) parts.push_back(one);
  }
  if (parts.size() < 2) not_here("no device of this machine is a part of one");
  if (!parts.front().has_own_compute_units()) not_here("the parts of its devices share their compute units");
  if (parts.front().kind() != backend_kind::cuda) not_here("a kernel of its parts cannot tell where it runs");
  kernels(c.m()).add(make_kernel_code(where_kernel()));
  std::map<std::uint32_t, device_id> owner;  // of a multiprocessor
  for (const device& part : parts) {
    std::vector<std::uint32_t> seen(std::size_t{1} << 19U);  // more blocks than a part runs at a time
    const buffer<std::uint32_t> there{part, seen.size()};
    fill(there, 0U);
    launch(stream{part}, "conform_where", range(static_cast<std::int64_t>(seen.size())), there).wait();
    copy(seen, there);
    const std::set<std::uint32_t> mine{seen.begin(), seen.end()};
    require(mine.size() <= static_cast<std::size_t>(part.compute_units()),
            to_string(part.id()) + " ran on " + std::to_string(mine.size()) + " multiprocessors, and has " +
                std::to_string(part.compute_units()));
    for (const std::uint32_t one : mine) {
      const auto [at, is_new] = owner.emplace(one, part.id());
      require(is_new, to_string(at->second) + " and " + to_string(part.id()) + " both ran on multiprocessor " +
                          std::to_string(one));
    }
  }
  return holds();
}

verdict a_kernel_after_a_failure_does_not_run(context& c) {
  const stream order{c.m()[0]};
  const buffer<std::uint32_t> values{c.m()[0], 100};
  fill(values, 3U);
  const event failed = order.call([] { throw 1; });
  expect_error({errc::kernel_failed}, "a call that throws what is no exception", [&] { failed.wait(); });
  event skipped;
  {
    gate closed{c.m(), order};
    order.call([] { throw std::runtime_error("broken"); });
    skipped = launch<conform_grow>(order, range(100), values);
    closed.open();
  }
  expect_error({errc::kernel_failed}, "a kernel after a failure", [&] { skipped.wait(); });
  std::vector<std::uint32_t> got(100);
  copy(got, values);
  require_all<std::uint32_t>(got, [](std::size_t) { return 3U; }, "output of a skipped kernel");
  return holds();
}

}  // namespace

void add_kernels(case_list& list) {
  constexpr std::string_view group = "kernels";
  constexpr auto runs = feature::kernels;
  list.insert(
      list.end(),
      {{"a kernel runs by name and by type, on every device and over every size", group,
        a_kernel_runs_by_name_and_by_type, runs},
       {"a kernel over two dimensions sees x and y", group, two_dimensions, runs},
       {"a kernel over three dimensions sees x, y and z", group, three_dimensions, runs},
       {"every element type can be a parameter, as memory and by value", group, every_type_can_be_a_parameter, runs},
       {"a halo reaches its neighbours", group, a_halo_reaches_its_neighbours, runs},
       {"kernels keep the order of their stream", group, kernels_keep_the_order_of_their_stream, runs},
       {"a kernel over nothing is legal and changes nothing", group, nothing_to_run_over_is_legal, runs},
       {"arguments of wrong number, type, constness or length are refused and named", group,
        wrong_arguments_are_refused_now, runs},
       {"freed memory is refused as an argument, and the device goes on", group, freed_memory_is_refused, runs},
       {"an unknown kernel is not found, and the nearest name is told", group,
        an_unknown_kernel_is_not_found_but_guessed, runs},
       {"one name is one kernel", group, one_name_is_one_kernel, runs},
       {"a kernel over memory of another device without access loses its device and changes nothing", group,
        an_argument_of_another_device_needs_access, feature::two_devices},
       {"a raw kernel runs, and its arguments are checked", group, a_raw_kernel_runs, runs},
       {"parts of a device run their kernels on compute units of their own", group, parts_run_on_their_own, runs},
       {"a kernel after a failure in its stream does not run", group, a_kernel_after_a_failure_does_not_run, runs}});
}

}  // namespace weft::conformance
