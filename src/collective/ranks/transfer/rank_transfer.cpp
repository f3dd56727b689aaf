// SPDX-License-Identifier: Apache-2.0
// One rank's part of a collective, over memory that all see: its own in passing for what is small, everybody's in place
// where it is symmetric, and else the staging memory. All of them combine in the order of ranks.
#include "collective/fold/fold.hpp"
#include "collective/ranks/rank_communicator_body.hpp"
#include "weft/core/raise.hpp"

#include <algorithm>
#include <cstring>
#include <span>
#include <string>

namespace weft::detail {
namespace {

bool is(const rank_call& call, collective what) { return call.terms.what == static_cast<int>(what); }

/// The whole lines of an array that one of several ranks works on, so that no two write one line.
struct slice {
  std::int64_t begin = 0, count = 0;
};
slice slice_of(std::int64_t count, int rank, int ranks, std::uint64_t element) {
  const auto line = static_cast<std::int64_t>(64 / element);
  const std::int64_t lines = (count + line - 1) / line;
  const std::int64_t each = (lines + ranks - 1) / ranks * line;
  const std::int64_t begin = std::min(count, each * rank);
  return {begin, std::min(count - begin, each)};
}

std::int64_t divisor(const rank_call& call, int ranks) {
  return call.terms.op == reduction_op::kind::average ? ranks : 1;
}

}  // namespace

rank_communicator_body::place_words rank_communicator_body::places_of(int of) const {
  place_words made;
  std::memcpy(&made, meeting.entrance_of(of).data.data(), sizeof made);
  return made;
}

rank_communicator_body::place_words rank_communicator_body::own_places(const rank_call& call) {
  return {call.in.block != nullptr ? call.in.block->number() : 0, call.in.offset,
          call.out.block != nullptr ? call.out.block->number() : 0, call.out.offset};
}

std::byte* rank_communicator_body::checked(const symmetric_block& block, int of, std::uint64_t offset,
                                           std::int64_t elements, const rank_call& call) {
  const std::uint64_t wanted = static_cast<std::uint64_t>(elements) * call.element();
  if (offset > block.size() || wanted > block.size() - offset || offset % call.element() != 0) {
    meeting.fail(errc::corrupt, meeting.name_of(of) + " names memory outside of what is symmetric");
  }
  return block.of(of) + offset;
}

void rank_communicator_body::raise_mismatch(int other) {
  const auto record = [&](int r) -> const call_record& {
    return meeting.area(r).calls[static_cast<std::size_t>(meeting.number() & 1)];
  };
  const std::string text = "call " + std::to_string(meeting.number()) + " of the communicator: " + meeting.name_of(0) +
                           " calls " + text_of(record(0)) + "; " + meeting.name_of(other) + " calls " +
                           text_of(record(other));
  raise(errc::incompatible, text);
}

void rank_communicator_body::refuse(const rank_call& call, std::string_view why) {
  static_cast<void>(meeting.begin(call.timeout));
  refuse_begun(call, why);
}

void rank_communicator_body::refuse_begun(const rank_call& call, std::string_view why) {
  const std::uint64_t number = meeting.number();
  call_record& record = meeting.mine().calls[number & 1];
  call.terms.write(record, number);
  record.refused.set(why.empty() ? "?" : why);
  recorded_[number & 1] = 0;
  // nobody's fingerprint, so that every rank finds that this one does not take part
  static_cast<void>(meeting.enter(0x7265'6675'7365'6400 + number * 64 + static_cast<std::uint64_t>(self())));
  meeting.finish();
}

/// Bytes that the rank with most would bring: the same number on all ranks.
std::uint64_t rank_communicator_body::largest_part(const rank_call& call) const {
  if (call.terms.what == call_terms::barrier) return 0;
  std::int64_t most = 0;
  if (is(call, collective::all_to_all) || is(call, collective::all_gather) || is(call, collective::gather)) {
    if (!call.terms.is_uneven) {
      most = is(call, collective::all_to_all) ? call.terms.count * size() : call.terms.count;
    } else {
      for (int r = 0; r < size(); ++r) most = std::max(most, input_of(call, r));
    }
  } else {
    most = input_of(call, call.terms.root);
  }
  return static_cast<std::uint64_t>(most) * call.element();
}

void rank_communicator_body::execute(rank_call& call) {
  const std::uint64_t number = meeting.begin(call.timeout);
  const struct ending {  // also by an error: this rank is no longer in the call
    rank_meeting& of;
    ~ending() { of.finish(); }
  } at_the_end{meeting};
  const std::uint64_t fingerprint = call.terms.fingerprint();
  if (recorded_[number & 1] != fingerprint) {
    call.terms.write(meeting.mine().calls[number & 1], number);
    recorded_[number & 1] = fingerprint;
  } else {
    meeting.mine().calls[number & 1].number.store(number, std::memory_order_relaxed);
  }
  const collective_algorithm by = algorithm_of(call);
  const std::uint64_t largest = largest_part(call);
  const bool is_spread = is_on_several_nodes(), small = largest <= small_bytes;
  // what is small goes to the other nodes with the news that this rank is in the call
  const bool tiny = largest <= tiny_bytes || (is_spread && small);
  const bool by_schedule =
      is_spread ? !tiny || call.terms.algorithm != collective_algorithm::automatic : by != collective_algorithm::direct;
  try {
    if (!call.is_streamed) fill_image(call, nullptr);
    if (!by_schedule) {
      bring(call, tiny, small);
    } else {
      const place_words places = own_places(call);
      std::memcpy(meeting.entrance_of(self()).data.data(), &places, sizeof places);
    }
  } catch (const std::exception& e) {
    refuse_begun(call, error_of(e).what);
    throw;
  }
  const int other = meeting.enter(fingerprint, is_spread && !by_schedule ? largest : 0);
  if (other >= 0) raise_mismatch(other);
  last_algorithm.store(by_schedule ? by : collective_algorithm::direct, std::memory_order_relaxed);
  if (tiny && !by_schedule) {
    run_brought(call, 0);
  } else {
    try {
      if (by == collective_algorithm::engine) {
        run_by_engine(call);
      } else {
        by_schedule ? run_schedule(call) : run_large(call, small);
      }
    } catch (const std::exception& e) {
      meeting.give_up(error_of(e));
    }
  }
  if (call.is_streamed) return;
  try {
    drain_image(call, nullptr);
  } catch (const std::exception& e) {
    meeting.give_up_alone(error_of(e));
  }
}

/// What the others find of this rank once they have met it: the places of its memory, or all that is in it.
void rank_communicator_body::bring(rank_call& call, bool is_tiny, bool is_small) {
  if (call.terms.what == call_terms::barrier) return;
  std::byte* data = meeting.entrance_of(self()).data.data();
  if (!is_tiny) {
    choose_place(call, is_small);
    const place_words places = own_places(call);
    std::memcpy(data, &places, sizeof places);
  }
  if (is_tiny || (is_small && call.in.block == nullptr)) {
    const std::uint64_t size = static_cast<std::uint64_t>(input_of(call, self())) * call.element();
    if (call.in.size != 0) read(data + (is_tiny ? 0 : places_bytes), call.in, 0, size);
  }
}

void rank_communicator_body::fold(const rank_call& call, std::int64_t count, std::span<void*> inputs,
                                  std::span<void*> outputs, std::int64_t divide_by, bool by_device) {
  if (count == 0 || outputs.empty()) return;
  fold_request request;
  request.type = call.terms.type;
  request.op = call.terms.op;
  request.user = call.user;
  request.count = count;
  request.divide_by = divide_by;
  request.checks_access = state_of(on)->checks_access();
  const auto run = [&](const fold_request& one) { by_device ? fold_by_device(one) : fold_here(one); };
  // with more than one pass the first output keeps what the passes before made: it must be none of the later inputs
  const std::size_t in_one_pass = call.terms.op == reduction_op::kind::user ? 1 : fold_width;
  if (inputs.size() > in_one_pass) {
    const auto later = inputs.subspan(in_one_pass);
    const auto is_free = [&](void* output) { return std::find(later.begin(), later.end(), output) == later.end(); };
    const auto free = std::find_if(outputs.begin(), outputs.end(), is_free);
    if (free == outputs.end()) {
      void* made = by_device ? device_scratch() : scratch_.data();
      const auto step = static_cast<std::int64_t>((by_device ? device_scratch_bytes : scratch_bytes) / call.element());
      std::array<void*, most_ranks> from{}, to{};
      for (std::int64_t at = 0; at < count; at += step) {
        const std::uint64_t offset = static_cast<std::uint64_t>(at) * call.element();
        for (std::size_t i = 0; i < inputs.size(); ++i) from[i] = static_cast<std::byte*>(inputs[i]) + offset;
        for (std::size_t i = 0; i < outputs.size(); ++i) to[i] = static_cast<std::byte*>(outputs[i]) + offset;
        request.count = std::min(step, count - at);
        request.inputs = std::span{from}.first(inputs.size());
        request.outputs = std::span{&made, 1};
        run(request);
        fold_request copies;
        copies.type = request.type;
        copies.count = request.count;
        copies.inputs = std::span{&made, 1};
        copies.outputs = std::span{to}.first(outputs.size());
        run(copies);
      }
      return;
    }
    std::iter_swap(outputs.begin(), free);
  }
  request.inputs = inputs;
  request.outputs = outputs;
  run(request);
}

void rank_communicator_body::list_pulls(const rank_call& call) {
  pulls_.clear();
  const auto start = [&](int r) { return call.start[static_cast<std::size_t>(r)]; };
  switch (static_cast<collective>(call.terms.what)) {
    case collective::broadcast:
      pulls_.push_back({call.terms.root, 0, 0, call.terms.count});
      break;
    case collective::scatter:
      pulls_.push_back({call.terms.root, start(self()), 0, call.block(self())});
      break;
    case collective::gather:
      if (self() != call.terms.root) break;
      [[fallthrough]];
    case collective::all_gather:
      for (int r = 0; r < size(); ++r) pulls_.push_back({r, 0, start(r), call.block(r)});
      break;
    case collective::all_to_all: {
      std::int64_t into = 0;
      for (int r = 0; r < size(); ++r) {
        std::int64_t at = 0;
        for (int to = 0; to < self(); ++to) at += call.block(r, to, size());
        const std::int64_t count = call.block(r, self(), size());
        pulls_.push_back({r, at, into, count});
        into += count;
      }
      break;
    }
    default:
      break;
  }
  // each begins with another rank's memory, so that not all read from one at a time
  if (pulls_.size() > 1) std::rotate(pulls_.begin(), pulls_.begin() + self(), pulls_.end());
}

void rank_communicator_body::copy_own(const rank_call& call) {
  const std::uint64_t e = call.element();
  for (const pull& p : pulls_) {
    if (p.from != self() || is(call, collective::broadcast)) continue;
    move(call.out, static_cast<std::uint64_t>(p.into) * e, call.in, static_cast<std::uint64_t>(p.at) * e,
         static_cast<std::uint64_t>(p.count) * e);
  }
}

/// Everybody's part lies where it entered, from `where` on. Nobody waits for this rank: the others may have left.
void rank_communicator_body::run_brought(rank_call& call, std::size_t where) try {
  if (call.terms.what == call_terms::barrier) return;
  const std::uint64_t e = call.element();
  if (call.terms.reduces()) {
    if (is(call, collective::reduce) && self() != call.terms.root) return;
    const bool block = is(call, collective::reduce_scatter);
    const auto at = block ? static_cast<std::uint64_t>(call.start[static_cast<std::size_t>(self())]) * e : 0;
    const auto inputs = std::span{inputs_}.first(static_cast<std::size_t>(size()));
    for (int r = 0; r < size(); ++r)
      inputs[static_cast<std::size_t>(r)] = meeting.entrance_of(r).data.data() + where + at;
    const std::int64_t count = block ? call.block(self()) : call.terms.count;
    outputs_[0] = call.out.is_of_device() ? scratch_.data() : call.out.at;
    fold(call, count, inputs, std::span{outputs_}.first(1), divisor(call, size()));
    if (call.out.is_of_device()) write(call.out, 0, scratch_.data(), static_cast<std::uint64_t>(count) * e);
    return;
  }
  list_pulls(call);
  copy_own(call);
  for (const pull& p : pulls_) {
    if (p.from == self()) continue;
    write(call.out, static_cast<std::uint64_t>(p.into) * e,
          meeting.entrance_of(p.from).data.data() + where + static_cast<std::uint64_t>(p.at) * e,
          static_cast<std::uint64_t>(p.count) * e);
  }
} catch (const std::exception& e) {
  meeting.give_up_alone(error_of(e));
}

void rank_communicator_body::run_large(rank_call& call, bool is_small) {
  const auto n = static_cast<std::size_t>(size());
  // of itself a rank believes only its own memory: others can write what it has said
  const place_words own = own_places(call);
  std::array<place_words, most_ranks> places;
  for (int r = 0; r < size(); ++r) places[static_cast<std::size_t>(r)] = r == self() ? own : places_of(r);
  bool inputs_are = own.in_block != 0, outputs_are = own.out_block != 0, none_is = true;
  for (std::size_t r = 0; r < n; ++r) {
    none_is = none_is && places[r].in_block == 0;
    inputs_are = inputs_are && places[r].in_block == own.in_block;
    outputs_are = outputs_are && places[r].out_block == own.out_block;
  }
  // who has symmetric memory has brought nothing; where only some have, all go through the staging memory
  if (is_small && none_is) return run_brought(call, places_bytes);
  const auto root = static_cast<std::size_t>(call.terms.root);
  // all hold the block of the inputs, and so reach what the root has in it
  const bool root_is = outputs_are || (inputs_are && places[root].out_block == own.in_block);
  const std::uint64_t e = call.element();
  const bool by_device = inputs_are && !call.in.block->is_of_host();
  std::byte* const result = call.out.is_of_device() ? static_cast<std::byte*>(call.out.device.address) : call.out.at;
  const auto input = [&](int r) {
    return checked(*call.in.block, r, places[static_cast<std::size_t>(r)].in_offset, input_of(call, r), call);
  };

  if (call.terms.reduces()) {
    const bool direct = inputs_are && (outputs_are || !is(call, collective::all_reduce));
    if (!direct) return staged_reduction(call);
    const auto inputs = std::span{inputs_}.first(n);
    for (int r = 0; r < size(); ++r) inputs[static_cast<std::size_t>(r)] = input(r);
    slice mine = slice_of(call.terms.count, self(), size(), e);
    std::size_t outputs = 1;
    if (is(call, collective::all_reduce)) {
      outputs = n;
      for (int r = 0; r < size(); ++r) {
        const auto i = static_cast<std::size_t>(r);
        outputs_[i] = checked(*call.out.block, r, places[i].out_offset, call.terms.count, call) +
                      static_cast<std::uint64_t>(mine.begin) * e;
      }
    } else if (is(call, collective::reduce_scatter)) {
      mine = {call.start[static_cast<std::size_t>(self())], call.block(self())};
      outputs_[0] = result;
    } else if (root_is) {
      const symmetric_block& block = outputs_are ? *call.out.block : *call.in.block;
      outputs_[0] = checked(block, call.terms.root, places[root].out_offset, call.terms.count, call) +
                    static_cast<std::uint64_t>(mine.begin) * e;
    } else {
      // what the root alone can reach, it combines alone
      mine = self() == call.terms.root ? slice{0, call.terms.count} : slice{};
      outputs_[0] = result;
    }
    for (void*& at : inputs) at = static_cast<std::byte*>(at) + static_cast<std::uint64_t>(mine.begin) * e;
    fold(call, mine.count, inputs, std::span{outputs_}.first(outputs), divisor(call, size()), by_device);
    return meeting.meet();
  }

  list_pulls(call);
  copy_own(call);
  if (!inputs_are) return staged_movement(call);
  for (const pull& p : pulls_) {
    if (p.from == self()) continue;
    const std::byte* const from = input(p.from);  // checked
    const auto at = static_cast<std::uint64_t>(p.at) * e, into = static_cast<std::uint64_t>(p.into) * e;
    const auto some = static_cast<std::uint64_t>(p.count) * e;
    if (by_device) {
      pull_by_device(call, *call.in.block, p.from, places[static_cast<std::size_t>(p.from)].in_offset + at, into, some);
    } else {
      write(call.out, into, from + at, some);
    }
  }
  // the driver's: it does not tell of what failed in the stream before this call
  if (by_device) static_cast<void>(value_or_raise(driver_->synchronize(default_.native(), no_deadline, {})));
  meeting.meet();
}

void rank_communicator_body::staged_reduction(rank_call& call) {
  if (call.in.is_of_device() || call.out.is_of_device()) register_staging();
  const control_block& block = meeting.block();
  const std::uint64_t e = call.element();
  const auto piece = static_cast<std::int64_t>(block.shape().half / e);
  const std::int64_t count = input_of(call, self());
  const std::int64_t pieces = (count + piece - 1) / piece;
  const auto length = [&](std::int64_t k) { return std::min(piece, count - k * piece); };
  const auto fill = [&](std::int64_t k) {
    if (k >= pieces) return;
    read(block.staging(self(), static_cast<int>(k & 1)), call.in, static_cast<std::uint64_t>(k * piece) * e,
         static_cast<std::uint64_t>(length(k)) * e);
  };
  // combines what lies in all halves from `begin` on, elements of the piece, into those of some ranks
  const auto combine = [&](int half, std::int64_t begin, std::int64_t some, int first, int last) {
    const auto at = static_cast<std::uint64_t>(begin) * e;
    const auto inputs = std::span{inputs_}.first(static_cast<std::size_t>(size()));
    for (int r = 0; r < size(); ++r) inputs[static_cast<std::size_t>(r)] = block.staging(r, half) + at;
    std::size_t outputs = 0;
    for (int r = first; r < last; ++r) outputs_[outputs++] = block.staging(r, half) + at;
    fold(call, some, inputs, std::span{outputs_}.first(outputs), divisor(call, size()));
  };
  // One meeting for each piece: after it, piece k is combined and piece k + 1 is there. A half is filled again once its
  // owner has taken the result out of it; nobody else has been in it since the meeting before.
  fill(0);
  meeting.meet();
  for (std::int64_t k = 0; k < pieces; ++k) {
    const int half = static_cast<int>(k & 1);
    const slice mine = slice_of(length(k), self(), size(), e);
    if (is(call, collective::reduce_scatter)) {
      for (int r = 0; r < size(); ++r) {
        const std::int64_t begin = std::max(call.start[static_cast<std::size_t>(r)] - k * piece, mine.begin);
        const std::int64_t end =
            std::min(call.start[static_cast<std::size_t>(r) + 1] - k * piece, mine.begin + mine.count);
        if (begin < end) combine(half, begin, end - begin, r, r + 1);
      }
    } else if (is(call, collective::reduce)) {
      combine(half, mine.begin, mine.count, call.terms.root, call.terms.root + 1);
    } else {
      combine(half, mine.begin, mine.count, 0, size());
    }
    fill(k + 1);
    meeting.meet();
    std::int64_t begin = k * piece, end = begin + length(k), from = 0;
    if (is(call, collective::reduce_scatter)) {
      from = call.start[static_cast<std::size_t>(self())];
      begin = std::max(begin, from);
      end = std::min(end, call.start[static_cast<std::size_t>(self()) + 1]);
    } else if (is(call, collective::reduce) && self() != call.terms.root) {
      end = begin;
    }
    if (begin < end) {
      write(call.out, static_cast<std::uint64_t>(begin - from) * e,
            block.staging(self(), half) + static_cast<std::uint64_t>(begin - k * piece) * e,
            static_cast<std::uint64_t>(end - begin) * e);
    }
  }
}

void rank_communicator_body::staged_movement(rank_call& call) {
  if (call.in.is_of_device() || call.out.is_of_device()) register_staging();
  const control_block& block = meeting.block();
  const std::uint64_t e = call.element();
  // blocks for each other rank lie side by side in a half, whatever is for all lies there once
  const bool is_apart = is(call, collective::scatter) || is(call, collective::all_to_all);
  const auto piece = static_cast<std::int64_t>(
      std::max<std::uint64_t>(block.shape().half / (is_apart ? static_cast<std::uint64_t>(size()) : 1) / 64 * 64, e) /
      e);
  std::int64_t longest = 0;
  const auto to = [&](int r) {  // elements of this rank's that are for r
    switch (static_cast<collective>(call.terms.what)) {
      case collective::all_to_all:
        return call.block(self(), r, size());
      case collective::scatter:
        return self() == call.terms.root ? call.block(r) : 0;
      default:
        return input_of(call, self());
    }
  };
  for (int r = 0; r < size(); ++r) {
    if (is(call, collective::all_to_all)) {
      for (int other = 0; other < size(); ++other) longest = std::max(longest, call.block(r, other, size()));
    } else {
      longest = std::max(longest, is(call, collective::scatter) ? call.block(r) : input_of(call, r));
    }
  }
  const std::int64_t pieces = (longest + piece - 1) / piece;
  const auto fill = [&](std::int64_t k) {
    std::byte* half = block.staging(self(), static_cast<int>(k & 1));
    std::int64_t at = 0;
    for (int r = 0; r < (is_apart ? size() : 1); ++r) {
      const std::int64_t count = to(r);
      const std::int64_t some = std::min(piece, count - k * piece);
      if (some > 0 && (!is_apart || r != self())) {
        read(half + static_cast<std::uint64_t>(is_apart ? r * piece : 0) * e, call.in,
             static_cast<std::uint64_t>(at + k * piece) * e, static_cast<std::uint64_t>(some) * e);
      }
      at += count;
    }
  };
  // as in a reduction: after each meeting, piece k has been taken by all and piece k + 1 is there
  fill(0);
  meeting.meet();
  for (std::int64_t k = 0; k < pieces; ++k) {
    fill(k + 1);
    for (const pull& p : pulls_) {
      const std::int64_t some = std::min(piece, p.count - k * piece);
      if (p.from == self() || some <= 0) continue;
      write(call.out, static_cast<std::uint64_t>(p.into + k * piece) * e,
            block.staging(p.from, static_cast<int>(k & 1)) +
                static_cast<std::uint64_t>(is_apart ? self() * piece : 0) * e,
            static_cast<std::uint64_t>(some) * e);
    }
    meeting.meet();
  }
}

}  // namespace weft::detail
