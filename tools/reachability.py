"""Source lines that no command reaches: modules that nothing loads, and definitions that nothing names.

Modules are followed from the entry points through imports and names in strings. A definition counts as used where any
file but a test mentions its name, so a few unused ones with common names stay undetected; none is reported wrongly
unless its name is put together at run time.
"""

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from tools.imports import loaded_by, modules, reachable
from tools.measures import Finding
from tools.sources import (
    ROOT,
    Definition,
    line_count,
    nodes_of,
    python_files,
    string_statements,
    tree_of,
)

FACTORY = "app.serve.api_process:app_from_environment"
"""What `uvicorn --factory` starts; the documentation names it, no file does."""

# Decorators that change a definition; any other one hands it to somebody who calls it, as routes and commands do.
_NOT_REGISTERING = {
    "asynccontextmanager",
    "cache",
    "cached_property",
    "contextmanager",
    "dataclass",
    "final",
    "jit",
    "lru_cache",
    "njit",
    "overload",
    "runtime_checkable",
    "total_ordering",
    "unique",
    "wraps",
}
_PAPER_SPEC = re.compile(r"solvers\.papers\.\w+\.spec")
_WORD = re.compile(r"[A-Za-z_]\w*")
# Names in a string without spaces (`module:name`), and annotations that are written as strings.
_NAMING_STRING = re.compile(r"\S{1,100}|[\w.]+(?:\[.{1,100}\]| \| .{1,100})")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopLevel:
    """A definition of a module, an attribute's docstring included."""

    path: str
    name: str
    first: int
    last: int

    def holds(self, path: str, line: int) -> bool:
        """Whether a line is part of it."""
        return path == self.path and self.first <= line <= self.last


def entry_points() -> tuple[str, ...]:
    """`module:name` of all that is started from outside."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return (*project["scripts"].values(), FACTORY)


@cache
def unreachable() -> tuple[Finding, ...]:
    """Modules and definitions that no command reaches, with their lines as the amount."""
    reached = reached_files()
    lost = [path for path in modules().values() if path not in reached]
    entire = [
        Finding(path=path, line=1, text=f"the module, {lines} lines", amount=lines)
        for path in lost
        for lines in [line_count(path)]
        # A package that holds nothing but its docstring is no source that could be called.
        if lines > 1
    ]
    parts = [
        Finding(
            path=found.path,
            line=found.first,
            text=f"{found.name}, {found.last - found.first + 1} lines",
            amount=found.last - found.first + 1,
        )
        for found in unused_definitions(reached)
    ]
    return (*entire, *parts)


@cache
def reached_files() -> frozenset[str]:
    """The files that the entry points and migrations load, with the packages that hold them."""
    targets = {
        name: {*loaded_by(path), *_parents(name)} for name, path in modules().items()
    }
    starts = {entry.partition(":")[0] for entry in entry_points()}
    # Alembic runs the migrations from their folder, by path.
    for path in python_files("migrations"):
        starts |= loaded_by(path)
    # The registry of policies looks into the folder of papers, and names none.
    starts |= {name for name in modules() if _PAPER_SPEC.fullmatch(name)}
    found = reachable(starts, targets)
    return frozenset(modules()[name] for name in found if name in modules())


def _parents(name: str) -> Iterator[str]:
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def unused_definitions(reached: frozenset[str]) -> list[TopLevel]:
    """Top-level definitions of reached files that nothing names but itself, tests, and what is unused too."""
    mentions = _mentions(reached)
    alive = [each for path in sorted(reached) for each in _definitions(path)]
    dead: list[TopLevel] = []
    # What only an unused definition names is unused as well, so this goes on until nothing more is found.
    while True:
        dead_lines = {
            (each.path, line)
            for each in dead
            for line in range(each.first, each.last + 1)
        }
        newly = [
            each
            for each in alive
            if all(
                each.holds(*mention) or mention in dead_lines
                for mention in mentions[each.name]
            )
        ]
        if not newly:
            return sorted(dead, key=lambda each: (each.path, each.first))
        dead += newly
        alive = [each for each in alive if each not in set(newly)]


def _mentions(reached: frozenset[str]) -> dict[str, set[tuple[str, int]]]:
    """Where every name is mentioned: in files and lines that are no test's."""
    found: dict[str, set[tuple[str, int]]] = defaultdict(set)
    outside = (
        path
        for folder in ("bench", "tools", "migrations")
        for path in python_files(folder)
    )
    for path in (*reached, *outside):
        for name, line in _names_in(path):
            found[name].add((path, line))
    for entry in entry_points():
        found[entry.partition(":")[2]].add(("pyproject.toml", 0))
    return found


def _names_in(path: str) -> Iterator[tuple[str, int]]:
    docstrings = {id(node.value) for node, _ in string_statements(path)}
    for node in nodes_of(path):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute):
            yield node.attr, node.lineno
        elif isinstance(node, ast.ImportFrom):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in docstrings
            and _NAMING_STRING.fullmatch(node.value)
        ):
            yield from ((word, node.lineno) for word in _WORD.findall(node.value))


def _definitions(path: str) -> Iterator[TopLevel]:
    """The definitions of a file that must be used by name."""
    body = tree_of(path).body
    docstrings = {node for node, _ in string_statements(path)}
    for node, following in zip(body, [*body[1:], None], strict=True):
        last = node.end_lineno or node.lineno
        # The string below an attribute is its docstring and goes when it goes.
        if following in docstrings and following is not None:
            last = following.end_lineno or last
        for name in _names_of(node):
            first = min([node.lineno, *_decorator_lines(node)])
            yield TopLevel(path=path, name=name, first=first, last=last)


def _names_of(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, Definition):
        if not any(map(_registers, node.decorator_list)) and node.name[:2] != "__":
            yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            if isinstance(target, ast.Name) and target.id[:2] != "__":
                yield target.id


def _decorator_lines(node: ast.stmt) -> list[int]:
    decorators = node.decorator_list if isinstance(node, Definition) else []
    return [decorator.lineno for decorator in decorators]


def _registers(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    name = called.attr if isinstance(called, ast.Attribute) else ast.unparse(called)
    return name not in _NOT_REGISTERING
