// SPDX-License-Identifier: Apache-2.0
// Copies to and from the memory of another rank, which calls nothing meanwhile.
#include "weft/distributed/far_memory.hpp"

#include "distributed/engine/messenger.hpp"
#include "distributed/meetings.hpp"
#include "distributed/memory/far_copier.hpp"
#include "support/processes.hpp"
#include "weft/memory/buffer.hpp"
#include "weft/memory/copy.hpp"
#include "weft/runtime/machine.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <sys/mman.h>
#include <thread>

namespace {

using namespace meetings;
using weft::far_copy_options;
using weft::far_span;
using weft::offered_memory;
using byte = std::uint8_t;

constexpr std::size_t mib = std::size_t{1} << 20U;

std::vector<byte> letters(std::size_t count, unsigned seed) {
  std::vector<byte> made(count);
  for (std::size_t n = 0; n < count; ++n) made[n] = static_cast<byte>(n * 131 + n / 509 + seed);
  return made;
}
far_copy_options checked(bool verify = true) {
  far_copy_options made;
  made.verify = verify;
  made.timeout = only_a_hang;
  return made;
}
weft::machine two_of_host() {
  weft::machine_options two;
  two.devices = 2;
  return weft::machine{two};
}
template <class T>
void tell(world& w, rank other, const T& what) {
  static_cast<void>(w.send(other, 1, std::as_bytes(std::span{&what, 1}), only_a_hang));
}
template <class T>
T told(world& w, rank other) {
  T what{};
  static_cast<void>(
      weft::value_or_raise(w.receive(other, 1, std::as_writable_bytes(std::span{&what, 1}), only_a_hang)));
  return what;
}
/// What a copy ended with: "" where it ended well.
template <class F>
std::string of_copy(F&& copies) {
  try {
    copies();
    return "";
  } catch (const weft::error_exception& failed) {
    return to_string(failed.cause());
  }
}

/// Rank 1 offers memory and waits to be told that it is over; then it looks at what it has.
template <class Memory, class Look>
work offers(const Memory& memory, const Look& looks) {
  return [&memory, &looks](world& w) -> std::string {
    auto mine = memory();
    const offered_memory offered{w, mine};
    tell(w, zero, offered.span());
    static_cast<void>(told<int>(w, zero));
    return looks(mine);
  };
}
const auto looks_at_nothing = [](const auto&) { return std::string{}; };

TEST(far_memory, memory_of_every_kind_is_written_and_read_in_any_size) {
  NEEDS(no_ucx);
  constexpr std::size_t most = 5 * mib + 3;
  for (const bool in_device : {false, true}) {
    const auto copies = [&](world& w) -> std::string {
      const auto theirs = told<far_span<byte>>(w, one);
      const weft::machine m = two_of_host();
      const weft::buffer<byte> near{m[1], most};
      std::string wrong;
      for (const bool verify : {false, true}) {
        for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{8}, std::size_t{4097}, mib - 1, mib,
                                       mib + 1, 2 * mib, most - 5}) {
          const auto sent = letters(size, static_cast<unsigned>(size + (verify ? 1 : 0)));
          std::vector<byte> back(size);
          const auto there = theirs.subspan(5, size);
          copy(w, there, sent, checked(verify));
          copy(w, near.subspan(0, size), there, checked(verify));
          weft::copy(back, near.subspan(0, size));
          if (back != sent) wrong += "by a device: " + std::to_string(size) + "; ";
          const auto other = letters(size, 77);
          weft::copy(near.subspan(0, size), other);
          copy(w, there, near.subspan(0, size), checked(verify));
          copy(w, back, there, checked(verify));
          if (back != other) wrong += "by the host: " + std::to_string(size) + "; ";
        }
      }
      copy(w, theirs, letters(most, 5), checked());
      tell(w, one, 0);
      return wrong;
    };
    const auto looks = [&](const auto& mine) {
      std::vector<byte> has(most);
      if constexpr (requires { mine.on(); }) {
        weft::copy(has, mine);
      } else {
        has.assign(mine.begin(), mine.end());
      }
      return std::string{has == letters(most, 5) ? "" : "the owner has other bytes"};
    };
    std::optional<weft::machine> m;
    const auto of_device = [&] {
      m.emplace(two_of_host());
      return weft::buffer<byte>{(*m)[0], most};
    };
    const auto of_host = [] { return std::vector<byte>(most); };
    const work owner = in_device ? offers(of_device, looks) : offers(of_host, looks);
    EXPECT_EQ(on_a_pair(copies, owner), "") << in_device;
  }
}

