"""Networks and their profiles: the operating points by GPU type, versioned."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

from sqlalchemy import Text, cast, func, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.base.errors import NotFound
from app.db.base.engine import driver_connection
from app.db.base.rows import delete_named, one_row
from app.db.base.tables import network, profile
from app.db.base.upsert import upsert
from solvers.predict.data.samples import Group
from solvers.predict.estimate.operating_points import Performance
from solvers.types.llm import LlmNetwork, StatedRun
from solvers.types.problem import OperatingPoint, OperatingPoints

Provenance = Literal["measured", "scaled", "estimated"]

SIGMA_BY_PROVENANCE: Mapping[Provenance, float] = {
    "measured": 0.0,
    "scaled": 0.15,
    "estimated": 0.25,
}
"""Standard deviation of ln(true / stated time) where a profile states none.

0.15 is that of the shipped points that were scaled to the GPU type where this went worst (T4), against the simulated
truth: 0.12 between networks and 0.09 between a network's rows. Estimates rest on ratios that were not measured.
"""


class ProfileOrigin(StrEnum):
    """Where a profile comes from. Its source begins with the value; of one that was sent, it is the sender."""

    FITTED = "fitted"
    ESTIMATED = "estimated"
    """A refit made it of other networks or GPU types, without a sample of its own."""
    SHIPPED = "shipped catalogue"
    SENT = "sent"


def origin_of(source: str) -> ProfileOrigin:
    """The origin that the stored source stands for."""
    return next(
        (each for each in ProfileOrigin if source.startswith(each)), ProfileOrigin.SENT
    )


KIND_LABEL = "kind"
"""Label of a network that says `training` where its batch is a training step; any other network is for inference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkRow:
    """A network and the GPU types that it is profiled on."""

    name: str
    description: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    created_at: datetime
    gpu_types: tuple[str, ...] = ()
    config: Mapping[str, Any] | None = None
    """The `config.json` of a language model that states one."""
    runs: Sequence[Mapping[str, Any]] = ()
    """Benchmarks of its servers, as `StatedRun` has them."""

    @property
    def is_training(self) -> bool:
        """Whether tasks train it, and no service can run it."""
        return self.labels.get(KIND_LABEL) == "training"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredProfile:
    """Operating points with where they come from."""

    points: OperatingPoints
    provenance: Provenance
    source: str = ""
    latency_sigma: tuple[float | None, ...] = ()
    """Per row of `points`; None, and () for all of them: by provenance."""

    @property
    def group(self) -> Group:
        """What it is about."""
        return Group(network=self.points.network, gpu_type=self.points.gpu_type)

    @property
    def stated_sigma(self) -> tuple[float | None, ...]:
        """(N,) what is stated of each row."""
        return self.latency_sigma or (None,) * len(self.points.rows)

    @property
    def performance(self) -> Performance:
        """The points with the uncertainty that planning reckons with."""
        default = SIGMA_BY_PROVENANCE[self.provenance]
        sigma = tuple(
            default if stated is None else stated for stated in self.stated_sigma
        )
        return Performance(points=self.points, latency_sigma=sigma)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRow:
    """One version of a profile, without its points."""

    id: int
    network: str
    gpu_type: str
    version: int
    is_current: bool
    sensitivity: float
    provenance: Provenance
    source: str
    created_at: datetime

    @property
    def origin(self) -> ProfileOrigin:
        """Where it comes from."""
        return origin_of(self.source)


async def save_network(
    connection: AsyncConnection,
    name: str,
    *,
    at: datetime,
    description: str = "",
    labels: Mapping[str, str] | None = None,
    config: Mapping[str, Any] | None = None,
    runs: Sequence[StatedRun] = (),
) -> None:
    """Add or replace a network."""
    values = {
        "description": description,
        "labels": dict(labels or {}),
        "config": config,
        "runs": [asdict(each) for each in runs],
    }
    await upsert(
        connection, network, {"name": name}, values, only_new={"created_at": at}
    )


