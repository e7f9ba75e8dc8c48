// Checks of parameter lists. See param_checks.h.
#include "api/train/common/param_checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace ouro::train {
namespace {

Status wrong(std::string_view call, const Param& p, const std::string& what) {
  return invalid(fmt::format("{}: parameter '{}' {}", call, p.name, what));
}

Status check_type(std::string_view call, const Param& p, DType t) {
  if (trains(t)) return {};
  return wrong(call, p, fmt::format("is of type {}; expected double, float, bfloat16 or half", name(t)));
}

/// Checks memory and shape of p's value or gradient.
Status check_array(std::string_view call, const Param& p, const View& v) {
  if (v.data == nullptr && v.count > 0) return wrong(call, p, "is a null pointer");
  if (const std::int64_t n = elements_of(p.shape);
      !p.shape.empty() && (n < 0 || static_cast<std::size_t>(n) != v.count))
    return wrong(call, p,
                 fmt::format("has {} elements, its shape ({}) {}; expected contiguous memory", v.count,
                             fmt::join(p.shape, ","), n < 0 ? "none" : fmt::format("{}", n)));
  if (p.order == Order::channels_last && p.shape.size() != 4)
    return wrong(call, p, fmt::format("is channels_last with {} dimensions; expected 4", p.shape.size()));
  return {};
}

/// The memory ranges of a list's arrays.
class Ranges {
 public:
  void add(const Param& p, const View& v) {
    const auto at = reinterpret_cast<std::uintptr_t>(v.data);
    if (v.count > 0) ranges_.push_back({at, at + v.bytes(), &p});
  }
  /// No two arrays may share a byte; with `tied`, two entries may be the same array.
  Status check_apart(std::string_view call, bool tied) {
    std::sort(ranges_.begin(), ranges_.end(), [](const Range& a, const Range& b) {
      return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
    });
    for (std::size_t i = 1; i < ranges_.size(); ++i) {
      const Range &a = ranges_[i - 1], &b = ranges_[i];
      if (b.begin >= a.end || (tied && a.begin == b.begin && a.end == b.end)) continue;
      return invalid(
          fmt::format("{}: parameters '{}' and '{}' share memory{}", call, a.param->name, b.param->name,
                      tied ? " in part; expected all of it or none" : "; expected tied weights once"));
    }
    return {};
  }

 private:
  struct Range {
    std::uintptr_t begin, end;
    const Param* param;
  };
  std::vector<Range> ranges_;
};

}  // namespace

std::int64_t elements_of(std::span<const std::int64_t> shape) {
  std::int64_t n = 1;
  for (const std::int64_t d : shape)
    if (d < 0 || __builtin_mul_overflow(n, d, &n)) return -1;
  return n;
}

Status check_names(std::string_view call, std::span<const Param> params) {
  std::set<std::string_view> names;
  for (const Param& p : params)
    if (!names.insert(p.name).second)
      return invalid(fmt::format("{}: two parameters are named '{}'", call, p.name));
  return {};
}

Status check_tensors(std::string_view call, std::span<const Param> params, bool gradients) {
  Ranges ranges;
  const View* first = nullptr;
  for (const Param& p : params) {
    const View& v = gradients ? p.grad : p.value;
    if (gradients && v.data == nullptr) continue;
    OURO_TRY(check_type(call, p, v.dtype));
    if (v.count != p.value.count)
      return wrong(call, p, fmt::format("has {} elements, its gradient {}", p.value.count, v.count));
    OURO_TRY(check_array(call, p, v));
    if (first == nullptr) first = &v;
    if (v.device != first->device)
      return wrong(call, p, "is on another device than those before it; expected one device");
    ranges.add(p, v);
  }
  return ranges.check_apart(call, true);
}

Status check_trainable(std::string_view call, std::span<const Param> params) {
  if (params.empty()) return invalid(fmt::format("{}: no parameters; expected at least one", call));
  Ranges ranges;
  for (const Param& p : params) {
    const View &v = p.value, &g = p.grad;
    OURO_TRY(check_array(call, p, v));
    if (!frozen(p)) OURO_TRY(check_type(call, p, v.dtype));
    if (!frozen(p) && (g.count != v.count || g.dtype != v.dtype || g.device != v.device))
      return wrong(call, p, "has a gradient of another count, type or device");
    ranges.add(p, v);
  }
  if (std::all_of(params.begin(), params.end(), frozen))
    return invalid(
        fmt::format("{}: all parameters are frozen; expected a gradient's memory for at least one", call));
  OURO_TRY(check_names(call, params));
  return ranges.check_apart(call, false);
}

}  // namespace ouro::train
