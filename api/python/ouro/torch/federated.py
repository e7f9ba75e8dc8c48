"""Federated training of PyTorch modules: sites train on their own, and average from time to time."""
import os

import torch

from ouro import train
from ouro.torch import job


class FederatedAverage:
    """Each site of ranks trains its own module; after every `every` steps the parameters become the mean of the sites.

        average = ouro.torch.FederatedAverage(model, sites=2, every=50)      # sites of two ranks
        for x, y in data:
            ...; optimiser.step(); average.step()

    The ranks of a site that hold the same shard must stay equal (by DistributedDataParallel over the site, or FSDP2 with shards=
    its mesh): only one of them sends, so a site counts once, whatever its size, and all have equal bits afterwards.

    module:        its parameters may be DTensors; then each rank's part is averaged
    sites:         ranks of each site, in order; a number: sites of that many ranks; None: XFFL_FEDERATED_LOCAL_WORLD_SIZE, which
                   counts hosts; if that is not set, each rank is a site
    shards:        number of ranks over which a site shards the module; 1: each rank has all of it
    strategy:      one of ouro.train.strategies(): how layers are grouped into messages; streams: how many travel concurrently
    site_weights:  one per site, of any sum, such as the number of samples seen
    filter:        filter(name) selects the parameters that take part; the others stay local to each rank
    server:        a rule of ouro.train for the outer step (fed_avg, server("adam"), diloco, ...); None: the plain mean
    delta:         what sites exchange, with a server: "exact", or the difference as "bf16" or "int8"
    clip_norm:     norm limit of the difference, with a server; 0: none
    average_buffers: floating-point buffers become the mean of the sites, too
    sync:          all ranks start from rank 0's parameters and buffers; only if each rank has the whole module
    group:         a process group of torch.distributed, of any backend, or a job of ouro

    `groups` holds the layout and its ouro groups. Collective. Tensors are shared with ouro, not copied.
    """

    def __init__(self, module, sites=None, *, every=1, shards=1, strategy="bucket_optimized_coalesced", streams=1, site_weights=(),
                 filter=None, server=None, delta="exact", clip_norm=0.0, average_buffers=False, sync=True, group=None):
        if every < 1:
            raise ValueError(f"every: {every}; expected 1 or more")
        if server is None and (delta != "exact" or clip_norm):
            raise ValueError("delta and clip_norm are of the difference that a server steps on; expected server=, too")
        self._job = job.job_of(group)
        layout = train.ParallelLayout(self._job.rank, self._job.world_size, self._sites(sites), shards, streams=streams)
        self.groups = train.create_groups(self._job, layout)
        self._every, self._steps, self._rounds, self._server = every, 0, 0, server
        params = [self._entry(n, p) for n, p in module.named_parameters()]
        buffers = [self._entry(n, b) for n, b in module.named_buffers() if b.is_floating_point()] if average_buffers else []
        if sync and shards == 1:
            for tensor in [*module.parameters(), *module.buffers()]:
                if tensor.numel():
                    self._job.world.broadcast(job.flat(tensor)[0])
        how = {"strategy": strategy, "streams": streams, "site_weights": list(site_weights)}
        if server is None:
            self._plan = train.AggregationPlan(self.groups, params, filter=filter, **how)
        else:
            self._plan = train.LocalSteps(self.groups, params, server, inner_steps=every, delta=delta, clip_norm=clip_norm,
                                          filter=filter, **how)
        self._of_buffers = train.AggregationPlan(self.groups, buffers, **how) if buffers else None

    def _sites(self, sites):
        n = self._job.world_size
        if sites is None:
            return train.federation_sizes_from_env(int(os.environ.get("LOCAL_WORLD_SIZE", 1))) or [1] * n
        return train.federation_sizes(n, sites) if isinstance(sites, int) else list(sites)

    @staticmethod
    def _entry(name, tensor):
        value, _ = job.flat(job.local(tensor))
        return name, value, None

    @torch.no_grad()
    def step(self):
        """Call after each local step. Every `every`-th call is collective, averages the sites, and returns True."""
        if self._server is None:
            self._steps += 1
            done = self._steps % self._every == 0
            if done:
                self._plan.run()
                self._rounds += 1
        else:
            done = self._plan.step()
        if done and self._of_buffers is not None:
            self._of_buffers.run()
        return done

    @property
    def rounds(self):
        """Number of averages so far."""
        return self._rounds if self._server is None else self._plan.rounds

    @property
    def traffic(self):
        """Bytes of this rank per round: (contributed to the mean across sites, sent or received inside its site)."""
        return self._plan.traffic

    def mean_loss(self, loss, length):
        """Collective over the site: sum of losses / sum of lengths."""
        return train.mean_loss(self.groups.federation, float(loss), length)

    def state_dict(self):
        """The state that the next rounds depend on in addition to the module."""
        if self._server is None:
            return {"steps": self._steps, "rounds": self._rounds}
        return {"server": self._plan.save()}

    def load_state_dict(self, state):
        """Loads what state_dict returned; load the module's state first."""
        if (self._server is None) != ("server" not in state):
            raise ValueError("load_state_dict: the state of one with another server")
        if self._server is None:
            self._steps, self._rounds = state["steps"], state["rounds"]
        else:
            self._plan.load(state["server"])

    def close(self):
        """Leaves the job that it made. Idempotent."""
        self._job.close()


class DiLoCo(FederatedAverage):
    """Sites train on their own for `inner_steps` steps; then all step on the mean difference with Nesterov's momentum (Douillard et
    al., 2023). Other arguments as in FederatedAverage, except `every`, which is inner_steps here, and `server`."""

    def __init__(self, module, sites=None, *, inner_steps=500, outer_lr=0.7, outer_momentum=0.9, **options):
        for name, here in ("every", "inner_steps"), ("server", "outer_lr and outer_momentum"):
            if name in options:
                raise TypeError(f"{name}: DiLoCo has {here} instead; FederatedAverage takes any")
        super().__init__(module, sites, every=inner_steps, server=train.diloco(outer_lr, momentum=outer_momentum), **options)
