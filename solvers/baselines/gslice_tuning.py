"""Tuning: one step up after a miss, one step down where there is slack, as a pure function with a memory.

What a step is, is the caller's: the function counts them. It takes the newest reading and what it remembered, and
returns what to remember next, as small JSON that a policy keeps between ticks.

A change takes its time: what is measured while replicas start, and while the queue that this left is served, is no
reason for another step. Where a service missed its SLO, it is not put again for a while, unless its rate has fallen.

Source: GSLICE (SoCC 2020) tunes shares by residual latency and throughput in this way; all figures here are ours.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from solvers.types.state import Json, ServiceObservation

SLACK = 0.8
"""A measured latency below this part of the SLO leaves room for a step down."""
SERVED = 0.9
"""Replicas that serve less than this part of the arrival rate do not keep up. A miss counts no more once the rate is
below this part of what it was then."""
SETTLE_S = 100.0
"""From a change to the first reading that counts: 20 s to start, as much again for the queue that this left, and the
minute that a reading looks back."""
MISS_COUNTS_S = 600.0
"""How long a miss is remembered: it may have had another cause than the share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Where the tuning of one service stands."""

    steps: int = 0
    """From where it started."""
    changed_at_s: float | None = None
    """When the replicas changed last."""
    missed_steps: int | None = None
    """Where it missed its SLO last."""
    missed_rps: float = 0.0
    """The rate that came then."""
    missed_at_s: float = 0.0
    """When that was."""

    def at(self, steps: int) -> "Tuning":
        """The same at other steps."""
        return replace(self, steps=steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRange:
    """How far steps may go."""

    lowest: int
    highest: int


def tune(
    tuning: Tuning,
    reading: ServiceObservation | None,
    allowed: StepRange,
    *,
    slo_ms: float,
    now_s: float,
) -> Tuning:
    """The tuning after the reading; the same where it asks for no step, or came too soon after the last change."""
    if reading is None:
        return tuning
    changed_at_s = tuning.changed_at_s
    # What was measured counts by when that was, not by when it is read.
    if changed_at_s is not None and now_s - reading.age_s < changed_at_s + SETTLE_S:
        return tuning
    if _is_miss(reading, slo_ms):
        return _after_miss(tuning, reading, allowed, now_s)
    down = tuning.steps - 1
    has_slack = reading.latency_ms is not None and reading.latency_ms < SLACK * slo_ms
    may_miss = _is_known_to_miss(tuning, down, reading, now_s)
    if down < allowed.lowest or not has_slack or may_miss:
        return tuning
    return replace(tuning, steps=down, changed_at_s=now_s)


def _after_miss(
    tuning: Tuning,
    reading: ServiceObservation,
    allowed: StepRange,
    now_s: float,
) -> Tuning:
    missed = replace(
        tuning,
        missed_steps=tuning.steps,
        missed_rps=reading.arrival_rate_rps,
        missed_at_s=now_s,
    )
    # A miss at the highest step is remembered, too, but changes nothing that a reading would have to wait for.
    if tuning.steps >= allowed.highest:
        return missed
    return replace(missed, steps=tuning.steps + 1, changed_at_s=now_s)


def _is_miss(reading: ServiceObservation, slo_ms: float) -> bool:
    # Either sign is enough: a queue that grows is late only later, and requests that are refused never are.
    is_late = reading.latency_ms is not None and reading.latency_ms > slo_ms
    return is_late or reading.served_rps < SERVED * reading.arrival_rate_rps


def _is_known_to_miss(
    tuning: Tuning,
    steps: int,
    reading: ServiceObservation,
    now_s: float,
) -> bool:
    """Whether so few steps were lately too few for a rate like this."""
    if tuning.missed_steps is None or now_s > tuning.missed_at_s + MISS_COUNTS_S:
        return False
    return (
        steps <= tuning.missed_steps
        and reading.arrival_rate_rps >= SERVED * tuning.missed_rps
    )


def tuning_to_json(tuning: Tuning) -> Json:
    """What to remember of a tuning."""
    return {
        "steps": tuning.steps,
        "changed_at_s": tuning.changed_at_s,
        "missed_steps": tuning.missed_steps,
        "missed_rps": tuning.missed_rps,
        "missed_at_s": tuning.missed_at_s,
    }


def tuning_from_json(memory: Json, *, now_s: float) -> Tuning:
    """The remembered tuning, a new one where there is none; what lies in the future is forgotten."""
    fields = memory if isinstance(memory, Mapping) else {}
    changed_at_s, missed_at_s = (
        _past(fields.get(name), now_s) for name in ("changed_at_s", "missed_at_s")
    )
    return Tuning(
        steps=_integer(fields.get("steps")) or 0,
        changed_at_s=changed_at_s,
        missed_steps=None
        if missed_at_s is None
        else _integer(fields.get("missed_steps")),
        missed_rps=_real(fields.get("missed_rps")) or 0.0,
        missed_at_s=missed_at_s or 0.0,
    )


def _past(value: Json, now_s: float) -> float | None:
    moment_s = _real(value)
    return None if moment_s is None or moment_s > now_s else moment_s


def _integer(value: Json) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _real(value: Json) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None
