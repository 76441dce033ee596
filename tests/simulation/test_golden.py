"""Small scenarios give what they gave when their results were last looked at (`tests/simulation/golden.py`)."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.simulation.golden import FOLDER, NAMES, path_of, summary

IN_MAKE_TEST = ("steady", "spike", "governor", "tasks")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in IN_MAKE_TEST else pytest.mark.thorough)
        for name in NAMES
    ],
)
def test_a_small_scenario_gives_what_it_gave(name: str) -> None:
    kept, found = (
        dict(leaves(json.loads(path_of(name).read_text()))),
        dict(leaves(summary(name))),
    )
    # Figures that are new since are not judged before they are kept.
    now = {place: found.get(place) for place in kept}
    changed = {
        place: (value, now[place])
        for place, value in kept.items()
        if not is_same(value, now[place])
    }
    assert changed == {}, (
        "(kept, now); if this is meant, renew with: .venv/bin/python -m tests.simulation.golden"
    )


def test_no_results_are_kept_of_scenarios_that_are_gone() -> None:
    assert sorted(path.stem for path in FOLDER.iterdir()) == sorted(NAMES)


def leaves(document: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a document with its place."""
    if isinstance(document, dict | list):
        entries = (
            document.items() if isinstance(document, dict) else enumerate(document)
        )
        for key, each in entries:
            yield from leaves(each, f"{place}/{key}")
    else:
        yield place, document


def is_same(kept: Any, found: Any) -> bool:
    """Counts and names exactly, other numbers to the digits that are kept."""
    return bool(
        found == (pytest.approx(kept, rel=1.5e-5) if isinstance(kept, float) else kept)
    )