TEST(far_memory, is_reached_over_a_cable_between_two_network_namespaces) {
  NEEDS(no_ucx);
  NEEDS(no_namespaces);
  const auto join = [](int r) {
    return weft::value_or_raise(world::join({rank{r}, 2, {}, "10.77.0.1", 29501}, with_ucx()));
  };
  const auto first = [&]() -> std::string {
    world w = join(0);
    const auto theirs = told<far_span<byte>>(w, one);
    const auto sent = letters(theirs.size(), 3);
    std::vector<byte> back(sent.size());
    copy(w, theirs, sent, checked());
    copy(w, back, theirs, checked());
    tell(w, one, 0);
    return back == sent ? "" : "other bytes came back";
  };
  const auto second = [&]() -> std::string {
    world w = join(1);
    return offers([] { return std::vector<byte>(3 * mib + 1); }, looks_at_nothing)(w);
  };
  EXPECT_EQ(on_two_nodes(first, second), "");
}

TEST(far_memory, is_copied_in_both_directions_and_by_several_threads_at_once) {
  NEEDS(no_ucx);
  const auto both = [](world& w) -> std::string {
    const rank other{1 - w.self().value()};
    std::vector<byte> mine(4 * mib);
    const offered_memory offered{w, mine};
    tell(w, other, offered.span());
    const auto theirs = told<far_span<byte>>(w, other);
    std::array<std::string, 4> wrong;
    std::vector<std::jthread> threads;
    for (std::size_t n = 0; n < wrong.size(); ++n) {
      threads.emplace_back([&, n] {
        for (unsigned turn = 0; turn < 20 && wrong[n].empty(); ++turn) {
          const std::size_t size = turn % 2 == 0 ? 100 + turn : mib - turn;
          const auto sent = letters(size, turn * 7 + static_cast<unsigned>(n));
          std::vector<byte> back(size);
          wrong[n] = of_copy([&] {
            copy(w, theirs.subspan(n * mib, size), sent, checked(turn % 3 == 0));
            copy(w, back, theirs.subspan(n * mib, size), checked(turn % 3 == 0));
          });
          if (back != sent) wrong[n] += "other bytes in turn " + std::to_string(turn);
        }
      });
    }
    threads.clear();
    tell(w, other, 0);
    static_cast<void>(told<int>(w, other));
    std::string all;
    for (const auto& o : wrong) all += o;
    return all;
  };
  EXPECT_EQ(on_a_pair(both, both), "");
}

