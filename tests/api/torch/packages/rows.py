# What each rank's program of this folder uses: rows by name, each the result of a function of a package, or how it
# failed. Arguments of a rank: --rank RANK RANKS FOLDER BACKEND
import importlib.util
import json
import os
import pathlib
import sys
import types

import torch

import ouro.torch  # normally PyTorch imports it through the entry point of the installed package; OURO_TORCH_AS names the backend that it stands in for

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
    """The value of call(), or the kind of its failure, which must be the same with both backends."""
    try:
        give(name, call())
    except Exception as e:  # noqa: BLE001
        given[name] = ["fails", type(e).__name__]
        if os.environ.get("ROWS_TRACE"):
            raise


def without_its_init(*packages):
    """For packages whose __init__ needs more than the modules that are used here."""
    for name in packages:
        spec = importlib.util.find_spec(name)
        module = types.ModuleType(name)
        module.__path__ = list(spec.submodule_search_locations)
        sys.modules[name] = module


def stands_in(name, **what):
    """A module with these names, as a stand-in for one that is imported but not used."""
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(what)


def carried():
    """At the end of a group: checks that ouro carried it, if it should."""
    give("carried", ouro.torch.carrier() == backend)


def finish():
    (folder / f"{backend}.{rank}.json").write_text(json.dumps(given))
