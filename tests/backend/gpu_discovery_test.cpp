// SPDX-License-Identifier: Apache-2.0
// What the CUDA backend makes of a driver's answers: devices, peers, parts of a GPU, and a layout.
#include "backends/gpu/cuda/cuda.hpp"
#include "backends/gpu/cuda/nvml.hpp"
#include "backends/gpu/devices/discovery.hpp"
#include "support/scripted_gpu.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <unistd.h>

namespace gpu_discovery_test {

using namespace weft::gpu;
using weft::bytes;
using weft::capability;
using weft::device_id;
using weft::errc;
using weft::test::offer_peer;
using weft::test::scripted_device;
using weft::test::scripted_gpu;
using weft::test::scripted_table;

class gpu_discovery : public testing::Test {
 protected:
  void SetUp() override { ::unsetenv("CUDA_VISIBLE_DEVICES"); }
  void TearDown() override { ::unsetenv("CUDA_VISIBLE_DEVICES"); }

  static weft::result<discovery> look(const driver_functions& table, const weft::backend_options& options = {},
                                      const management* management = nullptr) {
    auto cu = start_driver(table, "a table", cuda());
    if (!cu) return std::move(cu).error();
    settings wanted;
    wanted.system_root = root();
    return discover(**cu, management, wanted, options);
  }

  /// A folder in place of /sys, empty at first.
  static std::string root() { return testing::TempDir() + "weft_gpu_sys_" + std::to_string(::getpid()); }

  static bool noted(const discovery& found, const std::string& part) {
    return std::any_of(found.notes.begin(), found.notes.end(),
                       [&](const std::string& note) { return note.find(part) != std::string::npos; });
  }
};

TEST_F(gpu_discovery, tells_name_identity_place_and_size_and_touches_no_gpu) {
  const auto table = scripted_table(2);
  const auto found = look(table);
  ASSERT_TRUE(found) << found.error().what;
  ASSERT_EQ(found->devices.size(), 2U);
  const weft::device_description& one = found->devices[1].description;
  EXPECT_EQ(one.name, "Scripted GPU");
  EXPECT_EQ(one.kind, weft::backend_kind::cuda);
  EXPECT_EQ(one.uuid, "11111111-1111-1111-1111-111111111111");
  EXPECT_EQ(one.pci_address, "0000:11:00.0");
  EXPECT_EQ(one.memory, bytes{std::uint64_t{1} << 30});
  EXPECT_EQ(one.compute_units, 8);
  EXPECT_FALSE(one.numa_node);
  EXPECT_TRUE(one.part_of.empty());
  EXPECT_TRUE(has_all(one.capabilities, capability::kernels | capability::pinned_memory | capability::priorities));
  EXPECT_FALSE(has_all(one.capabilities, capability::peer_to_peer));
  EXPECT_FALSE(has_all(one.capabilities, capability::unified_memory));
  EXPECT_EQ(scripted_gpu::get().count("cuDevicePrimaryCtxRetain"), 0);
  EXPECT_TRUE(found->notes.empty());
}

TEST_F(gpu_discovery, takes_the_numa_node_of_the_driver_and_else_that_of_the_system) {
  const auto table = scripted_table(3);
  scripted_gpu::get().devices[0].attributes[host_numa_id] = 3;
  const std::filesystem::path place = root() + "/bus/pci/devices/0000:11:00.0";
  std::filesystem::create_directories(place);
  std::ofstream{place / "numa_node"} << "1\n";
  const std::filesystem::path nowhere = root() + "/bus/pci/devices/0000:12:00.0";
  std::filesystem::create_directories(nowhere);
  std::ofstream{nowhere / "numa_node"} << "-1\n";
  const auto found = look(table);
  std::filesystem::remove_all(root());
  ASSERT_TRUE(found);
  EXPECT_EQ(found->devices[0].description.numa_node, 3);
  EXPECT_EQ(found->devices[1].description.numa_node, 1);
  EXPECT_FALSE(found->devices[2].description.numa_node);
}

TEST_F(gpu_discovery, says_what_the_variable_shows) {
  ::setenv("CUDA_VISIBLE_DEVICES", "1,0", 1);
  const auto found = look(scripted_table(2));
  ASSERT_TRUE(found);
  EXPECT_TRUE(noted(*found, "CUDA_VISIBLE_DEVICES is \"1,0\""));
}

TEST_F(gpu_discovery, leaves_a_prohibited_gpu_out_and_goes_on) {
  const auto table = scripted_table(2);
  scripted_gpu::get().devices[0].attributes[compute_mode] = 2;
  scripted_gpu::get().devices[1].attributes[compute_mode] = 3;
  const auto found = look(table);
  ASSERT_TRUE(found);
  ASSERT_EQ(found->devices.size(), 1U);
  EXPECT_EQ(found->gpus[0].id, 1);
  EXPECT_TRUE(noted(*found, "GPU 0 (Scripted GPU) is left out"));
  EXPECT_TRUE(noted(*found, "one process at a time"));
}

TEST_F(gpu_discovery, says_why_when_no_gpu_is_left) {
  const auto table = scripted_table(1);
  scripted_gpu::get().devices[0].attributes[unified_addressing] = 0;
  const auto found = look(table);
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, errc::unsupported);
  EXPECT_NE(found.error().what.find("unified addressing"), std::string::npos) << found.error().what;
}

