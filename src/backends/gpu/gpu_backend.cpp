// SPDX-License-Identifier: Apache-2.0
// The backend of GPUs: how it is put together and taken apart, what it says of its devices, and memory.
#include "backends/gpu/gpu_backend.hpp"

#include "backend/address.hpp"
#include "backends/gpu/factory.hpp"
#include "core/environment.hpp"
#include "processes/share_ticket.hpp"

#include <algorithm>
#include <exception>

namespace weft::gpu {
namespace {

std::vector<std::uint64_t> identities_of(const discovery& found) {
  std::vector<std::uint64_t> made;
  made.reserve(found.devices.size());
  for (const device_place& one : found.devices) made.push_back(detail::identity_of(one.description.uuid));
  return made;
}

/// `wanted`, or what the environment says, or the usual one.
std::string named(const std::string& wanted, const library_name& library) {
  if (!wanted.empty()) return wanted;
  return detail::environment(library.variable).value_or(library.usual);
}

}  // namespace

gpu_backend::gpu_backend(const backend_options& options, const settings& wanted, std::shared_ptr<const driver> cu,
                         management_library told, discovery found, topology machine)
    : queued_backend({cu->by->kind, options.first_device, queued::descriptions_of(found.devices), std::move(machine)}),
      cu_(std::move(cu)),
      management_(std::move(told)),
      found_(std::move(found)),
      places_(std::make_shared<contexts>(cu_, found_)),
      memory_(cu_, found_, places_, first_device()),
      landing_(memory_, found_.devices.size()),
      blocks_(memory_),
      multicast_(memory_, blocks_),
      bus_(named(wanted.gdrcopy, cu_->by->bus_windows), cu_->by->bus_windows.variable),
      sharing_(memory_, identities_of(found_)),
      streams_(std::make_shared<stream_driver>(places_, first_device(), found_, options.wait_policy)),
      modules_(places_, found_, wanted.compiler) {
  start(streams_, options);
}

gpu_backend::~gpu_backend() {
  close();
  stop();
}

error gpu_backend::noticed(device_id device, error cause) {
  if (cause.scope == error_scope::device) scheduler_->lose_by_fault(device, shared_error(cause));
  return cause;
}

void gpu_backend::look_at(device_id device) {
  see_ends(device);
  memory_.settle();
}

// ---- discover -------------------------------------------------------------------------------------------------------

result<memory_use> gpu_backend::do_memory(device_id device) {
  look_at(device);
  memory_use now = memory_.use(device);
  // without a context the driver cannot be asked, and none is made to look
  if (management_ && places_->made(local(device)) == nullptr) {
    if (const auto free = (*management_)->free_memory(found_.gpu_of(local(device)).pci_address))
      now.free = std::min(now.free, bytes{*free});
  }
  return now;
}

result<device_health> gpu_backend::do_health(device_id device) {
  const gpu_place& gpu = found_.gpu_of(local(device));
  auto now = management_ ? (*management_)->health(gpu.pci_address) : result<device_health>{management_.error()};
  if (now) return now;
  return make_error(errc::unsupported, "nothing tells how " + to_string(device) + " is: " + now.error().what);
}

result<peer_description> gpu_backend::do_peer(device_id from, device_id to) {
  peer_description about;
  const gpu_place& one = found_.gpu_of(local(from));
  const gpu_place& other = found_.gpu_of(local(to));
  if (!memory_.can_access(from, to)) {
    const std::string reason =
        management_ ? (*management_)->p2p_refusal(one.pci_address, other.pci_address) : std::string{};
    about.why = "the driver offers no peer access from " + one.name + " to " + other.name +
                (reason.empty() ? std::string{} : ", for " + reason) +
                "; copies go through the host (weft doctor says what to do)";
    return about;
  }
  const link_path& path = path_between(from, to);
  about.can_access = true;
  about.hops = static_cast<int>(path.links.size());
  about.atomics = true;
  about.why = "bandwidth and latency are not published for this link; measure_peers() finds them";
  if (found_.same_gpu(local(from), local(to))) {
    about.kind = link_kind::device_memory;
    about.native_atomics = about.array_access = true;  // without access copies are staged, as between two GPUs
    about.performance_rank = 0;
    about.why = "both are parts of one GPU; " + about.why;
    return about;
  }
  const gpu_pair& pair = found_.pair_of(local(from), local(to));
  about.kind = pair.kind;
  about.native_rank = pair.rank;
  if (pair.rank) about.performance_rank = performance_rank_of(cu_->by->kind, *pair.rank);
  about.native_atomics = pair.native_atomics;
  about.partial_native_atomics = pair.partial_atomics;
  about.array_access = pair.arrays;
  return about;
}

// ---- allocate -------------------------------------------------------------------------------------------------------

result<void*> gpu_backend::allocate_here(device_id device, bytes size, memory_kind kind, bool coherent) {
  if (auto cause = scheduler_->lost(device)) return error{*cause};
  auto made = memory_.allocate(device, size.size(), kind, 0, coherent);
  if (!made && made.error().code == errc::out_of_memory) {
    look_at(device);
    made = memory_.allocate(device, size.size(), kind, 0, coherent);
  }
  if (!made) return noticed(device, std::move(made).error());
  return made;
}

result<void> gpu_backend::do_release(void* base) { return memory_.release(base); }

result<void> gpu_backend::do_adopt(device_id device, void* base, bytes size) {
  if (auto cause = scheduler_->lost(device)) return error{*cause};
  auto done = memory_.adopt(device, base, size.size());
  if (!done) return noticed(device, std::move(done).error());
  return done;
}

result<event_ref> gpu_backend::do_prefetch(stream_handle handle, void* base, bytes size) {
  auto order = stream_of(handle);
  if (!order) return std::move(order).error();
  auto memory = memory_.find(base);
  if (!memory) return not_allocated(base);
  const device_id device = (*order)->device();
  if (cu_->cuMemPrefetchAsync == nullptr || size.value() == 0) return do_record(handle);  // it moves when it is used
  auto made = std::make_unique<queued::driver_command<pin>>(
      [this, device, at = gpu_address(*memory, base), size](queued::native_queue queue,
                                                            queued::native_event* last) -> result<void> {
        auto into = streams_->begin(queue);
        if (!into) return std::move(into).error();
        const CUmemLocation to{location_device, found_.gpu_of(local(device)).id};
        const CUresult status = cu_->cuMemPrefetchAsync(at, size.size(), to, 0, into->stream());
        if (status != CUDA_SUCCESS) return cu_error(*cu_, status, "a prefetch to " + to_string(device));
        auto ended = into->finish();
        if (!ended) return std::move(ended).error();
        *last = *ended;
        return {};
      });
  made->memory.emplace_back(std::move(memory));
  return submitted(**order, std::move(made));
}

result<void> gpu_backend::do_advise(void* base, bytes size, memory_advice advice, device_id device) {
  const auto memory = memory_.find(base);
  if (!memory) return not_allocated(base);
  if (cu_->cuMemAdvise == nullptr || size.value() == 0) return {};  // advice is allowed to change nothing
  auto here = places_->enter(local(device));
  if (!here) return noticed(device, std::move(here).error());
  const CUmemLocation at{location_device, found_.gpu_of(local(device)).id};
  const auto say = [&](int what) { return cu_->cuMemAdvise(gpu_address(*memory, base), size.size(), what, at); };
  CUresult status = CUDA_SUCCESS;
  switch (advice) {
    case memory_advice::read_mostly:
      status = say(advise_set_read_mostly);
      break;
    case memory_advice::preferred_location:
      status = say(advise_set_preferred_location);
      break;
    case memory_advice::accessed_by:
      status = say(advise_set_accessed_by);
      break;
    case memory_advice::none:
      for (const int what : {advise_unset_read_mostly, advise_unset_preferred_location, advise_unset_accessed_by}) {
        if (status == CUDA_SUCCESS) status = say(what);
      }
      break;
  }
  if (status != CUDA_SUCCESS) return noticed(device, cu_error(*cu_, status, "advice for " + to_string(device)));
  return {};
}

result<std::shared_ptr<std::byte>> gpu_backend::do_host_window(device_id by, void* address, bytes) {
  auto memory = memory_.find(address);
  if (!memory) return not_allocated(address);
  std::byte* const at = host_address(*memory, address);
  if (at == nullptr) {
    return not_offered("windows of the host into memory of a GPU: " + to_string(memory->owner) +
                       " is reached by commands only; pinned memory has one");
  }
  if (memory->kind == memory_kind::adopted && memory->gpu != reinterpret_cast<std::uintptr_t>(memory->host)) {
    return not_offered("windows of the host into memory that " + to_string(memory->owner) +
                       " knows by another address, as adopted memory here; pinned memory has one");
  }
  if (const std::string why = memory_.denied(by, *memory, true); !why.empty())
    return make_error(errc::illegal_access, "a window for " + to_string(by) + ": " + why);
  return std::shared_ptr<std::byte>{std::move(memory), at};
}

result<std::shared_ptr<bus_window>> gpu_backend::do_open_bus_window(void* address, bytes size) {
  auto memory = memory_.find(address);
  if (!memory) return not_allocated(address);
  if (memory->kind != memory_kind::device || memory->source)
    return not_offered("windows across the bus but into memory of a GPU");
  if (auto gone = memory_map::gone_with_reset(*memory)) return std::move(*gone);
  if (!found_.gpu_of(local(memory->owner)).orders_bus_writes) {
    return not_offered("windows across the bus: running kernels of " + to_string(memory->owner) +
                       " may see such writes in any order (its driver says so)");
  }
  const CUdeviceptr at = gpu_address(*memory, address);
  return bus_.open(std::move(memory), at, size.size());
}

// ---- order: streams of the program's own; the rest is queued_backend's ---------------------------------------------

result<stream_handle> gpu_backend::do_adopt_stream(device_id device, void* driver_queue) {
  if (auto cause = scheduler_->lost(device)) return error{*cause};
  auto made = scheduler_->adopt(device, driver_queue);
  if (!made) return noticed(device, std::move(made).error());
  return (*made)->handle();
}

result<std::unique_ptr<thread_place>> gpu_backend::do_enter(device_id device) {
  struct inside final : thread_place {
    inside(std::shared_ptr<contexts> all, current_context now) : places(std::move(all)), current(std::move(now)) {}
    std::shared_ptr<contexts> places;  // its driver, until the context is given back
    current_context current;
  };
  if (auto cause = scheduler_->lost(device)) return error{*cause};
  auto current = places_->enter(local(device));
  if (!current) return noticed(device, std::move(current).error());
  return std::unique_ptr<thread_place>{std::make_unique<inside>(places_, std::move(*current))};
}

result<void*> gpu_backend::do_driver_queue(stream_handle stream) {
  auto order = stream_of(stream);
  if (!order) return std::move(order).error();
  return scheduler_->share_queue(**order);
}

// ---- the end, and a new beginning -----------------------------------------------------------------------------------

/// The fault that is all that the driver answers there, else 0. A device without a context has that of another, which
/// may have ended the process. Not waiting.
CUresult gpu_backend::fault_of(device_id device) noexcept {
  std::size_t asked = local(device);
  for (std::size_t d = 0; places_->made(asked) == nullptr && d < devices().size(); ++d) asked = d;
  const CUcontext context = places_->made(asked);
  if (context == nullptr) return CUDA_SUCCESS;
  const current_context here{*cu_, context};
  if (here.status() != CUDA_SUCCESS) return here.status();
  std::size_t free = 0, total = 0;  // a question that touches no stream: one may be captured
  const CUresult status = cu_->cuMemGetInfo(&free, &total);
  return is_sticky(*cu_, status) ? status : CUDA_SUCCESS;
}

error gpu_backend::process_ended(device_id device, error cause) const {
  cause.code = errc::device_lost;
  cause.what = to_string(device) + " stays lost: after a fault " + cu_->by->name +
               " serves this process no more; restart the process: " + cause.what;
  return cause;
}

/// Whether the GPU does anything in a new context: after some faults a driver serves a process no more.
result<void> gpu_backend::serves(device_id device) {
  auto here = places_->enter(local(device));
  if (!here) return process_ended(device, std::move(here).error());
  CUdeviceptr probe = 0;
  CUresult status = cu_->cuMemAlloc(&probe, 1);
  if (status == CUDA_SUCCESS) status = cu_->cuMemFree(probe);
  if (status != CUDA_SUCCESS)
    return process_ended(device, cu_error(*cu_, status, "allocating after the reset", errc::device_lost));
  return {};
}

result<void> gpu_backend::do_reset(device_id device) {
  // a fault takes the context, and with it every part of the GPU; where no other part is lost, this one goes alone
  std::vector<device_id> parts{device};
  const CUresult fault = fault_of(device);
  const bool is_broken = fault != CUDA_SUCCESS;
  bool is_whole = true;
  for (std::size_t d = 0; d < devices().size(); ++d) {
    if (d == local(device) || !found_.same_gpu(d, local(device))) continue;
    parts.push_back(global(d));
    is_whole = is_whole && (is_broken || scheduler_->lost(global(d)) != nullptr);
  }
  if (!is_whole) parts.resize(1);
  // what is still held back is refused while the device counts as lost
  const auto cause = shared_error(make_error(errc::cancelled, to_string(device) + " is being reset"));
  for (const device_id part : parts) scheduler_->lose(part, cause);
  if (is_broken && cu_->by->ends_process(fault) && places_->made(local(device)) != nullptr)
    return process_ended(device, cu_error(*cu_, fault, "asking the driver", errc::device_lost));
  for (const device_id part : parts) {
    for (queued::queued_stream* order : scheduler_->streams_of(part))
      static_cast<void>(scheduler_->synchronize(*order, no_deadline, {}));
    await_others(part);
    // a late value would let a wait go that comes after it
    if (!is_whole && !streams_->words().settle(local(part))) {
      return make_error(errc::not_ready, to_string(part) +
                                             " stays lost: waits for words that the reset has given up do not end; "
                                             "reset it again later");
    }
  }
  result<void> done;
  std::vector<device_id> landed;
  if (is_whole) {
    for (const device_id part : parts) {
      if (landing_.end(part)) landed.push_back(part);
    }
    memory_.settle(std::chrono::milliseconds{1000});  // what goes back now is not to take what comes after the reset
    const auto alone = streams_->alone(local(device));
    for (const device_id part : parts) bus_.end(part);
    streams_->forget(local(device));
    modules_.forget(local(device));
    done = places_->reset(local(device));
    if (is_broken) done = serves(device);  // the reset of a broken context may say what broke it
  }
  for (const device_id part : parts) {
    multicast_.forget(part);
    blocks_.forget(part);
    memory_.forget(part, is_whole);
  }
  memory_.register_again(device);
  if (!done) return done;
  for (const device_id part : landed) landing_.prepare(part);
  for (const device_id part : parts) scheduler_->restore(part);
  return {};
}

void gpu_backend::do_close() noexcept {
  bus_.end(std::nullopt);
  sharing_.end();
  streams_->close();
  modules_.clear();
  multicast_.clear();
  landing_.clear();
  memory_.clear();
  blocks_.clear();
  memory_.settle();
  memory_.end_late_work();
  places_->release();
}

// ---- factory --------------------------------------------------------------------------------------------------------

result<std::unique_ptr<backend>> open_of(const vendor& by, const backend_options& options,
                                         const settings& wanted) noexcept {
  try {
    const std::string title = std::string{"the "} + by.name + " backend";
    if (options.clock == clock_kind::virtual_time)
      return make_error(errc::unsupported, title + " runs on the wall clock; virtual time is the host backend's");
    if (options.machine)
      return make_error(errc::unsupported, title + " is the GPUs that are there; the host backend plays others");
    auto cu = wanted.table ? start_driver(*wanted.table, wanted.driver.empty() ? "a table" : wanted.driver, by)
                           : by.load(named(wanted.driver, by.driver));
    if (!cu) return std::move(cu).error();
    management_library told = by.manage(**cu, named(wanted.management, by.management), wanted.system_root);
    auto found = discover(**cu, told ? told->get() : nullptr, wanted, options);
    if (!found) return std::move(found).error();
    for (std::string& note : found->notes) note.insert(0, std::string{by.name} + ": ");
    auto machine = layout_of(*found, by);
    if (!machine) return std::move(machine).error();
    return std::unique_ptr<backend>{std::make_unique<gpu_backend>(options, wanted, std::move(*cu), std::move(told),
                                                                  std::move(*found), std::move(*machine))};
  } catch (const std::exception& failed) {
    return make_error(errc::resource_exhausted, std::string{"the "} + by.name + " backend: " + failed.what());
  }
}

}  // namespace weft::gpu
