"""GPU types, and what runs on them, from and to the contract's JSON: operating rows, slices, replicas in slices."""

from collections.abc import Container, Mapping, Sequence

import numpy as np

from solvers.types.documents.strict_json import (
    MAX_NUMBER,
    RESERVED,
    Fields,
    describe,
    document_without,
    fields_document,
    read_integer,
    read_items,
    read_number,
    refuse_repeats,
)
from solvers.types.errors import InvalidInput
from solvers.types.plan import ReplicaPlan
from solvers.types.problem import OperatingPoint
from solvers.types.slices import (
    SlicePoint,
    SlicePoints,
    SliceProfile,
    SliceUse,
    layouts,
)
from solvers.types.state import GpuType

MAX_MEMORY_SLICES = 8
"""As many as any GPU has; with the number of profiles it bounds how many layouts there can be."""
MAX_PROFILES = 8

ROW_FIELDS = OperatingPoint._fields[:-1]
"""The contract's; a task's stall, the last, is ours."""

MIN_EXECUTION_MS = 1e-9
"""A batch that takes less is a unit mistake, and its capacity beyond all figures."""


def read_gpu_type(document: object, path: str) -> GpuType:
    """One entry of `gpu_types`. Raises InvalidInput."""
    fields = Fields(document, path, RESERVED)
    sharing = _sharing(fields)
    is_sliced_only = sharing == ("slices",)
    gpu_type = GpuType(
        name=fields.text("name"),
        price_usd_per_hour=fields.number("price_usd_per_hour", above=0.0),
        memory_mib=fields.number("memory_mib", above=0.0),
        # null is as many as wanted; leaving the field out would be an oversight, and is refused.
        count=fields.integer("count") if fields.value("count") is not None else None,
        # What says how SM percents are shared means nothing where all GPUs are cut into slices.
        sm_percent_step=100.0
        if is_sliced_only
        else fields.number("sm_percent_step", above=0.0, at_most=100.0),
        idle_w=fields.number("idle_w"),
        power_cap_w=fields.number("power_cap_w", above=0.0),
        clocks_mhz=fields.each(
            "clocks_mhz", lambda v, p: read_number(v, p, above=0.0), at_least=1
        ),
        launch_per_neighbour=0.0
        if is_sliced_only
        else fields.number("launch_per_neighbour"),
        launch_base=0.0 if is_sliced_only else fields.number("launch_base"),
        slices=_profiles(fields) if "slices" in sharing else (),
        is_sliced_only=is_sliced_only,
        overload=fields.number("overload") if "uncapped" in sharing else None,
        gpus_per_node=fields.integer("gpus_per_node", at_least=1)
        if fields.given("gpus_per_node")
        else 1,
        free_slots=fields.each("free_slots", _slots)
        if fields.given("free_slots")
        else (),
    )
    fields.done()
    refuse_repeats(fields.at("clocks_mhz"), gpu_type.clocks_mhz)
    _check_memory(fields, gpu_type)
    return gpu_type


def _slots(value: object, path: str) -> tuple[int, int]:
    """One entry of `free_slots`: GPUs of a set, and the number of disjoint sets of that size, free, on one node."""
    items = [read_integer(item, at) for item, at in read_items(value, path)]
    if len(items) != len(("size", "sets")) or items[0] < 1:
        raise InvalidInput(path, "must be [GPUs of a set, number of such sets]")
    return items[0], items[1]


def _check_memory(fields: Fields, gpu_type: GpuType) -> None:
    """What a GPU is cut into cannot have more memory than the GPU."""
    memory_mib = {each.name: each.memory_mib for each in gpu_type.slices}
    for layout in layouts(gpu_type.slices, MAX_MEMORY_SLICES):
        needed = sum(memory_mib[name] * number for name, number in layout.items())
        if needed > gpu_type.memory_mib:
            names = ", ".join(f"{number} × {name}" for name, number in layout.items())
            message = f"{names} have {needed:g} MiB together, more than memory_mib"
            raise InvalidInput(fields.at("slices"), message)


