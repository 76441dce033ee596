"""What the demo's processes tell while they run: pictures for the terminal, figures for the report."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from app.catalogue.catalogue import load_gpu_types
from app.demo.baseline import BaselineTarget
from app.demo.cluster_process import LoadTotals
from app.demo.feed import Pushed
from app.demo.scenario import GPU_TYPES
from app.demo.view import Frame
from app.loop.tick import TickOutcome
from app.simulate.run.accounting import Bill, hourly_cost_usd, make_bill, within


class BaselineWatch:
    """What is known of the baseline, whose simulation goes at its own pace."""

    def __init__(self, start: datetime) -> None:
        """`start`: of its load."""
        self._start = start
        self._pushed: Pushed = []
        self._gpu_types = load_gpu_types(GPU_TYPES)
        self._known_s = 0
        self._totals: dict[int, asyncio.Future[LoadTotals]] = {}
        """By the end of the minute, in seconds of the load."""

    def note(self, message: BaselineTarget | LoadTotals) -> None:
        """One message of its process."""
        if isinstance(message, LoadTotals):
            self._known_s = self._second(message.at)
            self.totals_at(message.at).set_result(message)
        else:
            self._pushed.append((message.at, message.plan))

    def totals_at(self, at: datetime) -> "asyncio.Future[LoadTotals]":
        """What came of its load up to then, the end of a minute, as soon as it has come so far."""
        return self._totals.setdefault(self._second(at), _future())

    def _second(self, at: datetime) -> int:
        # Two simulations reach the same moment by other steps, and round it otherwise.
        return round((at - self._start).total_seconds())

    def bill(self, until: datetime) -> Bill:
        """What it cost from the beginning of the load."""
        past = within(self._pushed, self._start, until)
        return make_bill(past, self._gpu_types, until)

    def _migration_usd(self, trace_s: float) -> float:
        """What its handovers had cost when the last minute ended before that time."""
        ended = (
            future.result().migration_usd
            for second, future in self._totals.items()
            if second <= trace_s and future.done()
        )
        return max(ended, default=0.0)

    def beside(self, frame: Frame) -> Frame:
        """The frame with what the baseline costs at that time, where its simulation has come so far."""
        at = self._start + timedelta(seconds=frame.trace_s)
        if frame.trace_s > self._known_s:
            return frame
        past = within(self._pushed, self._start, at)
        target = past[-1][1] if past else None
        return replace(
            frame,
            baseline_now_usd_per_hour=hourly_cost_usd(target, self._gpu_types),
            baseline_usd=self.bill(at).total_usd + self._migration_usd(frame.trace_s),
        )


class ClusterWatch:
    """What is known of the demo's own cluster until the load is over that the report is of."""

    def __init__(
        self,
        show: Callable[[Frame], None],
        note_tick: Callable[[TickOutcome], None],
        *,
        began_s: float,
    ) -> None:
        """`note_tick`: hears of every tick, also after that. `began_s`: when the command did."""
        self._show = show
        self._note_tick = note_tick
        self._began_s = began_s
        self.ticks: list[TickOutcome] = []
        self.first_plan_s = 0.0
        """Wall seconds from the command to the first plan."""
        self.over: asyncio.Future[LoadTotals] = _future()

    def note(self, message: TickOutcome | Frame | LoadTotals) -> None:
        """One message of its process."""
        if isinstance(message, TickOutcome):
            self._note_tick(message)
        # With `--keep` the load goes on: that is for the dashboard.
        if self.over.done():
            return
        if isinstance(message, LoadTotals):
            self.over.set_result(message)
        elif isinstance(message, TickOutcome):
            self.ticks.append(message)
            if message.generation and not self.first_plan_s:
                self.first_plan_s = time.monotonic() - self._began_s
        else:
            self._show(message)


async def load_of(
    over: "asyncio.Future[LoadTotals]", ended: "asyncio.Future[None]"
) -> LoadTotals:
    """The end of a process's load. Raises ChildEnded where the process ended before."""
    await first_of(over, ended)
    if not over.done():
        ended.result()
    return over.result()


async def first_of(
    over: "asyncio.Future[LoadTotals]", ended: "asyncio.Future[None]"
) -> None:
    """Wait for either, whatever it came to."""
    both: set[asyncio.Future[LoadTotals] | asyncio.Future[None]] = {over, ended}
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)


def _future() -> "asyncio.Future[LoadTotals]":
    return asyncio.get_running_loop().create_future()
