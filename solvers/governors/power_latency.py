"""power_latency: clock and batches hold the power cap and every replica's latency at once.

Per period, with P the peak power, P_c the cap, and per replica L its latency and L_u its SLO's:

    P <= α P_c,        L < β L_u          batch up           P > P_c,  L < β L_u    clock down
    P <= α P_c, β L_u <= L <= L_u         clock up           P > P_c,  L >= β L_u   batch down
    α P_c < P <= P_c,  L <= L_u           stay               else,     L > L_u      batch down, at batch 1 clock up

The clock changes at most once per period, since all replicas of a GPU share it. Where they want opposite things the cap
outranks a latency above its limit, and that outranks head-room: while one is above, no batch is raised. Three failing
periods in a row (over the cap, or a latency above its limit) mean that no knob helps: `asks_for_partition`.

Source: Morak, section V-C and algorithm 1 (start at batch 1 and 600 MHz; it leaves L > L_u open, and α, β and the
steps). α = 0.98, β = 0.9 and clock steps of 1, 2, 5 or 10 grid points, by default (`GovernorTuning`), are those of a
public re-implementation (PctoDL).
Ours, so that it settles in few periods and then keeps its limits for good under a steady load:

* L is the measured latency, but at most two batches' time: a request waits for one batch before its own; what it waits
  beyond is want of throughput, which a smaller batch would make worse.
* A batch goes straight to the middle between β and 1, as if time were proportional to it. Time is affine in the batch,
  so that never overshoots. One that broke the limit is tried again only where even that would keep it.
* Far below the cap (more than 20 %) a latency of FAR_LATENCY_SHARE of its limit asks for clock and batch at once: each
  step of the clock takes latencies below β L_u again, and one after the other takes twice as long.
* Where no batch grows any more, a replica that more requests wait for than one batch takes wants a higher clock, too.
* A step of the clock downwards doubles with every failing period in a row before, up to eight times.
* After a breach of the cap no batch grows, and the clock rises only as far as the line from the present power to that
  of the breach keeps the cap (power is convex in the clock), until power has fallen for good, as in `ladder`. A first
  breach is doubted, and forgotten, when power then stays far below the cap for DOUBT_PERIODS: one false reading must
  not hold a GPU at its start for ever. A second one is believed.

Good for throughput under both limits. Its limits: after a restart it serves little for some seconds; a lightly loaded
GPU stays at a low clock, which saves energy, and is some seconds late for a burst.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from solvers.governors.ladder import CALM_PERIODS, FAR_RUNGS, clock_stride
from solvers.governors.types import (
    GovernorKnobs,
    GovernorLimits,
    GovernorTuning,
    GpuPeriod,
    ReplicaLimits,
    ReplicaPeriod,
    clock_position,
)

FAR_LATENCY_SHARE = 0.7
"""0.95 becomes 0.76 where a clock of 600 MHz rises by ten points of 15 MHz."""
BATCH_BACK_OFF = 0.9
MAX_GROWTH = 4
"""A batch grows at most by this factor at once: at batch 1 the fixed part of its time hides the rest."""
START_CLOCK_MHZ = 600.0
FAILING_PERIODS = 3
DOUBT_PERIODS = 6

_FAILING = "failing"
_CAREFUL = "careful:"


def start(limits: GovernorLimits) -> GovernorKnobs:
    """Where the governor begins: every batch 1, and the clock of the grid that is nearest to 600 MHz."""
    return GovernorKnobs(
        clock_mhz=min(
            limits.clocks_mhz, key=lambda clock: (abs(clock - START_CLOCK_MHZ), clock)
        ),
        batches={each.id: 1 for each in limits.replicas},
    )


def asks_for_partition(memory: Mapping[str, float]) -> bool:
    """Whether a governor with these notes has failed so often in a row that only other shares can help."""
    return memory.get(_FAILING, 0.0) >= FAILING_PERIODS


def step(
    knobs: GovernorKnobs, reading: GpuPeriod, limits: GovernorLimits
) -> GovernorKnobs:
    """One step by the rules; a GPU that executed nothing stays unless it is over the cap."""
    bounds = {each.id: each for each in limits.replicas}
    replicas = [
        _busy_replica(each, knobs, bounds[each.id], limits.tuning)
        for each in reading.replicas
        if each.batches
    ]
    power = _judge_power(_recall_power(knobs, reading, limits), knobs.memory)
    turn = _over_cap(replicas, power) if power.is_over else _under_cap(replicas, power)
    position = _position(power, turn.clock, len(limits.clocks_mhz))
    after = replace(
        knobs,
        clock_mhz=limits.clocks_mhz[position],
        batches={**knobs.batches, **turn.batches},
    )
    memory = _careful_notes(knobs.memory, replicas) | power.memory(moved=after != knobs)
    is_failing = power.is_over or any(each.share > 1.0 for each in replicas)
    memory[_FAILING] = power.failing + 1.0 if is_failing else 0.0
    return replace(after, memory=memory)


@dataclass(frozen=True, slots=True, kw_only=True)
class _BusyReplica:
    """One replica that worked in the period."""

    id: str
    batch: int
    largest: int
    share: float
    """Latency as a share of its limit."""
    is_short: bool
    """More waits than one batch takes."""
    target_share: float
    """Where a batch that is turned aims at."""
    is_careful: bool
    """Whether a batch has broken the limit: from then on only those grow that keep it for sure."""

    @property
    def raised(self) -> int:
        """The next larger batch, or the same where none can be tried."""
        # As if time were proportional to the batch: it is affine, so that the aim is never missed upwards.
        aim = math.floor(self.batch * self.target_share / self.share)
        is_sure = self.share * (self.batch + 1) <= self.batch
        # At small batches the aim rounds down to the present one; one request more is tried where it may be.
        tried = self.batch + (1 if is_sure or not self.is_careful else 0)
        return min(max(min(aim, MAX_GROWTH * self.batch), tried), self.largest)

    def lowered(self, max_share: float) -> int:
        """The next smaller batch, at least 1: below what its latency allows, and at most that share of the present."""
        share = min(BATCH_BACK_OFF, max_share, self.target_share / self.share)
        return max(1, min(self.batch - 1, math.floor(self.batch * share)))


def _busy_replica(
    each: ReplicaPeriod,
    knobs: GovernorKnobs,
    bounds: ReplicaLimits,
    tuning: GovernorTuning,
) -> _BusyReplica:
    batch = knobs.batches[each.id]
    # A request waits for one batch before its own; longer waits are want of throughput (module docstring).
    latency_ms = min(each.latency_ms, 2.0 * each.execution_ms)
    share = max(latency_ms / bounds.latency_ms, 1e-6)
    return _BusyReplica(
        id=each.id,
        batch=batch,
        largest=bounds.largest_batch,
        share=share,
        is_short=each.queued > batch,
        target_share=tuning.target_share,
        is_careful=share > 1.0 or f"{_CAREFUL}{each.id}" in knobs.memory,
    )


def _careful_notes(
    memory: Mapping[str, float], replicas: list[_BusyReplica]
) -> dict[str, float]:
    # Notes of idle replicas are kept: that their batches broke the limit is still true.
    kept = {key: value for key, value in memory.items() if key.startswith(_CAREFUL)}
    return kept | {f"{_CAREFUL}{each.id}": 1.0 for each in replicas if each.is_careful}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    """What the replicas ask for."""

    batches: Mapping[str, int]
    clock: int
    """1 = up, -1 = down, 0 = stay."""


def _over_cap(replicas: list[_BusyReplica], power: "_Power") -> _Turn:
    # At the lowest clock only batches are left.
    near = [
        each
        for each in replicas
        if each.share >= power.tuning.steady_latency_share or not power.position
    ]
    max_share = power.cap_w / power.power_w
    lowered = {each.id: each.lowered(max_share) for each in near if each.batch > 1}
    # Where no batch is left to lower, the clock has to: the cap outranks every latency.
    is_clock_wanted = len(near) < len(replicas) or not lowered
    return _Turn(batches=lowered, clock=-1 if is_clock_wanted else 0)


def _under_cap(replicas: list[_BusyReplica], power: "_Power") -> _Turn:
    above = [each for each in replicas if each.share > 1.0]
    lowered = {each.id: each.lowered(1.0) for each in above if each.batch > 1}
    if not power.has_room:
        return _Turn(batches=lowered, clock=0)
    # A latency above its limit outranks head-room: until it is kept, no batch is raised.
    if above:
        return _Turn(batches=lowered, clock=1 if len(lowered) < len(above) else 0)
    return _use_room(replicas, power)


def _use_room(replicas: list[_BusyReplica], power: "_Power") -> _Turn:
    """What to raise where every limit is kept and power has room."""
    # With a breach known, only the clock climbs: its room to the breach is measured, that of a batch is not.
    steady_share = power.tuning.steady_latency_share
    raised = {
        each.id: each.raised
        for each in replicas
        if not power.is_warned and each.share < steady_share
    }
    # A far step shortens latencies by more, so it is taken from a lower share on.
    near_share = min(FAR_LATENCY_SHARE, steady_share) if power.is_far else steady_share
    grows = any(raised.get(each.id, each.batch) > each.batch for each in replicas)
    is_clock_wanted = any(
        each.share >= near_share or (each.is_short and not grows) for each in replicas
    )
    return _Turn(batches=raised, clock=1 if is_clock_wanted else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Power:
    """What the period says of power, and what is known of the last breach."""

    position: int
    """Position of the clock in its grid."""
    power_w: float
    cap_w: float
    tuning: GovernorTuning
    breach: int = -1
    """Position of the clock that broke the cap; -1 = none is known."""
    breach_w: float = 0.0
    base_w: float = 0.0
    """Power when the present knobs were first seen."""
    failing: int = 0
    """Failing periods in a row before this one."""
    calm: int = 0
    """Periods in a row after which the breach would not come again."""
    far: int = 0
    """Periods in a row, with a breach known, that were far below the cap."""
    doubts: int = 0
    """1 = a breach was doubted and forgotten; 2 = there was another one, and it is believed."""

    @property
    def is_over(self) -> bool:
        return self.power_w > self.cap_w

    @property
    def has_room(self) -> bool:
        return self.power_w <= self.tuning.steady_power_share * self.cap_w

    @property
    def stride(self) -> int:
        steps = clock_stride(self.power_w, self.cap_w)
        return min(steps, self.tuning.largest_clock_step)

    @property
    def is_far(self) -> bool:
        return clock_stride(self.power_w, self.cap_w) == FAR_RUNGS

    @property
    def is_warned(self) -> bool:
        return self.breach >= 0

    def memory(self, *, moved: bool) -> dict[str, float]:
        return {
            "breach": float(self.breach),
            "breach_w": self.breach_w,
            "base_w": 0.0 if moved else self.base_w,
            "calm": float(self.calm),
            "far": float(self.far),
            "doubts": float(self.doubts),
        }


def _recall_power(
    knobs: GovernorKnobs, reading: GpuPeriod, limits: GovernorLimits
) -> _Power:
    """The period's power with the notes of the one before; nothing is concluded from it yet."""
    memory = knobs.memory
    return _Power(
        position=clock_position(knobs.clock_mhz, limits.clocks_mhz),
        power_w=reading.peak_power_w,
        cap_w=limits.power_cap_w,
        tuning=limits.tuning,
        breach=int(memory.get("breach", -1.0)),
        breach_w=memory.get("breach_w", 0.0),
        # 0 = the knobs are new: this period is the first that they are seen in.
        base_w=memory.get("base_w", 0.0) or reading.peak_power_w,
        failing=int(memory.get(_FAILING, 0.0)),
        doubts=int(memory.get("doubts", 0.0)),
    )


