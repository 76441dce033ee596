"""Column generation: the linear relaxation over *all* patterns, though only the good ones are ever made.

    1. master   the linear program over the columns at hand (`master`): a primal solution and duals
    2. pricing  in every mode, patterns of positive value, worth − cost > 0 under these duals, and an upper bound on
                the worth of all others (`pricing`)
    3. bound    from duals and worths a lower bound on all plans (`bounds`)
    4. repeat   with the new columns; without any, cuts (`cuts`) that the solution violates

The reduced cost of a column is its threshold (the price of an idle GPU with the duals of its rows) less its worth.
Rounds begin cheap (knapsack bounds alone find most of the good patterns) and end exact: the next effort comes when the
present one no longer lowers the objective by enough. Limits of branching are rows whose duals shift thresholds (entire
modes) or the bonus of candidates (ranges of a service).
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from solvers.joint.kernels.types import Effort, Reals, Worth
from solvers.joint.patterns.branching_rows import NO_LIMITS, BranchingRow, Limits
from solvers.joint.patterns.columns import Columns, Priced, single_patterns
from solvers.joint.patterns.deadline import never
from solvers.joint.patterns.formulation import CoverDemand
from solvers.joint.patterns.tables import Tables
from solvers.joint.relaxation import cuts
from solvers.joint.relaxation.bounds import lower_bound
from solvers.joint.relaxation.master import Master
from solvers.joint.relaxation.master_solution import Duals, Solution
from solvers.joint.relaxation.pricing import Pricer

_FORBIDDEN = 1.0e6
"""USD per hour against a kind of patterns that a limit rules out."""
_MIN_THRESHOLD = 1e-9
"""A pattern must be worth at least this share of a GPU's price: pricing cannot tell worthless patterns from those that
are worth less than nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """How hard pricing tries, and when to try harder."""

    effort: Effort
    min_gain: float
    """Relative fall of the objective over three rounds below which the next phase begins."""


# Effort: multiplier steps, nodes of the search, halvings of a cell, tolerance. Knapsack bounds alone, then a short
# search too, then finer cells, then a search that ends only for few cells without proof.
PHASES = (
    Phase(effort=Effort(2, 0, 0, 2e-3), min_gain=2e-3),
    Phase(effort=Effort(2, 500, 0, 2e-3), min_gain=1e-3),
    Phase(effort=Effort(8, 500, 3, 5e-4), min_gain=5e-4),
    Phase(effort=Effort(8, 30000, 4, 5e-4), min_gain=0.0),
)
"""The last phase proves within twice its tolerance; the earlier ones find most columns with far less work."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Relaxation:
    """The linear relaxation as far as it was solved."""

    solution: Solution
    columns: tuple[int, ...]
    """Numbers of the master's columns, in its order."""
    bound: float
    """Proven: no plan costs less (with what it does not serve at shortage prices)."""
    rounds: int
    phase: int
    """Position of the effort that pricing had come to."""
    is_exact: bool
    """Whether no pattern was left to add under the last phase's effort."""


def ignore(relaxation: Relaxation) -> None:
    """For callers who want the last relaxation only."""


def generate(
    tables: Tables,
    demand: CoverDemand,
    pricer: Pricer,
    columns: Columns,
    *,
    start: Sequence[int] = (),
    has_cuts: bool = False,
    phases: Sequence[Phase] = PHASES,
    cutoff: float = np.inf,
    is_over: Callable[[], bool] = never,
    on_round: Callable[[Relaxation], None] = ignore,
) -> Relaxation:
    """Solve the relaxation of a demand; new columns go into `columns`. `start`: columns to begin with.

    A bound that reaches the cutoff is all that is wanted. After every round but the last `on_round` gets what there is,
    and may make whole plans of it meanwhile.

    With cuts the bound is greater, but holds only for plans that serve everything.

    Stops early, with what it has, when `is_over` says so between two rounds.
    """
    # Single replicas for every service and mode make the first duals meaningful, whatever else is at hand.
    generation = Generation(Master(tables, demand, has_cuts=has_cuts), pricer, columns)
    generation.use([*start, *_singles(tables, demand, columns)])
    return generation.relax(
        phases=phases,
        cutoff=cutoff,
        is_over=is_over,
        on_round=on_round,
    )


