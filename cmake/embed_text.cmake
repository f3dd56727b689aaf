# SPDX-License-Identifier: Apache-2.0
# Writes text files as string literals, one behind the other, to be included where a string is expected.
# usage: cmake -DOUT=<file.inc> -DPARTS=<file>,<file>… -P cmake/embed_text.cmake
cmake_minimum_required(VERSION 3.22)

if(NOT OUT OR NOT PARTS)
  message(FATAL_ERROR "embed_text: give -DOUT=<file.inc> -DPARTS=<file>,<file>")
endif()
string(REPLACE "," ";" parts "${PARTS}")
set(whole "")
foreach(part IN LISTS parts)
  file(READ "${part}" text)
  string(FIND "${text}" ")weft\"" end)
  if(NOT end EQUAL -1)
    message(FATAL_ERROR "embed_text: ${part} holds the end of the literal that it is put into")
  endif()
  # A compiler need not take a literal of more than 65536 characters.
  string(LENGTH "${text}" length)
  set(at 0)
  while(at LESS length)
    string(SUBSTRING "${text}" ${at} 16000 piece)
    string(APPEND whole "R\"weft(${piece})weft\"\n")
    math(EXPR at "${at} + 16000")
  endwhile()
endforeach()
file(WRITE "${OUT}" "${whole}")
