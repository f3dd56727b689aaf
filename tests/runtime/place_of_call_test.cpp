// SPDX-License-Identifier: Apache-2.0
// Each public call that can fail is made to fail once, and its error must name the line of this file that called.
#include "core/errors/called_from.hpp"
#include "support/samples.hpp"
#include "weft/weft.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <source_location>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace place_of_call_test {

using namespace std::chrono_literals;
using samples::error_of;
using weft::access_right;
using weft::buffer;
using weft::bytes;
using weft::called_from;
using weft::device;
using weft::device_id;
using weft::errc;
using weft::error;
using weft::machine;
using weft::machine_options;
using weft::mapping;
using weft::memory_pool;
using weft::physical_block;
using weft::range;
using weft::rank;
using weft::stream;

WEFT_KERNEL(place_add, (WEFT_INOUT(float) x), { x[i] = x[i] + 1.0f; });
WEFT_KERNEL(place_map, (WEFT_IN(float) x, WEFT_OUT(float) y), { y[i] = x[i]; });

constexpr std::size_t huge = std::size_t{1} << 40;
constexpr std::size_t endless = ~std::size_t{0};
constexpr device_id first{0}, second{1}, unknown{99};

std::string file_of(const error& cause) {
  const std::string_view path = cause.where.file_name();
  return std::string{path.substr(path.rfind('/') + 1)};
}

/// A call of a few lines, whose failure names one of them.
template <class F>
void names_its_line(F&& call, std::source_location begin = std::source_location::current()) {
  constexpr std::uint32_t longest_call = 6;
  const error cause = error_of(call);
  ASSERT_NE(cause.what, "nothing failed") << "line " << begin.line();
  EXPECT_EQ(file_of(cause), "place_of_call_test.cpp") << "line " << begin.line() << ": " << to_string(cause);
  EXPECT_GE(cause.where.line(), begin.line()) << to_string(cause);
  EXPECT_LE(cause.where.line(), begin.line() + longest_call) << to_string(cause);
  EXPECT_EQ(called_from::place().line(), 0U) << "line " << begin.line() << " is remembered after the call";
}

/// The short list of calls that cannot know: they name no line, rather than a wrong one.
template <class F>
void names_no_line(F&& call, std::source_location begin = std::source_location::current()) {
  const error cause = error_of(call);
  ASSERT_NE(cause.what, "nothing failed") << "line " << begin.line();
  EXPECT_EQ(cause.where.line(), 0U) << "line " << begin.line() << ": " << to_string(cause);
}

machine two_devices() {
  machine_options options;
  options.backend = "host";
  options.devices = 2;
  options.memory_per_device = bytes{16U << 20};
  return machine{options};
}

machine played(const char* topology) {
  machine_options options;
  options.backend = "host";
  options.sim = topology;
  options.memory_per_device = bytes{64U << 20};
  return machine{options};
}

void fail() { throw std::runtime_error{"on purpose"}; }

TEST(error_place, is_exactly_the_line_of_the_call) {
  const machine m = two_devices();
  const auto before = std::source_location::current();
  const error cause = error_of([&] { static_cast<void>(m[99]); });
  EXPECT_EQ(cause.where.line(), before.line() + 1);
  EXPECT_NE(to_string(cause).find("(place_of_call_test.cpp:" + std::to_string(before.line() + 1) + ")"),
            std::string::npos);
}

TEST(error_place, calls_of_machines_and_devices_name_their_line) {
  const machine m = two_devices();
  names_its_line([] { machine{machine_options{.backend = "nope"}}; });
  names_its_line([] { machine{machine_options{.sim = "nope"}}; });
  names_its_line([] { machine{machine_options{.backend = "host", .devices = -1}}; });
  names_its_line([] { static_cast<void>(machine::load("nope")); });
  names_its_line([&] { static_cast<void>(m[99]); });
  names_its_line([&] { static_cast<void>(m[unknown]); });
  names_its_line([&] { static_cast<void>(m.devices({.ids = {unknown}})); });
  names_its_line([&] { static_cast<void>(m.devices({.min_compute_units = 1 << 20})); });
  names_its_line([&] { static_cast<void>(m.find_devices({.exclude = {unknown}})); });
  names_its_line([&] { static_cast<void>(m[0].health()); });
}

