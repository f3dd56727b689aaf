// SPDX-License-Identifier: Apache-2.0
// Several backends as one, with parts that do what only a rare moment makes them do.
#include "backends/mixed/mixed_handle.hpp"
#include "support/hang.hpp"
#include "support/scripted_part.hpp"

#include <gtest/gtest.h>

#include <array>
#include <future>

namespace mixed_backend_test {

using samples::scripted_pair;
using weft::bytes;
using weft::device_id;

TEST(mixed_backend, gives_memory_back_while_a_driver_still_registers_an_adopted_range) {
  const scripted_pair two;
  std::array<std::byte, 64> registered{}, ended{};
  ASSERT_TRUE(two.joined->adopt(device_id{1}, ended.data(), bytes{64}));
  std::promise<void> begun, go;
  two.first->on_adopt = [&] {
    begun.set_value();
    go.get_future().wait();
  };
  auto adopting =
      std::async(std::launch::async, [&] { return two.joined->adopt(device_id{0}, registered.data(), bytes{64}); });
  begun.get_future().wait();
  auto ending = std::async(std::launch::async, [&] { return two.joined->release(ended.data()); });
  EXPECT_EQ(ending.wait_for(samples::only_a_hang), std::future_status::ready);
  go.set_value();
  EXPECT_TRUE(ending.get());
  EXPECT_TRUE(adopting.get());
}

TEST(mixed_backend, a_reset_waits_for_another_backends_copy_though_its_own_backend_closes_meanwhile) {
  const scripted_pair two;
  std::array<std::byte, 64> pinned{}, plain{};
  two.first->memory[pinned.data()] = {
      .base = pinned.data(), .size = bytes{64}, .kind = weft::memory_kind::pinned, .device = device_id{0}};
  weft::copy_request request;
  request.dst = plain.data();
  request.src = pinned.data();
  request.dst_is_host = true;
  request.shape.width = 64;
  const auto copied = two.joined->copy(weft::detail::tagged(weft::stream_handle{1}, 1), request);
  ASSERT_TRUE(copied);
  two.first->on_reset = [&] { two.first->end_work(); };
  EXPECT_TRUE(two.joined->reset(device_id{0}));
  EXPECT_TRUE((*copied)->finished());
}

}  // namespace mixed_backend_test
