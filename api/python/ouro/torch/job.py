"""The ouro group that a trainer uses: a given one, or the world of a separate job next to a PyTorch process group."""
import torch.distributed as dist

import ouro
from ouro.torch import rendezvous


def group_of(group=None):
    """(ouro group, the object that keeps it alive), for an ouro group or job, or a process group as in job_of."""
    if isinstance(group, ouro.Group):
        return group, None
    job = job_of(group)
    return job.world, job


def job_of(group=None):
    """Makes an ouro job next to a process group of torch.distributed (None: the default one); returns an ouro job unchanged.

    Collective over the process group, whatever its backend; the ranks meet through its store.
    """
    if isinstance(group, ouro.Context):
        return group
    if not dist.is_available() or not dist.is_initialized():
        raise RuntimeError("ouro.torch: there is no process group; expected init_process_group first, or group=ouro.init()")
    group = group or dist.group.WORLD
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    store = dist.PrefixStore(f"ouro/trainer/{group.group_name}", dist.distributed_c10d._get_default_store())
    with rendezvous.Meeting(store, rank, size, store.timeout, dist.get_process_group_ranks(group)) as meeting:
        met = meeting.meet(ouro.unique_id)
        hosts = met["hosts"]
        here = [r for r, host in enumerate(hosts) if host == hosts[rank]]
        one = len(here) == size
        return ouro.init(rank=rank, world_size=size, local_rank=here.index(rank), local_size=len(here), id=bytes.fromhex(met["id"]),
                         host_id="" if one else hosts[rank], rendezvous=met["place"])


def flat(tensor):
    """The tensor's elements in memory order, as a C-order tensor (for channels_last: of its permutation), and whether it is
    channels_last. The memory is shared. Raises ValueError for any other layout."""
    import torch

    value = tensor.detach()
    if value.is_contiguous():
        return value, False
    if value.dim() == 4 and value.is_contiguous(memory_format=torch.channels_last):
        return value.permute(0, 2, 3, 1), True
    raise ValueError(f"ouro.torch: a tensor of shape {tuple(tensor.shape)} has strides {tensor.stride()}; expected a contiguous one, "
                     "or channels_last")


def local(tensor):
    """This rank's part of a DTensor; any other tensor itself."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
