"""How many replicas of which service on which GPU type: HetSev's autoscaling program, all services together.

Sets
    s ∈ S   services
    g ∈ G   GPU types
    O       options: the pairs (s, g) on which s meets its SLO alone on g (HetSev's constraint 4 is this filter)

Parameters
    λ_s     arrival rate, rps                        W_s     priority
    T_sg    capacity of one replica, rps             C_sg    its cost, USD per hour
    N_sg    replicas that run now                    L_sg    launch time, s
    κ       launch weight, 1/s (the paper's λ)       r_sg    what one replica needs of each resource
    m_s ≤ M_s   minimum and maximum of replicas      R_g     how much of each resource the GPUs of a type have in all

Variables
    n_sg = N_sg + X_sg   replicas wanted, integer and ≥ 0; X is the paper's scaling action
    U_sg                 replicas to launch, ≥ 0; U ≥ X makes it max(X, 0) because its cost is never negative
    u_s                  shortage: the part of λ_s that is not served, rps, 0 ≤ u_s ≤ λ_s
    v_s                  replicas missing to m_s, integer and ≥ 0

Objective, lexicographic (two served weights within 1e-6 of Σ W_s · λ_s count as equal)
    1. maximise Σ_s W_s · (λ_s − u_s)                          served weight
    2. minimise Σ_s W_s · v_s                                  replicas missing
    3. minimise Σ_sg C_sg · (X_sg + κ · L_sg · U_sg)           HetSev's cost

Constraints
    Σ_g T_sg · n_sg + u_s ≥ λ_s                   demand (HetSev 1)
    Σ_s r_sg · n_sg ≤ R_g                         per type: memory, SM percent, power (HetSev 2)
    Σ_sg r_sg · n_sg ≤ R                          per cluster: CPU cores, CPU memory (HetSev 2)
    n_sg ≤ number of GPUs of type g               anti-affinity: at most one replica of a service per GPU
    Σ_g n_sg + v_s ≥ m_s,  Σ_g n_sg ≤ M_s         minimum and maximum of replicas

The levels are solved one after the other, each with the earlier ones held at their best value: shortage is continuous,
so no finite penalty could be proven large enough to do it in one. When the greedy serves everything, levels 1 and 2 are
known to be optimal and one solve remains.

Source: HetSev (Electronics 2023, 12, 240), section 4.1. What we changed: all services are solved together because they
share the totals; GPU resources are totalled per type, because one sum over all types accepts counts that cannot be
placed; shortage makes a plan exist for every problem.
"""

import math
from dataclasses import dataclass

from solvers.types.documents.strict_json import read_integer, read_number
from solvers.types.errors import InvalidInput
from solvers.types.plan import Unserved

UNLIMITED = math.inf

_OPTION_AMOUNTS = (
    "cost_usd_per_hour",
    "memory_mib",
    "sm_percent",
    "power_w",
    "cpu_cores",
    "cpu_memory_mib",
    "launch_s",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingOption:
    """One service on one GPU type that meets its SLO there; the needs are those of one replica."""

    service: str
    gpu_type: str
    capacity_rps: float
    """> 0."""
    cost_usd_per_hour: float
    memory_mib: float = 0.0
    sm_percent: float = 0.0
    power_w: float = 0.0
    cpu_cores: float = 0.0
    cpu_memory_mib: float = 0.0
    running: int = 0
    launch_s: float = 0.0
    """From the decision to the first served request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeTotals:
    """What all GPUs of one type offer together."""

    gpu_type: str
    gpus: int | None = None
    """None = as many as wanted."""
    memory_mib: float = UNLIMITED
    sm_percent: float = UNLIMITED
    """100 per GPU."""
    power_w: float = UNLIMITED
    """Power caps less idle power."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceTarget:
    """What one service needs."""

    name: str
    arrival_rate_rps: float
    priority: float = 1.0
    """> 0, higher is more."""
    min_replicas: int = 0
    max_replicas: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscaleProblem:
    """The input of the technique; the order of its tuples does not matter."""

    services: tuple[ServiceTarget, ...]
    options: tuple[ScalingOption, ...]
    totals: tuple[TypeTotals, ...]
    """Exactly one for every GPU type that an option names."""
    launch_weight_per_s: float = 0.0
    """κ: cost of one second of launching, as a share of the replica's cost per hour."""
    cpu_cores: float = UNLIMITED
    """CPU cores of all nodes together."""
    cpu_memory_mib: float = UNLIMITED


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaCount:
    """How many replicas of a service are wanted on a GPU type, and how many of them run already or must go."""

    service: str
    gpu_type: str
    count: int
    change: int
    """count less what runs now: positive scales out, negative scales in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscaleSolution:
    """The technique's answer; one ReplicaCount per option, sorted by service and GPU type."""

    counts: tuple[ReplicaCount, ...]
    unserved: tuple[Unserved, ...]
    """Per service that falls short in rate or in replicas; CPU cores count as `stock`, CPU memory as `memory`."""


def check_problem(problem: AutoscaleProblem) -> None:
    """Raise InvalidInput when a number is out of range, a name is used twice or an option names what is not there."""
    _check_services(problem.services)
    _check_totals(problem.totals)
    _check_options(problem)
    read_number(problem.launch_weight_per_s, "launch_weight_per_s")
    _check_amount(problem.cpu_cores, "cpu_cores")
    _check_amount(problem.cpu_memory_mib, "cpu_memory_mib")


def _check_services(services: tuple[ServiceTarget, ...]) -> None:
    _check_unique([service.name for service in services], "services")
    for index, service in enumerate(services):
        path = f"services[{index}]"
        read_number(service.arrival_rate_rps, f"{path}.arrival_rate_rps")
        read_number(service.priority, f"{path}.priority", above=0.0)
        min_replicas = read_integer(service.min_replicas, f"{path}.min_replicas")
        if service.max_replicas is not None:
            read_integer(
                service.max_replicas, f"{path}.max_replicas", at_least=min_replicas
            )


def _check_totals(totals: tuple[TypeTotals, ...]) -> None:
    _check_unique([total.gpu_type for total in totals], "totals")
    for index, total in enumerate(totals):
        path = f"totals[{index}]"
        if total.gpus is not None:
            read_integer(total.gpus, f"{path}.gpus")
        for name in ("memory_mib", "sm_percent", "power_w"):
            _check_amount(getattr(total, name), f"{path}.{name}")


def _check_options(problem: AutoscaleProblem) -> None:
    _check_unique(
        [f"{option.service} on {option.gpu_type}" for option in problem.options],
        "options",
    )
    services = {service.name for service in problem.services}
    gpu_types = {total.gpu_type for total in problem.totals}
    for index, option in enumerate(problem.options):
        path = f"options[{index}]"
        if option.service not in services:
            raise InvalidInput(
                f"{path}.service", f"no service is called {option.service!r}"
            )
        if option.gpu_type not in gpu_types:
            raise InvalidInput(
                f"{path}.gpu_type", f"totals has no entry for {option.gpu_type!r}"
            )
        read_number(option.capacity_rps, f"{path}.capacity_rps", above=0.0)
        read_integer(option.running, f"{path}.running")
        for name in _OPTION_AMOUNTS:
            read_number(getattr(option, name), f"{path}.{name}")


def _check_amount(amount: float, path: str) -> None:
    # A total over many GPUs may exceed the largest number of a contract; only NaN and negative ones are mistakes.
    if amount != UNLIMITED:
        read_number(amount, path, at_most=UNLIMITED)


def _check_unique(names: list[str], path: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidInput(path, f"{name!r} is there twice")
        seen.add(name)
