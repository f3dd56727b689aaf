// SPDX-License-Identifier: Apache-2.0
#include "backends/host/race_check/order_check.hpp"

#include "weft/core/log.hpp"

#include <algorithm>
#include <iterator>
#include <string_view>

namespace weft::host {

/// How far each stream has come; immutable once somebody else holds it.
struct order_check::clock {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> seen;  // stream, number of its last operation; by stream
  std::vector<std::shared_ptr<const gate>> gates;             // and what these will have seen when they open
};

struct order_check::gate {
  bool open = false;
  clock_ref at;  // what the host had seen when it opened
};

struct order_check::mark {
  std::uint64_t stream = 0;
  std::uint64_t number = 0;
  clock_ref base;  // what it comes after, beside what its stream held
  std::shared_ptr<gate> is_gate;
  order_operation operation;
};

namespace {

std::string place_of(const std::source_location& where) {
  if (where.line() == 0) return {};
  const std::string_view path = where.file_name();
  return std::string{path.substr(path.rfind('/') + 1)} + ":" + std::to_string(where.line());
}

std::string end_of_copy(device_id id) { return id == device_id{} ? std::string{"the host"} : to_string(id); }

std::string_view noun_of(const order_operation& op) {
  switch (op.what) {
    case order_operation::kind::copy:
      return "copy";
    case order_operation::kind::fill:
      return "fill";
    case order_operation::kind::launch:
      return "kernel";
    case order_operation::kind::prefetch:
      return "prefetch";
    case order_operation::kind::other:
      break;
  }
  return "operation";
}

std::string text_of(const order_operation& op) {
  std::string text{noun_of(op)};
  if (op.what == order_operation::kind::launch) {
    return text + " '" + (op.kernel ? op.kernel->name : std::string{}) + "' on " + to_string(op.on);
  }
  text += " of " + to_string(bytes{op.size});
  if (op.what == order_operation::kind::copy) {
    return text + " from " + end_of_copy(op.from) + " to " + end_of_copy(op.to);
  }
  return text + " on " + to_string(op.on);
}

std::string text_of(const order_operation& op, std::uint32_t argument) {
  std::string text = text_of(op);
  if (argument == 0) return text;
  text += ", argument " + std::to_string(argument);
  if (op.kernel && argument <= op.kernel->parameters.size()) {
    text += " (" + op.kernel->parameters[argument - 1].name + ")";
  }
  return text;
}

/// What makes two reports the same: their source lines, or what the operations are where they have none.
std::string key_of(const order_operation& op, std::uint32_t argument) {
  if (op.where.line() == 0) return text_of(op, argument);
  return std::string{op.where.file_name()} + ":" + std::to_string(op.where.line());
}

std::string in_a_sentence(const order_operation& op) {
  const std::string place = place_of(op.where);
  return "the " + text_of(op) + (place.empty() ? "" : " (" + place + ")");
}

template <class Seen>
auto part_of(Seen& seen, std::uint64_t stream) {
  return std::lower_bound(seen.begin(), seen.end(), stream,
                          [](const auto& part, std::uint64_t wanted) { return part.first < wanted; });
}

}  // namespace

// ---- clocks ---------------------------------------------------------------------------------------------------------

order_check::order_check() : host_(std::make_shared<const clock>()) {}
order_check::~order_check() = default;

order_check::stream_state& order_check::state_of(stream_handle stream) {
  const auto [known, is_new] = streams_.try_emplace(static_cast<std::uint64_t>(stream));
  if (is_new) known->second = {0, host_, host_version_, nullptr};
  return known->second;
}

order_check::verdict order_check::contains(const clock& known, std::uint64_t stream, std::uint64_t number) {
  const auto part = part_of(known.seen, stream);
  if (part != known.seen.end() && part->first == stream && part->second >= number) return verdict::ordered;
  verdict found = verdict::unordered;
  for (const auto& g : known.gates) {
    const verdict of_gate = g->open ? contains(*g->at, stream, number) : verdict::later;
    if (of_gate == verdict::ordered) return verdict::ordered;
    if (of_gate == verdict::later) found = verdict::later;
  }
  return found;
}

order_check::verdict order_check::before(const mark& a, const mark& b) {
  if (a.stream == b.stream) return a.number <= b.number ? verdict::ordered : verdict::unordered;
  return contains(*b.base, a.stream, a.number);
}

order_check::verdict order_check::either(const mark& a, const mark& b) {
  const verdict forward = before(a, b);
  if (forward == verdict::ordered) return forward;
  // A gate that the host opens late lets what was submitted first come last.
  const verdict backward = before(b, a);
  if (backward == verdict::ordered) return backward;
  return forward == verdict::later || backward == verdict::later ? verdict::later : verdict::unordered;
}

void order_check::add_into(clock& into, const clock& other) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> both;
  both.reserve(std::max(into.seen.size(), other.seen.size()));
  auto a = into.seen.begin();
  auto b = other.seen.begin();
  while (a != into.seen.end() || b != other.seen.end()) {
    if (b == other.seen.end() || (a != into.seen.end() && a->first < b->first)) {
      both.push_back(*a++);
    } else if (a == into.seen.end() || b->first < a->first) {
      both.push_back(*b++);
    } else {
      both.emplace_back(a->first, std::max(a->second, b->second));
      ++a;
      ++b;
    }
  }
  into.seen = std::move(both);
  for (const auto& g : other.gates) {
    if (g->open) {
      add_into(into, *g->at);
    } else if (std::find(into.gates.begin(), into.gates.end(), g) == into.gates.end()) {
      into.gates.push_back(g);
    }
  }
}

