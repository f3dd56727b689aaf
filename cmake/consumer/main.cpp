// SPDX-License-Identifier: Apache-2.0
// Links an installed weft, starts a machine and says what it has.
#include <weft/core/version.hpp>
#include <weft/runtime/machine.hpp>

#include <iostream>

int main() {
  if (weft::library_version() != weft::version) return 1;
  const weft::machine machine;
  std::cout << "weft " << weft::library_version() << ", " << machine.device_count() << " devices\n";
  return machine.device_count() > 0 ? 0 : 1;
}
