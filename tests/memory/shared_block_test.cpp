// SPDX-License-Identifier: Apache-2.0
// Blocks between processes: children are forked before any machine exists, and get descriptors by their group's socket.
#include "backends/host/memory/block_map.hpp"
#include "support/hang.hpp"
#include "support/processes.hpp"
#include "support/samples.hpp"
#include "weft/exec/launch.hpp"
#include "weft/memory/fill.hpp"
#include "weft/memory/mapping.hpp"
#include "weft/memory/physical_block.hpp"
#include "weft/processes/rendezvous.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace shared_block_test {

using processes::child;
using samples::contents;
using samples::error_of;
using samples::gpu0;
using samples::gpu1;
using samples::pattern;
using samples::same;
using weft::access_right;
using weft::descriptor;
using weft::errc;
using weft::machine;
using weft::mapping;
using weft::physical_block;
using weft::process_group;
using weft::rank;
using weft::rendezvous;
using namespace std::chrono_literals;
using namespace weft::literals;

constexpr std::size_t count = 300'007;

WEFT_KERNEL(shared_block_next, (WEFT_INOUT(uint8_t) data), { data[i] = (uint8_t)(data[i] * 3 + 1); });

machine two_devices() { return samples::play(samples::wired(2)); }

physical_block shareable(const machine& m, weft::device_id on = gpu0) {
  return physical_block{m[on], 1_MiB, weft::sharing::with_processes};
}

process_group join(std::vector<rendezvous>& places, std::size_t at) {
  rendezvous mine = std::move(places[at]);
  places.clear();
  return weft::value_or_raise(std::move(mine).join());
}

void give(process_group& group, int to, const physical_block& block) {
  const descriptor shared = block.share();
  const std::array files{shared.get()};
  weft::value_or_raise(group.send(rank{to}, 1, {}, files, samples::only_a_hang));
}

physical_block taken(process_group& group, int from, const machine& m) {
  weft::peer_message got = weft::value_or_raise(group.receive(rank{from}, 1, samples::only_a_hang));
  const physical_block block = physical_block::open(m, got.descriptors.at(0));
  got.descriptors.clear();  // the block needs it no more
  return block;
}

void meet(process_group& group) { weft::value_or_raise(group.barrier(samples::only_a_hang)); }

samples::data next_of(samples::data values) {
  for (auto& v : values) v = static_cast<std::uint8_t>(v * 3 + 1);
  return values;
}

// ---- 87 -------------------------------------------------------------------------------------------------------------

TEST(shared_block, is_written_by_kernels_of_a_child_and_of_a_grandchild) {
  auto places = rendezvous::connected(3);
  child first{[&] {
    child second{[&] {
      process_group group = join(places, 2);
      const machine m = two_devices();
      mapping mine{taken(group, 1, m)};
      mine.grant(gpu1, access_right::read_write);
      weft::launch<shared_block_next>(weft::stream{m[1]}, weft::range(count),
                                      mine.span<std::uint8_t>(gpu1).first(count))
          .wait();
      meet(group);
      return 0;
    }};
    process_group group = join(places, 1);
    const machine m = two_devices();
    const physical_block block = taken(group, 0, m);
    if (!block.is_imported() || block.on().id() != gpu0) return 1;
    mapping mine{block};
    mine.grant(gpu0, access_right::read_write);
    weft::launch<shared_block_next>(weft::stream{m[0]}, weft::range(count), mine.span<std::uint8_t>().first(count))
        .wait();
    give(group, 2, block);  // what was imported can be given on
    meet(group);
    return second.wait();
  }};
  process_group group = join(places, 0);
  const machine m = two_devices();
  const physical_block block = shareable(m);
  mapping mine{block};
  mine.grant(gpu0, access_right::read_write);
  const auto data = pattern(count, 4);
  weft::copy(mine.span<std::uint8_t>().first(count), data);
  give(group, 1, block);
  meet(group);
  EXPECT_TRUE(same(contents(mine.span<std::uint8_t>().first(count)), next_of(next_of(data))));
  EXPECT_EQ(first.wait(), 0);
}

