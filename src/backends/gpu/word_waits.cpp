// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/word_waits.hpp"

#include "backend/memory_word.hpp"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <system_error>
#include <utility>

namespace weft::gpu {
namespace {

// between writes of a word that does not let its stream go yet
constexpr std::chrono::microseconds shortest{200};
constexpr std::chrono::microseconds longest{20000};

}  // namespace

word_waits::word_waits(std::shared_ptr<contexts> places, std::size_t devices)
    : places_(std::move(places)), given_up_(devices, false) {}

word_waits::~word_waits() { end(); }

std::uint64_t word_waits::add(const wait& made) {
  const std::lock_guard lock{mutex_};
  entry& kept = waits_[++last_];
  kept.about = made;
  kept.given_up = given_up_[made.device];
  if (kept.given_up) wake();
  return last_;
}

bool word_waits::remove(std::uint64_t id) noexcept {
  const std::lock_guard lock{mutex_};
  const auto found = waits_.find(id);
  if (found == waits_.end()) return false;
  const bool was_given_up = found->second.given_up;
  waits_.erase(found);
  return was_given_up;
}

void word_waits::abandon(std::uint64_t id, pin memory) noexcept {
  const std::lock_guard lock{mutex_};
  const auto found = waits_.find(id);
  if (found == waits_.end()) return;
  found->second.given_up = true;
  found->second.memory = std::move(memory);
  wake();
}

void word_waits::give_up_one(std::uint64_t id) noexcept {
  const std::lock_guard lock{mutex_};
  const auto found = waits_.find(id);
  if (found == waits_.end()) return;
  found->second.given_up = true;
  wake();
}

void word_waits::give_up(std::size_t device) noexcept {
  const std::lock_guard lock{mutex_};
  given_up_[device] = true;
  for (auto& [id, one] : waits_) one.given_up = one.given_up || one.about.device == device;
  if (is_due()) wake();
}

void word_waits::wait_again(std::size_t device) noexcept {
  const std::lock_guard lock{mutex_};
  given_up_[device] = false;
}

template <class Wanted>
word_waits::table word_waits::take_if(const Wanted& wanted) {
  table taken;
  for (auto at = waits_.begin(); at != waits_.end();) {
    const auto next = std::next(at);
    if (wanted(at->second)) taken.insert(waits_.extract(at));
    at = next;
  }
  return taken;
}

void word_waits::forget(std::size_t device) noexcept {
  table gone;
  const std::lock_guard lock{mutex_};
  gone = take_if([&](const entry& one) { return places_->gpu_of(one.about.device) == places_->gpu_of(device); });
}

void word_waits::end() noexcept {
  constexpr std::chrono::seconds limit{10};
  const auto until = std::chrono::steady_clock::now() + limit;
  for (bool is_left = true; is_left && std::chrono::steady_clock::now() < until;) {
    table ended;
    {
      const std::lock_guard lock{mutex_};
      ended = write_all();
      is_left = std::any_of(waits_.begin(), waits_.end(), [](const auto& one) { return bool{one.second.memory}; });
    }
    if (is_left) std::this_thread::sleep_for(shortest);
  }
  std::jthread last;
  {
    const std::lock_guard lock{mutex_};
    last.swap(thread_);
  }
  // it is stopped and joined as it goes
}

bool word_waits::is_due() const noexcept {
  return std::any_of(waits_.begin(), waits_.end(), [](const auto& one) { return one.second.given_up; });
}

void word_waits::wake() noexcept {
  try {
    if (!thread_.joinable()) thread_ = std::jthread{[this](const std::stop_token& shutdown) { serve(shutdown); }};
    changed_.notify_all();
  } catch (const std::system_error&) {
    // once is enough unless somebody writes the word at the same time
    for (const auto& [id, one] : waits_) {
      if (one.given_up) write(one.about);
    }
  }
}

word_waits::table word_waits::write_all() noexcept {
  table ended = take_if([this](const entry& one) { return one.memory && !is_busy(one.about); });
  for (const auto& [id, one] : waits_) {
    if (one.given_up) write(one.about);
  }
  return ended;
}

bool word_waits::is_busy(const wait& given) const noexcept {
  const auto inside = places_->enter(given.device);
  return inside && places_->cu().cuStreamQuery(given.stream) == CUDA_ERROR_NOT_READY;
}

// A stream that waits holds the queue of the GPU that it is in, and what shares it. Each new stream is given another
// queue, and so a write that is held up too is not the last.
void word_waits::write(const wait& given) noexcept {
  const std::uint64_t value = detail::comparing_word(given.request);
  if (given.host != nullptr) return detail::store_word(given.host, given.request.size, value);
  const auto inside = places_->enter(given.device);
  if (!inside) return;
  const driver& cu = places_->cu();
  int least = 0;
  int greatest = 0;
  CUstream stream = nullptr;
  if (cu.cuCtxGetStreamPriorityRange(&least, &greatest) != CUDA_SUCCESS ||
      cu.cuStreamCreateWithPriority(&stream, stream_non_blocking, greatest) != CUDA_SUCCESS)
    return;
  if (given.request.size == sizeof(std::uint32_t)) {
    static_cast<void>(cu.cuStreamWriteValue32(stream, given.at, static_cast<std::uint32_t>(value), 0));
  } else {
    static_cast<void>(cu.cuStreamWriteValue64(stream, given.at, value, 0));
  }
  static_cast<void>(cu.cuStreamDestroy(stream));  // it goes when the write has ended
}

void word_waits::serve(const std::stop_token& shutdown) {
  auto pause = shortest;
  std::unique_lock lock{mutex_};
  for (;;) {
    if (!is_due()) pause = shortest;
    if (!changed_.wait(lock, shutdown, [this] { return is_due(); })) return;
    auto ended = write_all();
    lock.unlock();
    ended.clear();
    lock.lock();
    changed_.wait_for(lock, shutdown, pause, [] { return false; });
    pause = std::min(2 * pause, longest);
  }
}

}  // namespace weft::gpu
