// SPDX-License-Identifier: Apache-2.0
// Kernels of the gpu backend.
#include "backend/address.hpp"
#include "backend/kernels/kernel_text.hpp"
#include "backend/kernels/reduction_grid.hpp"
#include "backends/gpu/gpu_backend.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

namespace weft::gpu {
namespace {

using box = std::array<unsigned, 3>;

/// One argument, ready to be handed over: a pointer to element 0, or a scalar's bytes.
struct ready_argument {
  pin memory;  // none: a scalar, or memory of no elements
  alignas(8) std::array<std::byte, 8> value{};
  std::int64_t count = 0;
  bool is_written = false;
};

/// Addresses of values, as the driver takes arguments. No allocation where a kernel has as many as kernels have.
class argument_list {
 public:
  void add(const void* value) {
    // the driver reads them, whatever it calls them
    if (count_ < few_.size()) few_[count_] = const_cast<void*>(value);
    if (count_ == few_.size()) many_.assign(few_.begin(), few_.end());
    if (count_ >= few_.size()) many_.push_back(const_cast<void*>(value));
    ++count_;
  }
  [[nodiscard]] void** data() { return many_.empty() ? few_.data() : many_.data(); }

 private:
  std::size_t count_ = 0;
  std::array<void*, 24> few_{};
  std::vector<void*> many_;
};

class kernel_command final : public queued::command {
 public:
  kernel_command(const driver& cu, stream_driver& streams, const memory_map& memory)
      : command(place::driver), cu_(cu), streams_(streams), memory_(memory) {}

  std::shared_ptr<const loaded_kernel> kernel;
  std::shared_ptr<const kernel_code> code;
  kernel_range range;
  device_id by;
  box block_size{};     // threads
  reduction_grid grid;  // of a reduction

  [[nodiscard]] std::span<ready_argument> arguments() { return many_.empty() ? std::span{few_}.first(count_) : many_; }
  void reserve(std::size_t count) {
    count_ = count;
    if (count > few_.size()) many_.resize(count);
  }

  [[nodiscard]] result<void> hand_over(queued::native_queue queue, queued::native_event* last) override {
    for (std::size_t i = 0; i < count_; ++i) {
      const ready_argument& one = arguments()[i];
      if (!one.memory) continue;
      if (auto cause = memory_map::gone_with_reset(*one.memory.get())) return std::move(*cause);
      if (auto cause = one.memory.get()->broken()) return std::move(*cause);
      const std::string why = memory_.denied(by, *one.memory.get(), one.is_written);
      if (!why.empty()) return without_right(i, why);
    }
    if (kernel->generation != memory_.places().generation(memory_.local(by))) {
      return make_error(errc::cancelled, "the kernel '" + code->name + "' was launched while " + to_string(by) +
                                             " was being reset: launch it again");
    }
    auto into = streams_.begin(queue, note.launch != 0);  // the report of a launch over devices says how long it ran
    if (!into) return std::move(into).error();
    if (auto ok = kernel->combine != nullptr ? reduce(*into) : run(into->stream()); !ok) return ok;
    auto event = into->finish();
    if (!event) return std::move(event).error();
    *last = *event;
    return {};
  }
  void let_go() noexcept override {
    for (ready_argument& one : arguments()) one.memory = {};
    count_ = 0;
  }
  [[nodiscard]] std::string name() const override { return code->name; }

 private:
  [[nodiscard]] error without_right(std::size_t i, const std::string& why) const {
    const std::string name = i < code->parameters.size() ? " (" + code->parameters[i].name + ")" : "";
    return make_error(
        errc::illegal_access,
        "kernel '" + code->name + "' on " + to_string(by) + ", argument " + std::to_string(i + 1) + name + ": " + why,
        error_scope::device);
  }

  [[nodiscard]] result<void> start(CUfunction function, const box& blocks, const box& block, CUstream order,
                                   argument_list& list) const {
    const CUresult status = cu_.cuLaunchKernel(function, blocks[0], blocks[1], blocks[2], block[0], block[1], block[2],
                                               0, order, list.data(), nullptr);
    if (status == CUDA_SUCCESS) return {};
    return cu_error(cu_, status, "the kernel '" + code->name + "' on " + to_string(by), errc::kernel_failed);
  }

  /// One launch, or several where the range has more blocks than a grid may have.
  [[nodiscard]] result<void> run(CUstream order) {
    kernel_range part = range;  // the driver reads the arguments at each launch
    argument_list list;
    for (const ready_argument& one : arguments()) list.add(one.value.data());
    const auto dimensions = static_cast<std::size_t>(range.dimensions);
    for (std::size_t d = 0; d < dimensions; ++d) {
      list.add(&part.begin[d]);
      list.add(&part.end[d]);
    }
    return run_along(dimensions, part, order, list);
  }

