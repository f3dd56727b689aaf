// SPDX-License-Identifier: Apache-2.0
// Contexts, memory and peers of the CUDA backend on a scripted driver: what it is asked for, where, and when.
#include "backends/gpu/cuda/cuda.hpp"
#include "backends/gpu/memory/memory_map.hpp"
#include "core/text/hex.hpp"
#include "support/hang.hpp"
#include "support/scripted_gpu.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <latch>
#include <thread>

namespace gpu_memory_test {

using namespace weft::gpu;
using weft::access_right;
using weft::bytes;
using weft::device_id;
using weft::errc;
using weft::memory_kind;
using weft::test::offer_peer;
using weft::test::scripted_gpu;
using weft::test::scripted_table;

constexpr device_id gpu0{5}, gpu1{6}, gpu2{7};  // a backend's first device need not be the machine's

/// A memory_map over a scripted driver.
struct bench {
  std::shared_ptr<const driver> cu;
  discovery found;
  std::shared_ptr<contexts> places;
  std::unique_ptr<memory_map> memory;

  explicit bench(const driver_functions& table, const weft::backend_options& options = {}) {
    ::unsetenv("CUDA_VISIBLE_DEVICES");
    cu = *start_driver(table, "a table", cuda());
    found = *discover(*cu, nullptr, {}, options);
    places = std::make_shared<contexts>(cu, found);
    memory = std::make_unique<memory_map>(cu, found, places, gpu0);
  }
};

int calls(const std::string& name) { return scripted_gpu::get().count(name); }

bool always(std::size_t) { return true; }

// ---- contexts -----------------------------------------------------------------------------------------------------

TEST(gpu_contexts, are_made_when_first_needed_and_once) {
  const bench b{scripted_table(2)};
  EXPECT_EQ(b.places->made(0), nullptr);
  std::latch start{4};
  {
    std::vector<std::jthread> many;
    for (int i = 0; i < 4; ++i) {
      many.emplace_back([&] {
        start.arrive_and_wait();
        EXPECT_EQ(*b.places->of(1), scripted_gpu::context_of(1));
      });
    }
  }
  EXPECT_EQ(calls("cuDevicePrimaryCtxRetain"), 1);
  EXPECT_EQ(b.places->made(0), nullptr) << "nobody needed that of the other GPU";
}

TEST(gpu_contexts, give_the_thread_back_what_it_had) {
  const bench b{scripted_table(2)};
  const CUcontext mine = scripted_gpu::context_of(77);
  scripted_gpu::stack.push_back(mine);
  {
    const auto here = b.places->enter(0);
    ASSERT_TRUE(here);
    EXPECT_EQ(scripted_gpu::stack.back(), scripted_gpu::context_of(0));
    {
      const auto there = b.places->enter(1);
      EXPECT_EQ(scripted_gpu::stack.back(), scripted_gpu::context_of(1));
    }
    EXPECT_EQ(scripted_gpu::stack.back(), scripted_gpu::context_of(0));
  }
  ASSERT_EQ(scripted_gpu::stack.size(), 1U);
  EXPECT_EQ(scripted_gpu::stack.back(), mine);
}

TEST(gpu_contexts, a_current_context_is_not_pushed_again) {
  const bench b{scripted_table(1)};
  const auto outer = b.places->enter(0);
  EXPECT_EQ(calls("cuCtxPushCurrent"), 1);
  const auto inner = b.places->enter(0);
  EXPECT_EQ(calls("cuCtxPushCurrent"), 1);
}

TEST(gpu_contexts, a_context_of_the_program_is_used_as_it_is) {
  const bench b{scripted_table(1)};
  ASSERT_TRUE(b.places->of(0));
  scripted_gpu::stack.push_back(scripted_gpu::context_of(0));
  {
    const auto here = b.places->enter(0);
    const auto again = b.places->enter(0);
  }
  EXPECT_EQ(calls("cuCtxPushCurrent"), 0);
  EXPECT_EQ(calls("cuCtxPopCurrent"), 0);
  EXPECT_EQ(scripted_gpu::stack.size(), 1U);
}

TEST(gpu_contexts, a_refused_context_says_why_and_is_tried_again) {
  const bench b{scripted_table(1)};
  scripted_gpu::get().fails["cuDevicePrimaryCtxRetain"] = CUDA_ERROR_OUT_OF_MEMORY;
  const auto refused = b.places->of(0);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, errc::out_of_memory);
  EXPECT_NE(refused.error().what.find("Scripted GPU"), std::string::npos) << refused.error().what;
  scripted_gpu::get().fails.clear();
  EXPECT_TRUE(b.places->of(0));
}

