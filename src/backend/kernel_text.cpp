// SPDX-License-Identifier: Apache-2.0
#include "weft/backend/kernel_text.hpp"

#include "backend/ring_text.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <initializer_list>

namespace weft {
namespace {

// The names of <cstdint> are macros here: some versions of the run-time compilers define them already, as long in
// one and long long in the other, and a typedef would clash with one of the two.
constexpr std::string_view cuda_prelude = R"text(typedef signed char weft_int8;
typedef short weft_int16;
typedef int weft_int32;
typedef long long weft_int64;
typedef unsigned char weft_uint8;
typedef unsigned short weft_uint16;
typedef unsigned int weft_uint32;
typedef unsigned long long weft_uint64;
)text";

constexpr std::string_view opencl_prelude = R"text(typedef char weft_int8;
typedef short weft_int16;
typedef int weft_int32;
typedef long weft_int64;
typedef uchar weft_uint8;
typedef ushort weft_uint16;
typedef uint weft_uint32;
typedef ulong weft_uint64;
)text";

constexpr std::string_view width_names = R"text(#define int8_t weft_int8
#define int16_t weft_int16
#define int32_t weft_int32
#define int64_t weft_int64
#define uint8_t weft_uint8
#define uint16_t weft_uint16
#define uint32_t weft_uint32
#define uint64_t weft_uint64
)text";

// Plain overloads. weft_min and its kin take two integer types, as on the host, and give the wider one.
constexpr std::string_view cuda_math = R"text(#define WEFT_FUNCTION __device__ __forceinline__
#define WEFT_UNARY(name, single, twofold) \
  WEFT_FUNCTION float name(float x) { return single(x); } \
  WEFT_FUNCTION double name(double x) { return twofold(x); }
#define WEFT_BINARY(name, single, twofold) \
  WEFT_FUNCTION float name(float x, float y) { return single(x, y); } \
  WEFT_FUNCTION double name(double x, double y) { return twofold(x, y); }
WEFT_UNARY(weft_sqrt, sqrtf, sqrt)
WEFT_UNARY(weft_rsqrt, rsqrtf, rsqrt)
WEFT_UNARY(weft_exp, expf, exp)
WEFT_UNARY(weft_log, logf, log)
WEFT_UNARY(weft_sin, sinf, sin)
WEFT_UNARY(weft_cos, cosf, cos)
WEFT_UNARY(weft_tan, tanf, tan)
WEFT_UNARY(weft_fabs, fabsf, fabs)
WEFT_UNARY(weft_floor, floorf, floor)
WEFT_UNARY(weft_ceil, ceilf, ceil)
WEFT_BINARY(weft_pow, powf, pow)
WEFT_BINARY(weft_fmin, fminf, fmin)
WEFT_BINARY(weft_fmax, fmaxf, fmax)
WEFT_FUNCTION float weft_fma(float x, float y, float z) { return fmaf(x, y, z); }
WEFT_FUNCTION double weft_fma(double x, double y, double z) { return fma(x, y, z); }
template <class A, class B> WEFT_FUNCTION auto weft_min(A a, B b) { return a < b ? a : b; }
template <class A, class B> WEFT_FUNCTION auto weft_max(A a, B b) { return a > b ? a : b; }
template <class T, class L, class H> WEFT_FUNCTION auto weft_clamp(T v, L l, H h) { return weft_min(weft_max(v, l), h); }
)text";

// The built-in functions are overloaded already. Those on integers want one type for all arguments: the arguments are
// brought to their common type, each being evaluated once. __typeof__ is known to the compilers built on clang, which
// are nearly all; any other compares, and evaluates an argument twice.
constexpr std::string_view opencl_math = R"text(#define weft_sqrt(x) sqrt(x)
#define weft_rsqrt(x) rsqrt(x)
#define weft_exp(x) exp(x)
#define weft_log(x) log(x)
#define weft_sin(x) sin(x)
#define weft_cos(x) cos(x)
#define weft_tan(x) tan(x)
#define weft_fabs(x) fabs(x)
#define weft_floor(x) floor(x)
#define weft_ceil(x) ceil(x)
#define weft_pow(x, y) pow(x, y)
#define weft_fmin(x, y) fmin(x, y)
#define weft_fmax(x, y) fmax(x, y)
#define weft_fma(x, y, z) fma(x, y, z)
#if defined(__clang__) || defined(__GNUC__)
#define weft_min(a, b) min((__typeof__((a) + (b)))(a), (__typeof__((a) + (b)))(b))
#define weft_max(a, b) max((__typeof__((a) + (b)))(a), (__typeof__((a) + (b)))(b))
#else
#define weft_min(a, b) ((a) < (b) ? (a) : (b))
#define weft_max(a, b) ((a) > (b) ? (a) : (b))
#endif
#define weft_clamp(v, l, h) weft_min(weft_max(v, l), h)
)text";

constexpr std::array<std::string_view, 3> axis = {"x", "y", "z"};

