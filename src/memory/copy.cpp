// SPDX-License-Identifier: Apache-2.0
// The middle file of a copy: types are bytes already, route() says which way, and the backend moves them. A direct copy
// is one backend call; a staged or relayed one is a pipeline of chunks over a lane.
#include "weft/memory/copy.hpp"

#include "backend/address.hpp"
#include "memory/memory_state.hpp"

#include <algorithm>
#include <array>

namespace weft {
namespace detail {
namespace {

/// One side of a copy, as far as the route needs it.
struct side {
  device_id device;     // none for host memory
  bool mapped = false;  // a peer mapping or that of a block: the device reaches the bytes directly
  bool block = false;   // whose rights are those of the stream's device
};

struct plan {
  machine_state* state = nullptr;
  backend* owner = nullptr;
  side dst, src;
  copy_path path = copy_path::host;
  route_choice choice;
  copy_request request;
};

side side_of(const memory_ref& ref) {
  // pinned and unified memory is the host's: every device copies it in one step
  if (ref.state == nullptr || ref.kind == memory_kind::pinned || ref.kind == memory_kind::unified) return {};
  const bool block = ref.kind == memory_kind::block;
  return {ref.device, block || ref.kind == memory_kind::mapped, block};
}

bool may_use(backend& own, device_id by, const void* address, access_right how) {
  const auto right = own.memory_access(by, address);
  return right && *right >= how;
}

/// Whether one of the two devices may use both ends of a copy.
bool one_may_use_both(backend& own, const memory_ref& dst, const memory_ref& src) {
  return std::ranges::any_of(std::array{dst.device, src.device}, [&](device_id by) {
    return may_use(own, by, dst.address, access_right::read_write) && may_use(own, by, src.address, access_right::read);
  });
}

/// Whether the driver copies from one end to the other, access or not. Blocks have rights, which it asks about.
bool driver_copies(machine_state& state, const side& end, device_id from, device_id to) {
  return !end.block && memory_of(state).pair(from, to).can_copy && peers_of(state).failure(from, to).empty();
}

/// Whether one end can be copied from or to memory of `via`: by `via`, or by its own device, which reaches that memory.
bool one_may_relay(machine_state& state, const memory_ref& end, device_id via, access_right how) {
  backend& own = state.backend_of(end.address);
  return may_use(own, via, end.address, how) ||
         (may_use(own, end.device, end.address, how) && peers_of(state).enabled(end.device, via));
}

plan make_plan(const memory_ref& dst, const memory_ref& src, const copy_shape& shape, const copy_options& options,
               std::source_location where) {
  machine_state* state = dst.state != nullptr ? dst.state : src.state;
  if (state == nullptr) raise(errc::invalid_argument, "a copy without a machine: an empty buffer or span", where);
  if (dst.state != nullptr && src.state != nullptr && dst.state != src.state) {
    raise(errc::wrong_device, "a copy between the memories of two machines: go through host memory", where);
  }
  state->require_open(where);
  plan p;
  p.state = state;
  p.dst = side_of(dst);
  p.src = side_of(src);
  p.owner = &state->backend_of(dst.state != nullptr ? dst.address : src.address);
  p.request.dst = dst.address;
  p.request.src = src.address;
  p.request.dst_is_host = dst.state == nullptr;
  p.request.src_is_host = src.state == nullptr;
  p.request.shape = shape;
  p.request.stop = options.stop;
  p.request.where = where;
  const bool to_device = p.dst.device.value() >= 0;
  const bool from_device = p.src.device.value() >= 0;
  if (to_device && from_device) {
    if (p.dst.device == p.src.device && (p.dst.mapped || p.src.mapped)) {
      if (options.route.path != copy_path::automatic && options.route.path != copy_path::direct) {
        raise(errc::peer_unsupported,
              "a copy through a peer mapping is direct, and cannot be " + std::string{to_string(options.route.path)},
              where);
      }
      p.path = copy_path::direct;
      p.choice.path = copy_path::direct;
    } else {
      auto chosen = memory_of(*state).choose(p.src.device, p.dst.device, bytes{shape.total()}, options.route);
      if (!chosen) {
        chosen.error().where = where;
        raise(std::move(chosen).error());
      }
      p.choice = *chosen;
      p.path = chosen->path;
      if (options.route.path == copy_path::automatic &&
          (p.dst.mapped || p.src.mapped || memory_of(*state).has_own_access.load(std::memory_order_relaxed))) {
        // memory that peer access does not cover: the pair says too much or too little
        const device_id via = p.choice.via;
        const bool direct =
            one_may_use_both(*p.owner, dst, src) ||
            (p.path == copy_path::direct && !p.dst.block && driver_copies(*state, p.src, p.src.device, p.dst.device));
        const bool relayed =
            p.path == copy_path::relayed &&
            (one_may_relay(*state, src, via, access_right::read) || driver_copies(*state, p.src, p.src.device, via)) &&
            (one_may_relay(*state, dst, via, access_right::read_write) ||
             driver_copies(*state, p.dst, via, p.dst.device));
        const copy_path allowed = direct ? copy_path::direct : relayed ? copy_path::relayed : copy_path::staged;
        if (p.path != allowed) {
          route_wish other = options.route;
          other.path = allowed;
          auto again = memory_of(*state).choose(p.src.device, p.dst.device, bytes{shape.total()}, other);
          if (again) {
            p.choice = *again;
          } else if (direct && peers_of(*state).failure(p.src.device, p.dst.device).empty()) {
            p.choice.path = copy_path::direct;
          }
          p.path = p.choice.path;
        }
      }
    }
  } else {
    p.path = to_device ? copy_path::host_to_device : from_device ? copy_path::device_to_host : copy_path::host;
    if (options.route.path != copy_path::automatic && options.route.path != p.path) {
      raise(errc::peer_unsupported,
            "a copy with host memory at one end cannot be " + std::string{to_string(options.route.path)}, where);
    }
    if (options.route.via.value() >= 0) {
      raise(errc::peer_unsupported,
            "a copy with host memory at one end does not go through " + to_string(options.route.via), where);
    }
  }
  return p;
}

bool in_one_step(const plan& p) { return p.path != copy_path::staged && p.path != copy_path::relayed; }

/// Cuts a copy into pieces of at most `limit` bytes, along rows where it has rows.
class pieces {
 public:
  pieces(const copy_request& whole, std::uint64_t limit) : whole_(whole) {
    const copy_shape& s = whole.shape;
    flat_ = s.height == 1 && s.depth == 1;
    rows_ = flat_ ? 1 : std::clamp<std::uint64_t>(limit / std::max<std::uint64_t>(s.width, 1), 1, s.height);
    step_ = flat_ ? limit : rows_ * s.width;
  }

