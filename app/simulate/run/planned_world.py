"""A world in which everything takes exactly the time that the planner reckons with.

A plan makes its promise under the laws of the contract, for Poisson arrivals and given operating points. Here these
hold to the letter: a batch of any size takes the time of a whole one, neighbours slow as the law says, and no noise
is added. So what goes wrong in this world is the planner's fault, or the loop's, never the prediction's; and networks
that were not measured can be simulated. Whether predictions hold is what `agents.sim.truth.truth` is for.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import cast

import numpy as np

from agents.llm.scheduler import BLOCK_TOKENS, Step
from agents.sim.queues.tally import Floats
from agents.sim.truth.llm_steps import EnginePlace, MakeEngine
from agents.sim.truth.running import RunningPart, SimulatedNeighbour
from agents.sim.truth.training import STALLED
from agents.sim.truth.truth import TruthError
from app.catalogue.language_models import find_architecture, find_hardware
from app.catalogue.llm_rows import POWER_SHARE
from solvers.laws.colocation import execution_ms, neighbours_with
from solvers.llm.architecture import Precision
from solvers.llm.belief import PLANNED, UNMEASURED
from solvers.llm.kv_cache import MEMORY_SHARE, EngineLimits, kv_tokens
from solvers.llm.runtimes import RUNTIMES
from solvers.llm.step_law import LlmEngine, step_table
from solvers.types.problem import OperatingPoint, OperatingPoints
from solvers.types.state import GpuType

_USUAL_LIMITS = EngineLimits(max_num_batched_tokens=8192)
"""What caches are simulated by: another token budget changes them by a per cent."""
_MIB_PER_GIB = 1024.0
Key = tuple[str, str, float, int]
"""Network, GPU type, SM percent, batch."""


class PlannedWorld:
    """A `agents.sim.pace.SimulatedWorld` made of operating points."""

    def __init__(
        self,
        gpu_types: Iterable[GpuType],
        points: Iterable[OperatingPoints],
        *,
        training: Collection[str] = (),
    ) -> None:
        """`training`: the networks among them that are training's."""
        known = tuple(points)
        self._types: Mapping[str, GpuType] = {each.name: each for each in gpu_types}
        self._training = frozenset(training)
        self._sensitivity = {
            (each.network, each.gpu_type): each.sensitivity for each in known
        }
        self._rows: dict[Key, list[OperatingPoint]] = defaultdict(list)
        for each in known:
            for row in each.rows:
                self._rows[
                    each.network, each.gpu_type, row.sm_percent, row.batch
                ].append(row)
        # Over all GPU types: tables of times have one length for a network, wherever it runs.
        self._max_batch: dict[str, int] = {}
        for each in known:
            largest = max((row.batch for row in each.rows), default=0)
            self._max_batch[each.network] = max(
                largest, self._max_batch.get(each.network, 0)
            )

    def max_batch(self, network: str) -> int:
        """Largest batch of any operating point. Raises TruthError for an unknown network."""
        if network not in self._max_batch:
            raise TruthError(
                f"no operating points for network {network!r}; known: {', '.join(self._max_batch)}"
            )
        return self._max_batch[network]

    def noise_cv(self, network: str) -> float:  # noqa: ARG002  nothing is uncertain here
        """No spread."""
        return 0.0

    def batch_ms(self, placed: RunningPart) -> Floats:
        """(max_batch + 1,) the time of a whole batch, whatever its size; entry 0 is 0.

        Raises TruthError where a replica runs at what is no operating point.
        """
        # The law of the planner itself: so what a plan promises holds here to the letter.
        full_batch_ms = execution_ms(
            self._row(placed, placed),
            neighbours_with(self._row(other, placed) for other in placed.neighbours),
            sensitivity=self._sensitivity[placed.network, placed.gpu_type],
            gpu_type=self._types[placed.gpu_type],
        )
        times = np.full(self.max_batch(placed.network) + 1, full_batch_ms)
        times[0] = 0.0
        return times

    def stall_ms(self, placed: RunningPart) -> float:
        """That with which the 99th percentile gains what the rows of its training neighbours say."""
        if placed.network in self._training:
            return 0.0
        gained_ms = sum(
            self._row(other, placed).stall_ms for other in placed.neighbours
        )
        # An exponential that only this share of batches draw passes its mean times this in one of a hundred.
        return gained_ms / math.log(100.0 * STALLED)

    def busy_w(self, placed: RunningPart, batch: int) -> float:  # noqa: ARG002  as for a whole batch
        """Watts of a whole batch."""
        return self._row(placed, placed).power_w

    def idle_w(self, gpu_type: str) -> float:
        """Watts of a GPU on which nothing executes. Raises TruthError for an unknown type."""
        if gpu_type not in self._types:
            raise TruthError(
                f"no GPU type {gpu_type!r} to simulate; known: {', '.join(self._types)}"
            )
        return self._types[gpu_type].idle_w

    def _row(
        self,
        part: RunningPart | SimulatedNeighbour,
        on: RunningPart,
    ) -> OperatingPoint:
        """The operating point of a part on the GPU of `on`.

        At a clock that no row has, such as a throttled one, the nearest row's; at a batch that none has, such as a
        governor's, that of the next larger one.
        """
        key = (part.network, on.gpu_type, part.sm_percent)
        sizes = range(int(part.batch), self.max_batch(part.network) + 1)
        found = (self._rows.get((*key, size)) for size in sizes)
        rows = next((rows for rows in found if rows), None)
        if rows is None:
            raise TruthError(
                f"{part.network} has no operating point on {on.gpu_type} at {part.sm_percent:g} % SM "
                f"and batch {part.batch:g}"
            )
        # The first of two that are equally near, which is the row that the catalogue lists first.
        return min(rows, key=lambda row: abs(row.clock_mhz - on.clock_mhz))


