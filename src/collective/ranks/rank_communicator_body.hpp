// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "collective/ranks/rank_call.hpp"
#include "collective/ranks/rank_meeting.hpp"
#include "collective/ranks/symmetric_block.hpp"
#include "collective/ranks/transfer/rank_wire.hpp"
#include "runtime/machine_state.hpp"
#include "weft/collective/rank_communicator.hpp"
#include "weft/memory/buffer.hpp"

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace weft::detail {

struct fold_request;

// Messages between members of a group, beside its users': tags from 0x7763'0000'0000'0000 to 0x7763'ffff'ffff'ffff are
// the library's. Bits 16 to 47 say which communicator, the lowest 16 what for.
[[nodiscard]] constexpr std::uint64_t collective_tag(std::uint64_t communicator, std::uint16_t what) {
  return 0x7763'0000'0000'0000 | (communicator & 0xffff'ffff) << 16 | what;
}

class far_survivor_world;

class rank_communicator_body {
 public:
  rank_communicator_body(std::shared_ptr<process_group> group, std::vector<rank> members, int self, control_block block,
                         std::unique_ptr<far_ranks> far, const device& on, const rank_communicator_options& options);
  ~rank_communicator_body();
  rank_communicator_body(const rank_communicator_body&) = delete;
  rank_communicator_body& operator=(const rank_communicator_body&) = delete;

  /// Makes or receives the memory in which these members meet: places in the group of this node, −1 for those on other
  /// nodes, whom `far` then reaches. `tag` must be of this meeting alone.
  [[nodiscard]] static std::unique_ptr<rank_communicator_body> meet(
      std::shared_ptr<process_group> group, std::vector<rank> members, std::uint64_t tag, const device& on,
      const rank_communicator_options& options, std::chrono::nanoseconds timeout, std::unique_ptr<far_ranks> far = {});
  /// A rank's place in what the communicator was made of: the group of its node, or the world.
  [[nodiscard]] rank member(int of) const;

  /// Checks the call and runs it, now or in its stream.
  event run(collective what, data_type type, const collective_memory& in, const collective_memory& out,
            const reduction_op* op, const collective_options& o);
  event barrier(const collective_options& o);
  void exchange(std::span<const rank_communicator::exchange::part> parts, const collective_options& o);

  [[nodiscard]] std::shared_ptr<symmetric_block> allocate(std::size_t count, std::size_t element);
  [[nodiscard]] std::unique_ptr<rank_communicator_body> split(int colour, int key);
  [[nodiscard]] std::unique_ptr<rank_communicator_body> shrink(std::chrono::nanoseconds timeout);
  [[nodiscard]] static result<descriptor> make_block(int ranks, int near, const rank_communicator_options& options);
  [[nodiscard]] int self() const { return meeting.self(); }

  rank_meeting meeting;
  device on;
  rank_communicator_options options;
  std::atomic<collective_algorithm> last_algorithm{collective_algorithm::automatic};

 private:
  class survivor_world;  // rank_shrink.cpp
  struct wires {
    rank_wire out, in;
  };
  /// What a rank takes from another one's memory.
  struct pull {
    int from = 0;
    std::int64_t at = 0;    // in what the other one handed in
    std::int64_t into = 0;  // in this rank's output
    std::int64_t count = 0;
  };
  /// Offsets of symmetric memory, as each rank has entered with.
  struct place_words {
    std::uint64_t in_block = 0, in_offset = 0, out_block = 0, out_offset = 0;
  };

  [[nodiscard]] int size() const { return meeting.size(); }
  [[nodiscard]] bool is_on_several_nodes() const { return meeting.is_on_several_nodes(); }

  // rank_checks.cpp
  void describe(rank_call& call, collective what, data_type type, const reduction_op* op, const collective_memory& in,
                const collective_memory& out, const collective_options& o);
  void check_memory(rank_call& call, const collective_memory& in, const collective_memory& out);
  [[nodiscard]] call_memory reach(const collective_memory& memory, bool is_kept) const;
  [[nodiscard]] std::int64_t input_of(const rank_call& call, int of) const;
  [[nodiscard]] std::int64_t output_of(const rank_call& call, int of) const;
  void finish_default(const memory_ref& in, const memory_ref& out);

  // rank_transfer.cpp
  void execute(rank_call& call);
  void refuse(const rank_call& call, std::string_view why);
  void refuse_begun(const rank_call& call, std::string_view why);
  void bring(rank_call& call, bool is_tiny, bool is_small);
  [[noreturn]] void raise_mismatch(int other);
  [[nodiscard]] std::uint64_t largest_part(const rank_call& call) const;
  void run_brought(rank_call& call, std::size_t at);
  void run_large(rank_call& call, bool is_small);
  void staged_reduction(rank_call& call);
  void staged_movement(rank_call& call);
  void list_pulls(const rank_call& call);
  void copy_own(const rank_call& call);
  void fold(const rank_call& call, std::int64_t count, std::span<void*> inputs, std::span<void*> outputs,
            std::int64_t divide_by, bool by_device = false);
  [[nodiscard]] place_words places_of(int of) const;
  [[nodiscard]] static place_words own_places(const rank_call& call);
  [[nodiscard]] std::byte* checked(const symmetric_block& block, int of, std::uint64_t offset, std::int64_t elements,
                                   const rank_call& call);

