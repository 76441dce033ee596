"""What differs between an object as it is and as a manifest wants it, field by field. Pure functions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from app.base.yaml_lines import FieldPath, dotted
from app.cli.common.manifest_files import AnyManifest

MAX_LIST = 12
"""Longer lists, such as the rows of a profile, are summed up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldChange:
    """One field that differs; None = not set."""

    field: str
    before: object
    after: object

    def __str__(self) -> str:
        before, after = self.before, self.after
        if (
            isinstance(before, list)
            and isinstance(after, list)
            and max(len(before), len(after)) > MAX_LIST
        ):
            # Thousands of rows of a profile field by field would hide every other change.
            kept = sum(entry in before for entry in after)
            return f"{self.field}: {len(before)} rows → {len(after)} rows, of which {len(after) - kept} are new"
        return f"{self.field}: {shown(before)} → {shown(after)}"


def field_changes(before: AnyManifest, after: AnyManifest) -> tuple[FieldChange, ...]:
    """The fields that differ, defaults filled in, in the manifest's order."""
    old = _fields(before)
    new = _fields(after)
    return tuple(
        FieldChange(field=dotted(path), before=old.get(path), after=new.get(path))
        # Fields that the manifest leaves out come last: they go back to their defaults.
        for path in dict.fromkeys([*new, *old])
        if old.get(path) != new.get(path)
    )


def given_fields(manifest: AnyManifest) -> tuple[FieldChange, ...]:
    """The fields that a manifest gives itself, without defaults; for an object that is not there yet."""
    fields = _fields(manifest, only_given=True)
    return tuple(
        FieldChange(field=dotted(path), before=None, after=value)
        for path, value in fields.items()
    )


def shown(value: object) -> str:
    """A value in a line of a diff."""
    if value is None or value == []:
        return "none"
    if isinstance(value, list | tuple):
        return (
            f"{len(value)} rows"
            if len(value) > MAX_LIST
            else ", ".join(map(shown, value))
        )
    if isinstance(value, dict):
        return " ".join(map(shown, value.values()))
    if isinstance(value, float):
        # repr only where %g would round the change away.
        return f"{value:g}" if value == float(f"{value:g}") else repr(value)
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _fields(
    manifest: AnyManifest, *, only_given: bool = False
) -> dict[FieldPath, object]:
    """Every leaf that users write, by its path. The name is what objects are compared by; the rest is the server's."""
    metadata = {"labels", "annotations"} | (
        # Other kinds belong to no project; the server writes its default into all of them.
        {"project"} if manifest.kind in ("Service", "Task") else set()
    )
    document = manifest.model_dump(
        include={"metadata": metadata, "spec": True}, exclude_unset=only_given
    )
    return dict(_leaves(document, ()))


def _leaves(value: object, path: FieldPath) -> Iterator[tuple[FieldPath, object]]:
    if isinstance(value, dict):
        for key, entry in value.items():
            yield from _leaves(entry, (*path, str(key)))
    else:
        yield path, _in_order(value) if isinstance(value, list) else value


def _in_order(entries: list[object]) -> Sequence[object]:
    """Rows of figures have no order of their own."""
    return (
        sorted(entries, key=repr)
        if all(isinstance(entry, tuple) for entry in entries)
        else entries
    )
