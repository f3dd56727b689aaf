// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/kernels/own_kernels.hpp"

#include "weft/backend/kernel_code.hpp"

#include <array>
#include <utility>

namespace weft::gpu::own_kernels {
namespace {

std::shared_ptr<const kernel_code> made(const std::string& name, std::string text) {
  raw_kernel raw;
  raw.name = raw.entry = name;
  raw.cuda_source = raw.hip_source = std::move(text);
  return make_kernel_code(std::move(raw));
}

// Every line of 16 bytes that begins at a multiple of 16 is the same: who fills has turned the pattern so.
constexpr const char* fill_text = R"cuda(
extern "C" __global__ void weft_fill(unsigned char* to, unsigned long long size, unsigned long long low,
                                     unsigned long long high) {
  const unsigned long long skew = (unsigned long long)to & 15u;
  const unsigned long long lines = (skew + size + 15u) / 16u;
  unsigned char* const first = to - skew;
  for (unsigned long long n = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; n < lines;
       n += gridDim.x * (unsigned long long)blockDim.x) {
    const unsigned begin = n == 0 ? (unsigned)skew : 0u;
    const unsigned end = n + 1 == lines ? (unsigned)(skew + size - 16u * n) : 16u;
    unsigned char* const line = first + 16u * n;
    if (begin == 0u && end == 16u) {
      ulonglong2 both;
      both.x = low;
      both.y = high;
      *(ulonglong2*)line = both;
    } else {
      for (unsigned i = begin; i < end; ++i) line[i] = (unsigned char)((i < 8u ? low : high) >> (8u * (i & 7u)));
    }
  }
}
)cuda";

// One function for each instruction. The virtual driver of the tests has functions of these names, and no PTX.
constexpr const char* store_text = R"cuda(
#ifndef WEFT_VIRTUAL_CUDA
static __device__ __forceinline__ void weft_multimem_store_16(unsigned long long to, uint4 v) {
  asm volatile("multimem.st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};"
               :: "l"(to), "f"(__uint_as_float(v.x)), "f"(__uint_as_float(v.y)), "f"(__uint_as_float(v.z)),
                  "f"(__uint_as_float(v.w)) : "memory");
}
static __device__ __forceinline__ void weft_multimem_store_4(unsigned long long to, unsigned v) {
  asm volatile("multimem.st.relaxed.sys.global.u32 [%0], %1;" :: "l"(to), "r"(v) : "memory");
}
static __device__ __forceinline__ void weft_multimem_and_4(unsigned long long to, unsigned v) {
  asm volatile("multimem.red.relaxed.sys.global.and.b32 [%0], %1;" :: "l"(to), "r"(v) : "memory");
}
static __device__ __forceinline__ void weft_multimem_or_4(unsigned long long to, unsigned v) {
  asm volatile("multimem.red.relaxed.sys.global.or.b32 [%0], %1;" :: "l"(to), "r"(v) : "memory");
}
#endif

/* Nothing narrower than 4 bytes is stored: what shares its word with a neighbour is cleared and set, bit by bit. */
static __device__ void weft_store_part(unsigned long long word, const unsigned char* from, unsigned begin,
                                       unsigned end) {
  unsigned bits = 0, mine = 0;
  for (unsigned i = begin; i < end; ++i) {
    bits |= (unsigned)from[i - begin] << (8u * i);
    mine |= 0xffu << (8u * i);
  }
  if (mine == 0xffffffffu) {
    weft_multimem_store_4(word, bits);
  } else {
    weft_multimem_and_4(word, ~mine);
    weft_multimem_or_4(word, bits);
  }
}

extern "C" __global__ void weft_multicast_store(unsigned long long to, const unsigned char* from,
                                                unsigned long long size) {
  const unsigned long long skew = to & 15u;
  const unsigned long long lines = (skew + size + 15u) / 16u;
  const bool together = (((unsigned long long)from - skew) & 15u) == 0;
  for (unsigned long long n = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; n < lines;
       n += gridDim.x * (unsigned long long)blockDim.x) {
    const unsigned begin = n == 0 ? (unsigned)skew : 0u;
    const unsigned end = n + 1 == lines ? (unsigned)(skew + size - 16u * n) : 16u;
    const unsigned long long line = to - skew + 16u * n;
    const unsigned char* const source = from + (16u * n + begin - skew);
    if (together && begin == 0u && end == 16u) {
      weft_multimem_store_16(line, *(const uint4*)source);
    } else {
      for (unsigned word = begin & ~3u; word < end; word += 4u) {
        const unsigned first = word < begin ? begin : word;
        const unsigned last = word + 4u < end ? word + 4u : end;
        weft_store_part(line + word, source + (first - begin), first - word, last - word);
      }
    }
  }
}
)cuda";

