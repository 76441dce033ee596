"""Which changes of a source are tried, and that the same seed tries the same ones."""

from pathlib import Path

import pytest

from tools.mutants import choose, mutants_of

SOURCE = """\
def f(a, b):
    if a < b and not b:
        log(a)
    return max(a + 1, 2 * b)  # größer < kleiner
"""


def test_every_kind_of_change_stands_where_it_was_found() -> None:
    found = mutants_of(Path("f.py"), SOURCE)
    assert [(each.line, each.before, each.text) for each in found] == [
        (2, "a < b and not b", "(not (a < b and (not b)))"),
        (2, "<", "<="),
        (2, "and", "or"),
        (3, "log(a)", "pass"),
        (4, "max", "min"),
        (4, "+", "-"),
        (4, "1", "2"),
        (4, "2", "3"),
        (4, "*", "/"),
    ]
    raw = SOURCE.encode()
    assert all(raw[each.start : each.end].decode() == each.before for each in found)


@pytest.mark.thorough
def test_a_seed_chooses_the_same_places_each_time() -> None:
    assert choose(1, 5) == choose(1, 5) != choose(2, 5)
