// SPDX-License-Identifier: Apache-2.0
#include "backend/kernels/kernel_text.hpp"

#include "backend/kernels/ring_text.hpp"
#include "backend/kernels/word_character.hpp"

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

// Plain overloads. weft_min and its kin take two integer types, as on the host, and give their common type.
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

std::string in_quotes(std::string_view path) {
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

std::string kernel_start(dialect language) {
  return language == dialect::opencl ? "__kernel void " : "extern \"C\" __global__ void ";
}

/// "const int64_t weft_begin_x, const int64_t weft_end_x, ..."
std::string range_declaration(const kernel_code& code) {
  std::string text;
  for (std::size_t n = 0; n < static_cast<std::size_t>(code.dimensions); ++n)
    append(text, {n == 0 ? "" : ", ", "const int64_t weft_begin_", axis[n], ", const int64_t weft_end_", axis[n]});
  return text;
}

std::string body_of(const kernel_code& code) {
  return "#line " + std::to_string(code.line) + " " + in_quotes(code.file) + "\n" + code.body_text + "\n}\n";
}

std::string plain_kernel(const kernel_code& code, dialect language) {
  std::string text = kernel_start(language) + kernel_entry(code) + "(";
  for (const kernel_parameter& parameter : code.parameters) text += parameter_declaration(parameter, language) + ", ";
  text += range_declaration(code) + ") {\n";
  for (std::size_t n = 0; n < static_cast<std::size_t>(code.dimensions); ++n) {
    const std::string id = id_name(code.dimensions, n);
    append(text, {"const int64_t ", id, " = weft_begin_", axis[n], " + ", hardware_id(language, n), ";\n"});
    append(text, {"if (", id, " >= weft_end_", axis[n], ") return;\n"});
  }
  return text + body_of(code);
}

/// Threads that share an item are neighbours in a warp: a group of them neither straddles a border of warps nor ends in
/// parts, so those that take part are always all of it. HIP's compiler needs no mask, since its waves run in step.
std::string shared_item_kernel(const kernel_code& code, dialect language) {
  const std::string lanes = std::to_string(code.on_gpus->item_lanes);
  std::string text = "constexpr int item_lanes = " + lanes + ";\n";
  text += "template <class T> WEFT_FUNCTION T weft_lane_behind(T value, int n) {\n";
  text += language == dialect::cuda
              ? "const unsigned weft_first = threadIdx.x % 32u / item_lanes * item_lanes;\n"
                "return __shfl_down_sync(0xffffffffu >> (32 - item_lanes) << weft_first, value, n, item_lanes);\n}\n"
              : "return __shfl_down(value, n, item_lanes);\n}\n";
  const std::string place = "#line 1 " + in_quotes("weft: the form for GPUs of " + code.name) + "\n";
  append(text, {place, code.on_gpus->functions, "\n", kernel_start(language), kernel_entry(code), "("});
  for (const kernel_parameter& parameter : code.parameters) text += parameter_declaration(parameter, language) + ", ";
  append(text, {range_declaration(code), ") {\nconst int64_t weft_thread = ", hardware_id(language, 0), ";\n"});
  text += "const int64_t i = weft_begin_x + weft_thread / item_lanes;\n";
  text += "const int lane = (int)(weft_thread % item_lanes);\nif (i >= weft_end_x) return;\n";
  append(text, {place, code.on_gpus->body_text, "\n}\n"});
  return text;
}

/// What each lane of a reduction begins with: as exec fills the results of its devices.
std::string identity_text(const kernel_parameter& parameter, dialect language) {
  const bool is_least = parameter.access.op == reduce_op::min;
  if (parameter.access.op == reduce_op::sum) return "0";
  if (parameter.access.op == reduce_op::product) return "1";
  const bool is_opencl = language == dialect::opencl;
  switch (parameter.type) {
    case element_type::float32:
      return std::string{is_opencl ? "as_float(" : "__int_as_float("} + (is_least ? "0x7f800000)" : "0xff800000)");
    case element_type::float64:
      return std::string{is_opencl ? "as_double(" : "__longlong_as_double("} +
             (is_least ? "0x7ff0000000000000L)" : "0xfff0000000000000L)");
    default:
      break;
  }
  const bool is_signed = parameter.type <= element_type::int64;
  const std::string ones = "~(uint64_t)0 >> " + std::to_string(64 - 8 * size_of(parameter.type) + (is_signed ? 1 : 0));
  // the greatest; the least is its complement
  return "(" + std::string{name_of(parameter.type)} + ")(" + (is_least ? ones : "~(" + ones + ")") + ")";
}

/// An expression of two operands that joins two results: integers wrap around, as they do on the host.
std::string joined_text(const kernel_parameter& parameter, const std::string& a, const std::string& b) {
  const std::string type(name_of(parameter.type));
  const bool is_float = parameter.type == element_type::float32 || parameter.type == element_type::float64;
  const std::string wide = is_float ? "" : "(uint64_t)";
  switch (parameter.access.op) {
    case reduce_op::sum:
      return "(" + type + ")(" + wide + a + " + " + wide + b + ")";
    case reduce_op::product:
      return "(" + type + ")(" + wide + a + " * " + wide + b + ")";
    case reduce_op::min:
      return b + " < " + a + " ? " + b + " : " + a;
    case reduce_op::max:
      return a + " < " + b + " ? " + b + " : " + a;
  }
  return a;
}

/// The parameters of a kernel that are reductions, and how many came before each.
template <class F>
void over_reductions(const kernel_code& code, F&& f) {
  int n = 0;
  for (const kernel_parameter& parameter : code.parameters)
    if (parameter.access.kind == access_kind::reduce) f(parameter, std::to_string(n++));
}

/// Points weft_part_n to the results of one lane, or of lane 0; those of a parameter lie side by side.
std::string parts_text(const kernel_code& code, dialect language, const std::string& lane) {
  const std::string space = language == dialect::opencl ? "__global " : "";
  std::string text = space + "uint8_t* weft_place = weft_scratch;\n";
  over_reductions(code, [&](const kernel_parameter& p, const std::string& n) {
    const std::string type(name_of(p.type));
    append(text, {space, type, "* const weft_part_", n, " = (", space, type, "*)weft_place + ", lane, " * weft_count_",
                  n, ";\nweft_place += (weft_lanes * weft_count_", n, " * ", std::to_string(size_of(p.type)),
                  " + 15) / 16 * 16;\n"});
  });
  return text;
}

/// The body as a function, so that a return in it ends one item and not the lane.
std::string item_function(const kernel_code& code, dialect language) {
  std::string text = language == dialect::opencl ? "static void " : "static WEFT_FUNCTION void ";
  text += code.name + "_item(";
  for (const kernel_parameter& parameter : code.parameters) text += parameter_declaration(parameter, language) + ", ";
  for (std::size_t n = 0; n < static_cast<std::size_t>(code.dimensions); ++n)
    append(text, {n == 0 ? "" : ", ", "const int64_t ", id_name(code.dimensions, n)});
  return text + ") {\n" + body_of(code);
}

/// What a lane does with an item: the body, with its own results in place of the parameters.
std::string item_call(const kernel_code& code) {
  std::string text = code.name + "_item(";
  int reduction = 0;
  for (const kernel_parameter& p : code.parameters)
    text += (p.access.kind == access_kind::reduce ? "weft_part_" + std::to_string(reduction++) : p.name) + ", ";
  std::string left = "weft_item";
  for (std::size_t n = 0; n < static_cast<std::size_t>(code.dimensions); ++n) {
    const bool is_last = n + 1 == static_cast<std::size_t>(code.dimensions);
    append(text, {n == 0 ? "" : ", ", "weft_begin_", axis[n], " + ", left});
    if (!is_last) append(text, {" % weft_extent_", axis[n]});
    append(left, {" / weft_extent_", axis[n]});
  }
  return text + ");\n";
}

std::string items_text(const kernel_code& code, dialect language) {
  std::string text;
  std::string items;
  for (std::size_t n = 0; n < static_cast<std::size_t>(code.dimensions); ++n) {
    append(text, {"const int64_t weft_extent_", axis[n], " = weft_end_", axis[n], " - weft_begin_", axis[n], ";\n"});
    append(items, {n == 0 ? "" : " * ", "weft_extent_", axis[n]});
  }
  append(text, {"const int64_t weft_items = ", items,
                ";\n"
                "const int64_t weft_each = (weft_items + weft_lanes - 1) / weft_lanes;\n"
                "int64_t weft_item = weft_step == 1 ? weft_lane * weft_each : weft_lane;\n"
                "const int64_t weft_behind = weft_step == 1 && weft_item + weft_each < weft_items ? "
                "weft_item + weft_each : weft_items;\n"});
  // processors run OpenCL, and vectorise over neighbours only when they can see them
  if (language == dialect::opencl)
    append(text, {"if (weft_step == 1)\nfor (; weft_item < weft_behind; ++weft_item) ", item_call(code), "else\n"});
  append(text, {"for (; weft_item < weft_behind; weft_item += weft_step) ", item_call(code)});
  return text;
}

/// Each lane has results of its own; the lanes of a group join theirs pairwise, always the same, and the second kernel
/// joins those of the groups, one after the other, with what was there.
std::string reduction_kernels(const kernel_code& code, dialect language) {
  const bool is_opencl = language == dialect::opencl;
  const std::string scratch = std::string{is_opencl ? "__global " : ""} + "uint8_t* weft_scratch, ";
  std::string text =
      item_function(code, language) + "#line 1 " + in_quotes("weft: the reductions of " + code.name) + "\n";

  text += kernel_start(language) + kernel_entry(code) + "(";
  for (const kernel_parameter& parameter : code.parameters) text += parameter_declaration(parameter, language) + ", ";
  text += range_declaration(code) + ", " + scratch;
  over_reductions(code, [&](const kernel_parameter&, const std::string& n) {
    append(text, {"const int64_t weft_count_", n, ", "});
  });
  text += "const int64_t weft_step) {\n";
  text += is_opencl ? "const int64_t weft_group = get_local_size(0), weft_at = get_local_id(0);\n"
                      "const int64_t weft_lanes = get_global_size(0), weft_lane = get_global_id(0);\n"
                    : "const int64_t weft_group = blockDim.x, weft_at = threadIdx.x;\n"
                      "const int64_t weft_lanes = gridDim.x * weft_group, "
                      "weft_lane = blockIdx.x * weft_group + weft_at;\n";
  text += parts_text(code, language, "weft_lane");
  over_reductions(code, [&](const kernel_parameter& p, const std::string& n) {
    append(text, {"for (int64_t weft_e = 0; weft_e < weft_count_", n, "; ++weft_e) weft_part_", n,
                  "[weft_e] = ", identity_text(p, language), ";\n"});
  });
  text += items_text(code, language);
  // a compiler for processors vectorises nothing around a barrier, and their groups are of one
  if (is_opencl) text += "#ifndef WEFT_LONE_LANES\n";
  text += "for (int64_t weft_left = weft_group; weft_left > 1;) {\nconst int64_t weft_half = (weft_left + 1) / 2;\n";
  text += is_opencl ? "barrier(CLK_GLOBAL_MEM_FENCE);\n" : "__syncthreads();\n";
  text += "if (weft_at + weft_half < weft_left) {\n";
  over_reductions(code, [&](const kernel_parameter& p, const std::string& n) {
    const std::string mine = "weft_part_" + n + "[weft_e]";
    const std::string other = "weft_part_" + n + "[weft_half * weft_count_" + n + " + weft_e]";
    append(text, {"for (int64_t weft_e = 0; weft_e < weft_count_", n, "; ++weft_e) ", mine, " = ",
                  joined_text(p, mine, other), ";\n"});
  });
  text += "}\nweft_left = weft_half;\n}\n";
  text += is_opencl ? "#endif\n}\n" : "}\n";

  text += kernel_start(language) + combine_entry(code) + "(" + scratch +
          "const int64_t weft_groups, const int64_t weft_group";
  over_reductions(code, [&](const kernel_parameter& p, const std::string& n) {
    append(text, {", ", is_opencl ? "__global " : "", name_of(p.type), "* weft_whole_", n,
                  ", const int64_t weft_first_", n, ", const int64_t weft_count_", n});
  });
  text += ") {\nconst int64_t weft_e = " + hardware_id(language, 0) + ";\n";
  text += "const int64_t weft_lanes = weft_groups * weft_group;\n" + parts_text(code, language, "0");
  over_reductions(code, [&](const kernel_parameter& p, const std::string& n) {
    const std::string type(name_of(p.type));
    const std::string part = "weft_part_" + n + "[weft_lane * weft_count_" + n + " + weft_e]";
    const std::string whole = "weft_whole_" + n + "[weft_first_" + n + " + weft_e]";
    append(text, {"if (weft_e < weft_count_", n, ") {\n", type, " weft_whole = ", whole, ";\n"});
    text += "for (int64_t weft_lane = 0; weft_lane < weft_lanes; weft_lane += weft_group) ";
    append(text, {"weft_whole = ", joined_text(p, "weft_whole", part), ";\n", whole, " = weft_whole;\n}\n"});
  });
  return text + "}\n";
}

}  // namespace

bool has_reduction(const kernel_code& code) {
  return !code.raw && std::any_of(code.parameters.begin(), code.parameters.end(),
                                  [](const kernel_parameter& p) { return p.access.kind == access_kind::reduce; });
}

std::string combine_entry(const kernel_code& code) { return code.name + "_combine"; }

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
  if (code.on_gpus && language != dialect::opencl) return prelude(code, language) + shared_item_kernel(code, language);
  return prelude(code, language) +
         (has_reduction(code) ? reduction_kernels(code, language) : plain_kernel(code, language));
}

}  // namespace weft
