// SPDX-License-Identifier: Apache-2.0
// The survivors of a communicator make themselves a new one: survivors.hpp on real memory, messages and time.
#include "collective/ranks/survivors/rank_far_survivors.hpp"
#include "collective/ranks/survivors/rank_survivors.hpp"
#include "collective/ranks/survivors/survivors.hpp"
#include "collective/schedule/rank_bit.hpp"
#include "weft/core/raise.hpp"

#include <bit>
#include <string>
#include <thread>

namespace weft::detail {
namespace {

// A wait for one message, after which the shared words are looked at again.
constexpr std::chrono::milliseconds message_slice{2};

}  // namespace

// ---- memory ---------------------------------------------------------------------------------------------------------

void survivor_memory::make(int ranks, int near) {
  file_ = value_or_raise(rank_communicator_body::make_block(ranks, near, of_.options));
}

bool survivor_memory::offer(std::uint32_t position, int to) {
  const int number = file_.get();
  const auto sent = m_.group().send(member(to), tag(position), {}, {&number, 1}, message_slice);
  // who is gone is found by is_here; any other failure may pass
  return sent || sent.error().code == errc::peer_dead || sent.error().code == errc::closed;
}

bool survivor_memory::take(std::uint32_t position, int from, bool is_late) {
  if (awaited_.empty() || awaited_.back().second != position) awaited_.emplace_back(from, position);
  auto got = m_.group().receive(member(from), tag(position), message_slice);
  if (!got) {
    // the descriptor was lost, or other messages hide the offer until somebody receives them
    const bool may_come = got.error().scope == error_scope::endpoint && !is_late;
    if (got.error().code == errc::resource_exhausted && !may_come) raise(std::move(got).error());
    return false;
  }
  awaited_.pop_back();
  if (got->descriptors.size() != 1) raise(errc::corrupt, m_.name_of(from) + " sent no memory for the survivors");
  file_ = std::move(got->descriptors.front());
  return true;
}

void survivor_memory::drop_offers() {
  for (const auto& [from, position] : awaited_)
    static_cast<void>(m_.group().receive(member(from), tag(position), std::chrono::nanoseconds{0}));
  awaited_.clear();
}

control_block survivor_memory::open(int ranks, int near) const {
  return value_or_raise(control_block::open(file_.get(), ranks, near));
}

// ---- on one node ----------------------------------------------------------------------------------------------------

/// The memory, messages and time of one rank, as survivors.hpp asks for them.
class rank_communicator_body::survivor_world {
 public:
  survivor_world(rank_communicator_body& of, std::chrono::nanoseconds timeout)
      : of_(of), m_(of.meeting), words_(m_.block().words()), time_(timeout), memory_(of) {}

  void begin() {
    time_.begin();
    turns_ = 0;
  }
  [[nodiscard]] bool is_late() const { return time_.is_late(); }
  [[nodiscard]] bool is_here(int r) const { return m_.is_here(r); }

  // seq_cst throughout: the proof takes one access after the other
  void arrive(std::uint32_t p) {
    m_.mine().arrived.store(p + 1, std::memory_order_seq_cst);
    m_.ring();
  }
  [[nodiscard]] bool has_arrived(int r, std::uint32_t p) const { return m_.area(r).arrived.load() > p; }
  [[nodiscard]] std::uint64_t word(std::uint32_t p) const { return link(words_.chain, p).load(); }
  void write(std::uint32_t p, std::uint64_t set) {
    std::uint64_t none = 0;
    link(words_.chain, p).compare_exchange_strong(none, set);
    m_.ring();
  }
  void say_ready(std::uint32_t p) {
    link(words_.ready, p).fetch_or(bit(of_.self()));
    m_.ring();
  }
  [[nodiscard]] std::uint64_t ready(std::uint32_t p) const { return link(words_.ready, p).load(); }

  void make(std::uint64_t set) {
    memory_.make(std::popcount(set), std::popcount(set));
    build(set);
  }
  bool offer(std::uint32_t p, int r) { return memory_.offer(p, r); }
  bool take(std::uint32_t p, int from, std::uint64_t set) {
    if (!memory_.take(p, from, is_late())) return false;
    build(set);
    return true;
  }

  void rest() {
    if (++turns_ < 100) return std::this_thread::yield();
    words_.sleepers.fetch_add(1, std::memory_order_seq_cst);
    const std::uint32_t heard = words_.bell.load(std::memory_order_seq_cst);
    // what was said since the last look is found a millisecond later at most
    parking::park(words_.bell, heard, survivor_time::clock::now() + std::chrono::milliseconds{1},
                  parking::word_scope::shared);
    words_.sleepers.fetch_sub(1, std::memory_order_seq_cst);
  }

  void drop_offers() { memory_.drop_offers(); }
  void say_gone() {
    m_.mine().departed.store(1, std::memory_order_seq_cst);
    m_.ring();
  }
  [[nodiscard]] std::unique_ptr<rank_communicator_body> made(std::uint64_t) { return std::move(made_); }

 private:
  template <std::size_t N>
  static std::atomic<std::uint64_t>& link(std::array<std::atomic<std::uint64_t>, N>& of, std::uint32_t p) {
    if (p >= N)
      raise(errc::resource_exhausted, "a communicator was shrunk too often: shrink the one that shrink() made");
    return of[p];
  }
  /// The new communicator, on the memory that was made or came.
  void build(std::uint64_t set) {
    std::vector<rank> members;
    int self = 0;
    for (int r = 0; r < m_.size(); ++r) {
      if ((set & bit(r)) == 0) continue;
      if (r == of_.self()) self = static_cast<int>(members.size());
      members.push_back(m_.members()[static_cast<std::size_t>(r)]);
    }
    const auto size = static_cast<int>(members.size());
    made_ = std::make_unique<rank_communicator_body>(m_.shared_group(), std::move(members), self,
                                                     memory_.open(size, size), nullptr, of_.on, of_.options);
  }

  rank_communicator_body& of_;
  rank_meeting& m_;
  group_words& words_;
  survivor_time time_;
  survivor_memory memory_;
  int turns_ = 0;
  std::unique_ptr<rank_communicator_body> made_;
};

template <class World>
std::unique_ptr<rank_communicator_body> rank_communicator_body::shrink_in(World& world) {
  survivors<World> among{self(), survivors_, links_};
  try {
    while (!among.is_over()) among.step(world);
  } catch (...) {
    // this rank could not get the new memory: it counts as gone, so that the others do not wait for it
    world.say_gone();
    survivors_ = 0;
    world.drop_offers();
    throw;
  }
  world.drop_offers();
  survivors_ = among.set();
  links_ = among.position();
  if (!among.is_sound()) raise(errc::corrupt, "the memory of the communicator is damaged");
  if (among.is_left_out())
    raise(errc::peer_dead, meeting.name_of(self()) + " came too late: the others go on without it");
  return world.made(survivors_);
}

std::unique_ptr<rank_communicator_body> rank_communicator_body::shrink(std::chrono::nanoseconds timeout) {
  state_of(on)->require_open();
  if ((survivors_ & bit(self())) == 0)
    raise(errc::peer_dead, meeting.name_of(self()) + " came too late: the others go on without it");
  // ranks that are still in a call end it: they are to come here too
  meeting.end(errc::cancelled, meeting.name_of(self()) + " shrinks the communicator");
  finish_streamed();
  if (!is_on_several_nodes()) {
    survivor_world world{*this, timeout};
    return shrink_in(world);
  }
  far_survivors_->start(timeout);
  return shrink_in(*far_survivors_);
}

}  // namespace weft::detail
