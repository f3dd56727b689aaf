// SPDX-License-Identifier: Apache-2.0
#include "image_pipeline/image_pipeline.hpp"

#include "image_pipeline/gaussian.hpp"
#include "weft/core/raise.hpp"
#include "weft/exec/launch.hpp"
#include "weft/memory/buffer.hpp"
#include "weft/memory/copy.hpp"
#include "weft/memory/peer_access.hpp"
#include "weft/runtime/stream.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>
#include <unordered_set>

namespace weft::images {

namespace {

/// A stream of a device and the memory in which its images are worked on, one after the other.
struct lane {
  device on;
  stream order;
  std::size_t weights = 0;          // which table is on this device
  std::vector<std::size_t> images;  // in the order of their work
  buffer<std::uint8_t> input;
  buffer<std::uint8_t> output;
  buffer<std::uint8_t> gathered;  // on the gathering device; empty when that is this one

  lane(const device& where, std::size_t table) : on(where), order(where), weights(table) {}
};

class pipeline {
 public:
  pipeline(const machine& m, std::span<const named_image> images, const pipeline_options& options)
      : images_(images),
        gatherer_(m[options.devices.front()]),
        results_(images.size()),
        outcome_(images.size()),
        done_(images.size()) {
    const std::size_t devices = options.devices.size();
    const auto weights = blur_weights();
    for (std::size_t k = 0; k < devices * static_cast<std::size_t>(options.in_flight); ++k) {
      const device on = m[options.devices[k % devices]];
      if (k < devices) {
        weights_.emplace_back(on, weights.size());
        weft::copy(weights_.back(), weights);
      }
      lanes_.push_back(std::make_unique<lane>(on, k % devices));
    }
    for (std::size_t i = 0; i < images.size(); ++i) {
      if (std::string wrong = what_is_wrong_with(images[i].picture); !wrong.empty()) {
        outcome_[i] = images[i].name + " cannot be processed: " + wrong;
        continue;
      }
      results_[i] = images[i].picture;  // touches every page now, so that no download is timed with page faults
      lanes_[i % lanes_.size()]->images.push_back(i);  // so image i is on device i mod N
    }
    for (const auto& at : lanes_) reserve(*at);
  }

  /// Hands all work to the streams and waits. The streams keep the order, so the host decides nothing on the way and
  /// no device waits for another one's images.
  void run() {
    for (const auto& at : lanes_) submit_from(*at, 0);
    for (const auto& at : lanes_) {
      for (std::size_t k = 0; k < at->images.size(); ++k) {
        const std::size_t index = at->images[k];
        if (outcome_[index]) continue;
        try {
          done_[index].wait();
        } catch (const error_exception& e) {
          // What stood behind it in the stream was skipped for the same cause. It has been told: work goes on.
          outcome_[index] = describe(index, *at, e);
          submit_from(*at, k + 1);
        }
      }
    }
  }

  [[nodiscard]] const std::vector<image>& results() const { return results_; }
  /// Why an image was not processed; empty when it was.
  [[nodiscard]] const std::vector<std::optional<std::string>>& outcome() const { return outcome_; }

 private:
  /// Memory for the largest image of a lane; one for which there is none is left out.
  void reserve(lane& at) {
    std::vector<std::size_t> by_size = at.images;
    std::ranges::sort(by_size, std::greater{}, [this](std::size_t i) { return images_[i].picture.pixels.size(); });
    for (const std::size_t index : by_size) {
      const std::size_t size = images_[index].picture.pixels.size();
      try {
        at.input = buffer<std::uint8_t>{at.on, size};
        at.output = buffer<std::uint8_t>{at.on, size};
        if (!(at.on == gatherer_)) at.gathered = buffer<std::uint8_t>{gatherer_, size};
        return;
      } catch (const error_exception& e) {
        outcome_[index] = describe(index, at, e);
        at.input = {};
        at.output = {};
      }
    }
  }

