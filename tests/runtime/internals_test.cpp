// SPDX-License-Identifier: Apache-2.0
// Public objects hide from users the parts that have types of weft::detail; the library's own files reach them.
#include "weft/weft.hpp"

#include <gtest/gtest.h>

namespace internals_test {

using weft::detail::internals;

template <class T>
constexpr bool hides_state =
    requires(const T& object) { internals::state(object); } && !requires(const T& object) { object.state(); };
template <class T>
constexpr bool hides_native =
    requires(const T& object) { internals::native(object); } && !requires(const T& object) { object.native(); };
template <class T>
constexpr bool hides_body =
    requires(const T& object) { internals::body(object); } && !requires(const T& object) { object.body(); };
template <class T>
constexpr bool hides_parts =
    requires(const T& object) { internals::parts(object); } && !requires(const T& object) { object.parts(); };
template <class T>
constexpr bool hides_view =
    requires(const T& object) { internals::view(object); } && !requires(const T& object) { object.view(); };
template <class T>
constexpr bool hides_block =
    requires(const T& object) { internals::block(object); } && !requires(const T& object) { object.block(); };
template <class T>
constexpr bool hides_place =
    requires(const T& object) { internals::place(object); } && !requires(const T& object) { object.place(); };
template <class T>
constexpr bool hides_carriers = requires(const T& object) {
  internals::queues(object);
  internals::far_copies(object);
} && !requires(const T& object) { object.queues(); } && !requires(const T& object) { object.far_copies(); };

TEST(public_object, shows_what_it_holds_to_the_library_and_to_no_user) {
  EXPECT_TRUE(hides_state<weft::machine>);
  EXPECT_TRUE(hides_state<weft::device>);
  EXPECT_TRUE(hides_state<weft::stream>);
  EXPECT_TRUE(hides_state<weft::event>);
  EXPECT_TRUE(hides_state<weft::device_span<int>>);
  EXPECT_TRUE(hides_state<weft::sender<int>>);
  EXPECT_TRUE(hides_state<weft::receiver<int>>);
  EXPECT_TRUE(hides_state<weft::message_queue<int>>);
  EXPECT_TRUE(hides_native<weft::sender<int>>);
  EXPECT_TRUE(hides_native<weft::receiver<int>>);
  EXPECT_TRUE(hides_body<weft::memory_pool>);
  EXPECT_TRUE(hides_body<weft::array<int>>);
  EXPECT_TRUE(hides_body<weft::physical_block>);
  EXPECT_TRUE(hides_body<weft::address_reservation>);
  EXPECT_TRUE(hides_parts<weft::mapping>);
  EXPECT_TRUE(hides_view<weft::opened<int>>);
  EXPECT_TRUE(hides_block<weft::symmetric_buffer<int>>);
  EXPECT_TRUE(hides_place<weft::far_span<int>>);
  EXPECT_TRUE(hides_carriers<weft::world>);
  EXPECT_FALSE(hides_native<weft::stream>) << "a handle, which a user may need";
}

}  // namespace internals_test
