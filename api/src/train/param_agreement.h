// What trainers demand of a list of parameters, and how ranks find out that theirs differ. Used by
// ShardedTrainer (shard.cc, shard_step.cc, shard_save.cc) and GossipTrainer (gossip.cc).
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "ouro/ouro.hpp"
#include "ouro/train/param.hpp"

namespace ouro::train {

inline bool frozen(const Param& p) { return p.grad.data == nullptr; }

/// At least one parameter that trains; memory, shapes and gradients that fit; names once each, and no memory
/// of two parameters. Errors: invalid, naming the parameter.
Status check_trainable(std::span<const Param>);

/// What all ranks must have alike; `other` completes "rank 2 has ... than rank 0".
struct Claim {
  std::string_view other;
  std::uint64_t digest = 0;
};
/// Of the list, frozen or not included.
std::uint64_t digest_of(std::span<const Param>);

/// Collective over the group: ok, or `invalid` on every rank. `mine` not ok: this rank refuses and gets its
/// own error, the others get one that names it.
Status agree(Group&, std::span<const Claim>, const Status& mine);
/// The same, and before all claims the parameters: names the first that differs.
Status agree(Group&, std::span<const Param>, std::span<const Claim>, const Status& mine);

}  // namespace ouro::train
