// SPDX-License-Identifier: Apache-2.0
// Kernels of the OpenCL backend.
#include "backend/address.hpp"
#include "backends/opencl/opencl_backend.hpp"
#include "core/text/hex.hpp"

#include <algorithm>
#include <array>

namespace weft::opencl {
namespace {

/// One argument, ready to be set.
struct ready_argument {
  pin memory;  // none: a scalar, or memory of no elements
  cl_mem buffer = nullptr;
  cl_long shift = 0;  // elements from the start of the buffer to element 0
  cl_long count = 0;
  bool is_memory = false;
  std::size_t size = 0;
  std::array<std::byte, 8> scalar{};
};

/// Work items of a group in each dimension: a fixed number, since some compilers compile again for every new one.
std::array<std::size_t, 3> group_of(int dimensions, const compiled_kernel& kernel) {
  std::array<std::size_t, 3> group{256, 1, 1};
  if (dimensions == 2) group = {64, 4, 1};
  if (dimensions == 3) group = {64, 2, 2};
  for (const std::size_t d : {std::size_t{2}, std::size_t{1}, std::size_t{0}}) {
    while (group[d] > 1 &&
           (group[d] > kernel.largest_sides[d] || group[0] * group[1] * group[2] > kernel.largest_group))
      group[d] /= 2;
  }
  return group;
}

/// The group asked for, or the kernel's own.
result<std::array<std::size_t, 3>> group_for(const launch_request& request, const compiled_kernel& kernel,
                                             device_id by) {
  if (request.block == std::array<int, 3>{}) return group_of(request.range.dimensions, kernel);
  std::array<std::size_t, 3> made{};
  bool fits = true;
  for (std::size_t d = 0; d < made.size(); ++d) {
    made[d] = static_cast<std::size_t>(std::max(request.block[d], 1));
    fits = fits && made[d] <= kernel.largest_sides[d];
  }
  if (fits && made[0] * made[1] * made[2] <= kernel.largest_group) return made;
  return make_error(errc::unsupported, "a block of " + std::to_string(made[0]) + " × " + std::to_string(made[1]) +
                                           " × " + std::to_string(made[2]) + " work items of the kernel '" +
                                           request.kernel->name + "': " + to_string(by) + " runs it in groups of " +
                                           std::to_string(kernel.largest_group) + " at most");
}

/// Sets a kernel's arguments one after the other, and remembers the first that was refused.
class argument_list {
 public:
  argument_list(const api& cl, cl_kernel kernel) : cl_(cl), kernel_(kernel) {}

  void add_bytes(std::size_t size, const void* value) {
    if (status_ == CL_SUCCESS) status_ = cl_.clSetKernelArg(kernel_, at_++, size, value);
  }
  void add(const cl_long& value) { add_bytes(sizeof value, &value); }
  void add_memory(const cl_mem& buffer) {
    // NOLINTNEXTLINE(bugprone-sizeof-expression): a cl_mem is what is handed over
    add_bytes(sizeof buffer, buffer == nullptr ? nullptr : static_cast<const void*>(&buffer));
  }
  [[nodiscard]] cl_int status() const { return status_; }

 private:
  const api& cl_;
  cl_kernel kernel_;
  cl_uint at_ = 0;
  cl_int status_ = CL_SUCCESS;
};

class kernel_command final : public queued::command {
 public:
  kernel_command(const api& cl, const memory_map& memory) : command(place::driver), cl_(cl), memory_(memory) {}

  std::shared_ptr<compiled_kernel> kernel;
  std::shared_ptr<const kernel_code> code;
  kernel_range range;
  device_id by;
  bool is_shifted = false;
  cl_context context = nullptr;
  std::array<std::size_t, 3> group_size{};  // work items
  reduction_grid grid;                      // of a reduction

  [[nodiscard]] std::span<ready_argument> arguments() { return many_.empty() ? std::span{few_}.first(count_) : many_; }
  void reserve(std::size_t count) {
    count_ = count;
    if (count > few_.size()) many_.resize(count);
  }

  [[nodiscard]] result<void> hand_over(queued::native_queue queue, queued::native_event* last) override {
    for (std::size_t i = 0; i < count_; ++i) {
      const allocation* const memory = arguments()[i].memory.get();
      if (memory == nullptr) continue;
      const std::string why = memory_.denied(by, *memory);
      if (!why.empty()) return without_right(i, why);
    }
    return enqueue(queue_of(queue), last);
  }
  void let_go() noexcept override {
    for (ready_argument& one : arguments()) one.memory = {};
    count_ = 0;
  }
  [[nodiscard]] std::string name() const override { return code->name; }

