# Registration of tensors by hand (ouro.torch.register_memory), of memory of cudaMalloc: how long release() waits. Usage: torch_registered.py RUNTIME DRIVER LIBRARY RANKS DEVICES NVML=LIBRARY [VARIABLE=VALUE]...
import sys

import torch_ranks

in_rank = torch_ranks.arguments()
if not in_rank:
    variables = dict(v.split("=", 1) for v in sys.argv[6:])
    variables |= torch_ranks.emulated([*sys.argv[1:4], variables.pop("NVML")], int(sys.argv[5]))
    texts = torch_ranks.run(__file__, int(sys.argv[4]), **variables)
    sys.exit(0 if all("waited as long as asked" in text for text in texts) else f"FAILED: {texts}")

import threading
import time

import torch
import torch.distributed as dist

import ouro.torch

rank, size, store, _ = in_rank
device = torch.device("cuda", rank % torch.cuda.device_count())
torch.cuda.set_device(device)
dist.init_process_group("ouro", init_method=f"file://{store}/store", rank=rank, world_size=size, device_id=device)
tensor = torch.empty(1 << 18, device=device)
registration = ouro.torch.register_memory(tensor)
for _ in range(4):
    dist.all_reduce(tensor)
torch.cuda.synchronize()
dist.barrier()
if rank == 0:
    work = dist.all_reduce(tensor, async_op=True)  # it waits for the other rank, and uses the memory until then
    store = dist.distributed_c10d._get_default_store()
    store.set("waits", "1")
    work.wait()
    torch.cuda.synchronize()
else:
    dist.distributed_c10d._get_default_store().wait(["waits"])
    # Where ranks share a GPU, the last rank to arrive leads, and maps the memory of all. A rank that waits has the memory
    # open only if it has led before.
    apart = torch.cuda.device_count() >= size
    for wait in (0.0, -1.0, float("nan"), float("-inf")) if apart else ():  # asks once
        begun = time.monotonic()
        try:
            registration.release(wait)
            raise SystemExit(f"FAILED: release({wait}) says that nobody has the memory open")
        except dist.DistBackendError as e:
            assert "memory open that was registered" in str(e), e
        assert time.monotonic() - begun < 5, wait
    ended = {}
    waiting = [threading.Thread(target=lambda w=w: ended.update({w: registration.release(w)})) for w in (float("inf"),)]
    for thread in waiting:
        thread.start()
    time.sleep(0.3)
    assert not (apart and ended), ended  # not an overflow that ends the wait at once
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    for thread in waiting:
        thread.join(60)
    assert list(ended) == [float("inf")], ended
    registration.release(1e300)  # nothing is left
dist.barrier()
registration.release()
dist.destroy_process_group()
print("waited as long as asked")
