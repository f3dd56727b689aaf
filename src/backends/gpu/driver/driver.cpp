// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/driver/driver.hpp"

#include "backends/gpu/driver/error.hpp"

#include <cstdlib>
#include <utility>

namespace weft::gpu {
namespace {

/// Why there is no GPU although there is a driver.
std::string nothing_visible(const vendor& by) {
  const std::string hidden = hidden_by(by);
  if (hidden.empty()) return std::string{"it finds no GPU: "} + by.list_command + " shows what the system has";
  return hidden + ", which leaves no GPU: what comes after a name that is not there counts as hidden too";
}

/// What the driver refused to do when it was started, in a sentence.
std::string not_started(const driver& cu, CUresult status) {
  return status == CUDA_ERROR_NO_DEVICE ? nothing_visible(*cu.by) : name_of(cu, status);
}

}  // namespace

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

error no_driver(const std::string& library, const std::string& why, int native) {
  error cause = make_error(errc::unsupported, library + " cannot be used: " + why);
  cause.native_code = native;
  return cause;
}

std::string too_old(const vendor& by, int version) {
  return std::string{"it is the driver of "} + by.name + " " + version_text(version) + ", and weft needs " +
         version_text(by.oldest_driver) + " or newer: update the driver";
}

std::string hidden_by(const vendor& by) {
  std::string text;
  for (const char* const name : by.hiding) {
    // as the driver reads it: empty, it hides all
    // NOLINTNEXTLINE(concurrency-mt-unsafe): read when a machine is made
    const char* const value = name == nullptr ? nullptr : std::getenv(name);
    if (value != nullptr) text += (text.empty() ? "" : ", ") + std::string{name} + " is \"" + value + "\"";
  }
  return text;
}

result<std::shared_ptr<const driver>> start_driver(driver_functions table, std::string name, const vendor& by) {
  auto made = std::make_shared<driver>();
  static_cast<driver_functions&>(*made) = table;
  made->library = std::move(name);
  made->by = &by;
  if (table.cuDriverGetVersion == nullptr || table.cuInit == nullptr) {
    return no_driver(made->library, std::string{"it has no cuInit or no cuDriverGetVersion, which every driver of "} +
                                        by.name + " has");
  }
  // before anything else: what an old driver lacks is not worth a word
  const CUresult asked = table.cuDriverGetVersion(&made->version);
  if (asked != CUDA_SUCCESS) return no_driver(made->library, not_started(*made, asked), asked);
  if (made->version < by.oldest_driver) return no_driver(made->library, too_old(by, made->version));
  const char* missing = nullptr;
#define WEFT_GPU_REQUIRE(function, since, parameters) \
  if (table.function == nullptr && missing == nullptr) missing = #function;
#define WEFT_GPU_SKIP(function, since, parameters)
  WEFT_GPU_DRIVER_FUNCTIONS(WEFT_GPU_REQUIRE, WEFT_GPU_SKIP)
#undef WEFT_GPU_REQUIRE
#undef WEFT_GPU_SKIP
  if (missing != nullptr) {
    return no_driver(made->library, std::string{"it has no "} + missing + ", which the driver of " + by.name + " " +
                                        version_text(by.oldest_driver) + " has: update the driver");
  }
  const CUresult started = table.cuInit(0);
  if (started != CUDA_SUCCESS) return no_driver(made->library, not_started(*made, started), started);
  int count = 0;
  const CUresult counted = table.cuDeviceGetCount(&count);
  if (counted != CUDA_SUCCESS) return no_driver(made->library, not_started(*made, counted), counted);
  if (count == 0) return no_driver(made->library, nothing_visible(by), CUDA_ERROR_NO_DEVICE);
  return std::shared_ptr<const driver>{std::move(made)};
}

}  // namespace weft::gpu
