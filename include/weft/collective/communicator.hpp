// SPDX-License-Identifier: Apache-2.0
// Collectives over the devices of one machine, with one caller for all ranks. Programs with a caller for each rank, in
// threads or processes, take rank_communicator.
#pragma once

#include "weft/collective/collective_options.hpp"
#include "weft/collective/collective_run.hpp"
#include "weft/collective/data_type.hpp"
#include "weft/collective/rank_memory.hpp"
#include "weft/collective/reduction_op.hpp"
#include "weft/memory/span.hpp"
#include "weft/runtime/event.hpp"
#include "weft/runtime/machine.hpp"

#include <chrono>
#include <memory>
#include <optional>
#include <source_location>
#include <span>
#include <string_view>
#include <vector>

namespace weft {

struct communicator_options {
  std::chrono::nanoseconds timeout = collective_timeout;
  bool peer_access = true;  // takes leases on peer access wherever it is offered, for as long as it lives
};

/// Ranks 0 … size−1, each a device; a device may be several ranks. One thread drives all of them.
///
/// Every call returns when the work has been submitted, in stream order on each rank; the first in the same streams
/// after one that failed waits, its timeout at most, for what that one has left. Calls in streams that all differ
/// neither wait for each other nor fail together. Nothing deadlocks whatever the order of the calls. Memory is given as
/// one list with an entry for each rank (vectors of buffers or device_spans); what only the root has is given alone.
/// Blocks may differ in size: all_gather, gather, scatter and reduce_scatter take the sizes from the smaller side, and
/// that is their v-form. The same list as input and output, or for blocks the right part of it, makes it in place, but
/// for all_to_all; other overlaps are errors. Errors of all calls, before anything is submitted: incompatible, naming
/// the ranks, where sizes do not fit;
///   wrong_device where a rank's memory is not its device's; invalid_argument (overlap, root, number of entries);
///   unsupported (an algorithm that there is not, with the reason); device_lost; not_found and out_of_range (memory
///   that is gone or too short); out_of_memory (scratch); machine_closed; cancelled after abort().
/// Memory: at most 2 pieces of 16 MiB beside the buffers of each rank, kept between calls (naive 2 (N − 1), tree 4,
///   hierarchical N + 4 and N (N + 2) for its reduce_scatter); as much again, up to eight times, for each set of
///   streams that worked at the same time as another. With more than eight sets at a time, a call may wait for one of
///   another set, and fail with it.
/// Thread: one at a time; abort() and failure() from any.
class communicator {
 public:
  static constexpr int max_size = 64;

  /// All devices of a machine, in neighbour_order(): consecutive ranks have the best links.
  explicit communicator(const machine& m, const communicator_options& options = {},
                        std::source_location where = std::source_location::current());
  /// These devices, rank by rank. Errors: invalid_argument for none or more than max_size; wrong_device for two
  /// machines.
  explicit communicator(std::span<const device> ranks, const communicator_options& options = {},
                        std::source_location where = std::source_location::current());
  communicator(communicator&&) noexcept;
  communicator& operator=(communicator&&) noexcept;
  ~communicator();  // waits for what was submitted

  [[nodiscard]] int size() const;
  /// Errors: invalid_argument.
  [[nodiscard]] device on(rank of, std::source_location where = std::source_location::current()) const;
  /// Communicators of the ranks with one colour, by colour; ranks keep their order. Negative colours belong to none.
  [[nodiscard]] std::vector<communicator> split(std::span<const int> colours,
                                                std::source_location where = std::source_location::current()) const;
  /// These ranks, in this order.
  [[nodiscard]] communicator sub(std::span<const rank> ranks,
                                 std::source_location where = std::source_location::current()) const;
  /// The ranks whose devices are not lost. Errors: device_lost when none is left.
  [[nodiscard]] communicator shrink(std::source_location where = std::source_location::current()) const;
  /// Ends the copies and kernels of what was submitted, as cancelled, as soon as each device gets to them; a barrier
  /// has none, and ends as ever. Later calls fail, with `why` as the cause. Never waits, and may be called again.
  void abort(std::string_view why = "aborted by the program",
             std::source_location where = std::source_location::current());
  /// Why every call fails since abort().
  [[nodiscard]] std::optional<error> failure() const;

