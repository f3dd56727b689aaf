// SPDX-License-Identifier: Apache-2.0
// one_caller/…: all_reduce, sum, in place, over host devices of one process, driven by one thread: float over 4 devices
// against the best single pass over the same four buffers written by hand (bar: 0.9 of its speed with two threads at
// 64 MiB), elements of 16 bits against float, and 2 to 64 devices against a loop over the same memory.

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
template <class T>
T sample(int device, std::size_t i) {
  constexpr std::size_t below = sizeof(T) == 2 ? 8 : 1021;
  return T{static_cast<float>((i * 7 + i / 1021 + static_cast<std::size_t>(device) * 13) % below)};
}

/// An array of each device, and ways to them.
template <class T>
struct arrays_of {
  std::function<void(int device, const std::vector<T>&)> put;
  std::function<void(int device, std::vector<T>&)> get;
};

/// Whether `work` makes the right sums of fresh numbers; leaves zeros, which it may sum for ever.
template <class T>
bool is_right(int count_of_devices, const arrays_of<T>& memory, std::size_t count, const std::function<void()>& work,
              const char* name) {
  std::vector<T> values(count);
  for (int d = 0; d < count_of_devices; ++d) {
    for (std::size_t i = 0; i < count; ++i) values[i] = sample<T>(d, i);
    memory.put(d, values);
  }
  work();
  bool right = true;
  for (int d = 0; d < count_of_devices && right; ++d) {
    memory.get(d, values);
    for (std::size_t i = 0; i < count; ++i) {
      float expected = 0;
      for (int from = 0; from < count_of_devices; ++from) expected += static_cast<float>(sample<T>(from, i));
      if (static_cast<float>(values[i]) == expected) continue;
      std::fprintf(stderr, "WRONG: %s: device %d, at %zu of %zu: expected %g, got %g\n", name, d, i, count,
                   static_cast<double>(expected), static_cast<double>(static_cast<float>(values[i])));
      right = false;
      break;
    }
  }
  std::fill(values.begin(), values.end(), T{0.0F});
  for (int d = 0; d < count_of_devices; ++d) memory.put(d, values);
  return right;
}

/// A machine, its communicator, and an array on each device.
template <class T>
class house {
 public:
  house(int count_of_devices, bool strict, std::size_t most)
      : machine_(open(count_of_devices, strict)), communicator_(machine_) {
    buffers_.reserve(static_cast<std::size_t>(count_of_devices));
    for (int d = 0; d < count_of_devices; ++d) buffers_.emplace_back(communicator_.on(weft::rank{d}), most);
  }
  [[nodiscard]] std::vector<weft::device_span<T>> spans(std::size_t count) const {
    std::vector<weft::device_span<T>> list;
    list.reserve(buffers_.size());
    for (const auto& b : buffers_) list.push_back(weft::device_span<T>{b}.subspan(0, count));
    return list;
  }
  /// One call; how it was done.
  weft::collective_algorithm sum(const std::vector<weft::device_span<T>>& memory) {
    const weft::collective_run all = communicator_.all_reduce(memory, weft::reduce_op::sum);
    all.wait();
    return all.algorithm();
  }

 private:
  static weft::machine open(int count_of_devices, bool strict) {
    weft::machine_options chosen;
    chosen.backend = "host";
    chosen.devices = count_of_devices;
    chosen.memory_per_device = weft::bytes{std::uint64_t{256} << 20};
    chosen.strict = strict;
    return weft::machine{chosen};
  }

  weft::machine machine_;
  weft::communicator communicator_;
  std::vector<weft::buffer<T>> buffers_;
};

template <class T>
arrays_of<T> on_devices(const std::vector<weft::device_span<T>>& list) {
  return {[list](int d, const auto& from) { weft::copy(list[static_cast<std::size_t>(d)], from); },
          [list](int d, auto& into) { weft::copy(into, list[static_cast<std::size_t>(d)]); }};
}

/// A sample of work lasts some milliseconds, whatever the size: what woke the threads is then no part of it.
std::function<double()> timed(const std::function<void()>& work) {
  const double once = std::max(1e-8, seconds_of(3, work));
  return [work, calls = std::clamp(static_cast<int>(5e-3 / once), 1, 20000)] {
    work();
    return seconds_of(calls, work);
  };
}

std::string size_name(std::size_t bytes) {
  if (bytes >= (1 << 20)) return std::to_string(bytes >> 20) + "MiB";
  return bytes >= 1024 ? std::to_string(bytes >> 10) + "KiB" : std::to_string(bytes) + "B";
}

