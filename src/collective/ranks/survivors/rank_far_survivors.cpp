// SPDX-License-Identifier: Apache-2.0
#include "collective/ranks/survivors/rank_far_survivors.hpp"

#include "collective/schedule/rank_bit.hpp"
#include "weft/core/raise.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <exception>
#include <span>
#include <string>
#include <utility>

namespace weft::detail {
namespace {

using clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds look_again{1};
constexpr std::chrono::milliseconds last_words{100};
constexpr std::uint32_t most_positions = 4096;

}  // namespace

far_survivor_world::far_survivor_world(rank_communicator_body& of)
    : of_(of),
      m_(of.meeting),
      time_(std::chrono::nanoseconds{0}),
      memory_(of),
      ranks_(static_cast<std::size_t>(m_.size())),
      votes_(of.self(), all_of(m_.size()), [this](int to, const word_message& m) { send(to, m); }) {
  for (int r = 0; r < m_.size(); ++r) {
    lines_.push_back(r == of.self() ? nullptr : std::make_unique<line>());
    if (is_here(r) && r != of.self()) listen(r);  // to listen makes a connection
  }
}

far_survivor_world::~far_survivor_world() {
  // Ranks usually end together: what they say last is received, so that no library keeps messages that nobody took.
  const auto is_awaited = [this](int r) { return r != of_.self() && is_here(r); };
  const auto until = clock::now() + last_words;
  try {
    say_gone();
    for (bool waits = true; waits && clock::now() < until;) {
      if (!pump()) rest();
      waits = std::ranges::any_of(notices_, [](const notice& n) { return n.going.is_under_way(); });
      for (int r = 0; r < m_.size(); ++r) waits = waits || is_awaited(r);
    }
  } catch (const std::exception&) {
    // they find out when this process ends
  }
  for (int r = 0; r < m_.size(); ++r) {
    auto& one = lines_[static_cast<std::size_t>(r)];
    if (one && one->coming.is_under_way()) carrier().cancel(one->coming, r);
  }
  for (std::size_t n = 0; n < unwanted_.size(); ++n)
    if (unwanted_[n].coming.is_under_way()) carrier().cancel(unwanted_[n].coming, static_cast<int>(n / drained));
  for (notice& n : notices_)
    if (n.going.is_under_way()) carrier().cancel(n.going, n.to);
}

rank_carrier& far_survivor_world::carrier() const { return m_.far()->carrier(); }

std::uint64_t far_survivor_world::near(std::uint64_t set) const {
  std::uint64_t made = 0;
  for (int r = 0; r < m_.size(); ++r)
    if ((set & bit(r)) != 0 && m_.is_near(r)) made |= bit(r);
  return made;
}

void far_survivor_world::listen(int r) {
  line& from = *lines_[static_cast<std::size_t>(r)];
  from.coming.at = transfer::stage::under_way;
  carrier().receive(from.coming, r, rank_carrier::purpose::survivors, std::as_writable_bytes(std::span{&from.come, 1}));
}

void far_survivor_world::drain() {
  using enum rank_carrier::purpose;
  static constexpr std::array<rank_carrier::purpose, drained> purposes{entrance, move, exchange};
  if (unwanted_.empty()) unwanted_.resize(static_cast<std::size_t>(m_.size()) * drained);
  for (int r = 0; r < m_.size(); ++r) {
    if (m_.is_near(r) || carrier().failure(r)) continue;
    for (std::size_t n = 0; n < drained; ++n) {
      transfer& t = unwanted_[static_cast<std::size_t>(r) * drained + n].coming;
      if (t.is_under_way()) continue;
      t.at = transfer::stage::under_way;
      carrier().receive(t, r, purposes[n], {});  // it is cut, and its sender has it back
    }
  }
}

/// True when something came.
bool far_survivor_world::pump() {
  carrier().progress();
  if (m_.block().words().ended.load(std::memory_order_acquire) != 0) drain();
  while (!notices_.empty() && !notices_.front().going.is_under_way()) notices_.pop_front();
  bool heard = false;
  for (int r = 0; r < m_.size(); ++r) {
    const auto& from = lines_[static_cast<std::size_t>(r)];
    while (from && from->coming.at == transfer::stage::done) {
      const word_message m = from->come;
      const bool is_whole = from->coming.bytes == sizeof m;
      listen(r);
      if (is_whole) hear(r, m);
      heard = true;
    }
  }
  return heard;
}

void far_survivor_world::hear(int from, const word_message& m) {
  if (m.position >= most_positions || m.communicator != carrier().number()) return;
  rank_words& its = ranks_[static_cast<std::size_t>(from)];
  switch (m.what) {
    case word_kind::arrived:
      its.arrived = m.position + 1;
      its.number = static_cast<std::uint32_t>(m.value);
      return;
    case word_kind::ready:
      ready_[m.position] |= bit(from);
      return;
    case word_kind::gone:
      its.is_gone = true;
      return;
    default:
      votes_.hear(from, m);
  }
}

void far_survivor_world::send(int to, const word_message& m) {
  if (carrier().failure(to)) return;
  notice& made = notices_.emplace_back();
  made.to = to;
  made.said = m;
  made.said.communicator = carrier().number();
  carrier().send(made.going, to, rank_carrier::purpose::survivors, std::as_bytes(std::span{&made.said, 1}));
}

void far_survivor_world::send_to_all(const word_message& m) {
  for (int r = 0; r < m_.size(); ++r)
    if (r != of_.self()) send(r, m);
  word_message mine = m;
  mine.communicator = carrier().number();
  hear(of_.self(), mine);
}

bool far_survivor_world::is_here(int r) const {
  if (r == of_.self()) return true;
  if (ranks_[static_cast<std::size_t>(r)].is_gone || carrier().failure(r)) return false;
  // One that has let the communicator go says so behind all else that it says; memory would tell it too early.
  return !m_.is_near(r) || m_.group().alive(m_.members()[static_cast<std::size_t>(r)]);
}

std::uint64_t far_survivor_world::those_here() const {
  std::uint64_t here = 0;
  for (int r = 0; r < m_.size(); ++r)
    if (is_here(r)) here |= bit(r);
  return here;
}

void far_survivor_world::arrive(std::uint32_t p) {
  if (p + 64 >= most_positions)
    raise(errc::resource_exhausted, "a communicator was shrunk too often: shrink the one that shrink() made");
  begun_at_ = p;
  send_to_all({word_kind::arrived, p, carrier().free_number(), 0, 0});
}

bool far_survivor_world::has_arrived(int r, std::uint32_t p) {
  pump();
  return ranks_[static_cast<std::size_t>(r)].arrived > p;
}

std::uint64_t far_survivor_world::word(std::uint32_t p) {
  pump();
  return votes_.word(p);
}

void far_survivor_world::write(std::uint32_t p, std::uint64_t set) {
  const std::uint64_t all = all_of(m_.size());
  const auto say = [&](std::uint64_t some, const char* how) {
    return std::to_string(std::popcount(some)) + " of the " + std::to_string(m_.size()) + " ranks of a communicator " +
           how +
           ", and more than half of them have to, or half with the lowest one, so that of a network which is cut in "
           "two "
           "one side goes on: join a new world";
  };
  votes_.propose(p, set);
  while (votes_.word(p) == 0) {
    if (pump()) continue;
    const std::uint64_t here = those_here();
    if (!votes_.decides(here, all)) raise(errc::peer_dead, say(here, "are left"));
    if (is_late()) raise(errc::timed_out, say(here, "may be left, too few of which have answered in time"));
    if (votes_.is_refused(p)) {
      // those who write at once try again one after the other
      const auto until = clock::now() + look_again * (1 + of_.self());
      while (clock::now() < until && votes_.word(p) == 0)
        if (!pump()) rest();
      votes_.propose(p, set);
      continue;
    }
    rest();
  }
}

void far_survivor_world::say_ready(std::uint32_t p) { send_to_all({word_kind::ready, p, 0, 0, 0}); }

std::uint64_t far_survivor_world::ready(std::uint32_t p) {
  pump();
  return ready_[p];
}

void far_survivor_world::make(std::uint64_t set) { memory_.make(std::popcount(set), std::popcount(near(set))); }

bool far_survivor_world::offer(std::uint32_t p, int r) {
  pump();
  return !m_.is_near(r) || memory_.offer(p, r);
}

bool far_survivor_world::take(std::uint32_t p, int, std::uint64_t set) {
  pump();
  const std::uint64_t here = near(set);
  const int first = std::countr_zero(here);
  if (first != of_.self()) return memory_.take(p, first, is_late());
  auto [given, is_new] = given_.try_emplace(p, bit(first));
  if (is_new) make(set);
  for (int r = 0; r < m_.size(); ++r)
    if ((here & ~given->second & bit(r)) != 0 && (!is_here(r) || memory_.offer(p, r))) given->second |= bit(r);
  return (given->second & here) == here;
}

void far_survivor_world::rest() { carrier().rest(clock::now() + look_again); }

void far_survivor_world::say_gone() {
  if (!std::exchange(is_gone_, true)) send_to_all({word_kind::gone, 0, 0, 0, 0});
}

std::unique_ptr<rank_communicator_body> far_survivor_world::made(std::uint64_t set) {
  std::vector<int> order;
  std::vector<rank> members;
  std::vector<int> nodes;
  std::uint32_t number = 0;
  for (int r = 0; r < m_.size(); ++r) {
    if ((set & bit(r)) == 0) continue;
    // who has agreed has arrived, and said which numbers it has free
    while (!has_arrived(r, begun_at_)) {
      if (!is_here(r) || is_late())
        raise(errc::peer_dead, m_.name_of(r) + " has agreed with the other survivors, and has gone");
      rest();
    }
    order.push_back(r);
    members.push_back(m_.members()[static_cast<std::size_t>(r)]);
    nodes.push_back(m_.far()->nodes()[static_cast<std::size_t>(r)]);
    number = std::max(number, ranks_[static_cast<std::size_t>(r)].number);
  }
  const auto self_at = static_cast<int>(std::ranges::find(order, of_.self()) - order.begin());
  const auto size = static_cast<int>(order.size());
  auto theirs = std::make_unique<far_ranks>(carrier().among(order, number), std::move(nodes), self_at);
  return std::make_unique<rank_communicator_body>(m_.shared_group(), std::move(members), self_at,
                                                  memory_.open(size, std::popcount(near(set))), std::move(theirs),
                                                  of_.on, of_.options);
}

}  // namespace weft::detail
