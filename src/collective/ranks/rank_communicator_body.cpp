// SPDX-License-Identifier: Apache-2.0
#include "collective/ranks/rank_communicator_body.hpp"

#include "collective/ranks/survivors/rank_far_survivors.hpp"
#include "collective/schedule/rank_bit.hpp"
#include "processes/packet_socket.hpp"
#include "weft/core/raise.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <random>
#include <string>

namespace weft::detail {
namespace {

// Between two looks for an abort while a message is waited for.
constexpr std::chrono::milliseconds look_every{20};

std::uint64_t random_id() {
  std::random_device source;
  return std::uint64_t{source()} << 32 | source();
}

/// What a rank says of its part of symmetric memory.
struct part_words {
  std::uint64_t count = 0, element = 0;
  std::uint32_t failed = 0;  // errc + 1
  std::uint8_t way = 0, kind = 0, by_host = 0, reserved = 0;
  std::uint64_t device = 0;
  shared_bytes handle{};

  void set(const symmetric_offer& offer) {
    way = static_cast<std::uint8_t>(offer.way);
    kind = static_cast<std::uint8_t>(offer.kind);
    by_host = offer.by_host ? 1 : 0;
    device = offer.device;
    handle = offer.handle;
  }
  [[nodiscard]] symmetric_offer offer() const {
    return {static_cast<symmetric_way>(way), static_cast<backend_kind>(kind), by_host != 0, device, handle};
  }
};

template <class T>
T words_of(const peer_message& message) {
  T made{};
  if (message.payload.size() >= sizeof made) std::memcpy(&made, message.payload.data(), sizeof made);
  return made;
}

template <class T>
std::vector<std::byte> packed(const T& words, std::string_view text) {
  std::vector<std::byte> made(sizeof words + text.size());
  std::memcpy(made.data(), &words, sizeof words);
  if (!text.empty()) std::memcpy(made.data() + sizeof words, text.data(), text.size());
  return made;
}

template <class T>
std::string text_behind(const peer_message& message) {
  if (message.payload.size() <= sizeof(T)) return {};
  return {reinterpret_cast<const char*>(message.payload.data()) + sizeof(T), message.payload.size() - sizeof(T)};
}

errc code_in(std::uint64_t failed) {
  const std::uint64_t code = failed - 1;
  return code <= static_cast<std::uint64_t>(errc::device_lost) ? static_cast<errc>(code) : errc::corrupt;
}

}  // namespace

rank_communicator_body::rank_communicator_body(std::shared_ptr<process_group> group, std::vector<rank> members,
                                               int self, control_block block, std::unique_ptr<far_ranks> far,
                                               const device& device_of_rank, const rank_communicator_options& how)
    : meeting(std::move(group), std::move(members), self, std::move(block), std::move(far), how.wait_policy,
              state_of(device_of_rank)),
      on(device_of_rank),
      options(how),
      default_(on.default_stream()),
      driver_(&state_of(on)->backend_of(on.id())),
      survivors_(all_of(meeting.size())) {
  const auto n = static_cast<std::size_t>(size());
  pulls_.reserve(n);
  inputs_.resize(n);
  outputs_.resize(n);
  scratch_.resize(scratch_bytes);
  wires_.reserve(n);
  const control_block& shared = meeting.block();
  const int mine = meeting.local(self);
  for (int r = 0; r < size(); ++r) {
    wires& made = wires_.emplace_back();
    if (!meeting.is_near(r)) continue;
    const int other = meeting.local(r);
    made = {rank_wire{shared.wire(mine, other), shared.shape().wire},
            rank_wire{shared.wire(other, mine), shared.shape().wire}};
  }
  if (is_on_several_nodes()) far_survivors_ = std::make_shared<far_survivor_world>(*this);
}

rank_communicator_body::~rank_communicator_body() {
  finish_streamed();
  meeting.mine().departed.store(1, std::memory_order_seq_cst);
  meeting.ring();
}

result<descriptor> rank_communicator_body::make_block(int ranks, int near, const rank_communicator_options& options) {
  // between nodes nothing goes through staging memory
  const std::uint64_t staging = near == ranks ? options.staging.value() : 0;
  return control_block::make(control_shape::of(ranks, near, staging), random_id());
}

rank rank_communicator_body::member(int of) const {
  const far_ranks* far = meeting.far();
  return far != nullptr ? rank{far->carrier().member(of)} : meeting.members()[static_cast<std::size_t>(of)];
}

std::unique_ptr<rank_communicator_body> rank_communicator_body::meet(
    std::shared_ptr<process_group> group, std::vector<rank> members, std::uint64_t tag, const device& on,
    const rank_communicator_options& options, std::chrono::nanoseconds timeout, std::unique_ptr<far_ranks> far) {
  const wait_deadline until = deadline_after(steady_now(), timeout);
  const auto left = [&] {
    return until == no_deadline ? timeout : std::max(std::chrono::nanoseconds{0}, until - steady_now());
  };
  const auto at = std::find(members.begin(), members.end(), group->self());
  if (at == members.end()) raise(errc::invalid_argument, "a communicator of which this process is no member");
  const int self = static_cast<int>(at - members.begin());
  const int size = static_cast<int>(members.size());
  const int near = far ? far->near_count() : size;
  const auto is_near = [&](int r) { return members[static_cast<std::size_t>(r)].value() >= 0; };
  int first = 0;  // of this node
  while (!is_near(first)) ++first;
  std::optional<control_block> block;
  if (self == first) {
    auto made = make_block(size, near, options);
    const std::uint64_t failed = made ? 0 : static_cast<std::uint64_t>(made.error().code) + 1;
    const auto payload = packed(failed, made ? std::string_view{} : std::string_view{made.error().what});
    const int number = made ? made->get() : -1;
    const std::span<const int> with{&number, made ? 1U : 0U};
    for (int r = first + 1; r < size; ++r) {
      if (!is_near(r)) continue;
      auto sent = group->send(members[static_cast<std::size_t>(r)], tag, payload, with, left());
      // who is gone is named below, where everybody is waited for
      if (!sent && sent.error().code != errc::peer_dead && sent.error().code != errc::closed)
        raise(std::move(sent).error());
    }
    block.emplace(value_or_raise(control_block::open(value_or_raise(std::move(made)).get(), size, near)));
  } else {
    // that of an earlier try, which has ended because this rank came too late, is not what this one waits for
    while (!block || rank_meeting::has_timed_out(block->words())) {
      auto got = value_or_raise(group->receive(members[static_cast<std::size_t>(first)], tag, left()));
      if (const auto failed = words_of<std::uint64_t>(got); failed != 0 || got.descriptors.size() != 1) {
        raise(failed == 0 ? errc::corrupt : code_in(failed),
              "rank " + std::to_string(first) +
                  " of a communicator could not make its memory: " + text_behind<std::uint64_t>(got));
      }
      block.emplace(value_or_raise(control_block::open(got.descriptors.front().get(), size, near)));
    }
  }
  auto made = std::make_unique<rank_communicator_body>(std::move(group), std::move(members), self, std::move(*block),
                                                       std::move(far), on, options);
  rank_meeting& m = made->meeting;
  m.resume(left(), "the joining of a communicator");
  m.mine().joined.store(1, std::memory_order_seq_cst);
  m.ring();
  const auto missing = [&] {
    std::uint64_t whom = 0;
    for (int r = 0; r < size; ++r) {
      if (m.is_near(r) && m.area(r).joined.load(std::memory_order_acquire) == 0) whom |= bit(r);
    }
    return whom;
  };
  m.wait([&] { return missing() == 0; }, missing);
  if (m.far() != nullptr) {
    collective_options all;
    all.timeout = left();
    made->barrier(all);
  }
  return made;
}

void rank_communicator_body::finish_streamed() {
  if (!last_) return;
  // waiting for the event would take a failure away that is the program's to hear of
  while (!last_->ready()) {
    const std::uint32_t seen = streamed_.load(std::memory_order_acquire);  // pairs with release in end_streamed
    if (last_->ready()) break;
    parking::park(streamed_, seen, std::chrono::steady_clock::now() + std::chrono::milliseconds{1});
  }
  last_.reset();
}

void rank_communicator_body::end_streamed() noexcept {
  streamed_.fetch_add(1, std::memory_order_release);  // pairs with acquire in finish_streamed
  parking::wake_all(streamed_);
}

void rank_communicator_body::fail_left_out() {
  meeting.fail(errc::cancelled,
               "a call of " + meeting.name_of(self()) + " was left out, because the stream that it was in had failed");
}

event rank_communicator_body::submit(const stream& order, const std::shared_ptr<rank_call>& call, error cause) {
  if (last_ && !last_->ready()) order.wait(*last_);
  const std::uint64_t number = ++submitted_;
  const auto at_once = [&](auto&& f) {
    try {
      f();
    } catch (const std::exception& e) {
      cause = error_of(e);
    }
  };
  // calls run one after another, whatever their streams: so one image serves all
  if (cause.what.empty()) at_once([&] { fill_image(*call, &order); });
  auto work = [this, call, refused = cause.what, number]() -> result<void> {
    result<void> done;
    try {
      // its number is its place in the order of all calls: one that is left out would shift those behind it
      if (meeting.number() + 1 != number) fail_left_out();
      if (refused.empty()) {
        execute(*call);
      } else {
        refuse(*call, refused);
      }
    } catch (const error_exception& e) {
      done = result<void>{e.cause()};
    }
    end_streamed();
    return done;
  };
  last_ = detail::make<event>(state_of(on), value_or_raise(driver_->call(order.native(), std::move(work))));
  if (cause.what.empty()) {
    at_once([&] {
      if (!drain_image(*call, &order)) return;
      // what the call keeps, it keeps until its result is where it belongs
      last_ = detail::make<event>(state_of(on),
                                  value_or_raise(driver_->call(order.native(), [this, call]() -> result<void> {
                                    end_streamed();
                                    return {};
                                  })));
    });
  }
  if (!cause.what.empty()) raise(std::move(cause));
  return *last_;
}

event rank_communicator_body::run(collective what, data_type type, const collective_memory& in,
                                  const collective_memory& out, const reduction_op* op, const collective_options& o) {
  return run_described(o, [&](rank_call& call) { describe(call, what, type, op, in, out, o); });
}

event rank_communicator_body::barrier(const collective_options& o) {
  return run_described(o, [&](rank_call& call) {
    call.terms = {};
    call.in = call.out = {};
    call.timeout = o.timeout.value_or(options.timeout);
  });
}

template <class F>
event rank_communicator_body::run_described(const collective_options& o, const F& describe) {
  if (state_of(on)->closed()) {
    meeting.end(errc::cancelled, "the machine of " + meeting.name_of(self()) + " was closed");
    state_of(on)->require_open();
  }
  if (o.streams.size() == 1 && o.streams.front().on() == on) {
    if (meeting.block().words().ended.load(std::memory_order_acquire) != 0) meeting.raise_ended();
    auto call = std::make_shared<rank_call>();
    call->is_streamed = true;
    error cause;
    try {
      describe(*call);
    } catch (const std::exception& e) {
      cause = error_of(e);
    }
    return submit(o.streams.front(), call, std::move(cause));
  }
  finish_streamed();
  if (meeting.block().words().ended.load(std::memory_order_acquire) != 0) meeting.raise_ended();
  if (meeting.number() != submitted_++) fail_left_out();
  // The others are told of whatever is wrong here: they would wait for this rank until their timeout.
  try {
    now_.terms = {};
    now_.timeout = o.timeout.value_or(options.timeout);
    if (!o.streams.empty())
      raise(errc::invalid_argument, "a call of one rank takes one stream, of its device " + to_string(on.id()));
    describe(now_);
  } catch (const std::exception& e) {
    error cause = error_of(e);
    refuse(now_, cause.what);
    raise(std::move(cause));
  }
  execute(now_);
  return {};
}

peer_message rank_communicator_body::receive(int from, std::uint64_t tag, std::string_view doing) {
  const wait_deadline until = deadline_after(steady_now(), options.timeout);
  for (std::chrono::nanoseconds turn = look_every;;) {
    auto got = meeting.group().receive(meeting.members()[static_cast<std::size_t>(from)], tag, turn);
    if (got) return std::move(*got);
    if (meeting.failure()) meeting.raise_ended();
    // it may be hidden behind others that another thread is about to take, which is an error of the endpoint
    const errc code = got.error().code;
    const bool is_early =
        code == errc::timed_out || (code == errc::resource_exhausted && got.error().scope == error_scope::endpoint);
    if (is_early && meeting.is_here(from) && steady_now() < until) continue;
    if (is_early && !meeting.is_here(from)) {
      // what it said before it went may have come since
      if (turn != turn.zero()) {
        turn = turn.zero();
        continue;
      }
      meeting.fail(errc::peer_dead,
                   meeting.name_of(from) + " has let the communicator go during " + std::string{doing});
    }
    meeting.fail(code == errc::closed ? errc::peer_dead : code,
                 meeting.name_of(from) + (code == errc::timed_out ? " did not come in time to " : " was lost during ") +
                     std::string{doing});
  }
}

void rank_communicator_body::send(int to, std::uint64_t tag, std::span<const std::byte> payload,
                                  std::span<const int> descriptors, std::string_view doing) {
  auto sent =
      meeting.group().send(meeting.members()[static_cast<std::size_t>(to)], tag, payload, descriptors, options.timeout);
  if (sent) return;
  const errc code = sent.error().code;
  meeting.fail(code == errc::closed ? errc::peer_dead : code,
               meeting.name_of(to) + " was lost during " + std::string{doing});
}

/// Each node has its own; what fails on one of them fails everywhere.
std::shared_ptr<symmetric_block> rank_communicator_body::allocate(std::size_t count, std::size_t element) {
  if (!is_on_several_nodes()) return allocate_on_node(count, element);
  std::shared_ptr<symmetric_block> made;
  std::optional<error> cause;
  try {
    made = allocate_on_node(count, element);
  } catch (const error_exception& e) {
    if (meeting.failure()) throw;
    cause = e.cause();
  }
  struct words {
    std::uint64_t failed, count, element;
  };
  words mine{cause ? static_cast<std::uint64_t>(cause->code) + 1 : 0, count, element};
  std::vector<words> all(static_cast<std::size_t>(size()));
  gather_words(std::as_writable_bytes(std::span{&mine, 1}), std::as_writable_bytes(std::span{all}));
  if (cause) raise(std::move(*cause));
  for (int r = 0; r < size(); ++r) {
    const words& one = all[static_cast<std::size_t>(r)];
    if (one.failed != 0) raise(code_in(one.failed), meeting.name_of(r) + " has no symmetric memory");
    if (one.count == count && one.element == element) continue;
    raise(errc::incompatible, meeting.name_of(self()) + " asks for " + std::to_string(count) + " elements of " +
                                  std::to_string(element) + " bytes, " + meeting.name_of(r) + " for " +
                                  std::to_string(one.count) + " elements of " + std::to_string(one.element));
  }
  return made;
}

void rank_communicator_body::gather_words(std::span<std::byte> mine, std::span<std::byte> all) {
  const auto memory = [](std::span<std::byte> of) {
    return collective_memory{{nullptr, of.data(), of.size(), {}, memory_kind::pinned}, nullptr};
  };
  static_cast<void>(run(collective::all_gather, data_type::uint8, memory(mine), memory(all), nullptr, {}));
}

std::shared_ptr<symmetric_block> rank_communicator_body::allocate_on_node(std::size_t count, std::size_t element) {
  constexpr std::string_view doing = "an allocation of symmetric memory";
  state_of(on)->require_open();
  finish_streamed();
  meeting.resume(options.timeout, {});
  const std::uint64_t tag = collective_tag(meeting.block().id(), 1);
  part_words mine;
  mine.count = count;
  mine.element = element;
  symmetric_part own;
  error cause;
  const auto failed = [&](const error& e) {
    // whether peers are missing or something else: there is no such memory here
    mine.failed = static_cast<std::uint32_t>(e.code == errc::peer_unsupported ? errc::unsupported : e.code) + 1;
    cause = e;
  };
  try {
    if (count > (std::uint64_t{1} << 46) / std::max<std::size_t>(element, 1)) {
      raise(errc::out_of_memory, "symmetric memory of " + std::to_string(count) + " elements on " + to_string(on.id()));
    }
    own = symmetric_part::make(on, count * element);
    mine.set(own.offer(on));
  } catch (const error_exception& e) {
    failed(e.cause());
  }
  // Twice everybody tells everybody: what it has, and whether it reaches what the others have. A failure of one is so
  // known to all, and none goes on with memory that another one has not.
  const auto tell = [&](bool with_memory) {
    const auto payload = packed(mine, std::string_view{cause.what}.substr(0, 1000));
    const int number = own.file().get();
    const bool with_file = with_memory && mine.failed == 0 && number >= 0;
    for (int r = 0; r < size(); ++r) {
      if (r != self() && meeting.is_near(r)) send(r, tag, payload, {&number, with_file ? 1U : 0U}, doing);
    }
  };
  tell(true);
  std::vector<peer_message> others(static_cast<std::size_t>(size()));
  for (int r = 0; r < size(); ++r) {
    if (r != self() && meeting.is_near(r)) others[static_cast<std::size_t>(r)] = receive(r, tag, doing);
  }
  std::vector<part_words> all(static_cast<std::size_t>(size()));
  for (int r = 0; r < size(); ++r) {
    const auto i = static_cast<std::size_t>(r);
    all[i] = r == self() || !meeting.is_near(r) ? mine : words_of<part_words>(others[i]);
  }
  const auto raise_failed = [&] {
    for (int r = 0; r < size(); ++r) {
      const auto i = static_cast<std::size_t>(r);
      if (all[i].failed == 0) continue;
      raise(code_in(all[i].failed), meeting.name_of(r) + " has no symmetric memory: " +
                                        (r == self() ? cause.what : text_behind<part_words>(others[i])));
    }
  };
  for (int r = 1; r < size(); ++r) {
    const auto i = static_cast<std::size_t>(r);
    if (all[i].count == all[0].count && all[i].element == all[0].element) continue;
    raise(errc::incompatible, meeting.name_of(0) + " asks for " + std::to_string(all[0].count) + " elements of " +
                                  std::to_string(all[0].element) + " bytes, " + meeting.name_of(r) + " for " +
                                  std::to_string(all[i].count) + " elements of " + std::to_string(all[i].element));
  }
  raise_failed();
  for (int r = 1; r < size(); ++r) {
    const auto i = static_cast<std::size_t>(r);
    if (all[i].kind == all[0].kind && all[i].by_host == all[0].by_host) continue;
    const auto named = [&](std::size_t of) {
      return meeting.name_of(static_cast<int>(of)) + " (" + std::string{to_string(all[of].offer().kind)} +
             (all[of].by_host != 0 ? ", reached by the host)" : ", reached by devices alone)");
    };
    raise(errc::unsupported, "no memory is symmetric between " + named(0) + " and " + named(i));
  }
  std::shared_ptr<symmetric_block> made;
  try {
    std::vector<symmetric_part> parts(static_cast<std::size_t>(size()));
    for (int r = 0; r < size(); ++r) {
      if (r == self() || !meeting.is_near(r)) continue;
      const auto i = static_cast<std::size_t>(r);
      const std::size_t files = all[i].offer().way == symmetric_way::handle ? 0 : 1;
      if (others[i].descriptors.size() != files) raise(errc::corrupt, meeting.name_of(r) + " sent no memory");
      const descriptor none;
      const descriptor& file = files == 0 ? none : others[i].descriptors.front();
      try {
        parts[i] = symmetric_part::open(on, all[i].offer(), file, count * element, mine.by_host != 0);
      } catch (const error_exception& e) {
        error about = e.cause();
        about.what = "the memory of " + meeting.name_of(r) + ": " + about.what;
        raise(std::move(about));
      }
      others[i].descriptors.clear();
    }
    own.close_file();
    parts[static_cast<std::size_t>(self())] = std::move(own);
    made =
        std::make_shared<symmetric_block>(meeting.block().id(), blocks_ + 1, count * element, self(), std::move(parts));
  } catch (const error_exception& e) {
    failed(e.cause());
  }
  tell(false);
  for (int r = 0; r < size(); ++r) {
    const auto i = static_cast<std::size_t>(r);
    if (r != self() && meeting.is_near(r)) others[i] = receive(r, tag, doing);
    all[i] = r == self() || !meeting.is_near(r) ? mine : words_of<part_words>(others[i]);
  }
  raise_failed();
  ++blocks_;
  return made;
}

std::unique_ptr<rank_communicator_body> rank_communicator_body::split(int colour, int key) {
  struct place {
    std::int32_t colour, key;
    std::uint32_t number;  // that its carrier has not given yet
  };
  std::vector<place> all(static_cast<std::size_t>(size()));
  far_ranks* const far = meeting.far();
  place mine{colour, key, far != nullptr ? far->carrier().free_number() : 0};
  gather_words(std::as_writable_bytes(std::span{&mine, 1}), std::as_writable_bytes(std::span{all}));
  std::vector<int> order;
  order.reserve(all.size());
  for (int r = 0; r < size(); ++r) {
    if (all[static_cast<std::size_t>(r)].colour == colour) order.push_back(r);
  }
  std::sort(order.begin(), order.end(), [&](int a, int b) {
    const int left = all[static_cast<std::size_t>(a)].key, right = all[static_cast<std::size_t>(b)].key;
    return left != right ? left < right : a < b;
  });
  std::vector<rank> members;
  members.reserve(order.size());
  std::vector<int> nodes;
  std::uint32_t number = 0;
  for (const int r : order) {
    members.push_back(meeting.members()[static_cast<std::size_t>(r)]);
    nodes.push_back(far != nullptr ? far->nodes()[static_cast<std::size_t>(r)] : 0);
    number = std::max(number, all[static_cast<std::size_t>(r)].number);
  }
  std::unique_ptr<far_ranks> theirs;
  if (far != nullptr) {
    const auto self_at = std::find(order.begin(), order.end(), self()) - order.begin();
    theirs =
        std::make_unique<far_ranks>(far->carrier().among(order, number), std::move(nodes), static_cast<int>(self_at));
  }
  return meet(meeting.shared_group(), std::move(members), collective_tag(meeting.block().id(), 2), on, options,
              options.timeout, std::move(theirs));
}

}  // namespace weft::detail
