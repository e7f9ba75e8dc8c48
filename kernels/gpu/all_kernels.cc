// The list of all kernels of devices. Used for preloading and reports.
#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "kernels/gpu/await_host.h"
#include "kernels/gpu/collect.h"
#include "kernels/gpu/exchange.h"
#include "kernels/gpu/optim.h"
#include "kernels/gpu/resident.h"
#include "runtime/core/per_process.h"

namespace ouro::gpu {

/// A weak reference, which takes nothing out of an archive: a program that updates no parameters (such as
/// libnccl) is linked without these kernels, which are half of all device code.
std::span<const Kernel> optim_kernels() __attribute__((weak));

std::span<const Kernel* const> all_kernels() {
  static const auto& all = *[] {  // never destroyed: groups may outlive static objects
    const std::span<const Kernel* const> collect = collect_kernels();
    auto& list = *new std::vector<const Kernel*>(collect.begin(), collect.end());
    if (optim_kernels != nullptr)
      for (const Kernel& kernel : optim_kernels()) list.push_back(&kernel);
    const std::span<const Kernel* const> resident = resident_kernels();
    list.insert(list.end(), resident.begin(), resident.end());
    list.push_back(&exchange_kernel());
    list.push_back(&awaiting_kernel());
    return &list;
  }();
  return all;
}

Status load_kernels(int device) {
  struct Loaded {
    std::mutex mutex;
    std::set<std::pair<const Gpu*, int>> on;  // by implementation, because tests install others
  };
  static constinit PerProcess<Loaded> loaded;
  std::lock_guard lock(loaded->mutex);
  if (loaded->on.contains({&gpu(), device})) return {};
  const Kernel& any = *collect_kernels().front();
  if (const Status s = gpu().info(any, device).status(); s.reason() == Reason::unsupported) {
    const auto p = gpu().properties(device);
    return unsupported(
        fmt::format("this build has no code for GPU {} ({}): {}", device,
                    p.ok() ? fmt::format("{}, compute capability {}.{}", p->name, p->major, p->minor)
                           : "of an unknown kind",
                    s.failure()->text));
  }
  std::size_t stack = 0;
  for (const Kernel* kernel : all_kernels()) {
    const auto info = gpu().info(*kernel, device);
    if (!info.ok() && info.status().reason() != Reason::unsupported) return info.status();
    if (info.ok()) stack = std::max(stack, info->local_bytes);
  }
  if (Status s = gpu().reserve_stack(device, stack); !s.ok() && s.reason() != Reason::unsupported) return s;
  loaded->on.insert({&gpu(), device});
  return {};
}

}  // namespace ouro::gpu
