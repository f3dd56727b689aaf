// SPDX-License-Identifier: Apache-2.0
// The lines of kernel/ring.h under a model checker (Relacy): every order of two or three threads within a bound, and
// every value that a load may return by the C++ memory model. Words of the protocol are modelled atomics with the
// orders of the host; payload is plain memory, so a read that is not ordered after its write is a reported race.
//
// usage: ring_model                     proves each scenario; a failure prints the history that led to it
//        ring_model SCENARIO [history]  one of them
//        ring_model mutants             (built from a mutated copy) each mutant must fail in some scenario
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <relacy/relacy.hpp>
#include <sstream>
#include <string>
#include <string_view>
#include <sys/wait.h>
#include <unistd.h>
#undef new
#undef delete
#undef malloc
#undef calloc
#undef realloc
#undef free
#undef assert
#undef errno

namespace {

// ---- the memory of one queue, as the model sees it ----------------------------------------------------------------

// What the header stores to and loads from. An order mutant makes one of them relaxed.
enum kind {
  none,
  stamp_store,
  stamp_load,
  line_store,
  line_load,
  credit_store,
  credit_load,
  fin_store,
  fin_load,
  tail_store,
  tail_load,
  word_store,
  word_load,
  stop_store,
  stop_load,
  sleeper_fence,
  waker_fence,
  sleeper_second_look,
  kinds
};
int weakened = none;
[[maybe_unused]] int chosen_mutant = -1;  // of the mutated copy

rl::memory_order order(kind what, rl::memory_order normal) { return weakened == what ? rl::mo_relaxed : normal; }

constexpr unsigned slot_bytes = 12;  // two words and the stamp
enum class layout { slots, packed, pieces };
constexpr unsigned line_words = 4;  // words of payload in a line that are modelled

// Where the header's addresses lead: nothing is stored in `area`, its addresses choose a modelled object.
struct queue_memory {
  alignas(64) std::uint8_t area[1024];
  std::uint64_t credit_at, fin_at, tail_at;
  std::uint32_t stop_at[2];
  layout shape = layout::slots;

  rl::atomic<std::uint32_t> stamps[8];
  rl::atomic<std::uint64_t> lines[4];
  rl::atomic<std::uint32_t> words[16];
  rl::var<std::uint32_t> plain[24];
  rl::atomic<std::uint64_t> credit, fin, tail;
  rl::atomic<std::uint32_t> stop[2];

  std::size_t offset(const void* address) const {
    return static_cast<std::size_t>(static_cast<const std::uint8_t*>(address) - area);
  }
  bool holds(const void* address) const { return address >= area && address < area + sizeof(area); }

