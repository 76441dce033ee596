"""The covering program of packing, as a linear program in HiGHS that grows by patterns (`packing` states it)."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from solvers.highs import (
    INFINITE,
    PRIMAL_SIMPLEX,
    make_program,
    solve_program,
)
from solvers.joint.kernels.types import Numbers, Reals
from solvers.joint.patterns.columns import Pattern, price_of
from solvers.joint.patterns.tables import Tables

_MISSING_OVER_GPU = 10.0
"""A part that no pattern holds costs this multiple of the most expensive GPU."""

_MIN_SAVING = 1e-9
"""A pattern must be cheaper by this amount in USD per hour, beyond rounding."""


class FractionalCover(NamedTuple):
    """An optimum over the patterns at hand."""

    cost: float
    """USD per hour, with what is missing at its price."""
    counts: Reals
    """(patterns,) GPUs of each, in the order of their adding."""
    values: Reals
    """(S,) USD per hour of one more replica of each service, ≥ 0."""
    rents: Reals
    """(G,) USD per hour of one GPU of each type beyond its price: what its stock is worth, ≥ 0."""


class PackingProgram:
    """The linear relaxation. Patterns that hold the same services as another, on the same type, must be cheaper."""

    def __init__(self, tables: Tables, wanted: Numbers, stock: Reals) -> None:
        """wanted: (S,) replicas; stock: (G,) GPUs."""
        self._tables, self._services = tables, len(wanted)
        self.patterns: list[Pattern] = []
        self._known: dict[tuple[int, tuple[int, ...]], float] = {}
        # New columns leave the last optimum feasible, from which the primal simplex goes on.
        self._highs = make_program(PRIMAL_SIMPLEX)
        empty = np.zeros(0, np.int32), np.zeros(0)
        for _ in range(self._services + len(stock)):
            self._highs.addRow(0.0, 0.0, 0, *empty)
        self.want(wanted, stock)
        self._add_missing(_MISSING_OVER_GPU * float(tables.price.max()))

    def add(self, patterns: Iterable[Pattern]) -> int:
        """Let the program use these patterns too; returns how many are new to it."""
        new: list[Pattern] = []
        rows: list[list[int]] = []
        prices: list[float] = []
        for pattern in patterns:
            mode = self._tables.modes[pattern.mode]
            services = mode.service[list(pattern.items)].tolist()
            key = (mode.gpu_type, tuple(services))
            price = price_of(self._tables, pattern)
            # Patterns of the same services on the same type have the same rows, so only the cheaper one matters.
            if price < self._known.get(key, np.inf) - _MIN_SAVING:
                self._known[key] = price
                new.append(pattern)
                rows.append([*services, self._services + mode.gpu_type])
                prices.append(price)
        if new:
            self._add_columns(rows, prices)
        self.patterns += new
        return len(new)

    def _add_missing(self, price: float) -> None:
        """A column per service for what is missing, at a price."""
        # With these the program is feasible whatever patterns there are.
        for service in range(self._services):
            row = np.array([service], np.int32)
            self._highs.addCol(price, 0.0, INFINITE, 1, row, np.ones(1))

    def _add_columns(
        self, rows: Sequence[Sequence[int]], prices: Sequence[float]
    ) -> None:
        starts = np.cumsum([0, *map(len, rows)])[:-1].astype(np.int32)
        index = np.array([row for one in rows for row in one], np.int32)
        count, entries = len(rows), len(index)
        low = np.zeros(count)
        high = np.full(count, INFINITE)
        self._highs.addCols(
            count,
            np.array(prices),
            low,
            high,
            entries,
            starts,
            index,
            np.ones(entries),
        )

    def want(self, wanted: Numbers, stock: Reals) -> None:
        """From now on `wanted` replicas are wanted and `stock` GPUs at hand."""
        for row, low in enumerate(wanted.tolist()):
            self._highs.changeRowBounds(row, float(low), INFINITE)
        for row, high in enumerate(stock.tolist()):
            self._highs.changeRowBounds(self._services + row, -INFINITE, float(high))

    def solve(self) -> FractionalCover:
        """The optimum. Raises SolverFailed when HiGHS does not find one, which a correct program always has."""
        solve_program(self._highs, "packing program")
        solution = self._highs.getSolution()
        duals = np.array(solution.row_dual)
        return FractionalCover(
            cost=float(self._highs.getInfo().objective_function_value),
            counts=np.array(solution.col_value)[self._services :],
            values=np.maximum(duals[: self._services], 0.0),
            rents=np.maximum(-duals[self._services :], 0.0),
        )


def cost_of(tables: Tables, patterns: Sequence[Pattern]) -> float:
    """USD per hour of one GPU of each."""
    return sum(price_of(tables, pattern) for pattern in patterns)
