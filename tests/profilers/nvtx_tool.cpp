// SPDX-License-Identifier: Apache-2.0
// A tool that puts itself into a process as Nsight Systems does (NVTX_INJECTION64_PATH), and writes what it hears into
// the file that NVTX_TOOL_OUTPUT names. Source: nvtxTypes.h of NVTX 3.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

using any_function = void (*)();
struct callbacks_table {
  std::size_t size;
  int (*functions)(int module, any_function*** table, unsigned* count);
};
struct version_table {
  std::size_t size;
  std::uint32_t version, reserved;
  void (*take)(std::uint32_t of_tool);
};

std::FILE* output = nullptr;
thread_local int depth = 0;

void* create_domain(const char* name) {
  std::fprintf(output, "domain %s\n", name);
  return output;
}
int push(void* domain, const void* event) {
  std::uint16_t version = 0, size = 0;
  std::int32_t type = 0;
  const char* text = nullptr;
  const char* const bytes = static_cast<const char*>(event);
  std::memcpy(&version, bytes, sizeof version);
  std::memcpy(&size, bytes + 2, sizeof size);
  std::memcpy(&type, bytes + 32, sizeof type);
  std::memcpy(&text, bytes + 40, sizeof text);
  if (domain != output || version != 3 || size != 48 || type != 1) std::fprintf(output, "wrong event\n");
  std::fprintf(output, "%d %s\n", depth, text);
  return depth++;
}
int pop(void* domain) {
  if (domain != output) std::fprintf(output, "wrong domain\n");
  return --depth;
}

template <class F>
void put(any_function** table, unsigned place, F* function) {
  *table[place] = reinterpret_cast<any_function>(function);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(const void* (*table_of)(std::uint32_t)) {
  const char* const file = std::getenv("NVTX_TOOL_OUTPUT");
  const auto* const callbacks = static_cast<const callbacks_table*>(table_of(1));
  const auto* const version = static_cast<const version_table*>(table_of(3));
  if (file == nullptr || callbacks == nullptr || version == nullptr) return 0;
  output = std::fopen(file, "w");
  if (output == nullptr) return 0;
  std::setvbuf(output, nullptr, _IONBF, 0);
  version->take(3);
  any_function** domains = nullptr;
  unsigned count = 0;
  if (callbacks->functions(5, &domains, &count) == 0 || count < 13) return 0;
  put(domains, 4, &push);
  put(domains, 5, &pop);
  put(domains, 12, &create_domain);
  if (const char* const place = std::getenv("NVTX_TOOL_WITHOUT"); place != nullptr)
    *domains[std::atoi(place)] = nullptr;
  std::fprintf(output, "version %u\n", version->version);
  return 1;
}
