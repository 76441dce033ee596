"""Functions and files stay small enough to read: 60 lines a function, 400 a file, 500 a test file."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE_FOLDERS = ("app", "solvers", "agents", "migrations", "bench", "tests")
MAX_FUNCTION = 60
MAX_FILE = 400
MAX_TEST_FILE = 500


def python_files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def functions(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (
                f"{path.relative_to(ROOT)}:{node.lineno} {node.name}",
                (node.end_lineno or 0) - node.lineno + 1,
            )


@pytest.mark.parametrize("folder", SOURCE_FOLDERS)
def test_no_function_is_longer_than_the_limit(folder: str) -> None:
    long = [
        entry
        for path in python_files(folder)
        for entry in functions(path)
        if entry[1] > MAX_FUNCTION
    ]
    assert long == []


@pytest.mark.parametrize("folder", SOURCE_FOLDERS)
def test_no_file_is_longer_than_the_limit(folder: str) -> None:
    limit = MAX_TEST_FILE if folder == "tests" else MAX_FILE
    lengths = {
        path.relative_to(ROOT): path.read_text(encoding="utf-8").count("\n")
        for path in python_files(folder)
    }
    assert {path: length for path, length in lengths.items() if length > limit} == {}


@pytest.mark.parametrize("folder", ("solvers", "agents", "app"))
def test_every_module_says_what_it_is_for(folder: str) -> None:
    silent = [
        path.relative_to(ROOT)
        for path in python_files(folder)
        if not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []


@pytest.mark.parametrize("folder", ("solvers", "agents"))
def test_every_public_function_and_class_has_a_docstring(folder: str) -> None:
    bare = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in python_files(folder)
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
    ]
    assert bare == []
