# SPDX-License-Identifier: Apache-2.0
include_guard(GLOBAL)
set(CMAKE_CXX_EXTENSIONS OFF)

set(weft_warnings -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion)
if(WEFT_WERROR)
  list(APPEND weft_warnings -Werror)
endif()
set(weft_sanitizers)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ 12 sees overlaps inside std::string that are not there (its bug 105651); so does -O1 with sanitizers elsewhere.
  list(APPEND weft_warnings -Wno-restrict)
  if(WEFT_SANITIZE)
    list(APPEND weft_warnings -Wno-maybe-uninitialized -Wno-array-bounds -Wno-stringop-overflow -Wno-tsan)
  endif()
endif()
if(WEFT_SANITIZE)
  list(APPEND weft_sanitizers -fsanitize=${WEFT_SANITIZE} -fno-omit-frame-pointer)
  if(WEFT_SANITIZE MATCHES "undefined")
    list(APPEND weft_sanitizers -fno-sanitize-recover=all)
  endif()
endif()
if(WEFT_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "WEFT_FUZZ=ON needs clang: cmake --preset fuzz")
  endif()
  list(APPEND weft_sanitizers -fsanitize=fuzzer-no-link)
endif()

# weft_flags(target): the language, the warnings and the sanitizers of this build.
function(weft_flags target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_compile_options(${target} PRIVATE ${weft_warnings} ${weft_sanitizers})
  target_link_options(${target} PRIVATE ${weft_sanitizers})
endfunction()

# weft_unity(target): where WEFT_UNITY is on, several of its files at a time.
function(weft_unity target)
  if(WEFT_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
    # what the names of one file do to those of another is nothing that the files say
    target_compile_options(${target} PRIVATE -Wno-shadow $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  endif()
endfunction()
