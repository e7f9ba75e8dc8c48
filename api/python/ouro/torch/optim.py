"""Optimisers of a bucket: ouro's own, under Decent-DP's names, and those of torch.optim, fused if ouro has the same rule."""
import operator
import pickle
import weakref

import torch
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from ouro import train


def optim_fn_adam(params, lr=1e-3, beta1=0.9, beta2=0.999, weight_decay=1.0 / 32768, eps=1e-8, decay_rule="standard"):
    """Adam. Ignores `params`: parameters whose names contain "bn" or "bias" do not decay; with decay_rule="upstream_inverted" only
    those do, as in Decent-DP. Change options with functools.partial."""
    return train.adam(lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay, decay_rule=decay_rule)


def optim_fn_adamw(params, lr=1e-3, beta1=0.9, beta2=0.999, weight_decay=0.1, eps=1e-8, decay_rule="standard"):
    """AdamW, as optim_fn_adam."""
    return train.adam(lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay, decoupled=True, decay_rule=decay_rule)


def optim_fn_accum_adam(params, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=1.0 / 32768, accum_iter=4,
                        decay_rule="standard"):
    """AccumAdam, as optim_fn_adam."""
    return train.accum_adam(lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay, accum_iter=accum_iter,
                            decay_rule=decay_rule)


def optim_fn_accum_adamw(params, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.1, accum_iter=4, decay_rule="standard"):
    """AccumAdamW, as optim_fn_adam."""
    return train.accum_adam(lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay, accum_iter=accum_iter, decoupled=True,
                            decay_rule=decay_rule)


def lr_scheduler_fn_cosine_with_warmup(optimizer, t_max, t_warmup, cosine_eta_min=1e-6, warmup_decay=0.01):
    """Decent-DP's schedule of this name, for the optim_fn_ functions above."""
    return train.cosine_with_warmup(optimizer.lr, t_max, t_warmup, cosine_eta_min, warmup_decay, after="periodic")


def _recipe(optimizer, group):
    """How to make ouro's rule for a parameter group: a function of the learning rate, and the other options. None: ouro has no
    equal rule."""
    name, g = type(optimizer).__name__, group
    if any(g.get(k) for k in ("amsgrad", "maximize", "differentiable")):
        return None
    if type(optimizer) is torch.optim.SGD:
        return train.sgd, {k: g[k] for k in ("momentum", "dampening", "weight_decay", "nesterov")}
    options = {"eps": g.get("eps"), "weight_decay": g.get("weight_decay")}
    if type(optimizer) in (torch.optim.Adam, torch.optim.AdamW):
        decoupled = bool(g.get("decoupled_weight_decay", type(optimizer) is torch.optim.AdamW))
        return train.adam, {**options, "beta1": g["betas"][0], "beta2": g["betas"][1], "decoupled": decoupled}
    if type(optimizer).__module__ == "decent_dp.optim" and name in ("AccumAdam", "AccumAdamW"):
        return train.accum_adam, {**options, "beta1": g["betas"][0], "beta2": g["betas"][1], "accum_iter": g["accum_iter"],
                                  "decoupled": name == "AccumAdamW"}
    return None


def _beyond(optimizer):
    """What an optimiser's own step would do beyond its rule, or None."""
    if (optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks or _global_optimizer_pre_hooks
            or _global_optimizer_post_hooks):
        return "hooks of its step"
    return "state of its parameters" if any(optimizer.state.values()) else None


class OfTorch:
    """An optimiser of torch.optim for the parameters of a bucket, and its schedule.

    If ouro has its rule, ouro does the update, fused with mixing; the optimiser supplies the options of each step, and its own
    state stays empty. Otherwise, or if it already has state or hooks, it updates by itself, between the mix and the next message.
    """

    def __init__(self, optimizer, scheduler, names, before_step):
        self.optimizer, self.scheduler, self._before_step = optimizer, scheduler, weakref.WeakMethod(before_step)
        recipes = [_recipe(optimizer, g) for g in optimizer.param_groups]
        by_id = {id(p): n for n, p in names.items()}
        held = [[by_id[id(p)] for p in g["params"] if id(p) in by_id] for g in optimizer.param_groups]
        missing = set(names) - {n for group in held for n in group}
        if missing:
            raise ValueError(f"ouro.torch: the optimiser leaves out {', '.join(sorted(missing))}; expected all parameters of a bucket")
        own = None in recipes or _beyond(optimizer) or any(torch.is_tensor(g["lr"]) for g in optimizer.param_groups)
        self.groups = []
        if own:
            return
        self._recipes = recipes  # the current rules
        self._options = operator.itemgetter(*(k for k in optimizer.defaults if k != "lr"))
        self._seen = [self._options(g) for g in optimizer.param_groups]
        self.groups = [(names, make(g["lr"], **options)) for names, (make, options), g in zip(held, recipes, optimizer.param_groups)]

    def rates(self):
        return [float(g["lr"]) for g in self.optimizer.param_groups]

    def changed(self):
        """The rules of groups whose options, other than the rate, have changed since the last call: [(group, rule)]."""
        if beyond := _beyond(self.optimizer):
            raise NotImplementedError(f"ouro.torch: the optimiser has got {beyond}, of which the fused update knows nothing; expected them "
                                      "when optim_fn returns it")
        rules = []
        for k, (g, before) in enumerate(zip(self.optimizer.param_groups, self._recipes)):
            if (seen := self._options(g)) == self._seen[k]:  # in almost all steps
                continue
            now, self._seen[k] = _recipe(self.optimizer, g), seen
            if now == before:
                continue
            keys = [o for o in ("amsgrad", "maximize", "differentiable") if g.get(o)] if now is None else [
                o for o, v in now[1].items() if v != before[1][o]]
            if now is None or now[0] is train.accum_adam and set(keys) & {"beta1", "beta2", "accum_iter"} or "decoupled" in keys or (
                    "momentum" in keys and not (now[1]["momentum"] and before[1]["momentum"])):
                raise NotImplementedError(f"ouro.torch: {', '.join(keys)} of parameter group {k} was changed in training, which the fused "
                                          f"update of {type(self.optimizer).__name__} cannot follow")
            self._recipes[k] = now
            rules.append((k, now[0](g["lr"], **now[1])))
        return rules

    def step(self, scale):
        self._before_step()()
        if scale != 1:
            for g in self.optimizer.param_groups:
                torch._foreach_mul_([p.grad for p in g["params"] if p.grad is not None], scale)
        self.optimizer.step()

    def stepped(self):
        if self.scheduler is not None:
            if self.groups:
                self.optimizer._opt_called = True  # otherwise PyTorch warns that the schedule steps first
            self.scheduler.step()

    def save(self):
        return pickle.dumps((self.optimizer.state_dict(), self.scheduler and self.scheduler.state_dict()))

    def load(self, state):
        self._before_step()()
        optimizer, scheduler = pickle.loads(state)
        self.optimizer.load_state_dict(optimizer)
        if scheduler is not None:
            self.scheduler.load_state_dict(scheduler)
