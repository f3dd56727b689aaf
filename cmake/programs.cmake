# SPDX-License-Identifier: Apache-2.0
# The conformance suite, the tool, the examples and the benchmarks. A folder that does not exist adds nothing.

# ---- conformance: a library for the tool and the tests, and a runner that needs nothing else ------------------------

file(GLOB sources CONFIGURE_DEPENDS tests/conformance/*.cpp)
list(FILTER sources EXCLUDE REGEX "(_test|/main)\\.cpp$")
if(sources)
  # no sentence of it depends on speed; what makes and compares every byte took most of the time of all of them
  set(tools ${PROJECT_SOURCE_DIR}/tests/conformance/case_tools.cpp)
  list(REMOVE_ITEM sources ${tools})
  weft_units(sources conformance ${sources})
  add_library(weft_conformance STATIC ${sources} ${tools})
  weft_flags(weft_conformance)
  target_compile_options(weft_conformance PRIVATE $<$<CONFIG:Release>:-O0>)
  set_source_files_properties(${tools} PROPERTIES COMPILE_OPTIONS $<$<CONFIG:Release>:-O2>)
  target_include_directories(weft_conformance PUBLIC tests)
  target_link_libraries(weft_conformance PUBLIC weft)
  if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/tests/conformance/main.cpp)
    add_executable(weft_conform tests/conformance/main.cpp)
    weft_flags(weft_conform)
    set_target_properties(weft_conform PROPERTIES OUTPUT_NAME weft-conform)
    target_link_libraries(weft_conform PRIVATE weft_conformance)
  endif()
endif()

# ---- images: what the tool's demo and the example share --------------------------------------------------------------

if(WEFT_CLI_ENABLED OR WEFT_IMAGES_ENABLED)
  file(GLOB sources CONFIGURE_DEPENDS examples/image_pipeline/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/main\\.cpp$")
  if(sources)
    weft_units(sources images ${sources})
    add_library(weft_images STATIC ${sources})
    weft_flags(weft_images)
    target_include_directories(weft_images PUBLIC examples)
    target_link_libraries(weft_images PUBLIC weft PRIVATE PNG::PNG TurboJPEG::TurboJPEG)
  endif()
endif()

# ---- the tool: everything but main.cpp is a library, so that its tests can link it -----------------------------------

if(WEFT_CLI_ENABLED)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS tools/weft/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/main\\.cpp$")
  if(sources AND EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/tools/weft/main.cpp)
    # as fast as the library are only the loops that measure it
    set(measuring ${sources})
    list(FILTER measuring INCLUDE REGEX "/([a-z]+_bench|collective_work|copy_patterns|copy_ways|process_ring|queue_kernels)\\.cpp$")
    list(REMOVE_ITEM sources ${measuring})
    weft_units(sources tool ${sources})
    weft_units(measuring measuring ${measuring})
    set_property(SOURCE ${sources} APPEND PROPERTY COMPILE_OPTIONS $<$<CONFIG:Release>:-O1>
      $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)  # which g++ 12 sees in empty optionals at -O1
    set_source_files_properties(${sources} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)  # one is made with one optimisation
    add_library(weft_tool STATIC ${sources} ${measuring})
    weft_flags(weft_tool)
    target_precompile_headers(weft_tool PRIVATE
      <fmt/format.h> <algorithm> <array> <chrono> <functional> <map> <memory> <optional> <string> <thread> <vector>)
    target_include_directories(weft_tool PUBLIC tools/weft PRIVATE src)  # declarations of NVML, which the backend has
    target_link_libraries(weft_tool
      PUBLIC weft fmt::fmt nlohmann_json::nlohmann_json CLI11::CLI11 PNG::PNG TurboJPEG::TurboJPEG)
    foreach(part weft_conformance weft_images)
      if(TARGET ${part})
        target_link_libraries(weft_tool PUBLIC ${part})
      endif()
    endforeach()
    add_executable(weft_cli tools/weft/main.cpp)
    weft_flags(weft_cli)
    set_target_properties(weft_cli PROPERTIES OUTPUT_NAME weft)
    target_link_libraries(weft_cli PRIVATE weft_tool)
  endif()
endif()

# ---- examples --------------------------------------------------------------------------------------------------------

if(WEFT_EXAMPLES_ENABLED)
  file(GLOB sources CONFIGURE_DEPENDS examples/*.cpp)
  foreach(source IN LISTS sources)
    get_filename_component(name ${source} NAME_WE)
    add_executable(example_${name} ${source})
    weft_flags(example_${name})
    set_target_properties(example_${name} PROPERTIES OUTPUT_NAME ${name})
    target_link_libraries(example_${name} PRIVATE weft)
  endforeach()
  if(WEFT_IMAGES_ENABLED AND EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/examples/image_pipeline/main.cpp)
    add_executable(image_pipeline examples/image_pipeline/main.cpp)
    weft_flags(image_pipeline)
    target_link_libraries(image_pipeline PRIVATE weft_images)
  endif()
endif()

# ---- benchmarks: bench/<layer>/<noun>_bench.cpp is bench_<layer>_<noun>; other files of bench/ are shared ------------

if(WEFT_BENCH_ENABLED)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS bench/*.cpp)
  if(NOT WEFT_OPENCL_ENABLED)
    list(FILTER sources EXCLUDE REGEX "/opencl_[^/]*$")
  endif()
  set(shared ${sources})
  list(FILTER shared EXCLUDE REGEX "(_(bench|peer)\\.cpp$)|/guide/")
  list(FILTER sources INCLUDE REGEX "_bench\\.cpp$")
  if(shared)
    add_library(weft_bench_support STATIC ${shared})
    weft_flags(weft_bench_support)
    set_source_files_properties(bench/kernel/plain_loops.cpp PROPERTIES COMPILE_OPTIONS "-O3;-march=native"
      SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON)
    target_include_directories(weft_bench_support PUBLIC bench)
    target_link_libraries(weft_bench_support PUBLIC weft)
  endif()
  set(weft_benches)
  foreach(source IN LISTS sources)
    file(RELATIVE_PATH name ${CMAKE_CURRENT_SOURCE_DIR}/bench ${source})
    string(REGEX REPLACE "_bench\\.cpp$" "" name ${name})
    string(REPLACE "/" "_" name ${name})
    add_executable(bench_${name} ${source})
    weft_flags(bench_${name})
    target_include_directories(bench_${name} PRIVATE bench src)
    target_link_libraries(bench_${name} PRIVATE weft)
    if(shared)
      target_link_libraries(bench_${name} PRIVATE weft_bench_support)
    endif()
    if(name STREQUAL guide_guide)
      # its tables are a library, so that a test can link them; and what the page says of them is what they are
      add_library(weft_guide STATIC bench/guide/guide_all_reduce.cpp bench/guide/guide_simulation.cpp
                  bench/guide/guide_tables.cpp)
      weft_flags(weft_guide)
      target_include_directories(weft_guide PUBLIC bench PRIVATE src)
      target_link_libraries(weft_guide PUBLIC weft)
      target_link_libraries(bench_${name} PRIVATE weft_guide)
      add_test(NAME guide_page_has_the_lines_that_the_program_prints
               COMMAND bench_${name} --check ${CMAKE_CURRENT_SOURCE_DIR}/docs/explanation/guide.md)
    endif()
    if(name STREQUAL exec_opencl_launch)
      target_include_directories(bench_${name} SYSTEM PRIVATE ${WEFT_CL_INCLUDE_DIR})
    endif()
    if(name STREQUAL exec_launch)
      # a peer for the cost of a launch; without it the benchmark says so and compares with the others
      find_package(PkgConfig QUIET)
      if(PKG_CONFIG_FOUND)
        pkg_check_modules(WEFT_STARPU QUIET IMPORTED_TARGET starpu-1.3)
      endif()
      if(TARGET PkgConfig::WEFT_STARPU)
        target_link_libraries(bench_${name} PRIVATE PkgConfig::WEFT_STARPU)
        target_compile_definitions(bench_${name} PRIVATE WEFT_BENCH_STARPU=1)
      endif()
    endif()
    if(name STREQUAL exec_pipeline)
      find_package(TBB QUIET)  # the same
      if(TARGET TBB::tbb)
        target_link_libraries(bench_${name} PRIVATE TBB::tbb)
        target_compile_definitions(bench_${name} PRIVATE WEFT_BENCH_TBB=1)
      endif()
    endif()
    list(APPEND weft_benches bench_${name})
  endforeach()

  # Ranks of other libraries, programs of their own beside bench_collective_collective, which starts them and names those
  # that are not there. Not bench_…: they do nothing alone.
  function(weft_peer name library)
    set(source ${CMAKE_CURRENT_SOURCE_DIR}/bench/collective/${name}_peer.cpp)
    if(EXISTS ${source} AND TARGET ${library})
      add_executable(peer_${name} ${source} bench/collective/turn.cpp)
      weft_flags(peer_${name})
      target_include_directories(peer_${name} PRIVATE bench)
      target_link_libraries(peer_${name} PRIVATE ${library} Threads::Threads)
      set(weft_benches ${weft_benches} peer_${name} PARENT_SCOPE)
    endif()
  endfunction()
  if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/bench/collective/mpi_peer.cpp)
    find_package(MPI QUIET COMPONENTS CXX)
    find_package(Gloo QUIET)
  endif()
  if(MPI_CXX_FOUND)  # FindMPI makes its targets all the same where it finds nothing
    weft_peer(mpi MPI::MPI_CXX)
  endif()
  weft_peer(gloo gloo)
  # MPICH beside Open MPI, where both are: the same source
  find_path(WEFT_MPICH_INCLUDE mpi.h PATH_SUFFIXES x86_64-linux-gnu/mpich aarch64-linux-gnu/mpich mpich NO_CACHE
            PATHS /usr/include NO_DEFAULT_PATH)
  find_library(WEFT_MPICH_LIBRARY mpich NO_CACHE)
  if(WEFT_MPICH_INCLUDE AND WEFT_MPICH_LIBRARY)
    add_executable(peer_mpich bench/collective/mpi_peer.cpp bench/collective/turn.cpp)
    weft_flags(peer_mpich)
    target_include_directories(peer_mpich PRIVATE bench)
    target_include_directories(peer_mpich SYSTEM PRIVATE ${WEFT_MPICH_INCLUDE})
    target_compile_definitions(peer_mpich PRIVATE MPICH_SKIP_MPICXX)
    target_link_libraries(peer_mpich PRIVATE ${WEFT_MPICH_LIBRARY} Threads::Threads)
    list(APPEND weft_benches peer_mpich)
  endif()

  add_custom_target(benches DEPENDS ${weft_benches})
endif()
