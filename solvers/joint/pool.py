"""The columns at hand as arrays: which of them are worth a look for what is still wanted."""

import numpy as np

from solvers.joint.columns import Columns
from solvers.joint.master import Demand, Duals
from solvers.joint.tables import Numbers, Reals, Tables

_GROWTH = 1024
_WHOLE_GPU = 1.0 - 1e-9


class Pool:
    """Padded arrays over all of Columns, which may grow meanwhile: `sync` takes in what is new."""

    def __init__(self, tables: Tables, columns: Columns) -> None:
        self._tables, self._columns = tables, columns
        self._most = max((mode.most_replicas for mode in tables.modes), default=1)
        self._service = np.zeros((0, self._most), np.int32)
        self._capacity = np.zeros((0, self._most))
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
        """(C,) USD per hour."""
        return self._price[: self._filled]

    @property
    def gpu_type(self) -> Numbers:
        """(C,)"""
        return self._gpu_type[: self._filled]

    def sync(self) -> None:
        """Take in the columns that were made since."""
        count = len(self._columns)
        if count > len(self._price):
            self._grow(count + _GROWTH)
        for number in range(self._filled, count):
            column = self._columns[number]
            places = len(column.service)
            self._service[number, :places] = column.service
            self._capacity[number, :places] = column.capacity
            self._price[number] = column.price
            self._gpu_type[number] = self._tables.modes[column.pattern.mode].gpu_type
        self._filled = count

    def useful(self, demand: Demand) -> Reals:
        """(C, N) rps of each replica that the demand can use."""
        usable: Reals = np.minimum(self.capacity, np.append(demand.rate, 0.0)[self.service])
        return usable

    def possible(self, demand: Demand) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """(C,) whether one GPU of the column keeps within stock and most replicas."""
        room = np.append(demand.most, np.inf)[self.service].min(axis=1, initial=np.inf)
        possible: np.ndarray[tuple[int], np.dtype[np.bool_]]
        possible = (demand.stock[self.gpu_type] >= _WHOLE_GPU) & (room >= _WHOLE_GPU)
        return possible

    def reduced_costs(self, demand: Demand, duals: Duals) -> Reals:
        """(C,) USD per hour that each column costs beyond its worth; infinite where it is not possible."""
        worth = (np.append(duals.rps, 0.0)[self.service] * self.useful(demand)).sum(axis=1)
        worth += np.append(duals.presence, 0.0)[self.service].sum(axis=1)
        costs = self.price - duals.stock[self.gpu_type] - worth
        return np.where(self.possible(demand), costs, np.inf)

    def cheapest(self, costs: Reals, most: int, *, below: float = np.inf) -> list[int]:
        """Numbers of at most so many columns of least cost, and cost less than `below`."""
        numbers = np.flatnonzero(costs < below)
        if len(numbers) > most:
            numbers = numbers[costs[numbers] <= np.partition(costs[numbers], most - 1)[most - 1]]
        best: list[int] = numbers[np.argsort(costs[numbers], kind="stable")[:most]].tolist()
        return best

    def _grow(self, size: int) -> None:
        more = size - len(self._price)
        services = len(self._tables.rate)
        self._service = np.pad(self._service, ((0, more), (0, 0)), constant_values=services)
        self._capacity = np.pad(self._capacity, ((0, more), (0, 0)))
        self._price = np.pad(self._price, (0, more))
        self._gpu_type = np.pad(self._gpu_type, (0, more))
