# xffl.distributed: every function, and xffl.learning's training over it. A rank of packages.py.
from rows import backend, carried, finish, folder, give, rank, row, size, stands_in

import contextlib
import csv
import dataclasses
import io
import itertools
import logging
import os
import socket

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

# Only the names of classes are needed of these, unless it trains language models or reports to
# a server.
stands_in("transformers", AutoTokenizer=object, PreTrainedModel=type("PreTrainedModel", (), {}))
stands_in("wandb", Run=object)
stands_in("wandb.wandb_run", Run=object)

from xffl.custom.config import DatasetInfo, ModelInfo, OptimizerInfo, XFFLConfig
from xffl.distributed import aggregation, distributed, networking
from xffl.distributed.distributed_state import DistributedState, create_device_mesh
from xffl.learning import modelling, optim, processing, utils

logging.disable(logging.CRITICAL)  # it logs what it cannot do in nearly all rows
os.environ.update({"GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1"})
STRATEGIES = ("layer_by_layer", "layer_by_layer_optimized", "bucket_flatten", "bucket_coalesced", "bucket_optimized_flatten",
              "bucket_optimized_coalesced")


def described(value):
    """A state, with the ranks of its groups; without the port, which differs in each run."""
    if isinstance(value, DistributedState):
        return {f.name: described(getattr(value, f.name)) for f in dataclasses.fields(value) if f.name != "master_port"}
    if isinstance(value, dist.ProcessGroup):
        return [dist.get_process_group_ranks(value), dist.get_rank(value), value.size()]
    if isinstance(value, DeviceMesh):
        return [value.mesh, [described(g) for g in value.get_all_groups()], *value.mesh_dim_names]
    return [described(v) for v in value] if isinstance(value, tuple) else value


def network(scale=1.0, seed=rank):
    made = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3), torch.nn.LayerNorm(3))
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in made.parameters():
            p.copy_(scale * torch.randn(p.shape, generator=g))
    return made


def aggregated(name, state, **options):
    """The network's parameters after an aggregation in place."""
    model = network()
    with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()):
        getattr(aggregation, name)(model=model, state=state, **options)
    return list(model.parameters())


def reduced(name, state, lists=False, **options):
    """The type of a strategy, and the tensors after its sums. `lists`: passes lists of tensors,
    which the package coalesces; by itself it makes tuples."""
    strategy = getattr(aggregation, name)(model=network(), state=state, **options)
    if lists:
        strategy.mapping = tuple((where, list(tensors), *rest) for where, tensors, *rest in strategy.mapping)
    with torch.no_grad():
        aggregation._all_reduce(strategy, state)
    return [[[where, tensors, stream] for where, tensors, _, stream in strategy.mapping], str(strategy.reduce_op), strategy.src,
            strategy.broadcast, strategy.use_contiguous_memory]


def benchmarked(state):
    model = torch.nn.Linear(2, 1)
    with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()):
        for p in model.parameters():
            p.zero_()
        aggregation.benchmark_aggregation(state, model, iterations=1, dump=str(folder / f"{backend}.csv"))
    lines = list(csv.reader(open(folder / f"{backend}.csv"))) if rank == 0 else []
    return [[line[:5] for line in lines], list(model.parameters())]


def config(model=network):
    info = OptimizerInfo(optimizer=torch.optim.AdamW, optimizer_params={"lr": 0.01})
    return XFFLConfig(model_info=ModelInfo(name="net", model=lambda config, state: model()),
                      dataset_info=DatasetInfo(name="none", splits=lambda config, state: {}), optimizer_info=info)


def batches(count, seed):
    g = torch.Generator().manual_seed(seed)
    data = torch.utils.data.TensorDataset(torch.randn(4 * count, 5, generator=g), torch.randint(3, (4 * count,), generator=g))
    return torch.utils.data.DataLoader(data, batch_size=4)


def made_model(state, sharded):
    if not sharded:
        return network(0.3)
    return modelling.create_fsdp_model(state, config=config(lambda: network(0.3, seed=7)), use_orig_params=sharded == "original")


def trained(state, sharded=False, **more):
    model = made_model(state, sharded)
    outer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, nesterov=True) if more.get("fedopt") else None
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        results = processing.distributed_training(
            model, state, batches(5, rank), val_dataloader=batches(3, 100 + rank), criterion=torch.nn.CrossEntropyLoss(),
            classification=True, federated_batches=3, config=config(), fedopt_optimizer=outer,
            optimizer=torch.optim.AdamW(model.parameters()), **more)
    return [[v for k, v in results.items() if "loss" in k or "accuracy" in k], list(model.parameters())]


def saved(state, sharded):
    model = made_model(state, sharded)
    (place := folder / backend).mkdir(exist_ok=True)
    modelling.save_model(model, optim.XFFLOptimizer(model, torch.optim.SGD, {"lr": 0.1}), place, "net", rank)
    return torch.load(place / "net.pt") if rank == 0 else None


