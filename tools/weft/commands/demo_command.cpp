// SPDX-License-Identifier: Apache-2.0
#include "bench/collective/collective_bench.hpp"
#include "bench/copy/copy_bench.hpp"
#include "bench/copy/copy_matrix.hpp"
#include "bench/launch_bench.hpp"
#include "bench/process_ring.hpp"
#include "bench/queue/queue_bench.hpp"
#include "command_line/commands.hpp"
#include "image_pipeline/image_pipeline.hpp"
#include "pictures/topo_picture.hpp"
#include "weft/memory/peer_access.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <thread>

namespace weft::tool {

namespace {

namespace fs = std::filesystem;

struct gallery {
  std::vector<images::named_image> pictures;
  std::vector<images::named_failure> failures;
  std::string origin;
};

gallery open_gallery(const demo_options& options) {
  if (options.images.empty()) return {images::sample_images(), {}, "made from formulas"};
  if (!fs::is_directory(options.images)) {
    throw failure{exit_code::usage, fmt::format("--images {}: there is no such folder", options.images)};
  }
  images::image_list found = images::load_images(options.images);
  if (found.images.empty()) {
    std::string why = found.failures.empty() ? std::string{"it is empty"}
                                             : found.failures.front().name + ": " + found.failures.front().why;
    throw failure{exit_code::runtime,
                  fmt::format("--images {}: no JPEG or PNG image there could be read ({})", options.images, why)};
  }
  return {std::move(found.images), std::move(found.failures), options.images};
}

std::vector<device_id> of_the_first(const machine& m, std::size_t count) {
  std::vector<device_id> ids;
  for (const device& d : m.devices()) {
    if (ids.size() < count) ids.push_back(d.id());
  }
  return ids;
}

/// Messages from the first device to the second, or to itself where it is alone, by whatever mode the queue chooses.
queue_row send_messages(session& run, const machine& m) {
  queue_plan plan;
  plan.kernel_ends = false;
  plan.sizes = {64};
  plan.pairs.emplace_back(device_id{0}, device_id{m.device_count() > 1 ? 1 : 0});
  plan.modes = {transfer_mode::adaptive};
  plan.batches = {64};
  plan.round_trips = false;
  plan.samples = 7;
  return run_queues(run, m, plan).front();
}

std::string queue_text(const session& run, const machine& m, const queue_row& row) {
  std::string text = fmt::format("  {} -> {}: {} messages of {} bytes, {}", to_string(row.src), to_string(row.dst),
                                 row.messages, row.size, to_string(row.mode));
  if (const auto rate = row.messages_per_second()) {
    text += fmt::format(", {}{}", message_rate_text(*rate), m.simulated() ? " (in CPU time of this host)" : "");
  }
  if (row.verified) {
    text += ", " + (*row.verified ? run.paint(style::good, "verified") : run.paint(style::bad, "WRONG"));
  }
  return text + (row.why.empty() ? "\n" : fmt::format("\n  {}\n", row.why));
}

json queue_json(const queue_row& row) {
  json one = rows_json({row}).front();
  one["messages"] = row.messages;
  return one;
}

/// A sum over the first devices, one rank each, by whatever algorithm is chosen.
collective_row sum_over(session& run, const machine& m, const std::vector<device_id>& ids) {
  collective_plan plan;
  plan.collectives = {collective::all_reduce};
  plan.algorithms = {collective_algorithm::automatic};
  plan.sizes = {std::uint64_t{4} << 20};
  plan.ranks = static_cast<int>(ids.size());
  plan.samples = 7;
  plan.budget = std::chrono::seconds{5};
  return run_collectives(run, m, ids, plan).front();
}

std::string sum_text(const session& run, const machine& m, const collective_row& row) {
  std::string text = fmt::format("  all_reduce of {} over {} rank{}, {}", to_string(bytes{row.size}),
                                 row.task.shape.ranks, row.task.shape.ranks == 1 ? "" : "s", to_string(row.algorithm));
  if (row.seconds) {
    text += fmt::format(": {}{}", time_text(row.seconds->median),
                        run.virtual_time() ? " (simulated)"
                        : m.simulated()    ? " (in CPU time of this host)"
                                           : "");
  }
  if (row.verified) {
    text += ", " + (*row.verified ? run.paint(style::good, "verified")
                                  : run.paint(style::bad, fmt::format("{} elements WRONG", row.wrong.value_or(0))));
  }
  return text + (row.why.empty() ? "\n" : fmt::format("\n  {}\n", row.why));
}

json balance_json(const std::vector<watched_launch>& launches) {
  json all = json::array();
  for (const watched_launch& one : launches) {
    json devices = json::array();
    for (const device_account& d : one.report.devices) {
      devices.push_back({{"device", d.device.value()}, {"items", d.items}, {"pieces", d.pieces}});
    }
    all.push_back({{"strategy", to_string(one.asked)},
                   {"seconds", one.report.seconds},
                   {"efficiency", one.report.efficiency()},
                   {"simulated", one.report.simulated},
                   {"verified", one.verified},
                   {"devices", devices}});
  }
  return all;
}

json pipeline_json(const images::pipeline_report& report, double one_device) {
  json devices = json::array();
  for (const images::device_share& share : report.devices) {
    devices.push_back({{"device", share.device.value()}, {"images", share.images}, {"pixels", share.pixels}});
  }
  const double speed_up = one_device > 0 ? report.images_per_second / one_device : 0;
  return {{"devices", report.devices.size()},
          {"images", report.images},
          {"pixels", report.pixels},
          {"seconds", report.seconds > 0 ? json(report.seconds) : json(nullptr)},
          {"images_per_second", report.seconds > 0 ? json(report.images_per_second) : json(nullptr)},
          {"speed_up", speed_up > 0 ? json(speed_up) : json(nullptr)},
          {"simulated", report.simulated},
          {"gathered",
           {{"local", report.gathered.local},
            {"direct", report.gathered.direct},
            {"staged", report.gathered.staged},
            {"relayed", report.gathered.relayed}}},
          {"pixels_checked", report.pixels_checked},
          {"pixels_wrong", report.pixels_wrong},
          {"shares", devices},
          {"why", report.seconds > 0 ? json(nullptr) : json("no image was processed")}};
}

}  // namespace

exit_code run_demo(session& run, const demo_options& options) {
  // Forked before this process has a machine; told at the end.
  std::optional<ring_report> ring;
  if (options.processes) ring = run_process_ring(run, *options.processes);
  const machine& m = run.open_machine();
  const gallery pictures = open_gallery(options);
  make_folder(options.output);
  const auto in_output = [&](std::string_view name) { return (fs::path{options.output} / name).string(); };
  std::vector<std::string> wrote;
  const auto write = [&](std::string_view name, std::string_view content) {
    write_file(in_output(name), content);
    wrote.push_back(in_output(name));
  };

  const auto ids = of_the_first(m, 4);
  const auto shown = static_cast<std::size_t>(std::min(m.device_count(), 8));
  run.print(run.paint(style::heading, "1. devices") + "\n");
  run.print(run.machine_title() + "\n");
  for (const device& d : m.devices()) {
    run.print(fmt::format("  {}: {}, {}, {} compute unit{}\n", to_string(d.id()), d.name(), to_string(d.total_memory()),
                          d.compute_units(), d.compute_units() == 1 ? "" : "s"));
  }

  run.print("\n" + run.paint(style::heading, "2. topology") + "\n");
  for (const device& a : m.devices()) {
    std::string line = fmt::format("  {}:", to_string(a.id()));
    for (const device& b : m.devices()) line += fmt::format(" {:>4}", link_class(m.layout(), a.id(), b.id()));
    run.print(line + "\n");
  }
  write("topology.svg", topology_svg(m.layout()));

  run.print("\n" + run.paint(style::heading, "3. copies of 4 MiB, verified") + "\n");
  copy_plan plan;
  plan.by_kernel = false;
  const std::uint64_t size = std::uint64_t{4} << 20;
  plan.sizes = {size};
  plan.samples = 7;
  plan.budget = std::chrono::seconds{5};
  for (std::size_t a = 0; a < shown; ++a) {
    for (std::size_t b = 0; b < shown; ++b) {
      plan.pairs.emplace_back(device_id{static_cast<int>(a)}, device_id{static_cast<int>(b)});
    }
  }
  const std::vector<copy_row> rows = run_copies(run, m, plan);
  run.print(copy_matrix_text(run, m, rows, size, copy_quantity::rate, shown));
  if (std::ranges::any_of(rows, [](const copy_row& r) { return r.state == row_state::not_offered; })) {
    run.print("  s: staged through the host, where no direct access is offered\n");
  }
  if (run.figures_note())
    run.print("  of this host's memory: 4 MiB may lie in the caches of its CPU; other sizes: weft bench copy\n");
  for (const copy_row& row : rows) {
    if (row.state == row_state::failed || (row.verified && !*row.verified)) {
      run.print(fmt::format("  {}: {}\n", run.paint(style::bad, row.name), row.why));
    }
  }
  write("copies.svg", copy_matrix_svg(run, rows, size, shown));

  run.print("\n" + run.paint(style::heading, "4. messages, each one checked") + "\n");
  const queue_row messages = send_messages(run, m);
  run.print(queue_text(run, m, messages));

  run.print("\n" + run.paint(style::heading, "5. a sum over devices, every element checked") + "\n");
  const collective_row sum = sum_over(run, m, ids);
  run.print(sum_text(run, m, sum));

  run.print("\n" + run.paint(style::heading, "6. one kernel, divided over three unlike devices (simulated)") + "\n");
  const topology unlike = value_or_raise(load_topology("mixed_3"));
  const std::vector<watched_launch> launches =
      watch_launches(unlike, {balance::static_equal, balance::guided, balance::automatic});
  run.print(fmt::format("  {}: a million items, devices 45 : 30 : 25 in speed; # and = are pieces\n", unlike.name));
  run.print(balance_text(launches));
  write("balance.svg", balance_svg(launches, fmt::format("A million items on {}", unlike.name)));
  const bool all_items_once = std::ranges::all_of(launches, &watched_launch::verified);
  run.print(all_items_once ? "  every item was done once\n"
                           : "  " + run.paint(style::bad, "an item was not done once") + "\n");

  run.print("\n" + run.paint(style::heading, "7. images: a 5x5 Gaussian blur, gathered over peer copies") + "\n");
  const bool is_played =
      std::ranges::all_of(m.devices(), [](const device& d) { return d.kind() == backend_kind::host; });
  if (is_played) {
    const unsigned cpus = std::thread::hardware_concurrency();
    run.print(fmt::format("  the devices share {} CPU{}, which limits the speed-up\n", cpus, cpus == 1 ? "" : "s"));
  }
  run.print(fmt::format("  {} images, {}\n", pictures.pictures.size(), pictures.origin));
  for (const images::named_failure& bad : pictures.failures) run.warn(fmt::format("{}: {}", bad.name, bad.why));
  const std::vector<peer_access> access = enable_all_peers(m);
  json runs = json::array();
  images::pipeline_report last;
  double one_device = 0;
  std::vector<std::size_t> counts;
  for (std::size_t count = 1; count < ids.size(); count *= 2) counts.push_back(count);
  counts.push_back(ids.size());
  for (const std::size_t count : counts) {
    if (interrupted()) break;
    const bool is_last = count == ids.size();
    images::pipeline_options how;
    how.devices.assign(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count));
    how.verify = is_last;
    if (is_last) how.output = fs::path{options.output} / "blurred";
    last = images::run_image_pipeline(m, pictures.pictures, how);
    if (count == 1) one_device = last.images_per_second;
    runs.push_back(pipeline_json(last, one_device));
    run.print(fmt::format("  {} device{}: {:.1f} images/s, speed-up {:.2f}{}\n", count, count == 1 ? " " : "s",
                          last.images_per_second, one_device > 0 ? last.images_per_second / one_device : 0.0,
                          last.simulated || run.virtual_time() ? " (simulated)"
                          : m.simulated()                      ? " (in CPU time of this host)"
                                                               : ""));
  }
  for (const std::string& remark : last.notes) run.print("  " + remark + "\n");
  for (const images::named_failure& bad : last.failures) run.warn(fmt::format("{}: {}", bad.name, bad.why));
  run.print(fmt::format("  gathered: {} on the first device, {} direct, {} staged, {} relayed\n", last.gathered.local,
                        last.gathered.direct, last.gathered.staged, last.gathered.relayed));
  const bool all_right = last.pixels_wrong == 0 && last.pixels_checked == last.pixels && last.failures.empty();
  run.print(
      fmt::format("  checked:  {} of {} pixels against a plain reference, {} wrong\n", last.pixels_checked, last.pixels,
                  run.paint(last.pixels_wrong == 0 ? style::good : style::bad, std::to_string(last.pixels_wrong))));
  for (const fs::path& file : last.files) wrote.push_back(file.string());

