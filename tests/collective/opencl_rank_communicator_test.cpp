// SPDX-License-Identifier: Apache-2.0
// A caller for each rank on OpenCL devices, with both ways to keep memory.
#include "collective/rank_collectives.hpp"
#include "support/opencl_machines.hpp"
#include "support/rounds.hpp"

#include <thread>

namespace opencl_rank_communicator_test {

using namespace ranks;
using samples::opencl_memory;
using weft::errc;

world of_opencl(opencl_memory how) {
  return {[how](int) { return weft::machine{samples::opencl_options(how)}; }, true};
}

/// Children ask: a driver that was loaded before a fork does not work in them.
class opencl_rank_communicator : public testing::TestWithParam<opencl_memory> {
 protected:
  void SetUp() override {
    processes::child asks{[] {
      const std::string why = samples::why_no_opencl();
      if (!why.empty()) std::fprintf(stderr, "%s\n", why.c_str());
      return why.empty() ? 0 : 1;
    }};
    if (asks.wait() != 0) GTEST_SKIP() << "no OpenCL devices";
  }
  [[nodiscard]] static std::vector<home> homes() {
    if (GetParam() == opencl_memory::shared) return {home::host, home::device, home::symmetric};
    return {home::host, home::device};
  }
  template <class F>
  static std::string in_each(F&& f) {
    for (const home where : homes()) {
      if (std::string wrong = f(where); !wrong.empty()) return wrong;
    }
    return {};
  }
  world opencl = of_opencl(GetParam());
};

TEST_P(opencl_rank_communicator, gives_every_collective_in_every_memory) {
  for (const kind how : {kind::processes, kind::threads, kind::threads_of_one_machine}) {
    if (samples::sees_one_process && how == kind::processes) continue;
    EXPECT_TRUE(ranks::run(
        how, 3,
        [](rank_communicator& c, const group&) { return in_each([&](home where) { return all_shapes(c, where); }); },
        {}, opencl));
  }
}

TEST_P(opencl_rank_communicator, runs_in_streams_and_over_wires_and_exchanges) {
  EXPECT_TRUE(ranks::run(
      kind::processes, 3,
      [](rank_communicator& c, const group&) {
        return in_each([&](home where) {
          std::string wrong = runs_in_a_stream(c, where);
          if (wrong.empty()) wrong = all_shapes(c, where, collective_algorithm::ring);
          return wrong.empty() ? exchanges_memory(c, where) : wrong;
        });
      },
      {}, opencl));
}

TEST_P(opencl_rank_communicator, names_mismatches_refusals_and_the_reason_for_no_symmetric_memory) {
  EXPECT_TRUE(ranks::run(
      kind::processes, 4,
      [](rank_communicator& c, const group&) {
        if (std::string wrong = names_mismatches(c); !wrong.empty()) return wrong;
        if (GetParam() == opencl_memory::shared) return mixes_memories(c);
        const weft::error e = samples::error_of([&] { static_cast<void>(c.allocate<float>(10)); });
        if (e.code != errc::unsupported || e.what.find("rank 0 (") == std::string::npos ||
            e.what.find("fine-grained") == std::string::npos)
          return to_string(e);
        return tells_of_refusals(c);
      },
      {}, opencl));
}

TEST_P(opencl_rank_communicator, keeps_symmetric_memory_until_its_last_work_has_ended) {
  if (GetParam() != opencl_memory::shared) return;
  EXPECT_TRUE(ranks::run(
      kind::processes, 2,
      [](rank_communicator& c, const group&) {
        constexpr std::size_t count = 1'000'000;
        const weft::stream order{c.on()};
        const std::vector<float> values(count, 1.0F);
        std::vector<float> got(count);
        auto there = c.allocate<float>(count);
        samples::gate gate;
        static_cast<void>(gate.hold(order));
        weft::copy(order, there.span(), values);
        const weft::event last = weft::copy(order, got, there.span());
        std::jthread opener{[&] { gate.open(); }};
        there = {};
        last.wait();
        return same(got, values, "through memory that has ended");
      },
      {}, opencl));
}

TEST_P(opencl_rank_communicator, tells_of_one_that_is_killed) {
  if (GetParam() == opencl_memory::shared) expect_the_killed_is_named(opencl);
}

INSTANTIATE_TEST_SUITE_P(rank_communicator, opencl_rank_communicator, samples::both_memories, samples::name_of_memory);

}  // namespace opencl_rank_communicator_test
