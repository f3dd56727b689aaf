// SPDX-License-Identifier: Apache-2.0
// A caller for each rank on CUDA, played by the virtual driver: memory that the host does not reach.
#include "collective/rank_collectives.hpp"
#include "support/virtual_gpus.hpp"
#include "weft/exec/launch.hpp"
#include "weft/kernel/define.hpp"

#include <optional>

namespace gpu_rank_communicator_test {

using namespace ranks;
using weft::errc;

WEFT_KERNEL(later_counts_more, (WEFT_INOUT(int32_t) into, WEFT_IN(int32_t) more), { into[i] = into[i] * 3 + more[i]; });

weft::machine of_cuda(int) { return weft::machine{samples::virtual_cuda_options()}; }
const world cuda{of_cuda, true};

/// What the virtual driver reads when it is first called, which is in the children.
void set(const char* name, const char* value) { setenv(name, value, 1); }  // NOLINT(concurrency-mt-unsafe): one thread

class gpu_rank_communicator : public testing::Test {
 protected:
  void SetUp() override {
    if (samples::virtual_cuda_library().empty()) GTEST_SKIP() << "the virtual CUDA driver is not built";
  }
  void TearDown() override {
    for (const char* name : {"WEFT_VIRTUAL_CUDA_P2P", "WEFT_VIRTUAL_CUDA_MISSING", "WEFT_VIRTUAL_CUDA_FAIL"})
      unsetenv(name);  // NOLINT(concurrency-mt-unsafe)
  }
};

class gpu_memories : public gpu_rank_communicator, public testing::WithParamInterface<home> {};

TEST_P(gpu_memories, every_collective_gives_right_results_to_processes_in_each_memory) {
  for (const int n : {1, 2, 3, 5}) {
    EXPECT_TRUE(ranks::run(
        kind::processes, n, [](rank_communicator& c, const group&) { return all_shapes(c, GetParam()); }, {}, cuda))
        << n;
  }
}

TEST_P(gpu_memories, every_collective_gives_right_results_to_threads_in_each_memory) {
  for (const kind how : {kind::threads, kind::threads_of_one_machine}) {
    EXPECT_TRUE(
        ranks::run(how, 3, [](rank_communicator& c, const group&) { return all_shapes(c, GetParam()); }, {}, cuda));
  }
}

TEST_P(gpu_memories, memory_of_every_kind_is_used_in_the_order_of_a_stream) {
  for (const kind how : {kind::processes, kind::threads_of_one_machine}) {
    EXPECT_TRUE(ranks::run(
        how, 3, [](rank_communicator& c, const group&) { return runs_in_a_stream(c, GetParam()); }, {}, cuda));
  }
  if (GetParam() == home::host) return;  // which is the program's to keep
  EXPECT_TRUE(ranks::run(
      kind::processes, 3,
      [](rank_communicator& c, const group&) { return keeps_memory_of_streamed_calls(c, GetParam()); }, {}, cuda));
}

TEST_P(gpu_memories, memory_of_every_kind_goes_over_wires_by_the_requested_algorithms) {
  for (const auto by : {collective_algorithm::ring, collective_algorithm::tree}) {
    EXPECT_TRUE(ranks::run(
        kind::processes, 3, [by](rank_communicator& c, const group&) { return all_shapes(c, GetParam(), by); }, {},
        cuda));
  }
}

TEST_P(gpu_memories, memory_of_every_kind_is_exchanged) {
  EXPECT_TRUE(ranks::run(
      kind::processes, 3, [](rank_communicator& c, const group&) { return exchanges_memory(c, GetParam()); }, {},
      cuda));
}

TEST_P(gpu_memories, memory_of_every_kind_is_reduced_in_place_by_a_kernel_of_the_user) {
  EXPECT_TRUE(ranks::run(
      kind::processes, 3,
      [](rank_communicator& c, const group&) {
        return reduces_in_place(c, GetParam(), reduction_op::by<later_counts_more>(), [&](std::size_t count) {
          std::vector<std::int32_t> made(count);
          for (std::size_t i = 0; i < count; ++i) {
            made[i] = number(0, i);
            for (int r = 1; r < c.size(); ++r) made[i] = made[i] * 3 + number(r, i);
          }
          return made;
        });
      },
      {}, cuda));
}

INSTANTIATE_TEST_SUITE_P(rank_communicator, gpu_memories, testing::Values(home::host, home::device, home::symmetric));

TEST_F(gpu_rank_communicator, reduces_in_place_to_each_of_more_ranks_than_one_pass_takes) {
  EXPECT_TRUE(ranks::run(
      kind::threads, 11,
      [](rank_communicator& c, const group&) {
        return reduces_in_place(c, home::symmetric, reduce_op::sum, [&](std::size_t count) {
          return reduced<std::int32_t>(c.size(), count, reduction_op::kind::sum);
        });
      },
      {}, cuda));
}

TEST_F(gpu_rank_communicator, takes_memory_of_another_kind_from_each_rank) {
  EXPECT_TRUE(
      ranks::run(kind::processes, 3, [](rank_communicator& c, const group&) { return mixes_memories(c); }, {}, cuda));
}

TEST_F(gpu_rank_communicator, names_both_calls_that_do_not_match_and_what_is_refused) {
  EXPECT_TRUE(ranks::run(
      kind::processes, 4,
      [](rank_communicator& c, const group&) {
        std::string wrong = names_mismatches(c);
        return wrong.empty() ? tells_of_refusals(c) : wrong;
      },
      {}, cuda));
}

TEST_F(gpu_rank_communicator, a_killed_rank_is_named_and_the_others_go_on) {
  expect_the_killed_is_named(cuda);
  set("WEFT_VIRTUAL_CUDA_MISSING", "cuMemCreate");  // memory that goes with its process
  expect_the_killed_is_named(cuda);
}

TEST_F(gpu_rank_communicator, without_blocks_shares_its_allocations_between_processes) {
  set("WEFT_VIRTUAL_CUDA_MISSING", "cuMemCreate");
  EXPECT_TRUE(ranks::run(
      kind::processes, 3,
      [](rank_communicator& c, const group&) {
        std::string wrong = all_shapes(c, home::symmetric);
        return wrong.empty() ? mixes_memories(c) : wrong;
      },
      {}, cuda));
  // handles pass between processes only
  EXPECT_TRUE(ranks::run(
      kind::threads, 2,
      [](rank_communicator& c, const group&) {
        const weft::error e = samples::error_of([&] { static_cast<void>(c.allocate<float>(10)); });
        if (e.code != errc::unsupported || e.what.find("rank 0 (") == std::string::npos) return to_string(e);
        c.barrier();
        return std::string{};
      },
      {}, cuda));
}

TEST_F(gpu_rank_communicator, on_gpus_that_are_no_peers_has_no_symmetric_memory_and_names_the_pair) {
  set("WEFT_VIRTUAL_CUDA_P2P", "none");
  for (const char* missing : {"", "cuMemCreate"}) {
    set("WEFT_VIRTUAL_CUDA_MISSING", missing);
    EXPECT_TRUE(ranks::run(
        kind::processes, 2,
        [](rank_communicator& c, const group&) {
          const weft::error e = samples::error_of([&] { static_cast<void>(c.allocate<float>(10)); });
          if (e.code != errc::unsupported || e.what.find("gpu0") == std::string::npos ||
              e.what.find("gpu1") == std::string::npos)
            return to_string(e);
          // plain memory needs no peers
          return all_shapes(c, home::device);
        },
        {}, cuda));
  }
}

TEST_F(gpu_rank_communicator, does_not_use_a_pair_that_loses_data) {
  EXPECT_TRUE(ranks::run(
      kind::processes, 2,
      [](rank_communicator& c, const group&) {
        if (c.self() == rank{0}) samples::virtual_cuda{}.drop(0, 1, 8);  // what kernels write into mappings
        const weft::error e = samples::error_of([&] { static_cast<void>(c.allocate<float>(10)); });
        if (e.code != errc::unsupported || e.what.find("rank 0 (") == std::string::npos ||
            e.what.find("gpu0 a right to a block of gpu1") == std::string::npos)
          return to_string(e);
        return std::string{};
      },
      {}, cuda));
}

/// Calls of the driver that bring a byte to the host or away from it.
unsigned long long crossings() {
  const samples::virtual_cuda driver;
  unsigned long long sum = 0;
  for (const char* name : {"cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync", "cuMemcpyDtoH", "cuMemcpyHtoD"})
    sum += driver.calls(name);
  return sum;
}

TEST_F(gpu_rank_communicator, combines_symmetric_memory_by_kernels_and_not_through_the_host) {
  EXPECT_TRUE(ranks::run(
      kind::processes, 3,
      [](rank_communicator& c, const group&) {
        constexpr std::size_t count = 100'000;
        auto there = c.allocate<float>(count), out = c.allocate<float>(3 * count);
        c.barrier();
        const auto used = [&](auto&& call, std::string_view what, bool wants_kernel) {
          const unsigned long long before = crossings(), kernels = samples::virtual_cuda{}.calls("cuLaunchKernel");
          call();
          if (crossings() != before) return std::string{what} + " goes through the host";
          const bool launched = samples::virtual_cuda{}.calls("cuLaunchKernel") != kernels;
          return launched == wants_kernel ? std::string{} : std::string{what} + " launches otherwise";
        };
        std::string wrong = used([&] { c.all_reduce(there, reduce_op::sum); }, "all_reduce", true);
        if (wrong.empty()) wrong = used([&] { c.all_gather(there, out); }, "all_gather", false);
        if (wrong.empty()) wrong = used([&] { c.broadcast(there); }, "broadcast", false);
        return wrong;
      },
      {}, cuda));
}

TEST_F(gpu_rank_communicator, tells_all_ranks_of_one_that_cannot_allocate) {
  EXPECT_TRUE(ranks::run(
      kind::processes, 3,
      [](rank_communicator& c, const group&) {
        if (c.self() == rank{2}) samples::virtual_cuda{}.fail("cuMemCreate@0=2");
        const weft::error e = samples::error_of([&] { static_cast<void>(c.allocate<float>(10)); });
        if (e.code != errc::out_of_memory || e.what.find("rank 2 (") == std::string::npos) return to_string(e);
        if (c.self() == rank{2}) samples::virtual_cuda{}.fail("");
        // and one whose memory cannot be copied tells the others, too
        weft::buffer<float> plain{c.on(), 100}, much{c.on(), 500'000};
        weft::fill(plain, 1.0F);
        weft::fill(much, 1.0F);
        weft::collective_options ring;
        ring.algorithm = collective_algorithm::ring;
        const auto refused = [&](const char* what, auto&& call) {
          if (c.self() == rank{2}) samples::virtual_cuda{}.fail("cuMemcpyDtoHAsync@0=1,cuMemcpyAsync@0=1");
          const weft::error heard = samples::error_of(call);
          if (c.self() == rank{2}) samples::virtual_cuda{}.fail("");
          const bool right = c.self() == rank{2} ? heard.code == errc::copy_failed
                                                 : heard.code == errc::incompatible &&
                                                       heard.what.find("rank 2 (") != std::string::npos &&
                                                       heard.what.find("refuses") != std::string::npos;
          return right ? std::string{} : what + (": " + to_string(heard));
        };
        std::string wrong = refused("a small one", [&] { c.all_reduce(plain, reduce_op::sum); });
        if (wrong.empty()) wrong = refused("by a ring", [&] { c.all_reduce(much, reduce_op::sum, ring); });
        if (!wrong.empty()) return wrong;
        c.barrier();
        auto there = c.allocate<float>(10);
        return there.size() == 10 ? std::string{} : std::string{"nothing was allocated"};
      },
      {}, cuda));
}

TEST_F(gpu_rank_communicator, page_locks_its_staging_memory_at_the_first_call_that_copies_into_it) {
  EXPECT_TRUE(ranks::run(
      kind::processes, 2,
      [](rank_communicator& c, const group&) {
        const auto registered = [] { return samples::virtual_cuda{}.calls("cuMemHostRegister"); };
        weft::buffer<float> plain{c.on(), 100'000};
        weft::fill(plain, 1.0F);
        const auto before = registered();
        c.all_reduce(plain, reduce_op::sum);
        const auto first = registered();
        c.all_reduce(plain, reduce_op::sum);
        if (first != before + 1 || registered() != first) return std::string{"registered otherwise"};
        const auto given_back = [] { return samples::virtual_cuda{}.calls("cuMemHostUnregister"); };
        const auto kept = given_back();
        static_cast<void>(rank_communicator{std::move(c)});
        return given_back() == kept + 1 ? std::string{} : std::string{"it was not page-locked"};
      },
      {}, cuda));
}

TEST_F(gpu_rank_communicator, has_read_all_symmetric_memory_when_a_call_returns) {
  EXPECT_TRUE(ranks::run(
      kind::processes, 3,
      [](rank_communicator& c, const group&) {
        constexpr std::size_t count = 4'000'000, tail = 64;
        auto there = c.allocate<float>(count), out = c.allocate<float>(count);
        weft::fill(there, 1.0F);
        c.barrier();
        // whoever comes back first writes where the others' devices would read last
        const auto writes_and_is_seen_by_none = [&](const char* what, auto&& call, const auto& result, float expected) {
          const weft::stream own{c.on()};
          call();
          weft::fill(own, there.subspan(count - tail, tail), static_cast<float>(100 + c.self().value())).wait();
          c.barrier();
          std::vector<float> got(tail);
          weft::copy(got, result.subspan(count - tail, tail));
          weft::fill(there, 1.0F);
          c.barrier();
          return got == std::vector<float>(tail, expected) ? std::string{} : std::string{what} + " reads on";
        };
        std::string wrong =
            writes_and_is_seen_by_none("all_reduce", [&] { c.all_reduce(there, out, reduce_op::sum); }, out, 3.0F);
        if (!wrong.empty()) return wrong;
        auto blocks = c.allocate<float>(3 * count);
        return writes_and_is_seen_by_none(
            "all_gather", [&] { c.all_gather(there, blocks); }, blocks.subspan(2 * count, count), 1.0F);
      },
      {}, cuda));
}

/// Rank 2 cannot copy what it hands in: what each rank hears.
testing::AssertionResult hears(bool is_streamed, errc others, const std::string& why) {
  return ranks::run(
      kind::processes, 3,
      [=](rank_communicator& c, const group&) {
        weft::buffer<float> much{c.on(), 500'000};
        weft::fill(much, 1.0F);
        std::optional<weft::stream> own;
        weft::collective_options o;
        if (is_streamed) o.streams = {&own.emplace(c.on()), 1};
        c.barrier();
        if (c.self() == rank{2}) samples::virtual_cuda{}.fail("cuMemcpyDtoHAsync@0=1,cuMemcpyAsync@0=1");
        weft::error heard = samples::error_of([&] { c.all_reduce(much, reduce_op::sum, o).wait(); });
        if (c.self() == rank{2}) {
          samples::virtual_cuda{}.fail("");
          if (heard.code != errc::copy_failed || (!is_streamed && !heard.what.starts_with("rank 2 (")))
            return to_string(heard);
          heard = samples::error_of([&] { c.barrier(); });
        }
        if (heard.code != others || heard.what.find("rank 2 (") == std::string::npos ||
            heard.what.find(why) == std::string::npos)
          return to_string(heard);
        // nothing was written, and the others are told so for good
        std::vector<float> got(500'000);
        weft::copy(got, much);
        if (is_streamed && got != std::vector<float>(500'000, 1.0F)) return std::string{"something was written"};
        return c.failure() ? std::string{} : std::string{"the communicator goes on"};
      },
      {}, cuda);
}

TEST_F(gpu_rank_communicator, ends_for_all_ranks_where_a_device_fails_in_the_middle_of_a_call) {
  EXPECT_TRUE(hears(false, errc::copy_failed, "cannot go on"));
}

TEST_F(gpu_rank_communicator, ends_for_all_ranks_where_a_result_cannot_be_copied_to_its_device) {
  // in passing, in two steps, and from an image
  const std::pair<std::size_t, collective_algorithm> cases[] = {{10, collective_algorithm::automatic},
                                                                {1000, collective_algorithm::automatic},
                                                                {1000, collective_algorithm::ring}};
  for (const auto& one : cases) {
    EXPECT_TRUE(ranks::run(
        kind::processes, 3,
        [one](rank_communicator& c, const group&) {
          const auto& [count, by] = one;
          const std::vector<float> in(count, 1.0F);
          std::vector<float> out(count);
          const weft::buffer<float> there{c.on(), count};
          weft::collective_options o;
          o.algorithm = by;
          c.barrier();
          const auto call = [&] {
            c.self() == rank{2} ? c.all_reduce(in, there, reduce_op::sum, o) : c.all_reduce(in, out, reduce_op::sum, o);
          };
          if (c.self() == rank{2}) samples::virtual_cuda{}.fail("cuMemcpyHtoDAsync@0=1,cuMemcpyAsync@0=1");
          const weft::error heard = samples::error_of(call);
          if (c.self() == rank{2}) {
            samples::virtual_cuda{}.fail("");
            if (heard.code != errc::copy_failed || !heard.what.starts_with("rank 2 (")) return to_string(heard);
          }
          // the others may have had their results before
          const weft::error later = samples::error_of([&] { c.barrier(); });
          return later.code == errc::copy_failed && later.what.starts_with("rank 2 (") &&
                         later.what.find("cannot go on") != std::string::npos
                     ? std::string{}
                     : to_string(later);
        },
        {}, cuda))
        << one.first << " " << to_string(one.second);
  }
}

TEST_F(gpu_rank_communicator, ends_for_all_ranks_where_a_copy_in_a_stream_fails_before_a_call) {
  EXPECT_TRUE(hears(true, errc::cancelled, "was left out"));
}

}  // namespace gpu_rank_communicator_test
