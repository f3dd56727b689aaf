// SPDX-License-Identifier: Apache-2.0
// The guide's tables on a virtual clock. Its machines are not described beyond their links, so they are built here. The
// notes of docs/explanation/guide.md name the inputs; the rest follows from them.
#include "guide/guide_kernels.hpp"
#include "guide/guide_tables.hpp"
#include "weft/exec/map_reduce.hpp"
#include "weft/exec/pipeline.hpp"
#include "weft/memory/peer_access.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace weft::bench {

namespace {

using std::chrono::nanoseconds;
using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""ns;
using std::chrono_literals::operator""us;

double seconds_of(nanoseconds t) { return std::chrono::duration<double>(t).count(); }

machine simulated(topology layout, nanoseconds launch_latency = 5us) {
  machine_options options;
  options.backend = "host";
  options.machine = std::move(layout);
  options.clock = clock_kind::virtual_time;
  options.model.launch_latency = launch_latency;
  return machine{options};
}

template <class F>
double time_of(const machine& m, F&& f) {
  const nanoseconds begin = m.now();
  f();
  return seconds_of(m.now() - begin);
}

// ---- machines -------------------------------------------------------------------------------------------------------

struct link_model {
  double bytes_per_second = 0;
  nanoseconds latency{0};
};

void join(topology& in, int a, int b, link_kind kind, const link_model& like) {
  for (const auto& [from, to] : {std::pair{a, b}, std::pair{b, a}}) {
    topology_link made;
    made.from = from;
    made.to = to;
    made.wire = static_cast<int>(in.links.size());
    made.kind = kind;
    made.bytes_per_second = like.bytes_per_second;
    made.latency = like.latency;
    in.links.push_back(made);
  }
}

/// Equal devices on one socket, or behind one switch whose link to the socket they share; no peers.
topology star(int devices, const link_model& each, bool is_shared = false) {
  topology made;
  made.name = "guide";
  made.devices.resize(static_cast<std::size_t>(devices));
  for (int d = 0; d < devices; ++d) {
    topology_device& one = made.devices[static_cast<std::size_t>(d)];
    one.name = "device";
    one.memory = bytes{std::uint64_t{1} << 30};
    made.nodes.push_back({.kind = node_kind::device, .name = to_string(device_id{d}), .parent = devices});
    join(made, d, devices, link_kind::pcie, is_shared ? link_model{each.bytes_per_second, each.latency / 2} : each);
  }
  if (is_shared) {
    made.nodes.push_back({.kind = node_kind::pcie_switch, .name = "switch0", .parent = devices + 1});
    join(made, devices, devices + 1, link_kind::pcie, {each.bytes_per_second, each.latency / 2});
  }
  made.nodes.push_back({.kind = node_kind::socket, .name = "socket0"});
  made.access.assign(static_cast<std::size_t>(devices) * static_cast<std::size_t>(devices), false);
  return value_or_raise(complete_topology(std::move(made)));
}

topology with_speeds(topology layout, std::span<const double> speeds) {
  for (std::size_t d = 0; d < speeds.size(); ++d) layout.devices[d].speed = speeds[d];
  return value_or_raise(complete_topology(std::move(layout)));
}

/// Every device a peer of every other, over a link of its own.
topology with_peers(topology layout, link_kind kind, const link_model& each) {
  const int devices = layout.device_count();
  for (int a = 0; a < devices; ++a) {
    for (int b = a + 1; b < devices; ++b) join(layout, a, b, kind, each);
  }
  for (int a = 0; a < devices; ++a) {
    for (int b = 0; b < devices; ++b) layout.access[layout.pair(device_id{a}, device_id{b})] = a != b;
  }
  return value_or_raise(complete_topology(std::move(layout)));
}

constexpr link_model pcie_3_as_measured{12e9, 1000ns};  // the guide's 12 GB/s

/// Two devices joined by one link of NVLink 2.0.
topology nvlink_2_pair() { return with_peers(star(2, pcie_3_as_measured), link_kind::nvlink, {25e9, 600ns}); }

topology shipped(const char* name) { return value_or_raise(load_topology(name)); }

// ---- copies ---------------------------------------------------------------------------------------------------------

struct pair_of_devices {
  device_id from, to;
};

/// The first pair of one class that is, or is not, a pair of peers.
pair_of_devices pair_where(const topology& layout, const std::function<bool(const std::string&, bool)>& fits) {
  for (int to = 1; to < layout.device_count(); ++to) {
    const device_id a{0}, b{to};
    if (fits(link_class(layout, a, b), layout.can_access(a, b))) return {a, b};
  }
  raise(errc::not_found, "topology '" + layout.name + "' has no such pair of devices");
}

constexpr std::size_t large_copy = std::size_t{16} << 20;

copy_report copied(const machine& m, const pair_of_devices& pair, std::size_t size, copy_path wish) {
  std::vector<std::uint8_t> data(size);
  for (std::size_t i = 0; i < size; ++i) data[i] = static_cast<std::uint8_t>(i * 31 >> 3);
  buffer<std::uint8_t> from{m[pair.from], size}, to{m[pair.to], size};
  copy(from, data);
  copy_options how;
  how.route.path = wish;
  const copy_report report = copy(to, from, how);
  std::vector<std::uint8_t> got(size);
  copy(got, to);
  guide_check(got == data, "a copy of " + std::to_string(size) + " bytes");
  return report;
}

void put_pair(guide_values& made, const machine& m, const pair_of_devices& pair, copy_path wish,
              std::string_view bandwidth_row, std::string_view latency_row) {
  const copy_report large = copied(m, pair, large_copy, wish);
  made[bandwidth_row] = large.bytes_per_second() / giga;
  made[latency_row] = seconds_of(copied(m, pair, 4, wish).duration) * 1e6;
}

guide_values transfer_methods() {
  guide_values made;
  {
    const machine m = simulated(shipped("two_socket_8"));  // PCIe 3.0, two switches to a socket
    const auto leases = enable_all_peers(m);
    const topology& layout = m.layout();
    put_pair(made, m, pair_where(layout, [](const std::string& c, bool peers) { return peers && c == "PIX"; }),
             copy_path::direct, "P2P direct, bandwidth", "P2P direct, latency");
    put_pair(made, m, pair_where(layout, [](const std::string& c, bool peers) { return peers && c != "PIX"; }),
             copy_path::direct, "P2P via PCIe switch, bandwidth", "P2P via PCIe switch, latency");
    put_pair(made, m, pair_where(layout, [](const std::string&, bool peers) { return !peers; }), copy_path::staged,
             "host-staged, bandwidth", "host-staged, latency");
  }
  {
    const machine m = simulated(nvlink_2_pair());
    const auto leases = enable_all_peers(m);
    put_pair(made, m, {device_id{0}, device_id{1}}, copy_path::direct, "NVLink, bandwidth", "NVLink, latency");
  }
  return made;
}

double rate_from_host(const machine& m) {
  std::vector<std::uint8_t> data(large_copy, 7);
  buffer<std::uint8_t> on{m[0], large_copy};
  return copy(on, data).bytes_per_second();
}

guide_values link_classes() {
  guide_values made;
  made["PCIe 3.0 x16"] = rate_from_host(simulated(shipped("two_socket_8"))) / giga;
  made["PCIe 4.0 x16"] = rate_from_host(simulated(shipped("pcie_4"))) / giga;
  const machine m = simulated(shipped("pair_nvlink"));
  const auto leases = enable_all_peers(m);
  int links = 0;
  for (const topology_link& l : m.layout().links) {
    if (l.kind == link_kind::nvlink && l.from == 0 && l.to == 1) links += std::max(1, l.lanes);
  }
  made["NVLink 3.0, one link"] =
      copied(m, {device_id{0}, device_id{1}}, large_copy, copy_path::direct).bytes_per_second() / giga /
      std::max(1, links);
  return made;
}

/// 4,000 KiB from a device in a thousand copies, in one, and in one batch.
guide_values small_copies() {
  constexpr std::size_t count = 1000;
  constexpr std::size_t size = 4096;
  const machine m = simulated(star(1, pcie_3_as_measured));
  const stream order{m[0]};
  std::vector<std::uint8_t> data(count * size);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::uint8_t>(i / 7);
  buffer<std::uint8_t> on{m[0], data.size()};
  copy(on, data);
  std::vector<std::uint8_t> got(data.size());
  guide_values made;
  const auto put = [&](std::string_view row, auto&& copies) {
    std::ranges::fill(got, std::uint8_t{0});
    made[row] = static_cast<double>(data.size()) / time_of(m, copies) / giga;
    guide_check(got == data, std::string{row});
  };
  put("1,000 copies of 4 KiB", [&] {
    for (std::size_t k = 0; k < count; ++k) {
      copy(order, std::span{got}.subspan(k * size, size), on.span().subspan(k * size, size)).wait();
    }
  });
  put("one copy of 4,000 KiB", [&] { copy(order, got, on).wait(); });
  put("1,000 copies of 4 KiB as one batch", [&] {
    std::vector<copy_part> parts;
    parts.reserve(count);
    for (std::size_t k = 0; k < count; ++k)
      parts.push_back(part(std::span{got}.subspan(k * size, size), on.span().subspan(k * size, size)));
    copy_batch(order, parts).wait();
  });
  return made;
}

// ---- one kernel over devices ----------------------------------------------------------------------------------------

constexpr std::int64_t streamed_items = 4 << 20;
constexpr double not_divided = 0.0401;

struct streaming {
  link_model link;
  double each = 0;    // seconds for an item
  double serial = 0;  // seconds on one device, after all
};

/// y = 2 x + 1 from and to host memory, then what is not divided. Seconds.
double stream_through(const topology& layout, int devices, const streaming& costs) {
  const machine m = simulated(layout);
  const std::vector<float> x = guide_ramp(streamed_items);
  std::vector<float> y(x.size());
  spread_options how;
  how.strategy = balance::static_equal;
  how.devices.ids = first_devices(devices);
  how.model = kernel_cost{0, costs.each};
  spread_options alone;
  alone.devices.ids = first_devices(1);
  alone.model = kernel_cost{costs.serial, 0};
  array<std::uint8_t> last{m, 1, std::uint8_t{0}};
  const double took = time_of(m, [&] {
    launch<guide_line>(m, how, range(streamed_items), x, y).wait();
    launch<guide_touch>(m, alone, range(1), last).wait();
  });
  guide_check(is_guide_line(y), "y = 2 x + 1");
  return took;
}

guide_values data_parallel() {
  const double input_bytes = static_cast<double>(streamed_items) * sizeof(float);
  const double whole = input_bytes / (figure_of("data parallel", "one device") * giga);
  streaming costs;
  costs.serial = not_divided * whole - seconds_of(5us);
  constexpr double memory_rate = 936e9;  // published: the memory of the card that the guide names
  costs.each = 2 * sizeof(float) / memory_rate;
  const double moving =
      (1 - not_divided) * whole - costs.each * static_cast<double>(streamed_items) - seconds_of(5us) - 2e-6;
  costs.link = {2 * input_bytes / moving, 1us};
  std::map<int, double> took;
  for (const int devices : {1, 2, 4}) took[devices] = stream_through(star(4, costs.link), devices, costs);
  const double behind_one = stream_through(star(4, costs.link, true), 4, costs);
  guide_values made;
  made["one device"] = input_bytes / took[1] / giga;
  made["speed-up, two devices"] = took[1] / took[2];
  made["speed-up, four devices"] = took[1] / took[4];
  made["speed-up, four devices behind one link"] = took[1] / behind_one;
  return made;
}

/// One item stands for so many of the guide's, so that a billion of them need no gigabytes: rates of links are divided
/// by it and costs of items multiplied, and every time stays what it was.
constexpr std::int64_t stands_for = 1000;

/// Shares of x on the first devices, computed there, and back: y.
class scatter_gather_run {
 public:
  scatter_gather_run(const machine& m, int devices, std::int64_t count)
      : machine_(m), shares_(even_split(static_cast<std::size_t>(count), static_cast<std::size_t>(devices))) {
    for (int d = 0; d < devices; ++d) {
      in_.emplace_back(m[d], shares_[static_cast<std::size_t>(d)]);
      out_.emplace_back(m[d], shares_[static_cast<std::size_t>(d)]);
      orders_.emplace_back(m[d]);
    }
  }

