"""Scenario files: read strictly; every complaint names file, line, field and remedy, and all come at once."""

import sys
from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from app.cli.errors import CliError
from app.cli.files import STDIO
from app.cli.manifest_files import Complaint, ManifestErrors
from app.cli.remedies import remedy
from app.cli.yaml_lines import Document, FieldPath, dotted, read_documents
from app.simulate.names import unknown_names
from app.simulate.scenario import Scenario

_SHAPES = {
    "model_type": "an object with fields of its own",
    "dict_type": "an object with fields of its own",
    "list_type": "a list",
    "too_short": "a list of at least one entry",
    "path_type": "the name of a file",
    "float_parsing": "a number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
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
    return _validated(file, documents[0])


def folder_of(source: Path) -> Path:
    """Where a scenario's traces are looked for: beside its file."""
    return Path() if source == STDIO else source.parent


def _validated(file: str, document: Document) -> Scenario:
    try:
        scenario = Scenario.model_validate(document.value)
    except ValidationError as error:
        found = [(entry["loc"], _remedy(entry)) for entry in error.errors()]
        raise _refusal(file, document, found) from error
    unknown = [(("spec", *path), words) for path, words in unknown_names(scenario)]
    if unknown:
        raise _refusal(file, document, unknown)
    return scenario


def _remedy(error: ErrorDetails) -> str:
    words = remedy(Scenario, error["loc"], error)
    shape = _SHAPES.get(error["type"])
    return words if shape is None else f"must be {shape}, not {words.rpartition(', not ')[2]}"


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
