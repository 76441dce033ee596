"""Column generation: the linear relaxation over *all* patterns, though only the good ones are ever made.

Master and pricing take turns: the master gives prices, pricing gives patterns that are worth more than they cost under
them, and each round proves a lower bound. Rounds begin cheap (knapsack bounds alone find most of the good patterns) and
end exact; the next effort comes when the present one no longer lowers the objective by enough.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from solvers.joint.bounds import lower_bound
from solvers.joint.columns import Columns, single_patterns
from solvers.joint.kernels.nouns import Effort
from solvers.joint.master import Demand, Duals, Master, Solution
from solvers.joint.pricing import Priced, Pricer
from solvers.joint.tables import Tables, Worth


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """How hard pricing tries, and when to try harder."""

    effort: Effort
    least_gain: float
    """Relative fall of the objective over three rounds below which the next phase begins."""


PHASES = (
    Phase(effort=Effort(2, 0, 0, 2e-3), least_gain=2e-3),
    Phase(effort=Effort(4, 0, 3, 5e-4), least_gain=1e-3),
    Phase(effort=Effort(8, 500, 3, 5e-4), least_gain=5e-4),
    Phase(effort=Effort(8, 30000, 4, 5e-4), least_gain=0.0),
)
"""Measured on the generated problems of 4 to 1000 GPUs: the last phase proves within 0.1 %, of which half is its
tolerance; without the second the dearer ones do its work."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Relaxation:
    """The linear relaxation as far as it was solved."""

    solution: Solution
    columns: tuple[int, ...]
    """Numbers of the master's columns, in its order."""
    bound: float
    """Proven: no plan costs less (with what it does not serve at shortage prices)."""
    bound_duals: Duals
    """The duals that proved it."""
    rounds: int
    is_exact: bool
    """Whether no pattern was left to add under the last phase's effort."""


def never() -> bool:
    """For callers without a limit."""
    return False


def generate(
    tables: Tables,
    demand: Demand,
    pricer: Pricer,
    columns: Columns,
    *,
    start: Sequence[int] = (),
    phases: Sequence[Phase] = PHASES,
    is_over: Callable[[], bool] = never,
) -> Relaxation:
    """Solve the relaxation of a demand; new columns go into `columns`. `start`: columns to begin with.

    Stops early, with what it has, when `is_over` says so between two rounds.
    """
    master = Master(tables, demand)
    used = list(dict.fromkeys([*start, *_singles(tables, demand, columns)]))
    master.add(columns[number] for number in used)
    known = set(used)
    bound, bound_duals, rounds, phase, history = -np.inf, None, 0, 0, [np.inf]
    while True:
        solution = master.solve()
        priced = price(tables, pricer, demand, solution.duals, phases[phase].effort)
        rounds += 1
        proven = lower_bound(tables, demand, solution.duals, np.array([entry.bound for entry in priced]))
        if proven > bound or bound_duals is None:
            bound, bound_duals = proven, solution.duals
        columns.add(pattern for entry in priced for pattern in entry.patterns)
        new = [
            number
            for number in dict.fromkeys(columns.number(pattern) for entry in priced for pattern in entry.patterns)
            if number not in known
        ]
        history.append(solution.objective)
        is_last = phase == len(phases) - 1
        if is_over() or (is_last and not new):
            return Relaxation(
                solution=solution,
                columns=tuple(used),
                bound=bound,
                bound_duals=bound_duals,
                rounds=rounds,
                is_exact=is_last and not new,
            )
        if not is_last and (not new or _gain(history) < phases[phase].least_gain):
            phase, history = phase + 1, [np.inf]
        master.add(columns[number] for number in new)
        used += new
        known.update(new)


def price(tables: Tables, pricer: Pricer, demand: Demand, duals: Duals, effort: Effort) -> list[Priced]:
    """Price all modes under the duals."""
    worth = [Worth(rate=demand.rate, rps=duals.rps, bonus=duals.presence[mode.service]) for mode in tables.modes]
    thresholds = [mode.price - duals.stock[mode.gpu_type] for mode in tables.modes]
    return pricer.price(worth, thresholds, effort)


def _singles(tables: Tables, demand: Demand, columns: Columns) -> list[int]:
    patterns = single_patterns(tables, demand.rate)
    columns.add(patterns)
    return [columns.number(pattern) for pattern in patterns]


def _gain(history: Sequence[float]) -> float:
    """Relative fall over the last three rounds; infinite while there are fewer."""
    if len(history) < 5:
        return np.inf
    return (history[-4] - history[-1]) / abs(history[-1]) if history[-1] else 0.0
