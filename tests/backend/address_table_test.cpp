// SPDX-License-Identifier: Apache-2.0
#include "backends/common/address_table.hpp"

#include "backends/common/copy_checks.hpp"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <utility>

namespace address_table_test {

using weft::device_id;
using weft::errc;
using weft::memory_kind;

struct range : weft::common::known_range<range> {};
using table = weft::common::address_table<range>;

constexpr device_id gpu0{0}, gpu1{1};
constexpr std::size_t size = 1000;
std::array<std::byte, 10 * size> memory;

/// `count` thousand bytes from the `at`th thousand on.
table::ref make(std::size_t at, memory_kind kind = memory_kind::device, std::size_t count = 1) {
  auto made = std::make_shared<range>();
  made->kind = kind;
  made->owner = gpu1;
  made->user = memory.data() + at * size;
  made->size = count * size;
  return made;
}
table::ref make_block(std::size_t at, const void* reservation) {
  auto made = make(at, memory_kind::block);
  made->reservation = reservation;
  return made;
}
table::ref make_window(std::size_t at, const table::ref& source) {
  auto made = make(at, memory_kind::mapped);
  made->by = gpu0;
  made->source = source;
  return made;
}
std::size_t windows_in(const table& all) {
  std::size_t count = 0;
  all.for_each_window(gpu0, gpu1, [&](range&) { ++count; });
  return count;
}

TEST(address_table, finds_an_address_in_its_allocation_and_nowhere_else) {
  table all;
  const auto one = make(1), other = make(3);
  all.add(one);
  all.add(other);
  EXPECT_EQ(all.find(memory.data() + size - 1), nullptr);
  EXPECT_EQ(all.find(memory.data() + size), one);
  EXPECT_EQ(all.find(memory.data() + 2 * size - 1), one);
  EXPECT_EQ(all.find(memory.data() + 2 * size), nullptr);
  EXPECT_EQ(all.find(memory.data() + 3 * size), other);
}

TEST(address_table, refuses_a_range_of_which_a_byte_is_known) {
  table all;
  all.add(make(4));
  for (const auto& [at, count] : {std::pair<std::size_t, std::size_t>{4, 1}, {3, 2}, {3, 5}, {4, 3}})
    EXPECT_EQ(all.add_alone(make(at, memory_kind::adopted, count)).error().code, errc::invalid_argument) << at;
  EXPECT_TRUE(all.add_alone(make(3, memory_kind::adopted)));
  EXPECT_TRUE(all.add_alone(make(5, memory_kind::adopted)));
}

TEST(address_table, ends_the_mappings_of_what_is_released_and_no_others) {
  table all;
  const auto source = make(0), stays = make(1);
  for (const auto& one : {source, stays, make_window(2, source), make_window(3, stays), make_window(4, source)})
    all.add(one);
  const auto view = all.find(memory.data() + 2 * size);
  ASSERT_EQ(windows_in(all), 3U);
  const auto gone = all.release(source->user, [](range&) {});
  ASSERT_TRUE(gone);
  EXPECT_EQ(gone->size(), 1U);
  EXPECT_TRUE(view->revoked);
  EXPECT_EQ(windows_in(all), 1U);
  EXPECT_EQ(all.find(view->user), nullptr);
  EXPECT_NE(all.find(memory.data() + 3 * size), nullptr);
  EXPECT_EQ(all.release(source->user, [](range&) {}).error().code, errc::not_found);
}

TEST(address_table, keeps_the_address_of_what_ended_by_itself_until_it_is_given_back) {
  table all;
  const auto source = make(0), block = make_block(5, nullptr);
  for (const auto& one : {source, make_window(2, source), make_window(4, source), block}) all.add(one);
  const auto gone = all.end_if([&](const range& one) { return one.kind == memory_kind::block || one.by == gpu0; });
  EXPECT_EQ(gone.size(), 1U) << "the address of a mapping of a block is its reservation's";
  EXPECT_EQ(source.use_count(), 2) << "a mapping that has ended holds the memory behind it";
  EXPECT_EQ(all.find(memory.data() + 2 * size), nullptr);
  EXPECT_EQ(windows_in(all), 0U);
  EXPECT_TRUE(all.is_stale(memory.data() + 3 * size - 1, 1));
  EXPECT_FALSE(all.is_stale(memory.data() + 3 * size, size));
  EXPECT_FALSE(all.may_add(memory.data() + 2 * size, 1)) << "its owner would free what is added";
  EXPECT_TRUE(all.may_add(block->user, size));
  EXPECT_EQ(all.unmap(gpu0, memory.data() + 2 * size).error().code, errc::not_found);
  EXPECT_TRUE(all.may_add(memory.data() + 2 * size, size)) << "it was given back";
  EXPECT_TRUE(all.is_stale(memory.data() + 4 * size, size));

  ASSERT_TRUE(all.end_if([](const range&) { return true; }).empty());
  EXPECT_EQ(all.release(source->user, [](range&) {}).error().code, errc::not_found);
  EXPECT_FALSE(all.is_stale(source->user, size));
  EXPECT_EQ(all.clear([](range&) {}).size(), 1U);
}

TEST(address_table, holds_the_memory_behind_an_ended_mapping_while_an_operation_uses_it) {
  table all;
  const auto source = make(0);
  all.add(source);
  all.add(make_window(2, source));
  {
    const weft::common::pin<range> operation{all.find(memory.data() + 2 * size)};
    ASSERT_TRUE(all.release(source->user, [](range&) {}));
    EXPECT_EQ(operation.get()->source, source);
  }
}

TEST(address_table, sees_mappings_of_blocks_that_touch_as_one_and_holds_each_of_them) {
  table all;
  int first = 0, second = 0;
  const std::array parts{make_block(1, &first), make_block(2, &first), make_block(3, &second)};
  for (const auto& one : parts) all.add(one);
  {
    const auto whole = all.find(memory.data() + size + 10, size);
    ASSERT_EQ(whole->parts.size(), 2U);
    EXPECT_EQ(whole->user, parts[0]->user);
    EXPECT_EQ(whole->size, 2 * size);
    EXPECT_EQ(parts[0]->pending, 1U);
    EXPECT_EQ(parts[1]->pending, 1U) << "rights to it could be taken away under work that uses it";
    EXPECT_EQ(all.find(memory.data() + 2 * size, 2 * size)->size, size) << "the next one is of another reservation";
  }
  for (const auto& one : parts) EXPECT_EQ(one->pending, 0U);
  EXPECT_EQ(all.blocks_in(memory.data() + size, 2 * size).size(), 2U);
  EXPECT_TRUE(all.blocks_in(memory.data() + size, 3 * size).empty());
  EXPECT_TRUE(all.blocks_in(memory.data() + size, size + 1).empty());
  EXPECT_TRUE(all.blocks_in(memory.data() + 5 * size, size).empty());
}

TEST(a_copy, overlaps_where_both_ends_are_the_same_bytes_whatever_names_them) {
  using weft::common::overlap;
  const auto source = make(0), view = make_window(5, source);
  view->source_offset = 500;
  EXPECT_TRUE(overlap(source.get(), source->user + 500, 10, view.get(), view->user + 9, 10));
  EXPECT_FALSE(overlap(source.get(), source->user + 500, 10, view.get(), view->user + 10, 10));
  const auto one = make_block(6, nullptr), other = make_block(8, nullptr);
  one->mapped = other->mapped = std::make_shared<int>(1);
  EXPECT_TRUE(overlap(one.get(), one->user, 10, other.get(), other->user + 9, 10));
  EXPECT_FALSE(overlap(one.get(), one->user, 10, other.get(), other->user + 10, 10));
  other->mapped = std::make_shared<int>(2);
  EXPECT_FALSE(overlap(one.get(), one->user, 10, other.get(), other->user, 10)) << "another block";
}

}  // namespace address_table_test
