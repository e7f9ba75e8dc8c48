# Collectives of PyTorch's process group over NCCL in a torch.cuda.graph, replayed on new data, on emulated devices.
# Usage: torch_graph.py RUNTIME DRIVER LIBRARY RANKS DEVICES [VARIABLE=VALUE]...
import sys

import torch_ranks

in_rank = torch_ranks.arguments()
if not in_rank:
    variables = torch_ranks.emulated(sys.argv[1:4], int(sys.argv[5])) | dict(v.split("=") for v in sys.argv[6:])
    texts = torch_ranks.run(__file__, int(sys.argv[4]), **variables)
    sys.exit(0 if all("replayed" in text for text in texts) else f"FAILED: {texts}")

import torch
import torch.distributed as dist

rank, size, store, _ = in_rank
carrier = torch_ranks.device_backend()
device = torch.device("cuda", rank % torch.cuda.device_count())
torch.cuda.set_device(device)
dist.init_process_group(carrier, init_method=f"file://{store}/store", rank=rank, world_size=size, device_id=device)
numbers = torch.arange(1003, dtype=torch.float32)
summed, gathered, shard = (torch.empty(n, device=device) for n in (1003, 1003 * size, 1003))
summed.copy_(numbers)
dist.all_reduce(summed)  # before a capture, as PyTorch requires
graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
with torch.cuda.graph(graph, stream=stream):
    dist.all_reduce(summed)
    work = dist.all_gather_into_tensor(gathered, summed, async_op=True)
    work.wait()
    dist.reduce_scatter_tensor(shard, gathered)
captured = summed.cpu()
for k in range(5):
    summed.copy_(numbers * (rank + 1) + k)
    torch.cuda.synchronize()
    graph.replay()
    torch.cuda.synchronize()
    total = numbers * (size * (size + 1) // 2) + k * size
    assert torch.equal(summed.cpu(), total), (k, summed.cpu(), total)
    assert torch.equal(gathered.cpu(), total.repeat(size)), (k, gathered.cpu())
    assert torch.equal(shard.cpu(), total * size), (k, shard.cpu())
assert torch.equal(captured, numbers * size), "the capture itself has run"
print("replayed 5 times")
del graph
dist.destroy_process_group()
