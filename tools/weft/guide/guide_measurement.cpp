// SPDX-License-Identifier: Apache-2.0
// The guide's tables on this computer: its cores as devices, by the wall clock. What a computer without GPUs can say of
// them is how the patterns compare, not how fast a device is.
#include "command_line/statistics.hpp"
#include "guide_kernels.hpp"
#include "guide_tables.hpp"
#include "image_pipeline/gaussian.hpp"
#include "weft/exec/map_reduce.hpp"
#include "weft/exec/pipeline.hpp"
#include "weft/memory/peer_access.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>

namespace weft::tool {

namespace {

using wall = std::chrono::steady_clock;

constexpr std::string_view no_links = "this computer has no such link: its devices share one memory";
constexpr std::string_view all_alike = "this computer's devices are alike";

WEFT_KERNEL(guide_heavy, (WEFT_IN(float) x, WEFT_OUT(float) y, int32_t rounds), {
  float v = x[i];
  for (int32_t r = 0; r < rounds; ++r) {
    v = v * 0.999f + 0.5f;
  }
  y[i] = v;
});

template <class F>
double seconds_taken_by(F&& f) {
  stop_if_interrupted();
  const auto begin = wall::now();
  f();
  return std::chrono::duration<double>(wall::now() - begin).count();
}

/// The middle of so many, after one that is not counted.
template <class F>
double median_of(int samples, F&& f) {
  f();
  std::vector<double> times;
  times.reserve(static_cast<std::size_t>(samples));
  for (int k = 0; k < samples; ++k) times.push_back(seconds_taken_by(f));
  return summarise(std::move(times)).median;
}

guide_values transfer_methods(const machine& m, const guide_plan& plan) {
  const auto leases = enable_all_peers(m);
  const std::size_t size = std::size_t{plan.quick ? 8U : 64U} << 20;
  std::vector<std::uint8_t> data(size);
  for (std::size_t i = 0; i < size; ++i) data[i] = static_cast<std::uint8_t>(i * 31 >> 3);
  buffer<std::uint8_t> from{m[0], size}, to{m[1], size};
  copy(from, data);
  guide_values made;
  made.otherwise = no_links;
  const auto put = [&](copy_path path, std::string_view bandwidth_row, std::string_view latency_row) {
    copy_options how;
    how.route.path = path;
    std::vector<std::uint8_t> got(size);
    copy(to, got);
    const double large = median_of(plan.quick ? 3 : 9, [&] { copy(to, from, how); });
    copy(got, to);
    guide_check(got == data, fmt::format("a {} copy", to_string(path)));
    made.put(bandwidth_row, static_cast<double>(size) / large / giga);
    constexpr int in_sample = 100;
    const double small = median_of(plan.quick ? 3 : 15, [&] {
      for (int k = 0; k < in_sample; ++k) copy(to.span().first(4), from.span().first(4), how);
    });
    made.put(latency_row, small / in_sample * 1e6);
  };
  put(copy_path::direct, "P2P direct, bandwidth", "P2P direct, latency");
  put(copy_path::staged, "host-staged, bandwidth", "host-staged, latency");
  return made;
}

guide_values small_copies(const machine& m, const guide_plan& plan) {
  guide_values made;
  guide_small_copies(m, [&](std::string_view row, std::size_t size, auto&& f) {
    made.put(row, static_cast<double>(size) / median_of(plan.quick ? 3 : 15, f) / giga);
  });
  return made;
}

guide_values synchronisation(const machine& m, const guide_plan& plan) {
  constexpr int kernels = 100;
  const stream order{m[0]};
  buffer<float> x{m[0], 1'000}, y{m[0], 1'000};
  copy(x, std::vector<float>(1'000, 1.0F));
  const auto submit = [&] { launch<guide_line>(order, range(1'000), x, y); };
  const int samples = plan.quick ? 5 : 25;
  const double each = median_of(samples, [&] {
    for (int k = 0; k < kernels; ++k) {
      submit();
      m.synchronize();
    }
  });
  const double once = median_of(samples, [&] {
    for (int k = 0; k < kernels; ++k) submit();
    m.synchronize();
  });
  const double one = (each - once) / (kernels - 1);
  guide_values made;
  if (one <= 0) {
    made.otherwise = "lost in the noise: 100 synchronisations took no longer than one";
    return made;
  }
  made.put("100 synchronisations", one * kernels * 1e3);
  made.put("one synchronisation", one * 1e3);
  return made;
}

guide_values data_parallel(const machine& m, const guide_plan& plan) {
  const std::int64_t items = plan.quick ? 1 << 20 : 16 << 20;
  const std::vector<float> x = guide_ramp(items);
  std::vector<float> y(x.size());
  std::map<int, double> took;
  for (const int devices : {1, 2, 4}) {
    spread_options how;
    how.strategy = balance::static_equal;
    how.devices.ids = first_devices(devices);
    took[devices] = median_of(plan.quick ? 3 : 7, [&] { launch<guide_line>(m, how, range(items), x, y).wait(); });
    guide_check(is_guide_line(y), "y = 2 x + 1");
    std::ranges::fill(y, 0.0F);
  }
  const double input_bytes = static_cast<double>(items) * sizeof(float);
  guide_values made;
  made.put("one device", input_bytes / took[1] / giga);
  made.put("two devices", input_bytes / took[2] / giga);
  made.put("four devices", input_bytes / took[4] / giga);
  made.put("speed-up, two devices", took[1] / took[2]);
  made.put("speed-up, four devices", took[1] / took[4]);
  made.put("scaling efficiency", 100 * took[1] / took[4] / 4);
  made.leave("speed-up, four devices behind one link", std::string{no_links});
  return made;
}

guide_values scatter_and_gather(const machine& m, const guide_plan& plan) {
  guide_values made;
  made.leave("1B elements, one device", "a billion elements need 16 GB here");
  made.otherwise = plan.quick ? "left out by --quick" : "not measured at this size";
  struct rows_of_size {
    std::int64_t items;
    std::array<std::string_view, 4> rows;
  };
  const std::array<rows_of_size, 2> sizes{{{10'000'000,
                                            {"10M elements, one device", "10M elements, two devices",
                                             "10M elements, four devices", "10M elements, speed-up"}},
                                           {100'000'000,
                                            {"100M elements, one device", "100M elements, two devices",
                                             "100M elements, four devices", "100M elements, speed-up"}}}};
  for (const rows_of_size& size : sizes) {
    const bool is_large = size.items > 10'000'000;
    if (plan.quick) {
      for (const std::string_view row : size.rows) made.leave(row, "left out by --quick");
      continue;
    }
    // in and out, both on the first device alone at first, and some room
    const std::uint64_t needed = static_cast<std::uint64_t>(size.items) * sizeof(float) * 2;
    if (m[0].free_memory().value() < needed * 5 / 4) {
      for (const std::string_view row : size.rows) made.leave(row, "there was not enough memory");
      continue;
    }
    const std::vector<float> x = guide_ramp(size.items);
    std::vector<float> y(x.size());
    std::map<int, double> took;
    for (const int devices : {1, 2, 4}) {
      scatter_gather_run run{m, devices, size.items};
      took[devices] = median_of(is_large ? 1 : 3, [&] { run.once(y, x, {}); });
      guide_check(is_guide_line(y), fmt::format("scatter and gather over {} devices", devices));
      std::ranges::fill(y, 0.0F);
    }
    made.put(size.rows[0], took[1] * 1e3);
    made.put(size.rows[1], took[2] * 1e3);
    made.put(size.rows[2], took[4] * 1e3);
    made.put(size.rows[3], took[1] / took[4]);
    if (!is_large) made.put("scaling efficiency", 100 * took[1] / took[4] / 4);
  }
  return made;
}

guide_values reduction(const machine& m, const guide_plan& plan) {
  const std::int64_t elements = plan.quick ? 1'000'000 : 50'000'000;
  std::map<int, double> took;
  for (const int devices : {1, 4}) {
    const array<float> x{m, static_cast<std::size_t>(elements), 1.0F};
    spread_options how;
    how.strategy = balance::static_equal;
    how.devices.ids = first_devices(devices);
    took[devices] = median_of(plan.quick ? 3 : 7, [&] {
      guide_check(reduce(m, how, x, reduce_op::sum) == static_cast<double>(elements),
                  fmt::format("the sum on {} devices", devices));
    });
  }
  guide_values made;
  made.otherwise = fmt::format("measured with {} million elements, for the speed-up", elements / 1'000'000);
  made.put("speed-up", took[1] / took[4],
           fmt::format("measured with {} million elements: {:.3g} ms on one device, {:.3g} ms on four",
                       elements / 1'000'000, took[1] * 1e3, took[4] * 1e3));
  return made;
}

guide_values three_stages(const machine& m, const guide_plan& plan) {
  const std::size_t items = plan.quick ? 20'000 : 100'000;
  const std::int32_t rounds = plan.quick ? 50 : 200;
  constexpr std::size_t batches = 20;
  const std::vector<float> batch(items, 1.0F);
  float expected = 1;
  for (std::int32_t r = 0; r < 3 * rounds; ++r) expected = std::fma(expected, 0.999F, 0.5F);
  struct seen {
    double period = 0;
    double all = 0;
  };
  const auto leases = enable_all_peers(m);
  const auto through = [&](const std::vector<device_id>& placement) {
    pipeline_options options;
    options.placement = placement;
    auto line = make_pipeline<float>(m, items, options)
                    .kernel<guide_heavy>("first", rounds)
                    .kernel<guide_heavy>("second", rounds)
                    .kernel<guide_heavy>("third", rounds)
                    .build();
    std::vector<std::vector<float>> results(batches, std::vector<float>(items));
    line.push(batch, results[0]).wait();
    const double all = seconds_taken_by([&] {
      for (std::vector<float>& r : results) line.push(batch, r);
      line.drain();
    });
    for (const std::vector<float>& r : results) {
      guide_check(std::ranges::all_of(r, [&](float v) { return std::abs(v - expected) < 1e-3F * expected; }),
                  "the pipeline");
    }
    const pipeline_report told = line.report();
    return seen{std::chrono::duration<double>(told.period).count(), all};
  };
  const seen alone = through({device_id{0}, device_id{0}, device_id{0}});
  const seen three = through({device_id{0}, device_id{1}, device_id{2}});
  guide_values made;
  made.otherwise = "measured with stages that take less, for the throughput";
  made.put("throughput, in steady state", alone.period / three.period,
           fmt::format("measured: {:.3g} ms for a batch on one device, {:.3g} ms on three", alone.period * 1e3,
                       three.period * 1e3));
  made.put("throughput, 20 batches in all", alone.all / three.all);
  return made;
}

guide_values crossover(const machine& m, const guide_plan& plan) {
  guide_values made;
  const std::int64_t most = plan.quick ? 1 << 18 : 1 << 24;
  const std::string_view row = "elements from which a second device helps";
  std::vector<std::pair<std::int64_t, bool>> sizes;
  for (std::int64_t items = 1 << 10; items <= most; items *= 4) {
    std::map<int, double> took;
    for (const int devices : {1, 2}) {
      spread_options how;
      how.strategy = balance::static_equal;
      how.devices.ids = first_devices(devices);
      const array<float> x{m, static_cast<std::size_t>(items), 1.0F};
      array<float> y{m, static_cast<std::size_t>(items)};
      took[devices] = median_of(plan.quick ? 5 : 15, [&] { launch<guide_line>(m, how, range(items), x, y).wait(); });
    }
    sizes.emplace_back(items, took[2] < 0.95 * took[1]);
  }
  // the smallest from which on it always did
  auto from = sizes.end();
  while (from != sizes.begin() && std::prev(from)->second) --from;
  if (from == sizes.end()) {
    made.leave(row, fmt::format("a second device did not help up to {} elements", most));
  } else {
    made.put(row, static_cast<double>(from->first),
             "measured with the data in place, at powers of four, by 5 % or more");
  }
  return made;
}

guide_values image_batch(const machine& m, const guide_plan& plan) {
  const std::int64_t width = plan.quick ? 480 : 1920;
  const std::int64_t height = plan.quick ? 270 : 1080;
  const std::size_t images = plan.quick ? 8 : 24;
  const auto size = static_cast<std::size_t>(width * height);
  const std::array<std::uint32_t, 25> weights = images::blur_weights();
  std::vector<std::vector<std::uint8_t>> originals(images, std::vector<std::uint8_t>(size));
  for (std::size_t k = 0; k < images; ++k) std::ranges::fill(originals[k], static_cast<std::uint8_t>(10 * k));
  std::map<int, double> took;
  for (const int devices : {1, 2, 4}) {
    struct place {
      stream order;
      buffer<std::uint8_t> in, out;
      buffer<std::uint32_t> weights;
    };
    std::vector<place> places;
    for (int d = 0; d < devices; ++d) {
      places.push_back({stream{m[d]}, buffer<std::uint8_t>{m[d], size}, buffer<std::uint8_t>{m[d], size},
                        buffer<std::uint32_t>{m[d], weights.size()}});
      copy(places.back().weights, weights);
    }
    std::vector<std::vector<std::uint8_t>> results(images, std::vector<std::uint8_t>(size));
    took[devices] = median_of(plan.quick ? 1 : 3, [&] {
      for (std::size_t k = 0; k < images; ++k) {
        place& at = places[k % places.size()];
        copy(at.order, at.in, originals[k]);
        launch<images::gaussian_blur>(at.order, range(width, height), at.in, at.out, at.weights, width, height,
                                      std::int64_t{1});
        copy(at.order, results[k], at.out);
      }
      m.synchronize();
    });
    guide_check(results == originals, "an image of one colour");
  }
  guide_values made;
  const auto count = static_cast<double>(images);
  made.otherwise = "measured with fewer images, for the rates";
  made.put("one device", count / took[1],
           fmt::format("measured: {} images of {} x {}, one channel", images, width, height));
  made.put("two devices", count / took[2]);
  made.put("four devices", count / took[4]);
  made.put("speed-up, two devices", took[1] / took[2]);
  made.put("speed-up, four devices", took[1] / took[4]);
  return made;
}

guide_values unified_memory(const machine& m, const guide_plan& plan) {
  guide_values made;
  if (!m[0].has(capability::unified_memory)) {
    made.otherwise = "the devices have no unified memory";
    return made;
  }
  const std::int64_t items = plan.quick ? 1 << 20 : 16 << 20;
  const std::vector<float> x = guide_ramp(items);
  std::vector<float> y(x.size());
  std::map<bool, double> took;
  for (const bool unified : {false, true}) {
    spread_options how;
    how.strategy = balance::static_equal;
    how.devices.ids = first_devices(1);
    how.unified_memory = unified;
    took[unified] = median_of(plan.quick ? 3 : 7, [&] { launch<guide_line>(m, how, range(items), x, y).wait(); });
    guide_check(is_guide_line(y), "y = 2 x + 1");
    std::ranges::fill(y, 0.0F);
  }
  made.put("against copies", took[false] / took[true]);
  return made;
}

}  // namespace

guide_values measure_table(std::string_view table, const machine& m, const guide_plan& plan) {
  if (table == "transfer methods") return transfer_methods(m, plan);
  if (table == "link classes") return guide_values::nothing(no_links);
  if (table == "small copies") return small_copies(m, plan);
  if (table == "synchronisation") return synchronisation(m, plan);
  if (table == "data parallel") return data_parallel(m, plan);
  if (table == "scatter-gather") return scatter_and_gather(m, plan);
  if (table == "reduce") return reduction(m, plan);
  if (table == "all-reduce") return measure_all_reduce(m, plan);
  if (table == "load imbalance" || table == "mixed devices") return guide_values::nothing(all_alike);
  if (table == "pipeline") return three_stages(m, plan);
  if (table == "crossover") return crossover(m, plan);
  if (table == "images") return image_batch(m, plan);
  return unified_memory(m, plan);
}

}  // namespace weft::tool
