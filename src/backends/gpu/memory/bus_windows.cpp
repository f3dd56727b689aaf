// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/memory/bus_windows.hpp"

#include "backends/gpu/driver/error.hpp"

#include <dlfcn.h>
#include <utility>

namespace weft::gpu {

/// Unmapped and unpinned before the memory goes.
class bus_windows::window final : public bus_window {
 public:
  window(const bus_windows& home, memory_map::ref memory)
      : call_(home.call_), library_(home.opened_), here_(home.here_), memory_(std::move(memory)) {}
  ~window() override { end(); }

  [[nodiscard]] result<void> open(CUdeviceptr address, std::size_t size) {
    const CUdeviceptr first = address / gdr_page * gdr_page;
    const std::size_t whole = (address + size - first + gdr_page - 1) / gdr_page * gdr_page;
    const auto refused = [](const char* function, int code) {
      return make_error(errc::unsupported, std::string{"no window across the bus: "} + function + " gives " +
                                               std::to_string(code) +
                                               "; the GPU's BAR1 may be too small, or its memory not to be pinned");
    };
    if (const int code = call_.gdr_pin_buffer(library_, first, whole, 0, 0, &pinned_); code != 0)
      return refused("gdr_pin_buffer", code);
    if (const int code = call_.gdr_map(library_, pinned_, &mapped_, whole); code != 0) {
      mapped_ = nullptr;
      static_cast<void>(call_.gdr_unpin_buffer(library_, pinned_));
      return refused("gdr_map", code);
    }
    size_ = whole;
    offset_ = address - first;
    return {};
  }

  void store(std::uint64_t offset, const void* from, std::size_t size) noexcept override {
    const std::lock_guard lock{mutex_};
    // ends with a fence, so that this is written before what comes next
    if (mapped_ != nullptr && !here_.forked())
      static_cast<void>(
          call_.gdr_copy_to_mapping(pinned_, static_cast<std::byte*>(mapped_) + offset_ + offset, from, size));
  }

  void end() noexcept {
    const std::lock_guard lock{mutex_};
    void* const at = std::exchange(mapped_, nullptr);
    if (at == nullptr || here_.forked()) return;
    static_cast<void>(call_.gdr_unmap(library_, pinned_, at, size_));
    static_cast<void>(call_.gdr_unpin_buffer(library_, pinned_));
  }
  [[nodiscard]] device_id owner() const noexcept { return memory_->owner; }

 private:
  const gdr_functions& call_;
  const gdr_library library_;
  const detail::fork_watch& here_;
  const memory_map::ref memory_;
  std::mutex mutex_;
  gdr_memory pinned_;
  void* mapped_ = nullptr;
  std::size_t size_ = 0;
  std::uint64_t offset_ = 0;
};

bus_windows::~bus_windows() {
  if (opened_ != nullptr && !here_.forked()) static_cast<void>(call_.gdr_close(opened_));
}

result<void> bus_windows::load() {
  const auto without = [this](const std::string& why) {
    missing_ = make_error(errc::unsupported, "no windows across the bus: GDRCopy's library " + library_ +
                                                 " cannot be used: " + why + "; " + variable_ + " names another one");
    return result<void>{*missing_};
  };
  if (library_ == "none") return without(variable_ + ", or the program, says none");
  void* const library = ::dlopen(library_.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = ::dlerror();  // NOLINT(concurrency-mt-unsafe): glibc keeps it per thread
    return without(why != nullptr ? why : "it could not be opened");
  }
  bool is_whole = true;
#define WEFT_GPU_FIND(type, name, parameters)                                   \
  call_.name = reinterpret_cast<decltype(call_.name)>(::dlsym(library, #name)); \
  is_whole = is_whole && call_.name != nullptr;
  WEFT_GPU_GDR_FUNCTIONS(WEFT_GPU_FIND)
#undef WEFT_GPU_FIND
  if (!is_whole) return without("it lacks functions of version 2");
  opened_ = call_.gdr_open();
  if (opened_ == nullptr) return without("gdr_open gives nothing: is the kernel module gdrdrv loaded?");
  return {};
}

result<std::shared_ptr<bus_window>> bus_windows::open(memory_map::ref memory, CUdeviceptr address, std::size_t size) {
  const std::lock_guard lock{mutex_};
  if (missing_) return error{*missing_};
  if (opened_ == nullptr) {
    if (auto loaded = load(); !loaded) return std::move(loaded).error();
  }
  std::erase_if(windows_, [](const auto& known) { return known.expired(); });
  auto made = std::make_shared<window>(*this, std::move(memory));
  if (auto opened = made->open(address, size); !opened) return std::move(opened).error();
  windows_.push_back(made);
  return std::shared_ptr<bus_window>{std::move(made)};
}

void bus_windows::end(std::optional<device_id> device) noexcept {
  const std::lock_guard lock{mutex_};
  for (const auto& known : windows_) {
    if (const auto open = known.lock(); open && (!device || open->owner() == *device)) open->end();
  }
}

}  // namespace weft::gpu
