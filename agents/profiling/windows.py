"""When a measurement counts: windows are repeated until their medians agree.

    measure(cell, benches, watch, rules) -> Measurement

Each window is a closed loop with one batch in flight per member, all members in the same seconds. A window with an
objection (`watch`) does not count. The cell is done when the last `agreeing` windows that count have medians within
`spread_limit` of each other, for every member; their batches together give mean, p50 and p99. After `max_windows`
windows it is given up: a figure that does not repeat is none.
"""

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean, median
from typing import Protocol, TypeVar

from agents.profiling.cells import MeasurementCell, NotSteady
from agents.profiling.journal import Measurement, Timing
from agents.profiling.messages import LoadBatch, Loaded, Order, Ready, RunWindow, Timed
from agents.profiling.watch import GpuWatch, Seen, mean_of

START_S = 0.05
"""Until a window begins, so that all benches have heard of it."""
ANSWER_S = 60.0
"""For a batch that takes far longer than the one before."""
WARM_UP_S = 600.0
"""cuDNN and TensorRT try kernels for minutes."""
SURE_P99_BATCHES = 200
"""With fewer batches a p99 rests on one or two of them."""

_Kind = TypeVar("_Kind")


class RunsWindows(Protocol):
    """The part of `bench_processes.BenchProcess` that is needed."""

    @property
    def ready(self) -> Ready | None:
        """What it said when it came up."""
        ...

    async def ask(self, order: Order, kind: type[_Kind], *, limit_s: float) -> _Kind:
        """Its answer. Raises BenchFailed or BenchLost."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a good measurement is."""

    window_s: float = 2.0
    """At least; longer where `min_batches` take longer."""
    skip: float = 0.2
    """Share of the window at its beginning that does not count."""
    warm_up: int = 8
    """Batches."""
    min_batches: int = 10
    longest_window_s: float = 60.0
    agreeing: int = 3
    max_windows: int = 12
    """Windows of a cell."""
    spread_limit: float = 0.03
    accepted: frozenset[str] = frozenset()
    """What may hold the clock back in a window that counts, as the driver names it."""
    pause_s: float = 2.0
    """After a window that did not count: heat and foreign processes take time to go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counted:
    """A window that counts."""

    latencies_ms: tuple[tuple[float, ...], ...]
    """By member."""
    seen: Seen


async def measure(
    cell: MeasurementCell,
    benches: Sequence[RunsWindows],
    watch: GpuWatch,
    rules: Rules,
    *,
    base_mib: float | None,
) -> Measurement:
    """The cell's figures; `base_mib`: what the GPU held before they came, None where that is not known.

    Raises BenchFailed, BenchLost, NotSteady, or what the driver raises.
    """
    orders = [
        LoadBatch(rows=member.batch, warm_up=rules.warm_up) for member in cell.members
    ]
    loaded = await _all(benches, orders, Loaded, WARM_UP_S)
    window_s = _window_s(rules, max(each.batch_ms for each in loaded))
    counted: list[_Counted] = []
    rejected: list[str] = []
    for number in range(1, rules.max_windows + 1):
        window = await _window(cell, benches, watch, rules, window_s)
        if objections := _objections(window, window_s, rules.accepted):
            rejected += objections
            await asyncio.sleep(rules.pause_s)
            continue
        counted.append(window)
        # Only the newest are compared: a GPU that still warmed up in the first windows must not spoil the cell.
        last = counted[-rules.agreeing :]
        if len(last) == rules.agreeing and max(_spreads(last)) <= rules.spread_limit:
            grown_mib = (
                0.0 if base_mib is None else await watch.memory_used_mib() - base_mib
            )
            memory_mib = _memory_mib(benches, loaded, last, grown_mib)
            return Measurement(
                cell=cell,
                timings=_timings(cell, benches, last, memory_mib),
                power_w=mean_of(each.seen.power_w for each in last),
                clock_mhz=mean_of(each.seen.clock_mhz for each in last),
                windows=number,
                rejected=tuple(dict.fromkeys(rejected)),
                held_back_by=tuple(
                    sorted({why for each in last for why in each.seen.held_back_by})
                ),
            )
    raise NotSteady(_why_not(rules, counted, rejected))


def _window_s(rules: Rules, batch_ms: float) -> float:
    """Long enough for `min_batches` after its skipped part."""
    needed_s = rules.min_batches * batch_ms / 1000.0 / (1.0 - rules.skip)
    return min(rules.longest_window_s, max(rules.window_s, needed_s))


async def _window(
    cell: MeasurementCell,
    benches: Sequence[RunsWindows],
    watch: GpuWatch,
    rules: Rules,
    window_s: float,
) -> _Counted:
    # One start for all, set in advance: benches that began when they hear of it would run alone at first.
    start_s = time.monotonic() + START_S
    skip_s = rules.skip * window_s
    order = RunWindow(start_s=start_s, window_s=window_s, skip_s=skip_s)
    timing = asyncio.create_task(
        _all(benches, [order] * len(benches), Timed, START_S + window_s + ANSWER_S)
    )
    try:
        # The GPU is watched over the counted part only, so that power and latencies are of the same seconds.
        seen = await watch.over(
            start_s + skip_s, start_s + window_s, clock_mhz=cell.clock_mhz
        )
        timed = await timing
    finally:
        timing.cancel()
        # Waited for after its cancellation: while it still reads the pipe it would take the next answer.
        await asyncio.wait({timing})
    return _Counted(latencies_ms=tuple(each.latencies_ms for each in timed), seen=seen)


async def _all(
    benches: Sequence[RunsWindows],
    orders: Sequence[LoadBatch | RunWindow],
    kind: type[_Kind],
    limit_s: float,
) -> list[_Kind]:
    """Everybody's answer; a failure waits for the others, so that no answer is left over."""
    asked = (
        bench.ask(order, kind, limit_s=limit_s)
        for bench, order in zip(benches, orders, strict=True)
    )
    answers = await asyncio.gather(*asked, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return [answer for answer in answers if not isinstance(answer, BaseException)]


def _objections(
    found: _Counted, window_s: float, accepted: frozenset[str]
) -> tuple[str, ...]:
    held_back = (
        f"clock held back by {why}"
        for why in found.seen.held_back_by
        if why not in accepted
    )
    is_empty = not all(found.latencies_ms)
    empty = (f"no whole batch within {window_s:g} s",) if is_empty else ()
    return (*held_back, *found.seen.objections, *empty)


def _spreads(windows: Sequence[_Counted]) -> list[float]:
    """(highest − lowest) / middle of the windows' medians, by member."""
    by_member = zip(*(each.latencies_ms for each in windows), strict=True)
    medians = [[median(latencies) for latencies in member] for member in by_member]
    return [
        (max(each) - min(each)) / median(each) if median(each) > 0.0 else 0.0
        for each in medians
    ]


def _timings(
    cell: MeasurementCell,
    benches: Sequence[RunsWindows],
    windows: Sequence[_Counted],
    memory_mib: Sequence[float | None],
) -> tuple[Timing, ...]:
    spreads = _spreads(windows)
    found = []
    for place, member in enumerate(cell.members):
        latencies_ms = sorted(
            chain.from_iterable(each.latencies_ms[place] for each in windows)
        )
        ready = benches[place].ready
        found.append(
            Timing(
                member=member,
                latency_ms=fmean(latencies_ms),
                latency_ms_p50=median(latencies_ms),
                # The nearest rank: a latency that occurred, and not one between two.
                latency_ms_p99=latencies_ms[math.ceil(0.99 * len(latencies_ms)) - 1],
                batches=len(latencies_ms),
                spread=spreads[place],
                memory_mib=memory_mib[place],
                sm_count=None if ready is None else ready.sm_count,
            )
        )
    return tuple(found)


def _memory_mib(
    benches: Sequence[RunsWindows],
    loaded: Sequence[Loaded],
    windows: Sequence[_Counted],
    grown_mib: float,
) -> list[float | None]:
    """The memory of each process.

    It is what the driver says; else what the GPU took on with it, if it is alone; else what its engine knows of, which
    is less by the context.
    """
    found: list[float | None] = []
    for bench, answer in zip(benches, loaded, strict=True):
        pid = -1 if bench.ready is None else bench.ready.pid
        by_driver = max(
            (each.seen.memory_mib.get(pid, 0.0) for each in windows), default=0.0
        )
        known = answer.memory_mib or 0.0
        # What the GPU took on cannot be divided among several processes.
        grown = grown_mib if len(benches) == 1 else 0.0
        found.append(by_driver or max(known, grown) or None)
    return found


def _why_not(rules: Rules, counted: Sequence[_Counted], rejected: Sequence[str]) -> str:
    reasons = "; ".join(
        f"{rejected.count(each)} × {each}" for each in dict.fromkeys(rejected)
    )
    if len(counted) < rules.agreeing:
        return f"{len(counted)} of {rules.max_windows} windows counted, {rules.agreeing} are needed: {reasons}"
    spread = max(_spreads(counted[-rules.agreeing :]))
    reason = f"the medians of the last {rules.agreeing} of {len(counted)} windows lie {spread:.1%} apart"
    return f"{reason}, more than {rules.spread_limit:.1%}{f'; {reasons}' if reasons else ''}"
