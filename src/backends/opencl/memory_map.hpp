// SPDX-License-Identifier: Apache-2.0
// Whose each address is. OpenCL names memory by objects and offsets: every buffer gets an address of its own, and what
// is asked by address is translated. Where the memory of the devices is the host's, the addresses are real.
#pragma once

#include "backends/common/memory_model.hpp"
#include "backends/opencl/driver/discovery.hpp"
#include "weft/backend/backend.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace weft::opencl {

class memory_map;

/// One allocation, adopted memory, or a mapping of device memory by another device.
struct allocation : common::known_range<allocation> {
  allocation() = default;
  ~allocation();

  memory_map* home = nullptr;
  std::size_t context = 0;    // index
  buffer_handle buffer;       // none: the devices cannot use it, only copies
  std::byte* host = nullptr;  // where the host reaches it; null: nowhere

  // what has to go back
  void* shared = nullptr;  // of clSVMAlloc
  common::reserved_addresses reserved;
};

using pin = common::pin<allocation>;

/// Where bytes lie for OpenCL: in a buffer at an offset, or at an address of the host.
struct place {
  cl_mem buffer = nullptr;
  std::size_t offset = 0;
  std::byte* host = nullptr;
};

/// Where `address`, inside `memory`, lies.
[[nodiscard]] place place_of(const allocation& memory, const void* address);

/// Thread: any.
class memory_map final : public common::memory_model<allocation> {
 public:
  memory_map(std::shared_ptr<const api> cl, const discovery& found, device_id first);
  ~memory_map();

  [[nodiscard]] result<void*> allocate(device_id device, std::size_t size, memory_kind kind);
  [[nodiscard]] result<void> adopt(device_id device, void* base, std::size_t size);
  /// The memory goes with the last operation that uses it.
  [[nodiscard]] result<void> release(void* base);

  // which device may use the memory of which
  /// Whether the driver copies between their buffers, which are of one context: access or not.
  [[nodiscard]] bool copies_without_access(device_id from, device_id to) const override {
    return from != to && context_of(from) == context_of(to);
  }
  [[nodiscard]] bool can_access(device_id from, device_id to) const;
  [[nodiscard]] result<void> enable(device_id from, device_id to) { return peers_.enable(from, to); }
  [[nodiscard]] result<void> disable(device_id from, device_id to) { return peers_.disable(from, to); }
  /// The address must lie in memory of a device, which `by` may use.
  [[nodiscard]] result<void*> map(device_id by, void* address, std::size_t size);

  /// What belonged to a device is gone, its access to others and theirs to it too.
  void forget(device_id device);
  void clear();

  [[nodiscard]] bool shares_memory(device_id device) const { return contexts_[context_of(device)].shared_memory; }
  [[nodiscard]] bool shares_atomics(device_id device) const { return contexts_[context_of(device)].atomics; }
  [[nodiscard]] bool adopts_whole(device_id device) const { return contexts_[context_of(device)].adopts_whole; }
  [[nodiscard]] std::size_t context_of(device_id device) const { return devices_[local(device)].context; }

 private:
  friend struct allocation;

  struct device_row {
    std::size_t context = 0;
    std::string name;
    std::uint64_t largest = 0;
  };
  struct context_row {
    cl_context context = nullptr;
    bool shared_memory = false, atomics = false, adopts_whole = false;
  };

  [[nodiscard]] std::string denied_of_host(device_id by, const allocation& memory) const override;
  [[nodiscard]] result<void> make_shared_memory(allocation& made, cl_context context, bool atomics) const;
  [[nodiscard]] result<void> make_buffer(allocation& made, cl_context context) const;

  std::shared_ptr<const api> cl_;
  std::vector<device_row> devices_;
  std::vector<context_row> contexts_;
};

}  // namespace weft::opencl