TEST_F(gpu_discovery, explains_an_instance_of_a_gpu) {
  const auto table = scripted_table(1);
  scripted_gpu::get().devices[0].name = "NVIDIA H100 MIG 1g.10gb";
  const auto found = look(table);
  ASSERT_TRUE(found);
  EXPECT_TRUE(noted(*found, "MIG instance"));
}

TEST_F(gpu_discovery, asks_each_direction_of_a_pair_and_keeps_the_drivers_rank) {
  const auto table = scripted_table(2);
  offer_peer(0, 1, {{p2p_performance_rank, 2}, {p2p_native_atomic_supported, 1}, {p2p_array_access_supported, 1}});
  const auto found = look(table);
  ASSERT_TRUE(found);
  const gpu_pair& there = found->pair_of(0, 1);
  EXPECT_TRUE(there.access && there.native_atomics && there.arrays);
  EXPECT_EQ(there.rank, 2);
  EXPECT_EQ(there.kind, weft::link_kind::unknown) << "the driver does not tell what the link is";
  const gpu_pair& back = found->pair_of(1, 0);
  EXPECT_FALSE(back.access);
  EXPECT_FALSE(back.rank);
  EXPECT_TRUE(has_all(found->devices[0].description.capabilities, capability::peer_to_peer));
  EXPECT_FALSE(has_all(found->devices[1].description.capabilities, capability::peer_to_peer));
}

TEST_F(gpu_discovery, tells_a_peer_with_some_native_atomics_from_one_with_all_and_one_with_none) {
  const auto table = scripted_table(3);
  offer_peer(0, 1, {{p2p_native_atomic_supported, 1}});
  offer_peer(0, 2, {{p2p_only_partial_native_atomic_supported, 1}});
  offer_peer(1, 2);
  const auto found = look(table);
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->pair_of(0, 1).native_atomics && !found->pair_of(0, 1).partial_atomics);
  EXPECT_TRUE(!found->pair_of(0, 2).native_atomics && found->pair_of(0, 2).partial_atomics);
  EXPECT_TRUE(!found->pair_of(1, 2).native_atomics && !found->pair_of(1, 2).partial_atomics);
}