  [[nodiscard]] result<void> run_along(std::size_t dimensions, kernel_range& part, CUstream order,
                                       argument_list& list) {
    box items = block_size;  // of a block
    items[0] /= kernel->item_lanes;
    std::array<std::int64_t, 3> most{1, 1, 1};  // items of a launch
    for (std::size_t d = 0; d < dimensions; ++d) {
      const std::uint64_t blocks =
          std::min<std::uint64_t>(kernel->largest_grid[d], cu_.by->most_threads / block_size[d]);
      most[d] = static_cast<std::int64_t>(blocks) * static_cast<std::int64_t>(items[d]);
    }
    const auto end_of = [&](std::size_t d, std::int64_t begin) {
      return range.end[d] - begin > most[d] ? begin + most[d] : range.end[d];
    };
    const auto last = [&](std::size_t d) { return d < dimensions ? range.end[d] : std::int64_t{1}; };
    for (std::int64_t z = dimensions > 2 ? range.begin[2] : 0; z < last(2); z = dimensions > 2 ? part.end[2] : 1) {
      if (dimensions > 2) set(part, 2, z, end_of(2, z));
      for (std::int64_t y = dimensions > 1 ? range.begin[1] : 0; y < last(1); y = dimensions > 1 ? part.end[1] : 1) {
        if (dimensions > 1) set(part, 1, y, end_of(1, y));
        for (std::int64_t x = range.begin[0]; x < range.end[0]; x = part.end[0]) {
          set(part, 0, x, end_of(0, x));
          box blocks{1, 1, 1};
          for (std::size_t d = 0; d < dimensions; ++d)
            blocks[d] = static_cast<unsigned>((part.end[d] - part.begin[d] + items[d] - 1) / items[d]);
          if (auto ok = start(kernel->function, blocks, block_size, order, list); !ok) return ok;
        }
      }
    }
    return {};
  }

  static void set(kernel_range& part, std::size_t d, std::int64_t begin, std::int64_t end) {
    part.begin[d] = begin;
    part.end[d] = end;
  }

  /// Two launches, as kernel_text.hpp has it.
  [[nodiscard]] result<void> reduce(submission& into) {
    auto scratch = into.scratch(std::max<std::size_t>(grid.scratch, 16));
    if (!scratch) {
      scratch.error().what = "the reduction '" + code->name + "' on " + to_string(by) + ": " + scratch.error().what;
      return std::move(scratch).error();
    }
    const CUdeviceptr shared = *scratch;
    const std::int64_t no_shift = 0;
    argument_list first;
    argument_list second;
    for (const ready_argument& one : arguments()) first.add(one.value.data());
    for (std::size_t d = 0; d < static_cast<std::size_t>(range.dimensions); ++d) {
      first.add(&range.begin[d]);
      first.add(&range.end[d]);
    }
    first.add(&shared);
    second.add(&shared);
    second.add(&grid.groups);
    second.add(&grid.group);
    for (std::size_t i = 0; i < count_; ++i) {
      const ready_argument& one = arguments()[i];
      if (code->parameters[i].access.kind != access_kind::reduce) continue;
      first.add(&one.count);
      second.add(one.value.data());
      second.add(&no_shift);
      second.add(&one.count);
    }
    first.add(&grid.step);
    const auto group = static_cast<unsigned>(grid.group);
    auto ok = start(kernel->function, {static_cast<unsigned>(grid.groups), 1, 1}, {group, 1, 1}, into.stream(), first);
    if (!ok) return ok;
    const box& line = kernel->block[0];
    const std::int64_t groups = (std::max<std::int64_t>(grid.elements, 1) + line[0] - 1) / line[0];
    return start(kernel->combine, {static_cast<unsigned>(groups), 1, 1}, line, into.stream(), second);
  }

