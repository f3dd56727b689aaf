// SPDX-License-Identifier: Apache-2.0
// HIP has no contexts: a context here is a token of the device's number, and the device of the thread is what is
// current. Source of what differs: HIP's reference, "HIP programming manual" and hip_runtime_api.h of 7.1.
#include "backends/gpu/hip/hip.hpp"

#include "backends/gpu/devices/discovery.hpp"
#include "backends/gpu/factory.hpp"
#include "backends/gpu/hip/amd_management.hpp"
#include "backends/gpu/hip/hip_attributes.hpp"
#include "backends/gpu/hip/hip_partitions.hpp"
#include "backends/gpu/hip/hip_table.hpp"
#include "backends/gpu/hip/hiprtc.hpp"
#include "backends/gpu/hip/rocm_library.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstring>
#include <dlfcn.h>
#include <mutex>
#include <string_view>
#include <unistd.h>
#include <utility>

namespace weft::gpu::amd {

namespace {

std::atomic<const hip_functions*> opened_table{nullptr};

}  // namespace

const hip_functions& hip_table() { return *opened_table.load(std::memory_order_acquire); }

namespace {

void* at(CUdeviceptr address) {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));  // NOLINT(performance-no-int-to-ptr)
}

// ---- devices and contexts -------------------------------------------------------------------------------------------

CUresult driver_version(int* version) {
  const CUresult status = hip_table().hipDriverGetVersion(version);
  if (status == CUDA_SUCCESS) *version = hip_version(*version);
  return status;
}

CUresult device_attribute_of(int* value, int attribute, CUdevice device) {
  if (attribute == unified_addressing || attribute == ipc_event_supported) {  // everywhere on Linux
    *value = 1;
    return CUDA_SUCCESS;
  }
  const std::optional<int> theirs = hip_attribute_of(attribute);
  return theirs ? hip_table().hipDeviceGetAttribute(value, *theirs, device) : CUDA_ERROR_INVALID_VALUE;
}

/// HIP counts these from 0, and has four of them.
CUresult pair_attribute_of(int* value, int attribute, CUdevice from, CUdevice to) {
  if (attribute > p2p_array_access_supported) return CUDA_ERROR_INVALID_VALUE;
  return hip_table().hipDeviceGetP2PAttribute(value, attribute - 1, from, to);
}

CUcontext token_of(int device) {
  return reinterpret_cast<CUcontext>(static_cast<std::uintptr_t>(device) + 1);  // NOLINT(performance-no-int-to-ptr)
}
int device_of(CUcontext token) { return static_cast<int>(reinterpret_cast<std::uintptr_t>(token)) - 1; }

CUresult retain(CUcontext* context, CUdevice device) {
  *context = token_of(device);
  return CUDA_SUCCESS;
}
CUresult give_back(CUdevice) { return CUDA_SUCCESS; }

CUresult current(CUcontext* context) {
  int device = 0;
  const CUresult status = hip_table().hipGetDevice(&device);
  if (status == CUDA_SUCCESS) *context = token_of(device);
  return status;
}
CUresult make_current(CUcontext context) { return hip_table().hipSetDevice(device_of(context)); }

/// What each push found, to be made current again: as deep as a thread of this backend goes, and more.
struct outer_devices {
  std::array<int, 32> devices{};
  std::size_t depth = 0;
};
thread_local outer_devices outer;

CUresult push(CUcontext context) {
  int before = 0;
  if (outer.depth == outer.devices.size()) return CUDA_ERROR_ILLEGAL_STATE;
  CUresult status = hip_table().hipGetDevice(&before);
  if (status == CUDA_SUCCESS) status = make_current(context);
  if (status == CUDA_SUCCESS) outer.devices[outer.depth++] = before;
  return status;
}
CUresult pop(CUcontext* context) {
  if (outer.depth == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) static_cast<void>(current(context));
  return hip_table().hipSetDevice(outer.devices[--outer.depth]);
}