  /// The most bytes of one piece.
  [[nodiscard]] std::uint64_t step() const { return step_; }

  struct piece {
    std::byte* dst;
    const std::byte* src;
    copy_shape shape;
  };
  [[nodiscard]] bool next(piece& out) {
    const copy_shape& s = whole_.shape;
    auto* dst = static_cast<std::byte*>(whole_.dst);
    const auto* src = static_cast<const std::byte*>(whole_.src);
    if (flat_) {
      if (done_ >= s.width) return false;
      out = {dst + done_, src + done_, {}};
      out.shape.width = std::min(step_, s.width - done_);
      done_ += out.shape.width;
      return true;
    }
    if (slice_ >= s.depth) return false;
    const std::uint64_t rows = std::min(rows_, s.height - row_);
    out = {dst + slice_ * s.dst_slice + row_ * s.dst_pitch, src + slice_ * s.src_slice + row_ * s.src_pitch, s};
    out.shape.height = rows;
    out.shape.depth = 1;
    row_ += rows;
    if (row_ == s.height) {
      row_ = 0;
      ++slice_;
    }
    return true;
  }

 private:
  copy_request whole_;
  bool flat_ = false;
  std::uint64_t rows_ = 0, step_ = 0, done_ = 0, row_ = 0, slice_ = 0;
};

/// A pipeline of chunks: into a slot on one stream, out of it on another, each waiting only for its slot; or both steps
/// as one operation, on two streams in turn, where the backend prefers that.
result<event_ref> pipelined(const plan& p, stream_handle order, backend& by) {
  pieces cut{p.request, p.choice.chunk};
  // each step that touches a block runs in a stream of the device that has the right
  const bool together = !p.src.block && !p.dst.block && p.owner->copies_through(p.src.device, p.dst.device);
  const int depth = std::max(p.choice.depth, together ? 2 : 1);
  auto taken = memory_of(*p.state).take_lane(p.src.device, p.dst.device, p.choice.via, cut.step(), depth, order);
  if (!taken) return std::move(taken).error();
  copy_lane& lane = **taken;
  if (lane.free()) lane.last_in = lane.last_out = {};  // what came of another copy is no affair of this one
  std::vector<event_ref> slot_free(lane.slots.size());
  copy_request request;
  request.stop = p.request.stop;
  event_ref last_of_first, last_of_second;  // of this copy: the lane remembers those of the one before
  const auto in_two_operations = [&]() -> result<void> {
    pieces::piece piece{};
    for (std::size_t i = 0; cut.next(piece); ++i) {
      const std::size_t slot = i % static_cast<std::size_t>(depth);
      request.dst = piece.dst;
      request.src = piece.src;
      request.shape = piece.shape;
      const auto [first, second] = two_steps(request, lane.slots[slot]);
      if (slot_free[slot]) {
        if (auto ok = by.wait_event(lane.first, slot_free[slot]); !ok) return ok;
      }
      auto filled = by.copy(lane.first, first);
      if (!filled) return std::move(filled).error();
      lane.last_in = *filled;
      if (auto ok = by.wait_event(lane.second, *filled); !ok) return ok;
      auto emptied = by.copy(lane.second, second);
      if (!emptied) return std::move(emptied).error();
      lane.last_out = last_of_second = slot_free[slot] = std::move(*emptied);
    }
    return {};
  };
  // Both streams take pieces in turn; each has a slot of its own, which its order keeps from being used twice.
  const auto in_one_operation = [&]() -> result<void> {
    pieces::piece piece{};
    for (std::size_t i = 0; cut.next(piece); ++i) {
      request.dst = piece.dst;
      request.src = piece.src;
      request.shape = piece.shape;
      const bool even = i % 2 == 0;
      auto moved = by.copy_through(even ? lane.first : lane.second, lane.slots[even ? 0 : 1], request);
      if (!moved) return std::move(moved).error();
      (even ? lane.last_in : lane.last_out) = *moved;
      (even ? last_of_first : last_of_second) = std::move(*moved);
    }
    return {};
  };
  const auto submit = [&]() -> result<void> {
    by.note_copy(order, p.request);
    auto start = by.record(order);
    if (!start) return std::move(start).error();
    if (auto ok = by.wait_event(lane.first, *start); !ok) return ok;
    if (auto ok = by.wait_event(lane.second, *start); !ok) return ok;
    if (auto ok = together ? in_one_operation() : in_two_operations(); !ok) return ok;
    for (const event_ref& last : {last_of_first, last_of_second}) {
      if (!last) continue;
      if (auto ok = by.wait_event(order, last); !ok) return ok;
    }
    return {};
  };
  auto done = submit();
  if (!done) {
    // the chunks that are on their way go on: what comes next in the order comes after them, and so does its lane
    for (const event_ref* last : {&lane.last_in, &lane.last_out}) {
      if (*last && !by.wait_event(order, *last)) static_cast<void>((*last)->owner->wait(**last, no_deadline, {}));
    }
  }
  memory_of(*p.state).give_lane(&lane);
  if (!done) return std::move(done).error();
  return by.record(order);
}

/// The device whose default stream a copy without a stream runs in.
device_id actor_of(const plan& p) {
  const device_id none;
  if (p.dst.device != none) return p.dst.device;
  return p.src.device != none ? p.src.device : p.owner->first_device();
}

/// Counts a copy when it has ended, before anybody can see that it has: what was skipped or failed was not taken.
/// Nothing is thrown once a copy is on its way: whoever caught that would let go of memory that it still uses.
void count_later(const plan& p, const event_ref& done) noexcept {
  memory_state& memory = memory_of(*p.state);
  const auto count = [&memory, path = p.path, size = p.request.shape.total()](const error* cause) {
    if (cause == nullptr) {
      memory.count(path, size);
    } else {
      memory.count_failure(path);
    }
  };
  if (!done) return count(nullptr);
  try {
    done->on_ending(count);
  } catch (const std::bad_alloc&) {
    count(nullptr);
  }
}

[[noreturn]] void raise_at(error cause, std::source_location where) {
  cause.where = where;
  raise(std::move(cause));
}

/// Reads a piece of memory to the host, wherever it is.
void read_back(backend& by, stream_handle order, const void* from, bool from_host, std::vector<std::byte>& into,
               std::source_location where) {
  copy_request request;
  request.dst = into.data();
  request.src = from;
  request.dst_is_host = true;
  request.src_is_host = from_host;
  request.shape.width = into.size();
  request.wait = true;
  request.where = where;
  const event_ref done = value_or_raise(by.copy(order, request), where);
  if (done && by.wait(*done, no_deadline, {}) == wait_outcome::failed) raise_at(*done->cause(), where);
}

/// Compares both sides of a copy that has ended, a MiB at a time and row by row. Each piece is a copy of its own: of a
/// box, three MiB of short rows would be too many.
void verify_copy(const plan& p, device_id actor, verification how, std::source_location where) {
  constexpr std::uint64_t window = std::uint64_t{1} << 20;
  const copy_shape& s = p.request.shape;
  const std::uint64_t total = s.total();
  const std::uint64_t sample = s.height == 1 && s.depth == 1 ? std::min(window, total) : 1;
  std::vector<std::byte> got, expected;
  // each side by a device that may read it: its own, or the one that made the copy
  const auto reader = [&](device_id own, const void* side) {
    for (const device_id by : {own, actor, p.src.device, p.choice.via}) {
      if (may_use(*p.owner, by, side, access_right::read)) return value_or_raise(p.state->default_stream(by), where);
    }
    return value_or_raise(p.state->default_stream(actor), where);
  };
  const stream_handle of_dst = reader(p.dst.device, p.request.dst);
  const stream_handle of_src = reader(p.src.device, p.request.src);
  for (std::uint64_t slice = 0; slice < s.depth; ++slice) {
    for (std::uint64_t row = 0; row < s.height; ++row) {
      for (std::uint64_t at = 0; at < s.width; at += window) {
        const std::uint64_t offset = (slice * s.height + row) * s.width + at;
        const std::uint64_t size = std::min(window, s.width - at);
        const auto meets = [&](std::uint64_t first) { return first < offset + size && offset < first + sample; };
        if (how == verification::sampled && !meets(0) && !meets(total / 2 - sample / 2) && !meets(total - sample))
          continue;
        got.resize(size);
        expected.resize(size);
        const auto* dst = static_cast<const std::byte*>(p.request.dst) + slice * s.dst_slice + row * s.dst_pitch + at;
        const auto* src = static_cast<const std::byte*>(p.request.src) + slice * s.src_slice + row * s.src_pitch + at;
        read_back(*p.owner, of_dst, dst, p.request.dst_is_host, got, where);
        read_back(*p.owner, of_src, src, p.request.src_is_host, expected, where);
        const auto bad = std::mismatch(got.begin(), got.end(), expected.begin());
        if (bad.first == got.end()) continue;
        raise(errc::corrupt,
              "a " + std::string{to_string(p.path)} + " copy of " + to_string(bytes{total}) + " is wrong at byte " +
                  std::to_string(offset + static_cast<std::uint64_t>(bad.first - got.begin())) + ": expected " +
                  std::to_string(std::to_integer<int>(*bad.second)) + ", got " +
                  std::to_string(std::to_integer<int>(*bad.first)),
              where);
      }
    }
  }
}

}  // namespace

copy_report copy_now(memory_ref dst, memory_ref src, const copy_shape& shape, const copy_options& options,
                     std::source_location where) {
  copy_report report;
  if (shape.total() == 0) {
    if (auto* state = dst.state != nullptr ? dst.state : src.state) state->require_open(where);
    return report;
  }
  plan p = make_plan(dst, src, shape, options, where);
  report.path = p.path;
  report.via = p.choice.via;
  report.size = bytes{shape.total()};
  report.simulated = p.state->options().clock == clock_kind::virtual_time;
  const auto start = p.state->ticks();
  const device_id actor = actor_of(p);
  backend& by = p.state->backend_of(actor);
  const stream_handle order = value_or_raise(p.state->default_stream(actor), where);
  // work of a device may use its pinned and unified memory, too, whoever copies that
  for (const memory_ref* end : {&dst, &src}) {
    if (end->state == nullptr || end->device == actor || end->device == device_id{}) continue;
    const stream_handle before = value_or_raise(p.state->default_stream(end->device), where);
    if (!by.settled(before)) value_or_raise(by.wait_event(order, value_or_raise(by.record(before), where)), where);
  }
  p.request.wait = true;
  auto done = in_one_step(p) ? by.copy(order, p.request) : pipelined(p, order, by);
  memory_state& memory = memory_of(*p.state);
  if (!done) {
    memory.count_failure(p.path);
    // the caller's memory is its own again
    if (!in_one_step(p)) {
      if (const auto rest = by.record(order); rest && *rest) static_cast<void>(by.wait(**rest, no_deadline, {}));
    }
    raise_at(std::move(done).error(), where);
  }
  if (*done && by.wait(**done, no_deadline, {}) == wait_outcome::failed) {
    memory.count_failure(p.path);
    raise_at(*(*done)->cause(), where);
  }
  memory.count(p.path, p.request.shape.total());
  report.duration = p.state->ticks() - start;
  if (options.verify != verification::none) verify_copy(p, actor, options.verify, where);
  return report;
}

/// Of a copy in a stream.
void refuse_other_machine(const machine_state& of_stream, const memory_ref& dst, const memory_ref& src,
                          std::source_location where) {
  for (const memory_ref* ref : {&dst, &src}) {
    if (ref->state != nullptr && ref->state != &of_stream)
      raise(errc::wrong_device, "the stream belongs to another machine than the memory", where);
  }
}
void refuse_verification(const copy_options& options, std::source_location where) {
  if (options.verify == verification::none) return;
  raise(errc::invalid_argument,
        "a copy in a stream cannot be verified when it is submitted: use the form without a stream", where);
}

event copy_in(const stream& order, memory_ref dst, memory_ref src, const copy_shape& shape, const copy_options& options,
              std::source_location where) {
  const auto& state = detail::state_of(order);
  if (!state) raise(errc::invalid_argument, "an empty stream: it was moved from", where);
  state->require_open(where);
  refuse_other_machine(*state, dst, src, where);
  refuse_verification(options, where);
  if (shape.total() == 0) return order.record();
  plan p = make_plan(dst, src, shape, options, where);
  backend& by = state->backend_of(order.on().id());
  auto done = in_one_step(p) ? by.copy(order.native(), p.request) : pipelined(p, order.native(), by);
  if (!done) {
    memory_of(*p.state).count_failure(p.path);
    raise_at(std::move(done).error(), where);
  }
  count_later(p, *done);
  return detail::make<event>(state, std::move(*done));
}

memory_ref box_ref(memory_ref whole, std::size_t offset, std::size_t element, std::uint64_t extent_bytes,
                   std::source_location where) {
  std::size_t offset_bytes = 0;
  if (__builtin_mul_overflow(offset, element, &offset_bytes) || offset_bytes > whole.size ||
      extent_bytes > whole.size - offset_bytes) {
    raise(errc::out_of_range,
          "a box of " + to_string(bytes{extent_bytes}) + " at element " + std::to_string(offset) + " in memory of " +
              to_string(bytes{whole.size}),
          where);
  }
  whole.address = static_cast<std::byte*>(whole.address) + offset_bytes;
  whole.size = extent_bytes;
  return whole;
}

copy_shape box_shape(std::size_t element, const box_extent& extent, std::size_t dst_pitch, std::size_t dst_slice,
                     std::size_t src_pitch, std::size_t src_slice, std::source_location where) {
  copy_shape shape;
  const auto times = [&](std::uint64_t a, std::uint64_t b) {
    std::uint64_t product = 0;
    if (__builtin_mul_overflow(a, b, &product)) raise(errc::out_of_range, "the size of a box overflows", where);
    return product;
  };
  shape.width = times(extent.width, element);
  shape.height = extent.height;
  shape.depth = extent.depth;
  static_cast<void>(times(times(shape.width, shape.height), shape.depth));
  const auto pitches = [&](const char* side, std::size_t pitch, std::size_t slice) {
    if (shape.total() == 0) return;
    if (extent.height > 1 && pitch < extent.width) {
      raise(errc::invalid_argument,
            std::string{"the pitch of the "} + side + " (" + std::to_string(pitch) +
                " elements) is smaller than a row (" + std::to_string(extent.width) + ")",
            where);
    }
    if (extent.depth > 1 && slice < (extent.height - 1) * pitch + extent.width) {
      raise(errc::invalid_argument,
            std::string{"the slice of the "} + side + " (" + std::to_string(slice) +
                " elements) is smaller than its rows",
            where);
    }
  };
  pitches("destination", dst_pitch, dst_slice);
  pitches("source", src_pitch, src_slice);
  shape.dst_pitch = times(dst_pitch, element);
  shape.dst_slice = times(dst_slice, element);
  shape.src_pitch = times(src_pitch, element);
  shape.src_slice = times(src_slice, element);
  for (const auto& [pitch, slice] :
       {std::pair{shape.dst_pitch, shape.dst_slice}, std::pair{shape.src_pitch, shape.src_slice}}) {
    std::uint64_t end = 0;
    if (shape.total() != 0 &&
        (__builtin_add_overflow(times(shape.depth - 1, slice), times(shape.height - 1, pitch), &end) ||
         __builtin_add_overflow(end, shape.width, &end))) {
      raise(errc::out_of_range, "the extent of a box overflows", where);
    }
  }
  return shape;
}

namespace {

/// The pointer and the device that the caller says it is on; the pointer decides, and a contradiction is an error.
memory_ref raw_side(machine_state& state, const void* address, device_id on, std::uint64_t size, const char* name,
                    std::source_location where) {
  auto known = value_or_raise(state.backend_of(address).find(address), where);
  // of all of it, before its first piece is on the way
  if (auto wrong = beyond_end(name, size, address, known.base, known.size.value(), known.device)) {
    wrong->where = where;
    raise(*std::move(wrong));
  }
  // any device may have a right to a block
  if (known.kind == memory_kind::block) known.device = on;
  if (known.device != on && known.kind != memory_kind::pinned && known.kind != memory_kind::unified) {
    raise(errc::wrong_device, "the memory is on " + to_string(known.device) + ", not on " + to_string(on), where);
  }
  return {&state, const_cast<void*>(address), size, known.device, known.kind};
}

bool raw_checks(machine_state& state, const void* dst, device_id to, const void* src, device_id from, bytes size,
                std::source_location where) {
  state.require_open(where);
  static_cast<void>(state.description_of(from));
  static_cast<void>(state.description_of(to));
  if (size.value() == 0) return false;
  if (dst == nullptr || src == nullptr) raise(errc::invalid_argument, "a peer copy from or to null", where);
  return true;
}

copy_shape flat(bytes size) {
  copy_shape shape;
  shape.width = size.value();
  return shape;
}

}  // namespace
}  // namespace detail

copy_counters counters(const machine& m) { return detail::memory_of(*detail::state_of(m)).counters(); }

copy_report copy_peer(const machine& m, void* dst, device_id to, const void* src, device_id from, bytes size,
                      const copy_options& options, std::source_location where) {
  detail::machine_state& state = *detail::state_of(m);
  if (!detail::raw_checks(state, dst, to, src, from, size, where)) return {};
  return detail::copy_now(detail::raw_side(state, dst, to, size.value(), "the destination", where),
                          detail::raw_side(state, src, from, size.value(), "the source", where), detail::flat(size),
                          options, where);
}

event copy_peer(const stream& order, void* dst, device_id to, const void* src, device_id from, bytes size,
                const copy_options& options, std::source_location where) {
  if (!detail::state_of(order)) raise(errc::invalid_argument, "an empty stream: it was moved from", where);
  detail::machine_state& state = *detail::state_of(order);
  if (!detail::raw_checks(state, dst, to, src, from, size, where)) return order.record();
  return detail::copy_in(order, detail::raw_side(state, dst, to, size.value(), "the destination", where),
                         detail::raw_side(state, src, from, size.value(), "the source", where), detail::flat(size),
                         options, where);
}

namespace {

/// The parts of a batch run in any order: what one writes, no other may read or write.
void refuse_overlap(std::span<const copy_part> parts, std::source_location where) {
  struct written {
    const std::byte* begin;
    const std::byte* end;
    std::size_t part;
  };
  const auto begin_of = [](const detail::memory_ref& ref) { return static_cast<const std::byte*>(ref.address); };
  std::vector<written> targets;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].dst.size != 0)
      targets.push_back({begin_of(parts[i].dst), begin_of(parts[i].dst) + parts[i].dst.size, i});
  }
  std::sort(targets.begin(), targets.end(), [](const written& a, const written& b) { return a.begin < b.begin; });
  const auto refuse = [&](std::size_t a, std::size_t b) {
    raise(errc::invalid_argument, "parts " + std::to_string(a) + " and " + std::to_string(b) + " of a batch overlap",
          where);
  };
  for (std::size_t i = 1; i < targets.size(); ++i) {
    if (targets[i].begin < targets[i - 1].end) refuse(targets[i - 1].part, targets[i].part);
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::byte* begin = begin_of(parts[i].src);
    auto after = std::upper_bound(targets.begin(), targets.end(), begin,
                                  [](const std::byte* at, const written& t) { return at < t.end; });
    if (after != targets.end() && after->begin < begin + parts[i].src.size) refuse(i, after->part);
  }
}

}  // namespace

