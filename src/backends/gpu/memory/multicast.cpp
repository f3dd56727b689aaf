// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/memory/multicast.hpp"

#include <algorithm>
#include <utility>

namespace weft::gpu {

/// One object of the driver, and who has joined it.
struct multicast_groups::group {
  memory_map* home = nullptr;
  CUmemGenericAllocationHandle handle = 0;
  std::size_t devices = 0;  // that it is for
  std::size_t size = 0;
  std::vector<device_id> joined;
  std::map<device_id, std::shared_ptr<block_memory>> bound;  // kept: what is bound must not be freed
  CUdeviceptr address = 0;                                   // 0: not mapped yet
  std::atomic<int> users{0};

  group() = default;
  group(const group&) = delete;
  group& operator=(const group&) = delete;
  ~group() {
    if (home == nullptr || handle == 0) return;
    // nobody may find the address when the memory behind it goes
    home->later([from = home, cu = &home->cu(), h = handle, n = size, at = address, kept = std::move(bound)] {
      if (at != 0) static_cast<void>(cu->cuMemUnmap(at, n));
      for (const auto& one : kept) {
        const CUdevice gpu = from->found().gpu_of(from->local(one.first)).id;
        static_cast<void>(cu->cuMulticastUnbind(h, gpu, 0, n));
      }
      if (at != 0) static_cast<void>(cu->cuMemAddressFree(at, n));
      static_cast<void>(cu->cuMemRelease(h));
    });
  }
};

std::string multicast_groups::missing(device_id device) const {
  const std::size_t local = memory_.local(device);
  const gpu_place& gpu = memory_.found().gpu_of(local);
  if (memory_.found().devices[local].parts > 1)
    return to_string(device) + " is a part of a GPU, which joins as a whole";
  if (!gpu.multicast) return gpu.name + " has no multicast";
  return {};
}

std::shared_ptr<multicast_groups::group> multicast_groups::find(multicast_id id) {
  const std::lock_guard lock{mutex_};
  const auto it = groups_.find(id);
  return it == groups_.end() ? nullptr : it->second;
}

result<bytes> multicast_groups::granularity(std::span<const device_id> team) {
  if (team.size() < 2) {
    return make_error(errc::unsupported,
                      "multicast is between two devices or more, not " + std::to_string(team.size()));
  }
  for (const device_id one : team) {
    if (const std::string why = missing(one); !why.empty()) return make_error(errc::unsupported, "multicast: " + why);
  }
  CUmulticastObjectProp wanted;
  wanted.devices = static_cast<unsigned>(team.size());
  wanted.size = std::size_t{2} << 20;
  std::size_t size = 0;
  const CUresult status = cu_.cuMulticastGetGranularity(&size, &wanted, granularity_minimum);
  if (status != CUDA_SUCCESS || size == 0) return cu_error(cu_, status, "the granularity of a multicast");
  return bytes{size};
}

result<multicast_id> multicast_groups::create(std::size_t devices, std::size_t size) {
  if (devices == 0 || size == 0) return make_error(errc::invalid_argument, "a multicast of no device, or no byte");
  if (cu_.cuMulticastCreate == nullptr)
    return make_error(errc::unsupported, "this driver has no multicast: that of CUDA 12.1 has");
  auto made = std::make_shared<group>();
  made->devices = devices;
  made->size = size;
  CUmulticastObjectProp wanted;
  wanted.devices = static_cast<unsigned>(devices);
  wanted.size = size;
  const CUresult status = cu_.cuMulticastCreate(&made->handle, &wanted);
  if (status != CUDA_SUCCESS)
    return cu_error(cu_, status, "a multicast of " + std::to_string(devices) + " devices", errc::invalid_argument);
  made->home = &memory_;
  const std::lock_guard lock{mutex_};
  const multicast_id id{++last_id_};
  groups_.emplace(id, std::move(made));
  return id;
}

void multicast_groups::release(multicast_id id) {
  std::shared_ptr<group> gone;
  const std::lock_guard lock{mutex_};
  const auto it = groups_.find(id);
  if (it == groups_.end()) return;
  gone = std::move(it->second);
  groups_.erase(it);
}

result<void> multicast_groups::add(multicast_id id, device_id device) {
  const auto known = find(id);
  if (!known) return make_error(errc::not_found, "there is no such multicast; was it released?");
  if (const std::string why = missing(device); !why.empty()) return make_error(errc::unsupported, "multicast: " + why);
  const std::lock_guard lock{mutex_};
  if (std::find(known->joined.begin(), known->joined.end(), device) != known->joined.end())
    return make_error(errc::invalid_argument, to_string(device) + " was added to this multicast before");
  if (known->joined.size() == known->devices) {
    return make_error(errc::invalid_argument, "this multicast is for " + std::to_string(known->devices) +
                                                  " devices, and has them: there is no place for " + to_string(device));
  }
  const CUresult status = cu_.cuMulticastAddDevice(known->handle, memory_.found().gpu_of(memory_.local(device)).id);
  if (status != CUDA_SUCCESS) return cu_error(cu_, status, "adding " + to_string(device) + " to a multicast");
  known->joined.push_back(device);
  return {};
}

result<void> multicast_groups::bind(multicast_id id, block_id block) {
  const auto known = find(id);
  if (!known) return make_error(errc::not_found, "there is no such multicast; was it released?");
  const auto memory = blocks_.find(block);
  if (!memory) return make_error(errc::not_found, "there is no such block; was it released?");
  const std::lock_guard lock{mutex_};
  if (std::find(known->joined.begin(), known->joined.end(), memory->device) == known->joined.end())
    return make_error(errc::wrong_device, to_string(memory->device) + " was not added to this multicast");
  if (known->joined.size() != known->devices) {
    return make_error(errc::not_ready, "this multicast has " + std::to_string(known->joined.size()) + " of its " +
                                           std::to_string(known->devices) + " devices: add the others first");
  }
  if (known->bound.contains(memory->device))
    return make_error(errc::invalid_argument, to_string(memory->device) + " has bound a block already");
  if (memory->size < known->size) {
    return make_error(errc::invalid_argument, "a block of " + to_string(bytes{memory->size}) +
                                                  " is too small for a multicast of " + to_string(bytes{known->size}));
  }
  const CUresult status = cu_.cuMulticastBindMem(known->handle, 0, memory->handle, 0, known->size, 0);
  if (status != CUDA_SUCCESS)
    return cu_error(cu_, status, "binding a block of " + to_string(memory->device) + " to a multicast");
  known->bound.emplace(memory->device, memory);
  return {};
}

result<void> multicast_groups::unbind(multicast_id id, device_id device) {
  const auto known = find(id);
  if (!known) return make_error(errc::not_found, "there is no such multicast; was it released?");
  const std::lock_guard lock{mutex_};
  const auto it = known->bound.find(device);
  if (it == known->bound.end())
    return make_error(errc::not_found, to_string(device) + " has bound no block to this multicast");
  if (known->users.load(std::memory_order_acquire) != 0) {
    return make_error(errc::not_ready, "work still uses the multicast that " + to_string(device) +
                                           " unbinds its block from: wait for it first");
  }
  const CUresult status =
      cu_.cuMulticastUnbind(known->handle, memory_.found().gpu_of(memory_.local(device)).id, 0, known->size);
  if (status != CUDA_SUCCESS) return cu_error(cu_, status, "unbinding a block of " + to_string(device));
  known->bound.erase(it);
  return {};
}

result<void> multicast_groups::map(group& known) const {
  const std::string what = "mapping a multicast of " + to_string(bytes{known.size});
  CUdeviceptr at = 0;
  CUresult status = cu_.cuMemAddressReserve(&at, known.size, 0, 0, 0);
  if (status != CUDA_SUCCESS) return cu_error(cu_, status, what);
  std::vector<CUmemAccessDesc> rights;
  rights.reserve(known.joined.size());
  for (const device_id one : known.joined)
    rights.push_back({{location_device, memory_.found().gpu_of(memory_.local(one)).id}, access_read_write});
  status = cu_.cuMemMap(at, known.size, 0, known.handle, 0);
  if (status == CUDA_SUCCESS) {
    status = cu_.cuMemSetAccess(at, known.size, rights.data(), rights.size());
    if (status != CUDA_SUCCESS) static_cast<void>(cu_.cuMemUnmap(at, known.size));
  }
  if (status != CUDA_SUCCESS) {
    static_cast<void>(cu_.cuMemAddressFree(at, known.size));
    return cu_error(cu_, status, what);
  }
  known.address = at;
  return {};
}

result<std::shared_ptr<const multicast_use>> multicast_groups::use(multicast_id id, device_id by, std::uint64_t offset,
                                                                   std::uint64_t size) {
  const auto known = find(id);
  if (!known) return make_error(errc::not_found, "there is no such multicast; was it released?");
  const std::lock_guard lock{mutex_};
  if (std::find(known->joined.begin(), known->joined.end(), by) == known->joined.end())
    return make_error(errc::wrong_device, to_string(by) + " was not added to this multicast");
  if (offset > known->size || size > known->size - offset) {
    return make_error(errc::out_of_range, to_string(bytes{size}) + " at offset " + std::to_string(offset) +
                                              " of a multicast of " + to_string(bytes{known->size}));
  }
  if (known->joined.size() != known->devices) {
    return make_error(errc::not_ready, std::to_string(known->joined.size()) + " of " + std::to_string(known->devices) +
                                           " devices were added to this multicast so far");
  }
  for (const device_id one : known->joined) {
    if (!known->bound.contains(one))
      return make_error(errc::not_ready, to_string(one) + " has bound no block to this multicast yet");
  }
  if (known->address == 0) {
    if (auto mapped = map(*known); !mapped) return std::move(mapped).error();
  }
  return std::make_shared<const multicast_use>(known, known->users, known->address + offset, known->joined);
}

void multicast_groups::forget(device_id device) {
  std::vector<std::shared_ptr<group>> gone;
  const std::lock_guard lock{mutex_};
  std::erase_if(groups_, [&](auto& one) {
    const auto& joined = one.second->joined;
    if (std::find(joined.begin(), joined.end(), device) == joined.end()) return false;
    gone.push_back(std::move(one.second));
    return true;
  });
}

void multicast_groups::clear() {
  std::map<multicast_id, std::shared_ptr<group>> all;
  const std::lock_guard lock{mutex_};
  all.swap(groups_);
}

}  // namespace weft::gpu
