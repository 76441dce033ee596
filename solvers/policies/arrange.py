"""Arrange: change the running arrangement by as little as the wanted counts ask for.

Replicas that stay keep their GPU. Surplus replicas go first where that empties a GPU; new ones go to the fullest
running GPU that holds them, an empty GPU only when none does.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from solvers.policies.routing import Carrier, Seat
from solvers.problem import OperatingPoint, Problem

Key = tuple[str, str]
"""(service, GPU type)."""


def running_carriers(problem: Problem) -> list[Carrier] | None:
    """The running plan as carriers, one per GPU; None when there is none or when a row or GPU of it is gone."""
    if problem.current is None:
        return None
    stock = {gpu_type.name: gpu_type.count for gpu_type in problem.gpu_types}
    used: Counter[str] = Counter()
    carriers: list[Carrier] = []
    for gpu in problem.current.gpus:
        used[gpu.gpu_type] += gpu.count
        count = stock.get(gpu.gpu_type, 0)
        if count is not None and used[gpu.gpu_type] > count:
            return None
        seats = tuple(
            Seat(service=replica.service, row=row)
            for replica in gpu.replicas
            if (row := _row(problem, gpu.gpu_type, replica.service, (replica.sm_percent, replica.batch, gpu.clock_mhz)))
        )
        carriers.extend([Carrier(gpu_type=gpu.gpu_type, seats=seats)] * gpu.count)
    return carriers


def _row(problem: Problem, gpu_type: str, service: str, wanted: tuple[float, int, float]) -> OperatingPoint | None:
    """The row of a running replica; None when its service left, may not run there any more, or has no such row."""
    known = {entry.name: entry for entry in problem.services}
    if service not in known or not known[service].allows(gpu_type):
        return None
    points = problem.points_of(known[service].network, gpu_type)
    return next((row for row in points.rows if row[:3] == wanted), None) if points else None


def arrange(
    problem: Problem, running: Sequence[Carrier], wanted: Mapping[Key, int], rows: Mapping[Key, OperatingPoint]
) -> list[Carrier] | None:
    """The running carriers changed to the wanted counts, or None when the new replicas do not all fit that way.

    `wanted` and `rows` are by (service, GPU type). Running replicas with another row than `rows` stay as they are.
    """
    carriers = _remove_surplus(running, wanted)
    have = Counter((seat.service, carrier.gpu_type) for carrier in carriers for seat in carrier.seats)
    for key in sorted(wanted):
        for _ in range(wanted[key] - have[key]):
            if not _add(problem, carriers, key, rows[key]):
                return None
    return [carrier for carrier in carriers if carrier.seats]


def _remove_surplus(running: Sequence[Carrier], wanted: Mapping[Key, int]) -> list[Carrier]:
    carriers = list(running)
    have = Counter((seat.service, carrier.gpu_type) for carrier in carriers for seat in carrier.seats)
    for key in sorted(have):
        for _ in range(have[key] - wanted.get(key, 0)):
            service, gpu_type = key
            holders = [
                index
                for index, carrier in enumerate(carriers)
                if carrier.gpu_type == gpu_type and any(seat.service == service for seat in carrier.seats)
            ]
            emptiest = min(holders, key=lambda index: (_sm_percent(carriers[index]), -index))
            carriers[emptiest] = _without(carriers[emptiest], service)
    return carriers


def _without(carrier: Carrier, service: str) -> Carrier:
    return Carrier(gpu_type=carrier.gpu_type, seats=tuple(seat for seat in carrier.seats if seat.service != service))


def _add(problem: Problem, carriers: list[Carrier], key: Key, row: OperatingPoint) -> bool:
    """Seat one replica; False when no running GPU holds it and no empty one is left."""
    service, gpu_type = key
    seat = Seat(service=service, row=row)
    fitting = [
        index
        for index, carrier in enumerate(carriers)
        if carrier.gpu_type == gpu_type and carrier.seats and _fits(problem, carrier, seat)
    ]
    if fitting:
        fullest = max(fitting, key=lambda index: (_sm_percent(carriers[index]), -index))
        carriers[fullest] = Carrier(gpu_type=gpu_type, seats=(*carriers[fullest].seats, seat))
        return True
    carriers[:] = [carrier for carrier in carriers if carrier.seats]
    stock = problem.gpu_type(gpu_type).count
    if stock is not None and sum(carrier.gpu_type == gpu_type for carrier in carriers) >= stock:
        return False
    carriers.append(Carrier(gpu_type=gpu_type, seats=(seat,)))
    return True


def _fits(problem: Problem, carrier: Carrier, seat: Seat) -> bool:
    gpu_type = problem.gpu_type(carrier.gpu_type)
    rows = [*(one.row for one in carrier.seats), seat.row]
    return (
        all(one.service != seat.service for one in carrier.seats)
        and all(row.clock_mhz == seat.row.clock_mhz for row in rows)
        and len(rows) <= problem.max_replicas_per_gpu
        and sum(row.sm_percent for row in rows) <= 100.0 + 1e-9
        and sum(row.memory_mib for row in rows) <= gpu_type.memory_mib
        and gpu_type.idle_w + sum(row.power_w for row in rows) <= gpu_type.power_cap_w
    )


def _sm_percent(carrier: Carrier) -> float:
    return sum(seat.row.sm_percent for seat in carrier.seats)
