// SPDX-License-Identifier: Apache-2.0
#include "collective/ranks/transfer/far_ranks.hpp"

#include "weft/core/raise.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <thread>

namespace weft::detail {
namespace {

// Of what a node enters with: this, and for each of its ranks an entry with its texts and what it has brought.
struct entrance_header {
  std::uint64_t number = 0;
  std::uint32_t ranks = 0;
  std::uint32_t brought = 0;
};
struct entrance_entry {
  std::uint64_t fingerprint = 0, kind = 0, count = 0;
  std::uint32_t op_size = 0, refused_size = 0;
};
constexpr std::size_t most_text = 256;

constexpr std::size_t room_for(std::size_t ranks) {
  return sizeof(entrance_header) + ranks * (sizeof(entrance_entry) + most_text + far_ranks::most_brought);
}

// How long a rank waits for others to let a communicator go, too.
constexpr std::chrono::milliseconds farewell{100};

// Of trouble: the word, and why.
constexpr std::size_t trouble_room = sizeof(std::uint64_t) + 512;

template <class T>
void append(std::vector<std::byte>& to, const T& what) {
  const auto raw = std::as_bytes(std::span{&what, 1});
  to.insert(to.end(), raw.begin(), raw.end());
}

/// Reads bytes of another process, and nothing behind their end.
class reader {
 public:
  explicit reader(std::span<const std::byte> of) : left_(of) {}
  std::span<const std::byte> take(std::size_t size) {
    if (size > left_.size()) raise(errc::corrupt, "another node has entered a call with less than it says");
    const auto part = left_.first(size);
    left_ = left_.subspan(size);
    return part;
  }
  template <class T>
  T value() {
    T made;
    std::memcpy(&made, take(sizeof made).data(), sizeof made);
    return made;
  }
  std::string_view text(std::size_t size) {
    const auto raw = take(size);
    return {reinterpret_cast<const char*>(raw.data()), raw.size()};
  }

