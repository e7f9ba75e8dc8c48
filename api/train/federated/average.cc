// Averages, list reductions and uneven gathers of a group. See ouro/train/average.hpp.
#include "ouro/train/average.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "api/train/common/comparison.h"
#include "api/train/common/not_in_batch.h"
#include "api/train/common/param_checks.h"
#include "api/train/federated/outer_state.h"
#include "runtime/core/float_mode.h"

namespace ouro::train {
namespace {

/// Replaces each tensor by its mean, all in one submission.
Status mean_each(Group& g, std::span<const View> tensors, const Stream& stream) {
  group_start();
  Status first;
  for (const View& v : tensors) {
    Status s = stream.valid() ? all_reduce(g, v, v, ReduceOp::avg, stream).status()
                              : all_reduce(g, v, v, ReduceOp::avg);
    if (first.ok()) first = std::move(s);
  }
  Status ended = group_end();
  return first.ok() ? ended : first;
}

Status average(const char* call, Group& g, std::span<const Param> params, bool gradients, bool skip_missing,
               const Stream& stream) {
  OURO_TRY(not_in_batch(call));
  if (!g.valid()) return invalid(fmt::format("{}: the group is an empty handle", call));
  Status mine = check_tensors(call, params, gradients);
  Digest digest;
  std::vector<View> tensors;
  std::size_t elements = 0;
  for (const Param& p : params) {
    const View& v = gradients ? p.grad : p.value;
    digest.add(p);
    digest.add(v.data != nullptr || v.count == 0);
    digest.add(v.dtype);
    elements += v.count;
    if (v.data != nullptr)
      tensors.push_back(v);
    else if (gradients && !skip_missing && mine.ok())
      mine =
          invalid(fmt::format("{}: parameter '{}' has no gradient; skip_missing leaves such ones out, if all "
                              "ranks lack them",
                              call, p.name));
  }
  OURO_TRY(compare(g, call, tensor_claims(digest.value(), tensors.size(), elements), mine));
  return mean_each(g, tensors, stream);
}

/// The description of a rank's rows that all ranks exchange.
struct RowsHeader {
  std::int64_t rows = 0, refuses = 0, root = 0, dtype = 0, row_digest = 0, device = 0;
};
constexpr std::size_t kHeaderWords = sizeof(RowsHeader) / sizeof(std::int64_t);

Status check_rows(CView rows, std::span<const std::int64_t> shape, int root, int size) {
  constexpr const char* kCall = "gather_rows";
  if (shape.empty()) return invalid(fmt::format("{}: no dimension; expected one at least", kCall));
  const std::int64_t elements = elements_of(shape);
  if (elements < 0 || static_cast<std::size_t>(elements) != rows.count)
    return invalid(fmt::format("{}: a shape of {} elements for a view of {}", kCall, elements, rows.count));
  if (rows.data == nullptr && rows.count > 0) return invalid(fmt::format("{}: a null pointer", kCall));
  if (root < 0 || root >= size)
    return invalid(fmt::format("{}: root {} is not in the group (0..{})", kCall, root, size - 1));
  return {};
}

/// Checks the inputs of a list: at least one, with one type and one device, and no null arrays.
Status check_list(const char* call, std::span<const CView> inputs) {
  if (inputs.empty()) return invalid(fmt::format("{}: no inputs", call));
  for (const CView& v : inputs) {
    if (v.dtype != inputs[0].dtype)
      return invalid(fmt::format("{}: inputs of type {} and of type {}; expected one", call,
                                 name(inputs[0].dtype), name(v.dtype)));
    if (v.device != inputs[0].device)
      return invalid(fmt::format("{}: inputs on several devices; expected one", call));
    if (v.data == nullptr && v.count > 0) return invalid(fmt::format("{}: a null pointer", call));
  }
  return {};
}

Result<Stream> stream_for(Device d) { return d.kind == Device::Kind::host ? Stream() : Stream::create(d); }

}  // namespace

Status average_gradients(Group& g, std::span<const Param> params, const GradientAverageOptions& o,
                         const Stream& s) {
  return average("average_gradients", g, params, true, o.skip_missing, s);
}
Status average_models(Group& g, std::span<const Param> params, const Stream& s) {
  return average("average_models", g, params, false, false, s);
}

Result<std::optional<Array>> gather_rows(Group& g, CView rows, std::span<const std::int64_t> shape,
                                         int root) {
  OURO_TRY(not_in_batch("gather_rows"));
  if (!g.valid()) return invalid("gather_rows: the group is an empty handle");
  const auto n = static_cast<std::size_t>(g.size());
  const auto me = static_cast<std::size_t>(g.rank());
  const Status mine = check_rows(rows, shape, root, g.size());
  RowsHeader header{.refuses = !mine.ok(), .root = root, .dtype = static_cast<int>(rows.dtype)};
  if (mine.ok()) {
    Digest digest;
    for (const std::int64_t d : shape.subspan(1)) digest.add(d);
    digest.add(shape.size());
    header.rows = shape[0];
    header.row_digest = static_cast<std::int64_t>(digest.value());
    header.device = rows.device.kind == Device::Kind::host ? 0 : 1;
  }
  std::vector<RowsHeader> all(n);
  OURO_TRY(all_gather(g, CView(&header, kHeaderWords, DType::i64),
                      View(all.data(), n * kHeaderWords, DType::i64), kAuto));
  OURO_TRY(mine);
  for (std::size_t r = 0; r < n; ++r) {
    if (all[r].refuses != 0)
      return invalid(fmt::format("gather_rows: rank {} refused its rows; its own error says why", r));
    const char* differs = all[r].root != all[0].root       ? "name different roots"
                          : all[r].dtype != all[0].dtype   ? "have rows of different types"
                          : all[r].device != all[0].device ? "have rows on the host and on a GPU"
                          : all[r].row_digest != all[0].row_digest
                              ? "have dimensions after the first that differ"
                              : nullptr;
    if (differs != nullptr) return invalid(fmt::format("gather_rows: ranks 0 and {} {}", r, differs));
  }
  // An uneven all-to-all in which all blocks are sent to the root, so nothing is padded.
  const auto width = static_cast<std::size_t>(elements_of(shape.subspan(1)));
  std::vector<std::size_t> to(n, 0), from(n, 0);
  to[static_cast<std::size_t>(root)] = rows.count;
  std::optional<Array> result;
  View out(nullptr, 0, rows.dtype, rows.device);
  Status room;  // result of allocating all rows at the root; no rank sends before
  if (static_cast<int>(me) == root) {
    std::vector<std::int64_t> total(shape.begin(), shape.end());
    total[0] = 0;
    for (std::size_t r = 0; r < n; ++r) {
      if (__builtin_add_overflow(total[0], all[r].rows, &total[0]))
        room = invalid("gather_rows: too many rows");
      from[r] = static_cast<std::size_t>(all[r].rows) * width;
    }
    if (room.ok()) {
      auto made = Array::make(total, rows.dtype, rows.device);
      room = made.status();
      if (room.ok()) {
        out = made->view();
        result = std::move(*made);
      }
    }
  }
  OURO_TRY(compare(g, "gather_rows", {}, room));
  OURO_TRY(all_to_all_v(g, rows, out, to, from));
  return result;
}

Result<Array> gather_into(Group& g, CView in, std::span<const std::int64_t> shape) {
  constexpr const char* kCall = "gather_into";
  OURO_TRY(not_in_batch(kCall));
  if (!g.valid()) return invalid(fmt::format("{}: the group is an empty handle", kCall));
  const std::int64_t elements = elements_of(shape);
  Status mine;
  if (elements < 0 || static_cast<std::size_t>(elements) != in.count * static_cast<std::size_t>(g.size()))
    mine = invalid(
        fmt::format("{}: a shape of {} elements for {} ranks of {}", kCall, elements, g.size(), in.count));
  else if (in.data == nullptr && in.count > 0)
    mine = invalid(fmt::format("{}: a null pointer", kCall));
  Digest digest;
  digest.add(in.dtype);
  digest.add(in.device.kind);
  digest.add(in.count);
  for (const std::int64_t d : shape) digest.add(d);
  Result<Array> out = mine;
  if (mine.ok()) {
    out = Array::make(shape, in.dtype, in.device);
    mine = out.status();
  }
  OURO_TRY(compare(g, kCall, tensor_claims(digest.value(), 1, in.count), mine));
  OURO_TRY(all_gather(g, in, out->view()));
  return out;
}

Result<Array> all_reduce_list(Group& g, std::span<const CView> inputs, ReduceOp op) {
  constexpr const char* kCall = "all_reduce_list";
  OURO_TRY(not_in_batch(kCall));
  if (!g.valid()) return invalid(fmt::format("{}: the group is an empty handle", kCall));
  Status mine = check_list(kCall, inputs);
  if (mine.ok() && !applies(op.kind, inputs[0].dtype))
    mine = invalid(fmt::format("{}: {} is not defined on {}", kCall, name(op.kind), name(inputs[0].dtype)));
  Digest digest;
  std::size_t elements = 0;
  for (const CView& v : inputs) {
    elements += v.count;
    digest.add(v.count);
  }
  if (!inputs.empty()) {
    digest.add(inputs[0].dtype);
    digest.add(inputs[0].device.kind);
  }
  digest.add(op.kind);
  Result<Array> out = mine;
  if (mine.ok()) {
    const std::int64_t shape[] = {static_cast<std::int64_t>(elements)};
    out = Array::make(shape, inputs[0].dtype, inputs[0].device);
    mine = out.status();
  }
  OURO_TRY(compare(g, kCall, tensor_claims(digest.value(), inputs.size(), elements), mine));
  OURO_ASSIGN(auto stream, stream_for(inputs[0].device));
  const View all = out->view();
  std::size_t at = 0;
  for (const CView& v : inputs) {
    OURO_TRY(copy({static_cast<std::byte*>(all.data) + at, v.count, v.dtype, v.device}, v, stream));
    at += v.bytes();
  }
  OURO_TRY(stream.synchronize());
  OURO_TRY(all_reduce(g, all, all, op));
  return out;
}

Result<Array> all_reduce_list(Group& g, std::span<const View> inputs, ReduceOp op, const ListOptions& o) {
  const std::vector<CView> read(inputs.begin(), inputs.end());
  Result<Array> out = all_reduce_list(g, read, op);
  if (!out.ok() || !o.unflatten) return out;
  OURO_ASSIGN(auto stream, stream_for(inputs[0].device));
  const auto* at = static_cast<const std::byte*>(out->view().data);
  for (const View& v : inputs) {
    OURO_TRY(copy(v, {at, v.count, v.dtype, v.device}, stream));
    at += v.bytes();
  }
  OURO_TRY(stream.synchronize());
  return out;
}

Result<Replacement> choose_replaced(std::span<const double> metric, double ratio, Averaging rule) {
  constexpr const char* kCall = "choose_replaced";
  if (metric.empty()) return invalid(fmt::format("{}: no ranks", kCall));
  if (!(ratio >= 0 && ratio <= 1)) return invalid(fmt::format("{}: ratio {}; expected 0 to 1", kCall, ratio));
  for (std::size_t r = 0; r < metric.size(); ++r)
    if (!std::isfinite(metric[r]) || (rule == Averaging::weighted_mean && metric[r] < 0))
      return invalid(fmt::format("{}: rank {} has metric {}; expected a finite number{}", kCall, r, metric[r],
                                 rule == Averaging::weighted_mean ? ", 0 at least" : ""));
  std::vector<int> order(metric.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return metric[static_cast<std::size_t>(a)] < metric[static_cast<std::size_t>(b)];
  });
  const StandardFloats floats;
  const auto n = static_cast<double>(metric.size());
  const auto many = static_cast<std::ptrdiff_t>(std::max(1.0, std::floor(n * ratio)));
  Replacement r;
  r.replaced.assign(order.begin(), order.begin() + many);
  std::sort(r.replaced.begin(), r.replaced.end());
  if (rule == Averaging::reset_weights || r.replaced.size() == metric.size()) return r;
  r.donors.assign(order.begin() + many, order.end());
  if (rule == Averaging::best_only) {
    // If metrics are equal, the lower rank wins, as everywhere here.
    const double best = metric[static_cast<std::size_t>(r.donors.back())];
    std::erase_if(r.donors, [&](int d) { return metric[static_cast<std::size_t>(d)] != best; });
    r.donors.resize(1);
  }
  std::sort(r.donors.begin(), r.donors.end());
  double sum = 0;
  for (const int d : r.donors) sum += metric[static_cast<std::size_t>(d)];
  for (const int d : r.donors)
    r.weights.push_back(rule == Averaging::weighted_mean && sum > 0
                            ? metric[static_cast<std::size_t>(d)] / sum
                            : 1.0 / static_cast<double>(r.donors.size()));
  return r;
}

}  // namespace ouro::train
