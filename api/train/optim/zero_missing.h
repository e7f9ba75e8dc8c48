// Handles gradients that are missing in a step. Used by gossip_step.cc and shard_step.cc.
#pragma once
#include <fmt/format.h>

#include <cstdint>
#include <span>
#include <vector>

#include "api/train/optim/update.h"

namespace ouro::train {

/// Zeroes the gradients of `buckets` that are not `ready` (indexed by parameter) and counts them as ready.
/// Errors: invalid unless `find_unused`, naming the first one.
template <class Bucket>
Status zero_missing(std::span<Bucket> buckets, const std::vector<bool>& ready, bool find_unused,
                    std::int64_t step) {
  for (Bucket& b : buckets)
    for (std::size_t i = 0; i < b.params.size() && b.unready > 0; ++i) {
      if (ready[static_cast<std::size_t>(b.layout.params[i])]) continue;
      if (!find_unused)
        return invalid(fmt::format("no gradient of parameter '{}' in step {}; expected all, or find_unused",
                                   b.params[i].name, step));
      OURO_TRY(zero_view(b.params[i].grad));
      --b.unready;
    }
  return {};
}

}  // namespace ouro::train
