// SPDX-License-Identifier: Apache-2.0
// Launches of one kernel with grids of many sizes, running beside each other on several OpenCL devices.
#include "support/opencl_machines.hpp"
#include "support/samples.hpp"
#include "weft/exec/launch.hpp"

#include <cstdint>
#include <vector>

namespace opencl_grid_test {

WEFT_KERNEL(writes_its_index, (WEFT_OUT(int32_t) index), { index[i] = (int32_t)i; });

class opencl_grid : public samples::opencl_test {};
INSTANTIATE_TEST_SUITE_P(memories, opencl_grid, samples::both_memories, samples::name_of_memory);

constexpr std::size_t launches = 400;

/// Launches wider and wider grids, each in the next of many streams.
class growth {
 public:
  explicit growth(weft::machine m) : m_(std::move(m)) {
    const auto devices = static_cast<std::size_t>(m_.device_count());
    for (std::size_t i = 0; i < 4 * devices; ++i) {
      const weft::device on = m_[static_cast<int>(i % devices)];
      streams_.emplace_back(on);
      memory_.emplace_back(on, 256 * launches);
    }
  }

  void launch(std::size_t groups) {
    const std::size_t at = next_++ % streams_.size();
    weft::launch<writes_its_index>(streams_[at], weft::range(static_cast<std::int64_t>(256 * groups)), memory_[at]);
  }

  /// That every stream's launches wrote what is written in groups [0, wide).
  void check(std::size_t wide) {
    for (std::size_t at = 0; at < streams_.size(); ++at) {
      streams_[at].synchronize();
      std::vector<std::int32_t> read(256 * wide);
      weft::copy(read, memory_[at].subspan(0, read.size()));
      for (std::size_t i = 0; i < read.size(); ++i) ASSERT_EQ(read[i], static_cast<std::int32_t>(i)) << "stream " << at;
    }
  }

 private:
  weft::machine m_;
  std::vector<weft::stream> streams_;
  std::vector<weft::buffer<std::int32_t>> memory_;
  std::size_t next_ = 0;
};

// PoCL before 6.0 loads a kernel anew for a grid wider than those before, and takes the ends of launches that still run
// by the older one for ends of launches by the new one: it aborts the process.
TEST_P(opencl_grid, may_grow_while_smaller_ones_run) {
  growth one{open()};
  for (std::size_t groups = 1; groups <= launches; ++groups) one.launch(groups);
  one.check(launches - 100);
}

TEST_P(opencl_grid, may_grow_in_two_machines_that_run_one_kernel) {
  growth one{open()};
  growth other{open()};
  for (std::size_t groups = 1; groups <= launches; ++groups) {
    one.launch(groups);
    for (int i = 0; i < 3; ++i) other.launch(1);
  }
  one.check(launches - 100);
  other.check(1);
}

}  // namespace opencl_grid_test
