// SPDX-License-Identifier: Apache-2.0
// How a queue comes to be: the mode is decided, memory is placed, and the ends are set up over it.
#include "channel/queue_state.hpp"

#include "channel/queue_progress.hpp"
#include "channel/rings/device_ring.hpp"
#include "channel/rings/ring_feed.hpp"
#include "channel/shared_region.hpp"
#include "core/errors/called_from.hpp"
#include "core/errors/decision_log.hpp"
#include "runtime/peer_checks.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <unistd.h>

namespace weft::detail {

std::shared_ptr<const error> queue_error(errc code, std::string what, error_scope scope) {
  error cause;
  cause.code = code;
  cause.scope = scope;
  cause.what = std::move(what);
  cause.where = {};
  return std::make_shared<const error>(std::move(cause));
}

void set_end(queue_end& end, const ring_view& view, const ring_shape& shape) noexcept {
  weft_ring& ring = end.ring;
  ring = {};
  ring.slots = reinterpret_cast<std::uintptr_t>(view.slots);
  ring.credit = reinterpret_cast<std::uintptr_t>(view.credit);
  ring.fin = reinterpret_cast<std::uintptr_t>(view.fin);
  ring.stop = reinterpret_cast<std::uintptr_t>(view.stop);
  ring.mask = shape.places - 1;
  ring.capacity = shape.capacity;
  ring.shift = static_cast<std::uint32_t>(std::countr_zero(shape.places));
  ring.bytes = shape.bytes;
  ring.stride = shape.stride;
  ring.per_line = shape.per_line;
  ring.pieces = shape.pieces;
}

namespace {

/// Why the host's loads and stores do not reach the memory of a device; none if they do.
std::optional<std::string> why_out_of_reach(const device& on) {
  const buffer<std::byte> probe{on, isolation};
  const auto seen = state_of(on)->backend_of(on.id()).host_window(on.id(), probe.data(), bytes{isolation});
  if (seen || seen.error().code != errc::unsupported) return std::nullopt;
  return seen.error().what;
}

/// A piece of memory that several see: each by its own window.
struct placed {
  std::byte* writer = nullptr;
  std::byte* reader = nullptr;
};

class builder {
 public:
  builder(const machine& m, queue_state& queue, std::source_location where) : m_(m), q_(queue), where_(where) {}

  void choose_mode() {
    const queue_options& o = q_.options;
    queue_facts& facts = q_.facts;
    if (o.mode == transfer_mode::rdma || o.mode == transfer_mode::network) {
      raise(errc::unsupported,
            std::string{to_string(o.mode)} +
                " queues need a network between nodes: use host_staged or direct within a machine",
            where_);
    }
    facts.mode = transfer_mode::host_staged;
    look_who_is_reached();
    if (o.mode == transfer_mode::host_staged) return;
    if (q_.lies_in_host_memory && !(o.for_kernels && has_addresses(facts.source) && has_addresses(facts.destination)))
      return;
    if (facts.source == facts.destination) {
      be_direct();
      return;
    }
    const auto capability = capability_between(m_, facts.source, facts.destination);
    if (!capability->supported) {
      facts.why = to_string(facts.source) + " has no peer access to " + to_string(facts.destination) +
                  (capability->why.empty() ? "" : ": " + capability->why);
      return;
    }
    try {
      q_.leases.emplace_back(m_, facts.source, facts.destination);
    } catch (const error_exception& refused) {
      facts.why = refused.cause().what;
      return;
    }
    if (const auto lost = peers_of(*q_.machine).refusal(facts.source, facts.destination, peer_way::allocations)) {
      q_.leases.clear();
      facts.why = *lost;
      return;
    }
    // so that the receiver can write the credit into the source's memory; without it the sender reads it across
    if (capability_between(m_, facts.destination, facts.source)->supported) {
      try {
        q_.leases.emplace_back(m_, facts.destination, facts.source);
      } catch (const error_exception&) {  // a full table of peers: the sender reads the credit across
      }
    }
    be_direct();
  }

  /// Where kernels of a device read and write the ring over a link, a short message lies in pieces.
  void choose_layout() {
    if (!q_.lies_in_host_memory && !q_.lies_with_devices) return;
    if (!kernels_know(q_.options) || q_.shape.bytes > largest_in_pieces || q_.shape.bytes % 4 != 0) return;
    for (const device_id end : {q_.facts.source, q_.facts.destination})
      if (q_.out_of_reach(end) && !has_addresses(end)) return;
    q_.shape = shape_in_pieces(q_.shape.bytes, q_.options.capacity);
  }

