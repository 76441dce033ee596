"""How kernels are compiled: once per installation, and again when the source of any kernel of their folder changes.

numba keeps machine code on disk by function and looks only at the function's own file to tell whether it is stale. A
kernel contains the machine code of those that it calls in other files, so an upgraded installation could run old code.
Here every kernel's entry carries one stamp: a digest of all sources that kernels are made of.

Numba puts its cache where it finds room: the directory NUMBA_CACHE_DIR, else next to the source, else the user's cache
directory. Where none can be written, kernels are compiled again by each process.
"""

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import ParamSpec, TypeVar

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile

P = ParamSpec("P")
R = TypeVar("R")


def digest(sources: Iterable[Path]) -> str:
    """One hexadecimal stamp of the names and contents of files; their order does not matter."""
    stamp = hashlib.sha256()
    for source in sorted(sources):
        stamp.update(
            f"{source.name}\0".encode() + hashlib.sha256(source.read_bytes()).digest()
        )
    return stamp.hexdigest()


class KernelCache(FunctionCache):  # type: ignore[misc]
    """numba's cache of one function, fresh as long as the stamp is the same."""

    def __init__(self, function: Callable[..., object], stamp: str) -> None:
        super().__init__(function)
        # By name too: an index of other kernels may not even be readable, since it holds their classes.
        self._cache_file = IndexDataCacheFile(
            self.cache_path, f"{self._impl.filename_base}-{stamp[:16]}", stamp
        )


def compiler(sources: Iterable[Path]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator for the kernels in these files: their functions as machine code without the interpreter's lock."""
    stamp = digest(sources)

    def compiled(function: Callable[P, R]) -> Callable[P, R]:
        kernel: Callable[P, R] = numba.njit(nogil=True, error_model="numpy")(function)
        try:
            kernel._cache = KernelCache(function, stamp)  # type: ignore[attr-defined]
        except RuntimeError:
            # numba found no directory to write to.
            return kernel
        return kernel

    return compiled