TEST(shared_block, is_opened_in_its_own_process_too_as_the_same_memory) {
  const machine m = two_devices();
  const std::uint64_t before = m[0].free_memory().value();
  {
    const physical_block made = shareable(m);
    const physical_block again = physical_block::open(m, made.share());
    EXPECT_EQ(made, again);
    EXPECT_EQ(before - m[0].free_memory().value(), made.size().value()) << "counted once";
    mapping a{made}, b{again};
    a.grant(gpu0, access_right::read_write);
    b.grant(gpu0, access_right::read);
    const auto data = pattern(1000, 1);
    weft::copy(a.span<std::uint8_t>().first(1000), data);
    EXPECT_TRUE(same(contents(b.span<std::uint8_t>().first(1000)), data));
  }
  EXPECT_EQ(m[0].free_memory().value(), before);
}

TEST(shared_block, is_one_memory_in_two_machines_of_a_process) {
  const machine a = two_devices(), b = two_devices();
  const std::uint64_t before = b[0].free_memory().value();
  const physical_block made = shareable(a);
  const physical_block opened = physical_block::open(b[1], made.share());
  EXPECT_EQ(opened.on().id(), gpu1) << "as asked";
  EXPECT_TRUE(opened.is_imported());
  EXPECT_EQ(b[0].free_memory().value(), before) << "it counts where it was made";
  EXPECT_EQ(b[1].free_memory(), b[1].total_memory());
  mapping x{made}, y{opened};
  x.grant(gpu0, access_right::read_write);
  y.grant(gpu1, access_right::read);
  weft::fill(x.span<std::uint8_t>(), std::uint8_t{8});
  EXPECT_EQ(contents(y.span<std::uint8_t>().first(3)), samples::data(3, 8));
  EXPECT_EQ(error_of([&] { mapping{weft::address_reservation{a, 1_MiB}, opened}; }).code, errc::wrong_device);
}

TEST(shared_block, has_a_new_descriptor_for_each_that_is_asked_for) {
  const machine m = two_devices();
  const physical_block block = shareable(m);
  const descriptor one = block.share(), other = block.share();
  EXPECT_NE(one.get(), other.get());
  EXPECT_NE(::fcntl(one.get(), F_GETFD) & FD_CLOEXEC, 0) << "programs started by this one must not get it";
}

TEST(shared_block, is_refused_to_others_when_it_was_not_made_for_them) {
  const machine m = two_devices();
  const weft::error e = error_of([&] { static_cast<void>(physical_block{m[0], 1_MiB}.share()); });
  EXPECT_EQ(e.code, errc::invalid_argument) << e.what;
}

TEST(shared_block, lives_on_in_the_importer_when_its_maker_has_gone) {
  auto places = rendezvous::connected(2);
  child maker{[&] {
    process_group group = join(places, 1);
    const machine m = two_devices();
    const physical_block block = shareable(m);
    mapping mine{block};
    mine.grant(gpu0, access_right::read_write);
    weft::copy(mine.span<std::uint8_t>().first(count), pattern(count, 6));
    give(group, 0, block);
    meet(group);
    return 0;
  }};
  process_group group = join(places, 0);
  const machine m = two_devices();
  mapping mine{taken(group, 1, m)};
  meet(group);
  EXPECT_EQ(maker.wait(), 0);
  mine.grant(gpu0, access_right::read);
  EXPECT_TRUE(same(contents(mine.span<std::uint8_t>().first(count)), pattern(count, 6)));
}

TEST(shared_block, leaves_nothing_behind_after_a_thousand_cycles) {
  const machine a = two_devices(), b = two_devices();
  const physical_block block = shareable(a);
  const auto cycle = [&] {
    mapping held{physical_block::open(b, block.share())};
    held.grant(gpu0, access_right::read);
  };
  cycle();
  const std::size_t descriptors = processes::open_descriptors(), mappings = processes::mappings_of("weft-block");
  const std::uint64_t taken = processes::address_space();
  for (int i = 0; i < 1000; ++i) cycle();
  EXPECT_EQ(processes::open_descriptors(), descriptors);
  EXPECT_EQ(processes::mappings_of("weft-block"), mappings);
  EXPECT_LT(processes::address_space(), taken + 500 * count) << "half of what the reservations of all cycles take";
}