TEST(gpu_contexts, are_given_back_as_often_as_they_were_taken) {
  {
    const bench b{scripted_table(1)};
    ASSERT_TRUE(b.places->of(0));
    EXPECT_TRUE(b.places->reset(0));
    EXPECT_EQ(b.places->made(0), nullptr);
    EXPECT_EQ(b.places->generation(0), 1U);
    ASSERT_TRUE(b.places->of(0));
  }
  EXPECT_EQ(calls("cuDevicePrimaryCtxReset"), 1);
  EXPECT_EQ(scripted_gpu::get().retained[0], 0);
}

// ---- memory -------------------------------------------------------------------------------------------------------

TEST(gpu_memory, is_taken_and_given_back_in_the_context_of_its_gpu) {
  const bench b{scripted_table(2)};
  auto* const at = static_cast<std::byte*>(*b.memory->allocate(gpu1, 1000, memory_kind::device));
  EXPECT_EQ(calls("cuMemAlloc on 1"), 1);
  const auto known = b.memory->find(at + 999);
  ASSERT_TRUE(known);
  EXPECT_EQ(known->owner, gpu1);
  EXPECT_EQ(known->size, 1000U);
  EXPECT_EQ(known->host, nullptr) << "the host must not follow it";
  EXPECT_EQ(gpu_address(*known, at + 7), reinterpret_cast<std::uintptr_t>(at) + 7);
  EXPECT_EQ(b.memory->find(at + 1000), nullptr);
  EXPECT_EQ(b.memory->use(gpu1).free, bytes{(std::uint64_t{1} << 30) - 1000});
}

TEST(gpu_memory, goes_back_with_the_last_operation_that_uses_it) {
  const bench b{scripted_table(1)};
  void* const at = *b.memory->allocate(gpu0, 1000, memory_kind::device);
  pin held{b.memory->find(at)};
  EXPECT_TRUE(b.memory->release(at));
  EXPECT_EQ(b.memory->find(at), nullptr);
  EXPECT_EQ(calls("cuMemFree"), 0);
  held = {};
  b.memory->settle(samples::only_a_hang);  // on a thread of its own: the driver may wait for other work
  EXPECT_EQ(calls("cuMemFree on 0"), 1);
  EXPECT_EQ(b.memory->use(gpu0).free, bytes{std::uint64_t{1} << 30});
  EXPECT_EQ(b.memory->release(at).error().code, errc::not_found) << "freed twice";
}

TEST(gpu_memory, goes_back_elsewhere_from_where_the_driver_must_not_be_called) {
  static std::atomic<int> freed{0}, freed_there{0};
  freed = freed_there = 0;
  auto table = scripted_table(1);
  table.cuMemFree = [](CUdeviceptr) -> CUresult {
    freed_there += driver_thread::is_this() ? 1 : 0;
    ++freed;
    return CUDA_SUCCESS;
  };
  const bench b{table};
  void* const at = *b.memory->allocate(gpu0, 1000, memory_kind::device);
  {
    const driver_thread here;
    EXPECT_TRUE(b.memory->release(at));
    b.memory->settle();
  }
  b.memory->settle(samples::only_a_hang);
  EXPECT_EQ(freed, 1);
  EXPECT_EQ(freed_there, 0);
}

TEST(gpu_memory, is_had_while_other_memory_cannot_go_back_yet) {
  static std::atomic<int> begun{0};
  static std::atomic<bool> may_go{false};
  begun = 0;
  may_go = false;
  auto table = scripted_table(1);
  table.cuMemFree = [](CUdeviceptr) -> CUresult {
    ++begun;
    begun.notify_all();
    may_go.wait(false);  // as a driver does while a kernel runs
    return CUDA_SUCCESS;
  };
  const bench b{table};
  for (int n = 0; n < 2; ++n) {
    void* const at = *b.memory->allocate(gpu0, 1000, memory_kind::device);
    const pin held{b.memory->find(at)};
    EXPECT_TRUE(b.memory->release(at));
  }
  begun.wait(0);
  EXPECT_TRUE(b.memory->allocate(gpu0, 1000, memory_kind::device));
  EXPECT_EQ(begun, 1) << "the second waits for the first, and nobody for either";
  may_go = true;
  may_go.notify_all();
}