/// All that is on a device goes; its own call of HIP does nothing.
CUresult reset(CUdevice device) {
  CUresult status = push(token_of(device));
  if (status != CUDA_SUCCESS) return status;
  status = hip_table().hipDeviceReset();
  static_cast<void>(pop(nullptr));
  return status;
}

CUresult enable_peer(CUcontext peer, unsigned flags) {
  return hip_table().hipDeviceEnablePeerAccess(device_of(peer), flags);
}
CUresult disable_peer(CUcontext peer) { return hip_table().hipDeviceDisablePeerAccess(device_of(peer)); }

// ---- memory ---------------------------------------------------------------------------------------------------------

/// Memory in which a running kernel sees what others write, and they what it writes.
CUresult allocate_host(void** address, std::size_t size, unsigned flags) {
  return hip_table().hipHostMalloc(address, size, flags | hip_host_coherent);
}
CUresult advise(CUdeviceptr address, std::size_t size, int advice, CUmemLocation location) {
  return hip_table().hipMemAdvise(at(address), size, advice, location.id);
}
CUresult prefetch(CUdeviceptr address, std::size_t size, CUmemLocation location, unsigned, CUstream stream) {
  return hip_table().hipMemPrefetchAsync(at(address), size, location.id, stream);
}

/// Releases differ in what they take: a descriptor in place of a pointer, as CUDA does, or the address of one. The
/// first would end the process where the other is meant, so that one is tried with a block of our own, once. Source:
/// clr of October 2024 reads the address (rocdevice.cpp, ImportShareableHSAHandle); AMD's later tests give the
/// descriptor itself.
bool takes_addresses_of_descriptors(const driver_functions& cu) {
  CUmemAllocationProp wanted;
  wanted.requested_handle_types = handle_posix_fd;
  CUmemGenericAllocationHandle mine = 0, again = 0;
  std::size_t size = 0;
  int descriptor = -1;
  bool takes = true;  // does no harm where it is wrong
  if (hip_table().hipGetDevice(&wanted.location.id) != CUDA_SUCCESS ||
      cu.cuMemGetAllocationGranularity(&size, &wanted, granularity_minimum) != CUDA_SUCCESS ||
      cu.cuMemCreate(&mine, size, &wanted, 0) != CUDA_SUCCESS)
    return takes;
  if (cu.cuMemExportToShareableHandle(&descriptor, mine, handle_posix_fd, 0) == CUDA_SUCCESS) {
    takes = hip_table().hipMemImportFromShareableHandle(&again, &descriptor, handle_posix_fd) == CUDA_SUCCESS;
    if (takes) static_cast<void>(cu.cuMemRelease(again));
    ::close(descriptor);
  }
  static_cast<void>(cu.cuMemRelease(mine));
  return takes;
}

driver_functions made_table;  // of the library in use, for what asks it more than one thing

CUresult import_block(CUmemGenericAllocationHandle* handle, void* shareable, int type) {
  static const bool by_address = takes_addresses_of_descriptors(made_table);
  int descriptor = static_cast<int>(reinterpret_cast<std::uintptr_t>(shareable));
  return hip_table().hipMemImportFromShareableHandle(handle, by_address ? &descriptor : shareable, type);
}
CUresult export_pool(void* shareable, CUmemoryPool pool, int type, unsigned long long) {
  return hip_table().hipMemPoolExportToShareableHandle(shareable, pool, type, 0);
}
CUresult import_pool(CUmemoryPool* pool, void* shareable, int type, unsigned long long) {
  return hip_table().hipMemPoolImportFromShareableHandle(pool, shareable, type, 0);
}

