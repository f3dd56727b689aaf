// SPDX-License-Identifier: Apache-2.0
// Blocks: memory, addresses and rights are made apart from each other. Sizes and addresses are multiples of the
// granularity. Peer access neither gives these rights nor takes them.
#pragma once

#include "weft/backend/facets/peers_facet.hpp"
#include "weft/core/access_right.hpp"
#include "weft/core/block_description.hpp"

#include <optional>
#include <span>

namespace weft {

class blocks_facet : public peers_facet {
 protected:
  using peers_facet::peers_facet;
  ~blocks_facet() = default;

  [[nodiscard]] virtual result<block_granularity> do_granularity(device_id) { return not_offered("blocks"); }
  /// One reference. Errors: invalid_argument (size), unsupported (not shareable here), out_of_memory.
  [[nodiscard]] virtual result<block_id> do_create_block(device_id, bytes, bool /*shareable*/) {
    return not_offered("blocks");
  }
  /// The memory goes back when neither references nor mappings are left.
  [[nodiscard]] virtual result<void> do_release_block(block_id) { return not_offered("blocks"); }
  [[nodiscard]] virtual result<block_description> do_describe_block(block_id) { return not_offered("blocks"); }
  /// Address space without memory. `alignment` is 0 or a power of two; `hint` is a wish.
  [[nodiscard]] virtual result<void*> do_reserve(bytes, bytes /*alignment*/, void* /*hint*/) {
    return not_offered("reservations");
  }
  /// Exactly what do_reserve() gave. Errors: not_found; invalid_argument while anything is mapped in it, or for a part.
  [[nodiscard]] virtual result<void> do_free_reservation(void*, bytes) { return not_offered("reservations"); }
  /// Puts the first bytes of a block at an address inside one reservation where nothing is mapped; nobody has any right
  /// to it. Errors: invalid_argument, not_found; not_ready while work uses what was mapped there before.
  [[nodiscard]] virtual result<void> do_map_block(void*, bytes, block_id) { return not_offered("mappings of blocks"); }
  /// One or several whole mappings that touch. Not ordered with work: what has not run yet loses its right.
  [[nodiscard]] virtual result<void> do_unmap_block(void*, bytes) { return not_offered("mappings of blocks"); }
  /// All or nothing, over one or several whole mappings that touch; devices that are not listed keep what they have.
  /// Errors: invalid_argument; peer_unsupported where a device cannot reach the block's.
  [[nodiscard]] virtual result<void> do_set_access(void*, bytes, std::span<const device_right>) {
    return not_offered("rights per device");
  }
  /// Errors: not_found where nothing is mapped.
  [[nodiscard]] virtual result<access_right> do_access_of(device_id, const void*) {
    return not_offered("rights per device");
  }
  /// The block behind any address of a mapping, with one more reference.
  [[nodiscard]] virtual result<block_id> do_block_of(const void*) { return not_offered("mappings of blocks"); }
  /// A new descriptor each time; the caller closes it. Errors: not_found; invalid_argument for a block that was not
  /// made shareable.
  [[nodiscard]] virtual result<int> do_export_block(block_id) {
    return not_offered("blocks that are shared by descriptor");
  }
  /// One reference. The descriptor stays the caller's. Without a device the block is that of the device it was made on.
  /// `size`: what its maker says; 0 is unknown. Errors: corrupt, incompatible; not_found; resource_exhausted.
  [[nodiscard]] virtual result<block_id> do_import_block(std::optional<device_id>, int /*descriptor*/, bytes /*size*/) {
    return not_offered("blocks that are shared by descriptor");
  }
};

}  // namespace weft
