# SPDX-License-Identifier: Apache-2.0
# One executable per folder of tests/, each case a ctest entry; and the checks of the tree.

set(weft_test_seconds 600)  # nothing but a hang comes to it: PoCL alone compiles for two minutes on a busy machine

if(TARGET weft_conform)
  add_test(NAME weft_conform COMMAND weft_conform)
  set_tests_properties(weft_conform PROPERTIES TIMEOUT 600)
endif()

set(weft_test_speed -O0)  # tests are compiled more often than they run

set(WEFT_TEST_FOLDERS "" CACHE STRING "folders of tests/ to build; empty: all")

add_custom_target(weft_generated)  # what tests include and a build makes: for scripts/check-clang

# ---- cases -----------------------------------------------------------------------------------------------------------

if(WEFT_TESTS_ENABLED OR WEFT_VIRTUAL_DRIVER)
  include(cmake/virtual_driver.cmake)
endif()

if(WEFT_TESTS_ENABLED)
  include(GoogleTest)
  # what tests share, and the headers that are read once for all of them; the builds without WEFT_UNITY show that each
  # file includes what it needs
  add_library(weft_test_support STATIC tests/support/data.cpp tests/support/paths.cpp tests/support/rank_data.cpp)
  weft_flags(weft_test_support)
  target_compile_options(weft_test_support PRIVATE ${weft_test_speed})
  # what fills and compares large arrays again and again
  set_source_files_properties(tests/support/data.cpp tests/support/rank_data.cpp PROPERTIES COMPILE_OPTIONS -O2 SKIP_PRECOMPILE_HEADERS ON)
  target_include_directories(weft_test_support PUBLIC tests src)
  target_link_libraries(weft_test_support PUBLIC weft GTest::gtest)
  target_precompile_headers(weft_test_support PRIVATE
    <gtest/gtest.h> <algorithm> <array> <atomic> <chrono> <condition_variable> <deque> <filesystem> <fstream>
    <functional> <future> <map> <memory> <mutex> <numeric> <optional> <random> <set> <sstream> <string> <thread> <vector>
    <support/samples.hpp>)  # by its path in this checkout the compiler cache could not use it in another one
  set(tool)
  set(driver)
  if(TARGET weft_cli)
    set(tool $<TARGET_FILE:weft_cli>)
  endif()
  if(TARGET weft_virtual_cuda)
    set(driver $<TARGET_FILE:weft_virtual_cuda>)
    set(runtime $<TARGET_FILE:weft_virtual_hip>)
  endif()
  set_source_files_properties(tests/support/paths.cpp PROPERTIES COMPILE_DEFINITIONS
    "WEFT_SOURCE_DIR=\"${CMAKE_CURRENT_SOURCE_DIR}\";WEFT_BINARY_DIR=\"${CMAKE_CURRENT_BINARY_DIR}\";WEFT_BIN_DIR=\"${CMAKE_RUNTIME_OUTPUT_DIRECTORY}\";WEFT_TOOL_PATH=\"${tool}\";WEFT_VIRTUAL_CUDA_PATH=\"${driver}\";WEFT_VIRTUAL_HIP_PATH=\"${runtime}\"")

  # The CUDA backend declares the driver itself; where the toolkit's header is, a test holds the two against each other.
  if(WEFT_CUDA_ENABLED)
    find_package(CUDAToolkit QUIET)
    find_path(WEFT_CUDA_HEADER_DIR cuda.h HINTS ${CUDAToolkit_INCLUDE_DIRS} NO_DEFAULT_PATH)
    mark_as_advanced(WEFT_CUDA_HEADER_DIR)
    if(NOT WEFT_CUDA_HEADER_DIR)
      message(STATUS "  tests/backend/cuda_declarations_test.cpp off: no cuda.h (the CUDA toolkit)")
    endif()
  endif()

  # The same of HIP, whose header is of ROCm, or was brought by scripts/hip-headers.
  if(WEFT_HIP_ENABLED)
    find_path(WEFT_HIP_HEADER_DIR hip/hip_runtime_api.h
      HINTS ${CMAKE_CURRENT_SOURCE_DIR}/build/hip_headers/7.1 $ENV{ROCM_PATH}/include /opt/rocm/include NO_DEFAULT_PATH)
    mark_as_advanced(WEFT_HIP_HEADER_DIR)
    if(NOT WEFT_HIP_HEADER_DIR)
      message(STATUS "  tests/backend/hip_declarations_test.cpp off: no hip_runtime_api.h (ROCm, or scripts/hip-headers)")
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
       OR (folder STREQUAL "guide" AND NOT TARGET weft_guide)
       OR (folder STREQUAL "virtual_driver" AND WEFT_SANITIZE) OR folder MATCHES "\\.cpp$|^fuzz$")
      continue()
    endif()
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS tests/${folder}/*.cpp)
    if(folder MATCHES "^(conformance|virtual_driver)$")
      list(FILTER sources INCLUDE REGEX "_test\\.cpp$")
    endif()
    if(NOT WEFT_CUDA_ENABLED)
      list(FILTER sources EXCLUDE REGEX
        "/tests/((backend|collective)/(gpu|cuda)|virtual_driver/(conformance|isolation)|(cli|examples)/virtual_gpu)_")
    endif()
    if(NOT WEFT_CUDA_ENABLED OR NOT WEFT_HIP_ENABLED)
      list(FILTER sources EXCLUDE REGEX
        "/tests/(compat/hip|virtual_driver/(hip|conformance|failing_calls)|(cli|examples)/virtual_gpu)_")
    endif()
    if(NOT WEFT_CUDA_HEADER_DIR)
      list(FILTER sources EXCLUDE REGEX "/tests/backend/cuda_declarations_")
    endif()
    if(NOT WEFT_HIP_HEADER_DIR)
      list(FILTER sources EXCLUDE REGEX "/tests/backend/hip_declarations_")
    endif()
    if(NOT WEFT_HIP_ENABLED)
      list(FILTER sources EXCLUDE REGEX "/tests/backend/gpu_hiprtc_")
    endif()
    if(NOT WEFT_OPENCL_ENABLED)
      list(FILTER sources EXCLUDE REGEX "/tests/(backend|collective)/opencl_")
    endif()
    if(WEFT_SANITIZE)
      # NVRTC is a vendor's compiler, for a minute. What runs on the virtual driver is left out: that is not instrumented,
      # so ThreadSanitizer does not see what it orders, and what it keeps after a reset counts as leaked. gpu_driver,
      # discovery and memory tests play the driver in place, and the scheduler that CUDA shares has tests of its own.
      list(FILTER sources EXCLUDE REGEX
        "/tests/(backend/gpu_(adopted_stream|closed_in_use|conformance|copy|faults|health|launch|machine|multicast|nvrtc|partition|queue|stream)|collective/((gpu|opencl)_failing_allocation|gpu_rank_communicator))_")
    endif()
    set(test weft_tests_${folder})
    # with macros of their own for a vendor's header, or others where its toolkit is installed
    set(alone ${sources})
    list(FILTER alone INCLUDE REGEX "/(cuda_declarations|gpu_hiprtc|gpu_nvrtc|hip_declarations|nvrtc|opencl|opencl_ring)_test\\.cpp$")
    list(FILTER sources EXCLUDE REGEX "/(cuda_declarations|gpu_hiprtc|gpu_nvrtc|hip_declarations|nvrtc|opencl|opencl_ring)_test\\.cpp$")
    # compiled as users have them: what becomes of kernels on the host, and the queue where threads race for long
    set(optimised ${sources})
    list(FILTER optimised INCLUDE REGEX "/tests/(kernel/|channel/queue_soak_)")
    list(FILTER sources EXCLUDE REGEX "/tests/(kernel/|channel/queue_soak_)")
    weft_units(sources cases ${sources})
    weft_units(optimised optimised ${optimised})
    if(optimised)
      set_property(SOURCE ${optimised} APPEND PROPERTY COMPILE_OPTIONS $<$<CONFIG:Release>:-O2>)
      set_source_files_properties(${optimised} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
    endif()
    add_executable(${test} ${sources} ${optimised} ${alone})
    weft_flags(${test})
    target_compile_options(${test} PRIVATE ${weft_test_speed})
    target_precompile_headers(${test} REUSE_FROM weft_test_support)
    target_include_directories(${test} PRIVATE src tests)
    target_link_libraries(${test} PRIVATE weft GTest::gtest GTest::gtest_main)
    if(folder MATCHES "^(backend|cli|collective|compat|examples|virtual_driver)$" AND TARGET weft_virtual_cuda)
      add_dependencies(${test} weft_virtual_cuda weft_virtual_hip)
    endif()
    if(WEFT_CUDA_HEADER_DIR AND alone)
      set_source_files_properties(${alone} PROPERTIES INCLUDE_DIRECTORIES ${WEFT_CUDA_HEADER_DIR})
    endif()
    if(folder STREQUAL "virtual_driver" AND TARGET weft_conform)
      add_dependencies(${test} weft_conform)
    endif()
    set(of_hip ${alone})
    list(FILTER of_hip INCLUDE REGEX "/hip_declarations_")
    if(of_hip)
      set_source_files_properties(${of_hip} PROPERTIES INCLUDE_DIRECTORIES "" SKIP_PRECOMPILE_HEADERS ON
        COMPILE_OPTIONS "-isystem${WEFT_HIP_HEADER_DIR}")
    endif()
    foreach(part weft_test_support weft_conformance)
      if(TARGET ${part})
        target_link_libraries(${test} PRIVATE ${part})
      endif()
    endforeach()
    if(folder STREQUAL "cli")
      target_link_libraries(${test} PRIVATE weft_tool)
      # what profilers of the vendors put into a process, under the names by which that is found
      foreach(tool nvtx roctx)
        add_library(weft_${tool}_tool MODULE tests/profilers/${tool}_tool.cpp)
        weft_flags(weft_${tool}_tool)
        set_target_properties(weft_${tool}_tool PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/lib/profilers)
        add_dependencies(${test} weft_${tool}_tool)
      endforeach()
      set_target_properties(weft_roctx_tool PROPERTIES OUTPUT_NAME rocprofiler-sdk-roctx SUFFIX .so.1)
    endif()
    if(folder STREQUAL "guide")
      target_link_libraries(${test} PRIVATE weft_guide)
    endif()
    if(folder STREQUAL "examples")
      target_link_libraries(${test} PRIVATE weft_images PNG::PNG TurboJPEG::TurboJPEG)
    endif()
    if(TARGET weft_cli AND folder MATCHES "^(cli|examples)$")
      add_dependencies(${test} weft_cli)
    endif()
    if(folder STREQUAL "examples")
      add_dependencies(${test} image_pipeline)
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
      # by its path: the target would put the toolkit's headers before every file, and no compiler cache knew one again
      target_link_libraries(${test} PRIVATE -Wl,--as-needed ${CUDA_nvrtc_LIBRARY})
    endif()
    # PRE_TEST: cases are listed when ctest starts, so a build never runs a program
    set(labels)
    if(folder STREQUAL "virtual_driver")
      set(labels LABELS virtual_driver)
    endif()
    set(filter)
    if(folder STREQUAL "virtual_driver")  # hours, which scripts/nightly starts
      set(filter TEST_FILTER "-*virtual_*_sweep*")
    endif()
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
    # one program for both: with no mutant chosen, the copy is the header
    add_executable(weft_model_ring ${model}/ring_model.cpp ${mutated}/ring_mutated.h ${mutated}/ring_mutants.inc)
    add_dependencies(weft_model_ring weft_ring_mutated)
    weft_flags(weft_model_ring)
    target_compile_definitions(weft_model_ring PRIVATE WEFT_RING_MUTATED=1)
    target_include_directories(weft_model_ring PRIVATE ${mutated} include)
    target_include_directories(weft_model_ring SYSTEM PRIVATE ${WEFT_RELACY_INCLUDE_DIR})
    # -O1: it searches, in every build. Its fibres jump from stack to stack, which Ubuntu's fortified longjmp refuses.
    target_compile_options(weft_model_ring PRIVATE -O1 -U_FORTIFY_SOURCE)
    add_test(NAME model/ring COMMAND weft_model_ring)
    add_test(NAME model/mutants COMMAND weft_model_ring mutants)
    set_tests_properties(model/ring model/mutants PROPERTIES LABELS model TIMEOUT 600)
  endif()
endif()

# ---- checks of the tree, once: not under sanitizers -------------------------------------------------------------------

if(WEFT_SANITIZE)
  return()
endif()
include(cmake/probe.cmake)
set(scripts ${CMAKE_CURRENT_SOURCE_DIR}/scripts)

# the script for a machine with a GPU, tried out where there is none
if(TARGET weft_conform AND TARGET weft_virtual_cuda AND TARGET bench_backend_gpu)
  add_test(NAME gpu_check_runs_to_its_end_on_the_virtual_driver
    COMMAND ${scripts}/gpu-check --virtual --build ${CMAKE_CURRENT_BINARY_DIR} --out ${CMAKE_CURRENT_BINARY_DIR}/gpu_check)
  add_test(NAME gpu_check_runs_to_its_end_on_the_virtual_hip_runtime
    COMMAND ${scripts}/gpu-check --virtual --backend hip --build ${CMAKE_CURRENT_BINARY_DIR}
            --out ${CMAKE_CURRENT_BINARY_DIR}/gpu_check_hip)
  add_test(NAME gpu_check_comes_back_with_a_report_from_hangs_and_faults
    COMMAND ${scripts}/gpu-check-test ${CMAKE_CURRENT_BINARY_DIR})
  set_tests_properties(gpu_check_runs_to_its_end_on_the_virtual_driver gpu_check_comes_back_with_a_report_from_hangs_and_faults
    gpu_check_runs_to_its_end_on_the_virtual_hip_runtime PROPERTIES LABELS "virtual_driver;bench" TIMEOUT 900 COST 100)
endif()

weft_check(an_installed_weft_builds_and_runs_a_consumer
  COMMAND ${scripts}/check-consumer ${CMAKE_CURRENT_BINARY_DIR} ${CMAKE_CXX_COMPILER})

if(NOT WEFT_TESTS_ENABLED)
  return()
endif()

set(no_python)
find_package(Python3 QUIET COMPONENTS Interpreter)
if(NOT Python3_FOUND)
  set(no_python "no python3")
endif()
weft_check(check_layers WHY_NOT ${no_python} COMMAND ${scripts}/check-layers)
weft_check(check_layers_detects_a_violation WHY_NOT ${no_python} COMMAND ${scripts}/check-layers-test)
weft_check(check_names WHY_NOT ${no_python} COMMAND ${scripts}/check-names)
weft_check(check_names_detects_one_name_for_two_types WHY_NOT ${no_python} COMMAND ${scripts}/check-names-test)
weft_check(check_docs WHY_NOT ${no_python} COMMAND ${scripts}/check-docs)
weft_check(check_performance_page WHY_NOT ${no_python} COMMAND ${scripts}/bench-table --check)
weft_check(check_docs_detects_a_link_that_leads_nowhere WHY_NOT ${no_python} COMMAND ${scripts}/check-docs-test)
weft_check(check_queue_code WHY_NOT ${no_python} COMMAND ${scripts}/check-queue-code ${generated}/include)
weft_check(check_queue_code_detects_what_costs_too_much WHY_NOT ${no_python}
  COMMAND ${scripts}/check-queue-code-test ${generated}/include)
weft_check(mutate_changes_code_and_nothing_else WHY_NOT ${no_python} COMMAND ${scripts}/mutate-test)
weft_check(probes_say_why_a_tool_is_not_used COMMAND ${scripts}/check-probes-test)

weft_probe(weft_clang_for_headers CANDIDATES clang++-19 clang++ PROBES source_location.cpp)
weft_check(check_headers_with_gcc COMMAND ${scripts}/check-headers g++ ${generated}/include
  PROPERTIES TIMEOUT 1800 PROCESSORS 2 COST 1000)  # a compiler for each core, before the rest
weft_check(check_headers_with_clang WHY_NOT ${weft_clang_for_headers_WHY}
  COMMAND ${scripts}/check-headers "${weft_clang_for_headers}" ${generated}/include
  PROPERTIES TIMEOUT 1800 PROCESSORS 2 COST 1000)

weft_probe(weft_clang_for_devices CANDIDATES clang-19 clang PROBES amd_gpu.hip opencl.cl)
weft_check(check_clang_devices WHY_NOT ${weft_clang_for_devices_WHY}
  COMMAND ${scripts}/check-clang-devices "${weft_clang_for_devices}" ${generated}/include)
weft_check(check_nvcc COMMAND ${scripts}/check-nvcc --build ${CMAKE_CURRENT_BINARY_DIR} PROPERTIES TIMEOUT 600 COST 100)
weft_check(check_hip_bindings COMMAND ${scripts}/check-hip-bindings)
weft_check(check_umbrella COMMAND ${scripts}/check-umbrella ${CMAKE_CXX_COMPILER} ${generated}/include)

foreach(page README.md docs/tutorial/first-copy.md docs/tutorial/four-devices.md docs/tutorial/all-reduce.md
        docs/reference/queues.md)
  get_filename_component(name ${page} NAME_WE)
  string(REPLACE "-" "_" name ${name})
  weft_check(each_program_of_${name}_prints_what_the_page_says
    COMMAND ${scripts}/check-readme ${CMAKE_CURRENT_SOURCE_DIR}/${page} ${CMAKE_CXX_COMPILER}
            $<TARGET_FILE:weft> ${CMAKE_CURRENT_SOURCE_DIR}/include ${generated}/include)
endforeach()
