"""The project's Python files, each read and parsed once; paths are strings relative to the project's root."""

import ast
import os
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("app", "agents", "solvers")
"""What is installed; `bench`, `tests`, `tools` and `migrations` surround it."""

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def python_files(folder: str) -> tuple[str, ...]:
    """All Python files below a folder, sorted; it may lie elsewhere."""
    found = (ROOT / folder).rglob("*.py")
    return tuple(sorted(os.path.relpath(path, ROOT) for path in found))


@cache
def text_of(path: str) -> str:
    """The content of one file."""
    return (ROOT / path).read_text(encoding="utf-8")


@cache
def tree_of(path: str) -> ast.Module:
    """The syntax tree of one file."""
    return ast.parse(text_of(path))


@cache
def nodes_of(path: str) -> tuple[ast.AST, ...]:
    """All nodes of one file's syntax tree: walking it takes longer than parsing, and many measures ask."""
    return tuple(ast.walk(tree_of(path)))


def line_count(path: str) -> int:
    """The number of physical lines of one file."""
    return text_of(path).count("\n")


@cache
def string_statements(path: str) -> tuple[tuple[ast.Expr, str], ...]:
    """Docstrings of modules, classes and functions, and those below attributes: statements that are one string."""
    return tuple(
        (node, node.value.value)
        for node in nodes_of(path)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def is_within(path: str, folder: str) -> bool:
    """Whether a file or folder is the given folder or lies below it."""
    return path == folder or path.startswith(folder + "/")
