// SPDX-License-Identifier: Apache-2.0
#include "distributed/mpi/mpi_collectives.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace weft::detail::mpi {

bool collective_group::is_settled() {
  if (is_there_ || began_ != success) return true;
  int is_over = 0;
  mpi::status unread;
  began_ = calls_.test(&request_, &is_over, &unread);
  if (began_ != success || is_over == 0) return began_ != success;
  is_there_ = true;
  return true;
}

void collective_group::free() {
  if (std::exchange(is_there_, false)) calls_.comm_free(&comm_);
}

collective_work::collective_work(std::shared_ptr<collective_group> of, const engine_call& call)
    : group(std::move(of)),
      call_(call),
      counts_(call.counts.begin(), call.counts.end()),
      in_(call.in.begin(), call.in.end()),
      out_(call.out.size()) {
  if (call.what == collective::broadcast && call.self == call.root) out_ = in_;
  const bool is_square = call.what == collective::all_to_all;
  const auto ranks = static_cast<std::size_t>(call.ranks);
  const auto self = static_cast<std::size_t>(call.self);
  std::vector<int> sent(ranks), received(ranks);
  for (std::size_t r = 0; is_square && r < ranks; ++r) {
    sent[r] = counts_[self * ranks + r];
    received[r] = counts_[r * ranks + self];
  }
  blocks_ = of_blocks(is_square ? sent : counts_);
  theirs_ = of_blocks(received);
  call_.in = {};
  call_.out = {};
  call_.counts = {};
}

collective_work::layout collective_work::of_blocks(const std::vector<int>& counts) {
  layout made{counts, {}};
  int at = 0;
  for (const int count : counts) {
    made.displacements.push_back(at);
    at += count;
  }
  return made;
}

int collective_work::begin(const library& calls, handle* request) {
  has_begun = true;
  const handle comm = group->comm();
  const handle type = calls.types[static_cast<std::size_t>(call_.type)];
  const handle op = calls.ops[static_cast<std::size_t>(call_.op) % calls.ops.size()];
  const auto self = static_cast<std::size_t>(call_.self);
  const int* const counts = blocks_.counts.data();
  const int* const at = blocks_.displacements.data();
  switch (call_.what) {
    case collective::all_reduce:
      return calls.iallreduce(in_.data(), out_.data(), counts[0], type, op, comm, request);
    case collective::reduce:
      return calls.ireduce(in_.data(), out_.data(), counts[0], type, op, call_.root, comm, request);
    case collective::reduce_scatter:
      return calls.ireduce_scatter(in_.data(), out_.data(), counts, type, op, comm, request);
    case collective::broadcast:
      return calls.ibcast(out_.data(), counts[0], type, call_.root, comm, request);
    case collective::all_gather:
      return calls.iallgatherv(in_.data(), counts[self], type, out_.data(), counts, at, type, comm, request);
    case collective::gather:
      return calls.igatherv(in_.data(), counts[self], type, out_.data(), counts, at, type, call_.root, comm, request);
    case collective::scatter:
      return calls.iscatterv(in_.data(), counts, at, type, out_.data(), counts[self], type, call_.root, comm, request);
    case collective::all_to_all:
      return calls.ialltoallv(in_.data(), counts, at, type, out_.data(), theirs_.counts.data(),
                              theirs_.displacements.data(), type, comm, request);
  }
  return success;
}

}  // namespace weft::detail::mpi
