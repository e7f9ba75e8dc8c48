// Layouts of buckets, and the rule of the loss scaler. See bucket.hpp and scaler.hpp.
#include "ouro/train/bucket.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "ouro/train/scaler.hpp"

namespace ouro::train {

Result<std::vector<BucketLayout>> plan_buckets(std::span<const Param> params, std::span<const int> order,
                                               double bucket_mb) {
  if (!(bucket_mb >= 0)) return invalid(fmt::format("buckets of {} MiB; expected 0 or more", bucket_mb));
  std::vector<std::pair<DType, Device>> kinds;
  std::set<int> seen;
  for (const int p : order) {
    if (p < 0 || static_cast<std::size_t>(p) >= params.size() || !seen.insert(p).second)
      return invalid(fmt::format("parameter {} in the order; expected 0..{}, each at most once", p,
                                 static_cast<std::ptrdiff_t>(params.size()) - 1));
    const View& v = params[static_cast<std::size_t>(p)].value;
    const std::pair kind{v.dtype, v.device};
    if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) kinds.push_back(kind);
  }
  const double limit = bucket_mb * 1024 * 1024;
  std::vector<BucketLayout> plan;
  std::set<std::size_t> lengths;
  for (const auto& [dtype, device] : kinds) {
    BucketLayout bucket;
    const auto close = [&, dtype = dtype, device = device] {
      while (!lengths.insert(bucket.length).second) bucket.length += kBlockAlign;
      bucket.dtype = dtype, bucket.device = device;
      plan.push_back(std::exchange(bucket, {}));
    };
    for (const int p : order) {
      const View& v = params[static_cast<std::size_t>(p)].value;
      if (v.dtype != dtype || v.device != device) continue;
      bucket.params.push_back(p);
      bucket.offsets.push_back(bucket.length);
      bucket.length += ceil32(v.count);
      if (static_cast<double>(bucket.length * size_of(dtype)) >= limit) close();
    }
    if (!bucket.params.empty()) close();
  }
  return plan;
}

void GradScaler::update(bool finite) {
  if (!finite) {
    scale *= backoff;
    clean_steps = 0;
  } else if (++clean_steps >= interval) {
    scale *= growth;
    clean_steps = 0;
  }
}

Status GradScaler::check() const {
  if (!(scale > 0) || !std::isfinite(scale) || !(growth >= 1) || !std::isfinite(growth) || !(backoff > 0) ||
      !(backoff <= 1) || interval < 1)
    return invalid(
        fmt::format("loss scale {}, growth {}, backoff {}, interval {}; expected a positive scale, growth of "
                    "1 or more, backoff in (0, 1], interval of 1 or more",
                    scale, growth, backoff, interval));
  return {};
}

}  // namespace ouro::train
