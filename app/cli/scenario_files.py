"""Scenario files: read strictly; every complaint names file, line, field and remedy, and all come at once."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from app.cli.errors import CliError
from app.cli.files import STDIO
from app.cli.manifest_files import Complaint, ManifestErrors
from app.cli.output import count
from app.cli.remedies import remedy
from app.simulate.names import unknown_names
from app.simulate.scenario import Scenario
from app.simulate.scenario_checks import Complaint as ScenarioComplaint
from app.simulate.unusable_files import unusable_files
from app.yaml_lines import Document, FieldPath, dotted, read_documents

_SHAPES = {
    "model_type": "an object with fields of its own",
    "dict_type": "an object with fields of its own",
    "list_type": "a list",
    "path_type": "the name of a file",
    "float_parsing": "a number",
    "float_type": "a number",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "string_type": "text",
}
"""What is wanted, where pydantic says it as only programmers do."""
WHAT = "the scenario"
"""What complaints are about."""


def read_scenario(source: Path) -> Scenario:
    """The scenario of a file, or of stdin (`-`). Raises CliError."""
    file = "stdin" if source == STDIO else str(source)
    complaints: list[Complaint] = []

    def complain(line: int, field: str, problem: str) -> None:
        complaints.append(Complaint(file=file, line=line, field=field, problem=problem))

    documents = list(read_documents(_text(source), complain))
    if complaints:
        raise ManifestErrors(sorted(complaints), what=WHAT)
    if len(documents) != 1:
        raise CliError(f"{file} holds {len(documents) or 'no'} documents; a scenario is one")
    return _validated(file, documents[0], folder_of(source))


def folder_of(source: Path) -> Path:
    """Where a scenario's traces are looked for: beside its file."""
    return Path() if source == STDIO else source.parent


def _validated(file: str, document: Document, folder: Path) -> Scenario:
    try:
        scenario = Scenario.model_validate(document.value)
    except ValidationError as error:
        found = [(entry["loc"], _remedy(entry)) for entry in error.errors()]
        raise _refusal(file, document, found) from error
    found = [(("spec", *path), words) for path, words in _unusable(scenario, folder)]
    if found:
        raise _refusal(file, document, found)
    return scenario


def _unusable(scenario: Scenario, folder: Path) -> Iterator[ScenarioComplaint]:
    yield from unknown_names(scenario)
    yield from unusable_files(scenario, folder)


def _remedy(error: ErrorDetails) -> str:
    if error["type"] in ("too_short", "too_long"):
        return _length(error)
    words = remedy(Scenario, error["loc"], error)
    shape = _SHAPES.get(error["type"])
    return words if shape is None else f"must be {shape}, not {words.rpartition(', not ')[2]}"


def _length(error: ErrorDetails) -> str:
    """Of a list."""
    least, most, found = (error["ctx"].get(name) for name in ("min_length", "max_length", "actual_length"))
    entries = f"at most {most:,} entries" if least is None else "at least " + count(least, "entry", "entries")
    return f"must be a list of {entries}, not of {found:,}"


def _refusal(file: str, document: Document, found: Iterable[tuple[FieldPath, str]]) -> ManifestErrors:
    return ManifestErrors(sorted(_complaint(file, document, path, words) for path, words in found), what=WHAT)


def _complaint(file: str, document: Document, path: FieldPath, problem: str) -> Complaint:
    return Complaint(file=file, line=document.line(path), field=dotted(path), problem=problem)


def _text(source: Path) -> str:
    try:
        return sys.stdin.read() if source == STDIO else source.read_text(encoding="utf-8")
    except OSError as error:
        raise CliError(f"cannot read {source}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CliError(f"{source} is not UTF-8 text: {error.reason} at byte {error.start}") from error
