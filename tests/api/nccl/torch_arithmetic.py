# PyTorch's arithmetic on emulated devices, which cannot run CUDA kernels: an operator that would launch one copies its
# tensors to the host, calls the same operator there, and copies the results back. Unchanged are: allocation, views,
# copies of contiguous tensors, streams, events, and all communication. Used by the tests that train.
import warnings

import torch
from torch.utils._pytree import tree_map_only

# Operators that launch no kernel, or only create or describe tensors.
WITHOUT_KERNEL = {"empty", "empty_strided", "set_", "resize_", "record_stream", "is_pinned", "_pin_memory", "pin_memory", "is_set_to",
                  "_local_scalar_dense", "_resize_output_", "_has_compatible_shallow_copy_type", "_copy_from", "_copy_from_and_resize",
                  "new_empty_strided", "is_same_size", "_nested_tensor_storage_offsets", "_nested_tensor_size"}


class OnHost:
    """Copies of device tensors on the host, which share memory in the same way as the originals."""

    def __init__(self):
        self.storages = {}  # by address on the device: the storage, and its copy on the host

    def copy_of(self, t):
        if t.device.type != "cuda":
            return t
        storage = t.untyped_storage()
        if storage.data_ptr() not in self.storages:
            self.storages[storage.data_ptr()] = (storage, self.bytes_of(storage).cpu().untyped_storage())
        there = self.storages[storage.data_ptr()][1]
        return torch.empty(0, dtype=t.dtype).set_(there, t.storage_offset(), t.size(), t.stride())

    @staticmethod
    def bytes_of(storage):
        return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, 0, (storage.nbytes(),), (1,))

    def write_back(self, t):
        storage, there = self.storages[t.untyped_storage().data_ptr()]
        self.bytes_of(storage).copy_(torch.empty(0, dtype=torch.uint8).set_(there, 0, (there.nbytes(),), (1,)))


def on_device(t, device):
    out = torch.empty_strided(t.size(), t.stride(), dtype=t.dtype, device=device)
    if t.numel():
        OnHost.bytes_of(out.untyped_storage()).copy_(torch.empty(0, dtype=torch.uint8).set_(t.untyped_storage(), 0,
                                                     (out.untyped_storage().nbytes(),), (1,)))
    return out


def by_the_host(operator):
    arguments = operator._schema.arguments
    tensors = [i for i, a in enumerate(arguments) if str(a.type) == "Tensor"]
    written = [(i, a.name) for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write]

    def run(*args, **kwargs):
        with torch.no_grad(), torch._C._AutoDispatchBelowAutograd():
            host, device = OnHost(), torch.device("cuda", torch.cuda.current_device())
            mine = [args[i] if i < len(args) else kwargs[name] for i, name in written]
            pairs = []

            def copy(t):
                pairs.append((t, host.copy_of(t)))
                return pairs[-1][1]

            there_args, there_kwargs = tree_map_only(torch.Tensor, copy, (list(args), kwargs))
            for i in tensors:  # a number in place of a tensor arrives as a number
                if i < len(there_args) and isinstance(there_args[i], (bool, int, float, complex)):
                    there_args[i] = torch.tensor(there_args[i])
            if isinstance(there_kwargs.get("device"), torch.device):
                there_kwargs["device"] = torch.device("cpu")
            results = operator(*there_args, **there_kwargs)
            changed = [t for m in mine for t in (m if isinstance(m, (list, tuple)) else [m])]
            for t, there in pairs:
                if t.device.type != "cuda" or not any(t is c for c in changed):
                    continue
                if there.size() != t.size():  # an output without a shape of its own
                    t.resize_(there.size())
                    t.copy_(there)
                else:
                    host.write_back(t)

            def back(r):
                same = [t for t, there in pairs if there is r]
                return same[0] if same else on_device(r, device)

            return tree_map_only(torch.Tensor, back, results)

    return run


def copy_(to, source, non_blocking=False):
    if to.dtype == source.dtype and to.is_contiguous() and source.is_contiguous() and to.size() == source.size():
        keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)  # the kernel of all keys, which dispatches by the tensors' devices
        return torch.ops.aten.copy_.default.redispatch(keys, to, source, non_blocking)
    with torch.no_grad(), torch._C._AutoDispatchBelowAutograd():
        host = OnHost()
        there = host.copy_of(to)
        there.copy_(host.copy_of(source))
        if to.device.type == "cuda":
            host.write_back(to)
    return to


def install():
    """Installs this for the rest of the process. Returns the objects to be kept alive, and the number of operators
    that run on the host."""
    library, count = torch.library.Library("aten", "IMPL"), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns about each operator that is replaced
        for full in torch._C._dispatch_get_all_op_names():
            name, _, overload = full.removeprefix("aten::").partition(".")
            if not full.startswith("aten::") or name in WITHOUT_KERNEL or not torch._C._dispatch_has_kernel_for_dispatch_key(full, "CUDA"):
                continue
            operator = getattr(getattr(torch.ops.aten, name), overload or "default")
            views = any(r.alias_info is not None and not r.alias_info.is_write for r in operator._schema.returns)
            if not views:
                library.impl(full.removeprefix("aten::"), by_the_host(operator), "CUDA")
                count += 1
        library.impl("copy_", copy_, "CUDA")
    return library, count