// ---- 88 -------------------------------------------------------------------------------------------------------------

TEST(shared_block, brings_no_right_to_who_opens_it) {
  auto places = rendezvous::connected(2);
  child importer{[&] {
    process_group group = join(places, 1);
    const machine m = two_devices();
    mapping mine{taken(group, 0, m)};
    if (mine.access_of(gpu0) != access_right::none || mine.access_of(gpu1) != access_right::none) return 1;
    if (error_of([&] { contents(mine.span<std::uint8_t>().first(1)); }).code != errc::invalid_argument) return 2;
    mine.grant(gpu0, access_right::read);
    if (contents(mine.span<std::uint8_t>().first(1))[0] != 3) return 3;
    if (error_of([&] { weft::fill(mine.span<std::uint8_t>(), std::uint8_t{1}); }).code != errc::invalid_argument)
      return 4;
    meet(group);
    return 0;
  }};
  process_group group = join(places, 0);
  const machine m = two_devices();
  const physical_block block = shareable(m);
  mapping mine{block};
  mine.grant({{gpu0, access_right::read_write}, {gpu1, access_right::read_write}});
  weft::fill(mine.span<std::uint8_t>(), std::uint8_t{3});
  give(group, 1, block);
  meet(group);
  EXPECT_EQ(importer.wait(), 0);
  EXPECT_EQ(mine.access_of(gpu1), access_right::read_write) << "nor do the rights of one touch those of the other";
}

// ---- what is offered from outside -----------------------------------------------------------------------------------

/// A file like that of a block, with what a test wants to be wrong.
struct forgery {
  std::uint64_t size = 2 << 20;
  int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  weft::host::block_header header;
  std::int64_t file_size = (2 << 20) + 4096;
  bool fresh_check = true;

  forgery() {
    header.magic = weft::host::block_header::the_magic;
    header.version = weft::host::block_header::the_version;
    header.size = size;
    const std::string uuid = two_devices()[0].uuid();
    std::copy(uuid.begin(), uuid.end(), header.device.begin());
  }
  [[nodiscard]] descriptor made() const {
    descriptor file{::memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
    weft::host::block_header written = header;
    if (fresh_check) written.check = written.computed_check();
    if (::ftruncate(file.get(), file_size) != 0) ADD_FAILURE() << "no file";
    if (file_size >= 4096 && ::pwrite(file.get(), &written, sizeof written, file_size - 4096) < 0)
      ADD_FAILURE() << "no header";
    EXPECT_EQ(::fcntl(file.get(), F_ADD_SEALS, seals), 0);
    return file;
  }
};

errc opened(const machine& m, const descriptor& offered) {
  return error_of([&] { static_cast<void>(physical_block::open(m, offered)); }).code;
}

TEST(shared_block, forged_without_a_mistake_is_a_block) {
  // what the refusals below are measured against
  EXPECT_EQ(opened(two_devices(), forgery{}.made()), errc::not_ready);
}

TEST(shared_block, smaller_than_its_maker_said_is_refused) {
  const machine m = two_devices();
  const physical_block made{m[0], weft::bytes{1}, weft::sharing::with_processes};
  EXPECT_TRUE(physical_block::open(m, made.share(), made.size()));
  EXPECT_EQ(error_of([&] {
              static_cast<void>(physical_block::open(m, made.share(), weft::bytes{made.size().value() + 1}));
            }).code,
            errc::corrupt);
}

TEST(shared_block, whose_owner_could_take_the_memory_away_is_refused) {
  const machine m = two_devices();
  for (const int missing : {F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SEAL}) {
    forgery weak;
    weak.seals &= ~missing;
    EXPECT_EQ(opened(m, weak.made()), errc::corrupt) << missing;
  }
  forgery fixed;
  fixed.seals |= F_SEAL_FUTURE_WRITE;
  EXPECT_EQ(opened(m, fixed.made()), errc::corrupt) << "it cannot be mapped writable";
}

TEST(shared_block, with_a_header_that_cannot_be_is_refused) {
  const machine m = two_devices();
  const auto with = [&](auto&& change) {
    forgery f;
    change(f);
    return opened(m, f.made());
  };
  EXPECT_EQ(with([](forgery& f) { f.header.magic ^= 1; }), errc::corrupt);
  EXPECT_EQ(with([](forgery& f) { f.header.version = 2; }), errc::incompatible);
  EXPECT_EQ(with([](forgery& f) { f.header.reserved = 1; }), errc::corrupt);
  EXPECT_EQ(with([](forgery& f) { f.fresh_check = false; }), errc::corrupt);
  EXPECT_EQ(with([](forgery& f) { f.header.device.fill('x'); }), errc::corrupt) << "a text without an end";
  EXPECT_EQ(with([](forgery& f) { f.header.device[0] ^= 1; }), errc::not_found) << "a device of another machine";
  for (const std::uint64_t size :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{4} << 20, ~std::uint64_t{0}, std::uint64_t{1} << 63})
    EXPECT_EQ(with([&](forgery& f) { f.header.size = size; }), errc::corrupt) << size;
  for (const std::int64_t size : {0, 1, 4095, 4096, 4097, 2 << 20, (2 << 20) + 4095, (2 << 20) + 4097})
    EXPECT_EQ(with([&](forgery& f) { f.file_size = size; }), errc::corrupt) << size;
}