class Generation:
    """A master problem with its columns, solved over all patterns once or, under changing limits, many times."""

    def __init__(self, master: Master, pricer: Pricer, columns: Columns) -> None:
        self._master, self._pricer, self._made = master, pricer, columns
        self._used: dict[int, None] = {}

    def use(self, numbers: Iterable[int]) -> list[int]:
        """Let the master use these columns; returns those that it did not have yet."""
        # A dict, not a set: the master's columns keep the order in which they came.
        new = [number for number in dict.fromkeys(numbers) if number not in self._used]
        self._master.add(self._made[number] for number in new)
        self._used.update(dict.fromkeys(new))
        return new

    @property
    def columns(self) -> tuple[int, ...]:
        """Numbers of the master's columns, in its order."""
        return tuple(self._used)

    def relax(
        self,
        *,
        limits: Limits = NO_LIMITS,
        phases: Sequence[Phase] = PHASES,
        cutoff: float = np.inf,
        slack: float = 0.0,
        is_over: Callable[[], bool] = never,
        on_round: Callable[[Relaxation], None] = ignore,
    ) -> Relaxation:
        """Solve the relaxation under limits; ends early when time is over, when the bound reaches the cutoff, or when
        the optimum is known to be below it and the bound lacks at most `slack` of the way from itself to the cutoff.
        """
        self._master.limit(limits)
        bound = -np.inf
        phase = 0
        history = [np.inf]
        for rounds in itertools.count(1):
            turn = self._turn(phases[phase].effort, limits)
            # Lagrangian bounds go up and down with the duals, so the best one so far counts.
            bound = max(bound, turn.bound)
            objective = turn.solution.objective
            history.append(objective)
            is_last = phase == len(phases) - 1
            is_end = is_last and not turn.has_new
            found = Relaxation(
                solution=turn.solution,
                columns=turn.columns,
                bound=bound,
                rounds=rounds,
                phase=phase,
                is_exact=is_end and bool(turn.bound > -np.inf),
            )
            is_near = objective - bound <= slack * (cutoff - objective)
            if is_over() or bound >= cutoff or is_near or is_end:
                break
            on_round(found)
            # Cuts wait until pricing finds no new column: before that, columns may mend a solution without any cut.
            if not turn.has_new and self._master.strengthen(turn.solution) > 0:
                continue
            is_slow = not turn.has_new or _gain(history) < phases[phase].min_gain
            if is_slow and not is_last:
                # Another effort finds other columns, so what the last rounds gained says nothing of the next.
                phase, history = phase + 1, [np.inf]
        return found

    def _turn(self, effort: Effort, limits: Limits) -> "_Turn":
        """Solve the master, price under its duals, and let it use what that found."""
        master = self._master
        solution = master.solve()
        used = self.columns
        priced = price(
            master.tables,
            self._pricer,
            master.demand,
            solution.duals,
            effort,
            limits=limits,
        )
        bound = self._bound(solution.duals, priced, limits)
        patterns = [pattern for entry in priced for pattern in entry.patterns]
        self._made.add(patterns)
        new = self.use(self._made.number(pattern) for pattern in patterns)
        return _Turn(solution, used, bound, has_new=bool(new))

    def _bound(self, duals: Duals, priced: Sequence[Priced], limits: Limits) -> float:
        worths = np.array([entry.bound for entry in priced])
        # Pricing that was cut short proves nothing.
        if not np.isfinite(worths).all():
            return -np.inf
        tables = self._master.tables
        demand = self._master.demand
        return lower_bound(tables, demand, duals, worths, limits)


