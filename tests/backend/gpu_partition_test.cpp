// SPDX-License-Identifier: Apache-2.0
// Parts of a GPU with multiprocessors of their own, on the virtual driver: green contexts.
#include "conformance/case_tools.hpp"
#include "support/processes.hpp"
#include "support/raw_launch.hpp"
#include "support/virtual_gpus.hpp"
#include "weft/memory/copy.hpp"
#include "weft/memory/fill.hpp"
#include "weft/memory/peer_access.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

namespace gpu_partition_test {

using weft::errc;

constexpr std::size_t threads = 64 * 256;

class gpu_partition : public samples::virtual_cuda_test {
 protected:
  /// An architecture whose sets grow by twos from two on: those of 9.0 by eights.
  static void SetUpTestSuite() { ::setenv("WEFT_VIRTUAL_CUDA_ARCH", "75", 1); }
  static weft::machine open_parts(int parts, const std::string& partitions = "1") {
    weft::machine_options options = samples::virtual_cuda_options();
    options.more_backends.front().open = partitions == "0" ? &open_shared : &samples::open_virtual_cuda;
    options.logical_devices = parts;
    return weft::machine{options};
  }
  static weft::result<std::unique_ptr<weft::backend>> open_shared(const weft::backend_options& options) noexcept {
    weft::gpu::settings wanted;
    wanted.driver = wanted.compiler = samples::virtual_cuda_library();
    wanted.management = "none";
    wanted.partitions = "0";
    return weft::gpu::open_with(options, wanted);
  }

  /// The multiprocessors that kernels of a stream run on.
  static std::set<unsigned> seen_by(const weft::machine& m, const weft::stream& order) {
    const weft::buffer<std::uint32_t> memory{order.on(), threads};
    weft::fill(memory, 0xFFFFFFFFU);
    samples::raw_launch launch;
    launch.kernel = weft::make_kernel_code(weft::conformance::where_kernel());
    launch.items = threads;
    weft::kernel_argument to;
    to.type = weft::element_type::uint32;
    to.direction = weft::parameter_direction::inout;
    to.address = memory.data();
    to.count = threads;
    launch.arguments = {to};
    launch.in(m, order).wait();
    std::vector<std::uint32_t> came(threads);
    weft::copy(came, memory);
    return {came.begin(), came.end()};
  }
  /// Whether none is left: the driver's threads hold theirs for a moment longer.
  [[nodiscard]] bool streams_are_gone() const {
    return processes::comes_true([&] { return driver.streams() == 0; });
  }
  static bool is_noted(const weft::machine& m, const std::string& words) {
    const auto notes = m.notes();
    return std::any_of(notes.begin(), notes.end(),
                       [&](const std::string& note) { return note.find(words) != std::string::npos; });
  }
};

TEST_F(gpu_partition, gives_each_part_multiprocessors_of_its_own) {
  const weft::machine m = open_parts(2);
  EXPECT_TRUE(is_noted(m, "2 logical devices of 4 multiprocessors each:"));
  EXPECT_EQ(m[0].compute_units(), 4);
  EXPECT_TRUE(m[0].has_own_compute_units());
  const weft::stream first{m[0]}, second{m[1]};
  EXPECT_EQ(seen_by(m, first), (std::set<unsigned>{0, 1, 2, 3}));
  EXPECT_EQ(seen_by(m, second), (std::set<unsigned>{4, 5, 6, 7}));
  EXPECT_EQ(seen_by(m, weft::stream{m[0], {.priority = 3}}), (std::set<unsigned>{0, 1, 2, 3})) << "of another priority";
}

TEST_F(gpu_partition, has_the_memory_of_the_gpu_between_its_parts) {
  const weft::machine m = open_parts(2);
  EXPECT_EQ(weft::link_class(m.layout(), m[0].id(), m[1].id()), "MEM");
  EXPECT_EQ(weft::link_classes(m.layout())[1], "MEM");
  EXPECT_EQ(weft::capability_between(m, m[0].id(), m[1].id())->link, weft::peer_link::device_memory);
}

TEST_F(gpu_partition, leaves_over_what_makes_no_set_of_one_size) {
  const weft::machine m = open_parts(3);
  EXPECT_TRUE(is_noted(m, "3 logical devices of 2 multiprocessors each, 2 being left over:"));
  EXPECT_EQ(m[2].compute_units(), 2);
  EXPECT_EQ(seen_by(m, weft::stream{m[2]}), (std::set<unsigned>{4, 5}));
}

TEST_F(gpu_partition, is_not_made_for_whole_gpus) {
  const auto before = driver.calls("cuDeviceGetDevResource");
  const weft::machine m = open();
  EXPECT_EQ(seen_by(m, weft::stream{m[0]}).size(), 8U);
  EXPECT_EQ(driver.calls("cuDeviceGetDevResource"), before);
}

TEST_F(gpu_partition, keeps_no_context_before_there_is_a_stream) {
  driver.fail("");  // counts from here
  const weft::machine m = open_parts(2);
  EXPECT_EQ(driver.calls("cuDevicePrimaryCtxRetain"), driver.calls("cuDevicePrimaryCtxRelease"));
  EXPECT_EQ(driver.calls("cuGreenCtxCreate"), driver.calls("cuGreenCtxDestroy"));
  EXPECT_EQ(driver.calls("cuGreenCtxCreate"), static_cast<unsigned>(m.device_count()) / 2) << "one for each GPU";
}

TEST_F(gpu_partition, is_shared_with_the_reason_where_it_is_not_wanted_or_not_to_be_had) {
  const weft::machine unwanted = open_parts(2, "0");
  EXPECT_TRUE(is_noted(unwanted, "share its multiprocessors (WEFT_CUDA_PARTITIONS is 0)"));
  EXPECT_EQ(unwanted[0].compute_units(), 4) << "its share";
  EXPECT_FALSE(unwanted[0].has_own_compute_units());
  EXPECT_EQ(seen_by(unwanted, weft::stream{unwanted[1]}).size(), 8U);
  driver.fail("cuDeviceGetDevResource@0=801");
  const weft::machine without = open_parts(2);
  EXPECT_TRUE(is_noted(without, "CUDA_ERROR_NOT_SUPPORTED"));
  EXPECT_EQ(seen_by(without, weft::stream{without[1]}).size(), 8U);
  const weft::machine many = open_parts(8);
  EXPECT_TRUE(is_noted(many, "share its multiprocessors"));
}

TEST_F(gpu_partition, too_small_for_the_driver_is_shared) {
  const weft::machine m = open_parts(5);  // five sets of two are more than there are
  EXPECT_TRUE(is_noted(m, "its 8 multiprocessors are too few for sets as large as the driver makes them"));
  EXPECT_EQ(seen_by(m, weft::stream{m[4]}).size(), 8U);
}

TEST_F(gpu_partition, setting_that_is_neither_0_nor_1_is_refused) {
  ::setenv("WEFT_CUDA_PARTITIONS", "no", 1);
  const auto opened = samples::open_virtual_cuda({});
  ::unsetenv("WEFT_CUDA_PARTITIONS");
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, errc::invalid_argument);
  EXPECT_NE(opened.error().what.find("WEFT_CUDA_PARTITIONS is \"no\""), std::string::npos) << opened.error().what;
}

