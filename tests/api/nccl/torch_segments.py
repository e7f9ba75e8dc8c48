# Expandable segments of PyTorch's caching allocator, which the backend registers by itself, on emulated devices: they grow,
# shrink, and grow again. Usage: torch_segments.py RUNTIME DRIVER LIBRARY RANKS DEVICES NVML=LIBRARY [VARIABLE=VALUE]...
import pathlib
import sys

import torch_ranks

in_rank = torch_ranks.arguments()
if not in_rank:
    variables = dict(v.split("=", 1) for v in sys.argv[6:])
    variables |= torch_ranks.emulated([*sys.argv[1:4], variables.pop("NVML")], int(sys.argv[5]))
    texts = torch_ranks.run(__file__, int(sys.argv[4]), **variables)
    if all("no hook" in text for text in texts):
        print("SKIP: not installed: the headers of CUDA for this PyTorch, when the adapter was compiled")
        sys.exit(77)
    sys.exit(0 if all("all sums are right" in text for text in texts) else f"FAILED: {texts}")

import torch
import torch.distributed as dist

import ouro.torch
from ouro.torch import build

rank, size, store, _ = in_rank
device = torch.device("cuda", rank % torch.cuda.device_count())
torch.cuda.set_device(device)
before = torch.empty(1 << 20, device=device)  # a segment from before the group
dist.init_process_group("ouro", init_method=f"file://{store}/store", rank=rank, world_size=size, device_id=device)
backend = dist.group.WORLD._get_backend(device)
backend = getattr(backend, "wrapped_pg", backend)


def reduced(tensor):
    tensor.copy_(torch.arange(tensor.numel(), dtype=torch.float32) % 1000 + rank)
    dist.all_reduce(tensor)
    expected = (torch.arange(tensor.numel(), dtype=torch.float32) % 1000) * size + size * (size - 1) // 2
    assert torch.equal(tensor.cpu(), expected), tensor.cpu()


first = backend.registered_bytes
if b"libc10_cuda.so" not in pathlib.Path(build.adapter().__file__).read_bytes():
    print("no hook of the allocator")
    dist.destroy_process_group()
    sys.exit(0)
assert first >= 4 << 20, first
for _ in range(4):
    reduced(before)
large = [torch.empty(7 << 20, device=device) for _ in range(3)]  # across pieces of 20 MiB
grown = backend.registered_bytes
assert grown >= (4 + 3 * 28) << 20 and grown > first, (first, grown)
for _ in range(4):
    for tensor in large:
        reduced(tensor)
del large, tensor
torch.cuda.synchronize()
torch.cuda.empty_cache()
shrunk = backend.registered_bytes
assert shrunk < grown, (grown, shrunk)
again = torch.empty(14 << 20, device=device)  # other memory at the same addresses
assert backend.registered_bytes > shrunk
for _ in range(4):
    reduced(again)
registration = ouro.torch.register_memory(before)  # once more, by hand
reduced(before)
dist.barrier()
registration.release()
dist.destroy_process_group()
print("all sums are right")
