// SPDX-License-Identifier: Apache-2.0
#include "backends/opencl/memory_map.hpp"

#include "backend/address.hpp"
#include "backend/memory_shortage.hpp"
#include "core/hex.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <sys/mman.h>

namespace weft::opencl {
namespace {

/// Address space that nothing lies in, so that an address names one buffer and nothing else of this process.
std::byte* reserve(std::size_t size) {
  void* const base = ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return base == MAP_FAILED ? nullptr : static_cast<std::byte*>(base);
}

std::size_t whole_pages(std::size_t size) { return (size + page_size() - 1) / page_size() * page_size(); }

}  // namespace

allocation::~allocation() {
  buffer = {};
  if (reserved != nullptr) ::munmap(reserved, reserved_size);
  if (home == nullptr) return;
  if (shared != nullptr) home->cl_->clSVMFree(home->contexts_[context].context, shared);
  if (kind == memory_kind::pinned && shared == nullptr) std::free(host);
  if (charged) home->devices_[home->local(owner)].used->fetch_sub(size, std::memory_order_relaxed);
}

place place_of(const allocation& memory, const void* address) {
  auto offset = static_cast<std::size_t>(static_cast<const std::byte*>(address) - memory.user);
  const allocation* root = &memory;
  while (root->source) {
    offset += root->source_offset;
    root = root->source.get();
  }
  return {root->buffer.get(), offset, root->host == nullptr ? nullptr : root->host + offset};
}

memory_map::memory_map(std::shared_ptr<const api> cl, const discovery& found, device_id first)
    : cl_(std::move(cl)), first_(first), enabled_(found.devices.size() * found.devices.size()) {
  for (const context_place& one : found.contexts)
    contexts_.push_back({one.context.get(), one.shared_memory, one.atomics, one.adopts_whole});
  for (const device_place& one : found.devices) {
    device_row row;
    row.context = one.context;
    row.name = one.description.name;
    row.total = one.description.memory.value();
    row.largest = one.largest_allocation;
    devices_.push_back(std::move(row));
  }
}

memory_map::~memory_map() { clear(); }

void memory_map::clear() {
  state_.clear();
  std::map<std::uintptr_t, std::shared_ptr<allocation>> gone;
  const std::unique_lock lock{table_mutex_};
  gone.swap(table_);
}

error memory_map::out_of_memory(device_id device, std::size_t asked) const {
  weft::detail::memory_shortage found{device, use(device), asked};
  const std::shared_lock lock{table_mutex_};
  for (const auto& [base, a] : table_) {
    if (a->owner == device && a->charged) found.look(a->user, a->size);
  }
  return found.cause();
}

result<void> memory_map::charge(device_id device, std::size_t size) {
  const device_row& row = devices_[local(device)];
  std::uint64_t before = row.used->load(std::memory_order_relaxed);
  do {
    if (size > row.total || before > row.total - size) return out_of_memory(device, size);
  } while (!row.used->compare_exchange_weak(before, before + size, std::memory_order_relaxed));
  return {};
}

// Fine-grained memory is the host's and every device's of the context. The buffer over it is for kernels and copies,
// which then are the same commands as elsewhere.
result<void> memory_map::make_shared_memory(allocation& made, cl_context context, bool atomics) const {
  const cl_svm_mem_flags flags =
      CL_MEM_READ_WRITE | CL_MEM_SVM_FINE_GRAIN_BUFFER | (atomics ? CL_MEM_SVM_ATOMICS : cl_svm_mem_flags{0});
  made.shared = cl_->clSVMAlloc(context, flags, made.size, 0);
  if (made.shared == nullptr) {
    return make_error(errc::out_of_memory, "the driver of " + to_string(made.owner) + " gives no shared memory of " +
                                               to_string(bytes{made.size}));
  }
  made.user = made.host = static_cast<std::byte*>(made.shared);
  cl_int status = CL_SUCCESS;
  made.buffer = {
      cl_, cl_->clCreateBuffer(context, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, made.size, made.shared, &status)};
  if (status != CL_SUCCESS)
    return cl_error(status, "a buffer of " + to_string(bytes{made.size}) + " on " + to_string(made.owner));
  return {};
}

result<void> memory_map::make_buffer(allocation& made, cl_context context) const {
  cl_int status = CL_SUCCESS;
  made.buffer = {cl_, cl_->clCreateBuffer(context, CL_MEM_READ_WRITE, made.size, nullptr, &status)};
  if (status != CL_SUCCESS) {
    return cl_error(status, "a buffer of " + to_string(bytes{made.size}) + " on " + to_string(made.owner),
                    errc::out_of_memory);
  }
  // one page more, so that one past the end is in no other allocation
  made.reserved_size = whole_pages(made.size) + page_size();
  made.reserved = made.user = reserve(made.reserved_size);
  if (made.user == nullptr)
    return make_error(errc::resource_exhausted,
                      "there is no address space left for a buffer of " + to_string(bytes{made.size}));
  return {};
}

result<void*> memory_map::allocate(device_id device, std::size_t size, memory_kind kind) {
  if (size == 0) return make_error(errc::invalid_argument, "an allocation of 0 bytes on " + to_string(device));
  const device_row& row = devices_[local(device)];
  const context_row& context = contexts_[row.context];
  auto made = std::make_shared<allocation>();
  made->kind = kind;
  made->owner = device;
  made->size = size;
  made->context = row.context;
  if (kind == memory_kind::unified && !context.shared_memory) {
    return make_error(errc::unsupported,
                      to_string(device) + " (" + row.name +
                          ") has no fine-grained shared memory with the host; take pinned memory instead");
  }
  if (kind != memory_kind::pinned) {
    if (auto fits = charge(device, size); !fits) return std::move(fits).error();
    made->charged = true;
  }
  made->home = this;
  if (size > row.largest && kind != memory_kind::pinned) {
    return make_error(errc::out_of_memory, to_string(device) + " (" + row.name + ") gives at most " +
                                               to_string(bytes{row.largest}) + " at a time, asked for " +
                                               to_string(bytes{size}));
  }
  if (context.shared_memory && size <= row.largest) {
    if (auto ok = make_shared_memory(*made, context.context, context.atomics); !ok) return std::move(ok).error();
  } else if (kind == memory_kind::pinned) {
    // Whether a driver reads it faster than other memory of the host is its own affair: OpenCL pins nothing on demand.
    made->user = made->host = static_cast<std::byte*>(std::aligned_alloc(page_size(), whole_pages(size)));
    if (made->user == nullptr)
      return make_error(errc::out_of_memory, "the host has no " + to_string(bytes{size}) + " left for pinned memory");
  } else if (auto ok = make_buffer(*made, context.context); !ok) {
    return std::move(ok).error();
  }
  void* const base = made->user;
  const std::unique_lock lock{table_mutex_};
  table_.emplace(number(base), std::move(made));
  return base;
}

result<void> memory_map::adopt(device_id device, void* base, std::size_t size) {
  if (base == nullptr || size == 0 || number(base) + size < number(base))
    return make_error(errc::invalid_argument, "adopting null, empty or endless memory");
  const context_row& context = contexts_[context_of(device)];
  auto made = std::make_shared<allocation>();
  made->home = this;
  made->kind = memory_kind::adopted;
  made->owner = device;
  made->user = made->host = static_cast<std::byte*>(base);
  made->size = size;
  made->context = context_of(device);
  if (context.shared_memory) {
    cl_int status = CL_SUCCESS;
    made->buffer = {cl_,
                    cl_->clCreateBuffer(context.context, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, size, base, &status)};
    if (status != CL_SUCCESS)
      return cl_error(status, "adopting " + to_string(bytes{size}) + " for " + to_string(device));
  }
  const std::unique_lock lock{table_mutex_};
  const auto next = table_.upper_bound(number(base));
  const bool hits_next = next != table_.end() && next->first < number(base) + size;
  const bool hits_before =
      next != table_.begin() && std::prev(next)->first + std::prev(next)->second->size > number(base);
  if (hits_next || hits_before)
    return make_error(errc::invalid_argument, "the memory at " + hex(base) + " is known already");
  table_.emplace(number(base), std::move(made));
  return {};
}

result<void> memory_map::release(void* base) {
  std::vector<std::shared_ptr<allocation>> gone;  // ended without the lock
  const std::unique_lock lock{table_mutex_};
  const auto it = table_.find(number(base));
  if (it == table_.end() || it->second->kind == memory_kind::mapped)
    return make_error(errc::not_found, "no allocation starts at " + hex(base) + "; was it freed before?");
  gone.push_back(std::move(it->second));
  table_.erase(it);
  // mappings of it end with it
  for (auto m = table_.begin(); m != table_.end();) {
    if (m->second->source == gone.front()) {
      m->second->revoked.store(true, std::memory_order_release);
      gone.push_back(std::move(m->second));
      m = table_.erase(m);
    } else {
      ++m;
    }
  }
  return {};
}

std::shared_ptr<allocation> memory_map::find(const void* address) const {
  const std::shared_lock lock{table_mutex_};
  auto it = table_.upper_bound(number(address));
  if (it == table_.begin()) return nullptr;
  --it;
  if (number(address) - it->first >= it->second->size) return nullptr;
  return it->second;
}

memory_use memory_map::use(device_id device) const {
  const device_row& row = devices_[local(device)];
  memory_use now;
  now.total = bytes{row.total};
  now.free = bytes{row.total - row.used->load(std::memory_order_relaxed)};
  return now;
}

bool memory_map::can_access(device_id from, device_id to) const {
  return from != to && context_of(from) == context_of(to) && shares_memory(to);
}

bool memory_map::enabled(device_id from, device_id to) const {
  return enabled_[local(from) * devices_.size() + local(to)].load(std::memory_order_acquire);
}

bool memory_map::set_enabled(device_id from, device_id to, bool on) {
  const bool before = enabled_[local(from) * devices_.size() + local(to)].exchange(on, std::memory_order_acq_rel);
  if (before != on) epoch_.fetch_add(1, std::memory_order_acq_rel);
  return before;
}

std::string memory_map::denied(device_id by, const allocation& memory) const {
  if (memory.kind == memory_kind::mapped) {
    if (memory.revoked.load(std::memory_order_acquire)) return "the memory behind a mapping was freed";
    if (by != memory.by) return "the mapping is that of " + to_string(memory.by) + ", not of " + to_string(by);
    if (!enabled(by, memory.owner))
      return to_string(by) + " has no access to " + to_string(memory.owner) + ": it was disabled";
    return {};
  }
  if (memory.kind == memory_kind::pinned || memory.kind == memory_kind::unified) {
    if (memory.buffer && memory.context == context_of(by)) return {};
    return std::string{to_string(memory.kind)} + " memory here is the host's alone: kernels of " + to_string(by) +
           " cannot use it, copies can";
  }
  if (memory.kind == memory_kind::adopted) {
    // it stays the host's, which all devices of a context share: no peer access is needed
    if (memory.buffer && memory.context == context_of(by)) return {};
    return "adopted memory here is the host's alone: kernels of " + to_string(by) + " cannot use it, copies can";
  }
  if (memory.owner == by || enabled(by, memory.owner)) return {};
  return to_string(by) + " has no access to the memory of " + to_string(memory.owner);
}

result<void*> memory_map::map(device_id by, const std::shared_ptr<allocation>& source, void* address,
                              std::size_t size) {
  if (auto wrong = beyond_end("a mapping", size, address, source->user, source->size)) return std::move(*wrong);
  const auto offset = static_cast<std::size_t>(static_cast<std::byte*>(address) - source->user);
  auto made = std::make_shared<allocation>();
  made->home = this;
  made->kind = memory_kind::mapped;
  made->owner = source->owner;
  made->by = by;
  made->size = size;
  made->context = source->context;
  made->source = source;
  made->source_offset = offset;
  // an address of its own with the offset of the source in its page, as an alias of it would have
  made->reserved_size = whole_pages(size + page_size());
  made->reserved = reserve(made->reserved_size);
  if (made->reserved == nullptr)
    return make_error(errc::resource_exhausted, "there is no address space left for a mapping");
  made->user = made->reserved + number(address) % page_size();
  void* const base = made->user;
  const std::unique_lock lock{table_mutex_};
  table_.emplace(number(base), std::move(made));
  return base;
}

result<void> memory_map::unmap(device_id by, void* mapped) {
  std::shared_ptr<allocation> gone;
  const std::unique_lock lock{table_mutex_};
  const auto it = table_.find(number(mapped));
  if (it == table_.end() || it->second->kind != memory_kind::mapped)
    return make_error(errc::not_found, "no peer mapping starts at " + hex(mapped) + "; was it unmapped before?");
  if (it->second->by != by) {
    return make_error(errc::wrong_device, "the mapping at " + hex(mapped) + " belongs to " + to_string(it->second->by) +
                                              ", not to " + to_string(by));
  }
  it->second->revoked.store(true, std::memory_order_release);
  gone = std::move(it->second);
  table_.erase(it);
  return {};
}

void memory_map::forget(device_id device) {
  std::vector<std::shared_ptr<allocation>> gone;
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    const device_id other{first_.value() + static_cast<int>(i)};
    static_cast<void>(set_enabled(device, other, false));
    static_cast<void>(set_enabled(other, device, false));
  }
  const std::unique_lock lock{table_mutex_};
  for (auto it = table_.begin(); it != table_.end();) {
    allocation& a = *it->second;
    if ((a.kind == memory_kind::device && a.owner == device) ||
        (a.kind == memory_kind::mapped && (a.by == device || a.owner == device))) {
      a.revoked.store(true, std::memory_order_release);
      gone.push_back(std::move(it->second));
      it = table_.erase(it);
    } else {
      ++it;
    }
  }
}

}  // namespace weft::opencl
