// SPDX-License-Identifier: Apache-2.0
// Collectives that the engine of a world does: MPI's own.
#include "collective/fold/fold.hpp"
#include "collective/ranks/rank_communicator_body.hpp"
#include "collective/schedule/rank_bit.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

namespace weft::detail {

/// As schedule.hpp has them.
std::vector<std::int64_t> rank_communicator_body::counts_of(const rank_call& call) const {
  if (call.terms.is_uneven) return call.counts;
  const auto what = static_cast<collective>(call.terms.what);
  const auto n = static_cast<std::size_t>(size());
  const bool is_one = what == collective::all_reduce || what == collective::reduce || what == collective::broadcast;
  return std::vector<std::int64_t>(is_one ? 1 : what == collective::all_to_all ? n * n : n, call.terms.count);
}

std::string rank_communicator_body::lacks_engine(const rank_call& call, reduction_order order) const {
  const far_ranks* const far = meeting.far();
  if (far == nullptr) return "the ranks are of a group: make the communicator of a world that MPI carries";
  if (std::string why = far->carrier().lacks_collectives(); !why.empty()) return why;
  const call_terms& t = call.terms;
  if (t.reduces()) {
    if (t.type == data_type::float16 || t.type == data_type::bfloat16)
      return "MPI combines no " + std::string{to_string(t.type)};
    if (t.op == reduction_op::kind::user) return "MPI does not know the operation " + t.user->name;
    if (order == reduction_order::rank) return "MPI does not promise to combine in the order of ranks";
  }
  const std::vector<std::int64_t> counts = counts_of(call);
  const auto most = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  return most <= std::numeric_limits<int>::max() ? std::string{}
                                                 : "MPI counts elements in an int: at most 2,147,483,647 of all ranks";
}

/// What MPI has begun nobody can call back, nor does it know of deaths: this rank waits, bounded and looking after the
/// others, while MPI works on a copy. Nobody leaves before all have what they need.
void rank_communicator_body::run_by_engine(rank_call& call) {
  rank_carrier& by = meeting.far()->carrier();
  const std::uint64_t others = all_of(size()) & ~bit(self());
  const std::vector<std::int64_t> counts = counts_of(call);
  const bool takes_out = output_of(call, self()) > 0, gives = input_of(call, self()) > 0;
  // sixteen bits that are only moved are as good as any
  const bool is_moved = !call.terms.reduces() && call.element() == 2;
  engine_call wanted;
  wanted.what = static_cast<collective>(call.terms.what);
  wanted.type = is_moved ? data_type::uint16 : call.terms.type;
  wanted.op = call.terms.op == reduction_op::kind::average ? reduction_op::kind::sum : call.terms.op;
  wanted.root = call.terms.root;
  wanted.self = self();
  wanted.ranks = size();
  if (gives) wanted.in = {call.in.at, call.in.size};
  if (takes_out) wanted.out = {call.out.at, call.out.size};
  wanted.counts = counts;

  transfers_used_ = 0;
  transfer& t = next_transfer();
  by.start(t, wanted);
  meeting.far()->set_waiting(true);
  try {
    const auto is_over = [&] { return by.progress(), !t.is_under_way(); };
    meeting.wait(is_over, [&] { return t.is_under_way() ? others : 0; });
  } catch (...) {
    by.forget(t);
    throw;
  }
  meeting.far()->set_waiting(false);
  if (t.at != transfer::stage::done) meeting.fail(errc::closed, "MPI's own collective failed: " + t.why);
  if (call.terms.op == reduction_op::kind::average && call.terms.reduces() && takes_out) {
    std::array<void*, 1> result{call.out.at};
    fold(call, output_of(call, self()), result, result, size());
  }
  if (!is_on_several_nodes()) return meeting.meet();
  rank_call all_have;
  std::array<std::byte, 2> here{};
  all_have.terms.what = static_cast<int>(collective::all_reduce);
  all_have.terms.count = 1;
  all_have.in.at = here.data();
  all_have.out.at = &here[1];
  all_have.in.size = all_have.out.size = 1;
  run_schedule(all_have);
}

}  // namespace weft::detail
