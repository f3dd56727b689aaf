// SPDX-License-Identifier: Apache-2.0
#include "virtual_driver/driver/machine.hpp"

#include <algorithm>
#include <cstring>
#include <thread>
#include <unistd.h>
#include <utility>

namespace weft::virtual_cuda {
namespace {

/// Of the device's: hundreds of MiB on hardware.
constexpr std::size_t memory_of_a_context = std::size_t{1} << 20;

machine* opened = nullptr;
std::mutex open_mutex;

}  // namespace

machine& the() { return *opened; }
bool is_open() { return __atomic_load_n(&opened, __ATOMIC_ACQUIRE) != nullptr; }

CUresult open_machine() {
  const std::lock_guard lock{open_mutex};
  if (opened != nullptr) return CUDA_SUCCESS;
  const settings& s = given();
  if (!s.problem.empty()) return CUDA_ERROR_INVALID_VALUE;
  if (s.visible.empty()) return CUDA_ERROR_NO_DEVICE;
  __atomic_store_n(&opened, new machine(s), __ATOMIC_RELEASE);
  return CUDA_SUCCESS;
}

physical::~physical() {
  if (own_file && file >= 0) ::close(file);
  if (device >= 0 && charged != 0) {
    // the lock is held by whoever lets the last reference go, or nobody else knows the device's count by then
    __atomic_fetch_sub(&the().devices[static_cast<std::size_t>(device)].used, charged, __ATOMIC_RELAXED);
  }
}

context::context() {
  for (unsigned n = 0; n < connections_of_contexts().load(); ++n) {
    shared.work.push_back(std::make_shared<connection>());
    shared.copies.push_back(std::make_shared<connection>());
  }
}

void context::lose(CUresult code) {
  int fine = 0;
  lost.compare_exchange_strong(fine, code);
}

namespace {

// What a thread leaves behind at its end: what is queued in its streams still runs.
struct thread_traces {
  std::vector<std::weak_ptr<context>> seen;
  ~thread_traces() {
    for (const auto& weak : seen) {
      if (const context_ref c = weak.lock()) c->forget_thread(std::this_thread::get_id());
    }
  }
};
thread_local thread_traces traces;

}  // namespace

stream_ref context::stream_of_thread(const std::shared_ptr<context>& self) {
  stream_ref made;
  {
    const std::lock_guard lock{null_mutex_};
    if (null_stream_ == nullptr) return nullptr;
    stream_ref& mine = of_threads_[std::this_thread::get_id()];
    if (mine != nullptr) return mine;
    made = mine = std::make_shared<stream>(self, true, 0);
  }
  traces.seen.push_back(self);
  const std::lock_guard lock{submit_mutex};
  streams.push_back(made);
  return made;
}

void context::forget_thread(std::thread::id gone) {
  stream_ref last;
  const std::lock_guard lock{null_mutex_};
  if (const auto it = of_threads_.find(gone); it != of_threads_.end()) {
    last = std::move(it->second);
    of_threads_.erase(it);
    last->close();
  }
}

void context::forget_threads() {
  std::map<std::thread::id, stream_ref> gone;
  const std::lock_guard lock{null_mutex_};
  gone.swap(of_threads_);
}

machine::machine(const settings& s)
    : about(s), space(s.window, static_cast<int>(s.visible.size())), devices(s.visible.size()) {
  for (std::size_t n = 0; n < devices.size(); ++n) {
    devices[n].physical_index = s.visible[n];
    devices[n].memory = s.machine.devices[static_cast<std::size_t>(s.visible[n])].memory.size();
    auto first = std::make_shared<pool>();
    first->device = static_cast<int>(n);
    first->properties.location.id = static_cast<int>(n);
    first->rights[n] = access_read_write;
    first->is_default = true;
    first->id = next_id++;
    devices[n].default_pool = first->handle = pools.add(first);
  }
}

bool machine::can_access(int from, int to) const {
  const int n = about.machine.device_count();
  const int a = devices[static_cast<std::size_t>(from)].physical_index;
  const int b = devices[static_cast<std::size_t>(to)].physical_index;
  return from != to &&
         about.machine.access[static_cast<std::size_t>(a) * static_cast<std::size_t>(n) + static_cast<std::size_t>(b)];
}

int machine::ordinal_of(int physical) const {
  for (int n = 0; n < count(); ++n) {
    if (devices[static_cast<std::size_t>(n)].physical_index == physical) return n;
  }
  return -1;
}

std::shared_ptr<memory_range> machine::find(std::uint64_t address) const {
  auto it = ranges.upper_bound(address);
  if (it == ranges.begin()) return nullptr;
  --it;
  return address - it->first < it->second->size ? it->second : nullptr;
}

std::uint8_t machine::right(int by, const memory_range& range) const {
  switch (range.kind) {
    case range_kind::device:
    case range_kind::global:
    case range_kind::imported:
      return by == range.device ||
                     devices[static_cast<std::size_t>(by)].peers[static_cast<std::size_t>(range.device)] ||
                     range.rights[static_cast<std::size_t>(by)] != 0
                 ? access_read_write
                 : access_none;
    case range_kind::pool:
      return range.home->rights[static_cast<std::size_t>(by)];
    case range_kind::mapping:
    case range_kind::multicast:
      return range.rights[static_cast<std::size_t>(by)];
    default:
      return access_read_write;
  }
}

void machine::show(int by, const memory_range& range) {
  if (range.group != nullptr) return;  // loads and stores are not for it
  const std::uint8_t allowed = right(by, range);
  const int window = address_space::device(by);
  if (allowed == access_none) {
    space.hide(window, range.base, range.size);
  } else {
    const unsigned lost = lost_ways[static_cast<std::size_t>(by)][static_cast<std::size_t>(range.device)].load();
    space.show(window, range.base, range.size, range.memory->file, range.memory->offset, allowed == access_read_write,
               (lost & way_into(range.kind)) != 0);
  }
}

void machine::show(const memory_range& range) {
  space.show(address_space::engine, range.base, range.size, range.memory->file, range.memory->offset, true);
  for (int by = 0; by < count(); ++by) {
    if (right(by, range) != access_none) show(by, range);
  }
}

void machine::hide(const memory_range& range) {
  for (int window = 0; window < 2 + count(); ++window) space.hide(window, range.base, range.size);
}

bool machine::charge(int ordinal, std::size_t size) {
  device& d = devices[static_cast<std::size_t>(ordinal)];
  const std::size_t used = __atomic_load_n(&d.used, __ATOMIC_RELAXED);
  if (size > d.memory || used > d.memory - size) return false;
  __atomic_fetch_add(&d.used, size, __ATOMIC_RELAXED);
  return true;
}

void machine::uncharge(int ordinal, std::size_t size) {
  __atomic_fetch_sub(&devices[static_cast<std::size_t>(ordinal)].used, size, __ATOMIC_RELAXED);
}

std::shared_ptr<memory_range> machine::allocate(int ordinal, std::size_t size, range_kind kind, CUresult& code) {
  code = CUDA_ERROR_OUT_OF_MEMORY;
  if (size > space.offset_of(~std::uint64_t{0})) return nullptr;
  const std::size_t charged = up(size, 512);
  if (!charge(ordinal, charged)) return nullptr;
  const auto address = space.take(size, page);
  if (!address) {
    uncharge(ordinal, charged);
    return nullptr;
  }
  auto range = std::make_shared<memory_range>();
  range->kind = kind;
  range->base = *address;
  range->size = size;
  range->id = next_id++;
  range->device = ordinal;
  range->memory = std::make_shared<physical>();
  range->memory->file = space.heap();
  range->memory->offset = space.offset_of(*address);
  range->memory->size = up(size, page);
  range->memory->device = ordinal;
  range->memory->charged = charged;
  code = CUDA_SUCCESS;
  return range;
}

void machine::end(const std::shared_ptr<memory_range>& range) {
  ranges.erase(range->base);
  if (!space.holds(range->base)) return;
  hide(*range);
  if (range->kind == range_kind::mapping || range->group != nullptr)
    return;  // its addresses are those of a reservation
  if (!range->memory->own_file) space.drop(range->base, range->size);
  space.give(range->base, range->size);
}

std::vector<context_ref> device::contexts() const {
  std::vector<context_ref> all = created;
  if (primary != nullptr) all.push_back(primary);
  return all;
}

context_ref machine::maker_of(const memory_range& range) const {
  const device& d = devices[static_cast<std::size_t>(range.device)];
  for (const context_ref& c : d.created) {
    if (c->generation == range.generation) return c;
  }
  return d.primary;
}

void machine::settle_peers(int from, int to) {
  bool may = false;
  for (const context_ref& c : devices[static_cast<std::size_t>(from)].contexts()) {
    for (const context_ref& other : devices[static_cast<std::size_t>(to)].contexts()) {
      may = may || c->peers.contains(other->generation);
    }
  }
  bool& on = devices[static_cast<std::size_t>(from)].peers[static_cast<std::size_t>(to)];
  if (on == may) return;
  on = may;
  for (const auto& [base, range] : ranges) {
    if (range->device == to && follows_access(range->kind)) show(from, *range);
  }
}

void machine::forget_context(const context_ref& gone) {
  contexts.take(gone->handle);
  for (int other = 0; other < count(); ++other) {
    for (const context_ref& c : devices[static_cast<std::size_t>(other)].contexts()) c->peers.erase(gone->generation);
    if (other == gone->device) continue;
    settle_peers(gone->device, other);
    settle_peers(other, gone->device);
  }
}

context_ref machine::make_context(int ordinal, unsigned flags) {
  auto made = std::make_shared<context>();
  made->device = ordinal;
  made->flags = flags;
  static std::atomic<std::uint64_t> generations{1};
  made->generation = generations.fetch_add(1);
  made->set_null_stream(std::make_shared<stream>(made, false, 0));
  made->charged = charge(ordinal, memory_of_a_context) ? memory_of_a_context : 0;
  made->handle = contexts.add(made);
  return made;
}

CUstream machine::add(const stream_ref& made) {
  context& home = *made->home();
  {
    const std::lock_guard lock{home.submit_mutex};
    std::erase_if(home.streams, [](const auto& weak) { return weak.expired(); });
    home.streams.push_back(made);
  }
  return streams.add(made);
}

void machine::drain(const context_ref& c) {
  std::vector<mark_ref> all;
  {
    const std::lock_guard lock{c->submit_mutex};
    if (const stream_ref null = c->null_stream()) {
      if (auto last = null->last()) all.push_back(last);
    }
    for (const auto& weak : c->streams) {
      const stream_ref s = weak.lock();
      if (s == nullptr) continue;
      if (auto last = s->last()) all.push_back(last);
    }
  }
  for (const mark_ref& m : all) m->wait();
}

void machine::drain(int ordinal) {
  std::vector<context_ref> all;
  {
    const std::lock_guard lock{mutex};
    all = devices[static_cast<std::size_t>(ordinal)].contexts();
  }
  for (const context_ref& c : all) drain(c);
}

// Work that runs is ended, as a reset of the device does: a kernel that spins would else keep it for ever.
void machine::destroy_context(const context_ref& gone) {
  gone->dead = true;
  gone->lose(CUDA_ERROR_CONTEXT_IS_DESTROYED);
  std::vector<stream_ref> all;
  if (stream_ref null = gone->null_stream()) all.push_back(std::move(null));
  gone->set_null_stream(nullptr);
  {
    const std::lock_guard lock{gone->submit_mutex};
    for (const auto& weak : gone->streams) {
      if (auto s = weak.lock()) all.push_back(s);
    }
  }
  gone->forget_threads();
  for (const stream_ref& s : all) {
    const mark_ref last = s->last();
    while (last != nullptr && !last->is_ended()) {
      s->worker().interrupt(CUDA_ERROR_CONTEXT_IS_DESTROYED);
      std::this_thread::yield();
    }
    s->close();
  }
  streams.remove_if([&](stream& s) { return s.home() == gone; });
  events.remove_if([&](event& e) { return e.home == gone; });
  forget_code(gone);
  const std::lock_guard lock{mutex};
  uncharge(gone->device, std::exchange(gone->charged, 0));
  std::vector<std::shared_ptr<memory_range>> ended;
  for (const auto& [base, range] : ranges) {
    const bool stays = range->kind == range_kind::mapping ||
                       range->kind == range_kind::multicast;  // made of blocks, which belong to the process
    if (range->generation == gone->generation && !stays) ended.push_back(range);
  }
  for (const auto& range : ended) {
    if (range->kind == range_kind::pinned || range->kind == range_kind::managed)
      ::free(reinterpret_cast<void*>(range->base));
    end(range);
  }
}

std::vector<CUcontext>& context_stack() {
  thread_local std::vector<CUcontext> stack;
  return stack;
}

context_ref current() {
  const auto& stack = context_stack();
  return stack.empty() ? nullptr : the().contexts.find(stack.back());
}

stream_ref stream_of(CUstream handle) {
  const auto number = reinterpret_cast<std::uint64_t>(handle);
  if (number > 2) return the().streams.find(handle);
  const context_ref c = current();
  if (c == nullptr) return nullptr;
  return number == 2 ? c->stream_of_thread(c) : c->null_stream();
}

std::vector<mark_ref> pending_of(const stream_ref& s) {
  std::vector<mark_ref> all;
  const context_ref& c = s->home();
  const stream_ref null = c->null_stream();
  if (s == null) {
    for (const auto& weak : c->streams) {
      const stream_ref other = weak.lock();
      if (other == nullptr || !other->blocking()) continue;
      if (auto last = other->last(); last != nullptr && !last->is_ended()) all.push_back(last);
    }
  } else if (s->blocking() && null != nullptr) {
    if (auto last = null->last(); last != nullptr && !last->is_ended()) all.push_back(last);
  }
  return all;
}

mark_ref submit(const stream_ref& to, operation work) {
  const std::lock_guard lock{to->home()->submit_mutex};
  for (mark_ref& before : pending_of(to)) work.after.push_back(std::move(before));
  return to->submit(std::move(work));
}

}  // namespace weft::virtual_cuda