  // The number of a word of payload, or a failed assertion: a copy reached a stamp or left the ring.
  std::size_t payload(std::size_t at) const {
    if (shape == layout::packed) {
      RL_ASSERT(at / 64 < 4 && at % 64 / 4 < line_words);
      return at / 64 * line_words + at % 64 / 4;
    }
    RL_ASSERT(at / apart() < 8 && at % apart() < apart() - 4);
    return at / apart() * (apart() / 4 - 1) + at % apart() / 4;
  }
  // From one 32-bit stamp, which comes last, to the next.
  unsigned apart() const { return shape == layout::pieces ? 16 : slot_bytes; }
};
queue_memory* memory = nullptr;

std::uint32_t load_32(const void* address) {
  queue_memory& m = *memory;
  if (address == &m.stop_at[0]) return m.stop[0].load(order(stop_load, rl::mo_acquire), RL_INFO);
  if (address == &m.stop_at[1]) return m.stop[1].load(order(stop_load, rl::mo_acquire), RL_INFO);
  const std::size_t at = m.offset(address);
  RL_ASSERT(m.holds(address) && at / m.apart() < 8);
  if (at % m.apart() == m.apart() - 4) return m.stamps[at / m.apart()].load(order(stamp_load, rl::mo_acquire), RL_INFO);
  return m.words[m.payload(at)].load(order(word_load, rl::mo_acquire), RL_INFO);
}

void store_32(void* address, std::uint32_t value) {
  queue_memory& m = *memory;
  const std::size_t at = m.offset(address);
  RL_ASSERT(m.holds(address) && at / m.apart() < 8);
  if (at % m.apart() == m.apart() - 4) {
    m.stamps[at / m.apart()].store(value, order(stamp_store, rl::mo_release), RL_INFO);
  } else {
    m.words[m.payload(at)].store(value, order(word_store, rl::mo_release), RL_INFO);
  }
}

std::uint64_t load_64(const void* address) {
  queue_memory& m = *memory;
  if (address == &m.credit_at) return m.credit.load(order(credit_load, rl::mo_acquire), RL_INFO);
  if (address == &m.fin_at) return m.fin.load(order(fin_load, rl::mo_acquire), RL_INFO);
  if (address == &m.tail_at) return m.tail.load(order(tail_load, rl::mo_acquire), RL_INFO);
  const std::size_t at = m.offset(address);
  RL_ASSERT(m.holds(address) && at / 64 < 4 && at % 64 == 56);
  return m.lines[at / 64].load(order(line_load, rl::mo_acquire), RL_INFO);
}

void store_64(void* address, std::uint64_t value) {
  queue_memory& m = *memory;
  if (address == &m.credit_at) return m.credit.store(value, order(credit_store, rl::mo_release), RL_INFO);
  if (address == &m.fin_at) return m.fin.store(value, order(fin_store, rl::mo_release), RL_INFO);
  if (address == &m.tail_at) return m.tail.store(value, order(tail_store, rl::mo_release), RL_INFO);
  const std::size_t at = m.offset(address);
  RL_ASSERT(m.holds(address) && at / 64 < 4 && at % 64 == 56);
  m.lines[at / 64].store(value, order(line_store, rl::mo_release), RL_INFO);
}

void copy(void* to, const void* from, std::size_t bytes) {
  queue_memory& m = *memory;
  for (std::size_t i = 0; i < bytes / 4; ++i) {
    if (m.holds(to)) {
      m.plain[m.payload(m.offset(to) + 4 * i)](RL_INFO).store(static_cast<const std::uint32_t*>(from)[i]);
    } else {
      RL_ASSERT(m.holds(from));
      static_cast<std::uint32_t*>(to)[i] = m.plain[m.payload(m.offset(from) + 4 * i)](RL_INFO).load();
    }
  }
}

using weft_uint8 = std::uint8_t;
using weft_uint32 = std::uint32_t;
using weft_uint64 = std::uint64_t;

}  // namespace

#define WEFT_RING_PORT
#define WEFT_RING_GLOBAL
#define WEFT_RING_FUNCTION [[maybe_unused]] static
#define WEFT_RING_LOAD_32(address) load_32(address)
#define WEFT_RING_LOAD_64(address) load_64(address)
#define WEFT_RING_STORE_32(address, value) store_32((address), (value))
#define WEFT_RING_STORE_64(address, value) store_64((address), (value))
#define WEFT_RING_KEEP_64(address, value) (*(address) = (value))
#define WEFT_RING_COPY(to, from, bytes) copy((to), (from), (bytes))
#define WEFT_RING_PAUSE() rl::yield(1, RL_INFO)
#if defined(WEFT_RING_MUTATED)
#include "ring_mutated.h"
#else
#include "weft/kernel/ring.h"
#endif

namespace {

// ---- scenarios ----------------------------------------------------------------------------------------------------

void pause() { rl::yield(1, RL_INFO); }

// A queue of 2^shift slots or lines; thread 0 writes, thread 1 reads.
template <class Scenario, unsigned Threads, layout Layout, unsigned Shift, unsigned Capacity>
struct ring_scenario : rl::test_suite<Scenario, static_cast<rl::thread_id_t>(Threads)> {
  static constexpr bool packed = Layout == layout::packed;
  static constexpr std::uint32_t pieces = Layout == layout::pieces ? 2 : 0;
  static constexpr std::uint32_t bytes = pieces != 0 ? 16 : packed ? 4 : 8;
  static constexpr std::uint32_t words = bytes / 4;
  static constexpr std::uint32_t per_line = 2;
  static constexpr std::uint32_t stride = pieces != 0 ? pieces * 16 : packed ? 0 : slot_bytes;

  queue_memory shared;
  weft_ring writer{};
  weft_ring reader{};