void order_check::join(clock_ref& into, const clock& other) {
  auto made = std::make_shared<clock>();
  add_into(*made, *into);  // into an empty one: what has opened by now is no gate any more
  add_into(*made, other);
  into = std::move(made);
}

void order_check::join(clock_ref& into, const mark& event) {
  if (event.is_gate) {
    if (event.is_gate->open) {
      join(into, *event.is_gate->at);
    } else {
      clock one;
      one.gates.push_back(event.is_gate);
      join(into, one);
    }
    return;
  }
  const auto part = part_of(into->seen, event.stream);
  if (part != into->seen.end() && part->first == event.stream && part->second >= event.number) return;
  clock more;
  add_into(more, *event.base);
  const auto place = part_of(more.seen, event.stream);
  if (place != more.seen.end() && place->first == event.stream) {
    place->second = std::max(place->second, event.number);
  } else {
    more.seen.insert(place, {event.stream, event.number});
  }
  join(into, more);
}

// ---- order ----------------------------------------------------------------------------------------------------------

void order_check::wait(stream_handle stream, const mark_ref& event) {
  if (!event) return;
  const std::lock_guard lock{mutex_};
  if (!event->is_gate && event->stream == static_cast<std::uint64_t>(stream)) return;
  stream_state& state = state_of(stream);
  join(state.base, *event);
  ++state.submitted;  // an event recorded from here on says more than one recorded before
}

void order_check::wait_for_all(stream_handle stream) {
  const std::lock_guard lock{mutex_};
  clock all;
  for (const auto& [id, other] : streams_) {
    add_into(all, *other.base);
    const auto place = part_of(all.seen, id);
    if (place != all.seen.end() && place->first == id) {
      place->second = other.submitted;
    } else {
      all.seen.insert(place, {id, other.submitted});
    }
  }
  stream_state& state = state_of(stream);
  join(state.base, all);
  ++state.submitted;
}

order_check::mark_ref order_check::create_gate() {
  auto made = std::make_shared<mark>();
  made->is_gate = std::make_shared<gate>();
  return made;
}

order_check::mark_ref order_check::hold(stream_handle stream) {
  auto made = std::make_shared<mark>();
  made->is_gate = std::make_shared<gate>();
  const std::lock_guard lock{mutex_};
  stream_state& state = state_of(stream);
  auto next = std::make_shared<clock>();
  add_into(*next, *state.base);
  // It opens after the one before, when the host has seen no less: one gate says it all, however many are queued.
  std::erase(next->gates, state.last_hold);
  next->gates.push_back(made->is_gate);
  state.base = std::move(next);
  state.last_hold = made->is_gate;
  ++state.submitted;
  return made;
}

void order_check::open_gate(const mark_ref& opened) { open(opened, false); }

void order_check::open_gate_after_all(const mark_ref& opened) { open(opened, true); }

void order_check::open(const mark_ref& opened, bool after_all) {
  if (!opened || !opened->is_gate) return;
  std::vector<std::string> remarks;
  {
    const std::lock_guard lock{mutex_};
    if (opened->is_gate->open) return;
    opened->is_gate->at = host_;
    if (after_all) {
      auto all = std::make_shared<clock>();
      for (const auto& [id, other] : streams_) all->seen.emplace_back(id, other.submitted);
      std::sort(all->seen.begin(), all->seen.end());
      opened->is_gate->at = std::move(all);
    }
    opened->is_gate->open = true;
    std::vector<pair> bad;
    std::erase_if(put_off_, [&](const pair& p) {
      const verdict now = either(*p.first.by, *p.second.by);
      if (now == verdict::unordered) bad.push_back(p);
      return now != verdict::later;
    });
    remarks = report(bad);
  }
  for (const std::string& remark : remarks) log(log_level::warning, remark);
}

