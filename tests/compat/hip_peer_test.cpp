// SPDX-License-Identifier: Apache-2.0
// Specification 002 by its own names: every result of HIP's six peer-to-peer functions, on the host backend and on the
// virtual driver as CUDA and as HIP shows it. Rows that need a pair without access have a machine without any.
#include "weft/compat/hip_peer.hpp"

#include "support/raw_launch.hpp"
#include "support/samples.hpp"
#include "support/virtual_gpus.hpp"
#include "weft/exec/launch.hpp"
#include "weft/memory/buffer.hpp"
#include "weft/memory/copy.hpp"
#include "weft/memory/fill.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <ostream>
#include <string>
#include <vector>

namespace hip_peer_test {

using namespace weft::compat::hip;

WEFT_KERNEL(hip_peer_sets_7, (WEFT_OUT(int32_t) values), { values[i] = 7; });

weft::result<std::unique_ptr<weft::backend>> open_virtual_hip(const weft::backend_options& options) noexcept {
  weft::gpu::settings wanted;
  wanted.driver = wanted.compiler = samples::virtual_hip_library();
  return weft::gpu::open_hip_with(options, wanted);
}

struct played {
  const char* name;
  weft::machine (*open)(bool access);
};
void PrintTo(const played& one, std::ostream* out) { *out << one.name; }

weft::machine on_host(bool access) {
  weft::machine_options options;
  options.sim = access ? "pcie_4" : "ring_3_no_p2p";
  return weft::machine{options};
}
void set_access(bool access) { ::setenv("WEFT_VIRTUAL_CUDA_P2P", access ? "all" : "none", 1); }
weft::machine on_virtual_cuda(bool access) {
  set_access(access);
  return weft::machine{samples::virtual_cuda_options()};
}
weft::machine on_virtual_hip(bool access) {
  set_access(access);
  weft::machine_options options;
  options.more_backends = {{weft::backend_kind::hip, "virtual_hip", &open_virtual_hip}};
  options.backend = "virtual_hip";
  return weft::machine{options};
}

/// One call, and what it answers.
struct row {
  const char* what;
  hipError_t (*call)();
  hipError_t answer;
};

class hip_peer : public testing::TestWithParam<played> {
 protected:
  void SetUp() override {
    if (std::string{GetParam().name} != "host" && samples::virtual_cuda_library().empty())
      GTEST_SKIP() << "the virtual driver is not built";
  }
  static void expect(const std::vector<row>& rows) {
    for (const row& one : rows) {
      const hipError_t got = one.call();
      EXPECT_EQ(got, one.answer) << one.what << ": " << hipGetErrorName(got) << ", expected "
                                 << hipGetErrorName(one.answer);
    }
  }
};

int can = -1;

TEST_P(hip_peer, access_is_asked_for_enabled_and_disabled_with_the_results_of_the_specification) {
  const weft::machine m = GetParam().open(true);
  const peer_session here{m};
  expect({
      // hipDeviceCanAccessPeer
      {"a null result", [] { return hipDeviceCanAccessPeer(nullptr, 0, 1); }, hipErrorInvalidValue},
      {"a null result goes before a bad device", [] { return hipDeviceCanAccessPeer(nullptr, 99, 1); },
       hipErrorInvalidValue},
      {"device -1", [] { return hipDeviceCanAccessPeer(&can, -1, 0); }, hipErrorInvalidDevice},
      {"peer -1", [] { return hipDeviceCanAccessPeer(&can, 0, -1); }, hipErrorInvalidDevice},
      {"a device past the last", [] { return hipDeviceCanAccessPeer(&can, 4, 0); }, hipErrorInvalidDevice},
      {"a peer past the last", [] { return hipDeviceCanAccessPeer(&can, 0, 4); }, hipErrorInvalidDevice},
      {"an unknown device and itself", [] { return hipDeviceCanAccessPeer(&can, 99, 99); }, hipErrorInvalidDevice},
      {"a device and itself", [] { return hipDeviceCanAccessPeer(&can, 2, 2); }, hipSuccess},
      {"… gives 0", [] { return can == 0 ? hipSuccess : hipErrorUnknown; }, hipSuccess},
      {"a pair with a path", [] { return hipDeviceCanAccessPeer(&can, 0, 1); }, hipSuccess},
      {"… gives 1", [] { return can == 1 ? hipSuccess : hipErrorUnknown; }, hipSuccess},
      // hipDeviceEnablePeerAccess
      {"the current device", [] { return hipSetDevice(0); }, hipSuccess},
      {"flags", [] { return hipDeviceEnablePeerAccess(1, 1); }, hipErrorInvalidValue},
      {"flags go before the device itself", [] { return hipDeviceEnablePeerAccess(0, ~0U); }, hipErrorInvalidValue},
      {"flags go before an unknown device", [] { return hipDeviceEnablePeerAccess(99, 1); }, hipErrorInvalidValue},
      {"itself", [] { return hipDeviceEnablePeerAccess(0, 0); }, hipErrorInvalidDevice},
      {"peer -1", [] { return hipDeviceEnablePeerAccess(-1, 0); }, hipErrorInvalidDevice},
      {"a peer past the last", [] { return hipDeviceEnablePeerAccess(4, 0); }, hipErrorInvalidDevice},
      {"a pair with a path", [] { return hipDeviceEnablePeerAccess(1, 0); }, hipSuccess},
      {"the same again", [] { return hipDeviceEnablePeerAccess(1, 0); }, hipErrorPeerAccessAlreadyEnabled},
      {"flags go before that it is enabled", [] { return hipDeviceEnablePeerAccess(1, 1); }, hipErrorInvalidValue},
      // hipDeviceDisablePeerAccess
      {"itself", [] { return hipDeviceDisablePeerAccess(0); }, hipErrorInvalidDevice},
      {"peer -1", [] { return hipDeviceDisablePeerAccess(-1); }, hipErrorInvalidDevice},
      {"a peer past the last", [] { return hipDeviceDisablePeerAccess(4); }, hipErrorInvalidDevice},
      {"what was never enabled", [] { return hipDeviceDisablePeerAccess(2); }, hipErrorPeerAccessNotEnabled},
      {"the other direction", [] { return hipSetDevice(1); }, hipSuccess},
      {"… is not enabled", [] { return hipDeviceDisablePeerAccess(0); }, hipErrorPeerAccessNotEnabled},
      {"back", [] { return hipSetDevice(0); }, hipSuccess},
      {"what is enabled", [] { return hipDeviceDisablePeerAccess(1); }, hipSuccess},
      {"the same again", [] { return hipDeviceDisablePeerAccess(1); }, hipErrorPeerAccessNotEnabled},
      {"enabled anew", [] { return hipDeviceEnablePeerAccess(1, 0); }, hipSuccess},
      // the current device
      {"device 4", [] { return hipSetDevice(4); }, hipErrorInvalidDevice},
      {"device -1", [] { return hipSetDevice(-1); }, hipErrorInvalidDevice},
      {"a null result", [] { return hipGetDevice(nullptr); }, hipErrorInvalidValue},
  });
  int now = -1;
  EXPECT_EQ(hipGetDevice(&now), hipSuccess);
  EXPECT_EQ(now, 0);
}

TEST_P(hip_peer, a_pair_without_a_path_is_an_invalid_device) {
  const weft::machine m = GetParam().open(false);
  const peer_session here{m};
  expect({
      {"asked", [] { return hipDeviceCanAccessPeer(&can, 0, 1); }, hipSuccess},
      {"… gives 0", [] { return can == 0 ? hipSuccess : hipErrorUnknown; }, hipSuccess},
      {"the current device", [] { return hipSetDevice(0); }, hipSuccess},
      {"flags go first", [] { return hipDeviceEnablePeerAccess(1, 1); }, hipErrorInvalidValue},
      {"enabled", [] { return hipDeviceEnablePeerAccess(1, 0); }, hipErrorInvalidDevice},
      {"disabled", [] { return hipDeviceDisablePeerAccess(1); }, hipErrorInvalidDevice},
  });
}

TEST_P(hip_peer, a_copy_arrives_with_access_and_without_and_says_what_is_wrong) {
  const weft::machine m = GetParam().open(true);
  const peer_session here{m};
  constexpr std::size_t count = 1000;
  constexpr std::size_t size = count * sizeof(int);
  const weft::buffer<int> from{m[0], count}, to{m[1], count};
  const weft::stream order{m[1]};
  std::vector<int> numbers(count), read(count);
  for (std::size_t i = 0; i < count; ++i) numbers[i] = static_cast<int>(i) * 7 - 3;
  weft::copy(from, numbers);
  ASSERT_EQ(hipSetDevice(1), hipSuccess);
  for (const bool access : {false, true}) {
    if (access) {
      ASSERT_EQ(hipDeviceEnablePeerAccess(0, 0), hipSuccess);
    }
    for (const hipStream_t stream : {hipStream_t{nullptr}, &order}) {
      weft::fill(to, -1);
      EXPECT_EQ(hipMemcpyPeerAsync(to.data(), 1, from.data(), 0, size, stream), hipSuccess);
      order.synchronize();
      weft::copy(read, to);
      EXPECT_EQ(read, numbers);
    }
    weft::fill(to, -1);
    EXPECT_EQ(hipMemcpyPeer(to.data(), 1, from.data(), 0, size), hipSuccess);
    weft::copy(read, to);
    EXPECT_EQ(read, numbers);
    EXPECT_EQ(hipMemcpyPeer(to.data(), 0, from.data(), 1, size), hipSuccess) << "addresses tell whose memory it is";
  }
  for (const hipStream_t stream : {hipStream_t{nullptr}, &order}) {
    const auto copy = [&](void* dst, int dst_device, const void* src, int src_device, std::size_t bytes) {
      return hipMemcpyPeerAsync(dst, dst_device, src, src_device, bytes, stream);
    };
    EXPECT_EQ(copy(nullptr, 4, nullptr, 0, 0), hipErrorInvalidDevice) << "goes before a size of 0";
    EXPECT_EQ(copy(to.data(), 1, from.data(), -1, size), hipErrorInvalidDevice);
    EXPECT_EQ(copy(nullptr, -1, from.data(), 0, size), hipErrorInvalidDevice) << "goes before null";
    EXPECT_EQ(copy(nullptr, 1, nullptr, 0, 0), hipSuccess) << "nothing is copied from nowhere";
    EXPECT_EQ(copy(nullptr, 1, from.data(), 0, size), hipErrorInvalidValue);
    EXPECT_EQ(copy(to.data(), 1, nullptr, 0, size), hipErrorInvalidValue);
    EXPECT_EQ(copy(to.data(), 1, from.data(), 0, size + 1), hipErrorInvalidValue) << "past the end";
    int elsewhere = 0;
    EXPECT_EQ(copy(&elsewhere, 1, from.data(), 0, sizeof elsewhere), hipErrorInvalidValue) << "no memory of a device";
    weft::fill(to, 5);
    EXPECT_EQ(copy(to.data(), 1, from.data(), 0, 0), hipSuccess);
    order.synchronize();
    weft::copy(read, to);
    EXPECT_EQ(read, std::vector<int>(count, 5)) << "a size of 0 copies nothing";
  }
  EXPECT_EQ(hipMemcpyPeer(from.data(), 0, from.data() + 1, 0, sizeof(int)), hipSuccess) << "on one device";
}

TEST_P(hip_peer, an_address_range_is_that_of_the_whole_allocation) {
  const weft::machine m = GetParam().open(true);
  const peer_session here{m};
  const weft::buffer<std::byte> memory{m[1], 12345};
  const weft::pinned_buffer<std::byte> pinned{m[0], 4096};
  hipDeviceptr_t base = nullptr;
  std::size_t size = 0;
  for (const std::size_t offset : {std::size_t{0}, std::size_t{1}, std::size_t{12344}}) {
    EXPECT_EQ(hipMemGetAddressRange(&base, &size, memory.data() + offset), hipSuccess);
    EXPECT_EQ(base, memory.data());
    EXPECT_EQ(size, 12345U);
  }
  EXPECT_EQ(hipMemGetAddressRange(&base, &size, pinned.data() + 100), hipSuccess);
  EXPECT_EQ(base, pinned.data());
  EXPECT_EQ(size, 4096U);
  EXPECT_EQ(hipMemGetAddressRange(nullptr, nullptr, memory.data()), hipSuccess) << "results that nobody wants";
  EXPECT_EQ(hipMemGetAddressRange(&base, &size, nullptr), hipErrorNotFound);
  EXPECT_EQ(hipMemGetAddressRange(&base, &size, &size), hipErrorNotFound) << "memory of the host";
  void* gone = nullptr;
  {
    const weft::buffer<std::byte> brief{m[0], 100};
    gone = brief.data();
    EXPECT_EQ(hipMemGetAddressRange(&base, &size, brief.data() + 100), hipErrorNotFound) << "one past the end";
  }
  m.synchronize();
  EXPECT_EQ(hipMemGetAddressRange(&base, &size, gone), hipErrorNotFound) << "freed";
}

TEST_P(hip_peer, a_copy_in_a_stream_waits_for_the_work_before_it_and_not_for_the_caller) {
  const weft::machine m = GetParam().open(true);
  const peer_session here{m};
  const weft::buffer<int> from{m[0], 1}, to{m[1], 1};
  weft::fill(from, 1);
  weft::fill(to, 0);
  const weft::stream order{m[0]};
  samples::gate closed;
  closed.hold(order);
  EXPECT_EQ(hipMemcpyPeerAsync(to.data(), 1, from.data(), 0, sizeof(int), &order), hipSuccess);
  int before = -1;
  weft::copy(std::span{&before, 1}, to);
  EXPECT_EQ(before, 0) << "it was not its turn";
  closed.open();
  order.synchronize();
  int after = -1;
  weft::copy(std::span{&after, 1}, to);
  EXPECT_EQ(after, 1);
}

TEST(hip_peer_order, a_copy_of_pinned_memory_comes_after_earlier_work_of_the_devices_that_are_named) {
  const weft::machine m =
      samples::simulated(samples::wired(3), {.launch_latency = std::chrono::nanoseconds{1'000'000'000}});
  const peer_session here{m};
  const weft::pinned_buffer<int> from{m[0], 1};
  const weft::buffer<int> to{m[2], 1};
  weft::fill(from, 1);
  const weft::stream order{m[1]};
  weft::launch<hip_peer_sets_7>(order, weft::range(1), from);
  EXPECT_EQ(hipMemcpyPeer(to.data(), 2, from.data(), 1, sizeof(int)), hipSuccess);
  int got = 0;
  weft::copy(std::span{&got, 1}, to);
  EXPECT_EQ(got, 7);
}

TEST(hip_peer_order, a_copy_comes_after_earlier_work_of_both_devices_in_every_stream) {
  const weft::machine m =
      samples::simulated(samples::wired(2), {.launch_latency = std::chrono::nanoseconds{1'000'000'000}});
  const peer_session here{m};
  const weft::buffer<int> from{m[0], 1}, to{m[1], 1};
  weft::fill(from, 1);
  weft::fill(to, 1);
  const weft::stream of_source{m[0]}, of_target{m[1]};
  const auto copied = [&] {
    EXPECT_EQ(hipMemcpyPeer(to.data(), 1, from.data(), 0, sizeof(int)), hipSuccess);
    int read = 0;
    m.synchronize();
    weft::copy(std::span{&read, 1}, to);
    return read;
  };
  weft::launch<hip_peer_sets_7>(of_source, weft::range(1), from);
  weft::fill(of_source, from, 8);
  EXPECT_EQ(copied(), 8);
  weft::launch<hip_peer_sets_7>(of_target, weft::range(1), to);
  weft::fill(of_target, to, 9);
  EXPECT_EQ(copied(), 8) << "not what the target's stream writes";
}

TEST_P(hip_peer, a_stream_of_another_machine_is_a_destroyed_context) {
  const weft::machine m = GetParam().open(true);
  const weft::machine other{weft::machine_options{.backend = "host", .devices = 2}};
  const peer_session here{m};
  const weft::buffer<int> from{m[0], 1}, to{m[1], 1};
  const weft::stream theirs{other[0]};
  EXPECT_EQ(hipMemcpyPeerAsync(to.data(), 1, from.data(), 0, sizeof(int), &theirs), hipErrorContextIsDestroyed);
}

INSTANTIATE_TEST_SUITE_P(machines, hip_peer,
                         testing::Values(played{"host", &on_host}, played{"virtual_cuda", &on_virtual_cuda},
                                         played{"virtual_hip", &on_virtual_hip}),
                         [](const testing::TestParamInfo<played>& one) { return std::string{one.param.name}; });

TEST(hip_peer_session, is_one_at_a_time_and_without_one_there_is_no_device) {
  EXPECT_EQ(hipDeviceCanAccessPeer(&can, 0, 1), hipErrorNoDevice);
  EXPECT_EQ(hipSetDevice(0), hipErrorNoDevice);
  const weft::machine m{weft::machine_options{.backend = "host", .devices = 2}};
  {
    const peer_session here{m};
    EXPECT_THROW(peer_session{m}, weft::error_exception);
    EXPECT_EQ(hipSetDevice(1), hipSuccess);
  }
  EXPECT_EQ(hipSetDevice(1), hipErrorNoDevice);
  const weft::machine smaller{weft::machine_options{.backend = "host", .devices = 1}};
  const peer_session again{smaller};
  int device = -1;
  EXPECT_EQ(hipGetDevice(&device), hipSuccess);
  EXPECT_EQ(device, 0) << "a device of the machine before";
}

}  // namespace hip_peer_test
