// SPDX-License-Identifier: Apache-2.0
#include "backends/opencl/memory_map.hpp"

#include "backend/address.hpp"

#include <cstdlib>
#include <limits>

namespace weft::opencl {

allocation::~allocation() {
  buffer = {};
  if (home == nullptr) return;
  if (shared != nullptr) home->cl_->clSVMFree(home->contexts_[context].context, shared);
  if (kind == memory_kind::pinned && shared == nullptr) std::free(host);
  if (charged != 0) home->uncharge(owner, charged);
}

place place_of(const allocation& memory, const void* address) {
  const auto [root, offset] = common::root_of(memory, address);
  return {root->buffer.get(), offset, root->host == nullptr ? nullptr : root->host + offset};
}

memory_map::memory_map(std::shared_ptr<const api> cl, const discovery& found, device_id first)
    : memory_model(first, found.devices, [](const device_place& one) { return one.description.memory; }),
      cl_(std::move(cl)) {
  for (const context_place& one : found.contexts)
    contexts_.push_back({one.context.get(), one.shared_memory, one.atomics, one.adopts_whole});
  for (const device_place& one : found.devices)
    devices_.push_back({one.context, one.description.name, one.largest_allocation});
}

memory_map::~memory_map() { clear(); }

void memory_map::clear() {
  const auto gone = table_.clear([](allocation&) {});
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
  made.reserved = common::reserve_addresses(whole_pages(made.size) + page_size());
  made.user = made.reserved.get();
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
    made->charged = size;
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
    constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
    if (size <= most - page_size())
      made->user = made->host = static_cast<std::byte*>(std::aligned_alloc(page_size(), whole_pages(size)));
    if (made->user == nullptr)
      return make_error(errc::out_of_memory, "the host has no " + to_string(bytes{size}) + " left for pinned memory");
  } else if (auto ok = make_buffer(*made, context.context); !ok) {
    return std::move(ok).error();
  }
  void* const base = made->user;
  table_.add(std::move(made));
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
  return table_.add_alone(std::move(made));
}

result<void> memory_map::release(void* base) {
  const auto gone = table_.release(base, [](allocation&) {});
  if (!gone) return gone.error();
  return {};
}

bool memory_map::can_access(device_id from, device_id to) const {
  return from != to && context_of(from) == context_of(to) && shares_memory(to);
}

// What is the host's all devices of a context share: no peer access is needed.
std::string memory_map::denied_of_host(device_id by, const allocation& memory) const {
  if (memory.buffer && memory.context == context_of(by)) return {};
  return std::string{to_string(memory.kind)} + " memory here is the host's alone: kernels of " + to_string(by) +
         " cannot use it, copies can";
}

result<void*> memory_map::map(device_id by, void* address, std::size_t size) {
  auto made = named_mapping(by, address, size);
  if (!made) return std::move(made).error();
  (*made)->home = this;
  (*made)->context = (*made)->source->context;
  void* const base = (*made)->user;
  table_.add(std::move(*made));
  return base;
}

void memory_map::forget(device_id device) {
  peers_.forget(device);
  end_if([&](const allocation& one) {
    const bool is_mapping = one.kind == memory_kind::mapped;
    return (one.owner == device && (is_mapping || one.kind == memory_kind::device)) || (is_mapping && one.by == device);
  });
}

}  // namespace weft::opencl
