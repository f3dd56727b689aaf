# SPDX-License-Identifier: Apache-2.0
include_guard(GLOBAL)
set(CMAKE_CXX_EXTENSIONS OFF)
set(generated ${CMAKE_CURRENT_BINARY_DIR}/generated)

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
  # The runtime as a library: its operator new gives way to that of a test. libFuzzer needs it linked in.
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang" AND NOT WEFT_FUZZ)
    execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libclang_rt.asan-${CMAKE_SYSTEM_PROCESSOR}.so
                    OUTPUT_VARIABLE runtime OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
    get_filename_component(runtime ${runtime} DIRECTORY)
    set(weft_sanitizer_runtime -shared-libsan -Wl,-rpath,${runtime})
  endif()
  if(WEFT_SANITIZE MATCHES "undefined")
    # UBSan opens a pipe to look at an object, and takes it for a bad one where a test has left no descriptor
    list(APPEND weft_sanitizers -fno-sanitize-recover=all -fno-sanitize=vptr)
  endif()
endif()
if(WEFT_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "WEFT_FUZZ=ON needs clang: cmake --preset fuzz")
  endif()
  list(APPEND weft_sanitizers -fsanitize=fuzzer-no-link)
endif()

# One cache for all presets and checkouts: paths below the checkout are made relative before they are hashed, and the
# folder a compiler runs in is left out. Precompiled headers need the first two sloppiness settings; the third leaves out
# the language of messages, which a fresh root has not. Dependency mode reads the compiler's own list of headers, so that
# a miss does not preprocess the file twice.
if(WEFT_CCACHE_ENABLED AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_BASEDIR=${CMAKE_CURRENT_SOURCE_DIR} CCACHE_NOHASHDIR=1 CCACHE_DEPEND=1
      CCACHE_SLOPPINESS=pch_defines,time_macros,locale ${WEFT_CCACHE_PROGRAM})
endif()

if(WEFT_CCACHE_ENABLED AND CMAKE_CXX_COMPILER_ID MATCHES "Clang")  # or no precompiled header is like the one before it
  add_compile_options("SHELL:-Xclang -fno-pch-timestamp")
endif()

# weft_flags(target): the language, the warnings and the sanitizers of this build.
function(weft_flags target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_compile_options(${target} PRIVATE ${weft_warnings} ${weft_sanitizers})
  target_link_options(${target} PRIVATE ${weft_sanitizers} ${weft_sanitizer_runtime})
endfunction()

# The folder whose sources are compiled together with this one: a layer, a backend or the tool with its subfolders (but
# for the doctor), else its own.
function(weft_unit_folder variable source)
  file(RELATIVE_PATH path ${PROJECT_SOURCE_DIR} ${source})
  if(path MATCHES "^src/backends/[^/]+|^src/[^/]+|^tools/weft/doctor|^tools/weft")
    set(${variable} ${PROJECT_SOURCE_DIR}/${CMAKE_MATCH_0} PARENT_SCOPE)
  else()
    get_filename_component(folder ${source} DIRECTORY)
    set(${variable} ${folder} PARENT_SCOPE)
  endif()
endfunction()

# weft_units(<variable> <name> <source>...): where WEFT_UNITY is on ("tests": but for the library), generated files that
# include several of the sources each, of one part of the tree (weft_unit_folder), and all about as large; else the
# sources. Two of 128 KiB take about 2 s longer than one of 256 KiB, which a change of any of its files compiles again:
# tests, of which there are most, stay at 128. A part shares one namespace for names of its own files, so that a file
# more never brings two of another part together. CMake's own unity build writes absolute paths into these files, so
# that no two checkouts could share a compiler cache.
function(weft_units variable name)
  set(units ${ARGN})
  if(WEFT_UNITY AND NOT (WEFT_UNITY STREQUAL "tests" AND name STREQUAL "library"))
    set(units)
    set(folders)
    foreach(source IN LISTS ARGN)
      weft_unit_folder(folder ${source})
      list(APPEND folders ${folder})
    endforeach()
    list(REMOVE_DUPLICATES folders)
    foreach(folder IN LISTS folders)
      set(sources)
      set(all 0)
      foreach(source IN LISTS ARGN)
        weft_unit_folder(its_folder ${source})
        if(its_folder STREQUAL folder)
          list(APPEND sources ${source})
          file(SIZE ${source} size)
          math(EXPR all "${all} + ${size}")
        endif()
      endforeach()
      set(most 262144)
      if(folder MATCHES "/tests/")
        set(most 131072)
      endif()
      math(EXPR count "(${all} + ${most} - 1) / ${most}")
      file(RELATIVE_PATH stem ${PROJECT_SOURCE_DIR} ${folder})
      string(REPLACE "/" "_" stem ${stem})
      set(text)
      set(taken 0)
      set(number 1)
      foreach(source IN LISTS sources)
        file(RELATIVE_PATH path ${PROJECT_SOURCE_DIR} ${source})
        file(SIZE ${source} size)
        string(APPEND text "#include \"${path}\"\n")
        math(EXPR taken "${taken} + ${size}")
        math(EXPR is_full "${taken} * ${count} / (${all} * ${number})")
        if(is_full)
          file(CONFIGURE OUTPUT ${generated}/units/${name}_${stem}_${number}.cpp CONTENT "${text}")
          list(APPEND units ${generated}/units/${name}_${stem}_${number}.cpp)
          set(text)
          math(EXPR number "${number} + 1")
        endif()
      endforeach()
    endforeach()
    # The paths are looked for below the checkout. Off is what comes of many files together: names of one that shadow
    # another's, and what g++ 12 wrongly sees inside std::string once more is inlined.
    set(options -iquote ${PROJECT_SOURCE_DIR} -Wno-shadow)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      list(APPEND options -Wno-subobject-linkage -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread)
    endif()
    set_source_files_properties(${units} PROPERTIES COMPILE_OPTIONS "${options}")
  endif()
  set(${variable} ${units} PARENT_SCOPE)
endfunction()
