# SPDX-License-Identifier: Apache-2.0
# One executable per folder of tests/, each case a ctest entry; and the checks of the tree.

set(weft_test_seconds 120)
if(WEFT_SANITIZE)
  set(weft_test_seconds 300)
endif()

if(TARGET weft_conform)
  add_test(NAME weft_conform COMMAND weft_conform)
  set_tests_properties(weft_conform PROPERTIES TIMEOUT 600)
endif()

set(WEFT_TEST_FOLDERS "" CACHE STRING "folders of tests/ to build; empty: all")

add_custom_target(weft_generated)  # what tests include and a build makes: for scripts/check-clang

# ---- cases -----------------------------------------------------------------------------------------------------------

if(WEFT_TESTS_ENABLED OR WEFT_VIRTUAL_DRIVER)
  include(cmake/virtual_driver.cmake)
endif()

if(WEFT_TESTS_ENABLED)
  include(GoogleTest)
  file(GLOB support CONFIGURE_DEPENDS tests/support/*.cpp)
  if(support)
    add_library(weft_test_support STATIC ${support})
    weft_flags(weft_test_support)
    target_include_directories(weft_test_support PUBLIC tests src)
    target_link_libraries(weft_test_support PUBLIC weft GTest::gtest)
  endif()

  # The CUDA backend declares the driver itself; where the toolkit's header is, a test holds the two against each other.
  if(WEFT_CUDA_ENABLED)
    find_package(CUDAToolkit QUIET)
    find_path(WEFT_CUDA_HEADER_DIR cuda.h HINTS ${CUDAToolkit_INCLUDE_DIRS} NO_DEFAULT_PATH)
    mark_as_advanced(WEFT_CUDA_HEADER_DIR)
    if(NOT WEFT_CUDA_HEADER_DIR)
      message(STATUS "  tests/backend/cuda_declarations_test.cpp off: no cuda.h (the CUDA toolkit)")
    endif()
  endif()

  file(GLOB_RECURSE all_tests CONFIGURE_DEPENDS tests/*_test.cpp)
  set(folders)
  foreach(test IN LISTS all_tests)
    file(RELATIVE_PATH folder ${CMAKE_CURRENT_SOURCE_DIR}/tests ${test})
    string(REGEX REPLACE "/.*" "" folder ${folder})
    list(APPEND folders ${folder})
  endforeach()
  list(REMOVE_DUPLICATES folders)
  if(WEFT_TEST_FOLDERS)
    set(folders ${WEFT_TEST_FOLDERS})
  endif()

  foreach(folder IN LISTS folders)
    if((folder STREQUAL "cli" AND NOT TARGET weft_cli) OR (folder STREQUAL "examples" AND NOT TARGET image_pipeline)
       OR (folder STREQUAL "virtual_driver" AND WEFT_SANITIZE) OR folder MATCHES "\\.cpp$|^fuzz$")
      continue()
    endif()
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS tests/${folder}/*.cpp)
    if(folder MATCHES "^(conformance|virtual_driver)$")
      list(FILTER sources INCLUDE REGEX "_test\\.cpp$")
    endif()
    if(NOT WEFT_CUDA_ENABLED)
      list(FILTER sources EXCLUDE REGEX
        "/tests/(backend/(gpu|cuda)|virtual_driver/conformance|(cli|examples)/virtual_gpu)_")
    endif()
    if(NOT WEFT_CUDA_HEADER_DIR)
      list(FILTER sources EXCLUDE REGEX "/tests/backend/cuda_declarations_")
    endif()
    if(NOT WEFT_OPENCL_ENABLED)
      list(FILTER sources EXCLUDE REGEX "/tests/backend/opencl_")
    endif()
    if(WEFT_SANITIZE)
      # NVRTC is a vendor's compiler, for a minute. What runs on the virtual driver is left out: that is not instrumented,
      # so ThreadSanitizer does not see what it orders, and what it keeps after a reset counts as leaked. gpu_driver,
      # discovery and memory tests play the driver in place, and the scheduler that CUDA shares has tests of its own.
      list(FILTER sources EXCLUDE REGEX
        "/tests/backend/gpu_(adopted_stream|conformance|copy|faults|health|launch|machine|multicast|nvrtc|partition|queue|stream)_")
    endif()
    set(test weft_tests_${folder})
    add_executable(${test} ${sources})
    weft_flags(${test})
    # tests of what templates and inline functions do run as users have them; the others are compiled sooner
    if(NOT folder MATCHES "^(channel|kernel)$")
      target_compile_options(${test} PRIVATE $<$<CONFIG:Release>:-O1>)
    endif()
    target_include_directories(${test} PRIVATE src tests)
    target_link_libraries(${test} PRIVATE weft GTest::gtest GTest::gtest_main)
    if(folder MATCHES "^(backend|cli|examples)$" AND TARGET weft_virtual_cuda)
      add_dependencies(${test} weft_virtual_cuda)
      target_compile_definitions(${test} PRIVATE WEFT_VIRTUAL_CUDA_PATH="$<TARGET_FILE:weft_virtual_cuda>")
    endif()
    if(folder STREQUAL "backend" AND WEFT_CUDA_HEADER_DIR)
      target_include_directories(${test} SYSTEM PRIVATE ${WEFT_CUDA_HEADER_DIR})
    endif()
    # read once for each program; the clang preset does without, so that every file says what it needs
    target_precompile_headers(${test} PRIVATE
      <gtest/gtest.h> <algorithm> <array> <chrono> <functional> <map> <memory> <random> <string> <thread> <vector>)
    target_compile_definitions(${test} PRIVATE
      WEFT_SOURCE_DIR="${CMAKE_CURRENT_SOURCE_DIR}"
      WEFT_BINARY_DIR="${CMAKE_CURRENT_BINARY_DIR}"
      WEFT_BIN_DIR="${CMAKE_RUNTIME_OUTPUT_DIRECTORY}")
    foreach(part weft_test_support weft_conformance)
      if(TARGET ${part})
        target_link_libraries(${test} PRIVATE ${part})
      endif()
    endforeach()
    if(folder STREQUAL "cli")
      target_link_libraries(${test} PRIVATE weft_tool)
    endif()
    if(folder STREQUAL "examples")
      target_link_libraries(${test} PRIVATE weft_images PNG::PNG TurboJPEG::TurboJPEG)
    endif()
    if(TARGET weft_cli)
      target_compile_definitions(${test} PRIVATE WEFT_TOOL_PATH="$<TARGET_FILE:weft_cli>")
      if(folder MATCHES "^(cli|examples)$")
        add_dependencies(${test} weft_cli)
      endif()
    endif()
    if(TARGET image_pipeline)
      target_compile_definitions(${test} PRIVATE WEFT_IMAGE_PIPELINE_PATH="$<TARGET_FILE:image_pipeline>")
      if(folder STREQUAL "examples")
        add_dependencies(${test} image_pipeline)
      endif()
    endif()
    if(WEFT_JSON_ENABLED)
      target_link_libraries(${test} PRIVATE nlohmann_json::nlohmann_json)
      target_compile_definitions(${test} PRIVATE WEFT_HAS_JSON=1)
    endif()
    # --as-needed: a test that does not call a vendor's library does not load it
    if(WEFT_OPENCL_TESTS_ENABLED)
      target_link_libraries(${test} PRIVATE -Wl,--as-needed OpenCL::OpenCL)
      target_compile_definitions(${test} PRIVATE WEFT_OPENCL_TESTS=1 CL_TARGET_OPENCL_VERSION=300)
    endif()
    if(WEFT_NVRTC_TESTS_ENABLED)
      target_link_libraries(${test} PRIVATE -Wl,--as-needed CUDA::nvrtc)
      target_compile_definitions(${test} PRIVATE WEFT_NVRTC_TESTS=1)
    endif()
    # PRE_TEST: cases are listed when ctest starts, so a build never runs a program
    set(labels)
    if(folder STREQUAL "virtual_driver")
      add_dependencies(${test} weft_virtual_cuda)
      target_compile_definitions(${test} PRIVATE WEFT_VIRTUAL_CUDA_PATH="$<TARGET_FILE:weft_virtual_cuda>")
      set(labels LABELS virtual_driver)
    endif()
    set(filter)
    if(folder MATCHES "^(cli|examples)$")  # the tool and the examples on the virtual driver have its label too
      set(filter TEST_FILTER "-*virtual_gpu*")
      gtest_discover_tests(${test} DISCOVERY_MODE PRE_TEST TEST_PREFIX ${folder}/ DISCOVERY_TIMEOUT 60
        TEST_FILTER "*virtual_gpu*" TEST_LIST ${test}_on_virtual_gpus
        PROPERTIES TIMEOUT ${weft_test_seconds} LABELS virtual_driver)
    endif()
    gtest_discover_tests(${test} DISCOVERY_MODE PRE_TEST TEST_PREFIX ${folder}/ DISCOVERY_TIMEOUT 60
      ${filter} PROPERTIES TIMEOUT ${weft_test_seconds} ${labels})
  endforeach()
endif()

if(WEFT_FUZZ)
  file(GLOB sources CONFIGURE_DEPENDS tests/fuzz/*.cpp)
  set(weft_fuzzers)
  foreach(source IN LISTS sources)
    get_filename_component(name ${source} NAME_WE)
    add_executable(${name} ${source})
    weft_flags(${name})
    target_include_directories(${name} PRIVATE src tests)
    target_link_libraries(${name} PRIVATE weft)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fuzz)
    list(APPEND weft_fuzzers ${name})
  endforeach()
  add_custom_target(fuzzers DEPENDS ${weft_fuzzers})
endif()

# ---- the model checker, once: not under sanitizers, which do not follow its fibres ------------------------------------

if(WEFT_TESTS_ENABLED AND NOT WEFT_SANITIZE)
  find_path(WEFT_RELACY_INCLUDE_DIR relacy/relacy.hpp)
  find_package(Python3 QUIET COMPONENTS Interpreter)
  if(NOT WEFT_RELACY_INCLUDE_DIR)
    message(STATUS "  tests/model off: no relacy/relacy.hpp (relacy-dev)")
  elseif(NOT Python3_FOUND)
    message(STATUS "  tests/model off: no python3")
  else()
    set(model ${CMAKE_CURRENT_SOURCE_DIR}/tests/model)
    set(mutated ${generated}/model)
    file(MAKE_DIRECTORY ${mutated})
    add_custom_command(
      OUTPUT ${mutated}/ring_mutated.h ${mutated}/ring_mutants.inc
      COMMAND Python3::Interpreter ${model}/mutate.py ${CMAKE_CURRENT_SOURCE_DIR}/include/weft/kernel/ring.h
              ${model}/ring_mutants.txt ${mutated}/ring_mutated.h ${mutated}/ring_mutants.inc
      DEPENDS include/weft/kernel/ring.h ${model}/mutate.py ${model}/ring_mutants.txt
      COMMENT "Mutating the ring" VERBATIM)
    add_custom_target(weft_ring_mutated DEPENDS ${mutated}/ring_mutated.h)
    add_dependencies(weft_generated weft_ring_mutated)
    add_executable(weft_model_ring ${model}/ring_model.cpp)
    add_executable(weft_model_ring_mutants ${model}/ring_model.cpp
      ${mutated}/ring_mutated.h ${mutated}/ring_mutants.inc)
    add_dependencies(weft_model_ring_mutants weft_ring_mutated)
    target_compile_definitions(weft_model_ring_mutants PRIVATE WEFT_RING_MUTATED=1)
    target_include_directories(weft_model_ring_mutants PRIVATE ${mutated})
    foreach(program weft_model_ring weft_model_ring_mutants)
      weft_flags(${program})
      target_include_directories(${program} PRIVATE include)
      target_include_directories(${program} SYSTEM PRIVATE ${WEFT_RELACY_INCLUDE_DIR})
      target_compile_options(${program} PRIVATE -O2)  # searches, in every build
    endforeach()
    add_test(NAME model/ring COMMAND weft_model_ring)
    add_test(NAME model/mutants COMMAND weft_model_ring_mutants mutants)
    set_tests_properties(model/ring model/mutants PROPERTIES LABELS model TIMEOUT 600)
  endif()
endif()

# ---- checks of the tree, once: not under sanitizers -------------------------------------------------------------------

if(WEFT_SANITIZE)
  return()
endif()
set(scripts ${CMAKE_CURRENT_SOURCE_DIR}/scripts)

# the script for a machine with a GPU, tried out where there is none
if(TARGET weft_conform AND TARGET weft_virtual_cuda AND TARGET bench_backend_gpu)
  add_test(NAME gpu_check_runs_to_its_end_on_the_virtual_driver
    COMMAND ${scripts}/gpu-check --virtual --build ${CMAKE_CURRENT_BINARY_DIR} --out ${CMAKE_CURRENT_BINARY_DIR}/gpu_check)
  set_tests_properties(gpu_check_runs_to_its_end_on_the_virtual_driver PROPERTIES LABELS virtual_driver TIMEOUT 900)
endif()

add_test(NAME an_installed_weft_builds_and_runs_a_consumer
  COMMAND ${scripts}/check-consumer ${CMAKE_CURRENT_BINARY_DIR} ${CMAKE_CXX_COMPILER})
set_tests_properties(an_installed_weft_builds_and_runs_a_consumer PROPERTIES LABELS checks TIMEOUT 300)

if(WEFT_TESTS_ENABLED)
  find_package(Python3 QUIET COMPONENTS Interpreter)
  if(Python3_FOUND)
    add_test(NAME check_layers COMMAND ${scripts}/check-layers)
    add_test(NAME check_layers_detects_a_violation COMMAND ${scripts}/check-layers-test)
    add_test(NAME check_names COMMAND ${scripts}/check-names)
    add_test(NAME check_names_detects_one_name_for_two_types COMMAND ${scripts}/check-names-test)
    set_tests_properties(check_layers check_layers_detects_a_violation check_names
      check_names_detects_one_name_for_two_types PROPERTIES LABELS checks TIMEOUT 60)
    add_test(NAME check_queue_code COMMAND ${scripts}/check-queue-code ${generated}/include)
    add_test(NAME check_queue_code_detects_what_costs_too_much
      COMMAND ${scripts}/check-queue-code-test ${generated}/include)
    set_tests_properties(check_queue_code check_queue_code_detects_what_costs_too_much
      PROPERTIES LABELS checks TIMEOUT 300 SKIP_RETURN_CODE 77)
  endif()
  add_test(NAME check_headers COMMAND ${scripts}/check-headers ${generated}/include)
  set_tests_properties(check_headers PROPERTIES LABELS checks TIMEOUT 1800 PROCESSORS 2)  # a compiler for each core
  foreach(check check_nvcc check_clang_devices)
    string(REPLACE "_" "-" script ${check})
    add_test(NAME ${check} COMMAND ${scripts}/${script})
    set_tests_properties(${check} PROPERTIES LABELS checks TIMEOUT 300 SKIP_RETURN_CODE 77)
  endforeach()
  if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/README.md)
    add_test(NAME the_first_program_of_the_readme_prints_what_the_readme_says
      COMMAND ${scripts}/check-readme ${CMAKE_CURRENT_SOURCE_DIR}/README.md ${CMAKE_CXX_COMPILER}
              $<TARGET_FILE:weft> ${CMAKE_CURRENT_SOURCE_DIR}/include ${generated}/include)
    set_tests_properties(the_first_program_of_the_readme_prints_what_the_readme_says
      PROPERTIES LABELS checks TIMEOUT 120)
    add_test(NAME each_program_of_the_queue_page_prints_what_the_page_says
      COMMAND ${scripts}/check-readme ${CMAKE_CURRENT_SOURCE_DIR}/docs/queues.md ${CMAKE_CXX_COMPILER}
              $<TARGET_FILE:weft> ${CMAKE_CURRENT_SOURCE_DIR}/include ${generated}/include)
    set_tests_properties(each_program_of_the_queue_page_prints_what_the_page_says
      PROPERTIES LABELS checks TIMEOUT 120)
    add_test(NAME each_program_of_the_profiling_page_prints_what_the_page_says
      COMMAND ${scripts}/check-readme ${CMAKE_CURRENT_SOURCE_DIR}/docs/profiling.md ${CMAKE_CXX_COMPILER}
              $<TARGET_FILE:weft> ${CMAKE_CURRENT_SOURCE_DIR}/include ${generated}/include)
    set_tests_properties(each_program_of_the_profiling_page_prints_what_the_page_says
      PROPERTIES LABELS checks TIMEOUT 120)
  endif()
endif()