async def list_networks(
    connection: AsyncConnection,
    *,
    after: str = "",
    limit: int | None = None,
    name: str | None = None,
) -> tuple[NetworkRow, ...]:
    """Networks by name, or the one of that name."""
    # An array of the schema's own text domain would come back as one string.
    name_of_type = cast(profile.c.gpu_type, Text)
    # An outer join: a network without any profile has one row, whose GPU type is null.
    types = func.array_remove(
        func.array_agg(name_of_type.op("ORDER BY")(name_of_type)), None
    )
    statement = (
        select(network, types.label("gpu_types"))
        .outerjoin(
            profile, (profile.c.network == network.c.name) & profile.c.is_current
        )
        .where(network.c.name > after)
        .group_by(network.c.name)
        .order_by(network.c.name)
        .limit(limit)
    )
    if name is not None:
        statement = statement.where(network.c.name == name)
    return tuple(
        NetworkRow(**{**row._mapping, "gpu_types": tuple(row.gpu_types)})
        for row in await connection.execute(statement)
    )


async def load_llm_networks(connection: AsyncConnection) -> dict[str, LlmNetwork]:
    """What is stated of each language model of which anything is, by network."""
    is_stated = network.c.config.is_not(None) | (cast(network.c.runs, Text) != "[]")
    statement = select(network.c.name, network.c.config, network.c.runs)
    found = {}
    for row in await connection.execute(statement.where(is_stated)):
        config = ""
        if row.config:
            # In one form: the same content is the same text.
            config = json.dumps(row.config, sort_keys=True)
        runs = tuple(StatedRun(**each) for each in row.runs)
        found[row.name] = LlmNetwork(config=config, runs=runs)
    return found


async def get_network(connection: AsyncConnection, name: str) -> NetworkRow:
    """One network. Raises NotFound."""
    found = await list_networks(connection, name=name)
    if not found:
        raise NotFound(f"no network is called {name!r}")
    return found[0]


async def remove_network(connection: AsyncConnection, name: str) -> None:
    """Delete a network with its profiles. Raises NotFound, Conflict when a service ever served it."""
    await delete_named(
        connection,
        network,
        name,
        missing=f"no network is called {name!r}",
        in_use=f"services use or used network {name!r}; it is kept for their history",
    )


async def list_batches(
    connection: AsyncConnection, network_name: str
) -> tuple[int, ...]:
    """The batches with which a network is profiled on any GPU type, ascending."""
    found = await connection.execute(
        text(
            "SELECT DISTINCT o.batch FROM profile p JOIN profile_point o ON o.profile_id = p.id "
            "WHERE p.is_current AND p.network = :network ORDER BY o.batch"
        ),
        {"network": network_name},
    )
    return tuple(found.scalars())


async def list_profiles(
    connection: AsyncConnection,
    *,
    network_name: str | None = None,
    after: int = 0,
    limit: int | None = None,
) -> tuple[ProfileRow, ...]:
    """Versions of profiles by id."""
    statement = (
        select(profile).where(profile.c.id > after).order_by(profile.c.id).limit(limit)
    )
    if network_name is not None:
        statement = statement.where(profile.c.network == network_name)
    return tuple(
        ProfileRow(**row._mapping) for row in await connection.execute(statement)
    )


async def get_profile(
    connection: AsyncConnection, profile_id: int
) -> tuple[ProfileRow, StoredProfile]:
    """One version with its points. Raises NotFound."""
    row = await one_row(
        connection,
        select(profile).where(profile.c.id == profile_id),
        missing=f"there is no profile {profile_id}",
    )
    (stored,) = await _load(connection, "p.id = %s", (profile_id,))
    return ProfileRow(**row._mapping), stored


async def load_points(connection: AsyncConnection) -> tuple[OperatingPoints, ...]:
    """Current operating points of all networks on all GPU types, by network and GPU type."""
    return tuple(profile.points for profile in await load_profiles(connection))


async def load_profiles(connection: AsyncConnection) -> tuple[StoredProfile, ...]:
    """Current profiles of all networks on all GPU types, by network and GPU type."""
    return await _load(connection, "p.is_current", ())