  const driver& cu_;
  stream_driver& streams_;
  const memory_map& memory_;
  std::size_t count_ = 0;
  std::array<ready_argument, 6> few_;
  std::vector<ready_argument> many_;  // of a kernel that takes more
};

/// Finds the memory of argument `i`, and where its element 0 lies.
result<void> ready_for(const kernel_code& code, std::size_t i, const kernel_argument& given, const memory_map& table,
                       ready_argument& made) {
  if (given.direction == parameter_direction::scalar) {
    made.value = given.scalar;
    return {};
  }
  made.count = given.count;
  made.is_written = given.direction != parameter_direction::in;
  if (given.count == 0) return {};
  const auto title = [&] { return "argument " + std::to_string(i + 1) + " of '" + code.name + "'"; };
  const std::size_t element = size_of(given.type);
  const std::uint64_t extent = static_cast<std::uint64_t>(given.count) * element;
  auto memory = table.find(given.address, extent);
  if (!memory) {
    return not_allocated(title() + " at " + hex(given.address));
  }
  const auto offset = static_cast<std::uint64_t>(static_cast<std::byte*>(given.address) - memory->user);
  if (extent > memory->size - offset) {
    return make_error(errc::out_of_range,
                      title() + " passes the end of its allocation of " + to_string(bytes{memory->size}));
  }
  const CUdeviceptr at = gpu_address(*memory, given.address);
  if (at % element != 0) {
    return make_error(errc::invalid_argument, title() + " begins at byte " + std::to_string(offset) +
                                                  " of its memory: its address is no multiple of " +
                                                  std::to_string(element));
  }
  // outside the memory where its piece begins later: no thread touches what lies there
  const CUdeviceptr zero = at - static_cast<CUdeviceptr>(given.first) * element;
  static_assert(sizeof zero == sizeof made.value);
  std::memcpy(made.value.data(), &zero, sizeof zero);
  made.memory = pin{std::move(memory)};
  return {};
}

/// Threads of a block: as many items as asked for, or the kernel's own.
result<box> block_for(const launch_request& request, const loaded_kernel& kernel, device_id by) {
  if (request.block == std::array<int, 3>{})
    return kernel.block[static_cast<std::size_t>(request.range.dimensions) - 1];
  box made{};
  for (std::size_t d = 0; d < made.size(); ++d) made[d] = static_cast<unsigned>(std::max(request.block[d], 1));
  made[0] *= kernel.item_lanes;
  constexpr unsigned deepest = 64;  // of every compute capability so far, in the third dimension
  const unsigned threads = made[0] * made[1] * made[2];
  if (threads <= static_cast<unsigned>(kernel.largest_block) && made[2] <= deepest) return made;
  return make_error(errc::unsupported, "a block of " + std::to_string(threads) + " threads, " +
                                           std::to_string(made[2]) + " deep, of the kernel '" + request.kernel->name +
                                           "': " + to_string(by) + " runs it in blocks of " +
                                           std::to_string(kernel.largest_block) + " at most, " +
                                           std::to_string(deepest) + " deep");
}

std::int64_t items_of(const kernel_range& range) {
  std::int64_t items = 1;
  for (std::size_t d = 0; d < static_cast<std::size_t>(range.dimensions); ++d)
    items *= std::max<std::int64_t>(range.end[d] - range.begin[d], 0);
  return items;
}

}  // namespace

result<void> gpu_backend::do_prepare(device_id device, const kernel_code& kernel) {
  if (auto cause = scheduler_->lost(device)) return error{*cause};
  auto loaded = modules_.get(kernel, local(device));
  if (!loaded) return noticed(device, std::move(loaded).error());
  return {};
}

result<event_ref> gpu_backend::do_launch(stream_handle handle, launch_request request) {
  auto order = stream_of(handle);
  if (!order) return std::move(order).error();
  const device_id by = (*order)->device();
  const kernel_code& code = *request.kernel;
  const gpu_place& gpu = found_.gpu_of(local(by));
  constexpr int first_with_system_order = 7;  // loads and stores that order for the host too
  if (has_ring(code) && gpu.major < first_with_system_order) {
    return make_error(errc::unsupported, "the kernel '" + code.name + "' takes a ring, and " + to_string(by) + " (" +
                                             gpu.name + ", compute capability " + std::to_string(gpu.major) + "." +
                                             std::to_string(gpu.minor) +
                                             ") cannot order its accesses with the host's: that takes 7.0");
  }
  auto loaded = modules_.get(code, local(by));
  if (!loaded) return noticed(by, std::move(loaded).error());
  auto made = std::make_unique<kernel_command>(*cu_, *streams_, memory_);
  made->kernel = std::move(*loaded);
  auto block = block_for(request, *made->kernel, by);
  if (!block) return std::move(block).error();
  made->block_size = *block;
  made->range = request.range;
  made->by = by;
  if (made->kernel->combine != nullptr) {
    made->grid = reduction_grid_for(code, request.range, request.arguments,
                                    {description_of(by).compute_units, false, made->kernel->largest_block});
  }
  made->reserve(request.arguments.size());
  for (std::size_t i = 0; i < request.arguments.size(); ++i) {
    auto found = ready_for(code, i, request.arguments[i], memory_, made->arguments()[i]);
    if (!found) return std::move(found).error();
  }
  const std::int64_t items = items_of(request.range);
  if (items == 0) return do_record(handle);
  made->note.kind = trace_kind::kernel;
  made->note.items = items;
  made->note.launch = request.launch;
  made->stop = std::move(request.stop);
  made->code = std::move(request.kernel);
  return submitted(**order, std::move(made));
}

}  // namespace weft::gpu
