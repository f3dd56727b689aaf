// SPDX-License-Identifier: Apache-2.0
// Multicast objects: a device joins, and binds memory of its own; what is stored at an address of the object goes to
// all of it. Only the instructions that are for it get there: an address is shown in no window.
#pragma once

#include "virtual_driver/driver/machine.hpp"

#include <map>
#include <memory>
#include <vector>

namespace weft::virtual_cuda {

struct multicast_object {
  struct replica {
    std::shared_ptr<physical> memory;
    std::byte* view = nullptr;
    std::size_t size = 0;
    replica() = default;
    replica(const replica&) = delete;
    replica& operator=(const replica&) = delete;
    ~replica();
  };

  std::size_t devices = 0;  // that it is for
  std::size_t size = 0;
  std::vector<int> joined;
  std::map<int, std::unique_ptr<replica>> bound;  // by device

  [[nodiscard]] bool has(int device) const;
};

/// What kernels of this thread run on from now on.
void run_on(int device);

/// Of weft_virtual_services. Ends the kernel with 700 where the address is of no object that its device may use, or one
/// whose devices have not all bound memory; with 716 where it is not aligned to the size.
[[nodiscard]] unsigned replicas(unsigned long long address, unsigned size, unsigned char** where);

}  // namespace weft::virtual_cuda
