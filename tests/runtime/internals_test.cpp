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

// A user makes an object by what its page says, never of its parts.
template <class T, class... Parts>
constexpr bool only_the_library_makes_it_of =
    requires { weft::detail::make<T>(std::declval<Parts>()...); } && !std::is_constructible_v<T, Parts...>;

TEST(public_object, is_made_of_its_parts_by_the_library_and_by_no_user) {
  using state = std::shared_ptr<weft::detail::machine_state>;
  using queue = std::shared_ptr<weft::detail::queue_state>;
  EXPECT_TRUE((only_the_library_makes_it_of<weft::device, state, weft::device_id>));
  EXPECT_TRUE((only_the_library_makes_it_of<weft::event, state, weft::event_ref>));
  EXPECT_TRUE((only_the_library_makes_it_of<weft::device_span<int>, weft::detail::machine_state*, weft::device_id, int*,
                                            std::size_t>));
  EXPECT_TRUE((only_the_library_makes_it_of<weft::sender<int>, queue, weft::detail::queue_end&>));
  EXPECT_TRUE((only_the_library_makes_it_of<weft::receiver<int>, queue, weft::detail::queue_end*>));
  EXPECT_TRUE((only_the_library_makes_it_of<weft::kernel_registry, state>));
  EXPECT_TRUE((only_the_library_makes_it_of<weft::launch_run, weft::event>));
  EXPECT_TRUE((only_the_library_makes_it_of<weft::collective_run, std::shared_ptr<weft::collective_run::body>>));
  EXPECT_TRUE((only_the_library_makes_it_of<weft::opened<int>, weft::detail::opened_view>));
  EXPECT_TRUE((only_the_library_makes_it_of<weft::opened_memory<int>, weft::detail::opened_place>));
  EXPECT_TRUE((only_the_library_makes_it_of<weft::access_grant, weft::detail::held_grant>));
  EXPECT_TRUE((only_the_library_makes_it_of<weft::far_span<int>, weft::detail::far_place>));
  EXPECT_TRUE((only_the_library_makes_it_of<weft::peer_access, state, weft::device_id, weft::device_id>));
  EXPECT_TRUE((only_the_library_makes_it_of<weft::opened_pool, state, weft::pool_handle, std::chrono::nanoseconds>));
  EXPECT_TRUE((
      only_the_library_makes_it_of<weft::reduce_run<int>, std::unique_ptr<weft::detail::reduction>, weft::launch_run>));
  EXPECT_TRUE((only_the_library_makes_it_of<weft::symmetric_buffer<int>, std::shared_ptr<weft::detail::symmetric_block>,
                                            weft::device_span<int>>));
  EXPECT_FALSE((only_the_library_makes_it_of<weft::device, int*>)) << "not its parts";
  EXPECT_TRUE((only_the_library_makes_it_of<weft::world, std::unique_ptr<weft::world::body>>));
  EXPECT_TRUE((only_the_library_makes_it_of<weft::process_group, std::unique_ptr<weft::process_group::body>>));
  EXPECT_TRUE(
      (only_the_library_makes_it_of<weft::rank_communicator, std::unique_ptr<weft::detail::rank_communicator_body>>));
}

}  // namespace internals_test