  if (ring) {
    run.print("\n" + run.paint(style::heading, "8. a ring of processes, each writing into the memory of the next") +
              "\n");
    run.print(ring_text(run, *ring));
  }

  json doc = run.document("weft.demo/1");
  doc["devices"] = devices_json(m);
  doc["pairs"] = pairs_json(m);
  doc["results"] = named_results(run, rows_json(rows));
  doc["queue"] = queue_json(messages);
  doc["collective"] = named_results(run, rows_json(std::vector{sum})).front();
  doc["balance"] = balance_json(launches);
  doc["pipeline"] = std::move(runs);
  doc["processes"] = ring ? ring_json(*ring) : json(nullptr);
  wrote.push_back(in_output("weft-demo.json"));
  doc["files"] = wrote;
  write_file(wrote.back(), doc.dump(2, ' ', false, json::error_handler_t::replace) + "\n");
  run.emit(doc);

  run.print("\n" + run.paint(style::heading, "wrote") + "\n");
  std::size_t pngs = 0;
  for (const std::string& path : wrote) {
    if (!path.ends_with(".png"))
      run.print("  " + path + "\n");
    else
      ++pngs;
  }
  if (pngs > 0)
    run.print(fmt::format("  {} ({} blurred images)\n", (fs::path{options.output} / "blurred/").string(), pngs));
  const exit_code copies = verdict_of(rows);
  if (copies != exit_code::ok) return copies;
  if (const exit_code queue = verdict_of(std::vector{messages}); queue != exit_code::ok) return queue;
  if (const exit_code summed = verdict_of(std::vector{sum}); summed != exit_code::ok) return summed;
  if (ring && ring->passages.empty()) return exit_code::runtime;
  if (ring && !ring->verified()) return exit_code::falls_short;
  return all_right && all_items_once ? exit_code::ok : exit_code::falls_short;
}

}  // namespace weft::tool
