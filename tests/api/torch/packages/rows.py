# What each rank's program of this folder has: rows by name, each what a function of a package gave, or how it failed.
# Arguments of a rank: --rank RANK RANKS FOLDER BACKEND
import importlib.util
import json
import os
import pathlib
import sys
import types

import torch

import ouro.torch  # as the entry point of an installed package has PyTorch do; OURO_TORCH_AS says for whom it stands in

rank, size, folder, backend = int(sys.argv[2]), int(sys.argv[3]), pathlib.Path(sys.argv[4]), sys.argv[5]
given = {}
os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size),
                   "MASTER_ADDR": "127.0.0.1"})


def numbers(value):
    if torch.is_tensor(value):
        return value.detach().double().reshape(-1).tolist()
    if isinstance(value, (list, tuple)):
        return [n for v in value for n in numbers(v)]
    if isinstance(value, dict):
        return [n for k in value for n in numbers(value[k])]
    if isinstance(value, (bool, int, float)):
        return [float(value)]
    return [] if value is None else [str(value)]


def give(name, value):
    given[name] = numbers(value)


def row(name, call):
    """The value of call(), or the kind of its failure, which both backends must have in common."""
    try:
        give(name, call())
    except Exception as e:  # noqa: BLE001
        given[name] = ["fails", type(e).__name__]
        if os.environ.get("ROWS_TRACE"):
            raise


def without_its_init(*packages):
    """Packages whose __init__ wants more than the modules that are used here."""
    for name in packages:
        spec = importlib.util.find_spec(name)
        module = types.ModuleType(name)
        module.__path__ = list(spec.submodule_search_locations)
        sys.modules[name] = module


def stands_in(name, **what):
    """A module with these names, in place of one that is imported and not used."""
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(what)


def carried():
    """At the end of a group: that ouro did carry it, where it should."""
    give("carried", ouro.torch.carrier() == backend)


def finish():
    (folder / f"{backend}.{rank}.json").write_text(json.dumps(given))