TEST_F(gpu_discovery, offers_unified_memory_only_where_every_gpu_and_the_host_use_it_at_once) {
  const auto table = scripted_table(2);
  for (scripted_device& one : scripted_gpu::get().devices) {
    one.attributes[managed_memory] = 1;
    one.attributes[concurrent_managed_access] = 1;
  }
  auto found = look(table);
  ASSERT_TRUE(found);
  EXPECT_TRUE(has_all(found->devices[0].description.capabilities, capability::unified_memory));
  scripted_gpu::get().devices[1].attributes[concurrent_managed_access] = 0;
  found = look(table);
  ASSERT_TRUE(found);
  EXPECT_FALSE(has_all(found->devices[0].description.capabilities, capability::unified_memory));
}

TEST_F(gpu_discovery, offers_one_gpu_as_several_devices) {
  const auto table = scripted_table(1);
  weft::backend_options options;
  options.logical_devices = 4;
  const auto found = look(table, options);
  ASSERT_TRUE(found);
  ASSERT_EQ(found->devices.size(), 4U);
  ASSERT_EQ(found->gpus.size(), 1U);
  for (std::size_t d = 0; d < 4; ++d) {
    const weft::device_description& one = found->devices[d].description;
    EXPECT_EQ(one.memory, bytes{(std::uint64_t{1} << 30) / 4});
    EXPECT_EQ(one.compute_units, 2);
    EXPECT_EQ(one.part_of, "10101010-1010-1010-1010-101010101010");
    EXPECT_EQ(one.uuid, one.part_of + "/" + std::to_string(d));
    EXPECT_TRUE(has_all(one.capabilities, capability::peer_to_peer | capability::native_atomics));
  }
  EXPECT_TRUE(noted(*found, "4 logical devices"));
  EXPECT_TRUE(found->same_gpu(0, 3));
}

TEST_F(gpu_discovery, makes_a_layout_of_parts_and_wholes) {
  const auto table = scripted_table(2);
  weft::backend_options options;
  options.logical_devices = 3;
  offer_peer(0, 1);
  const auto found = look(table, options);
  ASSERT_TRUE(found);
  const auto laid = layout_of(*found, cuda());
  ASSERT_TRUE(laid) << laid.error().what;
  EXPECT_EQ(laid->device_count(), 6);
  EXPECT_TRUE(laid->can_access(device_id{0}, device_id{2}));
  EXPECT_TRUE(laid->can_access(device_id{2}, device_id{5}));
  EXPECT_FALSE(laid->can_access(device_id{5}, device_id{2}));
}

TEST_F(gpu_discovery, leaves_a_gpu_whole_that_has_too_few_multiprocessors) {
  const auto table = scripted_table(1);
  weft::backend_options options;
  options.logical_devices = 9;
  const auto found = look(table, options);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->devices.size(), 1U);
  EXPECT_TRUE(noted(*found, "stays whole"));
}

TEST_F(gpu_discovery, limits_memory_as_asked) {
  const auto table = scripted_table(1);
  weft::backend_options options;
  options.memory_per_device = bytes{1 << 20};
  const auto found = look(table, options);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->devices[0].description.memory, bytes{1 << 20});
}

TEST_F(gpu_discovery, makes_a_layout_with_a_socket_for_each_node_and_no_invented_rate) {
  const auto table = scripted_table(3);
  scripted_gpu::get().devices[0].attributes[host_numa_id] = 0;
  scripted_gpu::get().devices[1].attributes[host_numa_id] = 1;
  offer_peer(0, 2);
  offer_peer(2, 0);
  const auto found = look(table);
  ASSERT_TRUE(found);
  const auto laid = layout_of(*found, cuda());
  ASSERT_TRUE(laid) << laid.error().what;
  const weft::topology& made = *laid;
  ASSERT_EQ(made.device_count(), 3);
  EXPECT_EQ(made.nodes.size(), 5U) << "three devices and two sockets";
  EXPECT_NE(made.socket_of(device_id{0}), made.socket_of(device_id{1}));
  EXPECT_TRUE(made.can_access(device_id{0}, device_id{2}));
  EXPECT_FALSE(made.can_access(device_id{0}, device_id{1}));
  EXPECT_FALSE(made.simulated);
  for (const weft::topology_link& link : made.links) EXPECT_EQ(link.bytes_per_second, 0);
}

