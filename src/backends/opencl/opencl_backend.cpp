// SPDX-License-Identifier: Apache-2.0
#include "backends/opencl/opencl_backend.hpp"

#include "backend/address.hpp"
#include "core/text/hex.hpp"
#include "weft/core/log.hpp"

#include <algorithm>
#include <exception>

namespace weft::opencl {

opencl_backend::opencl_backend(const backend_options& options, std::shared_ptr<const api> cl, discovery found,
                               topology machine)
    : queued_backend(
          {backend_kind::opencl, options.first_device, queued::descriptions_of(found.devices), std::move(machine)}),
      cl_(std::move(cl)),
      found_(std::move(found)),
      memory_(cl_, found_, first_device()),
      programs_(cl_, found_),
      aside_(found_.devices.size()) {
  start(std::make_shared<cl_queue_driver>(cl_, found_, first_device()), options);
}

opencl_backend::~opencl_backend() {
  close();
  stop();
}

// ---- discover -------------------------------------------------------------------------------------------------------

result<memory_use> opencl_backend::do_memory(device_id device) {
  see_ends(device);
  return memory_.use(device);
}

result<peer_description> opencl_backend::do_peer(device_id from, device_id to) {
  peer_description about;
  const context_place& place = found_.contexts[memory_.context_of(to)];
  about.can_copy = memory_.copies_without_access(from, to);
  if (!memory_.can_access(from, to)) {
    about.why = memory_.context_of(from) != memory_.context_of(to)
                    ? "OpenCL joins no devices of different platforms; copies go through the host"
                    : "the devices of " + place.platform +
                          " have no fine-grained shared memory: a kernel cannot follow an address into the memory of "
                          "another device; copies are the driver's, inside their context";
    return about;
  }
  const link_path& path = path_between(from, to);
  about.can_access = true;
  about.kind = link_kind::host_memory;
  about.hops = static_cast<int>(path.links.size());
  about.performance_rank = 0;  // one memory: no neighbour is nearer than another
  about.atomics = about.native_atomics = place.atomics;
  about.why = "bandwidth and latency are not published for this link; measure_peers() finds them";
  return about;
}

// ---- allocate -------------------------------------------------------------------------------------------------------

result<void*> opencl_backend::do_allocate(device_id device, bytes size, memory_kind kind) {
  if (auto cause = scheduler_->lost(device)) return error{*cause};
  auto made = memory_.allocate(device, size.size(), kind);
  if (made || made.error().code != errc::out_of_memory) return made;
  see_ends(device);
  return memory_.allocate(device, size.size(), kind);
}

result<void> opencl_backend::do_release(void* base) { return memory_.release(base); }

result<void> opencl_backend::do_adopt(device_id device, void* base, bytes size) {
  return memory_.adopt(device, base, size.size());
}

result<event_ref> opencl_backend::do_prefetch(stream_handle handle, void*, bytes) {
  auto order = stream_of(handle);
  if (!order) return std::move(order).error();
  return do_record(handle);  // one memory: it is there already
}

result<void> opencl_backend::do_advise(void*, bytes, memory_advice, device_id) {
  return {};  // advice is allowed to change nothing, and one memory leaves nothing to change
}

result<std::shared_ptr<std::byte>> opencl_backend::do_host_window(device_id by, void* address, bytes) {
  auto memory = memory_.find(address);
  if (!memory) return not_allocated(address);
  if (!memory_.shares_atomics(memory->owner)) {
    return not_offered("windows of the host into device memory: " + to_string(memory->owner) +
                       " has no fine-grained shared memory with atomics");
  }
  if (memory->kind == memory_kind::adopted && !memory_.adopts_whole(memory->owner)) {
    return not_offered("windows of the host into adopted memory, of which " + to_string(memory->owner) +
                       " may keep a copy: it shares fine-grained memory of the driver's only");
  }
  if (const std::string why = memory_.denied(by, *memory); !why.empty())
    return make_error(errc::illegal_access, "a window for " + to_string(by) + ": " + why);
  std::byte* const at = place_of(*memory, address).host;
  return std::shared_ptr<std::byte>{std::move(memory), at};
}

// ---- share ----------------------------------------------------------------------------------------------------------

bool opencl_backend::do_can_access(device_id from, device_id to) noexcept { return memory_.can_access(from, to); }

result<void> opencl_backend::do_enable_peer(device_id from, device_id to) { return memory_.enable(from, to); }

result<void> opencl_backend::do_disable_peer(device_id from, device_id to) { return memory_.disable(from, to); }

bool opencl_backend::do_peer_enabled(device_id from, device_id to) noexcept { return memory_.enabled(from, to); }

result<void*> opencl_backend::do_map_peer(device_id by, void* address, bytes size) {
  return memory_.map(by, address, size.size());
}

result<void> opencl_backend::do_unmap_peer(device_id by, void* mapped) { return memory_.unmap(by, mapped); }

result<atomic_support> opencl_backend::do_peer_atomics(device_id from, device_id to, atomic_operation operation) {
  if (!memory_.can_access(from, to) || !memory_.shares_atomics(to)) return atomic_support::none;
  switch (operation) {
    case atomic_operation::float_add:
    case atomic_operation::float_min:
    case atomic_operation::float_max:
      return atomic_support::none;  // OpenCL C makes them of a compare and exchange
    default:
      return atomic_support::signed_integers | atomic_support::unsigned_integers | atomic_support::scalar_32 |
             atomic_support::scalar_64;
  }
}

result<access_right> opencl_backend::do_memory_access(device_id device, const void* address) {
  const auto memory = memory_.find(address);
  if (!memory) return not_allocated(address);
  return memory_.denied(device, *memory).empty() ? access_right::read_write : access_right::none;
}

// ---- watch ----------------------------------------------------------------------------------------------------------

result<void> opencl_backend::do_reset(device_id device) {
  // what is still held back is refused while the device counts as lost
  scheduler_->lose(device, shared_error(make_error(errc::cancelled, to_string(device) + " is being reset")));
  for (queued::queued_stream* order : scheduler_->streams_of(device))
    static_cast<void>(scheduler_->synchronize(*order, no_deadline, {}));
  await_others(device);
  memory_.forget(device);
  scheduler_->restore(device);
  return {};
}

void opencl_backend::do_close() noexcept { memory_.clear(); }

// ---- factory --------------------------------------------------------------------------------------------------------

result<std::unique_ptr<backend>> open_on(std::shared_ptr<const api> cl, const backend_options& options,
                                         const settings& wanted) noexcept {
  try {
    auto found = discover(cl, wanted, options.logical_devices, options.leave_out);
    if (!found) return std::move(found).error();
    for (std::string& note : found->notes) {
      note.insert(0, "OpenCL: ");
      log(log_level::warning, note);
    }
    if (options.memory_per_device) {
      for (device_place& one : found->devices)
        one.description.memory = std::min(one.description.memory, *options.memory_per_device);
    }
    auto machine = layout_of(*found);
    if (!machine) return std::move(machine).error();
    return std::unique_ptr<backend>{
        std::make_unique<opencl_backend>(options, std::move(cl), std::move(*found), std::move(*machine))};
  } catch (const std::exception& failed) {
    return make_error(errc::resource_exhausted, std::string{"the OpenCL backend: "} + failed.what());
  }
}

result<std::unique_ptr<backend>> open_with(const backend_options& options, const settings& wanted) noexcept {
  try {
    if (options.clock == clock_kind::virtual_time) {
      return make_error(errc::unsupported,
                        "the OpenCL backend runs on the wall clock; virtual time is the host backend's");
    }
    auto cl = load_api(wanted.library);
    if (!cl) return std::move(cl).error();
    return open_on(std::move(*cl), options, wanted);
  } catch (const std::exception& failed) {
    return make_error(errc::resource_exhausted, std::string{"the OpenCL backend: "} + failed.what());
  }
}

result<std::unique_ptr<backend>> open(const backend_options& options) noexcept { return open_with(options, {}); }

}  // namespace weft::opencl
