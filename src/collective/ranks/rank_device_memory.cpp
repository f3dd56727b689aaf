// SPDX-License-Identifier: Apache-2.0
// Memory of a rank that its host does not reach: carried to and from memory that it does reach by the backend's copies,
// kept there as an image for calls that may not call a driver, and, where it is symmetric, worked on by the device.
#include "collective/fold/fold.hpp"
#include "collective/ranks/rank_communicator_body.hpp"
#include "core/errors/called_from.hpp"
#include "weft/core/raise.hpp"
#include "weft/memory/copy.hpp"

#include <algorithm>
#include <cstring>

namespace weft::detail {
namespace {

memory_ref host_memory(const std::byte* at, std::uint64_t size) {
  return {nullptr, const_cast<std::byte*>(at), size, {}, memory_kind::pinned};  // the copy's direction says who writes
}

memory_ref part_of(const call_memory& memory, std::uint64_t offset, std::uint64_t size) {
  if (!memory.is_of_device()) return host_memory(memory.at + offset, size);
  memory_ref made = memory.device;
  made.address = static_cast<std::byte*>(made.address) + offset;
  made.size = size;
  return made;
}

copy_shape all_of_it(std::uint64_t size) {
  copy_shape made;
  made.width = size;
  return made;
}

/// So that what begins anew is as well aligned as what it stands for.
constexpr std::uint64_t in_lines(std::uint64_t size) { return (size + 63) / 64 * 64; }

}  // namespace

void rank_communicator_body::carry(const memory_ref& to, const memory_ref& from) {
  if (from.size == 0 || to.address == from.address) return;
  if (to.state == nullptr && from.state == nullptr) {
    std::memcpy(to.address, from.address, from.size);
  } else {
    static_cast<void>(copy_now(to, from, all_of_it(from.size), {}, called_from::place()));
  }
}

void rank_communicator_body::read(std::byte* to, const call_memory& from, std::uint64_t offset, std::uint64_t size) {
  if (size != 0) carry(host_memory(to, size), part_of(from, offset, size));
}

void rank_communicator_body::write(const call_memory& to, std::uint64_t offset, const std::byte* from,
                                   std::uint64_t size) {
  if (size != 0) carry(part_of(to, offset, size), host_memory(from, size));
}

void rank_communicator_body::move(const call_memory& to, std::uint64_t into, const call_memory& from, std::uint64_t at,
                                  std::uint64_t size) {
  if (size != 0) carry(part_of(to, into, size), part_of(from, at, size));
}

/// Page-locked, the staging memory takes copies of a device without a detour. Where that is refused, they make it.
void rank_communicator_body::register_staging() {
  if (is_registered_) return;
  is_registered_ = true;
  const control_block& block = meeting.block();
  try {
    page_locked_.emplace(on, std::span{block.staging(self(), 0), 2 * block.shape().half});
  } catch (const error_exception&) {
  }
}

/// Symmetric memory of devices is used in place where that is worth a kernel, and where the kernel may write what comes
/// out; else as memory that is not symmetric.
void rank_communicator_body::choose_place(rank_call& call, bool is_small) const {
  const auto is_of_devices = [](const call_memory& one) { return one.block != nullptr && !one.block->is_of_host(); };
  if (!is_of_devices(call.in) && !is_of_devices(call.out)) return;
  const bool writes =
      !call.terms.reduces() || call.out.size == 0 || (call.out.is_of_device() && call.out.device.device == on.id());
  if (is_small || !writes) call.in.block = call.out.block = nullptr;
}

std::byte* rank_communicator_body::image_of(std::uint64_t size) {
  // a call in a stream that still needs the smaller one keeps it
  if (!image_ || image_->size() < size) {
    image_ = std::make_shared<pinned_buffer<std::byte>>(on, std::max<std::uint64_t>(in_lines(size), 4096));
  }
  return image_->data();
}

/// Has the call work on an image of its memory. What overlaps in place does so in the image, too.
void rank_communicator_body::take_image(rank_call& call) {
  const bool in = call.in.is_of_device(), out = call.out.is_of_device();
  if (!in && !out) return;
  const auto address = [](const call_memory& one) { return reinterpret_cast<std::uintptr_t>(one.device.address); };
  const std::uint64_t in_size = in ? call.in.size : 0, out_size = out ? call.out.size : 0;
  std::uint64_t in_at = 0, out_at = in_lines(in_size);
  const std::uintptr_t a = address(call.in), b = address(call.out);
  if (in && out && a < b + out_size && b < a + in_size) {
    in_at = a - std::min(a, b);
    out_at = b - std::min(a, b);
  }
  std::byte* const base = image_of(std::max(in_at + in_size, out_at + out_size));
  if (in) call.in.at = base + in_at;
  if (out) call.out.at = base + out_at;
  call.image = image_;
  call.in.block = call.out.block = nullptr;
}

void rank_communicator_body::fill_image(const rank_call& call, const stream* order) const {
  if (!call.in.is_image()) return;
  const std::uint64_t size = static_cast<std::uint64_t>(input_of(call, self())) * call.element();
  if (size == 0) return;
  memory_ref from = call.in.device;
  from.size = size;
  const memory_ref to = host_memory(call.in.at, size);
  if (order == nullptr) return carry(to, from);
  static_cast<void>(copy_in(*order, to, from, all_of_it(size), {}, called_from::place()));
}

bool rank_communicator_body::drain_image(const rank_call& call, const stream* order) const {
  if (!call.out.is_image()) return false;
  const bool has_it = static_cast<collective>(call.terms.what) == collective::broadcast && self() == call.terms.root;
  const std::uint64_t size = static_cast<std::uint64_t>(output_of(call, self())) * call.element();
  if (has_it || size == 0) return false;
  memory_ref to = call.out.device;
  to.size = size;
  const memory_ref from = host_memory(call.out.at, size);
  if (order == nullptr) {
    carry(to, from);
  } else {
    static_cast<void>(copy_in(*order, to, from, all_of_it(size), {}, called_from::place()));
  }
  return true;
}

/// Of another rank's part; the stream is waited for once all of them are there.
void rank_communicator_body::pull_by_device(const rank_call& call, const symmetric_block& block, int from,
                                            std::uint64_t offset, std::uint64_t into, std::uint64_t size) {
  if (size == 0) return;
  static_cast<void>(copy_in(default_, part_of(call.out, into, size), block.part(from, offset, size), all_of_it(size),
                            {}, called_from::place()));
}

void rank_communicator_body::fold_by_device(const fold_request& request) {
  fold_in(default_, request, {}, called_from::place()).wait();
}

std::byte* rank_communicator_body::device_scratch() {
  const bool is_there = !device_scratch_.empty() && driver_->find(device_scratch_.data());  // a reset takes it
  if (!is_there) device_scratch_ = buffer<std::byte>{on, device_scratch_bytes};
  return device_scratch_.data();
}

}  // namespace weft::detail
