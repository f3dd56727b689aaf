// SPDX-License-Identifier: Apache-2.0
// One rank of Open MPI, for bench_collective_collective: all_reduce of float, sum, in place.
// usage: mpirun -np N bench_collective_mpi_peer BLOCK

#include "collective/turn.hpp"

#include <mpi.h>

#include <cstdint>
#include <cstdio>
#include <exception>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  if (argc != 2) {
    std::fprintf(stderr, "usage: mpirun -np N %s BLOCK\n", argv[0]);
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  try {
    auto& block = weft::bench::open_block(argv[1]);
    weft::bench::serve_turns(block, rank, [](std::uint64_t bytes) {
      float* memory = weft::bench::huge_array(bytes);
      const int count = static_cast<int>(bytes / sizeof(float));
      return weft::bench::prepared_call{
          memory, [memory, count] { MPI_Allreduce(MPI_IN_PLACE, memory, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); }};
    });
  } catch (const std::exception& e) {
    std::fprintf(stderr, "rank %d: %s\n", rank, e.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return 0;
}
