// SPDX-License-Identifier: Apache-2.0
#include "os/event_bell.hpp"

#include <cstdint>
#include <sys/eventfd.h>
#include <unistd.h>

namespace weft::detail {

event_bell event_bell::make() noexcept {
  event_bell made;
  made.file_ = descriptor{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  return made;
}

void event_bell::ring(int file) noexcept {
  const std::uint64_t one = 1;
  static_cast<void>(!::write(file, &one, sizeof one));
}

void event_bell::silence() const noexcept {
  std::uint64_t rings = 0;
  static_cast<void>(!::read(file(), &rings, sizeof rings));
}

}  // namespace weft::detail
