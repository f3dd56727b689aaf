// SPDX-License-Identifier: Apache-2.0
// Words that streams of the OpenCL backend write and wait for: by the host, where it reaches the memory.
#include "support/opencl_machines.hpp"
#include "support/samples.hpp"
#include "weft/exec/launch.hpp"
#include "weft/memory/fill.hpp"
#include "weft/memory/peer_access.hpp"

#include <atomic>
#include <chrono>

namespace opencl_words_test {

using samples::error_of;
using samples::soon;
using weft::errc;
using weft::event;
using weft::machine;
using weft::stream;
using weft::wait_outcome;
using word_buffer = weft::buffer<std::uint32_t>;

WEFT_KERNEL(adds_to_each, (WEFT_INOUT(uint32_t) numbers, uint32_t more), { numbers[i] = numbers[i] + more; });

class opencl_words : public samples::opencl_test {
 protected:
  [[nodiscard]] static bool are_offered() { return open()[0].has(weft::capability::unified_memory); }
};

TEST_P(opencl_words, are_refused_where_the_host_does_not_reach_the_memory) {
  if (are_offered()) GTEST_SKIP() << "the host reaches the memory of these devices";
  const machine m = open();
  const stream order{m[0]};
  const word_buffer word{m[0], 1};
  for (const auto& cause :
       {error_of([&] { order.wait_value(word.data(), 1); }), error_of([&] { order.write_value(word.data(), 1); })}) {
    EXPECT_EQ(cause.code, errc::unsupported);
    EXPECT_NE(cause.what.find("gpu0 has no fine-grained shared memory with atomics"), std::string::npos) << cause.what;
  }
}

TEST_P(opencl_words, order_kernels_of_two_devices) {
  if (!are_offered()) GTEST_SKIP() << "the host does not reach the memory of these devices";
  const machine m = open();
  const auto leases = weft::enable_all_peers(m);
  const stream first{m[0]}, second{m[1]};
  const word_buffer word{m[0], 1};
  const word_buffer numbers{m[0], 1000};
  fill(first, word, 0U).wait();
  fill(first, numbers, 0U).wait();
  event last;
  for (std::uint32_t round = 0; round < 10; ++round) {
    first.wait_value(word.data(), 2 * round);
    weft::launch<adds_to_each>(first, weft::range(1000), numbers, 1U);
    first.write_value(word.data(), 2 * round + 1);
    second.wait_value(word.data(), 2 * round + 1);
    weft::launch<adds_to_each>(second, weft::range(1000), numbers, 2U);
    last = second.write_value(word.data(), 2 * round + 2);
  }
  ASSERT_EQ(last.wait_for(soon), wait_outcome::ok);
  std::vector<std::uint32_t> got(1000);
  copy(got, numbers);
  for (const std::uint32_t one : got) ASSERT_EQ(one, 30U);
}

TEST_P(opencl_words, endless_waits_end_with_a_reset_and_with_the_machine) {
  if (!are_offered()) GTEST_SKIP() << "the host does not reach the memory of these devices";
  machine m = open();
  const stream held{m[0]}, fine{m[1]};
  const weft::pinned_buffer<std::uint32_t> word{m[1], 1};
  std::atomic_ref{word.host()[0]}.store(0);
  const event first = held.wait_value(word.data(), 1);
  const event other = fine.wait_value(word.data(), 1);
  EXPECT_EQ(first.wait_for(std::chrono::milliseconds{2}), wait_outcome::timed_out);
  m[0].reset();
  EXPECT_TRUE(first.ready());
  EXPECT_EQ(error_of([&] { first.wait(); }).code, errc::device_lost);
  EXPECT_FALSE(other.ready());
  EXPECT_EQ(std::atomic_ref{word.host()[0]}.load(), 0U) << "nothing was written to let the wait go";
  const event behind = fine.call([] {});
  m.close();
  EXPECT_EQ(error_of([&] { other.wait(); }).code, errc::cancelled);
  EXPECT_EQ(error_of([&] { behind.wait(); }).code, errc::cancelled);
}

INSTANTIATE_TEST_SUITE_P(memories, opencl_words, samples::both_memories, samples::name_of_memory);

}  // namespace opencl_words_test
