// SPDX-License-Identifier: Apache-2.0
#include "collective/ranks/symmetric_block.hpp"

#include "os/memory_file.hpp"
#include "processes/share_ticket.hpp"
#include "runtime/machine_state.hpp"
#include "weft/core/raise.hpp"

#include <algorithm>
#include <chrono>
#include <optional>
#include <sys/mman.h>

namespace weft::detail {
namespace {

constexpr const char* a_file = "symmetric memory";

/// The device of this machine with that identity, or, where it is hidden here, the one that will use the memory.
device device_with(const device& on, std::uint64_t identity) {
  const auto& state = state_of(on);
  for (int i = 0; i < state->device_count(); ++i) {
    if (identity_of(state->description_of(device_id{i}).uuid) == identity)
      return detail::make<device>(state, device_id{i});
  }
  return on;
}

mapped_file map_whole(int file, std::uint64_t size) {
  void* const base = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (base == MAP_FAILED) {
    raise(errc::resource_exhausted, "there is no address space left for " + to_string(bytes{size}) + " of " + a_file);
  }
  return {nullptr, {}, static_cast<std::byte*>(base), size};
}

/// Waits for work that was submitted with it: what was adopted is its owner's to keep until then.
constexpr std::chrono::seconds end_limit{10};

}  // namespace

void mapped_file_traits::release(type& file) noexcept {
  if (file.state && !file.state->closed()) {
    backend& driver = file.state->backend_of(file.device);
    const auto known = driver.find(file.base);
    if (known && known->pending != 0 && !driver.on_worker()) {
      static_cast<void>(driver.drain(file.device, driver.now() + end_limit));
    }
    static_cast<void>(driver.release(file.base));
  }
  ::munmap(file.base, file.size);
  file = {};
}

// ---- one part -------------------------------------------------------------------------------------------------------

void symmetric_part::take_block(physical_block block, device_id by) {
  way_ = symmetric_way::block;
  mapping_ = mapping{block};
  mapping_.grant(by, access_right::read_write);
  memory_ = untyped(mapping_.span<std::byte>(by));
  block_ = std::move(block);
}

void symmetric_part::take_window(const device& on, std::uint64_t size) {
  auto seen = state_of(on)->backend_of(memory_.device).host_window(memory_.device, memory_.address, bytes{size});
  if (seen) {
    window_ = std::move(*seen);
  } else if (seen.error().code != errc::unsupported) {
    raise(std::move(seen).error());
  }
}

/// The device of the file's owner adopts it, and so finds it in its kernels and copies; the host of each rank maps it.
void symmetric_part::take_file(const device& on, const descriptor& file, std::uint64_t size, bool is_own) {
  way_ = symmetric_way::file;
  mapped_file made = map_whole(file.get(), size);
  std::byte* const base = made.base;
  mapped_ = unique_handle<mapped_file_traits>{made};
  memory_ = {nullptr, base, size, on.id(), memory_kind::adopted};
  if (is_own) {
    backend& driver = state_of(on)->backend_of(on.id());
    value_or_raise(driver.adopt(on.id(), base, bytes{size}));
    static_cast<void>(mapped_.release());
    made.state = state_of(on);
    made.device = on.id();
    mapped_ = unique_handle<mapped_file_traits>{std::move(made)};
    memory_.state = state_of(on).get();
    // whether it is one memory for both, and not a copy that the device keeps
    value_or_raise(driver.host_window(on.id(), base, bytes{size}));
  }
  window_ = std::shared_ptr<std::byte>{base, [](std::byte*) {}};
}

symmetric_part symmetric_part::make(const device& on, std::uint64_t size) {
  symmetric_part made;
  const std::uint64_t room = std::max<std::uint64_t>(size, 1);
  const auto offered = [](auto&& attempt) -> std::optional<error> {
    try {
      attempt();
    } catch (const error_exception& e) {
      if (e.code() != errc::unsupported) throw;
      return e.cause();
    }
    return std::nullopt;
  };
  const auto no_block = offered([&] {
    made.take_block(physical_block{on, bytes{room}, sharing::with_processes}, on.id());
    made.file_ = made.block_.share();
    made.take_window(on, size);
  });
  if (!no_block) return made;
  const auto no_handle = offered([&] {
    made.buffer_ = shareable_buffer<std::byte>{on, room};
    static_cast<void>(made.buffer_.handle());
    made.way_ = symmetric_way::handle;
    made.memory_ = untyped(made.buffer_.span());
  });
  if (!no_handle) return made;
  const auto no_file = offered([&] {
    auto file = value_or_raise(make_memory_file("weft-symmetric", room, memory_file_pages::any, a_file));
    made.file_ = descriptor{file.release()};
    made.take_file(on, made.file_, room, true);
  });
  if (!no_file) return made;
  raise(errc::unsupported, no_block->what + "; " + no_handle->what + "; " + no_file->what);
}

symmetric_part symmetric_part::open(const device& on, const symmetric_offer& offer, const descriptor& file,
                                    std::uint64_t size, bool by_host) {
  symmetric_part made;
  const std::uint64_t room = std::max<std::uint64_t>(size, 1);
  switch (offer.way) {
    case symmetric_way::block: {
      // as its own device: what another process's device may do where the host reaches all is for this process to say
      auto theirs = physical_block::open(by_host ? on : device_with(on, offer.device), file, bytes{room});
      if (theirs.size().value() < room) raise(errc::corrupt, "it sent less memory than it said");
      const device_id by = by_host ? theirs.on().id() : on.id();
      made.take_block(std::move(theirs), by);
      if (by_host) made.take_window(on, size);
      return made;
    }
    case symmetric_way::handle:
      try {
        made.opened_ = opened_memory<std::byte>{on, memory_handle::from_bytes(std::as_bytes(std::span{offer.handle}))};
      } catch (const error_exception& e) {
        if (e.cause().native_code != 201) throw;
        raise(errc::unsupported, "it is a thread of this process, and " + to_string(on.id()) +
                                     " shares no blocks: handles of allocations pass between processes only");
      }
      made.way_ = symmetric_way::handle;
      made.memory_ = untyped(made.opened_.span());
      if (made.memory_.size < room) raise(errc::corrupt, "it sent less memory than it said");
      return made;
    case symmetric_way::file:
      value_or_raise(check_memory_file(file.get(), room, memory_file_pages::any, a_file));
      made.take_file(on, file, room, false);
      return made;
  }
  raise(errc::corrupt, "it shares its memory in a way that is not known here");
}

symmetric_offer symmetric_part::offer(const device& on) const {
  symmetric_offer made;
  made.way = way_;
  made.kind = on.kind();
  made.by_host = window() != nullptr;
  made.device = identity_of(state_of(on)->description_of(on.id()).uuid);
  if (way_ == symmetric_way::handle) made.handle = buffer_.handle().bytes();
  return made;
}

// ---- all parts ------------------------------------------------------------------------------------------------------

symmetric_block::symmetric_block(std::uint64_t communicator, std::uint64_t number, std::uint64_t size, int self,
                                 std::vector<symmetric_part> parts)
    : communicator_(communicator), number_(number), size_(size), self_(self), parts_(std::move(parts)) {
  // ranks on other nodes have parts of their own, which nobody reaches here
  is_of_host_ = std::all_of(parts_.begin(), parts_.end(),
                            [](const auto& p) { return p.window() != nullptr || p.memory().address == nullptr; });
  starts_.reserve(parts_.size());
  for (const symmetric_part& p : parts_)
    starts_.push_back(is_of_host_ ? p.window() : static_cast<std::byte*>(p.memory().address));
}

memory_ref symmetric_block::part(int rank, std::uint64_t offset, std::uint64_t size) const {
  memory_ref made = parts_[static_cast<std::size_t>(rank)].memory();
  made.address = static_cast<std::byte*>(made.address) + offset;
  made.size = size;
  return made;
}

}  // namespace weft::detail