  void before() {
    memory = &shared;
    shared.shape = Layout;
    for (auto& stamp : shared.stamps) stamp.store(0, rl::mo_relaxed, RL_INFO);
    for (auto& line : shared.lines) line.store(0, rl::mo_relaxed, RL_INFO);
    for (auto& word : shared.words) word.store(0, rl::mo_relaxed, RL_INFO);
    for (auto& word : shared.plain) word(RL_INFO).store(0);
    shared.credit.store(0, rl::mo_relaxed, RL_INFO);
    shared.fin.store(WEFT_RING_OPEN, rl::mo_relaxed, RL_INFO);
    shared.tail.store(0, rl::mo_relaxed, RL_INFO);
    for (auto& stop : shared.stop) stop.store(0, rl::mo_relaxed, RL_INFO);
    writer = weft_ring{};
    writer.slots = reinterpret_cast<std::uintptr_t>(shared.area);
    writer.credit = reinterpret_cast<std::uintptr_t>(&shared.credit_at);
    writer.fin = reinterpret_cast<std::uintptr_t>(&shared.fin_at);
    writer.mask = (1U << Shift) - 1;
    writer.capacity = Capacity;
    writer.shift = Shift;
    writer.bytes = bytes;
    writer.stride = stride;
    writer.per_line = per_line;
    writer.pieces = pieces;
    reader = writer;
    writer.stop = reinterpret_cast<std::uintptr_t>(&shared.stop_at[0]);
    reader.stop = reinterpret_cast<std::uintptr_t>(&shared.stop_at[1]);
  }

  static std::uint32_t word_of(std::uint64_t message, std::uint32_t word) {
    return static_cast<std::uint32_t>(message * 16 + word + 1);
  }
  static void fill(std::uint32_t* to, std::uint64_t message) {
    for (std::uint32_t word = 0; word < words; ++word) to[word] = word_of(message, word);
  }
  static void expect(const std::uint32_t* from, std::uint64_t message) {
    for (std::uint32_t word = 0; word < words; ++word) RL_ASSERT(from[word] == word_of(message, word));
  }

