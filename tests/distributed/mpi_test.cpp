// SPDX-License-Identifier: Apache-2.0
// Worlds of a program that runs MPI. The launcher of a real MPI starts this program once more for each rank.
#include "distributed/meetings.hpp"
#include "distributed/mpi/mpi_library.hpp"
#include "weft/distributed/far_memory.hpp"
#include "weft/distributed/world_queue.hpp"
#include "weft/memory/fill.hpp"
#include "weft/runtime/machine.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <dlfcn.h>
#include <filesystem>

namespace {

using namespace meetings;

struct implementation {
  const char* library;
  const char* launcher;
  const char* transports;  // of UCX
};
constexpr implementation open_mpi{"libmpi.so.40",
                                  "mpirun.openmpi --allow-run-as-root --oversubscribe --mca btl self,tcp", "tcp,self"};
// By TCP alone MPICH 4.0 may stand still in MPI_Finalize, in programs without weft too: two ranks wait in a barrier of
// the launcher for the third, and it in UCX for the end of a connection to them.
constexpr implementation mpich{"libmpich.so.12", "mpiexec.mpich", "all"};

/// What a rank finds wrong, in a program that has initialised MPI.
std::string talk_in_a_ring(world& w) {
  std::string wrong;
  const auto expect = [&](bool is_right, const std::string& what) {
    if (!is_right) wrong += "rank " + std::to_string(w.self().value()) + ": " + what + "; ";
  };
  expect(w.size() == 3, "size " + std::to_string(w.size()));
  expect(w.nodes() == 1, "nodes " + std::to_string(w.nodes()));
  expect(w.node_group()->size() == 3, "another group");
  for (const std::size_t size : {std::size_t{0}, std::size_t{8}, std::size_t{4096}, std::size_t{3} << 20U}) {
    const rank next{(w.self().value() + 1) % 3};
    const rank before{(w.self().value() + 2) % 3};
    const std::vector<std::byte> mine(size, static_cast<std::byte>(w.self().value() + 1));
    std::vector<std::byte> theirs(size);
    const auto send = [&] {
      auto sent = w.send(next, 9, mine, only_a_hang);
      expect(static_cast<bool>(sent), failure_of(sent));
    };
    const auto receive = [&] {
      auto got = w.receive(before, 9, theirs, only_a_hang);
      expect(got && *got == size, failure_of(got));
      expect(theirs == std::vector<std::byte>(size, static_cast<std::byte>(before.value() + 1)), "other bytes");
    };
    if (w.self() == rank{0})
      send(), receive();
    else
      receive(), send();
  }
  std::array<std::byte, 4> room{};
  if (w.self() == rank{0}) {  // too late, too long, and then well
    auto got = w.receive(rank{1}, 1, room, 50ms);
    expect(code_of(got) == errc::timed_out, failure_of(got));
    expect(static_cast<bool>(w.send(rank{1}, 1, view("go"), only_a_hang)), "no go");
    got = w.receive(rank{1}, 1, room, only_a_hang);
    expect(code_of(got) == errc::incompatible && says(failure_of(got), "longer"), failure_of(got));
    got = w.receive(rank{1}, 1, room, only_a_hang);
    expect(got && *got == 4, failure_of(got));
  }
  if (w.self() == rank{1}) {
    expect(static_cast<bool>(w.receive(rank{0}, 1, room, only_a_hang)), "no go came");
    for (const char* text : {"fives", "four"})
      expect(static_cast<bool>(w.send(rank{0}, 1, view(text), only_a_hang)), text);
  }
  return wrong;
}

std::string pass_round_by_queues(world& w) {
  using message = std::array<std::uint64_t, 600>;
  const rank next{(w.self().value() + 1) % 3};
  const rank before{(w.self().value() + 2) % 3};
  weft::queue_options options;
  options.capacity = 16;
  options.timeout = only_a_hang;
  weft::sender<message> tx;
  weft::receiver<message> rx;
  if (w.self() != rank{0}) tx = weft::connect_sender<message>(w, next, 1, options);
  rx = weft::connect_receiver<message>(w, before, 1, options);
  if (w.self() == rank{0}) tx = weft::connect_sender<message>(w, next, 1, options);
  message got{};
  for (std::uint64_t n = 0; n < 100; ++n) {
    got[n] = n;
    if (w.self() == rank{0} && tx.send(got) != weft::queue_status::ok) return "the first queue refused a message";
    if (rx.receive(got) != weft::queue_status::ok || got[n] != n) return "another message than " + std::to_string(n);
    if (w.self() != rank{0} && tx.send(got) != weft::queue_status::ok) return "a queue refused a message";
  }
  return tx.mode() == weft::transfer_mode::network ? "" : "a queue of another mode";
}

std::string copy_round(world& w) {
  const rank next{(w.self().value() + 1) % 3};
  const rank before{(w.self().value() + 2) % 3};
  std::vector<std::uint64_t> mine(300'000);
  const weft::offered_memory offered{w, mine};
  const auto own = offered.span();
  weft::far_span<std::uint64_t> theirs;
  static_cast<void>(w.send(before, 9, std::as_bytes(std::span{&own, 1}), only_a_hang));
  static_cast<void>(w.receive(next, 9, std::as_writable_bytes(std::span{&theirs, 1}), only_a_hang));
  std::vector<std::uint64_t> sent(mine.size()), back(mine.size());
  for (std::size_t n = 0; n < sent.size(); ++n) sent[n] = n * 3 + w.self().index();
  weft::far_copy_options verified;
  verified.verify = true;
  copy(w, theirs, sent, verified);
  copy(w, back, theirs, verified);
  static_cast<void>(w.send(next, 10, {}, only_a_hang));
  static_cast<void>(w.receive(before, 10, {}, only_a_hang));
  const bool is_theirs = mine[5] == 15 + before.index() && mine.back() == (mine.size() - 1) * 3 + before.index();
  return back == sent && is_theirs ? "" : "other bytes in far memory";
}

/// Every collective by MPI's own, against what is expected; and what MPI does not do.
std::string collect_by_engine(world& w) {
  weft::machine_options chosen;
  chosen.devices = 1;
  const weft::machine m{chosen};
  weft::rank_communicator all = w.communicator(m[0]);
  const auto self = static_cast<std::int64_t>(w.self().value());
  weft::collective_options by;
  by.algorithm = weft::collective_algorithm::engine;
  std::string wrong;
  const auto expect = [&](const auto& got, const auto& wanted, const char* what) {
    if (!std::ranges::equal(got, wanted)) wrong += std::string{what} + "; ";
    if (all.last_algorithm() != weft::collective_algorithm::engine) wrong += std::string{what} + ": another way; ";
  };
  for (const std::size_t count : {std::size_t{1}, std::size_t{5000}}) {
    using numbers = std::vector<std::int32_t>;
    const auto mine = [&](std::int64_t of) { return numbers(count, static_cast<std::int32_t>(10 + of)); };
    numbers memory = mine(self);
    all.all_reduce(memory, weft::reduce_op::sum, by);
    expect(memory, numbers(count, 33), "all_reduce");
    memory = mine(self);
    all.all_reduce(memory, weft::reduction_op::average(), by);
    expect(memory, numbers(count, 11), "average");
    memory = mine(self);
    all.all_reduce(memory, weft::reduce_op::max, by);
    expect(memory, numbers(count, 12), "max");
    by.root = rank{1};
    memory = mine(self);
    all.broadcast(memory, by);
    expect(memory, mine(1), "broadcast");
    numbers three(3 * count), joined;
    for (std::int64_t r = 0; r < 3; ++r) joined.insert(joined.end(), count, static_cast<std::int32_t>(10 + r));
    all.all_gather(mine(self), three, by);
    expect(three, joined, "all_gather");
    numbers part(count);
    all.scatter(joined, part, by);
    expect(part, mine(self), "scatter");
    std::ranges::fill(three, 0);
    all.gather(part, three, by);
    expect(three, self == 1 ? joined : numbers(3 * count), "gather");
    all.reduce_scatter(joined, part, weft::reduce_op::sum, by);
    expect(part, numbers(count, static_cast<std::int32_t>(3 * (10 + self))), "reduce_scatter");
    std::ranges::fill(part, 0);
    all.reduce(mine(self), part, weft::reduce_op::product, by);
    expect(part, self == 1 ? numbers(count, 10 * 11 * 12) : numbers(count), "reduce");
    numbers sent, wanted;
    for (std::int64_t to = 0; to < 3; ++to) {
      sent.insert(sent.end(), count, static_cast<std::int32_t>(10 * self + to));
      wanted.insert(wanted.end(), count, static_cast<std::int32_t>(10 * to + self));
    }
    all.all_to_all(sent, three, by);
    expect(three, wanted, "all_to_all");
    const std::vector<float> reals(count, 0.5F * static_cast<float>(self));
    std::vector<float> sum(count);
    all.all_reduce(reals, sum, weft::reduce_op::sum, by);
    expect(sum, std::vector<float>(count, 1.5F), "all_reduce of float");
    const weft::buffer<double> there{m[0], count};
    weft::fill(there, static_cast<double>(self));
    all.all_reduce(there, weft::reduce_op::min, by);
    std::vector<double> back(count, 1);
    weft::copy(back, there);
    expect(back, std::vector<double>(count, 0), "all_reduce of a device's memory");
  }
  std::vector<weft::half> halves(4);
  const auto refused = error_of([&] { all.all_reduce(halves, weft::reduce_op::sum, by); }).code;
  if (refused != errc::unsupported) wrong += "half was taken; ";
  weft::rank_communicator some = all.split(self == 2 ? 1 : 0, 0);
  std::vector<float> memory(4);
  if (error_of([&] { some.all_reduce(memory, weft::reduce_op::sum, by); }).code != errc::unsupported)
    wrong += "some of the ranks were taken; ";
  all.barrier();  // they let it go together
  return wrong;
}

/// Over MPI's messages: each rank on a node of its own.
std::string work_over_nodes(world_options options, int rank_of_mpi) {
  options.node = "n" + std::to_string(rank_of_mpi);
  auto w = world::join_mpi(nullptr, options);
  if (!w) return failure_of(w);
  if (w->nodes() != 3) return "nodes: " + std::to_string(w->nodes());
  if (std::string wrong = pass_round_by_queues(*w); !wrong.empty()) return wrong;
  if (std::string wrong = copy_round(*w); !wrong.empty()) return wrong;
  weft::machine_options chosen;
  chosen.devices = 1;
  const weft::machine m{chosen};
  weft::rank_communicator all = w->communicator(m[0]);
  for (const std::size_t count : {std::size_t{3}, std::size_t{100'000}}) {
    std::vector<std::int64_t> memory(count, std::int64_t{1} << w->self().value());
    all.all_reduce(memory, weft::reduce_op::sum);
    if (memory != std::vector<std::int64_t>(count, 7)) return "a sum of " + std::to_string(count) + " is wrong";
  }
  return says(w->engine(), "mpi") ? collect_by_engine(*w) : "";
}

/// What needs threads of weft's, where MPI takes none.
std::string lacks_threads(world_options options, int rank_of_mpi) {
  options.node = "n" + std::to_string(rank_of_mpi);
  auto w = world::join_mpi(nullptr, options);
  if (!w) return failure_of(w);
  const rank next{(w->self().value() + 1) % 3};
  std::vector<std::uint64_t> mine(4);
  std::string wrong;
  for (const weft::error& refused : {error_of([&] { static_cast<void>(weft::connect_receiver<int>(*w, next, 1)); }),
                                     error_of([&] { static_cast<void>(weft::connect_sender<int>(*w, next, 1)); }),
                                     error_of([&] { const weft::offered_memory offered{*w, mine}; })})
    if (refused.code != errc::unsupported || !says(refused.what, "rank 0 (host ") ||
        !says(refused.what, "MPI_THREAD_MULTIPLE"))
      wrong += weft::to_string(refused) + "; ";
  return wrong;
}

/// Rank 0 gives up what it sends to rank 1: neither gets anything of the other any more.
std::string give_up_a_message(world_options options) {
  options.silence = 4s;
  auto w = world::join_mpi(nullptr, options);
  if (!w) return failure_of(w);
  std::array<std::byte, 1> room{};
  std::string wrong;
  if (w->self() == rank{0}) {
    const std::vector<std::byte> large(std::size_t{16} << 20U);
    const auto late = w->send(rank{1}, 1, large, 50ms);
    if (code_of(late) != errc::timed_out) wrong += "a message that nobody receives: " + failure_of(late);
    const auto next = w->send(rank{1}, 2, view("small"), only_a_hang);
    if (code_of(next) != errc::peer_dead) wrong += "the next one: " + failure_of(next);
    static_cast<void>(w->receive(rank{2}, 3, room, only_a_hang));  // rank 1 has been told
  } else if (w->self() == rank{1}) {
    const auto none = w->receive(rank{0}, 2, room, only_a_hang);
    if (code_of(none) != errc::peer_dead) wrong += "the rank that was to receive it: " + failure_of(none);
    static_cast<void>(w->send(rank{2}, 3, {}, only_a_hang));
  } else {
    static_cast<void>(w->receive(rank{1}, 3, room, only_a_hang));
    static_cast<void>(w->send(rank{0}, 3, {}, only_a_hang));
  }
  return wrong;
}

/// A rank that the launcher has started: writes what it finds wrong, and "well" at rank 0.
int be_a_rank(const char* library, weft::world_engine engine, std::string_view how) {
  const bool has_threads = how != "single", gives_up = how == "gives_up";
  void* mpi = ::dlopen(library, RTLD_NOW | RTLD_GLOBAL);
  const auto init = reinterpret_cast<int (*)(void*, void*, int, int*)>(mpi ? ::dlsym(mpi, "MPI_Init_thread") : nullptr);
  constexpr int single = 0, multiple = 3;  // of both
  int granted = 0;
  if (init == nullptr || init(nullptr, nullptr, has_threads ? multiple : single, &granted) != 0 ||
      (granted == multiple) != has_threads) {
    std::puts("wrong: cannot initialise MPI");
    return 1;
  }
  std::string wrong;
  {
    world_options options = within(only_a_hang);
    options.engine = engine;
    auto w = world::join_mpi(nullptr, options);
    if (w && gives_up) {
      wrong = give_up_a_message(options);
      std::printf("%s%s\n", wrong.empty() ? "well " : "wrong: ", wrong.c_str());
      std::fflush(stdout);
      static_cast<void>(w->node_group()->barrier(only_a_hang));
      std::_Exit(0);  // MPI_Finalize may wait for ever for a message that nobody receives
    }
    wrong = w ? talk_in_a_ring(*w) : failure_of(w);
    if (w && wrong.empty() && engine == weft::world_engine::mpi) wrong = collect_by_engine(*w);  // on one node
    if (w && wrong.empty() && has_threads) wrong = work_over_nodes(options, w->self().value());
    if (w && wrong.empty() && !has_threads) wrong = lacks_threads(options, w->self().value());
    if (w && w->self() == rank{0}) std::printf("well by %s\n", w->engine().c_str());
    if (w) static_cast<void>(w->node_group()->barrier(only_a_hang));
  }
  if (!wrong.empty()) std::printf("wrong: %s\n", wrong.c_str());
  reinterpret_cast<int (*)()>(::dlsym(mpi, "MPI_Finalize"))();
  if (auto none = world::join_mpi(); none || !says(failure_of(none), "has been finalized"))
    std::puts("wrong: joined after all");
  return wrong.empty() ? 0 : 1;
}

// Runs before main() in a process that the launcher started.
[[maybe_unused]] const bool is_the_test = [] {
  const char* library = std::getenv("TEST_MPI_LIBRARY");
  if (library == nullptr) return true;
  const std::string engine = std::getenv("TEST_MPI_ENGINE");
  std::_Exit(be_a_rank(library, engine == "mpi" ? weft::world_engine::mpi : weft::world_engine::automatic,
                       std::getenv("TEST_MPI_HOW")));
}();

/// What three ranks wrote; empty where that MPI is not here.
std::string three_ranks(const implementation& mpi, const std::string& engine, const std::string& how = "threads") {
  const std::string launcher{mpi.launcher};
  const std::string found = "command -v " + launcher.substr(0, launcher.find(' ')) + " > /dev/null";
  if (std::system(found.c_str()) != 0) return {};
  const std::string line = std::string{"env -u RANK TEST_MPI_LIBRARY="} + mpi.library + " TEST_MPI_ENGINE=" + engine +
                           " TEST_MPI_HOW=" + how + " UCX_TLS=" + mpi.transports +
                           " UCX_MEM_MMAP_HOOK_MODE=none OMPI_MCA_rmaps_base_oversubscribe=1 " + launcher + " -n 3 " +
                           std::filesystem::read_symlink("/proc/self/exe").string() + " 2>&1";
  std::string said;
  FILE* out = ::popen(line.c_str(), "r");
  std::array<char, 4096> part{};
  while (out != nullptr && std::fgets(part.data(), part.size(), out) != nullptr) said += part.data();
  if (out != nullptr) said += ::pclose(out) == 0 ? "" : "it failed";
  return said;
}

/// Why a test of an MPI with threads tells nothing here; empty where it does.
constexpr std::string_view why_no_threads() {
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
  return "ThreadSanitizer takes the locks inside MPI, which is not compiled for it, for races and deadlocks";
#endif
#endif
  return {};
}

TEST(world_by_mpi, meets_and_sends_by_open_mpi) {
  if (!why_no_threads().empty()) GTEST_SKIP() << why_no_threads();
  const std::string said = three_ranks(open_mpi, "mpi");
  if (said.empty()) GTEST_SKIP() << "no Open MPI here (openmpi-bin)";
  EXPECT_TRUE(says(said, "well by mpi: Open MPI")) << said;
  EXPECT_FALSE(says(said, "wrong: ") || says(said, "it failed")) << said;  // MPI and UCX may print what they like
}

TEST(world_by_mpi, meets_and_sends_by_mpich) {
  if (!why_no_threads().empty()) GTEST_SKIP() << why_no_threads();
  const std::string said = three_ranks(mpich, "mpi");
  if (said.empty()) GTEST_SKIP() << "no MPICH here (mpich)";
  EXPECT_TRUE(says(said, "well by mpi: MPICH")) << said;
  EXPECT_FALSE(says(said, "wrong: ") || says(said, "it failed")) << said;  // MPI and UCX may print what they like
}

TEST(world_by_mpi, refuses_messages_to_a_rank_after_one_that_was_given_up) {
  if (!why_no_threads().empty()) GTEST_SKIP() << why_no_threads();
  for (const implementation* mpi : {&open_mpi, &mpich}) {
    const std::string said = three_ranks(*mpi, "mpi", "gives_up");
    if (said.empty()) continue;
    std::size_t well = 0;
    for (std::size_t at = said.find("well "); at != std::string::npos; at = said.find("well ", at + 1)) ++well;
    EXPECT_EQ(well, 3U) << said;  // the launchers say that the ranks left without a word
  }
}

TEST(world_by_mpi, refuses_queues_and_copies_where_mpi_takes_no_threads) {
  const std::string said = three_ranks(open_mpi, "mpi", "single");
  if (said.empty()) GTEST_SKIP() << "no Open MPI here (openmpi-bin)";
  EXPECT_TRUE(says(said, "well by mpi: Open MPI")) << said;
  EXPECT_FALSE(says(said, "wrong: ") || says(said, "it failed")) << said;
}

TEST(world_by_mpi, takes_ucx_where_every_rank_has_it) {
  const std::string said = three_ranks(open_mpi, "automatic");
  if (said.empty()) GTEST_SKIP() << "no Open MPI here (openmpi-bin)";
  EXPECT_TRUE(says(said, "well by ucx") || says(said, "well by mpi")) << said;
}

TEST(world_by_mpi, needs_an_mpi_that_is_initialised) {
  const auto none = world::join_mpi();
  EXPECT_EQ(code_of(none), errc::not_found);
  EXPECT_TRUE(says(failure_of(none), "this process has opened no MPI")) << failure_of(none);
}

}  // namespace