TEST(gpu_memory, the_drivers_pinned_memory_goes_with_the_context_of_its_gpu_and_stays_where_a_part_alone_is_reset) {
  for (const bool is_whole : {false, true}) {
    driver_functions t = scripted_table();
    static std::array<std::byte, 4096> theirs;
    t.cuMemHostAlloc = [](void** address, std::size_t, unsigned) -> CUresult {
      *address = theirs.data();
      return scripted_gpu::get().called("cuMemHostAlloc");
    };
    t.cuMemFreeHost = [](void*) -> CUresult { return scripted_gpu::get().called("cuMemFreeHost"); };
    const bench b{t};
    const auto got = b.memory->allocate(gpu0, 1000, memory_kind::pinned);
    ASSERT_TRUE(got) << got.error().what;
    void* const at = *got;
    if (is_whole) {
      ASSERT_TRUE(b.places->reset(0));
      ASSERT_TRUE(b.places->of(0));  // a new context, made before the table hears of it
    }
    b.memory->forget(gpu0, is_whole);
    EXPECT_EQ(b.memory->find(at) == nullptr, is_whole);
    b.memory->settle(samples::only_a_hang);
  }
}

TEST(gpu_memory, memory_of_a_reset_context_is_not_given_back) {
  const bench b{scripted_table(1)};
  void* const at = *b.memory->allocate(gpu0, 1000, memory_kind::device);
  pin held{b.memory->find(at)};
  ASSERT_TRUE(b.places->reset(0));
  b.memory->forget(gpu0, true);
  EXPECT_EQ(b.memory->find(at), nullptr);
  ASSERT_TRUE(b.places->of(0));
  held = {};  // there is a context again, and in it the address may be another's
  b.memory->settle(samples::only_a_hang);
  EXPECT_EQ(calls("cuMemFree"), 0);
  EXPECT_EQ(b.memory->use(gpu0).free, bytes{std::uint64_t{1} << 30});
}

TEST(gpu_memory, has_a_hard_limit_on_each_part_of_a_gpu) {
  weft::backend_options options;
  options.logical_devices = 2;
  const bench b{scripted_table(1), options};
  const std::size_t half = std::size_t{1} << 29;
  ASSERT_TRUE(b.memory->allocate(gpu0, half - 4096, memory_kind::device));
  const auto more = b.memory->allocate(gpu0, 8192, memory_kind::device);
  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().code, errc::out_of_memory);
  EXPECT_NE(more.error().what.find("gpu5"), std::string::npos) << more.error().what;
  EXPECT_EQ(calls("cuMemAlloc"), 1) << "the driver would have had it";
  EXPECT_TRUE(b.memory->allocate(gpu1, 8192, memory_kind::device)) << "the other part has its own";
}

TEST(gpu_memory, an_allocation_refused_by_the_driver_names_the_holders_of_the_rest) {
  const bench b{scripted_table(1)};
  void* const at = *b.memory->allocate(gpu0, 1 << 20, memory_kind::device);
  scripted_gpu::get().fails["cuMemAlloc"] = CUDA_ERROR_OUT_OF_MEMORY;
  const auto more = b.memory->allocate(gpu0, 4096, memory_kind::device);
  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().code, errc::out_of_memory);
  EXPECT_EQ(more.error().native_code, 2);
  EXPECT_NE(more.error().what.find(weft::hex(at)), std::string::npos) << more.error().what;
  EXPECT_EQ(b.memory->use(gpu0).free, bytes{(std::uint64_t{1} << 30) - (1 << 20)}) << "what failed holds nothing";
}

TEST(gpu_memory, host_memory_is_adopted_and_left_as_it_was) {
  const bench b{scripted_table(1)};
  alignas(64) std::byte mine[256];
  ASSERT_TRUE(b.memory->adopt(gpu0, mine, sizeof mine));
  EXPECT_EQ(b.memory->find(mine)->host, mine);
  EXPECT_EQ(b.memory->find(mine)->kind, memory_kind::adopted);
  EXPECT_EQ(b.memory->adopt(gpu0, mine + 8, 16).error().code, errc::invalid_argument) << "known already";
  EXPECT_TRUE(b.memory->release(mine));
  EXPECT_EQ(calls("cuMemHostUnregister on 0"), 1);
}

/// A device that can register memory of the host, as most can.
driver_functions registering_table(int devices = 1) {
  driver_functions t = scripted_table(devices);
  for (auto& one : scripted_gpu::get().devices) one.attributes[host_register_supported] = 1;
  return t;
}