TEST(error_place, calls_of_streams_and_events_name_their_line) {
  const machine m = two_devices();
  const machine other = two_devices();
  const stream s{m[0]};
  const stream foreign{other[0]};
  names_its_line([&] { static_cast<void>(stream::adopt(m[0], weft::stream_handle{9999})); });
  names_its_line([&] { static_cast<void>(stream::over(m[0], nullptr)); });
  names_its_line([&] { static_cast<void>(s.driver_queue()); });
  names_its_line([&] { s.wait(foreign.call([] {})); });
  names_its_line([&] { s.write_value(static_cast<std::uint32_t*>(nullptr), 1U); });
  names_its_line([&] { s.write_value(static_cast<std::uint64_t*>(nullptr), 1U); });
  names_its_line([&] { s.wait_value(static_cast<const std::uint32_t*>(nullptr), 1U); });
  names_its_line([&] { s.wait_value(static_cast<const std::uint64_t*>(nullptr), 1U); });
  names_its_line([&] { s.call({}); });
  names_its_line([&] { s.call(&fail), s.synchronize(); });
  names_its_line([&] { s.call(&fail), static_cast<void>(s.synchronize_for(1min)); });
  names_its_line([&] { s.call(&fail).wait(); });
  names_its_line([&] { s.call(&fail).wait_for(1min); });
  names_its_line([&] { s.call(&fail).wait(std::stop_token{}); });
  names_its_line([&] { wait_all(std::vector{s.call(&fail)}); });
  names_its_line([&] { s.call(&fail), m[0].synchronize(); });
  names_its_line([&] { s.call(&fail), static_cast<void>(m[0].synchronize_for(1min)); });
  names_its_line([&] { s.call(&fail), m.synchronize(); });
  names_its_line([&] { s.call(&fail), static_cast<void>(m.synchronize_for(1min)); });
  names_its_line([] { static_cast<void>(elapsed(weft::event{}, weft::event{})); });
  const auto moved = std::make_unique<stream>(m[0]);
  const stream taken{std::move(*moved)};
  names_its_line([&] { static_cast<void>(moved->record()); });
  names_its_line([&] { moved->call([] {}); });
  names_its_line([&] { static_cast<void>(moved->idle()); });
  names_its_line([&] { moved->synchronize(); });
  names_its_line([&] { weft::device_barrier(m, {}); });
  names_its_line([&] { weft::device_barrier(m, {unknown}); });
  weft::device_barrier pair{m, {first, second}};
  pair.arrive(s);
  names_its_line([&] { pair.arrive(s); });
  names_its_line([&] { pair.arrive_and_order(s); });
  names_its_line([&] { pair.arrive_and_wait(s, 1min); });
}

TEST(error_place, calls_of_memory_name_their_line) {
  const machine m = two_devices();
  const buffer<float> x{m[0], 1024};
  const auto plain = x.span().as<const std::byte>();
  names_its_line([&] { buffer<float>(m[0], huge); });
  names_its_line([&] { buffer<float>(m[0], endless); });
  names_its_line([&] { weft::pinned_buffer<float>(m[0], endless); });
  names_its_line([&] { weft::unified_buffer<float>(m[0], huge); });
  names_its_line([&] { weft::unified_buffer<float>(m[0], endless, weft::fall_back_to_pinned); });
  names_its_line([&] { static_cast<void>(x.subspan(1000, 100)); });
  names_its_line([&] { static_cast<void>(x.span().subspan(1000, 100)); });
  names_its_line([&] { static_cast<void>(x.span().first(5000)); });
  names_its_line([&] { static_cast<void>(x.span().last(5000)); });
  names_its_line([&] { static_cast<void>(address_range(m[0], nullptr)); });
  names_its_line([&] { prefetch(m[0], plain); });
  names_its_line([&] { advise(m[0], plain, weft::memory_advice::read_mostly); });
  names_its_line([&] { weft::adopted_memory<float>(m[0], std::span<float>{static_cast<float*>(nullptr), 10}); });
  names_its_line([] { static_cast<void>(weft::even_split(10, 0)); });
}

TEST(error_place, calls_of_pools_name_their_line) {
  const machine m = two_devices();
  const buffer<float> x{m[0], 1024};
  const memory_pool small{m[0], {.max_size = bytes{1024}}};
  const memory_pool shared{m[0], {.shareable = true}};
  names_its_line([&] { buffer<float>(small, 1U << 20); });
  names_its_line([&] { buffer<float>(small, endless); });
  names_its_line([&] { small.set_access(m[1], access_right::read); });
  names_its_line([&] { static_cast<void>(small.access(m[1])); });
  names_its_line([&] { static_cast<void>(small.handle()); });
  names_its_line([&] { static_cast<void>(small.handle_of(x)); });
  names_its_line([&] { static_cast<void>(shared.handle_of(x)); });
  names_its_line([&] { shared.set_access(m[0], access_right::none); });
  names_its_line([&] { weft::opened_pool(m, weft::pool_handle{}); });
}

