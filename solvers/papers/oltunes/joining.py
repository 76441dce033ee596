"""Which replica may join those on a GPU: affinity, the rules, and that none there loses what it carries."""

from collections.abc import Sequence

from solvers.greedy.arrange import obeys
from solvers.greedy.configure import MIN_CAPACITY_RPS
from solvers.greedy.routing import (
    ROUNDING,
    ArrangedReplica,
    Carrier,
    total_capacity_rps,
)
from solvers.papers.oltunes.affinity import (
    Character,
    affinity,
    pressure_affinity,
    sensitivity_ratio,
    threshold,
)
from solvers.papers.oltunes.parameters import OltunesParameters
from solvers.types.jobs import MAX_JOBS
from solvers.types.problem import Problem


def load_of(problem: Problem, used: int) -> float:
    """Share of the stock that carries something; 0 where the stock has no limit."""
    stock = [gpu_type.count for gpu_type in problem.gpu_types]
    total = sum(count for count in stock if count is not None)
    return min(1.0, used / total) if total and None not in stock else 0.0


def joined(carrier: Carrier, seat: ArrangedReplica) -> Carrier:
    """The GPU with one replica more."""
    return Carrier(gpu_type=carrier.gpu_type, seats=(*carrier.seats, seat))


def may_join(
    problem: Problem,
    parameters: OltunesParameters,
    carriers: Sequence[Carrier],
    at: int,
    seat: ArrangedReplica,
) -> bool:
    """Whether a new replica suits those on a GPU, keeps the rules there, and no service loses what it carries."""
    host = carriers[at]
    together = joined(host, seat)
    used = len(carriers)
    if (
        len(together.seats) > MAX_JOBS
        or not obeys(problem, together)
        or not _has_affinity(problem, parameters, host, seat, used=used)
    ):
        return False
    if total_capacity_rps(problem, [together], seat.service) < MIN_CAPACITY_RPS:
        return False
    after = [*carriers[:at], together, *carriers[at + 1 :]]
    return all(
        total_capacity_rps(problem, after, each.service)
        >= _kept_rps(problem, carriers, each.service)
        for each in host.seats
    )


def _has_affinity(
    problem: Problem,
    parameters: OltunesParameters,
    host: Carrier,
    seat: ArrangedReplica,
    *,
    used: int,
) -> bool:
    """Whether a replica suits a GPU's, where `used` GPUs carry something."""
    load = load_of(problem, used)
    enough = threshold(load, parameters.threshold, parameters.full_threshold)
    if parameters.affinity == "pressure":
        pressures = [each.row.pressure for each in host.seats]
        return pressure_affinity(seat.row.pressure, pressures) >= enough
    neighbours = [_character(problem, host, each) for each in host.seats]
    return affinity(_character(problem, host, seat), neighbours) >= enough


def _kept_rps(problem: Problem, carriers: Sequence[Carrier], name: str) -> float:
    """What a service must not lose: its rate, or what it carries where that is less."""
    rate_rps = problem.service(name).arrival_rate_rps * (1.0 + ROUNDING)
    return min(rate_rps, total_capacity_rps(problem, carriers, name))


def _character(problem: Problem, carrier: Carrier, seat: ArrangedReplica) -> Character:
    """By its sensitivity: a problem says nothing of kernels, and has no second variant of a service."""
    points = problem.points_of(problem.service(seat.service).network, carrier.gpu_type)
    known = sorted(
        entry.sensitivity
        for entry in problem.points
        if entry.gpu_type == carrier.gpu_type
    )
    sensitivity = points.sensitivity if points is not None else 0.0
    return Character(
        sensitivity_ratio(sensitivity, known[len(known) // 2] if known else 0.0),
        is_high=False,
    )