TEST(gpu_memory, pinned_memory_is_pages_of_the_process_and_outlives_the_context) {
  const bench b{registering_table()};
  void* const at = *b.memory->allocate(gpu0, 10000, memory_kind::pinned);
  EXPECT_EQ(calls("cuMemHostRegister on 0"), 1);
  EXPECT_EQ(calls("cuMemHostAlloc"), 0);
  const auto window = b.memory->find(at);
  b.memory->clear();
  EXPECT_EQ(calls("cuMemHostUnregister on 0"), 1) << "the context may be others' too, and live on";
  b.places->release();
  std::memset(window->host, 7, 10000);
  EXPECT_EQ(window->host[9999], std::byte{7});
}

TEST(gpu_memory, pinned_memory_is_given_back_to_the_driver_before_its_pages_go) {
  const bench b{registering_table()};
  void* const at = *b.memory->allocate(gpu0, 10000, memory_kind::pinned);
  EXPECT_TRUE(b.memory->release(at));
  b.memory->settle(samples::only_a_hang);
  EXPECT_EQ(calls("cuMemHostUnregister on 0"), 1);
  b.memory->clear();
  EXPECT_EQ(calls("cuMemHostUnregister on 0"), 1);
}

TEST(gpu_memory, pinned_memory_is_the_drivers_where_a_device_registers_none_or_elsewhere) {
  driver_functions t = scripted_table();
  static std::array<std::byte, 4096> theirs;
  t.cuMemHostAlloc = [](void** address, std::size_t, unsigned) -> CUresult {
    *address = theirs.data();
    return scripted_gpu::get().called("cuMemHostAlloc");
  };
  t.cuMemFreeHost = [](void*) -> CUresult { return scripted_gpu::get().called("cuMemFreeHost"); };
  auto& attributes = scripted_gpu::get().devices[0].attributes;
  const auto takes_the_drivers = [&] {
    scripted_gpu::get().calls.clear();
    const bench b{t};
    void* const at = *b.memory->allocate(gpu0, 1000, memory_kind::pinned);
    EXPECT_EQ(at, theirs.data());
    EXPECT_TRUE(b.memory->release(at));
    b.memory->settle(samples::only_a_hang);
    return calls("cuMemHostAlloc") == 1 && calls("cuMemFreeHost") == 1 && calls("cuMemHostUnregister") == 0;
  };
  EXPECT_TRUE(takes_the_drivers());
  attributes[host_register_supported] = 1;
  attributes[can_use_host_pointer_for_registered_mem] = 0;
  EXPECT_TRUE(takes_the_drivers()) << "registered memory would have another address on the device";
  attributes[can_use_host_pointer_for_registered_mem] = 1;
  scripted_gpu::get().fails["cuMemHostRegister"] = CUDA_ERROR_NOT_SUPPORTED;
  EXPECT_TRUE(takes_the_drivers()) << "the driver said that it could";
}

TEST(gpu_memory, host_memory_survives_a_reset_and_is_registered_again) {
  const bench b{registering_table()};
  alignas(64) std::byte mine[256];
  ASSERT_TRUE(b.memory->adopt(gpu0, mine, sizeof mine));
  void* const at = *b.memory->allocate(gpu0, 10000, memory_kind::pinned);
  const auto reset = [&] {
    ASSERT_TRUE(b.places->reset(0));
    b.memory->forget(gpu0, true);
    b.memory->register_again(gpu0);
  };
  reset();
  EXPECT_EQ(calls("cuMemHostRegister on 0"), 4);
  EXPECT_EQ(calls("cuMemHostUnregister"), 0) << "those went with the context";
  ASSERT_TRUE(b.memory->find(at));
  EXPECT_EQ(b.memory->denied(gpu0, *b.memory->find(at)), "");
  b.memory->register_again(gpu0);
  EXPECT_EQ(calls("cuMemHostRegister on 0"), 4) << "the context is the same";

  scripted_gpu::get().fails["cuMemHostRegister"] = CUDA_ERROR_OUT_OF_MEMORY;
  reset();
  const auto lost = b.memory->find(at);
  ASSERT_TRUE(lost);
  EXPECT_NE(b.memory->denied(gpu0, *lost).find("did not take this memory"), std::string::npos);
  std::memset(lost->host, 7, 10000);  // the host's all the same

  scripted_gpu::get().fails.clear();
  reset();
  EXPECT_EQ(b.memory->denied(gpu0, *lost), "");
  EXPECT_TRUE(b.memory->release(mine));
  EXPECT_EQ(calls("cuMemHostUnregister on 0"), 1);
}

