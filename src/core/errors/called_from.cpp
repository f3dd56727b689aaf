// SPDX-License-Identifier: Apache-2.0
#include "core/errors/called_from.hpp"

namespace weft {
namespace {

constinit thread_local std::source_location place_of_call;

}  // namespace

called_from::called_from(const std::source_location& where) noexcept : outermost_(place_of_call.line() == 0) {
  if (outermost_) place_of_call = where;
}

called_from::~called_from() {
  if (outermost_) place_of_call = {};
}

std::source_location called_from::place() noexcept { return place_of_call; }

}  // namespace weft
