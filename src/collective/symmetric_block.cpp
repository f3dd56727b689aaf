// SPDX-License-Identifier: Apache-2.0
#include "collective/symmetric_block.hpp"

#include "runtime/machine_state.hpp"
#include "weft/core/raise.hpp"

namespace weft::detail {

mapping symmetric_block::mapped(const physical_block& what) {
  mapping made{what};
  // as its own device: what another process's device may do here is for this process to say
  made.grant(what.on().id(), access_right::read_write);
  return made;
}

std::shared_ptr<std::byte> symmetric_block::window(const mapping& part, std::uint64_t size) {
  const auto seen = part.span<std::byte>();
  return value_or_raise(seen.state()->backend_of(seen.on()).host_window(seen.on(), seen.data(), bytes{size}));
}

symmetric_block::symmetric_block(std::uint64_t communicator, std::uint64_t number, std::uint64_t size, int self,
                                 std::vector<mapping> parts)
    : communicator_(communicator), number_(number), size_(size), self_(self), parts_(std::move(parts)) {
  windows_.reserve(parts_.size());
  for (const mapping& part : parts_) windows_.push_back(window(part, size_));
}

memory_ref symmetric_block::own() const {
  auto made = untyped(parts_[static_cast<std::size_t>(self_)].span<std::byte>());
  made.size = size_;
  return made;
}

}  // namespace weft::detail