TEST(gpu_memory, made_of_whole_blocks_is_all_that_it_is_before_others_find_it) {
  const bench b{scripted_table()};
  const std::size_t block = std::size_t{2} << 20;
  void* const at = *b.memory->allocate(gpu0, 1000, memory_kind::device, block);
  EXPECT_TRUE(b.memory->find(at)->own_pages);
  EXPECT_EQ(b.memory->find(at)->size, 1000U);
  EXPECT_EQ(scripted_gpu::get().memory.begin()->second, block);
  EXPECT_EQ(b.memory->use(gpu0).free, bytes{(std::uint64_t{1} << 30) - block});
  EXPECT_FALSE(b.memory->find(*b.memory->allocate(gpu0, 1000, memory_kind::device))->own_pages);
  EXPECT_EQ(b.memory->allocate(gpu0, ~std::size_t{0}, memory_kind::device, block).error().code, errc::out_of_memory);
}

TEST(gpu_memory, memory_registered_by_the_program_stays_registered) {
  const bench b{scripted_table(1)};
  alignas(64) std::byte mine[256];
  scripted_gpu::get().fails["cuMemHostRegister"] = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  ASSERT_TRUE(b.memory->adopt(gpu0, mine, sizeof mine));
  EXPECT_TRUE(b.memory->release(mine));
  EXPECT_EQ(calls("cuMemHostUnregister"), 0);
}

TEST(gpu_memory, memory_of_a_context_made_by_the_program_is_not_adopted) {
  const bench b{scripted_table(1)};
  CUdeviceptr native = 0;
  {
    const auto here = b.places->enter(0);
    ASSERT_EQ(b.cu->cuMemAlloc(&native, 4096), CUDA_SUCCESS);
  }
  auto* const at = reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(native));  // NOLINT
  scripted_gpu::get().owner = reinterpret_cast<CUcontext>(0x77);                       // NOLINT
  EXPECT_EQ(b.memory->adopt(gpu0, at, 4096).error().code, errc::wrong_device);
  scripted_gpu::get().owner = *b.places->of(0);
  EXPECT_TRUE(b.memory->adopt(gpu0, at, 4096));
  scripted_gpu::get().owner = nullptr;
}

TEST(gpu_memory, memory_from_the_driver_is_adopted_as_memory_of_its_gpu) {
  const bench b{scripted_table(1)};
  CUdeviceptr native = 0;
  {
    const auto here = b.places->enter(0);
    ASSERT_EQ(b.cu->cuMemAlloc(&native, 4096), CUDA_SUCCESS);
  }
  auto* const at = reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(native));  // NOLINT
  EXPECT_EQ(b.memory->adopt(gpu0, at + 8, 4096).error().code, errc::out_of_range);
  ASSERT_TRUE(b.memory->adopt(gpu0, at, 4096));
  EXPECT_EQ(b.memory->find(at)->kind, memory_kind::device);
  EXPECT_EQ(b.memory->find(at)->host, nullptr);
  EXPECT_TRUE(b.memory->release(at));
  EXPECT_EQ(calls("cuMemFree"), 0) << "it is the program's";
  EXPECT_EQ(calls("cuMemHostRegister"), 0);
}

TEST(gpu_memory, is_asked_of_the_driver_only_where_there_is_a_context) {
  const bench b{scripted_table(1)};
  EXPECT_EQ(b.memory->use(gpu0).free, bytes{std::uint64_t{1} << 30});
  EXPECT_EQ(calls("cuMemGetInfo"), 0);
  EXPECT_EQ(calls("cuDevicePrimaryCtxRetain"), 0);
  ASSERT_TRUE(b.places->of(0));
  static_cast<void>(b.memory->use(gpu0));
  EXPECT_EQ(calls("cuMemGetInfo"), 1);
}

// ---- peers --------------------------------------------------------------------------------------------------------

TEST(gpu_peers, are_enabled_in_one_direction_and_counted_by_the_library) {
  const auto table = scripted_table(2);
  offer_peer(0, 1);
  offer_peer(1, 0);
  const bench b{table};
  const auto epoch = b.memory->epoch();
  ASSERT_TRUE(b.memory->enable(gpu0, gpu1));
  EXPECT_EQ(calls("cuCtxEnablePeerAccess 0>1"), 1);
  EXPECT_TRUE(b.memory->enabled(gpu0, gpu1));
  EXPECT_FALSE(b.memory->enabled(gpu1, gpu0));
  EXPECT_NE(b.memory->epoch(), epoch);
  EXPECT_EQ(b.memory->enable(gpu0, gpu1).error().code, errc::already_enabled);
  EXPECT_EQ(b.memory->disable(gpu1, gpu0).error().code, errc::not_enabled);
  EXPECT_EQ(calls("cuCtxDisablePeerAccess"), 0);
}

