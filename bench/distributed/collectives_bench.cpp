// SPDX-License-Identifier: Apache-2.0
// all_reduce of float, sum, in place, on two nodes with two ranks each: weft against Open MPI and MPICH, all alive in
// one run and timed turn about. The nodes are network namespaces of this computer with names of their own, joined by a
// virtual cable. Every turn checks its sums first. Bars: 1.2 times as fast as the best peer at 1 and 16 MiB, 0.9 at 8
// B.
//
// usage: bench_distributed_collectives [--samples N] [--bytes N]... [--only LIBRARY]

#include "collective/rank_group.hpp"
#include "paired.hpp"
#include "weft/core/raise.hpp"
#include "weft/distributed/world.hpp"
#include "weft/runtime/machine.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sched.h>
#include <stdexcept>
#include <string>
#include <string_view>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace {

using namespace weft::bench;

constexpr int ranks_per_node = 2, ranks = 4;

void run(const std::string& command) {
  if (std::system(("PATH=$PATH:/usr/sbin:/sbin; " + command).c_str()) != 0) throw std::runtime_error{command};
}

void leave(int what) {
  if (::unshare(what) != 0) throw std::runtime_error{"unshare: this process may not make namespaces"};
  if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("sysfs", "/sys", "sysfs", 0, nullptr) != 0)
    throw std::runtime_error{"cannot mount sysfs"};
}

/// This process is on the first node; a child keeps the second.
class two_nodes {
 public:
  two_nodes() {
    constexpr int all = CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWUTS;
    leave(all);
    set_name("first");
    int ready[2];
    if (::pipe2(ready, O_CLOEXEC) != 0) throw std::runtime_error{"pipe"};
    char one = 0;
    second_ = ::fork();
    if (second_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      leave(all);
      set_name("second");
      static_cast<void>(!::write(ready[1], &one, 1));
      for (;;) ::pause();
    }
    static_cast<void>(!::read(ready[0], &one, 1));
    run("ip link set lo up; ip link add weft0 type veth peer name weft1 netns " + std::to_string(second_) +
        " && ip addr add 10.77.0.1/24 dev weft0 && ip link set weft0 up && nsenter -t " + std::to_string(second_) +
        " -n sh -c 'ip link set lo up; ip addr add 10.77.0.2/24 dev weft1 && ip link set weft1 up'");
    run("until ip link show weft0 | grep -q LOWER_UP && nsenter -t " + std::to_string(second_) +
        " -n ip link show weft1 | grep -q LOWER_UP; do :; done");
  }
  ~two_nodes() {
    ::kill(second_, SIGKILL);
    ::waitpid(second_, nullptr, 0);
  }
  two_nodes(const two_nodes&) = delete;
  two_nodes& operator=(const two_nodes&) = delete;

  void enter_second() const {
    for (const auto& [name, kind] : {std::pair{"net", CLONE_NEWNET}, {"uts", CLONE_NEWUTS}, {"mnt", CLONE_NEWNS}}) {
      const int file = ::open(("/proc/" + std::to_string(second_) + "/ns/" + name).c_str(), O_RDONLY | O_CLOEXEC);
      if (file < 0 || ::setns(file, kind) != 0) throw std::runtime_error{"cannot enter the second node"};
      ::close(file);
    }
  }
  /// A program that runs its second and following arguments on the second node, as ssh would.
  [[nodiscard]] std::string agent(const std::string& folder) const {
    const std::string path = folder + "/on_second";
    std::ofstream file{path};
    file << "#!/bin/sh\nwhile [ \"${1#-}\" != \"$1\" ]; do shift; done\nshift\nexec nsenter -t " << second_
         << " -n -u -m sh -c \"$*\"\n";
    file.close();
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path;
  }

 private:
  static void set_name(std::string_view name) {
    if (::sethostname(name.data(), name.size()) != 0) throw std::runtime_error{"sethostname"};
  }
  pid_t second_ = -1;
};

/// Over symmetric memory, or the caller's own.
group_plan weft_plan(const two_nodes& nodes, bool is_symmetric) {
  group_plan plan;
  plan.library = "weft";
  plan.name = is_symmetric ? "symmetric" : "plain memory";
  plan.play = [&nodes, is_symmetric](turn_block& block, int rank) {
    if (rank >= ranks_per_node) nodes.enter_second();
    ::setenv("UCX_TLS", "tcp,self", 1);
    weft::world_place place{
        weft::rank{rank}, ranks, {}, "10.77.0.1", static_cast<std::uint16_t>(is_symmetric ? 29533 : 29534)};
    weft::world_options how;
    how.token = "of this benchmark";
    auto everyone = std::make_shared<weft::world>(weft::value_or_raise(weft::world::join(place, how)));
    weft::machine_options chosen;
    chosen.backend = "host";
    chosen.devices = 1;
    chosen.strict = false;
    const weft::machine m{chosen};
    auto comm = std::make_shared<weft::rank_communicator>(everyone->communicator(m[0]));
    const auto algorithm = [comm] { return std::string{to_string(comm->last_algorithm())}; };
    serve_turns(block, rank, [=](std::uint64_t bytes) {
      if (is_symmetric) {
        const auto memory = comm->allocate<float>(bytes / sizeof(float));
        return prepared_call{memory.data(), [comm, memory] { comm->all_reduce(memory, weft::reduce_op::sum); },
                             algorithm};
      }
      float* memory = huge_array(bytes);
      const std::span<float> all{memory, bytes / sizeof(float)};
      return prepared_call{memory, [comm, all] { comm->all_reduce(all, weft::reduce_op::sum); }, algorithm};
    });
  };
  return plan;
}

std::string programs_beside(const char* self) {
  std::error_code failed;
  auto path = std::filesystem::read_symlink("/proc/self/exe", failed);
  return (failed ? std::filesystem::path{self} : path).parent_path().string();
}

