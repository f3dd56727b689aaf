// SPDX-License-Identifier: Apache-2.0
// Copies of the gpu backend. What GPUs reach is the driver's to move, in the stream. What only the host reaches the
// driver stages, and blocks who asks for it: a thread of the host does that in stream order, or the caller itself where
// it waits anyway. But little of it needs no thread: what comes from a GPU lands in page-locked memory first, and what
// goes to one the driver takes at once, into its own queue.
#include "backends/common/copy_checks.hpp"
#include "backends/gpu/gpu_backend.hpp"

#include <algorithm>
#include <cstring>
#include <functional>

namespace weft::gpu {

using common::holder_of;
using common::on_device;

namespace {

using driver_command = queued::driver_command<pin>;
using host_command = queued::host_command<pin>;

/// One side of a copy.
struct end {
  std::shared_ptr<allocation> memory;  // empty for plain memory of the host
  CUdeviceptr gpu = 0;                 // where GPUs find it; 0: nowhere
  std::byte* host = nullptr;           // where the host does; null: nowhere

  [[nodiscard]] bool is_plain() const { return gpu == 0; }
  [[nodiscard]] bool is_host() const { return host != nullptr && (!memory || memory->kind != memory_kind::unified); }
};

bool is_block(const end& one) { return common::is_block(one.memory.get()); }

/// One side of a box as the driver takes it. Nothing where it would not: rows that overlap, slices of no whole rows.
struct box_side {
  std::size_t pitch = 0, height = 0;
};

std::optional<box_side> side_of(const copy_shape& shape, std::uint64_t pitch, std::uint64_t slice) {
  constexpr std::uint64_t largest_pitch = 0x7fffffff;
  if (shape.height == 1) pitch = shape.depth == 1 ? shape.width : slice;  // one row: slices are the rows
  if (pitch < shape.width || pitch > largest_pitch) return std::nullopt;
  // the height of a side is never less than that of the box, which has slices as rows where each is one
  if (shape.height == 1 || shape.depth == 1) return box_side{pitch, std::max(shape.height, shape.depth)};
  if (slice % pitch != 0 || slice / pitch < shape.height) return std::nullopt;
  return box_side{pitch, slice / pitch};
}

/// Whether rows of a side begin where those before them end.
bool is_packed(const copy_shape& s, std::uint64_t pitch, std::uint64_t slice) {
  return (s.height == 1 || pitch == s.width) && (s.depth == 1 || slice == s.width * s.height);
}

void copy_rows(const copy_shape& s, std::byte* to, const std::byte* from) {
  for (std::uint64_t z = 0; z < s.depth; ++z) {
    for (std::uint64_t y = 0; y < s.height; ++y)
      std::memcpy(to + z * s.dst_slice + y * s.dst_pitch, from + z * s.src_slice + y * s.src_pitch, s.width);
  }
}

}  // namespace

struct gpu_backend::prepared_copy {
  copy_shape shape;
  device_id by;  // whose stream it is in
  end dst, src;
  const link_path* path = nullptr;
  bool is_read_at_once = false;  // little plain memory, and nothing is under way that may write it
  // between two GPUs
  CUcontext dst_context = nullptr, src_context = nullptr;