TEST(gpu_peers, are_parted_once_no_work_uses_them) {
  const auto table = scripted_table(2);
  offer_peer(0, 1);
  const bench b{table};
  ASSERT_TRUE(b.memory->enable(gpu0, gpu1));
  ASSERT_TRUE(b.memory->disable(gpu0, gpu1));
  EXPECT_FALSE(b.memory->enabled(gpu0, gpu1)) << "the library refuses from now on";
  b.memory->part([](std::size_t) { return false; });
  EXPECT_EQ(calls("cuCtxDisablePeerAccess"), 0);
  b.memory->part(always);
  EXPECT_EQ(calls("cuCtxDisablePeerAccess 0>1"), 1);
  b.memory->part(always);
  EXPECT_EQ(calls("cuCtxDisablePeerAccess"), 1);
}

TEST(gpu_peers, may_be_ended_by_who_is_asked_whether_work_runs) {
  const auto table = scripted_table(2);
  offer_peer(0, 1);
  offer_peer(1, 0);
  const bench b{table};
  ASSERT_TRUE(b.memory->enable(gpu0, gpu1));
  ASSERT_TRUE(b.memory->enable(gpu1, gpu0));
  ASSERT_TRUE(b.memory->disable(gpu0, gpu1));
  b.memory->part([&](std::size_t) {  // the answer took a stream forward, and a call of the program's with it
    static_cast<void>(b.memory->disable(gpu1, gpu0));
    return true;
  });
  EXPECT_FALSE(b.memory->enabled(gpu1, gpu0));
  EXPECT_EQ(calls("cuCtxDisablePeerAccess"), 0) << "what has changed meanwhile is looked at anew";
  b.memory->part(always);
  EXPECT_EQ(calls("cuCtxDisablePeerAccess 0>1"), 1);
  EXPECT_EQ(calls("cuCtxDisablePeerAccess 1>0"), 1);
}

TEST(gpu_peers, a_peer_enabled_by_the_program_is_taken_and_stays_enabled) {
  const auto table = scripted_table(2);
  offer_peer(0, 1);
  const bench b{table};
  scripted_gpu::get().fails["cuCtxEnablePeerAccess"] = CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
  EXPECT_TRUE(b.memory->enable(gpu0, gpu1)) << "704 is no failure";
  ASSERT_TRUE(b.memory->disable(gpu0, gpu1));
  b.memory->part(always);
  EXPECT_EQ(calls("cuCtxDisablePeerAccess"), 0);
}

TEST(gpu_peers, a_peer_of_two_machines_is_parted_when_neither_uses_it) {
  const auto table = scripted_table(2);
  offer_peer(0, 1);
  for (const bool first_ends_first : {true, false}) {
    scripted_gpu::get().fails.clear();
    scripted_gpu::get().calls.clear();
    const bench first{table}, second{table};
    ASSERT_TRUE(first.memory->enable(gpu0, gpu1));
    scripted_gpu::get().fails["cuCtxEnablePeerAccess"] = CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    ASSERT_TRUE(second.memory->enable(gpu0, gpu1));
    memory_map& ends = first_ends_first ? *first.memory : *second.memory;
    memory_map& stays = first_ends_first ? *second.memory : *first.memory;
    ASSERT_TRUE(ends.disable(gpu0, gpu1));
    ends.part(always);
    EXPECT_EQ(calls("cuCtxDisablePeerAccess"), 0) << first_ends_first;
    ASSERT_TRUE(stays.disable(gpu0, gpu1));
    stays.part(always);
    EXPECT_EQ(calls("cuCtxDisablePeerAccess 0>1"), 1) << first_ends_first;
  }
}

TEST(gpu_peers, a_peer_of_a_closed_machine_is_parted_by_the_other) {
  const auto table = scripted_table(2);
  offer_peer(0, 1);
  const bench closed{table}, other{table};
  ASSERT_TRUE(closed.memory->enable(gpu0, gpu1));
  scripted_gpu::get().fails["cuCtxEnablePeerAccess"] = CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
  ASSERT_TRUE(other.memory->enable(gpu0, gpu1));
  closed.memory->clear();
  ASSERT_TRUE(other.memory->disable(gpu0, gpu1));
  other.memory->part(always);
  EXPECT_EQ(calls("cuCtxDisablePeerAccess 0>1"), 1);
}