event copy_batch(const stream& order, std::span<const copy_part> parts, const copy_options& options,
                 std::source_location where) {
  using namespace detail;
  const auto& state = detail::state_of(order);
  if (!state) raise(errc::invalid_argument, "an empty stream: it was moved from", where);
  state->require_open(where);
  refuse_verification(options, where);
  refuse_overlap(parts, where);
  backend& by = state->backend_of(order.on().id());
  std::vector<plan> plans;
  std::vector<copy_request> together;
  const auto base_of = [&](const memory_ref& ref) -> const void* {
    if (ref.state == nullptr) return nullptr;
    auto known = by.find(ref.address);
    return known ? known->base : nullptr;
  };
  memory_ref last_dst, last_src;  // what the last plan covers
  for (const copy_part& one : parts) {
    refuse_other_machine(*state, one.dst, one.src, where);
    if (one.src.size == 0) continue;
    const auto follows = [&](const memory_ref& before, const memory_ref& after) {
      return before.state == after.state && static_cast<std::byte*>(before.address) + before.size == after.address &&
             base_of(before) == base_of(after);
    };
    if (!plans.empty() && follows(last_dst, one.dst) && follows(last_src, one.src)) {
      plans.back().request.shape.width += one.src.size;
      last_dst.size += one.dst.size;
      last_src.size += one.src.size;
      continue;
    }
    plans.push_back(make_plan(one.dst, one.src, flat(bytes{one.src.size}), options, where));
    last_dst = one.dst;
    last_src = one.src;
  }
  for (const plan& p : plans) {
    if (in_one_step(p)) {
      together.push_back(p.request);
      continue;
    }
    auto done = pipelined(p, order.native(), by);
    if (!done) {
      memory_of(*state).count_failure(p.path);
      raise_at(std::move(done).error(), where);
    }
    count_later(p, *done);
  }
  if (together.empty()) return order.record();
  auto done = by.copy_batch(order.native(), together);
  for (const plan& p : plans) {
    if (!in_one_step(p)) continue;
    if (done) {
      count_later(p, *done);
    } else {
      memory_of(*state).count_failure(p.path);
    }
  }
  if (!done) raise_at(std::move(done).error(), where);
  return detail::make<event>(state, std::move(*done));
}

}  // namespace weft