  [[nodiscard]] bool is_peer() const { return dst_context != nullptr; }
  /// Blocks follow rights of their own.
  [[nodiscard]] bool has_block() const { return is_block(dst) || is_block(src); }
  /// The driver would make the calling thread wait, or has nothing to do with it.
  [[nodiscard]] bool is_for_host() const {
    return dst.is_plain() || (src.is_plain() && !is_read_at_once) || (dst.is_host() && src.is_host());
  }
  [[nodiscard]] bool is_line() const { return shape.height == 1 && shape.depth == 1; }
};

result<gpu_backend::prepared_copy> gpu_backend::prepare(const copy_request& request, device_id by) {
  prepared_copy made;
  made.shape = request.shape;
  made.by = by;
  copy_shape& shape = made.shape;
  common::copy_ends<allocation> ends;
  if (auto wrong = common::find_ends(ends, memory_, request)) return std::move(*wrong);
  const auto side = [](std::shared_ptr<allocation> memory, const void* address) {
    auto* const at =
        const_cast<std::byte*>(static_cast<const std::byte*>(address));  // read only where it is the source
    if (!memory) return end{nullptr, 0, at};
    const CUdeviceptr gpu = gpu_address(*memory, at);
    std::byte* const host = host_address(*memory, at);
    return end{std::move(memory), gpu, host};
  };
  made.dst = side(std::move(ends.dst), request.dst);
  made.src = side(std::move(ends.src), request.src);
  const allocation* const dst = made.dst.memory.get();
  const allocation* const src = made.src.memory.get();
  made.path = traffic_.between(holder_of(src), holder_of(dst));
  if (made.has_block()) {
    if (auto engine = common::engine_of(memory_, dst, src, by); !engine) return std::move(engine).error();
  } else if (on_device(dst) && on_device(src) && !found_.same_gpu(local(dst->owner), local(src->owner))) {
    // memory of another process is in the context where it was opened
    auto to = places_->of(local(dst->imported ? dst->by : dst->owner));
    auto from = places_->of(local(src->imported ? src->by : src->owner));
    if (!to) return std::move(to).error();
    if (!from) return std::move(from).error();
    made.dst_context = *to;
    made.src_context = *from;
  }
  if (is_packed(shape, shape.dst_pitch, shape.dst_slice) && is_packed(shape, shape.src_pitch, shape.src_slice)) {
    const std::uint64_t all = shape.total();
    shape = copy_shape{};
    shape.width = all;
  }
  return made;
}

/// Why a copy may not be made now; null if it may. Access is looked at when it starts: a disable in between counts.
std::shared_ptr<const error> gpu_backend::check_access(const prepared_copy& copy) const {
  for (const end* side : {&copy.dst, &copy.src}) {
    if (!side->memory) continue;
    if (auto cause = memory_map::gone_with_reset(*side->memory)) return shared_error(std::move(*cause));
  }
  const auto who = common::may_start(memory_, copy.dst.memory.get(), copy.src.memory.get(), copy.by);
  return who ? nullptr : shared_error(who.error());
}

namespace {

/// Makes the driver copy `width` bytes.
CUresult copy_line(const driver& cu, const end& to, const end& from, std::uint64_t dst_offset, std::uint64_t src_offset,
                   std::uint64_t width, CUcontext dst_context, CUcontext src_context, CUstream stream) {
  if (dst_context != nullptr) {
    return cu.cuMemcpyPeerAsync(to.gpu + dst_offset, dst_context, from.gpu + src_offset, src_context, width, stream);
  }
  if (from.is_host()) return cu.cuMemcpyHtoDAsync(to.gpu + dst_offset, from.host + src_offset, width, stream);
  if (to.is_host()) return cu.cuMemcpyDtoHAsync(to.host + dst_offset, from.gpu + src_offset, width, stream);
  if (on_device(to.memory.get()) && on_device(from.memory.get()))
    return cu.cuMemcpyDtoDAsync(to.gpu + dst_offset, from.gpu + src_offset, width, stream);
  return cu.cuMemcpyAsync(to.gpu + dst_offset, from.gpu + src_offset, width, stream);
}

template <class Box>
Box box_of(const copy_shape& s, const end& to, const box_side& dst, const end& from, const box_side& src) {
  Box made;
  const auto type = [](const end& one) {
    if (one.is_host()) return memory_type_host;
    return one.memory->kind == memory_kind::unified ? memory_type_unified : memory_type_device;
  };
  made.dst_type = type(to);
  made.src_type = type(from);
  made.dst_host = to.is_host() ? to.host : nullptr;
  made.src_host = from.is_host() ? from.host : nullptr;
  made.dst_device = to.is_host() ? 0 : to.gpu;
  made.src_device = from.is_host() ? 0 : from.gpu;
  made.dst_pitch = dst.pitch;
  made.src_pitch = src.pitch;
  made.dst_height = dst.height;
  made.src_height = src.height;
  made.width = s.width;
  made.height = s.height == 1 ? s.depth : s.height;
  made.depth = s.height == 1 ? 1 : s.depth;
  return made;
}

CUresult copy_box(const driver& cu, const copy_shape& s, const end& to, const end& from, CUcontext dst_context,
                  CUcontext src_context, CUstream stream) {
  if (s.height == 1 && s.depth == 1) return copy_line(cu, to, from, 0, 0, s.width, dst_context, src_context, stream);
  const auto dst = side_of(s, s.dst_pitch, s.dst_slice);
  const auto src = side_of(s, s.src_pitch, s.src_slice);
  if (dst && src) {
    if (dst_context == nullptr) {
      const auto box = box_of<CUDA_MEMCPY3D>(s, to, *dst, from, *src);
      return cu.cuMemcpy3DAsync(&box, stream);
    }
    auto box = box_of<CUDA_MEMCPY3D_PEER>(s, to, *dst, from, *src);
    box.dst_context = dst_context;
    box.src_context = src_context;
    return cu.cuMemcpy3DPeerAsync(&box, stream);
  }
  for (std::uint64_t z = 0; z < s.depth; ++z) {
    for (std::uint64_t y = 0; y < s.height; ++y) {
      const CUresult status = copy_line(cu, to, from, z * s.dst_slice + y * s.dst_pitch,
                                        z * s.src_slice + y * s.src_pitch, s.width, dst_context, src_context, stream);
      if (status != CUDA_SUCCESS) return status;
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace

result<event_ref> gpu_backend::submit_copies(queued::queued_stream& to, std::vector<prepared_copy> copies,
                                             std::stop_token stop) {
  queued::command_note note;
  note.kind = trace_kind::copy;
  auto at_end = land(copies);
  std::vector<pin> memory;
  memory.reserve(2 * copies.size());
  const link_path* path = nullptr;
  bool for_host = false;
  const auto is_elsewhere = [this](const prepared_copy& one) {
    const auto engine = common::engine_of(memory_, one.dst.memory.get(), one.src.memory.get(), one.by);
    return engine && *engine != one.by;
  };
  bool one_call = copies.size() > 1 && cu_->cuMemcpyBatchAsync != nullptr;
  for (const prepared_copy& one : copies) {
    note.bytes += one.shape.total();
    note.from = holder_of(one.src.memory.get());
    note.to = holder_of(one.dst.memory.get());
    path = one.path;
    for (const end* side : {&one.dst, &one.src}) {
      if (side->memory) memory.emplace_back(side->memory);
    }
    for_host = for_host || one.is_for_host() || (one.has_block() && is_elsewhere(one));
    one_call = one_call && !one.is_peer() && !one.is_read_at_once && one.is_line();
  }
  const auto submit = [&](auto made) {
    made->stop = std::move(stop);
    made->note = note;
    made->path = path;
    made->memory = std::move(memory);
    return submitted(to, std::move(made));
  };
  const auto copy_failed = [this](const prepared_copy& one, CUresult status) {
    return cu_error(*cu_, status, "a copy of " + to_string(bytes{one.shape.total()}), errc::copy_failed);
  };
  if (for_host) {
    return submit(std::make_unique<host_command>([this, all = std::move(copies)]() -> std::shared_ptr<const error> {
      for (const prepared_copy& one : all) {
        if (auto cause = copy_here(one)) return cause;
      }
      return nullptr;
    }));
  }
  constexpr std::uint64_t long_enough = 256 << 10;  // to be worth a call that says when it began
  const bool timed = note.bytes >= long_enough;
  auto made =
      std::make_unique<driver_command>([this, one_call, timed, copy_failed, all = std::move(copies)](
                                           queued::native_queue queue, queued::native_event* last) -> result<void> {
        for (const prepared_copy& one : all) {
          if (auto cause = check_access(one)) return error{*cause};
        }
        auto into = streams_->begin(queue, timed);
        if (!into) return std::move(into).error();
        // the driver takes no batch in the legacy default stream, which a program may have given
        if (one_call && into->stream() != reinterpret_cast<CUstream>(stream_legacy)) {
          const CUresult status = copy_many(all, into->stream());
          if (status != CUDA_SUCCESS) return copy_failed(all.front(), status);
        } else {
          for (const prepared_copy& one : all) {
            const CUresult status =
                copy_box(*cu_, one.shape, one.dst, one.src, one.dst_context, one.src_context, into->stream());
            if (status != CUDA_SUCCESS) return copy_failed(one, status);
          }
        }
        auto ended = into->finish();
        if (!ended) return std::move(ended).error();
        *last = *ended;
        return {};
      });
  made->is_delivering = at_end != nullptr;
  made->at_end = std::move(at_end);
  return submit(std::move(made));
}

/// Has all that goes from GPUs to plain memory of the host land in page-locked memory; what is left to do when it has
/// landed, or nothing where a thread has to do it.
std::function<void()> gpu_backend::land(std::vector<prepared_copy>& copies) {
  std::uint64_t size = 0;
  for (const prepared_copy& one : copies) {
    if (one.has_block()) return nullptr;  // it may have to be made in another stream, by a thread
    if (!one.is_for_host()) continue;
    if (one.src.gpu == 0 || one.src.is_host() || !one.is_line()) return nullptr;
    size += one.shape.width;
    if (size > landing_memory::largest) return nullptr;
  }
  if (size == 0) return nullptr;
  auto [block, at] = landing_.take(copies.front().by, size);
  if (block == nullptr) return nullptr;
  struct landed {
    std::byte* to;
    const std::byte* from;
    std::size_t size;
  };
  std::vector<landed> parts;
  parts.reserve(copies.size());
  for (prepared_copy& one : copies) {
    if (!one.is_for_host()) continue;
    parts.push_back({one.dst.host, at, one.shape.width});
    one.dst = {block, gpu_address(*block, at), at};
    at += one.shape.width;
  }
  return [parts = std::move(parts)] {
    for (const landed& one : parts) std::memcpy(one.to, one.from, one.size);
  };
}

/// Lines of one GPU's and pinned memory in a single call of the driver.
CUresult gpu_backend::copy_many(const std::vector<prepared_copy>& copies, CUstream stream) const {
  std::vector<CUdeviceptr> to;
  std::vector<CUdeviceptr> from;
  std::vector<std::size_t> sizes;
  to.reserve(copies.size());
  from.reserve(copies.size());
  sizes.reserve(copies.size());
  for (const prepared_copy& one : copies) {
    to.push_back(one.dst.gpu);
    from.push_back(one.src.gpu);
    sizes.push_back(one.shape.width);
  }
  CUmemcpyAttributes alike;
  std::size_t first = 0;
  constexpr std::size_t most = 1024;  // of very many at once drivers are told to fail
  for (std::size_t done = 0; done < sizes.size(); done += most) {
    const CUresult status = cu_->cuMemcpyBatchAsync(to.data() + done, from.data() + done, sizes.data() + done,
                                                    std::min(most, sizes.size() - done), &alike, &first, 1, stream);
    if (status != CUDA_SUCCESS) return status;
  }
  return CUDA_SUCCESS;
}

/// Makes one copy on this thread, in a stream aside of a device, and waits for it. A block's rights may be another's.
std::shared_ptr<const error> gpu_backend::copy_here(const prepared_copy& copy) const {
  if (auto cause = check_access(copy)) return cause;
  if (copy.dst.is_host() && copy.src.is_host()) {
    copy_rows(copy.shape, copy.dst.host, copy.src.host);
    return nullptr;
  }
  device_id by = copy.by;
  if (copy.has_block()) {
    auto engine = common::engine_of(memory_, copy.dst.memory.get(), copy.src.memory.get(), by);
    if (!engine) return shared_error(std::move(engine).error());
    by = *engine;
  }
  auto done = streams_->run_aside(by, "a copy of " + to_string(bytes{copy.shape.total()}), [&](CUstream stream) {
    return copy_box(*cu_, copy.shape, copy.dst, copy.src, copy.dst_context, copy.src_context, stream);
  });
  return done ? nullptr : shared_error(std::move(done).error());
}

result<stream_handle> gpu_backend::do_create_stream(device_id device, int priority, bool told) {
  auto made = queued_backend::do_create_stream(device, priority, told);
  if (made) landing_.prepare(device);
  return made;
}

result<event_ref> gpu_backend::do_copy(stream_handle handle, const copy_request& request) {
  auto order = stream_of(handle);
  if (!order) return std::move(order).error();
  auto ready = prepare(request, (*order)->device());
  if (!ready) return std::move(ready).error();
  if (request.wait && ready->is_for_host() && !streams_->is_timed() && scheduler_->settled(**order)) {
    const pin dst{ready->dst.memory}, src{ready->src.memory};  // so that a right that is withdrawn waits for it
    if (auto cause = copy_here(*ready)) return noticed((*order)->device(), error{*cause});
    if (ready->path != nullptr) account(*ready->path, ready->shape.total());
    return event_ref{};
  }
  constexpr std::uint64_t little = std::uint64_t{64} << 10;  // the driver has read it when its call returns
  ready->is_read_at_once = ready->src.is_plain() && ready->is_line() && ready->shape.width <= little &&
                           ready->dst.gpu != 0 && !ready->dst.is_host() && !ready->has_block() &&
                           scheduler_->settled(**order);
  std::vector<prepared_copy> one;
  one.reserve(1);
  one.push_back(std::move(*ready));
  return submit_copies(**order, std::move(one), request.stop);
}

result<event_ref> gpu_backend::do_copy_batch(stream_handle handle, std::span<const copy_request> requests) {
  auto order = stream_of(handle);
  if (!order) return std::move(order).error();
  std::vector<prepared_copy> batch;
  batch.reserve(requests.size());
  for (const copy_request& request : requests) {
    if (request.shape.total() == 0) continue;
    auto ready = prepare(request, (*order)->device());
    if (!ready) return std::move(ready).error();
    batch.push_back(std::move(*ready));
  }
  return submit_copies(**order, std::move(batch), requests.front().stop);
}

}  // namespace weft::gpu