TEST(error_place, calls_of_peers_name_their_line) {
  const machine m = two_devices();
  const machine apart = played("ring_3_no_p2p");
  const buffer<float> x{m[0], 1024};
  const buffer<float> y{apart[0], 16};
  const weft::atomic_operation add{};
  names_its_line([&] { static_cast<void>(can_access_peer(m, first, unknown)); });
  names_its_line([&] { enable_peer(m, first, first); });
  names_its_line([&] { enable_peer(m, first, unknown); });
  names_its_line([&] { enable_peer(m, first, second, 7); });
  names_its_line([&] { enable_peer(apart, first, second); });
  names_its_line([&] { disable_peer(m, first, unknown); });
  names_its_line([&] { disable_peer(m, first, first); });
  names_its_line([&] { static_cast<void>(peer_enabled(m, first, unknown)); });
  names_its_line([&] { weft::peer_access(apart, first, second); });
  names_its_line([&] { static_cast<void>(capability_between(m, first, unknown)); });
  names_its_line([&] { static_cast<void>(peer_atomics(m, first, unknown, {&add, 1})); });
  names_its_line([&] { static_cast<void>(map_peer_memory(m, nullptr, first, second, bytes{4})); });
  names_its_line([&] { static_cast<void>(map_peer_memory(m, x.data(), first, second, bytes{1U << 24})); });
  names_its_line([&] { unmap_peer_memory(m, nullptr, second); });
  names_its_line([&] { weft::peer_mapping<float>(apart, y.span(), second); });
  names_its_line([&] { static_cast<void>(grant(y, apart[1], access_right::read)); });
  names_its_line([&] { static_cast<void>(grant(mapping{}, m[0], access_right::read)); });
  names_its_line([&] { static_cast<void>(grant(memory_pool{apart[0]}, apart[1], access_right::read)); });
  const weft::access_grant none;
  names_its_line([&] { static_cast<void>(none.way()); });
  names_its_line([&] { static_cast<void>(none.right()); });
  names_its_line([&] { static_cast<void>(none.exposes()); });
}

TEST(error_place, calls_of_blocks_and_mappings_name_their_line) {
  const machine m = two_devices();
  const buffer<float> x{m[0], 1024};
  const physical_block block{m[0], bytes{4096}};
  const physical_block none;
  const weft::address_reservation room{m, bytes{1U << 24}};
  mapping mapped{block};
  names_its_line([&] { physical_block(m[0], bytes{}); });
  names_its_line([&] { physical_block(m[0], bytes{huge}); });
  names_its_line([&] { static_cast<void>(physical_block::behind(m, x.data())); });
  names_its_line([&] { static_cast<void>(block.share()); });
  names_its_line([&] { static_cast<void>(physical_block::open(m, weft::descriptor{})); });
  names_its_line([&] { static_cast<void>(physical_block::open(m[0], weft::descriptor{})); });
  names_its_line([&] { static_cast<void>(none.size()); });
  names_its_line([&] { static_cast<void>(none.on()); });
  names_its_line([&] { static_cast<void>(none.is_shareable()); });
  names_its_line([&] { static_cast<void>(none.is_imported()); });
  names_its_line([&] { weft::address_reservation(m, bytes{}); });
  names_its_line([&] { weft::address_reservation(m[0], bytes{}); });
  names_its_line([&] { mapping{none}; });
  names_its_line([&] { mapping(weft::address_reservation{}, block); });
  names_its_line([&] { mapping(room, block, bytes{3}); });
  names_its_line([&] { mapped.grant(unknown, access_right::read); });
  names_its_line([&] { mapped.grant({{unknown, access_right::read}}); });
  names_its_line([&] { static_cast<void>(mapped.access_of(unknown)); });
  names_its_line([&] { mapped.grow(none); });
}