group_plan mpi_plan(const std::string& library, const std::string& name, const std::string& program,
                    std::vector<std::string> command, std::vector<std::pair<std::string, std::string>> environment) {
  group_plan plan;
  plan.library = library;
  plan.name = name;
  if (::access(program.c_str(), X_OK) != 0) plan.missing = "this build has no " + program + " (scripts/setup bench)";
  plan.program = std::move(command);
  plan.program.push_back(program);
  plan.program.emplace_back("$BLOCK");
  plan.environment = std::move(environment);
  return plan;
}

}  // namespace

int main(int argc, char** argv) try {
  int samples = 11;
  std::vector<std::uint64_t> sizes;
  std::string only;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word{argv[i]};
    if (word == "--samples" && i + 1 < argc) {
      samples = std::max(3, std::atoi(argv[++i]));
    } else if (word == "--bytes" && i + 1 < argc) {
      sizes.push_back(std::strtoull(argv[++i], nullptr, 10));
    } else if (word == "--only" && i + 1 < argc) {
      only = argv[++i];
    } else {
      std::fprintf(stderr, "usage: %s [--samples N] [--bytes N]... [--only LIBRARY]\n", argv[0]);
      return 2;
    }
  }
  if (sizes.empty()) sizes = {8, 1024, 65536, std::uint64_t{1} << 20, std::uint64_t{16} << 20};
  const two_nodes nodes;
  char folder[] = "/tmp/weft-bench-XXXXXX";
  if (::mkdtemp(folder) == nullptr) throw std::runtime_error{"no folder in /tmp"};
  const std::string programs = programs_beside(argv[0]), agent = nodes.agent(folder);

  const std::vector<std::string> open_mpi{"mpirun.openmpi",
                                          "--allow-run-as-root",
                                          "-np",
                                          "4",
                                          "--host",
                                          "10.77.0.1:2,10.77.0.2:2",
                                          "--bind-to",
                                          "none",
                                          "--mca",
                                          "plm_rsh_agent",
                                          agent,
                                          "--mca",
                                          "mpi_yield_when_idle",
                                          "1",
                                          "--mca",
                                          "btl_tcp_if_include",
                                          "10.77.0.0/24",
                                          "--mca",
                                          "oob_tcp_if_include",
                                          "10.77.0.0/24"};
  const auto with = [](std::vector<std::string> a, const std::vector<std::string>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  };
  std::vector<group_plan> plans{weft_plan(nodes, true), weft_plan(nodes, false)};
  plans.push_back(mpi_plan("Open MPI", "ob1 tcp, vader", programs + "/peer_mpi",
                           with(open_mpi, {"--mca", "pml", "ob1", "--mca", "btl", "self,vader,tcp"}), {}));
  plans.push_back(mpi_plan("Open MPI", "ucx tcp", programs + "/peer_mpi",
                           with(open_mpi, {"--mca", "pml", "ucx", "--mca", "opal_common_ucx_tls", "any", "--mca",
                                           "opal_common_ucx_devices", "any", "-x", "UCX_TLS=self,posix,sysv,cma,tcp"}),
                           {}));
  plans.push_back(mpi_plan("MPICH", "default", programs + "/peer_mpich",
                           {"mpiexec.hydra", "-n", "4", "-hosts", "10.77.0.1:2,10.77.0.2:2", "-iface", "weft0",
                            "-launcher", "rsh", "-launcher-exec", agent},
                           {}));
  if (!only.empty()) std::erase_if(plans, [&](const group_plan& p) { return p.library != only; });
  std::vector<std::unique_ptr<rank_group>> groups;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const std::string own = std::string{folder} + "/" + std::to_string(i);
    std::filesystem::create_directory(own);
    groups.push_back(std::make_unique<rank_group>(plans[i], ranks, own));
  }
  std::printf("all_reduce, 2 nodes x 2 ranks, %d samples, turn about; us a call, median [p5, p95]\n", samples);
  for (const std::uint64_t bytes : sizes) {
    const std::uint64_t calls = bytes <= 1024 ? 400 : bytes <= 65536 ? 100 : bytes <= (1U << 20U) ? 20 : 3;
    std::vector<std::vector<double>> times(groups.size());
    std::vector<std::string> algorithm(groups.size());
    for (int s = 0; s <= samples; ++s) {
      for (std::size_t g = 0; g < groups.size(); ++g) {
        if (!groups[g]->failure().empty()) continue;
        const turn_result turn = groups[g]->play(bytes, calls);
        if (s > 0 && turn.failure.empty()) times[g].push_back(turn.seconds);
        algorithm[g] = turn.algorithm;
      }
    }
    double best = 0;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      if (times[g].empty() || groups[g]->plan().library == "weft") continue;
      const double median = spread_of(times[g]).median;
      if (best == 0 || median < best) best = median;
    }
    std::printf("%llu B\n", static_cast<unsigned long long>(bytes));
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const auto& plan = groups[g]->plan();
      if (times[g].empty()) {
        std::printf("  %-10s %-16s %s\n", plan.library.c_str(), plan.name.c_str(), groups[g]->failure().c_str());
        continue;
      }
      const spread t = spread_of(times[g]);
      std::printf("  %-10s %-16s %10.1f [%.1f, %.1f]", plan.library.c_str(), plan.name.c_str(), t.median * 1e6,
                  t.p5 * 1e6, t.p95 * 1e6);
      if (plan.library == "weft" && best > 0)
        std::printf("  %s, %.2f times as fast as the best peer", algorithm[g].c_str(), best / t.median);
      std::printf("\n");
    }
    std::fflush(stdout);
  }
  groups.clear();
  std::filesystem::remove_all(folder);
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