def _judge_power(power: _Power, memory: Mapping[str, float]) -> _Power:
    """What the period changes in the breach that is known, and in the doubts about it."""
    if power.is_over:
        doubts = 2 if power.is_warned or power.doubts else 0
        return replace(
            power, breach=power.position, breach_w=power.power_w, doubts=doubts
        )
    if not power.is_warned:
        return power
    forgotten = replace(power, breach=-1, breach_w=0.0)
    steady_w = power.tuning.steady_power_share * power.cap_w
    if power.power_w * power.breach_w <= steady_w * power.base_w:
        calm = int(memory.get("calm", 0.0)) + 1
        if calm < CALM_PERIODS:
            return replace(power, calm=calm)
        return replace(forgotten, doubts=0)
    far = int(memory.get("far", 0.0)) + 1 if power.is_far else 0
    # Doubted once only: a breach that came again after it was doubted is believed.
    if far < DOUBT_PERIODS or power.doubts:
        return replace(power, far=far)
    return replace(forgotten, doubts=1)


def _position(power: _Power, direction: int, clocks: int) -> int:
    """Where the clock goes in its grid."""
    stride = power.stride
    if direction < 0:
        # Each failing period doubles the step: a cap that stays broken is more urgent than a smooth clock.
        return max(0, power.position - (stride << min(power.failing, FAILING_PERIODS)))
    if direction == 0:
        return power.position
    if power.is_warned:
        if power.breach <= power.position:
            return power.position
        # The watts between here and the breach are known: the line through both says how far the room reaches.
        room_w = power.tuning.steady_power_share * power.cap_w - power.power_w
        stride = math.floor(
            (power.breach - power.position) * room_w / (power.breach_w - power.power_w)
        )
    return min(clocks - 1, power.position + stride)
