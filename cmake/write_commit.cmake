# SPDX-License-Identifier: Apache-2.0
# cmake -DOUT=commit.cpp -DDIR=<source> -P write_commit.cmake: writes OUT only when it changes.
set(commit "")
if(EXISTS ${DIR}/.git)
  execute_process(COMMAND git -C ${DIR} describe --always --dirty --abbrev=12 --exclude=*
    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(commit STREQUAL "")
  set(commit unknown)
endif()
file(CONFIGURE OUTPUT ${OUT} @ONLY CONTENT [[
// SPDX-License-Identifier: Apache-2.0
#include "weft/core/version.hpp"

namespace weft {

std::string_view library_version() noexcept { return version; }
std::string_view library_commit() noexcept { return "@commit@"; }

}  // namespace weft
]])
