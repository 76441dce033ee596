"""Operating points from fits: what the planner may choose from, with the uncertainty of every row.

Times come from the latency fit (or, where a network was never measured, from what estimates it), in three parts:
transfer and launch as the present profile states them or as a typical network has them, run the rest. They never fall
when the batch grows nor rise with the share or the clock: where the fit says otherwise, the planner believes the slower
of the two (running maxima, which leave monotone times as they are).

Uncertainty: half the width of the 90 % interval, in units of the normal distribution; it widens outside what was
sampled, as that interval does.

Watts and memory come from their fits (memory with its margin, `memory.predict_upper`), else from the present profile;
without either, watts are the most that the share of the GPU could draw, and memory is that on another GPU type, else
the most that any other profiled network takes; without one it is refused: what fits into a GPU is not to be guessed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from solvers.predict.data.fit import NORMAL_95, Coefficients, Fits, TooFewSamples
from solvers.predict.data.samples import (
    Group,
    LayerCounts,
    Queries,
    Reals,
    make_queries,
)
from solvers.predict.estimate.predict import predict_latency, predict_quantity
from solvers.predict.interference import pressure
from solvers.predict.latency.decomposition import LatencyParts, decompose, split
from solvers.predict.resources import memory
from solvers.types.problem import OperatingPoint, OperatingPoints
from solvers.types.state import GpuType

TYPICAL_SENSITIVITY = 0.398
"""Least squares through iGniter's pairs, as in the shipped catalogue. Sensitivities of the pressure law, whose mean is
1, are scaled to it, and pressures the other way, so that fitted and shipped networks may share a GPU."""
TYPICAL_PRESSURE = 0.34
"""Pressure at 100 % of the SMs, in proportion to the share: L2 throughput over its peak (iGniter, median at 40-60 % of
the SMs)."""
DEFAULT_SHARES = tuple(float(share) for share in range(10, 101, 10))
DEFAULT_BATCHES = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionGrid:
    """The conditions that rows are made for, each ascending."""

    sm_percents: tuple[float, ...]
    batches: tuple[int, ...]
    clocks_mhz: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FitFacts:
    """What is known of a network on a GPU type besides its fits."""

    gpu_type: GpuType
    is_training: bool = False
    """Whether it may stall its neighbours."""
    present: OperatingPoints | None = None
    """The profile in force."""
    sampled: Queries | None = None
    """The network's own samples on the GPU type, alone; None = there are none."""
    neighbours: Coefficients | None = None
    """The pressure law of the GPU type."""
    layers: Mapping[str, LayerCounts] = field(default_factory=dict)
    other_profiles: tuple[OperatingPoints, ...] = ()
    """Profiles of other networks on the GPU type."""


def make_grid(facts: FitFacts) -> ConditionGrid:
    """The present profile's conditions; else tens of percent, powers of two that were sampled, and the highest clock.

    Shares are multiples of the GPU type's step. Other clocks than the highest are there where two were sampled, or
    where the present profile says how they compare.
    """
    if facts.present is not None:
        return _grid_of(facts.present.rows)
    step = facts.gpu_type.sm_percent_step
    shares = [share for share in DEFAULT_SHARES if _is_multiple(share, step)]
    largest = 1.0 if facts.sampled is None else float(facts.sampled.batch.max())
    # Samples of batch 1 alone say nothing of how far batches may go.
    allowed = largest if largest > 1.0 else float("inf")
    clocks = facts.gpu_type.clocks_mhz
    return ConditionGrid(
        sm_percents=tuple(shares or [100.0]),
        batches=tuple(batch for batch in DEFAULT_BATCHES if batch <= allowed),
        clocks_mhz=clocks if _knows_clocks(facts) else clocks[-1:],
    )


def _is_multiple(share: float, step: float) -> bool:
    steps = share / step
    # Steps such as 100 / 7 are no exact floats.
    return abs(steps - round(steps)) < 1e-6


