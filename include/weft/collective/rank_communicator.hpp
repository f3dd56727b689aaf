// SPDX-License-Identifier: Apache-2.0
// Collectives with a caller for each rank: threads or processes that met at a rendezvous, each with a device of its
// own.
#pragma once

#include "weft/collective/collective_options.hpp"
#include "weft/collective/data_type.hpp"
#include "weft/collective/reduction_op.hpp"
#include "weft/collective/symmetric_buffer.hpp"
#include "weft/core/internals.hpp"
#include "weft/memory/span.hpp"
#include "weft/processes/process_group.hpp"
#include "weft/runtime/device.hpp"
#include "weft/runtime/event.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <source_location>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace weft {

namespace detail {
class rank_communicator_body;
}

struct rank_communicator_options {
  std::chrono::nanoseconds timeout = collective_timeout;
  /// Shared memory of each rank through which memory goes that is not symmetric; as rank 0 has it. Two halves: one is
  /// filled while the other is read.
  bytes staging{std::uint64_t{1} << 20};
  waiting wait_policy = waiting::adaptive;
};

/// What a rank has under way, for whoever wants to know who is stuck.
struct rank_state {
  rank of;
  std::uint64_t operation = 0;  // number of the collective that it entered last; the first is 1
  std::string call;             // "all_reduce of 1024 float32, sum"
  bool is_inside = false;
  bool is_alive = true;
};

/// One rank of a group. All ranks make the same calls in the same order; a call says what it is to all others before it
/// touches memory, so that calls that do not match end everywhere, as incompatible, with both calls named.
///
/// A call without a stream returns when this rank has its result, and its event is complete; with a stream it returns
/// at once and runs in its order. Memory is this rank's: a buffer or span of its device, host memory, or a
/// symmetric_buffer, which alone makes direct a single pass; other memory goes through the staging memory. Memory that
/// the host does not reach is copied there; in a stream, with an explicit algorithm, and in an exchange such memory,
/// symmetric or not, has an image in pinned memory of this rank. Where a result in a stream cannot be copied from
/// there, the event and the stream of this rank fail, and no other rank is told.
/// Errors of all calls: peer_dead, timed_out, cancelled (abort, or a call left out with its stream), and what a device
///   or an operation fails with in the middle of a call, each naming the rank at fault: after these the communicator
///   answers every call with the same error until shrink(); incompatible (calls that do not match, or that a rank
///   refuses; the communicator goes on, unless a call is queued in a stream behind it already, which is left out then);
///   invalid_argument; unsupported.
/// Cost: over memory that the host reaches no allocation and no system call after the first of its kind, unless it has
///   to sleep. On a GPU the kernel that combines is compiled at the first call of a type.
/// Thread: one call at a time, abort() and states() from any.
class rank_communicator {
 public:
  /// Joins the group's communicator: all ranks call it with a device each, of a machine of their own or of one machine.
  /// Errors: peer_dead, timed_out, resource_exhausted, out_of_memory.
  [[nodiscard]] static rank_communicator join(std::shared_ptr<process_group> group, const device& mine,
                                              const rank_communicator_options& options = {},
                                              std::source_location where = std::source_location::current());
  rank_communicator(rank_communicator&&) noexcept;
  rank_communicator& operator=(rank_communicator&&) noexcept;
  ~rank_communicator();

  [[nodiscard]] rank self() const;
  [[nodiscard]] int size() const;
  [[nodiscard]] device on() const;
  /// The rank's place in the process group.
  [[nodiscard]] rank member(rank of, std::source_location where = std::source_location::current()) const;

  /// Collective: `count` elements on every rank's device. Errors: incompatible when the ranks ask for different sizes;
  ///   out_of_memory on any rank ends it on all, and so does unsupported: no memory that others can open, or a device
  ///   that cannot reach another one's, both named.
  template <class T>
  [[nodiscard]] symmetric_buffer<T> allocate(std::size_t count,
                                             std::source_location where = std::source_location::current()) {
    static_assert(std::is_trivially_copyable_v<T>);
    auto [block, memory] = allocate_bytes(count, sizeof(T), where);
    return detail::make<symmetric_buffer<T>>(
        std::move(block),
        detail::make<device_span<T>>(memory.state, memory.device, static_cast<T*>(memory.address), count, memory.kind));
  }

  template <class In, class Out>
    requires detail::moves_into<In, Out>
  event all_reduce(const In& in, const Out& out, const reduction_op& op, const collective_options& o = {},
                   std::source_location where = std::source_location::current()) {
    return run<In>(collective::all_reduce, &in, &out, &op, o, where);
  }
  template <detail::writable_memory InOut>
  event all_reduce(const InOut& memory, const reduction_op& op, const collective_options& o = {},
                   std::source_location where = std::source_location::current()) {
    return all_reduce(memory, memory, op, o, where);
  }
  /// `out` is looked at on the root alone.
  template <class In, class Out>
    requires detail::moves_into<In, Out>
  event reduce(const In& in, const Out& out, const reduction_op& op, const collective_options& o = {},
               std::source_location where = std::source_location::current()) {
    return run<In>(collective::reduce, &in, &out, &op, o, where);
  }
  /// Rank r gets the combined block r; `in` holds all blocks. Equal blocks, unless the options give `counts`.
  template <class In, class Out>
    requires detail::moves_into<In, Out>
  event reduce_scatter(const In& in, const Out& out, const reduction_op& op, const collective_options& o = {},
                       std::source_location where = std::source_location::current()) {
    return run<In>(collective::reduce_scatter, &in, &out, &op, o, where);
  }
  template <class In, class Out>
    requires detail::moves_into<In, Out>
  event all_gather(const In& in, const Out& out, const collective_options& o = {},
                   std::source_location where = std::source_location::current()) {
    return run<In>(collective::all_gather, &in, &out, nullptr, o, where);
  }
  template <detail::writable_memory InOut>
  event broadcast(const InOut& memory, const collective_options& o = {},
                  std::source_location where = std::source_location::current()) {
    return run<InOut>(collective::broadcast, &memory, &memory, nullptr, o, where);
  }
  /// `in` is looked at on the root alone.
  template <class In, class Out>
    requires detail::moves_into<In, Out>
  event scatter(const In& in, const Out& out, const collective_options& o = {},
                std::source_location where = std::source_location::current()) {
    return run<Out>(collective::scatter, &in, &out, nullptr, o, where);
  }
  /// `out` is looked at on the root alone.
  template <class In, class Out>
    requires detail::moves_into<In, Out>
  event gather(const In& in, const Out& out, const collective_options& o = {},
               std::source_location where = std::source_location::current()) {
    return run<In>(collective::gather, &in, &out, nullptr, o, where);
  }
  /// Equal blocks, unless the options give `counts`.
  template <class In, class Out>
    requires detail::moves_into<In, Out>
  event all_to_all(const In& in, const Out& out, const collective_options& o = {},
                   std::source_location where = std::source_location::current()) {
    return run<In>(collective::all_to_all, &in, &out, nullptr, o, where);
  }
  event barrier(const collective_options& o = {}, std::source_location where = std::source_location::current());