  /// False when what was written on one side does not arrive on the other.
  bool add_lane() {
    auto made = std::make_unique<queue_lane>();
    queue_lane& l = *made;
    if (q_.lies_with_devices) {
      const bool both_ways = q_.facts.source == q_.facts.destination || q_.leases.size() == 2;
      l.with_devices = std::make_shared<device_ring>(m_, q_.facts, q_.shape, both_ways);
      if (auto why = l.with_devices->trouble()) {
        trouble_ = std::move(*why) + ", so it lies in host memory";
        return false;
      }
      set_up(l, l.with_devices->sending(), l.with_devices->receiving(), true);
      q_.lanes.push_back(std::move(made));
      return true;
    }
    const device_id s = q_.facts.source, d = q_.facts.destination;
    const bool direct = q_.facts.mode == transfer_mode::direct;
    const bool one_ring = direct || q_.lies_in_host_memory;
    const bool both_ways = s == d || q_.leases.size() == 2;
    const std::size_t slots = q_.shape.slots_size();
    const auto words_of = [](std::byte* at) { return reinterpret_cast<control_words*>(at); };

    // the receiver's block: slots and control words in the destination's memory
    const placed far = q_.lies_in_host_memory ? on_host(l, slots + sizeof(control_words))
                                              : on_device(l, d, direct ? s : d, d, slots + sizeof(control_words));
    // the sender's block: in its own memory, or beside the staging ring in the host's
    const placed near = q_.lies_in_host_memory ? on_host(l, sizeof(control_words))
                        : !direct              ? on_host(l, slots + sizeof(control_words))
                        : both_ways            ? on_device(l, s, s, d, sizeof(control_words))
                                               : on_device(l, d, s, d, sizeof(control_words));
    if (direct &&
        (!arrives(far, slots + sizeof(control_words)) || !arrives({near.reader, near.writer}, sizeof(control_words)))) {
      trouble_ = to_string(s) + " to " + to_string(d) +
                 ": the self-test of the queue found that data does not arrive, so it goes through the host";
      return false;
    }
    std::memset(far.reader, 0, slots + sizeof(control_words));
    if (!one_ring) std::memset(near.writer, 0, slots);
    const std::size_t near_words = one_ring ? 0 : slots;
    std::memset(near.writer + near_words, 0, sizeof(control_words));

    control_words* const near_of_writer = words_of(near.writer + near_words);
    control_words* const near_of_reader = words_of(near.reader + near_words);
    control_words* const far_of_writer = words_of(far.writer + slots);
    control_words* const far_of_reader = words_of(far.reader + slots);
    near_of_writer->fin = far_of_reader->fin = WEFT_RING_OPEN;

    // One numbering of messages from end to end: whatever is between, the receiver's credit goes straight to the
    // sender, and the sender's last word straight to the receiver. Only where the middle may lose messages, in a staged
    // ring that is overwritten, does the second ring count for itself.
    const bool counts_twice = !one_ring && q_.overwrites;
    ring_view sending, receiving;
    sending.credit = &near_of_writer->credit;
    sending.stop = &near_of_writer->stop;
    receiving.slots = far.reader;
    receiving.credit = &near_of_reader->credit;
    receiving.stop = &far_of_reader->stop;
    if (one_ring) {
      sending.slots = far.writer;
      sending.fin = &far_of_writer->fin;
      receiving.fin = &far_of_reader->fin;
    } else {
      sending.slots = near.writer;
      sending.fin = &near_of_writer->fin;
      receiving.fin = counts_twice ? &far_of_reader->fin : &near_of_reader->fin;
      ring_view in = sending;
      in.slots = near.reader;
      in.credit = &l.forward_credit;
      set_end(l.forward_in, in, q_.shape);
      ring_view out = receiving;
      out.slots = far.writer;
      out.fin = &far_of_writer->fin;
      out.stop = &l.forward_stop;
      set_end(l.forward_out, out, q_.shape);
      l.forward_out.other_waits = q_.receiver_waits;
      l.forwarding.resize(q_.shape.bytes);
    }
    set_up(l, sending, receiving, one_ring);
    q_.lanes.push_back(std::move(made));
    return true;
  }

