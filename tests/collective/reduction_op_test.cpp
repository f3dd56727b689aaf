// SPDX-License-Identifier: Apache-2.0
#include "weft/collective/reduction_op.hpp"

#include "support/samples.hpp"

#include <gtest/gtest.h>

#include <set>

namespace reduction_op_test {

using samples::error_of;
using weft::data_type;
using weft::errc;
using weft::reduction_op;

WEFT_KERNEL(op_greatest_divisor, (WEFT_INOUT(uint32_t) into, WEFT_IN(uint32_t) more), {
  uint32_t a = into[i];
  uint32_t b = more[i];
  while (b != 0) {
    const uint32_t rest = a % b;
    a = b;
    b = rest;
  }
  into[i] = a;
});
WEFT_KERNEL(op_bitwise, (WEFT_INOUT(int8_t) into, WEFT_IN(int8_t) more), { into[i] = (int8_t)(into[i] | more[i]); });
WEFT_KERNEL(op_of_two_types, (WEFT_INOUT(float) into, WEFT_IN(double) more), { into[i] = into[i] + (float)more[i]; });
WEFT_KERNEL(op_that_only_writes, (WEFT_OUT(float) into, WEFT_IN(float) more), { into[i] = more[i]; });
WEFT_KERNEL(op_of_three, (WEFT_INOUT(float) into, WEFT_IN(float) more, float by), { into[i] += more[i] * by; });
WEFT_KERNEL(op_that_looks_around, (WEFT_INOUT(float) into, WEFT_IN(float, halo(1)) more), { into[i] += more[i]; });
WEFT_KERNEL(op_of_one, (WEFT_INOUT(float) into), { into[i] *= 2.0f; });
WEFT_KERNEL_2D(op_of_a_plane, (WEFT_INOUT(float) into, WEFT_IN(float) more), { into[y + x] += more[y + x]; });

TEST(reduction_op, is_made_of_the_operation_of_the_same_name) {
  const reduction_op sum = weft::reduce_op::sum;
  EXPECT_EQ(sum.what(), reduction_op::kind::sum);
  EXPECT_EQ(sum.name(), "sum");
  EXPECT_EQ(reduction_op{weft::reduce_op::product}.name(), "product");
  EXPECT_EQ(reduction_op{weft::reduce_op::min}.name(), "min");
  EXPECT_EQ(reduction_op{weft::reduce_op::max}.name(), "max");
  EXPECT_EQ(reduction_op::average().what(), reduction_op::kind::average);
  EXPECT_EQ(reduction_op::average().name(), "average");
  EXPECT_EQ(reduction_op::average().kernel(), nullptr);
}

TEST(reduction_op, a_reduction_by_a_kernel_has_its_name_and_its_type) {
  const auto op = reduction_op::by<op_greatest_divisor>();
  EXPECT_EQ(op.what(), reduction_op::kind::user);
  EXPECT_EQ(op.name(), "op_greatest_divisor");
  EXPECT_EQ(op.type(), data_type::uint32);
  ASSERT_NE(op.kernel(), nullptr);
  EXPECT_EQ(op.kernel()->name, "op_greatest_divisor");
  EXPECT_EQ(reduction_op::by<op_bitwise>().type(), data_type::int8);
}

TEST(reduction_op, a_kernel_with_other_parameters_is_refused_with_its_signature) {
  const auto expect_refused = [](auto make, const std::string& name) {
    const weft::error cause = error_of(make);
    EXPECT_EQ(cause.code, errc::incompatible) << name;
    EXPECT_NE(cause.what.find(name + "("), std::string::npos) << cause.what;
    EXPECT_NE(cause.what.find("WEFT_INOUT(T) into, WEFT_IN(T) more"), std::string::npos) << cause.what;
  };
  expect_refused([] { (void)reduction_op::by<op_of_two_types>(); }, "op_of_two_types");
  expect_refused([] { (void)reduction_op::by<op_that_only_writes>(); }, "op_that_only_writes");
  expect_refused([] { (void)reduction_op::by<op_of_three>(); }, "op_of_three");
  expect_refused([] { (void)reduction_op::by<op_that_looks_around>(); }, "op_that_looks_around");
  expect_refused([] { (void)reduction_op::by<op_of_one>(); }, "op_of_one");
  expect_refused([] { (void)reduction_op::by<op_of_a_plane>(); }, "op_of_a_plane");
}

TEST(data_type, has_a_name_of_its_own_and_the_size_of_its_elements) {
  std::set<std::string> names;
  for (int n = 0; n < weft::data_type_count; ++n) names.emplace(to_string(static_cast<data_type>(n)));
  EXPECT_EQ(names.size(), static_cast<std::size_t>(weft::data_type_count));
  EXPECT_EQ(to_string(data_type::float16), "float16");
  EXPECT_EQ(to_string(data_type::bfloat16), "bfloat16");
  EXPECT_EQ(to_string(data_type::uint64), "uint64");
  EXPECT_EQ(to_string(static_cast<data_type>(weft::data_type_count)), "?");
  const auto expect_of = []<class T>(T, const char* name) {
    EXPECT_EQ(to_string(weft::data_type_of<T>), name);
    EXPECT_EQ(size_of(weft::data_type_of<T>), sizeof(T)) << name;
    EXPECT_EQ(weft::data_type_of<const T>, weft::data_type_of<T>) << name;
  };
  expect_of(std::int8_t{}, "int8");
  expect_of(std::int16_t{}, "int16");
  expect_of(std::int32_t{}, "int32");
  expect_of(std::int64_t{}, "int64");
  expect_of(std::uint8_t{}, "uint8");
  expect_of(std::uint16_t{}, "uint16");
  expect_of(std::uint32_t{}, "uint32");
  expect_of(std::uint64_t{}, "uint64");
  expect_of(weft::half{}, "float16");
  expect_of(weft::bfloat16{}, "bfloat16");
  expect_of(float{}, "float32");
  expect_of(double{}, "float64");
  static_assert(!weft::collective_element<bool> && !weft::collective_element<void*>);
}

}  // namespace reduction_op_test