  /// Sends and receives of one rank that run at the same time, so that no order of them deadlocks. The memory must live
  /// until run() has returned: a temporary does not.
  class exchange {
   public:
    explicit exchange(rank_communicator& of) : of_(&of) {}
    template <class Src>
    exchange& send(rank to, const Src& src) {
      list_.push_back({to, true, detail::collective_memory_of(src)});
      return *this;
    }
    template <detail::writable_memory Dst>
    exchange& receive(rank from, const Dst& dst) {
      list_.push_back({from, false, detail::collective_memory_of(dst)});
      return *this;
    }
    /// Messages of a pair match in order. Errors: incompatible, naming both sizes; those of all calls. Partners are not
    /// told what this rank refuses: they wait until their timeout.
    void run(const collective_options& o = {}, std::source_location where = std::source_location::current()) {
      of_->run_exchange(*this, o, where);
    }

    struct part {
      rank other;
      bool is_send = false;
      detail::collective_memory memory;
    };
    [[nodiscard]] std::span<const part> parts() const { return list_; }

   private:
    rank_communicator* of_;
    std::vector<part> list_;
  };
  template <class Src>
  void send(rank to, const Src& src, const collective_options& o = {},
            std::source_location where = std::source_location::current()) {
    exchange{*this}.send(to, src).run(o, where);
  }
  template <detail::writable_memory Dst>
  void receive(rank from, const Dst& dst, const collective_options& o = {},
               std::source_location where = std::source_location::current()) {
    exchange{*this}.receive(from, dst).run(o, where);
  }

  /// Collective: the ranks with this one's colour, in the order of their keys, then ranks.
  [[nodiscard]] rank_communicator split(int colour, int key = 0,
                                        std::source_location where = std::source_location::current());
  /// Ends what is under way on every rank, with `why` as the cause, and all later calls. Local: needs no other rank,
  /// and may be called again.
  void abort(std::string_view why = "aborted by the program",
             std::source_location where = std::source_location::current());
  /// The survivors' communicator: called by every rank that is alive once a call has failed. All ranks that return have
  /// the same members, in the order of their ranks here, whoever dies meanwhile. A rank that does not come within the
  /// timeout is left out for good; waiting for one that stops in the middle takes the timeout once more. A rank that
  /// dies at the very end may be a member: the next call names it. Over several nodes the ranks vote: more than half of
  /// them, or half with rank 0, have to be left. Errors: peer_dead when the others go on without this rank, or too few
  /// are left; timed_out when too few answer; resource_exhausted and out_of_memory when it cannot have the memory: the
  /// others then go on without it.
  [[nodiscard]] rank_communicator shrink(std::chrono::nanoseconds timeout = std::chrono::seconds{5},
                                         std::source_location where = std::source_location::current());
  /// Why every call fails, if it does.
  [[nodiscard]] std::optional<error> failure() const;
  /// Where every rank is, by its own account. Never waits.
  [[nodiscard]] std::vector<rank_state> states() const;
  /// The algorithm of the last collective of this rank.
  [[nodiscard]] collective_algorithm last_algorithm() const;
  /// Shared memory that this communicator holds, without symmetric buffers.
  [[nodiscard]] bytes footprint() const;

 private:
  friend struct detail::internals;
  explicit rank_communicator(std::unique_ptr<detail::rank_communicator_body> made);
  struct allocated {
    std::shared_ptr<detail::symmetric_block> block;
    detail::memory_ref memory;
  };
  [[nodiscard]] allocated allocate_bytes(std::size_t count, std::size_t element, std::source_location where);
  template <class Typed, class In, class Out>
  event run(collective what, const In* in, const Out* out, const reduction_op* op, const collective_options& o,
            std::source_location where) {
    return run_bytes(what, data_type_of<detail::element_of_memory<Typed>>, detail::collective_memory_of(*in),
                     detail::collective_memory_of(*out), op, o, where);
  }
  event run_bytes(collective what, data_type type, const detail::collective_memory& in,
                  const detail::collective_memory& out, const reduction_op* op, const collective_options& o,
                  std::source_location where);
  void run_exchange(const exchange& what, const collective_options& o, std::source_location where);
  [[nodiscard]] detail::rank_communicator_body& owned() const;

  std::unique_ptr<detail::rank_communicator_body> body_;
};

}  // namespace weft
