// Weighted exchange among neighbours: a row of a topology becomes one operation of the group. See
// ouro/train/topology.hpp.
#include "api/src/not_in_batch.h"
#include "api/train/gossip/combine.h"
#include "ouro/train/topology.hpp"
#include "runtime/group/batch.h"
#include "runtime/group/group.h"

namespace ouro::train {
namespace {

Result<rt::Operation> operation(const Group& g, const Row& row, CView x, View y) {
  if (!g.valid()) return invalid("the group is an empty handle");
  if (x.device.kind != Device::Kind::host || y.device.kind != Device::Kind::host)
    return unsupported(
        "mix: its vectors are on a GPU; expected them on the host: only hosts sum up neighbours so far");
  rt::Operation o;
  o.collective = Collective::mix;
  o.in = x, o.out = y;
  o.op = ReduceOp::premul(row.self);
  o.in_neighbours = row.in;
  o.out_neighbours = row.out;
  return o;
}

}  // namespace

Status mix(Group& g, const Row& row, CView x, View y) {
  const Result<rt::Operation> o = operation(g, row, x, y);
  if (!o.ok()) return o.status();
  if (auto* batch = rt::Batch::current()) {
    std::shared_ptr<rt::WorkState> work;
    return batch->defer(g.impl(), *o, nullptr, &work);
  }
  return g.impl()->submit(*o, nullptr, nullptr);
}

Result<Work> mix(Group& g, const Row& row, CView x, View y, const Stream& s) {
  const Result<rt::Operation> o = operation(g, row, x, y);
  if (!o.ok()) return o.status();
  std::shared_ptr<rt::WorkState> work;
  auto* batch = rt::Batch::current();
  Status status =
      batch ? batch->defer(g.impl(), *o, s.impl(), &work) : g.impl()->submit(*o, s.impl().get(), &work);
  if (!status.ok()) return status;
  return Work(std::move(work));
}

Status push_sum(Group& g, const Row& row, CView x, View y, double& weight) {
  OURO_TRY(mix(g, row, x, y));
  const std::span<double> mine(&weight, 1);
  return mix(g, row, mine, mine);
}

Status mix_pair(Group& g, const PairRow& row, View x, View y, View z) {
  OURO_TRY(not_in_batch("mix_pair"));
  if (x.count != y.count || x.count != z.count || x.dtype != y.dtype || x.dtype != z.dtype)
    return invalid("mix_pair: x, y and z differ in length or type; expected three alike");
  const bool travels = row.from >= 0;
  const Row exchange = travels ? Row{0, {{row.from, 1.0}}, {row.to}} : Row{};
  OURO_TRY(mix(g, exchange, row.send_x ? x : y, z));
  if (!travels || x.count == 0) return {};
  combine(x, {{row.x_self, x}, {row.x_in, z}});
  combine(y, {{row.y_self, y}, {row.y_in, z}});
  return {};
}

}  // namespace ouro::train
