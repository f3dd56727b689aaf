// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/order/stream_driver.hpp"

#include "backends/gpu/driver/beside_captures.hpp"
#include "backends/gpu/driver/error.hpp"
#include "weft/core/bytes.hpp"

#include <algorithm>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>

namespace weft::gpu {
namespace {

gpu_queue& queue_of(queued::native_queue queue) { return *static_cast<gpu_queue*>(queue); }
gpu_event& event_of(queued::native_event event) { return *static_cast<gpu_event*>(event); }

/// A wait asks the driver again and again, and blocks in no call of it: on an H200 in a virtual machine an event that
/// wakes its waiter cost 25 to 190 us more than one that is asked, and 1 us more to record. After this time a wait lets
/// other threads have its processor in between.
constexpr std::chrono::microseconds spin{100};
/// After this time a wait sleeps in between, for one such part of the time that it has waited.
constexpr std::chrono::milliseconds until_sleep{2};
constexpr int slept_part = 128;
constexpr std::chrono::microseconds shortest_sleep{10}, longest_sleep{1000};
/// How often the events of parked waiters are looked at: functions of the host are not called after a sticky error.
constexpr std::chrono::milliseconds look_every{10};
/// … and where the driver does not call.
constexpr std::chrono::microseconds look_closely{200};
/// Streams aside of a GPU. Each holds one of the GPU's queues (CUDA: 8 to 32, HIP: 4) while it waits, and with that all
/// that shares it.
constexpr std::size_t most_asides = 2;
/// The driver's clock and ours are compared anew after this time.
constexpr std::chrono::seconds drift{1};
/// How far they may have come apart in that time.
constexpr std::chrono::microseconds largest_drift{100};

}  // namespace

// ---- who is to be called ------------------------------------------------------------------------------------------

struct stream_driver::waiting_end {
  stream_driver* home = nullptr;
  std::size_t device = 0;
  std::uint64_t generation = 0;
  CUstream aside = nullptr;  // the function is in it; none where the driver refused
  CUevent end = nullptr;
  gpu_event* event = nullptr;  // stays while `call` is there: with that may go its last user
  queued::end_call call;       // empty once it was called
};

/// Named by numbers: the driver may come with one whose waiting is long over, and whose machine is gone.
struct stream_driver::end_table {
  std::mutex mutex;
  std::unordered_map<std::uint64_t, waiting_end> ends;
  std::uint64_t last = 0;

