// The device entry of the exchange kernel. Used by exchange_host.cc.
#pragma once

namespace ouro::gpu {

/// Returns nullptr in a build without a CUDA compiler.
const void* exchange_entry();

}  // namespace ouro::gpu