/// What one type is called, and how a register of it.
struct element {
  const char* type;
  const char* ptx;
  const char* constraint;
};

std::string load_text(const std::string& name, const element& of, const char* operation, const char* ptx) {
  const std::string access = std::string{"weft_multimem_"} + operation + "_" + of.ptx;
  std::string text = std::string{"#ifndef WEFT_VIRTUAL_CUDA\nstatic __device__ __forceinline__ "} + of.type + " " +
                     access + "(unsigned long long from) {\n  " + of.type +
                     " v;\n  asm volatile(\"multimem.ld_reduce.relaxed.sys.global." + operation + "." + ptx +
                     " %0, [%1];\" : \"=" + of.constraint + "\"(v) : \"l\"(from) : \"memory\");\n  return v;\n}\n";
  const bool has_vectors = std::string_view{ptx} == "f32";
  if (has_vectors) {
    text += R"cuda(
static __device__ __forceinline__ float4 weft_multimem_add_f32_4(unsigned long long from) {
  float4 v;
  asm volatile("multimem.ld_reduce.relaxed.sys.global.add.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(from) : "memory");
  return v;
}
)cuda";
  }
  text += "#endif\nextern \"C\" __global__ void " + name + "(" + of.type +
          "* to, unsigned long long from, unsigned long long count) {\n"
          "  const unsigned long long first = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;\n"
          "  const unsigned long long step = gridDim.x * (unsigned long long)blockDim.x;\n"
          "  unsigned long long done = 0;\n";
  if (has_vectors) {
    text +=
        "  if ((((unsigned long long)to | from) & 15u) == 0) {\n"
        "    done = count & ~3ull;\n"
        "    for (unsigned long long n = 4u * first; n < done; n += 4u * step)\n"
        "      *(float4*)(to + n) = weft_multimem_add_f32_4(from + 4u * n);\n"
        "  }\n";
  }
  text += "  for (unsigned long long n = done + first; n < count; n += step) to[n] = " + access + "(from + sizeof(" +
          of.type + ") * n);\n}\n";
  return text;
}

/// Rows by reduction, columns by type; null for what PTX does not have.
struct load_table {
  std::array<std::array<std::shared_ptr<const kernel_code>, 10>, 3> kernels;

  load_table() {
    const auto add = [&](element_type type, const element& of, multicast_reduction how, const char* operation,
                         const char* ptx) {
      const std::string name = std::string{"weft_multicast_"} + operation + "_" + of.ptx;
      kernels[static_cast<std::size_t>(how)][static_cast<std::size_t>(type)] =
          made(name, load_text(name, of, operation, ptx));
    };
    const auto add_integer = [&](element_type type, const element& of, const char* sum) {
      add(type, of, multicast_reduction::sum, "add", sum);
      add(type, of, multicast_reduction::min, "min", of.ptx);
      add(type, of, multicast_reduction::max, "max", of.ptx);
    };
    add_integer(element_type::int32, {"int", "s32", "r"}, "s32");
    add_integer(element_type::uint32, {"unsigned", "u32", "r"}, "u32");
    add_integer(element_type::int64, {"long long", "s64", "l"}, "u64");  // .add has no s64; the bits are the same
    add_integer(element_type::uint64, {"unsigned long long", "u64", "l"}, "u64");
    add(element_type::float32, {"float", "f32", "f"}, multicast_reduction::sum, "add", "f32");
    add(element_type::float64, {"double", "f64", "d"}, multicast_reduction::sum, "add", "f64");
  }
};

}  // namespace

// Kept for ever: commands of a machine that is being closed still name them.
const std::shared_ptr<const kernel_code>& fill() {
  static const auto* const code = new std::shared_ptr<const kernel_code>{made("weft_fill", fill_text)};
  return *code;
}

const std::shared_ptr<const kernel_code>& multicast_store() {
  static const auto* const code = new std::shared_ptr<const kernel_code>{made("weft_multicast_store", store_text)};
  return *code;
}

const std::shared_ptr<const kernel_code>& multicast_load(element_type type, multicast_reduction how) {
  static const auto* const table = new load_table;
  return table->kernels[static_cast<std::size_t>(how)][static_cast<std::size_t>(type)];
}

}  // namespace weft::gpu::own_kernels
