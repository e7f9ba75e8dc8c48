"""Training: update rules, schedules, topologies and the trainers, on arrays of any library.

For PyTorch modules see ouro.torch: GossipDataParallel.
"""
from ouro._ouro import (GossipTrainer, Optimizer, Row, Rule, Schedule, Topology, accum_adam, adam, cosine_with_warmup, diloco, fed_avg,
                        server, sgd, topologies, warmup_cosine_decay)

__all__ = ["GossipTrainer", "Optimizer", "Row", "Rule", "Schedule", "Topology", "accum_adam", "adam", "cosine_with_warmup", "diloco",
           "fed_avg", "server", "sgd", "topologies", "warmup_cosine_decay"]
