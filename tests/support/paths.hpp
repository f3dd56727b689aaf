// SPDX-License-Identifier: Apache-2.0
// Where this checkout and its build lie. Compiled into one file alone, so that the objects of all other tests are the
// same in every checkout, and a compiler cache finds them.
#pragma once

#include <string>

namespace samples {

std::string source_folder();         // the checkout
std::string build_folder();          // the build
std::string program_folder();        // its programs
std::string tool();                  // the program weft; empty where it was not built
std::string virtual_cuda_library();  // the library of the virtual driver; empty where it was not built
std::string virtual_hip_library();   // the same devices as a HIP runtime

}  // namespace samples