TEST(error_place, calls_of_multicast_objects_name_their_line) {
  const machine m = two_devices();
  const machine wide = played("dgx_h100");
  const std::vector<device_id> pair{first, second};
  weft::multicast_object none;
  weft::multicast_object group{wide, pair, bytes{4096}};
  const stream s{wide[0]};
  const std::vector<float> host(1);
  group.add(first);
  names_its_line([&] { weft::multicast_object(m, std::vector{first}, bytes{4096}); });
  names_its_line([&] { static_cast<void>(none.size()); });
  names_its_line([&] { static_cast<void>(none.team()); });
  names_its_line([&] { none.add(first); });
  names_its_line([&] { group.add(first); });
  names_its_line([&] { group.unbind(first); });
  names_its_line([&] { static_cast<void>(none.wait_joined(1ms)); });
  names_its_line([&] { static_cast<void>(none.bind(physical_block{}, 1ms)); });
  names_its_line([&] { group.store(s, 0, host); });
  names_its_line([&] { group.store(s, endless, host); });
}

TEST(error_place, calls_that_share_memory_name_their_line) {
  const machine m = two_devices();
  const machine other = two_devices();
  const buffer<float> x{m[0], 1024};
  const weft::shareable_buffer<float> shared{m[0], 1024};
  const physical_block block{m[0], bytes{4096}};
  const mapping mapped{block};
  const std::vector<std::byte> short_bytes(3);
  names_its_line([&] { weft::shareable_buffer<float>(m[0], huge); });
  names_its_line([&] { static_cast<void>(shared.subspan(1000, 100)); });
  names_its_line([&] { static_cast<void>(weft::export_memory(x.span())); });
  names_its_line([&] { weft::opened_memory<float>(m[1], shared.handle()); });
  names_its_line([&] { weft::opened_memory<float>(m[1], weft::memory_handle{}); });
  names_its_line([&] { static_cast<void>(weft::memory_handle::from_bytes(short_bytes)); });
  names_its_line([] { static_cast<void>(weft::memory_handle::from_text("zz")); });
  names_its_line([&] { static_cast<void>(weft::share(x)); });
  names_its_line([&] { static_cast<void>(weft::share(mapped)); });
  names_its_line([] { static_cast<void>(weft::share(physical_block{})); });
  names_its_line([] { weft::share_handle(std::span<const weft::shared_bytes>{}); });
  names_its_line([&] { static_cast<void>(weft::share_handle::from_bytes(short_bytes)); });
  names_its_line([] { static_cast<void>(weft::share_handle::from_text("zz")); });
  names_its_line([&] { static_cast<void>(weft::open<float>(m[0], weft::share_handle{})); });
  names_its_line([&] { static_cast<void>(weft::open<float>(m[0], weft::share(shared))); });
  names_its_line([&] { weft::ipc_event(m, weft::event_handle{}); });
  const weft::ipc_event told{m};
  const stream foreign{other[0]};
  names_its_line([&] { told.record(foreign); });
  names_its_line([&] { told.wait(foreign, 1, 1ms); });
  names_its_line([&] { told.wait(0, 1ms); });
  names_its_line([&] { static_cast<void>(told.ready(0)); });
}

TEST(error_place, copies_and_fills_name_their_line) {
  const machine m = two_devices();
  const machine other = two_devices();
  const buffer<float> x{m[0], 1024}, foreign{other[0], 1024};
  const std::vector<float> host(10);
  const std::vector<weft::device_span<float>> parts{x.span()};
  names_its_line([&] { copy(x, host); });
  names_its_line([&] { copy(x, foreign); });
  names_its_line([&] { copy(x, x, {.route = {.path = weft::copy_path::relayed}}); });
  names_its_line([&] { copy_peer(m, nullptr, first, x.data(), first, bytes{4}); });
  names_its_line([] { fill(buffer<float>{}, 1.0F); });
  names_its_line([&] { static_cast<void>(part(x, host)); });
  names_its_line([&] { scatter(std::span{parts}, host); });
}

