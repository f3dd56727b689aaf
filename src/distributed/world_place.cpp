// SPDX-License-Identifier: Apache-2.0
#include "core/called_from.hpp"
#include "core/environment.hpp"
#include "weft/core/raise.hpp"
#include "weft/distributed/world.hpp"

#include <array>
#include <charconv>
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

int number(const char* name, const std::string& text, int least, int most) {
  int value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed != std::errc{} || end != text.data() + text.size() || value < least || value > most) {
    raise(errc::invalid_argument, std::string{name} + " is \"" + text + "\"; expected a number from " +
                                      std::to_string(least) + " to " + std::to_string(most));
  }
  return value;
}

std::optional<int> number_of(const names& of, int least, int most) {
  for (const char* name : of)
    if (const auto text = detail::environment(name)) return number(name, *text, least, most);
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
  if (const auto own = detail::environment("WEFT_MASTER_PORT")) {
    made.port = static_cast<std::uint16_t>(number("WEFT_MASTER_PORT", *own, 1, most));
  } else if (const auto theirs = detail::environment("MASTER_PORT")) {
    made.port = static_cast<std::uint16_t>(number("MASTER_PORT", *theirs, 1, most - 1) + 1);
  } else {
    missing("MASTER_PORT", "rank 0 listens at the port after it");
  }
  return made;
}

}  // namespace weft