/// Newer releases answer with an object of theirs where older ones have no context; sizes have 32 bits there.
CUresult pointer_attribute_of(void* value, int attribute, CUdeviceptr address) {
  if (attribute == pointer_context) return CUDA_ERROR_NOT_SUPPORTED;
  if (attribute != pointer_range_size) return hip_table().hipPointerGetAttribute(value, attribute, at(address));
  CUdeviceptr start = 0;
  return made_table.cuMemGetAddressRange(&start, static_cast<std::size_t*>(value), address);
}

// ---- copies ---------------------------------------------------------------------------------------------------------

CUresult copy(CUdeviceptr dst, CUdeviceptr src, std::size_t size, CUstream stream) {
  return hip_table().hipMemcpyAsync(at(dst), at(src), size, hip_copy_default, stream);
}
CUresult copy_peer(CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context, std::size_t size,
                   CUstream stream) {
  return hip_table().hipMemcpyPeerAsync(at(dst), device_of(dst_context), at(src), device_of(src_context), size, stream);
}

/// Managed memory and that of another device are told by their addresses, like all device memory.
int hip_memory(unsigned ours) { return ours == memory_type_host ? hip_memory_host : hip_memory_device; }

template <class Box>
CUresult copy_box(const Box* box, CUstream stream) {
  HIP_MEMCPY3D made;
  made.src_x = box->src_x;
  made.src_y = box->src_y;
  made.src_z = box->src_z;
  made.src_type = hip_memory(box->src_type);
  made.src_host = box->src_host;
  made.src_device = at(box->src_device);
  made.src_pitch = box->src_pitch;
  made.src_height = box->src_height;
  made.dst_x = box->dst_x;
  made.dst_y = box->dst_y;
  made.dst_z = box->dst_z;
  made.dst_type = hip_memory(box->dst_type);
  made.dst_host = box->dst_host;
  made.dst_device = at(box->dst_device);
  made.dst_pitch = box->dst_pitch;
  made.dst_height = box->dst_height;
  made.width = box->width;
  made.height = box->height;
  made.depth = box->depth;
  return hip_table().hipDrvMemcpy3DAsync(&made, stream);
}

CUresult copy_batch(CUdeviceptr* dsts, CUdeviceptr* srcs, std::size_t* sizes, std::size_t count,
                    CUmemcpyAttributes* attributes, std::size_t* attribute_of, std::size_t kinds, CUstream stream) {
  std::size_t failed = 0;
  return hip_table().hipMemcpyBatchAsync(reinterpret_cast<void**>(dsts), reinterpret_cast<void**>(srcs), sizes, count,
                                         attributes, attribute_of, kinds, &failed, stream);
}

// ---- order and code -------------------------------------------------------------------------------------------------

/// The name of the default stream is that of each device; as a handle it would end the process here.
CUresult stream_context(CUstream stream, CUcontext* context) {
  if (reinterpret_cast<std::uintptr_t>(stream) == stream_legacy) return current(context);
  int device = 0;
  const CUresult status = hip_table().hipStreamGetDevice(stream, &device);
  if (status == CUDA_SUCCESS) *context = token_of(device);
  return status;
}
CUresult wait_value_32(CUstream stream, CUdeviceptr address, std::uint32_t value, unsigned flags) {
  return hip_table().hipStreamWaitValue32(stream, at(address), value, flags, ~std::uint32_t{0});
}
CUresult wait_value_64(CUstream stream, CUdeviceptr address, unsigned long value, unsigned flags) {
  return hip_table().hipStreamWaitValue64(stream, at(address), value, flags, ~std::uint64_t{0});
}

/// There is nothing for a driver to compile in a code object, and so no log.
CUresult load_module(CUmodule* module, const void* image, unsigned, int*, void**) {
  return hip_table().hipModuleLoadDataEx(module, image, 0, nullptr, nullptr);
}

// ---- the table ------------------------------------------------------------------------------------------------------