  // rank_device_memory.cpp
  static void carry(const memory_ref& to, const memory_ref& from);
  static void read(std::byte* to, const call_memory& from, std::uint64_t offset, std::uint64_t size);
  static void write(const call_memory& to, std::uint64_t offset, const std::byte* from, std::uint64_t size);
  static void move(const call_memory& to, std::uint64_t into, const call_memory& from, std::uint64_t at,
                   std::uint64_t size);
  void register_staging();
  void choose_place(rank_call& call, bool is_small) const;
  [[nodiscard]] std::byte* image_of(std::uint64_t size);
  void take_image(rank_call& call);
  void fill_image(const rank_call& call, const stream* order) const;
  /// False where nothing was to be copied.
  bool drain_image(const rank_call& call, const stream* order) const;
  void pull_by_device(const rank_call& call, const symmetric_block& block, int from, std::uint64_t offset,
                      std::uint64_t into, std::uint64_t size);
  void fold_by_device(const fold_request& request);
  [[nodiscard]] std::byte* device_scratch();

  // rank_engine.cpp
  /// Why the engine of this world does not do the call; empty where it does.
  [[nodiscard]] std::string lacks_engine(const rank_call& call, reduction_order order) const;
  void run_by_engine(rank_call& call);
  [[nodiscard]] std::vector<std::int64_t> counts_of(const rank_call& call) const;

  // rank_schedule.cpp
  void run_schedule(rank_call& call);
  [[nodiscard]] collective_algorithm algorithm_of(const rank_call& call) const;
  void move_all();
  bool move_some();

  wires& wires_of(int other) { return wires_[static_cast<std::size_t>(other)]; }

  // rank_shrink.cpp
  template <class World>
  std::unique_ptr<rank_communicator_body> shrink_in(World& world);

  // rank_communicator_body.cpp
  /// What `describe` makes of a call, now or in its stream.
  template <class F>
  event run_described(const collective_options& o, const F& describe);
  /// A call that `cause` has made one to refuse is raised once the others are to hear of it.
  event submit(const stream& order, const std::shared_ptr<rank_call>& call, error cause);
  void finish_streamed();
  void end_streamed() noexcept;
  [[noreturn]] void fail_left_out();
  /// Gathers a few words of every rank, in the order of ranks.
  void gather_words(std::span<std::byte> mine, std::span<std::byte> all);
  [[nodiscard]] std::shared_ptr<symmetric_block> allocate_on_node(std::size_t count, std::size_t element);
  [[nodiscard]] peer_message receive(int from, std::uint64_t tag, std::string_view doing);
  void send(int to, std::uint64_t tag, std::span<const std::byte> payload, std::span<const int> descriptors,
            std::string_view doing);

  stream default_;
  backend* driver_;
  std::uint64_t submitted_ = 0;             // calls; those in streams have not begun yet
  std::atomic<std::uint32_t> streamed_{0};  // calls in streams that have ended
  std::optional<event> last_;               // of the last call in a stream
  rank_call now_;                           // of calls without a stream
  std::vector<pull> pulls_;
  std::vector<void*> inputs_, outputs_;
  static constexpr std::size_t scratch_bytes = 16384;
  std::vector<std::byte> scratch_;
  static constexpr std::size_t device_scratch_bytes = std::size_t{1} << 20;
  buffer<std::byte> device_scratch_;                      // made when it is first needed
  std::shared_ptr<pinned_buffer<std::byte>> image_;       // of memory that the host does not reach; grows
  std::optional<adopted_memory<std::byte>> page_locked_;  // this rank's staging memory, for its device's copies
  bool is_registered_ = false;                            // or cannot be
  std::vector<wires> wires_;
  std::uint64_t blocks_ = 0;                           // symmetric blocks allocated so far
  std::uint64_t survivors_ = 0;                        // as the last shrink() left them
  std::uint32_t links_ = 0;                            // of the chain that survivors write, so far
  std::shared_ptr<far_survivor_world> far_survivors_;  // over several nodes
  std::array<std::uint64_t, 2> recorded_{};            // fingerprints of the calls that the records hold

  // schedules
  struct wire_move {
    int other = 0;
    bool is_send = false;
    std::byte* at = nullptr;
    std::uint64_t size = 0;
    std::uint64_t done = 0;                        // bytes, with the header
    std::array<std::uint64_t, 2> header{}, got{};  // a mark and the size, as expected and as they came
    std::uint64_t said = 0;                        // bytes that the sender said it sends
    transfer* header_on = nullptr;                 // of messages with a rank on another node
    transfer* on = nullptr;                        // with such a rank: no wire
    std::uint64_t ticket = 0;                      // in memory that both see: the count of its offer
    const std::byte* there = nullptr;              // where this rank reads it
    bool is_late = false;                          // it is taken, and known to be, after the folds of the round
    [[nodiscard]] bool is_over() const;
  };
  /// Where a rank reads what another one of its node has at a place, if it reaches that; checked.
  [[nodiscard]] const std::byte* seen_at(const schedule_move& m, const rank_call& call);
  void add_move(const rank_call& call, std::size_t round, std::size_t index, std::byte* at);
  void end_late_moves();
  bool move_seen(wire_move& m);
  bool move_far(wire_move& m);
  void end_far_moves() noexcept;
  transfer& next_transfer();
  std::vector<wire_move> moves_;
  std::vector<std::pair<std::int64_t, std::size_t>> seen_;  // scratch for which a fold reads a move's source
  std::deque<transfer> transfers_;                          // of moves_; they do not move
  std::size_t transfers_used_ = 0;
  struct kept_schedule;
  std::shared_ptr<kept_schedule> schedule_;
};

}  // namespace weft::detail
