"""Optimisers of a bucket: ouro's own, by Decent-DP's names, and those of torch.optim, fused where ouro has the same rule."""
import pickle
import weakref

import torch

from ouro import train


def optim_fn_adam(params, lr=1e-3, beta1=0.9, beta2=0.999, weight_decay=1.0 / 32768, eps=1e-8, decay_rule="standard"):
    """Adam. `params` is not used: names that contain "bn" or "bias" do not decay; decay_rule="upstream_inverted": no others do, as
    in Decent-DP. Change options with functools.partial."""
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
    """The schedule of this name of Decent-DP, for the optim_fn_ above."""
    return train.cosine_with_warmup(optimizer.lr, t_max, t_warmup, cosine_eta_min, warmup_decay, after="periodic")


def _rule(optimizer, group):
    """ouro's rule for a parameter group; None: it has none that is the same."""
    name, g = type(optimizer).__name__, group
    if any(g.get(k) for k in ("amsgrad", "maximize", "differentiable")) or torch.is_tensor(g["lr"]):
        return None
    if type(optimizer) is torch.optim.SGD:
        return train.sgd(g["lr"], momentum=g["momentum"], dampening=g["dampening"], weight_decay=g["weight_decay"],
                         nesterov=g["nesterov"])
    if type(optimizer) in (torch.optim.Adam, torch.optim.AdamW):
        decoupled = g.get("decoupled_weight_decay", type(optimizer) is torch.optim.AdamW)
        return train.adam(g["lr"], beta1=g["betas"][0], beta2=g["betas"][1], eps=g["eps"], weight_decay=g["weight_decay"],
                          decoupled=bool(decoupled))
    if type(optimizer).__module__ == "decent_dp.optim" and name in ("AccumAdam", "AccumAdamW"):
        return train.accum_adam(g["lr"], beta1=g["betas"][0], beta2=g["betas"][1], eps=g["eps"], weight_decay=g["weight_decay"],
                                accum_iter=g["accum_iter"], decoupled=name == "AccumAdamW")
    return None


class OfTorch:
    """An optimiser of torch.optim for the parameters of a bucket, and its schedule.

    Where ouro has its rule the update is ouro's, fused with mixing, and the optimiser says the learning rates alone; its own
    state stays empty. Else it updates by itself, between the mix and the next message.
    """

    def __init__(self, optimizer, scheduler, names, before_step):
        self.optimizer, self.scheduler, self._before_step = optimizer, scheduler, weakref.WeakMethod(before_step)
        rules = [_rule(optimizer, g) for g in optimizer.param_groups]
        by_id = {id(p): n for n, p in names.items()}
        held = [[by_id[id(p)] for p in g["params"] if id(p) in by_id] for g in optimizer.param_groups]
        missing = set(names) - {n for group in held for n in group}
        if missing:
            raise ValueError(f"ouro.torch: the optimiser leaves out {', '.join(sorted(missing))}; expected all parameters of a bucket")
        self.groups = [] if None in rules else list(zip(held, rules))

    def rates(self):
        return [float(g["lr"]) for g in self.optimizer.param_groups]

    def step(self, scale):
        self._before_step()()
        if scale != 1:
            for g in self.optimizer.param_groups:
                torch._foreach_mul_([p.grad for p in g["params"] if p.grad is not None], scale)
        self.optimizer.step()

    def stepped(self):
        if self.scheduler is not None:
            if self.groups:
                self.optimizer._opt_called = True  # or PyTorch warns that the schedule comes first
            self.scheduler.step()

    def save(self):
        return pickle.dumps((self.optimizer.state_dict(), self.scheduler and self.scheduler.state_dict()))

    def load(self, state):
        self._before_step()()
        optimizer, scheduler = pickle.loads(state)
        self.optimizer.load_state_dict(optimizer)
        if scheduler is not None:
            self.scheduler.load_state_dict(scheduler)
