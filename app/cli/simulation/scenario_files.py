"""Scenario files: read strictly; every complaint names file, line, field and remedy, and all come at once."""

import sys
from functools import partial
from pathlib import Path

from app.base.yaml_lines import Document, read_documents
from app.cli.common.errors import CliError
from app.cli.common.files import STDIO
from app.cli.common.manifest_files import (
    Complaint,
    ManifestErrors,
    complain_to,
    complaint,
)
from app.simulate.scenario.reading import scenario_of
from app.simulate.scenario.scenario import SimulationScenario
from app.simulate.scenario.unusable_files import unusable_files

WHAT = "the scenario"
"""What complaints are about."""


def read_scenario(source: Path) -> SimulationScenario:
    """The scenario of a file, or of stdin (`-`). Raises CliError."""
    file = "stdin" if source == STDIO else str(source)
    complaints: list[Complaint] = []
    documents = list(read_documents(_text(source), complain_to(complaints, file)))
    if complaints:
        raise ManifestErrors(sorted(complaints), what=WHAT)
    # Manifests are many to a file; of two scenarios it would not be clear which one is meant.
    if len(documents) != 1:
        raise CliError(
            f"{file} holds {len(documents) or 'no'} documents; a scenario is exactly one"
        )
    return _validated(file, documents[0], folder_of(source))


def folder_of(source: Path) -> Path:
    """Where a scenario's traces are looked for: next to its file."""
    return Path() if source == STDIO else source.parent


def _validated(file: str, document: Document, folder: Path) -> SimulationScenario:
    # Traces are opened here already: a missing one is a complaint about its field, with a line.
    scenario = scenario_of(document.value, partial(unusable_files, folder=folder))
    if isinstance(scenario, SimulationScenario):
        return scenario
    raise ManifestErrors(
        sorted(complaint(file, document, *each) for each in scenario), what=WHAT
    )


def _text(source: Path) -> str:
    try:
        return (
            sys.stdin.read() if source == STDIO else source.read_text(encoding="utf-8")
        )
    except OSError as error:
        raise CliError(f"cannot read {source}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CliError(
            f"{source} is not UTF-8 text: {error.reason} at byte {error.start}"
        ) from error
