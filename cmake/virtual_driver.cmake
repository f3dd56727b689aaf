# SPDX-License-Identifier: Apache-2.0
# The virtual CUDA driver: for tests, in the build tree only, never installed. docs/porting/virtual_driver.md says what it is.

# What stands before the text of every kernel is compiled in; a literal has an end, so there are several.
set(side ${CMAKE_CURRENT_SOURCE_DIR}/tests/virtual_driver/driver)
set(device_text ${generated}/virtual_driver/device_text.inc)
add_custom_command(
  OUTPUT ${device_text}
  COMMAND ${CMAKE_COMMAND} -DOUT=${device_text} "-DPARTS=${side}/device_side.h,${side}/device_prelude.h"
          -P ${CMAKE_CURRENT_SOURCE_DIR}/cmake/embed_text.cmake
  DEPENDS ${side}/device_side.h ${side}/device_prelude.h cmake/embed_text.cmake
  COMMENT "Embedding what virtual kernels begin with" VERBATIM)
add_custom_target(weft_device_text DEPENDS ${device_text})
add_dependencies(weft_generated weft_device_text)

# Kernels are compiled by g++ whatever compiles the rest: its options are what they are written for, and a kernel that one
# build has compiled is every build's.
set(kernel_compiler ${CMAKE_CXX_COMPILER})
if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  find_program(WEFT_KERNEL_COMPILER g++ REQUIRED)
  mark_as_advanced(WEFT_KERNEL_COMPILER)
  set(kernel_compiler ${WEFT_KERNEL_COMPILER})
endif()

# The driver once, and above it what each vendor exports.
function(weft_virtual_part target kind)
  add_library(${target} ${kind} ${ARGN})
  add_dependencies(${target} weft_device_text)
  target_compile_features(${target} PRIVATE cxx_std_20)
  target_compile_options(${target} PRIVATE ${weft_warnings} $<IF:$<CONFIG:Release>,-O1,-O0>)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")  # stacks are switched, the shadow stack is not: says so to ld.so
    target_compile_options(${target} PRIVATE -fcf-protection=none)
  endif()
  target_compile_definitions(${target} PRIVATE WEFT_VIRTUAL_CUDA_CXX="${kernel_compiler}")
  target_include_directories(${target} PRIVATE src tests include ${generated} ${generated}/include)
  set_target_properties(${target} PROPERTIES
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON POSITION_INDEPENDENT_CODE ON)
endfunction()

file(GLOB sources CONFIGURE_DEPENDS tests/virtual_driver/driver/*.cpp)
weft_units(sources virtual_cuda ${sources})
weft_virtual_part(weft_virtual_driver OBJECT ${sources} ${device_text})
if(WEFT_SANITIZE)
  # Stacks are switched and jumped out of in it: it stays as it is, with what it needs of the library, and is the same for
  # every sanitizer. A call in its last place is one from it all the same, or tests/races_of_others.txt does not know it.
  target_compile_options(weft_virtual_driver PRIVATE -fno-optimize-sibling-calls)
  file(GLOB_RECURSE core CONFIGURE_DEPENDS src/core/*.cpp)
  weft_units(core virtual_core ${core})
  target_sources(weft_virtual_driver PRIVATE ${core} ${generated}/topologies.cpp)
  if(WEFT_JSON_ENABLED)
    target_link_libraries(weft_virtual_driver PRIVATE nlohmann_json::nlohmann_json)
    target_compile_definitions(weft_virtual_driver PRIVATE WEFT_HAS_JSON=1)
  endif()
endif()

# weft_virtual_library(TARGET EXPORTS SOURCE...)
function(weft_virtual_library target exports)
  weft_virtual_part(${target} MODULE $<TARGET_OBJECTS:weft_virtual_driver> ${ARGN})
  target_link_libraries(${target} PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
  if(NOT WEFT_SANITIZE)
    target_link_libraries(${target} PRIVATE weft)
  endif()
  target_link_options(${target} PRIVATE -Wl,--version-script=${exports} -Wl,-Bsymbolic)
  set_target_properties(${target} PROPERTIES
    LINKER_LANGUAGE CXX LINK_DEPENDS ${exports} LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/lib)
endfunction()

weft_virtual_library(weft_virtual_cuda ${side}/exports.map)
file(GLOB sources CONFIGURE_DEPENDS tests/virtual_driver/hip/*.cpp)
weft_units(sources virtual_hip ${sources})
weft_virtual_library(weft_virtual_hip ${CMAKE_CURRENT_SOURCE_DIR}/tests/virtual_driver/hip/exports.map ${sources})
