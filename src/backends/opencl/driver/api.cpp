// SPDX-License-Identifier: Apache-2.0
#include "backends/opencl/driver/api.hpp"

#include <array>
#include <dlfcn.h>

namespace weft::opencl {
namespace {

struct named_status {
  cl_int status;
  std::string_view name;
};

constexpr std::array names{
    named_status{-1001, "CL_PLATFORM_NOT_FOUND_KHR"},
    named_status{CL_DEVICE_NOT_FOUND, "CL_DEVICE_NOT_FOUND"},
    named_status{CL_DEVICE_NOT_AVAILABLE, "CL_DEVICE_NOT_AVAILABLE"},
    named_status{CL_COMPILER_NOT_AVAILABLE, "CL_COMPILER_NOT_AVAILABLE"},
    named_status{CL_MEM_OBJECT_ALLOCATION_FAILURE, "CL_MEM_OBJECT_ALLOCATION_FAILURE"},
    named_status{CL_OUT_OF_RESOURCES, "CL_OUT_OF_RESOURCES"},
    named_status{CL_OUT_OF_HOST_MEMORY, "CL_OUT_OF_HOST_MEMORY"},
    named_status{CL_MEM_COPY_OVERLAP, "CL_MEM_COPY_OVERLAP"},
    named_status{CL_BUILD_PROGRAM_FAILURE, "CL_BUILD_PROGRAM_FAILURE"},
    named_status{CL_MISALIGNED_SUB_BUFFER_OFFSET, "CL_MISALIGNED_SUB_BUFFER_OFFSET"},
    named_status{CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST, "CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST"},
    named_status{CL_INVALID_VALUE, "CL_INVALID_VALUE"},
    named_status{CL_INVALID_DEVICE, "CL_INVALID_DEVICE"},
    named_status{CL_INVALID_CONTEXT, "CL_INVALID_CONTEXT"},
    named_status{CL_INVALID_COMMAND_QUEUE, "CL_INVALID_COMMAND_QUEUE"},
    named_status{CL_INVALID_MEM_OBJECT, "CL_INVALID_MEM_OBJECT"},
    named_status{CL_INVALID_BUILD_OPTIONS, "CL_INVALID_BUILD_OPTIONS"},
    named_status{CL_INVALID_PROGRAM_EXECUTABLE, "CL_INVALID_PROGRAM_EXECUTABLE"},
    named_status{CL_INVALID_KERNEL_NAME, "CL_INVALID_KERNEL_NAME"},
    named_status{CL_INVALID_KERNEL_DEFINITION, "CL_INVALID_KERNEL_DEFINITION"},
    named_status{CL_INVALID_ARG_INDEX, "CL_INVALID_ARG_INDEX"},
    named_status{CL_INVALID_ARG_VALUE, "CL_INVALID_ARG_VALUE"},
    named_status{CL_INVALID_ARG_SIZE, "CL_INVALID_ARG_SIZE"},
    named_status{CL_INVALID_KERNEL_ARGS, "CL_INVALID_KERNEL_ARGS"},
    named_status{CL_INVALID_WORK_GROUP_SIZE, "CL_INVALID_WORK_GROUP_SIZE"},
    named_status{CL_INVALID_WORK_ITEM_SIZE, "CL_INVALID_WORK_ITEM_SIZE"},
    named_status{CL_INVALID_OPERATION, "CL_INVALID_OPERATION"},
    named_status{CL_INVALID_BUFFER_SIZE, "CL_INVALID_BUFFER_SIZE"},
    named_status{CL_INVALID_DEVICE_PARTITION_COUNT, "CL_INVALID_DEVICE_PARTITION_COUNT"},
};

result<std::shared_ptr<const api>> absent(const std::string& library, const std::string& why) {
  return make_error(errc::unsupported, library + " cannot be used: " + why);
}

}  // namespace

std::string name_of(cl_int status) {
  for (const named_status& known : names) {
    if (known.status == status) return std::string{known.name} + " (" + std::to_string(status) + ")";
  }
  return "OpenCL error " + std::to_string(status);
}

errc errc_of(cl_int status, errc otherwise) {
  switch (status) {
    case CL_MEM_OBJECT_ALLOCATION_FAILURE:
    case CL_INVALID_BUFFER_SIZE:
      return errc::out_of_memory;
    case CL_DEVICE_NOT_AVAILABLE:
      return errc::device_lost;
    default:
      return otherwise;
  }
}

error cl_error(cl_int status, std::string doing, errc otherwise) {
  error cause = make_error(errc_of(status, otherwise), std::move(doing) + ": " + name_of(status));
  cause.native_code = status;
  if (cause.code == errc::device_lost) cause.scope = error_scope::device;
  return cause;
}

result<std::shared_ptr<const api>> load_api(const std::string& library) {
  void* const opened = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) {
    const char* const why = ::dlerror();  // NOLINT(concurrency-mt-unsafe): glibc keeps it per thread
    return absent(library, why != nullptr ? why : "it could not be opened");
  }
  auto table = std::make_shared<api>();
  const char* missing = nullptr;
  const auto find = [&](auto& function, const char* name, bool required) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(opened, name));
    if (function == nullptr && required && missing == nullptr) missing = name;
  };
#define WEFT_CL_FIND(name) find(table->name, #name, true);
  WEFT_CL_REQUIRED(WEFT_CL_FIND)
#undef WEFT_CL_FIND
#define WEFT_CL_FIND(name) find(table->name, #name, false);
  WEFT_CL_OPTIONAL(WEFT_CL_FIND)
#undef WEFT_CL_FIND
  if (missing != nullptr) return absent(library, std::string{"it has no "} + missing + ", which OpenCL 1.2 has");
  return std::shared_ptr<const api>{std::move(table)};
}

}  // namespace weft::opencl
