# SPDX-License-Identifier: Apache-2.0
# Turns each DIR/*.json into a table of events, so that the machines that ship are there without a JSON library.
# usage: cmake -DOUT=<file.cpp> -DDIR=<folder of *.json> -P cmake/embed_topologies.cmake
cmake_minimum_required(VERSION 3.22)

if(NOT OUT OR NOT DIR)
  message(FATAL_ERROR "embed_topologies: give -DOUT=<file.cpp> -DDIR=<folder of *.json>")
endif()

# The events of one JSON value, appended to the variable `events` of the caller. `value` is JSON text, wrapped in an
# array so that string(JSON) also takes a string or a number.
function(append_events value)
  string(JSON kind TYPE "${value}" 0)
  if(kind STREQUAL "OBJECT")
    string(APPEND events "{'{', {}},\n")
    string(JSON inside GET "${value}" 0)
    string(JSON count LENGTH "${inside}")
    if(count GREATER 0)
      math(EXPR last "${count} - 1")
      foreach(i RANGE ${last})
        string(JSON key MEMBER "${inside}" ${i})
        string(APPEND events "{'k', R\"weft(${key})weft\"},\n")
        append_member("${inside}" "${key}")
      endforeach()
    endif()
    string(APPEND events "{'}', {}},\n")
  elseif(kind STREQUAL "ARRAY")
    string(APPEND events "{'[', {}},\n")
    string(JSON inside GET "${value}" 0)
    string(JSON count LENGTH "${inside}")
    if(count GREATER 0)
      math(EXPR last "${count} - 1")
      foreach(i RANGE ${last})
        append_member("${inside}" ${i})
      endforeach()
    endif()
    string(APPEND events "{']', {}},\n")
  endif()
  set(events "${events}" PARENT_SCOPE)
endfunction()

# The events of the value at `key` of a JSON object or array.
function(append_member container key)
  string(JSON kind TYPE "${container}" "${key}")
  string(JSON value GET "${container}" "${key}")
  if(kind STREQUAL "STRING")
    string(APPEND events "{'s', R\"weft(${value})weft\"},\n")
  elseif(kind STREQUAL "NUMBER")
    string(APPEND events "{'n', \"${value}\"},\n")
  elseif(kind STREQUAL "BOOLEAN")
    if(value)
      string(APPEND events "{'t', {}},\n")
    else()
      string(APPEND events "{'f', {}},\n")
    endif()
  elseif(kind STREQUAL "NULL")
    string(APPEND events "{'0', {}},\n")
  else()
    append_events("[${value}]")
  endif()
  set(events "${events}" PARENT_SCOPE)
endfunction()

file(GLOB files "${DIR}/*.json")
set(names "")
foreach(file IN LISTS files)
  get_filename_component(name "${file}" NAME_WLE)
  list(APPEND names "${name}")
endforeach()
list(SORT names COMPARE STRING)

set(tables "")
set(rows "")
foreach(name IN LISTS names)
  if(NOT name MATCHES "^[a-z][a-z0-9_]*$")
    message(FATAL_ERROR "embed_topologies: ${DIR}/${name}.json: expected a name of small letters, digits and _")
  endif()
  file(READ "${DIR}/${name}.json" text)
  set(events "")
  string(JSON kind ERROR_VARIABLE problem TYPE "[${text}]" 0)
  if(problem)
    message(FATAL_ERROR "embed_topologies: ${DIR}/${name}.json: ${problem}")
  endif()
  append_events("[${text}]")
  string(APPEND tables "constexpr document_event ${name}_events[] = {\n${events}};\n\n")
  string(APPEND rows "    {\"${name}\", ${name}_events},\n")
endforeach()

set(source "// Made by cmake/embed_topologies.cmake from topologies/*.json; changes here are lost.
#include \"core/topology/shipped.hpp\"

namespace weft::detail {
namespace {

${tables}constexpr shipped_topology machines[] = {
${rows}};

}  // namespace

std::span<const shipped_topology> shipped_table() noexcept { return machines; }

}  // namespace weft::detail
")
file(WRITE "${OUT}" "${source}")
