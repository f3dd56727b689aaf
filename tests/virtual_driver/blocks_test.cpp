// SPDX-License-Identifier: Apache-2.0
// Memory, addresses and rights apart; pools; parts of a device; and what the management library says.
#include "backends/gpu/cuda/nvml_functions.hpp"
#include "virtual_driver/loaded_driver.hpp"

#include <array>
#include <unistd.h>

namespace blocks_test {

using namespace virtual_cuda;

constexpr std::size_t unit = std::size_t{2} << 20;

struct blocks : session {
  using session::session;
  CUmemGenericAllocationHandle create(int device, std::size_t size = unit, int handles = handle_none) {
    CUmemAllocationProp properties;
    properties.location.id = device;
    properties.requested_handle_types = handles;
    CUmemGenericAllocationHandle made = 0;
    EXPECT_EQ(cuMemCreate(&made, size, &properties, 0), CUDA_SUCCESS);
    return made;
  }
  CUdeviceptr reserve(std::size_t size) {
    CUdeviceptr at = 0;
    EXPECT_EQ(cuMemAddressReserve(&at, size, 0, 0, 0), CUDA_SUCCESS);
    return at;
  }
  CUresult allow(CUdeviceptr at, std::size_t size, int device, int flags = access_read_write) {
    const CUmemAccessDesc right{{location_device, device}, flags};
    return cuMemSetAccess(at, size, &right, 1);
  }
};

constexpr const char* put_text =
    "extern \"C\" __global__ void put(int* p) { *p = 5; }\n"
    "extern \"C\" __global__ void get(const int* p, int* q) { *q = *p; }\n"
    "extern \"C\" __global__ void via(int** p) { **p += 1; }\n";

TEST(virtual_driver_blocks, sizes_and_arguments_are_looked_at) {
  in_child({{"WEFT_VIRTUAL_CUDA_MEMORY", "8MiB"}}, [] {
    blocks cu;
    CUmemAllocationProp properties;
    CUmemGenericAllocationHandle made = 0;
    std::size_t size = 0;
    EXPECT_EQ(cu.cuMemGetAllocationGranularity(&size, &properties, granularity_minimum), CUDA_SUCCESS);
    EXPECT_EQ(size, unit);
    EXPECT_EQ(cu.cuMemCreate(&made, unit + 1, &properties, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cu.cuMemCreate(&made, 5 * unit, &properties, 0), CUDA_ERROR_OUT_OF_MEMORY);
    properties.requested_handle_types = handle_fabric;
    EXPECT_EQ(cu.cuMemCreate(&made, unit, &properties, 0), CUDA_ERROR_NOT_PERMITTED);
    properties.requested_handle_types = handle_none;
    properties.location.id = 99;
    EXPECT_EQ(cu.cuMemCreate(&made, unit, &properties, 0), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(cu.cuMemRelease(12345), CUDA_ERROR_INVALID_VALUE);
    CUdeviceptr at = 0;
    EXPECT_EQ(cu.cuMemAddressReserve(&at, unit, 3, 0, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cu.cuMemAddressReserve(&at, 0, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  });
}

TEST(virtual_driver_blocks, a_mapping_has_no_rights_until_they_are_given) {
  in_child({}, [] {
    blocks cu{2};
    const auto block = cu.create(0);
    const CUdeviceptr at = cu.reserve(2 * unit);
    EXPECT_EQ(cu.allow(at, unit, 0), CUDA_ERROR_INVALID_VALUE) << "nothing there";
    EXPECT_EQ(cu.cuMemMap(at, unit, unit, block, 0), CUDA_ERROR_INVALID_VALUE) << "an offset";
    EXPECT_EQ(cu.cuMemMap(at, unit, 0, block, 0), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMemMap(at, unit, 0, block, 0), CUDA_ERROR_INVALID_VALUE) << "twice";
    EXPECT_EQ(cu.cuMemsetD8Async(at, 1, 4, nullptr), CUDA_ERROR_INVALID_VALUE) << "no right";
    EXPECT_EQ(cu.allow(at, unit, 0, access_read), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMemsetD8Async(at, 1, 4, nullptr), CUDA_ERROR_INVALID_VALUE) << "to be read only";
    EXPECT_EQ(cu.allow(at, unit, 0), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMemsetD8Async(at, 1, 4, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(cu.allow(at, unit - 1, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cu.allow(at, 2 * unit, 0), CUDA_ERROR_INVALID_VALUE) << "a gap";
    unsigned long long right = 0;
    const CUmemLocation zero{location_device, 0};
    const CUmemLocation one{location_device, 1};
    EXPECT_EQ(cu.cuMemGetAccess(&right, &zero, at), CUDA_SUCCESS);
    EXPECT_EQ(right, static_cast<unsigned long long>(access_read_write));
    EXPECT_EQ(cu.cuMemGetAccess(&right, &one, at), CUDA_SUCCESS);
    EXPECT_EQ(right, 0U);
    EXPECT_EQ(cu.cuMemUnmap(at, unit / 2), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cu.cuMemAddressFree(at, 2 * unit), CUDA_ERROR_INVALID_VALUE) << "still mapped";
    EXPECT_EQ(cu.cuMemRelease(block), CUDA_SUCCESS);
    EXPECT_EQ(cu.read<int>(at), 0x01010101) << "the mapping keeps it";
    const auto used = find<unsigned long long(int)>("weft_virtual_used");
    const auto before = used(0);
    EXPECT_EQ(cu.cuMemUnmap(at, unit), CUDA_SUCCESS);
    EXPECT_EQ(used(0), before - unit);
    EXPECT_EQ(cu.cuMemUnmap(at, unit), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cu.cuMemAddressFree(at, unit), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cu.cuMemAddressFree(at, 2 * unit), CUDA_SUCCESS);
  });
}

TEST(virtual_driver_blocks, rights_are_those_of_each_device_and_not_of_peer_access) {
  in_child({}, [] {
    blocks cu{2};
    const auto block = cu.create(1);
    const CUdeviceptr at = cu.reserve(unit);
    const CUdeviceptr alias = cu.reserve(unit);
    ASSERT_EQ(cu.cuMemMap(at, unit, 0, block, 0), CUDA_SUCCESS);
    ASSERT_EQ(cu.cuMemMap(alias, unit, 0, block, 0), CUDA_SUCCESS);
    ASSERT_EQ(cu.cuCtxEnablePeerAccess(cu.contexts[1], 0), CUDA_SUCCESS);
    ASSERT_EQ(cu.allow(at, unit, 0), CUDA_SUCCESS);
    ASSERT_EQ(cu.allow(alias, unit, 0, access_read), CUDA_SUCCESS);
    const CUfunction put = cu.kernel(put_text, "put");
    const CUfunction get = cu.kernel(put_text, "get");
    const CUdeviceptr mine = cu.allocate(4);
    EXPECT_EQ(cu.launch(put, 1, 1, nullptr, at), CUDA_SUCCESS);
    EXPECT_EQ(cu.launch(get, 1, 1, nullptr, alias, mine), CUDA_SUCCESS);
    EXPECT_EQ(cu.read<int>(mine), 5) << "two addresses of one memory";
    EXPECT_EQ(cu.launch(put, 1, 1, nullptr, alias), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    cu.use(1);
    const CUfunction there = cu.kernel(put_text, "put");
    EXPECT_EQ(cu.launch(there, 1, 1, nullptr, at), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS) << "owner without a right";
  });
  in_child({}, [] {
    blocks cu;
    const auto block = cu.create(0);
    const CUdeviceptr at = cu.reserve(unit);
    ASSERT_EQ(cu.cuMemMap(at, unit, 0, block, 0), CUDA_SUCCESS);
    const CUdeviceptr mine = cu.allocate(8);
    cu.write(mine, at);
    const CUfunction via = cu.kernel(put_text, "via");
    ASSERT_EQ(cu.allow(at, unit, 0), CUDA_SUCCESS);
    EXPECT_EQ(cu.launch(via, 1, 1, nullptr, mine), CUDA_SUCCESS);
    EXPECT_EQ(cu.read<int>(at), 1);
    ASSERT_EQ(cu.allow(at, unit, 0, access_read), CUDA_SUCCESS);
    EXPECT_EQ(cu.launch(via, 1, 1, nullptr, mine), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS) << "by a pointer in memory, too";
  });
  in_child({{"WEFT_VIRTUAL_CUDA_P2P", "none"}}, [] {
    blocks cu{2};
    const auto block = cu.create(1);
    const CUdeviceptr at = cu.reserve(unit);
    ASSERT_EQ(cu.cuMemMap(at, unit, 0, block, 0), CUDA_SUCCESS);
    EXPECT_EQ(cu.allow(at, unit, 0), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(cu.allow(at, unit, 1), CUDA_SUCCESS);
  });
}

TEST(virtual_driver_blocks, mappings_that_touch_are_one_range_and_a_block_can_be_named_again) {
  in_child({}, [] {
    blocks cu;
    const auto a = cu.create(0);
    const auto b = cu.create(0);
    const CUdeviceptr at = cu.reserve(2 * unit);
    ASSERT_EQ(cu.cuMemMap(at, unit, 0, a, 0), CUDA_SUCCESS);
    ASSERT_EQ(cu.cuMemMap(at + unit, unit, 0, b, 0), CUDA_SUCCESS);
    ASSERT_EQ(cu.allow(at, 2 * unit, 0), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMemsetD8Async(at, 3, 2 * unit, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(cu.read<int>(at + 2 * unit - 4), 0x03030303);
    CUmemGenericAllocationHandle again = 0;
    EXPECT_EQ(cu.cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(at + 77)), CUDA_SUCCESS);
    EXPECT_EQ(again, a);
    EXPECT_EQ(cu.cuMemRelease(a), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMemRelease(a), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMemRelease(a), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cu.cuMemUnmap(at, 2 * unit), CUDA_SUCCESS);
  });
}

TEST(virtual_driver_blocks, a_descriptor_is_the_memory_and_gives_no_rights) {
  in_child({}, [] {
    blocks cu;
    const auto plain = cu.create(0);
    int fd = -1;
    EXPECT_EQ(cu.cuMemExportToShareableHandle(&fd, plain, handle_posix_fd, 0), CUDA_ERROR_INVALID_VALUE);
    const auto block = cu.create(0, unit, handle_posix_fd);
    ASSERT_EQ(cu.cuMemExportToShareableHandle(&fd, block, handle_posix_fd, 0), CUDA_SUCCESS);
    CUmemGenericAllocationHandle imported = 0;
    void* const as_pointer = reinterpret_cast<void*>(static_cast<std::intptr_t>(fd));
    ASSERT_EQ(cu.cuMemImportFromShareableHandle(&imported, as_pointer, handle_posix_fd), CUDA_SUCCESS);
    ::close(fd);
    EXPECT_EQ(cu.cuMemImportFromShareableHandle(&imported, nullptr, handle_posix_fd), CUDA_ERROR_INVALID_VALUE);
    const CUdeviceptr here = cu.reserve(unit);
    const CUdeviceptr there = cu.reserve(unit);
    ASSERT_EQ(cu.cuMemMap(here, unit, 0, block, 0), CUDA_SUCCESS);
    ASSERT_EQ(cu.cuMemMap(there, unit, 0, imported, 0), CUDA_SUCCESS);
    ASSERT_EQ(cu.allow(here, unit, 0), CUDA_SUCCESS);
    int word = 0;
    EXPECT_EQ(cu.cuMemcpyDtoHAsync(&word, there, 4, nullptr), CUDA_ERROR_INVALID_VALUE);
    ASSERT_EQ(cu.allow(there, unit, 0), CUDA_SUCCESS);
    cu.write(here, 123);
    EXPECT_EQ(cu.read<int>(there), 123);
  });
}

constexpr const char* multicast_text = R"(
extern "C" __global__ void store(unsigned long long to, unsigned v) { weft_multimem_store_4(to, v); }
extern "C" __global__ void add(unsigned* to, unsigned long long from) { *to = weft_multimem_add_u32(from); }
extern "C" __global__ void plain(unsigned* at) { *at = 1; }
)";

/// Two devices with a granule each, bound to an object that is mapped.
struct multicast_pair : blocks {
  CUmemGenericAllocationHandle object = 0;
  CUmemGenericAllocationHandle memory[2] = {0, 0};
  CUdeviceptr at = 0;
  CUdeviceptr seen[2] = {0, 0};  // each replica, by its own device

  multicast_pair() : blocks(2) {
    const CUmulticastObjectProp about{2, unit, 0, 0};
    EXPECT_EQ(cuMulticastCreate(&object, &about), CUDA_SUCCESS);
    for (int n = 0; n < 2; ++n) EXPECT_EQ(cuMulticastAddDevice(object, n), CUDA_SUCCESS);
    for (int n = 0; n < 2; ++n) {
      memory[n] = create(n);
      EXPECT_EQ(cuMulticastBindMem(object, 0, memory[n], 0, unit, 0), CUDA_SUCCESS);
      seen[n] = reserve(unit);
      EXPECT_EQ(cuMemMap(seen[n], unit, 0, memory[n], 0), CUDA_SUCCESS);
      EXPECT_EQ(allow(seen[n], unit, n), CUDA_SUCCESS);
    }
    at = reserve(unit);
    EXPECT_EQ(cuMemMap(at, unit, 0, object, 0), CUDA_SUCCESS);
  }
};

TEST(virtual_driver_multicast, reaches_what_every_device_has_bound) {
  in_child({}, [] {
    multicast_pair cu;
    EXPECT_EQ(cu.allow(cu.at, unit, 0), CUDA_SUCCESS);
    EXPECT_EQ(cu.launch(cu.kernel(multicast_text, "store"), 1, 1, nullptr, cu.at + 8, 21U), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(cu.read<unsigned>(cu.seen[0] + 8), 21U);
    cu.use(1);
    EXPECT_EQ(cu.read<unsigned>(cu.seen[1] + 8), 21U);
    cu.write(cu.seen[1] + 8, 100U);
    cu.use(0);
    const CUdeviceptr sum = cu.allocate(4);
    EXPECT_EQ(cu.launch(cu.kernel(multicast_text, "add"), 1, 1, nullptr, sum, cu.at + 8), CUDA_SUCCESS);
    EXPECT_EQ(cu.read<unsigned>(sum), 121U);
    EXPECT_EQ(cu.cuMemUnmap(cu.at, unit), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMulticastUnbind(cu.object, 1, 0, unit), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMulticastUnbind(cu.object, 1, 0, unit), CUDA_ERROR_INVALID_VALUE) << "twice";
    EXPECT_EQ(cu.cuMemRelease(cu.object), CUDA_SUCCESS);
  });
}

TEST(virtual_driver_multicast, is_bound_when_all_have_joined_and_only_by_them) {
  in_child({}, [] {
    blocks cu{3};
    CUmemGenericAllocationHandle object = 0;
    const CUmulticastObjectProp about{2, unit, 0, 0};
    ASSERT_EQ(cu.cuMulticastCreate(&object, &about), CUDA_SUCCESS);
    ASSERT_EQ(cu.cuMulticastAddDevice(object, 0), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMulticastAddDevice(object, 0), CUDA_ERROR_INVALID_VALUE) << "twice";
    EXPECT_EQ(cu.cuMulticastBindMem(object, 0, cu.create(0), 0, unit, 0), CUDA_ERROR_ILLEGAL_STATE);
    ASSERT_EQ(cu.cuMulticastAddDevice(object, 1), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMulticastAddDevice(object, 2), CUDA_ERROR_INVALID_VALUE) << "one too many";
    EXPECT_EQ(cu.cuMulticastBindMem(object, 0, cu.create(2), 0, unit, 0), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(cu.cuMulticastBindMem(object, 0, object, 0, unit, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cu.cuMulticastBindMem(object, 0, cu.create(0), 0, unit, 0), CUDA_SUCCESS);
  });
}

TEST(virtual_driver_multicast, address_is_for_its_instructions_of_devices_with_a_right_and_for_no_copy) {
  for (const bool is_plain : {false, true}) {
    in_child({}, [is_plain] {
      multicast_pair cu;
      EXPECT_EQ(cu.allow(cu.at, unit, is_plain ? 0 : 1), CUDA_SUCCESS);
      EXPECT_EQ(cu.allow(cu.at, unit, 2), CUDA_ERROR_INVALID_DEVICE) << "it has not joined";
      int word = 0;
      EXPECT_EQ(cu.cuMemcpyDtoHAsync(&word, cu.at, 4, nullptr), CUDA_ERROR_INVALID_VALUE);
      const CUfunction f = cu.kernel(multicast_text, is_plain ? "plain" : "store");
      EXPECT_EQ(is_plain ? cu.launch(f, 1, 1, nullptr, cu.at) : cu.launch(f, 1, 1, nullptr, cu.at, 21U), CUDA_SUCCESS);
      EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    });
  }
}

TEST(virtual_driver_multicast, begins_with_compute_capability_9) {
  in_child({{"WEFT_VIRTUAL_CUDA_ARCH", "80"}}, [] {
    blocks cu;
    CUmemGenericAllocationHandle handle = 0;
    const CUmulticastObjectProp about{2, unit, 0, 0};
    EXPECT_EQ(cu.cuMulticastCreate(&handle, &about), CUDA_ERROR_NOT_SUPPORTED);
    int offered = 1;
    EXPECT_EQ(cu.cuDeviceGetAttribute(&offered, multicast_supported, 0), CUDA_SUCCESS);
    EXPECT_EQ(offered, 0);
  });
}

TEST(virtual_driver_pools, limits_and_counts_follow_the_order_of_the_stream) {
  in_child({}, [] {
    session cu;
    CUmemPoolProps properties;
    properties.max_size = 1000;
    CUmemoryPool pool = nullptr;
    ASSERT_EQ(cu.cuMemPoolCreate(&pool, &properties), CUDA_SUCCESS);
    const CUstream s = cu.stream();
    const auto used_before = find<unsigned long long(int)>("weft_virtual_used")(0);
    CUdeviceptr a = 0;
    CUdeviceptr b = 0;
    EXPECT_EQ(cu.cuMemAllocFromPoolAsync(&a, 600, pool, s), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMemAllocFromPoolAsync(&b, 600, pool, s), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cu.cuMemFreeAsync(a, s), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMemFreeAsync(a, s), CUDA_ERROR_INVALID_VALUE) << "twice";
    EXPECT_EQ(cu.cuMemAllocFromPoolAsync(&b, 600, pool, s), CUDA_SUCCESS) << "behind the free";
    std::uint64_t used = 0;
    std::uint64_t high = 0;
    EXPECT_EQ(cu.cuMemPoolGetAttribute(pool, pool_used_current, &used), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMemPoolGetAttribute(pool, pool_used_high, &high), CUDA_SUCCESS);
    EXPECT_EQ(used, 600U);
    EXPECT_EQ(high, 600U);
    used = 5;
    EXPECT_EQ(cu.cuMemPoolSetAttribute(pool, pool_used_high, &used), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cu.cuMemFreeAsync(b, s), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuStreamSynchronize(s), CUDA_SUCCESS);
    EXPECT_EQ(find<unsigned long long(int)>("weft_virtual_used")(0), used_before);
  });
}

TEST(virtual_driver_pools, a_stream_gets_what_it_freed_itself_at_once) {
  in_child({{"WEFT_VIRTUAL_CUDA_MEMORY", "8MiB"}}, [] {
    session cu;
    constexpr std::size_t size = std::size_t{5} << 20;
    CUmemoryPool pool = nullptr;
    ASSERT_EQ(cu.cuDeviceGetDefaultMemPool(&pool, 0), CUDA_SUCCESS);
    const CUstream s = cu.stream();
    const CUdeviceptr word = cu.allocate(4);
    cu.write(word, 0);
    CUdeviceptr first = 0;
    CUdeviceptr second = 0;
    ASSERT_EQ(cu.cuMemAllocFromPoolAsync(&first, size, pool, s), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuStreamWaitValue32(s, word, 1, wait_value_eq), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMemsetD8Async(first, 1, size, s), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMemFreeAsync(first, s), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMemAllocFromPoolAsync(&second, size, pool, s), CUDA_SUCCESS);
    EXPECT_EQ(second, first) << "behind the free";
    EXPECT_EQ(cu.cuMemsetD8Async(second, 2, size, s), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuStreamWriteValue32(cu.stream(), word, 1, 0), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuStreamSynchronize(s), CUDA_SUCCESS);
    EXPECT_EQ(cu.read<int>(second + size - 4), 0x02020202) << "it is not the one that was freed";
    EXPECT_EQ(cu.cuMemFreeAsync(second, s), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuStreamSynchronize(s), CUDA_SUCCESS);
  });
}

TEST(virtual_driver_pools, only_the_own_device_may_use_a_pool_until_rights_are_given) {
  in_child({}, [] {
    session cu{2};
    CUmemPoolProps properties;
    properties.location.id = 1;
    CUmemoryPool pool = nullptr;
    ASSERT_EQ(cu.cuMemPoolCreate(&pool, &properties), CUDA_SUCCESS);
    CUdeviceptr before = 0;
    EXPECT_EQ(cu.cuMemAllocFromPoolAsync(&before, 4, pool, nullptr), CUDA_SUCCESS);
    const CUmemAccessDesc revoke{{location_device, 1}, access_none};
    EXPECT_EQ(cu.cuMemPoolSetAccess(pool, &revoke, 1), CUDA_ERROR_INVALID_DEVICE);
    const CUfunction put = cu.kernel(put_text, "put");
    const CUmemAccessDesc allow{{location_device, 0}, access_read_write};
    EXPECT_EQ(cu.cuMemPoolSetAccess(pool, &allow, 1), CUDA_SUCCESS);
    EXPECT_EQ(cu.launch(put, 1, 1, nullptr, before), CUDA_SUCCESS);
    CUdeviceptr after = 0;
    EXPECT_EQ(cu.cuMemAllocFromPoolAsync(&after, 4, pool, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(cu.launch(put, 1, 1, nullptr, after), CUDA_SUCCESS);
    EXPECT_EQ(cu.read<int>(before) + cu.read<int>(after), 10);
    const CUmemAccessDesc take{{location_device, 0}, access_none};
    EXPECT_EQ(cu.cuMemPoolSetAccess(pool, &take, 1), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuCtxEnablePeerAccess(cu.contexts[1], 0), CUDA_SUCCESS);
    EXPECT_EQ(cu.launch(put, 1, 1, nullptr, before), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS) << "peer access is another matter";
  });
}

TEST(virtual_driver_parts, multiprocessors_are_split_into_parts_with_streams_of_their_own) {
  in_child({{"WEFT_VIRTUAL_CUDA_ARCH", "86"}}, [] {
    session cu;
    CUdevResource whole;
    ASSERT_EQ(cu.cuDeviceGetDevResource(0, &whole, resource_sm), CUDA_SUCCESS);
    EXPECT_EQ(whole.sm.sm_count, 8U);
    CUdevResource parts[4];
    CUdevResource rest;
    unsigned count = 4;
    ASSERT_EQ(cu.cuDevSmResourceSplitByCount(parts, &count, &whole, &rest, 0, 3), CUDA_SUCCESS);
    EXPECT_EQ(count, 2U) << "3 is rounded up to 4";
    EXPECT_EQ(parts[0].sm.sm_count, 4U);
    EXPECT_EQ(rest.sm.sm_count, 0U);
    CUdevResourceDesc description = nullptr;
    ASSERT_EQ(cu.cuDevResourceGenerateDesc(&description, parts, 1), CUDA_SUCCESS);
    CUgreenCtx green = nullptr;
    ASSERT_EQ(cu.cuGreenCtxCreate(&green, description, 0, green_context_default_stream), CUDA_SUCCESS);
    CUstream s = nullptr;
    ASSERT_EQ(cu.cuGreenCtxStreamCreate(&s, green, stream_non_blocking, 0), CUDA_SUCCESS);
    const CUdeviceptr a = cu.allocate(4);
    EXPECT_EQ(cu.cuMemsetD32Async(a, 5, 1, s), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuStreamSynchronize(s), CUDA_SUCCESS);
    EXPECT_EQ(cu.read<int>(a), 5);
    CUcontext converted = nullptr;
    CUcontext seen = nullptr;
    ASSERT_EQ(cu.cuCtxFromGreenCtx(&converted, green), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuStreamGetCtx(s, &seen), CUDA_SUCCESS);
    EXPECT_EQ(seen, converted);
    EXPECT_EQ(cu.cuStreamGetCtx(nullptr, &seen), CUDA_SUCCESS);
    EXPECT_EQ(seen, cu.contexts[0]);
    ASSERT_EQ(cu.cuCtxPushCurrent(converted), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuStreamGetCtx(nullptr, &seen), CUDA_SUCCESS);
    EXPECT_EQ(seen, converted) << "the context that is current";
    ASSERT_EQ(cu.cuCtxPopCurrent(nullptr), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuGreenCtxDestroy(green), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuStreamQuery(s), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EXPECT_EQ(cu.cuStreamDestroy(s), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_SUCCESS) << "the primary context is as it was";
  });
}

struct split_case {
  const char* architecture;
  unsigned flags, minimum, size;
};

TEST(virtual_driver_parts, have_the_least_size_and_the_step_of_their_architecture) {
  const split_case cases[] = {{"75", 0, 1, 2}, {"75", 0, 3, 4},  {"80", 0, 1, 4},  {"80", 0, 5, 6},
                              {"90", 0, 1, 8}, {"90", 0, 9, 16}, {"120", 0, 4, 8}, {"90", 1, 1, 2}};
  for (const split_case& one : cases) {
    SCOPED_TRACE(std::string{one.architecture} + ", " + std::to_string(one.minimum));
    in_child({{"WEFT_VIRTUAL_CUDA_ARCH", one.architecture}, {"WEFT_VIRTUAL_CUDA_SMS", "48"}}, [&] {
      const session cu;
      CUdevResource whole;
      ASSERT_EQ(cu.cuDeviceGetDevResource(0, &whole, resource_sm), CUDA_SUCCESS);
      CUdevResource part;
      unsigned count = 1;
      ASSERT_EQ(cu.cuDevSmResourceSplitByCount(&part, &count, &whole, nullptr, one.flags, one.minimum), CUDA_SUCCESS);
      EXPECT_EQ(part.sm.sm_count, one.size);
      EXPECT_EQ(one.size % (one.flags == 0 ? whole.sm.sm_coscheduled_alignment : 2), 0U);
      EXPECT_EQ(cu.cuDevSmResourceSplitByCount(nullptr, &count, &whole, nullptr, one.flags, one.minimum), CUDA_SUCCESS);
      EXPECT_EQ(count, 48 / one.size) << "how many there would be";
      EXPECT_EQ(cu.cuDevSmResourceSplitByCount(nullptr, &count, &whole, nullptr, 0, 49), CUDA_ERROR_INVALID_VALUE);
    });
  }
}

constexpr const char* where_text = R"(extern "C" __global__ void where(unsigned* to) {
  to[blockIdx.x] = weft_multiprocessor();
})";

TEST(virtual_driver_parts, kernels_run_on_the_multiprocessors_of_their_stream_in_the_primary_context) {
  in_child({{"WEFT_VIRTUAL_CUDA_SMS", "16"}}, [] {
    session cu;
    CUdevResource whole;
    ASSERT_EQ(cu.cuDeviceGetDevResource(0, &whole, resource_sm), CUDA_SUCCESS);
    CUdevResource parts[2];
    unsigned count = 2;
    ASSERT_EQ(cu.cuDevSmResourceSplitByCount(parts, &count, &whole, nullptr, 0, 8), CUDA_SUCCESS);
    ASSERT_EQ(count, 2U);
    CUdevResourceDesc description = nullptr;
    ASSERT_EQ(cu.cuDevResourceGenerateDesc(&description, &parts[1], 1), CUDA_SUCCESS);
    CUgreenCtx green = nullptr;
    ASSERT_EQ(cu.cuGreenCtxCreate(&green, description, 0, green_context_default_stream), CUDA_SUCCESS);
    CUstream s = nullptr;
    ASSERT_EQ(cu.cuGreenCtxStreamCreate(&s, green, stream_non_blocking, 0), CUDA_SUCCESS);
    const CUdeviceptr a = cu.allocate(10 * sizeof(unsigned));
    const CUfunction where = cu.kernel(where_text, "where");
    EXPECT_EQ(cu.launch(where, 10, 1, s, a), CUDA_SUCCESS);
    CUevent ended = nullptr;  // of the primary context, as everything else is
    ASSERT_EQ(cu.cuEventCreate(&ended, 0), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuEventRecord(ended, s), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuEventSynchronize(ended), CUDA_SUCCESS);
    using ten = std::array<unsigned, 10>;
    EXPECT_EQ(cu.read<ten>(a), (ten{8, 9, 10, 11, 12, 13, 14, 15, 8, 9}));
    EXPECT_EQ(cu.launch(where, 10, 1, nullptr, a), CUDA_SUCCESS);
    EXPECT_EQ(cu.read<ten>(a), (ten{0, 1, 2, 3, 4, 5, 6, 7, 8, 9})) << "all of them";
    EXPECT_EQ(cu.launch(cu.kernel(put_text, "put"), 1, 1, s, CUdeviceptr{64}), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS) << "a fault there is the primary context's";
  });
}

TEST(virtual_driver_management, links_are_those_of_the_topology) {
  in_child({{"WEFT_VIRTUAL_CUDA_TOPOLOGY", "dgx_h100"}}, [] {
    nvml_functions ml;
#define WEFT_LOOK_UP(name, parameters) ml.name = find<nvmlReturn parameters>(#name);
    WEFT_GPU_NVML_FUNCTIONS(WEFT_LOOK_UP)
#undef WEFT_LOOK_UP
    loaded_driver cu;
    ASSERT_EQ(cu.cuInit(0), CUDA_SUCCESS);
    char address[32] = {};
    ASSERT_EQ(cu.cuDeviceGetPCIBusId(address, sizeof address, 3), CUDA_SUCCESS);
    nvmlDevice device = nullptr;
    EXPECT_NE(ml.nvmlDeviceGetHandleByPciBusId_v2(address, &device), NVML_SUCCESS) << "not initialised";
    ASSERT_EQ(ml.nvmlInit_v2(), NVML_SUCCESS);
    ASSERT_EQ(ml.nvmlDeviceGetHandleByPciBusId_v2(address, &device), NVML_SUCCESS);
    unsigned active = 0;
    EXPECT_EQ(ml.nvmlDeviceGetNvLinkState(device, 17, &active), NVML_SUCCESS);
    EXPECT_EQ(active, 1U);
    EXPECT_NE(ml.nvmlDeviceGetNvLinkState(device, 18, &active), NVML_SUCCESS);
    unsigned kind = 0;
    EXPECT_EQ(ml.nvmlDeviceGetNvLinkRemoteDeviceType(device, 0, &kind), NVML_SUCCESS);
    EXPECT_EQ(kind, nvml_remote_switch);
    int can = 0;
    EXPECT_EQ(cu.cuDeviceGetP2PAttribute(&can, p2p_native_atomic_supported, 0, 7), CUDA_SUCCESS);
    EXPECT_EQ(can, 1);
    EXPECT_EQ(ml.nvmlShutdown(), NVML_SUCCESS);
  });
}

}  // namespace blocks_test