def planned_engine(gpu_types: Iterable[GpuType], network: str) -> MakeEngine:
    """Engines of a network that ships, whose steps take what a plan counts on before anything was served."""
    return partial(PlannedEngine, {each.name: each for each in gpu_types}, network)


class PlannedEngine:
    """A replica of a language model by the step law itself: an `agents.sim.truth.llm_steps.EngineTimes`."""

    def __init__(
        self, gpu_types: Mapping[str, GpuType], network: str, place: EnginePlace
    ) -> None:
        """Raises TruthError for a GPU type of which nothing is known for language models."""
        engine = _engine(network, place)
        factor = UNMEASURED.factor(PLANNED)
        law = step_table(engine, RUNTIMES[engine.runtime])
        self._table = law.times(factor)
        self.kv_blocks = _kv_blocks(engine, place)
        gpu_type = gpu_types[place.gpu_type]
        self.busy_w = POWER_SHARE * gpu_type.power_cap_w - gpu_type.idle_w

    def step_s(self, step: Step) -> float:
        table = self._table
        decoding = len(step.decoding)
        ms = float(np.interp(step.tokens, table.tokens, table.step_ms))
        ms += table.sequence_ms * decoding
        ms += table.cached_token_ms * step.cached_tokens
        ms += table.pair_ms * step.pairs
        if step.chunks:
            ms += table.prompt_step_ms
        return ms / 1000.0


def _engine(network: str, place: EnginePlace) -> LlmEngine:
    hardware = find_hardware(place.gpu_type)
    if hardware is None:
        raise TruthError(f"nothing is known of {place.gpu_type} for language models")
    return LlmEngine(
        network=find_architecture(network),
        hardware=hardware,
        precision=cast(Precision, place.precision),
        tp=place.gpus,
    )


def _kv_blocks(engine: LlmEngine, place: EnginePlace) -> int:
    # A replica takes a share of each GPU, which the law counts on by itself.
    memory_gib = place.memory_mib / _MIB_PER_GIB / MEMORY_SHARE
    tokens = kv_tokens(
        engine.network,
        engine.precision,
        engine.tp,
        memory_gib=memory_gib,
        limits=_USUAL_LIMITS,
    )
    return max(0, int(tokens) // BLOCK_TOKENS)
