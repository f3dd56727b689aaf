// SPDX-License-Identifier: Apache-2.0
// What a rank's call means, and whether it can be: everything that is known before the others are met.
#include "collective/fold/fold.hpp"
#include "collective/ranks/rank_communicator_body.hpp"
#include "weft/core/raise.hpp"

#include <cstdint>
#include <limits>
#include <string>

namespace weft::detail {
namespace {

std::string named(const rank_call& call) { return std::string{to_string(static_cast<collective>(call.terms.what))}; }

}  // namespace

std::int64_t rank_communicator_body::input_of(const rank_call& call, int of) const {
  switch (static_cast<collective>(call.terms.what)) {
    case collective::all_reduce:
    case collective::reduce:
      return call.terms.count;
    case collective::broadcast:
      return of == call.terms.root ? call.terms.count : 0;
    case collective::reduce_scatter:
      return call.start[static_cast<std::size_t>(size())];
    case collective::scatter:
      return of == call.terms.root ? call.start[static_cast<std::size_t>(size())] : 0;
    case collective::all_gather:
    case collective::gather:
      return call.block(of);
    case collective::all_to_all: {
      std::int64_t sum = 0;
      for (int to = 0; to < size(); ++to) sum += call.block(of, to, size());
      return sum;
    }
  }
  return 0;
}

std::int64_t rank_communicator_body::output_of(const rank_call& call, int of) const {
  switch (static_cast<collective>(call.terms.what)) {
    case collective::all_reduce:
      return call.terms.count;
    case collective::reduce:
      return of == call.terms.root ? call.terms.count : 0;
    case collective::broadcast:
      return call.terms.count;
    case collective::reduce_scatter:
    case collective::scatter:
      return call.block(of);
    case collective::all_gather:
      return call.start[static_cast<std::size_t>(size())];
    case collective::gather:
      return of == call.terms.root ? call.start[static_cast<std::size_t>(size())] : 0;
    case collective::all_to_all: {
      std::int64_t sum = 0;
      for (int from = 0; from < size(); ++from) sum += call.block(from, of, size());
      return sum;
    }
  }
  return 0;
}

void rank_communicator_body::describe(rank_call& call, collective what, data_type type, const reduction_op* op,
                                      const collective_memory& in, const collective_memory& out,
                                      const collective_options& o) {
  const std::span<const std::int64_t> counts = o.counts;
  call_terms& t = call.terms;
  t = {};
  t.what = static_cast<int>(what);
  t.type = type;
  t.algorithm = o.algorithm;
  call.timeout = o.timeout.value_or(options.timeout);
  call.in = call.out = {};
  call.image = nullptr;
  call.counts.assign(counts.begin(), counts.end());
  call.user = nullptr;

  const auto refuse = [](errc code, std::string text) { raise(code, std::move(text)); };
  const auto in_elements = static_cast<std::int64_t>(in.memory.size / size_of(type));
  const auto out_elements = static_cast<std::int64_t>(out.memory.size / size_of(type));
  switch (what) {
    case collective::all_reduce:
    case collective::reduce:
    case collective::broadcast:
    case collective::all_gather:
    case collective::gather:
      t.count = in_elements;
      break;
    case collective::reduce_scatter:
    case collective::scatter:
      t.count = out_elements;
      break;
    case collective::all_to_all:
      if (counts.empty() && in_elements % size() != 0) {
        refuse(errc::invalid_argument, named(call) + " of " + std::to_string(in_elements) +
                                           " elements: they do not divide by " + std::to_string(size()) + " ranks");
      }
      t.count = in_elements / size();
      break;
  }
  if (t.has_root()) {
    t.root = o.root.value();
    if (t.root < 0 || t.root >= size()) {
      const int wrong = t.root;
      t.root = 0;
      refuse(errc::invalid_argument,
             named(call) + ": root " + std::to_string(wrong) + " of " + std::to_string(size()) + " ranks");
    }
  }
  if (!counts.empty()) {
    if (!t.has_blocks()) refuse(errc::invalid_argument, named(call) + " is of no blocks, and takes no counts");
    const auto ranks = static_cast<std::size_t>(size());
    const std::size_t wanted = what == collective::all_to_all ? ranks * ranks : ranks;
    if (counts.size() != wanted) {
      refuse(errc::invalid_argument,
             named(call) + ": " + std::to_string(counts.size()) + " counts, not " + std::to_string(wanted));
    }
    std::int64_t sum = 0;
    for (const std::int64_t count : counts) {
      if (count < 0 || count > std::numeric_limits<std::int64_t>::max() / 16 - sum) {
        refuse(errc::invalid_argument, named(call) + ": a count of " + std::to_string(count));
      }
      sum += count;
    }
    t.count = sum;
    t.is_uneven = true;
    t.counts_hash = hash_of(counts);
  }
  if (t.has_blocks() && what != collective::all_to_all) {
    call.start[0] = 0;
    for (int r = 0; r < size(); ++r) {
      call.start[static_cast<std::size_t>(r) + 1] = call.start[static_cast<std::size_t>(r)] + call.block(r);
    }
  }

  if (t.reduces()) {
    // before the terms, whose record reads the kernel
    if (op->what() == reduction_op::kind::user) call.user = not_moved_from(op->kernel(), "operation");
    t.op = op->what();
    if (t.op == reduction_op::kind::user) {
      t.user = call.user.get();
      const bool is_taken = type != data_type::float16 && type != data_type::bfloat16;
      if (!is_taken || call.user->parameters.empty() || call.user->parameters.front().type != stored_as(type)) {
        refuse(is_taken ? errc::incompatible : errc::unsupported,
               "the operation " + call.user->name + " is not one of " + std::string{to_string(type)});
      }
    }
  }
  const bool is_spread = is_on_several_nodes();
  t.by_rank_order = is_spread && t.reduces() && o.order == reduction_order::rank;
  if (o.algorithm == collective_algorithm::engine) {
    if (const std::string why = lacks_engine(call, o.order); !why.empty())
      refuse(errc::unsupported, named(call) + " by engine: " + why);
  } else if (o.algorithm != collective_algorithm::automatic) {
    const bool is_of_nodes = o.algorithm == collective_algorithm::hierarchical;
    if (is_spread ? o.algorithm == collective_algorithm::direct : is_of_nodes) {
      refuse(errc::unsupported, named(call) + " by " + std::string{to_string(o.algorithm)} +
                                    (is_of_nodes ? ": all ranks are on one node"
                                                 : ": the ranks are on several nodes, which share no memory"));
    }
    const schedule_offer offer = offers(what, o.algorithm);
    if (!offer.offered) {
      refuse(errc::unsupported,
             named(call) + " by " + std::string{to_string(o.algorithm)} + ": " + std::string{offer.why});
    }
    if (o.order == reduction_order::rank && t.reduces() && o.algorithm != collective_algorithm::direct &&
        o.algorithm != collective_algorithm::naive) {
      refuse(errc::unsupported,
             named(call) + " by " + std::string{to_string(o.algorithm)} + " does not combine in the order of ranks");
    }
  }
  check_memory(call, in, out);
}

void rank_communicator_body::check_memory(rank_call& call, const collective_memory& in, const collective_memory& out) {
  const call_terms& t = call.terms;
  const bool reads = input_of(call, self()) > 0 || !t.has_root() || self() == t.root ||
                     static_cast<collective>(t.what) == collective::reduce ||
                     static_cast<collective>(t.what) == collective::gather;
  const bool writes = !t.has_root() || self() == t.root || static_cast<collective>(t.what) == collective::broadcast ||
                      static_cast<collective>(t.what) == collective::scatter;
  const auto fits = [&](const collective_memory& memory, std::int64_t wanted, const char* which) {
    if (memory.memory.size == static_cast<std::uint64_t>(wanted) * call.element()) return;
    raise(errc::invalid_argument, named(call) + ": the " + which + " of " + to_string(rank{self()}) + " holds " +
                                      std::to_string(memory.memory.size / call.element()) + " elements, not " +
                                      std::to_string(wanted));
  };
  const bool is_broadcast = static_cast<collective>(t.what) == collective::broadcast;
  if (reads && !is_broadcast) fits(in, input_of(call, self()), "input");
  if (writes) fits(out, output_of(call, self()), "output");

  if (reads && writes && !is_broadcast && in.memory.size != 0 && out.memory.size != 0) {
    const auto a = reinterpret_cast<std::uintptr_t>(in.memory.address);
    const auto b = reinterpret_cast<std::uintptr_t>(out.memory.address);
    if (a < b + out.memory.size && b < a + in.memory.size) {
      const auto mine = static_cast<std::size_t>(self());
      bool in_place = a == b;
      switch (static_cast<collective>(t.what)) {
        case collective::reduce_scatter:
        case collective::scatter:
          in_place = b == a + static_cast<std::uint64_t>(call.start[mine]) * call.element();
          break;
        case collective::all_gather:
        case collective::gather:
          in_place = a == b + static_cast<std::uint64_t>(call.start[mine]) * call.element();
          break;
        case collective::all_to_all:
          in_place = size() == 1 && a == b;
          break;
        default:
          break;
      }
      if (!in_place) {
        raise(errc::invalid_argument,
              named(call) + ": input and output of " + to_string(rank{self()}) + " overlap, and not as it is in place");
      }
    }
  }
  const auto place = [&](call_memory& made, const collective_memory& given, bool is_used) {
    if (is_used) made = reach(given, true);
    if (given.symmetric != nullptr && given.symmetric->communicator() == meeting.block().id()) {
      made.block = given.symmetric;
      // also where this rank neither reads nor writes it: the call asks the block where the others' parts are
      if (!made.held) made.held = std::const_pointer_cast<symmetric_block>(given.symmetric->shared_from_this());
      made.offset = static_cast<std::uint64_t>(static_cast<std::byte*>(given.memory.address) -
                                               static_cast<std::byte*>(given.symmetric->own().address));
    }
  };
  place(call.in, in, reads || is_broadcast);
  if (is_broadcast) {
    call.out = call.in;
  } else {
    place(call.out, out, writes);
  }
  if (call.is_streamed || algorithm_of(call) != collective_algorithm::direct) take_image(call);
  if (!call.is_streamed) finish_default(in.memory, out.memory);
}

call_memory rank_communicator_body::reach(const collective_memory& given, bool is_kept) const {
  const memory_ref& memory = given.memory;
  call_memory made;
  made.size = memory.size;
  if (memory.size == 0) return made;
  if (memory.state == nullptr) {
    made.at = static_cast<std::byte*>(memory.address);
    return made;
  }
  if (memory.state != state_of(on).get()) {
    raise(errc::wrong_device,
          "memory of another machine than that of " + to_string(rank{self()}) + " (" + to_string(on.id()) + ")");
  }
  if (given.symmetric != nullptr && given.symmetric->communicator() == meeting.block().id()) {
    if (given.symmetric->is_of_host()) {
      made.at = given.symmetric->of(self()) +
                (static_cast<std::byte*>(memory.address) - static_cast<std::byte*>(given.symmetric->own().address));
    } else {
      made.device = memory;
    }
    if (is_kept) {
      made.held = std::const_pointer_cast<symmetric_block>(given.symmetric->shared_from_this());
    }
    return made;
  }
  auto seen = state_of(on)->backend_of(memory.device).host_window(memory.device, memory.address, bytes{memory.size});
  if (seen) {
    made.at = seen->get();
    made.held = std::move(*seen);
  } else if (seen.error().code != errc::unsupported) {
    raise(std::move(seen).error());
  } else if (memory.kind == memory_kind::pinned) {
    // the host's own memory, of which no device knows where it lies
    made.at = static_cast<std::byte*>(memory.address);
  } else {
    made.device = memory;
  }
  return made;
}

void rank_communicator_body::finish_default(const memory_ref& in, const memory_ref& out) {
  // a call without a stream comes after what the default stream holds, which may be about this memory
  if (in.state == nullptr && out.state == nullptr) return;
  if (!driver_->settled(default_.native())) default_.synchronize();
}

}  // namespace weft::detail
