// SPDX-License-Identifier: Apache-2.0
// In what order things happen on a mixed machine, and how bytes get from one backend's memory to another's.
#include "backend/address.hpp"
#include "backends/common/copy_checks.hpp"
#include "backends/common/failures.hpp"
#include "backends/mixed/mixed_backend.hpp"
#include "backends/mixed/mixed_handle.hpp"
#include "core/errors/make_error.hpp"

#include <algorithm>
#include <new>

namespace weft::detail {
namespace {

/// A cause as another backend is told of it: what took a device of one takes none of the other.
std::shared_ptr<const error> carried(const std::shared_ptr<const error>& cause) noexcept {
  if (!cause || cause->scope != error_scope::device) return cause;
  try {
    error elsewhere = *cause;
    elsewhere.scope = error_scope::endpoint;
    return std::make_shared<const error>(std::move(elsewhere));
  } catch (const std::bad_alloc&) {
    return common::without_memory();
  }
}

/// Counts a wait for events, and does something once the last has ended.
struct countdown {
  std::atomic<std::size_t> left{0};
  std::function<void()> last;
};

}  // namespace

std::chrono::nanoseconds mixed_backend::do_now() noexcept { return std::chrono::steady_clock::now() - epoch_; }

// ---- order ----------------------------------------------------------------------------------------------------------

result<stream_handle> mixed_backend::do_create_stream(device_id device, int priority, bool told) {
  return tagged(backend_of(device).create_stream(device, priority, told), part_of(device));
}

result<stream_handle> mixed_backend::do_adopt_stream(device_id device, void* driver_queue) {
  return tagged(backend_of(device).adopt_stream(device, driver_queue), part_of(device));
}

result<std::unique_ptr<thread_place>> mixed_backend::do_enter(device_id device) {
  return backend_of(device).enter(device);
}

result<void*> mixed_backend::do_driver_queue(stream_handle stream) {
  return backend_of(stream).driver_queue(untagged(stream));
}

void mixed_backend::do_destroy_stream(stream_handle stream) {
  backend& by = backend_of(stream);
  by.destroy_stream(untagged(stream));
  static_cast<void>(wait_for_tails(by, no_deadline, {}));
}

result<stream_handle> mixed_backend::do_default_stream(device_id device) {
  return tagged(backend_of(device).default_stream(device), part_of(device));
}

result<event_ref> mixed_backend::do_record(stream_handle stream) { return backend_of(stream).record(untagged(stream)); }

result<void> mixed_backend::do_wait_event(stream_handle stream, const event_ref& event) {
  return wait_in(backend_of(stream), untagged(stream), event);
}

result<void> mixed_backend::wait_in(backend& by, stream_handle own, const event_ref& event) {
  if (!event || event->owner == &by) return by.wait_event(own, event);
  if (event->finished() && !event->cause()) return by.wait_event(own, {});
  auto gate = by.create_gate();
  if (!gate) return std::move(gate).error();
  (*gate)->device = event->device;
  if (auto ok = by.wait_event(own, *gate); !ok) {
    by.open_gate(*gate, nullptr);
    return ok;
  }
  if (event->finished()) {
    by.open_gate(*gate, carried(event->cause()));
    return {};
  }
  try {
    hops_.after(event, [&by, gate = *gate, event] { by.open_gate(gate, carried(event->cause())); });
  } catch (...) {
    by.open_gate(*gate, common::without_memory());  // nobody else would
    throw;
  }
  return {};
}

result<event_ref> mixed_backend::do_write_value(stream_handle stream, const word_request& request) {
  return word_apart(stream, request, backend_of(stream).write_value(untagged(stream), request));
}

result<event_ref> mixed_backend::do_wait_value(stream_handle stream, const word_request& request) {
  return word_apart(stream, request, backend_of(stream).wait_value(untagged(stream), request));
}

result<event_ref> mixed_backend::word_apart(stream_handle stream, const word_request& request,
                                            result<event_ref> done) const {
  if (done || done.error().code != errc::not_found) return done;
  const owner elsewhere = owner_of(request.address);
  if (!elsewhere.known() || elsewhere.part == part_in(stream)) return done;
  return make_error(errc::peer_unsupported,
                    "the word lies in " + std::string{to_string(elsewhere.memory.kind)} + " memory of " +
                        to_string(elsewhere.memory.device) + " (" +
                        std::string{to_string(parts_[elsewhere.part]->kind())} + "), which a stream of the " +
                        std::string{to_string(backend_of(stream).kind())} +
                        " backend can neither write nor wait for: take memory of the stream's own backend");
}

result<event_ref> mixed_backend::do_create_gate() {
  auto gate = parts_.front()->create_gate();
  for (std::size_t i = 1; i < parts_.size() && !gate && gate.error().code == errc::unsupported; ++i)
    gate = parts_[i]->create_gate();
  return gate;
}

void mixed_backend::do_open_gate(const event_ref& gate, std::shared_ptr<const error> cause) {
  gate->owner->open_gate(gate, std::move(cause));
}

wait_outcome mixed_backend::do_wait(event_record& event, wait_deadline deadline, const std::stop_token& stop) noexcept {
  return event.owner->wait(event, deadline, stop);
}

bool mixed_backend::do_ready(event_record& event) { return event.owner->ready(event); }

event_ref mixed_backend::tail_of(const event_record& event) {
  const std::lock_guard lock{tails_mutex_};
  const auto found = std::find_if(tails_.begin(), tails_.end(), [&](const tail& one) {
    return one.event->owner == event.owner && one.event->stream == event.stream && !one.moved->finished() &&
           (event.ended.count() == 0 || one.submitted <= event.ended);  // else it came later: what is ready stays so
  });
  return found == tails_.end() ? event_ref{} : found->moved;
}

wait_outcome mixed_backend::wait_for_tails(const backend& of, wait_deadline deadline, const std::stop_token& stop) {
  std::vector<event_ref> left;
  {
    const std::lock_guard lock{tails_mutex_};
    for (const tail& one : tails_)
      if (one.event->owner == &of && one.event->finished() && !one.moved->finished()) left.push_back(one.moved);
  }
  for (const event_ref& one : left) {
    const wait_outcome ended = one->owner->wait(*one, deadline, stop);
    if (ended == wait_outcome::timed_out || ended == wait_outcome::cancelled) return ended;
  }
  return wait_outcome::ok;
}

bool mixed_backend::do_idle(stream_handle stream) {
  backend& by = backend_of(stream);
  return by.idle(untagged(stream)) && wait_for_tails(by, wait_deadline{0}, {}) == wait_outcome::ok;
}

bool mixed_backend::do_settled(stream_handle stream) {
  backend& by = backend_of(stream);
  return by.settled(untagged(stream)) && wait_for_tails(by, wait_deadline{0}, {}) == wait_outcome::ok;
}

result<wait_outcome> mixed_backend::do_synchronize(stream_handle stream, wait_deadline deadline,
                                                   const std::stop_token& stop) {
  backend& by = backend_of(stream);
  auto ended = by.synchronize(untagged(stream), deadline, stop);
  const wait_outcome rest = wait_for_tails(by, deadline, stop);
  // a failure is told, late or not: it is told once
  if (ended && *ended == wait_outcome::ok) return rest;
  return ended;
}

bool mixed_backend::do_drain(device_id device, wait_deadline deadline) {
  backend& by = backend_of(device);
  return by.drain(device, deadline) && wait_for_tails(by, deadline, {}) == wait_outcome::ok;
}

std::vector<stream_handle> mixed_backend::do_streams_of(device_id device) {
  backend& by = backend_of(device);
  std::vector<stream_handle> all = by.streams_of(device);
  for (stream_handle& one : all) one = tagged(one, part_of(device));
  return all;
}

bool mixed_backend::do_tells(stream_handle stream) { return backend_of(stream).tells(untagged(stream)); }

// ---- streams that stand in ------------------------------------------------------------------------------------------

result<mixed_backend::stand_in> mixed_backend::take_stand_in(backend& by, device_id on) {
  stand_in taken;
  {
    const std::lock_guard lock{stand_ins_mutex_};
    const auto idle = std::find_if(stand_ins_.begin(), stand_ins_.end(), [on](const stand_in& one) {
      return one.on == on && (!one.last || one.last->owner->ready(*one.last));
    });
    if (idle != stand_ins_.end()) {
      taken = std::move(*idle);
      stand_ins_.erase(idle);
    }
  }
  // a failure of the work before was told to whom it was done for; it must not skip what comes now
  if (taken.stream != stream_handle::none && by.synchronize(taken.stream, no_deadline, {})) return taken;
  auto stream = by.create_stream(on, 0, false);
  if (!stream) return std::move(stream).error();
  return stand_in{on, *stream, {}};
}

result<event_ref> mixed_backend::stand_in_for(stream_handle order, device_id on,
                                              const std::function<result<event_ref>(backend&, stream_handle)>& work) {
  backend& of_order = backend_of(order);
  backend& by = backend_of(on);
  // what is kept of a copy that is on its way needs no memory then
  std::list<tail> kept(1);
  std::list<stand_in> idle(1);
  kept.front().submitted = of_order.now();
  auto start = of_order.record(untagged(order));
  if (!start) return std::move(start).error();
  auto taken = take_stand_in(by, on);
  if (!taken) return std::move(taken).error();
  stand_in& own = idle.front();
  own = std::move(*taken);
  own.last = *start;
  const auto submit = [&]() -> result<void> {
    if (auto ok = wait_in(by, own.stream, *start); !ok) return ok;
    auto done = work(by, own.stream);
    if (!done) return std::move(done).error();
    own.last = *done;
    return wait_in(of_order, untagged(order), *done);
  };
  const auto ok = guarded(submit);
  const event_ref moved = own.last;
  {
    const std::lock_guard lock{stand_ins_mutex_};
    stand_ins_.splice(stand_ins_.end(), idle);
  }
  auto end = ok ? of_order.record(untagged(order)) : result<event_ref>{ok.error()};
  if (!end) {
    // the caller learns of no event to wait for: nothing of it may go on
    if (moved.get() != start->get()) static_cast<void>(by.wait(*moved, no_deadline, {}));
    return end;
  }
  kept.front().event = *end;
  kept.front().moved = moved;
  const std::lock_guard lock{tails_mutex_};
  std::erase_if(tails_, [](const tail& one) { return one.moved->finished(); });
  tails_.splice(tails_.end(), kept);
  return end;
}

// ---- move -----------------------------------------------------------------------------------------------------------

// The stream's own backend is asked first: within it a copy costs what it always did. That it does not know an address
// is where the others come in.
result<event_ref> mixed_backend::do_copy(stream_handle stream, const copy_request& request) {
  auto done = backend_of(stream).copy(untagged(stream), request);
  if (done || done.error().code != errc::not_found) return done;
  auto one = crossing_of(stream, request);
  if (!one) return std::move(one).error();
  return copy_across(stream, *one);
}

result<mixed_backend::crossing> mixed_backend::crossing_of(stream_handle stream, const copy_request& request) const {
  const std::size_t here = part_in(stream);
  const copy_shape& shape = request.shape;
  crossing made{request,
                request.dst_is_host ? owner{} : owner_of(request.dst),
                request.src_is_host ? owner{} : owner_of(request.src),
                here,
                {}};
  const owner &dst = made.dst, &src = made.src;
  if (!request.dst_is_host && !dst.known()) return not_allocated("the destination " + hex(request.dst));
  if (!request.src_is_host && !src.known()) return not_allocated("the source " + hex(request.src));
  // whose device memory is moved: only its own backend can
  std::size_t& mover = made.mover;
  for (const owner* one : {&dst, &src}) {
    if (!one->known() || one->is_host_memory() || one->part == mover) continue;
    const owner& other = one == &dst ? src : dst;
    if (other.known() && !other.is_host_memory() && other.part != one->part)
      return no_peers(src.memory.device, dst.memory.device);
    mover = one->part;
    made.on = one->memory.device;
  }
  if (mover != here) {
    made.request.wait = false;
    if (const auto cause = parts_[mover]->lost(made.on)) {
      return make_error(errc::device_lost, to_string(made.on) + " is lost since: " + cause->what, error_scope::device,
                        cause->native_code);
    }
  }
  const auto checked = [&](const owner& memory, const void* address, std::uint64_t extent, bool& is_host,
                           const char* name) -> std::optional<error> {
    if (!memory.known()) return std::nullopt;
    const bool is_movers = memory.part == mover;
    // host memory of another backend is plain host memory to the one that moves it: nobody else looks at its bounds
    is_host = is_host || !is_movers;
    if (is_movers && memory.memory.kind == memory_kind::block) return std::nullopt;  // mappings that touch are one
    return beyond_end(name, extent, address, memory.memory.base, memory.memory.size.value(), memory.memory.device);
  };
  const std::uint64_t written = shape.extent(shape.dst_pitch, shape.dst_slice);
  const std::uint64_t read = shape.extent(shape.src_pitch, shape.src_slice);
  if (auto bad = checked(dst, request.dst, written, made.request.dst_is_host, "the destination"))
    return std::move(*bad);
  if (auto bad = checked(src, request.src, read, made.request.src_is_host, "the source")) return std::move(*bad);
  // what overlaps under two names, and rights to blocks, the mover sees
  if (common::meet(number(request.dst), written, number(request.src), read)) return common::overlapping(request, read);
  return made;
}

result<event_ref> mixed_backend::copy_across(stream_handle stream, const crossing& one) {
  const std::size_t here = part_in(stream), mover = one.mover;
  event_ref moved;
  auto done = mover == here ? parts_[here]->copy(untagged(stream), one.request)
                            : stand_in_for(stream, one.on, [&](backend& by, stream_handle own) {
                                auto copied = by.copy(own, one.request);
                                if (copied) moved = *copied;
                                return copied;
                              });
  if (!done) return done;
  if (!*done) return done;
  try {
    for (const owner* end : {&one.dst, &one.src}) {
      if (!end->known() || !end->is_host_memory() || end->part == mover) continue;
      remember_use(*end, moved ? moved : *done);
    }
  } catch (...) {
    static_cast<void>(do_wait(**done, no_deadline, {}));
    throw;
  }
  return done;
}

void mixed_backend::remember_use(const owner& memory, const event_ref& by) {
  if (!by) return;
  const std::lock_guard lock{uses_mutex_};
  host_memory_uses& uses = uses_[memory.memory.base];
  uses.device = memory.memory.device;
  uses.is_adopted = memory.memory.kind == memory_kind::adopted;
  std::erase_if(uses.by, [](const event_ref& one) { return one->finished(); });
  uses.by.push_back(by);
}

// Its own backend knows nothing of what others do with host memory: it is told of the end when they are done.
mixed_backend::release_outcome mixed_backend::release_later(backend& from, void* base) {
  auto wait = std::make_shared<countdown>();
  std::vector<event_ref> pending;
  {
    const std::lock_guard lock{uses_mutex_};
    const auto found = uses_.find(base);
    if (found == uses_.end()) return release_outcome::now;
    if (found->second.is_released) return release_outcome::before;
    std::erase_if(found->second.by, [](const event_ref& one) { return one->finished(); });
    // adopted memory stays the program's: others copy it whoever has it
    if (found->second.is_adopted || found->second.by.empty()) {
      uses_.erase(found);
      return release_outcome::now;
    }
    found->second.is_released = true;
    pending = found->second.by;
  }
  wait->left = pending.size();
  wait->last = [this, &from, base] {
    {
      const std::lock_guard lock{uses_mutex_};
      uses_.erase(base);
    }
    static_cast<void>(from.release(base));
  };
  for (const event_ref& one : pending) {
    hops_.after(one, [wait] {
      if (wait->left.fetch_sub(1, std::memory_order_acq_rel) == 1) wait->last();
    });
  }
  return release_outcome::later;
}

void mixed_backend::wait_for_uses(device_id device) {
  std::vector<event_ref> pending;
  {
    const std::lock_guard lock{uses_mutex_};
    for (const auto& [base, uses] : uses_) {
      if (uses.device == device) pending.insert(pending.end(), uses.by.begin(), uses.by.end());
    }
  }
  for (const event_ref& one : pending) static_cast<void>(one->owner->wait(*one, no_deadline, {}));
}

result<event_ref> mixed_backend::do_copy_batch(stream_handle stream, std::span<const copy_request> requests) {
  auto done = backend_of(stream).copy_batch(untagged(stream), requests);
  if (done || done.error().code != errc::not_found) return done;
  // all are looked at before the first begins
  std::vector<crossing> all;
  all.reserve(requests.size());
  for (const copy_request& request : requests) {
    if (request.shape.total() == 0) continue;
    auto one = crossing_of(stream, request);
    if (!one) return std::move(one).error();
    all.push_back(std::move(*one));
  }
  std::vector<event_ref> parts;
  parts.reserve(all.size());
  done = guarded([&]() -> result<event_ref> {
    for (const crossing& one : all) {
      auto part = copy_across(stream, one);
      if (!part) return part;
      if (*part) parts.push_back(std::move(*part));
    }
    return do_record(stream);
  });
  if (!done) {
    // the caller learns of no event to wait for: nothing of it may go on
    for (const event_ref& before : parts) static_cast<void>(do_wait(*before, no_deadline, {}));
  }
  return done;
}

bool mixed_backend::do_copies_through(device_id from, device_id to) noexcept {
  return part_of(from) == part_of(to) && backend_of(from).copies_through(from, to);
}

result<event_ref> mixed_backend::do_copy_through(stream_handle stream, void* slot, const copy_request& request) {
  return backend_of(stream).copy_through(untagged(stream), slot, request);
}

result<event_ref> mixed_backend::do_fill(stream_handle stream, const fill_request& request) {
  auto done = backend_of(stream).fill(untagged(stream), request);
  if (done || done.error().code != errc::not_found) return done;
  const owner dst = owner_of(request.dst);
  if (!dst.known() || dst.part == part_in(stream)) return done;
  return stand_in_for(stream, dst.memory.device, [&](backend& by, stream_handle own) { return by.fill(own, request); });
}

// ---- run ------------------------------------------------------------------------------------------------------------

result<void> mixed_backend::do_prepare(device_id device, const kernel_code& kernel) {
  return backend_of(device).prepare(device, kernel);
}

result<event_ref> mixed_backend::do_launch(stream_handle stream, launch_request request) {
  backend& by = backend_of(stream);
  std::vector<const void*> memory;
  memory.reserve(request.arguments.size());
  for (const kernel_argument& one : request.arguments) memory.push_back(one.count != 0 ? one.address : nullptr);
  const auto kernel = request.kernel;
  auto done = by.launch(untagged(stream), std::move(request));
  if (done || done.error().code != errc::not_found) return done;
  for (std::size_t i = 0; i < memory.size(); ++i) {
    const owner elsewhere = memory[i] == nullptr ? owner{} : owner_of(memory[i]);
    if (!elsewhere.known() || elsewhere.part == part_in(stream)) continue;
    return make_error(errc::peer_unsupported,
                      "argument " + std::to_string(i + 1) + " of '" + kernel->name + "' lies in " +
                          std::string{to_string(elsewhere.memory.kind)} + " memory of " +
                          to_string(elsewhere.memory.device) + " (" +
                          std::string{to_string(parts_[elsewhere.part]->kind())} + "), which a kernel of the " +
                          std::string{to_string(by.kind())} +
                          " backend cannot reach: copy it to the kernel's device, or launch over an array<T>");
  }
  return done;
}

result<event_ref> mixed_backend::do_call(stream_handle stream, std::function<result<void>()> function) {
  return backend_of(stream).call(untagged(stream), std::move(function));
}

}  // namespace weft::detail
