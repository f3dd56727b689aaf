// SPDX-License-Identifier: Apache-2.0
// What programs use that nobody here wrote: the symbols of a linked program, contexts of its own, copies that wait,
// libraries. The backend calls none of these.
#include "virtual_driver/driver/more_functions.hpp"
#include "virtual_driver/loaded_driver.hpp"

#include <cstring>
#include <fstream>
#include <numeric>
#include <set>
#include <thread>

namespace other_programs_test {

using namespace virtual_cuda;
using weft::virtual_cuda::CUctxCreateParams;
using weft::virtual_cuda::CUDA_MEMCPY2D;
using weft::virtual_cuda::CUkernel;
using weft::virtual_cuda::CUlaunchAttribute;
using weft::virtual_cuda::CUlaunchConfig;
using weft::virtual_cuda::CUlibrary;

struct linked_program : session {
  using session::session;
#define WEFT_LINK(name, version, symbol, parameters) CUresult(*symbol) parameters = find<CUresult parameters>(#symbol);
  WEFT_VIRTUAL_MORE_FUNCTIONS(WEFT_LINK)
#undef WEFT_LINK

  CUcontext create(CUdevice device = 0) {
    CUcontext made = nullptr;
    EXPECT_EQ(cuCtxCreate_v4(&made, nullptr, 0, device), CUDA_SUCCESS);
    return made;
  }
  CUcontext current() {
    CUcontext now = nullptr;
    EXPECT_EQ(cuCtxGetCurrent(&now), CUDA_SUCCESS);
    return now;
  }
  CUcontext context_of(CUdeviceptr address) {
    CUcontext made_in = nullptr;
    return cuPointerGetAttribute(&made_in, pointer_context, address) == CUDA_SUCCESS ? made_in : nullptr;
  }
};

constexpr const char* write_text = R"(extern "C" __global__ void write(int* out, int value) { *out = value; })";

std::string image_of(const std::string& text) {
  nvrtc_functions rtc;
#define WEFT_LOOK_UP(name, parameters) rtc.name = find<nvrtcResult parameters>(#name);
  WEFT_GPU_NVRTC_FUNCTIONS(WEFT_LOOK_UP)
#undef WEFT_LOOK_UP
  nvrtcProgram program = nullptr;
  EXPECT_EQ(rtc.nvrtcCreateProgram(&program, text.c_str(), "other.cu", 0, nullptr, nullptr), NVRTC_SUCCESS);
  const char* const options[] = {"--gpu-architecture=sm_90"};
  EXPECT_EQ(rtc.nvrtcCompileProgram(program, 1, options), NVRTC_SUCCESS);
  std::size_t size = 0;
  EXPECT_EQ(rtc.nvrtcGetCUBINSize(program, &size), NVRTC_SUCCESS);
  std::string image(size, '\0');
  EXPECT_EQ(rtc.nvrtcGetCUBIN(program, image.data()), NVRTC_SUCCESS);
  return image;
}

TEST(other_programs, find_each_form_as_a_symbol_and_by_its_version) {
  in_child({}, [] {
    linked_program cu;
    void* found = nullptr;
    int how = 9;
#define WEFT_FOUND(name, version, symbol, parameters)                                          \
  EXPECT_EQ(cu.cuGetProcAddress_v2(#name, &found, version, 0, &how), CUDA_SUCCESS) << #symbol; \
  EXPECT_EQ(how, symbol_found) << #symbol;                                                     \
  EXPECT_EQ(found, reinterpret_cast<void*>(cu.symbol)) << #symbol;
    WEFT_VIRTUAL_MORE_FUNCTIONS(WEFT_FOUND)
#undef WEFT_FOUND
    EXPECT_EQ(cu.cuGetProcAddress_v2("cuCtxCreate", &found, 12040, 0, &how), CUDA_SUCCESS);
    EXPECT_EQ(found, reinterpret_cast<void*>(cu.cuCtxCreate_v3)) << "the newest that 12.4 had";
    EXPECT_EQ(cu.cuGetProcAddress("cuMemcpyHtoD", &found, 2000, 0), CUDA_ERROR_NOT_FOUND);
  });
  in_child({{"WEFT_VIRTUAL_CUDA_VERSION", "12040"}}, [] {
    linked_program cu;
    void* found = nullptr;
    EXPECT_EQ(cu.cuGetProcAddress_v2("cuCtxCreate", &found, 12040, 0, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(found, reinterpret_cast<void*>(cu.cuCtxCreate_v3)) << "what came later is not in this driver";
    int how = 9;
    EXPECT_EQ(cu.cuGetProcAddress_v2("cuMemGetMemPool", &found, 12040, 0, &how), CUDA_SUCCESS);
    EXPECT_EQ(how, symbol_not_found);
  });
}

TEST(other_programs, a_created_context_supplants_the_current_one_until_it_is_popped_or_destroyed) {
  in_child({}, [] {
    linked_program cu{2};
    CUcontext made = nullptr;
    EXPECT_EQ(cu.cuCtxCreate_v4(&made, nullptr, 0, 99), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(cu.cuCtxCreate_v4(nullptr, nullptr, 0, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cu.cuCtxCreate_v2(&made, context_schedule_spin | context_schedule_yield, 0), CUDA_ERROR_INVALID_VALUE);
    const CUctxCreateParams graphics{nullptr, 0, &made};
    EXPECT_EQ(cu.cuCtxCreate_v4(&made, &graphics, 0, 0), CUDA_ERROR_NOT_SUPPORTED);
    ASSERT_EQ(cu.cuCtxCreate_v2(&made, context_schedule_yield, 1), CUDA_SUCCESS);
    EXPECT_EQ(cu.current(), made);
    CUdevice device = -1;
    unsigned flags = 0;
    EXPECT_EQ(cu.cuCtxGetDevice(&device), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuCtxGetFlags(&flags), CUDA_SUCCESS);
    EXPECT_EQ(device, 1);
    EXPECT_EQ(flags, context_schedule_yield);
    EXPECT_EQ(cu.cuCtxPopCurrent(nullptr), CUDA_SUCCESS);
    EXPECT_EQ(cu.current(), cu.contexts[0]);
    EXPECT_EQ(cu.cuCtxDestroy(made), CUDA_SUCCESS);
    EXPECT_EQ(cu.current(), cu.contexts[0]) << "it was not the current one";
    const CUcontext other = cu.create();
    EXPECT_EQ(cu.cuCtxDestroy_v2(other), CUDA_SUCCESS);
    EXPECT_EQ(cu.current(), cu.contexts[0]) << "as though it had been popped";
    EXPECT_EQ(cu.cuCtxDestroy_v2(other), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(cu.cuCtxDestroy_v2(cu.contexts[0]), CUDA_ERROR_INVALID_CONTEXT) << "the primary one is released";
  });
}

TEST(other_programs, what_belongs_to_a_created_context_goes_with_it_and_nothing_else) {
  in_child({}, [] {
    linked_program cu;
    const CUdeviceptr of_primary = cu.allocate(4096);
    const CUcontext made = cu.create();
    const CUdeviceptr own = cu.allocate(4096);
    EXPECT_EQ(cu.context_of(own), made);
    EXPECT_EQ(cu.context_of(of_primary), cu.contexts[0]);
    const CUstream stream = cu.stream();
    const CUevent event = cu.event();
    const CUfunction kernel = cu.kernel(write_text, "write");
    CUcontext of_stream = nullptr;
    EXPECT_EQ(cu.cuStreamGetCtx(stream, &of_stream), CUDA_SUCCESS);
    EXPECT_EQ(of_stream, made);
    CUdeviceptr of_pool = 0;
    EXPECT_EQ(cu.cuMemAllocAsync(&of_pool, 4096, stream), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuStreamSynchronize(stream), CUDA_SUCCESS);

    std::atomic<bool> is_current{false}, is_gone{false};
    CUresult of_thread = CUDA_SUCCESS;
    std::thread other{[&] {
      EXPECT_EQ(cu.cuCtxSetCurrent(made), CUDA_SUCCESS);
      is_current = true;
      is_current.notify_one();
      is_gone.wait(false);
      of_thread = cu.cuCtxSynchronize();
    }};
    is_current.wait(false);
    EXPECT_EQ(cu.cuCtxDestroy_v2(made), CUDA_SUCCESS);
    is_gone = true;
    is_gone.notify_one();
    other.join();
    EXPECT_EQ(of_thread, CUDA_ERROR_CONTEXT_IS_DESTROYED) << "it stays current to other threads";

    EXPECT_EQ(cu.current(), cu.contexts[0]);
    EXPECT_EQ(cu.cuMemFree(own), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cu.cuStreamQuery(stream), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(cu.cuEventQuery(event), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(cu.launch(kernel, 1, 1, nullptr, of_primary, 1), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(cu.cuMemFree(of_primary), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMemFreeAsync(of_pool, nullptr), CUDA_SUCCESS) << "memory of pools belongs to no context";
  });
}

TEST(other_programs, a_function_runs_in_its_own_context_only) {
  in_child({}, [] {
    linked_program cu;
    const CUfunction of_primary = cu.kernel(write_text, "write");
    const CUdeviceptr out = cu.allocate(4);
    const CUcontext made = cu.create();
    EXPECT_EQ(cu.launch(of_primary, 1, 1, nullptr, out, 1), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(cu.cuCtxDestroy_v2(made), CUDA_SUCCESS);
    EXPECT_EQ(cu.launch(of_primary, 1, 1, nullptr, out, 1), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_SUCCESS);
  });
}

TEST(other_programs, access_is_enabled_between_two_contexts_and_not_between_their_devices) {
  in_child({}, [] {
    linked_program cu{2};
    const CUcontext made = cu.create(0);
    EXPECT_EQ(cu.cuCtxEnablePeerAccess(made, 0), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(cu.cuCtxEnablePeerAccess(cu.contexts[0], 0), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED) << "the same device";
    EXPECT_EQ(cu.cuCtxEnablePeerAccess(cu.contexts[1], 0), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuCtxEnablePeerAccess(cu.contexts[1], 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    EXPECT_EQ(cu.cuCtxSetCurrent(cu.contexts[0]), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuCtxDisablePeerAccess(cu.contexts[1]), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    EXPECT_EQ(cu.cuCtxEnablePeerAccess(cu.contexts[1], 0), CUDA_SUCCESS);

    EXPECT_EQ(cu.cuCtxDestroy_v2(made), CUDA_SUCCESS);
    const CUfunction kernel = cu.kernel(write_text, "write");
    cu.use(1);
    const CUdeviceptr far = cu.allocate(4);
    cu.use(0);
    EXPECT_EQ(cu.launch(kernel, 1, 1, nullptr, far, 41), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_SUCCESS) << "the other's access went with it, this one's did not";
    EXPECT_EQ(cu.cuCtxDisablePeerAccess(cu.contexts[1]), CUDA_SUCCESS);
    EXPECT_EQ(cu.launch(kernel, 1, 1, nullptr, far, 42), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
  });
}

TEST(other_programs, a_fault_outlives_the_created_context_that_it_lost) {
  in_child({}, [] {
    linked_program cu{2};
    const CUcontext made = cu.create(0);
    const CUfunction kernel = cu.kernel(write_text, "write");
    EXPECT_EQ(cu.launch(kernel, 1, 1, nullptr, CUdeviceptr{64}, 1), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(cu.cuCtxDestroy_v2(made), CUDA_SUCCESS);
    CUcontext next = nullptr;
    EXPECT_EQ(cu.cuCtxCreate_v4(&next, nullptr, 0, 0), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(cu.cuCtxCreate_v4(&next, nullptr, 0, 1), CUDA_SUCCESS);
  });
}

TEST(other_programs, a_copy_without_a_stream_waits_where_the_host_is_a_side_of_it) {
  in_child({}, [] {
    linked_program cu;
    const CUdeviceptr from = cu.allocate(4096);
    const CUdeviceptr to = cu.allocate(4096);
    const CUdeviceptr word = cu.allocate(4);
    cu.write(word, 0U);
    const CUstream other = cu.stream();
    std::vector<std::uint32_t> numbers(1024);
    std::iota(numbers.begin(), numbers.end(), 7U);
    EXPECT_EQ(cu.cuMemcpyHtoD_v2(from, numbers.data(), 4096), CUDA_SUCCESS);
    // the null stream is held up: what the documents call asynchronous returns all the same
    EXPECT_EQ(cu.cuStreamWaitValue32(nullptr, word, 1, wait_value_eq), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMemcpyDtoD_v2(to, from, 4096), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMemsetD32_v2(to, 5, 1), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMemsetD16_v2(to + 4, 6, 2), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMemsetD8_v2(to + 8, 7, 4), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuStreamQuery(nullptr), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(cu.cuStreamWriteValue32(other, word, 1, 0), CUDA_SUCCESS);
    std::vector<std::uint32_t> back(1024);
    EXPECT_EQ(cu.cuMemcpyDtoH_v2(back.data(), to, 4096), CUDA_SUCCESS);
    numbers[0] = 5;
    numbers[1] = 0x60006;
    numbers[2] = 0x07070707;
    EXPECT_EQ(back, numbers);
    EXPECT_EQ(cu.cuMemcpy(to, reinterpret_cast<CUdeviceptr>(numbers.data()), 0), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMemcpyDtoH_v2(nullptr, to, 4), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cu.cuMemcpyHtoD_v2(to + 4096, numbers.data(), 4), CUDA_ERROR_INVALID_VALUE) << "past its end";
  });
}

TEST(other_programs, pinned_memory_is_written_when_a_call_without_a_stream_returns) {
  in_child({}, [] {
    linked_program cu;
    constexpr std::size_t size = std::size_t{32} << 20;  // long enough to be seen unfinished
    const CUdeviceptr from = cu.allocate(size);
    void* pinned = nullptr;
    ASSERT_EQ(cu.cuMemAllocHost_v2(&pinned, size), CUDA_SUCCESS);
    auto* const bytes = static_cast<volatile unsigned char*>(pinned);
    EXPECT_EQ(cu.cuMemsetD8_v2(from, 3, size), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMemcpyDtoH_v2(pinned, from, size), CUDA_SUCCESS);
    EXPECT_EQ(bytes[size - 1], 3);
    EXPECT_EQ(cu.cuMemsetD8_v2(reinterpret_cast<CUdeviceptr>(pinned), 4, size), CUDA_SUCCESS);
    EXPECT_EQ(bytes[size - 1], 4);
  });
}

TEST(other_programs, rows_are_copied_at_their_pitches) {
  in_child({}, [] {
    linked_program cu{2};
    const CUdeviceptr image = cu.allocate(64 * 4);
    EXPECT_EQ(cu.cuMemsetD8_v2(image, 0xee, 64 * 4), CUDA_SUCCESS);
    unsigned char rows[3][10];
    for (int y = 0; y < 3; ++y) {
      for (int x = 0; x < 10; ++x) rows[y][x] = static_cast<unsigned char>(10 * y + x);
    }
    CUDA_MEMCPY2D in;
    in.src_type = memory_type_host;
    in.src_host = rows;
    in.src_pitch = 10;
    in.src_x = 2;
    in.dst_type = memory_type_device;
    in.dst_device = image;
    in.dst_pitch = 64;
    in.dst_x = 1;
    in.dst_y = 1;
    in.width = 5;
    in.height = 3;
    EXPECT_EQ(cu.cuMemcpy2D_v2(&in), CUDA_SUCCESS);
    unsigned char seen[4][64];
    EXPECT_EQ(cu.cuMemcpyDtoH_v2(seen, image, sizeof seen), CUDA_SUCCESS);
    for (int y = 0; y < 4; ++y) {
      for (int x = 0; x < 64; ++x) {
        const bool within = y >= 1 && x >= 1 && x < 6;
        EXPECT_EQ(seen[y][x], within ? rows[y - 1][x + 1] : 0xee) << y << ", " << x;
      }
    }
    in.height = 1;
    in.dst_y = 0;
    in.dst_pitch = std::size_t{1} << 31;
    EXPECT_EQ(cu.cuMemcpy2DUnaligned_v2(&in), CUDA_ERROR_INVALID_VALUE) << "more than MAX_PITCH";
    EXPECT_EQ(cu.cuMemcpy2DAsync_v2(nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
    // between devices, without a stream
    cu.use(1);
    const CUdeviceptr far = cu.allocate(64);
    cu.use(0);
    EXPECT_EQ(cu.cuMemcpyPeer(far, cu.contexts[1], image + 64, cu.contexts[0], 64), CUDA_SUCCESS);
    unsigned char row[64];
    EXPECT_EQ(cu.cuMemcpyDtoH_v2(row, far, 64), CUDA_SUCCESS);
    EXPECT_EQ(std::memcmp(row, seen[1], 64), 0);
  });
}

TEST(other_programs, a_module_is_loaded_from_a_file) {
  in_child({}, [] {
    linked_program cu;
    const std::string image = image_of(write_text);
    const std::string path = samples::build_folder() + "/module_of_other_programs";
    CUmodule module = nullptr;
    EXPECT_EQ(cu.cuModuleLoad(&module, (path + "_nowhere").c_str()), 301) << "CUDA_ERROR_FILE_NOT_FOUND";
    for (const std::size_t size : {image.size(), image.size() - 1, std::size_t{16}, std::size_t{0}}) {
      std::ofstream{path, std::ios::binary} << image.substr(0, size);
      EXPECT_EQ(cu.cuModuleLoad(&module, path.c_str()), size == image.size() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE);
    }
    std::ofstream{path} << ".version 8.0\n.target sm_90\n";
    EXPECT_EQ(cu.cuModuleLoad(&module, path.c_str()), CUDA_ERROR_INVALID_PTX);
    EXPECT_EQ(cu.cuModuleLoadData(&module, image.data()), CUDA_SUCCESS);
    CUfunction found = nullptr;
    EXPECT_EQ(cu.cuModuleGetFunction(&found, module, "write"), CUDA_SUCCESS);
  });
}

TEST(other_programs, a_kernel_of_a_library_runs_in_every_context) {
  in_child({}, [] {
    linked_program cu{2};
    const std::string image = image_of(R"(__device__ int calls[2];
extern "C" __global__ void count(int* out) { *out = ++calls[0]; })");
    CUlibrary library = nullptr;
    ASSERT_EQ(cu.cuLibraryLoadData(&library, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0), CUDA_SUCCESS);
    CUkernel kernel = nullptr;
    EXPECT_EQ(cu.cuLibraryGetKernel(&kernel, library, "nothing"), CUDA_ERROR_NOT_FOUND);
    ASSERT_EQ(cu.cuLibraryGetKernel(&kernel, library, "count"), CUDA_SUCCESS);
    int threads = 0;
    EXPECT_EQ(cu.cuKernelGetAttribute(&threads, function_max_threads_per_block, kernel, 1), CUDA_SUCCESS);
    EXPECT_EQ(threads, 1024);
    const auto count = [&](CUfunction f) {
      CUdeviceptr out = cu.allocate(4);
      void* arguments[] = {&out};
      CUlaunchAttribute cooperative;
      cooperative.id = 2;
      cooperative.cooperative = 1;
      CUlaunchConfig config{1, 1, 1, 1, 1, 1, 0, nullptr, &cooperative, 1};
      EXPECT_EQ(cu.cuLaunchKernelEx(&config, f, arguments, nullptr), CUDA_SUCCESS);
      cooperative.id = 6;
      EXPECT_EQ(cu.cuLaunchKernelEx(&config, f, arguments, nullptr), CUDA_ERROR_NOT_SUPPORTED);
      int value = 0;
      EXPECT_EQ(cu.cuMemcpyDtoH_v2(&value, out, 4), CUDA_SUCCESS);
      return value;
    };
    EXPECT_EQ(count(kernel), 1);
    EXPECT_EQ(count(kernel), 2);
    cu.use(1);
    EXPECT_EQ(count(kernel), 1) << "each context has its own variables";
    CUfunction here = nullptr;
    CUmodule module = nullptr;
    EXPECT_EQ(cu.cuKernelGetFunction(&here, kernel), CUDA_SUCCESS);
    EXPECT_EQ(count(here), 2);
    EXPECT_EQ(cu.cuLibraryGetModule(&module, library), CUDA_SUCCESS);
    CUdeviceptr calls = 0;
    std::size_t size = 0;
    EXPECT_EQ(cu.cuModuleGetGlobal(&calls, &size, module, "calls"), CUDA_SUCCESS);
    EXPECT_EQ(size, 2 * sizeof(int));
    cu.use(0);
    EXPECT_EQ(cu.launch(here, 1, 1, nullptr, calls), CUDA_ERROR_INVALID_HANDLE) << "a function of the other context";
    EXPECT_EQ(cu.cuLibraryUnload(library), CUDA_SUCCESS);
    EXPECT_EQ(cu.launch(kernel, 1, 1, nullptr, calls), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(cu.cuKernelGetAttribute(&threads, function_max_threads_per_block, kernel, 1), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(cu.cuLibraryUnload(library), CUDA_ERROR_INVALID_HANDLE);
  });
}

TEST(other_programs, the_current_pool_is_the_one_that_was_set_while_it_is_there) {
  in_child({}, [] {
    linked_program cu{2};
    CUmemoryPool first = nullptr;
    CUmemoryPool now = nullptr;
    CUmemoryPool made = nullptr;
    EXPECT_EQ(cu.cuDeviceGetDefaultMemPool(&first, 0), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuDeviceGetMemPool(&now, 0), CUDA_SUCCESS);
    EXPECT_EQ(now, first);
    CUmemPoolProps wanted{};
    EXPECT_EQ(cu.cuMemPoolCreate(&made, &wanted), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuDeviceSetMemPool(1, made), CUDA_ERROR_INVALID_VALUE) << "of another device";
    EXPECT_EQ(cu.cuDeviceSetMemPool(0, made), CUDA_SUCCESS);
    CUdeviceptr part = 0;
    EXPECT_EQ(cu.cuMemAllocAsync(&part, 4096, nullptr), CUDA_SUCCESS);
    std::uint64_t used = 0;
    EXPECT_EQ(cu.cuMemPoolGetAttribute(made, pool_used_current, &used), CUDA_SUCCESS);
    EXPECT_EQ(used, 4096U);
    EXPECT_EQ(cu.cuMemFreeAsync(part, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_SUCCESS);
    CUmemLocation place{};
    EXPECT_EQ(cu.cuMemGetMemPool(&now, &place, allocation_pinned), CUDA_SUCCESS);
    EXPECT_EQ(now, made);
    EXPECT_EQ(cu.cuMemGetDefaultMemPool(&now, &place, allocation_pinned), CUDA_SUCCESS);
    EXPECT_EQ(now, first);
    place.type = location_host;
    EXPECT_EQ(cu.cuMemGetMemPool(&now, &place, allocation_pinned), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(cu.cuMemPoolDestroy(made), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuDeviceGetMemPool(&now, 0), CUDA_SUCCESS);
    EXPECT_EQ(now, first);
  });
}

TEST(other_programs, attributes_of_what_is_no_pointer_of_the_drivers_are_null) {
  in_child({}, [] {
    linked_program cu;
    unsigned type = 9;
    void* host = &type;
    CUdeviceptr start = 9;
    int device = 9;
    const int which[] = {pointer_memory_type, pointer_host_pointer, pointer_range_start, pointer_device_ordinal};
    void* values[] = {&type, &host, &start, &device};
    EXPECT_EQ(cu.cuPointerGetAttributes(4, which, values, reinterpret_cast<CUdeviceptr>(&type)), CUDA_SUCCESS);
    EXPECT_EQ(type, 0U);
    EXPECT_EQ(host, nullptr);
    EXPECT_EQ(start, 0U);
    EXPECT_EQ(device, -2) << "CU_DEVICE_INVALID";
    const CUdeviceptr own = cu.allocate(64);
    EXPECT_EQ(cu.cuPointerGetAttributes(4, which, values, own + 8), CUDA_SUCCESS);
    EXPECT_EQ(type, memory_type_device);
    EXPECT_EQ(host, nullptr);
    EXPECT_EQ(start, own);
    EXPECT_EQ(device, 0);
    const int unknown = 99;
    EXPECT_EQ(cu.cuPointerGetAttributes(1, &unknown, values, own), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cu.cuPointerGetAttributes(0, which, values, own), CUDA_ERROR_INVALID_VALUE);
  });
}

}  // namespace other_programs_test