driver_functions table_of(void* library, const hip_functions& hip) {
  driver_functions cu;
#define WEFT_GPU_FIND(ours, theirs) cu.ours = reinterpret_cast<decltype(cu.ours)>(::dlsym(library, #theirs));
  WEFT_GPU_HIP_ALIKE(WEFT_GPU_FIND, WEFT_GPU_FIND)
#undef WEFT_GPU_FIND
  const auto adapt = [](auto& ours, auto* adapter, auto* needed) {
    if (needed != nullptr) ours = adapter;
  };
  adapt(cu.cuDriverGetVersion, &driver_version, hip.hipDriverGetVersion);
  adapt(cu.cuDeviceGetAttribute, &device_attribute_of, hip.hipDeviceGetAttribute);
  adapt(cu.cuDeviceGetP2PAttribute, &pair_attribute_of, hip.hipDeviceGetP2PAttribute);
  adapt(cu.cuDevicePrimaryCtxRetain, &retain, hip.hipSetDevice);
  adapt(cu.cuDevicePrimaryCtxRelease, &give_back, hip.hipSetDevice);
  adapt(cu.cuDevicePrimaryCtxReset, &reset, hip.hipDeviceReset);
  adapt(cu.cuCtxGetCurrent, &current, hip.hipGetDevice);
  adapt(cu.cuCtxSetCurrent, &make_current, hip.hipSetDevice);
  adapt(cu.cuCtxPushCurrent, &push, hip.hipSetDevice);
  adapt(cu.cuCtxPopCurrent, &pop, hip.hipSetDevice);
  adapt(cu.cuCtxEnablePeerAccess, &enable_peer, hip.hipDeviceEnablePeerAccess);
  adapt(cu.cuCtxDisablePeerAccess, &disable_peer, hip.hipDeviceDisablePeerAccess);
  adapt(cu.cuMemHostAlloc, &allocate_host, hip.hipHostMalloc);
  adapt(cu.cuMemAdvise, &advise, hip.hipMemAdvise);
  adapt(cu.cuMemPrefetchAsync, &prefetch, hip.hipMemPrefetchAsync);
  adapt(cu.cuMemcpyAsync, &copy, hip.hipMemcpyAsync);
  adapt(cu.cuMemcpyPeerAsync, &copy_peer, hip.hipMemcpyPeerAsync);
  adapt(cu.cuMemcpy3DAsync, &copy_box<CUDA_MEMCPY3D>, hip.hipDrvMemcpy3DAsync);
  adapt(cu.cuMemcpy3DPeerAsync, &copy_box<CUDA_MEMCPY3D_PEER>, hip.hipDrvMemcpy3DAsync);
  adapt(cu.cuMemcpyBatchAsync, &copy_batch, hip.hipMemcpyBatchAsync);
  adapt(cu.cuMemImportFromShareableHandle, &import_block, hip.hipMemImportFromShareableHandle);
  adapt(cu.cuMemPoolExportToShareableHandle, &export_pool, hip.hipMemPoolExportToShareableHandle);
  adapt(cu.cuMemPoolImportFromShareableHandle, &import_pool, hip.hipMemPoolImportFromShareableHandle);
  adapt(cu.cuPointerGetAttribute, &pointer_attribute_of, hip.hipPointerGetAttribute);
  adapt(cu.cuStreamGetCtx, &stream_context, hip.hipStreamGetDevice);
  adapt(cu.cuStreamWaitValue32, &wait_value_32, hip.hipStreamWaitValue32);
  adapt(cu.cuStreamWaitValue64, &wait_value_64, hip.hipStreamWaitValue64);
  adapt(cu.cuModuleLoadDataEx, &load_module, hip.hipModuleLoadDataEx);
  if (hip.hipExtStreamCreateWithCUMask != nullptr) fill_partitions(cu);
  return cu;
}

