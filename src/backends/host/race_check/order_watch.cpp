// SPDX-License-Identifier: Apache-2.0
#include "backends/host/race_check/order_watch.hpp"

#include "backends/common/copy_checks.hpp"
#include "backends/host/memory/block_map.hpp"

#include <algorithm>

namespace weft::host {
namespace {

/// Elements of an argument, counted from its first one: half open.
struct elements {
  std::int64_t begin = 0, end = 0;
};

/// What a launch reaches of an argument as its parameter declares it, `radius` steps around its items.
elements reach(const kernel_argument& argument, const access_rule& rule, const kernel_range& range,
               std::int64_t radius) {
  const elements all{0, argument.count};
  const auto outer = static_cast<std::size_t>(range.dimensions - 1);
  const std::int64_t step = range.dimensions == 1 ? 1 : argument.slab;
  if (rule.kind == access_kind::whole || rule.kind == access_kind::reduce || step <= 0) return all;
  const std::int64_t each = rule.kind == access_kind::rows ? rule.amount : 1;
  elements made;
  if (__builtin_sub_overflow(range.begin[outer], radius, &made.begin) ||
      __builtin_add_overflow(range.end[outer], radius, &made.end)) {
    return all;
  }
  for (std::int64_t* bound : {&made.begin, &made.end}) {
    if (__builtin_mul_overflow(*bound, each, bound) || __builtin_mul_overflow(*bound, step, bound) ||
        __builtin_sub_overflow(*bound, argument.first, bound)) {
      return all;
    }
    *bound = std::clamp<std::int64_t>(*bound, 0, argument.count);
  }
  return made;
}

}  // namespace

// ---- streams --------------------------------------------------------------------------------------------------------

void order_watch::quiet(stream_handle stream) {
  const std::lock_guard lock{mutex_};
  quiet_.insert(stream);
}

bool order_watch::is_quiet(stream_handle stream) {
  const std::lock_guard lock{mutex_};
  return quiet_.contains(stream);
}

void order_watch::stream_gone(stream_handle stream) {
  check_.stream_gone(stream);
  const std::lock_guard lock{mutex_};
  quiet_.erase(stream);
}

// ---- operations -----------------------------------------------------------------------------------------------------

device_id order_watch::add(std::vector<order_access>& to, const void* address, std::uint64_t size, bool writes,
                           std::uint32_t argument) {
  const auto memory = memory_.find(address, size);
  if (!memory || size == 0) return {};
  if (memory->kind == memory_kind::block) {
    // several mappings may show one block, and one range may reach over several mappings
    device_id owner;
    common::for_each_piece(*memory, address, size, [&](const allocation& home, std::uint64_t at, std::uint64_t count) {
      const std::uintptr_t place = home.mapping->memory->place;
      to.push_back({place + at, count, writes, argument, place});
      owner = home.owner;
    });
    return owner;
  }
  // where the bytes are, whatever addresses name them: a mapping and its source are one memory
  const auto offset = static_cast<std::uint64_t>(static_cast<const std::byte*>(address) - memory->user);
  const allocation& home = memory->source ? *memory->source : *memory;
  const auto base = reinterpret_cast<std::uintptr_t>(home.user);
  const std::uintptr_t begin = base + (memory->source ? memory->source_offset : 0) + offset;
  if (!to.empty() && to.back().begin + to.back().size == begin && to.back().base == base &&
      to.back().writes == writes && to.back().argument == argument) {
    to.back().size += size;
  } else {
    to.push_back({begin, size, writes, argument, base});
  }
  return home.owner;
}

device_id order_watch::add_rows(std::vector<order_access>& to, const void* address, const copy_shape& shape,
                                std::uint64_t pitch, std::uint64_t slice, bool writes) {
  device_id owner;
  const auto* first = static_cast<const std::byte*>(address);
  for (std::uint64_t z = 0; z < shape.depth; ++z) {
    for (std::uint64_t y = 0; y < shape.height; ++y) {
      // row by row: what lies between the rows may be somebody else's, such as the other half of an image
      owner = add(to, first + z * slice + y * pitch, shape.width, writes, 0);
      if (owner == device_id{}) return owner;  // plain host memory
    }
  }
  return owner;
}

order_watch::mark_ref order_watch::copies(stream_handle stream, device_id on, std::span<const copy_request> requests) {
  if (is_quiet(stream)) return nullptr;
  order_operation op;
  op.what = order_operation::kind::copy;
  op.on = on;
  std::vector<order_access> touched;
  for (const copy_request& request : requests) {
    const copy_shape& shape = request.shape;
    if (shape.total() == 0) continue;
    op.from = add_rows(touched, request.src, shape, shape.src_pitch, shape.src_slice, false);
    op.to = add_rows(touched, request.dst, shape, shape.dst_pitch, shape.dst_slice, true);
    op.size += shape.total();
    op.where = request.where;
  }
  return check_.submitted(stream, std::move(op), touched);
}

order_watch::mark_ref order_watch::fill(stream_handle stream, device_id on, const fill_request& request) {
  if (is_quiet(stream)) return nullptr;
  order_operation op;
  op.what = order_operation::kind::fill;
  op.on = on;
  op.size = request.count * request.pattern_size;
  op.where = request.where;
  std::vector<order_access> touched;
  add(touched, request.dst, op.size, true, 0);
  return check_.submitted(stream, std::move(op), touched);
}

order_watch::mark_ref order_watch::prefetch(stream_handle stream, device_id on, void* base, bytes size) {
  if (is_quiet(stream)) return nullptr;
  order_operation op;
  op.what = order_operation::kind::prefetch;
  op.on = on;
  op.size = size.value();
  std::vector<order_access> touched;
  add(touched, base, op.size, false, 0);
  return check_.submitted(stream, std::move(op), touched);
}

order_watch::mark_ref order_watch::launch(stream_handle stream, device_id on, const launch_request& request) {
  if (is_quiet(stream)) return nullptr;
  // Both ends of a ring work at once, and what they say to each other orders what they do: nothing to judge here.
  if (has_ring(*request.kernel)) return recorded(stream);
  order_operation op;
  op.what = order_operation::kind::launch;
  op.on = on;
  op.kernel = request.kernel;
  op.where = request.where;
  std::vector<order_access> touched;
  for (std::size_t i = 0; i < request.arguments.size(); ++i) {
    const kernel_argument& argument = request.arguments[i];
    if (argument.direction == parameter_direction::scalar || argument.count == 0) continue;
    const access_rule rule =
        i < request.kernel->parameters.size() ? request.kernel->parameters[i].access : access::whole();
    const auto part = [&](const elements& of, bool writes) {
      const auto size = static_cast<std::int64_t>(size_of(argument.type));
      add(touched, static_cast<const std::byte*>(argument.address) + of.begin * size,
          static_cast<std::uint64_t>(std::max<std::int64_t>(of.end - of.begin, 0) * size), writes,
          static_cast<std::uint32_t>(i + 1));
    };
    // an item writes what is its own; around it, it reads
    const bool is_halo = rule.kind == access_kind::halo || rule.kind == access_kind::wrap;
    const std::int64_t radius = is_halo ? rule.amount : 0;
    const elements own = reach(argument, rule, request.range, 0);
    if (argument.direction == parameter_direction::in) {
      part(reach(argument, rule, request.range, radius), false);
    } else {
      if (argument.direction == parameter_direction::inout && radius > 0)
        part(reach(argument, rule, request.range, radius), false);
      part(own, true);
    }
  }
  return check_.submitted(stream, std::move(op), touched);
}

order_watch::mark_ref order_watch::recorded(stream_handle stream) {
  return is_quiet(stream) ? nullptr : check_.recorded(stream);
}

order_watch::conversation::conversation(order_watch& owner, stream_handle stream)
    : owner_(owner), before_(owner.check_.recorded(stream)), after_(owner.check_.hold(stream)) {}

order_watch::conversation::~conversation() { owner_.check_.open_gate(after_); }

void order_watch::conversation::begins() { owner_.check_.host_waited(before_); }

std::shared_ptr<order_watch::conversation> order_watch::talks(stream_handle stream) {
  return std::make_shared<conversation>(*this, stream);
}

std::shared_ptr<order_watch::word_wait> order_watch::waits_for_word(stream_handle stream) {
  return is_quiet(stream) ? nullptr : std::make_shared<word_wait>(*this, stream);
}

// ---- order ----------------------------------------------------------------------------------------------------------

void order_watch::wait(stream_handle stream, const event_record& event, const backend* own) {
  if (is_quiet(stream)) return;
  if (event.owner != own) {
    check_.wait_for_all(stream);
  } else {
    check_.wait(stream, mark_of(event));
  }
}

void order_watch::renewed(const void* base, std::uint64_t size) {
  check_.freed(reinterpret_cast<std::uintptr_t>(base), size);
}

}  // namespace weft::host
