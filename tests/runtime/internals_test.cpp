// SPDX-License-Identifier: Apache-2.0
// What a user can call of a public object: nothing that returns a type of weft::detail.
#include "weft/weft.hpp"

#include <gtest/gtest.h>

namespace internals_test {

template <class T>
constexpr bool shows_state = requires(const T& object) { object.state(); };
template <class T>
constexpr bool shows_body = requires(const T& object) { object.body(); };
template <class T>
constexpr bool shows_native = requires(const T& object) { object.native(); };
template <class T>
constexpr bool shows_parts = requires(const T& object) { object.parts(); };
template <class T>
constexpr bool shows_view = requires(const T& object) { object.view(); };
template <class T>
constexpr bool shows_block = requires(const T& object) { object.block(); };
template <class T>
constexpr bool shows_place = requires(const T& object) { object.place(); };
template <class T>
constexpr bool shows_queues = requires(const T& object) { object.queues(); };
template <class T>
constexpr bool shows_far_copies = requires(const T& object) { object.far_copies(); };

TEST(public_object, shows_no_user_what_it_holds) {
  EXPECT_FALSE(shows_state<weft::machine>);
  EXPECT_FALSE(shows_state<weft::device>);
  EXPECT_FALSE(shows_state<weft::stream>);
  EXPECT_FALSE(shows_state<weft::event>);
  EXPECT_FALSE(shows_state<weft::device_span<int>>);
  EXPECT_FALSE(shows_state<weft::sender<int>>);
  EXPECT_FALSE(shows_state<weft::receiver<int>>);
  EXPECT_FALSE(shows_state<weft::message_queue<int>>);
  EXPECT_FALSE(shows_native<weft::sender<int>>);
  EXPECT_FALSE(shows_native<weft::receiver<int>>);
  EXPECT_FALSE(shows_body<weft::memory_pool>);
  EXPECT_FALSE(shows_body<weft::array<int>>);
  EXPECT_FALSE(shows_body<weft::physical_block>);
  EXPECT_FALSE(shows_body<weft::address_reservation>);
  EXPECT_FALSE(shows_parts<weft::mapping>);
  EXPECT_FALSE(shows_view<weft::opened<int>>);
  EXPECT_FALSE(shows_block<weft::rank_communicator>);
  EXPECT_FALSE(shows_place<weft::far_span<int>>);
  EXPECT_FALSE(shows_queues<weft::world>);
  EXPECT_FALSE(shows_far_copies<weft::world>);
  EXPECT_TRUE(shows_native<weft::stream>) << "a handle, which a user may need";
}

}  // namespace internals_test
