// SPDX-License-Identifier: Apache-2.0
#include "collective/peers.hpp"

#include <cstdlib>
#include <sstream>
#include <string_view>
#include <unistd.h>

namespace weft::bench {

namespace {

using words = std::vector<std::string>;
using settings = std::vector<std::pair<std::string, std::string>>;

bool is_program(const std::string& path) { return ::access(path.c_str(), X_OK) == 0; }

bool is_on_path(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::istringstream folders{path == nullptr ? "" : path};
  for (std::string folder; std::getline(folders, folder, ':');)
    if (is_program(folder + "/" + name)) return true;
  return false;
}

// glibc gives big blocks back to the system at every free, and Open MPI makes its scratch anew at every call: without
// this each call of 64 MiB pays for fresh pages.
const settings kept = {{"MALLOC_MMAP_THRESHOLD_", "4294967296"},
                       {"MALLOC_TRIM_THRESHOLD_", "8589934592"},
                       {"MALLOC_TOP_PAD_", "268435456"}};
const words vader = {"--mca", "pml", "ob1", "--mca", "btl", "self,vader"};
// the component refuses shared memory alone unless told that any transport and device will do
const words ucx = {"--mca", "pml", "ucx", "--mca", "opal_common_ucx_tls", "any", "--mca", "opal_common_ucx_devices",
                   "any"};
const settings ucx_shared = {{"UCX_TLS", "self,posix,sysv,cma"}};

words forced(std::string_view algorithm) {  // 4 is the ring, 6 Rabenseifner's
  return {"--mca", "coll_tuned_use_dynamic_rules",   "1",
          "--mca", "coll_tuned_allreduce_algorithm", std::string{algorithm}};
}

template <class List>
List joined(List a, const List& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

group_plan mpi(std::string name, int ranks, const std::string& programs, const words& how, const settings& with) {
  group_plan plan;
  plan.library = "Open MPI";
  plan.name = std::move(name);
  const std::string program = programs + "/peer_mpi";
  if (!is_program(program)) {
    plan.missing = "this build has no peer_mpi: no libopenmpi-dev was found (scripts/setup bench)";
  } else if (!is_on_path("mpirun")) {
    plan.missing = "there is no mpirun (scripts/setup bench)";
  }
  // Ranks pin themselves, as all libraries' do. More ranks than cores have to yield, or one round takes milliseconds.
  const bool oversubscribed = ranks > ::sysconf(_SC_NPROCESSORS_ONLN);
  plan.pinned = !oversubscribed;
  plan.program = {"mpirun", "--allow-run-as-root", "--oversubscribe", "-np", std::to_string(ranks), "--bind-to",
                  "none"};
  if (oversubscribed) plan.program = joined(plan.program, words{"--mca", "mpi_yield_when_idle", "1"});
  plan.program = joined(joined(plan.program, how), words{program, "$BLOCK"});
  plan.environment = joined(with, settings{{"OMPI_MCA_btl_base_warn_component_unused", "0"}});
  return plan;
}

group_plan gloo(std::string algorithm, int ranks, const std::string& programs) {
  group_plan plan;
  plan.library = "Gloo";
  const std::string program = programs + "/peer_gloo";
  if (!is_program(program))
    plan.missing = "this build has no peer_gloo: no libgloo-dev was found (scripts/setup bench)";
  plan.program = {program, "$BLOCK", algorithm, std::to_string(ranks), "$FOLDER"};
  plan.name = std::move(algorithm);
  return plan;
}

}  // namespace

std::vector<group_plan> peer_plans(int ranks, const std::string& programs) {
  std::vector<group_plan> plans;
  const auto add = [&](const char* name, const words& how, const settings& with) {
    plans.push_back(mpi(name, ranks, programs, how, with));
  };
  add("vader", vader, {});
  add("vader kept", vader, kept);
  add("ucx", ucx, ucx_shared);
  add("ucx kept", ucx, joined(ucx_shared, kept));
  if (ranks > 2) {
    add("vader kept ring", joined(vader, forced("4")), kept);
    add("ucx kept ring", joined(ucx, forced("4")), joined(ucx_shared, kept));
    add("vader Rabenseifner", joined(vader, forced("6")), {});
  }
  for (const char* algorithm : {"halving_doubling", "ring", "ring_chunked", "bcube", "new_ring", "new_bcube"})
    plans.push_back(gloo(algorithm, ranks, programs));
  return plans;
}

}  // namespace weft::bench
