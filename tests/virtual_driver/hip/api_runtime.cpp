// SPDX-License-Identifier: Apache-2.0
// What a program compiled as HIP calls beside the functions that the backend uses: its forms that wait, its default
// pools, and its launches by the address of a stub. With these AMD's own tests run (scripts/check-hip-tests). They are
// compiled for the host alone, so the kernels that they launch most are functions here, known by their names.
#include "virtual_driver/hip/runtime.hpp"
#include "virtual_driver/virtual_driver.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <thread>

namespace weft::virtual_hip {
namespace {

// ---- launches -------------------------------------------------------------------------------------------------------

template <class T>
T& argument(void** arguments, std::size_t n) {
  return *static_cast<T*>(arguments[n]);
}
std::size_t threads_of(const weft_virtual_launch& shape) { return std::size_t{shape.grid.x} * shape.block.x; }

void set(const weft_virtual_launch*, void** arguments) {
  int* const to = argument<int*>(arguments, 0);
  for (std::size_t i = 0; i < argument<std::size_t>(arguments, 2); ++i) to[i] = argument<int>(arguments, 1);
}
void increment(const weft_virtual_launch*, void** arguments) {
  int* const to = argument<int*>(arguments, 0);
  for (std::size_t i = 0; i < argument<std::size_t>(arguments, 2); ++i) to[i] += argument<int>(arguments, 1);
}
void delay(const weft_virtual_launch*, void** arguments) {
  std::this_thread::sleep_for(std::chrono::milliseconds{argument<unsigned>(arguments, 0)});
}
void square(const weft_virtual_launch* shape, void** arguments) {
  int* const numbers = argument<int*>(arguments, 0);
  for (std::size_t i = 0; i < threads_of(*shape); ++i) numbers[i] *= numbers[i];
}
void scale(const weft_virtual_launch* shape, void** arguments) {
  const std::size_t count = std::min(argument<std::size_t>(arguments, 2), threads_of(*shape));
  for (std::size_t i = 0; i < count; ++i) argument<int*>(arguments, 0)[i] = 2 * argument<const int*>(arguments, 1)[i];
}
void add(const weft_virtual_launch*, void** arguments) {
  for (std::size_t i = 0; i < argument<std::size_t>(arguments, 3); ++i)
    argument<int*>(arguments, 2)[i] = argument<const int*>(arguments, 0)[i] + argument<const int*>(arguments, 1)[i];
}
void number_all(const weft_virtual_launch* shape, void** arguments) {
  for (std::size_t i = 0; i < threads_of(*shape); ++i) argument<int*>(arguments, 0)[i] = static_cast<int>(i);
}
template <class T>
void count_for_half_a_second(const weft_virtual_launch* shape, void** arguments) {
  for (std::size_t i = 0; i < threads_of(*shape); ++i) argument<T*>(arguments, 0)[i] = static_cast<T>(i + 1);
  std::this_thread::sleep_for(std::chrono::milliseconds{500});
}

struct known_kernel {
  const char* name;
  weft_virtual_kernel_function body;
  std::array<unsigned, 4> sizes;
  std::array<unsigned char, 4> is_pointer;
  unsigned count;
};
constexpr known_kernel known[] = {
    {"_Z9VectorSetIiEvPT_S0_m", &set, {8, 4, 8}, {1, 0, 0}, 3},
    {"_Z15VectorIncrementIiEvPT_S0_m", &increment, {8, 4, 8}, {1, 0, 0}, 3},
    {"_ZL5Delayjj", &delay, {4, 4, 0}, {0, 0, 0}, 2},
    {"_ZL13square_kernelPi", &square, {8, 0, 0}, {1, 0, 0}, 1},
    {"_Z15copyP2PAndScalePiPKim", &scale, {8, 8, 8}, {1, 1, 0}, 3},
    {"_ZN7HipTest9vectorADDIiEEvPKT_S3_PS1_m", &add, {8, 8, 8, 8}, {1, 1, 1, 0}, 4},
    {"_ZL6setKerPi", &number_all, {8}, {1}, 1},
    {"_Z12kernel_500msIiEvPT_i", &count_for_half_a_second<int>, {8, 4, 0}, {1, 0, 0}, 2},
    {"_Z11kernel500msPfi", &count_for_half_a_second<float>, {8, 4, 0}, {1, 0, 0}, 2},
};

struct launch_shape {
  weft_virtual_dim grid{}, block{};
  std::size_t shared = 0;
  CUstream stream = nullptr;
};
thread_local launch_shape pushed;

struct stub_book {
  std::mutex mutex;
  std::map<const void*, std::string> names;
  std::map<std::pair<int, std::string>, CUfunction> functions;  // of a device
};
stub_book& stubs() {
  static auto* const one = new stub_book;
  return *one;
}

/// The function of a stub on a device whose context is current; null where nobody has it as a function of the host.
CUfunction function_of(const void* stub, int device) {
  stub_book& book = stubs();
  const std::lock_guard lock{book.mutex};
  const auto named = book.names.find(stub);
  if (named == book.names.end()) return nullptr;
  CUfunction& made = book.functions[{device, named->second}];
  if (made != nullptr) return made;
  static const bool is_registered = [] {
    for (const known_kernel& one : known)
      weft_virtual_register_kernel(one.name, one.body, one.count, one.sizes.data(), one.is_pointer.data());
    return true;
  }();
  CUmodule module = nullptr;
  if (is_registered && cuModuleLoadDataEx(&module, "weft:registered", 0, nullptr, nullptr) == CUDA_SUCCESS)
    static_cast<void>(cuModuleGetFunction(&made, module, named->second.c_str()));
  return made;
}

constexpr CUresult invalid_device_function = 98;

}  // namespace

WEFT_VIRTUAL_API void** __hipRegisterFatBinary(const void*) {
  static void* nothing = nullptr;
  return &nothing;
}
WEFT_VIRTUAL_API void __hipUnregisterFatBinary(void**) {}
WEFT_VIRTUAL_API void __hipRegisterFunction(void**, const void* stub, char*, const char* name, unsigned, void*, void*,
                                            void*, void*, int*) {
  stub_book& book = stubs();
  const std::lock_guard lock{book.mutex};
  book.names[stub] = name;
}
WEFT_VIRTUAL_API CUresult __hipPushCallConfiguration(weft_virtual_dim grid, weft_virtual_dim block, std::size_t shared,
                                                     CUstream stream) {
  pushed = {grid, block, shared, stream};
  return CUDA_SUCCESS;
}
WEFT_VIRTUAL_API CUresult __hipPopCallConfiguration(weft_virtual_dim* grid, weft_virtual_dim* block,
                                                    std::size_t* shared, CUstream* stream) {
  *grid = pushed.grid;
  *block = pushed.block;
  *shared = pushed.shared;
  *stream = pushed.stream;
  return CUDA_SUCCESS;
}
WEFT_VIRTUAL_API CUresult hipLaunchKernel(const void* stub, weft_virtual_dim grid, weft_virtual_dim block,
                                          void** arguments, std::size_t shared, CUstream stream) {
  return entered([&]() -> CUresult {
    // a launch is of the device of its stream, whatever is current
    const stream_ref into = stream == nullptr ? nullptr : stream_of(stream);
    const int device = into == nullptr ? current_device() : into->home()->device;
    context_stack() = {context_of(device)};
    CUfunction function = function_of(stub, device);
    if (function == nullptr) return invalid_device_function;
    return cuLaunchKernel(function, grid.x, grid.y, grid.z, block.x, block.y, block.z, static_cast<unsigned>(shared),
                          stream, arguments, nullptr);
  });
}

// ---- the forms that wait --------------------------------------------------------------------------------------------

namespace {

/// In the default stream, and has ended when it returns.
template <class F>
CUresult waited(F&& submit) {
  const CUresult status = submit();
  return status == CUDA_SUCCESS ? cuStreamSynchronize(nullptr) : status;
}

}  // namespace

WEFT_HIP(hipMemcpy, (CUdeviceptr dst, CUdeviceptr src, std::size_t size, int),
         waited([&] { return cuMemcpyAsync(dst, src, size, nullptr); }))
WEFT_HIP(hipMemcpyHtoD, (CUdeviceptr dst, void* src, std::size_t size),
         waited([&] { return cuMemcpyHtoDAsync_v2(dst, src, size, nullptr); }))
WEFT_HIP(hipMemcpyDtoH, (void* dst, CUdeviceptr src, std::size_t size),
         waited([&] { return cuMemcpyDtoHAsync_v2(dst, src, size, nullptr); }))
WEFT_HIP(hipMemcpyDtoD, (CUdeviceptr dst, CUdeviceptr src, std::size_t size),
         waited([&] { return cuMemcpyDtoDAsync_v2(dst, src, size, nullptr); }))
WEFT_HIP(hipMemset, (CUdeviceptr dst, int value, std::size_t size),
         waited([&] { return cuMemsetD8Async(dst, static_cast<unsigned char>(value), size, nullptr); }))
namespace {

/// What the default stream of one device does next comes after what that of another has been given.
void follow(int first, int next) {
  if (first == next) return;
  CUevent here = nullptr;
  context_stack() = {context_of(first)};
  if (cuEventCreate(&here, event_disable_timing) == CUDA_SUCCESS && cuEventRecord(here, nullptr) == CUDA_SUCCESS) {
    context_stack() = {context_of(next)};
    static_cast<void>(cuStreamWaitEvent(nullptr, here, 0));
  }
  static_cast<void>(cuEventDestroy_v2(here));
}

}  // namespace

/// In the default stream, after earlier work of both devices and before what comes to them later. Not waiting.
WEFT_VIRTUAL_API CUresult hipMemcpyPeer(CUdeviceptr dst, int dst_device, CUdeviceptr src, int src_device,
                                        std::size_t size) {
  return entered([&]() -> CUresult {
    if (!the().valid(dst_device) || !the().valid(src_device)) return CUDA_ERROR_INVALID_DEVICE;
    const int here = current_device();
    for (const int device : {dst_device, src_device}) follow(device, here);
    context_stack() = {context_of(here)};
    const CUresult status = cuMemcpyPeerAsync(dst, context_of(dst_device), src, context_of(src_device), size, nullptr);
    for (const int device : {dst_device, src_device}) follow(here, device);
    return status;
  });
}
WEFT_HIP(hipMallocPitch, (CUdeviceptr * address, std::size_t* pitch, std::size_t width, std::size_t height),
         cuMemAlloc_v2(address, (*pitch = (width + 255) / 256 * 256) * height))
WEFT_HIP(hipStreamCreate, (CUstream * stream), cuStreamCreateWithPriority(stream, 0, 0))
WEFT_HIP(hipStreamCreateWithFlags, (CUstream * stream, unsigned flags), cuStreamCreateWithPriority(stream, flags, 0))
WEFT_HIP(hipEventCreate, (CUevent * event), cuEventCreate(event, 0))
WEFT_VIRTUAL_API CUresult hipCtxCreate(CUcontext* context, unsigned, int device) {
  *context = reinterpret_cast<CUcontext>(static_cast<std::uintptr_t>(device) + 1);
  return CUDA_SUCCESS;
}
WEFT_VIRTUAL_API CUresult hipGetLastError() { return std::exchange(last_error(), CUDA_SUCCESS); }

WEFT_VIRTUAL_API CUresult hipDrvGetErrorString(CUresult error, const char** text);
WEFT_VIRTUAL_API const char* hipGetErrorString(CUresult error) {
  const char* text = nullptr;
  static_cast<void>(hipDrvGetErrorString(error, &text));
  return text;
}

// ---- the pool of a device -------------------------------------------------------------------------------------------

namespace {

struct current_pools {
  std::mutex mutex;
  std::array<CUmemoryPool, most_devices> pools{};
};
current_pools& pools() {
  static auto* const one = new current_pools;
  return *one;
}

}  // namespace

WEFT_VIRTUAL_API CUresult hipDeviceGetMemPool(CUmemoryPool* pool, int device) {
  return entered([&]() -> CUresult {
    if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!the().valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    const std::lock_guard lock{pools().mutex};
    *pool = pools().pools[static_cast<std::size_t>(device)];
    return *pool != nullptr ? CUDA_SUCCESS : cuDeviceGetDefaultMemPool(pool, device);
  });
}
WEFT_VIRTUAL_API CUresult hipDeviceSetMemPool(int device, CUmemoryPool pool) {
  return entered([&]() -> CUresult {
    if (!the().valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (the().pools.find(pool) == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const std::lock_guard lock{pools().mutex};
    pools().pools[static_cast<std::size_t>(device)] = pool;
    return CUDA_SUCCESS;
  });
}
/// A device whose pool it is goes back to its default one.
WEFT_VIRTUAL_API CUresult hipMemPoolDestroy(CUmemoryPool pool) {
  return entered([&]() -> CUresult {
    const CUresult status = cuMemPoolDestroy(pool);
    const std::lock_guard lock{pools().mutex};
    if (status == CUDA_SUCCESS) std::replace(pools().pools.begin(), pools().pools.end(), pool, CUmemoryPool{nullptr});
    return status;
  });
}
WEFT_VIRTUAL_API CUresult hipMallocAsync(CUdeviceptr* address, std::size_t size, CUstream stream) {
  CUmemoryPool pool = nullptr;
  const CUresult status = hipDeviceGetMemPool(&pool, current_device());
  if (status != CUDA_SUCCESS) return status;
  return entered([&] { return cuMemAllocFromPoolAsync(address, size, pool, stream); });
}

/// hipPointerAttribute_t
struct pointer_facts {
  int type, device;
  void *device_pointer, *host_pointer;
  int is_managed;
  unsigned flags;
};
WEFT_VIRTUAL_API CUresult hipPointerGetAttribute(void* value, int attribute, CUdeviceptr address);
WEFT_VIRTUAL_API CUresult hipPointerGetAttributes(pointer_facts* facts, const void* address) {
  const CUdeviceptr at = number(address);
  *facts = {};
  const CUresult status = hipPointerGetAttribute(&facts->type, pointer_memory_type, at);
  if (status != CUDA_SUCCESS) return status;
  facts->device_pointer = const_cast<void*>(address);
  facts->host_pointer = facts->type == 2 ? nullptr : facts->device_pointer;
  facts->is_managed = facts->type == 3 ? 1 : 0;
  return hipPointerGetAttribute(&facts->device, pointer_device_ordinal, at);
}

}  // namespace weft::virtual_hip
