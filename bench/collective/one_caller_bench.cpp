// SPDX-License-Identifier: Apache-2.0
// one_caller/…: all_reduce of float, sum, in place, over 4 host devices of one process, driven by one thread, against
// the best single pass over the same four buffers written by hand. Bar: 0.9 of its speed with two threads at 64 MiB.

#include "collective/plain_fold.hpp"
#include "collective/turn.hpp"
#include "paired.hpp"
#include "weft/collective/communicator.hpp"
#include "weft/memory/buffer.hpp"
#include "weft/memory/copy.hpp"
#include "weft/runtime/machine.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

namespace {

using namespace weft::bench;

constexpr int devices = 4;

// Small whole numbers, different at every place and device: their sums are exact.
float sample(int device, std::size_t i) {
  return static_cast<float>((i * 7 + i / 1021 + static_cast<std::size_t>(device) * 13) % 1021);
}

/// Four arrays and a way to sum them.
struct arrays_of {
  std::function<void(int device, const std::vector<float>&)> put;
  std::function<void(int device, std::vector<float>&)> get;
};

/// Whether `work` makes the right sums of fresh numbers; leaves zeros, which it may sum for ever.
bool is_right(const arrays_of& memory, std::size_t count, const std::function<void()>& work, const char* name) {
  std::vector<float> values(count);
  for (int d = 0; d < devices; ++d) {
    for (std::size_t i = 0; i < count; ++i) values[i] = sample(d, i);
    memory.put(d, values);
  }
  work();
  bool right = true;
  for (int d = 0; d < devices && right; ++d) {
    memory.get(d, values);
    for (std::size_t i = 0; i < count; ++i) {
      float expected = 0;
      for (int from = 0; from < devices; ++from) expected += sample(from, i);
      if (values[i] == expected) continue;
      std::fprintf(stderr, "WRONG: %s: device %d, at %zu of %zu: expected %g, got %g\n", name, d, i, count,
                   static_cast<double>(expected), static_cast<double>(values[i]));
      right = false;
      break;
    }
  }
  std::fill(values.begin(), values.end(), 0.0f);
  for (int d = 0; d < devices; ++d) memory.put(d, values);
  return right;
}

/// A machine of 4 devices, its communicator, and an array on each device.
class house {
 public:
  house(bool strict, std::size_t most) : machine_(open(strict)), communicator_(machine_) {
    buffers_.reserve(devices);
    for (int d = 0; d < devices; ++d) buffers_.emplace_back(communicator_.on(weft::rank{d}), most);
  }
  [[nodiscard]] std::vector<weft::device_span<float>> spans(std::size_t count) const {
    std::vector<weft::device_span<float>> list;
    list.reserve(devices);
    for (const auto& b : buffers_) list.push_back(weft::device_span<float>{b}.subspan(0, count));
    return list;
  }
  weft::communicator& communicator() { return communicator_; }

 private:
  static weft::machine open(bool strict) {
    weft::machine_options chosen;
    chosen.backend = "host";
    chosen.devices = devices;
    chosen.memory_per_device = weft::bytes{std::uint64_t{256} << 20};
    chosen.strict = strict;
    return weft::machine{chosen};
  }

  weft::machine machine_;
  weft::communicator communicator_;
  std::vector<weft::buffer<float>> buffers_;
};

std::string size_name(std::size_t bytes) {
  if (bytes >= (1 << 20)) return std::to_string(bytes >> 20) + "MiB";
  return bytes >= 1024 ? std::to_string(bytes >> 10) + "KiB" : std::to_string(bytes) + "B";
}

}  // namespace

int main(int argc, char** argv) {
  const options how = parse(argc, argv);
  print_machine(how);
  const std::size_t most = (std::size_t{64} << 20) / sizeof(float);
  // what is written by hand has to follow device pointers; the default is that the host cannot
  house open{false, most}, strict{true, most};
  std::vector<float*> on_huge_pages;
  for (int d = 0; d < devices; ++d) on_huge_pages.push_back(huge_array(most * sizeof(float)));

  bool right = true;
  for (const std::size_t bytes : {std::size_t{4}, std::size_t{1024}, std::size_t{64} << 10, std::size_t{1} << 20,
                                  std::size_t{16} << 20, std::size_t{64} << 20}) {
    const std::size_t count = bytes / sizeof(float);
    const auto spans = open.spans(count), strict_spans = strict.spans(count);
    std::vector<float*> arrays;
    arrays.reserve(devices);
    for (const auto& s : spans) arrays.push_back(s.data());
    weft::collective_algorithm taken = weft::collective_algorithm::automatic;
    const auto run = [&taken](house& of, const std::vector<weft::device_span<float>>& memory) {
      const weft::collective_run all = of.communicator().all_reduce(memory, weft::reduce_op::sum);
      all.wait();
      taken = all.algorithm();
    };
    const auto ours = [&] { run(open, spans); };
    const auto ours_strict = [&] { run(strict, strict_spans); };
    const auto in_two = [&] { fold_plain_in_two(arrays.data(), devices, count); };
    const auto in_one = [&] { fold_plain(arrays.data(), devices, 0, count); };
    const auto huge_in_two = [&] { fold_plain_in_two(on_huge_pages.data(), devices, count); };

    const auto on_devices = [](const std::vector<weft::device_span<float>>& list) {
      return arrays_of{[list](int d, const auto& from) { weft::copy(list[static_cast<std::size_t>(d)], from); },
                       [list](int d, auto& into) { weft::copy(into, list[static_cast<std::size_t>(d)]); }};
    };
    const arrays_of by_hand{
        [&](int d, const auto& from) {
          std::copy(from.begin(), from.end(), on_huge_pages[static_cast<std::size_t>(d)]);
        },
        [&](int d, auto& into) { std::copy_n(on_huge_pages[static_cast<std::size_t>(d)], into.size(), into.begin()); }};
    right = is_right(on_devices(spans), count, ours, "weft") && right;
    right = is_right(on_devices(strict_spans), count, ours_strict, "weft, strict") && right;
    right = is_right(on_devices(spans), count, in_two, "two threads by hand") && right;
    right = is_right(on_devices(spans), count, in_one, "one thread by hand") && right;
    right = is_right(by_hand, count, huge_in_two, "two threads by hand, huge pages") && right;

    // a sample lasts some milliseconds, whatever the size: what woke the threads is then no part of it
    const auto timed = [](const auto& work) {
      const double once = std::max(1e-8, seconds_of(3, work));
      return [work, calls = std::clamp(static_cast<int>(5e-3 / once), 1, 20000)] {
        work();
        return seconds_of(calls, work);
      };
    };
    compare("one_caller/all_reduce/4 devices/" + size_name(bytes) + " (" + std::string{to_string(taken)} + ")",
            {{"weft::communicator", timed(ours)},
             {"weft::communicator, strict (default)", timed(ours_strict)},
             {"two threads by hand", timed(in_two)},
             {"one thread by hand", timed(in_one)},
             {"two threads by hand, huge pages", timed(huge_in_two)}},
            how, static_cast<double>(bytes));
    std::fflush(stdout);
  }
  return right ? EXIT_SUCCESS : EXIT_FAILURE;
}
