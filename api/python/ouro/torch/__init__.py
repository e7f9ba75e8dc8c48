"""The backend `ouro` of torch.distributed, for tensors on CPUs and on GPUs.

    torch.distributed.init_process_group("ouro")

With an installed package, this needs no import: PyTorch finds the backend by its entry point. `import ouro.torch` registers it,
too. OURO_TORCH_AS=gloo (or nccl, or several separated by commas), or stand_in("gloo"), makes ouro carry the groups of that name.

GossipDataParallel trains a module with decentralised averaging (Decent-DP's DecentralizedDataParallel); FederatedAverage (xFFL's
strategies) and DiLoCo train it site by site. All use ouro, next to any backend.

The adapter to PyTorch is compiled when the first group is made (see ouro.torch.build), once for each version of PyTorch.
"""
import importlib
import os

_TRAINERS = {"GossipDataParallel": "gossip", "DecentralizedDataParallel": "gossip", "optim_fn_adam": "optim", "optim_fn_adamw": "optim",
             "optim_fn_accum_adam": "optim", "optim_fn_accum_adamw": "optim", "lr_scheduler_fn_cosine_with_warmup": "optim",
             "FederatedAverage": "federated", "DiLoCo": "federated"}
_as = {}  # names of backends for which ouro stands in, and their previous entries


def _creator(name):
    def create(options, backend_options=None):
        from ouro.torch import rendezvous

        return rendezvous.create(options, backend_options, name)
    return create


def _copied(options):
    """How copy.deepcopy copies the options of a group: split_group, and so DeviceMesh, does that before PyTorch 2.15."""
    return _options, (type(options), options.backend, options._timeout, options.group_name, options.global_ranks_in_group)


def _options(kind, backend, timeout, name, ranks):
    made = kind(backend, timeout)
    made.group_name, made.global_ranks_in_group = name, ranks
    return made


def register():
    """Registers the backend, and the names in OURO_TORCH_AS. Idempotent."""
    import copyreg

    import torch.distributed as dist

    if not dist.is_available():
        return
    copyreg.pickle(dist._Backend.Options, _copied)  # of this very class: those of PyTorch's own backends are derived from it
    if "OURO" not in dist.Backend._plugins:
        dist.Backend.register_backend("ouro", _creator("ouro"), extended_api=True, devices=["cpu", "cuda"])
    for name in filter(None, os.environ.get("OURO_TORCH_AS", "").split(",")):
        stand_in(name.strip())


def autoload():
    """Entry point that PyTorch calls while it is imported. Never raises, because `import torch` would then fail."""
    try:
        register()
    except Exception as e:  # noqa: BLE001
        import warnings

        warnings.warn(f"ouro.torch could not register its backend: {e}", stacklevel=1)


def stand_in(name):
    """From now on, ouro carries the groups of this name, such as "gloo", that are made in this process.

    torch.distributed still reports `name`; carrier() names the library that carries a group. All ranks must call this. Raises
    ValueError for a name that PyTorch does not have, and for nccl before PyTorch 2.15.
    """
    import torch
    import torch.distributed as dist

    plugin = dist.Backend._plugins
    key = name.upper()
    if name.lower() not in dist.Backend.backend_list:
        raise ValueError(f"ouro.torch: no backend {name!r} for which to stand in; there are {', '.join(dist.Backend.backend_list)}")
    if key in _as or name.lower() == "ouro":
        return
    if name.lower() in ("gloo", "nccl") and key not in plugin:  # before 2.15
        if key != "GLOO":
            raise ValueError(f"ouro.torch: with PyTorch {torch.__version__} ouro stands in for gloo, not for {name.lower()}")
        from ouro.torch import old

        old.stand_in_for_gloo(_creator("gloo"))
    _as[key] = plugin.get(key)
    plugin[key] = dist.Backend._BackendPlugin(_creator(name.lower()), True)


def carrier(group=None, device=None):
    """The carrier of a process group (None: the default one) for a device: "ouro", or the name that PyTorch has."""
    import torch
    import torch.distributed as dist

    from ouro.torch import build

    group = group or dist.group.WORLD
    backend = group._get_backend(torch.device(device) if device else group._device_types[0])
    backend = getattr(backend, "wrapped_pg", backend)
    return "ouro" if build.adapter().carries(backend) else backend.name()


def register_memory(tensor, group=None):
    """Registers the storage of a CUDA tensor: where GPUs map each other, collectives of ouro use it in place.

    `group`: None, the default one; its job counts. Returns an object with release(wait=2.0), which also ends with it. The
    memory must stay with PyTorch's allocator until then: keep the tensor, and call no torch.cuda.empty_cache() before.
    Raises ValueError where ouro does not carry the group, DistBackendError where the memory cannot be registered; the text
    says why (expandable segments without a shareable handle type, for example).
    """
    import torch.distributed as dist

    from ouro.torch import build

    backend = (group or dist.group.WORLD)._get_backend(tensor.device)
    return build.adapter().register_memory(getattr(backend, "wrapped_pg", backend), tensor)


def __getattr__(name):
    if name not in _TRAINERS:
        raise AttributeError(f"module 'ouro.torch' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"ouro.torch.{_TRAINERS[name]}"), name)
    globals()[name] = value
    return value


register()
