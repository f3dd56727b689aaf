// SPDX-License-Identifier: Apache-2.0
#include "weft/memory/share.hpp"

#include "core/errors/called_from.hpp"
#include "core/errors/make_error.hpp"
#include "memory/block_body.hpp"
#include "memory/memory_state.hpp"
#include "memory/pool_body.hpp"
#include "memory/sharing/ipc_event_body.hpp"
#include "memory/sharing/opened_share.hpp"
#include "processes/share_server.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <unistd.h>

namespace weft {
namespace {

constexpr std::uint32_t magic = 0x4d544657;  // "WFTM"
constexpr std::uint32_t version = 1;
constexpr std::size_t head_size = 16, tail_size = 8;
static_assert(share_handle::max_wire_size == head_size + share_handle::max_parts * shared_bytes_size + tail_size);

void put(std::vector<std::byte>& out, std::uint64_t value, int width) {
  for (int i = 0; i < width; ++i) out.push_back(static_cast<std::byte>(value >> (8 * i)));
}

std::uint64_t take(std::span<const std::byte> in, std::size_t at, int width) {
  std::uint64_t value = 0;
  for (int i = 0; i < width; ++i)
    value |= std::to_integer<std::uint64_t>(in[at + static_cast<std::size_t>(i)]) << (8 * i);
  return value;
}

/// Finds accidents, not forgeries: those the exporter finds.
std::uint64_t checksum(std::span<const std::byte> bytes) {
  return detail::identity_of({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

/// The parts of a handle, each of which was decoded, sorted by the way they belong to.
struct sorted_parts {
  std::vector<detail::share_ticket> blocks;
  std::optional<detail::share_ticket> pool, pool_memory, allocation;

  [[nodiscard]] std::uint64_t block_bytes() const {
    std::uint64_t sum = 0;
    for (const auto& one : blocks) sum += one.size;
    return sum;
  }
};

result<sorted_parts> sorted(std::span<const shared_bytes> parts) {
  const auto wrong = [](std::string what) { return make_error(errc::corrupt, std::move(what)); };
  sorted_parts made;
  std::uint64_t blocks = 0;
  std::optional<std::uint64_t> size;
  for (const shared_bytes& bytes : parts) {
    auto got = detail::decode(bytes);
    if (!got) return std::move(got).error();
    const auto once = [&](std::optional<detail::share_ticket>& place) {
      if (place) return false;
      place = *got;
      return true;
    };
    bool fits = false;
    switch (got->kind) {
      case detail::share_kind::block:
        fits = got->offset == 0 && got->size != 0 && !__builtin_add_overflow(blocks, got->size, &blocks);
        made.blocks.push_back(*got);
        break;
      case detail::share_kind::pool:
        fits = once(made.pool);
        break;
      case detail::share_kind::pool_memory:
        fits = once(made.pool_memory);
        break;
      case detail::share_kind::memory:
        fits = once(made.allocation);
        break;
      case detail::share_kind::event:
        break;
    }
    if (!fits)
      return wrong("a handle of shared memory holds a handle of " + std::string{detail::to_string(got->kind)} +
                   " too many");
  }
  if (made.pool.has_value() != made.pool_memory.has_value())
    return wrong("a handle of shared memory holds a pool without memory, or memory of a pool without the pool");
  const auto agrees = [&](std::uint64_t one) {
    if (!size) size = one;
    return *size == one;
  };
  if ((!made.blocks.empty() && !agrees(blocks)) || (made.pool_memory && !agrees(made.pool_memory->size)) ||
      (made.allocation && !agrees(made.allocation->size)))
    return wrong("a handle of shared memory names memory of several sizes");
  return made;
}

}  // namespace

std::string_view to_string(sharing_way way) {
  switch (way) {
    case sharing_way::block:
      return "block";
    case sharing_way::pool:
      return "pool";
    case sharing_way::allocation:
      return "allocation";
  }
  return "allocation";
}

// ---- the handle -----------------------------------------------------------------------------------------------------

share_handle::share_handle(std::span<const shared_bytes> parts, std::source_location where)
    : parts_(parts.begin(), parts.end()) {
  const called_from here{where};
  if (parts.empty() || parts.size() > max_parts) {
    raise(errc::corrupt, "a handle of shared memory has 1 to " + std::to_string(max_parts) + " parts, this has " +
                             std::to_string(parts.size()));
  }
  static_cast<void>(value_or_raise(sorted(parts)));
}

std::vector<std::byte> share_handle::to_bytes() const {
  std::vector<std::byte> out;
  out.reserve(max_wire_size);
  put(out, magic, 4);
  put(out, version, 4);
  put(out, parts_.size(), 8);
  for (const shared_bytes& part : parts_) out.insert(out.end(), part.begin(), part.end());
  put(out, checksum(out), 8);
  return out;
}

share_handle share_handle::from_bytes(std::span<const std::byte> arrived, std::source_location where) {
  const called_from here{where};
  const std::vector<std::byte> copy{
      arrived.begin(),
      std::next(arrived.begin(), static_cast<std::ptrdiff_t>(std::min(arrived.size(), max_wire_size)))};
  if (copy.size() < head_size + tail_size)
    raise(errc::corrupt, "a handle of shared memory was cut after " + std::to_string(copy.size()) + " bytes");
  const std::span<const std::byte> in{copy};
  if (take(in, 0, 4) != magic) raise(errc::corrupt, "these bytes are no handle of shared memory");
  if (take(in, 4, 4) != version) {
    raise(errc::incompatible, "the exporter speaks version " + std::to_string(take(in, 4, 4)) +
                                  " of handles of shared memory, this process version " + std::to_string(version));
  }
  const std::uint64_t count = take(in, 8, 8);
  if (count == 0) raise(errc::corrupt, "a handle of shared memory names nothing; was it never set?");
  if (count > max_parts) raise(errc::corrupt, "a handle of shared memory says what cannot be");
  const std::size_t size = head_size + count * shared_bytes_size + tail_size;
  if (arrived.size() != size) {
    raise(errc::corrupt, "a handle of shared memory of " + std::to_string(size) + " bytes came as " +
                             std::to_string(arrived.size()) + "; send all of it and no more");
  }
  if (take(in, size - tail_size, 8) != checksum(in.first(size - tail_size)))
    raise(errc::corrupt, "a handle of shared memory was damaged on its way; its checksum does not fit");
  std::array<shared_bytes, max_parts> parts{};
  for (std::size_t i = 0; i < count; ++i) {
    const auto one = in.subspan(head_size + i * shared_bytes_size, shared_bytes_size);
    std::copy(one.begin(), one.end(), parts[i].begin());
  }
  return share_handle{std::span{parts}.first(count)};
}

std::string share_handle::text() const { return detail::text_of_handle(to_bytes()); }

share_handle share_handle::from_text(std::string_view text, std::source_location where) {
  const called_from here{where};
  if (text.size() % 2 != 0 || text.size() > 2 * max_wire_size)
    raise(errc::corrupt, "the text of a handle of shared memory has not " + std::to_string(text.size()) + " digits");
  return from_bytes(detail::bytes_of_text(text));
}

std::vector<sharing_way> share_handle::ways(std::source_location where) const {
  const called_from here{where};
  std::vector<sharing_way> all;
  if (parts_.empty()) return all;
  const sorted_parts by = value_or_raise(sorted(parts_));
  if (!by.blocks.empty()) all.push_back(sharing_way::block);
  if (by.pool) all.push_back(sharing_way::pool);
  if (by.allocation) all.push_back(sharing_way::allocation);
  return all;
}

std::uint64_t share_handle::size(std::source_location where) const {
  const called_from here{where};
  if (parts_.empty()) return 0;
  const sorted_parts by = value_or_raise(sorted(parts_));
  return by.allocation ? by.allocation->size : by.pool_memory ? by.pool_memory->size : by.block_bytes();
}

pid_t share_handle::process() const { return parts_.empty() ? 0 : detail::process_of_handle(parts_.front()); }

// ---- the exporter's side --------------------------------------------------------------------------------------------

namespace detail {
namespace {

/// Names the first `size` bytes of a block, which its exporter's server hands out from now on.
shared_bytes offered_block(const std::shared_ptr<block_body>& body, std::uint64_t size) {
  if (!body) raise(errc::invalid_argument, "sharing an empty physical_block: it was moved from, or never made");
  const held_block& held = body->handle.get();
  held.state->require_open();
  if (!body->about.shareable && !body->about.imported) {
    raise(errc::invalid_argument, "a block of " + to_string(body->about.size) + " on " + to_string(body->about.device) +
                                      " was made for this process alone: make it with weft::sharing::with_processes");
  }
  share_server& server = memory_of(*held.state).events().server;
  share_ticket h;
  h.kind = share_kind::block;
  h.process = static_cast<std::uint32_t>(::getpid());
  h.boot = this_boot();
  h.door = value_or_raise(server.door());
  h.size = size;
  const std::lock_guard lock{body->mutex};
  if (body->key == 0) {
    // A descriptor of its own: the server's thread must not be the last to hold the block, and with it the machine.
    struct held_file {
      descriptor file;
      share_grant grant;
    };
    auto made = std::make_shared<held_file>();
    made->file = descriptor{value_or_raise(held.driver->export_block(held.id))};
    made->grant.file = made->file.get();
    made->grant.size = body->about.size.value();
    made->grant.device = identity_of(held.state->description_of(body->about.device).uuid);
    const std::uint64_t key = random_number();
    server.offer(key, share_kind::block, [made] { return std::shared_ptr<const share_grant>{made, &made->grant}; });
    body->key = key;
  }
  h.key = body->key;
  return encode(h);
}

}  // namespace

share_handle share_memory(const memory_ref& memory, std::source_location where) {
  const called_from here{where};
  if (memory.state == nullptr)
    raise(errc::invalid_argument, "sharing nothing, or host memory: put it into a weft::shareable_buffer");
  if (memory.size == 0) raise(errc::invalid_argument, "sharing memory of 0 bytes");
  machine_state& state = *memory.state;
  state.require_open();
  backend& own = state.backend_of(memory.device);
  const auto known = value_or_raise(own.find(memory.address));
  if (known.kind == memory_kind::block) {
    raise(errc::invalid_argument,
          "this is a span of a mapping, which does not keep it: share the weft::mapping, or its physical_block");
  }
  if (const auto pool = pool_of(state, known.base)) {
    return share_handle{std::array{pool->handle().bytes(), pool->handle_of(memory.address, memory.size).bytes()}};
  }
  const shared_bytes name =
      value_or_raise(own.export_memory(memory.address, bytes{memory.size}, handle_family::allocation));
  return share_handle{std::span{&name, 1}};
}

}  // namespace detail

share_handle share(const mapping& memory, std::source_location where) {
  const called_from here{where};
  const auto& parts = detail::internals::parts(memory);
  if (parts.empty()) detail::raise_empty_mapping();
  if (parts.size() > share_handle::max_parts) {
    raise(errc::invalid_argument, "sharing a mapping of " + std::to_string(parts.size()) + " blocks, of at most " +
                                      std::to_string(share_handle::max_parts) + ": map fewer and larger ones");
  }
  std::vector<shared_bytes> names;
  names.reserve(parts.size());
  for (const auto& part : parts) names.push_back(detail::offered_block(part.get().block, part.get().size.value()));
  return share_handle{names};
}

share_handle share(const physical_block& memory, std::source_location where) {
  const called_from here{where};
  const auto& body = detail::internals::body(memory);
  const shared_bytes name = detail::offered_block(body, body ? body->about.size.value() : 0);
  return share_handle{std::span{&name, 1}};
}

// ---- the importer's side --------------------------------------------------------------------------------------------

namespace detail {
namespace {

using std::chrono::nanoseconds;

/// What is left of a limit that several steps share.
class time_left {
 public:
  explicit time_left(nanoseconds timeout) : timeout_(timeout), start_(std::chrono::steady_clock::now()) {}
  [[nodiscard]] nanoseconds now() const {
    return std::max<nanoseconds>(timeout_ - (std::chrono::steady_clock::now() - start_), nanoseconds{0});
  }

 private:
  nanoseconds timeout_;
  std::chrono::steady_clock::time_point start_;
};

/// The device of this machine with that identity, or, where it is hidden here, the one that will use the memory.
device device_with(const device& on, std::uint64_t identity) {
  const auto& state = detail::state_of(on);
  for (int i = 0; i < state->device_count(); ++i) {
    if (identity_of(state->description_of(device_id{i}).uuid) == identity)
      return detail::make<device>(state, device_id{i});
  }
  return on;
}

void open_blocks(opened_view& view, const device& on, const sorted_parts& parts, const time_left& timeout) {
  address_reservation where;
  for (std::size_t i = 0; i < parts.blocks.size(); ++i) {
    const detail::share_ticket& h = parts.blocks[i];
    auto got = value_or_raise(fetch_share(h, timeout.now()));
    const descriptor file{got.file.release()};
    const physical_block block = physical_block::open(device_with(on, got.reply.device), file, bytes{got.reply.size});
    if (h.size > block.size().value() || (i != 0 && h.size != block.size().value()))
      raise(errc::corrupt, "a handle of shared memory names no mapping of the blocks that were exported");
    if (i == 0) {
      view.owner = block.on().id();
      where = address_reservation{on, bytes{parts.block_bytes()}};
      view.body->blocks = mapping{where, block, bytes{}, bytes{h.size}};
    } else {
      view.body->blocks.grow(block);
    }
  }
  view.body->blocks.grant(on.id(), access_right::read_write);
  view.address = view.body->blocks.address();
  view.size = view.body->blocks.size().value();
  view.by = on.id();
  view.kind = memory_kind::block;
  view.why =
      "blocks: each device has the right that it is granted, held by the page tables, and the memory outlives "
      "its maker";
}

void open_pool(opened_view& view, const device& on, const sorted_parts& parts, const time_left& timeout) {
  const auto pool = detail::make<opened_pool>(detail::state_of(on), pool_handle{encode(*parts.pool)}, timeout.now());
  view.body->memory = pool.open<std::byte>(pool_memory_handle{encode(*parts.pool_memory)}, timeout.now());
  if (on.id() != pool.on().id()) pool.set_access(on, access_right::read_write);
  view.body->pool = pool;
  view.owner = pool.on().id();
  view.why = "a pool: each device has the right that it is granted to all that is opened of it, its own always";
}

void open_allocation(opened_view& view, const device& on, const sorted_parts& parts, const time_left& timeout) {
  view.body->memory = opened_memory<std::byte>{on, memory_handle{encode(*parts.allocation)}, timeout.now()};
  view.owner = view.body->memory.owner();
  view.why = "an allocation: " + to_string(on.id()) + " alone may use what it has opened";
}

}  // namespace

opened_view open_share(const device& on, const share_handle& handle, nanoseconds timeout, std::size_t element,
                       std::size_t alignment, std::source_location where) {
  const called_from here{where};
  detail::state_of(on)->require_open();
  if (handle.parts().empty())
    raise(errc::invalid_argument, "opening a share_handle that names nothing; was it never set?");
  const sorted_parts parts = value_or_raise(sorted(handle.parts()));
  const time_left left{timeout};
  std::optional<error> best_failure;
  std::string passed;
  for (const sharing_way way : handle.ways()) {
    opened_view view;
    view.body = std::make_shared<opened_share>();
    view.state = detail::state_of(on).get();
    view.way = way;
    try {
      switch (way) {
        case sharing_way::block:
          open_blocks(view, on, parts, left);
          break;
        case sharing_way::pool:
          open_pool(view, on, parts, left);
          break;
        case sharing_way::allocation:
          open_allocation(view, on, parts, left);
          break;
      }
    } catch (const error_exception& failed) {
      const error& cause = failed.cause();
      const bool cannot_go =
          cause.code == errc::unsupported || cause.code == errc::peer_unsupported || cause.code == errc::not_found;
      if (!cannot_go) raise(cause);
      if (!best_failure) best_failure = cause;
      passed += std::string{"; not as a "} + std::string{to_string(way)} + ", since " + cause.what;
      continue;
    }
    if (way != sharing_way::block) {
      const auto span = view.body->memory.span();
      view.address = span.data();
      view.size = span.size();
      view.by = span.on();
    }
    if (view.size % element != 0 || reinterpret_cast<std::uintptr_t>(view.address) % alignment != 0) {
      raise(errc::incompatible, to_string(bytes{view.size}) + " of shared memory are no number of elements of " +
                                    std::to_string(element) + " bytes aligned to " + std::to_string(alignment));
    }
    view.why += passed;
    return view;
  }
  raise(*best_failure);
}

}  // namespace detail
}  // namespace weft
