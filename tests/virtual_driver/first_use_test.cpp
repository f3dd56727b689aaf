// SPDX-License-Identifier: Apache-2.0
// The first use of a pair, by a computer's first program: nothing is recorded of it, and weft tries it by commands.
#include "virtual_driver/loaded_driver.hpp"
#include "virtual_driver/virtual_machine.hpp"
#include "weft/exec/launch.hpp"
#include "weft/memory/buffer.hpp"
#include "weft/memory/copy.hpp"
#include "weft/memory/fill.hpp"
#include "weft/memory/peer_access.hpp"

#include <stop_token>
#include <vector>

namespace first_use_test {

using virtual_cuda::in_child;
using virtual_cuda::open_hip_machine;
using virtual_cuda::open_machine;

WEFT_KERNEL(first_use_writes, (WEFT_OUT(int32_t) numbers), { numbers[i] = (int32_t)i; });

class first_use : public testing::TestWithParam<weft::machine (*)()> {};

TEST_P(first_use, the_first_use_of_a_pair_may_enable_it_in_stream_order) {
  in_child({}, [] {
    const weft::machine m = GetParam()();
    const weft::stream order{m[0]};
    weft::enable_peer(order, m[1].id()).wait();
    EXPECT_TRUE(weft::peer_enabled(m, m[0].id(), m[1].id()));
    const weft::buffer<std::int32_t> theirs{m[1], 1000};
    weft::launch<first_use_writes>(order, weft::range(1000), theirs).wait();
    std::vector<std::int32_t> came(1000);
    weft::copy(came, theirs);
    EXPECT_EQ(came[999], 999);
  });
}

TEST_P(first_use, leaves_a_pair_as_it_was_whose_enabling_is_cancelled) {
  in_child({}, [] {
    const weft::machine m = GetParam()();
    const weft::stream order{m[0]};
    std::stop_source stop;
    stop.request_stop();
    EXPECT_THROW(weft::enable_peer(order, m[1].id(), stop.get_token()).wait(), weft::error_exception);
    EXPECT_FALSE(weft::peer_enabled(m, m[0].id(), m[1].id()));
    EXPECT_EQ(weft::enable_peer(m, m[0].id(), m[1].id()), weft::enable_outcome::enabled);
  });
}

INSTANTIATE_TEST_SUITE_P(faces, first_use, testing::Values(&open_machine, &open_hip_machine),
                         [](const auto& one) { return std::string{one.index == 0 ? "cuda" : "hip"}; });

}  // namespace first_use_test
