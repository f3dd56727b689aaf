// SPDX-License-Identifier: Apache-2.0
// Moves of a schedule between ranks of which one reads the memory of the other. Pure, and the same at both.
#pragma once

#include "weft/collective/schedule.hpp"

#include <cstddef>

namespace weft::detail {

/// Whether the source of a move of a round may be read until the folds of the round are over: none of its rank's folds
/// writes there, in place neither.
[[nodiscard]] bool is_late(const collective_schedule& plan, std::size_t round, const schedule_move& m);

/// Whether the folds of the round can read it where it was, without the move: it lands in scratch, only they read it
/// there, and it is written again before anybody else looks.
[[nodiscard]] bool is_folded(const collective_schedule& plan, std::size_t round, const schedule_move& m);

}  // namespace weft::detail