  static end_table& get() {
    static auto* const one = new end_table;  // never destroyed: threads of the driver may outlive main
    return *one;
  }
};

void stream_driver::on_end(void* id) {
  end_table& table = end_table::get();
  queued::end_call call;
  {
    const std::lock_guard lock{table.mutex};
    const auto found = table.ends.find(reinterpret_cast<std::uintptr_t>(id));
    if (found == table.ends.end()) return;
    const waiting_end& end = found->second;
    call = end.call;
    end.home->give_aside(end.device, end.aside, end.generation);
    end.home->no_longer_waits(end.device, end.generation);
    table.ends.erase(found);
  }
  const driver_thread here;
  if (call.function != nullptr) call.function(call.data);
}

/// False where no thread is to be had.
bool stream_driver::is_watching() noexcept {
  try {
    const std::lock_guard lock{watch_mutex_};
    if (!watch_.joinable()) looked_for_.reserve(64);
    if (!watch_.joinable()) watch_ = std::jthread{[this](const std::stop_token& shutdown) { look_for_ends(shutdown); }};
    return true;
  } catch (const std::exception&) {  // nor memory for one
    return false;
  }
}

bool stream_driver::call_at_end(device_id device, queued::native_event event, const queued::end_call& call) noexcept {
  // Before the driver is asked: it forgets to call when the device is lost, and then somebody must know.
  if (!is_watching()) return false;
  const std::size_t at = local(device);
  gpu_event& ends = event_of(event);
  auto inside = places_->enter(at);
  waiting_end made{this, at, ends.generation, nullptr, ends.end, &ends, call};
  bool goes_on = is_there(ends) && ask(ends) == CUDA_ERROR_NOT_READY;
  std::shared_lock alive{gpus_[ends.gpu]->calls};  // a reset destroys it
  goes_on = goes_on && is_there(ends);
  if (!goes_on) {
    alive.unlock();
    call.function(call.data);
    return true;
  }
  // without the context nothing is known; without a stream to spare it is looked at, too
  const bool may_wait = inside && spare_aside(at);
  if (may_wait && take_aside(at, &made.aside) != CUDA_SUCCESS) made.aside = nullptr;
  if (may_wait && made.aside == nullptr) no_longer_waits(at, made.generation);
  end_table& table = end_table::get();
  std::uint64_t id = 0;
  try {
    const std::lock_guard lock{table.mutex};
    id = ++table.last;
    table.ends.emplace(id, made);
  } catch (const std::bad_alloc&) {
    if (made.aside == nullptr) return false;
    give_aside(at, made.aside, made.generation);
    no_longer_waits(at, made.generation);
    return false;
  }
  CUresult status = CUDA_ERROR_NOT_SUPPORTED;
  if (made.aside != nullptr) status = cu_.cuStreamWaitEvent(made.aside, ends.end, 0);
  if (status == CUDA_SUCCESS) status = cu_.cuLaunchHostFunc(made.aside, &on_end, reinterpret_cast<void*>(id));
  const bool is_called = status == CUDA_SUCCESS;
  if (!is_called) {  // then it is looked at
    if (made.aside != nullptr) {
      static_cast<void>(cu_.cuStreamDestroy(made.aside));
      no_longer_waits(at, made.generation);
    }
    const std::lock_guard lock{table.mutex};
    if (const auto found = table.ends.find(id); found != table.ends.end()) {  // not if somebody looked already
      found->second.aside = nullptr;
      if (found->second.call.function == nullptr) table.ends.erase(found);
    }
  }
  const std::lock_guard lock{watch_mutex_};
  look_soon_ = look_soon_ || !is_called;
  watch_work_.notify_one();
  return true;
}

/// Calls for what ended without the driver's calling: it does not for a lost device, and may have refused to.
void stream_driver::look_for_ends(const std::stop_token& shutdown) {
  end_table& table = end_table::get();
  auto& mine = looked_for_;
  const auto collect = [&] {
    mine.clear();
    const std::lock_guard lock{table.mutex};
    for (const auto& [id, end] : table.ends) {
      if (end.home != this || end.call.function == nullptr) continue;
      try {
        mine.emplace_back(id, end);
      } catch (const std::bad_alloc&) {
        break;  // the others another time
      }
    }
    return !mine.empty();
  };
  std::unique_lock lock{watch_mutex_};
  while (watch_work_.wait(lock, shutdown, collect)) {
    look_soon_ = false;
    // what ends as it should is not looked at: by then the driver has called
    const bool is_called =
        std::all_of(mine.begin(), mine.end(), [](const auto& one) { return one.second.aside != nullptr; });
    const auto pause = is_called ? clock::duration{look_every} : clock::duration{look_closely};
    if (watch_work_.wait_for(lock, shutdown, pause, [&] { return is_called && look_soon_; })) continue;
    if (shutdown.stop_requested()) return;
    lock.unlock();
    for (const auto& [id, end] : mine) {
      // The driver may have called since, and the event serve another or be gone: only its handle is used until then.
      bool is_gone = false;
      CUresult status = CUDA_SUCCESS;
      {
        const std::shared_lock calls{place_of(end.device).calls};
        is_gone = end.generation != place_of(end.device).generation.load(std::memory_order_acquire);
        if (!is_gone) status = query(end.device, end.end);
      }
      if (status == CUDA_ERROR_NOT_READY) continue;
      queued::end_call call;
      {
        const std::lock_guard claim{table.mutex};
        if (const auto found = table.ends.find(id); found != table.ends.end()) {
          call = std::exchange(found->second.call, queued::end_call{});
          // who is called asks again, and must be told the same
          if (call.function != nullptr && status != CUDA_SUCCESS) end.event->failed.store(status);
          if (found->second.aside == nullptr || is_gone) table.ends.erase(found);
        }
      }
      if (call.function != nullptr) call.function(call.data);
    }
    lock.lock();
  }
}

// ---- life ---------------------------------------------------------------------------------------------------------

stream_driver::stream_driver(std::shared_ptr<contexts> places, device_id first, const discovery& found, waiting policy)
    : places_(std::move(places)),
      cu_(places_->cu()),
      parts_(places_, found),
      first_(first),
      policy_(policy),
      words_(places_, found.devices.size()) {
  static_cast<void>(end_table::get());  // where memory for it can be refused
  for (std::size_t device = 0; device < found.devices.size(); ++device) {
    while (gpus_.size() <= places_->gpu_of(device)) {
      gpus_.push_back(std::make_unique<place>());
      gpus_.back()->id = found.gpu_of(device).id;
      gpus_.back()->pools = found.gpu_of(device).pools;
      device_of_.push_back(device);
    }
  }
}

stream_driver::~stream_driver() { close(); }

/// Of a GPU: its streams there go first, since nothing reaches them afterwards.
void stream_driver::end_partitions(std::size_t gpu) noexcept {
  {
    const std::lock_guard queues{queues_mutex_};
    for (const auto& queue : queues_) {
      const bool is_there = queue->stream != nullptr && queue->generation == gpus_[gpu]->generation.load();
      if (places_->gpu_of(queue->device) != gpu || !is_there || queue->adopted || !parts_.has(queue->device)) continue;
      static_cast<void>(cu_.cuStreamDestroy(std::exchange(queue->stream, nullptr)));
    }
  }
  for (std::size_t device = 0; device < parts_.size(); ++device) {
    if (places_->gpu_of(device) == gpu) parts_.end(device);
  }
}

void stream_driver::forget(std::size_t device) noexcept {
  place& at = place_of(device);
  words_.forget(device);
  const bool is_made = places_->made(device) != nullptr;
  const auto inside = is_made ? places_->enter(device) : result<current_context>{current_context{}};
  if (is_made) end_partitions(places_->gpu_of(device));
  const auto destroy = [&](CUevent one) {
    if (one != nullptr && is_made && inside && !cu_.by->reset_ends_code) static_cast<void>(cu_.cuEventDestroy(one));
  };
  {
    const std::lock_guard lock{at.mutex};
    at.generation.fetch_add(1, std::memory_order_acq_rel);
    at.asides.clear();
    at.waiting_asides = 0;
    at.scratch.clear();
    // of those in use each goes with its last user
    std::erase_if(at.events, [&](const auto& one) {
      const auto& free = at.free[one->timed ? 1 : 0];
      if (std::find(free.begin(), free.end(), one.get()) == free.end()) return false;
      destroy(one->begin);
      destroy(one->end);
      return true;
    });
    for (auto& free : at.free) free.clear();
  }
  const std::lock_guard lock{at.clock_mutex};
  destroy(std::exchange(at.base, nullptr));
}

void stream_driver::close() noexcept {
  words_.end();
  if (watch_.joinable()) {
    watch_.request_stop();
    watch_.join();
  }
  {
    end_table& table = end_table::get();
    const std::lock_guard lock{table.mutex};
    std::erase_if(table.ends, [this](const auto& one) { return one.second.home == this; });
  }
  for (std::size_t gpu = 0; gpu < gpus_.size(); ++gpu) {
    const std::size_t device = device_of_[gpu];
    if (places_->made(device) == nullptr) continue;  // nothing was made there, or all of it is gone
    auto inside = places_->enter(device);
    if (!inside) {  // the rest goes with the context, which these keep
      end_partitions(gpu);
      continue;
    }
    place& at = *gpus_[gpu];
    const std::lock_guard clocks{at.clock_mutex};
    const std::lock_guard lock{at.mutex};
    const std::uint64_t now = at.generation.load(std::memory_order_relaxed);
    if (at.base != nullptr && at.base_generation == now)
      static_cast<void>(cu_.cuEventDestroy(std::exchange(at.base, nullptr)));
    for (const CUdeviceptr one : std::exchange(at.scratch, {})) static_cast<void>(cu_.cuMemFree(one));
    for (const auto& event : at.events) {
      if (event->generation != now) continue;
      for (CUevent* one : {&event->begin, &event->end}) {
        if (*one != nullptr) static_cast<void>(cu_.cuEventDestroy(std::exchange(*one, nullptr)));
      }
    }
    for (auto& free : at.free) free.clear();
    {
      const std::lock_guard queues{queues_mutex_};
      for (const auto& queue : queues_) {
        if (places_->gpu_of(queue->device) != gpu || queue->generation != now || queue->stream == nullptr) continue;
        // the program may have destroyed its own: nothing is called with that any more
        if (queue->adopted) queue->stream = at.asides.empty() ? nullptr : at.asides.front();
        free_scratch(*queue);
        CUstream stream = std::exchange(queue->stream, nullptr);
        if (!queue->adopted) static_cast<void>(cu_.cuStreamDestroy(stream));
      }
    }
    for (const CUstream aside : at.asides) static_cast<void>(cu_.cuStreamDestroy(aside));
    at.asides.clear();
    end_partitions(gpu);
    at.generation.fetch_add(1, std::memory_order_acq_rel);
  }
}

// ---- queues -------------------------------------------------------------------------------------------------------

result<void> stream_driver::ready_stream(gpu_queue& queue) {
  const std::uint64_t now = place_of(queue.device).generation.load(std::memory_order_acquire);
  if (queue.stream != nullptr && queue.generation == now) return {};
  if (queue.adopted)
    return make_error(errc::not_found, "the program's stream went when its device was reset: adopt a new one");
  queue.scratch = 0;
  queue.scratch_size = 0;
  int least = 0;
  int greatest = 0;  // the lower number goes first
  queue.stream = nullptr;
  if (const CUresult status = cu_.cuCtxGetStreamPriorityRange(&least, &greatest); status != CUDA_SUCCESS)
    return cu_error(cu_, status, "a stream");
  const int priority = std::clamp(-std::clamp(queue.priority, -1000, 1000), greatest, std::max(least, greatest));
  if (parts_.has(queue.device)) {
    auto made = parts_.create_stream(queue.device, priority);
    if (!made) return std::move(made).error();
    queue.stream = *made;
  } else if (const CUresult status = cu_.cuStreamCreateWithPriority(&queue.stream, stream_non_blocking, priority);
             status != CUDA_SUCCESS) {
    queue.stream = nullptr;
    return cu_error(cu_, status, "a stream");
  }
  queue.generation = now;
  return {};
}

result<queued::native_queue> stream_driver::create_queue(device_id device, int priority) {
  const std::shared_lock call{place_of(local(device)).calls};
  auto inside = places_->enter(local(device));
  if (!inside) return std::move(inside).error();
  auto made = std::make_unique<gpu_queue>();
  made->device = local(device);
  made->priority = priority;
  gpu_queue* const queue = made.get();
  {
    const std::lock_guard lock{queues_mutex_};
    queues_.push_back(std::move(made));
  }
  auto ok = guarded([&] { return ready_stream(*queue); });
  if (ok) return queue;
  const std::lock_guard lock{queues_mutex_};
  std::erase_if(queues_, [&](const auto& one) { return one.get() == queue; });
  return std::move(ok).error();
}

result<queued::native_queue> stream_driver::adopt_queue(device_id device, void* theirs, queued::native_queue again) {
  const std::string which = "the program's stream for " + to_string(device);
  const auto name = theirs == nullptr ? stream_legacy : reinterpret_cast<std::uintptr_t>(theirs);
  if (name == stream_legacy && cu_.version < cu_.by->names_default_stream) {
    return make_error(errc::unsupported, which + " is the default stream, which has no name before " + cu_.by->name +
                                             " " + version_text(cu_.by->names_default_stream) +
                                             ": give one that the program made");
  }
  if (name == stream_per_thread) {
    return make_error(errc::invalid_argument,
                      which +
                          " is each thread's own default stream, and weft submits on several threads: give one "
                          "that the program made");
  }
  if (cu_.cuStreamGetCtx == nullptr)
    return make_error(errc::unsupported, "this driver cannot say where a stream belongs: update it");
  const std::shared_lock call{place_of(local(device)).calls};
  auto inside = places_->enter(local(device));
  if (!inside) return std::move(inside).error();
  auto* const stream = reinterpret_cast<CUstream>(name);
  CUcontext home = nullptr;
  if (const CUresult status = cu_.cuStreamGetCtx(stream, &home); status != CUDA_SUCCESS)
    return cu_error(cu_, status, which, errc::invalid_argument);
  int capturing = 0;
  if (cu_.cuStreamIsCapturing != nullptr && cu_.cuStreamIsCapturing(stream, &capturing) == CUDA_SUCCESS &&
      capturing != 0)
    return make_error(errc::invalid_argument, which + " is being captured into a graph: end the capture first");
  if (home != places_->made(local(device)) && try_event(cu_, stream) != CUDA_SUCCESS) {
    return make_error(errc::wrong_device, which +
                                              " belongs to another device, or to a context that the program made: "
                                              "weft works in the primary context, as the vendor's runtime does");
  }
  auto* into = static_cast<gpu_queue*>(again);
  const std::lock_guard lock{queues_mutex_};
  if (into == nullptr) {
    queues_.push_back(std::make_unique<gpu_queue>());
    into = queues_.back().get();
  }
  const std::uint64_t now = place_of(local(device)).generation.load(std::memory_order_acquire);
  if (into->generation != now) *into = {};  // else what it has to work in serves again
  into->device = local(device);
  into->adopted = true;
  into->stream = stream;
  into->generation = now;
  return into;
}

result<void*> stream_driver::name_of(device_id, queued::native_queue queue) {
  gpu_queue& of = queue_of(queue);
  const std::shared_lock call{place_of(of.device).calls};
  auto inside = places_->enter(of.device);
  if (!inside) return std::move(inside).error();
  if (auto ok = ready_stream(of); !ok) return std::move(ok).error();
  return of.stream;
}

bool stream_driver::is_empty(device_id, queued::native_queue queue) noexcept {
  const gpu_queue& of = queue_of(queue);
  const std::shared_lock call{place_of(of.device).calls};
  if (of.stream == nullptr || of.generation != place_of(of.device).generation.load(std::memory_order_acquire))
    return true;
  auto inside = places_->enter(of.device);
  if (!inside) return true;
  const beside_captures here{cu_};
  const CUresult status = cu_.cuStreamQuery(of.stream);
  return status != CUDA_ERROR_NOT_READY && !is_about_capture(status);
}

void stream_driver::destroy_queue(device_id, queued::native_queue queue) noexcept {
  gpu_queue& gone = queue_of(queue);
  if (gone.stream != nullptr && places_->made(gone.device) != nullptr &&
      gone.generation == place_of(gone.device).generation.load(std::memory_order_acquire)) {
    if (auto inside = places_->enter(gone.device)) {
      free_scratch(gone);
      if (!gone.adopted) static_cast<void>(cu_.cuStreamDestroy(gone.stream));
    }
  }
  const std::lock_guard lock{queues_mutex_};
  std::erase_if(queues_, [&](const auto& one) { return one.get() == &gone; });
}

result<submission> stream_driver::begin(queued::native_queue queue, bool timed) {
  gpu_queue& into = queue_of(queue);
  auto inside = places_->enter(into.device);
  if (!inside) return std::move(inside).error();
  submission made{*this, into, std::move(*inside)};
  if (auto ok = ready_stream(into); !ok) return std::move(ok).error();
  auto event = take_event(into.device, timed || is_timed());
  if (!event) return std::move(event).error();
  made.event_ = *event;
  if (made.event_->timed) made.event_->begins = cu_.cuEventRecord(made.event_->begin, into.stream) == CUDA_SUCCESS;
  return made;
}

submission::submission(submission&& other) noexcept
    : home_(other.home_),
      queue_(other.queue_),
      inside_(std::move(other.inside_)),
      event_(std::exchange(other.event_, nullptr)) {}

submission::~submission() {
  if (event_ != nullptr) home_.put_back(event_);
}

/// Where the GPU has pools the driver takes memory to work in, and gives it back, in the order of the stream, and waits
/// for nothing; elsewhere what was outgrown is kept, because to free it would wait for all work.
result<CUdeviceptr> submission::scratch(std::size_t size) {
  if (size <= queue_.scratch_size) return queue_.scratch;
  constexpr std::size_t least = 1 << 16;
  size = std::max({size, 2 * queue_.scratch_size, least});
  const driver& cu = home_.cu_;
  stream_driver::place& at = home_.place_of(queue_.device);
  const std::lock_guard lock{at.mutex};
  if (!at.pools) at.scratch.reserve(at.scratch.size() + 1);
  CUdeviceptr made = 0;
  CUmemoryPool pool = nullptr;
  CUresult status = at.pools ? cu.cuDeviceGetDefaultMemPool(&pool, at.id) : CUDA_SUCCESS;
  if (status == CUDA_SUCCESS) {
    status = at.pools ? cu.cuMemAllocFromPoolAsync(&made, size, pool, stream()) : cu.cuMemAlloc(&made, size);
  }
  if (status != CUDA_SUCCESS) return cu_error(cu, status, to_string(bytes{size}) + " to work in");
  if (at.pools) {
    home_.free_scratch(queue_);
  } else if (queue_.scratch != 0) {
    at.scratch.push_back(queue_.scratch);
  }
  queue_.scratch = made;
  queue_.scratch_size = size;
  return made;
}

/// Behind the work of its stream; without pools, behind all work of the GPU.
void stream_driver::free_scratch(gpu_queue& of) noexcept {
  const CUdeviceptr gone = std::exchange(of.scratch, 0);
  if (gone == 0) return;
  static_cast<void>(place_of(of.device).pools ? cu_.cuMemFreeAsync(gone, of.stream) : cu_.cuMemFree(gone));
}

result<queued::native_event> submission::finish() {
  const CUresult status = home_.cu_.cuEventRecord(event_->end, stream());
  if (status != CUDA_SUCCESS) return cu_error(home_.cu_, status, "an event");
  return std::exchange(event_, nullptr);
}

result<queued::native_event> stream_driver::mark(device_id, queued::native_queue queue, queued::native_event after) {
  auto into = begin(queue);
  if (!into) return std::move(into).error();
  into->event_->begins = false;
  if (after != nullptr) {
    const gpu_event& ends = event_of(after);
    const std::shared_lock alive{gpus_[ends.gpu]->calls};
    // what a reset has destroyed has ended
    const CUresult status = is_there(ends) ? cu_.cuStreamWaitEvent(into->stream(), ends.end, 0) : CUDA_SUCCESS;
    if (status != CUDA_SUCCESS) return cu_error(cu_, status, "waiting for another stream");
  }
  return into->finish();
}

void stream_driver::finish(device_id, queued::native_queue queue) noexcept {
  gpu_queue& all = queue_of(queue);
  if (all.stream == nullptr || places_->made(all.device) == nullptr ||
      all.generation != place_of(all.device).generation.load(std::memory_order_acquire))
    return;
  auto inside = places_->enter(all.device);
  if (inside) static_cast<void>(wait_for(all.stream));
}

CUresult stream_driver::take_aside(std::size_t device, CUstream* stream) {
  place& at = place_of(device);
  {
    const std::lock_guard lock{at.mutex};
    if (!at.asides.empty()) {
      *stream = at.asides.back();
      at.asides.pop_back();
      return CUDA_SUCCESS;
    }
    try {
      at.asides.reserve(++at.made_asides);  // to give one back takes no memory
    } catch (const std::bad_alloc&) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
  }
  return cu_.cuStreamCreateWithPriority(stream, stream_non_blocking, 0);
}

void stream_driver::give_aside(std::size_t device, CUstream stream, std::uint64_t generation) noexcept {
  place& at = place_of(device);
  const std::lock_guard lock{at.mutex};
  if (generation == at.generation.load(std::memory_order_relaxed)) at.asides.push_back(stream);
}

/// Whether one more stream may wait for an event. Then no_longer_waits() follows.
bool stream_driver::spare_aside(std::size_t device) noexcept {
  place& at = place_of(device);
  const std::lock_guard lock{at.mutex};
  if (at.waiting_asides >= most_asides) return false;
  ++at.waiting_asides;
  return true;
}

void stream_driver::no_longer_waits(std::size_t device, std::uint64_t generation) noexcept {
  place& at = place_of(device);
  const std::lock_guard lock{at.mutex};
  if (generation == at.generation.load(std::memory_order_relaxed)) --at.waiting_asides;
}

result<void> stream_driver::run_aside(device_id device, const std::string& doing,
                                      const std::function<CUresult(CUstream)>& work) {
  const std::size_t at = local(device);
  auto inside = places_->enter(at);
  if (!inside) return std::move(inside).error();
  const std::shared_lock call{place_of(at).calls};
  const std::uint64_t generation = place_of(at).generation.load(std::memory_order_acquire);
  CUstream stream = nullptr;
  CUresult status = take_aside(at, &stream);
  if (status != CUDA_SUCCESS) return cu_error(cu_, status, doing);
  status = work(stream);
  const CUresult ended = wait_for(stream);
  if (status == CUDA_SUCCESS) status = ended;
  if (!is_sticky(cu_, status)) give_aside(at, stream, generation);
  if (status != CUDA_SUCCESS) return cu_error(cu_, status, doing, errc::copy_failed);
  return {};
}

// ---- events -------------------------------------------------------------------------------------------------------

result<gpu_event*> stream_driver::take_event(std::size_t device, bool timed) {
  place& at = place_of(device);
  {
    const std::lock_guard lock{at.mutex};
    auto& free = at.free[timed ? 1 : 0];
    if (!free.empty()) {
      gpu_event* const taken = free.back();
      free.pop_back();
      taken->begins = false;
      taken->failed.store(CUDA_SUCCESS, std::memory_order_relaxed);
      return taken;
    }
  }
  auto made = std::make_unique<gpu_event>();
  gpu_event* const event = made.get();
  event->gpu = places_->gpu_of(device);
  event->timed = timed;
  event->generation = at.generation.load(std::memory_order_acquire);
  {
    const std::lock_guard lock{at.mutex};
    at.events.push_back(std::move(made));
    for (auto& free : at.free) free.reserve(at.events.capacity());  // to put one back takes no memory
  }
  CUresult status = cu_.cuEventCreate(&event->end, 0);
  if (status == CUDA_SUCCESS && timed) {
    status = cu_.cuEventCreate(&event->begin, 0);
    if (status != CUDA_SUCCESS) static_cast<void>(cu_.cuEventDestroy(event->end));
  }
  if (status == CUDA_SUCCESS) return event;
  {
    const std::lock_guard lock{at.mutex};
    std::erase_if(at.events, [&](const auto& one) { return one.get() == event; });
  }
  return cu_error(cu_, status, "an event");
}

void stream_driver::put_back(gpu_event* event) noexcept {
  place& at = *gpus_[event->gpu];
  const std::lock_guard lock{at.mutex};
  if (event->generation == at.generation.load(std::memory_order_relaxed)) {
    at.free[event->timed ? 1 : 0].push_back(event);
  } else {
    std::erase_if(at.events, [&](const auto& one) { return one.get() == event; });
  }
}

void stream_driver::release(device_id, queued::native_event event) noexcept { put_back(&event_of(event)); }

CUresult stream_driver::query(std::size_t device, CUevent event) const noexcept {
  CUresult status = CUDA_SUCCESS;
  // What cannot be asked goes on: only a driver that says no twice is believed that it has ended.
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (auto inside = places_->enter(device)) {
      const beside_captures here{cu_};
      status = cu_.cuEventQuery(event);
      if (is_about_capture(status)) return CUDA_ERROR_NOT_READY;
    } else {
      status = inside.error().native_code != 0 ? inside.error().native_code : CUDA_ERROR_UNKNOWN;
    }
    if (status == CUDA_SUCCESS || status == CUDA_ERROR_NOT_READY || is_sticky(cu_, status)) break;
  }
  return status;
}

