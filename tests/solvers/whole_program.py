"""The master problem over every pattern there is as one integer program, to compare branching and bounds with."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import NamedTuple

import highspy
import numpy as np

from solvers.joint.heuristics.diving import DiveContext
from solvers.joint.heuristics.residual import SearchContext
from solvers.joint.kernels.types import GpuMode
from solvers.joint.patterns.columns import (
    Column,
    Columns,
    Pattern,
    make_column,
    single_patterns,
)
from solvers.joint.patterns.deadline import never
from solvers.joint.patterns.formulation import CoverDemand, cheapest_rps, make_demand
from solvers.joint.patterns.tables import Tables, make_tables
from solvers.joint.relaxation.column_generation import Relaxation, generate
from solvers.joint.relaxation.column_pool import ColumnPool
from solvers.joint.relaxation.pricing import Pricer
from solvers.types.problem import Problem
from tests.solvers.instances import with_types


class Setting(NamedTuple):
    """What every part of the planner starts from."""

    tables: Tables
    demand: CoverDemand
    columns: Columns

    def pricer(self) -> Pricer:
        """One without any memory of earlier prices."""
        return Pricer(self.tables)

    def tools(self, pricer: Pricer | None = None) -> SearchContext:
        """What the heuristics work with, and a pool of the columns at hand."""
        return SearchContext(
            self.tables,
            pricer if pricer is not None else self.pricer(),
            self.columns,
            ColumnPool(self.tables, self.columns),
        )

    def relaxed(self, pricer: Pricer | None = None) -> Relaxation:
        """The relaxation, whose columns are added to those at hand."""
        return generate(self.tables, self.demand, pricer or self.pricer(), self.columns)


def set_up(problem: Problem, *, has_stock: bool = True) -> Setting:
    """A problem's tables, demand and no columns but single replicas; without stock limits if so wanted."""
    if not has_stock:
        problem = with_types(problem, count=None)
    tables = make_tables(problem)
    columns = Columns(tables)
    columns.add(single_patterns(tables, tables.rate))
    return Setting(
        tables,
        make_demand(problem, tables, cheapest_rps(problem, tables, columns)),
        columns,
    )


def all_columns(tables: Tables) -> list[Column]:
    """Every pattern in which all replicas meet their SLO, or count as present without."""
    columns = (
        make_column(tables, Pattern(number, items))
        for number, mode in enumerate(tables.modes)
        for items in _sets(mode)
    )
    return [column for column in columns if _is_needed(tables, column)]


def _is_needed(tables: Tables, column: Column) -> bool:
    may_idle = tables.modes[column.pattern.mode].may_idle[list(column.pattern.items)]
    return bool(((column.capacity > 0.0) | may_idle).all())


def _sets(mode: GpuMode) -> Iterator[tuple[int, ...]]:
    for size in range(1, mode.max_replicas + 1):
        for items in itertools.combinations(range(len(mode.service)), size):
            at = list(items)
            if (
                len(set(mode.service[at].tolist())) == size
                and mode.width[at].sum() <= mode.steps
                and mode.memory[at].sum() <= mode.memory_mib
                and mode.power[at].sum() <= mode.power_w
            ):
                yield items


def optimum(
    setting: Setting, *, is_whole: bool = True, serves_all: bool = False
) -> float:
    """Least cost with shortages at their prices, infinite where all must be served and cannot; or its relaxation."""
    tables, demand = setting.tables, setting.demand
    services, types = len(demand.rate), len(demand.stock)
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", 1)
    highs.setOptionValue("mip_rel_gap", 0.0)
    infinite = highspy.kHighsInf
    lows = [*demand.rate, *demand.fewest, *[-infinite] * (services + types)]
    highs_of = [*[infinite] * (2 * services), *demand.most, *demand.stock]
    for low, high in zip(lows, highs_of, strict=True):
        highs.addRow(low, high, 0, np.zeros(0, np.int32), np.zeros(0))
    for row, price in enumerate((*demand.shortage_price, *demand.missing_price)):
        highs.addCol(
            price,
            0.0,
            0.0 if serves_all else infinite,
            1,
            np.array([row], np.int32),
            np.ones(1),
        )
    for column in all_columns(tables):
        own = column.service
        stock = 3 * services + tables.modes[column.pattern.mode].gpu_type
        rows = np.concatenate(
            (own, services + own, 2 * services + own, [stock])
        ).astype(np.int32)
        values = np.concatenate(
            (np.minimum(column.capacity, demand.rate[own]), np.ones(2 * len(own) + 1))
        )
        highs.addCol(column.price, 0.0, infinite, len(rows), rows, values)
        if is_whole:
            highs.changeColIntegrality(
                highs.getNumCol() - 1, highspy.HighsVarType.kInteger
            )
    highs.run()
    if highs.getModelStatus() == highspy.HighsModelStatus.kInfeasible:
        return np.inf
    assert highs.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return float(highs.getInfo().objective_function_value)


def after(calls: int) -> Callable[[], bool]:
    """Over after `calls` questions."""
    asked = itertools.count(1)
    return lambda: next(asked) > calls


def dive_of(
    problem: Problem,
    *,
    seed: int = 0,
    is_over: Callable[[], bool] = never,
    executor: Executor | None = None,
) -> DiveContext:
    """What a search for better plans begins with: the problem's relaxation."""
    setting = set_up(problem)
    return DiveContext(
        setting.tools(setting.pricer().on(executor)),
        setting.demand,
        setting.relaxed().solution.duals,
        np.random.default_rng(seed),
        is_over,
    )


def on_whole_gpus(search: DiveContext, gpus: int) -> Counter[int]:
    """`gpus` GPUs with the first column that carries 99 rps."""
    numbers = (
        number
        for number, column in enumerate(search.tools.columns)
        if column.capacity[0] >= 99.0
    )
    return Counter({next(numbers): gpus})
