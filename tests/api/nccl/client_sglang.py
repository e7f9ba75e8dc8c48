# The wrapper of sglang around libnccl.so.2 (which is vLLM's), unmodified, on tensors of the host, with 1, 2 and 3 processes.
# It is loaded by itself, since sglang as a whole wants CUDA. Usage: client_sglang.py LIBRARY
import os
import pathlib
import subprocess
import sys

import torch_place

WRAPPER = "sglang/srt/distributed/device_communicators/pynccl_wrapper.py"


def load_wrapper():
    import importlib.util
    import site

    for folder in site.getsitepackages():
        if (pathlib.Path(folder) / WRAPPER).exists():
            spec = importlib.util.spec_from_file_location("pynccl_wrapper", pathlib.Path(folder) / WRAPPER)
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
            return module
    return None


def run_rank(library, rank, size, raw):
    import torch
    from torch.distributed import ReduceOp

    wrapper = load_wrapper()
    nccl = wrapper.NCCLLibrary(library)
    assert nccl.ncclGetVersion().startswith("2."), nccl.ncclGetVersion()
    unique = wrapper.ncclUniqueId.from_buffer_copy(raw)
    comm = nccl.ncclCommInitRank(size, unique, rank)
    stream = wrapper.cudaStream_t(0)

    def at(tensor):
        return wrapper.buffer_type(tensor.data_ptr())

    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8):
        kind = wrapper.ncclDataTypeEnum.from_torch(dtype)
        x, y = torch.full((1000,), rank + 1, dtype=dtype), torch.zeros(1000, dtype=dtype)
        for op, want in ((ReduceOp.SUM, size * (size + 1) // 2), (ReduceOp.MAX, size), (ReduceOp.MIN, 1)):
            nccl.ncclAllReduce(at(x), at(y), 1000, kind, wrapper.ncclRedOpTypeEnum.from_torch(op), comm, stream)
            assert torch.equal(y, torch.full_like(y, want)), (dtype, op, y)
        nccl.ncclReduce(at(x), at(y), 1000, kind, wrapper.ncclRedOpTypeEnum.from_torch(ReduceOp.SUM), size - 1, comm, stream)
        assert rank != size - 1 or torch.equal(y, torch.full_like(y, size * (size + 1) // 2))
        wide = torch.zeros(1000 * size, dtype=dtype)
        nccl.ncclAllGather(at(x), at(wide), 1000, kind, comm, stream)
        assert torch.equal(wide, torch.cat([torch.full((1000,), r + 1, dtype=dtype) for r in range(size)]))
        nccl.ncclReduceScatter(at(wide), at(y), 1000, kind, wrapper.ncclRedOpTypeEnum.from_torch(ReduceOp.SUM), comm, stream)
        assert torch.equal(y, torch.full_like(y, size * (rank + 1)))
        if size > 1:
            nccl.ncclGroupStart()
            nccl.ncclSend(at(x), 1000, kind, (rank + 1) % size, comm, stream)
            nccl.ncclRecv(at(y), 1000, kind, (rank - 1) % size, comm, stream)
            nccl.ncclGroupEnd()
            assert torch.equal(y, torch.full_like(y, (rank - 1) % size + 1))
        nccl.ncclBroadcast(at(x), at(x), 1000, kind, 0, comm, stream)
        assert torch.equal(x, torch.ones_like(x))
    nccl.ncclCommDestroy(comm)


def main(library):
    wrapper = load_wrapper()
    if not wrapper:
        print("SKIP: sglang is not in PyTorch's environment (tools/torch-env --clients)")
        sys.exit(77)
    for size in (1, 2, 3):
        raw = bytes(wrapper.NCCLLibrary(library).ncclGetUniqueId())
        ranks = [subprocess.Popen([sys.executable, __file__, library, str(r), str(size), raw.hex()]) for r in range(size)]
        codes = [r.wait(timeout=100) for r in ranks]
        assert codes == [0] * size, codes
    print("1, 2 and 3 processes")


if __name__ == "__main__":
    if pathlib.Path(sys.prefix) != pathlib.Path(torch_place.folder()):
        os.execv(torch_place.interpreter(), [torch_place.interpreter(), __file__, *sys.argv[1:]])
    if len(sys.argv) == 2:
        main(sys.argv[1])
    else:
        run_rank(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), bytes.fromhex(sys.argv[4]))
