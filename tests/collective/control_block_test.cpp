// SPDX-License-Identifier: Apache-2.0
// The memory that ranks share, when what is in it was not written by weft.
#include "collective/ranks/control_block.hpp"

#include "collective/rank_ranks.hpp"
#include "collective/ranks/transfer/rank_wire.hpp"
#include "support/faults.hpp"
#include "support/rounds.hpp"
#include "support/vandal.hpp"

#include <array>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <random>
#include <sys/mman.h>
#include <unistd.h>

namespace control_block_test {

using namespace std::chrono_literals;
using weft::errc;
using weft::rank;
using weft::rank_communicator;
using weft::reduce_op;
using weft::detail::control_block;
using weft::detail::control_header;
using weft::detail::control_shape;

using group = std::shared_ptr<weft::process_group>;

TEST(control_block, has_a_place_for_everything_and_none_twice) {
  for (const int n : {1, 2, 5, 8, 64}) {
    const auto shape = control_shape::of(n, n, 10'000);
    const auto file = weft::value_or_raise(control_block::make(shape, 42));
    const auto block = weft::value_or_raise(control_block::open(file.get(), n, n));
    EXPECT_EQ(block.id(), 42U);
    EXPECT_EQ(block.shape(), shape);
    std::vector<std::pair<std::byte*, std::byte*>> places;
    places.emplace_back(reinterpret_cast<std::byte*>(&block.words()), reinterpret_cast<std::byte*>(&block.words() + 1));
    for (int r = 0; r < n; ++r) {
      places.emplace_back(reinterpret_cast<std::byte*>(&block.area(r)),
                          reinterpret_cast<std::byte*>(&block.area(r) + 1));
      for (const int half : {0, 1}) places.emplace_back(block.staging(r, half), block.staging(r, half) + shape.half);
      for (int to = 0; to < n; ++to)
        places.emplace_back(block.wire(r, to), block.wire(r, to) + weft::detail::wire_words_bytes + shape.wire);
    }
    std::sort(places.begin(), places.end());
    for (std::size_t i = 1; i < places.size(); ++i) ASSERT_LE(places[i - 1].second, places[i].first) << n << ", " << i;
    const auto begin = reinterpret_cast<std::byte*>(&block.words()) - 128;
    EXPECT_LE(static_cast<std::uint64_t>(places.back().second - begin), shape.size()) << n;
    EXPECT_LE(shape.size(), std::uint64_t{32} << 20) << n;
  }
}

TEST(control_block, a_damaged_block_or_one_of_another_build_is_refused) {
  const auto shape = control_shape::of(3, 3, 8192);
  const auto file = weft::value_or_raise(control_block::make(shape, 7));
  std::array<std::byte, sizeof(control_header)> raw{};
  ASSERT_EQ(::pread(file.get(), raw.data(), raw.size(), 0), static_cast<ssize_t>(raw.size()));
  ASSERT_TRUE(weft::detail::read_control_header(raw.data(), raw.size(), 3, 3));
  EXPECT_EQ(weft::detail::read_control_header(raw.data(), raw.size(), 4, 4).error().code, errc::incompatible);
  for (std::size_t size = 0; size < raw.size(); ++size)
    EXPECT_EQ(weft::detail::read_control_header(raw.data(), size, 3, 3).error().code, errc::corrupt) << size;
  for (std::size_t bit = 0; bit < raw.size() * 8; ++bit) {
    auto damaged = raw;
    damaged[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_FALSE(weft::detail::read_control_header(damaged.data(), damaged.size(), 3, 3)) << "bit " << bit;
  }
  // right in itself, with numbers that lead out of the memory
  control_header wide;
  std::memcpy(&wide, raw.data(), sizeof wide);
  wide.half = std::uint64_t{1} << 62;
  wide.check = wide.computed_check();
  EXPECT_EQ(weft::detail::read_control_header(reinterpret_cast<std::byte*>(&wide), sizeof wide, 3, 3).error().code,
            errc::corrupt);
}

TEST(control_block, a_block_that_its_owner_could_take_away_is_refused) {
  const auto shape = control_shape::of(2, 2, 8192);
  const auto good = weft::value_or_raise(control_block::make(shape, 7));
  std::array<std::byte, sizeof(control_header)> raw{};
  ASSERT_EQ(::pread(good.get(), raw.data(), raw.size(), 0), static_cast<ssize_t>(raw.size()));
  const auto forged = [&](std::uint64_t size, int seals) {
    weft::descriptor file{::memfd_create("forged", MFD_ALLOW_SEALING)};
    EXPECT_EQ(::ftruncate(file.get(), static_cast<off_t>(size)), 0);
    EXPECT_EQ(::pwrite(file.get(), raw.data(), raw.size(), 0), static_cast<ssize_t>(raw.size()));
    EXPECT_EQ(::fcntl(file.get(), F_ADD_SEALS, seals), 0);
    return file;
  };
  EXPECT_EQ(control_block::open(forged(shape.size(), 0).get(), 2, 2).error().code, errc::corrupt);
  EXPECT_EQ(control_block::open(forged(shape.size(), F_SEAL_SHRINK).get(), 2, 2).error().code, errc::corrupt);
  EXPECT_EQ(control_block::open(forged(shape.size() - 1, F_SEAL_SHRINK | F_SEAL_SEAL).get(), 2, 2).error().code,
            errc::corrupt);
  const auto sparse = forged(shape.size(), F_SEAL_SHRINK | F_SEAL_SEAL);
  EXPECT_EQ(control_block::open(sparse.get(), 2, 2).error().code, errc::corrupt) << "this process would pay for it";
  ASSERT_EQ(::posix_fallocate(sparse.get(), 0, static_cast<off_t>(shape.size())), 0);
  EXPECT_TRUE(control_block::open(sparse.get(), 2, 2));
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  EXPECT_EQ(control_block::open(pipe[0], 2, 2).error().code, errc::corrupt);
  ::close(pipe[0]);
  ::close(pipe[1]);
}

TEST(rank_wire, carries_any_pieces_in_order_and_no_more_than_it_holds) {
  constexpr std::uint64_t capacity = 4096;
  struct alignas(128) lines {
    std::array<std::byte, weft::detail::wire_words_bytes + capacity> all{};
  } memory;
  weft::detail::rank_wire out{memory.all.data(), capacity}, in{memory.all.data(), capacity};
  const auto sent = samples::pattern(300'000, 3);
  samples::data got(sent.size());
  std::mt19937 random{5};
  std::size_t s = 0, r = 0;
  while (r < sent.size()) {
    const std::size_t some = std::min<std::size_t>(random() % 6000, sent.size() - s);
    const std::size_t gone = out.try_send(std::as_bytes(std::span{sent}.subspan(s, some)));
    s += gone;
    ASSERT_LE(s - r, capacity);
    if (gone < some) {
      ASSERT_EQ(s - r, capacity) << "room was left";
    }
    const std::size_t wanted = std::min<std::size_t>(random() % 6000, sent.size() - r);
    r += in.try_receive(std::as_writable_bytes(std::span{got}.subspan(r, wanted)));
    ASSERT_LE(r, s);
  }
  EXPECT_TRUE(samples::same(got, sent));
}

TEST(rank_wire, with_words_that_cannot_be_is_broken_and_touches_nothing) {
  struct alignas(128) lines {
    std::array<std::byte, weft::detail::wire_words_bytes + 4096> all{};
  } memory;
  weft::detail::rank_wire out{memory.all.data(), 4096}, in{memory.all.data(), 4096};
  std::array<std::byte, 8192> some{};
  const std::uint64_t far = 1'000'000;
  std::memcpy(memory.all.data(), &far, sizeof far);
  EXPECT_EQ(in.try_receive(some), 0U);
  EXPECT_TRUE(in.is_broken());
  EXPECT_EQ(out.try_send(some), 4096U);
  std::memcpy(memory.all.data() + 128, &far, sizeof far);
  EXPECT_EQ(out.try_send(some), 0U);
  EXPECT_TRUE(out.is_broken());
}

/// The control memory of this process's communicator.
std::span<std::byte> control_memory() { return vandal::mapping_of("weft-communicator"); }

/// Everything in it that is no payload.
vandal::fields fields_of(std::span<std::byte> memory, int ranks) {
  const auto shape = control_shape::of(ranks, ranks, std::uint64_t{1} << 20);
  vandal::fields made;
  auto& words = *reinterpret_cast<weft::detail::group_words*>(memory.data() + 128);
  made.add(words.sleepers);
  made.add(words.bell);
  for (std::size_t i = 0; i < 6; ++i) {
    made.add(words.chain[i]);
    made.add(words.ready[i]);
  }
  auto* areas = reinterpret_cast<weft::detail::rank_area*>(memory.data() + shape.areas_at());
  for (int r = 0; r < ranks; ++r) {
    weft::detail::rank_area& area = areas[r];
    for (auto& entered : area.entrances) {
      made.add(entered.number);
      made.add(entered.fingerprint);
      made.add_words(entered.data.data(), weft::detail::places_bytes);
    }
    made.add(area.step);
    made.add(area.finished);
    made.add(area.joined);
    made.add(area.arrived);
    for (auto& call : area.calls) {
      made.add(call.number);
      made.add(call.kind);
      made.add(call.count);
      made.add_words(reinterpret_cast<std::byte*>(&call.op), sizeof call.op);
      made.add_words(reinterpret_cast<std::byte*>(&call.refused), sizeof call.refused);
    }
    made.add_words(reinterpret_cast<std::byte*>(&area.why), 64);
    for (int to = 0; to < ranks; ++to) {
      std::byte* wire = memory.data() + shape.wires_at() +
                        static_cast<std::uint64_t>(r * ranks + to) * (weft::detail::wire_words_bytes + shape.wire);
      made.add_words(wire, 8);
      made.add_words(wire + 128, 8);
      made.add_words(wire + weft::detail::wire_words_bytes, 64);  // a header on its way
    }
  }
  return made;
}

/// What a communicator does, all of it, whatever comes of it.
void do_everything(rank_communicator& c, weft::symmetric_buffer<float>& there) {
  std::vector<float> tiny(3), small(1000), large(200'000), all(200'000 * static_cast<std::size_t>(c.size()));
  weft::collective_options o;
  o.timeout = 10ms;
  const auto attempt = [&](auto&& f) { static_cast<void>(samples::error_of(f)); };
  for (int i = 0; i < 4; ++i) {
    attempt([&] { c.all_reduce(tiny, reduce_op::sum, o); });
    attempt([&] { c.all_reduce(small, reduce_op::sum, o); });
    attempt([&] { c.all_reduce(there, reduce_op::sum, o); });
    attempt([&] { c.all_gather(large, all, o); });
    attempt([&] { rank_communicator::exchange{c}.send(rank{0}, tiny).receive(rank{c.size() - 1}, small).run(o); });
    weft::collective_options ring = o;
    ring.algorithm = weft::collective_algorithm::ring;
    attempt([&] { c.all_reduce(large, reduce_op::sum, ring); });
    static_cast<void>(c.states());
    static_cast<void>(c.failure());
  }
  attempt([&] {
    rank_communicator left = c.shrink(50ms);
    left.all_reduce(small, reduce_op::sum, o);
  });
  attempt([&] { static_cast<void>(c.shrink(50ms)); });
}

TEST(control_block, full_of_garbage_gives_errors_and_never_harms) {
  // ten million by night
  const int writes = samples::by_night() ? 900'000 : 100'000;
  samples::played_faults(12 * static_cast<std::uint64_t>(writes));
  for (unsigned seed = 1; seed <= 12; ++seed) {
    EXPECT_TRUE(ranks::run(ranks::kind::processes, 3,
                           [seed, writes](rank_communicator& c, const group& g) {
                             auto there = c.allocate<float>(10'000);
                             if (c.self() != rank{2}) {
                               static_cast<void>(samples::error_of([&] { c.barrier(); }));
                               do_everything(c, there);
                               return std::string{};
                             }
                             c.barrier();
                             const auto memory = control_memory();
                             if (memory.empty()) return std::string{"no memory to damage"};
                             std::mt19937_64 random{seed};
                             const auto shape = control_shape::of(3, 3, std::uint64_t{1} << 20);
                             const vandal::fields fields = fields_of(memory, 3);
                             auto& ended = reinterpret_cast<weft::detail::group_words*>(memory.data() + 128)->ended;
                             for (int i = 0; i < writes || g->alive(rank{0}) || g->alive(rank{1}); ++i) {
                               fields.damage(random);
                               // sometimes anything behind the header, which was read before
                               if (random() % 16 == 0) {
                                 const std::uint64_t room = (memory.size() - shape.areas_at()) / 8;
                                 const std::uint64_t value = random();
                                 std::memcpy(memory.data() + shape.areas_at() + random() % room * 8, &value, 8);
                               }
                               // in every other run the calls do not end at once, so that what is behind is reached
                               if (seed % 2 == 0) {
                                 ended.store(0);
                               } else if (random() % 1000 == 0) {
                                 ended.store(random() % 70'000);
                               }
                             }
                             return std::string{};
                           }))
        << "seed " << seed;
  }
}

TEST(control_block, a_place_outside_of_the_memory_of_its_rank_is_corrupt) {
  EXPECT_TRUE(ranks::run(ranks::kind::processes, 3, [](rank_communicator& c, const group&) {
    auto there = c.allocate<float>(10'000);
    c.barrier();
    if (c.self() != rank{2}) {
      const weft::error e = samples::error_of([&] { c.all_reduce(there, reduce_op::sum); });
      return e.code == errc::corrupt && e.what.find("rank 2 (pid") != std::string::npos ? std::string{} : to_string(e);
    }
    const auto memory = control_memory();
    auto* areas =
        reinterpret_cast<weft::detail::rank_area*>(memory.data() + control_shape::of(3, 3, 1 << 20).areas_at());
    const std::uint64_t next = areas[2].entrances[0].number > areas[2].entrances[1].number
                                   ? areas[2].entrances[0].number + 1
                                   : areas[2].entrances[1].number + 1;
    auto& from = areas[0].entrances[next & 1];
    auto& own = areas[2].entrances[next & 1];
    if (!processes::comes_true([&] { return from.number.load() == next; })) return std::string{"nobody comes"};
    std::memcpy(own.data.data(), from.data.data(), weft::detail::places_bytes);
    const std::uint64_t far = std::uint64_t{1} << 40;
    std::memcpy(own.data.data() + 8, &far, sizeof far);
    own.fingerprint.store(from.fingerprint.load());
    own.number.store(next);
    return processes::comes_true([&] { return c.failure().has_value(); }) ? std::string{} : "nobody minds";
  }));
}

// A rank's area is its own to write, but a hostile rank writes where it likes.
TEST(control_block, an_area_overwritten_by_another_rank_does_no_harm) {
  EXPECT_TRUE(ranks::run(ranks::kind::processes, 2, [](rank_communicator& c, const group&) {
    std::vector<float> plain(20'000, 1.0F);
    c.barrier();
    if (c.self() == rank{0}) {
      weft::collective_options o;
      o.timeout = 1s;
      // whatever comes of it: a result or an error
      static_cast<void>(samples::error_of([&] { c.all_reduce(plain, reduce_op::sum, o); }));
      return std::string{};
    }
    const auto memory = control_memory();
    auto* areas =
        reinterpret_cast<weft::detail::rank_area*>(memory.data() + control_shape::of(2, 2, 1 << 20).areas_at());
    const std::uint64_t next = std::max(areas[1].entrances[0].number.load(), areas[1].entrances[1].number.load()) + 1;
    auto& from = areas[0].entrances[next & 1];
    auto& own = areas[1].entrances[next & 1];
    if (!processes::comes_true([&] { return from.number.load() == next; })) return std::string{"nobody comes"};
    // rank 0 works with plain memory: the chosen bytes say that it has entered with a symmetric block
    const std::array<std::uint64_t, 4> chosen{1, 0, 1, 0};
    std::memcpy(from.data.data(), chosen.data(), sizeof chosen);
    std::memcpy(own.data.data(), chosen.data(), sizeof chosen);
    own.fingerprint.store(from.fingerprint.load());
    own.number.store(next);
    static_cast<void>(processes::comes_true([&] { return areas[0].finished.load() == next || c.failure(); }));
    return std::string{};
  }));
}

}  // namespace control_block_test
