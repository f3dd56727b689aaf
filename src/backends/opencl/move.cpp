// SPDX-License-Identifier: Apache-2.0
// Copies and fills of the OpenCL backend. What lies in buffers of the stream's context is the driver's to move; what is
// the host's on both sides, or lies in another context, is done in stream order on a thread of the host.
#include "backend/address.hpp"
#include "backends/common/copy_checks.hpp"
#include "backends/opencl/opencl_backend.hpp"
#include "core/text/hex.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace weft::opencl {

using common::holder_of;

namespace {

using box = std::array<std::size_t, 3>;

/// One side of a box as the driver's rectangular commands want it: an origin that begins in a row, and pitches that
/// they take. Nothing where they would not.
struct box_side {
  box origin{};
  std::size_t pitch = 0, slice = 0;
};

std::optional<box_side> side_of(std::size_t offset, std::size_t pitch, std::size_t slice, const copy_shape& shape) {
  if (pitch < shape.width || pitch == 0) return std::nullopt;
  if (offset % pitch + shape.width > pitch) return std::nullopt;
  box_side made;
  made.origin = {offset % pitch, offset / pitch, 0};
  made.pitch = pitch;
  if (shape.depth > 1) {
    if (slice % pitch != 0 || slice < shape.height * pitch) return std::nullopt;
    made.slice = slice;
  }
  return made;
}

}  // namespace

struct opencl_backend::prepared_copy {
  copy_shape shape;
  std::shared_ptr<allocation> dst_memory, src_memory;  // empty for plain memory of the host
  place dst, src;
  const link_path* path = nullptr;
};

result<opencl_backend::prepared_copy> opencl_backend::prepare(const copy_request& request) {
  common::copy_ends<allocation> ends;
  if (auto wrong = common::find_ends(ends, memory_, request)) return std::move(*wrong);
  const auto at = [](const allocation* memory, const void* address) {
    // the host's memory is written only where it is the destination
    if (memory == nullptr) return place{.host = const_cast<std::byte*>(static_cast<const std::byte*>(address))};
    return place_of(*memory, address);
  };
  prepared_copy made;
  made.shape = request.shape;
  made.dst = at(ends.dst.get(), request.dst);
  made.src = at(ends.src.get(), request.src);
  made.dst_memory = std::move(ends.dst);
  made.src_memory = std::move(ends.src);
  made.path = traffic_.between(holder_of(made.src_memory.get()), holder_of(made.dst_memory.get()));
  return made;
}

/// Why a copy may not be made now; null if it may. Access is looked at when it starts: a disable in between counts.
std::shared_ptr<const error> opencl_backend::check_access(const prepared_copy& copy) const {
  const auto who = common::may_start(memory_, copy.dst_memory.get(), copy.src_memory.get(), device_id{});
  return who ? nullptr : shared_error(who.error());
}

result<void> opencl_backend::enqueue(cl_command_queue queue, const prepared_copy& copy, cl_event* ended) const {
  const copy_shape& s = copy.shape;
  const place& to = copy.dst;
  const place& from = copy.src;
  const auto row = [&](std::size_t dst_offset, std::size_t src_offset, std::size_t size, cl_event* event) {
    if (to.buffer != nullptr && from.buffer != nullptr) {
      return cl_->clEnqueueCopyBuffer(queue, from.buffer, to.buffer, from.offset + src_offset, to.offset + dst_offset,
                                      size, 0, nullptr, event);
    }
    if (to.buffer != nullptr) {
      return cl_->clEnqueueWriteBuffer(queue, to.buffer, CL_FALSE, to.offset + dst_offset, size, from.host + src_offset,
                                       0, nullptr, event);
    }
    return cl_->clEnqueueReadBuffer(queue, from.buffer, CL_FALSE, from.offset + src_offset, size, to.host + dst_offset,
                                    0, nullptr, event);
  };
  const auto checked = [&](cl_int status) -> result<void> {
    if (status == CL_SUCCESS) return {};
    return cl_error(status, "a copy of " + to_string(bytes{s.total()}), errc::copy_failed);
  };
  if (s.height == 1 && s.depth == 1) return checked(row(0, 0, s.width, ended));

  const auto dst = side_of(to.buffer != nullptr ? to.offset : 0, s.dst_pitch, s.dst_slice, s);
  const auto src = side_of(from.buffer != nullptr ? from.offset : 0, s.src_pitch, s.src_slice, s);
  // Inside one buffer a driver takes no two pitches, and takes boxes for overlapping whose first row lies past a slice.
  const bool may_be_one =
      to.buffer != from.buffer || (s.depth == 1 && dst && src && dst->pitch == src->pitch && dst->slice == src->slice);
  if (dst && src && may_be_one) {
    const box region{s.width, s.height, s.depth};
    cl_int status = CL_SUCCESS;
    if (to.buffer != nullptr && from.buffer != nullptr) {
      status = cl_->clEnqueueCopyBufferRect(queue, from.buffer, to.buffer, src->origin.data(), dst->origin.data(),
                                            region.data(), src->pitch, src->slice, dst->pitch, dst->slice, 0, nullptr,
                                            ended);
    } else if (to.buffer != nullptr) {
      status = cl_->clEnqueueWriteBufferRect(queue, to.buffer, CL_FALSE, dst->origin.data(), src->origin.data(),
                                             region.data(), dst->pitch, dst->slice, src->pitch, src->slice, from.host,
                                             0, nullptr, ended);
    } else {
      status = cl_->clEnqueueReadBufferRect(queue, from.buffer, CL_FALSE, src->origin.data(), dst->origin.data(),
                                            region.data(), src->pitch, src->slice, dst->pitch, dst->slice, to.host, 0,
                                            nullptr, ended);
    }
    return checked(status);
  }
  // also rows that pass the end of a pitch, and slices that are no number of rows: one command for each row
  for (std::uint64_t z = 0; z < s.depth; ++z) {
    for (std::uint64_t y = 0; y < s.height; ++y) {
      const bool last = z + 1 == s.depth && y + 1 == s.height;
      if (auto ok = checked(row(z * s.dst_slice + y * s.dst_pitch, z * s.src_slice + y * s.src_pitch, s.width,
                                last ? ended : nullptr));
          !ok)
        return ok;
    }
  }
  return {};
}