 private:
  [[nodiscard]] error without_right(std::size_t i, const std::string& why) const {
    return make_error(errc::illegal_access,
                      "kernel '" + code->name + "' on " + to_string(by) + ", argument " + std::to_string(i + 1) +
                          (i < code->parameters.size() ? " (" + code->parameters[i].name + ")" : "") + ": " + why,
                      error_scope::device);
  }

  [[nodiscard]] error bad_arguments(cl_int status) const {
    return cl_error(status, "the arguments of the kernel '" + code->name + "'", errc::incompatible);
  }

  void set_arguments(argument_list& list) {
    for (const ready_argument& one : arguments()) {
      if (!one.is_memory) {
        list.add_bytes(one.size, one.scalar.data());
        continue;
      }
      list.add_memory(one.buffer);
      if (is_shifted) list.add(one.shift);
    }
    for (std::size_t d = 0; d < static_cast<std::size_t>(range.dimensions); ++d) {
      list.add(cl_long{range.begin[d]});
      list.add(cl_long{range.end[d]});
    }
  }

  [[nodiscard]] cl_int start(cl_command_queue queue, const entry_point& which, int dimensions,
                             const std::array<std::size_t, 3>& global, const std::array<std::size_t, 3>& group,
                             cl_event* last) const {
    const auto enqueue = [&](std::span<const cl_event> before, cl_event* event) {
      return cl_.clEnqueueNDRangeKernel(queue, which.kernel.get(), static_cast<cl_uint>(dimensions), nullptr,
                                        global.data(), group.data(), static_cast<cl_uint>(before.size()),
                                        before.empty() ? nullptr : before.data(), event);
    };
    if (!which.order) return enqueue({}, last);
    auto [status, begun] = which.order->start(global, group, enqueue);
    if (last != nullptr) *last = begun.release();
    return status;
  }

  [[nodiscard]] result<void> enqueue(cl_command_queue queue, queued::native_event* last) {
    const entry_point& which = is_shifted ? kernel->shifted : kernel->plain;
    const std::lock_guard lock{kernel->mutex};
    cl_event made = nullptr;
    if (kernel->combine.kernel) {
      auto done = enqueue_reduction(queue, which, &made);
      if (done) *last = made;
      return done;
    }
    std::array<std::size_t, 3> global{1, 1, 1};
    for (std::size_t d = 0; d < static_cast<std::size_t>(range.dimensions); ++d) {
      const auto items = static_cast<std::size_t>(range.end[d] - range.begin[d]);
      global[d] = (items + group_size[d] - 1) / group_size[d] * group_size[d];
    }
    argument_list arguments{cl_, which.kernel.get()};
    set_arguments(arguments);
    if (arguments.status() != CL_SUCCESS) return bad_arguments(arguments.status());
    const cl_int status = start(queue, which, range.dimensions, global, group_size, &made);
    if (status != CL_SUCCESS) return cl_error(status, "the kernel '" + code->name + "'", errc::kernel_failed);
    *last = made;
    return {};
  }

  /// Two commands, as kernel_text.hpp has it. What they share is the driver's to keep until they have ended.
  [[nodiscard]] result<void> enqueue_reduction(cl_command_queue queue, const entry_point& which, cl_event* last) {
    cl_int status = CL_SUCCESS;
    const std::shared_ptr<const api> unowned{std::shared_ptr<const api>{}, &cl_};  // it outlives this call
    const buffer_handle scratch{unowned, cl_.clCreateBuffer(context, CL_MEM_READ_WRITE,
                                                            std::max<std::size_t>(grid.scratch, 16), nullptr, &status)};
    if (status != CL_SUCCESS) {
      return cl_error(status, to_string(bytes{grid.scratch}) + " for the reduction '" + code->name + "'",
                      errc::out_of_memory);
    }
    const cl_mem shared = scratch.get();
    argument_list first{cl_, which.kernel.get()};
    argument_list second{cl_, kernel->combine.kernel.get()};
    set_arguments(first);
    first.add_memory(shared);
    second.add_memory(shared);
    second.add(cl_long{grid.groups});
    second.add(cl_long{grid.group});
    for (std::size_t i = 0; i < count_; ++i) {
      const ready_argument& one = arguments()[i];
      if (code->parameters[i].access.kind != access_kind::reduce) continue;
      first.add(one.count);
      second.add_memory(one.buffer);
      second.add(one.shift);
      second.add(one.count);
    }
    first.add(cl_long{grid.step});
    for (const argument_list* one : {&first, &second})
      if (one->status() != CL_SUCCESS) return bad_arguments(one->status());
    const auto group = static_cast<std::size_t>(grid.group);
    status = start(queue, which, 1, {group * static_cast<std::size_t>(grid.groups), 1, 1}, {group, 1, 1}, nullptr);
    if (status == CL_SUCCESS) {
      const std::size_t side = group_of(1, *kernel)[0];
      const auto items = std::max<std::size_t>(static_cast<std::size_t>(grid.elements), 1);
      status = start(queue, kernel->combine, 1, {(items + side - 1) / side * side, 1, 1}, {side, 1, 1}, last);
    }
    if (status != CL_SUCCESS) return cl_error(status, "the reduction '" + code->name + "'", errc::kernel_failed);
    return {};
  }

