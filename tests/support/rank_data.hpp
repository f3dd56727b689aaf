// SPDX-License-Identifier: Apache-2.0
// What ranks hand in and get in the tests of collectives. Optimised, as tests are not: making and comparing this took
// half of their time.
#pragma once

#include "weft/collective/reduction_op.hpp"

#include <cstddef>
#include <string>
#include <vector>

namespace ranks {

/// One of 25 whole numbers that each type holds exactly, and whose sums over eight ranks it holds too; they repeat
/// after 6,275 places.
int number(int r, std::size_t i);

// The rest for each type of element that a collective folds.

/// What rank r hands in: numbers, or factors whose product over eight ranks every type holds.
template <class T>
std::vector<T> input(int r, std::size_t count, weft::reduction_op::kind op = weft::reduction_op::kind::sum);

/// What n ranks get.
template <class T>
std::vector<T> reduced(int n, std::size_t count, weft::reduction_op::kind op);

template <class T>
std::vector<T> zeros(std::size_t count);

/// Empty, or the first element with other bits.
template <class T>
std::string same(const std::vector<T>& got, const std::vector<T>& expected, const std::string& what);

}  // namespace ranks
