// SPDX-License-Identifier: Apache-2.0
#include "distributed/mpi/mpi_library.hpp"

#include "core/errors/make_error.hpp"

#include <dlfcn.h>
#include <mutex>
#include <optional>
#include <string_view>
#include <type_traits>

namespace weft::detail::mpi {
namespace {

struct found {
  library calls;
  std::string missing;
};

/// Where to look: in what the program is linked with, or in what was opened for a part of it alone (as Python does).
std::optional<void*> loaded() {
  if (::dlsym(RTLD_DEFAULT, "MPI_Initialized") != nullptr) return RTLD_DEFAULT;
  for (const char* file : {"libmpi.so.40", "libmpi_abi.so.1", "libmpi_abi.so.0", "libmpi.so.12", "libmpich.so.12"})
    if (void* handle = ::dlopen(file, RTLD_LAZY | RTLD_NOLOAD)) return handle;
  return std::nullopt;
}

// Numbers: mpi.h of Open MPI 4.1, of MPICH 4.0, and of the MPI Forum's ABI stubs. Types: int8 to int64, uint8 to
// uint64, float, double; operations: sum, product, min, max.
void take_constants(library& made, void* from, const char* file) {
  if (void* world = ::dlsym(from, "ompi_mpi_comm_world")) {
    const auto named = [&](const std::string& name) {
      return reinterpret_cast<handle>(::dlsym(from, ("ompi_mpi_" + name).c_str()));
    };
    made.world = reinterpret_cast<handle>(world);
    made.byte = named("byte");
    made.errors_return = named("errors_return");
    made.types = {named("int8_t"),
                  named("int16_t"),
                  named("int32_t"),
                  named("int64_t"),
                  named("uint8_t"),
                  named("uint16_t"),
                  named("uint32_t"),
                  named("uint64_t"),
                  0,
                  0,
                  named("float"),
                  named("double")};
    made.ops = {named("op_sum"), named("op_prod"), named("op_min"), named("op_max")};
  } else if (std::string_view{file}.find("libmpi_abi") != std::string_view::npos) {
    made.world = 0x101;
    made.byte = 0x247;
    made.errors_return = 0x143;
    made.types = {0x240, 0x248, 0x250, 0x258, 0x241, 0x249, 0x251, 0x259, 0, 0, 0x210, 0x214};
    made.ops = {0x21, 0x24, 0x22, 0x23};
    made.thread_multiple = 4096;
  } else {
    made.world = 0x44000000;
    made.byte = 0x4c00010d;
    made.errors_return = 0x54000001;
    made.types = {0x4c000137, 0x4c000238, 0x4c000439, 0x4c00083a, 0x4c00013b, 0x4c00023c,
                  0x4c00043d, 0x4c00083e, 0,          0,          0x4c00040a, 0x4c00080b};
    made.ops = {0x58000003, 0x58000004, 0x58000002, 0x58000001};
    made.handle_bytes = sizeof(int);
    made.any_source = -2;
  }
}

found look() {
  found made;
  const std::optional<void*> where = loaded();
  if (!where) {
    made.missing = "this process has opened no MPI";
    return made;
  }
  void* const from = *where;
  const auto find = [&](auto& call, const char* name) {
    void* at = ::dlsym(from, name);
    if (at == nullptr) made.missing = std::string{"the MPI of this process has no "} + name + ": MPI 3 is needed";
    call = reinterpret_cast<std::remove_reference_t<decltype(call)>>(at);
  };
  library& l = made.calls;
  find(l.query_thread, "MPI_Query_thread");
  find(l.initialized, "MPI_Initialized");
  find(l.finalized, "MPI_Finalized");
  find(l.comm_idup, "MPI_Comm_idup");
  find(l.comm_free, "MPI_Comm_free");
  find(l.comm_rank, "MPI_Comm_rank");
  find(l.comm_size, "MPI_Comm_size");
  find(l.comm_set_errhandler, "MPI_Comm_set_errhandler");
  find(l.isend, "MPI_Isend");
  find(l.irecv, "MPI_Irecv");
  find(l.iallgather, "MPI_Iallgather");
  find(l.iallreduce, "MPI_Iallreduce");
  find(l.ireduce, "MPI_Ireduce");
  find(l.ireduce_scatter, "MPI_Ireduce_scatter");
  find(l.ibcast, "MPI_Ibcast");
  find(l.iallgatherv, "MPI_Iallgatherv");
  find(l.igatherv, "MPI_Igatherv");
  find(l.iscatterv, "MPI_Iscatterv");
  find(l.ialltoallv, "MPI_Ialltoallv");
  find(l.test, "MPI_Test");
  find(l.cancel, "MPI_Cancel");
  find(l.test_cancelled, "MPI_Test_cancelled");
  find(l.get_count, "MPI_Get_count");
  find(l.error_string, "MPI_Error_string");
  find(l.get_library_version, "MPI_Get_library_version");
  if (!made.missing.empty()) return made;
  Dl_info about{};
  const bool is_known = ::dladdr(reinterpret_cast<void*>(l.initialized), &about) != 0 && about.dli_fname != nullptr;
  take_constants(l, from, is_known ? about.dli_fname : "");
  std::array<char, 8192> text{};
  int length = 0;
  l.get_library_version(text.data(), &length);
  const std::string_view whole{text.data()};
  l.name = whole.substr(0, whole.find_first_of(",\n"));
  for (char& c : l.name)
    if (c == '\t' || c == ':') c = ' ';
  return made;
}

}  // namespace

std::string library::text_of(int failed) const {
  std::array<char, 8192> text{};
  int length = 0;
  if (error_string(failed, text.data(), &length) != success) return "error " + std::to_string(failed);
  return text.data();
}

result<const library*> running() {
  static std::mutex mutex;
  static found last;
  const std::lock_guard lock{mutex};
  if (last.calls.name.empty()) last = look();  // it may have come since
  if (!last.missing.empty()) return make_error(errc::not_found, last.missing);
  int is_begun = 0;
  int is_over = 0;
  last.calls.initialized(&is_begun);
  last.calls.finalized(&is_over);
  if (is_begun == 0 || is_over != 0) {
    return make_error(errc::not_found, last.calls.name +
                                           (is_over != 0 ? " has been finalized" : " is not initialized") +
                                           ": a world is joined between MPI_Init and MPI_Finalize");
  }
  return &last.calls;
}

}  // namespace weft::detail::mpi
