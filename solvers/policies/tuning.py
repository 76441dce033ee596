"""Tuning: one step up after a miss, one step down where there is slack, as a pure function with a memory.

What a step is, is the caller's: the function counts them. It takes the newest reading and what it remembered, and
returns what to remember next, as small JSON that a policy keeps between ticks.

Source: GSLICE (SoCC 2020) tunes shares by residual latency and throughput in this way; SLACK and SERVED are ours.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from solvers.state import Json, Reading

SLACK = 0.8
"""Of the SLO: a measured latency below it leaves room for a step down."""
SERVED = 0.9
"""Of the arrival rate: replicas that serve less do not keep up. Of a miss's rate: below it, the miss counts no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Where the tuning of one service stands."""

    steps: int = 0
    """From where it started."""
    changed_at_s: float | None = None
    """When the last step was taken."""
    missed_steps: int | None = None
    """Where it missed its SLO last."""
    missed_rps: float = 0.0
    """The rate that came then."""

    def at(self, steps: int) -> "Tuning":
        """The same at other steps."""
        return replace(self, steps=steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """How far steps may go."""

    lowest: int
    highest: int


def tune(tuning: Tuning, reading: Reading | None, allowed: Range, *, slo_ms: float, now_s: float) -> Tuning:
    """The tuning after the reading; the same where it asks for no step, or was taken before the last one."""
    if reading is None or (tuning.changed_at_s is not None and now_s - reading.age_s <= tuning.changed_at_s):
        return tuning
    if _is_miss(reading, slo_ms):
        missed = replace(tuning, missed_steps=tuning.steps, missed_rps=reading.arrival_rate_rps)
        up = min(tuning.steps + 1, allowed.highest)
        return replace(missed, steps=up, changed_at_s=now_s) if up > tuning.steps else missed
    down = tuning.steps - 1
    has_slack = reading.latency_ms is not None and reading.latency_ms < SLACK * slo_ms
    if has_slack and down >= allowed.lowest and not _missed_at(tuning, down, reading.arrival_rate_rps):
        return replace(tuning, steps=down, changed_at_s=now_s)
    return tuning


def _is_miss(reading: Reading, slo_ms: float) -> bool:
    is_late = reading.latency_ms is not None and reading.latency_ms > slo_ms
    return is_late or reading.served_rps < SERVED * reading.arrival_rate_rps


def _missed_at(tuning: Tuning, steps: int, rate_rps: float) -> bool:
    """Whether so few steps were too few for a rate like this."""
    return tuning.missed_steps is not None and steps <= tuning.missed_steps and rate_rps >= SERVED * tuning.missed_rps


def tuning_to_json(tuning: Tuning) -> Json:
    """What to remember of a tuning."""
    return {
        "steps": tuning.steps,
        "changed_at_s": tuning.changed_at_s,
        "missed_steps": tuning.missed_steps,
        "missed_rps": tuning.missed_rps,
    }


def tuning_from_json(memory: Json, *, now_s: float) -> Tuning:
    """The remembered tuning, a new one where there is none; a last step that lies in the future is forgotten."""
    fields = memory if isinstance(memory, Mapping) else {}
    changed_at_s, missed_rps = _real(fields.get("changed_at_s")), _real(fields.get("missed_rps"))
    missed_steps = _whole(fields.get("missed_steps"))
    return Tuning(
        steps=_whole(fields.get("steps")) or 0,
        changed_at_s=None if changed_at_s is None or changed_at_s > now_s else changed_at_s,
        missed_steps=None if missed_rps is None else missed_steps,
        missed_rps=missed_rps or 0.0,
    )


def _whole(value: Json) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _real(value: Json) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None
