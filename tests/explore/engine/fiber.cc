// Switches stacks: saves and restores the registers that a call preserves, and the stack pointer.
// See fiber.h.
#include "tests/explore/engine/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>

extern "C" void explore_switch(void** from, void* to);

#if defined(__x86_64__)
asm(R"(
.text
.globl explore_switch
.type explore_switch, @function
explore_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size explore_switch, .-explore_switch
)");
#elif defined(__aarch64__)
asm(R"(
.text
.globl explore_switch
.type explore_switch, @function
explore_switch:
  sub sp, sp, #160
  stp x19, x20, [sp]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x2, sp
  str x2, [x0]
  mov sp, x1
  ldp x19, x20, [sp]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size explore_switch, .-explore_switch
)");
#else
#error "fibers: no switch of stacks for this processor"
#endif

namespace explore {

void Context::start(void (*f)()) {
  if (!stack_) {
    void* const p = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) std::abort();
    stack_ = static_cast<std::byte*>(p);
  }
  auto* const top = reinterpret_cast<std::uint64_t*>(stack_ + kStackBytes);
#if defined(__x86_64__)
  top[-3] = 0;  // return address of f: after a call the stack pointer is 8 below a multiple of 16
  top[-4] = reinterpret_cast<std::uint64_t>(f);
  for (int i = 5; i <= 10; ++i) top[-i] = 0;
  pointer_ = top - 10;
#else
  std::uint64_t* const frame = top - 20;
  for (int i = 0; i < 20; ++i) frame[i] = 0;
  frame[11] = reinterpret_cast<std::uint64_t>(f);
  pointer_ = frame;
#endif
}

void Context::switch_to(Context& to) { explore_switch(&pointer_, to.pointer_); }

}  // namespace explore
