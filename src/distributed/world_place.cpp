// SPDX-License-Identifier: Apache-2.0
#include "core/environment.hpp"
#include "core/errors/called_from.hpp"
#include "weft/core/raise.hpp"
#include "weft/distributed/world.hpp"

#include <array>
#include <limits>
#include <string_view>
#include <utility>

namespace weft {
namespace {

// Names of one thing, the first that is set counts: torchrun, Open MPI, Slurm, and the PMI of MPICH and Intel MPI.
using names = std::array<const char*, 4>;
constexpr names rank_names{"RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "PMI_RANK"};
constexpr names size_names{"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS", "PMI_SIZE"};
constexpr names local_names{"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID", "MPI_LOCALRANKID"};

std::optional<int> number_of(const names& of, int least, int most) {
  for (const char* name : of)
    if (const auto set = detail::environment_number(name, least, most)) return set;
  return std::nullopt;
}

[[noreturn]] void missing(const char* name, const char* meaning) {
  raise(errc::not_found, std::string{"the variable "} + name + " (" + meaning +
                             ") is not set: start the program by torchrun, mpirun or srun, or set it");
}

}  // namespace

world_place world_place::from_environment(std::source_location where) {
  const called_from here{where};
  world_place made;
  const auto size = number_of(size_names, 1, world::max_size);
  if (!size) missing("WORLD_SIZE", "how many processes take part");
  const auto self = number_of(rank_names, 0, *size - 1);
  if (!self) missing("RANK", "which of them this is");
  made.self = rank{*self};
  made.size = *size;
  made.local_rank = number_of(local_names, 0, world::max_size - 1);
  if (made.size == 1) return made;
  auto host = detail::environment("MASTER_ADDR");
  if (!host) missing("MASTER_ADDR", "the host of rank 0");
  made.host = std::move(*host);
  constexpr int most = std::numeric_limits<std::uint16_t>::max();
  if (const auto own = detail::environment_number("WEFT_MASTER_PORT", 1, most)) {
    made.port = static_cast<std::uint16_t>(*own);
  } else if (const auto theirs = detail::environment_number("MASTER_PORT", 1, most - 1)) {
    made.port = static_cast<std::uint16_t>(*theirs + 1);
  } else {
    missing("MASTER_PORT", "rank 0 listens at the port after it");
  }
  return made;
}

}  // namespace weft