TEST(gpu_peers, a_peer_of_a_closed_machine_is_parted_at_once_where_no_other_uses_it) {
  const auto table = scripted_table(2);
  offer_peer(0, 1);
  const bench closed{table}, other{table};
  ASSERT_TRUE(other.places->of(0) && other.places->of(1)) << "it keeps the contexts";
  ASSERT_TRUE(closed.memory->enable(gpu0, gpu1));
  closed.memory->clear();
  EXPECT_EQ(calls("cuCtxDisablePeerAccess 0>1"), 1) << "the driver's access would stay";
}

TEST(gpu_peers, a_peer_enabled_again_after_a_reset_stays_when_a_machine_that_had_it_before_disables_it) {
  const auto table = scripted_table(2);
  offer_peer(0, 1);
  for (const bool resets_last : {true, false}) {
    scripted_gpu::get().fails.clear();
    scripted_gpu::get().calls.clear();
    const bench resets{table}, before{table};
    ASSERT_TRUE(resets.memory->enable(gpu0, gpu1));
    scripted_gpu::get().fails["cuCtxEnablePeerAccess"] = CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    ASSERT_TRUE(before.memory->enable(gpu0, gpu1));
    scripted_gpu::get().fails.clear();
    ASSERT_TRUE(resets.places->reset(0));
    resets.memory->forget(gpu0, true);
    ASSERT_TRUE(resets.memory->enable(gpu0, gpu1));
    memory_map& first = resets_last ? *before.memory : *resets.memory;
    memory_map& last = resets_last ? *resets.memory : *before.memory;
    ASSERT_TRUE(first.disable(gpu0, gpu1));
    first.part(always);
    EXPECT_EQ(calls("cuCtxDisablePeerAccess"), 0) << resets_last;
    ASSERT_TRUE(last.disable(gpu0, gpu1));
    last.part(always);
    EXPECT_EQ(calls("cuCtxDisablePeerAccess 0>1"), 1) << resets_last;
  }
}

TEST(gpu_peers, a_peer_disabled_by_others_is_no_failure) {
  const auto table = scripted_table(2);
  offer_peer(0, 1);
  const bench b{table};
  ASSERT_TRUE(b.memory->enable(gpu0, gpu1));
  scripted_gpu::get().fails["cuCtxDisablePeerAccess"] = CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
  ASSERT_TRUE(b.memory->disable(gpu0, gpu1));
  b.memory->part(always);
  EXPECT_TRUE(b.memory->enable(gpu0, gpu1));
  EXPECT_EQ(calls("cuCtxEnablePeerAccess"), 2);
}

TEST(gpu_peers, a_peer_refused_by_the_driver_is_not_enabled) {
  const auto table = scripted_table(2);
  offer_peer(0, 1);
  const bench b{table};
  for (const auto& [native, code] : {std::pair{CUDA_ERROR_TOO_MANY_PEERS, errc::too_many_peers},
                                     std::pair{CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, errc::peer_unsupported}}) {
    scripted_gpu::get().fails["cuCtxEnablePeerAccess"] = native;
    const auto refused = b.memory->enable(gpu0, gpu1);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, code);
    EXPECT_EQ(refused.error().native_code, native);
    EXPECT_FALSE(b.memory->enabled(gpu0, gpu1));
  }
}

TEST(gpu_peers, parts_of_one_gpu_are_kept_apart_by_the_library_alone) {
  weft::backend_options options;
  options.logical_devices = 2;
  const bench b{scripted_table(1), options};
  void* const theirs = *b.memory->allocate(gpu1, 4096, memory_kind::device);
  const auto memory = b.memory->find(theirs);
  EXPECT_TRUE(b.memory->can_access(gpu0, gpu1));
  EXPECT_FALSE(b.memory->denied(gpu0, *memory).empty());
  ASSERT_TRUE(b.memory->enable(gpu0, gpu1));
  EXPECT_TRUE(b.memory->denied(gpu0, *memory).empty());
  ASSERT_TRUE(b.memory->disable(gpu0, gpu1));
  EXPECT_FALSE(b.memory->denied(gpu0, *memory).empty());
  EXPECT_EQ(calls("cuCtxEnablePeerAccess"), 0);
}