TEST(error_place, launches_name_their_line) {
  const machine m = two_devices();
  const machine other = two_devices();
  const stream s{m[0]};
  const buffer<float> x{m[0], 1024}, foreign{other[0], 1024};
  std::vector<float> host(10);
  const std::vector<float> none;
  names_its_line([&] { launch(s, "nope", range(4), x); });
  names_its_line([&] { launch(m, "nope", range(4), x); });
  names_its_line([&] { prepare(m[0], "nope"); });
  names_its_line([&] { static_cast<void>(weft::kernels(m).at("nope")); });
  names_its_line([&] { weft::launch<place_add>(s, range(-4), x); });
  names_its_line([&] { weft::launch<place_add>(s, range(1 << 20), x); });
  names_its_line([&] { weft::launch<place_add>(s, range(4), foreign); });
  names_its_line([&] { weft::launch<place_add>(m, range(1 << 20), host).wait(); });
  names_its_line([&] { weft::launch<place_add>(m, {.devices = {.ids = {unknown}}}, range(10), host); });
  names_its_line([&] { weft::array<float>(m, std::size_t{1} << 62); });
  names_its_line([&] { weft::array<float>(m, std::size_t{1} << 62, 1.0F); });
  names_its_line([&] { static_cast<void>(weft::array<float>{m, 10}.host()); });
  names_its_line([&] { static_cast<void>(sum(m, foreign)); });
  names_its_line([&] { static_cast<void>(minimum(m, none)); });
  names_its_line([&] { static_cast<void>(weft::map_reduce<place_map>(m, range(100), weft::reduce_op::sum, host)); });
  names_its_line([&] { static_cast<void>(weft::make_pipeline<float>(m, 10).build()); });
  names_its_line(
      [&] { static_cast<void>(weft::make_pipeline<float>(m, 10, {.depth = 0}).kernel<place_map>("a").build()); });
  auto line = weft::make_pipeline<float>(m, 10).kernel<place_map>("a").build();
  std::vector<float> many(100), results(100);
  names_its_line([&] { line.push(many, results); });
  names_its_line([&] { static_cast<void>(line.results_of(100)); });
}

TEST(error_place, work_that_failed_in_a_stream_names_the_line_of_the_wait) {
  const machine m = played("pair_nvlink");
  const stream s{m[1]};
  const buffer<float> x{m[0], 16};
  const weft::event done = weft::launch<place_add>(s, range(16), x);
  names_its_line([&] { done.wait(); });
}

TEST(error_place, a_launch_over_devices_that_failed_names_the_line_of_the_launch) {
  const machine m = two_devices();
  std::vector<float> host(1000);
  std::promise<void> gate;
  const auto opened = gate.get_future().share();
  for (const device& d : m.devices()) d.default_stream().call([opened] { opened.wait(); });
  const auto before = std::source_location::current();
  const weft::launch_run run = weft::launch<place_add>(m, range(1000), host);
  run.cancel();
  gate.set_value();
  const error cause = error_of([&] { run.wait(); });
  EXPECT_EQ(cause.code, errc::cancelled);
  EXPECT_EQ(cause.where.line(), before.line() + 1);
}

TEST(error_place, collectives_over_devices_name_their_line) {
  const machine m = two_devices();
  const machine other = two_devices();
  weft::communicator all{m};
  std::vector<buffer<float>> one;
  one.emplace_back(m[0], 4);
  std::vector<stream> streams;
  streams.emplace_back(m[0]);
  names_its_line([] { weft::communicator(std::span<const device>{}); });
  names_its_line([&] { weft::communicator(std::vector{m[0], other[0]}); });
  names_its_line([&] { static_cast<void>(all.on(rank{9})); });
  names_its_line([&] { static_cast<void>(all.sub(std::vector{rank{9}})); });
  names_its_line([&] { static_cast<void>(all.split(std::vector{1})); });
  names_its_line([&] { all.all_reduce(one, weft::reduce_op::sum); });
  names_its_line([&] { all.barrier({.streams = streams}); });
  names_its_line([&] { static_cast<void>(all.barrier().done(rank{9})); });
  names_its_line([] { static_cast<void>(weft::reduction_op::by<place_map>()); });
  all.abort();
  names_its_line([&] { all.barrier().wait(); });
}

TEST(error_place, process_groups_and_their_collectives_name_their_line) {
  using weft::rendezvous;
  names_its_line([] { rendezvous::at("", rank{0}, 1); });
  names_its_line([] { rendezvous::connected(0); });
  names_its_line([] { static_cast<void>(rendezvous::at("abc", rank{0}, 1).ticket()); });
  names_its_line([] { rendezvous::inherited("x"); });
  auto alone = std::move(rendezvous::connected(1).front()).join();
  ASSERT_TRUE(alone);
  const auto group = std::make_shared<weft::process_group>(std::move(*alone));
  names_its_line([&] { static_cast<void>(group->peer(rank{7})); });
  names_its_line([&] { static_cast<void>(group->send(rank{0}, 0, {}, {}, 1ms)); });
  names_its_line([&] { static_cast<void>(group->receive(rank{0}, 0, 1ms)); });
  names_its_line([&] { static_cast<void>(group->alive(rank{7})); });
  names_its_line([&] { static_cast<void>(weft::connect_receiver<int>(*group, rank{7}, 0)); });
  names_its_line([&] { static_cast<void>(weft::connect_sender<int>(*group, rank{7}, 0)); });
  names_its_line([&] { static_cast<void>(weft::connect_both<int>(*group, rank{0}, 0)); });

  const machine m = two_devices();
  const buffer<float> x{m[0], 1024};
  names_its_line([&] { static_cast<void>(weft::rank_communicator::join(nullptr, m[0])); });
  auto ranks = weft::rank_communicator::join(group, m[0]);
  names_its_line([&] { ranks.all_reduce(x, x.subspan(0, 10), weft::reduce_op::sum); });
  names_its_line([&] { ranks.broadcast(x, {.root = rank{7}}); });
  names_its_line([&] { ranks.send(rank{5}, x); });
  names_its_line([&] { ranks.receive(rank{5}, x); });
  names_its_line([&] { static_cast<void>(ranks.allocate<float>(huge)); });
  names_its_line([&] { static_cast<void>(ranks.member(rank{9})); });
  ranks.abort();
  names_its_line([&] { ranks.barrier(); });
  names_its_line([&] { static_cast<void>(ranks.split(0)); });
}