  void once(std::span<float> y, std::span<const float> x, const launch_options& how) {
    scatter(std::span{in_}, x);
    std::vector<event> done;
    done.reserve(in_.size());
    for (std::size_t d = 0; d < in_.size(); ++d) {
      done.push_back(
          launch<guide_line>(orders_[d], how, range(static_cast<std::int64_t>(shares_[d])), in_[d], out_[d]));
    }
    for (const event& e : done) e.wait();
    gather(y, std::span{out_});
  }

 private:
  machine machine_;
  std::vector<std::size_t> shares_;
  std::vector<buffer<float>> in_, out_;
  std::vector<stream> orders_;
};

guide_values scatter_and_gather() {
  struct size_of_work {
    std::int64_t elements;
    std::array<std::string_view, 3> rows;  // one, two and four devices
  };
  constexpr std::array<size_of_work, 2> sizes{
      {{10'000'000, {"10M elements, one device", "10M elements, two devices", "10M elements, four devices"}},
       {1'000'000'000, {"1B elements, one device", "1B elements, two devices", "1B elements, four devices"}}}};
  const auto seconds_in_guide = [](std::string_view row) { return figure_of("scatter-gather", row) * 1e-3; };
  const auto serial_in_guide = [&](const size_of_work& size) {
    const double alone = seconds_in_guide(size.rows[0]);
    return alone * serial_part(alone / seconds_in_guide(size.rows[2]), 4);
  };

  guide_values made;
  for (const size_of_work& size : sizes) {
    const auto elements = static_cast<double>(size.elements);
    const std::int64_t items = size.elements / stands_for;
    const double serial = serial_in_guide(size);
    const double moving = 2 * elements * sizeof(float) / pcie_3_as_measured.bytes_per_second;
    const double computing = seconds_in_guide(size.rows[0]) - serial - moving;
    const std::vector<float> x = guide_ramp(items);
    std::map<int, double> took;
    for (const int devices : {1, 2, 4}) {
      const machine m = simulated(star(devices, {pcie_3_as_measured.bytes_per_second / stands_for, 1us}));
      scatter_gather_run run{m, devices, items};
      std::vector<float> y(x.size());
      const stream last{m[0]};
      buffer<std::uint8_t> one{m[0], 1};
      took[devices] = time_of(m, [&] {
        run.once(y, x, {.model = kernel_cost{0, computing / static_cast<double>(items)}});
        launch<guide_touch>(last, launch_options{.model = kernel_cost{serial, 0}}, range(1), one).wait();
      });
      guide_check(is_guide_line(y), "scatter and gather over " + std::to_string(devices) + " devices");
    }
    made[size.rows[0]] = took[1] * 1e3;
    made[size.rows[1]] = took[2] * 1e3;
    made[size.rows[2]] = took[4] * 1e3;
  }
  return made;
}

guide_values reduction() {
  constexpr std::int64_t elements = 1'000'000'000 / stands_for;
  constexpr double blocks = static_cast<double>(elements) / 1024;
  const auto on = [&](int devices) {
    const machine m = simulated(star(4, {pcie_3_as_measured.bytes_per_second / stands_for, 1us}));
    const array<float> x{m, static_cast<std::size_t>(elements), 1.0F};
    spread_options how;
    how.strategy = balance::static_equal;
    how.devices.ids = first_devices(devices);
    how.model = kernel_cost{0, figure_of("reduce", "1B elements, one device") * 1e-3 / blocks};
    const auto total = [&] {
      guide_check(reduce(m, how, x, reduce_op::sum) == static_cast<double>(elements),
                  "the sum on " + std::to_string(devices) + " devices");
    };
    total();  // brings the data there
    return time_of(m, total);
  };
  const double one = on(1);
  const double four = on(4);
  guide_values made;
  made["1B elements, one device"] = one * 1e3;
  made["1B elements, four devices"] = four * 1e3;
  return made;
}

constexpr std::int64_t balanced_items = 900'000;

spread_options balanced_by(balance strategy, double each) {
  spread_options how;
  how.strategy = strategy;
  how.model = kernel_cost{0, each};
  return how;
}

launch_report balanced_launch(const machine& m, const spread_options& how) {
  array<std::uint8_t> visits{m, static_cast<std::size_t>(balanced_items), std::uint8_t{0}};
  const launch_run run = launch<guide_touch>(m, how, range(balanced_items), visits);
  run.wait();
  const std::vector<std::uint8_t> seen = visits.host();
  guide_check(std::ranges::all_of(seen, [](std::uint8_t v) { return v == 1; }), "an item for each index");
  return run.report();
}

void learn(const machine& m, double each) {
  for (int k = 0; k < 3; ++k) static_cast<void>(balanced_launch(m, balanced_by(balance::guided, each)));
}

double share_of(const launch_report& report, std::size_t device) {
  return 100 * static_cast<double>(report.devices[device].items) / static_cast<double>(balanced_items);
}

guide_values load_imbalance() {
  // the second device does half the items in 150 ms, the first one, half as fast again, in 100 ms
  constexpr std::array<double, 2> speeds{3, 2};
  const double each = speeds[1] * 150e-3 / (static_cast<double>(balanced_items) / 2);
  const machine m = simulated(with_speeds(star(2, pcie_3_as_measured), speeds), 0ns);
  const launch_report equal = balanced_launch(m, balanced_by(balance::static_equal, each));
  learn(m, each);
  const launch_report proportional = balanced_launch(m, balanced_by(balance::dynamic, each));
  guide_values made;
  made["equal split, total"] = equal.seconds * 1e3;
  made["proportional split, total"] = proportional.seconds * 1e3;
  made["share of the first device"] = share_of(proportional, 0);
  return made;
}

guide_values mixed_devices() {
  const topology layout = shipped("mixed_3");
  double speeds = 0;
  for (const topology_device& d : layout.devices) speeds += d.speed;
  const double each = speeds / static_cast<double>(balanced_items);
  const machine m = simulated(layout, 0ns);
  learn(m, each);
  const launch_report found = balanced_launch(m, balanced_by(balance::dynamic, each));
  guide_values made;
  made["share of the first"] = share_of(found, 0);
  made["share of the second"] = share_of(found, 1);
  made["share of the third"] = share_of(found, 2);
  return made;
}

// ---- pipeline and images --------------------------------------------------------------------------------------------

pipeline_report through_pipeline(int devices, nanoseconds hop, bool overlaps) {
  constexpr std::size_t items = 1000;
  topology layout = with_peers(star(devices, {1e18, 0ns}), link_kind::nvlink, {1e18, hop});
  for (topology_link& l : layout.links) {
    if (l.to == devices) l.latency = hop;  // results go to the host as to another device; batches come in at once
  }
  const machine m = simulated(value_or_raise(complete_topology(std::move(layout))), 0ns);
  const auto leases = enable_all_peers(m);
  const stage_options fifty{.cost = kernel_cost{0, 50e-3 / static_cast<double>(items)}, .count = {}};
  pipeline_options options;
  options.overlap_hops = overlaps;
  auto line = make_pipeline<float>(m, items, options)
                  .kernel<guide_line>("first", fifty)
                  .kernel<guide_line>("second", fifty)
                  .kernel<guide_line>("third", fifty)
                  .build();
  const std::vector<float> batch(items, 1.0F);
  std::vector<std::vector<float>> results(20, std::vector<float>(items));
  for (std::vector<float>& r : results) line.push(batch, r);
  line.drain();
  for (const std::vector<float>& r : results) guide_check(r == std::vector<float>(items, 15.0F), "the pipeline");
  return line.report();
}

guide_values three_stages() {
  const pipeline_report alone = through_pipeline(1, 0ns, false);
  const pipeline_report turns = through_pipeline(3, 5ms, false);
  const pipeline_report beside = through_pipeline(3, 5ms, true);
  guide_values made;
  made["one device, per batch"] = seconds_of(alone.period) * 1e3;
  made["three devices, per batch"] = seconds_of(turns.period) * 1e3;
  made["throughput, 20 batches in all"] = seconds_of(alone.elapsed) / seconds_of(turns.elapsed);
  made["three devices, hops beside the stages, per batch"] = seconds_of(beside.period) * 1e3;
  return made;
}

guide_values crossover() {
  // Data on the first device; the others fetch it through the host and bring it back, with the guide's own figures.
  constexpr double memory_rate = 936e9;
  crossover_costs costs;
  costs.first_seconds = seconds_of(5us);
  costs.first_seconds_per_item = 2 * sizeof(float) / memory_rate;
  costs.other_seconds = costs.first_seconds + 2e-6 * figure_of("transfer methods", "host-staged, latency");
  costs.other_seconds_per_item = costs.first_seconds_per_item +
                                 2 * sizeof(float) / (giga * figure_of("transfer methods", "host-staged, bandwidth"));
  guide_values made;
  made["size from which a second device helps"] = static_cast<double>(crossover_items(costs, 4));
  return made;
}

guide_values image_batch() {
  constexpr int images = 100;
  constexpr double pixels = 1920.0 * 1080;
  constexpr auto small = static_cast<std::size_t>(pixels / stands_for);
  const link_model link{pcie_3_as_measured.bytes_per_second / stands_for, 1us};
  const double moving = 2 * (seconds_of(link.latency) + static_cast<double>(small) / link.bytes_per_second);
  const double whole = figure_of("images", "100 images, one device") / images;
  const launch_options how{.stop = {}, .model = kernel_cost{whole - moving - seconds_of(5us), 0}};
  std::vector<std::vector<std::uint8_t>> originals(images, std::vector<std::uint8_t>(small));
  for (std::size_t k = 0; k < images; ++k) std::ranges::fill(originals[k], static_cast<std::uint8_t>(k));
  std::map<int, double> took;
  for (const int devices : {1, 2, 4}) {
    const machine m = simulated(star(devices, link));
    std::vector<stream> orders;
    std::vector<buffer<std::uint8_t>> places;
    for (int d = 0; d < devices; ++d) {
      orders.emplace_back(m[d]);
      places.emplace_back(m[d], small);
    }
    std::vector<std::vector<std::uint8_t>> results = originals;
    took[devices] = time_of(m, [&] {
      for (std::size_t k = 0; k < images; ++k) {
        const std::size_t d = k % static_cast<std::size_t>(devices);
        copy(orders[d], places[d], originals[k]);
        launch<guide_touch>(orders[d], how, range(static_cast<std::int64_t>(small)), places[d]);
        copy(orders[d], results[k], places[d]);
      }
      m.synchronize();
    });
    for (std::size_t k = 0; k < images; ++k) {
      guide_check(results[k] == std::vector<std::uint8_t>(small, static_cast<std::uint8_t>(k + 1)), "an image");
    }
  }
  guide_values made;
  made["100 images, one device"] = took[1];
  made["speed-up, two devices"] = took[1] / took[2];
  made["speed-up, four devices"] = took[1] / took[4];
  return made;
}

}  // namespace

guide_values simulate_table(std::string_view table) {
  if (table == "transfer methods") return transfer_methods();
  if (table == "link classes") return link_classes();
  if (table == "small copies") return small_copies();
  if (table == "data parallel") return data_parallel();
  if (table == "scatter-gather") return scatter_and_gather();
  if (table == "reduce") return reduction();
  if (table == "all-reduce") return simulate_all_reduce();
  if (table == "load imbalance") return load_imbalance();
  if (table == "mixed devices") return mixed_devices();
  if (table == "pipeline") return three_stages();
  if (table == "crossover") return crossover();
  return image_batch();
}

}  // namespace weft::bench
