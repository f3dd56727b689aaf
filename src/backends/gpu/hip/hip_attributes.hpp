// SPDX-License-Identifier: Apache-2.0
// What a device is asked for, by HIP's numbers.
#pragma once

#include "backends/gpu/driver/driver_types.hpp"

#include <array>
#include <optional>

namespace weft::gpu::amd {

/// hipDeviceAttribute_t, of HIP 6.0 and later.
enum hip_attribute : int {
  hip_ecc_enabled = 0,
  hip_async_engine_count = 2,
  hip_can_map_host_memory = 3,
  hip_can_use_host_pointer_for_registered_mem = 4,
  hip_clock_rate = 5,
  hip_compute_mode = 6,
  hip_concurrent_kernels = 8,
  hip_concurrent_managed_access = 9,
  hip_cooperative_launch = 10,
  hip_host_native_atomic_supported = 15,
  hip_integrated = 16,
  hip_kernel_exec_timeout = 18,
  hip_l2_cache_size = 19,
  hip_compute_capability_major = 23,
  hip_managed_memory = 24,
  hip_max_block_dim_x = 26,
  hip_max_block_dim_y = 27,
  hip_max_block_dim_z = 28,
  hip_max_grid_dim_x = 29,
  hip_max_grid_dim_y = 30,
  hip_max_grid_dim_z = 31,
  hip_max_threads_per_block = 56,
  hip_max_threads_per_multiprocessor = 57,
  hip_memory_bus_width = 59,
  hip_memory_clock_rate = 60,
  hip_compute_capability_minor = 61,
  hip_multiprocessor_count = 63,
  hip_pageable_memory_access = 65,
  hip_pci_bus_id = 67,
  hip_pci_device_id = 68,
  hip_pci_domain_id = 69,
  hip_max_shared_memory_per_block = 74,
  hip_shared_memory_per_block_optin = 75,
  hip_stream_priorities_supported = 78,
  hip_warp_size = 87,
  hip_memory_pools_supported = 88,
  hip_virtual_memory_management_supported = 89,
  hip_host_register_supported = 90,
  hip_memory_pool_supported_handle_types = 91,
  hip_can_use_stream_wait_value = 10013,
};

struct attribute_pair {
  int ours;
  int hip;
};

/// Whatever is not here HIP does not know.
inline constexpr std::array hip_attributes{
    attribute_pair{max_threads_per_block, hip_max_threads_per_block},
    attribute_pair{max_block_dim_x, hip_max_block_dim_x},
    attribute_pair{max_block_dim_y, hip_max_block_dim_y},
    attribute_pair{max_block_dim_z, hip_max_block_dim_z},
    attribute_pair{max_grid_dim_x, hip_max_grid_dim_x},
    attribute_pair{max_grid_dim_y, hip_max_grid_dim_y},
    attribute_pair{max_grid_dim_z, hip_max_grid_dim_z},
    attribute_pair{max_shared_memory_per_block, hip_max_shared_memory_per_block},
    attribute_pair{warp_size, hip_warp_size},
    attribute_pair{clock_rate, hip_clock_rate},
    attribute_pair{multiprocessor_count, hip_multiprocessor_count},
    attribute_pair{kernel_exec_timeout, hip_kernel_exec_timeout},
    attribute_pair{integrated, hip_integrated},
    attribute_pair{can_map_host_memory, hip_can_map_host_memory},
    attribute_pair{compute_mode, hip_compute_mode},
    attribute_pair{concurrent_kernels, hip_concurrent_kernels},
    attribute_pair{ecc_enabled, hip_ecc_enabled},
    attribute_pair{pci_bus_id, hip_pci_bus_id},
    attribute_pair{pci_device_id, hip_pci_device_id},
    attribute_pair{pci_domain_id, hip_pci_domain_id},
    attribute_pair{memory_clock_rate, hip_memory_clock_rate},
    attribute_pair{global_memory_bus_width, hip_memory_bus_width},
    attribute_pair{l2_cache_size, hip_l2_cache_size},
    attribute_pair{max_threads_per_multiprocessor, hip_max_threads_per_multiprocessor},
    attribute_pair{async_engine_count, hip_async_engine_count},
    attribute_pair{compute_capability_major, hip_compute_capability_major},
    attribute_pair{compute_capability_minor, hip_compute_capability_minor},
    attribute_pair{stream_priorities_supported, hip_stream_priorities_supported},
    attribute_pair{managed_memory, hip_managed_memory},
    attribute_pair{host_native_atomic_supported, hip_host_native_atomic_supported},
    attribute_pair{pageable_memory_access, hip_pageable_memory_access},
    attribute_pair{concurrent_managed_access, hip_concurrent_managed_access},
    attribute_pair{can_use_host_pointer_for_registered_mem, hip_can_use_host_pointer_for_registered_mem},
    attribute_pair{cooperative_launch, hip_cooperative_launch},
    attribute_pair{max_shared_memory_per_block_optin, hip_shared_memory_per_block_optin},
    attribute_pair{host_register_supported, hip_host_register_supported},
    attribute_pair{virtual_memory_management_supported, hip_virtual_memory_management_supported},
    // HIP gives blocks out as descriptors wherever it has blocks
    attribute_pair{handle_type_posix_file_descriptor_supported, hip_virtual_memory_management_supported},
    attribute_pair{memory_pools_supported, hip_memory_pools_supported},
    attribute_pair{mempool_supported_handle_types, hip_memory_pool_supported_handle_types},
    // one attribute for stream memory operations of both sizes and all comparisons
    attribute_pair{can_use_64_bit_stream_mem_ops, hip_can_use_stream_wait_value},
    attribute_pair{can_use_stream_wait_value_nor, hip_can_use_stream_wait_value},
};

[[nodiscard]] constexpr std::optional<int> hip_attribute_of(int ours) {
  for (const attribute_pair& one : hip_attributes) {
    if (one.ours == ours) return one.hip;
  }
  return std::nullopt;
}

}  // namespace weft::gpu::amd