  template <class In, class Out>
    requires detail::moves_into<detail::of_one_rank<In>, detail::of_one_rank<Out>>
  collective_run all_reduce(const In& in, const Out& out, const reduction_op& op, const collective_options& o = {},
                            std::source_location where = std::source_location::current()) {
    return reducing<In>(collective::all_reduce, detail::rank_memory::of(in, where), detail::rank_memory::of(out, where),
                        op, o, where);
  }
  template <class InOut>
    requires detail::writable_memory<detail::of_one_rank<InOut>>
  collective_run all_reduce(const InOut& memory, const reduction_op& op, const collective_options& o = {},
                            std::source_location where = std::source_location::current()) {
    return all_reduce(memory, memory, op, o, where);
  }
  /// `out` is memory of the root alone.
  template <class In, class Out>
    requires detail::moves_into<detail::of_one_rank<In>, Out>
  collective_run reduce(const In& in, const Out& out, const reduction_op& op, const collective_options& o = {},
                        std::source_location where = std::source_location::current()) {
    return start(collective::reduce, data_type_of<detail::element_of_ranks<In>>, detail::rank_memory::of(in, where),
                 detail::rank_memory::only(out, where), &op, o, where);
  }
  /// Rank r gets the combined block r; `in` holds all blocks on each rank.
  template <class In, class Out>
    requires detail::moves_into<detail::of_one_rank<In>, detail::of_one_rank<Out>>
  collective_run reduce_scatter(const In& in, const Out& out, const reduction_op& op, const collective_options& o = {},
                                std::source_location where = std::source_location::current()) {
    return reducing<In>(collective::reduce_scatter, detail::rank_memory::of(in, where),
                        detail::rank_memory::of(out, where), op, o, where);
  }
  template <class In, class Out>
    requires detail::moves_into<detail::of_one_rank<In>, detail::of_one_rank<Out>>
  collective_run all_gather(const In& in, const Out& out, const collective_options& o = {},
                            std::source_location where = std::source_location::current()) {
    return moving<In>(collective::all_gather, detail::rank_memory::of(in, where), detail::rank_memory::of(out, where),
                      o, where);
  }
  /// In place: what the root's memory holds goes to all others.
  template <class InOut>
    requires detail::writable_memory<detail::of_one_rank<InOut>>
  collective_run broadcast(const InOut& memory, const collective_options& o = {},
                           std::source_location where = std::source_location::current()) {
    return moving<InOut>(collective::broadcast, detail::rank_memory::of(memory, where),
                         detail::rank_memory::of(memory, where), o, where);
  }
  /// `in` is memory of the root alone.
  template <class In, class Out>
    requires detail::moves_into<In, detail::of_one_rank<Out>>
  collective_run scatter(const In& in, const Out& out, const collective_options& o = {},
                         std::source_location where = std::source_location::current()) {
    return moving<Out>(collective::scatter, detail::rank_memory::only(in, where), detail::rank_memory::of(out, where),
                       o, where);
  }
  /// `out` is memory of the root alone.
  template <class In, class Out>
    requires detail::moves_into<detail::of_one_rank<In>, Out>
  collective_run gather(const In& in, const Out& out, const collective_options& o = {},
                        std::source_location where = std::source_location::current()) {
    return moving<In>(collective::gather, detail::rank_memory::of(in, where), detail::rank_memory::only(out, where), o,
                      where);
  }
  /// Equal blocks, unless the options give `counts`.
  template <class In, class Out>
    requires detail::moves_into<detail::of_one_rank<In>, detail::of_one_rank<Out>>
  collective_run all_to_all(const In& in, const Out& out, const collective_options& o = {},
                            std::source_location where = std::source_location::current()) {
    return moving<In>(collective::all_to_all, detail::rank_memory::of(in, where), detail::rank_memory::of(out, where),
                      o, where);
  }
  /// Sends memory of one rank to memory of another; calls in any order make a grouped exchange.
  template <class Src, class Dst>
    requires detail::moves_into<Src, Dst>
  collective_run send(rank from, const Src& src, rank to, const Dst& dst, const collective_options& o = {},
                      std::source_location where = std::source_location::current()) {
    return send_bytes(from, detail::untyped(detail::borrow(src)), to, detail::untyped(detail::borrow(dst)), o, where);
  }
  /// What comes next in any rank's stream starts after what is in everybody's now.
  collective_run barrier(const collective_options& o = {},
                         std::source_location where = std::source_location::current());

  /// Device memory that this communicator holds now, on all ranks together.
  [[nodiscard]] bytes footprint() const;

  struct body;

 private:
  explicit communicator(std::unique_ptr<body> made);

  template <class List>
  collective_run reducing(collective what, const detail::rank_memory& in, const detail::rank_memory& out,
                          const reduction_op& op, const collective_options& o, std::source_location where) {
    return start(what, data_type_of<detail::element_of_ranks<List>>, in, out, &op, o, where);
  }
  template <class List>
  collective_run moving(collective what, const detail::rank_memory& in, const detail::rank_memory& out,
                        const collective_options& o, std::source_location where) {
    return start(what, data_type_of<detail::element_of_ranks<List>>, in, out, nullptr, o, where);
  }
  collective_run start(collective what, data_type type, const detail::rank_memory& in, const detail::rank_memory& out,
                       const reduction_op* op, const collective_options& o, std::source_location where);
  collective_run send_bytes(rank from, const detail::memory_ref& src, rank to, const detail::memory_ref& dst,
                            const collective_options& o, std::source_location where);

  [[nodiscard]] body& owned() const;

  std::unique_ptr<body> body_;
};

}  // namespace weft
