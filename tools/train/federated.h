// Federated training of the small models: sites that train by themselves and meet now and then.
// Used by ouro-train and its tests.
#pragma once
#include "tools/train/options.h"

namespace ouro::tools {

/// ranks / sites each, the first ranks mod sites of them one more. Errors: invalid unless 1 <= sites <=
/// ranks.
Result<std::vector<int>> site_sizes(int ranks, int sites);

/// Collective over the context's world group. Server::nesterov is DiLoCo. Site s of F has the training
/// samples s, s + F, ...; sample k of its q-th of n ranks in step t is number (t n + q) m + k of them, over
/// and over, where each rank takes m samples a step. Gradients are averaged over the ranks of a site in every
/// step. The report is the same on all ranks, up to `seconds` and `parameters`. Errors: invalid (options,
/// files), resource (files), else those of the collectives.
Result<TrainReport> train_federated(Context&, TrainOptions);

}  // namespace ouro::tools
