// SPDX-License-Identifier: Apache-2.0
// What the leader of another node says may be anything: the memory of this node takes what makes sense, and nothing
// else. The carrier is memory of this process, so that every byte can be another one.
#include "collective/ranks/transfer/far_ranks.hpp"

#include "weft/core/raise.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace far_ranks_test {

using weft::errc;
using weft::detail::control_block;
using weft::detail::control_shape;
using weft::detail::far_ranks;
using weft::detail::rank_carrier;
using weft::detail::transfer;

/// Of a leader whose others are the test, which keeps what it sends and gives what it receives.
class test_carrier final : public rank_carrier {
 public:
  struct letters {
    std::vector<std::byte> sent;
    std::vector<std::byte> arrives;
    int told = 0;                                                        // messages of trouble
    std::map<int, std::pair<transfer*, std::span<std::byte>>> listened;  // to whom for trouble

    /// That rank says that the communicator has ended.
    void tell(int from, std::uint64_t ended, std::string_view why) {
      auto& [heard, into] = listened.at(from);
      std::memcpy(into.data(), &ended, sizeof ended);
      std::memcpy(into.data() + sizeof ended, why.data(), why.size());
      heard->bytes = sizeof ended + why.size();
      heard->at = transfer::stage::done;
    }
  };
  explicit test_carrier(letters& entrances) : entrances_(entrances) {}

  void send(transfer& t, int, purpose what, std::span<const std::byte> bytes) override {
    if (what == purpose::entrance) entrances_.sent.assign(bytes.begin(), bytes.end());
    if (what == purpose::trouble) ++entrances_.told;
    t.at = transfer::stage::done;
  }
  void receive(transfer& t, int from, purpose what, std::span<std::byte> into) override {
    if (what == purpose::trouble) entrances_.listened[from] = {&t, into};
    if (what != purpose::entrance) return;
    t.bytes = std::min(into.size(), entrances_.arrives.size());
    std::copy_n(entrances_.arrives.begin(), t.bytes, into.begin());
    t.at = transfer::stage::done;
  }
  void withdraw(transfer&) override {}
  void cancel(transfer& t, int) override { t.at = transfer::stage::cancelled; }
  bool progress() override { return false; }
  void rest(std::chrono::steady_clock::time_point) override {}
  std::optional<std::string> failure(int) const override { return "it is a test"; }  // nobody waits for it to leave
  std::string name_of(int rank) const override { return "rank " + std::to_string(rank); }
  int member(int rank) const override { return rank; }
  std::uint32_t number() const override { return 0; }
  std::uint32_t free_number() const override { return 0; }
  std::unique_ptr<rank_carrier> among(std::span<const int>, std::uint32_t) override { return nullptr; }

 private:
  letters& entrances_;
};

struct two_leaders {
  test_carrier::letters letters;
  control_block block = weft::value_or_raise(
      control_block::open(weft::value_or_raise(control_block::make(control_shape::of(2, 1, 0), 7)).get(), 2, 1));
  far_ranks far{std::make_unique<test_carrier>(letters), {0, 1}, 0};

  /// Rank 0 enters call 1 with a word; gives the error that the other one's entrance ends it with.
  std::string enter(std::vector<std::byte> theirs, std::uint64_t brought = 8) {
    letters.arrives = std::move(theirs);
    far.begin(1);
    auto& own = block.area(0).entrances[1];
    const std::uint64_t word = 0x1122334455667788;
    std::memcpy(own.data.data(), &word, sizeof word);
    own.fingerprint = 42;
    own.number = 1;
    try {
      return far.exchange(block, brought) ? "" : "not over";
    } catch (const weft::error_exception& e) {
      return std::string{to_string(e.code())} + ": " + e.cause().what;
    }
  }
  [[nodiscard]] bool has_entered() const { return block.area(1).entrances[1].number == 1; }
};

/// What a leader in the same call says.
std::vector<std::byte> good_entrance() {
  two_leaders one;
  static_cast<void>(one.enter({}));
  return one.letters.sent;
}

TEST(far_ranks, write_what_another_node_enters_with_where_its_ranks_would) {
  two_leaders both;
  EXPECT_EQ(both.enter(good_entrance()), "");
  EXPECT_TRUE(both.has_entered());
  EXPECT_EQ(both.block.area(1).entrances[1].fingerprint, 42U);
  std::uint64_t word = 0;
  std::memcpy(&word, both.block.area(1).entrances[1].data.data(), sizeof word);
  EXPECT_EQ(word, 0x1122334455667788U);
}

TEST(far_ranks, refuse_an_entrance_that_is_cut_off_anywhere) {
  const auto good = good_entrance();
  for (std::size_t size = 0; size < good.size(); ++size) {
    two_leaders both;
    const std::string wrong = both.enter({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size)});
    EXPECT_TRUE(wrong.starts_with("corrupt: ")) << size << ": " << wrong;
    EXPECT_FALSE(both.has_entered()) << size;
  }
}

TEST(far_ranks, refuse_another_call_and_other_bytes_than_the_same_call_brings) {
  auto other = good_entrance();
  other[0] = std::byte{9};
  EXPECT_EQ(two_leaders{}.enter(other), "corrupt: rank 1 enters call 9 of a communicator, of which this is call 1");
  EXPECT_EQ(two_leaders{}.enter(good_entrance(), 4), "corrupt: rank 1 brings 8 bytes of each rank to a call of 4");
}

TEST(far_ranks, a_damaged_entrance_is_not_read_past_its_end) {
  const auto good = good_entrance();
  std::mt19937 chance{11};
  two_leaders both;
  for (int turn = 0; turn < 1000; ++turn) {
    auto damaged = good;
    for (int n = 0; n < 3; ++n) damaged[chance() % damaged.size()] = static_cast<std::byte>(chance());
    static_cast<void>(both.enter(damaged));  // what it says is checked by who runs the sanitizers
  }
}

/// The word of a communicator that a rank has aborted.
constexpr std::uint64_t aborted_by(int rank) {
  return (static_cast<std::uint64_t>(errc::cancelled) + 1) | (static_cast<std::uint64_t>(rank) + 1) << 8;
}

TEST(far_ranks, tell_the_others_once_why_a_communicator_has_ended) {
  two_leaders both;
  both.far.tell(aborted_by(0), "enough");
  both.far.tell(aborted_by(0), "enough");
  EXPECT_EQ(both.letters.told, 1);
  two_leaders of_another_reason;
  of_another_reason.letters.tell(1, aborted_by(1), "enough");
  EXPECT_TRUE(of_another_reason.far.hear(of_another_reason.block));
  of_another_reason.far.tell(aborted_by(1), "enough");
  EXPECT_EQ(of_another_reason.letters.told, 0) << "who said it has told all";
}

TEST(far_ranks, keep_the_reason_that_came_first_with_the_rank_that_gave_it) {
  test_carrier::letters letters;
  const control_block block = weft::value_or_raise(
      control_block::open(weft::value_or_raise(control_block::make(control_shape::of(3, 1, 0), 7)).get(), 3, 1));
  far_ranks far{std::make_unique<test_carrier>(letters), {0, 1, 2}, 2};
  letters.tell(0, aborted_by(0), "enough");
  letters.tell(1, aborted_by(1), "too late to matter");
  EXPECT_TRUE(far.hear(block));
  EXPECT_EQ(block.words().ended, aborted_by(0));
  EXPECT_EQ(block.area(0).why.get(), "enough");
}

}  // namespace far_ranks_test
