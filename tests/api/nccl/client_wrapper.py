# The wrappers of vLLM and sglang around libnccl.so.2, unmodified, on tensors of the host, with 1, 2 and 3 processes.
# Each wrapper is loaded alone, because the complete packages need CUDA: stand-ins provide what vLLM's takes from its
# package (settings, a logger, the platform, a search for the library). Usage: client_wrapper.py vllm|sglang LIBRARY
import importlib.util
import logging
import os
import pathlib
import sys
import traceback
import types

import torch_place


def stand_in(name, **contents):
    module = sys.modules[name] = types.ModuleType(name)
    vars(module).update(contents)
    return module


def load_wrapper(package):
    file = next((torch_place.place() / "clients" / package).glob("**/pynccl_wrapper.py"), None)
    if not file:
        print(f"SKIP: not installed: {package}'s wrapper in {torch_place.place()} (tools/torch-env --clients)")
        sys.exit(77)
    if package == "vllm":
        import torch

        def searched():
            raise AssertionError("the wrapper searched for a library, though it was given one")

        platform = types.SimpleNamespace(fp8_dtype=lambda: torch.float8_e4m3fn, is_rocm=lambda: False)
        stand_in("vllm", envs=stand_in("vllm.envs", VLLM_USE_NCCL_SYMM_MEM=False))
        stand_in("vllm.logger", init_logger=logging.getLogger)
        stand_in("vllm.platforms", current_platform=platform)
        stand_in("vllm.utils")
        stand_in("vllm.utils.nccl", find_nccl_library=searched)
    spec = importlib.util.spec_from_file_location("pynccl_wrapper", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def run_rank(wrapper, library, rank, size, pipes):
    import torch
    from torch.distributed import ReduceOp

    nccl = wrapper.NCCLLibrary(library)
    assert nccl.ncclGetVersion().startswith("2."), nccl.ncclGetVersion()
    if rank == 0:
        raw = bytes(nccl.ncclGetUniqueId())
        for _, to in pipes[1:]:
            os.write(to, raw)
    else:
        raw = os.read(pipes[rank][0], 128)
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


def main(package, library):
    wrapper = load_wrapper(package)
    for size in (1, 2, 3):
        pipes = [os.pipe() for _ in range(size)]
        ranks = []
        for rank in range(size):  # PyTorch is imported only once; no process has called the library before it forks
            ranks.append(os.fork())
            if ranks[-1] == 0:
                code = 1
                try:
                    run_rank(wrapper, library, rank, size, pipes)
                    code = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(code)
        codes = [os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks]
        assert codes == [0] * size, codes
    print("1, 2 and 3 processes")


if __name__ == "__main__":
    if pathlib.Path(sys.prefix) != pathlib.Path(torch_place.folder()):
        os.execv(torch_place.interpreter(), [torch_place.interpreter(), __file__, *sys.argv[1:]])
    main(sys.argv[1], sys.argv[2])