  int send(std::uint64_t message) {
    std::uint32_t it[words];
    fill(it, message);
    return weft_ring_try_send(&writer, it);
  }
  void send_waiting(std::uint64_t message) {
    int came_to;
    while ((came_to = send(message)) == WEFT_RING_FULL) pause();
    RL_ASSERT(came_to == WEFT_RING_OK);
  }
  /// Receives until the queue is closed, which must be after message `sent` - 1 and not before.
  void receive_all(std::uint64_t sent) {
    std::uint64_t received = 0;
    for (;;) {
      std::uint32_t it[words];
      const int came_to = weft_ring_try_receive(&reader, it);
      if (came_to == WEFT_RING_CLOSED) break;
      if (came_to == WEFT_RING_EMPTY) {
        pause();
        continue;
      }
      RL_ASSERT(came_to == WEFT_RING_OK);
      expect(it, received);
      received += 1;
      RL_ASSERT(received <= sent);
    }
    RL_ASSERT(received == sent);
  }
};

/// One message at a time, over several laps; closed by position.
template <layout Layout, unsigned Shift, unsigned Capacity, unsigned Messages>
struct one_by_one : ring_scenario<one_by_one<Layout, Shift, Capacity, Messages>, 2, Layout, Shift, Capacity> {
  void thread(unsigned which) {
    if (which == 0) {
      for (unsigned i = 0; i < Messages; ++i) this->send_waiting(i);
      weft_ring_close_writer(&this->writer);
    } else {
      this->receive_all(Messages);
    }
  }
};

/// Batches of changing size on both sides, over several laps.
template <layout Layout, unsigned Shift, unsigned Capacity, unsigned Messages>
struct batches : ring_scenario<batches<Layout, Shift, Capacity, Messages>, 2, Layout, Shift, Capacity> {
  static constexpr unsigned most = 4;
  void thread(unsigned which) {
    std::uint32_t it[most * batches::words];
    if (which == 0) {
      std::uint64_t sent = 0;
      for (unsigned turn = 0; sent < Messages; ++turn) {
        const std::uint64_t wanted = std::min<std::uint64_t>(1 + (turn + 2) % most, Messages - sent);
        for (std::uint64_t i = 0; i < wanted; ++i) this->fill(it + i * this->words, sent + i);
        int why = WEFT_RING_CORRUPT;
        const std::uint64_t done =
            this->packed ? weft_ring_put_lines(&this->writer, it, wanted, this->bytes, this->per_line, &why)
                         : weft_ring_put_slots(&this->writer, it, wanted, this->bytes, this->stride, &why);
        RL_ASSERT(done <= wanted && (done == 0 ? why == WEFT_RING_FULL : why == WEFT_RING_OK));
        sent += done;
        if (done == 0) pause();
      }
      weft_ring_close_writer(&this->writer);
    } else {
      std::uint64_t received = 0;
      for (unsigned turn = 0;; ++turn) {
        const std::uint64_t wanted = 1 + (turn + 1) % most;
        const std::uint64_t done = this->packed
                                       ? weft_ring_get_lines(&this->reader, it, wanted, this->bytes, this->per_line)
                                       : weft_ring_get_slots(&this->reader, it, wanted, this->bytes, this->stride);
        RL_ASSERT(done <= wanted);
        for (std::uint64_t i = 0; i < done; ++i) this->expect(it + i * this->words, received + i);
        received += done;
        RL_ASSERT(received <= Messages);
        if (done != 0) continue;
        const int why = weft_ring_nothing(&this->reader);
        if (why == WEFT_RING_CLOSED) break;
        RL_ASSERT(why == WEFT_RING_EMPTY);
        pause();
      }
      RL_ASSERT(received == Messages);
    }
  }
};

/// The reader closes after some messages; the writer learns of it, at the latest when the ring looks full.
struct reader_closes : ring_scenario<reader_closes, 2, layout::slots, 1, 2> {
  static constexpr unsigned taken = 2;
  void thread(unsigned which) {
    if (which == 0) {
      unsigned sent = 0;
      for (;;) {
        const int came_to = send(sent);
        if (came_to == WEFT_RING_CLOSED) break;
        RL_ASSERT(came_to == WEFT_RING_OK || came_to == WEFT_RING_FULL);
        if (came_to == WEFT_RING_OK) {
          sent += 1;
          RL_ASSERT(sent <= taken + 2);
        } else {
          pause();
        }
      }
      RL_ASSERT(sent >= taken);
    } else {
      for (unsigned received = 0; received < taken;) {
        std::uint32_t it[words];
        const int came_to = weft_ring_try_receive(&reader, it);
        if (came_to == WEFT_RING_OK) {
          expect(it, received++);
        } else {
          RL_ASSERT(came_to == WEFT_RING_EMPTY);
          pause();
        }
      }
      weft_ring_close_reader(&reader);
    }
  }
};

/// The host stops the queue; both ends that wait find out, and no message is wrong or missing before that.
struct host_stops : ring_scenario<host_stops, 3, layout::slots, 1, 2> {
  void thread(unsigned which) {
    if (which == 2) {
      shared.stop[0].store(1, order(stop_store, rl::mo_release), RL_INFO);
      shared.stop[1].store(1, order(stop_store, rl::mo_release), RL_INFO);
      return;
    }
    for (unsigned done = 0;;) {
      std::uint32_t it[words];
      const int came_to = which == 0 ? send(done) : weft_ring_try_receive(&reader, it);
      if (came_to == WEFT_RING_STOPPED) return;
      if (came_to == WEFT_RING_OK) {
        if (which == 1) expect(it, done);
        done += 1;
        if (done == 4 && which == 1) return;
      } else {
        RL_ASSERT(came_to == (which == 0 ? WEFT_RING_FULL : WEFT_RING_EMPTY));
        pause();
      }
    }
  }
};

/// Somebody who knows of messages stops the reader; it has them all before it finds out.
template <layout Layout, unsigned Messages>
struct stops_behind_messages : ring_scenario<stops_behind_messages<Layout, Messages>, 2, Layout, 1, 2> {
  void thread(unsigned which) {
    if (which == 0) {
      for (unsigned i = 0; i < Messages; ++i) RL_ASSERT(this->send(i) == WEFT_RING_OK);
      this->shared.stop[1].store(1, order(stop_store, rl::mo_release), RL_INFO);
      return;
    }
    for (unsigned received = 0;;) {
      std::uint32_t it[stops_behind_messages::words];
      const int came_to = weft_ring_try_receive(&this->reader, it);
      if (came_to == WEFT_RING_OK) {
        this->expect(it, received++);
      } else if (came_to == WEFT_RING_STOPPED) {
        RL_ASSERT(received == Messages);
        return;
      } else {
        RL_ASSERT(came_to == WEFT_RING_EMPTY);
        pause();
      }
    }
  }
};

/// Copies write the reader's slots, stamps and payload in no order, and behind each batch how many have arrived.
template <layout Layout, unsigned Shift, unsigned Capacity, unsigned Messages>
struct carried : ring_scenario<carried<Layout, Shift, Capacity, Messages>, 2, Layout, Shift, Capacity> {
  static constexpr std::uint64_t batch = 2;

