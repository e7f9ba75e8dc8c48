// Federated training of the small models: sites train by themselves and average their parameters at
// intervals. Used by ouro-train and its tests.
#pragma once
#include "tools/train/options.h"

namespace ouro::tools {

/// ranks / sites ranks for each site, and one more for the first (ranks mod sites) sites. Errors: invalid
/// unless 1 <= sites <= ranks.
Result<std::vector<int>> site_sizes(int ranks, int sites);

/// Collective over the context's world group. Server::nesterov is DiLoCo. Site s of F has the training
/// samples s, s + F, ...; sample k of its q-th of n ranks in step t is number (t n + q) m + k of them,
/// cyclically, where each rank takes m samples per step. Gradients are averaged over the ranks of a site in
/// every step. The report is the same on all ranks, except `seconds` and `parameters`. Errors: invalid
/// (options, files), resource (files), else those of the collectives.
Result<TrainReport> train_federated(Context&, TrainOptions);

}  // namespace ouro::tools