void append(std::string& text, std::initializer_list<std::string_view> parts) {
  for (const std::string_view part : parts) {
    text += part;
  }
}

bool is_word_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

bool holds_word(std::string_view text, std::string_view word) {
  for (std::size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) {
    const std::size_t behind = at + word.size();
    if ((at == 0 || !is_word_character(text[at - 1])) && (behind == text.size() || !is_word_character(text[behind]))) {
      return true;
    }
  }
  return false;
}

// A literal such as 0.5 is a double too, but OpenCL compilers without doubles take it as float: only the word counts.
bool needs_double(const kernel_code& code) {
  return holds_word(code.body_text, "double") ||
         std::any_of(code.parameters.begin(), code.parameters.end(),
                     [](const kernel_parameter& p) { return p.type == element_type::float64; });
}

std::string quoted(std::string_view path) {
  std::string text = "\"";
  for (const char c : path) {
    if (c == '"' || c == '\\') {
      text += '\\';
    }
    text += c;
  }
  return text + "\"";
}

std::string parameter_declaration(const kernel_parameter& parameter, dialect language) {
  const std::string type(name_of(parameter.type));
  if (parameter.direction == parameter_direction::scalar) {
    return "const " + type + " " + parameter.name;
  }
  const std::string space = language == dialect::opencl ? "__global " : "";
  if (parameter.is_ring) {
    return space + "weft_ring* " + parameter.name;
  }
  const std::string constness = parameter.direction == parameter_direction::in ? "const " : "";
  const std::string restricted = language == dialect::opencl ? "* restrict " : "* __restrict__ ";
  return space + constness + type + restricted + parameter.name;
}

std::string id_name(int dimensions, std::size_t n) { return dimensions == 1 ? "i" : std::string(axis[n]); }

std::string hardware_id(dialect language, std::size_t n) {
  const std::string a(axis[n]);
  return language == dialect::opencl
             ? "(int64_t)get_global_id(" + std::to_string(n) + ")"
             : "(int64_t)blockIdx." + a + " * (int64_t)blockDim." + a + " + (int64_t)threadIdx." + a;
}

std::string prelude(const kernel_code& code, dialect language) {
  std::string text;
  if (language == dialect::opencl) {
    text += "#pragma OPENCL FP_CONTRACT OFF\n";
    if (needs_double(code)) {
      text += "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n";
    }
    text.append(opencl_prelude).append(width_names).append(opencl_math);
  } else {
    text.append(cuda_prelude).append(width_names).append(cuda_math);
  }
  if (has_ring(code)) {
    append(text, {"#line 1 \"weft/kernel/ring.h\"\n", detail::ring_text()});
  }
  return text;
}

}  // namespace

std::string kernel_entry(const kernel_code& code) { return code.raw ? code.raw->entry : code.name + "_kernel"; }

std::vector<std::string> kernel_options(dialect language) {
  switch (language) {
    case dialect::cuda:
      return {"--std=c++17", "--fmad=false"};
    case dialect::hip:
      return {"-std=c++17", "-ffp-contract=off"};
    case dialect::opencl:
      return {"-cl-std=CL1.2"};
  }
  return {};
}

std::vector<std::string> kernel_options(const kernel_code& code, dialect language, int newest_opencl_c) {
  if (language == dialect::opencl && has_ring(code)) {
    return {newest_opencl_c >= 300 ? "-cl-std=CL3.0" : "-cl-std=CL2.0"};
  }
  return kernel_options(language);
}

std::string kernel_text(const kernel_code& code, dialect language) {
  if (code.raw) {
    switch (language) {
      case dialect::cuda:
        return code.raw->cuda_source;
      case dialect::hip:
        return code.raw->hip_source;
      case dialect::opencl:
        return code.raw->opencl_source;
    }
  }
  const auto dimensions = static_cast<std::size_t>(code.dimensions);
  std::string text = prelude(code, language);
  text += language == dialect::opencl ? "__kernel void " : "extern \"C\" __global__ void ";
  text += kernel_entry(code) + "(";
  for (const kernel_parameter& parameter : code.parameters) {
    text += parameter_declaration(parameter, language) + ", ";
  }
  for (std::size_t n = 0; n < dimensions; ++n) {
    append(text, {n == 0 ? "" : ", ", "const int64_t weft_begin_", axis[n], ", const int64_t weft_end_", axis[n]});
  }
  text += ") {\n";
  for (std::size_t n = 0; n < dimensions; ++n) {
    const std::string id = id_name(code.dimensions, n);
    append(text, {"const int64_t ", id, " = weft_begin_", axis[n], " + ", hardware_id(language, n), ";\n"});
    append(text, {"if (", id, " >= weft_end_", axis[n], ") return;\n"});
  }
  text += "#line " + std::to_string(code.line) + " " + quoted(code.file) + "\n";
  return text + code.body_text + "\n}\n";
}

}  // namespace weft
