// Device entry of the exchange kernel: one block per channel that moves data. Used by exchange_host.cc.
#include "kernels/gpu/exchange_body.h"
#include "kernels/gpu/exchange_entry.h"

namespace ouro::gpu {
namespace {

__global__ void __launch_bounds__(kResidentThreads, 1)
    exchange_messages(const __grid_constant__ ExchangeArgs args) {
  __shared__ ExchangeShared shared;
  const DeviceBlock block{};
  Exchange<DeviceBlock>(args, block, shared).run();
}

}  // namespace

const void* exchange_entry() { return reinterpret_cast<const void*>(&exchange_messages); }

}  // namespace ouro::gpu