  const api& cl_;
  const memory_map& memory_;
  std::size_t count_ = 0;
  std::array<ready_argument, 6> few_;
  std::vector<ready_argument> many_;  // of a kernel that takes more
};

/// Finds the memory of argument `i`, and where in its buffer element 0 lies.
result<void> ready_for(const kernel_code& code, std::size_t i, const kernel_argument& given, const memory_map& table,
                       device_id by, ready_argument& made) {
  const std::size_t element = size_of(given.type);
  made.size = element;
  if (given.direction == parameter_direction::scalar) {
    made.scalar = given.scalar;
    return {};
  }
  made.is_memory = true;
  made.count = given.count;
  if (given.count == 0) return {};
  const auto title = [&] { return "argument " + std::to_string(i + 1) + " of '" + code.name + "'"; };
  const std::uint64_t extent = static_cast<std::uint64_t>(given.count) * element;
  auto memory = table.find(given.address);
  if (!memory) {
    return not_allocated(title() + " at " + hex(given.address));
  }
  const auto offset = static_cast<std::uint64_t>(static_cast<std::byte*>(given.address) - memory->user);
  if (extent > memory->size - offset) {
    return make_error(errc::out_of_range,
                      title() + " passes the end of its allocation of " + to_string(bytes{memory->size}));
  }
  const place at = place_of(*memory, given.address);
  if (at.buffer == nullptr || (memory->kind != memory_kind::device && memory->kind != memory_kind::mapped &&
                               memory->context != table.context_of(by))) {
    return make_error(errc::unsupported, title() + " is " + std::string{to_string(memory->kind)} +
                                             " memory, which only copies can use here: no fine-grained shared memory");
  }
  if (at.offset % element != 0) {
    return make_error(errc::invalid_argument, title() + " begins at byte " + std::to_string(at.offset) +
                                                  " of its memory, which is no multiple of " + std::to_string(element));
  }
  made.buffer = at.buffer;
  made.shift = static_cast<cl_long>(at.offset / element) - given.first;
  made.memory = pin{std::move(memory)};
  return {};
}

}  // namespace

result<void> opencl_backend::do_prepare(device_id device, const kernel_code& kernel) {
  auto compiled = programs_.get(kernel, local(device));
  if (!compiled) return std::move(compiled).error();
  return {};
}

result<event_ref> opencl_backend::do_launch(stream_handle handle, launch_request request) {
  auto order = stream_of(handle);
  if (!order) return std::move(order).error();
  const device_id by = (*order)->device();
  const kernel_code& code = *request.kernel;
  auto compiled = programs_.get(code, local(by));
  if (!compiled) return std::move(compiled).error();
  auto made = std::make_unique<kernel_command>(*cl_, memory_);
  made->kernel = std::move(*compiled);
  auto group = group_for(request, *made->kernel, by);
  if (!group) return std::move(group).error();
  made->group_size = *group;
  made->range = request.range;
  made->by = by;
  if (made->kernel->combine.kernel) {
    made->context = found_.contexts[memory_.context_of(by)].context.get();
    made->grid = reduction_grid_for(code, request.range, request.arguments, made->kernel->units);
  }
  made->reserve(request.arguments.size());
  for (std::size_t i = 0; i < request.arguments.size(); ++i) {
    auto found = ready_for(code, i, request.arguments[i], memory_, by, made->arguments()[i]);
    if (!found) return std::move(found).error();
    made->is_shifted = made->is_shifted || made->arguments()[i].shift != 0;
  }
  if (made->is_shifted && !made->kernel->shifted.kernel) {
    return make_error(errc::unsupported, "the raw kernel '" + code.name +
                                             "' is given memory that does not begin with element 0, and its source "
                                             "cannot be called from another kernel: " +
                                             made->kernel->why_not_shifted);
  }
  std::int64_t items = 1;
  for (std::size_t d = 0; d < static_cast<std::size_t>(request.range.dimensions); ++d)
    items *= std::max<std::int64_t>(request.range.end[d] - request.range.begin[d], 0);
  if (items == 0) return do_record(handle);
  made->note.kind = trace_kind::kernel;
  made->note.items = items;
  made->note.launch = request.launch;
  made->stop = std::move(request.stop);
  made->code = std::move(request.kernel);
  return submitted(**order, std::move(made));
}

}  // namespace weft::opencl
