"""What one replica of a language model carries on each GPU type and degree, at the token budget that is best there."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from solvers.llm.architecture import Architecture, Precision, window_factor
from solvers.llm.belief import INTERVAL, PLANNED, UNMEASURED, StepBelief
from solvers.llm.calendar import Replica
from solvers.llm.capacity import capacity_rps, kept_alone, rough_capacity_rps
from solvers.llm.configs.degrees import Undivided
from solvers.llm.hardware import LlmHardware
from solvers.llm.kv_cache import MEMORY_SHARE, PLANNED_SHARE, EngineLimits, kv_tokens
from solvers.llm.lengths import LengthTable
from solvers.llm.runtimes import RUNTIMES
from solvers.llm.step_law import (
    LlmEngine,
    Runtime,
    StepTable,
    step_table,
    with_windows,
)
from solvers.types.llm import Provenance, TokenSlo

BUDGETS = (512, 1024, 2048, 4096, 8192)
"""Tokens of a step that are tried: a long step is efficient, and keeps every answer waiting for its next token."""
DEGREES = (1, 2, 4, 8)
_WORTH = 0.9
"""The share of the best budget's capacity with which one that runs is kept."""
_MIB_PER_GIB = 1024.0


class SizeLimit(StrEnum):
    """Why a replica carries nothing."""

    DEGREE = "degree"
    """An engine does not start on this number of GPUs: `Sized.undivided` says what they cannot share out."""
    WEIGHTS = "weights"
    """They do not fit next to what the engine needs."""
    CONTEXT = "context"
    """The longest request does not fit into the cache."""
    TTFT = "ttft"
    ITL = "itl"


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRequest:
    """One service's network, load and SLO."""

    network: Architecture
    precision: Precision
    lengths: LengthTable
    slo: TokenSlo
    arrival_cv: float = 1.0
    runtime: Runtime = "vllm"
    max_num_seqs: int = 256
    beliefs: Mapping[tuple[str, int], StepBelief] = field(default_factory=dict)
    """By GPU type and degree, what measurements say of steps; `UNMEASURED` where they say nothing."""
    running: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """The token budget of replicas that run, by GPU type and degree."""

    def belief(self, gpu_type: str, tp: int) -> StepBelief:
        """What is known of steps there."""
        return self.beliefs.get((gpu_type, tp), UNMEASURED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """One way to run a replica."""

    gpu_type: str
    tp: int
    limits: EngineLimits
    kv_tokens: float
    memory_mib_per_gpu: float
    capacity_rps: float
    """That plans count on; 0 where `limit` says why."""
    interval_rps: tuple[float, float]
    """Nine in ten true capacities lie between."""
    steps: StepTable
    """What its capacity was found with: slower than nine in ten predictions."""
    provenance: Provenance
    """`calibrated` where the network was measured on that GPU type and degree."""
    limit: SizeLimit | None
    undivided: Undivided | None = None
    """What this number of GPUs cannot share out, where `limit` is the degree."""


def size(
    request: SizeRequest, hardware: Mapping[str, LlmHardware]
) -> tuple[Sized, ...]:
    """Every GPU type and degree that a node of the type has room for, in the order of the types."""
    return tuple(
        _sized(request, name, one, tp)
        for name, one in hardware.items()
        for tp in DEGREES
        if _spans(one, tp)
    )


def _spans(hardware: LlmHardware, tp: int) -> bool:
    # Without a figure of the link nothing can be said of what goes over it.
    has_link = tp == 1 or hardware.link_gb_per_s is not None
    return has_link and hardware.gpus_per_node % tp == 0


def _sized(
    request: SizeRequest, gpu_type: str, hardware: LlmHardware, tp: int
) -> Sized:
    engine = LlmEngine(
        network=request.network,
        hardware=hardware,
        precision=request.precision,
        tp=tp,
        runtime=request.runtime,
    )
    # The law once, the budgets after it: they change the engine, not its steps.
    law = step_table(engine, RUNTIMES[request.runtime])
    law = with_windows(
        law,
        engine,
        cached=request.lengths.mean_cached,
        prompt=request.lengths.mean_prompt,
    )
    obstacle = request.network.undivided(tp)
    if obstacle is not None:
        nothing = _nothing(request, law)
        found = _stated(request, engine, gpu_type, nothing, SizeLimit.DEGREE)
        return replace(found, undivided=obstacle)
    belief = request.belief(gpu_type, tp)
    planned = law.times(belief.factor(PLANNED))
    replicas = list(_replicas(request, engine, planned))
    if not replicas:
        nothing = _nothing(request, law)
        return _stated(request, engine, gpu_type, nothing, SizeLimit.WEIGHTS)
    # Few requests tell which budget is best; its capacity is that of many.
    roughly = {each: _rough(request, each) for each in replicas}
    best = _best(roughly, request.running.get((gpu_type, tp)))
    limit = None if roughly[best] > 0.0 else _limit(request, best)
    return _stated(request, engine, gpu_type, best, limit)


def _nothing(request: SizeRequest, law: StepTable) -> Replica:
    """A replica without room for anything."""
    limits = EngineLimits(
        max_num_batched_tokens=BUDGETS[0], max_num_seqs=request.max_num_seqs
    )
    return Replica(table=law, limits=limits, kv_tokens=0.0)


def _best(roughly: Mapping[Replica, float], running: int | None) -> Replica:
    """The replica that carries most; that with the budget which runs, where it carries nearly as much."""
    best = max(roughly, key=lambda each: roughly[each])
    for each, rate_rps in roughly.items():
        runs = each.limits.max_num_batched_tokens == running
        # With another budget all replicas would have to restart.
        if runs and rate_rps >= _WORTH * roughly[best]:
            return each
    return best


def _rough(request: SizeRequest, replica: Replica) -> float:
    return float(
        rough_capacity_rps(replica, request.lengths, request.slo, cv=request.arrival_cv)
    )


def _replicas(
    request: SizeRequest, engine: LlmEngine, table: StepTable
) -> Iterator[Replica]:
    """One per token budget for which the weights leave room."""
    for budget in BUDGETS:
        limits = EngineLimits(
            max_num_batched_tokens=budget, max_num_seqs=request.max_num_seqs
        )
        kv = kv_tokens(
            engine.network,
            engine.precision,
            engine.tp,
            memory_gib=engine.hardware.memory_gib,
            limits=limits,
        )
        if kv > 0.0:
            kv = _with_windows(request, engine, kv)
            yield Replica(table=table, limits=limits, kv_tokens=kv)


def _with_windows(request: SizeRequest, engine: LlmEngine, kv: float) -> float:
    """Tokens that have room where windows take some of it: by the mean sequence, if the longest one fits as well."""
    lengths = request.lengths
    of_mean, of_longest = (
        kv / window_factor(engine.network, engine.tp, tokens)
        for tokens in (lengths.mean_cached, float(lengths.longest))
    )
    # Windows are a small part of a long sequence: it is not refused for what short ones take.
    needed = lengths.longest / PLANNED_SHARE
    return max(of_mean, needed) if of_longest >= needed else of_mean


def _stated(
    request: SizeRequest,
    engine: LlmEngine,
    gpu_type: str,
    replica: Replica,
    limit: SizeLimit | None,
) -> Sized:
    """What a replica carries; nothing where a limit says why."""
    belief = request.belief(gpu_type, engine.tp)
    planned = low = high = 0.0
    if limit is None:
        planned = float(
            capacity_rps(replica, request.lengths, request.slo, cv=request.arrival_cv)
        )
        # Relative to what is planned with, whose steps are slower than the middle already.
        slower, faster = (
            belief.factor(deviations) / belief.factor(PLANNED)
            for deviations in (INTERVAL, -INTERVAL)
        )
        # Few requests are enough for an interval of some ten per cent.
        low = min(planned, _rough(request, _with_steps(replica, slower)))
        high = _rough(request, _with_steps(replica, faster))
    return Sized(
        gpu_type=gpu_type,
        tp=engine.tp,
        limits=replica.limits,
        kv_tokens=replica.kv_tokens,
        memory_mib_per_gpu=MEMORY_SHARE * engine.hardware.memory_gib * _MIB_PER_GIB,
        capacity_rps=planned,
        interval_rps=(low, high),
        steps=replica.table,
        provenance="calibrated" if belief.is_measured else "predicted",
        limit=limit,
    )


def _with_steps(replica: Replica, factor: float) -> Replica:
    """The replica if its steps took `factor` times as long."""
    table = replica.table.times(factor)
    return Replica(table=table, limits=replica.limits, kv_tokens=replica.kv_tokens)


def _limit(request: SizeRequest, replica: Replica) -> SizeLimit:
    """What keeps a replica from carrying anything."""
    if PLANNED_SHARE * replica.kv_tokens < request.lengths.longest:
        return SizeLimit.CONTEXT
    kept = kept_alone(replica, request.lengths, request.slo)
    return SizeLimit.TTFT if kept.ttft < request.slo.percentile else SizeLimit.ITL
