// SPDX-License-Identifier: Apache-2.0
// The rules of devices, contexts, access and copies, as cuda.h and the programming guide give them.
#include "virtual_driver/loaded_driver.hpp"

#include <atomic>
#include <csignal>
#include <cstring>
#include <sys/mman.h>
#include <thread>

namespace rules_test {

using namespace virtual_cuda;

TEST(virtual_driver_rules, every_function_of_the_table_is_there_and_says_so) {
  in_child({}, [] {
    loaded_driver cu;
#define WEFT_EXPECT_FOUND(name, version, parameters) EXPECT_NE(cu.name, nullptr) << #name;
    WEFT_GPU_DRIVER_FUNCTIONS(WEFT_EXPECT_FOUND, WEFT_EXPECT_FOUND)
#undef WEFT_EXPECT_FOUND
  });
}

TEST(virtual_driver_rules, a_search_says_whether_the_name_or_the_version_is_at_fault) {
  in_child({{"WEFT_VIRTUAL_CUDA_VERSION", "12040"}}, [] {
    const auto search = find<CUresult(const char*, void**, int, unsigned long long, int*)>("cuGetProcAddress_v2");
    void* found = &found;
    int how = 9;
    EXPECT_EQ(search("cuMemAlloc", &found, 3020, 0, &how), CUDA_SUCCESS);
    EXPECT_EQ(how, symbol_found);
    EXPECT_NE(found, nullptr);
    EXPECT_EQ(search("cuMemAlloc", &found, 2000, 0, &how), CUDA_SUCCESS);
    EXPECT_EQ(how, symbol_version_not_sufficient);
    EXPECT_EQ(found, nullptr);
    EXPECT_EQ(search("cuNothing", &found, 12040, 0, &how), CUDA_SUCCESS);
    EXPECT_EQ(how, symbol_not_found);
    EXPECT_EQ(search("cuMemcpyBatchAsync", &found, 13000, 0, &how), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(search("cuInit", nullptr, 2000, 0, &how), CUDA_ERROR_INVALID_VALUE);
  });
}

TEST(virtual_driver_rules, stub_old_and_incomplete_drivers_can_be_played) {
  in_child({{"WEFT_VIRTUAL_CUDA_STUB", "34"}}, [] {
    const auto init = find<CUresult(unsigned)>("cuInit");
    EXPECT_EQ(init(0), CUDA_ERROR_STUB_LIBRARY);
  });
  in_child({{"WEFT_VIRTUAL_CUDA_VERSION", "11040"}}, [] {
    loaded_driver cu;
    int version = 0;
    EXPECT_EQ(cu.cuDriverGetVersion(&version), CUDA_SUCCESS);
    EXPECT_EQ(version, 11040);
    EXPECT_EQ(cu.cuMulticastCreate, nullptr);
  });
  in_child({{"WEFT_VIRTUAL_CUDA_MISSING", "cuMemCreate"}, {"WEFT_VIRTUAL_CUDA_MISSING_CODE", "500"}}, [] {
    const auto search = find<CUresult(const char*, void**, int, unsigned long long, int*)>("cuGetProcAddress_v2");
    void* found = &found;
    EXPECT_EQ(search("cuMemCreate", &found, 10020, 0, nullptr), CUDA_ERROR_NOT_FOUND);
    EXPECT_EQ(found, &found) << "the pointer is left as it was";
  });
}

struct visible_case {
  const char* list;
  std::vector<int> shown;  // second digit of the identifier
};

TEST(virtual_driver_rules, visible_devices_are_read_as_the_driver_reads_them) {
  const visible_case cases[] = {
      {"0,2", {0, 2}}, {"2,0", {2, 0}}, {"1,-1,0", {1}},           {"1,nothing,0", {1}}, {"7,0", {}},
      {"", {}},        {"0,0", {}},     {"GPU-a2,GPU-a1", {2, 1}}, {"GPU-a", {}},
  };
  for (const visible_case& one : cases) {
    SCOPED_TRACE(one.list);
    in_child({{"CUDA_VISIBLE_DEVICES", one.list}}, [&] {
      loaded_driver cu;
      if (one.shown.empty()) {
        EXPECT_EQ(cu.cuInit(0), CUDA_ERROR_NO_DEVICE);
        return;
      }
      ASSERT_EQ(cu.cuInit(0), CUDA_SUCCESS);
      int count = 0;
      EXPECT_EQ(cu.cuDeviceGetCount(&count), CUDA_SUCCESS);
      ASSERT_EQ(count, static_cast<int>(one.shown.size()));
      for (int n = 0; n < count; ++n) {
        CUuuid id{};
        EXPECT_EQ(cu.cuDeviceGetUuid(&id, n), CUDA_SUCCESS);
        EXPECT_EQ(static_cast<unsigned char>(id.bytes[0]) - 0xa0, one.shown[static_cast<std::size_t>(n)]);
      }
    });
  }
}

TEST(virtual_driver_rules, nothing_works_before_init_and_after_fork) {
  in_child({}, [] {
    loaded_driver cu;
    int count = 0;
    EXPECT_EQ(cu.cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
    EXPECT_EQ(cu.cuInit(1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cu.cuInit(0), CUDA_SUCCESS);
    processes::child forked{[&] { return cu.cuDeviceGetCount(&count); }};
    EXPECT_EQ(forked.wait(), CUDA_ERROR_NOT_INITIALIZED);
  });
}

TEST(virtual_driver_rules, null_outputs_come_before_missing_contexts) {
  in_child({}, [] {
    loaded_driver cu;
    ASSERT_EQ(cu.cuInit(0), CUDA_SUCCESS);
    CUdeviceptr address = 0;
    EXPECT_EQ(cu.cuMemAlloc(nullptr, 5), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cu.cuMemAlloc(&address, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cu.cuMemAlloc(&address, 5), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT);
    int can = 0;
    EXPECT_EQ(cu.cuDeviceCanAccessPeer(nullptr, 0, 99), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cu.cuDeviceCanAccessPeer(&can, 0, 99), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(cu.cuDeviceCanAccessPeer(&can, -1, 0), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(cu.cuDeviceCanAccessPeer(&can, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(can, 0);
  });
}

struct pair_case {
  const char* mode;
  bool (*can)(int from, int to);
};

TEST(virtual_driver_rules, who_can_access_whom_is_what_was_asked_for) {
  const pair_case cases[] = {
      {"all", [](int a, int b) { return a != b; }},
      {"none", [](int, int) { return false; }},
      {"chain", [](int a, int b) { return a - b == 1 || b - a == 1; }},
      {"one_way", [](int a, int b) { return a < b; }},
  };
  for (const pair_case& one : cases) {
    SCOPED_TRACE(one.mode);
    in_child({{"WEFT_VIRTUAL_CUDA_P2P", one.mode}}, [&] {
      session cu{4};
      for (int from = 0; from < 4; ++from) {
        for (int to = 0; to < 4; ++to) {
          int can = -1;
          EXPECT_EQ(cu.cuDeviceCanAccessPeer(&can, from, to), CUDA_SUCCESS);
          EXPECT_EQ(can != 0, one.can(from, to));
          cu.use(from);
          const CUresult code = cu.cuCtxEnablePeerAccess(cu.contexts[static_cast<std::size_t>(to)], 0);
          EXPECT_EQ(code, from == to ? CUDA_ERROR_INVALID_CONTEXT
                          : can != 0 ? CUDA_SUCCESS
                                     : CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
        }
      }
    });
  }
}

TEST(virtual_driver_rules, enabling_and_disabling_have_no_count) {
  in_child({{"WEFT_VIRTUAL_CUDA_MAX_PEERS", "2"}}, [] {
    session cu{4};
    EXPECT_EQ(cu.cuCtxEnablePeerAccess(cu.contexts[0], 7), CUDA_ERROR_INVALID_VALUE) << "flags come first";
    EXPECT_EQ(cu.cuCtxDisablePeerAccess(cu.contexts[1]), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    EXPECT_EQ(cu.cuCtxDisablePeerAccess(cu.contexts[0]), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED) << "its own";
    EXPECT_EQ(cu.cuCtxEnablePeerAccess(cu.contexts[1], 0), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuCtxEnablePeerAccess(cu.contexts[1], 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    EXPECT_EQ(cu.cuCtxEnablePeerAccess(cu.contexts[2], 0), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuCtxEnablePeerAccess(cu.contexts[3], 0), CUDA_ERROR_TOO_MANY_PEERS);
    EXPECT_EQ(cu.cuCtxDisablePeerAccess(cu.contexts[1]), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuCtxDisablePeerAccess(cu.contexts[1]), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    EXPECT_EQ(cu.cuCtxEnablePeerAccess(cu.contexts[3], 0), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuDevicePrimaryCtxReset(3), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuCtxDisablePeerAccess(cu.contexts[3]), CUDA_ERROR_INVALID_CONTEXT);
  });
}

TEST(virtual_driver_rules, every_error_of_cuda_13_has_its_name) {
  in_child({}, [] {
    const session cu{1};
    int named = 0;
    for (int code = 0; code < 2000; ++code) {
      const char* name = nullptr;
      const char* text = nullptr;
      const bool is_known = cu.cuGetErrorName(code, &name) == CUDA_SUCCESS;
      EXPECT_EQ(cu.cuGetErrorString(code, &text) == CUDA_SUCCESS, is_known) << code;
      named += is_known ? 1 : 0;
    }
    const char* name = nullptr;
    EXPECT_EQ(cu.cuGetErrorName(720, &name), CUDA_SUCCESS);
    EXPECT_STREQ(name, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE");
    EXPECT_EQ(named, 101) << "as many as cuda.h 13.0 has";
  });
}

TEST(virtual_driver_rules, a_host_that_follows_a_device_pointer_faults) {
  in_child(
      {},
      [] {
        session cu;
        const auto* const memory = reinterpret_cast<volatile int*>(cu.allocate(4096));
        static_cast<void>(*memory);
      },
      -SIGSEGV);
}

TEST(virtual_driver_rules, copies_reach_every_device_whatever_is_enabled) {
  in_child({{"WEFT_VIRTUAL_CUDA_P2P", "none"}}, [] {
    session cu{2};
    const CUdeviceptr a = cu.allocate(4096);
    cu.use(1);
    const CUdeviceptr b = cu.allocate(4096);
    cu.use(0);
    const CUstream s = cu.stream();
    EXPECT_EQ(cu.cuMemsetD32Async(a, 77, 1024, s), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMemcpyPeerAsync(b, cu.contexts[1], a, cu.contexts[0], 4096, s), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuStreamSynchronize(s), CUDA_SUCCESS);
    EXPECT_EQ(cu.read<int>(b + 4092), 77);
    EXPECT_EQ(find<unsigned long long(int)>("weft_virtual_copies")(1), 1U);
    EXPECT_EQ(cu.cuMemcpyAsync(a, b, 4097, s), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cu.cuMemcpyAsync(0, 0, 0, s), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMemcpyAsync(0, b, 4, s), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cu.cuMemcpyPeerAsync(b, nullptr, a, cu.contexts[0], 4, s), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(cu.cuMemcpyAsync(a, b, 4, reinterpret_cast<CUstream>(0x1234)), CUDA_ERROR_INVALID_HANDLE);
  });
}

TEST(virtual_driver_rules, a_box_leaves_what_lies_between_its_rows) {
  in_child({}, [] {
    session cu;
    const CUdeviceptr a = cu.allocate(4096);
    EXPECT_EQ(cu.cuMemsetD8Async(a, 1, 4096, nullptr), CUDA_SUCCESS);
    unsigned char rows[6] = {9, 9, 9, 8, 8, 8};
    CUDA_MEMCPY3D box;
    box.src_type = memory_type_host;
    box.src_host = rows;
    box.src_pitch = 3;
    box.dst_type = memory_type_device;
    box.dst_device = a;
    box.dst_pitch = 10;
    box.dst_x = 2;
    box.width = 3;
    box.height = 2;
    box.depth = 1;
    EXPECT_EQ(cu.cuMemcpy3DAsync(&box, nullptr), CUDA_SUCCESS);
    unsigned char got[20] = {};
    EXPECT_EQ(cu.cuMemcpyDtoHAsync(got, a, sizeof got, nullptr), CUDA_SUCCESS);
    const unsigned char want[20] = {1, 1, 9, 9, 9, 1, 1, 1, 1, 1, 1, 1, 8, 8, 8, 1, 1, 1, 1, 1};
    EXPECT_EQ(std::memcmp(got, want, sizeof got), 0);
    box.dst_pitch = 4;
    EXPECT_EQ(cu.cuMemcpy3DAsync(&box, nullptr), CUDA_ERROR_INVALID_VALUE);
  });
}

TEST(virtual_driver_rules, the_null_stream_waits_for_blocking_streams_and_they_for_it) {
  in_child({}, [] {
    session cu;
    static std::atomic<int> gate{0};
    static std::atomic<int> order{0};
    const CUstream blocking = cu.stream(0);
    const CUstream free = cu.stream();
    const auto wait = [](void*) { gate.wait(0); };
    EXPECT_EQ(cu.cuLaunchHostFunc(blocking, wait, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuLaunchHostFunc(blocking, [](void*) { order = 1; }, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuLaunchHostFunc(nullptr, [](void*) { order = order == 1 ? 2 : -1; }, nullptr), CUDA_SUCCESS);
    const CUstream later = cu.stream(0);
    EXPECT_EQ(cu.cuLaunchHostFunc(later, [](void*) { order = order == 2 ? 3 : -2; }, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuLaunchHostFunc(free, [](void*) {}, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuStreamSynchronize(free), CUDA_SUCCESS) << "not held by the null stream";
    EXPECT_EQ(cu.cuStreamQuery(nullptr), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(cu.cuStreamQuery(later), CUDA_ERROR_NOT_READY);
    gate = 1;
    gate.notify_all();
    EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(order, 3);
  });
}

TEST(virtual_driver_rules, each_thread_has_an_implicit_stream_that_the_null_stream_waits_for) {
  in_child({}, [] {
    session cu;
    const auto per_thread = reinterpret_cast<CUstream>(std::uintptr_t{2});
    static std::atomic<int> gate{0};
    EXPECT_EQ(cu.cuLaunchHostFunc(per_thread, [](void*) { gate.wait(0); }, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuStreamQuery(per_thread), CUDA_ERROR_NOT_READY);
    std::thread{[&] {
      cu.use(0);
      EXPECT_EQ(cu.cuStreamQuery(per_thread), CUDA_SUCCESS) << "another one";
      EXPECT_EQ(cu.cuLaunchHostFunc(per_thread, [](void*) {}, nullptr), CUDA_SUCCESS);
      EXPECT_EQ(cu.cuStreamSynchronize(per_thread), CUDA_SUCCESS);
    }}.join();
    EXPECT_EQ(cu.cuLaunchHostFunc(nullptr, [](void*) { gate = gate == 1 ? 2 : -1; }, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuStreamQuery(nullptr), CUDA_ERROR_NOT_READY);
    CUcontext seen = nullptr;
    EXPECT_EQ(cu.cuStreamGetCtx(per_thread, &seen), CUDA_SUCCESS);
    EXPECT_EQ(seen, cu.contexts[0]);
    EXPECT_EQ(cu.cuStreamDestroy(per_thread), CUDA_ERROR_INVALID_HANDLE);
    gate = 1;
    gate.notify_all();
    EXPECT_EQ(cu.cuStreamSynchronize(per_thread), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(gate, 2);
    EXPECT_EQ(cu.cuDevicePrimaryCtxReset(0), CUDA_SUCCESS);
    auto* const streams = find<unsigned long long()>("weft_virtual_streams");
    EXPECT_TRUE(processes::comes_true([&] { return streams() == 0; })) << streams();
  });
}

TEST(virtual_driver_rules, a_copy_in_the_null_stream_is_work_of_both_its_devices) {
  in_child({}, [] {
    session cu{3};
    static std::atomic<int> gate{0};
    const CUdeviceptr a = cu.allocate(4);
    cu.write(a, 77);
    cu.use(1);
    const CUdeviceptr b = cu.allocate(4);
    cu.write(b, 0);
    void* seen = nullptr;
    ASSERT_EQ(cu.cuMemHostAlloc(&seen, sizeof(int), 0), CUDA_SUCCESS);
    for (const int held : {0, 1}) {
      gate = 0;
      cu.use(held);
      EXPECT_EQ(cu.cuLaunchHostFunc(cu.stream(0), [](void*) { gate.wait(0); }, nullptr), CUDA_SUCCESS);
      cu.use(2);  // whose null stream it is
      EXPECT_EQ(cu.cuMemcpyPeerAsync(b, cu.contexts[1], a, cu.contexts[0], 4, nullptr), CUDA_SUCCESS);
      cu.use(1 - held);
      const CUstream later = cu.stream(0);
      EXPECT_EQ(cu.cuMemcpyDtoHAsync(seen, b, 4, later), CUDA_SUCCESS);
      const CUstream free = cu.stream();
      for (int n = 0; n < 50; ++n) {  // not held by null streams; and whatever else could run has its chance
        EXPECT_EQ(cu.cuLaunchHostFunc(free, [](void*) {}, nullptr), CUDA_SUCCESS);
        EXPECT_EQ(cu.cuStreamSynchronize(free), CUDA_SUCCESS);
      }
      EXPECT_EQ(cu.cuStreamQuery(later), CUDA_ERROR_NOT_READY) << "device " << 1 - held << " waits for the copy";
      cu.use(2);
      EXPECT_EQ(cu.cuStreamQuery(nullptr), CUDA_ERROR_NOT_READY) << "the copy waits for device " << held;
      gate = 1;
      gate.notify_all();
      EXPECT_EQ(cu.cuStreamSynchronize(later), CUDA_SUCCESS);
      EXPECT_EQ(*static_cast<int*>(seen), 77);
    }
  });
}

TEST(virtual_driver_rules, events_that_were_never_recorded_count_as_reached) {
  in_child({}, [] {
    session cu{2};
    const CUevent a = cu.event();
    const CUevent untimed = cu.event(event_disable_timing);
    float time = 0;
    EXPECT_EQ(cu.cuEventQuery(a), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuEventSynchronize(a), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuStreamWaitEvent(nullptr, a, 0), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuEventElapsedTime(&time, a, a), CUDA_ERROR_INVALID_HANDLE);
    const CUstream s = cu.stream();
    static std::atomic<int> gate{0};
    EXPECT_EQ(cu.cuEventRecord(a, s), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuStreamSynchronize(s), CUDA_SUCCESS);
    const CUevent b = cu.event();
    EXPECT_EQ(cu.cuLaunchHostFunc(s, [](void*) { gate.wait(0); }, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuEventRecord(b, s), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuEventElapsedTime(&time, a, b), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(cu.cuEventQuery(b), CUDA_ERROR_NOT_READY);
    cu.use(1);
    const CUstream other = cu.stream();
    EXPECT_EQ(cu.cuStreamWaitEvent(other, b, 0), CUDA_SUCCESS) << "across devices";
    EXPECT_EQ(cu.cuStreamQuery(other), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(cu.cuEventRecord(b, other), CUDA_ERROR_INVALID_HANDLE);
    const CUevent here = cu.event();
    EXPECT_EQ(cu.cuEventRecord(here, other), CUDA_SUCCESS);
    gate = 1;
    gate.notify_all();
    EXPECT_EQ(cu.cuEventSynchronize(b), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuStreamSynchronize(other), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuEventElapsedTime(&time, a, b), CUDA_SUCCESS);
    EXPECT_GE(time, 0);
    EXPECT_EQ(cu.cuEventElapsedTime(&time, a, here), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(cu.cuEventElapsedTime(&time, a, untimed), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(cu.cuEventDestroy(a), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuEventQuery(a), CUDA_ERROR_INVALID_HANDLE);
  });
}

struct wait_case {
  unsigned how;
  std::uint32_t value, too_early, enough;
};

TEST(virtual_driver_rules, streams_wait_for_words_cyclically) {
  in_child({}, [] {
    session cu;
    const wait_case cases[] = {
        {wait_value_geq, 5, 4, 5},        {wait_value_geq, 3, 0xfffffff0U, 7},   {wait_value_eq, 5, 6, 5},
        {wait_value_and, 0b110, 1, 0b10}, {wait_value_nor, 0xfffffff0U, 15, 14},
    };
    const CUdeviceptr word = cu.allocate(64);
    const CUstream s = cu.stream();
    const CUstream writer = cu.stream();
    for (const wait_case& one : cases) {
      EXPECT_EQ(cu.cuStreamWriteValue32(writer, word, one.too_early, 0), CUDA_SUCCESS);
      EXPECT_EQ(cu.cuStreamSynchronize(writer), CUDA_SUCCESS);
      EXPECT_EQ(cu.cuStreamWaitValue32(s, word, one.value, one.how), CUDA_SUCCESS);
      EXPECT_EQ(cu.cuStreamQuery(s), CUDA_ERROR_NOT_READY) << one.how;
      EXPECT_EQ(cu.cuStreamWriteValue32(writer, word, one.enough, 0), CUDA_SUCCESS);
      EXPECT_EQ(cu.cuStreamSynchronize(s), CUDA_SUCCESS);
    }
    EXPECT_EQ(cu.cuStreamWaitValue32(s, word + 1, 0, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cu.cuStreamWriteValue64(s, word, 1, 0), CUDA_SUCCESS);
  });
}

TEST(virtual_driver_rules, words_that_streams_use_are_neither_managed_nor_of_a_peer_without_access) {
  in_child({}, [] {
    session cu{2};
    CUdeviceptr managed = 0;
    EXPECT_EQ(cu.cuMemAllocManaged(&managed, 64, 1), CUDA_SUCCESS);
    const CUdeviceptr word = cu.allocate(64);
    cu.use(1);
    const CUstream s = cu.stream();
    for (const CUdeviceptr at : {managed, word}) {
      EXPECT_EQ(cu.cuStreamWaitValue32(s, at, 0, wait_value_geq), CUDA_ERROR_INVALID_VALUE);
      EXPECT_EQ(cu.cuStreamWriteValue32(s, at, 0, 0), CUDA_ERROR_INVALID_VALUE);
    }
    EXPECT_EQ(cu.cuCtxEnablePeerAccess(cu.contexts[0], 0), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuStreamWriteValue32(s, word, 5, 0), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuStreamWaitValue32(s, word, 5, wait_value_eq), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuStreamWaitValue32(s, word, 5, wait_value_eq | wait_value_flush), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(cu.cuStreamSynchronize(s), CUDA_SUCCESS);
  });
}

TEST(virtual_driver_rules, words_of_four_bytes_need_no_attribute_and_those_of_eight_and_nor_do) {
  in_child({{"WEFT_VIRTUAL_CUDA_MEMOPS", "0"}}, [] {
    session cu;
    const CUdeviceptr word = cu.allocate(64);
    const CUstream s = cu.stream();
    EXPECT_EQ(cu.cuStreamWriteValue32(s, word, 5, 0), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuStreamWaitValue32(s, word, 5, wait_value_eq), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuStreamWaitValue32(s, word, 5, wait_value_nor), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(cu.cuStreamWriteValue64(s, word, 5, 0), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(cu.cuStreamWaitValue64(s, word, 5, wait_value_eq), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(cu.cuStreamSynchronize(s), CUDA_SUCCESS);
  });
}

TEST(virtual_driver_rules, a_host_function_may_not_call_the_driver) {
  in_child({}, [] {
    static session* cu = nullptr;
    session here;
    cu = &here;
    static CUresult answer = 0;
    EXPECT_EQ(here.cuLaunchHostFunc(nullptr, [](void*) { answer = cu->cuCtxSynchronize(); }, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(here.cuStreamSynchronize(nullptr), CUDA_SUCCESS);
    EXPECT_EQ(answer, CUDA_ERROR_NOT_PERMITTED);
  });
}

TEST(virtual_driver_rules, ranges_are_those_of_the_call_that_made_them) {
  in_child({}, [] {
    session cu;
    const CUdeviceptr a = cu.allocate(1000);
    CUdeviceptr base = 0;
    std::size_t size = 0;
    EXPECT_EQ(cu.cuMemGetAddressRange(&base, &size, a + 999), CUDA_SUCCESS);
    EXPECT_EQ(base, a);
    EXPECT_EQ(size, 1000U);
    EXPECT_EQ(cu.cuMemGetAddressRange(nullptr, nullptr, a), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMemGetAddressRange(&base, &size, a + 1000), CUDA_ERROR_NOT_FOUND);
    EXPECT_EQ(cu.cuMemFree(a + 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cu.cuMemFree(a), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMemFree(a), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cu.cuMemGetAddressRange(&base, &size, a), CUDA_ERROR_NOT_FOUND);
    int mine = 0;
    EXPECT_EQ(cu.cuMemHostRegister(&mine, sizeof mine, 0), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMemHostRegister(&mine, sizeof mine, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    EXPECT_EQ(cu.cuMemHostUnregister(&mine), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMemHostUnregister(&mine), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  });
}

TEST(virtual_driver_rules, host_memory_goes_by_the_call_that_it_came_by) {
  in_child({}, [] {
    session cu;
    void* pinned = &cu;
    EXPECT_EQ(cu.cuMemHostAlloc(&pinned, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(pinned, nullptr);
    EXPECT_EQ(cu.cuMemFreeHost(nullptr), CUDA_SUCCESS);
    ASSERT_EQ(cu.cuMemHostAlloc(&pinned, 8192, 0), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMemHostUnregister(pinned), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cu.cuMemHostUnregister(nullptr), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cu.cuMemHostUnregister(&pinned), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    std::vector<char> mine(8192);
    ASSERT_EQ(cu.cuMemHostRegister(mine.data(), mine.size(), 0), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMemHostRegister(mine.data() + 4096, 1, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    EXPECT_EQ(cu.cuMemHostUnregister(mine.data() + 4096), CUDA_ERROR_INVALID_VALUE) << "not where it begins";
    EXPECT_EQ(cu.cuMemFreeHost(mine.data()), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cu.cuMemHostUnregister(mine.data()), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMemFreeHost(pinned), CUDA_SUCCESS);
  });
}

TEST(virtual_driver_rules, only_pages_that_are_there_to_be_written_are_registered) {
  in_child({}, [] {
    session cu;
    constexpr std::size_t page = 4096;
    void* const got = ::mmap(nullptr, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    auto* const at = static_cast<char*>(got);
    ASSERT_EQ(::munmap(at + 2 * page, page), 0);
    ASSERT_EQ(::mprotect(at + page, page, PROT_READ), 0);
    EXPECT_EQ(cu.cuMemHostRegister(at + 2 * page, page, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cu.cuMemHostRegister(at, 2 * page, 0), CUDA_ERROR_INVALID_VALUE) << "to be read only";
    EXPECT_EQ(cu.cuMemHostRegister(at, page, 8), CUDA_ERROR_NOT_SUPPORTED) << "a flag that needs an attribute";
    EXPECT_EQ(cu.cuMemHostRegister(at, page, 0), CUDA_SUCCESS);
  });
}

TEST(virtual_driver_rules, a_pointer_tells_about_itself_without_a_context) {
  in_child({}, [] {
    session cu;
    const CUdeviceptr a = cu.allocate(64);
    CUdeviceptr of_pool = 0;
    CUmemoryPool pool = nullptr;
    ASSERT_EQ(cu.cuDeviceGetDefaultMemPool(&pool, 0), CUDA_SUCCESS);
    ASSERT_EQ(cu.cuMemAllocFromPoolAsync(&of_pool, 64, pool, nullptr), CUDA_SUCCESS);
    ASSERT_EQ(cu.cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
    unsigned type = 0;
    int ordinal = 9;
    CUcontext context = nullptr;
    CUmemoryPool home = nullptr;
    CUdeviceptr seen = 0;
    EXPECT_EQ(cu.cuPointerGetAttribute(&type, pointer_memory_type, a + 63), CUDA_SUCCESS);
    EXPECT_EQ(type, unsigned{memory_type_device});
    EXPECT_EQ(cu.cuPointerGetAttribute(&ordinal, pointer_device_ordinal, a), CUDA_SUCCESS);
    EXPECT_EQ(ordinal, 0);
    EXPECT_EQ(cu.cuPointerGetAttribute(&context, pointer_context, a), CUDA_SUCCESS);
    EXPECT_EQ(context, cu.contexts[0]);
    EXPECT_EQ(cu.cuPointerGetAttribute(&home, pointer_pool, of_pool), CUDA_SUCCESS);
    EXPECT_EQ(home, pool);
    EXPECT_EQ(cu.cuPointerGetAttribute(&seen, pointer_device_pointer, a), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(cu.cuPointerGetAttribute(&type, pointer_memory_type, a + 64), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cu.cuPointerGetAttribute(&type, 9999, a), CUDA_ERROR_INVALID_VALUE);
  });
}

TEST(virtual_driver_rules, links_have_the_five_attributes_that_the_header_has) {
  in_child({}, [] {
    const session cu{2};
    int value = 0;
    for (int attribute = -1; attribute < 10; ++attribute) {
      const CUresult expected = attribute >= 1 && attribute <= 5 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
      EXPECT_EQ(cu.cuDeviceGetP2PAttribute(&value, attribute, 0, 1), expected) << attribute;
    }
    EXPECT_EQ(cu.cuDeviceGetP2PAttribute(&value, p2p_performance_rank, 0, 0), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(cu.cuDeviceGetP2PAttribute(&value, p2p_performance_rank, 0, 99), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(cu.cuDeviceGetP2PAttribute(nullptr, p2p_performance_rank, 0, 1), CUDA_ERROR_INVALID_VALUE);
  });
}

TEST(virtual_driver_rules, memory_has_a_limit_and_comes_back) {
  in_child({{"WEFT_VIRTUAL_CUDA_MEMORY", "8MiB"}}, [] {
    session cu;
    std::size_t free = 0;
    std::size_t total = 0;
    EXPECT_EQ(cu.cuMemGetInfo(&free, &total), CUDA_SUCCESS);
    EXPECT_EQ(total, std::size_t{8} << 20);
    EXPECT_EQ(free, total - (std::size_t{1} << 20)) << "the context takes some";
    const CUdeviceptr a = cu.allocate(std::size_t{5} << 20);
    CUdeviceptr b = 0;
    EXPECT_EQ(cu.cuMemAlloc(&b, std::size_t{5} << 20), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cu.cuMemAlloc(&b, ~std::size_t{0}), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cu.cuMemFree(a), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMemAlloc(&b, std::size_t{5} << 20), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuDevicePrimaryCtxReset(0), CUDA_SUCCESS);
    EXPECT_EQ(find<unsigned long long(int)>("weft_virtual_used")(0), 0U);
  });
}

TEST(virtual_driver_rules, a_context_that_went_keeps_nothing) {
  in_child({}, [] {
    session cu{2};
    auto* const streams = find<unsigned long long()>("weft_virtual_streams");
    const CUstream s = cu.stream();
    const CUdeviceptr a = cu.allocate(8);
    EXPECT_EQ(cu.cuMemsetD8Async(a, 1, 8, s), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMemsetD8Async(a, 2, 8, nullptr), CUDA_SUCCESS);
    EXPECT_GE(streams(), 3U);
    EXPECT_EQ(cu.cuDevicePrimaryCtxReset(0), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuDevicePrimaryCtxRelease(1), CUDA_SUCCESS);
    // what works off a stream lets it go last
    EXPECT_TRUE(processes::comes_true([&] { return streams() == 0; })) << streams();
  });
}

TEST(virtual_driver_rules, a_misspelt_setting_is_refused_with_the_one_that_was_meant) {
  const std::pair<const char*, const char*> cases[] = {
      {"WEFT_VIRTUAL_CUDA_DEVICE", "did you mean WEFT_VIRTUAL_CUDA_DEVICES?"},
      {"WEFT_VIRTUAL_CUDA_PTP", "did you mean WEFT_VIRTUAL_CUDA_P2P?"},
      {"WEFT_VIRTUAL_CUDA_WHATEVER_IT_IS", "docs/porting/virtual_driver.md"},
  };
  for (const auto& one : cases) {
    const char* const name = one.first;
    const char* const advice = one.second;
    in_child({{name, "2"}}, [&] {
      int ends[2];
      ASSERT_EQ(::pipe(ends), 0);
      const int usual = ::dup(STDERR_FILENO);
      ::dup2(ends[1], STDERR_FILENO);
      EXPECT_EQ(loaded_driver{}.cuInit(0), CUDA_ERROR_INVALID_VALUE) << name;
      std::string said(1000, '\0');
      ::dup2(usual, STDERR_FILENO);
      ::close(ends[1]);
      said.resize(static_cast<std::size_t>(std::max<ssize_t>(0, ::read(ends[0], said.data(), said.size()))));
      EXPECT_NE(said.find(name), std::string::npos) << said;
      EXPECT_NE(said.find(advice), std::string::npos) << said;
    });
  }
}

TEST(virtual_driver_rules, the_nth_call_fails_or_ends_the_process) {
  in_child(
      {{"WEFT_VIRTUAL_CUDA_FAIL", "cuMemAlloc@2=2,cuStreamSynchronize@1=kill"}},
      [] {
        session cu;
        CUdeviceptr a = 0;
        EXPECT_EQ(cu.cuMemAlloc(&a, 5), CUDA_SUCCESS);
        EXPECT_EQ(cu.cuMemAlloc(&a, 5), CUDA_ERROR_OUT_OF_MEMORY);
        EXPECT_EQ(cu.cuMemAlloc(&a, 5), CUDA_SUCCESS);
        EXPECT_EQ(find<unsigned long long(const char*)>("weft_virtual_calls")("cuMemAlloc"), 3U);
        static_cast<void>(cu.cuStreamSynchronize(nullptr));
      },
      -SIGKILL);
  in_child({}, [] {
    session cu;
    find<void(const char*)>("weft_virtual_fail")("*@2=999");
    CUdeviceptr a = 0;
    EXPECT_EQ(cu.cuMemAlloc(&a, 5), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMemFree(a), CUDA_ERROR_UNKNOWN);
    EXPECT_EQ(cu.cuMemFree(a), CUDA_SUCCESS);
  });
}

TEST(virtual_driver_rules, the_nth_call_hangs_and_keeps_no_other_thread_from_calling) {
  in_child(
      {{"WEFT_VIRTUAL_CUDA_FAIL", "cuMemAlloc@1=hang"}},
      [] {
        ::alarm(samples::only_a_hang.count());
        session cu;
        std::thread stays{[&] {
          CUdeviceptr never_set = 0;
          static_cast<void>(cu.cuMemAlloc(&never_set, 5));
        }};
        EXPECT_TRUE(processes::comes_true(
            [] { return find<unsigned long long(const char*)>("weft_virtual_calls")("cuMemAlloc") == 1U; }));
        CUdeviceptr a = 0;
        if (cu.cuMemAlloc(&a, 5) != CUDA_SUCCESS) std::_Exit(1);
        std::signal(SIGALRM, [](int) { std::_Exit(42); });
        ::alarm(1);
        stays.join();
      },
      42);
}

}  // namespace rules_test
