"""How fast the replicas and tasks of one simulated GPU execute: the truth at their shares, clock, neighbours and power
limit."""

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol, TypeVar

import numpy as np

from agents.base.device import Part
from agents.sim.queues.replica_queue import ExecutionPace, ReplicaQueue
from agents.sim.queues.tally import Floats
from agents.sim.truth.running import RunningPart, SimulatedNeighbour
from agents.sim.truth.training import STALLED

CLOCK_STEP_MHZ = 15.0
"""NVIDIA's boards change their graphics clock in steps of 15 MHz (7.5 on some)."""
LOWEST_CLOCK_SHARE = 0.3
"""A share of the highest clock; a board does not throttle below it for power alone."""


QUEUE_CAPACITY = 512
"""Requests that one replica holds at most, running ones included; at least several of the largest batches."""
NOISE_DRAWS = 4096
"""Execution time factors drawn ahead per replica; they are used in turn, for ever."""


class SimulatedWorld(Protocol):
    """The part of `agents.sim.truth.truth.Truth` that a simulation reads."""

    def max_batch(self, network: str) -> int:
        """Largest batch that was measured."""
        ...

    def noise_cv(self, network: str) -> float:
        """Standard deviation of one batch's time over its mean."""
        ...

    def batch_ms(self, placed: RunningPart) -> Floats:
        """Mean time by batch size: (max_batch + 1,)."""
        ...

    def stall_ms(self, placed: RunningPart) -> float:
        """Mean stall of the batches that stall."""
        ...

    def busy_w(self, placed: RunningPart, batch: int) -> float:
        """Watts above idle while such a batch runs."""
        ...

    def idle_w(self, gpu_type: str) -> float:
        """Watts of an idle GPU."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedPart:
    """One replica or task as its GPU sees it."""

    network: str
    sm_percent: float
    batch: int
    slo_s: float = math.inf
    is_task: bool = False
    """Whether it runs without pause, always at its own batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPace:
    """How fast a task iterates, and at what power, as long as nothing on its GPU changes."""

    iteration_s: float
    busy_w: float
    """Watts that it adds to its GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUnderLoad:
    """The GPU under them."""

    gpu_type: str
    clock_mhz: float
    """Wanted: the locked clock, or the highest."""
    lowest_mhz: float
    power_limit_w: float
    slowdown: float = 1.0
    """Factor on every execution time; above 1 for a straggler."""


def make_queue(
    world: SimulatedWorld, network: str, random: np.random.Generator
) -> ReplicaQueue:
    """An empty queue of a replica, with noise of its own."""
    return ReplicaQueue(
        capacity=QUEUE_CAPACITY,
        noise=draw_noise(random, world.noise_cv(network)),
        stalls=draw_stalls(random),
    )


def draw_noise(random: np.random.Generator, deviation: float) -> Floats:
    """(NOISE_DRAWS,) log-normal factors of mean 1 and the given standard deviation."""
    # Of the logarithm: with mean −variance/2 the factors themselves have mean 1.
    variance = np.log1p(deviation**2)
    return random.lognormal(-variance / 2.0, np.sqrt(variance), NOISE_DRAWS)


def draw_stalls(random: np.random.Generator) -> Floats:
    """(NOISE_DRAWS,) what batches stall next to training, over the mean stall: 0 for all but the share `STALLED`."""
    stalls = random.standard_exponential(NOISE_DRAWS)
    return np.where(random.random(NOISE_DRAWS) < STALLED, stalls, 0.0)


Key = TypeVar("Key", bound=Hashable)
Found = TypeVar("Found")

_MAX_FOUND = 20_000
"""What is remembered of a kind: some ten MB of times."""


@dataclass(slots=True)
class PaceMaker:
    """Paces of what runs on the GPUs of one world; remembers the times and watts that it has looked up.

    Of a task only its own batch is looked up: training networks have batches by the thousand.
    """

    world: SimulatedWorld
    _watts: dict[RunningPart, Floats] = field(default_factory=dict)
    _times_ms: dict[RunningPart, Floats] = field(default_factory=dict)
    _busy_watts: dict[RunningPart, float] = field(default_factory=dict)
    """At the own batch."""
    _full_watts: dict[tuple[str, float, tuple[SimulatedPart, ...]], float] = field(
        default_factory=dict
    )
    """The power of a GPU of a type, at a clock, where all its tenants work at once."""
    _task_times_ms: dict[RunningPart, float] = field(default_factory=dict)

    def clock_mhz(
        self, board: GpuUnderLoad, tenants: tuple[SimulatedPart, ...]
    ) -> float:
        """The clock in effect: the wanted one, or the highest below at which full load keeps within the power limit."""
        # Most boards are within their limit, and the search takes several look-ups.
        if self._full_load_w(board, tenants, board.clock_mhz) <= board.power_limit_w:
            return board.clock_mhz
        steps = int((board.clock_mhz - board.lowest_mhz) // CLOCK_STEP_MHZ)
        low, high = 0, max(0, steps)
        while (
            low < high
        ):  # watts fall with every step down: find the first step that fits
            middle = (low + high) // 2
            if (
                self._full_load_w(
                    board, tenants, board.clock_mhz - middle * CLOCK_STEP_MHZ
                )
                <= board.power_limit_w
            ):
                high = middle
            else:
                low = middle + 1
        return board.clock_mhz - low * CLOCK_STEP_MHZ

    def paces(
        self,
        board: GpuUnderLoad,
        tenants: Mapping[Part, SimulatedPart],
        clock_mhz: float,
    ) -> dict[Part, ExecutionPace]:
        """The pace of every replica at the clock in effect. Raises TruthError for an unknown network."""
        return {
            part: ExecutionPace(
                batch=tenant.batch,
                batch_s=self._batch_s(
                    board, clock_mhz, tenant, neighbours(tenants, part)
                ),
                batch_w=self._batch_w(board, clock_mhz, tenant),
                slo_s=tenant.slo_s,
                stall_s=self.world.stall_ms(
                    _placed(board, clock_mhz, tenant, neighbours(tenants, part))
                )
                / 1000.0,
            )
            for part, tenant in tenants.items()
            if not tenant.is_task
        }

    def task_paces(
        self,
        board: GpuUnderLoad,
        tenants: Mapping[Part, SimulatedPart],
        clock_mhz: float,
    ) -> dict[Part, TaskPace]:
        """The pace of every task at the clock in effect. Raises TruthError for an unknown network."""
        return {
            part: TaskPace(
                iteration_s=self._iteration_s(
                    board, clock_mhz, tenant, neighbours(tenants, part)
                ),
                busy_w=self._busy_w(board, clock_mhz, tenant),
            )
            for part, tenant in tenants.items()
            if tenant.is_task
        }

    def _batch_s(
        self,
        board: GpuUnderLoad,
        clock_mhz: float,
        tenant: SimulatedPart,
        others: tuple[SimulatedNeighbour, ...],
    ) -> Floats:
        # The slowdown of a straggler is not part of the key: it multiplies what was remembered.
        times_ms = _remembered(
            self._times_ms,
            _placed(board, clock_mhz, tenant, others),
            self.world.batch_ms,
        )
        return times_ms * (board.slowdown / 1000.0)

    def _iteration_s(
        self,
        board: GpuUnderLoad,
        clock_mhz: float,
        task: SimulatedPart,
        others: tuple[SimulatedNeighbour, ...],
    ) -> float:
        def look_up(placed: RunningPart) -> float:
            return float(self.world.batch_ms(placed)[task.batch])

        time_ms = _remembered(
            self._task_times_ms, _placed(board, clock_mhz, task, others), look_up
        )
        return time_ms * board.slowdown / 1000.0

    def _batch_w(
        self, board: GpuUnderLoad, clock_mhz: float, tenant: SimulatedPart
    ) -> Floats:
        def look_up(placed: RunningPart) -> Floats:
            batches = range(1, self.world.max_batch(tenant.network) + 1)
            return np.array(
                [0.0, *(self.world.busy_w(placed, batch) for batch in batches)]
            )

        return _remembered(self._watts, _placed(board, clock_mhz, tenant, ()), look_up)

    def _full_load_w(
        self, board: GpuUnderLoad, tenants: tuple[SimulatedPart, ...], clock_mhz: float
    ) -> float:
        def look_up(_: object) -> float:
            return self.world.idle_w(board.gpu_type) + sum(
                self._busy_w(board, clock_mhz, each) for each in tenants
            )

        return _remembered(
            self._full_watts, (board.gpu_type, clock_mhz, tenants), look_up
        )

    def _busy_w(
        self, board: GpuUnderLoad, clock_mhz: float, tenant: SimulatedPart
    ) -> float:
        def look_up(placed: RunningPart) -> float:
            return self.world.busy_w(placed, tenant.batch)

        return _remembered(
            self._busy_watts, _placed(board, clock_mhz, tenant, ()), look_up
        )


def _remembered(
    memo: dict[Key, Found], key: Key, look_up: Callable[[Key], Found]
) -> Found:
    """What was found of it before, or is looked up; a full memo begins again."""
    if key not in memo:
        if len(memo) >= _MAX_FOUND:
            # Cleared entirely, which is rare, and simpler than forgetting the oldest.
            memo.clear()
        memo[key] = look_up(key)
    return memo[key]


def neighbours(
    tenants: Mapping[Part, SimulatedPart], part: Part
) -> tuple[SimulatedNeighbour, ...]:
    """The other replicas and tasks."""
    return tuple(
        SimulatedNeighbour(tenant.network, tenant.sm_percent, tenant.batch)
        for other, tenant in tenants.items()
        if other != part
    )


def _placed(
    board: GpuUnderLoad,
    clock_mhz: float,
    tenant: SimulatedPart,
    others: tuple[SimulatedNeighbour, ...],
) -> RunningPart:
    return RunningPart(
        network=tenant.network,
        gpu_type=board.gpu_type,
        sm_percent=tenant.sm_percent,
        batch=tenant.batch,
        clock_mhz=clock_mhz,
        neighbours=others,
    )


@cache
def clocks_mhz(highest_mhz: float) -> tuple[float, ...]:
    """The clocks that can be locked: NVIDIA's boards have them in steps of 15 MHz from the highest down."""
    steps = int(highest_mhz * (1.0 - LOWEST_CLOCK_SHARE) / CLOCK_STEP_MHZ)
    return tuple(highest_mhz - CLOCK_STEP_MHZ * step for step in range(steps, -1, -1))
