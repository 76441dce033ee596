"""What manifests would change: compare them with what the control plane has, show it, carry it out."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus

from pydantic import ValidationError

from app.cli.common.client import Api, Document, Query, documents, number, text
from app.cli.common.errors import ApiProblem, CliError, FieldFault
from app.cli.common.kinds import find_kind
from app.cli.common.manifest_files import (
    KINDS,
    AnyManifest,
    Complaint,
    FileManifest,
    ManifestErrors,
    pointer_path,
)
from app.cli.common.output import (
    FAINT,
    GOOD,
    WARN,
    ColouredCell,
    amount,
    bad,
    good,
    show_line,
    warn,
)
from app.cli.objects.show.differ import FieldChange, field_changes, given_fields, shown
from app.manifests.objects import ProfileManifest

API_PREFIX = "/api/v1/"


class Action(StrEnum):
    """What applying a manifest does."""

    CREATE = "create"
    CHANGE = "change"
    KEEP = "unchanged"


SIGNS = {
    Action.CREATE: ("+", GOOD),
    Action.CHANGE: ("~", WARN),
    Action.KEEP: ("=", FAINT),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyStep:
    """One manifest and what applying it does."""

    entry: FileManifest
    action: Action
    changes: tuple[FieldChange, ...]
    etag: str | None
    """State of the object that the changes are against."""
    measured_rps: float | None = None
    """What arrives at a service that is there already."""


def compare(api: Api, entries: Sequence[FileManifest]) -> tuple[ApplyStep, ...]:
    """What applying each manifest does, given what the control plane has now."""
    return tuple(_compare(api, entry) for entry in entries)


def show(steps: Sequence[ApplyStep]) -> None:
    """Print what would be done, field by field."""
    for step in steps:
        sign, style = SIGNS[step.action]
        show_line(
            ColouredCell(
                text=f"{sign} {step.entry.kind} {step.entry.name}", style=style
            ),
            f"  {step.action}",
        )
        for change in step.changes:
            is_new = step.action is Action.CREATE
            show_line(
                "    ",
                f"{change.field}: {shown(change.after)}" if is_new else str(change),
            )
    counts = {action: sum(step.action is action for step in steps) for action in Action}
    show_line(
        f"{counts[Action.CREATE]} to create, {counts[Action.CHANGE]} to change, {counts[Action.KEEP]} unchanged."
    )


def show_unserved(preview: Document) -> None:
    """Print which services a preview leaves without all of their requests, and why."""
    for entry in documents(preview, "document.unserved"):
        rate = amount(number(entry, "rate_rps"))
        show_line(
            bad(
                f"  {text(entry, 'service')}: {rate} rps would stay unserved ({text(entry, 'reason')})"
            )
        )


def check(api: Api, steps: Sequence[ApplyStep], *, force: bool) -> None:
    """Let the control plane go through the writing and take it back. Raises CliError as `carry_out` does."""
    _send(api, steps, {"dry_run": "true", **_forced(force)})


def carry_out(api: Api, steps: Sequence[ApplyStep], *, force: bool) -> None:
    """Write what is to be created or changed, all of it or nothing. Raises CliError."""
    answers = _send(api, steps, _forced(force))
    for step, answer in zip(_todo(steps), answers, strict=True):
        verb = "created" if step.action is Action.CREATE else "changed"
        show_line(good(f"{step.entry.kind} {step.entry.name} {verb}"))
        # A webhook's: the control plane keeps it, and never sends it again.
        if secret := text(answer, "status.secret"):
            show_line(warn(f"  its secret, shown this once: {secret}"))
        # An older control plane ignores fields that it does not know; silence would look like success.
        for field in _not_kept(step.entry, answer):
            show_line(warn(f"  the control plane does not keep {field}"))


def written_services(steps: Sequence[ApplyStep]) -> list[str]:
    """Names of the services that are created or changed."""
    return [step.entry.name for step in _todo(steps) if step.entry.kind == "Service"]


def object_path(manifest: AnyManifest) -> str:
    """Where an object lies; profiles are known by their network and GPU type, not by their name."""
    kind = find_kind(manifest.kind)
    # A profile's name is free; the control plane keeps one for each pair.
    if isinstance(manifest, ProfileManifest):
        return kind.one(f"{manifest.spec.network}/{manifest.spec.gpu_type}")
    return kind.one(manifest.metadata.name)


def _compare(api: Api, entry: FileManifest) -> ApplyStep:
    found = api.find(object_path(entry.manifest))
    if found is None:
        return ApplyStep(
            entry=entry,
            action=Action.CREATE,
            changes=given_fields(entry.manifest),
            etag=None,
        )
    present, etag = found
    changes = field_changes(_as_manifest(entry, present), entry.manifest)
    return ApplyStep(
        entry=entry,
        action=Action.CHANGE if changes else Action.KEEP,
        changes=changes,
        etag=etag,
        measured_rps=number(present, "status.reading.arrival_rate_rps"),
    )


def _as_manifest(entry: FileManifest, answer: Document) -> AnyManifest:
    try:
        return KINDS[entry.kind].model_validate(
            # The status is the server's, and no part of a manifest.
            {key: value for key, value in answer.items() if key != "status"}
        )
    except ValidationError as error:
        raise CliError(
            f"cannot read the control plane's {entry.kind} {entry.name}: {error.errors()[0]['msg']}",
            hint="`plimsoll version` shows whether program and control plane are of the same version",
        ) from error


def _todo(steps: Sequence[ApplyStep]) -> list[ApplyStep]:
    return [step for step in steps if step.action is not Action.KEEP]


def _forced(force: bool) -> dict[str, str]:
    return {"force": "true"} if force else {}


def _send(api: Api, steps: Sequence[ApplyStep], query: Query) -> list[Document]:
    """The objects as they are after it, in the order of the steps."""
    todo = _todo(steps)
    if not todo:
        return []
    places: dict[str, list[ApplyStep]] = {}
    for step in todo:
        places.setdefault(_list_of(step), []).append(step)
    body = _bundle(places)
    try:
        answer = api.post(f"{API_PREFIX}apply", body, query=query)
    except ApiProblem as problem:
        raise _located(problem, places) from problem
    return [
        found
        for entry in documents(answer, "objects")
        if isinstance(found := entry.get("object"), dict)
    ]


def _bundle(places: Mapping[str, Sequence[ApplyStep]]) -> Document:
    bundle: Document = {
        name: [body_of(step.entry.manifest) for step in of_kind]
        for name, of_kind in places.items()
    }
    # Whatever has none must be new: somebody may have created it since.
    bundle["etags"] = {
        object_path(step.entry.manifest).removeprefix(API_PREFIX): step.etag
        for of_kind in places.values()
        for step in of_kind
        if step.etag is not None
    }
    return bundle


def _list_of(step: ApplyStep) -> str:
    """Where the API takes such objects: `gpu_types`."""
    return find_kind(step.entry.kind).path.replace("-", "_")


def body_of(manifest: AnyManifest) -> Document:
    """What is sent of a manifest."""
    return manifest.model_dump(
        # The server counts generations: a manifest that states one would never be equal to the object.
        mode="json",
        exclude={"metadata": {"generation", "created_at"}},
    )


def _not_kept(entry: FileManifest, answer: Document) -> Iterator[str]:
    """Fields that the user wrote and that the answer lacks."""
    return (
        change.field
        for change in field_changes(_as_manifest(entry, answer), entry.manifest)
    )


def _located(
    problem: ApiProblem, places: Mapping[str, Sequence[ApplyStep]]
) -> CliError:
    """The API's complaint with file and line, in the words of this command."""
    hint = problem.hint
    if any(field.may_force for field in problem.fields):
        hint = "`plimsoll apply --force` accepts it anyway"
    elif problem.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        hint = "apply fewer files at once"
    complaints = [_complaint(field, places) for field in problem.fields]
    known = [complaint for complaint in complaints if complaint is not None]
    # One that is about no object's field: the text of the problem has it.
    if not known or len(known) < len(complaints):
        problem.hint = hint
        return problem
    error = ManifestErrors(known)
    error.hint = hint
    return error


def _complaint(
    field: FieldFault, places: Mapping[str, Sequence[ApplyStep]]
) -> Complaint | None:
    """With file and line; the pointer is into the bundle, as `/services/0/spec/slo`."""
    name, index, *rest = (*pointer_path(field.place), "", "")
    steps = places.get(str(name), ())
    if not isinstance(index, int) or index >= len(steps):
        return None
    path = tuple(part for part in rest if part != "")
    return steps[index].entry.complaint(path, field.detail)