def _sharing(fields: Fields) -> tuple[str, ...]:
    """How GPUs of a type may be shared: `capped` (by SM percents), `slices`, either, or `uncapped`.

    Raises InvalidInput.
    """
    if not fields.given("sharing"):
        return ("capped",)
    ways = fields.each("sharing", _way, at_least=1)
    refuse_repeats(fields.at("sharing"), ways)
    # A network does not press the same with SM limits and without them, and a type has one row of each kind.
    if "uncapped" in ways and len(ways) > 1:
        message = (
            "uncapped cannot be combined with others: make a GPU type of its own of it"
        )
        raise InvalidInput(fields.at("sharing"), message)
    return ways


def _way(value: object, path: str) -> str:
    if value not in ("capped", "uncapped", "slices"):
        message = f"must be capped, uncapped or slices, not {describe(value)}"
        raise InvalidInput(path, message)
    return str(value)


def _profiles(fields: Fields) -> tuple[SliceProfile, ...]:
    """The profiles of a GPU type that may be cut into slices. Raises InvalidInput."""
    # Without any there would be nothing to cut, and the type no use.
    profiles = fields.each("slices", _profile, at_least=1)
    names = [profile.name for profile in profiles]
    refuse_repeats(fields.at("slices"), tuple(names))
    if len(names) > MAX_PROFILES:
        message = f"has {len(names)} profiles; at most {MAX_PROFILES} are planned"
        raise InvalidInput(fields.at("slices"), message)
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
        message = f"a slice would end beyond memory slice {MAX_MEMORY_SLICES}"
        raise InvalidInput(fields.at("starts"), message)
    return profile


def _check_layouts(fields: Fields, profiles: tuple[SliceProfile, ...]) -> None:
    """They follow from `starts`: a document that states them, too, must state the same."""
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
    # A plan names a row by these three alone.
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
        message = f"must have the {len(names)} values {', '.join(names)}"
        raise InvalidInput(path, f"{message}, not {describe(value)}")
    # By name, so that what is wrong is named as everywhere else.
    fields = Fields(dict(zip(names, value, strict=True)), path)
    return SlicePoint(
        batch=fields.integer("batch", at_least=1),
        processes=fields.integer("processes", at_least=1),
        clock_mhz=fields.number("clock_mhz", above=0.0),
        execution_ms=fields.number("execution_ms", above=0.0),
        memory_mib=fields.number("memory_mib"),
        power_w=fields.number("power_w"),
    )


