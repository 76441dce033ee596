"""Fluid problems: replicas take nothing from their neighbours but SM steps, and nothing but SM steps runs out.

Then a GPU is a vessel of U_m steps that services may be poured into. With e_ms, the most rps per step that any row of
service s has on mode m (cut at its rate), no pattern of the mode carries more of s than e_ms times the steps that s
has there. So this program, far smaller than the one over patterns, bounds the cost of every plan that serves all:

    min  Σ_m c_m n_m    over whole n_m ≥ 0, GPUs of each mode, and a_ms ≥ 0, what they carry of each service
    s.t. Σ_m a_ms ≥ λ_s                for each service
         Σ_s a_ms / e_ms ≤ U_m n_m     for each mode
         Σ_{m of type g} n_m ≤ N_g     for each type

With the GPUs of its solution, the a_ms are chosen again so that the fullest mode is as empty as can be. Then they are
poured: every service's part of a mode into the fullest GPU that takes all of it, else into several, each as full as
rows allow; what is left over at the end, wherever there is room. Rows come in steps, so that something may still be
left over: then the program is solved again with GPUs a little smaller.

A fluid problem is what Mélange solves (Griggs et al. 2024): whole GPUs whose time any number of workloads share. The
general search is no good at it: with a hundred replicas on a GPU its patterns are past counting.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from solvers.highs import (
    INFINITE,
    is_feasible,
    make_program,
    solve_whole,
)
from solvers.joint.kernels.types import Flags, GpuMode, Reals
from solvers.joint.patterns.columns import Columns, Pattern, capacities
from solvers.joint.patterns.formulation import CoverDemand
from solvers.joint.patterns.tables import Tables

_MARGINS = (0.0, 0.01, 0.02, 0.04, 0.08, 0.16)
"""Parts of a GPU that are left out, one after the other."""
_NODES = 2000
"""HiGHS visits this many nodes at most; with so few rows it nearly always ends far sooner."""
_FINEST = 20_000_000
"""SM steps × replicas × candidates of all modes: what one round of pricing looks at."""
_NOTHING = 1e-7
"""A service that lacks less than this share of its rate is served: that is rounding."""
_LITTLE_TOO_MUCH = 0.002
"""A row that carries more than its part of a service by this share is taken only when there is no other way."""
_MAX_GPUS = 1000
"""Beyond, to pour into them one by one takes longer than the general search."""


class FluidPlan(NamedTuple):
    """GPUs by column, all services served, and what no plan that serves all costs less than."""

    counts: Mapping[int, int]
    bound: float


class _Mix(NamedTuple):
    """A solution of the program."""

    gpus: Reals
    """(M,) whole."""
    rps: Reals
    """(M, S) what the GPUs of each mode carry of each service."""
    bound: float


def is_fluid(tables: Tables, demand: CoverDemand) -> bool:
    """Whether SM steps are all that replicas contend for, and rates all that is asked for."""
    services = len(demand.rate)
    return (
        len(tables.modes) > 0
        and not demand.fewest.any()
        and bool(np.isinf(demand.most).all())
        and all(_is_fluid(mode, services) for mode in tables.modes)
    )


def is_too_fine(tables: Tables) -> bool:
    """Whether shares come in steps so small that the general search gets nowhere."""
    return (
        sum(mode.steps * mode.max_replicas * len(mode.service) for mode in tables.modes)
        > _FINEST
    )


def _is_fluid(mode: GpuMode, services: int) -> bool:
    crowd = min(services, mode.steps)
    is_same_factor = bool((mode.launch_factor == mode.launch_factor[1]).all())
    has_free_launch = is_same_factor or not mode.launch_ms.any()
    # Even the most replicas that SM steps allow on a GPU must keep all its other limits.
    return (
        len(mode.service) > 0
        and mode.max_replicas >= crowd
        and has_free_launch
        and not (
            (mode.growth_ms.any() or mode.overload_ms.any()) and mode.pressure.any()
        )
        and crowd * float(mode.memory.max()) <= mode.memory_mib
        and crowd * float(mode.power.max()) <= mode.power_w
        and not (mode.watt_price > 0.0 and mode.power.any())
    )


def solve_fluid(
    tables: Tables,
    demand: CoverDemand,
    columns: Columns,
    *,
    is_over: Callable[[], bool],
) -> FluidPlan | None:
    """A plan for a fluid problem, or None where none was found; new columns go into `columns`.

    The plan is optimal where its cost is the bound.
    """
    carried = [_carried(tables, mode, demand.rate) for mode in tables.modes]
    bound = 0.0
    for margin in _MARGINS:
        mix = _Program(tables, demand, carried, margin).solve()
        if mix is None or mix.gpus.sum() > _MAX_GPUS:
            return None
        # Only the program without a margin bounds the cost: with one it asks for more than plans need.
        if margin == 0.0:
            bound = max(bound, mix.bound)
        patterns = _Pouring(tables, demand, carried, mix.gpus).pour(mix.rps)
        if patterns is not None:
            columns.add(patterns)
            counts = {columns.number(one): count for one, count in patterns.items()}
            return FluidPlan(counts, bound)
        if is_over():
            return None
    return None


def _carried(tables: Tables, mode: GpuMode, rate: Reals) -> Reals:
    """(C,) rps of its service's rate that each candidate carries, next to any neighbours."""
    # In a fluid problem neighbours take nothing, so that each carries what it carries alone.
    each_alone = np.arange(len(mode.service), dtype=np.int32)[:, None]
    alone = capacities(mode, tables.law, each_alone)[:, 0]
    return np.minimum(alone, rate[mode.service])