TEST(gpu_peers, stay_joined_while_any_part_of_their_gpus_is) {
  const auto table = scripted_table(2);
  offer_peer(0, 1);
  weft::backend_options options;
  options.logical_devices = 2;
  const bench b{table, options};  // gpu5, gpu6 on the first; gpu7, gpu8 on the second
  ASSERT_TRUE(b.memory->enable(gpu0, gpu2));
  ASSERT_TRUE(b.memory->enable(gpu1, gpu2));
  EXPECT_EQ(calls("cuCtxEnablePeerAccess 0>1"), 1);
  ASSERT_TRUE(b.memory->disable(gpu0, gpu2));
  b.memory->part(always);
  EXPECT_EQ(calls("cuCtxDisablePeerAccess"), 0);
  ASSERT_TRUE(b.memory->disable(gpu1, gpu2));
  b.memory->part(always);
  EXPECT_EQ(calls("cuCtxDisablePeerAccess 0>1"), 1);
}

TEST(gpu_peers, are_mapped_under_a_name_that_ends_with_the_mapping) {
  const auto table = scripted_table(2);
  offer_peer(0, 1);
  const bench b{table};
  auto* const theirs = static_cast<std::byte*>(*b.memory->allocate(gpu1, 8192, memory_kind::device));
  ASSERT_TRUE(b.memory->enable(gpu0, gpu1));
  auto* const view = static_cast<std::byte*>(*b.memory->map(gpu0, theirs + 100, 1000));
  const auto known = b.memory->find(view);
  ASSERT_TRUE(known);
  EXPECT_EQ(known->user, view);
  EXPECT_EQ(known->by, gpu0);
  EXPECT_EQ(gpu_address(*known, view + 1), reinterpret_cast<std::uintptr_t>(theirs) + 101);
  EXPECT_TRUE(b.memory->denied(gpu0, *known).empty());
  EXPECT_FALSE(b.memory->denied(gpu1, *known).empty()) << "it is another device's";
  EXPECT_EQ(b.memory->unmap(gpu1, view).error().code, errc::wrong_device);
  ASSERT_TRUE(b.memory->disable(gpu0, gpu1));
  EXPECT_FALSE(b.memory->denied(gpu0, *known).empty());
  EXPECT_TRUE(b.memory->unmap(gpu0, view));
  EXPECT_EQ(b.memory->find(view), nullptr);
  EXPECT_FALSE(b.memory->denied(gpu0, *known).empty());
}

TEST(gpu_peers, lose_their_mappings_with_the_memory_behind) {
  const auto table = scripted_table(2);
  offer_peer(0, 1);
  const bench b{table};
  void* const theirs = *b.memory->allocate(gpu1, 8192, memory_kind::device);
  ASSERT_TRUE(b.memory->enable(gpu0, gpu1));
  void* const view = *b.memory->map(gpu0, theirs, 8192);
  const auto known = b.memory->find(view);
  ASSERT_TRUE(b.memory->release(theirs));
  EXPECT_EQ(b.memory->find(view), nullptr);
  EXPECT_FALSE(b.memory->denied(gpu0, *known).empty());
}

TEST(gpu_peers, the_peers_of_a_reset_gpu_are_forgotten) {
  const auto table = scripted_table(2);
  offer_peer(0, 1);
  const bench b{table};
  ASSERT_TRUE(b.memory->enable(gpu0, gpu1));
  ASSERT_TRUE(b.places->reset(1));
  b.memory->forget(gpu1, true);
  EXPECT_FALSE(b.memory->enabled(gpu0, gpu1));
  ASSERT_TRUE(b.memory->enable(gpu0, gpu1));
  EXPECT_EQ(calls("cuCtxEnablePeerAccess 0>1"), 2) << "the driver forgot it too";
}

// ---- what goes back later -----------------------------------------------------------------------------------------

TEST(late_work, work_that_runs_as_it_ends_is_not_put_off_again) {
  std::shared_ptr<int> put_off;
  std::atomic<bool> has_run_again{false};
  std::latch has_begun{1};
  {
    late_work late;
    const auto put_off_again = [&] {
      put_off = std::make_shared<int>();
      late.add_when([] { return true; }, [&has_run_again, kept = put_off] { has_run_again = true; });
    };
    late.add([&] {
      has_begun.count_down();
      do {
        put_off_again();
        std::this_thread::yield();
      } while (put_off.use_count() > 1);  // until the end has come
      put_off_again();
    });
    has_begun.wait();
    late.end();
    EXPECT_EQ(put_off.use_count(), 1) << "it waits for the next look";
  }
  EXPECT_FALSE(has_run_again);
}

}  // namespace gpu_memory_test
