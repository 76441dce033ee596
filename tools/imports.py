"""Who imports whom among the project's files: circles, and arrows between folders that run both ways."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import PurePosixPath

from tools.sources import PACKAGES, is_within, nodes_of, python_files

Arrow = tuple[str, str]
"""An importing file and an imported file, or an importing folder and an imported folder."""

# A module in full, or one with the name of a definition, or the beginning of an f-string that ends with a dot.
_DOTTED = re.compile(r"[a-z_]\w*(?:\.[a-z_]\w*)+(?::\w+)?\.?")


@cache
def modules() -> Mapping[str, str]:
    """The files of the installed packages by module name."""
    return {
        module_of(path): path for package in PACKAGES for path in python_files(package)
    }


def module_of(path: str) -> str:
    """The dotted name of a file's module."""
    parts = PurePosixPath(path).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imported_by(path: str) -> frozenset[str]:
    """The modules of ours that a file imports, or whose full name it holds in a string as registries do."""
    found: set[str] = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.update(_imported_from(path, node))
    # Full names only: a name that is put together is how a registry avoids an arrow upwards.
    found.update(name.rstrip(".").partition(":")[0] for name in _dotted_strings(path))
    return frozenset(found & modules().keys())


def _imported_from(path: str, node: ast.ImportFrom) -> Iterator[str]:
    """The names after `import` as modules where they are modules, else the module that they are taken from."""
    base = node.module or ""
    if node.level:
        base = ".".join([*path.split("/")[: -node.level], *filter(None, [base])])
    for alias in node.names:
        full = f"{base}.{alias.name}"
        yield full if full in modules() else base


@cache
def loaded_by(path: str) -> frozenset[str]:
    """What a file imports, and what it loads by a name that is put together or relative.

    Relative is `start.up:up` in the table of commands. Put together are a package's name and, from another string of
    the file, a module's; `python -m` adds `__main__` to a package by itself.
    """
    imported = imported_by(path)
    folder = ".".join(path.split("/")[:-1])
    relative = {
        f"{folder}.{name.partition(':')[0]}"
        for name in _dotted_strings(path)
        if ":" in name
    }
    named = {name.rstrip(".") for name in _dotted_strings(path)} & imported
    composed = {
        f"{package}.{name}"
        for package in named
        for name in {*strings_of(path), "__main__"}
    }
    return imported | ((relative | composed) & modules().keys())


def _dotted_strings(path: str) -> Iterator[str]:
    return (text for text in strings_of(path) if _DOTTED.fullmatch(text))


@cache
def strings_of(path: str) -> frozenset[str]:
    """All strings of a file, parts of f-strings among them."""
    return frozenset(
        node.value
        for node in nodes_of(path)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


@cache
def arrows() -> frozenset[Arrow]:
    """Imports between files. A package's own `__init__` hands nothing on, so none leads there."""
    return frozenset(
        (path, modules()[name])
        for path in modules().values()
        for name in imported_by(path)
        if modules()[name] != path and not modules()[name].endswith("/__init__.py")
    )


def circles(found: Iterable[Arrow]) -> list[tuple[str, ...]]:
    """Groups of files that import each other in a circle, each sorted."""
    targets = defaultdict(set)
    for start, end in found:
        targets[start].add(end)
    _drop_ends(targets)
    reach = {start: reachable({start}, targets) for start in targets}
    groups = {
        tuple(sorted(other for other in reach[start] if start in reach.get(other, ())))
        for start in reach
    }
    return sorted(group for group in groups if len(group) > 1)


def _drop_ends(targets: dict[str, set[str]]) -> None:
    """Remove files that lead nowhere until none is left: in a tree without circles, all of them."""
    # Without this, the reach of every file would be followed, although there is hardly ever a circle.
    while ends := {end for each in targets.values() for end in each} - targets.keys():
        for each in targets.values():
            each -= ends
        for start in [start for start, each in targets.items() if not each]:
            del targets[start]


def reachable(starts: Iterable[str], targets: Mapping[str, Iterable[str]]) -> set[str]:
    """The starts and everything that arrows lead to from them."""
    found: set[str] = set()
    waiting = list(starts)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting.extend(targets.get(node, ()))
    return found


def two_way_arrows(found: Iterable[Arrow]) -> dict[Arrow, tuple[list[Arrow], ...]]:
    """Pairs of folders that import each other, at every level, with the imports in either direction.

    A folder's own files, written `folder/.`, may import its subfolders, but not be imported by them.
    """
    between: dict[Arrow, list[Arrow]] = defaultdict(list)
    for start, end in sorted(found):
        for pair in _folder_pairs(start, end):
            between[pair].append((start, end))
    return {
        (a, b): (between[a, b], between[b, a])
        for a, b in sorted(between)
        if a < b and (b, a) in between
    }


def _folder_pairs(start: str, end: str) -> Iterator[Arrow]:
    """The folders between which one import is an arrow."""
    for a in _folders(start):
        for b in _folders(end):
            if not is_within(a, b) and not is_within(b, a):
                yield a, b
    own_start, own_end = _folders(start)[0], _folders(end)[0]
    # Of folders within each other only the outer one's own files are compared with the inner one.
    for a in _folders(start):
        if a != own_end and is_within(a, own_end):
            yield a, f"{own_end}/."
    for b in _folders(end):
        if b != own_start and is_within(b, own_start):
            yield f"{own_start}/.", b


@cache
def _folders(path: str) -> tuple[str, ...]:
    """All folders that hold a file, the innermost first."""
    parents = PurePosixPath(path).parents
    return tuple(parent.as_posix() for parent in parents if parent.name)
