// SPDX-License-Identifier: Apache-2.0
// What a call hands in: checked before anything is submitted, and turned into a wish for a plan.
#include "collective/devices/communicator_body.hpp"
#include "collective/schedule/collective_kind.hpp"
#include "collective/schedule/rank_bit.hpp"
#include "memory/memory_state.hpp"
#include "runtime/machine_state.hpp"

#include <algorithm>
#include <array>
#include <cstddef>

namespace weft {
namespace {

using detail::memory_ref;

}  // namespace

void communicator::body::place(std::span<const memory_ref> given, std::vector<memory_ref>& into, bool only_root,
                               const char* side, std::source_location where) {
  const auto count = static_cast<std::size_t>(ranks->size());
  into.assign(count, {});
  const std::size_t wanted = only_root ? 1 : count;
  if (given.size() != wanted) {
    raise(errc::invalid_argument,
          std::string{to_string(wish_.shape.what)} + " over " + std::to_string(count) + " ranks was given " +
              std::to_string(given.size()) + " " + side + "s, not " + std::to_string(wanted),
          where);
  }
  for (std::size_t i = 0; i < given.size(); ++i) {
    const std::size_t r = only_root ? static_cast<std::size_t>(wish_.shape.root) : i;
    const memory_ref& m = given[i];
    into[r] = m;
    if (m.size == 0) continue;
    const auto refuse = [&](const std::string& why) {
      raise(errc::wrong_device, name(r) + ": its " + side + " is " + why, where);
    };
    if (m.state == nullptr) refuse("host memory; a collective takes memory of " + to_string(ids[r]));
    if (m.state != ranks->state.get()) refuse("memory of another machine");
    const bool is_everybodys = m.kind == memory_kind::pinned || m.kind == memory_kind::unified;
    if (m.device != ids[r] && !is_everybodys) refuse("memory of " + to_string(m.device));
  }
}

void communicator::body::take_op(const reduction_op* op, std::source_location where) {
  wish_.op = reduction_op::kind::sum;
  wish_.user = nullptr;
  if (op == nullptr) return;
  wish_.op = op->what();
  if (op->what() != reduction_op::kind::user) return;
  wish_.user = detail::not_moved_from(op->kernel(), "operation", where);
  if (wish_.type == data_type::float16 || wish_.type == data_type::bfloat16) {
    raise(errc::unsupported,
          "the kernel '" + op->name() + "' cannot combine " + std::string{to_string(wish_.type)} +
              ": kernels take numbers of 8 to 64 bits, float and double",
          where);
  }
  if (op->type() != wish_.type) {
    raise(errc::incompatible,
          "the kernel '" + op->name() + "' combines " + std::string{to_string(op->type())} + ", not " +
              std::string{to_string(wish_.type)},
          where);
  }
}

void communicator::body::take_counts(std::span<const std::int64_t> counts, std::source_location where) {
  collective_shape& shape = wish_.shape;
  const std::size_t size = size_of(wish_.type);
  const auto elements = [&](const memory_ref& m) { return static_cast<std::int64_t>(m.size / size); };
  const auto all_of = [&](const std::vector<memory_ref>& list) {
    shape.counts.resize(list.size());
    for (std::size_t r = 0; r < list.size(); ++r) shape.counts[r] = elements(list[r]);
  };
  const auto root = static_cast<std::size_t>(shape.root);
  if (!counts.empty() && shape.what != collective::all_to_all) {
    raise(errc::invalid_argument,
          std::string{to_string(shape.what)} + " takes the sizes of its blocks from the memory, not from counts",
          where);
  }
  switch (shape.what) {
    case collective::all_reduce:
    case collective::reduce:
      shape.counts.assign(1, elements(memory_.in.front()));
      break;
    case collective::broadcast:
      shape.counts.assign(1, elements(memory_.out[root]));
      break;
    case collective::reduce_scatter:
    case collective::scatter:
      all_of(memory_.out);
      break;
    case collective::all_gather:
    case collective::gather:
      all_of(memory_.in);
      break;
    case collective::all_to_all: {
      const std::size_t n = memory_.in.size();
      if (!counts.empty()) {
        if (counts.size() != n * n) {
          raise(errc::invalid_argument,
                "all_to_all over " + std::to_string(n) + " ranks takes " + std::to_string(n * n) + " counts, not " +
                    std::to_string(counts.size()),
                where);
        }
        for (std::size_t i = 0; i < counts.size(); ++i) {
          if (counts[i] < 0) {
            raise(errc::invalid_argument,
                  "all_to_all: " + name(i / n) + " cannot send " + std::to_string(counts[i]) + " elements to " +
                      name(i % n),
                  where);
          }
        }
        shape.counts.assign(counts.begin(), counts.end());
        break;
      }
      const std::int64_t whole = elements(memory_.in.front());
      if (whole % static_cast<std::int64_t>(n) != 0) {
        raise(errc::incompatible,
              "all_to_all: " + std::to_string(whole) + " elements do not divide into " + std::to_string(n) +
                  " blocks; give the counts",
              where);
      }
      shape.counts.assign(n * n, whole / static_cast<std::int64_t>(n));
      break;
    }
  }
}

void communicator::body::check_sizes(std::source_location where) const {
  const std::size_t size = size_of(wish_.type);
  for (std::size_t r = 0; r < memory_.in.size(); ++r) {
    const auto compare = [&](const memory_ref& m, std::int64_t wanted, const char* side) {
      const auto got = static_cast<std::int64_t>(m.size / size);
      if (got == wanted) return;
      raise(errc::incompatible,
            std::string{to_string(wish_.shape.what)} + ": the " + side + " of " + name(r) + " has " +
                std::to_string(got) + " elements, not " + std::to_string(wanted) + " as the other memory asks for",
            where);
    };
    compare(memory_.in[r], input_elements(wish_.shape, static_cast<int>(r)), "input");
    compare(memory_.out[r], output_elements(wish_.shape, static_cast<int>(r)), "output");
  }
}

void communicator::body::check_overlap(std::source_location where) {
  struct range {
    const std::byte* begin;
    const std::byte* end;
    std::size_t rank;
    bool written;
  };
  std::array<range, 2 * static_cast<std::size_t>(max_size)> ranges;
  std::size_t count = 0;
  const auto begin_of = [](const memory_ref& m) { return static_cast<const std::byte*>(m.address); };
  const auto size = static_cast<std::int64_t>(size_of(wish_.type));
  wish_.in_place = 0;
  for (std::size_t r = 0; r < memory_.in.size(); ++r) {
    const memory_ref& in = memory_.in[r];
    const memory_ref& out = memory_.out[r];
    const std::byte* in_begin = begin_of(in);
    const std::byte* out_begin = begin_of(out);
    if (in.size != 0 && out.size != 0) {
      const auto offset = in_place_offset(wish_.shape, static_cast<int>(r));
      if (offset && in_begin == out_begin + *offset * size) {
        wish_.in_place |= detail::bit(static_cast<int>(r));
        ranges[count++] = {std::min(in_begin, out_begin), std::max(in_begin + in.size, out_begin + out.size), r, true};
        continue;
      }
    }
    if (in.size != 0) ranges[count++] = {in_begin, in_begin + in.size, r, false};
    if (out.size != 0) ranges[count++] = {out_begin, out_begin + out.size, r, true};
  }
  std::sort(ranges.begin(), ranges.begin() + static_cast<std::ptrdiff_t>(count),
            [](const range& a, const range& b) { return a.begin < b.begin; });
  const range* reaches = nullptr;          // the furthest of those before
  const range* reaches_written = nullptr;  // and of what is written
  for (std::size_t i = 0; i < count; ++i) {
    const range& now = ranges[i];
    const range* other = reaches_written != nullptr && reaches_written->end > now.begin  ? reaches_written
                         : now.written && reaches != nullptr && reaches->end > now.begin ? reaches
                                                                                         : nullptr;
    if (other != nullptr) {
      std::string text = std::string{to_string(wish_.shape.what)} + ": memory of " + name(now.rank);
      text += other->rank == now.rank ? std::string{": its input and output overlap, and not as in place"}
                                      : " overlaps memory of " + name(other->rank);
      raise(errc::invalid_argument, std::move(text), where);
    }
    if (reaches == nullptr || now.end > reaches->end) reaches = &now;
    if (now.written && (reaches_written == nullptr || now.end > reaches_written->end)) reaches_written = &now;
  }
}

void communicator::body::take(collective what, data_type type, const detail::rank_memory& in,
                              const detail::rank_memory& out, const reduction_op* op, const collective_options& o,
                              std::source_location where) {
  wish_.shape.what = what;
  wish_.shape.ranks = ranks->size();
  wish_.shape.nodes = ranks->nodes;
  wish_.shape.root = detail::has_root(what) ? static_cast<int>(checked(o.root, "the root", where)) : 0;
  wish_.type = type;
  wish_.order = detail::reduces(what) ? o.order : reduction_order::any;
  wish_.wanted = o.algorithm;
  take_op(op, where);
  place(in.all(), memory_.in, what == collective::scatter, "input", where);
  place(out.all(), memory_.out, what == collective::reduce || what == collective::gather, "output", where);
  if (what == collective::broadcast) {
    for (std::size_t r = 0; r < memory_.in.size(); ++r) {
      if (static_cast<int>(r) != wish_.shape.root) memory_.in[r] = {};
    }
  }
  take_counts(o.counts, where);
  check_sizes(where);
  check_overlap(where);
  wish_.no_direct = why_not_direct();
}

std::string communicator::body::why_not_direct() {
  if (!no_access.empty() || ranks->size() == 1) return no_access;
  if (const std::uint64_t epoch = ranks->drivers.front()->peer_epoch(); epoch != access_epoch_) {
    access_epoch_ = epoch;
    denied_.clear();
    for (const peer_access& lease : leases) {
      if (!ranks->drivers.front()->peer_enabled(lease.from(), lease.to()))
        denied_ = "the access of " + to_string(lease.from()) + " to " + to_string(lease.to()) + " was disabled";
    }
  }
  if (!denied_.empty()) return denied_;
  // memory with rights of its own: a pool's, an opened one, a mapping
  const bool some = detail::memory_of(*ranks->state).has_own_access.load(std::memory_order_relaxed);
  for (const auto* list : {&memory_.in, &memory_.out}) {
    for (std::size_t r = 0; r < list->size(); ++r) {
      const memory_ref& m = (*list)[r];
      if (m.size == 0 || (m.kind == memory_kind::device && !some)) continue;
      for (std::size_t by = 0; by < ids.size(); ++by) {
        auto right = ranks->drivers[by]->memory_access(ids[by], m.address);
        if (right && (*right == access_right::read_write || (list == &memory_.in && *right != access_right::none)))
          continue;
        if (right || right.error().code != errc::unsupported)
          return to_string(ids[by]) + " has no right to the memory of " + name(r);
      }
    }
  }
  return {};
}

void communicator::body::check_device(std::size_t rank, std::source_location where) const {
  const auto cause = ranks->drivers[rank]->lost(ids[rank]);
  if (!cause) return;
  error told;
  told.code = errc::device_lost;
  told.scope = error_scope::device;
  told.what = name(rank) + ": the device is lost since: " + cause->what;
  told.where = where;
  raise(std::move(told));
}

void communicator::body::check_memory(std::source_location where) const {
  for (std::size_t r = 0; r < ids.size(); ++r) {
    backend& by = *ranks->drivers[r];
    check_device(r, where);
    for (const memory_ref* m : {&memory_.in[r], &memory_.out[r]}) {
      if (m->size == 0) continue;
      const std::string side = name(r) + (m == &memory_.in[r] ? ": its input: " : ": its output: ");
      auto known = by.find(m->address);
      if (!known) {
        error cause = std::move(known).error();
        cause.what = side + cause.what;
        cause.where = where;
        raise(std::move(cause));
      }
      const auto offset = static_cast<std::uint64_t>(static_cast<const std::byte*>(m->address) -
                                                     static_cast<const std::byte*>(known->base));
      if (known->kind != memory_kind::block && m->size > known->size.value() - offset)
        raise(errc::out_of_range, side + "it passes the end of its allocation", where);
    }
  }
}

}  // namespace weft
