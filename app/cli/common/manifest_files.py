"""Manifests from files: multi-document YAML or JSON, read strictly.

Every complaint names file, line, field and remedy; all complaints of all files come at once.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from app.base.yaml_lines import Complain, Document, FieldPath, dotted, read_documents
from app.cli.common.errors import CliError
from app.manifests import budgets as budget_manifests
from app.manifests import objects as manifests
from app.manifests import tasks as task_manifests
from app.manifests import webhooks as webhook_manifests
from app.manifests.validation_hints import remedy, unknown_kind

AnyManifest = (
    manifests.Project
    | manifests.GpuTypeManifest
    | manifests.NodeManifest
    | manifests.Network
    | manifests.ProfileManifest
    | manifests.PolicyManifest
    | manifests.ServiceManifest
    | task_manifests.TaskManifest
    | budget_manifests.BudgetManifest
    | webhook_manifests.Webhook
)
KINDS: Mapping[str, type[AnyManifest]] = {
    "Project": manifests.Project,
    "GpuType": manifests.GpuTypeManifest,
    "Node": manifests.NodeManifest,
    "Network": manifests.Network,
    "Profile": manifests.ProfileManifest,
    "Policy": manifests.PolicyManifest,
    "Service": manifests.ServiceManifest,
    "Task": task_manifests.TaskManifest,
    "Budget": budget_manifests.BudgetManifest,
    "Webhook": webhook_manifests.Webhook,
}
STDIN = Path("-")
SUFFIXES = (".yaml", ".yml", ".json")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Complaint:
    """One thing that is wrong, where it is, and what to write instead."""

    file: str
    line: int
    field: str
    problem: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.field + ': ' if self.field else ''}{self.problem}"


class ManifestErrors(CliError):
    """Manifests, or what else is read like them, that cannot be used; one line for each complaint."""

    def __init__(
        self, complaints: Sequence[Complaint], *, what: str = "the manifests"
    ) -> None:
        lines = [str(complaint) for complaint in complaints]
        title = f"{what} cannot be used:" if len(lines) > 1 else ""
        super().__init__("\n  ".join([title, *lines]) if title else lines[0])
        self.complaints = tuple(complaints)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileManifest:
    """One manifest and where it stands."""

    manifest: AnyManifest
    file: str
    document: Document

    @property
    def kind(self) -> str:
        return self.manifest.kind

    @property
    def name(self) -> str:
        return self.manifest.metadata.name

    def complaint(self, path: FieldPath, problem: str) -> Complaint:
        """A complaint about one of its fields."""
        return complaint(self.file, self.document, path, problem)


def read_manifests(sources: Sequence[Path]) -> tuple[FileManifest, ...]:
    """All manifests of files, folders and stdin (`-`), in the order in which they can be applied.

    Raises ManifestErrors with everything that is wrong, and CliError for what cannot be read.
    """
    found: list[FileManifest] = []
    complaints: list[Complaint] = []
    for file, text in _texts(sources):
        for document in read_documents(text, complain_to(complaints, file)):
            read = _manifest(file, document)
            if isinstance(read, FileManifest):
                found.append(read)
            else:
                complaints += read
    complaints += _repeats(found)
    if complaints:
        # Once, with all of them: the command need not be run again for every line.
        raise ManifestErrors(sorted(complaints))
    if not found:
        names = ("stdin" if source == STDIN else str(source) for source in sources)
        raise CliError(f"there is no manifest in {', '.join(names)}")
    return tuple(
        # A stable sort: within a kind the files' order stays.
        sorted(found, key=lambda entry: manifests.APPLY_ORDER.index(entry.kind))
    )


def complain_to(complaints: list[Complaint], file: str) -> Complain:
    """What reading a file calls for what is not YAML."""

    def complain(line: int, field: str, problem: str) -> None:
        complaints.append(Complaint(file=file, line=line, field=field, problem=problem))

    return complain


def complaint(
    file: str, document: Document, path: FieldPath, problem: str
) -> Complaint:
    """A complaint about a field, or about what should be around it."""
    return Complaint(
        file=file, line=document.line(path), field=dotted(path), problem=problem
    )


def _texts(sources: Sequence[Path]) -> Iterator[tuple[str, str]]:
    """File names and their text."""
    for source in sources:
        if source == STDIN:
            yield "stdin", sys.stdin.read()
            continue
        for path in _files(source):
            try:
                yield str(path), path.read_text(encoding="utf-8")
            except OSError as error:
                raise CliError(f"cannot read {path}: {error.strerror}") from error
            except UnicodeDecodeError as error:
                raise CliError(
                    f"{path} is not UTF-8 text: {error.reason} at byte {error.start}"
                ) from error


def _files(source: Path) -> list[Path]:
    if not source.is_dir():
        return [source]
    # By name, so that the first of two that repeat is the same everywhere.
    found = sorted(
        path for path in source.iterdir() if path.suffix in SUFFIXES and path.is_file()
    )
    if not found:
        raise CliError(
            f"the folder {source} has no file that ends with {', '.join(SUFFIXES)}"
        )
    return found


def _manifest(file: str, document: Document) -> FileManifest | list[Complaint]:
    complain = partial(complaint, file, document)
    if not isinstance(document.value, dict):
        return [
            complain((), "must be an object with apiVersion, kind, metadata and spec")
        ]
    kind = document.value.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        # Without a kind it is unknown which fields there should be.
        return [complain(("kind",), unknown_kind(kind, list(KINDS)))]
    complaints = []
    if "apiVersion" not in document.value:
        # The models have a default, for the API's own bodies; files outlive the version that they were written for.
        complaints.append(
            complain(
                ("apiVersion",), f"this field is missing; write {manifests.API_VERSION}"
            )
        )
    # Only the server writes the status, which `get -o yaml` prints.
    written = {key: value for key, value in document.value.items() if key != "status"}
    try:
        manifest = TypeAdapter[AnyManifest](KINDS[kind]).validate_python(written)
    except ValidationError as error:
        return complaints + [
            complain(entry["loc"], remedy(KINDS[kind], entry["loc"], entry))
            for entry in error.errors()
        ]
    return complaints or FileManifest(manifest=manifest, file=file, document=document)


def _repeats(found: Sequence[FileManifest]) -> Iterator[Complaint]:
    first: dict[tuple[str, str], FileManifest] = {}
    path = ("metadata", "name")
    for entry in found:
        # The later one is complained of, with the place of the first.
        earlier = first.setdefault((entry.kind, entry.name), entry)
        if earlier is not entry:
            place = f"{earlier.file}:{earlier.document.line(path)}"
            yield entry.complaint(
                path,
                f"{entry.kind} {entry.name} is in {place} already; keep one of them",
            )


def pointer_path(pointer: str) -> FieldPath:
    """The path of an RFC 6901 pointer, so that the API's complaints get a line, too."""
    parts = (
        # ~1 first: the other way round ~01 would become a slash.
        part.replace("~1", "/").replace("~0", "~")
        for part in pointer.split("/")[1:]
    )
    return tuple(int(part) if part.isdigit() else part for part in parts)
