"""Between plans and columns: how many GPUs run which pattern, as a Plan, and a running plan as patterns.

A service that is not served in full gets the first reason that holds, from what no GPU could change (its own limit of
replicas, rows that miss the SLO) over what is used up (stock, watts, time) to the rule that keeps it off free GPUs.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

from solvers.joint.kernels.types import GpuMode, Reals
from solvers.joint.patterns.columns import Column, Columns, Pattern, power_w
from solvers.joint.patterns.running import Candidates
from solvers.joint.patterns.tables import Tables
from solvers.types.plan import GpuPlan, Plan, ReplicaPlan, Unserved, UnservedReason
from solvers.types.problem import OperatingPoint, Problem, ServiceDemand
from solvers.types.state import GpuType

SAFE = 1.0 - 1e-9
"""Rates stay this far below a replica's capacity, so that the checker's own rounding never finds them above."""
ROUNDING = 1e-7
"""A shortage below this share of the rate is rounding."""


def decode(
    problem: Problem,
    tables: Tables,
    columns: Columns,
    counts: Mapping[int, int],
    *,
    policy: str,
    is_cut: bool = False,
) -> Plan:
    """The plan in which `counts[number]` GPUs run the pattern of that column.

    Every service's rate goes to its replicas in proportion to their capacities in their patterns; what exceeds them is
    unserved. `is_cut`: whether time ran out, so that more thought might have served more.
    """
    used = [
        (columns[number], count)
        for number, count in sorted(counts.items())
        if count > 0
    ]
    capacity, replicas = totals(used, len(problem.services))
    rate = np.array([service.arrival_rate_rps for service in problem.services])
    share = shares_of(rate, capacity)
    gpus = [gpu_plan(problem, tables, column, count, share) for column, count in used]
    reasons = _Reasons(problem, tables, used, is_cut=is_cut)
    missing_rps = rate - capacity * share
    return Plan(
        policy=policy,
        gpus=tuple(sorted(gpus, key=_gpu_key)),
        unserved=_all_unserved(missing_rps, replicas, reasons),
    )


def shares_of(rate: Reals, capacity: Reals) -> Reals:
    """(S,) parts of the capacities that the rates take, at most all."""
    # What nothing serves has share 0, not 0 / 0.
    share = np.divide(rate, capacity, out=np.zeros_like(rate), where=capacity > 0.0)
    return np.minimum(SAFE, share)


def totals(used: list[tuple[Column, int]], services: int) -> tuple[Reals, Reals]:
    """(S,) rps that the columns carry together, and (S,) their replicas."""
    capacity = np.zeros(services)
    replicas = np.zeros(services)
    for column, count in used:
        capacity[column.service] += count * column.capacity
        replicas[column.service] += count
    return capacity, replicas


def patterns_of(problem: Problem, tables: Tables, plan: Plan) -> Counter[Pattern]:
    """GPUs by pattern, of a plan; those are left out that run anything that is no candidate (any more)."""
    return Candidates(problem, tables).patterns_of(plan)


def _rows(problem: Problem, mode: GpuMode, column: Column) -> Iterator[OperatingPoint]:
    """The operating row of each replica of a column."""
    gpu_type = problem.gpu_types[mode.gpu_type].name
    for item, service in zip(
        column.pattern.items,
        column.service.tolist(),
        strict=True,
    ):
        points = problem.points_of(problem.services[service].network, gpu_type)
        assert points is not None, "a candidate has operating points"
        yield points.rows[int(mode.row[item])]


def gpu_plan(
    problem: Problem,
    tables: Tables,
    column: Column,
    count: int,
    share: Reals,
) -> GpuPlan:
    """`count` GPUs that run a column, each service with its share of what its replicas carry, (S,)."""
    mode = tables.modes[column.pattern.mode]
    # SM percents are read from the rows: as numbers of SM steps they would come back with rounding.
    replicas = (
        ReplicaPlan(
            service=problem.services[service].name,
            sm_percent=row.sm_percent,
            batch=row.batch,
            arrival_rate_rps=float(capacity * share[service]),
        )
        for row, service, capacity in zip(
            _rows(problem, mode, column),
            column.service.tolist(),
            column.capacity,
            strict=True,
        )
    )
    return GpuPlan(
        gpu_type=problem.gpu_types[mode.gpu_type].name,
        count=count,
        clock_mhz=mode.clock_mhz,
        replicas=tuple(sorted(replicas, key=_replica_key)),
    )


def _gpu_key(gpu: GpuPlan) -> tuple[str, float, list[tuple[str, float, int]]]:
    return gpu.gpu_type, gpu.clock_mhz, [_replica_key(one) for one in gpu.replicas]


def _replica_key(replica: ReplicaPlan) -> tuple[str, float, int]:
    return replica.service, replica.sm_percent, replica.batch


def _all_unserved(
    missing_rps: Reals,
    replicas: Reals,
    reasons: "_Reasons",
) -> tuple[Unserved, ...]:
    """By service; (S,) rps that are missing and replicas that are there."""
    services = zip(reasons.problem.services, missing_rps, replicas, strict=True)
    entries = [
        _unserved(service, rps, int(count), reasons) for service, rps, count in services
    ]
    found = (entry for entry in entries if entry is not None)
    return tuple(sorted(found, key=lambda entry: entry.service))


def _unserved(
    service: ServiceDemand,
    missing_rps: float,
    replicas: int,
    reasons: "_Reasons",
) -> Unserved | None:
    missing = max(0, service.min_replicas - replicas)
    is_short = missing_rps > ROUNDING * service.arrival_rate_rps
    if not is_short and not missing:
        return None
    return Unserved(
        service=service.name,
        rate_rps=float(missing_rps) if is_short else 0.0,
        reason=reasons.of(service, replicas, is_short=is_short),
        replicas_missing=missing,
    )


class _Reasons:
    """Why a service is not served in full: the first rule that stops more of it."""

    def __init__(
        self,
        problem: Problem,
        tables: Tables,
        used: list[tuple[Column, int]],
        *,
        is_cut: bool,
    ) -> None:
        self.problem, self._tables = problem, tables
        self._used, self._is_cut = used, is_cut
        self._taken = np.zeros(len(problem.gpu_types))
        for column, count in used:
            self._taken[tables.modes[column.pattern.mode].gpu_type] += count

    def of(
        self,
        service: ServiceDemand,
        replicas: int,
        *,
        is_short: bool,
    ) -> UnservedReason:
        """The reason for a service that has `replicas`; one that is not short of requests lacks replicas."""
        if service.max_replicas is not None and replicas >= service.max_replicas:
            return "replicas"
        alone = {
            number: self._alone(service, gpu_type, is_short=is_short)
            for number, gpu_type in enumerate(self.problem.gpu_types)
            if service.allows(gpu_type.name)
        }
        able = [number for number, rules in alone.items() if None in rules]
        if not able:
            broken = set[UnservedReason | None]().union(*alone.values())
            return next((rule for rule in ("memory", "power") if rule in broken), "slo")
        return self._beyond_rows(service, able)

    def _beyond_rows(self, service: ServiceDemand, able: list[int]) -> UnservedReason:
        """The reason for a service that some row could serve on GPUs of these types."""
        stock = self._tables.stock[able]
        if not (stock >= 1.0).any():
            return "stock"
        if self._lacks_watts(able):
            return "power"
        # Time cut the plan short, or must have, since a GPU is left that could serve more of the service.
        if self._is_cut or (self._taken[able] < stock).any():
            return "budget"
        return self._beside(self.problem.services.index(service), able)

    def _lacks_watts(self, able: list[int]) -> bool:
        """Whether there are GPUs of these types left, and too few watts of the power budget for any of them."""
        if self.problem.power_budget_w is None:
            return False
        drawn_w = sum(
            count * power_w(self._tables, column.pattern)
            for column, count in self._used
        )
        left = [one for one in able if self._taken[one] < self._tables.stock[one]]
        min_w = min((self._min_w(gpu_type) for gpu_type in left), default=0.0)
        return drawn_w + min_w > self.problem.power_budget_w

    def _min_w(self, gpu_type: int) -> float:
        """What a GPU of a type draws with its least replica."""
        rows = [
            float(mode.power.min())
            for mode in self._tables.modes
            if mode.gpu_type == gpu_type
        ]
        return float(self._tables.idle_w[gpu_type]) + min(rows, default=0.0)

    def _alone(
        self,
        service: ServiceDemand,
        gpu_type: GpuType,
        *,
        is_short: bool,
    ) -> set[UnservedReason | None]:
        """Why each row cannot run by itself on a whole GPU of the type; None for one that can."""
        points = self.problem.points_of(service.network, gpu_type.name)
        rows = points.rows if points else ()
        return {
            _reason_alone(self.problem, service, gpu_type, row, is_short=is_short)
            for row in rows
        }

    def _beside(self, service: int, able: list[int]) -> UnservedReason:
        """The rule that keeps the service off every GPU of these types, though SMs are free on all; else the stock."""
        rules = set[UnservedReason]()
        for column, _count in self._used:
            if self._tables.modes[column.pattern.mode].gpu_type in able:
                rules.add(self._rule_beside(service, column))
            # Where rules differ, changing one of them would not be enough, but another GPU would help.
            if len(rules) > 1 or "stock" in rules:
                return "stock"
        return rules.pop() if rules else "stock"

    def _rule_beside(self, service: int, column: Column) -> UnservedReason:
        """Why none of the service's rows fits next to what runs on a GPU; the stock where no SM is free."""
        mode = self._tables.modes[column.pattern.mode]
        there = list(column.pattern.items)
        own = np.flatnonzero(mode.service == service)
        if not len(own) or service in column.service or not self._has_free_sms(column):
            return "stock"
        if mode.shares_label.size and mode.shares_label[service, column.service].any():
            return "stock"
        if len(there) >= mode.max_replicas:
            return "replicas"
        # One limit after the other, each among the rows that the ones before leave.
        own = own[mode.width[own] + mode.width[there].sum() <= mode.steps]
        if not len(own):
            return "sm"
        own = own[mode.memory[own] + mode.memory[there].sum() <= mode.memory_mib]
        if not len(own):
            return "memory"
        own = own[mode.power[own] + mode.power[there].sum() <= mode.power_w]
        return "stock" if len(own) else "power"

    def _has_free_sms(self, column: Column) -> bool:
        mode = self._tables.modes[column.pattern.mode]
        gpu_type = self.problem.gpu_types[mode.gpu_type]
        percents = [row.sm_percent for row in _rows(self.problem, mode, column)]
        max_percent = gpu_type.max_sm_percent(len(percents) + 1)
        # By the type's own step: that of the mode may be a multiple of it.
        step = gpu_type.sm_percent_step * (1.0 - ROUNDING)
        return max_percent - sum(percents) >= step


def _reason_alone(
    problem: Problem,
    service: ServiceDemand,
    gpu_type: GpuType,
    row: OperatingPoint,
    *,
    is_short: bool,
) -> UnservedReason | None:
    """A replica that carries nothing need not meet its SLO."""
    if is_short and _misses_slo(problem, service, row):
        return "slo"
    if row.memory_mib > gpu_type.memory_mib:
        return "memory"
    if math.fsum((gpu_type.idle_w, row.power_w)) > gpu_type.power_cap_w:
        return "power"
    return None


def _misses_slo(problem: Problem, service: ServiceDemand, row: OperatingPoint) -> bool:
    if row.solo_ms <= 0.0:
        return True
    ratio = service.slo_ms / row.solo_ms
    law = problem.capacity_law
    return law.utilisation(service.percentile, row.batch, ratio) <= 0.0