/// The first function that is missing, by HIP's name; null for none.
const char* missing_in(void* library) {
#define WEFT_GPU_REQUIRE_ALIKE(ours, theirs) \
  if (::dlsym(library, #theirs) == nullptr) return #theirs;
#define WEFT_GPU_REQUIRE(name, parameters) \
  if (::dlsym(library, #name) == nullptr) return #name;
#define WEFT_GPU_SKIP(name, other)
  WEFT_GPU_HIP_ALIKE(WEFT_GPU_REQUIRE_ALIKE, WEFT_GPU_SKIP)
  WEFT_GPU_HIP_FUNCTIONS(WEFT_GPU_REQUIRE, WEFT_GPU_SKIP)
#undef WEFT_GPU_REQUIRE_ALIKE
#undef WEFT_GPU_REQUIRE
#undef WEFT_GPU_SKIP
  return nullptr;
}

// ---- the vendor -----------------------------------------------------------------------------------------------------

management_library manage(const driver&, const std::string&, const std::string& system_root) {
  return std::shared_ptr<const management>{std::make_shared<amd_management>(system_root)};
}

result<std::shared_ptr<const run_time_compiler>> compiler(const std::string& library, int driver_version) {
  auto made = load_hiprtc(library, driver_version);
  if (!made) return std::move(made).error();
  return std::shared_ptr<const run_time_compiler>{std::move(*made)};
}

/// In no cache: coherent with every writer, of this GPU's own engines too. Older releases know fine-grained memory.
CUresult allocate_coherent(const driver& cu, CUdeviceptr* address, std::size_t size) {
  const auto allocate = hip_table().hipExtMallocWithFlags;
  if (allocate == nullptr) return cu.cuMemAlloc(address, size);
  void* made = nullptr;
  CUresult status = allocate(&made, size, hip_malloc_uncached);
  if (status == CUDA_ERROR_INVALID_VALUE) status = allocate(&made, size, hip_malloc_finegrained);
  *address = static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(made));
  return status;
}

int architecture(const driver&, const gpu_place& gpu) {
  std::array<char, 2 * hip_properties_size> properties{};
  if (hip_table().hipGetDevicePropertiesR0600(properties.data(), gpu.id) != CUDA_SUCCESS) return 0;
  const char* const name = properties.data() + hip_architecture_offset;
  return gfx_number({name, ::strnlen(name, hip_architecture_size)});
}

/// 16 digits, as rocminfo shows them. Some hardware has none, and all of it says "XX".
std::string uuid_text(const CUuuid& uuid) {
  const std::string digits{uuid.bytes, ::strnlen(uuid.bytes, sizeof uuid.bytes)};
  return digits.size() == sizeof uuid.bytes ? "GPU-" + digits : std::string{};
}

std::string advice(CUresult status) {
  switch (status) {
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_INVALID_IMAGE:
      return "a code object runs on the architecture that it was compiled for: compile for this one, or give a text";
    case CUDA_ERROR_INVALID_DEVICE:
      return "is the user in the groups render and video, which may open /dev/kfd and /dev/dri?";
    default:
      return {};
  }
}

}  // namespace

int gfx_number(const std::string& name) {
  constexpr std::string_view start = "gfx";
  if (!name.starts_with(start)) return 0;
  const char* const end = name.data() + std::min(name.find(':'), name.size());
  int number = 0;
  const auto read = std::from_chars(name.data() + start.size(), end, number, 16);
  return read.ec == std::errc{} && read.ptr == end ? number : 0;
}

std::string gfx_name(int number) {
  std::array<char, 16> digits{};
  const auto written = std::to_chars(digits.data(), digits.data() + digits.size(), number, 16);
  return "gfx" + std::string{digits.data(), written.ptr};
}

const vendor& hip() {
  static constexpr vendor one{
      .kind = backend_kind::hip,
      .name = "HIP",
      .family = detail::share_family::hip,
      .driver = {"WEFT_HIP_DRIVER", ""},
      .management = {"", ""},
      .bus_windows = {"", "none"},
      .partitions_variable = "WEFT_HIP_PARTITIONS",
      .hiding = {"HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"},
      .list_command = "rocminfo",
      .oldest_driver = oldest_hip,
      .knows_pool_sizes = oldest_hip,
      .names_default_stream = 7000,
      .names_faults = false,
      .has_short_words = false,
      .wraps_words = false,
      .descriptors_have_sizes = true,
      .blocks_name_gpus = false,
      .ends_pool_rights = false,
      .host_atomics_beat_pcie = false,
      .reset_ends_code = false,
      .most_threads = 0xffffffff,
      .image = &raw_kernel::hip_image,
      .function = &raw_kernel::hip_function,
      .load = &load_hip,
      .manage = &manage,
      .compiler = &compiler,
      .ends_process = [](CUresult) { return true; },
      .allocate_coherent = &allocate_coherent,
      .architecture = &architecture,
      .architecture_text = &gfx_name,
      .uuid_text = &uuid_text,
      .advice = &advice,
  };
  return one;
}

result<std::shared_ptr<const driver>> load_hip(const std::string& library) {
  // the runtime is large, and starts to work when it is opened
  if (library.empty() && !can_have_gpus()) {
    return no_driver(
        "libamdhip64",
        "there is no /dev/kfd, by which a process reaches the GPUs of AMD; load the kernel's module amdgpu, "
        "or give a container the devices /dev/kfd and /dev/dri");
  }
  std::string why;
  const rocm_library found = open_rocm_library(library, "libamdhip64.so", {7, 6, 5}, library_place::among_others, why);
  if (found.handle == nullptr) {
    return no_driver(library.empty() ? "libamdhip64" : library,
                     why + "; install ROCm's HIP runtime (rocm-hip-runtime), or name its library with WEFT_HIP_DRIVER");
  }
  // before anything else: what an old library lacks is not worth a word
  auto* const version_of =
      reinterpret_cast<decltype(hip_functions::hipDriverGetVersion)>(::dlsym(found.handle, "hipDriverGetVersion"));
  if (version_of == nullptr) return no_driver(found.name, "it has no hipDriverGetVersion: it is no HIP runtime");
  static std::mutex one_at_a_time;
  static void* in_use = nullptr;
  const std::lock_guard lock{one_at_a_time};
  if (in_use != nullptr && in_use != found.handle) {
    return no_driver(found.name,
                     "this process uses another HIP library already; name one in WEFT_HIP_DRIVER before "
                     "the first machine is opened");
  }
  int version = 0;
  const bool is_new = version_of(&version) == CUDA_SUCCESS && hip_version(version) >= oldest_hip;
  if (is_new) {
    if (const char* const missing = missing_in(found.handle); missing != nullptr)
      return no_driver(found.name, std::string{"it has no "} + missing + ", which HIP 6.2 has: update ROCm");
  }
  if (in_use == nullptr) {
    auto* const made = new hip_functions;  // never destroyed: threads of HIP may outlive main
#define WEFT_GPU_FIND(name, parameters) \
  made->name = reinterpret_cast<decltype(made->name)>(::dlsym(found.handle, #name));
    WEFT_GPU_HIP_FUNCTIONS(WEFT_GPU_FIND, WEFT_GPU_FIND)
#undef WEFT_GPU_FIND
    opened_table.store(made, std::memory_order_release);
    if (is_new) in_use = found.handle;  // one that is too old is told so, and stands in the way of none
    made_table = table_of(found.handle, *made);
  }
  return start_driver(made_table, found.name, hip());
}

}  // namespace weft::gpu::amd

namespace weft::gpu {

result<std::unique_ptr<backend>> open_hip_with(const backend_options& options, const settings& wanted) noexcept {
  return open_of(amd::hip(), options, wanted);
}

result<std::unique_ptr<backend>> open_hip(const backend_options& options) noexcept {
  return open_hip_with(options, {});
}

}  // namespace weft::gpu
