"""Slices from and to the contract's JSON, version 2: profiles of a GPU type, points, and replicas of a plan."""

from collections.abc import Sequence

from solvers.types.errors import InvalidInput
from solvers.types.plan import ReplicaPlan
from solvers.types.slices import (
    SlicePoint,
    SlicePoints,
    SliceProfile,
    SliceUse,
    layouts,
)
from solvers.types.strict_json import (
    Fields,
    describe,
    fields_document,
    read_integer,
    read_items,
    read_number,
)

MAX_MEMORY_SLICES = 16
"""More than any GPU has; it bounds how many layouts there can be."""


def read_profiles(fields: Fields) -> tuple[SliceProfile, ...]:
    """The profiles of a GPU type that is shared by `slices`, none of another one. Raises InvalidInput."""
    if not fields.given("sharing"):
        return ()
    sharing = fields.value("sharing")
    if sharing == ["capped"]:
        return ()
    if sharing != ["slices"]:
        raise InvalidInput(
            fields.at("sharing"),
            'must be ["capped"] or ["slices"]; for both, state two GPU types that divide the count',
        )
    profiles = fields.each("slices", _profile, at_least=1)
    names = [profile.name for profile in profiles]
    if len(set(names)) < len(names):
        raise InvalidInput(fields.at("slices"), "two profiles have the same name")
    if fields.given("layouts"):
        _check_layouts(fields, profiles)
    return profiles


def _profile(document: object, path: str) -> SliceProfile:
    fields = Fields(document, path)
    profile = SliceProfile(
        name=fields.text("profile"),
        gpcs=fields.integer("gpcs", at_least=1),
        memory_slices=fields.integer("memory_slices", at_least=1),
        starts=fields.each("starts", read_integer, at_least=1),
        memory_mib=fields.number("memory_mib", above=0.0),
    )
    fields.done()
    if max(profile.starts) + profile.memory_slices > MAX_MEMORY_SLICES:
        words = f"a slice would end beyond memory slice {MAX_MEMORY_SLICES}"
        raise InvalidInput(fields.at("starts"), words)
    return profile


def _check_layouts(fields: Fields, profiles: Sequence[SliceProfile]) -> None:
    """They follow from `starts`: whoever states them, too, must state the same ones."""
    stated = [value for value, _ in fields.items("layouts")]
    derived = layouts(profiles, MAX_MEMORY_SLICES)
    is_same = len(stated) == len(derived) and all(way in stated for way in derived)
    if not is_same:
        raise InvalidInput(
            fields.at("layouts"),
            "are not the largest ones that `starts` allow; leave the field out",
        )


def read_slice_points(fields: Fields) -> SlicePoints:
    """One entry of `points` that was measured in a slice. Raises InvalidInput."""
    points = SlicePoints(
        network=fields.text("network"),
        gpu_type=fields.text("gpu_type"),
        profile=fields.text("slice"),
        rows=fields.each("rows", _row),
    )
    fields.done()
    keys = {(row.batch, row.processes, round(row.clock_mhz, 3)) for row in points.rows}
    if len(keys) < len(points.rows):
        raise InvalidInput(
            fields.at("rows"),
            "two rows have the same (batch, processes, clock_mhz); keep one of them",
        )
    return points


def _row(value: object, path: str) -> SlicePoint:
    names = SlicePoint._fields
    if not isinstance(value, list | tuple) or len(value) != len(names):
        words = f"must have the {len(names)} values {', '.join(names)}"
        raise InvalidInput(path, f"{words}, not {describe(value)}")
    at = {name: f"{path}.{name}" for name in names}
    items = dict(zip(names, (item for item, _ in read_items(value, path)), strict=True))
    return SlicePoint(
        batch=read_integer(items["batch"], at["batch"], at_least=1),
        processes=read_integer(items["processes"], at["processes"], at_least=1),
        clock_mhz=read_number(items["clock_mhz"], at["clock_mhz"], above=0.0),
        execution_ms=read_number(
            items["execution_ms"], at["execution_ms"], at_least=1e-9
        ),
        memory_mib=read_number(items["memory_mib"], at["memory_mib"]),
        power_w=read_number(items["power_w"], at["power_w"]),
    )


def read_slice_replica(document: object, path: str) -> ReplicaPlan:
    """One entry of `gpus[].slices`. Raises InvalidInput."""
    fields = Fields(document, path)
    replica = ReplicaPlan(
        service=fields.text("service"),
        sm_percent=100.0,
        batch=fields.integer("batch", at_least=1),
        arrival_rate_rps=fields.number("arrival_rate_rps"),
        slice=SliceUse(
            profile=fields.text("profile"),
            processes=fields.integer("processes", at_least=1),
        ),
    )
    fields.done()
    return replica


def slice_replica_document(replica: ReplicaPlan) -> dict[str, object]:
    """One entry of `gpus[].slices`; the replica has a slice."""
    assert replica.slice is not None
    return {
        "profile": replica.slice.profile,
        "service": replica.service,
        "batch": replica.batch,
        "processes": replica.slice.processes,
        "arrival_rate_rps": replica.arrival_rate_rps,
    }


def profiles_document(profiles: Sequence[SliceProfile]) -> dict[str, object]:
    """What a GPU type that is cut into slices has beside its other fields."""
    entries = []
    for profile in profiles:
        entry = fields_document(profile)
        entries.append({"profile": entry.pop("name"), **entry})
    return {"sharing": ["slices"], "slices": entries}


def slice_points_document(points: SlicePoints) -> dict[str, object]:
    """One entry of `points` that was measured in a slice."""
    return {
        "network": points.network,
        "gpu_type": points.gpu_type,
        "slice": points.profile,
        "rows": points.rows,
    }