result<cl_command_queue> opencl_backend::aside(device_id device) {
  const std::lock_guard lock{aside_mutex_};
  queue_handle& queue = aside_[local(device)];
  if (!queue) {
    const device_place& where = found_.devices[local(device)];
    cl_int status = CL_SUCCESS;
    queue = {cl_, cl_->clCreateCommandQueue(found_.contexts[where.context].context.get(), where.id, 0, &status)};
    if (status != CL_SUCCESS) return cl_error(status, "a command queue on " + to_string(device));
  }
  return queue.get();
}

result<event_ref> opencl_backend::submit_copies(queued::queued_stream& to, std::vector<prepared_copy> copies,
                                                std::stop_token stop) {
  queued::command_note note;
  note.kind = trace_kind::copy;
  std::vector<pin> memory;
  memory.reserve(2 * copies.size());
  const link_path* path = nullptr;
  const std::size_t context = memory_.context_of(to.device());
  bool all_driver = true;
  bool any_elsewhere = false;
  for (prepared_copy& one : copies) {
    note.bytes += one.shape.total();
    note.from = holder_of(one.src_memory.get());
    note.to = holder_of(one.dst_memory.get());
    path = one.path;
    for (auto& [side, at] : {std::pair<std::shared_ptr<allocation>&, place&>{one.dst_memory, one.dst},
                             std::pair<std::shared_ptr<allocation>&, place&>{one.src_memory, one.src}}) {
      if (!side) continue;
      memory.emplace_back(side);
      // what the host reaches as well as the driver does need not be another context's affair
      if (at.buffer != nullptr && side->context != context) {
        if (at.host != nullptr) {
          at.buffer = nullptr;
        } else {
          any_elsewhere = true;
        }
      }
    }
    if (one.dst.buffer != nullptr && one.src.buffer != nullptr && one.dst_memory->context != one.src_memory->context) {
      place& of_host = one.dst.host != nullptr ? one.dst : one.src;
      of_host.buffer = nullptr;  // a command knows the buffers of one context
    }
    all_driver = all_driver && (one.dst.buffer != nullptr || one.src.buffer != nullptr);
  }
  const auto submit = [&](auto made) {
    made->stop = std::move(stop);
    made->note = note;
    made->path = path;
    made->memory = std::move(memory);
    return submitted(to, std::move(made));
  };
  const auto shared = std::make_shared<const std::vector<prepared_copy>>(std::move(copies));
  const auto enqueue_all = [this, shared](queued::native_queue queue, queued::native_event* last) -> result<void> {
    for (const prepared_copy& one : *shared) {
      if (auto cause = check_access(one)) return error{*cause};
    }
    for (const prepared_copy& one : *shared) {
      cl_event made = nullptr;
      if (auto ok = enqueue(queue_of(queue), one, &one == &shared->back() ? &made : nullptr); !ok) return ok;
      *last = made;
    }
    return {};
  };
  if (all_driver && !any_elsewhere) return submit(std::make_unique<driver_command>(enqueue_all));
  return submit(std::make_unique<host_command>([this, shared]() -> std::shared_ptr<const error> {
    for (const prepared_copy& one : *shared) {
      if (auto cause = check_access(one)) return cause;
      if (one.dst.buffer != nullptr || one.src.buffer != nullptr) {
        const device_id by = one.dst.buffer != nullptr ? one.dst_memory->owner : one.src_memory->owner;
        auto queue = aside(by);
        if (!queue) return shared_error(std::move(queue).error());
        if (auto ok = enqueue(*queue, one, nullptr); !ok) return shared_error(std::move(ok).error());
        if (const cl_int status = cl_->clFinish(*queue); status != CL_SUCCESS)
          return shared_error(cl_error(status, "a copy on " + to_string(by), errc::copy_failed));
        continue;
      }
      const copy_shape& s = one.shape;
      for (std::uint64_t z = 0; z < s.depth; ++z) {
        for (std::uint64_t y = 0; y < s.height; ++y) {
          std::memcpy(one.dst.host + z * s.dst_slice + y * s.dst_pitch,
                      one.src.host + z * s.src_slice + y * s.src_pitch, s.width);
        }
      }
    }
    return nullptr;
  }));
}

