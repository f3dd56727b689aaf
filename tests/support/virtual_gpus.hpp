// SPDX-License-Identifier: Apache-2.0
// Machines of CUDA devices for tests: those of the virtual driver, four unless the environment says otherwise.
#pragma once

#include "backends/gpu/driver/driver_functions.hpp"
#include "backends/gpu/factory.hpp"
#include "core/errors/make_error.hpp"
#include "support/paths.hpp"
#include "virtual_driver/virtual_driver.hpp"
#include "weft/runtime/machine.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <dlfcn.h>
#include <memory>
#include <string>

namespace samples {

inline weft::result<std::unique_ptr<weft::backend>> open_virtual_cuda_with(const weft::backend_options& options,
                                                                           const std::string& gdrcopy) noexcept {
  try {
    weft::gpu::settings wanted;
    wanted.driver = wanted.compiler = virtual_cuda_library();
    wanted.management = "none";
    wanted.gdrcopy = gdrcopy;
    return weft::gpu::open_with(options, wanted);
  } catch (const std::bad_alloc&) {
    return weft::no_host_memory();
  }
}

inline weft::result<std::unique_ptr<weft::backend>> open_virtual_cuda(const weft::backend_options& options) noexcept {
  return open_virtual_cuda_with(options, "none");
}
/// With windows of the host across the bus.
inline weft::result<std::unique_ptr<weft::backend>> open_virtual_cuda_with_windows(
    const weft::backend_options& options) noexcept {
  return open_virtual_cuda_with(options, virtual_cuda_library());
}

inline weft::machine_options virtual_cuda_options() {
  weft::machine_options options;
  options.more_backends = {{weft::backend_kind::cuda, "virtual_cuda", &open_virtual_cuda}};
  options.backend = "virtual_cuda";
  return options;
}

/// The virtual driver's own functions: what was called, and what is to fail.
class virtual_cuda {
 public:
  virtual_cuda() : library_(dlopen(virtual_cuda_library().c_str(), RTLD_NOW | RTLD_LOCAL)) {
    find(calls_, "weft_virtual_calls");
    find(fail_, "weft_virtual_fail");
    find(lose_, "weft_virtual_lose");
    find(heal_, "weft_virtual_heal");
    find(drop_, "weft_virtual_drop");
    find(register_, "weft_virtual_register_kernel");
    find(streams_, "weft_virtual_streams");
    find(limit_launches_, "weft_virtual_limit_launches");
    find(hold_values_, "weft_virtual_hold_values");
    find(limit_connections_, "weft_virtual_limit_connections");
    find(last_launch_, "weft_virtual_last_launch");
    find(listen_to_own_work_, "weft_virtual_listen_to_own_work");
    find(priority_, "weft_virtual_priority");
    find(right_, "cuMemGetAccess");
    find(finish_, "cuCtxSynchronize");
  }
  [[nodiscard]] unsigned long long calls(const char* name) const { return calls_(name); }
  /// That somebody holds.
  [[nodiscard]] unsigned long long streams() const { return streams_(); }
  /// "cuMemAlloc@3=2": its third call from now on answers 2.
  void fail(const char* plan) const { fail_(plan); }
  void lose(int device, int code) const { lose_(device, code); }
  /// See weft_virtual_heal().
  void heal() const { heal_(); }
  /// See weft_virtual_drop().
  void drop(int from, int to, unsigned ways) const { drop_(from, to, ways); }
  /// Holds up the next values that streams write, as many as that; none: lets them all go.
  void hold_values(unsigned count) const { hold_values_(count); }
  /// See weft_virtual_limit_connections().
  void limit_connections(unsigned count) const { limit_connections_(count); }
  /// How large a block may be, and how many blocks a grid may have along x where a machine is opened after this.
  void limit_launches(unsigned threads_per_block, unsigned blocks) const { limit_launches_(threads_per_block, blocks); }
  void limit_launches() const { limit_launches(1024, 2147483647U); }
  [[nodiscard]] weft_virtual_launch last_launch() const { return last_launch_(); }
  void listen_to_own_work(void (*listener)(int)) const { listen_to_own_work_(listener); }
  /// As the driver has it: the lower goes first.
  [[nodiscard]] int priority(void* stream) const { return priority_(stream); }
  /// What a device may do at an address of a mapping, in the driver's words; ~0 where nothing is mapped.
  [[nodiscard]] unsigned long long right(int device, const void* address) const {
    unsigned long long made = ~0ULL;
    const weft::gpu::CUmemLocation by{weft::gpu::location_device, device};
    static_cast<void>(right_(&made, &by, reinterpret_cast<std::uintptr_t>(address)));
    return made;
  }
  /// Waits for what the driver has for the current context, and lets the library see nothing of that.
  void finish() const { static_cast<void>(finish_()); }
  void add_kernel(const char* name, weft_virtual_kernel_function body, unsigned count, const unsigned* sizes,
                  const unsigned char* is_pointer) const {
    register_(name, body, count, sizes, is_pointer);
  }

 private:
  template <class F>
  void find(F& function, const char* name) const {
    if (library_ != nullptr) function = reinterpret_cast<F>(dlsym(library_, name));
  }
  void* library_;
  unsigned long long (*calls_)(const char*) = nullptr;
  unsigned long long (*streams_)() = nullptr;
  void (*fail_)(const char*) = nullptr;
  void (*lose_)(int, int) = nullptr;
  void (*heal_)() = nullptr;
  void (*drop_)(int, int, unsigned) = nullptr;
  void (*hold_values_)(unsigned) = nullptr;
  void (*limit_connections_)(unsigned) = nullptr;
  void (*limit_launches_)(unsigned, unsigned) = nullptr;
  weft_virtual_launch (*last_launch_)() = nullptr;
  void (*listen_to_own_work_)(void (*)(int)) = nullptr;
  int (*priority_)(void*) = nullptr;
  weft::gpu::CUresult (*right_)(unsigned long long*, const weft::gpu::CUmemLocation*, weft::gpu::CUdeviceptr) = nullptr;
  weft::gpu::CUresult (*finish_)() = nullptr;
  void (*register_)(const char*, weft_virtual_kernel_function, unsigned, const unsigned*,
                    const unsigned char*) = nullptr;
};

class virtual_cuda_test : public testing::Test {
 protected:
  void SetUp() override {
    if (virtual_cuda_library().empty()) GTEST_SKIP() << "the virtual CUDA driver is not built";
  }
  void TearDown() override {
    if (virtual_cuda_library().empty()) return;
    driver.fail("");
    driver.heal();
    driver.hold_values(0);
    driver.limit_connections(0);
    driver.limit_launches();
  }
  [[nodiscard]] static weft::machine open() { return weft::machine{virtual_cuda_options()}; }

  virtual_cuda driver;
};

}  // namespace samples
