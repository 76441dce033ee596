"""Widen: what a plan leaves of its GPUs goes to replicas that start in any case, so that room costs nothing.

A GPU is paid for whole, and a running replica cannot get more SMs without a new start. So of each replica that starts,
the batch and the SM percent go up step by step for as long as it then carries more and all rules are kept, the service
first that carries least for what it is asked. On a GPU that changes, the batch of what runs goes up as well, within the
memory that it holds already. No neighbour falls below what its service needs, nothing else is started, no GPU is added.

Where tasks wait for SMs, replicas that would do with half of theirs are taken for such that do not run (`narrowed`), so
that narrower ones are planned in their place.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from solvers.greedy.arrange import obeys, running_carriers
from solvers.greedy.routing import ArrangedReplica, Carrier, route, true_capacities
from solvers.joint.patterns.deadline import never
from solvers.laws.cost import process_key
from solvers.laws.operating_rows import (
    CLOCK_TOLERANCE_MHZ,
    SM_PERCENT_DIGITS,
    OperatingRows,
)
from solvers.types.plan import GpuPlan, Plan
from solvers.types.problem import OperatingPoint, Problem

Processes: TypeAlias = frozenset[tuple[str, float]]
"""What runs on one GPU: service and SM percent, which no process can change."""
Held: TypeAlias = Mapping[str, float]
"""MiB that the replicas hold which go on on one GPU, by service."""

_MIN_GAIN = 1.01
"""A step that brings less is not taken: wider replicas and larger batches draw more watts."""
_MIN_RPS = 1e-9
"""Any capacity is much for a service without requests."""


def widened(
    problem: Problem, plan: Plan, *, is_over: Callable[[], bool] = never
) -> Plan:
    """The plan with wider replicas where its GPUs have SMs left; the plan itself where nothing can be widened.

    is_over: when to stop with what was reached. O(steps · log services), where a step prices one GPU.
    """
    rows = OperatingRows(problem)
    carriers = [each for gpu in plan.gpus for each in [_carrier(rows, gpu)] * gpu.count]
    changed = _changed(problem, carriers)
    # Most ticks change nothing, and end here.
    if not changed:
        return plan
    filling = _Filling(problem, carriers)
    for index, held in changed.items():
        # Without SM limits there are none to give.
        if problem.gpu_type(carriers[index].gpu_type).overload is None:
            filling.open(index, held)
    return _routed(problem, plan, filling) if filling.run(is_over) else plan


def _routed(problem: Problem, plan: Plan, filling: "_Filling") -> Plan:
    """The plan with the arrangement that was reached; its language models stay as they are."""
    routed = route(
        problem,
        plan.policy,
        filling.carriers,
        {each.service: each.reason for each in plan.unserved},
        capacities=filling.capacities,
    )
    models = {each.name for each in problem.llm_services}
    unserved = (each for each in plan.unserved if each.service in models)
    return replace(plan, gpus=routed.gpus, unserved=(*routed.unserved, *unserved))


def narrowed(problem: Problem) -> Problem:
    """The problem without the running replicas that would carry their part of the rate on half of their SMs."""
    if problem.current is None:
        return problem
    wide = _wide(problem)
    if not wide:
        return problem
    gpus = (
        replace(
            gpu,
            replicas=tuple(
                each for each in gpu.replicas if process_key(gpu, each) not in wide
            ),
        )
        for gpu in problem.current.gpus
    )
    left = tuple(gpu for gpu in gpus if gpu.replicas)
    return replace(problem, current=replace(problem.current, gpus=left))


def _wide(problem: Problem) -> set[tuple[str, str, float]]:
    """Which running replicas would do with half, by service, GPU type and SM percent: on equal GPUs all are alike."""
    running = running_carriers(problem)
    filling = _Filling(problem, running)
    return {
        (seat.service, carrier.gpu_type, round(seat.row.sm_percent, SM_PERCENT_DIGITS))
        for carrier in dict.fromkeys(running)
        for at, seat in enumerate(carrier.seats)
        if filling.does_with_half(carrier, at)
    }


def _carrier(rows: OperatingRows, gpu: GpuPlan) -> Carrier:
    seats = (
        ArrangedReplica(each.service, rows.row_of(gpu, each)) for each in gpu.replicas
    )
    return Carrier(gpu_type=gpu.gpu_type, seats=tuple(seats))


def _changed(problem: Problem, carriers: Sequence[Carrier]) -> dict[int, Held]:
    """What goes on on each of the GPUs that do not stay just as they are, by their place among the carriers.

    What runs is kept on the GPUs that have most in common with it. Binding matches exactly, and knows nodes; this takes
    equal GPUs first, and the others one by one.
    """
    running = Counter(running_carriers(problem))
    changed = []
    for index, carrier in enumerate(carriers):
        if running[carrier] > 0:
            running[carrier] -= 1
        else:
            changed.append(index)
    # In the order of the running GPUs, so that ties do not depend on the order of a hash.
    left = list(running.elements())
    held: dict[int, Held] = {}
    for index in changed:
        mine = _processes(carriers[index])
        places = (
            (len(mine & _processes(each)), -place)
            for place, each in enumerate(left)
            if each.gpu_type == carriers[index].gpu_type
        )
        common, place = max(places, default=(0, 0))
        held[index] = _memory(left.pop(-place), mine) if common else {}
    return held


def _memory(carrier: Carrier, wanted: Processes) -> Held:
    return {
        seat.service: seat.row.memory_mib
        for seat in carrier.seats
        if (seat.service, seat.row.sm_percent) in wanted
    }


def _processes(carrier: Carrier) -> Processes:
    return frozenset((seat.service, seat.row.sm_percent) for seat in carrier.seats)


def _size(row: OperatingPoint) -> tuple[float, int]:
    return row.sm_percent, row.batch


class _Filling:
    """An arrangement whose replicas grow."""

    def __init__(self, problem: Problem, carriers: list[Carrier]) -> None:
        self.carriers = carriers
        self._problem = problem
        self._priced: dict[Carrier, list[float]] = {}
        self._rows: dict[tuple[str, str, float], list[OperatingPoint]] = {}
        self._asked = {
            each.name: max(_MIN_RPS, each.arrival_rate_rps) for each in problem.services
        }
        self._carried: dict[str, float] = defaultdict(float)
        for carrier in carriers:
            self._count(carrier, 1.0)
        self._growing: dict[str, list[int]] = defaultdict(list)
        """By service, GPUs on which its replica may still grow."""
        self._held: dict[int, Held] = {}

    def capacities(self, problem: Problem, carrier: Carrier) -> list[float]:
        """What each replica of a GPU carries, within what a loss may take of its service."""
        if carrier not in self._priced:
            limits = (problem.service(each.service) for each in carrier.seats)
            self._priced[carrier] = [
                capacity
                if limit.max_replica_rps is None
                else min(capacity, limit.max_replica_rps)
                for capacity, limit in zip(
                    true_capacities(problem, carrier), limits, strict=True
                )
            ]
        return self._priced[carrier]

    def open(self, index: int, held: Held) -> None:
        """Let the replicas of a GPU grow."""
        self._held[index] = held
        for seat in self.carriers[index].seats:
            self._growing[seat.service].append(index)

    def run(self, is_over: Callable[[], bool]) -> bool:
        """Let replicas grow until none can; whether any did."""
        queue = [(self._slack(service), service) for service in self._growing]
        heapq.heapify(queue)
        has_grown = False
        while queue and not is_over():
            slack, service = heapq.heappop(queue)
            # Neighbours grew since: it may be another one's turn.
            if (now := self._slack(service)) != slack:
                heapq.heappush(queue, (now, service))
            elif self._grow(service):
                has_grown = True
                heapq.heappush(queue, (self._slack(service), service))
        return has_grown

    def _slack(self, service: str) -> float:
        return self._carried[service] / self._asked[service]

    def _count(self, carrier: Carrier, sign: float) -> None:
        for seat, capacity in zip(
            carrier.seats, self.capacities(self._problem, carrier), strict=True
        ):
            self._carried[seat.service] += sign * capacity

    def _grow(self, service: str) -> bool:
        """Take the next step on the first GPU where there is one; False where the service has all that it can get."""
        growing = self._growing[service]
        while growing:
            index = growing[0]
            before = self.carriers[index]
            after = next(self._steps(before, service, self._held[index]), None)
            if after is not None:
                self._count(before, -1.0)
                self._count(after, 1.0)
                self.carriers[index] = after
                # Its other GPUs take their turns.
                growing.append(growing.pop(0))
                return True
            growing.pop(0)
        return False

    def does_with_half(self, carrier: Carrier, at: int) -> bool:
        """Whether a replica would carry its part of its service's rate on half of its SMs."""
        service, row = carrier.seats[at]
        part_rps = self._carries(carrier, at) / max(_MIN_RPS, self._slack(service))
        return any(
            each.sm_percent <= 0.5 * row.sm_percent
            and self._carries(self._with(carrier, at, each), at) >= part_rps
            for each in self._rows_beside(carrier, service)
        )

    def _steps(self, carrier: Carrier, service: str, held: Held) -> Iterator[Carrier]:
        """The GPU with a larger batch of the service's replica, or else with the next larger SM percent."""
        at = next(
            place for place, seat in enumerate(carrier.seats) if seat.service == service
        )
        size = _size(carrier.seats[at].row)
        # Never back to a smaller batch, or two neighbours could answer each other's steps without an end.
        rows = [row for row in self._rows_beside(carrier, service) if _size(row) > size]
        widths = sorted({size[0], *(row.sm_percent for row in rows)})
        is_running = service in held
        for width in widths[: 1 if is_running else 2]:
            grown = [
                self._with(carrier, at, row)
                for row in rows
                if row.sm_percent == width
                and (not is_running or row.memory_mib <= held[service])
            ]
            allowed = [each for each in grown if self._may_become(carrier, each, at)]
            if allowed:
                yield max(allowed, key=lambda one: self._carries(one, at))

    def _rows_beside(self, carrier: Carrier, service: str) -> list[OperatingPoint]:
        """The rows of a service at a GPU's clock."""
        network = self._problem.service(service).network
        clock_mhz = carrier.seats[0].row.clock_mhz
        key = network, carrier.gpu_type, clock_mhz
        if key not in self._rows:
            points = self._problem.points_of(network, carrier.gpu_type)
            self._rows[key] = [
                row
                for row in (points.rows if points else ())
                if abs(row.clock_mhz - clock_mhz) <= CLOCK_TOLERANCE_MHZ
            ]
        return self._rows[key]

    @staticmethod
    def _with(carrier: Carrier, at: int, row: OperatingPoint) -> Carrier:
        seats = list(carrier.seats)
        seats[at] = seats[at]._replace(row=row)
        return replace(carrier, seats=tuple(seats))

    def _carries(self, carrier: Carrier, at: int) -> float:
        return self.capacities(self._problem, carrier)[at]

    def _may_become(self, before: Carrier, after: Carrier, at: int) -> bool:
        """Whether the replica there carries more afterwards, all rules are kept, and no neighbour falls short."""
        if not obeys(self._problem, after):
            return False
        was, will = (self.capacities(self._problem, one) for one in (before, after))
        return will[at] > _MIN_GAIN * was[at] and all(
            self._carried[seat.service] + new - old >= self._asked[seat.service]
            for place, (seat, old, new) in enumerate(
                zip(after.seats, was, will, strict=True)
            )
            if place != at and new < old
        )