def _grid_of(rows: Sequence[OperatingPoint]) -> ConditionGrid:
    return ConditionGrid(
        sm_percents=tuple(sorted({row.sm_percent for row in rows})),
        batches=tuple(sorted({row.batch for row in rows})),
        clocks_mhz=tuple(sorted({row.clock_mhz for row in rows})),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Performance:
    """The operating points of one network on one GPU type, each with the uncertainty of its times."""

    points: OperatingPoints
    latency_sigma: tuple[float, ...]
    """Per row: standard deviation of ln(true / stated execution time), ≥ 0; 0 = taken as exact."""

    def __post_init__(self) -> None:
        if len(self.latency_sigma) != len(self.points.rows):
            raise ValueError(
                f"{len(self.latency_sigma)} uncertainties for {len(self.points.rows)} rows"
            )


def make_performance(
    fits: Fits, group: Group, grid: ConditionGrid, facts: FitFacts
) -> Performance:
    """The operating points of one network on one GPU type, by share, batch and clock.

    Raises TooFewSamples where neither a fit nor a profile says how much memory the network takes, and InvalidInput
    where its latency can neither be predicted nor estimated.
    """
    conditions = list(product(grid.sm_percents, grid.batches, grid.clocks_mhz))
    queries = _queries(group, conditions, facts)
    predicted = predict_latency(fits, queries, layers=facts.layers, coverage=0.9)
    alone_ms = _monotone(predicted.latency_ms * _clock_ratios(conditions, facts), grid)
    present = _present_rows(conditions, facts)
    times = _split(queries, alone_ms, present)
    # In the order of an operating point's fields, after its conditions.
    columns = (
        times.transfer_ms,
        times.launch_ms,
        times.run_ms,
        _memory_mib(fits, queries, conditions, facts, present),
        _added_w(fits, queries, facts, present),
        _pressures(group, queries, facts, present),
        _stalls_ms(queries, facts, present),
    )
    rows = tuple(
        OperatingPoint(*condition, *figures)
        for condition, figures in zip(
            conditions, np.column_stack(columns).tolist(), strict=True
        )
    )
    width = np.log(predicted.latency_ms_high / predicted.latency_ms_low)
    points = OperatingPoints(
        network=group.network,
        gpu_type=group.gpu_type,
        sensitivity=_sensitivity(group, facts),
        rows=rows,
    )
    sigma = width / (2.0 * NORMAL_95)
    return Performance(points=points, latency_sigma=tuple(sigma.tolist()))


Condition = tuple[float, int, float]
"""SM percent, batch and clock, as in an operating point."""


def _queries(group: Group, conditions: list[Condition], facts: FitFacts) -> Queries:
    size = len(conditions)
    shares, batches, clocks = zip(*conditions, strict=True)
    return make_queries(
        [group.network] * size,
        [group.gpu_type] * size,
        batch=[float(batch) for batch in batches],
        sm_percent=shares,
        # A fit that saw one clock would take any other for outside its range.
        clock_mhz=clocks if _knows_clocks(facts) else None,
    )


def _knows_clocks(facts: FitFacts) -> bool:
    """Whether the fit has seen more than one clock; one clock alone says nothing about the others."""
    if facts.sampled is None:
        return False
    clocks = facts.sampled.clock_mhz
    return len(np.unique(clocks[np.isfinite(clocks)])) > 1


def _clock_ratios(conditions: list[Condition], facts: FitFacts) -> Reals:
    """(N,) time at each row's clock over that at the highest, as the present profile has it; 1 where the fit knows."""
    if _knows_clocks(facts) or facts.present is None:
        return np.ones(len(conditions))
    solo = {row[:3]: row.solo_ms for row in facts.present.rows}
    top = max(clock for _, _, clock in solo)
    ratios = []
    for share, batch, clock in conditions:
        own = solo.get((share, batch, clock))
        ratios.append(1.0 if own is None else own / solo.get((share, batch, top), 1.0))
    return np.array(ratios)


def _monotone(latency_ms: Reals, grid: ConditionGrid) -> Reals:
    """(N,) running maxima: from the largest share and clock down, and from the smallest batch up."""
    shape = len(grid.sm_percents), len(grid.batches), len(grid.clocks_mhz)
    cube = latency_ms.reshape(shape)
    # Axes 0 and 2 are share and clock, along which latency falls: their maxima run from the far end.
    for axis in (0, 2):
        cube = np.flip(np.maximum.accumulate(np.flip(cube, axis), axis=axis), axis)
    return np.maximum.accumulate(cube, axis=1).ravel()


def _split(
    queries: Queries, alone_ms: Reals, present: list[OperatingPoint] | None
) -> LatencyParts:
    if present is None:
        return decompose(queries, alone_ms)
    # Transfer and launch are the present profile's: an alone latency does not tell them from the run.
    return split(
        alone_ms,
        transfer_ms=np.array([row.transfer_ms for row in present]),
        launch_ms=np.array([row.launch_ms for row in present]),
    )


def _present_rows(
    conditions: list[Condition], facts: FitFacts
) -> list[OperatingPoint] | None:
    """The present profile's row for each condition, or the nearest one; None without a profile."""
    if facts.present is None:
        return None
    rows = facts.present.rows
    # Distances in logarithms: batch 2 is as near to 1 as 64 is to 32.
    table = np.log([row[:3] for row in rows])
    exact = {row[:3]: row for row in rows}

    def nearest(condition: Condition) -> OperatingPoint:
        distances = np.abs(table - np.log(condition)).sum(axis=1)
        return rows[int(np.argmin(distances))]

    return [exact.get(each) or nearest(each) for each in conditions]


def _memory_mib(
    fits: Fits,
    queries: Queries,
    conditions: list[Condition],
    facts: FitFacts,
    present: list[OperatingPoint] | None,
) -> Reals:
    fitted = _fitted_memory_mib(fits, queries)
    if present is not None:
        fitted = np.where(np.isnan(fitted), [row.memory_mib for row in present], fitted)
    if np.isnan(fitted).any():
        if not facts.other_profiles:
            network = queries.network[0]
            gpu_type = queries.gpu_type[0]
            raise TooFewSamples(
                f"no memory_mib of {network} on {gpu_type} was sampled, and there is no profile to ask"
            )
        highest = [
            _highest_mib(facts.other_profiles, batch) for _, batch, _ in conditions
        ]
        fitted = np.where(np.isnan(fitted), highest, fitted)
    return np.maximum(fitted, 0.0)


def _fitted_memory_mib(fits: Fits, queries: Queries) -> Reals:
    """The most to expect; of the fit on the GPU type, else of another one: what a network loads is the same everywhere.

    NaN where the network's memory was fitted nowhere.
    """
    network = queries.network[0]
    gpu_type = queries.gpu_type[0]
    of_network = [fit for fit in fits.of("memory_mib") if fit.group.network == network]
    if not of_network:
        return np.full(len(queries), np.nan)
    fit = next(
        (fit for fit in of_network if fit.group.gpu_type == gpu_type), of_network[0]
    )
    return memory.predict_upper(fit.coefficients, queries)


def _highest_mib(profiles: Sequence[OperatingPoints], batch: int) -> float:
    """What the profiled network takes that takes most at a batch."""
    return max(_memory_at(entry, batch) for entry in profiles)


def _memory_at(points: OperatingPoints, batch: int) -> float:
    """MiB of the smallest batch that is not smaller, else in proportion to the largest one."""
    rows = sorted((row.batch, row.memory_mib) for row in points.rows)
    largest, memory_mib = rows[-1]
    beyond = memory_mib * batch / largest
    return next((mib for size, mib in rows if size >= batch), beyond)


def _added_w(
    fits: Fits,
    queries: Queries,
    facts: FitFacts,
    present: list[OperatingPoint] | None,
) -> Reals:
    """(N,) watts above idle."""
    idle_w = facts.gpu_type.idle_w
    max_added_w = facts.gpu_type.power_cap_w - idle_w
    fitted = predict_quantity(fits, "power_w", queries) - idle_w
    # Without a fit or a profile a replica is taken to draw all that its share could.
    otherwise = max_added_w * queries.sm_percent / 100.0
    if present is not None:
        otherwise = np.array([row.power_w for row in present])
    return np.clip(np.where(np.isnan(fitted), otherwise, fitted), 0.0, max_added_w)


def _pressures(
    group: Group,
    queries: Queries,
    facts: FitFacts,
    present: list[OperatingPoint] | None,
) -> Reals:
    if facts.neighbours is not None:
        law = pressure.pressures(
            facts.neighbours,
            group.network,
            batch=queries.batch,
            sm_percent=queries.sm_percent,
        )
        # In the law the mean sensitivity is 1.
        return np.maximum(law, 0.0) / TYPICAL_SENSITIVITY
    if present is not None:
        return np.array([row.pressure for row in present])
    return np.asarray(TYPICAL_PRESSURE * queries.sm_percent / 100.0)


def _stalls_ms(
    queries: Queries, facts: FitFacts, present: list[OperatingPoint] | None
) -> Reals:
    """(N,) of the present profile, since samples state means, which tell nothing of stalls."""
    if present is not None:
        return np.array([row.stall_ms for row in present])
    stalls_ms = np.zeros(len(queries))
    # Training of which nothing is known is taken to stall as long as any other does with that share.
    for entry in facts.other_profiles if facts.is_training else ():
        by_share = {row.sm_percent: row.stall_ms for row in sorted(entry.rows)}
        others_ms = np.interp(queries.sm_percent, [*by_share], [*by_share.values()])
        stalls_ms = np.maximum(stalls_ms, others_ms)
    return stalls_ms


def _sensitivity(group: Group, facts: FitFacts) -> float:
    if facts.neighbours is not None:
        own = pressure.sensitivity(facts.neighbours, group.network)
        return TYPICAL_SENSITIVITY * own
    return TYPICAL_SENSITIVITY if facts.present is None else facts.present.sensitivity