TEST(error_place, calls_of_queues_and_profilers_name_their_line) {
  const machine m = two_devices();
  weft::message_queue<int> queue{m, first, second};
  auto sender = queue.open_sender();
  const weft::kernel_end lent{sender};
  const weft::profiler records{m};
  names_its_line([&] { weft::message_queue<int>(m, first, unknown); });
  names_its_line([&] { weft::message_queue<int>(m, first, second, {.capacity = 0}); });
  names_its_line([&] { static_cast<void>(queue.open_sender()); });
  names_its_line([&] { static_cast<void>(weft::make_ring<int>(m, {first})); });
  names_its_line([&] { weft::kernel_end again{sender}; });
  names_its_line([&] { weft::profiler again{m}; });
  names_its_line([&] { records.write_chrome_trace("/nonexistent/x"); });
}

TEST(error_place, calls_of_a_closed_machine_name_their_line) {
  machine m = two_devices();
  const device d = m[0];
  const stream s{d};
  const buffer<float> x{d, 16};
  std::vector<float> host(16);
  weft::array<float> values{m, 16, 1.0F};
  weft::communicator all{m};
  std::vector<buffer<float>> both;
  both.emplace_back(m[0], 4);
  both.emplace_back(m[1], 4);
  m.close();
  names_its_line([&] { m.synchronize(); });
  names_its_line([&] { static_cast<void>(d.free_memory()); });
  names_its_line([&] { static_cast<void>(d.default_stream()); });
  names_its_line([&] { d.reset(); });
  names_its_line([&] { stream{d}; });
  names_its_line([&] { static_cast<void>(s.record()); });
  names_its_line([&] { buffer<float>(d, 16); });
  names_its_line([&] { memory_pool{d}; });
  names_its_line([&] { static_cast<void>(granularity(m)); });
  names_its_line([&] { weft::ipc_event{m}; });
  names_its_line([&] { copy(host, x); });
  names_its_line([&] { copy(s, x, host); });
  names_its_line([&] { fill(x, 1.0F); });
  names_its_line([&] { fill(s, x, 1.0F); });
  names_its_line([&] { weft::launch<place_add>(s, range(16), x); });
  names_its_line([&] { weft::launch<place_add>(m, range(16), host); });
  names_its_line([&] { weft::kernels(m).add<place_add>(); });
  names_its_line([&] { values.write(host); });
  names_its_line([&] { static_cast<void>(values.host()); });
  names_its_line([&] { weft::array<float>(m, 16); });
  names_its_line([&] { all.all_reduce(both, weft::reduce_op::sum); });
  names_its_line([&] { weft::communicator{m}; });
  names_its_line([&] { weft::message_queue<int>(m, first, second); });
  names_its_line([&] { static_cast<void>(weft::make_pipeline<float>(m, 10).kernel<place_map>("a").build()); });
  names_its_line([&] { weft::profiler{m}; });
}

weft::task<void> waits_for(weft::event work) { co_await work; }

TEST(error_place, is_unknown_where_the_call_cannot_know_it) {
  const machine m = two_devices();
  const stream s{m[0]};
  names_no_line([&] { sync_wait(waits_for(s.call(&fail))); });
  weft::join_options hurry;
  hurry.timeout = 1ms;
  const auto late = weft::rendezvous::at("place_of_call_test", rank{0}, 2).join(hurry);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().where.line(), 0U);
  names_its_line([&] { weft::value_or_raise(weft::result<void>{late.error()}); });
}

}  // namespace place_of_call_test
