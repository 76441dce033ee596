"""What all objects that users write have in common: read, replace under a precondition, delete, audit."""

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Generic, TypeAlias, TypeVar

from fastapi import Depends, Header, Query, Response
from pydantic import BaseModel

from agents.base.protocol import DEFAULT_PROJECT
from app.api.http.errors import PreconditionRequired
from app.api.http.pages import PageRequest
from app.api.http.parts import CLUSTER, Context
from app.api.http.views import Page
from app.base.errors import Conflict, InvalidRequest, NotFound, PreconditionFailed
from app.db.base.transaction import Connection, lock_object
from app.db.operations import notes
from app.manifests import objects as manifests
from solvers.types.state import Json

POLICY_NAME = "default"
"""There is one policy object for now; per-project policies would be others."""


LabelSelector: TypeAlias = Annotated[
    str | None,
    Query(
        max_length=1000,
        pattern=r"^[\x20-\x7e]*$",
        description="`name=value`, joined by commas",
    ),
]


def parse_selector(selector: str | None) -> Mapping[str, str]:
    """Labels that are wanted: `tier=web,team=nlp`. Raises InvalidRequest."""
    if not selector:
        return {}
    wanted: dict[str, str] = {}
    for part in selector.split(","):
        name, equals, value = part.partition("=")
        if not equals or not name:
            raise InvalidRequest(
                "`label_selector` must have the form `name=value`, joined by commas"
            )
        wanted[name] = value
    return wanted


OWNER = "plimsoll/kept-by"
"""Annotation of objects that an object of the Kubernetes cluster keeps: nothing else changes them."""


Seen = TypeVar("Seen", bound=BaseModel)
"""The object as the API answers it: manifest and status."""

Written = TypeVar("Written", bound=BaseModel)
"""The manifest as it is written."""

NOT_COMPARED = {"status"}
"""An ETag speaks of what users write; a status changes by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectKind(Generic[Seen, Written]):
    """How objects of one kind are kept."""

    name: str
    """As in manifests, e.g. `GpuType`."""
    load: Callable[[Context, Connection, str], Awaitable[Seen]]
    """Raises NotFound."""
    save: Callable[[Context, Connection, Written], Awaitable[None]]
    remove: Callable[[Context, Connection, str], Awaitable[None]] | None = None
    """None: objects of this kind stay for ever."""
    has_note: bool = True
    """False: the kind's own tables keep everything that a manifest says."""
    noted: frozenset[str] = frozenset()
    """Fields of the specification that only the object's note keeps."""
    notes_labels: bool = False
    """Whether the note keeps the labels, too."""
    created: str = "Created"
    """What the audit calls that one came to be, after the kind's name."""


@dataclass(frozen=True, slots=True)
class Preconditions:
    """Which state of the object the caller saw."""

    match: str | None
    none_match: str | None

    def check(self, present: BaseModel | None) -> None:
        """Raises PreconditionFailed, or PreconditionRequired for a change that names no state."""
        if present is None:
            # A caller that names a state expects an object: creating another one would hide that it was deleted.
            if self.match is not None:
                raise PreconditionFailed(
                    "there is no such object, but If-Match was sent; omit it to create the object"
                )
            return
        tag = etag(present)
        if self.none_match is not None:
            raise PreconditionFailed(f"the object exists already, with ETag {tag}")
        # Without a state two people who edit the same object would silently overwrite each other.
        if self.match is None:
            raise PreconditionRequired(
                f"send If-Match with the ETag that you read (now {tag}), or `*` for any"
            )
        if self.match.strip() != "*" and tag not in [
            part.strip() for part in self.match.split(",")
        ]:
            raise PreconditionFailed(
                f"the object has ETag {tag}, not {self.match}; read it again, then repeat"
            )


async def _preconditions(
    if_match: Annotated[
        str | None,
        Header(
            description="ETag of the version that you read, or `*` for any; needed to replace or delete an object"
        ),
    ] = None,
    if_none_match: Annotated[
        str | None,
        Header(pattern=r"^\*$", description="`*`: create only, never replace"),
    ] = None,
) -> Preconditions:
    return Preconditions(if_match, if_none_match)


Conditions = Annotated[Preconditions, Depends(_preconditions)]


def etag(seen: BaseModel) -> str:
    """The generation where the object has one, else a hash of what users write of it."""
    generation = metadata_of(seen).generation
    # The generation grows with every write, so that it is enough and costs no serialization.
    if generation is not None:
        return f'"{generation}"'
    return f'"{hashlib.sha256(seen.model_dump_json(exclude=NOT_COMPARED).encode()).hexdigest()[:16]}"'


def check_name(
    name: str, metadata: manifests.Metadata, *, of_project: bool = False
) -> None:
    """Raise InvalidRequest when body and path name different objects, or a project is given where there is none."""
    if metadata.name != name:
        raise InvalidRequest(
            f"is {metadata.name!r}, but the path says {name!r}", field="metadata.name"
        )
    if not of_project and metadata.project != DEFAULT_PROJECT:
        raise InvalidRequest(
            "objects of this kind do not belong to a project; leave it out",
            field="metadata.project",
        )


async def read(
    context: Context, kind: ObjectKind[Seen, Written], name: str, response: Response
) -> Seen:
    """The object, with its ETag on the response. Raises NotFound."""
    async with context.transaction() as connection:
        seen = await _load(context, kind, connection, name)
    response.headers["ETag"] = etag(seen)
    return seen


