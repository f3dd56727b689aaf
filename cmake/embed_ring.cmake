# SPDX-License-Identifier: Apache-2.0
# Turns the ring's header into text that the library puts before a kernel with rings: the run-time compilers find no
# files. usage: cmake -DOUT=<file.cpp> -DHEADER=<ring.h> -P cmake/embed_ring.cmake
cmake_minimum_required(VERSION 3.22)

if(NOT OUT OR NOT HEADER)
  message(FATAL_ERROR "embed_ring: give -DOUT=<file.cpp> -DHEADER=<ring.h>")
endif()

file(READ "${HEADER}" text)
string(LENGTH "${text}" length)
# A compiler need not take a literal of more than 65536 characters.
if(length EQUAL 0 OR length GREATER 65000)
  message(FATAL_ERROR "embed_ring: ${HEADER} has ${length} characters: expected 1 to 65000")
endif()
string(FIND "${text}" ")weft\"" end)
if(NOT end EQUAL -1)
  message(FATAL_ERROR "embed_ring: ${HEADER} holds the end of the literal that it is put into")
endif()

file(WRITE "${OUT}" "// Made by cmake/embed_ring.cmake from include/weft/kernel/ring.h; changes here are lost.
#include \"backend/kernels/ring_text.hpp\"

namespace weft::detail {

std::string_view ring_text() noexcept {
  return R\"weft(${text})weft\";
}

}  // namespace weft::detail
")
