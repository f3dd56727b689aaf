// SPDX-License-Identifier: Apache-2.0
// One fold kernel for each type of element.

// Twelve kernels of some fifty loops: -O3 compiles them for 60 s and this for 30 s, into the same vector instructions.
#if defined(__GNUC__) && !defined(__clang__) && defined(__OPTIMIZE__)
#define WEFT_DETAIL_HOST_LOOP \
  [[gnu::optimize("O2", "tree-vectorize", "vect-cost-model=dynamic", "fp-contract=off", "no-trapping-math")]]
#endif

#include "collective/fold/fold.hpp"
#include "collective/fold/fold_sixteen.hpp"
#include "weft/kernel/define.hpp"

namespace weft::detail {
namespace {

// The text for devices keeps macros of ours unexpanded, unless they come as arguments of another macro: so every body
// is one.
//
// An output may be an input, though the parameters are declared not to overlap: nothing is written before all inputs of
// the block have been read into `made`, or, where outputs are written at once, of the element; no two items share one.
#define WEFT_DETAIL_FOLD(name, type, ...)                                                                              \
  WEFT_KERNEL(                                                                                                         \
      name,                                                                                                            \
      (WEFT_IN(type, rows(512)) in0, WEFT_IN(type, rows(512)) in1, WEFT_IN(type, rows(512)) in2,                       \
       WEFT_IN(type, rows(512)) in3, WEFT_IN(type, rows(512)) in4, WEFT_IN(type, rows(512)) in5,                       \
       WEFT_IN(type, rows(512)) in6, WEFT_IN(type, rows(512)) in7, WEFT_OUT(type, rows(512)) out0,                     \
       WEFT_OUT(type, rows(512)) out1, WEFT_OUT(type, rows(512)) out2, WEFT_OUT(type, rows(512)) out3,                 \
       WEFT_OUT(type, rows(512)) out4, WEFT_OUT(type, rows(512)) out5, WEFT_OUT(type, rows(512)) out6,                 \
       WEFT_OUT(type, rows(512)) out7, int64_t count, int32_t inputs, int32_t outputs, int32_t op, int64_t divide_by), \
      __VA_ARGS__)

#define WEFT_DETAIL_EACH(...)                        \
  {                                                  \
    for (int32_t k = 0; k < length; ++k) __VA_ARGS__ \
  }

// ---- two numbers to one. A comparison with what is not a number is false: made != made finds it out.
#define WEFT_DETAIL_REAL_SUM(type, wide, a, b) (a + b)
#define WEFT_DETAIL_REAL_PRODUCT(type, wide, a, b) (a * b)
#define WEFT_DETAIL_REAL_MIN(type, wide, a, b) (b < a || a != a ? b : a)
#define WEFT_DETAIL_REAL_MAX(type, wide, a, b) (b > a || a != a ? b : a)
#define WEFT_DETAIL_REAL_QUOTIENT(type, divider, a) (a / (type)divide_by)
// `wide` is unsigned and at least 32 bits, so that nothing overflows: what is narrower would be promoted to int.
#define WEFT_DETAIL_INTEGER_SUM(type, wide, a, b) ((type)((wide)a + (wide)b))
#define WEFT_DETAIL_INTEGER_PRODUCT(type, wide, a, b) ((type)((wide)a * (wide)b))
#define WEFT_DETAIL_INTEGER_MIN(type, wide, a, b) (b < a ? b : a)
#define WEFT_DETAIL_INTEGER_MAX(type, wide, a, b) (b > a ? b : a)
#define WEFT_DETAIL_INTEGER_QUOTIENT(type, divider, a) ((type)((divider)a / (divider)divide_by))

// ---- up to eight inputs into `to`, in their order. Four at a time: each loop is a pass over `made`.
#define WEFT_DETAIL_FOLD_TWO(combine, type, wide, to, x, y) \
  WEFT_DETAIL_EACH({                                        \
    const type a = x;                                       \
    const type b = y;                                       \
    to = combine(type, wide, a, b);                         \
  })
#define WEFT_DETAIL_FOLD_THREE(combine, type, wide, to, x, y, z) \
  WEFT_DETAIL_EACH({                                             \
    const type a = x;                                            \
    const type b = y;                                            \
    const type c = combine(type, wide, a, b);                    \
    const type d = z;                                            \
    to = combine(type, wide, c, d);                              \
  })
#define WEFT_DETAIL_FOLD_FOUR(combine, type, wide, to, x, y, z, w) \
  WEFT_DETAIL_EACH({                                               \
    const type a = x;                                              \
    const type b = y;                                              \
    const type c = combine(type, wide, a, b);                      \
    const type d = z;                                              \
    const type e = combine(type, wide, c, d);                      \
    const type f = w;                                              \
    to = combine(type, wide, e, f);                                \
  })
#define WEFT_DETAIL_FOLD_ALL(combine, type, wide)                                                                  \
  {                                                                                                                \
    if (direct == 1)                                                                                               \
      WEFT_DETAIL_FOLD_TWO(combine, type, wide, out0[begin + k], in0[begin + k], in1[begin + k])                   \
    else if (direct == 2)                                                                                          \
      WEFT_DETAIL_FOLD_TWO(combine, type, wide, out0[begin + k] = out1[begin + k], in0[begin + k], in1[begin + k]) \
    else if (direct == 4)                                                                                          \
      WEFT_DETAIL_FOLD_FOUR(combine, type, wide,                                                                   \
                            out0[begin + k] = out1[begin + k] = out2[begin + k] = out3[begin + k], in0[begin + k], \
                            in1[begin + k], in2[begin + k], in3[begin + k])                                        \
    else if (inputs == 2)                                                                                          \
      WEFT_DETAIL_FOLD_TWO(combine, type, wide, made[k], in0[begin + k], in1[begin + k])                           \
    else if (inputs == 3)                                                                                          \
      WEFT_DETAIL_FOLD_THREE(combine, type, wide, made[k], in0[begin + k], in1[begin + k], in2[begin + k])         \
    else                                                                                                           \
      WEFT_DETAIL_FOLD_FOUR(combine, type, wide, made[k], in0[begin + k], in1[begin + k], in2[begin + k],          \
                            in3[begin + k])                                                                        \
    if (inputs == 5)                                                                                               \
      WEFT_DETAIL_FOLD_TWO(combine, type, wide, made[k], made[k], in4[begin + k])                                  \
    else if (inputs > 5)                                                                                           \
      WEFT_DETAIL_FOLD_THREE(combine, type, wide, made[k], made[k], in4[begin + k], in5[begin + k])                \
    if (inputs == 7)                                                                                               \
      WEFT_DETAIL_FOLD_TWO(combine, type, wide, made[k], made[k], in6[begin + k])                                  \
    else if (inputs > 7)                                                                                           \
      WEFT_DETAIL_FOLD_THREE(combine, type, wide, made[k], made[k], in6[begin + k], in7[begin + k])                \
  }

#define WEFT_DETAIL_FOLD_STORE(n, out, from) \
  if (outputs > n) WEFT_DETAIL_EACH({ out[begin + k] = from[k]; })
#define WEFT_DETAIL_FOLD_STORE_ALL(from) \
  WEFT_DETAIL_FOLD_STORE(0, out0, from)  \
  WEFT_DETAIL_FOLD_STORE(1, out1, from)  \
  WEFT_DETAIL_FOLD_STORE(2, out2, from)  \
  WEFT_DETAIL_FOLD_STORE(3, out3, from)  \
  WEFT_DETAIL_FOLD_STORE(4, out4, from)  \
  WEFT_DETAIL_FOLD_STORE(5, out5, from)  \
  WEFT_DETAIL_FOLD_STORE(6, out6, from)  \
  WEFT_DETAIL_FOLD_STORE(7, out7, from)

#define WEFT_DETAIL_FOLD_BLOCK        \
  const int64_t begin = i * 512;      \
  const int64_t rest = count - begin; \
  const int32_t length = rest < 512 ? (int32_t)rest : 512;

// op is a reduction_op::kind: sum and average begin alike.
#define WEFT_DETAIL_FOLD_OF(name, kind, type, wide, divider)                                                  \
  WEFT_DETAIL_FOLD(name, type, {                                                                              \
    WEFT_DETAIL_FOLD_BLOCK                                                                                    \
    type made[512];                                                                                           \
    /* the step of a ring, and two or four ranks in place: straight to the outputs, in one pass */            \
    const int32_t is_square = (inputs == 2 && outputs <= 2) || (inputs == 4 && outputs == 4);                 \
    const int32_t direct = is_square && divide_by <= 1 ? outputs : 0;                                         \
    if (inputs == 1)                                                                                          \
      WEFT_DETAIL_EACH({ made[k] = in0[begin + k]; })                                                         \
    else if (op == 1)                                                                                         \
      WEFT_DETAIL_FOLD_ALL(WEFT_DETAIL_##kind##_PRODUCT, type, wide)                                          \
    else if (op == 2)                                                                                         \
      WEFT_DETAIL_FOLD_ALL(WEFT_DETAIL_##kind##_MIN, type, wide)                                              \
    else if (op == 3)                                                                                         \
      WEFT_DETAIL_FOLD_ALL(WEFT_DETAIL_##kind##_MAX, type, wide)                                              \
    else                                                                                                      \
      WEFT_DETAIL_FOLD_ALL(WEFT_DETAIL_##kind##_SUM, type, wide)                                              \
    if (divide_by > 1) WEFT_DETAIL_EACH({ made[k] = WEFT_DETAIL_##kind##_QUOTIENT(type, divider, made[k]); }) \
    if (direct == 0) {                                                                                        \
      WEFT_DETAIL_FOLD_STORE_ALL(made)                                                                        \
    }                                                                                                         \
  })

// ---- sixteen bits, combined in float. weft::half says what the conversions do; here they choose by masks, as a branch
// would keep the vectoriser away: a number shifted by 31 is all ones if it is negative. A union is what C, OpenCL C,
// CUDA and the host's compilers all let a number's bits be read by.
#define WEFT_DETAIL_NUMBER \
  union {                  \
    uint32_t bits;         \
    float number;          \
  }
#define WEFT_DETAIL_FROM_HALF(to, from)                                                               \
  WEFT_DETAIL_EACH({                                                                                  \
    WEFT_DETAIL_NUMBER small, all;                                                                    \
    const int32_t given = (int32_t)from[begin + k];                                                   \
    const int32_t size = given & 0x7fff;                                                              \
    const uint32_t is_small = (uint32_t)((size - 0x400) >> 31);                                       \
    const uint32_t is_endless = (uint32_t)((0x7bff - size) >> 31);                                    \
    small.number = (float)size * 5.9604644775390625e-8f;                                              \
    all.bits = ((uint32_t)size << 13) + 0x38000000u + (is_endless & 0x38000000u);                     \
    all.bits = (small.bits & is_small) | (all.bits & ~is_small) | ((uint32_t)(given & 0x8000) << 16); \
    to[k] = all.number;                                                                               \
  })
#define WEFT_DETAIL_TO_HALF(to, from)                                                   \
  WEFT_DETAIL_EACH({                                                                    \
    WEFT_DETAIL_NUMBER small, all;                                                      \
    all.number = from[k];                                                               \
    const int32_t sign = (int32_t)((all.bits >> 16) & 0x8000u);                         \
    const int32_t size = (int32_t)(all.bits & 0x7fffffffu);                             \
    const int32_t is_small = (size - 0x38800000) >> 31;                                 \
    const int32_t is_endless = (0x477fefff - size) >> 31;                               \
    const int32_t is_no_number = (0x7f800000 - size) >> 31;                             \
    all.bits = (uint32_t)size;                                                          \
    small.number = all.number + 0.5f;                                                   \
    int32_t rounded = (size - 0x38000000 + 0xfff + ((size >> 13) & 1)) >> 13;           \
    rounded = (((int32_t)small.bits - 0x3f000000) & is_small) | (rounded & ~is_small);  \
    rounded = (0x7c00 & is_endless) | (rounded & ~is_endless) | (0x200 & is_no_number); \
    to[k] = (uint16_t)(sign | rounded);                                                 \
  })
#define WEFT_DETAIL_FROM_BFLOAT(to, from)       \
  WEFT_DETAIL_EACH({                            \
    WEFT_DETAIL_NUMBER all;                     \
    all.bits = (uint32_t)from[begin + k] << 16; \
    to[k] = all.number;                         \
  })
#define WEFT_DETAIL_TO_BFLOAT(to, from)                                                               \
  WEFT_DETAIL_EACH({                                                                                  \
    WEFT_DETAIL_NUMBER all;                                                                           \
    all.number = from[k];                                                                             \
    const uint32_t is_no_number = (uint32_t)((0x7f800000 - (int32_t)(all.bits & 0x7fffffffu)) >> 31); \
    const uint32_t rounded = (all.bits + 0x7fffu + ((all.bits >> 16) & 1u)) >> 16;                    \
    to[k] = (uint16_t)((rounded & ~is_no_number) | (((all.bits >> 16) | 0x40u) & is_no_number));      \
  })

#define WEFT_DETAIL_FOLD_NEXT_WIDE(combine) \
  WEFT_DETAIL_EACH({                        \
    const float a = made[k];                \
    const float b = next[k];                \
    made[k] = combine(float, float, a, b);  \
  })
#define WEFT_DETAIL_FOLD_OF_SIXTEEN(name, format)                                                                      \
  WEFT_DETAIL_FOLD(name, uint16_t, {                                                                                   \
    WEFT_DETAIL_FOLD_BLOCK                                                                                             \
    float made[512];                                                                                                   \
    float next[512];                                                                                                   \
    uint16_t narrow[512];                                                                                              \
    WEFT_DETAIL_FROM_##format(made, in0) for (int32_t n = 1; n < inputs; ++n) {                                        \
      if (n == 1)                                                                                                      \
        WEFT_DETAIL_FROM_##format(next, in1) else if (n == 2) WEFT_DETAIL_FROM_##format(next, in2) else if (n == 3)    \
            WEFT_DETAIL_FROM_##format(next, in3) else if (n == 4) WEFT_DETAIL_FROM_##format(                           \
                next, in4) else if (n == 5) WEFT_DETAIL_FROM_##format(next, in5) else if (n == 6)                      \
                WEFT_DETAIL_FROM_##format(next, in6) else WEFT_DETAIL_FROM_##format(next, in7) if (op == 1)            \
                    WEFT_DETAIL_FOLD_NEXT_WIDE(WEFT_DETAIL_REAL_PRODUCT) else if (op == 2)                             \
                        WEFT_DETAIL_FOLD_NEXT_WIDE(WEFT_DETAIL_REAL_MIN) else if (op == 3) WEFT_DETAIL_FOLD_NEXT_WIDE( \
                            WEFT_DETAIL_REAL_MAX) else WEFT_DETAIL_FOLD_NEXT_WIDE(WEFT_DETAIL_REAL_SUM)                \
    }                                                                                                                  \
    if (divide_by > 1) WEFT_DETAIL_EACH({ made[k] /= (float)divide_by; })                                              \
    WEFT_DETAIL_TO_##format(narrow, made) WEFT_DETAIL_FOLD_STORE_ALL(narrow)                                           \
  })

// NOLINTBEGIN(bugprone-signed-char-misuse): a negative number keeps its sign in 32 bits, as is meant
WEFT_DETAIL_FOLD_OF(weft_fold_int8, INTEGER, int8_t, uint32_t, int32_t);
WEFT_DETAIL_FOLD_OF(weft_fold_int16, INTEGER, int16_t, uint32_t, int32_t);
WEFT_DETAIL_FOLD_OF(weft_fold_int32, INTEGER, int32_t, uint32_t, int32_t);
WEFT_DETAIL_FOLD_OF(weft_fold_int64, INTEGER, int64_t, uint64_t, int64_t);
WEFT_DETAIL_FOLD_OF(weft_fold_uint8, INTEGER, uint8_t, uint32_t, uint32_t);
WEFT_DETAIL_FOLD_OF(weft_fold_uint16, INTEGER, uint16_t, uint32_t, uint32_t);
WEFT_DETAIL_FOLD_OF(weft_fold_uint32, INTEGER, uint32_t, uint32_t, uint32_t);
WEFT_DETAIL_FOLD_OF(weft_fold_uint64, INTEGER, uint64_t, uint64_t, uint64_t);
WEFT_DETAIL_FOLD_OF_SIXTEEN(weft_fold_float16, HALF);
WEFT_DETAIL_FOLD_OF_SIXTEEN(weft_fold_bfloat16, BFLOAT);
WEFT_DETAIL_FOLD_OF(weft_fold_float32, REAL, float, float, float);
WEFT_DETAIL_FOLD_OF(weft_fold_float64, REAL, double, double, double);
// NOLINTEND(bugprone-signed-char-misuse)

static_assert(static_cast<int>(reduction_op::kind::sum) == 0 && static_cast<int>(reduction_op::kind::product) == 1 &&
                  static_cast<int>(reduction_op::kind::min) == 2 && static_cast<int>(reduction_op::kind::max) == 3,
              "the kernels know them by number");
static_assert(fold_width == 8 && fold_block == 512, "the kernels are written for these");

/// Made once and never destroyed, as code_of() has it.
template <class Kernel>
const std::shared_ptr<const kernel_code>& fold_code() {
  static const auto& code = *new std::shared_ptr<const kernel_code>(make_kernel_code<Kernel>());
  return code;
}

template <class Kernel>
const std::shared_ptr<const kernel_code>& sixteen_code(data_type type) {
  static const auto& code = *new std::shared_ptr<const kernel_code>([type] {
    auto made = std::make_shared<kernel_code>(*make_kernel_code<Kernel>());
    made->host = fold_of_sixteen_bits(type, made->host);
    return made;
  }());
  return code;
}

}  // namespace

const std::shared_ptr<const kernel_code>& fold_kernel(data_type type) {
  switch (type) {
    case data_type::int8:
      return fold_code<weft_fold_int8>();
    case data_type::int16:
      return fold_code<weft_fold_int16>();
    case data_type::int32:
      return fold_code<weft_fold_int32>();
    case data_type::int64:
      return fold_code<weft_fold_int64>();
    case data_type::uint8:
      return fold_code<weft_fold_uint8>();
    case data_type::uint16:
      return fold_code<weft_fold_uint16>();
    case data_type::uint32:
      return fold_code<weft_fold_uint32>();
    case data_type::uint64:
      return fold_code<weft_fold_uint64>();
    case data_type::float16:
      return sixteen_code<weft_fold_float16>(type);
    case data_type::bfloat16:
      return sixteen_code<weft_fold_bfloat16>(type);
    case data_type::float32:
      return fold_code<weft_fold_float32>();
    case data_type::float64:
      break;
  }
  return fold_code<weft_fold_float64>();
}

}  // namespace weft::detail