TEST(far_memory, is_not_touched_by_copies_that_may_not_be_and_serves_the_next_one) {
  NEEDS(no_ucx);
  const auto copies = [](world& w) -> std::string {
    const auto written = told<far_span<byte>>(w, one);
    const auto read = told<far_span<const byte>>(w, one);
    const auto gone = told<far_span<byte>>(w, one);
    const auto replaced = told<far_span<byte>>(w, one);
    const auto freed = told<far_span<byte>>(w, one);
    const auto half = told<far_span<byte>>(w, one);
    std::string wrong;
    const auto serves = [&] {
      std::vector<byte> sent = letters(2 * mib + 9, 1), back(sent.size());
      copy(w, written.first(sent.size()), sent, checked());
      copy(w, back, written.first(sent.size()), checked());
      if (back != sent) wrong += "other bytes; ";
    };
    const auto fails = [&](const far_span<byte>& what, const std::string& with, bool may_read = false) {
      std::vector<byte> some(what.size());
      std::vector<std::string> ends{of_copy([&] { copy(w, what, some, checked()); })};
      serves();
      if (!may_read) ends.push_back(of_copy([&] { copy(w, some, what, checked()); }));
      serves();
      for (const std::string& e : ends)
        if (!says(e, with) || !says(e, "rank 1 (node 1, host ")) wrong += "not \"" + with + "\": " + e + "; ";
    };
    auto beyond = weft::detail::internals::place(written);
    beyond.offset = beyond.size - 4;
    beyond.size = 2 * mib;
    fails(weft::detail::make<weft::far_span<byte>>(beyond), "out_of_range");
    auto before = weft::detail::internals::place(written);
    before.offset = ~std::uint64_t{0} - 10;
    before.size = 100;
    fails(weft::detail::make<weft::far_span<byte>>(before), "out_of_range");
    fails(weft::detail::make<weft::far_span<byte>>(weft::detail::internals::place(read)),
          "it offers that memory for reading", true);
    fails(gone, "not_found: copying ");
    fails(replaced, "not_found: copying ");
    auto unknown = weft::detail::internals::place(written);
    unknown.memory = 1'000'000;
    fails(weft::detail::make<weft::far_span<byte>>(unknown), "not_found: copying ");
    fails(freed, "not_found: copying ");
    fails(half, "copying 4");
    std::vector<byte> other(3);
    if (error_of([&] { copy(w, other, written.first(4)); }).code != errc::incompatible) wrong += "two sizes; ";
    auto own = weft::detail::internals::place(written);
    own.owner = 0;
    if (error_of([&] { copy(w, other, weft::detail::make<weft::far_span<byte>>(own).first(3)); }).code !=
        errc::invalid_argument)
      wrong += "its own memory; ";
    own.owner = 2;
    if (error_of([&] { copy(w, other, weft::detail::make<weft::far_span<byte>>(own).first(3)); }).code !=
        errc::invalid_argument)
      wrong += "a rank outside; ";
    std::stop_source stopped;
    stopped.request_stop();
    far_copy_options stops = checked();
    stops.stop = stopped.get_token();
    if (error_of([&] { copy(w, other, written.first(3), stops); }).code != errc::cancelled) wrong += "not stopped; ";
    // memory of this rank that is none any more
    const weft::machine m = two_of_host();
    std::optional<weft::buffer<byte>> near{std::in_place, m[0], 3 * mib};
    const auto dangling = near->span();
    near.reset();
    if (error_of([&] { copy(w, written.first(3 * mib), dangling, checked()); }).code != errc::not_found)
      wrong += "from freed memory; ";
    serves();
    if (error_of([&] { copy(w, dangling, written.first(3 * mib), checked()); }).code != errc::not_found)
      wrong += "to freed memory; ";
    serves();
    tell(w, one, 0);
    return wrong;
  };
  const auto owner = [](world& w) -> std::string {
    const weft::machine m = two_of_host();
    std::vector<byte> writable(4 * mib);
    const std::vector<byte> readable(3 * mib, 7);
    const offered_memory written{w, writable};
    const offered_memory read{w, readable};
    tell(w, zero, written.span());
    tell(w, zero, read.span());
    {
      const offered_memory gone{w, writable};
      tell(w, zero, gone.span());
    }
    offered_memory newest{w, writable}, given{w, writable};
    tell(w, zero, newest.span());
    newest = std::move(given);
    std::optional<weft::buffer<byte>> there{std::in_place, m[0], 3 * mib};
    const offered_memory freed{w, *there};
    tell(w, zero, freed.span());
    there.reset();
    // whose second half is no memory
    const weft::buffer<byte> short_one{m[1], 2 * mib};
    const auto too_long = weft::detail::make<weft::device_span<byte>>(weft::detail::state_of(m).get(), m[1].id(),
                                                                      short_one.span().data(), 4 * mib);
    const offered_memory half{w, too_long};
    tell(w, zero, half.span());
    static_cast<void>(told<int>(w, zero));
    return readable == std::vector<byte>(3 * mib, 7) ? "" : "what was for reading was written";
  };
  EXPECT_EQ(on_a_pair(copies, owner), "");
}

