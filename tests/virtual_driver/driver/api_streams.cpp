// SPDX-License-Identifier: Apache-2.0
// Streams, events, functions of the program in streams, and words that streams wait for and write.
#include "virtual_driver/driver/call.hpp"
#include "virtual_driver/driver/copy_places.hpp"
#include "virtual_driver/driver/foreign_memory.hpp"
#include "virtual_driver/driver/shared_event.hpp"
#include "virtual_driver/virtual_driver.hpp"

#include <ctime>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

namespace weft::virtual_cuda {

event::~event() {
  if (shared == nullptr) return;
  if (!imported) ::close(shared->file);
  ::munmap(shared, page);
}

namespace {

void pause_a_little(int round) {
  if (round < 64) {
    std::this_thread::yield();
  } else {
    const timespec little{0, 50000};
    ::nanosleep(&little, nullptr);
  }
}

}  // namespace

bool wait_for(const shared_event& event, std::uint64_t count, const std::atomic<bool>& given_up) {
  for (int round = 0; event.ended.load(std::memory_order_acquire) < count; ++round) {
    if (given_up.load(std::memory_order_relaxed)) return true;
    pause_a_little(round);
    if (round % 256 != 255) continue;
    const int other = event.recorder.load();
    if (other != 0 && !is_alive(other) && event.ended.load() < count) return false;
  }
  return true;
}

namespace {

CUresult make_stream(CUstream* handle, const context_ref& c, unsigned flags, int priority) {
  if (flags > stream_non_blocking) return CUDA_ERROR_INVALID_VALUE;
  const int kept = std::clamp(priority, -5, 0);
  *handle = the().add(std::make_shared<stream>(c, (flags & stream_non_blocking) == 0, kept));
  return CUDA_SUCCESS;
}

std::vector<mark_ref> all_of(const stream_ref& s) {
  const std::lock_guard lock{s->home()->submit_mutex};
  std::vector<mark_ref> all = pending_of(s);
  if (!s->blocking() && s != s->home()->null_stream()) all.clear();
  if (auto last = s->last()) all.push_back(std::move(last));
  return all;
}

template <class Word>
bool holds(Word now, Word value, unsigned how) {
  switch (how & 3U) {
    case wait_value_geq:
      if ((how & wait_value_plain) != 0) return now >= value;
      return static_cast<std::make_signed_t<Word>>(static_cast<Word>(now - value)) >= 0;
    case wait_value_eq:
      return now == value;
    case wait_value_and:
      return (now & value) != 0;
    default:
      return static_cast<Word>(~(now | value)) != 0;
  }
}

/// A word that a stream of `by` may use: not in managed memory, nor where a device needs a right that it lacks.
CUresult find_word(CUdeviceptr address, std::size_t size, int by, bool writes, copy_place& at) {
  if (const auto code = find_place(address, size, by, writes, at); code != 0) return code;
  if (at.pageable) return CUDA_ERROR_INVALID_VALUE;
  machine& m = the();
  const std::lock_guard lock{m.mutex};
  const auto range = m.find(address);
  if (range == nullptr || range->kind == range_kind::managed) return CUDA_ERROR_INVALID_VALUE;
  const std::uint8_t right = m.right(by, *range);
  const bool may = right == access_read_write || (right != access_none && !writes);
  return may ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/// Values that streams write and that a test holds up: as a stream does whose place in the device is taken.
struct value_hold {
  std::atomic<unsigned> more{0};  // of those that are submitted from now on
  std::atomic<unsigned> let_go{0};

  static value_hold& get() {
    static value_hold one;
    return one;
  }
  [[nodiscard]] bool take() {
    unsigned left = more.load();
    while (left != 0 && !more.compare_exchange_weak(left, left - 1)) {
    }
    return left != 0;
  }
};

/// Words of 4 bytes need nothing of the device.
template <class Word>
bool has_words() {
  return sizeof(Word) == sizeof(std::uint32_t) || given().memory_operations;
}

template <class Word>
CUresult wait_value(const char* name, CUstream stream, CUdeviceptr address, Word value, unsigned flags) {
  const bool arguments =
      address != 0 && address % sizeof(Word) == 0 && (flags & ~(3U | wait_value_flush | wait_value_plain)) == 0;
  return stream_call(name, stream, arguments, [&](const stream_ref& s) -> CUresult {
    if (!has_words<Word>() || (flags & wait_value_flush) != 0) return CUDA_ERROR_NOT_SUPPORTED;
    if ((flags & 3U) == wait_value_nor && !given().memory_operations) return CUDA_ERROR_NOT_SUPPORTED;
    copy_place at;
    if (const auto code = find_word(address, sizeof(Word), s->home()->device, false, at); code != 0) return code;
    context* const home = s->home().get();
    submit(s, {.run = [at, value, flags, home]() -> CUresult {
                 const auto* const word = reinterpret_cast<const Word*>(at.bytes);
                 // pairs with the release of write_value, of kernels and of the host
                 for (int round = 0; !holds<Word>(__atomic_load_n(word, __ATOMIC_ACQUIRE), value, flags); ++round) {
                   if (home->lost.load() != 0) break;
                   pause_a_little(round);
                 }
                 return CUDA_SUCCESS;
               },
               .waits = true});
    return CUDA_SUCCESS;
  });
}

template <class Word>
CUresult write_value(const char* name, CUstream stream, CUdeviceptr address, Word value, unsigned flags) {
  const bool arguments = address != 0 && address % sizeof(Word) == 0 && flags <= write_value_no_memory_barrier;
  return stream_call(name, stream, arguments, [&](const stream_ref& s) -> CUresult {
    if (!has_words<Word>()) return CUDA_ERROR_NOT_SUPPORTED;
    copy_place at;
    if (const auto code = find_word(address, sizeof(Word), s->home()->device, true, at); code != 0) return code;
    value_hold& hold = value_hold::get();
    const unsigned since = hold.let_go.load();
    const bool is_held = hold.take();
    context* const home = s->home().get();
    submit(s, {.run = [at, value, is_held, since, home, &hold] {
             for (int round = 0; is_held && hold.let_go.load() == since && home->lost.load() == 0; ++round)
               pause_a_little(round);
             // pairs with the acquire of wait_value, of kernels and of the host
             __atomic_store_n(reinterpret_cast<Word*>(at.bytes), value, __ATOMIC_RELEASE);
             return CUDA_SUCCESS;
           }});
    return CUDA_SUCCESS;
  });
}

CUresult lost_of(const event& e) { return e.home == nullptr ? CUDA_SUCCESS : e.home->lost.load(); }

mark_ref newest_of(event& e) {
  const std::lock_guard lock{e.mutex};
  return e.newest;
}

// Of any thread: the event need not belong to the current context.
template <class F>
CUresult event_call(const char* name, CUevent handle, F&& f) noexcept {
  return plain_call(name, true, [&]() -> CUresult {
    const auto e = the().events.find(handle);
    if (e == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    return f(e);
  });
}

}  // namespace

WEFT_VIRTUAL_API void weft_virtual_hold_values(unsigned count) {
  value_hold& hold = value_hold::get();
  hold.more.store(count);
  if (count == 0) hold.let_go.fetch_add(1);
}

WEFT_VIRTUAL_API void weft_virtual_limit_connections(unsigned count) { connections_of_contexts().store(count); }

WEFT_VIRTUAL_API CUresult cuStreamCreateWithPriority(CUstream* handle, unsigned flags, int priority) {
  return context_call("cuStreamCreateWithPriority", handle != nullptr,
                      [&](const context_ref& c) { return make_stream(handle, c, flags, priority); });
}

WEFT_VIRTUAL_API CUresult cuStreamCreate(CUstream* handle, unsigned flags) {
  return context_call("cuStreamCreate", handle != nullptr,
                      [&](const context_ref& c) { return make_stream(handle, c, flags, 0); });
}

WEFT_VIRTUAL_API CUresult cuStreamDestroy_v2(CUstream handle) {
  return plain_call("cuStreamDestroy", true, [&]() -> CUresult {
    const stream_ref gone = the().streams.take(handle);
    if (gone == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    gone->close();  // what is queued still runs
    return gone->orphaned().load() ? CUDA_ERROR_CONTEXT_IS_DESTROYED : gone->home()->lost.load();
  });
}

WEFT_VIRTUAL_API CUresult cuStreamGetCtx(CUstream handle, CUcontext* context) {
  return stream_call("cuStreamGetCtx", handle, context != nullptr, [&](const stream_ref& s) {
    const bool is_special = reinterpret_cast<std::uint64_t>(handle) <= 2;
    *context = is_special ? context_stack().back() : s->converted != nullptr ? s->converted : s->home()->handle;
    return CUDA_SUCCESS;
  });
}

// There are no graphs here.
WEFT_VIRTUAL_API CUresult cuStreamIsCapturing(CUstream handle, int* status) {
  return stream_call("cuStreamIsCapturing", handle, status != nullptr, [&](const stream_ref&) {
    *status = 0;
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuThreadExchangeStreamCaptureMode(int* mode) {
  thread_local int now = 0;
  return plain_call("cuThreadExchangeStreamCaptureMode", mode != nullptr && *mode >= 0 && *mode <= 2,
                    [&]() -> CUresult {
                      std::swap(now, *mode);
                      return CUDA_SUCCESS;
                    });
}

WEFT_VIRTUAL_API CUresult cuStreamQuery(CUstream handle) {
  return stream_call("cuStreamQuery", handle, true, [&](const stream_ref& s) -> CUresult {
    for (const mark_ref& m : all_of(s)) {
      if (!m->is_ended()) return CUDA_ERROR_NOT_READY;
    }
    return s->home()->lost.load();
  });
}

WEFT_VIRTUAL_API CUresult cuStreamSynchronize(CUstream handle) {
  return stream_call("cuStreamSynchronize", handle, true, [&](const stream_ref& s) -> CUresult {
    for (const mark_ref& m : all_of(s)) m->wait();
    return s->home()->lost.load();
  });
}

WEFT_VIRTUAL_API CUresult cuStreamWaitEvent(CUstream handle, CUevent wanted, unsigned flags) {
  return stream_call("cuStreamWaitEvent", handle, flags <= 1, [&](const stream_ref& s) -> CUresult {
    const auto e = the().events.find(wanted);
    if (e == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (e->shared != nullptr) {
      const std::uint64_t count = e->shared->recorded.load(std::memory_order_acquire);
      if (count == 0) return CUDA_SUCCESS;
      const context_ref home = s->home();
      submit(s, {.run = [e, count, home]() -> CUresult {
                   return wait_for(*e->shared, count, home->dead) ? CUDA_SUCCESS : CUDA_ERROR_LAUNCH_FAILED;
                 },
                 .waits = true,
                 .guarded = false});
      return CUDA_SUCCESS;
    }
    mark_ref before = newest_of(*e);
    if (before == nullptr || before->is_ended()) return CUDA_SUCCESS;
    submit(s, {.run = [] { return CUDA_SUCCESS; }, .after = {std::move(before)}, .guarded = false});
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void* data) {
  return stream_call("cuLaunchHostFunc", handle, function != nullptr, [&](const stream_ref& s) {
    submit(s, {.run =
                   [function, data] {
                     const own_work not_here{-1};
                     inside_host_function() = true;
                     function(data);
                     inside_host_function() = false;
                     return CUDA_SUCCESS;
                   },
               .guarded = false});
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuStreamWaitValue32_v2(CUstream s, CUdeviceptr address, std::uint32_t value, unsigned flags) {
  return wait_value<std::uint32_t>("cuStreamWaitValue32", s, address, value, flags);
}
WEFT_VIRTUAL_API CUresult cuStreamWaitValue64_v2(CUstream s, CUdeviceptr address, unsigned long value, unsigned flags) {
  return wait_value<std::uint64_t>("cuStreamWaitValue64", s, address, value, flags);
}
WEFT_VIRTUAL_API CUresult cuStreamWriteValue32_v2(CUstream s, CUdeviceptr address, std::uint32_t value,
                                                  unsigned flags) {
  return write_value<std::uint32_t>("cuStreamWriteValue32", s, address, value, flags);
}
WEFT_VIRTUAL_API CUresult cuStreamWriteValue64_v2(CUstream s, CUdeviceptr address, unsigned long value,
                                                  unsigned flags) {
  return write_value<std::uint64_t>("cuStreamWriteValue64", s, address, value, flags);
}

WEFT_VIRTUAL_API CUresult cuEventCreate(CUevent* handle, unsigned flags) {
  const bool shared = (flags & event_interprocess) != 0;
  const bool arguments = handle != nullptr && flags < 8 && (!shared || (flags & event_disable_timing) != 0);
  return context_call("cuEventCreate", arguments, [&](const context_ref& c) -> CUresult {
    auto made = std::make_shared<event>();
    made->home = c;
    made->flags = flags;
    if (shared) {
      const int file = ::memfd_create("weft-virtual-event", MFD_CLOEXEC);
      if (file < 0) return CUDA_ERROR_OPERATING_SYSTEM;
      void* const memory = ::ftruncate(file, page) == 0
                               ? ::mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
                               : MAP_FAILED;
      if (memory == MAP_FAILED) {
        ::close(file);
        return CUDA_ERROR_OPERATING_SYSTEM;
      }
      made->shared = new (memory) shared_event{};
      made->shared->file = file;
    }
    *handle = the().events.add(made);
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuEventDestroy_v2(CUevent handle) {
  return plain_call("cuEventDestroy", true, [&]() -> CUresult {
    const auto gone = the().events.take(handle);
    return gone == nullptr ? CUDA_ERROR_INVALID_HANDLE : lost_of(*gone);
  });
}

WEFT_VIRTUAL_API CUresult cuEventRecord(CUevent handle, CUstream where) {
  return stream_call("cuEventRecord", where, true, [&](const stream_ref& s) -> CUresult {
    const auto e = the().events.find(handle);
    if (e == nullptr || e->home != s->home()) return CUDA_ERROR_INVALID_HANDLE;
    if (e->shared != nullptr) {
      e->shared->recorder.store(::getpid());
      const std::uint64_t count = e->shared->recorded.fetch_add(1, std::memory_order_acq_rel) + 1;
      submit(s, {.run =
                     [e, count] {
                       std::uint64_t before = e->shared->ended.load();
                       while (before < count && !e->shared->ended.compare_exchange_weak(before, count)) {
                       }
                       return CUDA_SUCCESS;
                     },
                 .guarded = false,
                 .even_when_lost = true});
      return CUDA_SUCCESS;
    }
    const std::lock_guard lock{e->mutex};
    e->newest = submit(s, {.run = [] { return CUDA_SUCCESS; }, .guarded = false});
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuEventQuery(CUevent handle) {
  return event_call("cuEventQuery", handle, [&](const std::shared_ptr<event>& e) -> CUresult {
    if (const CUresult lost = lost_of(*e); lost != 0) return lost;
    if (e->shared != nullptr) {
      return e->shared->ended.load(std::memory_order_acquire) >= e->shared->recorded.load() ? CUDA_SUCCESS
                                                                                            : CUDA_ERROR_NOT_READY;
    }
    const mark_ref m = newest_of(*e);
    if (m != nullptr && !m->is_ended()) return CUDA_ERROR_NOT_READY;
    return lost_of(*e);
  });
}

WEFT_VIRTUAL_API CUresult cuEventSynchronize(CUevent handle) {
  return event_call("cuEventSynchronize", handle, [&](const std::shared_ptr<event>& e) -> CUresult {
    if (const CUresult lost = lost_of(*e); lost != 0) return lost;
    if (e->shared != nullptr) {
      if (!wait_for(*e->shared, e->shared->recorded.load(), e->home->dead)) return CUDA_ERROR_LAUNCH_FAILED;
    } else if (const mark_ref m = newest_of(*e)) {
      m->wait();
    }
    return lost_of(*e);
  });
}

WEFT_VIRTUAL_API CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return plain_call("cuEventElapsedTime", milliseconds != nullptr, [&]() -> CUresult {
    const auto a = the().events.find(start);
    const auto b = the().events.find(end);
    if (a == nullptr || b == nullptr || a->home->device != b->home->device) return CUDA_ERROR_INVALID_HANDLE;
    if (((a->flags | b->flags) & event_disable_timing) != 0) return CUDA_ERROR_INVALID_HANDLE;
    if (const CUresult lost = lost_of(*a); lost != 0) return lost;
    const mark_ref first = newest_of(*a);
    const mark_ref last = newest_of(*b);
    if (first == nullptr || last == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (!first->is_ended() || !last->is_ended()) return CUDA_ERROR_NOT_READY;
    *milliseconds = std::chrono::duration<float, std::milli>(last->when - first->when).count();
    return CUDA_SUCCESS;
  });
}
WEFT_VIRTUAL_API CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
  return cuEventElapsedTime(milliseconds, start, end);
}

}  // namespace weft::virtual_cuda
