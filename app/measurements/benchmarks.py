"""What all imports of other tools' benchmarks have in common: conditions from outside, rows, and what was left out."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

import numpy as np

from app.base.errors import InvalidRequest
from solvers.predict.data.samples import Samples, make_queries, make_samples

MIB = 2.0**20

Option = TypeVar("Option", str, float)


class Latency(StrEnum):
    """Which of a benchmark's times becomes `latency_ms`."""

    SERVER = "server"
    """The server's own time for a batch: inputs, computation, outputs; no queue, no network."""
    CLIENT = "client"
    """What a client waits for one batch when no other request is under way."""
    REQUEST = "request"
    """From the first byte of a request to the last of its answer, at the concurrency that was served."""
    TOKEN = "token"
    """One step of generation: a token of every request under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkConditions:
    """What a benchmark's file does not say, or says in other words."""

    gpu_type: str
    sm_percent: float = 100.0
    network: str | None = None
    """None = as the file calls it."""
    batch: float | None = None
    """None = what the file says."""
    clock_mhz: float = np.nan
    time_quota_percent: float = 100.0
    power_limit_w: float = np.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkRow:
    """One measurement of a benchmark."""

    network: str
    batch: float
    latency_ms: float
    power_w: float = np.nan
    memory_mib: float = np.nan


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Imported:
    """Samples from a benchmark, and what was not taken, in words."""

    samples: Samples
    notes: tuple[str, ...] = ()


def make_imported(
    rows: Sequence[BenchmarkRow],
    conditions: BenchmarkConditions,
    *,
    file: str,
    notes: Sequence[str] = (),
) -> Imported:
    """Samples from rows. Raises InvalidRequest when none is left."""
    # The notes say why none is left: without them the caller sees a file full of rows and no sample.
    if not rows:
        raise InvalidRequest("; ".join(["no measurement can be used", *notes]), file)
    size = len(rows)
    at = make_queries(
        [row.network for row in rows],
        [conditions.gpu_type] * size,
        batch=[row.batch for row in rows],
        sm_percent=[conditions.sm_percent] * size,
        clock_mhz=[conditions.clock_mhz] * size,
        time_quota_percent=[conditions.time_quota_percent] * size,
        power_limit_w=[conditions.power_limit_w] * size,
    )
    samples = make_samples(
        at,
        [row.latency_ms for row in rows],
        power_w=[row.power_w for row in rows],
        memory_mib=[row.memory_mib for row in rows],
    )
    return Imported(samples=samples, notes=tuple(notes))


def required(value: Option | None, option: str, why: str) -> Option:
    """The condition that the file does not hold. Raises InvalidRequest when it was not given."""
    if value is None:
        raise InvalidRequest(f"{why}; say it with {option}")
    return value


def refuse_latency(latency: Latency, allowed: Sequence[Latency], tool: str) -> None:
    """Raises InvalidRequest for a time that the tool does not measure."""
    if latency not in allowed:
        raise InvalidRequest(
            f"{tool} does not tell the {latency} latency; it tells {' and '.join(allowed)}"
        )
