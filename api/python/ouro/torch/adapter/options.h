// The options of a process group. Used by backend.h.
#pragma once
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace ouro::adapter {

/// If ouro stands in for gloo, the logger of DistributedDataParallel takes the group's backend for a
/// ProcessGroupGloo and reads its number of threads from its options. These members are at the same offsets
/// as gloo's in PyTorch 2.9 to 2.15.
struct OptionsAsGloo final : c10d::Backend::Options {
  using Base = c10d::Backend::Options;
  OptionsAsGloo(std::chrono::milliseconds limit, std::string group) : Base("ouro", limit) {
    group_name = std::move(group);
  }
#ifdef C10D_BACKEND_HAS_HOOKS  // 2.15
  OptionsAsGloo(const OptionsAsGloo&) = default;
  c10::intrusive_ptr<Base> clone() const override { return c10::make_intrusive<OptionsAsGloo>(*this); }
#endif
  std::vector<std::shared_ptr<void>> devices;
  int threads = 2;  // gloo's default
};

}  // namespace ouro::adapter