async def save_profiles(
    connection: AsyncConnection, profiles: Sequence[StoredProfile], *, at: datetime
) -> int:
    """Make these the current versions; those that are so already stay as they are. Returns how many are new.

    Networks and GPU types must exist (foreign keys).
    """
    current = {entry.group: entry for entry in await load_profiles(connection)}
    # A version moves the profile's revision, and with it every tick's cache: equal points must not make one.
    new = [entry for entry in profiles if not _same(current.get(entry.group), entry)]
    ids = [await _new_version(connection, entry, at) for entry in new]
    # One COPY for all profiles: a full catalogue has tens of thousands of points.
    driver = await driver_connection(connection)
    async with driver.cursor() as cursor, cursor.copy(_COPY_POINTS) as copy:
        for profile_id, entry in zip(ids, new, strict=True):
            for point, sigma in zip(entry.points.rows, entry.stated_sigma, strict=True):
                await copy.write_row((profile_id, *point, sigma))
    return len(new)


_COPY_POINTS = (
    "COPY profile_point (profile_id, sm_percent, batch, clock_mhz, transfer_ms, launch_ms, run_ms, memory_mib, "
    "power_w, pressure, stall_ms, latency_sigma) FROM STDIN"
)


def _same(one: StoredProfile | None, other: StoredProfile) -> bool:
    if one is None or one.points.sensitivity != other.points.sensitivity:
        return False
    # By row and not in order: a sender of points may list them in any.
    return _by_row(one) == _by_row(other)


def _by_row(entry: StoredProfile) -> dict[OperatingPoint, float | None]:
    return dict(zip(entry.points.rows, entry.stated_sigma, strict=True))


async def _new_version(
    connection: AsyncConnection, entry: StoredProfile, at: datetime
) -> int:
    of_pair = (profile.c.network == entry.points.network) & (
        profile.c.gpu_type == entry.points.gpu_type
    )
    # The old version first: the schema allows one current version of a pair.
    await connection.execute(
        update(profile).where(of_pair, profile.c.is_current).values(is_current=False)
    )
    newest = await connection.execute(
        select(func.coalesce(func.max(profile.c.version), 0)).where(of_pair)
    )
    inserted = await connection.execute(
        insert(profile)
        .values(
            network=entry.points.network,
            gpu_type=entry.points.gpu_type,
            version=newest.scalar_one() + 1,
            sensitivity=entry.points.sensitivity,
            provenance=entry.provenance,
            source=entry.source,
            created_at=at,
        )
        .returning(profile.c.id)
    )
    return int(inserted.scalar_one())


async def _load(
    connection: AsyncConnection,
    condition: Literal["p.id = %s", "p.is_current"],
    arguments: tuple[int, ...],
) -> tuple[StoredProfile, ...]:
    """Through the driver in binary: profiles of a full catalogue are tens of thousands of rows."""
    driver = await driver_connection(connection)
    query = f"""
        SELECT p.network, p.gpu_type, p.sensitivity, p.provenance, p.source, o.latency_sigma, o.sm_percent, o.batch,
               o.clock_mhz, o.transfer_ms, o.launch_ms, o.run_ms, o.memory_mib, o.power_w, o.pressure, o.stall_ms
        FROM profile p JOIN profile_point o ON o.profile_id = p.id WHERE {condition}
        ORDER BY p.network, p.gpu_type, o.sm_percent, o.batch, o.clock_mhz
    """
    async with driver.cursor(binary=True) as cursor:
        found = await (await cursor.execute(query.encode(), arguments)).fetchall()
    # The first five columns are the profile's, the same in each of its rows.
    rows: dict[tuple[object, ...], list[tuple[object, ...]]] = defaultdict(list)
    for row in found:
        rows[row[:5]].append(row[5:])
    return tuple(_profile(key, figures) for key, figures in rows.items())


def _profile(key: tuple[Any, ...], rows: list[tuple[Any, ...]]) -> StoredProfile:
    network_name, gpu_type_name, sensitivity, provenance, source = key
    return StoredProfile(
        points=OperatingPoints(
            network=network_name,
            gpu_type=gpu_type_name,
            sensitivity=sensitivity,
            rows=tuple(OperatingPoint._make(figures) for _, *figures in rows),
        ),
        provenance=provenance,
        source=source,
        latency_sigma=tuple(sigma for sigma, *_ in rows),
    )