def next_port():
    """A port chosen by rank 0 for the next group: the store of this one may end before all have
    left it."""
    port = [None]
    if rank == 0:
        with socket.create_server(("127.0.0.1", 0)) as s:
            port[0] = s.getsockname()[1]
    dist.broadcast_object_list(port, 0)
    return str(port[0])


def in_setup(name, rows=None, **options):
    """One job of the package, and the rows in it."""
    made = []

    def setup():
        made.append(distributed.setup_distributed_process_group(**options))
        return described(made[0])

    row(f"setup {name}", setup)
    if made:
        state = made[0]
        row(f"{name}: its text", lambda: str(state).replace(os.environ["MASTER_PORT"], ""))
        row(f"{name}: get_appropriate_sharding_strategy", lambda: str(distributed.get_appropriate_sharding_strategy(state)))
        row(f"{name}: get_average_distributed_loss",
            lambda: aggregation.get_average_distributed_loss(torch.tensor(1.25 + rank), 3 + rank, state))
        row(f"{name}: get_model_size", lambda: utils.get_model_size(network(), state))
        if rows:
            rows(name, state)
    if size > 1:
        port = next_port()
        carried()
        distributed.cleanup_distributed_process_group(made[0] if made else DistributedState())
        os.environ["MASTER_PORT"] = port
    give(f"{name}: cleanup", dist.is_initialized())


def aggregations(name, state):
    for strategy, option in itertools.product(STRATEGIES, ("", "use_multiple_cuda_streams", "use_contiguous_memory")):
        options, about = ({option: True}, f", {option}") if option else ({}, "")
        row(f"{name}: {strategy}{about}", lambda: reduced(strategy, state, **options))
        row(f"{name}: {strategy}_{about}", lambda: aggregated(f"{strategy}_", state, **options))
    for strategy in ("bucket_coalesced", "bucket_optimized_coalesced"):
        row(f"{name}: {strategy}, lists", lambda: reduced(strategy, state, lists=True))
    row(f"{name}: bucket_optimized_coalesced_, a layer",
        lambda: aggregated("bucket_optimized_coalesced_", state, federated_layer=torch.nn.LayerNorm))
    row(f"{name}: helpers", lambda: [*map(str, aggregation._setup_streams(True, state)[:3]), aggregation._get_src_rank(state),
                                     aggregation._is_broadcast_necessary(state),
                                     described(aggregation._get_federated_group(state, 0))])
    row(f"{name}: _get_federated_group, beyond", lambda: aggregation._get_federated_group(state, 7))
    row(f"{name}: training", lambda: trained(state))
    row(f"{name}: training, a layer", lambda: trained(state, federated_layer=torch.nn.LayerNorm))
    row(f"{name}: training, FedOpt", lambda: trained(state, fedopt=True))
    sharded(name, state)


def sharded(name, state):
    """The first version of PyTorch's FSDP."""
    row(f"{name}: FSDP training", lambda: trained(state, sharded=True))
    row(f"{name}: FSDP training, original parameters", lambda: trained(state, sharded="original"))
    row(f"{name}: FSDP save_model", lambda: saved(state, True))


def all_rows(name, state):
    aggregations(name, state)
    row("benchmark_aggregation", lambda: benchmarked(state))


def without_federation(name, state):
    for strategy in STRATEGIES:
        row(f"{name}: {strategy}_", lambda: aggregated(f"{strategy}_", state))
    row(f"{name}: _get_src_rank", lambda: aggregation._get_src_rank(state))
    row(f"{name}: barrier", lambda: utils.barrier(state))
    row(f"{name}: training", lambda: trained(state))
    row(f"{name}: save_model", lambda: saved(state, False))
    sharded(name, state)


give("get_cells_ids", [networking.get_cells_ids([1, 2, 13, 14, 25], 10), networking.get_cells_ids([1, 2], 10)])
give("create_device_mesh", create_device_mesh((2, 3)))
give("average loss alone", aggregation.get_average_distributed_loss(torch.tensor(5.0), 4, DistributedState()))
half = size // 2
in_setup("FSDP", without_federation)
in_setup("HSDP", without_federation, hsdp=half)
in_setup("HSDP of 3", hsdp=3)
in_setup("sites of 1", all_rows, federated=1)
in_setup("all one site", federated=size)
in_setup("sites of 3", federated=3)
in_setup("too many", federated=(size, size))
in_setup("HSDP in sites", aggregations, hsdp=1, federated=half)
in_setup("uneven sites without HSDP", federated=(1, size))
if size == 4:
    in_setup("sites of 2", aggregations, federated=2)
    in_setup("HSDP of 2 in sites", aggregations, hsdp=2, federated=2)
    in_setup("uneven sites", aggregations, hsdp=1, federated=(1, 3))
    in_setup("uneven sites, wrong HSDP", hsdp=2, federated=(1, 3))
finish()
