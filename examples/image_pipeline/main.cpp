// SPDX-License-Identifier: Apache-2.0
// Blurs the photographs of a folder on several devices: see README.md beside this file.
#include "image_pipeline/image_pipeline.hpp"
#include "image_pipeline/split_image.hpp"
#include "weft/core/raise.hpp"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <optional>
#include <string_view>
#include <thread>

namespace {

using weft::images::pipeline_options;
using weft::images::pipeline_report;

constexpr const char* usage =
    "usage: image_pipeline INPUT_DIR OUTPUT_DIR [--devices N] [--sim NAME|FILE] [--strategy NAME]\n"
    "strategies, for the one huge image: automatic, static_equal, dynamic, guided, memory_aware, work_stealing\n";

struct arguments {
  std::vector<std::string> folders;
  std::optional<int> devices;
  std::optional<std::string> sim;
  weft::balance strategy = weft::balance::automatic;
};

/// None for weighted, whose weights nobody can name here.
std::optional<weft::balance> strategy_named(std::string_view name) {
  using weft::balance;
  for (const balance known : {balance::automatic, balance::static_equal, balance::dynamic, balance::guided,
                              balance::memory_aware, balance::work_stealing}) {
    if (to_string(known) == name) return known;
  }
  return std::nullopt;
}

std::optional<arguments> parse(std::span<char*> words) {
  arguments parsed;
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::string_view word = words[i];
    const bool has_value = i + 1 < words.size();
    if (word == "--sim" && has_value) {
      parsed.sim = words[++i];
    } else if (word == "--devices" && has_value) {
      const std::string_view value = words[++i];
      int count = 0;
      const auto [end, problem] = std::from_chars(value.data(), value.data() + value.size(), count);
      if (problem != std::errc{} || end != value.data() + value.size() || count < 1) return std::nullopt;
      parsed.devices = count;
    } else if (word == "--strategy" && has_value) {
      const auto known = strategy_named(words[++i]);
      if (!known) return std::nullopt;
      parsed.strategy = *known;
    } else if (word.starts_with("--")) {
      return std::nullopt;
    } else {
      parsed.folders.emplace_back(word);
    }
  }
  return parsed.folders.size() == 2 ? std::optional{parsed} : std::nullopt;
}

struct measured {
  pipeline_options options;
  pipeline_report report;       // of the first run, which is checked
  std::vector<double> seconds;  // of all runs

