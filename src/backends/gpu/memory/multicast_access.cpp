// SPDX-License-Identifier: Apache-2.0
// Storing to all replicas of a multicast object, and joining them in one read: kernels of the library's own. Memory of
// the host that no GPU reaches goes through memory of the stream's device.
#include "backends/gpu/gpu_backend.hpp"
#include "backends/gpu/kernels/own_kernels.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace weft::gpu {
namespace {

const char* words_for(multicast_reduction how) {
  constexpr std::array names{"the sum", "the least", "the largest"};
  return names[static_cast<std::size_t>(how)];
}

copy_request line(void* dst, const void* src, std::uint64_t size, bool to_host) {
  copy_request made;
  made.dst = dst;
  made.src = src;
  made.dst_is_host = to_host;
  made.src_is_host = !to_host;
  made.shape.width = size;
  return made;
}

}  // namespace

/// One of the two, with all that the kernel is given.
struct gpu_backend::multicast_access {
  std::shared_ptr<const multicast_use> object;
  std::shared_ptr<const kernel_code> code;
  const void* memory = nullptr;  // of a device: what is stored, or what is loaded into
  std::uint64_t size = 0;        // bytes
  std::uint64_t count = 0;       // elements; of a store, bytes
  std::uint64_t items = 0;       // threads that have something to do
  bool is_store = false;
};

result<event_ref> gpu_backend::through_multicast(queued::queued_stream& order, multicast_access access) {
  const device_id by = order.device();
  const std::string what = access.is_store ? "a store to a multicast" : "a load from a multicast";
  auto memory = memory_.find(access.memory, access.size);
  if (!memory) return make_error(errc::not_found, hex(access.memory) + " lies in no allocation; was it freed?");
  if (auto wrong = beyond_end(what, access.size, access.memory, memory->user, memory->size)) return std::move(*wrong);
  if (auto cause = memory->broken()) return std::move(*cause);
  if (const std::string why = memory_.denied(by, *memory, !access.is_store); !why.empty())
    return make_error(errc::invalid_argument, what + ": " + why);
  const CUdeviceptr at = gpu_address(*memory, access.memory);
  const std::uint64_t element = access.size / access.count;
  if (at % element != 0) {
    return make_error(errc::invalid_argument, what + ": its destination " + hex(access.memory) +
                                                  " is no multiple of the " + std::to_string(element) +
                                                  " bytes of an element");
  }
  auto loaded = modules_.get(*access.code, local(by));
  if (!loaded) return noticed(by, std::move(loaded).error());
  // more blocks than run at a time are no faster: each thread goes on with the next items
  constexpr unsigned blocks_of_a_unit = 16;
  const std::uint64_t width = (*loaded)->block[0][0];
  const auto blocks = static_cast<unsigned>(std::clamp<std::uint64_t>(
      (access.items + width - 1) / width, 1,
      std::min(blocks_of_a_unit * static_cast<unsigned>(found_.gpu_of(local(by)).compute_units),
               (*loaded)->largest_grid[0])));
  auto made = std::make_unique<queued::driver_command<pin>>(
      [this, by, at, blocks, what, access, memory = memory.get(), kernel = std::move(*loaded)](
          queued::native_queue queue, queued::native_event* last) -> result<void> {
        if (auto cause = memory->broken()) return std::move(*cause);
        if (const std::string why = memory_.denied(by, *memory, !access.is_store); !why.empty())
          return make_error(errc::not_enabled, what + ": " + why);
        if (kernel->generation != places_->generation(local(by))) {
          return make_error(errc::cancelled,
                            what + " was asked for while " + to_string(by) + " was being reset: ask again");
        }
        auto into = streams_->begin(queue);
        if (!into) return std::move(into).error();
        const CUdeviceptr there = access.object->address();
        std::array<const void*, 3> given{&there, &at, &access.count};
        if (!access.is_store) std::swap(given[0], given[1]);
        // the driver reads them, whatever it calls them
        std::array<void*, 3> list{const_cast<void*>(given[0]), const_cast<void*>(given[1]),
                                  const_cast<void*>(given[2])};
        const CUresult status = cu_->cuLaunchKernel(kernel->function, blocks, 1, 1, kernel->block[0][0], 1, 1, 0,
                                                    into->stream(), list.data(), nullptr);
        if (status != CUDA_SUCCESS) return cu_error(*cu_, status, what + " on " + to_string(by), errc::kernel_failed);
        auto ended = into->finish();
        if (!ended) return std::move(ended).error();
        *last = *ended;
        for (const device_id other : access.object->replicas()) {
          const link_path* const path = access.is_store ? traffic_.between(by, other) : traffic_.between(other, by);
          if (other != by && path != nullptr) account(*path, access.size);
        }
        return {};
      });
  made->note.kind = trace_kind::copy;
  made->note.bytes = access.size;
  made->note.from = by;
  made->note.to = by;
  made->memory.emplace_back(std::move(memory));
  return submitted(order, std::move(made));
}

