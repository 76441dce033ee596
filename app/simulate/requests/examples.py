"""Scenarios that come with the program: those of docs/examples in a checkout, a copy in an installed package."""

from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from app.base.errors import InvalidRequest, no_such
from app.base.yaml_lines import read_documents
from app.simulate.scenario.reading import scenario_of
from app.simulate.scenario.scenario import SimulationScenario
from app.simulate.scenario.unusable_files import unusable_files

CHECKOUT = Path(__file__).resolve().parents[3] / "docs" / "examples"
PACKAGED = Path(__file__).resolve().parent / "_examples"


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One shipped scenario."""

    name: str
    title: str
    """The first line of its file."""
    document: object
    scenario: SimulationScenario


def folder() -> Path:
    """Where they are, with the files that they name."""
    # An installed package has no docs next to it; a checkout has no copy that could be out of date.
    return PACKAGED if PACKAGED.is_dir() else CHECKOUT


@lru_cache(maxsize=1)
def load_examples() -> tuple[Example, ...]:
    """All of them, by name; other manifests of the folder are left aside."""
    found = [_read(file) for file in sorted(folder().glob("*.yaml"))]
    return tuple(example for example in found if example is not None)


def find_example(name: str) -> Example:
    """One of them. Raises InvalidRequest, which names all."""
    known = {example.name: example for example in load_examples()}
    if name not in known:
        raise InvalidRequest(
            no_such("shipped scenario", name, list(known)), field="example"
        )
    return known[name]


def _read(file: Path) -> Example | None:
    text = file.read_text(encoding="utf-8")
    documents = list(read_documents(text, _ignore))
    value = documents[0].value if len(documents) == 1 else None
    if not isinstance(value, dict) or value.get("kind") != "Scenario":
        return None
    # A shipped example that does not pass is a fault of this package, never of a user.
    scenario = scenario_of(value, partial(unusable_files, folder=file.parent))
    assert isinstance(scenario, SimulationScenario), f"{file}: {scenario}"
    return Example(
        name=file.stem,
        title=_title(text),
        document=value,
        scenario=scenario,
    )


def _title(text: str) -> str:
    """`# What it shows, and so on:` without the sign and what follows the first sentence."""
    first = text.partition("\n")[0].removeprefix("#").strip()
    return first.rstrip(":")


def _ignore(_line: int, _field: str, _problem: str) -> None:
    """Other manifests of the folder are judged by those whom they are for."""