/// AMD's GPUs have atomics to the host over PCIe.
TEST_F(gpu_discovery, takes_atomics_to_the_host_for_a_better_link_where_the_vendor_has_them_on_no_other) {
  const auto table = scripted_table(1);
  scripted_gpu::get().devices[0].attributes[host_native_atomic_supported] = 1;
  const auto found = look(table);
  ASSERT_TRUE(found);
  vendor beside = cuda();
  beside.host_atomics_beat_pcie = false;
  for (const vendor& by : {cuda(), beside}) {
    const auto laid = layout_of(*found, by);
    ASSERT_TRUE(laid) << laid.error().what;
    ASSERT_FALSE(laid->links.empty());
    for (const weft::topology_link& link : laid->links)
      EXPECT_EQ(link.kind, by.host_atomics_beat_pcie ? weft::link_kind::unknown : weft::link_kind::pcie);
  }
}

// ---- links, as the management library tells them ------------------------------------------------------------------

nvmlDevice device_number(unsigned number) {
  return reinterpret_cast<nvmlDevice>(static_cast<std::uintptr_t>(number));  // NOLINT(performance-no-int-to-ptr)
}

/// GPUs at buses 0x10 and 0x11 with two NVLinks between them, or to a switch, and four that are down.
nvml_functions linked(bool by_switch) {
  static bool switched = false;
  switched = by_switch;
  nvml_functions t;
  t.nvmlDeviceGetHandleByPciBusId_v2 = [](const char* address, nvmlDevice* device) {
    *device = device_number(std::string{address}.find(":10:") != std::string::npos ? 0x10 : 0x11);
    return 0;
  };
  t.nvmlDeviceGetNvLinkState = [](nvmlDevice, unsigned link, unsigned* active) {
    *active = link < 2 ? 1 : 0;
    return link < 6 ? 0 : 2;
  };
  t.nvmlDeviceGetNvLinkVersion = [](nvmlDevice, unsigned, unsigned* version) {
    *version = 6;
    return 0;
  };
  t.nvmlDeviceGetNvLinkRemoteDeviceType = [](nvmlDevice, unsigned, unsigned* kind) {
    *kind = switched ? nvml_remote_switch : nvml_remote_gpu;
    return 0;
  };
  t.nvmlDeviceGetNvLinkRemotePciInfo_v2 = [](nvmlDevice device, unsigned, nvmlPciInfo* remote) {
    std::snprintf(remote->address, sizeof remote->address, "%s",
                  switched                        ? "00000000:77:00.0"
                  : device == device_number(0x10) ? "00000000:11:00.0"
                                                  : "00000000:10:00.0");
    return 0;
  };
  return t;
}

TEST_F(gpu_discovery, knows_nvlink_between_two_gpus_and_through_a_switch) {
  for (const bool by_switch : {false, true}) {
    const auto table = scripted_table(2);
    offer_peer(0, 1);
    const nvml management{linked(by_switch)};
    const auto found = look(table, {}, &management);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->pair_of(0, 1).kind, weft::link_kind::nvlink);
    EXPECT_EQ(found->pair_of(0, 1).lanes, 2);
    EXPECT_EQ(found->pair_of(0, 1).generation, 4);
  }
}

TEST_F(gpu_discovery, takes_access_without_nvlink_for_pcie_only_where_that_was_asked) {
  const auto table = scripted_table(2);
  offer_peer(0, 1);
  const nvml mute{nvml_functions{}};
  auto found = look(table, {}, &mute);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->pair_of(0, 1).kind, weft::link_kind::unknown) << "a library that knows no NVLink tells nothing";
  nvml_functions without = linked(false);
  without.nvmlDeviceGetNvLinkState = [](nvmlDevice, unsigned, unsigned*) { return 3; };
  const nvml management{without};
  found = look(table, {}, &management);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->pair_of(0, 1).kind, weft::link_kind::pcie);
}

}  // namespace gpu_discovery_test
