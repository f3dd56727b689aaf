// SPDX-License-Identifier: Apache-2.0
#include "collective/weft_ranks.hpp"

#include "weft/collective/rank_communicator.hpp"
#include "weft/core/raise.hpp"
#include "weft/processes/rendezvous.hpp"
#include "weft/runtime/machine.hpp"

#include <memory>
#include <string>
#include <unistd.h>
#include <utility>

namespace weft::bench {

group_plan weft_ranks(int ranks, bool pinned) {
  group_plan plan;
  plan.library = "weft";
  plan.name = "weft";
  plan.pinned = pinned;
  const std::string meeting = "weft-bench-" + std::to_string(::getpid()) + "-" + std::to_string(ranks);
  plan.play = [=](turn_block& block, int rank_number) {
    machine_options chosen;
    chosen.backend = "host";
    chosen.devices = 1;
    chosen.strict = false;  // numbers are put in and looked at by plain loads and stores
    const machine m{chosen};
    auto group =
        std::make_shared<process_group>(value_or_raise(rendezvous::at(meeting, rank{rank_number}, ranks).join()));
    auto comm = std::make_shared<rank_communicator>(rank_communicator::join(std::move(group), m[0]));
    serve_turns(block, rank_number, [comm](std::uint64_t bytes) {
      const auto memory = comm->allocate<float>(bytes / sizeof(float));
      return prepared_call{memory.data(), [comm, memory] { comm->all_reduce(memory, reduce_op::sum); },
                           [comm] { return std::string{to_string(comm->last_algorithm())}; }};
    });
  };
  return plan;
}

}  // namespace weft::bench