 private:
  std::span<const std::byte> left_;
};

}  // namespace

far_ranks::far_ranks(std::unique_ptr<rank_carrier> by, std::vector<int> nodes, int self)
    : carrier_(std::move(by)), nodes_(std::move(nodes)), self_(self) {
  std::map<int, std::vector<int>> all;
  for (std::size_t r = 0; r < nodes_.size(); ++r) {
    auto& ranks = all[nodes_[r]];
    locals_.push_back(static_cast<int>(ranks.size()));
    ranks.push_back(static_cast<int>(r));
  }
  near_ = std::move(all.extract(nodes_[index(self)]).mapped());
  if (!is_leader()) return;
  saying_.reserve(room_for(near_.size()));
  for (auto& [number, ranks] : all) {
    node& one = others_.emplace_back();
    one.ranks = std::move(ranks);
    one.come.resize(room_for(one.ranks.size()));
    one.trouble.come.resize(trouble_room);
    listen(one);
  }
}

far_ranks::~far_ranks() {
  if (!has_told_) {
    tell(0, {});
    // ranks usually end together: what they say is received, so that no library finds messages that nobody took
    const auto until = std::chrono::steady_clock::now() + farewell;
    const auto is_awaited = [&](const node& one) {
      return !one.has_left && one.trouble.coming.is_under_way() && !carrier_->failure(one.leader());
    };
    while (std::any_of(others_.begin(), others_.end(), is_awaited) && std::chrono::steady_clock::now() < until) {
      if (!carrier_->progress()) std::this_thread::yield();
    }
  }
  for (node& one : others_) {
    stop(one.coming, one.leader());
    stop(one.trouble.coming, one.leader());
    stop(one.going, one.leader());
    stop(one.trouble.going, one.leader());
  }
}

void far_ranks::stop(transfer& t, int other) noexcept {
  // one that was never started has nothing of the carrier's
  if (t.is_under_way() && t.native != nullptr) carrier_->cancel(t, other);
}

int far_ranks::lost_leader(const control_block& block) const {
  for (const node& one : others_) {
    const bool has_left = block.area(one.leader()).departed.load(std::memory_order_acquire) != 0;
    if (!has_left && carrier_->failure(one.leader())) return one.leader();
  }
  return -1;
}

void far_ranks::begin(std::uint64_t number) {
  number_ = number;
  is_said_ = false;
  for (node& one : others_) {
    one.is_heard = false;
    one.coming.at = transfer::stage::under_way;
    carrier_->receive(one.coming, one.leader(), rank_carrier::purpose::entrance, one.come);
  }
}

bool far_ranks::exchange(const control_block& block, std::uint64_t brought) {
  const auto entered = [&](int r) {
    return block.area(r).entrances[number_ & 1].number.load(std::memory_order_acquire) == number_;
  };
  if (!is_said_) {
    if (!std::all_of(near_.begin(), near_.end(), entered)) {
      is_waiting_ = false;
      return false;
    }
    write_entrance(block, brought);
    for (node& one : others_) {
      one.going.at = transfer::stage::under_way;
      carrier_->send(one.going, one.leader(), rank_carrier::purpose::entrance, saying_);
    }
    is_said_ = is_waiting_ = true;
  }
  carrier_->progress();
  bool is_over = true;
  for (node& one : others_) {
    if (!one.is_heard && !one.coming.is_under_way()) {
      // a connection that broke is for the caller to find, who knows whom it waits for
      if (one.coming.at.load(std::memory_order_acquire) == transfer::stage::done) {
        one.is_heard = true;
        read_entrance(block, one, brought);
      } else if (!carrier_->failure(one.leader())) {
        raise(errc::corrupt, carrier_->name_of(one.leader()) + " enters a call with what is none: " + one.coming.why);
      }
    }
    is_over = is_over && one.is_heard && !one.going.is_under_way();
  }
  is_waiting_ = !is_over;
  return is_over;
}

void far_ranks::write_entrance(const control_block& block, std::uint64_t brought) {
  const auto slot = static_cast<std::size_t>(number_ & 1);
  const auto fingerprint = [&](int r) {
    return block.area(r).entrances[slot].fingerprint.load(std::memory_order_relaxed);
  };
  const bool is_one_call =
      std::all_of(near_.begin(), near_.end(), [&](int r) { return fingerprint(r) == fingerprint(self_); });
  const std::uint64_t with = is_one_call ? std::min<std::uint64_t>(brought, most_brought) : 0;
  saying_.clear();
  append(saying_, entrance_header{number_, static_cast<std::uint32_t>(near_.size()), static_cast<std::uint32_t>(with)});
  for (const int r : near_) {
    const rank_area& area = block.area(r);
    const call_record& record = area.calls[slot];
    const std::string op = record.op.get(), refused = record.refused.get();
    append(saying_, entrance_entry{fingerprint(r), record.kind.load(std::memory_order_relaxed),
                                   record.count.load(std::memory_order_relaxed), static_cast<std::uint32_t>(op.size()),
                                   static_cast<std::uint32_t>(refused.size())});
    for (const std::string& text : {std::cref(op), std::cref(refused)}) {
      const auto raw = std::as_bytes(std::span{text});
      saying_.insert(saying_.end(), raw.begin(), raw.end());
    }
    const auto* data = area.entrances[slot].data.data();
    saying_.insert(saying_.end(), data, data + with);
  }
}

void far_ranks::read_entrance(const control_block& block, const node& from, std::uint64_t brought) {
  reader in{std::span{from.come}.first(std::min(from.coming.bytes, from.come.size()))};
  const auto header = in.value<entrance_header>();
  if (header.number != number_ || header.ranks != from.ranks.size() || header.brought > most_brought) {
    raise(errc::corrupt, carrier_->name_of(from.leader()) + " enters call " + std::to_string(header.number) +
                             " of a communicator, of which this is call " + std::to_string(number_));
  }
  const auto slot = static_cast<std::size_t>(number_ & 1);
  const std::uint64_t own_call = block.area(self_).entrances[slot].fingerprint.load(std::memory_order_relaxed);
  bool is_own_call = true;
  for (const int r : from.ranks) {
    const auto entry = in.value<entrance_entry>();
    rank_area& area = block.area(r);
    call_record& record = area.calls[slot];
    record.kind.store(entry.kind, std::memory_order_relaxed);
    record.count.store(entry.count, std::memory_order_relaxed);
    record.op.set(in.text(entry.op_size));
    record.refused.set(in.text(entry.refused_size));
    record.number.store(number_, std::memory_order_relaxed);
    const auto data = in.take(header.brought);
    entrance& own = area.entrances[slot];
    if (!data.empty()) std::memcpy(own.data.data(), data.data(), data.size());
    own.fingerprint.store(entry.fingerprint, std::memory_order_relaxed);
    is_own_call = is_own_call && entry.fingerprint == own_call;
    if (r == from.ranks.back() && is_own_call && header.brought != brought) {
      raise(errc::corrupt, carrier_->name_of(from.leader()) + " brings " + std::to_string(header.brought) +
                               " bytes of each rank to a call of " + std::to_string(brought));
    }
    area.finished.store(number_ - 1, std::memory_order_relaxed);
    own.number.store(number_, std::memory_order_seq_cst);  // as rank_meeting::enter
  }
}

void far_ranks::listen(node& to) {
  to.trouble.coming.at = transfer::stage::under_way;
  carrier_->receive(to.trouble.coming, to.leader(), rank_carrier::purpose::trouble, to.trouble.come);
}

void far_ranks::tell(std::uint64_t ended, std::string_view why) noexcept {
  if (has_told_ && ended != 0) return;
  has_told_ = true;
  try {
    for (node& one : others_) {
      if (one.trouble.going.native != nullptr) continue;  // what was told before is still under way
      one.trouble.said.clear();
      append(one.trouble.said, ended);
      const auto raw = std::as_bytes(std::span{why}).first(std::min(why.size(), trouble_room - sizeof ended));
      one.trouble.said.insert(one.trouble.said.end(), raw.begin(), raw.end());
      one.trouble.going.at = transfer::stage::under_way;
      carrier_->send(one.trouble.going, one.leader(), rank_carrier::purpose::trouble, one.trouble.said);
    }
  } catch (const std::exception&) {
    // they find out by their limit, or when this process ends
  }
}

bool far_ranks::hear(const control_block& block) {
  carrier_->progress();
  bool has_heard = false;
  for (node& one : others_) {
    if (one.has_left || one.trouble.coming.at.load(std::memory_order_acquire) != transfer::stage::done) continue;
    const std::size_t size = one.trouble.coming.bytes;
    std::uint64_t ended = 0;
    if (size >= sizeof ended) {
      std::memcpy(&ended, one.trouble.come.data(), sizeof ended);
      if (ended == 0) {
        one.has_left = true;
        block.area(one.leader()).departed.store(1, std::memory_order_seq_cst);
      } else {
        const std::uint64_t reporter = (ended >> 8 & 0xff) - 1;
        const bool is_far = reporter < nodes_.size() && !is_near(static_cast<int>(reporter));
        // a text of one of this node's ranks is not theirs to write
        const int by = is_far ? static_cast<int>(reporter) : one.leader();
        block.area(by).why.set({reinterpret_cast<const char*>(one.trouble.come.data()) + sizeof ended,
                                std::min(size, trouble_room) - sizeof ended});
        std::uint64_t none = 0;
        const std::uint64_t word = (ended & 0xff) | (static_cast<std::uint64_t>(by) + 1) << 8;
        block.words().ended.compare_exchange_strong(none, word, std::memory_order_acq_rel);
        has_told_ = true;  // the one that told this has told all others
      }
      has_heard = true;
    }
    if (!one.has_left) listen(one);
  }
  return has_heard;
}

}  // namespace weft::detail
