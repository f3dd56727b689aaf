// SPDX-License-Identifier: Apache-2.0
// The C interface of clang's library, with declarations of our own: reads OpenCL C where there is no OpenCL driver.
// Source: clang-c/Index.h, clang-c/CXString.h and clang-c/CXDiagnostic.h of LLVM 14 to 19.
#pragma once

#include "weft/core/result.hpp"

#include <memory>
#include <string>
#include <vector>

namespace weft::opencl {

/// Thread: any.
class libclang {
 public:
  struct unsaved_file {
    const char* name;
    const char* contents;
    unsigned long length;
  };
  struct string {
    const void* data;
    unsigned flags;
  };
  using index = void*;
  using unit = void*;
  using diagnostic = void*;
  // NOLINTBEGIN(readability-identifier-naming): the functions of the library keep their names
  struct functions {
    index (*clang_createIndex)(int exclude_declarations, int display);
    void (*clang_disposeIndex)(index);
    int (*clang_parseTranslationUnit2)(index, const char* name, const char* const* arguments, int count,
                                       unsaved_file* files, unsigned file_count, unsigned options, unit* made);
    void (*clang_disposeTranslationUnit)(unit);
    unsigned (*clang_getNumDiagnostics)(unit);
    diagnostic (*clang_getDiagnostic)(unit, unsigned number);
    void (*clang_disposeDiagnostic)(diagnostic);
    int (*clang_getDiagnosticSeverity)(diagnostic);
    string (*clang_formatDiagnostic)(diagnostic, unsigned options);
    const char* (*clang_getCString)(string);
    void (*clang_disposeString)(string);
  };
  // NOLINTEND(readability-identifier-naming)

  libclang(const functions& call, std::string library) : call_(call), library_(std::move(library)) {}

  [[nodiscard]] const std::string& library() const { return library_; }
  /// Whether it finds the headers of its version, without which it reads nothing.
  [[nodiscard]] bool works() const;
  /// The complaints about a text, a line each; empty where there is no error. Errors: unsupported where it reads
  /// nothing.
  [[nodiscard]] result<std::string> read(const std::string& text, const std::vector<std::string>& options) const;

 private:
  functions call_;
  std::string library_;
};

/// The newest one here, or the one that WEFT_LIBCLANG names. The search tries some fifty names and reads a text; its
/// result is kept. Thread: any. Errors: unsupported, with what was looked for.
[[nodiscard]] result<std::shared_ptr<const libclang>> load_libclang();

}  // namespace weft::opencl
