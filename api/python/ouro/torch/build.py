"""The adapter between PyTorch and libouro: compiled once for the installed PyTorch, and kept in a cache.

A wheel may contain compiled adapters for some versions of PyTorch. The cache is OURO_TORCH_CACHE, or else ouro/torch in
XDG_CACHE_HOME (~/.cache), or, where no modules can be kept there (a home that cannot be written, a file system that is mounted
noexec), a folder of the user's own in the temporary directory. The file name of a module contains the versions and the ABI of PyTorch and Python, and a hash of the
adapter's sources and of ouro's headers and version: one that does not fit is never loaded. The compiler is CXX, else g++ or c++ or
clang++; it must support C++20.
"""
import atexit
import fcntl
import functools
import hashlib
import importlib.util
import os
import pathlib
import shlex
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile

import torch

import ouro

OLDEST = (2, 9)
_SOURCES = pathlib.Path(__file__).parent / "adapter"
_NAME = "ouro_torch_adapter"


class BuildError(RuntimeError):
    """The adapter could not be built; the text says what is missing."""


def _check_version():
    version = tuple(int(n) for n in torch.__version__.split("+")[0].split(".")[:2])
    if version < OLDEST:
        raise BuildError(f"ouro.torch: PyTorch {torch.__version__} is too old; {OLDEST[0]}.{OLDEST[1]} or newer is served")
    if not torch.distributed.is_available():
        raise BuildError(f"ouro.torch: this PyTorch ({torch.__version__}) was built without torch.distributed")


def _compiler():
    named = os.environ.get("CXX")
    command = shlex.split(named) if named else next(([c] for c in ("g++", "c++", "clang++") if shutil.which(c)), [])
    if not command or not shutil.which(command[0]):
        what = f"CXX names {command[0]}, which is not there" if command else "there is none (g++, c++, clang++)"
        raise BuildError(f"ouro.torch: the adapter for PyTorch {torch.__version__} has to be compiled once, and {what}. Install "
                         "a C++20 compiler, or set CXX")
    return command


def _headers():
    for folder in map(pathlib.Path, ouro.includes()):
        yield from sorted(folder.glob("ouro/*.hpp"))
        yield from sorted(folder.glob("runtime/core/[st]*.h"))


@functools.cache
def key():
    """Everything that a compiled adapter depends on, as a file name."""
    _check_version()
    digest = hashlib.sha256(ouro.version().encode())
    for path in [*sorted(_SOURCES.iterdir()), *_headers()]:
        digest.update(path.name.encode() + path.read_bytes())
    return (f"torch{torch.__version__}-abi{int(torch.compiled_with_cxx11_abi())}-{sys.implementation.cache_tag}"
            f"-ouro{ouro.version()}-{digest.hexdigest()[:12]}")


def cache():
    """The folder of compiled adapters."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return pathlib.Path(os.environ.get("OURO_TORCH_CACHE") or f"{base}/ouro/torch")


@functools.cache
def _cuda_headers():
    """The folder of CUDA's headers, which the hook of PyTorch's allocator needs; None: the adapter is compiled without it."""
    if not torch.version.cuda or not (pathlib.Path(torch.__file__).parent / "lib/libc10_cuda.so").exists():
        return None
    homes = [os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    found = [pathlib.Path(home) / "include" for home in homes if home]
    found += sorted(pathlib.Path(torch.__file__).parent.parent.glob("nvidia/*/include"))
    return next((folder for folder in found if (folder / "cuda_runtime_api.h").exists()), None)


def _places():
    """The possible locations of a compiled adapter: next to this file, in a wheel; else in the cache, by whether it has the hook."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    hook = "-cuda" if _cuda_headers() else ""
    return pathlib.Path(__file__).parent / "prebuilt" / f"{key()}{suffix}", cache() / f"{key()}{hook}{suffix}"


def _run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise BuildError(f"ouro.torch: compiling the adapter for PyTorch {torch.__version__} failed:\n{shlex.join(command)}\n"
                         f"{(done.stderr or done.stdout)[-4000:]}")


