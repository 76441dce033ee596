"""The columns at hand as arrays: which of them are worth a look for what is still wanted."""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace

import numpy as np

from solvers.joint.kernels import scan
from solvers.joint.kernels.types import Numbers, Reals
from solvers.joint.patterns.columns import Column, Columns
from solvers.joint.patterns.formulation import CoverDemand
from solvers.joint.patterns.tables import Tables
from solvers.joint.relaxation.master_solution import Duals

_GROWTH = 1024
"""Room for this number of columns more when the arrays grow."""
_MIN_LOSS = 1e-6
"""USD per hour: of columns that lose nothing, fewer are better."""


class ColumnPool:
    """Padded arrays over all of Columns, which may grow meanwhile: `sync` takes in what is new."""

    def __init__(self, tables: Tables, columns: Columns) -> None:
        self._tables, self._columns = tables, columns
        width = max((mode.max_replicas for mode in tables.modes), default=1)
        self._service = np.zeros((0, width), np.int32)
        self._capacity = np.zeros((0, width))
        self._price = np.zeros(0)
        self._gpu_type = np.zeros(0, np.int32)
        self._filled = 0
        self.sync()

    @property
    def service(self) -> Numbers:
        """(C, N) services of each column; the number of services where there are no more."""
        return self._service[: self._filled]

    @property
    def capacity(self) -> Reals:
        """(C, N) rps, 0 where there are no more services."""
        return self._capacity[: self._filled]

    @property
    def price(self) -> Reals:
        """(C,) USD per hour; what that means, subclasses say."""
        return self._price[: self._filled]

    @property
    def gpu_type(self) -> Numbers:
        """(C,)"""
        return self._gpu_type[: self._filled]

    def taken(self, columns: Columns, numbers: Sequence[int]) -> "ColumnPool":
        """The same of `columns`, which are these numbers of the columns at hand and no others; it grows with them."""
        some = copy(self)
        at = np.array(numbers, np.int64)
        some._columns, some._filled = columns, len(at)
        some._service, some._capacity = self._service[at], self._capacity[at]
        some._price, some._gpu_type = self._price[at], self._gpu_type[at]
        return some

    def sync(self) -> None:
        """Take in the columns that were made since."""
        count = len(self._columns)
        # With room to spare, since most rounds bring a few columns, and growing copies them all.
        if count > len(self._price):
            self._grow(count + _GROWTH)
        for number in range(self._filled, count):
            column = self._columns[number]
            places = len(column.service)
            self._service[number, :places] = column.service
            self._capacity[number, :places] = column.capacity
            self._price[number] = self._price_of(column)
            self._gpu_type[number] = self._tables.modes[column.pattern.mode].gpu_type
        self._filled = count

    def reduced_costs(self, demand: CoverDemand, duals: Duals) -> Reals:
        """(C,) USD per hour that each column costs beyond its worth; infinite where it is not possible."""
        return scan.reduced_costs(self.stack(), scan_prices(demand, duals))

    def best_value(self, demand: CoverDemand, rps: Reals, presence: Reals) -> int:
        """The possible column that is worth most per USD at such (S,) prices; −1 where none is worth anything."""
        free = np.zeros(len(demand.stock))
        prices = scan.ScanPrices(
            demand.rate,
            rps,
            presence,
            demand.most,
            demand.stock,
            free,
        )
        return scan.best_value(self.stack(), prices)

    def cheapest(self, costs: Reals, most: int, *, below: float = np.inf) -> list[int]:
        """Numbers of at most `most` columns of least cost, and cost less than `below`, cheapest first."""
        numbers = np.flatnonzero(costs < below)
        # A partition first, in linear time: sorting all columns to keep some hundreds takes far longer.
        if len(numbers) > most:
            limit = np.partition(costs[numbers], most - 1)[most - 1]
            numbers = numbers[costs[numbers] <= limit]
        # Stable, so that among equals the column of the lower number comes first on every machine.
        numbers = numbers[np.argsort(costs[numbers], kind="stable")][:most]
        found: list[int] = numbers.tolist()
        return found

    def pricing_duals(self, duals: Duals) -> Duals:
        """The duals under which pricing looks for columns that are worth more than these prices."""
        return duals

    def stack(self) -> scan.Stack:
        """All columns."""
        return scan.Stack(self.service, self.capacity, self.price, self.gpu_type)

    def _price_of(self, column: Column) -> float:
        return column.price

    def _grow(self, size: int) -> None:
        more = size - len(self._price)
        services = len(self._tables.rate)
        self._service = np.pad(
            self._service,
            ((0, more), (0, 0)),
            constant_values=services,
        )
        self._capacity = np.pad(self._capacity, ((0, more), (0, 0)))
        self._price = np.pad(self._price, (0, more))
        self._gpu_type = np.pad(self._gpu_type, (0, more))


def scan_prices(demand: CoverDemand, duals: Duals) -> scan.ScanPrices:
    """What a scan of the columns goes by."""
    return scan.ScanPrices(
        demand.rate,
        duals.rps,
        duals.presence,
        demand.most,
        demand.stock,
        duals.stock,
    )


class LossPool(ColumnPool):
    """Columns at what they lose: their reduced costs under the duals of a whole relaxation, however much is wanted."""

    def __init__(self, tables: Tables, columns: Columns, duals: Duals) -> None:
        self._duals = duals
        super().__init__(tables, columns)

    def pricing_duals(self, duals: Duals) -> Duals:
        """What is short pays besides what every rps is worth anyway."""
        own = self._duals
        return replace(
            duals,
            rps=own.rps + duals.rps,
            presence=own.presence + duals.presence,
            stock=own.stock + duals.stock,
        )

    def _price_of(self, column: Column) -> float:
        duals = self._duals
        service = column.service
        worth = float(
            duals.rps[service] @ column.capacity + duals.presence[service].sum()
        )
        gpu_type = self._tables.modes[column.pattern.mode].gpu_type
        # Capacities are not cut to the rates here, so a column may be worth more than it costs: that is no loss.
        loss = column.price - float(duals.stock[gpu_type]) - worth
        return max(0.0, loss) + _MIN_LOSS