/// What query() says; but what has failed once has failed, also where the driver says otherwise when asked again:
/// whoever was told of the end by one answer finds it by the next.
CUresult stream_driver::ask(gpu_event& event) const noexcept {
  if (const CUresult before = event.failed.load(); before != CUDA_SUCCESS) return before;
  const std::shared_lock call{gpus_[event.gpu]->calls};
  if (!is_there(event)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  const CUresult status = query(device_of_[event.gpu], event.end);
  if (status != CUDA_SUCCESS && status != CUDA_ERROR_NOT_READY) event.failed.store(status);
  return status;
}

/// Waits for a stream, also where the driver at first does not.
CUresult stream_driver::wait_for(CUstream stream) const noexcept {
  const CUresult status = cu_.cuStreamSynchronize(stream);
  return status == CUDA_SUCCESS || is_sticky(cu_, status) ? status : cu_.cuStreamSynchronize(stream);
}

queued::event_state stream_driver::state(device_id, queued::native_event event) noexcept {
  gpu_event& asked = event_of(event);
  if (!is_there(asked)) return queued::event_state::failed;
  const CUresult status = ask(asked);
  if (status == CUDA_SUCCESS) return queued::event_state::ended;
  return status == CUDA_ERROR_NOT_READY ? queued::event_state::running : queued::event_state::failed;
}

error stream_driver::failure(device_id device, queued::native_event event, std::string doing, errc otherwise) {
  if (!is_there(event_of(event))) {
    return make_error(errc::device_lost, std::move(doing) + ": " + to_string(device) + " was reset meanwhile",
                      error_scope::device);
  }
  return cu_error(cu_, event_of(event).failed.load(std::memory_order_relaxed), std::move(doing), otherwise);
}

void stream_driver::wait(device_id device, queued::native_event event) noexcept {
  const std::size_t at = local(device);
  const gpu_event& ends = event_of(event);
  const std::shared_lock call{place_of(at).calls};
  if (!is_there(ends)) return;
  auto inside = places_->enter(at);
  if (!inside) return;
  const beside_captures here{cu_};
  const auto began = clock::now();
  for (;;) {
    const CUresult status = cu_.cuEventQuery(ends.end);
    const auto waited = clock::now() - began;
    // a program that captures the stream: whoever waits is told by the scheduler then
    const bool is_running = status == CUDA_ERROR_NOT_READY || (is_about_capture(status) && waited < spin);
    if (!is_running) return;
    if (policy_ == waiting::spin) continue;
    if (policy_ == waiting::park || waited >= until_sleep) {
      std::this_thread::sleep_for(std::clamp<clock::duration>(waited / slept_part, shortest_sleep, longest_sleep));
    } else if (waited >= spin) {
      std::this_thread::yield();
    }
  }
}

// ---- times --------------------------------------------------------------------------------------------------------

void stream_driver::time(bool on) noexcept { timed_.store(on, std::memory_order_relaxed); }

/// Under clock_mutex, the context being current. False when the GPU does not answer at once.
bool stream_driver::set_base(std::size_t device) noexcept {
  place& at = place_of(device);
  const std::uint64_t generation = at.generation.load(std::memory_order_acquire);
  const bool is_first = at.base == nullptr || at.base_generation != generation;
  CUstream aside = nullptr;
  if (take_aside(device, &aside) != CUDA_SUCCESS) return false;
  // An end is seen late, and by as much as this thread was kept from its processor: of several the earliest is nearest.
  bool is_set = is_first ? false : replace_base(device, aside, std::chrono::milliseconds{1});
  for (int n = 0; is_first && n < 4; ++n) {
    if (!replace_base(device, aside, std::chrono::milliseconds{n == 0 ? 200 : 1})) break;
    is_set = true;
  }
  give_aside(device, aside, generation);
  return is_set;
}

/// Compares the clocks once more. As set_base().
bool stream_driver::replace_base(std::size_t device, CUstream aside, std::chrono::milliseconds patience) noexcept {
  place& at = place_of(device);
  const std::uint64_t generation = at.generation.load(std::memory_order_acquire);
  const bool is_known = at.base != nullptr && at.base_generation == generation;
  CUevent made = nullptr;
  if (cu_.cuEventCreate(&made, 0) != CUDA_SUCCESS) return false;
  bool is_set = false;
  clock::time_point now;
  if (cu_.cuEventRecord(made, aside) == CUDA_SUCCESS) {
    const auto until = clock::now() + patience;
    do {
      is_set = cu_.cuEventQuery(made) == CUDA_SUCCESS;
      now = clock::now();
    } while (!is_set && now < until);
  }
  if (is_set) {
    if (const auto expected = is_known ? time_of(device, made) : std::nullopt)
      now = std::min(now, *expected + largest_drift);
    std::swap(at.base, made);
    at.base_time = now;
    at.base_generation = generation;
  }
  if (made != nullptr && (!is_set || is_known)) static_cast<void>(cu_.cuEventDestroy(made));
  return is_set;
}

std::optional<stream_driver::clock::time_point> stream_driver::time_of(std::size_t device, CUevent event) noexcept {
  place& at = place_of(device);
  float milliseconds = 0;
  if (cu_.cuEventElapsedTime(&milliseconds, at.base, event) != CUDA_SUCCESS) return std::nullopt;
  return at.base_time +
         std::chrono::duration_cast<clock::duration>(std::chrono::duration<double, std::milli>{milliseconds});
}

std::optional<queued::event_times> stream_driver::times(device_id device, queued::native_event event) noexcept {
  const std::size_t at = local(device);
  const gpu_event& ran = event_of(event);
  const std::shared_lock call{place_of(at).calls};
  if (!is_there(ran)) return std::nullopt;
  auto inside = places_->enter(at);
  if (!inside) return std::nullopt;
  place& home = place_of(at);
  const std::lock_guard lock{home.clock_mutex};
  const bool has_base = home.base != nullptr && home.base_generation == ran.generation;
  if ((!has_base || clock::now() - home.base_time > drift) && !set_base(at) && !has_base) return std::nullopt;
  const auto ended = time_of(at, ran.end);
  if (!ended) return std::nullopt;
  queued::event_times made;
  made.ended = *ended;
  if (ran.begins) made.started = time_of(at, ran.begin);
  return made;
}

}  // namespace weft::gpu