  void submit_from(lane& at, std::size_t first) {
    for (std::size_t k = first; k < at.images.size(); ++k) {
      const std::size_t index = at.images[k];
      if (outcome_[index]) continue;
      try {
        submit(at, index);
      } catch (const error_exception& e) {
        outcome_[index] = describe(index, at, e);
      }
    }
  }

  void submit(lane& at, std::size_t index) {
    const image& picture = images_[index].picture;
    const std::size_t size = picture.pixels.size();
    const auto input = at.input.subspan(0, size);
    const auto output = at.output.subspan(0, size);
    weft::copy(at.order, input, picture.pixels);
    launch<gaussian_blur>(at.order, range(picture.width, picture.height), input, output, weights_[at.weights],
                          std::int64_t{picture.width}, std::int64_t{picture.height}, std::int64_t{picture.channels});
    auto result = output;
    if (!(at.on == gatherer_)) {
      result = at.gathered.subspan(0, size);
      weft::copy(at.order, result, output);
    }
    done_[index] = weft::copy(at.order, results_[index].pixels, result);
  }

  [[nodiscard]] std::string describe(std::size_t index, const lane& at, const error_exception& e) const {
    return images_[index].name + " was not processed on " + to_string(at.on) + ": " + e.cause().what;
  }

  std::span<const named_image> images_;
  device gatherer_;
  std::vector<image> results_;  // before the lanes: their streams still write here until they are gone
  std::vector<std::optional<std::string>> outcome_;
  std::vector<event> done_;  // of each image's download
  std::vector<buffer<std::uint32_t>> weights_;
  std::vector<std::unique_ptr<lane>> lanes_;
};

/// What gathering needs: each device and the first one may reach each other. Leases end with the vector.
std::vector<peer_access> connect(const machine& m, const pipeline_options& options, pipeline_report& report) {
  std::vector<peer_access> leases;
  const device_id gatherer = options.devices.front();
  for (const device_id other : options.devices) {
    if (other == gatherer) continue;
    for (const auto& [from, to] : {std::pair{other, gatherer}, std::pair{gatherer, other}}) {
      try {
        if (can_access_peer(m, from, to)) {
          leases.emplace_back(m, from, to);
        } else {
          report.notes.push_back(to_string(from) + " cannot map " + to_string(to) + ": no peer path");
        }
      } catch (const error_exception& e) {
        report.notes.push_back(to_string(from) + " does not map " + to_string(to) + ": " + e.cause().what);
      }
    }
  }
  return leases;
}

/// Links over which images would have been gathered, had their data arrived.
void note_lost_links(const machine& m, const pipeline_options& options, pipeline_report& report) {
  const device_id gatherer = options.devices.front();
  for (const device_id from : options.devices) {
    const auto link = capability_between(m, from, gatherer);
    if (link && !link->trusted)
      report.notes.push_back("the link " + to_string(from) + " -> " + to_string(gatherer) +
                             " is not used: " + link->why);
  }
}

pipeline_options completed(const machine& m, const pipeline_options& asked) {
  pipeline_options options = asked;
  if (options.in_flight < 0) {
    raise(errc::invalid_argument,
          "in_flight is " + std::to_string(options.in_flight) + ": 0 or more images per device");
  }
  if (options.devices.empty()) {
    for (const device& d : m.devices()) options.devices.push_back(d);
  }
  if (options.devices.empty()) raise(errc::invalid_device, "the machine has no device to process images on");
  if (options.in_flight == 0) options.in_flight = m[options.devices.front()].kind() == backend_kind::host ? 1 : 2;
  std::unordered_set<device_id> seen;
  for (const device_id id : options.devices) {
    if (!seen.insert(id).second) raise(errc::invalid_device, to_string(id) + " is named twice");
  }
  if (!options.output.empty()) {
    std::error_code problem;
    std::filesystem::create_directories(options.output, problem);
    if (problem) {
      raise(errc::io_failed, "cannot make the folder " + options.output.string() + ": " + problem.message());
    }
  }
  return options;
}

/// Checks and writes on a few host threads; what an image gave is kept at its place, so the order is that of the
/// images.
void check_and_write(std::span<const named_image> images, const pipeline& done, const pipeline_options& options,
                     pipeline_report& report) {
  struct verdict {
    std::uint64_t wrong = 0;
    std::filesystem::path file;
    std::string failure;
  };
  std::vector<verdict> verdicts(images.size());
  const std::vector<std::string> names = output_names(images);
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < images.size(); i = next++) {
      if (done.outcome()[i]) continue;
      try {
        if (options.verify) verdicts[i].wrong = count_wrong_pixels(images[i].picture, done.results()[i]);
        if (options.output.empty()) continue;
        const std::filesystem::path file = options.output / names[i];
        if (auto written = write_png(file, done.results()[i])) {
          verdicts[i].file = file;
        } else {
          verdicts[i].failure = written.error().what;
        }
      } catch (const std::exception& e) {
        verdicts[i].failure = images[i].name + ": " + e.what();
      }
    }
  };
  {
    const std::size_t workers = std::min<std::size_t>(std::max(std::thread::hardware_concurrency(), 1U), images.size());
    std::vector<std::jthread> helpers;
    try {
      for (std::size_t i = 1; i < workers; ++i) helpers.emplace_back(work);
    } catch (const std::system_error&) {
      // fewer threads: this one does the rest
    }
    work();
  }
  for (std::size_t i = 0; i < images.size(); ++i) {
    if (done.outcome()[i]) {
      report.failures.push_back({images[i].name, *done.outcome()[i]});
      continue;
    }
    if (options.verify) report.pixels_checked += images[i].picture.pixel_count();
    report.pixels_wrong += verdicts[i].wrong;
    if (!verdicts[i].file.empty()) report.files.push_back(verdicts[i].file);
    if (!verdicts[i].failure.empty()) report.failures.push_back({images[i].name, verdicts[i].failure});
  }
}

}  // namespace

