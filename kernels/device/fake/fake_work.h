// The functions of operations on fake streams. Used by the parts of a FakeGpu that enqueue them.
#pragma once
#include <span>

#include "kernels/device/fake/fake_memory.h"
#include "kernels/device/fake/fake_queue.h"

namespace ouro::gpu::fake {

// These return work. Arguments are copied; addresses are checked again when it runs.
Work copy_work(const FakeOptions&, const Memory&, void* to, const void* from, std::size_t bytes);
Work set_work(const Memory&, void* to, std::uint8_t byte, std::size_t bytes);
Work mem_op_work(const Memory&, std::span<const MemOp>);
/// `capacity`: spinning blocks that fit on the device.
Work kernel_work(const Kernel&, int blocks, const void* args, int capacity);
Work host_work(void (*f)(void*), void* data);
Work fault_work();  ///< an injected fault: the device is lost

}  // namespace ouro::gpu::fake
