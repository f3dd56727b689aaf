// SPDX-License-Identifier: Apache-2.0
// The run-time compiler: takes CUDA C++, answers an image that this driver loads, or what is wrong with the text.
#include "backends/gpu/cuda/nvrtc_functions.hpp"
#include "virtual_driver/driver/call.hpp"
#include "virtual_driver/driver/compiler.hpp"
#include "virtual_driver/driver/device_text.hpp"
#include "virtual_driver/driver/module.hpp"

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

namespace weft::virtual_cuda {
namespace {

constexpr nvrtcResult invalid_input = 3, invalid_program = 4, invalid_option = 5, no_expressions_now = 8,
                      no_lowered_names_yet = 9, not_a_name = 10;
constexpr int architectures[] = {75, 80, 86, 89, 90, 100, 120};

struct program {
  std::string text, name;
  std::map<std::string, std::string> headers;
  std::vector<std::string> expressions;
  bool compiled = false;
  std::string log;
  std::string image;
  bool is_text = false;
};

handle_table<nvrtcProgram, program>& programs() {
  static auto* const table = new handle_table<nvrtcProgram, program>;
  return *table;
}

template <class F>
nvrtcResult program_call(const char* name, nvrtcProgram handle, bool arguments, F&& f) noexcept {
  const own_work here;
  if (const CUresult code = begin_call(name); code != 0) return code;
  if (!arguments) return invalid_input;
  try {
    const auto p = programs().find(handle);
    return p == nullptr ? invalid_program : f(*p);
  } catch (...) {
    return NVRTC_ERROR_OUT_OF_MEMORY;
  }
}

struct request {
  int architecture = 75;
  bool is_text = true;  // compute_…: PTX; sm_…: a cubin
  std::vector<std::string> for_host;
  bool source_folder = true;  // is searched for what the text includes
};

bool known_architecture(int number) {
  for (const int one : architectures) {
    if (one == number) return true;
  }
  return false;
}

// Options as NVRTC takes them: with one dash or two, the value behind '=' or in the next word.
nvrtcResult read_options(int count, const char* const* options, request& wanted, std::string& log) {
  std::string standard = "c++17";
  for (int n = 0; n < count; ++n) {
    std::string word = options[n];
    const std::size_t dashes = word.rfind("--", 0) == 0 ? 2 : 1;
    std::string name = word.substr(std::min(dashes, word.size()));
    std::string value;
    if (const std::size_t at = name.find('='); at != std::string::npos) {
      value = name.substr(at + 1);
      name.resize(at);
    }
    const auto next = [&] { return !value.empty() || n + 1 >= count ? value : std::string{options[++n]}; };
    if (name == "gpu-architecture" || name == "arch") {
      value = next();
      const bool sm = value.rfind("sm_", 0) == 0;
      if (!sm && value.rfind("compute_", 0) != 0) {
        log = "nvrtc: error: invalid value for --gpu-architecture (-arch)\n";
        return invalid_option;
      }
      wanted.architecture = std::atoi(value.c_str() + (sm ? 3 : 8));
      wanted.is_text = !sm;
      if (!known_architecture(wanted.architecture)) {
        log = "nvrtc: error: invalid value for --gpu-architecture (-arch)\n";
        return invalid_option;
      }
    } else if (name == "std") {
      standard = next();
    } else if (name == "define-macro" || name == "D" || name == "include-path" || name == "I") {
      wanted.for_host.push_back((name[0] == 'd' || name[0] == 'D' ? "-D" : "-I") + next());
    } else if (name == "no-source-include") {
      wanted.source_folder = false;
    } else if (dashes == 1 && (name[0] == 'D' || name[0] == 'I' || name[0] == 'U')) {
      wanted.for_host.push_back(word);
    } else {
      static const std::set<std::string> ignored{"fmad",
                                                 "use_fast_math",
                                                 "ftz",
                                                 "prec-sqrt",
                                                 "prec-div",
                                                 "device-debug",
                                                 "G",
                                                 "generate-line-info",
                                                 "lineinfo",
                                                 "default-device",
                                                 "maxrregcount",
                                                 "restrict",
                                                 "extra-device-vectorization",
                                                 "minimal",
                                                 "relocatable-device-code",
                                                 "rdc",
                                                 "device-c",
                                                 "dc",
                                                 "device-w",
                                                 "dw",
                                                 "disable-warnings",
                                                 "w",
                                                 "Werror",
                                                 "diag-suppress",
                                                 "ptxas-options",
                                                 "Xptxas",
                                                 "time",
                                                 "split-compile",
                                                 "fdevice-syntax-only",
                                                 "dopt",
                                                 "builtin-initialization",
                                                 "no-cache",
                                                 "brief-diagnostics",
                                                 "diag-error"};
      if (!ignored.contains(name)) {
        log = "nvrtc: error: unrecognized option " + word + " found\n";
        return invalid_option;
      }
      if (name == "Xptxas" || name == "ptxas-options" || name == "maxrregcount") static_cast<void>(next());
    }
  }
  wanted.for_host.push_back("-std=" + standard);
  return NVRTC_SUCCESS;
}

std::string image_of(const request& wanted, const std::string& object) {
  image_header header{};
  std::memcpy(header.magic, image_magic, sizeof image_magic);
  header.version = 1;
  header.architecture = static_cast<std::uint32_t>(wanted.architecture);
  header.is_text = wanted.is_text ? 1 : 0;
  header.size = object.size();
  std::string image(sizeof header, '\0');
  std::memcpy(image.data(), &header, sizeof header);
  return image + object;
}

// Headers that came with the program lie in a folder while it is compiled; their text counts for the cache.
struct header_folder {
  std::string path;
  explicit header_folder(const std::map<std::string, std::string>& headers) {
    if (headers.empty()) return;
    path = cache_folder() + "/headers_XXXXXX";
    std::error_code ignored;
    if (::mkdtemp(path.data()) == nullptr) {
      path.clear();
      return;
    }
    for (const auto& [name, text] : headers) {
      const std::filesystem::path file = std::filesystem::path{path} / name;
      std::filesystem::create_directories(file.parent_path(), ignored);
      std::ofstream{file} << text;
    }
  }
  header_folder(const header_folder&) = delete;
  header_folder& operator=(const header_folder&) = delete;
  ~header_folder() {
    std::error_code ignored;
    if (!path.empty()) std::filesystem::remove_all(path, ignored);
  }
};

nvrtcResult compile(program& p, int count, const char* const* options) {
  request wanted;
  p.log.clear();
  p.image.clear();
  p.compiled = true;
  if (const nvrtcResult code = read_options(count, options, wanted, p.log); code != NVRTC_SUCCESS) return code;
  const header_folder folder{p.headers};
  if (!folder.path.empty()) wanted.for_host.push_back("-I" + folder.path);
  const bool has_files = p.text.find("#include \"") != std::string::npos;
  if (has_files && wanted.source_folder) {
    const std::string of_source = std::filesystem::path{p.name}.parent_path().string();
    wanted.for_host.push_back("-I" + (of_source.empty() ? "." : of_source));
  }
  std::string key;
  for (const std::string& one : p.expressions) key += one + '\n';
  const compiled_text made = compile_text(
      text_to_preprocess(p.text, p.name), wanted.for_host, key,
      [&](const std::string& text) { return unit_of(text, p.expressions); }, !has_files);
  p.log = made.log;
  if (!made.done) return NVRTC_ERROR_COMPILATION;
  p.is_text = wanted.is_text;
  p.image = image_of(wanted, made.object);
  return NVRTC_SUCCESS;
}

nvrtcResult give(const std::string& bytes, char* out) {
  std::memcpy(out, bytes.data(), bytes.size());
  return NVRTC_SUCCESS;
}

}  // namespace

WEFT_VIRTUAL_API nvrtcResult nvrtcVersion(int* major, int* minor) {
  if (const CUresult code = begin_call("nvrtcVersion"); code != 0) return code;
  if (major == nullptr || minor == nullptr) return invalid_input;
  *major = given().driver_version / 1000;
  *minor = given().driver_version % 1000 / 10;
  return NVRTC_SUCCESS;
}

WEFT_VIRTUAL_API const char* nvrtcGetErrorString(nvrtcResult code) {
  static constexpr const char* names[] = {
      "NVRTC_SUCCESS",
      "NVRTC_ERROR_OUT_OF_MEMORY",
      "NVRTC_ERROR_PROGRAM_CREATION_FAILURE",
      "NVRTC_ERROR_INVALID_INPUT",
      "NVRTC_ERROR_INVALID_PROGRAM",
      "NVRTC_ERROR_INVALID_OPTION",
      "NVRTC_ERROR_COMPILATION",
      "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE",
      "NVRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION",
      "NVRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION",
      "NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID",
      "NVRTC_ERROR_INTERNAL_ERROR",
  };
  return code >= 0 && code < 12 ? names[code] : "NVRTC_ERROR unknown";
}

WEFT_VIRTUAL_API nvrtcResult nvrtcGetNumSupportedArchs(int* count) {
  if (const CUresult code = begin_call("nvrtcGetNumSupportedArchs"); code != 0) return code;
  if (count == nullptr) return invalid_input;
  *count = static_cast<int>(std::size(architectures));
  return NVRTC_SUCCESS;
}

WEFT_VIRTUAL_API nvrtcResult nvrtcGetSupportedArchs(int* list) {
  if (const CUresult code = begin_call("nvrtcGetSupportedArchs"); code != 0) return code;
  if (list == nullptr) return invalid_input;
  std::copy(std::begin(architectures), std::end(architectures), list);
  return NVRTC_SUCCESS;
}

WEFT_VIRTUAL_API nvrtcResult nvrtcCreateProgram(nvrtcProgram* handle, const char* source, const char* name,
                                                int header_count, const char* const* headers,
                                                const char* const* include_names) {
  const own_work here;
  if (const CUresult code = begin_call("nvrtcCreateProgram"); code != 0) return code;
  if (handle == nullptr || source == nullptr || header_count < 0) return invalid_input;
  if (header_count > 0 && (headers == nullptr || include_names == nullptr)) return invalid_input;
  auto made = std::make_shared<program>();
  made->text = source;
  made->name = name != nullptr ? name : "default_program";
  for (int n = 0; n < header_count; ++n) made->headers[include_names[n]] = headers[n];
  *handle = programs().add(std::move(made));
  return NVRTC_SUCCESS;
}

WEFT_VIRTUAL_API nvrtcResult nvrtcDestroyProgram(nvrtcProgram* handle) {
  if (const CUresult code = begin_call("nvrtcDestroyProgram"); code != 0) return code;
  if (handle == nullptr || programs().take(*handle) == nullptr) return invalid_program;
  *handle = nullptr;
  return NVRTC_SUCCESS;
}

WEFT_VIRTUAL_API nvrtcResult nvrtcCompileProgram(nvrtcProgram handle, int count, const char* const* options) {
  return program_call("nvrtcCompileProgram", handle, count >= 0 && (count == 0 || options != nullptr),
                      [&](program& p) { return compile(p, count, options); });
}

WEFT_VIRTUAL_API nvrtcResult nvrtcGetPTXSize(nvrtcProgram handle, std::size_t* size) {
  return program_call("nvrtcGetPTXSize", handle, size != nullptr, [&](program& p) {
    if (p.image.empty()) return invalid_program;
    *size = p.image.size();
    return NVRTC_SUCCESS;
  });
}
WEFT_VIRTUAL_API nvrtcResult nvrtcGetPTX(nvrtcProgram handle, char* text) {
  return program_call("nvrtcGetPTX", handle, text != nullptr,
                      [&](program& p) { return p.image.empty() ? invalid_program : give(p.image, text); });
}

// A virtual architecture has no cubin: size 0, as NVRTC answers.
WEFT_VIRTUAL_API nvrtcResult nvrtcGetCUBINSize(nvrtcProgram handle, std::size_t* size) {
  return program_call("nvrtcGetCUBINSize", handle, size != nullptr, [&](program& p) {
    if (p.image.empty()) return invalid_program;
    *size = p.is_text ? 0 : p.image.size();
    return NVRTC_SUCCESS;
  });
}
WEFT_VIRTUAL_API nvrtcResult nvrtcGetCUBIN(nvrtcProgram handle, char* bytes) {
  return program_call("nvrtcGetCUBIN", handle, bytes != nullptr, [&](program& p) {
    if (p.image.empty()) return invalid_program;
    return p.is_text ? NVRTC_SUCCESS : give(p.image, bytes);
  });
}

WEFT_VIRTUAL_API nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram handle, std::size_t* size) {
  return program_call("nvrtcGetProgramLogSize", handle, size != nullptr, [&](program& p) {
    *size = p.log.size() + 1;
    return NVRTC_SUCCESS;
  });
}
WEFT_VIRTUAL_API nvrtcResult nvrtcGetProgramLog(nvrtcProgram handle, char* text) {
  return program_call("nvrtcGetProgramLog", handle, text != nullptr, [&](program& p) {
    std::memcpy(text, p.log.c_str(), p.log.size() + 1);
    return NVRTC_SUCCESS;
  });
}

WEFT_VIRTUAL_API nvrtcResult nvrtcAddNameExpression(nvrtcProgram handle, const char* expression) {
  return program_call("nvrtcAddNameExpression", handle, expression != nullptr && *expression != '\0', [&](program& p) {
    if (p.compiled) return no_expressions_now;
    p.expressions.emplace_back(expression);
    return NVRTC_SUCCESS;
  });
}

// The name in the image is the expression itself.
WEFT_VIRTUAL_API nvrtcResult nvrtcGetLoweredName(nvrtcProgram handle, const char* expression, const char** name) {
  return program_call("nvrtcGetLoweredName", handle, expression != nullptr && name != nullptr, [&](program& p) {
    if (!p.compiled) return no_lowered_names_yet;
    for (const std::string& one : p.expressions) {
      if (one != expression) continue;
      *name = one.c_str();
      return NVRTC_SUCCESS;
    }
    return not_a_name;
  });
}

}  // namespace weft::virtual_cuda