  void before() {
    ring_scenario<carried, 2, Layout, Shift, Capacity>::before();
    this->reader.tail = reinterpret_cast<std::uintptr_t>(&this->shared.tail_at);
  }
  /// As a copy does: a stamp may be there before what it stands for, and no store releases another.
  void carry(std::uint64_t message) {
    const unsigned each = carried::pieces == 0 ? 1 : carried::pieces;
    const std::size_t first = static_cast<std::size_t>(message & this->writer.mask) * carried::stride;
    const std::size_t apart = this->shared.apart();
    for (unsigned piece = 0; piece < each; ++piece) {
      this->shared.stamps[first / apart + piece].store(static_cast<std::uint32_t>(message >> Shift) + 1, rl::mo_relaxed,
                                                       RL_INFO);
    }
    std::uint32_t it[carried::words];
    this->fill(it, message);
    for (unsigned word = 0; word < carried::words; ++word) {
      const unsigned in_piece = WEFT_RING_PIECE_PAYLOAD / 4;
      const std::size_t at = carried::pieces == 0 ? 4 * word : word / in_piece * apart + word % in_piece * 4;
      copy(this->shared.area + first + at, it + word, 4);
    }
  }
  void thread(unsigned which) {
    if (which == 1) return this->receive_all(Messages);
    for (std::uint64_t sent = 0; sent < Messages;) {
      int why = WEFT_RING_CORRUPT;
      const std::uint64_t some =
          weft_ring_space_for(&this->writer, std::min<std::uint64_t>(batch, Messages - sent), &why);
      for (std::uint64_t i = 0; i < some; ++i) carry(sent + i);
      sent += some;
      this->writer.position = sent;
      if (some != 0) {
        store_64(&this->shared.tail_at, sent);
      } else {
        RL_ASSERT(why == WEFT_RING_FULL);
        pause();
      }
    }
    weft_ring_close_writer(&this->writer);
  }
};

/// The writer overwrites; the reader's messages are whole and in order, and received + lost is what was sent.
template <unsigned Shift, unsigned Messages>
struct overwrites : ring_scenario<overwrites<Shift, Messages>, 2, layout::slots, Shift, (1U << Shift)> {
  std::uint64_t begun = 0;  // what really happened, in the order of this interleaving: not a word of the model

  void thread(unsigned which) {
    std::uint32_t it[2];
    if (which == 0) {
      for (unsigned i = 0; i < Messages; ++i) {
        this->fill(it, i);
        begun = i + 1;
        RL_ASSERT(weft_ring_put_over(&this->writer, it) == WEFT_RING_OK);
      }
      weft_ring_close_writer(&this->writer);
    } else {
      std::uint64_t received = 0;
      std::uint64_t lost = 0;
      for (;;) {
        const std::uint64_t before = lost;
        const int came_to = weft_ring_get_over(&this->reader, it, &lost);
        RL_ASSERT(received + lost <= Messages);
        RL_ASSERT(lost == before || received + lost - 1 + (1U << Shift) < begun);  // the last lost: overwritten
        if (came_to == WEFT_RING_CLOSED) break;
        if (came_to == WEFT_RING_EMPTY) {
          pause();
          continue;
        }
        RL_ASSERT(came_to == WEFT_RING_OK);
        this->expect(it, received + lost);
        received += 1;
      }
      RL_ASSERT(received + lost == Messages);
      RL_ASSERT(received >= 1);  // the last message is never overwritten
    }
  }
};

/// The reader of an overwriting queue closes; the writer learns of it within a lap.
struct reader_of_overwrites_closes : ring_scenario<reader_of_overwrites_closes, 2, layout::slots, 1, 2> {
  rl::atomic<std::uint32_t> closed{0};
  void thread(unsigned which) {
    if (which == 1) {
      weft_ring_close_reader(&reader);
      closed.store(1, rl::mo_release, RL_INFO);
      return;
    }
    for (unsigned after = 0, i = 0;; ++i) {
      if (closed.load(rl::mo_acquire, RL_INFO) != 0) after += 1;
      std::uint32_t it[2];
      fill(it, i);
      const int came_to = weft_ring_put_over(&writer, it);
      if (came_to == WEFT_RING_CLOSED) return;
      RL_ASSERT(came_to == WEFT_RING_OK && after <= 2);
      pause();
    }
  }
};

/// What the host does around the ring when waiting: both ends sleep instead of spinning. The sleeper's full fence
/// stands for the barrier that it makes the whole process execute; so the waker has one too.
struct doorbell {
  rl::atomic<std::uint32_t> waiting{0};
  rl::mutex lock;
  rl::condition_variable bell;