/// The same bytes as float, half and bfloat16.
bool compare_types(const options& how) {
  constexpr std::size_t most = std::size_t{16} << 20;
  house<float> floats{devices, true, most / 4};
  house<weft::half> halves{devices, true, most / 2};
  house<weft::bfloat16> bfloats{devices, true, most / 2};
  bool right = true;
  for (const std::size_t bytes : {std::size_t{4} << 10, std::size_t{64} << 10, std::size_t{1} << 20, most}) {
    std::vector<contender> list;
    const auto add = [&]<class T>(const char* name, house<T>& of) {
      const auto spans = of.spans(bytes / sizeof(T));
      const auto work = [&of, spans] { of.sum(spans); };
      right = is_right<T>(devices, on_devices(spans), bytes / sizeof(T), work, name) && right;
      list.push_back({name, timed(work)});
    };
    add("float", floats);
    add("half", halves);
    add("bfloat16", bfloats);
    compare("one_caller/types/4 devices/" + size_name(bytes), list, how, static_cast<double>(bytes));
    std::fflush(stdout);
  }
  return right;
}

/// 2 to 64 devices.
bool compare_devices(const options& how) {
  constexpr std::size_t most = std::size_t{1} << 20;
  bool right = true;
  for (const int n : {2, 4, 8, 16, 32, 64}) {
    house<float> open{n, false, most / sizeof(float)};
    for (const std::size_t bytes : {std::size_t{1} << 10, std::size_t{64} << 10, std::size_t{256} << 10, most}) {
      const std::size_t count = bytes / sizeof(float);
      const auto spans = open.spans(count);
      std::vector<float*> arrays;
      for (const auto& s : spans) arrays.push_back(s.data());
      const auto ours = [&] { open.sum(spans); };
      const auto by_hand = [&] { fold_plain_blocks(arrays.data(), n, count); };
      right = is_right<float>(n, on_devices(spans), count, ours, "weft") && right;
      right = is_right<float>(n, on_devices(spans), count, by_hand, "a loop by hand") && right;
      compare("one_caller/devices/" + std::to_string(n) + "/" + size_name(bytes),
              {{"weft::communicator", timed(ours)}, {"a loop by hand", timed(by_hand)}}, how,
              static_cast<double>(bytes) * n);
      std::fflush(stdout);
    }
  }
  return right;
}

}  // namespace

int main(int argc, char** argv) {
  const options how = parse(argc, argv);
  print_machine(how);
  const std::size_t most = (std::size_t{64} << 20) / sizeof(float);
  // what is written by hand has to follow device pointers; the default is that the host cannot
  house<float> open{devices, false, most}, strict{devices, true, most};
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
    const auto ours = [&] { taken = open.sum(spans); };
    const auto ours_strict = [&] { taken = strict.sum(strict_spans); };
    const auto in_two = [&] { fold_plain_in_two(arrays.data(), devices, count); };
    const auto in_one = [&] { fold_plain(arrays.data(), devices, 0, count); };
    const auto huge_in_two = [&] { fold_plain_in_two(on_huge_pages.data(), devices, count); };

    const arrays_of<float> by_hand{
        [&](int d, const auto& from) {
          std::copy(from.begin(), from.end(), on_huge_pages[static_cast<std::size_t>(d)]);
        },
        [&](int d, auto& into) { std::copy_n(on_huge_pages[static_cast<std::size_t>(d)], into.size(), into.begin()); }};
    right = is_right<float>(devices, on_devices(spans), count, ours, "weft") && right;
    right = is_right<float>(devices, on_devices(strict_spans), count, ours_strict, "weft, strict") && right;
    right = is_right<float>(devices, on_devices(spans), count, in_two, "two threads by hand") && right;
    right = is_right<float>(devices, on_devices(spans), count, in_one, "one thread by hand") && right;
    right = is_right<float>(devices, by_hand, count, huge_in_two, "two threads by hand, huge pages") && right;

    compare("one_caller/all_reduce/4 devices/" + size_name(bytes) + " (" + std::string{to_string(taken)} + ")",
            {{"weft::communicator", timed(ours)},
             {"weft::communicator, strict (default)", timed(ours_strict)},
             {"two threads by hand", timed(in_two)},
             {"one thread by hand", timed(in_one)},
             {"two threads by hand, huge pages", timed(huge_in_two)}},
            how, static_cast<double>(bytes));
    std::fflush(stdout);
  }
  right = compare_types(how) && right;
  right = compare_devices(how) && right;
  return right ? EXIT_SUCCESS : EXIT_FAILURE;
}
