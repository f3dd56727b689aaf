// SPDX-License-Identifier: Apache-2.0
#include "weft/channel/shared_queue.hpp"

#include "channel/shared_region.hpp"
#include "support/couple.hpp"
#include "support/faults.hpp"
#include "support/rounds.hpp"
#include "support/samples.hpp"
#include "weft/runtime/task.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <fcntl.h>
#include <random>
#include <sys/mman.h>
#include <thread>

namespace shared_queue_test {

using processes::child;
using processes::couple;
using processes::shared;
using samples::error_of;
using weft::backpressure;
using weft::connect_receiver;
using weft::connect_sender;
using weft::errc;
using weft::process_group;
using weft::queue_options;
using weft::queue_status;
using weft::rank;
using weft::rendezvous;
using clock_type = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr rank here{0}, there{1};

template <std::size_t Size>
struct sized {
  std::array<std::uint8_t, Size> bytes;
  static sized numbered(std::uint64_t n) {
    sized made;
    for (std::size_t i = 0; i < Size; ++i) made.bytes[i] = static_cast<std::uint8_t>((n * 167 + i * 31) >> (i % 3));
    return made;
  }
  friend bool operator==(const sized&, const sized&) = default;
};

struct record {
  std::uint64_t number;
  std::array<std::uint64_t, 14> words;
  static record numbered(std::uint64_t n) {
    record made{n, {}};
    for (std::size_t i = 0; i < made.words.size(); ++i) made.words[i] = (n + i) * 0x9e3779b97f4a7c15;
    return made;
  }
  friend bool operator==(const record&, const record&) = default;
};

template <class T>
void crosses(const queue_options& options) {
  constexpr std::uint64_t count = 3000;
  couple pair{[&](process_group& group) {
    auto tx = connect_sender<T>(group, here, 7, options);
    for (std::uint64_t n = 0; n < count; ++n) {
      if (tx.send(T::numbered(n)) != queue_status::ok) return 1;
    }
    return 0;
  }};
  auto rx = connect_receiver<T>(pair.group, there, 7, options);
  T got{};
  for (std::uint64_t n = 0; n < count; ++n) {
    ASSERT_EQ(rx.receive(got), queue_status::ok) << n;
    ASSERT_TRUE(got == T::numbered(n)) << n;
  }
  EXPECT_EQ(rx.receive(got), queue_status::closed);
  EXPECT_EQ(rx.statistics().received, count);
  EXPECT_EQ(pair.other.wait(), 0);
}

TEST(shared_queue, carries_messages_of_any_size_between_two_processes) {
  queue_options options;
  options.capacity = 64;
  options.timeout = samples::only_a_hang;
  for (const bool validate : {false, true}) {
    options.validate = validate;
    crosses<sized<1>>(options);
    crosses<sized<8>>(options);
    crosses<sized<24>>(options);
    crosses<sized<64>>(options);
    crosses<sized<257>>(options);
    crosses<sized<4096>>(options);
  }
}

TEST(shared_queue, wakes_the_other_process) {
  queue_options options;
  options.capacity = 16;
  options.wait_policy = weft::waiting::park;
  options.timeout = samples::only_a_hang;
  constexpr std::uint64_t rounds = 300;
  couple pair{[&](process_group& group) {
    auto [tx, rx] = weft::connect_both<record>(group, here, 1, options);
    record got{};
    for (std::uint64_t n = 0; n < rounds; ++n) {
      if (rx.receive(got) != queue_status::ok || tx.send(got) != queue_status::ok) return 1;
    }
    return 0;
  }};
  auto [tx, rx] = weft::connect_both<record>(pair.group, there, 1, options);
  record got{};
  for (std::uint64_t n = 0; n < rounds; ++n) {
    ASSERT_EQ(tx.send(record::numbered(n)), queue_status::ok);
    ASSERT_EQ(rx.receive(got), queue_status::ok);
    ASSERT_EQ(got, record::numbered(n));
  }
  EXPECT_EQ(pair.other.wait(), 0);
}

TEST(shared_queue, overwrites_when_both_ask_for_it) {
  queue_options options;
  options.capacity = 16;
  options.timeout = samples::only_a_hang;
  options.when_full = backpressure::overwrite_oldest;
  couple pair{[&](process_group& group) {
    auto tx = connect_sender<record>(group, here, 1, options);
    for (std::uint64_t n = 0; n < 5000; ++n) {
      if (tx.try_send(record::numbered(n)) != queue_status::ok) return 1;
    }
    return 0;
  }};
  auto rx = connect_receiver<record>(pair.group, there, 1, options);
  record got{};
  std::uint64_t received = 0, last = 0;
  while (rx.receive(got) == queue_status::ok) {
    ASSERT_EQ(got, record::numbered(got.number));
    ASSERT_TRUE(received == 0 || got.number > last);
    last = got.number;
    ++received;
  }
  EXPECT_EQ(last, 4999U);
  EXPECT_EQ(rx.statistics().received, received);
  EXPECT_EQ(rx.statistics().lost + received, 5000U);
  EXPECT_EQ(pair.other.wait(), 0);
}

TEST(shared_queue, two_channels_that_differ_in_one_bit_of_their_number_are_two_queues) {
  queue_options options;
  options.timeout = samples::only_a_hang;
  weft::connect_options patient, at_once;
  patient.timeout = samples::only_a_hang;
  at_once.timeout = 0ns;
  for (int bit = 0; bit < 64; ++bit) {
    SCOPED_TRACE(bit);
    const auto talk = [&](process_group& group, rank peer, std::uint64_t in, std::uint64_t out) {
      using namespace weft::detail;
      const auto where = std::source_location::current();
      auto offered = offer_receiving(group, peer, in, type_of<int>(), options, patient, where);
      auto rx = receiver_of<int>(offered);
      if (!group.barrier(samples::only_a_hang)) return 1;  // the other one's offer is there
      const auto answer = [&](const weft::connect_options& how) {
        await_accepted(group, peer, in, offered.number, how, where);
      };
      if (error_of([&] { answer(at_once); }).code != errc::timed_out) return 2;
      if (!group.barrier(samples::only_a_hang)) return 3;
      auto tx = connect_sender<int>(group, peer, out, options, patient);
      answer(patient);
      int got = -1;
      return tx.send(bit) == queue_status::ok && rx.receive(got) == queue_status::ok && got == bit ? 0 : 4;
    };
    const std::uint64_t other = std::uint64_t{1} << bit;
    couple pair{[&](process_group& group) { return talk(group, here, other, 0); }};
    EXPECT_EQ(talk(pair.group, there, 0, other), 0);
    EXPECT_EQ(pair.other.wait(), 0);
  }
}

TEST(shared_queue, a_call_of_several_steps_has_one_time_for_all_of_them) {
  weft::connect_options how;
  how.timeout = 5ms;
  const weft::detail::rest_of_time left{how};
  EXPECT_LE(left().timeout, 5ms);
  EXPECT_TRUE(processes::comes_true([&] { return left().timeout == 0ns; }));
  how.timeout = std::chrono::nanoseconds::max();
  EXPECT_EQ(weft::detail::rest_of_time{how}().timeout, how.timeout);
}

TEST(shared_queue, an_end_let_go_of_in_a_forks_child_changes_neither_the_queue_nor_what_lies_there) {
  queue_options options;
  options.timeout = samples::only_a_hang;
  couple pair{[&](process_group& group) {
    auto ends = weft::connect_both<record>(group, here, 1, options);
    record got{};
    return ends.second.receive(got) == queue_status::ok && ends.first.send(got) == queue_status::ok ? 0 : 1;
  }};
  auto ends = weft::connect_both<record>(pair.group, there, 1, options);
  child forked{[&] {
    constexpr std::size_t size = weft::detail::slots_offset;  // header and words of the ring
    const auto is_kept = [&](auto& end) {
      auto* const at = reinterpret_cast<std::byte*>(weft::detail::internals::native(end)->ring.slots) - size;
      if (::mmap(at, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != at)
        return false;
      std::fill_n(at, size, std::byte{7});
      {
        const auto gone = std::move(end);
      }
      return std::all_of(at, at + size, [](std::byte b) { return b == std::byte{7}; });
    };
    return (is_kept(ends.first) ? 0 : 1) + (is_kept(ends.second) ? 0 : 2);
  }};
  EXPECT_EQ(forked.wait(), 0);
  record got{};
  EXPECT_EQ(ends.first.send(record::numbered(3)), queue_status::ok);
  EXPECT_EQ(ends.second.receive(got), queue_status::ok);
  EXPECT_EQ(got, record::numbered(3));
  EXPECT_EQ(pair.other.wait(), 0);
}

TEST(shared_queue, clearing_drops_what_has_arrived_and_nothing_that_is_sent_later) {
  queue_options options;
  options.timeout = samples::only_a_hang;
  shared<processes::steps> step;
  couple pair{[&](process_group& group) {
    auto tx = connect_sender<record>(group, here, 1, options);
    for (std::uint64_t n = 0; n < 40; ++n) {
      if (tx.send(record::numbered(n)) != queue_status::ok) return 1;
    }
    step->say(1);
    return step->hear(2) && tx.send(record::numbered(40)) == queue_status::ok ? 0 : 2;
  }};
  auto rx = connect_receiver<record>(pair.group, there, 1, options);
  ASSERT_TRUE(step->hear(1));
  record got{};
  ASSERT_EQ(rx.receive(got), queue_status::ok);
  EXPECT_EQ(rx.clear(), 39U);
  EXPECT_EQ(rx.try_receive(got), queue_status::empty);
  step->say(2);
  ASSERT_EQ(rx.receive(got), queue_status::ok);
  EXPECT_EQ(got, record::numbered(40));
  EXPECT_EQ(pair.other.wait(), 0);
}

// ---- what does not fit --------------------------------------------------------------------------------------------

TEST(shared_queue, refuses_to_overwrite_when_one_side_alone_asks_for_it) {
  for (const bool by_the_sender : {false, true}) {
    queue_options one, other;
    other.when_full = backpressure::overwrite_oldest;
    if (by_the_sender) std::swap(one, other);
    couple pair{[&](process_group& group) {
      const auto e = error_of([&] { static_cast<void>(connect_sender<record>(group, here, 1, one)); });
      return e.code == errc::incompatible && e.what.find("both must ask for it, or neither") != std::string::npos ? 0
                                                                                                                  : 1;
    }};
    const auto e = error_of([&] { static_cast<void>(connect_receiver<record>(pair.group, there, 1, other)); });
    EXPECT_EQ(e.code, errc::incompatible);
    EXPECT_NE(e.what.find(by_the_sender ? "is overwrite_oldest at the sender, and the receiver asks for no"
                                        : "is block at the sender, and the receiver asks for overwrite_oldest"),
              std::string::npos)
        << e.what;
    EXPECT_EQ(pair.other.wait(), 0);
  }
}

TEST(shared_queue, an_end_that_is_awaited_fails_and_says_what_to_do) {
  shared<std::atomic<int>> seen;
  couple pair{[&](process_group& group) {
    auto tx = connect_sender<record>(group, here, 1);
    while (seen->load() == 0) std::this_thread::yield();
    return 0;
  }};
  auto rx = connect_receiver<record>(pair.group, there, 1);
  const auto receiving = [&]() -> weft::task<queue_status> {
    record got{};
    co_return co_await rx.receiving(got);
  };
  EXPECT_EQ(weft::sync_wait(receiving()), queue_status::failed);
  EXPECT_TRUE(rx.failure());
  if (rx.failure()) {
    EXPECT_EQ(rx.failure()->code, errc::unsupported);
    EXPECT_NE(rx.failure()->what.find("call send or receive"), std::string::npos) << rx.failure()->what;
  }
  seen->store(1);
  EXPECT_EQ(pair.other.wait(), 0);
}

TEST(shared_queue, refuses_another_type_on_both_sides_and_describes_both) {
  couple pair{[](process_group& group) {
    const auto e = error_of([&] { static_cast<void>(connect_sender<sized<12>>(group, here, 1)); });
    return e.code == errc::incompatible && e.what.find("16 bytes") != std::string::npos &&
                   e.what.find("12 bytes") != std::string::npos
               ? 0
               : 1;
  }};
  const auto e = error_of([&] { static_cast<void>(connect_receiver<sized<16>>(pair.group, there, 1)); });
  EXPECT_EQ(e.code, errc::incompatible);
  EXPECT_NE(e.what.find("rank 1 refused the queue: the receiver's messages have 16 bytes"), std::string::npos)
      << e.what;
  EXPECT_EQ(pair.other.wait(), 0);
}

TEST(shared_queue, says_what_it_does_not_offer) {
  couple pair{[](process_group&) { return 0; }};
  queue_options options;
  options.when_full = backpressure::spill;
  EXPECT_EQ(error_of([&] { static_cast<void>(connect_sender<int>(pair.group, there, 1, options)); }).code,
            errc::unsupported);
  options = {};
  options.producers = 2;
  EXPECT_EQ(error_of([&] { static_cast<void>(connect_receiver<int>(pair.group, there, 1, options)); }).code,
            errc::unsupported);
  options = {};
  options.for_kernels = true;
  EXPECT_EQ(error_of([&] { static_cast<void>(connect_sender<int>(pair.group, there, 1, options)); }).code,
            errc::unsupported);
  for (const weft::transfer_mode mode : {weft::transfer_mode::rdma, weft::transfer_mode::host_staged}) {
    options = {};
    options.mode = mode;
    EXPECT_EQ(error_of([&] { static_cast<void>(connect_sender<int>(pair.group, there, 1, options)); }).code,
              errc::unsupported);
  }
  options = {};
  options.batch_size = 0;
  EXPECT_EQ(error_of([&] { static_cast<void>(connect_sender<int>(pair.group, there, 1, options)); }).code,
            errc::invalid_argument);
}

TEST(shared_queue, nobody_connects_to_ends_at_the_limit_and_a_dead_one_at_once) {
  couple pair{[](process_group&) {
    ::pause();
    return 0;
  }};
  weft::connect_options soon;
  soon.timeout = 5ms;
  const weft::error late = error_of([&] { static_cast<void>(connect_sender<int>(pair.group, there, 1, {}, soon)); });
  EXPECT_EQ(late.code, errc::timed_out);
  EXPECT_TRUE(late.what.starts_with("a queue on channel 1: a message of rank 1")) << late.what;
  pair.other.kill(SIGKILL);
  EXPECT_EQ(error_of([&] { static_cast<void>(connect_sender<int>(pair.group, there, 1)); }).code, errc::peer_dead);
}

TEST(shared_queue, a_sender_passes_by_an_offer_that_was_given_up_and_reaches_the_one_after_it) {
  couple pair{[](process_group& group) {
    weft::connect_options brief, patient;
    brief.timeout = 5ms;
    patient.timeout = samples::only_a_hang;
    if (error_of([&] { static_cast<void>(connect_receiver<int>(group, here, 1, {}, brief)); }).code != errc::timed_out)
      return 1;
    if (!group.send(here, 7, {}, {}, samples::only_a_hang)) return 2;
    auto rx = connect_receiver<int>(group, here, 1, {}, patient);
    int got = 0;
    return rx.receive_for(got, samples::only_a_hang) == queue_status::ok && got == 42 ? 0 : 3;
  }};
  ASSERT_TRUE(pair.group.receive(there, 7, samples::only_a_hang));
  auto tx = connect_sender<int>(pair.group, there, 1);
  EXPECT_EQ(tx.send(42), queue_status::ok);
  EXPECT_EQ(pair.other.wait(), 0);
}

/// Offers `payload` and `file` as a queue, and gives what connecting to it says.
weft::error offered(std::span<const std::byte> payload, int file) {
  couple pair{[&](process_group& group) {
    const std::uint64_t tag = 0x7175'6575'6500'0000ULL ^ 1;
    const std::span<const int> files = file < 0 ? std::span<const int>{} : std::span{&file, 1};
    std::vector<std::byte> numbered(8);  // the number of the offer comes first
    numbered.insert(numbered.end(), payload.begin(), payload.end());
    return group.send(here, tag, numbered, files, samples::only_a_hang) ? 0 : 1;
  }};
  weft::error e = error_of([&] { static_cast<void>(connect_sender<record>(pair.group, there, 1)); });
  EXPECT_EQ(pair.other.wait(), 0);
  return e;
}

TEST(shared_queue, believes_nothing_that_it_is_offered) {
  using namespace weft::detail;
  const auto type = type_of<record>();
  const ring_shape shape = shape_of(sizeof(record), alignof(record), 64, true);
  const region_header good = describe(type, shape, 0);
  const auto raw = [](const region_header& h) { return std::as_bytes(std::span{&h, 1}); };
  const weft::descriptor file = weft::value_or_raise(make_region(good));

  EXPECT_EQ(offered(raw(good).first(50), file.get()).code, errc::corrupt) << "a truncated header";
  EXPECT_EQ(offered({}, file.get()).code, errc::corrupt) << "no header";
  EXPECT_EQ(offered(raw(good), -1).code, errc::corrupt) << "no memory";
  region_header bad = good;
  bad.capacity *= 2;
  EXPECT_EQ(offered(raw(bad), file.get()).code, errc::corrupt) << "a damaged header";
  bad.check = bad.computed_check();
  EXPECT_EQ(offered(raw(bad), file.get()).code, errc::corrupt) << "numbers that do not belong together";
  bad = good;
  bad.version = 9;
  bad.check = bad.computed_check();
  EXPECT_EQ(offered(raw(bad), file.get()).code, errc::incompatible);
  const region_header larger = describe(type, shape_of(sizeof(record), alignof(record), 4096, true), 0);
  EXPECT_EQ(offered(raw(larger), file.get()).code, errc::corrupt) << "a file that is too small";
  const weft::descriptor open{::memfd_create("open", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  ASSERT_EQ(::ftruncate(open.get(), static_cast<off_t>(region_size(shape))), 0);
  EXPECT_EQ(offered(raw(good), open.get()).code, errc::corrupt) << "a file that can still shrink";
  const weft::descriptor sparse{::memfd_create("sparse", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  ASSERT_EQ(::ftruncate(sparse.get(), static_cast<off_t>(region_size(shape))), 0);
  ASSERT_EQ(::fcntl(sparse.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL), 0);
  EXPECT_EQ(offered(raw(good), sparse.get()).code, errc::corrupt) << "memory that this process would pay for";
  const region_header huge = describe(type, shape_of(sizeof(record), alignof(record), std::uint64_t{1} << 32, true), 0);
  const weft::error too_large = offered(raw(huge), sparse.get());
  EXPECT_EQ(too_large.code, errc::resource_exhausted);
  EXPECT_NE(too_large.what.find("connect_options::largest accepts 64 MiB"), std::string::npos) << too_large.what;
  const weft::descriptor null{::open("/dev/null", O_RDWR | O_CLOEXEC)};
  EXPECT_EQ(offered(raw(good), null.get()).code, errc::corrupt) << "not a memory file";
}

TEST(shared_header, with_any_byte_changed_is_refused) {
  using namespace weft::detail;
  const auto type = type_of<record>();
  const region_header good = describe(type, shape_of(sizeof(record), alignof(record), 64, true), 0);
  std::array<std::byte, sizeof(region_header)> raw;
  for (std::size_t at = 0; at < raw.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::memcpy(raw.data(), &good, raw.size());
      raw[at] ^= static_cast<std::byte>(1 << bit);
      EXPECT_FALSE(read_header(raw.data(), raw.size(), type)) << "byte " << at << " bit " << bit;
    }
  }
  std::memcpy(raw.data(), &good, raw.size());
  EXPECT_TRUE(read_header(raw.data(), raw.size(), type));
}

TEST(shared_words, full_of_garbage_never_lead_out_of_the_ring) {
  std::mt19937_64 random{20261120};
  for (int round = 0; round < 60; ++round) {
    couple pair{[](process_group& group) {
      auto [tx, rx] = weft::connect_both<record>(group, here, 1);
      ::pause();
      return 0;
    }};
    auto [tx, rx] = weft::connect_both<record>(pair.group, there, 1);
    const auto& ring = weft::detail::internals::native(rx)->ring;
    auto* words =
        reinterpret_cast<std::uint64_t*>(ring.slots - weft::detail::slots_offset + weft::detail::words_offset);
    auto* slots = reinterpret_cast<std::uint64_t*>(ring.slots);
    const std::size_t in_slots = (ring.mask + 1) * ring.stride / 8;
    record got{};
    queue_status received = queue_status::ok, sent = queue_status::ok;
    for (int step = 0; step < 400; ++step) {
      words[random() % 64] = round % 2 == 0 ? random() : random() % 40;
      slots[random() % in_slots] = round % 3 == 0 ? random() : random() % 8;
      *reinterpret_cast<std::uint64_t*>(weft::detail::internals::native(tx)->ring.credit) = random() >> (random() % 64);
      received = rx.try_receive(got);
      sent = tx.try_send(record::numbered(0));
    }
    static_cast<void>(rx.receive_for(got, 1ms));
    static_cast<void>(tx.send_for(got, 1ms));
    static_cast<void>(received);
    static_cast<void>(sent);
  }
}

// ---- death --------------------------------------------------------------------------------------------------------

struct progress {
  std::atomic<std::uint64_t> count{0};
};

void report(const char* what, std::vector<double> ms) {
  std::sort(ms.begin(), ms.end());
  const auto at = [&](double share) {
    return ms[static_cast<std::size_t>(share * static_cast<double>(ms.size() - 1))];
  };
  std::printf("%s noticed after p50 %.2f ms, p99 %.2f ms, most %.2f ms (%zu kills)\n", what, at(0.5), at(0.99),
              ms.back(), ms.size());
}

const int kills = samples::rounds(samples::by_night() ? 400 : 100);

TEST(death, the_death_of_the_sender_loses_nothing_published_and_tears_nothing) {
  const std::size_t descriptors = processes::open_descriptors();
  std::mt19937 random{1};
  std::vector<double> noticed;
  std::uint64_t messages = 0;
  for (int kill = 0; kill < kills; ++kill) {
    shared<progress> published;
    queue_options options;
    options.capacity = kill % 2 == 0 ? 16 : 1024;
    options.timeout = samples::only_a_hang;
    couple pair{[&](process_group& group) {
      auto tx = connect_sender<record>(group, here, 1, options);
      for (std::uint64_t n = 0;; ++n) {
        if (tx.send(record::numbered(n)) != queue_status::ok) return 1;
        published->count.store(n + 1, std::memory_order_release);
      }
    }};
    auto rx = connect_receiver<record>(pair.group, there, 1, options);
    const std::uint64_t until = 1 + random() % 3000;
    clock_type::time_point killed;
    record got{};
    std::uint64_t received = 0;
    queue_status status{};
    while ((status = rx.receive(got)) == queue_status::ok) {
      ASSERT_EQ(got, record::numbered(received)) << "kill " << kill;
      if (++received == until) {
        pair.other.kill(SIGKILL);
        killed = clock_type::now();
      }
    }
    noticed.push_back(std::chrono::duration<double, std::milli>(clock_type::now() - killed).count());
    ASSERT_EQ(status, queue_status::failed);
    ASSERT_EQ(rx.failure()->code, errc::peer_dead) << rx.failure()->what;
    ASSERT_GE(received, published->count.load(std::memory_order_acquire)) << "kill " << kill;
    EXPECT_EQ(pair.other.wait(), -SIGKILL);
    messages += received;
  }
  samples::played_faults(static_cast<std::uint64_t>(kills));
  report("the sender's death", noticed);
  std::printf("%llu messages\n", static_cast<unsigned long long>(messages));
  EXPECT_EQ(processes::open_descriptors(), descriptors);
  EXPECT_EQ(processes::mappings_of("weft-queue"), 0U);
}

TEST(death, the_death_of_the_receiver_is_told_to_the_sender) {
  const std::size_t descriptors = processes::open_descriptors();
  std::mt19937 random{2};
  std::vector<double> noticed;
  for (int kill = 0; kill < kills; ++kill) {
    shared<progress> consumed;
    queue_options options;
    options.capacity = 16;
    options.timeout = samples::only_a_hang;
    options.wait_policy = kill % 2 == 0 ? weft::waiting::adaptive : weft::waiting::park;
    couple pair{[&](process_group& group) {
      auto rx = connect_receiver<record>(group, here, 1, options);
      record got{};
      for (std::uint64_t n = 0;; ++n) {
        if (rx.receive(got) != queue_status::ok || got != record::numbered(n)) return 1;
        consumed->count.store(n + 1, std::memory_order_release);
      }
    }};
    auto tx = connect_sender<record>(pair.group, there, 1, options);
    const std::uint64_t until = 1 + random() % 1000;
    clock_type::time_point killed;
    std::uint64_t sent = 0;
    queue_status status{};
    while ((status = tx.send(record::numbered(sent))) == queue_status::ok) {
      if (++sent == until) {
        pair.other.kill(SIGKILL);
        killed = clock_type::now();
      }
    }
    noticed.push_back(std::chrono::duration<double, std::milli>(clock_type::now() - killed).count());
    ASSERT_EQ(status, queue_status::failed);
    ASSERT_EQ(tx.failure()->code, errc::peer_dead) << tx.failure()->what;
    ASSERT_LE(consumed->count.load(std::memory_order_acquire), sent);
    EXPECT_EQ(pair.other.wait(), -SIGKILL);
  }
  samples::played_faults(static_cast<std::uint64_t>(kills));
  report("the receiver's death", noticed);
  EXPECT_EQ(processes::open_descriptors(), descriptors);
  EXPECT_EQ(processes::mappings_of("weft-queue"), 0U);
}

/// What a sender that overwrites gets after `before` messages, when the receiver has ended; and after how many more.
void expect_an_end_while_overwriting(bool closes, std::uint64_t before, queue_status expected, std::uint64_t later) {
  SCOPED_TRACE((closes ? "closed after " : "killed after ") + std::to_string(before));
  queue_options options;
  options.capacity = 16;
  options.timeout = samples::only_a_hang;
  options.when_full = backpressure::overwrite_oldest;
  couple pair{[&](process_group& group) {
    auto rx = connect_receiver<record>(group, here, 1, options);
    record got{};
    while (rx.receive(got) == queue_status::ok && got.number + 1 != before) {
    }
    if (!closes) ::pause();
    return 0;
  }};
  auto tx = connect_sender<record>(pair.group, there, 1, options);
  for (std::uint64_t n = 0; n < before; ++n) ASSERT_EQ(tx.try_send(record::numbered(n)), queue_status::ok);
  if (!closes) pair.other.kill(SIGKILL);
  EXPECT_EQ(pair.other.wait(), closes ? 0 : -SIGKILL);
  queue_status status = queue_status::ok;
  std::uint64_t more = 0;
  while (more < 5000 && (status = tx.try_send(record::numbered(before + more))) == queue_status::ok) ++more;
  EXPECT_EQ(status, expected);
  EXPECT_EQ(more, later);
  const auto why = tx.failure();
  EXPECT_EQ(why.has_value(), !closes) << "a good end has no cause";
  if (why && !closes) {
    EXPECT_EQ(why->code, errc::peer_dead);
  }
}

TEST(death, the_end_of_the_receiver_is_told_within_a_lap_or_1024_messages_to_a_sender_that_overwrites) {
  expect_an_end_while_overwriting(true, 5, queue_status::closed, 11);
  expect_an_end_while_overwriting(true, 1024, queue_status::closed, 0);  // where it asks
  expect_an_end_while_overwriting(false, 5, queue_status::failed, 1019);
  expect_an_end_while_overwriting(false, 1024, queue_status::failed, 0);
}

TEST(death, is_not_what_a_stopped_process_has_met) {
  queue_options options;
  options.timeout = samples::only_a_hang;
  couple pair{[&](process_group& group) {
    auto tx = connect_sender<record>(group, here, 1, options);
    ::raise(SIGSTOP);
    return tx.send(record::numbered(5)) == queue_status::ok ? 0 : 1;
  }};
  auto rx = connect_receiver<record>(pair.group, there, 1, options);
  int status = 0;
  ASSERT_EQ(::waitpid(pair.other.pid(), &status, WUNTRACED), pair.other.pid());
  ASSERT_TRUE(WIFSTOPPED(status));
  record got{};
  EXPECT_EQ(rx.receive_for(got, 60ms), queue_status::timed_out);
  pair.other.kill(SIGCONT);
  EXPECT_EQ(rx.receive(got), queue_status::ok);
  EXPECT_EQ(got, record::numbered(5));
  EXPECT_EQ(pair.other.wait(), 0);
}

TEST(death, without_a_farewell_is_told_even_when_the_process_ends_well) {
  queue_options options;
  options.timeout = samples::only_a_hang;
  couple pair{[&](process_group& group) -> int {
    auto tx = connect_sender<record>(group, here, 1, options);
    static_cast<void>(tx.send(record::numbered(0)));
    ::_exit(0);
  }};
  auto rx = connect_receiver<record>(pair.group, there, 1, options);
  record got{};
  EXPECT_EQ(rx.receive(got), queue_status::ok);
  EXPECT_EQ(rx.receive(got), queue_status::failed);
  EXPECT_EQ(rx.failure()->code, errc::peer_dead);
}

}  // namespace shared_queue_test
