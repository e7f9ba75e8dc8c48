"""Training: update rules, schedules, topologies, layouts and the trainers, for arrays of any library.

For PyTorch modules, see ouro.torch: GossipDataParallel, FederatedAverage, DiLoCo.
"""
from ouro._ouro import (AggregationPlan, Federation, GossipTrainer, LayoutGroups, LocalSteps, Mesh, Optimizer, ParallelLayout,
                        Replica, Row, Rule, Schedule, ShardedTrainer, Topology, Window, accum_adam, adam, cosine_with_warmup,
                        create_groups, diloco, fed_avg, federation_sizes, federation_sizes_from_env, mean_loss, server, sgd,
                        strategies, topologies, warmup_cosine_decay)

__all__ = ["AggregationPlan", "Federation", "GossipTrainer", "LayoutGroups", "LocalSteps", "Mesh", "Optimizer", "ParallelLayout",
           "Replica", "Row", "Rule", "Schedule", "ShardedTrainer", "Topology", "Window", "accum_adam", "adam",
           "cosine_with_warmup", "create_groups", "diloco", "fed_avg", "federation_sizes", "federation_sizes_from_env",
           "mean_loss", "server", "sgd", "strategies", "topologies", "warmup_cosine_decay"]
