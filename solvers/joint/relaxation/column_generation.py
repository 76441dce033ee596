"""Column generation: the linear relaxation over *all* patterns, though only the good ones are ever made.

Master and pricing take turns: the master gives prices, pricing gives patterns that are worth more than they cost under
them, and each round proves a lower bound. Rounds begin cheap (knapsack bounds alone find most of the good patterns) and
end exact; the next effort comes when the present one no longer lowers the objective by enough.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

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
"""Of a GPU's price: pricing takes patterns that are worth less than nothing for worthless, so it asks no less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """How hard pricing tries, and when to try harder."""

    effort: Effort
    min_gain: float
    """Relative fall of the objective over three rounds below which the next phase begins."""


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
    generation = Generation(Master(tables, demand, has_cuts=has_cuts), pricer, columns)
    generation.use([*start, *_singles(tables, demand, columns)])
    return generation.relax(
        phases=phases, cutoff=cutoff, is_over=is_over, on_round=on_round
    )


class Generation:
    """A master problem with its columns, solved over all patterns once or, under changing limits, many times."""

    def __init__(self, master: Master, pricer: Pricer, columns: Columns) -> None:
        self._master, self._pricer, self._made = master, pricer, columns
        self._used: dict[int, None] = {}

    def use(self, numbers: Iterable[int]) -> list[int]:
        """Let the master use these columns; returns those that it did not have yet."""
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
        bound, rounds, phase, history = -np.inf, 0, 0, [np.inf]
        while True:
            solution = self._master.solve()
            used = self.columns
            priced = self._price(solution.duals, phases[phase].effort, limits)
            rounds += 1
            worths = np.array([entry.bound for entry in priced])
            # Pricing that was cut short proves nothing.
            is_whole = bool(np.isfinite(worths).all())
            master = self._master
            proven = (
                lower_bound(
                    master.tables, master.demand, solution.duals, worths, limits
                )
                if is_whole
                else -np.inf
            )
            bound = max(bound, proven)
            patterns = [pattern for entry in priced for pattern in entry.patterns]
            self._made.add(patterns)
            new = self.use(self._made.number(pattern) for pattern in patterns)
            history.append(solution.objective)
            is_last = phase == len(phases) - 1
            is_near = solution.objective - bound <= slack * (
                cutoff - solution.objective
            )
            found = Relaxation(
                solution=solution,
                columns=used,
                bound=bound,
                rounds=rounds,
                phase=phase,
                is_exact=is_last and not new and is_whole,
            )
            if is_over() or bound >= cutoff or is_near or (is_last and not new):
                return found
            on_round(found)
            if not new and self._master.strengthen(solution) > 0:
                continue
            if not is_last and (not new or _gain(history) < phases[phase].min_gain):
                phase, history = phase + 1, [np.inf]

    def _price(self, duals: Duals, effort: Effort, limits: Limits) -> list[Priced]:
        return price(
            self._master.tables,
            self._pricer,
            self._master.demand,
            duals,
            effort,
            limits=limits,
        )


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
    thresholds = np.array(
        [mode.price - duals.stock[mode.gpu_type] for mode in tables.modes]
    )
    if duals.watt_price > 0.0:
        thresholds += (
            duals.watt_price * tables.idle_w[[mode.gpu_type for mode in tables.modes]]
        )
    for row, value in duals.limits.items():
        _shift(
            row,
            -_forbidden(demand) if limits[row][1] <= 0.0 else value,
            thresholds,
            bonuses,
        )
    floors = np.array([_MIN_THRESHOLD * mode.price for mode in tables.modes])
    edges = cuts.EDGES if duals.stairs.size else np.zeros(0)
    worth = [
        Worth(demand.rate, duals.rps, bonus, edges, duals.stairs) for bonus in bonuses
    ]
    for number in np.flatnonzero(np.isinf(thresholds)):
        # Nothing is worth that much: pricing has nothing to look at.
        worth[number] = Worth(
            demand.rate,
            np.zeros_like(duals.rps),
            np.minimum(bonuses[number], 0.0),
            np.zeros(0),
        )
    return pricer.price(
        worth,
        np.maximum(thresholds, floors).tolist(),
        effort,
        watt_price=duals.watt_price,
    )


def _forbidden(demand: CoverDemand) -> float:
    """Under a power budget that leaves much unserved, patterns may be worth more than is usual."""
    if np.isinf(demand.watts):
        return _FORBIDDEN
    return max(
        _FORBIDDEN,
        2.0
        * float(
            demand.shortage_price @ demand.rate + demand.missing_price @ demand.fewest
        ),
    )


def _shift(
    row: BranchingRow, value: float, thresholds: Reals, bonuses: Sequence[Reals]
) -> None:
    """Let a limit's dual make its kind of patterns dearer or cheaper."""
    if row.ranges:
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
    if len(history) < 5:
        return np.inf
    return (history[-4] - history[-1]) / abs(history[-1]) if history[-1] else 0.0
