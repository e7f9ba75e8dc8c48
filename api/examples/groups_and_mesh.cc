// Process groups: by rank list, by color, and the rows and columns of a 2-D mesh.
// Run it with: ouro-run -n 4 example-groups-and-mesh
#include <iostream>
#include <string>
#include <vector>

#include "ouro/ouro.hpp"
#include "ouro/train/layout.hpp"

namespace {

/// The sum of the members' world ranks.
ouro::Result<int> sum_of_ranks(ouro::Group& group, int my_world_rank) {
  int sum = my_world_rank;
  OURO_TRY(ouro::all_reduce(group, std::span(&sum, 1), std::span(&sum, 1)));
  return sum;
}

ouro::Status run() {
  auto context = ouro::Context::from_env();
  if (!context) return context.status();
  const int rank = context->rank(), size = context->world_size();
  if (size % 2 != 0) return ouro::invalid("this example needs an even number of ranks");

  // 1. A group by a list of ranks. Only members make the call; it does not communicate.
  const std::vector<int> ends = {0, size - 1};
  if (rank == 0 || rank == size - 1) {
    ouro::Result<ouro::Group> group = context->group(ends, "ends");
    if (!group) return group.status();
    const auto sum = sum_of_ranks(*group, rank);
    if (!sum) return sum.status();
    if (*sum != size - 1) return {ouro::Reason::data_corrupt, "wrong sum in the group of the ends"};
    OURO_TRY(group->close());
  }

  // 2. A group by color. All ranks of the parent make the call; ranks with equal colors form a group,
  //   ordered by key.
  ouro::Result<ouro::Group> parity = context->world().split(rank % 2, rank);
  if (!parity) return parity.status();
  const auto same_parity = sum_of_ranks(*parity, rank);
  if (!same_parity) return same_parity.status();

  // 3. A mesh. Two ranks hold the parts of one model; size / 2 such pairs work on different data.
  const std::vector<int> shape = {size / 2, 2};
  const std::vector<std::string> axes = {"data", "model"};
  auto mesh = ouro::train::make_mesh(shape, axes);
  if (!mesh) return mesh.status();
  auto groups = ouro::train::create_groups(*context, *mesh);  // one per dimension, in the order of the axes
  if (!groups) return groups.status();
  ouro::Group& data = (*groups)[0];   // the ranks with this rank's part of the model
  ouro::Group& model = (*groups)[1];  // the ranks that share this rank's samples
  const auto over_data = sum_of_ranks(data, rank);
  if (!over_data) return over_data.status();
  const auto over_model = sum_of_ranks(model, rank);
  if (!over_model) return over_model.status();

  std::cout << "rank " + std::to_string(rank) + ": same parity " + std::to_string(*same_parity) + ", data " +
                   std::to_string(*over_data) + ", model " + std::to_string(*over_model) + "\n";
  return context->close();
}

}  // namespace

int main() {
  const ouro::Status outcome = run();
  if (!outcome) std::cerr << outcome.message() << '\n';
  return outcome ? 0 : 1;
}