namespace {

/// Memory that a store or load passes through on the device.
struct staging {
  staging(backend& of, void* at) : owner(of), base(at) {}
  ~staging() { static_cast<void>(owner.release(base)); }
  staging(const staging&) = delete;
  staging& operator=(const staging&) = delete;
  backend& owner;
  void* base;
};

}  // namespace

result<event_ref> gpu_backend::do_multicast_store(stream_handle handle, multicast_id group, bytes offset,
                                                  const void* src, bytes size) {
  auto order = stream_of(handle);
  if (!order) return std::move(order).error();
  const device_id by = (*order)->device();
  auto object = multicast_.use(group, by, offset.value(), size.value());
  if (!object) return noticed(by, std::move(object).error());
  if (size.value() == 0) return do_record(handle);
  if (src == nullptr) return make_error(errc::invalid_argument, "a store to a multicast from null");
  multicast_access access;
  const std::uint64_t skew = (*object)->address() % 16;
  access.items = (skew + size.value() + 15) / 16;
  access.object = std::move(*object);
  access.code = own_kernels::multicast_store();
  access.size = access.count = size.value();
  access.is_store = true;
  access.memory = src;
  if (memory_.find(src, size.value())) return through_multicast(**order, std::move(access));
  auto staged = do_allocate(by, size, memory_kind::device);
  if (!staged) return std::move(staged).error();
  const staging goes_with_the_last_use{*this, *staged};
  access.memory = *staged;
  auto done = do_copy(handle, line(*staged, src, size.value(), false));
  if (done) done = through_multicast(**order, std::move(access));
  return done;
}

result<event_ref> gpu_backend::do_multicast_load(stream_handle handle, void* dst, multicast_id group, bytes offset,
                                                 std::size_t count, element_type type, multicast_reduction how) {
  auto order = stream_of(handle);
  if (!order) return std::move(order).error();
  const device_id by = (*order)->device();
  const std::uint64_t size = count * size_of(type);
  auto object = multicast_.use(group, by, offset.value(), size);
  if (!object) return noticed(by, std::move(object).error());
  multicast_access access;
  access.code = own_kernels::multicast_load(type, how);
  if (!access.code) {
    return make_error(errc::unsupported, std::string{"the hardware has no instruction for "} + words_for(how) + " of " +
                                             std::string{name_of(type)} +
                                             " over the replicas of a multicast: it adds up 32 and 64 bit integers "
                                             "and floats, and finds the least and the largest of those integers");
  }
  if (offset.value() % size_of(type) != 0) {
    return make_error(errc::invalid_argument, "a load from a multicast at byte " + std::to_string(offset.value()) +
                                                  ", which is no multiple of the " + std::to_string(size_of(type)) +
                                                  " bytes of an element");
  }
  if (count == 0) return do_record(handle);
  if (dst == nullptr) return make_error(errc::invalid_argument, "a load from a multicast to null");
  access.object = std::move(*object);
  access.size = size;
  access.count = access.items = count;
  access.memory = dst;
  if (memory_.find(dst, size)) return through_multicast(**order, std::move(access));
  auto staged = do_allocate(by, bytes{size}, memory_kind::device);
  if (!staged) return std::move(staged).error();
  const staging goes_with_the_last_use{*this, *staged};
  access.memory = *staged;
  auto done = through_multicast(**order, std::move(access));
  if (done) done = do_copy(handle, line(dst, *staged, size, true));
  return done;
}

}  // namespace weft::gpu
