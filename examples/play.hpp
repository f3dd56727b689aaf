// SPDX-License-Identifier: Apache-2.0
// What the examples share: the machine that they are about, and what they say where it cannot do what they show.
#pragma once

#include "weft/runtime/machine.hpp"

#include <cstdlib>
#include <iostream>

namespace examples {

/// Of programs that need something which the machine does not offer; as of the weft tool.
constexpr int exit_absent = 3;
constexpr int exit_failed = 4;

/// The topology that the program's argument names; else the one that the example is about, played by the host; or, with
/// WEFT_BACKEND set, the devices of those backends.
inline weft::machine play(int argc, char** argv, const char* topology) {
  if (argc > 1) return weft::machine::load(argv[1]);
  return std::getenv("WEFT_BACKEND") == nullptr ? weft::machine::load(topology) : weft::machine{};
}

inline int exit_code_of(const weft::error& cause) {
  return cause.code == weft::errc::unsupported || cause.code == weft::errc::peer_unsupported ? exit_absent
                                                                                             : exit_failed;
}

/// Runs an example and gives main()'s value; what it cannot do here is said.
template <class F>
int run(F&& example) {
  try {
    return example();
  } catch (const weft::error_exception& failed) {
    std::cerr << failed.what() << "\n";
    return exit_code_of(failed.cause());
  }
}

}  // namespace examples
