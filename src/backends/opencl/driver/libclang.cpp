// SPDX-License-Identifier: Apache-2.0
#include "backends/opencl/driver/libclang.hpp"

#include "backend/kernels/kernel_text.hpp"
#include "backends/common/compiler_words.hpp"
#include "backends/opencl/factory.hpp"
#include "core/environment.hpp"
#include "core/errors/make_error.hpp"

#include <dlfcn.h>
#include <mutex>
#include <new>
#include <optional>
#include <type_traits>
#include <utility>

namespace weft::opencl {
namespace {

std::shared_ptr<const libclang> open_one(const std::string& name) {
  void* const library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  libclang::functions table{};
  bool is_whole = true;
  const auto find = [&](auto& function, const char* symbol) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, symbol));
    is_whole = is_whole && function != nullptr;
  };
#define WEFT_CLANG_FIND(function) find(table.function, #function);
  WEFT_CLANG_FIND(clang_createIndex)
  WEFT_CLANG_FIND(clang_disposeIndex)
  WEFT_CLANG_FIND(clang_parseTranslationUnit2)
  WEFT_CLANG_FIND(clang_disposeTranslationUnit)
  WEFT_CLANG_FIND(clang_getNumDiagnostics)
  WEFT_CLANG_FIND(clang_getDiagnostic)
  WEFT_CLANG_FIND(clang_disposeDiagnostic)
  WEFT_CLANG_FIND(clang_getDiagnosticSeverity)
  WEFT_CLANG_FIND(clang_formatDiagnostic)
  WEFT_CLANG_FIND(clang_getCString)
  WEFT_CLANG_FIND(clang_disposeString)
#undef WEFT_CLANG_FIND
  // a library that lacks something stays open too: LLVM does not unload well
  return is_whole ? std::make_shared<const libclang>(table, name) : nullptr;
}

/// For an imaginary device that has all extensions.
std::vector<std::string> opencl_options(std::vector<std::string> options) {
  options.insert(options.end(), {"-x", "cl", "--target=spir64", "-fno-caret-diagnostics"});
  return options;
}

result<std::shared_ptr<const libclang>> search(const std::optional<std::string>& named) {
  if (named) {
    if (auto made = open_one(*named); made && made->works()) return made;
    return make_error(errc::unsupported, "WEFT_LIBCLANG is '" + *named + "', which reads no OpenCL C");
  }
  constexpr int newest = 25, oldest = 14;
  std::string without_headers;
  const auto try_one = [&](const std::string& name) -> std::shared_ptr<const libclang> {
    auto made = open_one(name);
    if (made && made->works()) return made;
    if (made) without_headers = name;
    return nullptr;
  };
  for (int version = newest; version >= oldest; --version) {
    const std::string number = std::to_string(version);
    // it looks for its headers beside the path that it was opened by: first where Debian's have theirs
    for (const auto& [before, after] :
         {std::pair{"/usr/lib/llvm-", "/lib/libclang.so.1"}, std::pair{"libclang-", ".so.1"},
          std::pair{"libclang-", ".so.13"}, std::pair{"libclang.so.", ""}}) {
      if (auto made = try_one(before + number + after)) return made;
    }
    std::string own_number = "libclang-" + number;
    own_number.append(".so.").append(number);
    if (auto made = try_one(own_number)) return made;
  }
  if (auto made = try_one("libclang.so.13")) return made;
  return make_error(errc::unsupported,
                    without_headers.empty()
                        ? "there is no libclang of version " + std::to_string(oldest) +
                              " or newer (the package clang of your system), nor named in WEFT_LIBCLANG"
                        : without_headers + " has no headers for OpenCL: install the package clang of its version");
}

}  // namespace

result<std::string> libclang::read(const std::string& text, const std::vector<std::string>& options) const {
  std::vector<const char*> arguments;
  arguments.reserve(options.size());
  for (const std::string& option : options) arguments.push_back(option.c_str());
  constexpr const char* name = "kernel.cl";
  constexpr unsigned with_place = 0x3;  // CXDiagnostic_DisplaySourceLocation | CXDiagnostic_DisplayColumn
  constexpr int error_severity = 3;     // CXDiagnostic_Error; 4 is fatal
  unsaved_file file{name, text.c_str(), text.size()};
  const index all = call_.clang_createIndex(0, 0);
  unit read = nullptr;
  const int failed = call_.clang_parseTranslationUnit2(all, name, arguments.data(), static_cast<int>(arguments.size()),
                                                       &file, 1, 0, &read);
  std::string words;
  for (unsigned n = 0; failed == 0 && n < call_.clang_getNumDiagnostics(read); ++n) {
    const diagnostic one = call_.clang_getDiagnostic(read, n);
    if (call_.clang_getDiagnosticSeverity(one) >= error_severity) {
      const string line = call_.clang_formatDiagnostic(one, with_place);
      const char* const told = call_.clang_getCString(line);
      words += std::string{told == nullptr ? "error: without words" : told} + "\n";
      call_.clang_disposeString(line);
    }
    call_.clang_disposeDiagnostic(one);
  }
  if (failed == 0) call_.clang_disposeTranslationUnit(read);
  call_.clang_disposeIndex(all);
  if (failed != 0)
    return make_error(errc::unsupported, library_ + " reads no OpenCL C (error " + std::to_string(failed) + ")");
  return words;
}

bool libclang::works() const {
  const auto words = read("kernel void nothing(global int* a) { a[get_global_id(0)] = 1; }\n", opencl_options({}));
  return words && words->empty();
}

result<std::shared_ptr<const libclang>> load_libclang() {
  static constinit std::mutex mutex;
  static std::shared_ptr<const libclang> found;
  static std::optional<std::string> found_for;  // the value of WEFT_LIBCLANG then
  const auto named = detail::environment("WEFT_LIBCLANG");
  const std::lock_guard lock{mutex};
  if (found && found_for == named) return found;
  auto made = search(named);
  if (made) {
    found = *made;
    found_for = named;
  }
  return made;
}

result<void> compile(const kernel_code& code) noexcept {
  try {
    const auto clang = load_libclang();
    if (!clang) return error{clang.error()};
    std::string text = kernel_text(code, dialect::opencl);
    if (text.empty())
      return make_error(errc::unsupported, "the raw kernel '" + code.name + "' has no source for OpenCL");
    constexpr int newest_c = 300;
    auto words = (*clang)->read(text, opencl_options(kernel_options(code, dialect::opencl, newest_c)));
    if (!words) return std::move(words).error();
    if (words->empty()) return {};
    return common::does_not_compile(code, "OpenCL by " + (*clang)->library(), *words);
  } catch (const std::bad_alloc&) {
    return no_host_memory();
  }
}

}  // namespace weft::opencl
