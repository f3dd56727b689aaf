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

file(GLOB sources CONFIGURE_DEPENDS tests/virtual_driver/driver/*.cpp)
weft_units(sources virtual_cuda ${sources})
add_library(weft_virtual_cuda MODULE ${sources} ${device_text})
add_dependencies(weft_virtual_cuda weft_device_text)
target_compile_features(weft_virtual_cuda PRIVATE cxx_std_20)
target_compile_options(weft_virtual_cuda PRIVATE ${weft_warnings} $<$<CONFIG:Release>:-O1>)
target_compile_definitions(weft_virtual_cuda PRIVATE WEFT_VIRTUAL_CUDA_CXX="${CMAKE_CXX_COMPILER}")
target_include_directories(weft_virtual_cuda PRIVATE src tests include ${generated} ${generated}/include)
target_link_libraries(weft_virtual_cuda PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
target_link_options(weft_virtual_cuda PRIVATE -Wl,--version-script=${side}/exports.map -Wl,-Bsymbolic)
set_target_properties(weft_virtual_cuda PROPERTIES
  CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
  LINK_DEPENDS ${side}/exports.map LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/lib)
if(WEFT_SANITIZE)
  # Stacks are switched and jumped out of in it: it stays as it is, with what it needs of the library.
  file(GLOB_RECURSE core CONFIGURE_DEPENDS src/core/*.cpp)
  target_sources(weft_virtual_cuda PRIVATE ${core} ${generated}/topologies.cpp)
  if(WEFT_JSON_ENABLED)
    target_link_libraries(weft_virtual_cuda PRIVATE nlohmann_json::nlohmann_json)
    target_compile_definitions(weft_virtual_cuda PRIVATE WEFT_HAS_JSON=1)
  endif()
else()
  target_link_libraries(weft_virtual_cuda PRIVATE weft)
endif()
