// SPDX-License-Identifier: Apache-2.0
#include "virtual_driver/driver/stacks.hpp"

#include <bit>
#include <cstdint>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

namespace weft::virtual_cuda {
namespace {

constexpr std::size_t stack_size = std::size_t{64} << 10;
// below all stacks: what runs over its own by so much faults, whatever else lies there
constexpr std::size_t out_of_bounds = std::size_t{4} << 20;
constexpr std::size_t most_kept = 1024;

}  // namespace

// What a called function must keep, and no more: swapcontext() also asks the system for the mask of signals, which
// kernels do not change. Nothing describes these frames to an unwinder: it finds no way out of a stack.
#if defined(__x86_64__)

// System V psABI, 3.2.1: rbx, rbp, r12 to r15, the control bits of MXCSR, the x87 control word.
asm(R"(
.text
.globl weft_virtual_switch_stack
.hidden weft_virtual_switch_stack
.type weft_virtual_switch_stack, @function
weft_virtual_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  subq $8, %rsp
  stmxcsr (%rsp)
  fnstcw 4(%rsp)
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  ldmxcsr (%rsp)
  fldcw 4(%rsp)
  addq $8, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size weft_virtual_switch_stack, . - weft_virtual_switch_stack
)");

namespace {

constexpr std::size_t registers_kept = 6;

std::uint64_t float_control() {
  struct {
    std::uint32_t vectors, x87;
  } words{};
  asm volatile("stmxcsr %0\n\tfnstcw %1" : "=m"(words.vectors), "=m"(words.x87));
  return std::bit_cast<std::uint64_t>(words);
}

}  // namespace

#elif defined(__aarch64__)

// AAPCS64, 6.1: x19 to x29, the lower halves of v8 to v15. FPCR, which it leaves to the program, is each thread's own
// as on x86.
asm(R"(
.text
.globl weft_virtual_switch_stack
.hidden weft_virtual_switch_stack
.type weft_virtual_switch_stack, %function
weft_virtual_switch_stack:
  mrs x9, fpcr
  stp x9, x19, [sp, #-176]!
  stp x20, x21, [sp, #16]
  stp x22, x23, [sp, #32]
  stp x24, x25, [sp, #48]
  stp x26, x27, [sp, #64]
  stp x28, x29, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  stp x30, x30, [sp, #160]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x20, x21, [sp, #16]
  ldp x22, x23, [sp, #32]
  ldp x24, x25, [sp, #48]
  ldp x26, x27, [sp, #64]
  ldp x28, x29, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  ldp x10, x30, [sp, #160]
  ldp x9, x19, [sp], #176
  msr fpcr, x9
  ret x10
.size weft_virtual_switch_stack, . - weft_virtual_switch_stack
)");

namespace {

constexpr std::size_t registers_kept = 19;

std::uint64_t float_control() {
  std::uint64_t word = 0;
  asm volatile("mrs %0, fpcr" : "=r"(word));
  return word;
}

}  // namespace

#endif

#if defined(__x86_64__) || defined(__aarch64__)

extern "C" __attribute__((visibility("hidden"))) void weft_virtual_switch_stack(void** from, void* to);

void switch_stack(left_stack& from, left_stack& to) { weft_virtual_switch_stack(&from, to); }

namespace {

struct first_frame {
  std::uint64_t control;
  std::uint64_t kept[registers_kept];
  void (*run)();
  void* caller;
};

void begin_at(std::byte* low, std::uint64_t control, void (*run)(), left_stack& at) {
  const first_frame frame{control, {}, run, nullptr};
  at = low + stack_size - sizeof frame;
  std::memcpy(at, static_cast<const void*>(&frame), sizeof frame);
}

}  // namespace

#else

void switch_stack(left_stack& from, left_stack& to) { ::swapcontext(&from, &to); }

namespace {

std::uint64_t float_control() { return 0; }  // a new stack has that of the one that began it

void begin_at(std::byte* low, std::uint64_t, void (*run)(), left_stack& at) {
  ::getcontext(&at);
  at.uc_stack.ss_sp = low;
  at.uc_stack.ss_size = stack_size;
  at.uc_link = nullptr;
  ::makecontext(&at, run, 0);
}

}  // namespace

#endif

void stacks::begin(std::size_t n, void (*run)(), left_stack& at) {
  std::byte* const low = base_ + n * stack_size;
  if (n >= guarded_) {
    // Without access, and no mapping of its own; before Linux 6.13 there is only what lies below all stacks.
    constexpr int guard_install = 102;
    static const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    if (page < stack_size) static_cast<void>(::madvise(low, page, guard_install));
    guarded_ = n + 1;
  }
  begin_at(low, control_, run, at);
}

bool stacks::reserve(std::size_t count) {
  control_ = float_control();
  if (count <= count_) return true;
  drop();
  void* const memory = ::mmap(nullptr, out_of_bounds + count * stack_size, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) return false;
  ::mprotect(memory, out_of_bounds, PROT_NONE);
  base_ = static_cast<std::byte*>(memory) + out_of_bounds;
  count_ = count;
  return true;
}

void stacks::trim() {
  if (count_ > most_kept) drop();
}

void stacks::drop() {
  if (count_ != 0) ::munmap(base_ - out_of_bounds, out_of_bounds + count_ * stack_size);
  count_ = guarded_ = 0;
}

}  // namespace weft::virtual_cuda
