// SPDX-License-Identifier: Apache-2.0
#include "weft/exec/map_reduce.hpp"

#include "exec/arrays/array_body.hpp"
#include "exec/launch_check.hpp"
#include "exec/split_launch/launch_state.hpp"
#include "weft/core/raise.hpp"

#include <algorithm>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

namespace weft::detail {
namespace {

constexpr std::int64_t most_items_per_slice = std::int64_t{1} << 20;
constexpr std::int64_t fewest_regions = 2;  // one is mapped while the other is reduced

/// Bytes on a device for each item of a slice, as far as they follow from the items.
std::uint64_t bytes_per_item(const kernel_code& code) {
  std::uint64_t sum = 0;
  for (const kernel_parameter& p : code.parameters) {
    if (p.direction == parameter_direction::scalar) continue;
    if (p.access.kind == access_kind::whole || p.access.kind == access_kind::reduce) continue;
    const std::int64_t elements = p.access.kind == access_kind::rows ? p.access.amount : 1;
    sum += static_cast<std::uint64_t>(elements) * size_of(p.type);
  }
  return sum;
}

std::uint64_t least_room(const device_list& devices, const spread_options& options) {
  std::uint64_t least = ~std::uint64_t{0};
  for (const device& d : devices) {
    const pool_statistics passing = launches_of(*state_of(d)).passing(d).statistics();
    least = std::min(least, d.free_memory().value() + passing.reserved.value() - passing.used.value());
    for (const memory_limit& limit : options.memory_limits) {
      if (limit.device == d.id()) least = std::min(least, limit.most.value());
    }
  }
  return least;
}

/// Blocks of the range that are gone through slice by slice. There are several, because what is next to each other
/// tends to lie on one device: a region each keeps all of them at work.
struct region {
  std::int64_t next = 0;
  std::int64_t end = 0;
  std::int64_t mapped_at = 0;  // where the slice in the array began
  std::shared_ptr<array_body> mapped;
  launch_run map;
  launch_run reduce;
  bool is_running = false;
};

}  // namespace

reduction map_and_reduce(const machine& m, const std::shared_ptr<const kernel_code>& code, const kernel_range& over,
                         reduce_op op, std::span<spread_argument> arguments, const spread_options& options,
                         std::source_location where) {
  state_of(m)->require_open(where);
  // Also where there is nothing to map, and no launch that would check it.
  const bool has_items = checked_range(*code, over, arguments.size(), where);
  check_granularity(*code, options.granularity, where);
  const device_list devices = m.devices(options.devices, where);
  if (over.begin[0] != 0) {
    raise(errc::invalid_argument,
          "map_reduce of '" + code->name + "' over a range that begins at " + std::to_string(over.begin[0]) +
              ": it begins at 0; add the offset in the kernel",
          where);
  }
  const std::int64_t items = over.end[0];
  const element_type type = code->parameters.back().type;
  reduction numbers{type, op, items, where};
  if (!has_items) return numbers;

  spread_options mapping = options;
  mapping.granularity = std::lcm(std::min(options.granularity, largest_granularity), reduction_block);
  mapping.keep_on_device = true;  // the reduction follows it there
  mapping.asynchronous = true;
  spread_options reducing = mapping;
  reducing.granularity = 1;
  reducing.block = {0, 0, 0};
  reducing.model.reset();

  const std::int64_t parts = std::max(fewest_regions, static_cast<std::int64_t>(devices.size()));
  // All slices may come to lie on one device, and launches keep a reserve of their own.
  const std::uint64_t each = bytes_per_item(*code);
  const auto free_inputs = [&] {
    for (const spread_argument& a : arguments.first(arguments.size() - 1)) {
      if (a.array) free_replicas(*a.array);
    }
  };
  if (least_room(devices, options) / (2 * each * static_cast<std::uint64_t>(parts)) < most_items_per_slice)
    free_inputs();  // what earlier calls left there would make the slices small
  const std::uint64_t fit = least_room(devices, options) / (2 * each * static_cast<std::uint64_t>(parts));
  const auto wanted = static_cast<std::int64_t>(std::min<std::uint64_t>(fit, most_items_per_slice));
  const std::int64_t step = mapping.granularity;
  const std::int64_t at_once = std::max<std::int64_t>(1, wanted / step) * step;
  const std::uint64_t all_slices = static_cast<std::uint64_t>(at_once) * each * static_cast<std::uint64_t>(parts);

  spread_argument& mapped = arguments.back();
  const array_shape shape{static_cast<std::uint64_t>(items), size_of(type)};
  mapped.plain.type = type;
  mapped.plain.is_memory = true;
  mapped.plain.memory.size = shape.count * shape.element;
  std::vector<region> regions(static_cast<std::size_t>(parts));
  const std::int64_t steps = items / step + (items % step != 0 ? 1 : 0);
  for (std::int64_t r = 0; r < parts; ++r) {
    region& made = regions[static_cast<std::size_t>(r)];
    // divided before multiplied: a range may be long
    made.next = std::min(items, (steps / parts * r + steps % parts * r / parts) * step);
    made.end = std::min(items, (steps / parts * (r + 1) + steps % parts * (r + 1) / parts) * step);
    made.mapped = make_array(m, shape, where);
    made.mapped->pass_through();
  }

  std::optional<error> cause;
  // Both are looked at, so that neither is told again by machine::synchronize().
  const auto finish = [&](region& of) {
    if (!of.is_running) return;
    for (const launch_run* run : {&of.map, &of.reduce}) {
      try {
        run->wait();
      } catch (const error_exception& failed) {
        if (!cause) cause = failed.cause();
      }
    }
    of.is_running = false;
  };
  for (bool some = true; some && !cause;) {
    some = false;
    for (region& in : regions) {
      finish(in);
      if (cause || in.next == in.end) continue;
      some = true;
      // Inputs that stay fill the devices, and a piece that is begun later than now needs room too.
      if (!options.keep_on_device || least_room(devices, options) < all_slices) {
        for (region& other : regions) finish(other);
        free_inputs();
        if (cause) break;
      }
      // The kernel counts from 0 and the slice does not begin there: an array of which only this window is stored.
      {
        const std::lock_guard lock{in.mapped->mutex};
        in.mapped->shift(in.next - in.mapped_at);
      }
      in.mapped_at = in.next;
      kernel_range part = over;
      part.begin[0] = in.next;
      part.end[0] = std::min(in.end, in.next + at_once);
      mapped.array = in.mapped;
      std::vector<spread_argument> list{arguments.begin(), arguments.end()};
      in.map = spread(m, code, part, list, mapping, where);
      in.reduce = numbers.start(m, reducing, mapped, part.begin[0], part.end[0], where);
      in.is_running = true;
      in.next = part.end[0];
    }
  }
  for (region& in : regions) finish(in);
  if (cause) raise(std::move(*cause));
  return numbers;
}

}  // namespace weft::detail
