// SPDX-License-Identifier: Apache-2.0
// The ranks of Gloo, as processes over TCP on the loopback, for bench_collective_collective: all_reduce of float, sum,
// in place. usage: bench_collective_gloo_peer BLOCK ALGORITHM RANKS FOLDER      (FOLDER: where the ranks find each
// other)

#include "collective/turn.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <gloo/allreduce.h>
#include <gloo/allreduce_bcube.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <memory>
#include <stdexcept>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace {

using context = std::shared_ptr<gloo::Context>;
using weft::bench::prepared_call;

prepared_call of_object(float* memory, std::shared_ptr<gloo::Algorithm> made) {
  return {memory, [made = std::move(made)] { made->run(); }};
}

// The newer form of Gloo, a function instead of an object: what PyTorch calls.
prepared_call of_function(const context& with, float* memory, std::size_t count,
                          gloo::AllreduceOptions::Algorithm algorithm) {
  auto options = std::make_shared<gloo::AllreduceOptions>(with);
  options->setAlgorithm(algorithm);
  options->setOutput(memory, count);
  void (*sum)(void*, const void*, const void*, std::size_t) = &gloo::sum<float>;
  options->setReduceFunction(sum);
  return {memory, [options] { gloo::allreduce(*options); }};
}

prepared_call prepare(const context& with, const std::string& algorithm, std::uint64_t bytes) {
  float* memory = weft::bench::huge_array(bytes);
  const auto count = static_cast<int>(bytes / sizeof(float));
  const std::vector<float*> mine{memory};
  if (algorithm == "halving_doubling")
    return of_object(memory, std::make_shared<gloo::AllreduceHalvingDoubling<float>>(with, mine, count));
  if (algorithm == "ring") return of_object(memory, std::make_shared<gloo::AllreduceRing<float>>(with, mine, count));
  if (algorithm == "ring_chunked")
    return of_object(memory, std::make_shared<gloo::AllreduceRingChunked<float>>(with, mine, count));
  if (algorithm == "bcube") return of_object(memory, std::make_shared<gloo::AllreduceBcube<float>>(with, mine, count));
  const std::size_t elements = bytes / sizeof(float);
  if (algorithm == "new_ring") return of_function(with, memory, elements, gloo::AllreduceOptions::Algorithm::RING);
  if (algorithm == "new_bcube") return of_function(with, memory, elements, gloo::AllreduceOptions::Algorithm::BCUBE);
  throw std::runtime_error("there is no algorithm " + algorithm);
}

int run_rank(const char* path, const std::string& algorithm, int rank, int ranks, const char* folder) {
  try {
    gloo::transport::tcp::attr where;
    where.hostname = "127.0.0.1";
    const auto device = gloo::transport::tcp::CreateDevice(where);
    gloo::rendezvous::FileStore store{folder};
    const auto with = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
    std::shared_ptr<gloo::transport::Device> wire = device;
    with->connectFullMesh(store, wire);
    weft::bench::serve_turns(weft::bench::open_block(path), rank,
                             [&](std::uint64_t bytes) { return prepare(with, algorithm, bytes); });
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "rank %d: %s\n", rank, e.what());
    return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: %s BLOCK ALGORITHM RANKS FOLDER\n", argv[0]);
    return 2;
  }
  const int ranks = std::atoi(argv[3]);
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = ::fork();
    if (child < 0) return 1;
    if (child == 0) ::_exit(run_rank(argv[1], argv[2], rank, ranks, argv[4]));
  }
  int worst = 0;
  for (int status = 0; ::wait(&status) > 0;)
    if (status != 0) worst = 1;
  return worst;
}