  /// The middle one: a computer that does something else meanwhile shows in the others.
  [[nodiscard]] double median() const {
    std::vector<double> sorted = seconds;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
};

/// Runs each number of devices once, checked, and then again in turns, so that what slows this computer down for a
/// while slows all of them.
std::vector<measured> measure(const weft::machine& m, std::span<const weft::images::named_image> images, int limit,
                              const std::filesystem::path& output) {
  std::vector<measured> all;
  for (const int count : {1, 2, 4, limit}) {
    if (count > limit || (!all.empty() && static_cast<std::size_t>(count) <= all.back().options.devices.size())) {
      continue;
    }
    measured one;
    for (int id = 0; id < count; ++id) one.options.devices.push_back(weft::device_id{id});
    if (count == limit) one.options.output = output;
    one.report = weft::images::run_image_pipeline(m, images, one.options);
    one.seconds.push_back(one.report.seconds);
    one.options.output.clear();
    one.options.verify = false;
    all.push_back(std::move(one));
  }
  const int rounds = all.front().report.seconds < 0.2 ? 8 : 2;
  for (int round = 0; round < rounds; ++round) {
    for (measured& one : all) {
      one.seconds.push_back(weft::images::run_image_pipeline(m, images, one.options).seconds);
    }
  }
  return all;
}

void print_row(std::size_t devices, const pipeline_report& report, double rate, double speed_up) {
  std::printf(
      "%7zu  %9.1f  %7.2fx  %5llu  %6llu  %6llu  %7llu  %s\n", devices, rate, speed_up,
      static_cast<unsigned long long>(report.gathered.local), static_cast<unsigned long long>(report.gathered.direct),
      static_cast<unsigned long long>(report.gathered.staged), static_cast<unsigned long long>(report.gathered.relayed),
      report.pixels_wrong == 0 ? "every pixel" : "WRONG PIXELS");
}

/// One huge picture on one device, and divided over all; true when both give the same bits.
bool split_one(const weft::machine& m, int limit, weft::balance strategy) {
  const weft::images::image huge = weft::images::huge_image(4096, 2048);
  weft::spread_options how;
  how.devices.ids = {weft::device_id{0}};
  const auto whole = weft::images::blur_split(m, huge, how);
  for (int id = 1; id < limit; ++id) how.devices.ids.push_back(weft::device_id{id});
  how.strategy = strategy;
  const auto split = weft::images::blur_split(m, huge, how);
  const bool same = split.result == whole.result;
  std::printf("\none image of %d x %d, divided by rows (%s): %s\n", huge.width, huge.height,
              std::string{to_string(strategy)}.c_str(), same ? "the same bits as on one device" : "OTHER BITS");
  for (const auto& d : split.launch.devices) {
    std::printf("%s blurred %lld rows in %lld pieces\n", to_string(d.device).c_str(), static_cast<long long>(d.items),
                static_cast<long long>(d.pieces));
  }
  std::printf("%.1f ms on one device, %.1f ms divided%s\n", whole.seconds * 1e3, split.seconds * 1e3,
              split.launch.simulated ? " (simulated)" : "");
  return same;
}

int run(const arguments& asked) {
  const std::filesystem::path input = asked.folders[0];
  const std::filesystem::path output = asked.folders[1];
  std::error_code ignored;
  if (std::filesystem::equivalent(input, output, ignored)) {
    std::fprintf(stderr, "image_pipeline: the results would overwrite the images of %s: name another folder\n",
                 input.c_str());
    return 2;
  }
  const weft::machine m = asked.sim ? weft::machine::load(*asked.sim) : weft::machine{};
  const int limit = std::min(asked.devices.value_or(4), m.device_count());
  if (asked.devices.value_or(1) > m.device_count()) {
    std::fprintf(stderr, "image_pipeline: this machine has %d devices, not %d\n", m.device_count(), *asked.devices);
  }

  const auto list = weft::images::load_images(input);
  for (const auto& failure : list.failures) std::fprintf(stderr, "skipped: %s\n", failure.why.c_str());
  std::uint64_t pixels = 0;
  for (const auto& i : list.images) pixels += i.picture.pixel_count();
  std::printf("%zu images with %.1f million pixels, %zu files skipped\n", list.images.size(),
              static_cast<double>(pixels) / 1e6, list.failures.size());
  if (list.images.empty()) {
    std::fprintf(stderr, "image_pipeline: no JPEG or PNG in %s\n", input.c_str());
    return 1;
  }
  std::printf("%s: %d devices%s\n\n", m.layout().name.c_str(), m.device_count(),
              m[0].kind() == weft::backend_kind::host ? ", virtual ones of this computer" : "");
  std::printf("devices   images/s  speed-up  local  direct  staged  relayed  as the reference\n");

  bool good = true;
  const std::vector<measured> all = measure(m, list.images, limit, output);
  for (const measured& one : all) {
    print_row(one.report.devices.size(), one.report, static_cast<double>(one.report.images) / one.median(),
              all.front().median() / one.median());
    good = good && one.report.pixels_wrong == 0 && one.report.failures.empty();
  }
  const pipeline_report& report = all.back().report;

  std::printf("\n");
  for (const auto& share : report.devices) {
    std::printf("%s processed %llu images\n", to_string(share.device).c_str(),
                static_cast<unsigned long long>(share.images));
  }
  for (const auto& note : report.notes) std::printf("note: %s\n", note.c_str());
  if (report.simulated) std::printf("simulated: times are those of a model, not measured\n");
  if (m[0].kind() == weft::backend_kind::host && !report.simulated) {
    std::printf("the virtual devices share the %u cores of this computer: the speed-up ends there\n",
                std::thread::hardware_concurrency());
  }
  good = split_one(m, limit, asked.strategy) && good;
  for (const auto& failure : report.failures) std::fprintf(stderr, "failed: %s\n", failure.why.c_str());
  std::printf("wrote %zu files to %s\n", report.files.size(), output.c_str());
  return good ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const auto asked = parse({argv, static_cast<std::size_t>(argc)});
  if (!asked) {
    std::fputs(usage, stderr);
    return 2;
  }
  try {
    return run(*asked);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "image_pipeline: %s\n", e.what());
    return 1;
  }
}