class _Program:
    """The program over modes, with a margin left out of every GPU."""

    def __init__(
        self,
        tables: Tables,
        demand: CoverDemand,
        carried: Sequence[Reals],
        margin: float,
    ) -> None:
        self._services = len(demand.rate)
        self._yields = np.zeros((len(tables.modes), self._services))
        for number, mode in enumerate(tables.modes):
            per_step = carried[number] / mode.width
            np.maximum.at(self._yields[number], mode.service, per_step)
        steps = np.array([float(mode.steps) for mode in tables.modes])
        self._room = (1.0 - margin) * steps
        # One flow for each mode that can carry a service at all.
        self._mode, self._service = np.nonzero(self._yields)
        self._highs = make_program()
        self._highs.setOptionValue("mip_rel_gap", 0.0)
        self._add_rows(demand)
        self._add_columns(tables, demand)

    def solve(self) -> _Mix | None:
        """The cheapest GPUs, evenly filled; None where there are none that serve all."""
        flows = len(self._mode)
        columns = np.arange(flows, flows + len(self._room), dtype=np.int32)
        if not solve_whole(self._highs, columns, _NODES):
            return None
        bound = float(self._highs.getInfo().mip_dual_bound)
        gpus = np.round(np.array(self._highs.getSolution().col_value)[flows:])
        if not self._even_out(gpus):
            return None
        rps = np.zeros_like(self._yields)
        values = np.array(self._highs.getSolution().col_value)
        rps[self._mode, self._service] = values[:flows]
        return _Mix(gpus, rps, bound)

    def _add_rows(self, demand: CoverDemand) -> None:
        """One row per service, then one per mode, then one per type."""
        modes = len(self._room)
        types = len(demand.stock)
        endless = np.full(self._services, INFINITE)
        low = np.concatenate((demand.rate, np.full(modes + types, -INFINITE)))
        high = np.concatenate((endless, np.zeros(modes), demand.stock))
        starts = np.zeros(len(low), np.int32)
        empty = np.zeros(0, np.int32)
        self._highs.addRows(len(low), low, high, 0, starts, empty, np.zeros(0))

    def _add_columns(self, tables: Tables, demand: CoverDemand) -> None:
        """What each mode carries of each service, in the order of the flows; then the GPUs of each mode."""
        flows = len(self._mode)
        modes = len(tables.modes)
        rows = np.column_stack((self._service, self._services + self._mode))
        steps_per_rps = 1.0 / self._yields[self._mode, self._service]
        values = np.column_stack((np.ones(flows), steps_per_rps))
        self._add(np.zeros(flows), demand.rate[self._service], rows, values)

        kinds = tables.mode_types
        mode_rows = self._services + np.arange(modes)
        rows = np.column_stack((mode_rows, self._services + modes + kinds))
        values = np.column_stack((-self._room, np.ones(modes)))
        self._add(tables.mode_prices, demand.stock[kinds], rows, values)

    def _add(
        self, costs: Reals, high: Reals, rows: npt.NDArray[np.int64], values: Reals
    ) -> None:
        """Columns with two entries each."""
        starts = np.arange(0, rows.size, 2, dtype=np.int32)
        self._highs.addCols(
            len(costs),
            costs,
            np.zeros(len(costs)),
            high,
            rows.size,
            starts,
            rows.ravel().astype(np.int32),
            values.ravel(),
        )

    def _even_out(self, gpus: Reals) -> bool:
        """With these GPUs, leave as large a part as possible of each mode's empty; whether that can be done."""
        flows = len(self._mode)
        modes = len(gpus)
        columns = np.arange(flows, flows + modes, dtype=np.int32)
        self._highs.changeColsBounds(modes, columns, gpus, gpus)
        self._highs.changeColsCost(modes, columns, np.zeros(modes))
        rows = (self._services + np.arange(modes)).astype(np.int32)
        # The new column is the part of each mode that stays empty: it alone has a cost, so it is maximised.
        self._highs.addCol(-1.0, 0.0, 1.0, modes, rows, self._room * gpus)
        return is_feasible(self._highs)


@dataclass(slots=True, eq=False)
class _Vessel:
    """One GPU."""

    mode: int
    room: int
    """SM steps."""
    items: dict[int, int]
    """Candidate by service."""