void order_check::host_waited(const mark_ref& event) {
  if (!event) return;
  const std::lock_guard lock{mutex_};
  const clock_ref before_it = host_;
  join(host_, *event);
  if (host_ != before_it) ++host_version_;
}

void order_check::stream_synchronized(stream_handle stream) {
  mark now;
  const std::lock_guard lock{mutex_};
  const auto known = streams_.find(static_cast<std::uint64_t>(stream));
  if (known == streams_.end()) return;
  now.stream = known->first;
  now.number = known->second.submitted;
  now.base = known->second.base;
  const clock_ref before_it = host_;
  join(host_, now);
  if (host_ != before_it) ++host_version_;
}

void order_check::stream_gone(stream_handle stream) {
  constexpr std::size_t many = 256;
  stream_synchronized(stream);
  const std::lock_guard lock{mutex_};
  if (streams_.erase(static_cast<std::uint64_t>(stream)) != 0 && ++streams_gone_ >= many) sweep();
}

void order_check::freed(std::uintptr_t begin, std::uint64_t size) {
  const std::lock_guard lock{mutex_};
  if (size == 0 || pieces_.empty()) return;
  const auto last = split(begin + size);
  pieces_.erase(split(begin), last);
}

// ---- accesses -------------------------------------------------------------------------------------------------------

order_check::mark_ref order_check::submitted(stream_handle stream, order_operation operation,
                                             std::span<const order_access> accesses) {
  auto made = std::make_shared<mark>();
  made->operation = std::move(operation);
  std::vector<std::string> remarks;
  {
    const std::lock_guard lock{mutex_};
    stream_state& state = state_of(stream);
    if (state.seen_of_host != host_version_) {
      join(state.base, *host_);
      state.seen_of_host = host_version_;
    }
    if (!accesses.empty()) ++state.submitted;
    made->stream = static_cast<std::uint64_t>(stream);
    made->number = state.submitted;
    made->base = state.base;
    std::vector<pair> bad;
    for (const order_access& access : accesses) touch({made, access.argument, access.writes}, access, bad);
    remarks = report(bad);
    if (pieces_.size() > pieces_limit_) sweep();
  }
  // outside the lock: the hook is the program's, and may ask for what was found
  for (const std::string& remark : remarks) log(log_level::warning, remark);
  return made;
}

std::map<std::uintptr_t, order_check::piece>::iterator order_check::split(std::uintptr_t at) {
  auto next = pieces_.lower_bound(at);
  if (next == pieces_.begin()) return next;
  const auto in = std::prev(next);
  if (in->second.end <= at) return next;
  next = pieces_.emplace_hint(next, at, in->second);
  in->second.end = at;
  return next;
}

void order_check::touch(const held& now, const order_access& access, std::vector<pair>& bad) {
  if (access.size == 0) return;
  const std::uintptr_t end = access.begin + access.size;
  const auto stop = split(end);
  auto next = split(access.begin);
  std::uintptr_t at = access.begin;
  while (at < end) {
    if (next == stop || next->first > at) {  // nobody was here
      const std::uintptr_t until = next == stop ? end : next->first;
      pieces_.emplace_hint(next, at, piece{until, {now}});
      at = until;
      continue;
    }
    meet(next->second, now, at, access, bad);
    at = next->second.end;
    ++next;
  }
  // A whole made of chunks that were touched one by one is one piece again once it is touched as a whole.
  auto left = pieces_.find(access.begin);
  if (left != pieces_.begin()) --left;
  while (left != pieces_.end() && left->first < end) {
    const auto right = std::next(left);
    if (right == pieces_.end() || right->first > end) break;
    if (left->second.end == right->first && left->second.accesses == right->second.accesses) {
      left->second.end = right->second.end;
      pieces_.erase(right);
    } else {
      left = right;
    }
  }
}