TEST(shared_block, header_reader_takes_no_changed_bit) {
  forgery good;
  good.header.check = good.header.computed_check();
  std::array<std::byte, sizeof good.header> bytes{};
  std::memcpy(bytes.data(), &good.header, bytes.size());
  const auto file_size = static_cast<std::uint64_t>(good.file_size);
  ASSERT_TRUE(weft::host::read_block_header(bytes.data(), bytes.size(), file_size));
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    const std::byte mask{static_cast<std::uint8_t>(1U << (bit % 8))};
    bytes[bit / 8] ^= mask;
    EXPECT_FALSE(weft::host::read_block_header(bytes.data(), bytes.size(), file_size)) << bit;
    bytes[bit / 8] ^= mask;
  }
  for (std::size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(weft::host::read_block_header(bytes.data(), size, file_size)) << size;
}

TEST(shared_block, descriptors_of_other_things_are_refused) {
  const machine m = two_devices();
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const descriptor in{ends[0]}, out{ends[1]};
  EXPECT_EQ(opened(m, in), errc::corrupt) << "a pipe";
  const descriptor folder{::open("/", O_RDONLY | O_CLOEXEC)};
  EXPECT_EQ(opened(m, folder), errc::corrupt) << "a folder";
  const descriptor null{::open("/dev/null", O_RDWR | O_CLOEXEC)};
  EXPECT_EQ(opened(m, null), errc::corrupt) << "a device file";
  const descriptor self{::open("/proc/self/exe", O_RDONLY | O_CLOEXEC)};
  EXPECT_EQ(opened(m, self), errc::corrupt) << "a file";
  EXPECT_EQ(opened(m, descriptor{}), errc::invalid_argument) << "nothing";
  descriptor closed{::dup(in.get())};
  ::close(closed.get());
  EXPECT_EQ(opened(m, closed), errc::invalid_argument) << "closed";
  static_cast<void>(closed.release());
  const std::string path = "/proc/self/fd/" + std::to_string(forgery{}.made().release());
  const descriptor reader{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  EXPECT_EQ(opened(m, reader), errc::corrupt) << "only to be read";
  ::close(std::stoi(path.substr(path.rfind('/') + 1)));
}

}  // namespace shared_block_test
