"""What differs between an object as it is and as a manifest wants it, field by field. Pure functions."""

from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import BaseModel

from app.cli.yaml_lines import FieldPath, dotted

SERVER_SET = {"generation", "created_at"}
"""Metadata that the server writes."""

LONGEST_LIST = 12
"""Longer lists, such as the rows of a profile, are summed up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldChange:
    """One field that differs; None = not set."""

    field: str
    before: object
    after: object


def field_changes(before: BaseModel | None, after: BaseModel) -> tuple[FieldChange, ...]:
    """The fields that differ, in the manifest's order; without `before`, every field that has a value."""
    old = {} if before is None else _fields(before)
    new = _fields(after)
    return tuple(
        FieldChange(field=dotted(path), before=old.get(path), after=new.get(path))
        for path in dict.fromkeys([*new, *old])
        if old.get(path) != new.get(path)
    )


def _fields(manifest: BaseModel) -> dict[FieldPath, object]:
    """Every leaf of metadata and spec by its path, with defaults filled in."""
    document = manifest.model_dump(include={"metadata": {"labels", "annotations", "project"}, "spec": True})
    return dict(_leaves(document, ()))


def _leaves(value: object, path: FieldPath) -> Iterator[tuple[FieldPath, object]]:
    if isinstance(value, dict):
        for key, entry in value.items():
            yield from _leaves(entry, (*path, str(key)))
    elif isinstance(value, list) and value and all(isinstance(entry, dict) for entry in value):
        for index, entry in enumerate(value):
            yield from _leaves(entry, (*path, index))
    else:
        yield path, value


def shown(value: object) -> str:
    """A value in a line of a diff."""
    if value is None or value == []:
        return "none"
    if isinstance(value, list):
        if len(value) > LONGEST_LIST:
            return f"{len(value)} entries"
        return ", ".join(map(shown, value))
    if isinstance(value, float):
        return f"{value:g}" if value == float(f"{value:g}") else repr(value)
    return str(value)
