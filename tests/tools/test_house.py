"""The measures on small files whose figures can be counted by hand, and arrows between invented files."""

from pathlib import Path

import pytest

from tools.imports import circles, imported_by, loaded_by, two_way_arrows
from tools.measures import (
    FileMeasures,
    is_unwanted_name,
    is_unwanted_prose,
    measure_file,
)


def measured(folder: Path, text: str) -> FileMeasures:
    path = folder / "example.py"
    path.write_text(text)
    return measure_file(str(path))


def test_docstrings_and_comments_are_no_code(tmp_path: Path) -> None:
    found = measured(
        tmp_path,
        '"""A module."""\n\n# Why.\nLIMIT = 3  # Of what.\n"""Of a thing."""\n'
        "import os  # noqa: F401\n"
        'x = f"{1 + 1} {x!r:>{3}}"\ny = """a\nb\n"""\n',
    )
    # LIMIT = 3, import os, and two assignments of strings, one of them over three lines.
    assert (found.tokens, found.code_lines, found.comments) == (11, 6, 2)
    assert [each.line for each in found.of_docstrings] == [5]


NESTED = """\
class Outer:
    def method(self, a, b, /, c, *rest, d):
        if a:
            for each in b:
                with each:
                    try:
                        pass
                    except ValueError:
                        pass

    @staticmethod
    def chain(a, by_name: Annotated[int, Option()]):
        if a:
            pass
        elif a > 1:
            pass
        elif a > 2:
            pass
        else:
            if a > 3:
                def inner():
                    while a: pass
"""


def test_functions_are_measured_with_their_nesting_and_parameters(
    tmp_path: Path,
) -> None:
    found = measured(tmp_path, NESTED).functions
    assert [(each.name, each.depth, each.positional) for each in found] == [
        ("Outer.method", 4, 3),
        ("Outer.chain", 2, 1),
        ("Outer.chain.inner", 1, 0),
    ]
    # def inner ( ) : while a : pass
    assert found[2].tokens == 9


@pytest.mark.parametrize(
    ("name", "is_unwanted"),
    [
        ("let_go", True),
        ("StandIn", True),
        ("standin_gpus", True),
        ("whole_gpu", True),
        ("most_gpus", True),
        ("at_most", False),
        ("GPUPoll", False),
        ("accompany", False),
    ],
)
def test_names_are_read_word_by_word(name: str, is_unwanted: bool) -> None:
    assert is_unwanted_name(name) is is_unwanted


@pytest.mark.parametrize(
    ("text", "is_unwanted"),
    [
        ("# Nobody asks for it.", True),
        ("It runs beside the loop, as so\n    many do.", True),
        ("Besides, somebody asks again.", False),
        ("Most systems give it to `nobody`.", False),
        ('f"there is room for {beside}"', False),
        ('"nobody"', False),
    ],
)
def test_prose_is_read_without_the_names_in_it(text: str, is_unwanted: bool) -> None:
    assert is_unwanted_prose(text) is is_unwanted


def test_circles_are_found_among_arrows_that_lead_out_of_them() -> None:
    found = {("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("e", "a")}
    assert circles(found) == [("a", "b", "c")]
    assert circles(found - {("c", "a")}) == []


def test_folders_that_import_each_other_are_found_at_every_level() -> None:
    found = [("app/x/deep/a.py", "app/y/b.py"), ("app/y/c.py", "app/x/d.py")]
    assert list(two_way_arrows(found)) == [("app/x", "app/y")]
    assert two_way_arrows(found[:1]) == {}


def test_a_folders_own_files_may_import_its_subfolders_only() -> None:
    down = ("app/x/a.py", "app/x/deep/b.py")
    up = ("app/x/deep/c.py", "app/x/d.py")
    assert two_way_arrows([down]) == two_way_arrows([up]) == {}
    assert list(two_way_arrows([down, up])) == [("app/x/.", "app/x/deep")]


def test_modules_named_in_strings_are_loaded() -> None:
    assert "app.cli.start.up" in loaded_by("app/cli/commands.py")
    assert "solvers.joint.policy" in loaded_by("solvers/joint/spec.py")
    techniques = "solvers/predict/data/techniques.py"
    assert "solvers.predict.latency.throttling" in loaded_by(techniques)
    assert "solvers.predict.latency.throttling" not in imported_by(techniques)
