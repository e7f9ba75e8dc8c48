// The emulated devices of a process that several libraries of ouro share: one of them owns them, and exports
// a function by which the others find them. Used by emulated(), and by the CUDA runtime of the tests, which
// is an owner.
#pragma once
#include "kernels/device/gpu.h"

namespace ouro::gpu::fake {

/// The owner's function, and its name. It returns nullptr to a caller whose `build` differs from its own:
/// their declarations of Gpu may differ.
using SharedDevices = Gpu* (*)(const char* build);
inline constexpr char kSharedDevices[] = "ouro_emulated_devices";
/// Changes with the declarations that libraries share.
const char* shared_build();

}  // namespace ouro::gpu::fake
