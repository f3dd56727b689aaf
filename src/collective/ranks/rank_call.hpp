// SPDX-License-Identifier: Apache-2.0
// One rank's call of a collective, checked, and how it is told to others.
#pragma once

#include "collective/ranks/control_block.hpp"
#include "weft/collective/collective_options.hpp"
#include "weft/collective/data_type.hpp"
#include "weft/collective/reduction_op.hpp"
#include "weft/collective/schedule.hpp"
#include "weft/memory/span.hpp"

#include <array>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace weft::detail {

class symmetric_block;

/// What all ranks must say alike.
struct call_terms {
  static constexpr int barrier = collective_count;

  int what = barrier;
  data_type type = data_type::uint8;
  reduction_op::kind op = reduction_op::kind::sum;
  const kernel_code* user = nullptr;
  collective_algorithm algorithm = collective_algorithm::automatic;
  int root = 0;            // 0 where there is none
  std::int64_t count = 0;  // elements: of the array, or of each block
  std::uint64_t counts_hash = 0;
  bool is_uneven = false;      // each block has its own count; `count` is their sum
  bool by_rank_order = false;  // it chooses the algorithm: only where automatic may combine in another order

  [[nodiscard]] bool reduces() const;
  [[nodiscard]] bool has_root() const;
  [[nodiscard]] bool has_blocks() const;
  [[nodiscard]] std::uint64_t fingerprint() const;
  void write(call_record& record, std::uint64_t number) const;
};

/// "all_reduce of 1024 float32, sum"; of what another rank wrote, which need not make sense.
[[nodiscard]] std::string text_of(const call_record& record);
[[nodiscard]] std::uint64_t hash_of(std::span<const std::int64_t> counts);

/// What others are told of a failure here.
[[nodiscard]] error error_of(const std::exception& failure);

/// Memory of this rank.
struct call_memory {
  std::byte* at = nullptr;  // where the calling thread may follow it; null where only a device reaches it
  memory_ref device;        // then, and where `at` is an image of it
  std::uint64_t size = 0;
  std::shared_ptr<void> held;              // keeps it for calls that run later
  const symmetric_block* block = nullptr;  // of this communicator, else null
  std::uint64_t offset = 0;                // in it

  [[nodiscard]] bool is_of_device() const { return at == nullptr && size != 0; }
  [[nodiscard]] bool is_image() const { return at != nullptr && device.address != nullptr; }
};

struct rank_call {
  call_terms terms;
  std::shared_ptr<const kernel_code> user;
  call_memory in, out;
  std::shared_ptr<void> image;  // of memory that the host does not reach; kept for calls that run later
  std::chrono::nanoseconds timeout{};
  bool is_streamed = false;                        // runs in a host function, where no driver may be called
  std::vector<std::int64_t> counts;                // as schedule.hpp has them; empty when blocks are equal
  std::array<std::int64_t, most_ranks + 1> start;  // of each rank's block; not for all_to_all

  [[nodiscard]] std::uint64_t element() const { return size_of(terms.type); }
  /// Elements of a rank's block; of what `from` has for `to`.
  [[nodiscard]] std::int64_t block(int rank) const {
    return terms.is_uneven ? counts[static_cast<std::size_t>(rank)] : terms.count;
  }
  [[nodiscard]] std::int64_t block(int from, int to, int ranks) const {
    const auto row = static_cast<std::size_t>(from) * static_cast<std::size_t>(ranks);
    return terms.is_uneven ? counts[row + static_cast<std::size_t>(to)] : terms.count;
  }
};

}  // namespace weft::detail