class _Pouring:
    """GPUs that are filled service by service."""

    def __init__(
        self, tables: Tables, demand: CoverDemand, carried: Sequence[Reals], gpus: Reals
    ) -> None:
        self._tables, self._rate, self._carried = tables, demand.rate, carried
        self._vessels = [
            _Vessel(number, mode.steps, {})
            for number, (mode, count) in enumerate(zip(tables.modes, gpus, strict=True))
            for _ in range(int(count))
        ]

    def pour(self, rps: Reals) -> Counter[Pattern] | None:
        """GPUs by pattern, from what each mode is to carry; None where something finds no room."""
        left = self._rate.copy()
        for number, service in self._order(rps):
            own = [vessel for vessel in self._vessels if vessel.mode == number]
            wanted = max(0.0, min(float(rps[number, service]), float(left[service])))
            left[service] -= self._fill(own, service, wanted, _LITTLE_TOO_MUCH)
        self._pour_rest(left)
        if self._is_left(left).any():
            return None
        used = (vessel for vessel in self._vessels if vessel.items)
        return Counter(
            Pattern(vessel.mode, tuple(sorted(vessel.items.values())))
            for vessel in used
        )

    def _pour_rest(self, left: Reals) -> None:
        """Put what is left over anywhere."""
        # At first without waste, at last at any price.
        for too_much in (_LITTLE_TOO_MUCH, np.inf):
            for service in np.flatnonzero(self._is_left(left)).tolist():
                wanted = float(left[service])
                left[service] -= self._fill(self._vessels, service, wanted, too_much)

    def _is_left(self, rps: Reals) -> Flags:
        """Whether so much is more than rounding, of the rate of each service."""
        return rps > _NOTHING * self._rate

    def _order(self, rps: Reals) -> list[tuple[int, int]]:
        """Mode and service of each part in the order in which they are poured."""
        parts = np.argwhere(self._is_left(rps))
        number, service = parts.T
        sizes = self._sizes(rps)[number, service]
        # Services on several modes first: while there is room everywhere, their parts can be as large as they should.
        is_only_part = np.bincount(service, minlength=len(self._rate))[service] == 1
        # The largest first, as in bin packing: small ones fit into what is left.
        order = np.lexsort((-sizes, is_only_part))
        return [(one, other) for one, other in parts[order].tolist()]

    def _sizes(self, rps: Reals) -> Reals:
        """(M, S) GPUs that so much takes."""
        max_rps = np.zeros_like(rps)
        for number, mode in enumerate(self._tables.modes):
            on_one_gpu = self._carried[number] / mode.width * mode.steps
            np.maximum.at(max_rps[number], mode.service, on_one_gpu)
        return np.divide(rps, max_rps, out=np.zeros_like(rps), where=max_rps > 0.0)

    def _fill(
        self,
        vessels: Sequence[_Vessel],
        service: int,
        wanted_rps: float,
        too_much: float,
    ) -> float:
        """Put the service onto some of the GPUs; returns the rps that they carry more then.

        too_much: part of what is wanted by which a row may carry more.
        """
        found_rps = 0.0
        while (left_rps := wanted_rps - found_rps) > _NOTHING * self._rate[service]:
            max_rps = left_rps + too_much * wanted_rps
            offers = [
                self._offer(vessel, service, left_rps, max_rps) for vessel in vessels
            ]
            known = [offer for offer in offers if offer is not None]
            if not known:
                break
            # The one that carries all and then has least room left, else the one that carries most.
            best = min(
                known,
                key=lambda offer: (
                    -min(offer.rps, left_rps * (1.0 - _NOTHING)),
                    offer.spare,
                ),
            )
            best.vessel.items[service] = best.item
            best.vessel.room = best.spare
            found_rps += best.rps
        return found_rps

    def _offer(
        self, vessel: _Vessel, service: int, wanted_rps: float, max_rps: float
    ) -> "_Offer | None":
        """The narrowest row that carries all that is wanted, else the one that carries most; the one there may grow."""
        mode = self._tables.modes[vessel.mode]
        if (
            mode.shares_label.size
            and mode.shares_label[service, [*vessel.items.keys() - {service}]].any()
        ):
            return None
        carried = self._carried[vessel.mode]
        now = vessel.items.get(service)
        room, has_rps = vessel.room, 0.0
        # A GPU runs one replica of a service at most: more of it means a wider one in its place.
        if now is not None:
            room, has_rps = room + int(mode.width[now]), float(carried[now])
        first, last = np.searchsorted(mode.service, (service, service + 1))
        more_rps = carried[first:last] - has_rps
        is_useful = (more_rps > 0.0) & (more_rps <= max_rps)
        fits = np.flatnonzero((mode.width[first:last] <= room) & is_useful)
        if len(fits) == 0:
            return None
        does_all = fits[more_rps[fits] >= wanted_rps * (1.0 - _NOTHING)]
        # Candidates ascend by width.
        at = int(does_all[0] if len(does_all) else fits[np.argmax(more_rps[fits])])
        item = int(first) + at
        return _Offer(vessel, item, float(more_rps[at]), room - int(mode.width[item]))


class _Offer(NamedTuple):
    """What a GPU can do for a service."""

    vessel: _Vessel
    item: int
    rps: float
    """More than now."""
    spare: int
    """SM steps that are left then."""
