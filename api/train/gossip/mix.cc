// Weighted exchange among neighbours: a row of a topology becomes one operation of the group.
// See ouro/train/topology.hpp.
#include "api/train/common/not_in_batch.h"
#include "api/train/gossip/combine.h"
#include "ouro/train/topology.hpp"

namespace ouro::train {

Status mix(Group& g, const Row& row, CView x, View y) {
  return ouro::mix(g, x, y, row.self, row.in, row.out);
}
Result<Work> mix(Group& g, const Row& row, CView x, View y, const Stream& s) {
  return ouro::mix(g, x, y, row.self, row.in, row.out, s);
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