void order_check::meet(piece& where, const held& now, std::uintptr_t begin, const order_access& access,
                       std::vector<pair>& bad) {
  constexpr std::size_t most_put_off = 4096;
  const auto add = [&](std::vector<pair>& to, const held& first) {
    // what meets the same access in the next piece too is one overlap
    constexpr std::ptrdiff_t looked_at = 16;
    const auto known = std::find_if(to.rbegin(), to.rbegin() + std::min(looked_at, std::ssize(to)), [&](const pair& p) {
      return p.first == first && p.second == now && p.end == begin;
    });
    if (known != to.rbegin() + std::min(looked_at, std::ssize(to))) {
      known->end = where.end;
    } else {
      to.push_back({first, now, access.base, begin, where.end});
    }
  };
  const auto& now_gates = now.by->base->gates;
  std::erase_if(where.accesses, [&](const held& old) {
    if (old.by == now.by) return old.writes == now.writes;
    const bool is_past = before(*old.by, *now.by) == verdict::ordered;
    // Who races with an older access races with this one too, so that one need not be looked at any more; unless a
    // gate keeps only this one back, and what comes later here may run before it.
    const bool covered = is_past && (now.writes || !old.writes) && std::ranges::all_of(now_gates, [&](const auto& g) {
                           const auto& kept = old.by->base->gates;
                           return g->open || std::find(kept.begin(), kept.end(), g) != kept.end();
                         });
    if (is_past || (!old.writes && !now.writes)) return covered;
    switch (either(*old.by, *now.by)) {
      case verdict::ordered:
        return false;
      case verdict::unordered:
        add(bad, old);
        return now.writes;
      case verdict::later:
        if (put_off_.size() < most_put_off) add(put_off_, old);
        return false;
    }
    return false;
  });
  where.accesses.push_back(now);
}

void order_check::sweep() {
  // What the host has seen comes before whatever is submitted from now on.
  for (auto p = pieces_.begin(); p != pieces_.end();) {
    std::erase_if(p->second.accesses, [&](const held& old) {
      return contains(*host_, old.by->stream, old.by->number) == verdict::ordered;
    });
    p = p->second.accesses.empty() ? pieces_.erase(p) : std::next(p);
  }
  pieces_limit_ = std::max<std::size_t>(1024, pieces_.size() * 2);
  if (streams_gone_ == 0) return;
  // A stream that is gone had ended, and the host had seen that: nothing of it is left above.
  streams_gone_ = 0;
  std::set<std::uint64_t> wanted;
  for (const pair& p : put_off_) wanted.insert({p.first.by->stream, p.second.by->stream});
  const auto shortened = [&](const clock_ref& from) {
    auto made = std::make_shared<clock>();
    add_into(*made, *from);
    std::erase_if(made->seen,
                  [&](const auto& part) { return !streams_.contains(part.first) && !wanted.contains(part.first); });
    return made;
  };
  host_ = shortened(host_);
  for (auto& [id, state] : streams_) state.base = shortened(state.base);
}

// ---- what was found -------------------------------------------------------------------------------------------------

std::vector<std::string> order_check::report(const std::vector<pair>& bad) {
  constexpr std::size_t most_told = 100000;
  std::vector<std::string> remarks;
  for (const pair& p : bad) {
    const order_operation& first = p.first.by->operation;
    const order_operation& second = p.second.by->operation;
    if (told_.size() >= most_told) {
      ++found_;
      continue;
    }
    if (!told_.emplace(key_of(first, p.first.argument), key_of(second, p.second.argument)).second) continue;
    ++found_;
    const auto described = [](const held& access, const order_operation& op) {
      return unordered_operation{text_of(op, access.argument), op.where, op.on, access.by->stream, access.writes};
    };
    order_violation made;
    made.first = described(p.first, first);
    made.second = described(p.second, second);
    made.base = reinterpret_cast<const void*>(p.base);
    made.offset = bytes{p.begin - p.base};
    made.size = bytes{p.end - p.begin};
    const auto verb = [](const held& access) { return access.writes ? " writes" : " reads"; };
    const std::string noun{noun_of(first)};
    made.what = in_a_sentence(second) + verb(p.second) + " what " + in_a_sentence(first) + verb(p.first) +
                ", and nothing orders them; make its stream wait for the event of the " + noun +
                ", or wait for that on the host before it is submitted";
    remarks.push_back(made.what);
    if (violations_.size() < most_kept) violations_.push_back(std::move(made));
  }
  return remarks;
}

std::vector<order_violation> order_check::violations() const {
  const std::lock_guard lock{mutex_};
  return violations_;
}

std::uint64_t order_check::found() const {
  const std::lock_guard lock{mutex_};
  return found_;
}

std::size_t order_check::pieces() const {
  const std::lock_guard lock{mutex_};
  return pieces_.size();
}

std::size_t order_check::clock_parts() const {
  const std::lock_guard lock{mutex_};
  std::size_t parts = host_->seen.size();
  for (const auto& [id, state] : streams_) parts += state.base->seen.size() + state.base->gates.size();
  return parts;
}

}  // namespace weft::host