  /// Ends what a lane that did not work had begun.
  void give_up_direct() {
    for (const auto& l : q_.lanes) {
      for (const std::uint64_t id : l->watched) q_.backend_of(q_.facts.source).unwatch_traffic(id);
    }
    q_.lanes.clear();
    q_.leases.clear();
    q_.facts.mode = transfer_mode::host_staged;
    q_.lies_in_host_memory = std::exchange(q_.lies_with_devices, false);
    q_.facts.why = std::move(trouble_);
  }

 private:
  void be_direct() {
    q_.facts.mode = transfer_mode::direct;
    q_.facts.why.clear();
    q_.lies_with_devices = std::exchange(q_.lies_in_host_memory, false);
  }

  /// Whether kernels of a device that the host does not reach know memory by addresses, also by those that lie in
  /// memory.
  [[nodiscard]] bool has_addresses(device_id id) {
    if (!q_.out_of_reach(id) || q_.machine->description_of(id).rings_by_commands) return false;
    const pinned_buffer<std::byte> probe{m_[id], isolation};
    return q_.is_open_to_kernels(id, probe.data());
  }

  void set_up(queue_lane& l, const ring_view& sending, const ring_view& receiving, bool one_ring) {
    set_end(l.sender, sending, q_.shape);
    set_end(l.receiver, receiving, q_.shape);
    l.sender.other_waits = one_ring ? q_.receiver_waits : &l.forwarder_waits;
    l.receiver.other_waits = l.sender_waits;
    l.sender.lane = l.receiver.lane = q_.lanes.size();
    l.sending.resize(q_.shape.bytes);
    l.sender.plain = is_plain() && q_.options.when_full != backpressure::spill;
    l.receiver.plain = is_plain();
    watch(l, q_.facts.mode == transfer_mode::direct);
  }

  [[nodiscard]] bool is_plain() const {
    return !q_.options.for_kernels && !q_.options.validate && !q_.overwrites && q_.options.sample_every == 0 &&
           !q_.fences && q_.shape.pieces == 0;
  }

  /// Where the host reaches a device's memory by commands only, no ring can lie there: its messages stay in host
  /// memory.
  void look_who_is_reached() {
    queue_facts& facts = q_.facts;
    q_.source_out_of_reach = why_out_of_reach(m_[facts.source]);
    q_.destination_out_of_reach =
        facts.source == facts.destination ? q_.source_out_of_reach : why_out_of_reach(m_[facts.destination]);
    q_.lies_in_host_memory = q_.source_out_of_reach || q_.destination_out_of_reach;
    if (!q_.lies_in_host_memory || q_.options.mode == transfer_mode::host_staged) return;
    const device_id first = q_.source_out_of_reach ? facts.source : facts.destination;
    facts.why =
        "the host reaches the memory of " + to_string(first) + " by commands only, so messages stay in host memory";
    if (!q_.machine->description_of(facts.destination).rings_by_commands)
      facts.why += ", and are brought to a receiving kernel's GPU where its kernel_end says so";
    facts.why += ": " + *q_.out_of_reach(first);
  }

  placed on_device(queue_lane& l, device_id owner, device_id writer, device_id reader, std::size_t size) {
    auto block = std::make_shared<buffer<std::byte>>(m_[owner], size, for_running_kernels);
    l.memory.push_back(block);
    placed made;
    made.writer = window(l, writer, block->data(), size);
    made.reader = writer == reader ? made.writer : window(l, reader, block->data(), size);
    return made;
  }

  std::byte* window(queue_lane& l, device_id by, std::byte* address, std::size_t size) {
    auto seen = q_.backend_of(by).host_window(by, address, bytes{size});
    if (!seen) {
      seen.error().where = where_;
      raise(std::move(seen).error());
    }
    l.memory.push_back(*seen);
    return seen->get();
  }

  /// Page-locked memory that kernels of an end use in place, where the memory of that end is out of the host's reach.
  std::optional<placed> on_host_for_kernels(queue_lane& l, std::size_t size) {
    for (const device_id id : {q_.facts.source, q_.facts.destination}) {
      if (!q_.out_of_reach(id)) continue;
      auto block = std::make_shared<pinned_buffer<std::byte>>(m_[id], size);
      if (!q_.is_open_to_kernels(id, block->data())) continue;
      l.memory.push_back(block);
      std::byte* at = window(l, id, block->data(), size);
      return placed{at, at};
    }
    return std::nullopt;
  }