def check_slice_points(
    batches: Container[int], types: Mapping[str, GpuType], points: SlicePoints
) -> None:
    """Refuse slices that no type has, and batches that the law lacks. Raises InvalidInput."""
    gpu_type = types.get(points.gpu_type)
    profiles = [] if gpu_type is None else [each.name for each in gpu_type.slices]
    if points.profile not in profiles:
        message = f"{points.gpu_type!r} is cut into no slices called {points.profile!r}"
        raise InvalidInput("points", f"{points.network}: {message}")
    for row in points.rows:
        if row.batch not in batches:
            message = f"{row.batch} is not a batch of the capacity law"
            raise InvalidInput(
                "points", f"{points.network}, {points.profile}: {message}"
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


_OPTIONAL = (
    "paid_count",
    "slices",
    "is_sliced_only",
    "overload",
    "gpus_per_node",
    "free_slots",
    "llm",
)
"""Fields that are ours, or are written only where they say something."""


def gpu_type_document(gpu_type: GpuType) -> dict[str, object]:
    """One entry of `gpu_types`."""
    document = document_without(gpu_type, *_OPTIONAL)
    # Version 1 knows no nodes: types of which no replica spans several GPUs are written as it has them.
    if gpu_type.gpus_per_node > 1:
        document["gpus_per_node"] = gpu_type.gpus_per_node
    if gpu_type.free_slots:
        document["free_slots"] = gpu_type.free_slots
    if gpu_type.overload is not None:
        return {**document, "sharing": ["uncapped"], "overload": gpu_type.overload}
    if not gpu_type.slices:
        return document
    if gpu_type.is_sliced_only:
        for name in ("sm_percent_step", "launch_per_neighbour", "launch_base"):
            del document[name]
    entries = []
    for profile in gpu_type.slices:
        entry = fields_document(profile)
        entries.append({"profile": entry.pop("name"), **entry})
    ways = ["slices"] if gpu_type.is_sliced_only else ["capped", "slices"]
    return {**document, "sharing": ways, "slices": entries}


def slice_points_document(points: SlicePoints) -> dict[str, object]:
    """One entry of `points` that was measured in a slice."""
    return {
        "network": points.network,
        "gpu_type": points.gpu_type,
        "slice": points.profile,
        "rows": points.rows,
    }


def read_rows(value: object, path: str) -> tuple[OperatingPoint, ...]:
    """The operating rows of one network on one GPU type. Raises InvalidInput."""
    if not isinstance(value, list | tuple):
        raise InvalidInput(path, f"must be an array of rows, not {describe(value)}")
    _refuse_misshapen(value, path)
    # numpy would make numbers of strings and booleans, so each type is looked at first.
    _refuse_non_numbers(value, path)
    if value:
        _check_ranges(np.array(value, dtype=float), path)
    # JSON may write 10.0 as 10 and 4 as 4.0: every field gets the type that it has in Python.
    rows = tuple(
        OperatingPoint(float(row[0]), int(row[1]), *map(float, row[2:]))
        for row in value
    )
    # To the digits at which a plan's figures are matched to rows: nearer ones could not be told apart.
    distinct = {
        (round(row.sm_percent, 6), row.batch, round(row.clock_mhz, 3)) for row in rows
    }
    if len(distinct) < len(rows):
        raise InvalidInput(
            path,
            "two rows have the same (sm_percent, batch, clock_mhz); keep one of them",
        )
    return rows


def _refuse_misshapen(rows: Sequence[object], path: str) -> None:
    for index, row in enumerate(rows):
        if not isinstance(row, list | tuple) or len(row) != len(ROW_FIELDS):
            raise InvalidInput(
                f"{path}[{index}]",
                f"must have the {len(ROW_FIELDS)} values {', '.join(ROW_FIELDS)}",
            )


def _refuse_non_numbers(rows: Sequence[Sequence[object]], path: str) -> None:
    for index, row in enumerate(rows):
        for name, value in zip(ROW_FIELDS, row, strict=True):
            # The exact type, since `isinstance` takes a boolean for an integer; and only odd values pay for the reader.
            if type(value) is not float and (
                type(value) is not int or abs(value) > MAX_NUMBER
            ):
                read_number(value, f"{path}[{index}].{name}")


def _check_ranges(table: np.ndarray, path: str) -> None:
    """Refuse the first value of the (N, 9) table that is out of its range; vectorised, since tables are long."""
    for broken, message in _range_rules(table):
        if broken.any():
            row, column = np.argwhere(broken)[0]
            raise InvalidInput(
                f"{path}[{row}].{ROW_FIELDS[column]}",
                f"{message}, not {table[row, column]:g}",
            )


def _range_rules(table: np.ndarray) -> Sequence[tuple[np.ndarray, str]]:
    """(N, 9) which values break a rule, and what the rule says, in the order of the complaints."""
    is_integer = table[:, 1] == np.floor(table[:, 1])
    columns = np.arange(len(ROW_FIELDS))
    # NaN fails the first rule and must not reach the others.
    return (
        (
            ~(np.isfinite(table) & (table >= 0)),
            "must be a finite number that is at least 0",
        ),
        (table > MAX_NUMBER, f"must be at most {MAX_NUMBER:g}"),
        (
            (columns == 0) & ((table <= 0) | (table > 100)),
            "must be above 0 and at most 100",
        ),
        (
            (columns == 1) & ((table < 1) | ~is_integer[:, None]),
            "must be a whole number that is at least 1",
        ),
        ((columns == 2) & (table <= 0), "must be above 0"),
        (
            (columns == 3) & (table[:, 3:6].sum(axis=1) < MIN_EXECUTION_MS)[:, None],
            f"plus launch_ms and run_ms must be at least {MIN_EXECUTION_MS:g} ms",
        ),
    )