std::vector<std::string> output_names(std::span<const named_image> images) {
  const auto stem_of = [](const named_image& i) { return std::filesystem::path{i.name}.stem().string(); };
  std::unordered_multiset<std::string> stems;
  for (const named_image& i : images) stems.insert(stem_of(i));
  std::vector<std::string> names;
  std::unordered_set<std::string> taken;
  for (const named_image& i : images) {
    const std::string base = stems.count(stem_of(i)) == 1 ? stem_of(i) : i.name;
    std::string name = base + ".png";
    for (int n = 2; !taken.insert(name).second; ++n) name = base + "." + std::to_string(n) + ".png";
    names.push_back(std::move(name));
  }
  return names;
}

pipeline_report run_image_pipeline(const machine& m, std::span<const named_image> images,
                                   const pipeline_options& asked) {
  const pipeline_options options = completed(m, asked);
  pipeline_report report;
  report.simulated = m.clock() == clock_kind::virtual_time;
  const std::vector<peer_access> leases = connect(m, options, report);

  pipeline work{m, images, options};
  const copy_counters before = counters(m);
  const auto started = m.now();
  work.run();
  report.seconds = std::chrono::duration<double>(m.now() - started).count();
  const copy_counters after = counters(m);
  note_lost_links(m, options, report);

  for (const device_id id : options.devices) report.devices.push_back({id, 0, 0});
  for (std::size_t i = 0; i < images.size(); ++i) {
    if (work.outcome()[i]) continue;
    device_share& share = report.devices[i % report.devices.size()];
    ++share.images;
    share.pixels += images[i].picture.pixel_count();
  }
  for (const device_share& share : report.devices) {
    report.images += share.images;
    report.pixels += share.pixels;
  }
  if (report.seconds > 0) report.images_per_second = static_cast<double>(report.images) / report.seconds;
  report.gathered.local = report.devices.front().images;
  report.gathered.direct = after.direct.copies - before.direct.copies;
  report.gathered.staged = after.staged.copies - before.staged.copies;
  report.gathered.relayed = after.relayed.copies - before.relayed.copies;

  check_and_write(images, work, options, report);
  return report;
}

}  // namespace weft::images
