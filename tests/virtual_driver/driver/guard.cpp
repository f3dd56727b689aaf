// SPDX-License-Identifier: Apache-2.0
#include "virtual_driver/driver/guard.hpp"

#include <csignal>
#include <cstddef>
#include <ctime>
#include <iterator>
#include <memory>
#include <mutex>
#include <pthread.h>
#include <sys/mman.h>

namespace weft::virtual_cuda {

struct handler_access {
  static int pending(const worker_thread& w) { return w.pending_.load(std::memory_order_acquire); }
};

namespace {

thread_local guard* active = nullptr;
thread_local worker_thread* own = nullptr;
thread_local bool is_worker = false;  // stays: a signal may come when the thread is about to end
thread_local int undisturbed_depth = 0;

constexpr int watched[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
struct sigaction before[std::size(watched)];

// Nothing is guarded from here on: a further signal on the way would else jump out of the jump, and so on.
[[noreturn]] void leave_for(CUresult code) {
  guard* const left = active;
  active = nullptr;
  undisturbed_depth = 0;
  left->code = code;
  siglongjmp(left->jump, 1);
}

CUresult code_of(int signal) {
  switch (signal) {
    case SIGFPE:
      return gpu::CUDA_ERROR_LAUNCH_FAILED;
    case SIGILL:  // compiled into every access, for addresses that are not aligned
      return gpu::CUDA_ERROR_MISALIGNED_ADDRESS;
    default:
      return gpu::CUDA_ERROR_ILLEGAL_ADDRESS;
  }
}

void hand_on(int signal, siginfo_t* info, void* machine) {
  for (std::size_t n = 0; n < std::size(watched); ++n) {
    if (watched[n] != signal) continue;
    if ((before[n].sa_flags & SA_SIGINFO) != 0 && before[n].sa_sigaction != nullptr) {
      before[n].sa_sigaction(signal, info, machine);
    } else if (before[n].sa_handler != SIG_DFL && before[n].sa_handler != SIG_IGN) {
      before[n].sa_handler(signal);
    } else {
      ::signal(signal, SIG_DFL);  // the instruction is done again and ends the process, as without this library
    }
  }
}

void on_signal(int signal, siginfo_t* info, void* machine) {
  const bool sent = info->si_code <= 0;  // by interrupt(), not by an instruction
  if (sent && is_worker && (active == nullptr || own == nullptr || undisturbed_depth != 0)) return;
  if (sent && own != nullptr && handler_access::pending(*own) == 0) return;
  if (active == nullptr) {
    hand_on(signal, info, machine);
    return;
  }
  if (sent && own != nullptr) {
    leave_for(handler_access::pending(*own));
  }
  if (signal == SIGSEGV && active->open && active->open(reinterpret_cast<std::uint64_t>(info->si_addr))) return;
  leave_for(code_of(signal));
}

// Another library may have put its own handler in front since: looked at before each piece of work.
void install() {
  static std::mutex one_at_a_time;
  for (std::size_t n = 0; n < std::size(watched); ++n) {
    struct sigaction now{};
    ::sigaction(watched[n], nullptr, &now);
    if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == &on_signal) continue;
    const std::lock_guard lock{one_at_a_time};
    struct sigaction ours{};
    ours.sa_sigaction = &on_signal;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&ours.sa_mask);
    ::sigaction(watched[n], nullptr, &now);
    if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == &on_signal) continue;
    before[n] = now;
    ::sigaction(watched[n], &ours, nullptr);
  }
}

}  // namespace

CUresult run_guarded(guard& g, const std::function<void()>& work) {
  install();
  guard* const outer = active;
  if (sigsetjmp(g.jump, 1) == 0) {
    active = &g;
    if (own != nullptr) {
      own->inside_.store(true);  // before it looks whether its context is lost, as interrupt() comes after that
      if (const int code = own->pending_.load(std::memory_order_acquire); code != 0) end_guarded(code);
    }
    work();
    g.code = 0;
  }
  active = outer;
  if (own != nullptr) {
    own->inside_.store(false, std::memory_order_release);
    own->pending_.store(0, std::memory_order_release);
  }
  return g.code;
}

void end_guarded(CUresult code) { leave_for(code); }

undisturbed::undisturbed() { ++undisturbed_depth; }

undisturbed::~undisturbed() {
  if (--undisturbed_depth != 0 || active == nullptr || own == nullptr) return;
  if (const int code = own->pending_.load(std::memory_order_acquire); code != 0) end_guarded(code);
}

void worker_thread::enter() {
  own = this;
  is_worker = true;
  thread_.store(::pthread_self(), std::memory_order_release);
  // a kernel that runs over its stack is told from one that does not: the handler needs another stack then
  constexpr std::size_t size = std::size_t{64} << 10;
  stack_t other{};
  other.ss_sp = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  other.ss_size = size;
  if (other.ss_sp != MAP_FAILED) ::sigaltstack(&other, nullptr);
}

void worker_thread::leave() {
  {
    const std::lock_guard lock{mutex_};
    thread_.store(0, std::memory_order_release);
  }
  stack_t other{};
  ::sigaltstack(nullptr, &other);
  if ((other.ss_flags & SS_DISABLE) == 0) {
    stack_t none{};
    none.ss_flags = SS_DISABLE;
    ::sigaltstack(&none, nullptr);
    ::munmap(other.ss_sp, other.ss_size);
  }
  own = nullptr;
}

void worker_thread::interrupt(CUresult code) {
  const std::lock_guard lock{mutex_};
  if (thread_.load(std::memory_order_acquire) == 0 || !inside_.load()) return;
  pending_.store(code, std::memory_order_release);
  if (!inside_.load(std::memory_order_acquire)) {
    pending_.store(0, std::memory_order_release);
    return;
  }
  ::pthread_kill(thread_.load(std::memory_order_acquire), SIGSEGV);
}

}  // namespace weft::virtual_cuda