  placed on_host(queue_lane& l, std::size_t size) {
    if (q_.lies_in_host_memory && q_.options.pinned) {
      if (const auto shared = on_host_for_kernels(l, size)) return *shared;
    }
    const device_id near = q_.source_out_of_reach ? q_.facts.destination : q_.facts.source;
    // without a window, which keeps it, memory of the machine goes with the machine, and the ends may stay
    if (q_.options.pinned && !q_.out_of_reach(near)) {
      auto block = std::make_shared<pinned_buffer<std::byte>>(m_[near], size);
      l.memory.push_back(block);
      std::byte* at = window(l, near, block->data(), size);
      return {at, at};
    }
    struct lines {
      alignas(isolation) std::array<std::byte, isolation> bytes;
    };
    try {
      auto block = std::make_shared<std::vector<lines>>(round_up(size, isolation) / isolation);
      auto* at = reinterpret_cast<std::byte*>(block->data());
      l.memory.push_back(std::move(block));
      return {at, at};
    } catch (const std::bad_alloc&) {
    }
    raise(errc::out_of_memory,
          "the host has no " + to_string(bytes{size}) + " for the ring of the queue from " +
              to_string(q_.facts.source) + " to " + to_string(q_.facts.destination) + "; ask for less capacity",
          where_);
  }

  /// Writes a pattern as one end sees the memory, and looks whether it is there for the other.
  static bool arrives(const placed& memory, std::size_t size) {
    if (memory.writer == memory.reader) return true;
    const auto at = [](std::size_t i) { return static_cast<std::byte>((i * 131 + (i >> 8) * 29 + 17) & 0xff); };
    for (std::size_t i = 0; i < size; ++i) memory.writer[i] = at(i);
    bool good = true;
    for (std::size_t i = 0; i < size && good; ++i) good = memory.reader[i] == at(i);
    return good;
  }

  void watch(queue_lane& l, bool direct) {
    const device_id host;
    const auto add = [&](device_id from, device_id to, const weft_ring& ring) {
      backend& b = q_.backend_of(from == host ? to : from);
      if (const auto id =
              b.watch_traffic({from, to, reinterpret_cast<const std::uint64_t*>(&ring.position), ring.bytes}))
        l.watched.push_back(id);
    };
    if (direct) {
      if (q_.facts.source != q_.facts.destination) add(q_.facts.source, q_.facts.destination, l.sender.ring);
    } else if (!q_.lies_in_host_memory) {  // else what crosses a link are commands, which are counted
      add(q_.facts.source, host, l.sender.ring);
      add(host, q_.facts.destination, l.forward_out.ring);
    }
  }

