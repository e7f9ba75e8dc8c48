"""Locates the parts of ouro: its library, its headers, its programs.

In an installed wheel they are inside the package. In a source tree they are in the build folder, which OURO_BUILD_DIR
names (default: `build` in the root of the tree). OURO_HOME names a prefix into which CMake installed ouro. These variables
take precedence, so that a tree can be tried together with an installed package.
"""
import functools
import os
import pathlib
import re
import sys

_PACKAGE = pathlib.Path(__file__).resolve().parent
_LIBRARY = "libouro.so.0"
# The library folders of a prefix: where distributions put libraries.
_LIBRARY_FOLDERS = ("lib", f"lib/{getattr(sys.implementation, '_multiarch', '')}", "lib64")


def tree():
    """The root of the source tree that this package is a part of; None for an installed package."""
    root = _PACKAGE.parent.parent.parent
    return root if (root / "api/include/ouro/ouro.hpp").is_file() else None


def _build():
    """The build folder of the tree, or None."""
    if named := os.environ.get("OURO_BUILD_DIR"):
        return pathlib.Path(named).absolute()
    root = tree()
    return root / "build" if root else None


def _prefixes():
    """Folders that are laid out like an installation, in order of preference."""
    if home := os.environ.get("OURO_HOME"):
        yield pathlib.Path(home).absolute()
    if build := _build():
        yield build
    yield _PACKAGE


def _find(what, candidates):
    tried = []
    for path in candidates:
        if path.exists():
            return path
        tried.append(str(path))
    raise FileNotFoundError(f"ouro: {what} is in none of its places: {', '.join(tried)}. In a source tree, build it "
                            "(cmake --build build --target ouro), or name the build folder in OURO_BUILD_DIR")


@functools.cache
def library():
    """The path of libouro.so.0."""
    return str(_find(_LIBRARY, (p / lib / _LIBRARY for p in _prefixes() for lib in _LIBRARY_FOLDERS)))


@functools.cache
def nccl_library():
    """The path of ouro's libnccl.so.2."""
    return str(_find("libnccl.so.2", (p / lib / "ouro/nccl/libnccl.so.2" for p in _prefixes() for lib in _LIBRARY_FOLDERS)))


def compiled():
    """Folders that have the compiled part, in addition to the package's own: in a source tree, the build folder's."""
    build = _build()
    return [str(build / "python/ouro")] if build else []


def includes():
    """Folders for the compiler's include path, in which `#include <ouro/ouro.hpp>` and its own includes are found."""
    at = pathlib.Path(include())
    # Headers of a tree include status.h and types.h relative to its root; installed headers are in one place.
    return [str(at)] if (at / "ouro/runtime").is_dir() else [str(at), str(at.parent.parent)]


@functools.cache
def include():
    """The folder that contains ouro/*.hpp. Programs in a source tree also need the tree's root: see includes()."""
    def places():
        if home := os.environ.get("OURO_HOME"):
            yield pathlib.Path(home).absolute() / "include"
        if root := tree():
            yield root / "api/include"
        yield _PACKAGE / "include"
    at = _find("ouro/ouro.hpp", (p / "ouro/ouro.hpp" for p in places()))
    return str(at.parent.parent)


@functools.cache
def program(name):
    """The path of one of ouro's programs, such as "ouro-run"."""
    return str(_find(name, (p / "bin" / name for p in _prefixes())))


@functools.cache
def version():
    """The version of ouro, "0.1.0", from the tree or the package, without loading the library."""
    if root := tree():
        return re.search(r"project\(ouro VERSION ([\d.]+)", (root / "CMakeLists.txt").read_text())[1]
    return (_PACKAGE / "VERSION").read_text().strip()