TEST_F(gpu_partition, is_given_back_with_its_streams) {
  {
    const weft::machine m = open_parts(2);
    driver.fail("");  // counts from here
    const weft::stream first{m[0]}, second{m[1]};
    static_cast<void>(seen_by(m, first));
    static_cast<void>(seen_by(m, second));
  }
  EXPECT_EQ(driver.calls("cuGreenCtxCreate"), 2U);
  EXPECT_EQ(driver.calls("cuGreenCtxDestroy"), 2U);
  EXPECT_TRUE(streams_are_gone()) << driver.streams();
}

TEST_F(gpu_partition, is_given_back_by_a_driver_that_lets_nobody_in) {
  {
    const weft::machine m = open_parts(2);
    static_cast<void>(seen_by(m, weft::stream{m[1]}));
    driver.fail("cuCtxPushCurrent@0=2");  // counts from here
  }
  EXPECT_EQ(driver.calls("cuGreenCtxDestroy"), 1U) << "else it keeps the context";
}

TEST_F(gpu_partition, is_made_anew_by_a_reset_for_streams_of_before) {
  const weft::machine m = open_parts(2);
  const weft::stream first{m[0]}, second{m[1]};
  EXPECT_EQ(seen_by(m, second).size(), 4U);
  const auto made = driver.calls("cuGreenCtxCreate"), ended = driver.calls("cuGreenCtxDestroy");
  driver.lose(0, 710);
  EXPECT_THROW(static_cast<void>(seen_by(m, second)), weft::error_exception);
  EXPECT_TRUE(m[0].is_lost()) << "a fault is every part's";
  const auto destroyed = driver.calls("cuStreamDestroy");
  m[0].reset();
  EXPECT_EQ(driver.calls("cuStreamDestroy"), destroyed + 3) << "nothing reaches them afterwards";
  EXPECT_EQ(seen_by(m, second), (std::set<unsigned>{4, 5, 6, 7}));
  EXPECT_EQ(seen_by(m, first), (std::set<unsigned>{0, 1, 2, 3}));
  EXPECT_EQ(driver.calls("cuGreenCtxCreate") - made, driver.calls("cuGreenCtxDestroy") - ended);
}

/// At the start; the parts share all multiprocessors then.
TEST_F(gpu_partition, a_partition_refused_by_the_driver_is_none_and_the_machine_says_so) {
  for (const char* const refused : {"cuDevResourceGenerateDesc@0=801", "cuGreenCtxCreate@0=801",
                                    "cuGreenCtxStreamCreate@0=801", "cuEventRecord@1=400"}) {
    SCOPED_TRACE(refused);
    driver.fail(refused);
    const weft::machine m = open_parts(2);
    driver.fail("");
    EXPECT_FALSE(m[0].has_own_compute_units());
    EXPECT_EQ(m[0].compute_units(), 4) << "its share";
    EXPECT_TRUE(is_noted(m, "2 logical devices: they share its multiprocessors (it refuses streams on"));
    EXPECT_EQ(seen_by(m, weft::stream{m[1]}).size(), 8U);
  }
  EXPECT_TRUE(streams_are_gone()) << driver.streams();
}

TEST_F(gpu_partition, a_later_refusal_by_the_driver_says_how_to_do_without_partitions) {
  for (const char* const refused :
       {"cuDevResourceGenerateDesc@0=801", "cuGreenCtxCreate@0=801", "cuGreenCtxStreamCreate@0=801"}) {
    const weft::machine m = open_parts(2);
    driver.fail(refused);  // counts from here
    try {
      const weft::stream order{m[1]};
      ADD_FAILURE() << refused;
    } catch (const weft::error_exception& failed) {
      EXPECT_NE(failed.cause().what.find("WEFT_CUDA_PARTITIONS=0"), std::string::npos) << failed.cause().what;
      EXPECT_FALSE(m[1].is_lost());
    }
    driver.fail("");
    EXPECT_EQ(seen_by(m, weft::stream{m[1]}).size(), 4U) << "another time";
  }
  EXPECT_TRUE(streams_are_gone()) << driver.streams();
}

}  // namespace gpu_partition_test