async def replace(
    context: Context,
    kind: ObjectKind[Seen, Written],
    name: str,
    manifest: Written,
    *,
    conditions: Preconditions,
    response: Response,
) -> Seen:
    """Create the object (201) or replace it (200), and write it in the audit. Raises what `ObjectKind` and `check`
    raise."""
    async with context.transaction() as connection:
        # Before the object is read: between reading and writing no other may change what the ETag is compared with.
        await lock_object(connection, kind.name, name)
        before = await _find(context, kind, connection, name)
        check_owner(context, before, metadata_of(manifest))
        conditions.check(before)
        await kind.save(context, connection, manifest)
        if kind.has_note:
            await notes.save(connection, kind.name, name, _note(kind, manifest))
        after = await _load(context, kind, connection, name)
        # A write that changes nothing leaves no line in the audit, so that applying a file again is quiet.
        if before is None or body_of(before) != body_of(after):
            await context.audit(
                connection,
                f"{kind.name}{kind.created if before is None else 'Changed'}",
                subject(kind.name, name),
                before=None if before is None else body_of(before),
                after=body_of(after),
            )
    response.status_code = 201 if before is None else 200
    response.headers["ETag"] = etag(after)
    return after


async def delete(
    context: Context,
    kind: ObjectKind[Seen, Written],
    name: str,
    conditions: Preconditions,
) -> None:
    """Delete the object and write it in the audit. Raises NotFound and what `check` raises."""
    assert kind.remove is not None
    async with context.transaction() as connection:
        await lock_object(connection, kind.name, name)
        before = await _load(context, kind, connection, name)
        check_owner(context, before)
        conditions.check(before)
        await kind.remove(context, connection, name)
        # Otherwise a new object of the same name would find the old one's annotations.
        await notes.remove(connection, kind.name, name)
        await context.audit(
            connection,
            f"{kind.name}Deleted",
            subject(kind.name, name),
            before=body_of(before),
        )


def check_owner(
    context: Context,
    before: BaseModel | None,
    wanted: manifests.Metadata | None = None,
) -> None:
    """Raise Conflict where the cluster keeps the object, InvalidRequest where a caller says so of one of its own."""
    # Outside of a cluster no object is kept by one, so that what is left of one can be changed.
    if not context.parts.is_in_cluster or context.caller.root == CLUSTER:
        return
    owner = None if before is None else metadata_of(before).annotations.get(OWNER)
    if owner is not None:
        raise Conflict(f"{owner} of the cluster keeps it; change that one, by kubectl")
    if wanted is not None and OWNER in wanted.annotations:
        raise InvalidRequest(
            f"{OWNER} is set for objects that the cluster keeps; leave it out",
            field="metadata.annotations",
        )


def subject(kind: str, name: str) -> str:
    """What the audit calls an object, e.g. `gpu_type/T4`."""
    return (
        "".join(
            f"_{letter.lower()}" if letter.isupper() else letter for letter in kind
        ).lstrip("_")
        + f"/{name}"
    )


def body_of(seen: BaseModel) -> Json:
    """What users write of an object, for the audit."""
    document: Json = seen.model_dump(mode="json", exclude=NOT_COMPARED)
    return document


def _name_of(manifest: BaseModel) -> str:
    return metadata_of(manifest).name


async def list_page(
    kind: ObjectKind[Seen, Written],
    connection: Connection,
    paging: PageRequest,
    seen: Sequence[Seen],
) -> Page[Seen]:
    """A page of objects, ordered by name."""
    # One query for the notes of the page, not one per object.
    views = await with_notes(kind, connection, seen)
    return paging.page(views, view=lambda view: view, key=_name_of)


async def with_notes(
    kind: ObjectKind[Seen, Written],
    connection: Connection,
    seen: Sequence[Seen],
    key: Callable[[Seen], str] = _name_of,
) -> list[Seen]:
    """The objects with what only their notes keep."""
    if not kind.has_note:
        return list(seen)
    found = await notes.load(connection, kind.name, [key(entry) for entry in seen])
    return [_with_note(kind, entry, found.get(key(entry))) for entry in seen]


def metadata_of(manifest: BaseModel) -> manifests.Metadata:
    """The metadata that every manifest has."""
    metadata = getattr(manifest, "metadata", None)
    assert isinstance(metadata, manifests.Metadata)
    return metadata


async def _load(
    context: Context, kind: ObjectKind[Seen, Written], connection: Connection, name: str
) -> Seen:
    seen = await kind.load(context, connection, name)
    return (await with_notes(kind, connection, [seen], lambda _: name))[0]


def _note(kind: ObjectKind[Seen, Written], manifest: Written) -> notes.ObjectNote:
    metadata = metadata_of(manifest)
    spec = (
        manifest.model_dump(mode="json", include={"spec": set(kind.noted)}).get(
            "spec", {}
        )
        if kind.noted
        else {}
    )
    return notes.ObjectNote(
        labels=metadata.labels if kind.notes_labels else {},
        annotations=metadata.annotations,
        spec=spec,
    )


def _with_note(
    kind: ObjectKind[Seen, Written], seen: Seen, note: notes.ObjectNote | None
) -> Seen:
    # Objects that were not written through the API, such as those of the catalogue, have none.
    if note is None:
        return seen
    said = {
        "annotations": dict(note.annotations),
        **({"labels": dict(note.labels)} if kind.notes_labels else {}),
    }
    update: dict[str, object] = {"metadata": metadata_of(seen).model_copy(update=said)}
    spec = getattr(seen, "spec", None)
    if kind.noted and isinstance(spec, BaseModel):
        update["spec"] = spec.model_copy(
            update={name: note.spec.get(name) for name in kind.noted & note.spec.keys()}
        )
    return seen.model_copy(update=update)


async def _find(
    context: Context, kind: ObjectKind[Seen, Written], connection: Connection, name: str
) -> Seen | None:
    try:
        return await _load(context, kind, connection, name)
    except NotFound:
        return None