  template <class Ready>
  void sleep(Ready ready) {
    waiting.store(1, rl::mo_relaxed, RL_INFO);
    if (weakened != sleeper_fence) rl::atomic_thread_fence(rl::mo_seq_cst, RL_INFO);
    if (weakened != sleeper_second_look && ready()) {
      waiting.store(0, rl::mo_relaxed, RL_INFO);
      return;
    }
    lock.lock(RL_INFO);
    while (waiting.load(rl::mo_relaxed, RL_INFO) != 0) bell.wait(lock, RL_INFO);
    lock.unlock(RL_INFO);
  }
  void ring() {
    if (weakened != waker_fence) rl::atomic_thread_fence(rl::mo_seq_cst, RL_INFO);
    if (waiting.load(rl::mo_relaxed, RL_INFO) == 0) return;
    lock.lock(RL_INFO);
    waiting.store(0, rl::mo_relaxed, RL_INFO);
    bell.notify_one(RL_INFO);
    lock.unlock(RL_INFO);
  }
};

template <layout Layout, unsigned Shift, unsigned Capacity, unsigned Messages>
struct sleepers : ring_scenario<sleepers<Layout, Shift, Capacity, Messages>, 2, Layout, Shift, Capacity> {
  doorbell for_messages, for_space;

  void thread(unsigned which) {
    if (which == 0) {
      for (unsigned i = 0; i < Messages; ++i) {
        int came_to = this->send(i);
        while (came_to == WEFT_RING_FULL) {
          for_space.sleep([&] { return (came_to = this->send(i)) != WEFT_RING_FULL; });
          if (came_to == WEFT_RING_FULL) came_to = this->send(i);
        }
        RL_ASSERT(came_to == WEFT_RING_OK);
        for_messages.ring();
      }
      weft_ring_close_writer(&this->writer);
      for_messages.ring();
      return;
    }
    std::uint32_t it[sleepers::words];
    for (std::uint64_t received = 0;;) {
      int came_to = weft_ring_try_receive(&this->reader, it);
      while (came_to == WEFT_RING_EMPTY) {
        for_space.ring();  // finding the ring empty gave the credit
        for_messages.sleep([&] { return (came_to = weft_ring_try_receive(&this->reader, it)) != WEFT_RING_EMPTY; });
        if (came_to == WEFT_RING_EMPTY) came_to = weft_ring_try_receive(&this->reader, it);
      }
      if (came_to == WEFT_RING_CLOSED) {
        RL_ASSERT(received == Messages);
        return;
      }
      RL_ASSERT(came_to == WEFT_RING_OK);
      this->expect(it, received++);
      for_space.ring();
    }
  }
};

// ---- the searches -------------------------------------------------------------------------------------------------

struct outcome {
  bool passed = false;
  std::uint64_t interleavings = 0;
  std::string text;
};

template <class Test>
outcome run(rl::scheduler_type_e search, unsigned bound, std::uint64_t limit, bool history) {
  std::ostringstream text;
  rl::test_params params;
  params.search_type = search;
  params.context_bound = bound;
  params.iteration_count = limit;
  params.execution_depth_limit = 4000;
  params.output_stream = &text;
  params.progress_stream = &text;
  params.output_history = !history;  // true: the failing run is not repeated to print it
  params.collect_history = history;
  const bool passed = rl::simulate<Test>(params);
  return {passed, params.stop_iteration, text.str()};
}

struct scenario {
  const char* name;
  outcome (*search)(rl::scheduler_type_e, unsigned, std::uint64_t, bool);
  std::uint64_t random;  // interleavings drawn at random
  unsigned bound;        // all interleavings with so many switches that nobody asked for; 0: not searched
};

constexpr scenario scenarios[] = {
    {"slots_one_by_one", run<one_by_one<layout::slots, 1, 2, 5>>, 300000, 2},
    {"slots_one_by_one_lazy_credit", run<one_by_one<layout::slots, 3, 8, 18>>, 100000, 0},
    {"packed_one_by_one", run<one_by_one<layout::packed, 1, 2, 7>>, 200000, 1},
    {"packed_one_by_one_tight", run<one_by_one<layout::packed, 1, 3, 9>>, 200000, 1},
    {"packed_one_by_one_four_lines", run<one_by_one<layout::packed, 2, 6, 17>>, 100000, 0},
    {"pieces_one_by_one", run<one_by_one<layout::pieces, 1, 2, 5>>, 200000, 2},
    {"pieces_one_by_one_lazy_credit", run<one_by_one<layout::pieces, 2, 4, 9>>, 100000, 0},
    {"slots_batches", run<batches<layout::slots, 2, 4, 11>>, 200000, 0},
    {"slots_batches_lazy_credit", run<batches<layout::slots, 3, 8, 18>>, 100000, 0},
    {"packed_batches", run<batches<layout::packed, 1, 2, 9>>, 200000, 1},
    {"packed_batches_tight", run<batches<layout::packed, 1, 3, 11>>, 200000, 0},
    {"packed_batches_four_lines", run<batches<layout::packed, 2, 6, 17>>, 100000, 0},
    {"reader_closes", run<reader_closes>, 200000, 2},
    {"host_stops", run<host_stops>, 200000, 2},
    {"stops_behind_messages", run<stops_behind_messages<layout::slots, 2>>, 200000, 3},
    {"stops_behind_messages_packed", run<stops_behind_messages<layout::packed, 2>>, 100000, 2},
    {"stops_behind_messages_pieces", run<stops_behind_messages<layout::pieces, 2>>, 100000, 2},
    {"carried", run<carried<layout::slots, 1, 2, 5>>, 200000, 2},
    {"carried_pieces", run<carried<layout::pieces, 1, 2, 5>>, 200000, 2},
    {"overwrites", run<overwrites<1, 6>>, 300000, 2},
    {"overwrites_four_slots", run<overwrites<2, 11>>, 200000, 1},
    {"reader_of_overwrites_closes", run<reader_of_overwrites_closes>, 50000, 2},
    {"sleepers", run<sleepers<layout::slots, 0, 1, 3>>, 300000, 2},
    {"sleepers_packed", run<sleepers<layout::packed, 1, 2, 5>>, 200000, 1},
};

bool by_night() { return std::getenv("WEFT_NIGHTLY") != nullptr; }

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

bool prove(std::string_view only, bool history) {
  bool passed = true;
  bool found = false;
  std::uint64_t total = 0;
  const std::uint64_t part = by_night() || history ? 1 : 10;  // by day a tenth at random, which finds all mutants
  const auto all = std::chrono::steady_clock::now();
  for (const scenario& test : scenarios) {
    if (!only.empty() && only != test.name) continue;
    found = true;
    for (const bool at_random : {true, false}) {
      if (!at_random && test.bound == 0) continue;
      const auto start = std::chrono::steady_clock::now();
      const outcome found_out = test.search(at_random ? rl::sched_random : rl::sched_bound, test.bound,
                                            at_random ? test.random / part : 0, history);
      total += found_out.interleavings;
      std::printf("%-32s %-18s %9llu interleavings %6.2f s  %s\n", test.name,
                  at_random ? "at random" : (std::string("all, bound ") + std::to_string(test.bound)).c_str(),
                  static_cast<unsigned long long>(found_out.interleavings), seconds_since(start),
                  found_out.passed ? "ok" : "FAILED");
      if (!found_out.passed) std::printf("%s\n", found_out.text.c_str());
      std::fflush(stdout);
      passed = passed && found_out.passed;
    }
  }
  std::printf("%llu interleavings in %.1f s\n", static_cast<unsigned long long>(total), seconds_since(all));
  if (!found) std::fprintf(stderr, "ring_model: no scenario is called %s\n", std::string(only).c_str());
  return passed && found;
}

// ---- the mutants --------------------------------------------------------------------------------------------------

#if defined(WEFT_RING_MUTATED)
struct mutant {
  const char* name;
  const char* survives;  // why, or null
  int weakened;
  int chosen;
};

constexpr mutant weaker[] = {
    {"a stamp is stored relaxed", nullptr, stamp_store, -1},
    {"a stamp is loaded relaxed", nullptr, stamp_load, -1},
    {"a line's word is stored relaxed", nullptr, line_store, -1},
    {"a line's word is loaded relaxed", nullptr, line_load, -1},
    {"the credit is stored relaxed", nullptr, credit_store, -1},
    {"the credit is loaded relaxed", nullptr, credit_load, -1},
    {"a word of an overwritten message is stored relaxed", nullptr, word_store, -1},
    {"a word of an overwritten message is loaded relaxed", nullptr, word_load, -1},
    {"the close is stored relaxed", "it is a position: it says closed only to a reader who has received everything",
     fin_store, -1},
    {"the close is loaded relaxed", "as above", fin_load, -1},
    {"what has arrived is told relaxed", nullptr, tail_store, -1},
    {"what has arrived is looked at relaxed", nullptr, tail_load, -1},
    {"the stop is stored relaxed", nullptr, stop_store, -1},
    {"the stop is loaded relaxed", nullptr, stop_load, -1},
    {"the sleeper has no fence", nullptr, sleeper_fence, -1},
    {"the waker has no fence, nor is given one", nullptr, waker_fence, -1},
    {"the sleeper does not look again", nullptr, sleeper_second_look, -1},
};
constexpr mutant structural[] = {
#include "ring_mutants.inc"
};

// Whether a scenario fails, in a process of its own: a broken ring may do anything.
bool fails(const scenario& test, const mutant& which, rl::scheduler_type_e search, std::uint64_t limit) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    weakened = which.weakened;
    chosen_mutant = which.chosen;
    _exit(test.search(search, test.bound, limit, false).passed ? 0 : 1);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) {
    std::perror("ring_model: fork");
    std::exit(2);
  }
  return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