  const machine& m_;
  queue_state& q_;
  std::source_location where_;
  std::string trouble_;  // why a lane does not work
};

}  // namespace

void check(const queue_options& o, std::source_location where) {
  const auto refuse = [&](std::string text) { raise(errc::invalid_argument, std::move(text), where); };
  if (o.capacity == 0) refuse("a queue without capacity");
  if (o.capacity > std::size_t{1} << 32) {
    refuse("a queue of " + std::to_string(o.capacity) + " messages: at most 2^32");
  }
  if (o.producers < 1 || o.producers > 1024) {
    refuse("a queue of " + std::to_string(o.producers) + " producers: from 1 to 1024");
  }
  if (o.for_kernels && (!kernels_know(o) || o.producers != 1)) {
    raise(
        errc::unsupported,
        "a queue for kernels: they know neither checksums nor overwriting, spill and samples, and it has one producer",
        where);
  }
  if (o.batch_size == 0) refuse("a batch size of 0");
  if (o.timeout.count() < 0) refuse("a negative timeout");
  if (o.sample_every < 0 || (o.sample_every != 0 && !std::has_single_bit(static_cast<unsigned>(o.sample_every)))) {
    refuse("sample_every " + std::to_string(o.sample_every) + ": 0 or a power of two");
  }
  if (o.sample_every != 0 && o.when_full == backpressure::spill)
    refuse("samples of a queue that spills: what a sender keeps on its side has no time in the queue");
}

std::shared_ptr<queue_state> make_queue(const machine& m, device_id source, device_id destination, std::size_t size,
                                        std::size_t alignment, const queue_options& options,
                                        std::source_location where) {
  const called_from here{where};
  machine_state& state = *state_of(m);
  state.require_open();
  static_cast<void>(state.description_of(source));
  static_cast<void>(state.description_of(destination));
  check(options, where);
  auto queue = std::make_shared<queue_state>();
  queue->machine = state_of(m);
  queue->options = options;
  queue->facts.source = source;
  queue->facts.destination = destination;
  queue->size = size;
  queue->overwrites = options.when_full == backpressure::overwrite_oldest;
  queue->fences = !parking::offers_heavy_fence(parking::word_scope::process);
  const std::size_t carried = carried_size(size, options.validate, queue->overwrites);
  queue->shape = shape_of(carried, alignment, options.capacity, !queue->overwrites);
  if (queue->shape.slots_size() > std::uint64_t{1} << 40) {
    raise(errc::invalid_argument,
          "a queue of " + std::to_string(queue->shape.capacity) + " messages of " + std::to_string(size) +
              " bytes is larger than 1 TiB",
          where);
  }
  queue->facts.capacity = queue->shape.capacity;
  queue->facts.producers = static_cast<std::size_t>(options.producers);
  queue->receiving.resize(carried);
  queue->held.resize(size);
  builder build{m, *queue, where};
  build.choose_mode();
  build.choose_layout();
  for (int i = 0; i < options.producers; ++i) {
    if (build.add_lane()) continue;
    build.give_up_direct();
    i = -1;
  }
  if (options.mode == transfer_mode::adaptive && queue->facts.why.empty() &&
      queue->facts.mode == transfer_mode::host_staged) {
    queue->facts.why = "no direct way";
  }
  if (is_logged(log_level::info)) {
    log_decision("queue from " + to_string(source) + " to " + to_string(destination) + ", messages of " +
                 std::to_string(size) +
                 " bytes: " + (queue->facts.mode == transfer_mode::direct ? "direct" : "staged through the host") +
                 (queue->facts.why.empty() ? "" : ", for " + queue->facts.why));
  }
  queue->trouble = [machine = queue->machine.get(), source, destination]() -> std::shared_ptr<const error> {
    if (machine->closed()) return queue_error(errc::machine_closed, "the machine of the queue was closed");
    for (const device_id end : {source, destination}) {
      if (auto lost = machine->backend_of(end).lost(end)) {
        return queue_error(errc::device_lost, to_string(end) + ", an end of the queue, is lost: " + lost->what);
      }
    }
    return nullptr;
  };
  channel_state& channels = channels_of(state);
  channels.remember(queue);
  for (const auto& l : queue->lanes) {
    const bool staged = queue->facts.mode == transfer_mode::host_staged && !queue->lies_in_host_memory;
    const bool spills = options.when_full == backpressure::spill;
    if (staged) l->jobs.push_back(make_forwarder(*queue, *l));
    if (spills) l->jobs.push_back(make_spill_drain(*queue, *l));
    if (!std::all_of(l->jobs.begin(), l->jobs.end(), [&](const auto& job) { return channels.progress().add(job); })) {
      raise(errc::resource_exhausted,
            "no thread could be started for the queue; raise the limit of threads (ulimit -u)", where);
    }
  }
  return queue;
}

queue_state::~queue_state() {
  if (machine == nullptr) return;
  queue_progress& progress = channels_of(*machine).progress();
  for (const auto& l : lanes) {
    for (const auto& job : l->jobs) progress.remove(job.get());
    for (const std::uint64_t id : l->watched) {
      // the account is one of the backend of either end
      backend_of(facts.source).unwatch_traffic(id);
    }
  }
}

bool queue_state::is_of_parent() const noexcept { return !region.empty() && region_of != ::getpid(); }

void queue_state::feed_from(std::shared_ptr<queue_feed> feed, std::atomic<std::uint32_t>& word) noexcept {
  const std::lock_guard lock{feed_mutex_};
  feed_ = std::move(feed);
  word.store(feed_ ? a_feed : nobody, std::memory_order_seq_cst);
}

void queue_state::wake(std::atomic<std::uint32_t>& word) noexcept {
  if (word.load(std::memory_order_relaxed) == a_feed) {
    const auto feed = [&] {
      const std::lock_guard lock{feed_mutex_};
      return feed_;
    }();
    if (feed) static_cast<void>(feed->bring());
    return;
  }
  // acq_rel: ordered among those who wake and those who sleep
  const std::uint32_t who = word.exchange(nobody, std::memory_order_acq_rel);
  if (who == a_thread) {
    parking::wake_all(word, scope);
  } else if (who == the_progress_thread && machine != nullptr) {
    channels_of(*machine).progress().ring();
  }
}

namespace {
void set_stop(const weft_ring& ring) noexcept {
  if (ring.stop != 0) WEFT_RING_STORE_32(reinterpret_cast<std::uint32_t*>(ring.stop), 1);
}
}  // namespace

void queue_state::stop(std::shared_ptr<const error> cause) noexcept {
  {
    const std::lock_guard lock{cause_mutex_};
    const bool discards = cause == nullptr || cause->code == errc::machine_closed;
    if (!stopped_.load(std::memory_order_relaxed)) {
      stopped_by_ = cause != nullptr ? queue_status::failed : queue_status::closed;
      if (cause) cause_ = std::move(cause);
      stopped_.store(true, std::memory_order_release);
    } else if (!discards || is_over()) {
      return;
    }
    // before the flags of the ends: who sets one of them again looks at this afterwards
    if (discards) over_.store(true, std::memory_order_seq_cst);
  }
  for (const auto& l : lanes) {
    if (!is_over()) break;
    l->sender.plain.store(false, std::memory_order_seq_cst);
    l->receiver.plain.store(false, std::memory_order_seq_cst);
  }
  if (broken != nullptr) {
    const auto why = this->cause();
    const bool damaged = why && why->code == errc::corrupt;
    WEFT_RING_STORE_32(broken, static_cast<std::uint32_t>(damaged ? end_found_damage : end_lost_kernels));
  }
  for (const auto& l : lanes) {
    set_stop(l->sender.ring);
    wake(*l->sender_waits);
    wake(l->forwarder_waits);
    // else the progress thread does, after it has brought what was sent
    if (is_over() || l->jobs.empty()) end_receiver(*l);
  }
}

void queue_state::end_receiver(queue_lane& l) noexcept {
  set_stop(l.receiver.ring);
  wake(*receiver_waits);
}

queue_status queue_state::ending() const noexcept {
  const std::lock_guard lock{cause_mutex_};
  return stopped_by_;
}

std::shared_ptr<const error> queue_state::cause() const noexcept {
  const std::lock_guard lock{cause_mutex_};
  return cause_;
}

void queue_state::note(std::shared_ptr<const error> damage) noexcept {
  const std::lock_guard lock{cause_mutex_};
  if (stopped_by_ != queue_status::failed) cause_ = std::move(damage);
}

queue_end& open_sender(queue_state& queue, std::source_location where) {
  const std::lock_guard lock{queue.open_mutex};
  for (const auto& l : queue.lanes) {
    if (l->opened) continue;
    l->opened = true;
    return l->sender;
  }
  raise(errc::resource_exhausted,
        "every sending end of the queue from " + to_string(queue.facts.source) + " to " +
            to_string(queue.facts.destination) + " is open (" + std::to_string(queue.lanes.size()) +
            "); ask for more with queue_options::producers",
        where);
}

queue_end* open_receiver(queue_state& queue, std::source_location where) {
  const std::lock_guard lock{queue.open_mutex};
  if (queue.receiver_opened) {
    raise(errc::resource_exhausted,
          "the receiving end of the queue from " + to_string(queue.facts.source) + " to " +
              to_string(queue.facts.destination) + " was opened before: a queue has one receiver",
          where);
  }
  queue.receiver_opened = true;
  return queue.lanes.size() == 1 ? &queue.lanes.front()->receiver : nullptr;
}

const queue_facts& facts_of(const queue_state& queue) noexcept { return queue.facts; }
std::size_t batch_size_of(const queue_state& queue) noexcept { return queue.options.batch_size; }

std::optional<error> failure_of(const queue_state& queue) {
  const auto cause = queue.cause();
  return cause ? std::optional<error>{*cause} : std::nullopt;
}

void close_queue(queue_state& queue) noexcept { queue.stop(nullptr); }

}  // namespace weft::detail
