"""One simulated task: how far it comes in trace time, what it draws, and when it ends.

    starting ──▶ running ──▶ finished        any of these ──▶ failed, with its GPU
        │         │   ▲
        ▼         ▼   │
      failed    swapping ──▶ swapped

Its progress is a straight line between two changes of its pace and two ends of a stretch of trace time (`STRETCH_S`),
counted from the line's beginning, so that no cut of the time axis changes it.
"""

import math

import numpy as np

from agents.base.device import SWAP_MIB_PER_S, RunningTask, running_task, task_reading
from agents.base.protocol import TaskCommand, TaskReading, TaskState
from agents.sim.pace import SimulatedPart, TaskPace, draw_noise

STRETCH_S = 10.0
"""Trace time over which a task's noise stays. The noise of single iterations would average out within it; the factor
stands for what drifts from minute to minute, and is as large as that of one batch, so rather too large."""


class SimTask:
    """One simulated task. Its owner calls `arrive` when it is due and `set_pace` when anything on its GPU changes."""

    def __init__(
        self,
        command: TaskCommand,
        *,
        ready_at_s: float,
        random: np.random.Generator,
        noise_cv: float,
    ) -> None:
        self.command = command
        self.state: TaskState = "starting"
        self.due_s = ready_at_s
        """When its launch or its way to or from the host ends; infinite otherwise."""
        self.busy_s = 0.0
        """Time of the window in which it ran."""
        self.energy_j = 0.0
        """Energy of the window above idle."""
        self._becomes: TaskState = "running"
        self._pace = TaskPace(iteration_s=math.inf, busy_w=0.0)  # until it runs
        self._noise = draw_noise(random, noise_cv)
        self._now_s = 0.0
        """Up to when it has run; stands still while it does not."""
        self._line_s = 0.0
        """When the present line of progress began, at `_line_done`."""
        self._line_done = self._window_done = command.done_iterations
        self._stretch = 0
        """Number of the present stretch."""

    @property
    def holds_memory(self) -> bool:
        """Whether GPU memory is taken."""
        return self.running_task().holds_memory

    @property
    def tenant(self) -> SimulatedPart:
        """What its GPU and neighbours see of it."""
        command = self.command
        return SimulatedPart(
            network=command.network,
            sm_percent=command.sm_percent,
            batch=command.batch,
            is_task=True,
        )

    @property
    def done_iterations(self) -> float:
        """How far it has come."""
        if self.state == "finished":
            return float(self.command.iterations)
        return self._line_done + (self._now_s - self._line_s) / self._iteration_s(
            self._stretch
        )

    def arrive(
        self,
        *,
        launch_fails: bool,
    ) -> None:
        """The launch, or the way to or from the host, is over."""
        is_launch = self.state == "starting"
        self.state = "failed" if is_launch and launch_fails else self._becomes
        # Progress is computed before the line on which it grows is replaced.
        self._line_done = self.done_iterations
        self._now_s = self._line_s = self.due_s
        self._stretch = int(self.due_s // STRETCH_S)
        self.due_s = math.inf

    def swap(
        self,
        becomes: TaskState,
        now_s: float,
    ) -> None:
        """Begin to move the memory; it makes no progress until it is back."""
        self.state, self._becomes = "swapping", becomes
        self.due_s = now_s + self.command.memory_mib / SWAP_MIB_PER_S

    def fail(self) -> None:
        """Its GPU is gone; what has finished stays so."""
        self.state = "finished" if self.state == "finished" else "failed"
        self.due_s = math.inf

    def finish(self) -> None:
        """All iterations are done."""
        self.state = "finished"

    def set_pace(self, pace: TaskPace) -> None:
        """Go on at another pace."""
        # What was done at the old pace stays done.
        self._line_done, self._line_s = self.done_iterations, self._now_s
        self._pace = pace

    def run(
        self,
        start_s: float,
        end_s: float,
    ) -> None:
        """Run through [start, end) of trace time, in which it does not finish."""
        self.busy_s += end_s - start_s
        self.energy_j += (end_s - start_s) * self._pace.busy_w
        while (edge_s := (self._stretch + 1) * STRETCH_S) <= end_s:
            self._line_done += (edge_s - self._line_s) / self._iteration_s(
                self._stretch
            )
            self._line_s, self._stretch = edge_s, self._stretch + 1
        self._now_s = end_s

    def finish_s(self, until_s: float) -> float:
        """When it finishes if nothing changes; looks no further than the stretch of `until_s`, infinite beyond."""
        done, line_s, stretch = self._line_done, self._line_s, self._stretch
        while line_s <= until_s:
            iteration_s, edge_s = self._iteration_s(stretch), (stretch + 1) * STRETCH_S
            finish_s = line_s + (self.command.iterations - done) * iteration_s
            if finish_s <= edge_s:
                return max(
                    finish_s, self._now_s
                )  # done may be a last digit beyond the end
            done, line_s, stretch = (
                done + (edge_s - line_s) / iteration_s,
                edge_s,
                stretch + 1,
            )
        return math.inf

    def running_task(self) -> RunningTask:
        """The task as enforcement sees it."""
        return running_task(self.command, self.state)

    def read(self, gpu_index: int) -> TaskReading:
        """What it did since the last reading; a new window begins."""
        done = self.done_iterations
        iterations, busy_s = done - self._window_done, self.busy_s
        self._window_done, self.busy_s, self.energy_j = done, 0.0, 0.0
        return task_reading(
            self.command,
            self.state,
            gpu_index,
            done_iterations=done,
            window_iterations=iterations,
            busy_s=busy_s,
        )

    def _iteration_s(self, stretch: int) -> float:
        return self._pace.iteration_s * float(self._noise[stretch % len(self._noise)])