def _compile(target):
    """With the allocator's hook where the headers of CUDA are there and fit this PyTorch; else without."""
    if _cuda_headers():
        try:
            return _compile_by(target, ["-DOURO_TORCH_CUDA", f"-isystem{_cuda_headers()}"], ["-lc10_cuda"])
        except BuildError:
            pass
    return _compile_by(target, [], [])


def _compile_by(target, more_flags, more_libraries):
    from torch.utils import cpp_extension

    compiler = _compiler()
    folders = [*ouro.includes(), *cpp_extension.include_paths(), sysconfig.get_paths()["include"]]
    flags = ["-std=c++20", "-O2", "-g0", "-fPIC", "-fvisibility=hidden", f"-DTORCH_EXTENSION_NAME={_NAME}",
             f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}", f"-I{_SOURCES}",
             *(f"-isystem{folder}" for folder in folders), *more_flags]
    libraries = pathlib.Path(torch.__file__).parent / "lib"
    prefix = f"{target.stem}-compiling-"
    for left in target.parent.glob(f"{prefix}*"):  # by a process that was killed: there is one compilation at a time (_cached)
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=prefix) as work:
        whole = pathlib.Path(work) / "adapter.cc"  # one unit: most of the time is spent on PyTorch's headers
        whole.write_text("".join(f'#include "{source}"\n' for source in sorted(_SOURCES.glob("*.cc"))))
        _run([*compiler, *flags, "-shared", "-o", f"{work}/adapter.so", str(whole), ouro.library(), f"-L{libraries}", "-lc10",
              "-ltorch_cpu", "-ltorch_python", *more_libraries])
        os.replace(f"{work}/adapter.so", target)


def prebuild():
    """Compiles the adapter for this PyTorch into the package itself, for tools/wheel. Returns its path."""
    prebuilt = _places()[0]
    prebuilt.parent.mkdir(exist_ok=True)
    _compile(prebuilt)
    return prebuilt


def _unusable(folder):
    """Why no modules can be kept in a folder, which is made if it is not there; "": they can."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.statvfs(folder).f_flag & os.ST_NOEXEC:
            return f"{folder} is mounted noexec"
        if not os.access(folder, os.W_OK | os.X_OK):
            return f"{folder} cannot be written"
    except OSError as e:
        return f"{folder}: {e.strerror}"
    return ""


def _temporary():
    """A folder of this user's alone in the temporary directory. Raises BuildError."""
    folder = pathlib.Path(tempfile.gettempdir()) / f"ouro-torch-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        about = folder.lstat()
    except OSError as e:
        raise BuildError(f"{folder}: {e.strerror}") from e
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o077:
        raise BuildError(f"{folder} is not a folder of this user's alone")
    return folder


def _folder():
    """Where compiled adapters are kept: the cache, or another folder if it cannot be used and is not the one that the user names."""
    first = _unusable(cache())
    if not first:
        return cache()
    second = ""
    if not os.environ.get("OURO_TORCH_CACHE"):
        try:
            second = _unusable(_temporary())
        except BuildError as e:
            second = str(e)
        if not second:
            return _temporary()
    raise BuildError("ouro.torch: the adapter has to be compiled once, and there is no folder to keep it in: "
                     f"{'; '.join(filter(None, (first, second)))}. OURO_TORCH_CACHE names a folder that can be written and is not "
                     "mounted noexec")


def _cached():
    cached = _places()[1]
    if not cached.exists() or _unusable(cached.parent):
        cached = _folder() / cached.name
    if not cached.exists():
        with open(cached.with_suffix(".lock"), "w") as lock:  # the ranks of a host arrive here at the same time
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not cached.exists():
                _compile(cached)
    return cached


def _load(path):
    spec = importlib.util.spec_from_file_location(_NAME, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def adapter():
    """The compiled module; compiles it if there is none. Raises BuildError."""
    import ctypes

    ctypes.CDLL(ouro.library(), mode=ctypes.RTLD_GLOBAL)  # the module finds it by its name, wherever it is located
    prebuilt = _places()[0]
    try:
        module = _load(prebuilt) if prebuilt.exists() else _load(_cached())
    except ImportError:  # built for a newer C++ library than this machine's
        if not prebuilt.exists():
            raise
        module = _load(_cached())
    atexit.register(module.end_all)  # a thread that needed Python after that would end the process
    return module
