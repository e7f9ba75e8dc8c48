# gfn.utils.distributed and gfn.containers' replay buffers: every function. A rank of packages.py.
from rows import backend, carried, finish, folder, give, rank, row, size

import contextlib
import io
import logging
import os
import sys
import types

import torch
import torch.distributed as dist


class Alone:
    """Stands in for mpi4py, which gfn imports and asks for groups of its own: a world of one
    rank."""

    def __getattr__(self, name):
        return lambda *a, **k: 1 if name == "Get_size" else 0 if name == "Get_rank" else self


mpi = types.ModuleType("mpi4py.MPI")
mpi.COMM_WORLD, mpi.Comm, mpi.Finalize = Alone(), Alone, lambda: None
sys.modules["mpi4py"] = types.ModuleType("mpi4py")
sys.modules["mpi4py"].MPI = sys.modules["mpi4py.MPI"] = mpi

from gfn.containers import ReplayBuffer, StatesContainer
from gfn.containers.message import Message, MessageType
from gfn.containers.replay_buffer_manager import ReplayBufferManager
from gfn.gym import HyperGrid
from gfn.utils import distributed as gfn

def ring():
    """All ranks send first, then receive."""
    payload = Message(MessageType.DATA, {"rank": rank, "values": list(range(50))}).serialize()
    dist.send(torch.IntTensor([len(payload)]), (rank + 1) % size)
    dist.send(payload, (rank + 1) % size)
    length = torch.IntTensor([0])
    dist.recv(length, (rank - 1) % size)
    received = torch.ByteTensor(length.item())
    dist.recv(received, (rank - 1) % size)
    return Message.deserialize(received).message_data


row("initialize_distributed_compute, one process", lambda: vars(gfn.initialize_distributed_compute("gloo", 0, 1)))
os.environ.update({"PMI_SIZE": str(size), "PMI_RANK": str(rank)})
row("initialize_distributed_compute, ccl", lambda: gfn.initialize_distributed_compute("ccl", 0, 1))
context = gfn.initialize_distributed_compute("gloo", num_remote_buffers=1, num_agent_groups=size - 1)
manager = size - 1
if "ring" in sys.argv:  # run separately, because gloo hangs in it
    (folder / f"{backend}.{rank}.begun").touch()
    row("ring, all send first", ring)
    finish()
    sys.exit()
give("initialize_distributed_compute", [context.my_rank, context.world_size, context.num_training_ranks, context.agent_group_size,
                                        context.agent_group_id, context.assigned_buffer, context.assigned_training_ranks])
give("roles", [context.is_buffer_rank(), context.is_training_rank()])

model = torch.nn.Linear(3, 2)
with torch.no_grad():
    for p in model.parameters():
        p.copy_(torch.arange(p.numel()).reshape(p.shape) * (rank + 1.0))
        p.grad = p.detach() * 0.5
row("average_gradients", lambda: (gfn.average_gradients(model), [p.grad for p in model.parameters()])[1])
row("average_models", lambda: (gfn.average_models(model), list(model.parameters()))[1])
if context.is_training_rank():
    row("average_models, training ranks", lambda: (gfn.average_models(model, context.train_global_group), list(model.parameters()))[1])
    row("average_models, agent group",
        lambda: (gfn.average_models(model, context.agent_groups[context.agent_group_id]), list(model.parameters()))[1])


def gathered(dtype):
    return gfn.gather_distributed_data((torch.arange(2 * (rank + 2)).reshape(rank + 2, 2) + 10 * rank).to(dtype))


for dtype in (torch.int64, torch.int32):
    row(f"gather_distributed_data {dtype}", lambda: gathered(dtype))
row("gather_distributed_data, equal", lambda: gfn.gather_distributed_data(torch.full((3, 4), rank), size, rank))


def logged(report):
    lines = io.StringIO()
    handler, level = logging.StreamHandler(lines), gfn.logger.level
    gfn.logger.addHandler(handler)
    gfn.logger.setLevel(logging.INFO)
    all_of = [None] * size
    dist.all_gather_object(all_of, {"step_a": [1.0 + rank, 2.0], "step_b": [0.5], **({"alone": [1.0]} if rank == 0 else {})})
    report(all_of, size)
    gfn.logger.removeHandler(handler)
    gfn.logger.setLevel(level)
    return lines.getvalue()


row("report_load_imbalance", lambda: logged(gfn.report_load_imbalance))
row("report_time_info", lambda: logged(gfn.report_time_info))

# The replay buffer's service: data and scores, metadata, the end.
env = HyperGrid(ndim=2, height=8)


class Manager(ReplayBufferManager):
    def _compute_metadata(self):
        return {"held": len(self.replay_buffer), "best": self.replay_buffer.training_container.log_rewards.max().item()}


def states(k):
    all_of = env.states_from_tensor(torch.tensor([[r, (k + r) % 8] for r in range(4)]))
    return StatesContainer(env=env, states=all_of, is_terminating=torch.ones(4, dtype=torch.bool), log_rewards=env.log_reward(all_of))


def serve():
    service = Manager(env, rank, context.num_training_ranks, capacity=1000,
                      scoring_function=lambda c: {"score": float(c.log_rewards.sum())})
    with contextlib.redirect_stdout(io.StringIO()):
        service.run()
    return [len(service.replay_buffer), service.replay_buffer.training_container.log_rewards, service.exit_counter]


def trained():
    buffer = ReplayBuffer(env, capacity=8, prioritized_capacity=True, remote_manager_rank=manager, remote_buffer_freq=2)
    scores = [buffer.add(states(5 * k + rank)) for k in range(6)]
    dist.barrier(context.train_global_group)
    metadata = ReplayBufferManager.get_metadata(manager)
    dist.barrier(context.train_global_group)
    with contextlib.redirect_stdout(io.StringIO()):
        ReplayBufferManager.send_termination_signal(manager)
    return [[s for s in scores if s], metadata, len(buffer), buffer.training_container.log_rewards]


row("ReplayBuffer", serve if context.is_buffer_rank() else trained)


carried()
row("gather_distributed_data torch.float32", lambda: gathered(torch.float32))  # see EXPECTED in packages.py
row("cleanup", context.cleanup)
finish()