TEST(far_memory, memory_that_loses_its_writes_is_found_by_verification) {
  NEEDS(no_ucx);
  const auto copies = [](world& w) -> std::string {
    const auto theirs = told<far_span<byte>>(w, one);
    const auto sent = letters(theirs.size(), 9);
    std::string ended = of_copy([&] { copy(w, theirs, sent, checked()); });
    std::string unseen = of_copy([&] { copy(w, theirs, sent, checked(false)); });
    tell(w, one, 0);
    return says(ended, "corrupt: copying 2 MiB to rank 1") ? unseen : "not found: " + ended;
  };
  const auto owner = [](world& w) -> std::string {
    // one MiB of memory under two addresses: the second piece replaces the first
    const descriptor file{::memfd_create("aliased", MFD_CLOEXEC)};
    if (::ftruncate(file.get(), static_cast<off_t>(mib)) != 0) return "no file";
    auto* at =
        static_cast<std::byte*>(::mmap(nullptr, 2 * mib, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    for (const std::size_t part : {std::size_t{0}, mib})
      if (::mmap(at + part, mib, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file.get(), 0) == MAP_FAILED)
        return "no memory";
    const std::span<byte> twice{reinterpret_cast<byte*>(at), 2 * mib};
    const offered_memory offered{w, twice};
    tell(w, zero, offered.span());
    static_cast<void>(told<int>(w, zero));
    return "";
  };
  EXPECT_EQ(on_a_pair(copies, owner), "");
}

TEST(far_memory, a_killed_rank_ends_copies_with_its_name) {
  NEEDS(no_ucx);
  const auto copies = [](world& w) -> std::string {
    const auto theirs = told<far_span<byte>>(w, one);
    std::vector<byte> some(theirs.size());
    copy(w, theirs, some, checked());
    ::kill(w.member(one).pid, SIGKILL);
    for (;;) {
      const std::string ended = of_copy([&] { copy(w, some, theirs, checked()); });
      if (!ended.empty()) return says(ended, "peer_dead: copying 3 MiB from rank 1 (node 1, host ") ? "" : ended;
    }
  };
  const work owner = offers([] { return std::vector<byte>(3 * mib); }, looks_at_nothing);
  EXPECT_EQ(on_a_pair(copies, owner), "ended by signal 9");
}

TEST(far_memory, is_given_back_although_the_rank_that_copied_was_killed) {
  NEEDS(no_ucx);
  whistle copying;
  const auto owner = [&](world& w) -> std::string {
    std::vector<byte> mine(8 * mib);
    {
      const offered_memory offered{w, mine};
      tell(w, one, offered.span());
      copying.hear();
      ::kill(w.member(one).pid, SIGKILL);
    }
    return "";
  };
  const auto copies = [&](world& w) -> std::string {
    const auto theirs = told<far_span<byte>>(w, zero);
    const std::vector<byte> some(theirs.size());
    copy(w, theirs, some, checked(false));
    copying.blow();
    for (;;) copy(w, theirs, some, checked(false));
  };
  EXPECT_EQ(on_a_pair(owner, copies), "ended by signal 9");
}

TEST(far_memory, a_copy_to_a_stopped_rank_times_out_and_its_connection_is_given_up) {
  NEEDS(no_ucx);
  const auto copies = [](world& w) -> std::string {
    const auto theirs = told<far_span<byte>>(w, one);
    std::vector<byte> some(theirs.size());
    ::kill(w.member(one).pid, SIGSTOP);
    far_copy_options soon = checked();
    soon.timeout = 50ms;
    const std::string ended = of_copy([&] { copy(w, theirs, some, soon); });
    const std::string then = of_copy([&] { copy(w, some, theirs, checked()); });
    ::kill(w.member(one).pid, SIGKILL);
    if (!says(ended, "timed_out: copying 3 MiB to rank 1 (node 1, host ")) return ended;
    return says(then, "peer_dead") && says(then, "a copy was given up") ? "" : then;
  };
  const work owner = offers([] { return std::vector<byte>(3 * mib); }, looks_at_nothing);
  EXPECT_EQ(on_a_pair(copies, owner), "ended by signal 9");
}

TEST(far_memory, needs_an_engine) {
  const auto w = weft::value_or_raise(world::join(place(0, 1, fresh_port()), within(only_a_hang)));
  std::vector<byte> some(4);
  EXPECT_EQ(error_of([&] { const offered_memory offered{w, some}; }).code, errc::unsupported);
}

/// Rank 0, and rank 1 whose words are the test's, both in this process.
struct copier_and_liar {
  copier_and_liar() {
    static_cast<void>(with_ucx());
    auto a = weft::value_or_raise(weft::detail::open_ucx(0, 2));
    liar = weft::value_or_raise(weft::detail::open_ucx(1, 2));
    const std::vector addresses{weft::value_or_raise(a->address()), weft::value_or_raise(liar->address())};
    a->introduce(addresses);
    liar->introduce(addresses);
    by = std::make_shared<weft::detail::messenger>(std::move(a), [](int) { return std::string{"rank"}; });
    copier = std::make_unique<weft::detail::far_copier>(by, 0, 2);
  }
  static weft::detail::message_tag tag(unsigned below) { return {weft::detail::message_tag::most_own - below, true}; }
  bool says(unsigned tag_below, std::span<const std::byte> bytes, const std::atomic<bool>& over) const {
    weft::detail::transfer t;
    liar->send(t, 0, tag(tag_below), bytes);
    while (t.is_under_way() && !over) liar->progress();
    const bool done = t.at == weft::detail::transfer::stage::done;
    if (t.is_under_way()) liar->cancel(t, 0);
    return done;
  }
  std::shared_ptr<weft::detail::messenger> by;
  std::unique_ptr<weft::detail::far_copier> copier;
  std::unique_ptr<weft::detail::engine> liar;  // goes first: its last words need somebody who hears them
};

struct said_request {
  std::uint32_t is_weft = 0x4d746657;
  std::int32_t from = 1;
  std::uint32_t writes = 0, verifies = 0;
  std::uint64_t memory = 0, offset = 0, size = 0;
};
struct said_answer {
  std::uint64_t sum = 0, sent = 0;
  std::uint32_t failed = 0, letters = 0;
  std::array<char, 240> why{};
};

TEST(far_memory, is_read_to_the_last_piece_that_was_sent_although_the_answer_is_no) {
  NEEDS(no_ucx);
  for (const std::uint64_t sent : {3 * mib, std::size_t{5}}) {
    const copier_and_liar both;
    std::vector<byte> mine(3 * mib);
    weft::result<void> came;
    std::atomic<bool> over{false};
    std::jthread reads{[&] {
      came = both.copier->read(weft::detail::untyped(std::span{mine}), {1, 0, 1, 0, mine.size()}, checked());
      over = true;
    }};
    said_request asked;
    weft::detail::transfer coming;
    both.liar->receive(coming, 0, copier_and_liar::tag(3), std::as_writable_bytes(std::span{&asked, 1}));
    while (coming.is_under_way()) both.liar->progress();
    said_answer no;
    no.failed = static_cast<std::uint32_t>(errc::not_found) + 1;
    no.sent = sent;
    static_cast<void>(both.says(4, std::as_bytes(std::span{&no, 1}), over));
    int taken = 0;
    const std::vector<std::byte> piece(mib);
    for (int n = 0; n < 3; ++n) taken += both.says(6, piece, over) ? 1 : 0;
    while (!over) both.liar->progress();
    reads.join();
    EXPECT_EQ(code_of(came), sent == 5 ? errc::corrupt : errc::not_found);
    EXPECT_TRUE(sent == 5 || taken == 3) << taken;
  }
}

TEST(far_memory, a_copy_that_is_given_up_ends_the_connection_at_its_other_end_too) {
  NEEDS(no_ucx);
  ::setenv("UCX_KEEPALIVE_INTERVAL", "10ms", 1);  // UCX sees the end by this
  const copier_and_liar both;
  ::unsetenv("UCX_KEEPALIVE_INTERVAL");
  std::vector<byte> mine(64);
  static_cast<void>(both.copier->offer(weft::detail::untyped(std::span{mine}), true));  // its thread moves messages
  far_copy_options soon;
  soon.timeout = 1ms;
  const auto came = both.copier->read(weft::detail::untyped(std::span{mine}), {1, 0, 1, 0, mine.size()}, soon);
  EXPECT_EQ(code_of(came), errc::timed_out) << failure_of(came);
  EXPECT_TRUE(processes::comes_true([&] {
    both.liar->progress();
    return both.liar->failure(0) != nullptr;
  }));
}

TEST(far_memory, a_piece_that_comes_after_its_copy_was_given_up_is_written_nowhere) {
  NEEDS(no_ucx);
  const copier_and_liar both;
  std::vector<byte> mine(64, 3);
  static_cast<void>(both.copier->offer(weft::detail::untyped(std::span{mine}), true));  // its thread moves messages
  const std::atomic<bool> over{false};
  ASSERT_TRUE(both.says(3, view("no request"), over));  // from now on they are connected
  far_copy_options soon;
  soon.timeout = 1ms;
  const auto came = both.copier->read(weft::detail::untyped(std::span{mine}), {1, 0, 1, 0, mine.size()}, soon);
  EXPECT_EQ(code_of(came), errc::timed_out) << failure_of(came);
  static_cast<void>(both.says(6, std::vector<std::byte>(mine.size()), over));
  weft::detail::transfer behind;
  both.liar->send(behind, 0, {9, false}, view("!"));
  std::array<std::byte, 1> room{};
  EXPECT_TRUE(processes::comes_true([&] {  // the piece has come, or the connection has ended
    both.liar->progress();
    return both.by->receive(1, 9, room, 0ms, {}) || both.liar->failure(0) != nullptr;
  }));
  if (behind.is_under_way()) both.liar->cancel(behind, 0);
  EXPECT_EQ(mine, std::vector<byte>(64, 3));
}

TEST(far_memory, a_too_long_piece_ends_a_copy_without_a_time_limit) {
  NEEDS(no_ucx);
  const copier_and_liar both;
  std::vector<byte> mine(1000);
  weft::result<void> came;
  std::atomic<bool> over{false};
  far_copy_options without_limit;
  without_limit.timeout = weft::no_deadline;
  std::jthread reads{[&] {
    came = both.copier->read(weft::detail::untyped(std::span{mine}), {1, 0, 1, 0, mine.size()}, without_limit);
    over = true;
  }};
  static_cast<void>(both.says(6, std::vector<std::byte>(2000), over));
  while (!over) both.liar->progress();
  reads.join();
  EXPECT_EQ(code_of(came), errc::corrupt) << failure_of(came);
}

TEST(far_memory, believes_no_request_that_cannot_be) {
  NEEDS(no_ucx);
  const copier_and_liar both;
  std::vector<byte> mine(64, 3);
  const auto at = both.copier->offer(weft::detail::untyped(std::span{mine}), true);
  said_request request;
  const std::atomic<bool> over{false};
  const auto says_it = [&](std::span<const std::byte> bytes) { static_cast<void>(both.says(3, bytes, over)); };
  const auto whole = std::as_bytes(std::span{&request, 1});
  says_it(whole.first(7));
  says_it(std::vector<std::byte>(1000));
  for (const int from : {-1, 0, 2, 1'000'000}) {
    request.from = from;
    says_it(whole);
  }
  request.from = 1;
  request.is_weft = 0;
  says_it(whole);
  // and after all that an honest one
  request.is_weft = 0x4d746657;
  request.memory = at.memory;
  request.offset = 60;
  request.size = 4;
  std::array<std::byte, 4> piece{};
  weft::detail::transfer coming;
  both.liar->receive(coming, 0, copier_and_liar::tag(6), piece);
  says_it(whole);
  while (coming.is_under_way()) both.liar->progress();
  EXPECT_EQ(coming.at.load(), weft::detail::transfer::stage::done);
  EXPECT_EQ(std::to_integer<int>(piece[3]), 3);
}

}  // namespace