// The name of the scenario that fails, or null. Most faults show within a few interleavings of the right scenario, so
// all scenarios are tried shortly before one is tried for long; a tenth of each search bounds what a survivor costs.
const char* killed_by(const mutant& which) {
  for (const std::uint64_t part : {1000U, 100U, 10U})
    for (const scenario& test : scenarios)
      if (fails(test, which, rl::sched_random, test.random / part)) return test.name;
  for (const scenario& test : scenarios)  // the ones of bound 1 take long, and found nothing more
    if (test.bound >= 2 && fails(test, which, rl::sched_bound, 0)) return test.name;
  return nullptr;
}

bool mutants() {
  unsigned count = 0, killed = 0, explained = 0;
  bool passed = true;
  const auto start = std::chrono::steady_clock::now();
  // to find no fault takes a search of everything: by day only those are tried that must be found
  const bool all = by_night();
  const auto look = [&](const mutant& which) {
    if (which.survives != nullptr && !all) return;
    const char* by = killed_by(which);
    count += 1;
    killed += by != nullptr;
    explained += by == nullptr && which.survives != nullptr;
    const bool right = (by != nullptr) == (which.survives == nullptr);
    passed = passed && right;
    std::printf("%-9s %-60s %s%s\n", by != nullptr ? "killed" : "survived", which.name,
                by != nullptr ? by : (which.survives != nullptr ? which.survives : "NO REASON IS GIVEN"),
                by != nullptr && which.survives != nullptr ? "   BUT IT IS LISTED AS A SURVIVOR" : "");
    std::fflush(stdout);
  };
  for (const mutant& which : weaker) look(which);
  for (const mutant& which : structural) look(which);
  std::printf("%u mutants: %u killed, %u survive with a reason, %u wrong, in %.1f s\n", count, killed, explained,
              count - killed - explained, seconds_since(start));
  return passed;
}
#endif

}  // namespace

int main(int count, char** words) {
  const std::string_view first = count > 1 ? words[1] : "";
#if defined(WEFT_RING_MUTATED)
  if (first == "mutants") return mutants() ? 0 : 1;
#endif
  return prove(first, count > 2) ? 0 : 1;
}