result<event_ref> opencl_backend::do_copy(stream_handle handle, const copy_request& request) {
  auto order = stream_of(handle);
  if (!order) return std::move(order).error();
  auto ready = prepare(request);
  if (!ready) return std::move(ready).error();
  std::vector<prepared_copy> one;
  one.reserve(1);
  one.push_back(std::move(*ready));
  return submit_copies(**order, std::move(one), request.stop);
}

result<event_ref> opencl_backend::do_copy_batch(stream_handle handle, std::span<const copy_request> requests) {
  auto order = stream_of(handle);
  if (!order) return std::move(order).error();
  std::vector<prepared_copy> batch;
  batch.reserve(requests.size());
  for (const copy_request& request : requests) {
    if (request.shape.total() == 0) continue;
    auto ready = prepare(request);
    if (!ready) return std::move(ready).error();
    batch.push_back(std::move(*ready));
  }
  return submit_copies(**order, std::move(batch), requests.front().stop);
}

result<event_ref> opencl_backend::do_fill(stream_handle handle, const fill_request& request) {
  auto order = stream_of(handle);
  if (!order) return std::move(order).error();
  const auto memory = memory_.find(request.dst);
  if (!memory) {
    return not_allocated("the destination " + hex(request.dst) + " of a fill");
  }
  const std::uint64_t size = request.total();
  if (auto wrong = beyond_end("a fill", size, request.dst, memory->user, memory->size)) return std::move(*wrong);
  const auto submit = [&](auto made) {
    made->stop = request.stop;
    made->note.kind = trace_kind::fill;
    made->note.bytes = size;
    made->memory.emplace_back(memory);
    return submitted(**order, std::move(made));
  };
  const place at = place_of(*memory, request.dst);
  const bool here = at.buffer != nullptr && memory->context == memory_.context_of((*order)->device());
  const auto written = [request, size] {
    std::vector<std::byte> pattern(size);
    for (std::size_t i = 0; i < size; ++i) pattern[i] = request.pattern[i % request.pattern_size];
    return pattern;
  };
  if (here && at.offset % request.pattern_size == 0) {
    return submit(std::make_unique<driver_command>(
        [this, memory, at, size, pattern = request.pattern, step = request.pattern_size](
            queued::native_queue queue, queued::native_event* last) -> result<void> {
          if (auto cause = common::refused_fill(memory_, *memory)) return std::move(*cause);
          cl_event made = nullptr;
          const cl_int status = cl_->clEnqueueFillBuffer(queue_of(queue), at.buffer, pattern.data(), step, at.offset,
                                                         size, 0, nullptr, &made);
          if (status != CL_SUCCESS) return cl_error(status, "a fill of " + to_string(bytes{size}));
          *last = made;
          return {};
        }));
  }
  if (here) {
    // the driver fills at multiples of the pattern only
    return submit(std::make_unique<driver_command>(
        [this, memory, at, pattern = std::make_shared<const std::vector<std::byte>>(written())](
            queued::native_queue queue, queued::native_event* last) -> result<void> {
          if (auto cause = common::refused_fill(memory_, *memory)) return std::move(*cause);
          cl_event made = nullptr;
          const cl_int status = cl_->clEnqueueWriteBuffer(queue_of(queue), at.buffer, CL_FALSE, at.offset,
                                                          pattern->size(), pattern->data(), 0, nullptr, &made);
          if (status != CL_SUCCESS) return cl_error(status, "a fill of " + to_string(bytes{pattern->size()}));
          *last = made;
          return {};
        }));
  }
  return submit(std::make_unique<host_command>([this, memory, at, size, written]() -> std::shared_ptr<const error> {
    if (auto cause = common::refused_fill(memory_, *memory)) return shared_error(std::move(*cause));
    const std::vector<std::byte> pattern = written();
    if (at.host != nullptr) {
      std::memcpy(at.host, pattern.data(), size);
      return nullptr;
    }
    auto queue = aside(memory->owner);
    if (!queue) return shared_error(std::move(queue).error());
    const cl_int status =
        cl_->clEnqueueWriteBuffer(*queue, at.buffer, CL_TRUE, at.offset, size, pattern.data(), 0, nullptr, nullptr);
    if (status != CL_SUCCESS) return shared_error(cl_error(status, "a fill on " + to_string(memory->owner)));
    return nullptr;
  }));
}

}  // namespace weft::opencl
