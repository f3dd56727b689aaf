// SPDX-License-Identifier: Apache-2.0
// What cuGetProcAddress finds: each function by its name and the version of CUDA that brought this form of it.
#include "virtual_driver/driver/call.hpp"
#include "virtual_driver/driver/functions.hpp"
#include "virtual_driver/driver/more_functions.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string_view>
#include <type_traits>

namespace weft::virtual_cuda {
namespace {

struct row {
  const char* name;
  int version;
  void* function;
};

// NOLINTBEGIN(cppcoreguidelines-pro-type-reinterpret-cast): how a driver hands out functions
#define WEFT_ROW(name, version, symbol)                                                    \
  static_assert(std::is_same_v<decltype(&symbol), decltype(gpu::driver_functions::name)>); \
  const row row_of_##name{#name, version, reinterpret_cast<void*>(&symbol)};
WEFT_VIRTUAL_FUNCTIONS(WEFT_ROW)
#undef WEFT_ROW

#define WEFT_ROW(name, version, symbol) &row_of_##name,
const row* const rows[] = {WEFT_VIRTUAL_FUNCTIONS(WEFT_ROW)};
#undef WEFT_ROW

#define WEFT_ROW(name, version, symbol, parameters) {#name, version, reinterpret_cast<void*>(&symbol)},
const row more_rows[] = {WEFT_VIRTUAL_MORE_FUNCTIONS(WEFT_ROW)};
#undef WEFT_ROW
// NOLINTEND(cppcoreguidelines-pro-type-reinterpret-cast)

// The newest form that a version has; else the oldest that there is.
const row* find_row(const char* name, int version) {
  const row* best = nullptr;
  const auto look_at = [&](const row& r) {
    if (r.version > given().driver_version || std::strcmp(r.name, name) != 0) return;
    const bool fits = r.version <= version;
    const bool best_fits = best != nullptr && best->version <= version;
    if (best == nullptr || (fits ? !best_fits || r.version > best->version : !best_fits && r.version < best->version))
      best = &r;
  };
  for (const row* r : rows) look_at(*r);
  for (const row& r : more_rows) look_at(r);
  return best;
}

}  // namespace

WEFT_VIRTUAL_API CUresult cuGetProcAddress_v2(const char* name, void** function, int version, unsigned long long flags,
                                              int* outcome) {
  if (given().stub_code != 0) return given().stub_code;
  const own_work here;
  if (const CUresult code = begin_call("cuGetProcAddress"); code != 0) return code;
  if (name == nullptr || function == nullptr || flags > 2 || version > given().driver_version) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto answer = [&](void* found, int how) {
    if (outcome != nullptr) *outcome = how;
    if (found == nullptr && given().missing_code != 0) return given().missing_code;  // and the pointer as it was
    *function = found;
    return CUDA_SUCCESS;
  };
  const row* const r = find_row(name, version);
  const auto& missing = given().missing;
  if (r == nullptr || std::find(missing.begin(), missing.end(), name) != missing.end()) {
    return answer(nullptr, symbol_not_found);
  }
  if (r->version > version) return answer(nullptr, symbol_version_not_sufficient);
  return answer(r->function, symbol_found);
}

}  // namespace weft::virtual_cuda
