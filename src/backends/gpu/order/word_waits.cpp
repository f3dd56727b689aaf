// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/order/word_waits.hpp"

#include "backend/memory_word.hpp"
#include "backends/gpu/driver/beside_captures.hpp"
#include "core/errors/make_error.hpp"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

namespace weft::gpu {
namespace {

// between writes of a word that does not let its stream go yet
constexpr std::chrono::microseconds shortest{200};
constexpr std::chrono::microseconds longest{20000};
constexpr int rounds_untold = 100;  // some two seconds
constexpr int most_refusals = 3;    // in a row: a driver may say once that a device is lost, and be wrong
constexpr std::chrono::seconds word_timeout{10};
constexpr std::size_t most_queues = 32;   // that a GPU has
constexpr std::size_t most_writers = 64;  // of a wait

/// Words that lie in one of 8 bytes are written in turn.
CUdeviceptr home_of(CUdeviceptr at) { return at & ~CUdeviceptr{7}; }

}  // namespace

word_waits::word_waits(std::shared_ptr<contexts> places, std::size_t devices)
    : places_(std::move(places)), given_up_(devices, false) {}

word_waits::~word_waits() { end(); }

result<std::uint64_t> word_waits::add(const wait& made) {
  const std::lock_guard lock{mutex_};
  if (!thread_.joinable()) {
    try {
      thread_ = std::jthread{[this](const std::stop_token& shutdown) { serve(shutdown); }};
    } catch (const std::system_error&) {
      return make_error(
          errc::resource_exhausted,
          "no thread could be started that ends waits for values; raise the limit of threads (ulimit -u)");
    }
  }
  entry& kept = waits_[++last_];
  kept.about = made;
  kept.given_up = given_up_[made.device];
  if (kept.given_up) changed_.notify_all();
  return last_;
}

bool word_waits::remove(std::uint64_t id, pin memory) noexcept {
  entry gone;
  const std::lock_guard lock{mutex_};
  const auto found = waits_.find(id);
  if (found == waits_.end()) return false;
  entry& one = found->second;
  const bool was_given_up = one.given_up;
  one.has_ended = true;
  one.memory = std::move(memory);
  look_at(one);
  if (one.is_written || !one.writers.empty()) {
    changed_.notify_all();
    return was_given_up;
  }
  destroy(one);
  gone = std::move(one);  // its memory goes without the mutex
  waits_.erase(found);
  return was_given_up;
}

void word_waits::abandon(std::uint64_t id, pin memory) noexcept {
  const std::lock_guard lock{mutex_};
  const auto found = waits_.find(id);
  if (found == waits_.end()) return;
  found->second.given_up = true;
  found->second.memory = std::move(memory);
  changed_.notify_all();
}

void word_waits::give_up_one(std::uint64_t id, bool tells) noexcept {
  const std::lock_guard lock{mutex_};
  const auto found = waits_.find(id);
  if (found == waits_.end()) return;
  found->second.given_up = true;
  if (!tells) found->second.rounds_left = rounds_untold;
  changed_.notify_all();
}

void word_waits::give_up(std::size_t device) noexcept {
  const std::lock_guard lock{mutex_};
  given_up_[device] = true;
  for (auto& [id, one] : waits_) one.given_up = one.given_up || one.about.device == device;
  changed_.notify_all();
}

void word_waits::wait_again(std::size_t device) noexcept {
  const std::lock_guard lock{mutex_};
  given_up_[device] = false;
}

bool word_waits::settle(std::size_t device) noexcept {
  std::unique_lock lock{mutex_};
  changed_.notify_all();
  return changed_.wait_for(lock, word_timeout, [&] {
    return std::none_of(waits_.begin(), waits_.end(),
                        [&](const auto& one) { return one.second.about.device == device && one.second.given_up; });
  });
}

void word_waits::forget(std::size_t device) noexcept {
  table gone;  // let go of without the mutex
  std::unique_lock lock{mutex_};
  const auto is_there = [&](const entry& one) { return places_->gpu_of(one.about.device) == places_->gpu_of(device); };
  changed_.wait(lock, [&] {
    return std::none_of(waits_.begin(), waits_.end(),
                        [&](const auto& one) { return is_there(one.second) && one.second.is_written; });
  });
  for (auto at = waits_.begin(); at != waits_.end();) {
    const auto next = std::next(at);
    if (is_there(at->second)) gone.insert(waits_.extract(at));
    at = next;
  }
}

void word_waits::end() noexcept {
  std::jthread last;
  table left;
  {
    std::unique_lock lock{mutex_};
    changed_.notify_all();
    changed_.wait_for(lock, word_timeout, [this] {
      return std::none_of(waits_.begin(), waits_.end(), [](const auto& one) { return bool{one.second.memory}; });
    });
    last.swap(thread_);
  }
  last = {};  // stopped and joined
  left.swap(waits_);
  for (auto& [id, one] : left) destroy(one);
}

bool word_waits::is_due() const noexcept {
  return std::any_of(waits_.begin(), waits_.end(), [](const auto& one) { return one.second.given_up; });
}

/// Sees which writes have ended, and whether an abandoned wait has: all where the device is lost for good, as HIP says
/// of every device of the process, since its runtime answers nothing more.
void word_waits::look_at(entry& one) noexcept {
  if (one.writers.empty() && !one.memory) return;
  const auto inside = places_->enter(one.about.device);
  if (!inside) {
    if (inside.error().scope != error_scope::device || ++one.refusals < most_refusals) return;
    one.writers.clear();
    one.has_ended = one.has_ended || bool{one.memory};  // else the driver's word about its command is waited for
    return;
  }
  one.refusals = 0;
  const driver& cu = places_->cu();
  const beside_captures here{cu};
  const auto is_busy = [](CUresult status) { return status == CUDA_ERROR_NOT_READY || is_about_capture(status); };
  std::erase_if(one.writers, [&](CUstream writer) {
    if (is_busy(cu.cuStreamQuery(writer))) return false;
    static_cast<void>(cu.cuStreamDestroy(writer));
    return true;
  });
  if (one.has_ended || !one.memory) return;
  one.has_ended = one.rounds_left >= 0 ? --one.rounds_left < 0 : !is_busy(cu.cuEventQuery(one.about.behind));
}

void word_waits::destroy(entry& one) noexcept {
  if (one.about.behind == nullptr && one.writers.empty()) return;
  const auto inside = places_->enter(one.about.device);
  if (!inside) return;
  for (const CUstream writer : std::exchange(one.writers, {})) static_cast<void>(places_->cu().cuStreamDestroy(writer));
  if (one.about.behind != nullptr)
    static_cast<void>(places_->cu().cuEventDestroy(std::exchange(one.about.behind, nullptr)));
}

/// One wait of each word, another one in each round: a value has to stay until the stream has seen it. A word may have
/// several addresses, which nobody compares: in every other round one wait has its turn alone.
std::vector<std::uint64_t> word_waits::chosen() {
  std::vector<std::uint64_t> all;
  std::map<CUdeviceptr, std::vector<std::uint64_t>> of;
  for (const auto& [id, one] : waits_) {
    if (!one.given_up || one.has_ended) continue;
    all.push_back(id);
    of[home_of(one.about.at)].push_back(id);
  }
  const std::uint64_t turn = round_ / 2;
  const bool is_alone = round_++ % 2 == 1;
  if (all.size() < 2) return all;
  if (is_alone) return {all[turn % all.size()]};
  std::vector<std::uint64_t> made;
  made.reserve(of.size());
  for (const auto& [word, ids] : of) made.push_back(ids[turn % ids.size()]);
  return made;
}

void word_waits::take_round(std::unique_lock<std::mutex>& lock) {
  table ended;
  for (auto at = waits_.begin(); at != waits_.end();) {
    const auto next = std::next(at);
    entry& one = at->second;
    look_at(one);
    if (one.has_ended && one.writers.empty()) {
      destroy(one);
      ended.insert(waits_.extract(at));
    }
    at = next;
  }
  std::map<std::size_t, std::size_t> held_up;  // writers, by GPU
  for (const auto& [id, one] : waits_) held_up[places_->gpu_of(one.about.device)] += one.writers.size();
  for (const std::uint64_t id : chosen()) {
    const auto found = waits_.find(id);
    if (found == waits_.end() || found->second.writers.size() >= most_writers) continue;
    if (found->second.about.host != nullptr) {  // the memory is there as long as the mutex is held
      detail::store_word(found->second.about.host, found->second.about.request.size,
                         detail::comparing_word(found->second.about.request));
      continue;
    }
    found->second.is_written = true;  // and so it stays
    const wait about = found->second.about;
    std::size_t& held_up_there = held_up[places_->gpu_of(about.device)];
    const bool by_copy = held_up_there >= most_queues;
    lock.unlock();
    const CUstream writer = write(about, by_copy);
    lock.lock();
    entry& one = waits_.at(id);
    one.is_written = false;
    if (writer == nullptr) continue;
    one.writers.push_back(writer);
    ++held_up_there;
  }
  lock.unlock();
  ended.clear();
  lock.lock();
  changed_.notify_all();
}

// A stream that waits holds the queue of the GPU that it is in, and what shares it. Each new stream is given another
// queue, and so a write that is held up too is not the last. Where waits hold all of them, copies from the host have
// queues of their own.
CUstream word_waits::write(const wait& given, bool by_copy) noexcept {
  const std::uint64_t value = detail::comparing_word(given.request);
  const auto inside = places_->enter(given.device);
  if (!inside) return nullptr;
  const driver& cu = places_->cu();
  int least = 0;
  int greatest = 0;
  CUstream stream = nullptr;
  if (cu.cuCtxGetStreamPriorityRange(&least, &greatest) != CUDA_SUCCESS ||
      cu.cuStreamCreateWithPriority(&stream, stream_non_blocking, greatest) != CUDA_SUCCESS)
    return nullptr;
  if (by_copy) {
    static_cast<void>(cu.cuMemcpyHtoDAsync(given.at, &value, given.request.size, stream));  // read before it returns
  } else if (given.request.size == sizeof(std::uint32_t)) {
    static_cast<void>(cu.cuStreamWriteValue32(stream, given.at, static_cast<std::uint32_t>(value), 0));
  } else {
    static_cast<void>(cu.cuStreamWriteValue64(stream, given.at, value, 0));
  }
  return stream;
}

void word_waits::serve(const std::stop_token& shutdown) {
  auto pause = shortest;
  std::unique_lock lock{mutex_};
  while (!shutdown.stop_requested()) {
    if (!is_due()) {
      pause = shortest;
      changed_.wait(lock, shutdown, [this] { return is_due(); });
      continue;
    }
    try {
      take_round(lock);
    } catch (const std::bad_alloc&) {  // the next round may have memory
      if (!lock.owns_lock()) lock.lock();
    }
    changed_.wait_for(lock, shutdown, pause, [] { return false; });
    pause = std::min(2 * pause, longest);
  }
}

}  // namespace weft::gpu
