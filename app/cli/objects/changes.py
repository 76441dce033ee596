"""What manifests would change: compare them with what the control plane has, show it, carry it out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pydantic import ValidationError

from agents.base.plurals import counted
from app.cli.common.client import (
    Api,
    ApiProblem,
    Document,
    documents,
    number,
    text,
)
from app.cli.common.errors import CliError
from app.cli.common.kinds import find_kind
from app.cli.common.manifest_files import (
    KINDS,
    AnyManifest,
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
    faint,
    good,
    show_line,
    usd,
    warn,
)
from app.cli.objects.differ import FieldChange, field_changes, given_fields, shown
from app.manifests.objects import ProfileManifest


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


def show_cost(api: Api, steps: Sequence[ApplyStep]) -> None:
    """Print what the new and changed services would cost, as the control plane's own what-if has it."""
    services = [
        step.entry.manifest
        for step in steps
        if step.entry.kind == "Service" and step.action is not Action.KEEP
    ]
    if not services:
        return
    try:
        answer = api.post(
            "/api/v1/plans/preview",
            {"services": [_body(manifest) for manifest in services]},
        )
    except ApiProblem as problem:
        # A viewer may compare but not preview: without the cost the command still works.
        show_line(faint(f"Cost: not known beforehand ({problem.detail})"))
        return
    before = number(answer, "cost_before_usd_per_hour")
    after = number(answer, "cost_usd_per_hour")
    show_line(f"Cost at the present rates: {usd(before, 2)} → {usd(after, 2)} per hour")
    show_unserved(answer)


def show_unserved(preview: Document) -> None:
    """Print which services a preview leaves without all of their requests, and why."""
    for entry in documents(preview, "document.unserved"):
        rate = amount(number(entry, "rate_rps"))
        show_line(
            bad(
                f"  {text(entry, 'service')}: {rate} rps would stay unserved ({text(entry, 'reason')})"
            )
        )


def carry_out(api: Api, steps: Sequence[ApplyStep], *, force: bool) -> None:
    """Write what is to be created or changed, in order. Stops at the first refusal. Raises CliError."""
    # In the order of the manifests' kinds: an object is written after those that it names.
    todo = [step for step in steps if step.action is not Action.KEEP]
    # One by one: the API has no transaction over objects, so that the error says how far it came.
    for done, step in enumerate(todo):
        try:
            answer = _write(api, step, force=force)
        except ApiProblem as problem:
            raise _located(problem, step, done, len(todo)) from problem
        verb = "created" if step.action is Action.CREATE else "changed"
        show_line(good(f"{step.entry.kind} {step.entry.name} {verb}"))
        # A webhook's: the control plane keeps it, and never sends it again.
        if secret := text(answer, "status.secret"):
            show_line(warn(f"  its secret, shown this once: {secret}"))
        # An older control plane ignores fields that it does not know; silence would look like success.
        for field in _not_kept(step.entry, answer):
            show_line(warn(f"  the control plane does not keep {field}"))


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


def _write(api: Api, step: ApplyStep, *, force: bool) -> Document:
    # Services alone have a check that may be forced; others refuse the parameter.
    query = {"force": "true"} if force and step.entry.kind == "Service" else {}
    return api.put(
        object_path(step.entry.manifest),
        _body(step.entry.manifest),
        etag=step.etag,
        query=query,
    )


def _body(manifest: AnyManifest) -> Document:
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


def _located(problem: ApiProblem, step: ApplyStep, done: int, total: int) -> CliError:
    """The API's complaint with file and line, in the words of this command."""
    hints = (
        [f"{done:,} of {counted(total, 'object')} were written before this one"]
        if done
        else []
    )
    if any(field.may_force for field in problem.fields):
        hints.append("`plimsoll apply --force` accepts it all the same")
    fields = [
        step.entry.complaint(pointer_path(field.place), field.detail)
        for field in problem.fields
    ]
    error = (
        ManifestErrors(fields)
        if fields
        else CliError(f"{step.entry.kind} {step.entry.name}: {problem}")
    )
    error.hint = "; ".join(hints) or problem.hint
    return error
