"""Put the shipped catalogue into a database that lacks it; what an operator changed there stays."""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime

from app.catalogue.catalogue import (
    list_networks,
    load_actors,
    load_gpu_types,
    load_profiles,
    load_provenance,
)
from app.db.base.transaction import Connection, Engine, transaction
from app.db.decisions import actors
from app.db.fleet import gpu_types
from app.db.predictions import profiles
from app.db.predictions.profiles import (
    KIND_LABEL,
    ProfileOrigin,
    Provenance,
    StoredProfile,
)

SHIPPED_SIGMA = 0.0
"""The shipped times lean to the slow side already (lowest ratios, running maxima): only at 0.5 % of a V100's points and
0.4 % of a T4's the simulated truth takes more than 5 % longer (`python -m bench.catalogue_error`)."""

SOURCE = f"{ProfileOrigin.SHIPPED}, see app/catalogue/SOURCES.md"


async def install_catalogue(
    engine: Engine, at: datetime, *, networks: Iterable[str] | None = None
) -> tuple[int, int]:
    """Add the GPU types and networks (None = all) that the database lacks; returns how many of each."""
    # One transaction: a start that is interrupted must not leave half a catalogue behind.
    async with transaction(engine) as connection:
        added_types = await _add_gpu_types(connection, at)
        added_networks = await _add_networks(connection, at, networks)
        for fingerprint, weights in load_actors().items():
            # An actor that was trained here fits its fleet better than the shipped one.
            if await actors.load_newest(connection, fingerprint) is None:
                await actors.save(connection, fingerprint, weights, at=at, notes=SOURCE)
    return added_types, added_networks


async def _add_gpu_types(connection: Connection, at: datetime) -> int:
    known = {row.gpu_type.name for row in await gpu_types.list_rows(connection, at)}
    new = [gpu_type for gpu_type in load_gpu_types() if gpu_type.name not in known]
    for gpu_type in new:
        await gpu_types.save(connection, gpu_type, at=at, provenance=SOURCE)
    return len(new)


async def _add_networks(
    connection: Connection, at: datetime, networks: Iterable[str] | None
) -> int:
    known = {row.name for row in await profiles.list_networks(connection)}
    wanted = list_networks() if networks is None else networks
    new = [network for network in wanted if network not in known]
    training = set(list_networks("training"))
    for network in new:
        labels = {KIND_LABEL: "training"} if network in training else {}
        description = (
            f"training, for tasks; {SOURCE}" if network in training else SOURCE
        )
        await profiles.save_network(
            connection, network, at=at, description=description, labels=labels
        )
    shipped = [profile for network in new for profile in _profiles(network)]
    # In one call: thousands of rows one by one would take seconds at every first start.
    await profiles.save_profiles(connection, shipped, at=at)
    return len(new)


def _profiles(network: str) -> list[StoredProfile]:
    """One per GPU type, marked as its least certain kind of point that is not rare (at least one in ten)."""
    kinds: dict[str, Counter[str]] = {}
    for gpu_type, _, provenance in load_provenance(network):
        kinds.setdefault(gpu_type, Counter())[provenance] += 1
    return [
        StoredProfile(
            points=points,
            provenance=_overall(kinds[points.gpu_type]),
            source=SOURCE,
            latency_sigma=(SHIPPED_SIGMA,) * len(points.rows),
        )
        for points in load_profiles([network])
    ]


def _overall(kinds: Counter[str]) -> Provenance:
    common = [kind for kind, count in kinds.items() if count * 10 >= kinds.total()]
    # The least certain one counts: a profile must not promise more than its points.
    if "estimated" in common:
        return "estimated"
    return "scaled" if "scaled" in common else "measured"
