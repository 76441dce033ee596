"""The operator's policy: versioned settings of the control loop, and the memory of policies."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any

from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.base.errors import PreconditionFailed
from app.db.base.tables import AnyRow, cluster, policy, policy_memory
from app.db.base.upsert import upsert
from app.store.store import PolicyGroup, PolicySettings
from solvers.types.state import Json, Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRow:
    """One version of the settings."""

    settings: PolicySettings
    created_at: datetime
    created_by: str


async def load_current(connection: AsyncConnection) -> PolicySettings:
    """The settings in force; the defaults as long as none were saved."""
    found = await list_rows(connection, limit=1)
    return found[0].settings if found else PolicySettings()


async def load_window_s(connection: AsyncConnection) -> float:
    """Length of the loop's windows: all that each group of observations asks of the settings."""
    newest = select(policy.c.window_s).order_by(policy.c.version.desc()).limit(1)
    window_s = (await connection.execute(newest)).scalar_one_or_none()
    return PolicySettings().window_s if window_s is None else float(window_s)


async def list_rows(
    connection: AsyncConnection, *, before: int | None = None, limit: int | None = None
) -> tuple[PolicyRow, ...]:
    """Versions, newest first; those below `before` where given."""
    statement = select(policy).order_by(policy.c.version.desc()).limit(limit)
    if before is not None:
        statement = statement.where(policy.c.version < before)
    return tuple(_row(row) for row in await connection.execute(statement))


async def save(
    connection: AsyncConnection,
    settings: PolicySettings,
    *,
    at: datetime,
    actor: str,
    expected_version: int | None = None,
) -> PolicySettings:
    """Put new settings in force; returns them with their version, which `settings.version` does not decide.

    Raises PreconditionFailed when the version in force is not the expected one (the defaults count as version 1).
    """
    # A push under way ends first, and none begins before this is committed: who pauses the loop can rely on it.
    await connection.execute(select(cluster).with_for_update())
    newest = await list_rows(connection, limit=1)
    present = newest[0].settings.version if newest else PolicySettings().version
    if expected_version is not None and expected_version != present:
        raise PreconditionFailed(
            f"the policy is at version {present}, not at {expected_version}; read it again and repeat the change"
        )
    # The primary key decides between two writers at once: the second one fails instead of overwriting.
    version = present + 1
    # Read back from the values themselves: what the caller gets is what the next tick loads.
    values = {**asdict(settings), "mode": settings.mode.value, "version": version}
    await connection.execute(
        insert(policy).values(created_at=at, created_by=actor, **values)
    )
    return _settings(values)


async def load_memory(connection: AsyncConnection, name: str) -> Json:
    """What a policy wrote down at its last tick; None = nothing."""
    found = await connection.execute(
        select(policy_memory.c.memory).where(policy_memory.c.policy == name)
    )
    memory: Json = found.scalar_one_or_none()
    return memory


async def load_group_memory(
    connection: AsyncConnection, settings: PolicySettings
) -> dict[str, Json]:
    """The same of the groups' policies, by group; of those that wrote something down."""
    if not settings.groups:
        return {}
    # A group's memory is kept under the group's and its policy's name: after a change of policy there is none.
    name_of = {group.memory_key: group.name for group in settings.groups}
    found = await connection.execute(
        select(policy_memory).where(policy_memory.c.policy.in_(name_of))
    )
    return {name_of[row.policy]: row.memory for row in found if row.memory is not None}


async def save_memory(connection: AsyncConnection, name: str, memory: Json) -> None:
    """Keep what a policy wrote down."""
    await upsert(connection, policy_memory, {"policy": name}, {"memory": memory})


def _settings(values: dict[str, object]) -> PolicySettings:
    # A row has columns that are no settings, such as who saved it.
    known = {field.name for field in fields(PolicySettings)}
    named = {name: value for name, value in values.items() if name in known}
    groups = tuple(_group(entry) for entry in _entries(values["groups"]))
    carbon = tuple(_figures(values["carbon_g_per_kwh"]))
    read = {
        **named,
        "mode": Mode(str(values["mode"])),
        "groups": groups,
        "carbon_g_per_kwh": carbon,
    }
    return PolicySettings(**read)  # type: ignore[arg-type]


def _figures(series: object) -> Sequence[float]:
    return series if isinstance(series, list | tuple) else ()


def _entries(groups: object) -> Sequence[Mapping[str, Any]]:
    return groups if isinstance(groups, list | tuple) else ()


def _group(entry: Mapping[str, Any]) -> PolicyGroup:
    return PolicyGroup(
        name=entry["name"],
        policy=entry["policy"],
        projects=tuple(entry["projects"]),
        labels=tuple((str(name), str(value)) for name, value in entry["labels"]),
        mode=Mode(entry["mode"]),
    )


def _row(row: AnyRow) -> PolicyRow:
    return PolicyRow(
        settings=_settings(dict(row._mapping)),
        created_at=row.created_at,
        created_by=row.created_by,
    )