class _Turn(NamedTuple):
    """One turn of master and pricing."""

    solution: Solution
    columns: tuple[int, ...]
    """Numbers of the columns that the solution is of, without the new ones."""
    bound: float
    """Proven under the solution's duals; minus infinity where pricing was cut short."""
    has_new: bool


def price(
    tables: Tables,
    pricer: Pricer,
    demand: CoverDemand,
    duals: Duals,
    effort: Effort,
    *,
    limits: Limits = NO_LIMITS,
) -> list[Priced]:
    """Price all modes under the duals."""
    bonuses = [duals.presence[mode.service] for mode in tables.modes]
    floors = thresholds(tables, duals)
    for row, value in duals.limits.items():
        # A limit of no GPUs at all rules its kind out, at whatever price: its dual is only one of many that fit.
        is_closed = limits[row][1] <= 0.0
        _shift(row, -_forbidden(demand) if is_closed else value, floors, bonuses)
    worths = [
        _worth(demand, duals, bonus, threshold)
        for bonus, threshold in zip(bonuses, floors, strict=True)
    ]
    floored = np.maximum(floors, _MIN_THRESHOLD * tables.mode_prices).tolist()
    return pricer.price(worths, floored, effort, watt_price=duals.watt_price)


def thresholds(tables: Tables, duals: Duals) -> Reals:
    """(M,) USD per hour that a pattern of each mode must be worth to enter: an idle GPU with its stock and watts."""
    gpu_types = tables.mode_types
    floors: Reals = tables.mode_prices - duals.stock[gpu_types]
    # The pricer counts the watts of replicas, which depend on the pattern; those of an idle GPU do not.
    if duals.watt_price > 0.0:
        floors += duals.watt_price * tables.idle_w[gpu_types]
    return floors


def _worth(demand: CoverDemand, duals: Duals, bonus: Reals, threshold: float) -> Worth:
    """What replicas of a mode earn under the duals."""
    if np.isinf(threshold):
        # Nothing is worth that much: with prices of 0 pricing has nothing to look at.
        no_rps = np.zeros_like(duals.rps)
        return Worth(demand.rate, no_rps, np.minimum(bonus, 0.0), np.zeros(0))
    edges = cuts.EDGES if duals.stairs.size else np.zeros(0)
    return Worth(demand.rate, duals.rps, bonus, edges, duals.stairs)


def _forbidden(demand: CoverDemand) -> float:
    """USD per hour that no pattern is worth."""
    if np.isinf(demand.watts):
        return _FORBIDDEN
    # Under a power budget that leaves much unserved, patterns may be worth more than is usual.
    requests = demand.shortage_price @ demand.rate
    replicas = demand.missing_price @ demand.fewest
    return max(_FORBIDDEN, 2.0 * float(requests + replicas))


def _shift(
    row: BranchingRow,
    value: float,
    thresholds: Reals,
    bonuses: Sequence[Reals],
) -> None:
    """Let a limit's dual make its kind of patterns dearer or cheaper."""
    if row.ranges:
        # A pattern holds at most one candidate of a range, all of one service, so the dual counts once.
        for mode, (first, last) in zip(row.modes, row.ranges, strict=True):
            bonuses[mode][first:last] += value
    else:
        thresholds[list(row.modes)] -= value


def _singles(tables: Tables, demand: CoverDemand, columns: Columns) -> list[int]:
    patterns = single_patterns(tables, demand.rate)
    columns.add(patterns)
    return [columns.number(pattern) for pattern in patterns]


def _gain(history: Sequence[float]) -> float:
    """Relative fall over the last three rounds; infinite while there are fewer."""
    # The first entry is infinite, so that three falls take five entries.
    if len(history) < 5:
        return np.inf
    return (history[-4] - history[-1]) / abs(history[-1]) if history[-1] else 0.0
