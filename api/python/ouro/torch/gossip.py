"""Decentralised data parallel training of PyTorch modules, with the names and semantics of Decent-DP."""
import os
import weakref

import torch
from torch.autograd import Variable

from ouro import train
from ouro.torch import job
from ouro.torch.optim import OfTorch


class GossipDataParallel(torch.nn.Module):
    """Each rank trains its own copy of a module and averages it with its neighbours' copies while it computes the next gradient.

    Use it in place of DistributedDataParallel: forward and backward as usual, without calling an optimiser. Gradient hooks update
    each bucket as soon as its gradients and its neighbours' values have arrived; after backward() the parameters are those of the
    next step, and gradients are None.

    model:             a module; all ranks take rank 0's parameters (sync_all: and buffers)
    optim_fn:          called once per bucket with [(name, parameter), ...]; returns a rule of ouro.train (fused), or a torch.optim
                       optimiser (SGD, Adam, AdamW and Decent-DP's own are fused, too)
    lr_scheduler_fn:   called with the result of optim_fn; returns a Schedule of ouro.train, or a scheduler of torch.optim
    topology:          a name of ouro.topologies(), or a Topology
    scaler:            the torch.amp.GradScaler that scales the loss; it receives the scale on which all ranks agree
    grad_clip_norm:    limit of the norm of a bucket's gradients; 0: none. clip_scope="global": of all gradients
    param_as_bucket_view, sync_buffer_in_global_avg, bucket_size_in_mb: as in Decent-DP
    group:             a process group of torch.distributed, of any backend, or a group of ouro
    round_order:       "sequential", or "upstream" as Decent-DP counts rounds
    find_unused:       a parameter without gradient in a step gets zeros; if False, it is an error on all ranks
    peers:             maximum number of messages of a rank per round (topologies hypercuboid and base-k)

    The state of the model is its state_dict(), under Decent-DP's names; save() and load() handle the rest of the training state.
    Tensors are shared with ouro, not copied. Not for sparse gradients.
    """

    def __init__(self, model, optim_fn, lr_scheduler_fn=None, topology="complete", scaler=None, grad_clip_norm=0.0,
                 param_as_bucket_view=True, sync_buffer_in_global_avg=False, bucket_size_in_mb=25, _local_world_size=None, *,
                 group=None, round_order="sequential", clip_scope="bucket", find_unused=False, sync_all=True, peers=1):
        super().__init__()
        if not callable(optim_fn):
            raise TypeError("optim_fn: a function of a bucket's [(name, parameter), ...] that returns their optimiser is expected, such as "
                            f"lambda params: torch.optim.SGD([p for _, p in params]); it is {type(optim_fn).__name__}")
        if lr_scheduler_fn is not None and not callable(lr_scheduler_fn):
            raise TypeError("lr_scheduler_fn: a function of what optim_fn returned that returns a schedule is expected; it is "
                            f"{type(lr_scheduler_fn).__name__}")
        self._model = model
        self._scaler = scaler if scaler is not None and scaler.is_enabled() else None
        named = list(model.named_parameters())
        self._params = [p for _, p in named]
        self._by_name = dict(named)
        self._optim_fn, self._lr_scheduler_fn = optim_fn, lr_scheduler_fn
        self._optims = {}  # key: names of a bucket's parameters
        self._in_bucket = param_as_bucket_view
        self._step, self._buckets = _Step(), []
        # Objects that the trainer calls must not hold a reference to this module, which holds the trainer.
        this = weakref.ref(self)
        group, self._job = job.group_of(group)
        if isinstance(topology, str):
            nodes = int(os.environ.get("LOCAL_WORLD_SIZE", 1)) if _local_world_size is None else _local_world_size
            topology = train.Topology(topology, group.size, local_world_size=nodes, peers=peers)
        entries = []
        for name, p in named:
            value, last = job.flat(p)
            # Zeros for missing gradients; for host memory ouro provides them itself, at no cost.
            zeros = torch.zeros_like(value) if find_unused and p.is_cuda and p.requires_grad else p.requires_grad
            entries.append((name, value, zeros, list(p.shape), last))
        scale = self._scaler and {"scale": self._scaler.get_scale(), "growth": self._scaler.get_growth_factor(),
                                  "backoff": self._scaler.get_backoff_factor(), "interval": self._scaler.get_growth_interval()}
        self._trainer = train.GossipTrainer(
            group, entries, [(n, job.flat(b)[0]) for n, b in model.named_buffers()], topology, lambda names: this()._rule_of(names),
            schedule=lr_scheduler_fn and _Schedules(this), bucket_mb=bucket_size_in_mb, clip_norm=grad_clip_norm, clip_scope=clip_scope,
            params_in_bucket=param_as_bucket_view, average_buffers=sync_buffer_in_global_avg, sync_all=sync_all, find_unused=find_unused,
            round_order=round_order, scaler=scale)
        for i, p in enumerate(self._params):
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(_Hook(this, i))

    # ---- the step ---------------------------------------------------------------------------------

    def forward(self, *args, **kwargs):
        return self._model(*args, **kwargs)

    def _ready(self, i):
        step = self._step
        if step.accumulating:
            return
        task = torch._C._current_graph_task_id()
        if not step.open:
            try:
                self._trainer.begin_step()
            except BaseException:
                for p in self._params:  # otherwise the next pass adds to the gradients of this one
                    p.grad = None
                raise
            step.open, step.task = True, task
            Variable._execution_engine.queue_callback(self._end_backward)
        elif step.task != task:  # PyTorch calls no callback at the end of a pass that raised
            raise RuntimeError("ouro.torch.GossipDataParallel: the backward pass before this one did not end (it raised an error, or this "
                               "one runs within it); expected a new module, and load() of a saved state")
        step.arrived.append(i)
        if step.left:
            step.left[step.bucket_of[i]] -= 1
            if step.left[step.bucket_of[i]] == 0:
                self._hand_over()

    @torch.no_grad()
    def _hand_over(self):
        """Passes the gradients that have arrived to the trainer."""
        arrived, self._step.arrived = self._step.arrived, []
        grads = []
        for i in arrived:
            param = self._params[i]
            grad, last = param.grad, not param.is_contiguous()
            if grad.is_sparse:
                raise NotImplementedError("ouro.torch.GossipDataParallel: sparse gradients; expected dense ones")
            if not grad.is_contiguous(memory_format=torch.channels_last if last else torch.contiguous_format):
                grad = param.grad = torch.empty_like(param).copy_(grad)
            grad = grad.permute(0, 2, 3, 1) if last else grad
            grads.append(grad.detach() if grad.requires_grad else grad)
        self._trainer.grads_ready(arrived, grads, stream=self._stream(self._params[0]))

    @torch.no_grad()
    def _end_backward(self):
        step = self._step
        step.open = False
        if step.arrived:
            self._hand_over()
        self._trainer.end_backward(stream=self._stream(self._params[0]))
        self._bind()
        step.left = [len(b) for b in self._buckets]
        for p in self._params:
            p.grad = None
        if self._scaler is not None:
            self._scaler.update(self._trainer.scale)

    @staticmethod
    def _stream(tensor):
        if not tensor.is_cuda:
            return None
        import ouro

        return ouro.Stream.cuda(torch.cuda.current_stream(tensor.device).cuda_stream, tensor.device.index)

    def _bind(self):
        """Once the buckets exist, makes the parameters views of them."""
        if self._buckets:
            return
        self._buckets = self._trainer.buckets
        self._step.bucket_of = {i: k for k, bucket in enumerate(self._buckets) for i in bucket}
        self._step.left = [len(b) for b in self._buckets]
        for i in self._step.bucket_of if self._in_bucket else ():
            p, value = self._params[i], torch.from_dlpack(self._trainer.value(i))
            if not p.is_contiguous():
                n, c, h, w = p.shape
                p.data = value.view(n, h, w, c).permute(0, 3, 1, 2)
            else:
                p.data = value.view(p.shape)

    # ---- optimisers -------------------------------------------------------------------------------

    def _rule_of(self, names):
        params = {n: self._by_name[n] for n in names}
        made = self._optim_fn(list(params.items()))
        if isinstance(made, train.Rule):
            self._optims[tuple(names)] = made
            return made
        if not isinstance(made, torch.optim.Optimizer):
            raise TypeError(f"ouro.torch: optim_fn returned {type(made).__name__}; expected an optimiser of torch.optim, or a rule of "
                            "ouro.train")
        if hasattr(made, "pre_average_hook"):
            raise NotImplementedError("ouro.torch.GossipDataParallel does not call an optimiser's pre_average_hook")
        schedule = self._lr_scheduler_fn(made) if self._lr_scheduler_fn else None
        self._optims[tuple(names)] = OfTorch(made, schedule, params, self._bind)
        return _Bucket(weakref.ref(self), tuple(names), self._optims[tuple(names)].groups)

    def _schedule_of(self, names):
        this, names = weakref.ref(self), tuple(names)
        made = self._optims[names]
        if isinstance(made, train.Rule):
            return self._lr_scheduler_fn(made)
        return train.Schedule(lambda _: this()._optims[names].rates()[0])  # the scheduler sets the rate in PyTorch's optimiser

    # ---- as Decent-DP -----------------------------------------------------------------------------

    def set_accumulate_grad(self, enable=True):
        """While on, gradients are only accumulated. Turn it off before the last micro-batch."""
        self._step.accumulating = enable

    def train(self, mode=True):
        self._model.train(mode)
        return self

    def eval(self):
        return self.train(False)

    def parameters(self, recurse=True):
        yield from self._model.parameters(recurse)

    def global_avg(self, will_revert=True, return_d2c=False):
        """All parameters become the mean over all ranks. Returns this rank's distance from it, if requested. Collective."""
        distance = self._trainer.global_average(keep=not will_revert, distance=return_d2c)
        return distance if return_d2c else None

    def revert_global_avg(self):
        self._trainer.revert()

    def get_lr(self):
        """The learning rate of the next update; 0 before the first."""
        return self._trainer.lr

    def set_adaptive_factor(self, factor):
        self._trainer.set_adaptive_factor(factor)

    # ---- additions to Decent-DP -------------------------------------------------------------------

    @property
    def steps(self):
        """Number of completed training steps."""
        return self._trainer.steps

    def save(self):
        """This rank's state for the next steps, as bytes: includes parameters, but not buffers."""
        return self._trainer.save()

    def load(self, state):
        """Collective: loads what save returned into a new, equally wrapped module. The next steps have the same bits."""
        self._trainer.load(state)
        self._bind()

    def close(self):
        """Collective: waits until neighbours have received all they need from this rank, then ends. Idempotent."""
        self._trainer.close()


class _Step:
    """The state of a step."""

    def __init__(self):
        self.accumulating = self.open = False
        self.task = None  # PyTorch's number of the current backward pass
        self.arrived = []  # parameters whose gradients have not been passed to the trainer yet
        self.bucket_of, self.left = {}, []  # by parameter; number of missing gradients per bucket


class _Hook:
    def __init__(self, module, i):
        self.module, self.i = module, i

    def __call__(self, param):
        module = self.module()
        if module is not None:  # None: the model is used without this module again
            module._ready(self.i)


class _Bucket:
    """The trainer's reference to a bucket's optimiser; it holds no parameter, which might hold the trainer."""

    def __init__(self, module, names, groups):
        self.groups, self._of = groups, lambda: module()._optims[names]

    def rates(self):
        return self._of().rates()

    def changed(self):
        return self._of().changed()

    def step(self, scale):
        self._of().step(scale)

    def stepped(self):
        self._of().stepped()

    def save(self):
        return self._of().save()

    def load(self, state):
        self._of().load(state)


class _Schedules:
    def __init__(self, module):
        self.module = module

    def __call__(self, names):
        return self.module()._schedule_of(names)


DecentralizedDataParallel = GossipDataParallel
