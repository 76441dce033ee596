"""Arrange: change the running arrangement by as little as the wanted counts ask for.

Replicas that stay keep their GPU. Surplus replicas go first where that empties a GPU; new ones go to the fullest
running GPU that holds them, an empty GPU only when none does.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from solvers.greedy.configure import MAX_REPLICAS, Configuration
from solvers.greedy.routing import (
    ROUNDING,
    ArrangedReplica,
    Carrier,
    service_counts,
    total_capacity_rps,
)
from solvers.laws.operating_rows import (
    CLOCK_TOLERANCE_MHZ,
    SM_PERCENT_TOLERANCE,
    OperatingRows,
)
from solvers.types.plan import GpuPlan, ReplicaPlan
from solvers.types.problem import OperatingPoint, Problem, ServiceDemand
from solvers.types.state import GpuType

Key = tuple[str, str]
"""(service, GPU type)."""


def replica_counts(carriers: Iterable[Carrier]) -> Counter[Key]:
    """How many replicas there are by service and GPU type."""
    return Counter(
        (seat.service, carrier.gpu_type)
        for carrier in carriers
        for seat in carrier.seats
    )


def running_carriers(problem: Problem) -> list[Carrier]:
    """What can go on of the running plan, one carrier per GPU that keeps a replica; empty when nothing runs.

    Left out: replicas whose service left, whose GPU type is not allowed or whose row is gone; on a GPU that breaks a
    rule since its limits changed, the least important replicas until it obeys; and where fewer GPUs are left than the
    plan uses, those with the least SM percent (the plan is anonymous, so any may be the lost ones).
    """
    rows = OperatingRows(problem)
    by_type: dict[str, list[Carrier]] = {
        gpu_type.name: [] for gpu_type in problem.gpu_types
    }
    for gpu in problem.current.gpus if problem.current is not None else ():
        # A GPU type may have left the fleet with its last GPU.
        if gpu.gpu_type not in by_type:
            continue
        carrier = _lawful(problem, _carrier(problem, rows, gpu))
        if carrier.seats:
            by_type[gpu.gpu_type] += [carrier] * min(gpu.count, MAX_REPLICAS)
    return [
        carrier
        for gpu_type in problem.gpu_types
        for carrier in _stocked(by_type[gpu_type.name], gpu_type.count)
    ]


def _carrier(problem: Problem, rows: OperatingRows, gpu: GpuPlan) -> Carrier:
    """A running GPU with those of its replicas that have a seat."""
    seats = (
        seat for replica in gpu.replicas for seat in _seats(problem, rows, gpu, replica)
    )
    return Carrier(gpu_type=gpu.gpu_type, seats=tuple(seats))


def _seats(
    problem: Problem, rows: OperatingRows, gpu: GpuPlan, replica: ReplicaPlan
) -> Iterator[ArrangedReplica]:
    """The seat of a running replica; none when its service left, may not run there any more, or has no such row."""
    try:
        service = problem.service(replica.service)
    except KeyError:
        return
    row = rows.find(
        service.network,
        gpu.gpu_type,
        (replica.sm_percent, replica.batch, gpu.clock_mhz),
    )
    if row is not None and service.allows(gpu.gpu_type):
        yield ArrangedReplica(service=service.name, row=row)


def _lawful(problem: Problem, carrier: Carrier) -> Carrier:
    """The carrier without the least important replicas, as many as it takes until it obeys the rules."""

    def importance(seat: ArrangedReplica) -> tuple[float, str, OperatingPoint]:
        return problem.service(seat.service).priority, seat.service, seat.row

    while carrier.seats and not obeys(problem, carrier):
        seats = list(carrier.seats)
        seats.remove(min(seats, key=importance))
        carrier = Carrier(gpu_type=carrier.gpu_type, seats=tuple(seats))
    return carrier


def _stocked(carriers: Sequence[Carrier], stock: int | None) -> Sequence[Carrier]:
    """As many carriers as there are GPUs, the fullest ones, in their order."""
    if stock is None or len(carriers) <= stock:
        return carriers
    # The plan does not say which are lost. The emptiest are given up: fewest replicas start elsewhere.
    fullest = sorted(
        range(len(carriers)),
        key=lambda index: (-total_sm_percent(carriers[index]), index),
    )
    return [carriers[index] for index in sorted(fullest[:stock])]


def arrange(
    problem: Problem,
    running: Sequence[Carrier],
    wanted: Mapping[Key, int],
    rows: Mapping[Key, OperatingPoint],
    *,
    waited_s: Mapping[str, float] = MappingProxyType({}),
    is_worst_fit: bool = False,
) -> list[Carrier]:
    """The running carriers changed to the wanted counts; new replicas that do not fit that way are left out.

    `wanted` and `rows` are by (service, GPU type). Running replicas with another row than `rows` stay as they are.
    Services whose replicas have waited for GPUs come first, the longest wait first. `is_worst_fit`: new replicas go to
    unused GPUs while there are any, then to the emptiest.
    """
    # What goes, goes first: its room is what the new replicas are to have.
    carriers = _remove_surplus(running, wanted)
    have = replica_counts(carriers)
    seat = spread if is_worst_fit else add
    for key in sorted(wanted, key=lambda key: (-waited_s.get(key[0], 0.0), key)):
        if wanted[key] > have[key]:
            seat(problem, carriers, key, rows[key], wanted[key] - have[key])
    return [carrier for carrier in carriers if carrier.seats]


def top_up(
    problem: Problem, carriers: Sequence[Carrier], options: Sequence[Configuration]
) -> list[Carrier]:
    """The carriers with more replicas for services that fall short, as far as room and stock allow.

    Highest priority first; of each service's options the cheapest per rps first. What is there stays as it is.
    """
    filled = list(carriers)
    by_efficiency = sorted(
        options,
        key=lambda one: (one.cost_usd_per_hour / one.capacity_rps, one.gpu_type),
    )
    for service in problem.services_by_priority():
        own = [one for one in by_efficiency if one.service == service.name]
        _add_missing(problem, filled, service, own)
    return filled


def _add_missing(
    problem: Problem,
    carriers: list[Carrier],
    service: ServiceDemand,
    options: Sequence[Configuration],
) -> None:
    """Seat replicas of one service until its rate is carried; changes `carriers`."""
    counts = service_counts(carriers)
    room = MAX_REPLICAS - counts.total()
    if service.max_replicas is not None:
        room = min(room, service.max_replicas - counts[service.name])
    missing_rps = service.arrival_rate_rps - total_capacity_rps(
        problem, carriers, service.name
    )
    # A new replica counts with its capacity next to the worst neighbours, so that it carries at least as much.
    for option in options:
        key = (service.name, option.gpu_type)
        while (
            missing_rps > ROUNDING * service.arrival_rate_rps
            and room > 0
            and add(problem, carriers, key, option.row, 1)
        ):
            missing_rps -= option.capacity_rps
            room -= 1


def _remove_surplus(
    running: Sequence[Carrier], wanted: Mapping[Key, int]
) -> list[Carrier]:
    carriers = list(running)
    have = replica_counts(carriers)
    for key in sorted(have):
        service, gpu_type = key
        holders = [
            index
            for index, carrier in enumerate(carriers)
            if carrier.gpu_type == gpu_type
            and any(seat.service == service for seat in carrier.seats)
        ]
        surplus = max(0, have[key] - wanted.get(key, 0))
        for index in removal_order(carriers, holders)[:surplus]:
            carriers[index] = without(carriers[index], service)
    return carriers


def removal_order(carriers: Sequence[Carrier], holders: Sequence[int]) -> list[int]:
    """In which order the carriers that hold a replica give it up: the emptiest first, of equals the last."""
    return sorted(
        holders, key=lambda index: (total_sm_percent(carriers[index]), -index)
    )


def without(carrier: Carrier, service: str) -> Carrier:
    """The carrier less its replica of that service."""
    return Carrier(
        gpu_type=carrier.gpu_type,
        seats=tuple(seat for seat in carrier.seats if seat.service != service),
    )


def add(
    problem: Problem, carriers: list[Carrier], key: Key, row: OperatingPoint, count: int
) -> int:
    """Seat up to `count` replicas, on the running GPUs that hold one, then on empty ones; how many found a place.

    Changes `carriers`: the fullest that hold one take it; those without a replica may be dropped, new ones follow last.
    """
    service, gpu_type = key
    seat = ArrangedReplica(service, row)
    # A GPU holds one replica of a service, so that seating one changes nothing for the other GPUs.
    fullest = _fullest_with_room(problem, carriers, gpu_type, seat)[:count]
    _join(carriers, fullest, seat)
    fresh = count - len(fullest)
    if fresh > 0:
        # A GPU that lost its last replica is stock again; it stays in the list until now, so that indices stay valid.
        carriers[:] = [carrier for carrier in carriers if carrier.seats]
        fresh = _in_stock(problem, carriers, gpu_type, fresh)
        carriers.extend([Carrier(gpu_type=gpu_type, seats=(seat,))] * fresh)
    return len(fullest) + fresh


def spread(
    problem: Problem, carriers: list[Carrier], key: Key, row: OperatingPoint, count: int
) -> int:
    """As `add`, but by worst fit: on unused GPUs while there are any, then on the emptiest that hold one."""
    service, gpu_type = key
    seat = ArrangedReplica(service, row)
    carriers[:] = [carrier for carrier in carriers if carrier.seats]
    unused = _in_stock(problem, carriers, gpu_type, count)
    emptiest = _fullest_with_room(problem, carriers, gpu_type, seat)[::-1]
    emptiest = emptiest[: count - unused]
    _join(carriers, emptiest, seat)
    carriers.extend([Carrier(gpu_type=gpu_type, seats=(seat,))] * unused)
    return len(emptiest) + unused


def _join(
    carriers: list[Carrier], indices: Iterable[int], seat: ArrangedReplica
) -> None:
    """Seat one more replica on each of these GPUs; changes `carriers`."""
    for index in indices:
        carrier = carriers[index]
        carriers[index] = Carrier(
            gpu_type=carrier.gpu_type, seats=(*carrier.seats, seat)
        )


def _in_stock(
    problem: Problem, carriers: Sequence[Carrier], gpu_type: str, wanted: int
) -> int:
    """How many of the wanted GPUs of a type there are besides those that are used."""
    stock = problem.gpu_type(gpu_type).count
    if stock is None:
        return wanted
    used = sum(carrier.gpu_type == gpu_type for carrier in carriers)
    return min(wanted, max(0, stock - used))


def _fullest_with_room(
    problem: Problem,
    carriers: Sequence[Carrier],
    gpu_type: str,
    seat: ArrangedReplica,
) -> list[int]:
    """The GPUs in use that may carry one more such replica, the fullest first."""
    fitting = [
        index
        for index, carrier in enumerate(carriers)
        if carrier.gpu_type == gpu_type
        and carrier.seats
        # `obeys` asks this too; to ask it first, without building a carrier, is what makes long lists affordable.
        and total_sm_percent(carrier) + seat.row.sm_percent
        <= problem.gpu_type(gpu_type).max_sm_percent(len(carrier.seats) + 1)
        + SM_PERCENT_TOLERANCE
        and obeys(problem, Carrier(gpu_type=gpu_type, seats=(*carrier.seats, seat)))
    ]
    return sorted(
        fitting, key=lambda index: (-total_sm_percent(carriers[index]), index)
    )


def obeys(problem: Problem, carrier: Carrier) -> bool:
    """Whether a GPU may carry these seats, by the contract's physical rules but stock."""
    gpu_type = problem.gpu_type(carrier.gpu_type)
    rows = [seat.row for seat in carrier.seats]
    return (
        # No GPU carries two replicas of a service.
        len({seat.service for seat in carrier.seats})
        == len(rows)
        <= problem.max_replicas_per_gpu
        and problem.may_share([seat.service for seat in carrier.seats])
        and _are_at_one_clock(rows, gpu_type)
        and total_sm_percent(carrier)
        <= gpu_type.max_sm_percent(len(rows)) + SM_PERCENT_TOLERANCE
        and sum(row.memory_mib for row in rows)
        <= gpu_type.memory_mib * (1.0 + ROUNDING)
        and gpu_type.idle_w + sum(row.power_w for row in rows)
        <= gpu_type.power_cap_w * (1.0 + ROUNDING)
    )


def _are_at_one_clock(rows: Sequence[OperatingPoint], gpu_type: GpuType) -> bool:
    """Whether rows may share a GPU, which has one clock of its type's."""
    clocks_mhz = {row.clock_mhz for row in rows}
    return len(clocks_mhz) <= 1 and all(
        any(abs(one - clock) <= CLOCK_TOLERANCE_MHZ for one in gpu_type.clocks_mhz)
        for clock in clocks_mhz
    )


def total_sm_percent(carrier: Carrier) -> float:
    """SM percent that the GPU has given away."""
    return sum(seat.row.sm_percent for seat in carrier.seats)
