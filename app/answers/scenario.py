"""Scenario: what shall be different in a what-if, and the Problem with that difference. Pure."""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from app.base.errors import no_such
from solvers.types.errors import InvalidInput
from solvers.types.llm import LlmDemand, LlmPoints
from solvers.types.outcome import Prices
from solvers.types.plan import Plan, replicas_of
from solvers.types.problem import Problem, ServiceDemand
from solvers.types.state import GpuType

ALL = "all"
"""In place of a service's name: every service. One that is called so is meant before all of them."""

_SUGGESTED_SERVICES = 3
_LOOSER_SLO = 1.1
_MORE_DEMAND = 1.2
_RELAXED_SLO = 1.5
MAX_ALTERNATIVES = 3
"""The maximum length of `alternatives`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfScenario:
    """Differences from a Problem, all at once."""

    name: str = ""
    """What answers call it; made of the differences where empty."""
    demand_factor: Mapping[str, float] = field(default_factory=dict)
    """Multiplies the rate of a service, or of `all`."""
    demand_rps: Mapping[str, float] = field(default_factory=dict)
    """The rate of a service, instead of its own; before factors."""
    gpus: Mapping[str, int] = field(default_factory=dict)
    """GPUs of a type more, or fewer where negative."""
    price_usd_per_hour: Mapping[str, float] = field(default_factory=dict)
    """The price of one GPU, by type."""
    slo_ms: Mapping[str, float] = field(default_factory=dict)
    """The SLO's latency of a service."""
    services: tuple[ServiceDemand, ...] = ()
    """Added, or in place of those of the same name."""
    models: tuple[LlmDemand, ...] = ()
    """The same of language models."""
    llm_points: tuple[LlmPoints, ...] = ()
    """How these may run."""
    without: tuple[str, ...] = ()
    """Services that are gone."""


def describe_scenario(scenario: WhatIfScenario) -> str:
    """The name of a scenario, or its differences in words."""
    parts = [
        f"all demand × {factor:g}" if name == ALL else f"demand of {name} × {factor:g}"
        for name, factor in scenario.demand_factor.items()
    ]
    parts += [
        f"demand of {name} {rate:g} rps" for name, rate in scenario.demand_rps.items()
    ]
    parts += [f"{number:+d} {name}" for name, number in scenario.gpus.items()]
    parts += [
        f"{name} at ${price:g}/h" for name, price in scenario.price_usd_per_hour.items()
    ]
    parts += [
        f"SLO of {name} {slo_ms:g} ms" for name, slo_ms in scenario.slo_ms.items()
    ]
    parts += [f"with {service.name}" for service in scenario.services]
    parts += [f"with {model.name}" for model in scenario.models]
    parts += [f"without {name}" for name in scenario.without]
    return scenario.name or ", ".join(parts) or "nothing different"


def changed(problem: Problem, scenario: WhatIfScenario, *, where: str = "") -> Problem:
    """The problem with the differences. Raises InvalidInput, whose field begins with `where`."""
    _check_names(
        scenario.without,
        [service.name for service in problem.all_services],
        "service",
        f"{where}without",
    )
    services = _services(problem, scenario, where)
    models = _models(problem, scenario)
    _check_all_names(problem, (*services, *models), scenario, where)
    _check_figures(scenario, where)
    return replace(
        problem,
        services=tuple(_service(service, scenario) for service in services.values()),
        llm_services=tuple(_model(model, scenario) for model in models.values()),
        llm_points=_llm_points(problem, scenario),
        gpu_types=tuple(
            _gpu_type(gpu_type, scenario, where) for gpu_type in problem.gpu_types
        ),
    )


def _check_all_names(
    problem: Problem, services: Collection[str], scenario: WhatIfScenario, where: str
) -> None:
    # A new service is known here as well: a question may bring it together with its rate.
    of_services: dict[str, Collection[str]] = {
        # Rates and SLOs of all services at once would make them equal, which is never asked.
        "demand_factor": [*services, ALL],
        "demand_rps": services,
        "slo_ms": services,
    }
    for part, known in of_services.items():
        _check_names(getattr(scenario, part), known, "service", f"{where}{part}")
    types = [gpu_type.name for gpu_type in problem.gpu_types]
    for part in ("gpus", "price_usd_per_hour"):
        _check_names(getattr(scenario, part), types, "GPU type", f"{where}{part}")


def suggested(
    problem: Problem, plan: Plan, prices: Prices | None
) -> tuple[WhatIfScenario, ...]:
    """The questions that are worth asking of any plan: stock, the SLOs of the costliest services, growth."""
    asked = [WhatIfScenario(demand_factor={ALL: _MORE_DEMAND})]
    for gpu_type in problem.gpu_types:
        if gpu_type.count is not None:
            asked.append(WhatIfScenario(gpus={gpu_type.name: 1}))
            asked += (
                [WhatIfScenario(gpus={gpu_type.name: -1})] if gpu_type.count > 0 else []
            )
    for service in _costliest(problem, plan, prices)[:_SUGGESTED_SERVICES]:
        slo_ms = _LOOSER_SLO * service.slo_ms
        name = f"SLO of {service.name} {100.0 * (_LOOSER_SLO - 1.0):+.0f} % ({slo_ms:.4g} ms)"
        asked.append(WhatIfScenario(name=name, slo_ms={service.name: slo_ms}))
    return tuple(asked)


def alternatives(
    problem: Problem, plan: Plan, names: Collection[str]
) -> tuple[WhatIfScenario, ...]:
    """What the costliest of these services could do instead: promise less, use other GPU types, keep nothing ready."""
    cost = _costs_by_share(problem, plan)
    asked = [service for service in problem.services if service.name in names]
    if not asked:
        return ()
    # Of one alone: each question is a plan, for which a person waits.
    service = max(asked, key=lambda one: cost[one.name])
    return (
        _looser(service),
        *_elsewhere(problem, plan, service),
        *_without_minimum(service),
    )


def _looser(service: ServiceDemand) -> WhatIfScenario:
    slo_ms = _RELAXED_SLO * service.slo_ms
    title = f"SLO of {service.name} {slo_ms:g} ms instead of {service.slo_ms:g}"
    return WhatIfScenario(name=title, slo_ms={service.name: slo_ms})


def _elsewhere(
    problem: Problem, plan: Plan, service: ServiceDemand
) -> Iterator[WhatIfScenario]:
    used = {gpu.gpu_type for gpu, _ in replicas_of(plan, service.name)}
    others = _other_types(problem, service, used)
    if used and others:
        title = f"{service.name} on {' or '.join(others)} instead of {' and '.join(sorted(used))}"
        moved = replace(service, allowed_gpu_types=others)
        yield WhatIfScenario(name=title, services=(moved,))


def _without_minimum(service: ServiceDemand) -> Iterator[WhatIfScenario]:
    if service.min_replicas > 0:
        title = f"{service.name} with min_replicas 0 instead of {service.min_replicas}"
        scaled = replace(service, min_replicas=0)
        yield WhatIfScenario(name=title, services=(scaled,))


def _other_types(
    problem: Problem, service: ServiceDemand, used: Collection[str]
) -> tuple[str, ...]:
    """Types of the fleet on which the service may and can run, without those that it uses."""
    measured = {
        points.gpu_type
        for points in problem.points
        if points.network == service.network
    }
    return tuple(
        gpu_type.name
        for gpu_type in problem.gpu_types
        if gpu_type.name in measured
        and gpu_type.name not in used
        and gpu_type.count != 0
        and (
            service.allowed_gpu_types is None
            or gpu_type.name in service.allowed_gpu_types
        )
    )


def max_suggested(problem: Problem) -> int:
    """The maximum length of `suggested`."""
    return (
        1
        + 2 * sum(gpu_type.count is not None for gpu_type in problem.gpu_types)
        + _SUGGESTED_SERVICES
    )


def _services(
    problem: Problem, scenario: WhatIfScenario, where: str
) -> dict[str, ServiceDemand]:
    services = {service.name: service for service in problem.services}
    kept = {
        name: service
        for name, service in services.items()
        if name not in scenario.without
    }
    for index, service in enumerate(scenario.services):
        _check_service(problem, service, f"{where}services[{index}]")
        kept[service.name] = service
    return kept


def _models(
    problem: Problem,
    scenario: WhatIfScenario,
) -> dict[str, LlmDemand]:
    models = {model.name: model for model in problem.llm_services}
    models |= {model.name: model for model in scenario.models}
    return {
        name: model for name, model in models.items() if name not in scenario.without
    }


def _check_service(problem: Problem, service: ServiceDemand, at: str) -> None:
    networks = sorted({points.network for points in problem.points})
    _check_names([service.network], networks, "measured network", f"{at}.network")
    _check_names(
        service.allowed_gpu_types or (),
        [one.name for one in problem.gpu_types],
        "GPU type",
        at,
    )
    # The law is a table by percentile: for others there are no figures to plan with.
    if service.percentile not in problem.capacity_law.percentiles:
        there = ", ".join(f"{one:g}" for one in problem.capacity_law.percentiles)
        raise InvalidInput(
            f"{at}.percentile",
            f"{service.percentile:g} is not in the problem's capacity law; it has {there}",
        )


def _llm_points(
    problem: Problem,
    scenario: WhatIfScenario,
) -> tuple[LlmPoints, ...]:
    replaced = {service.name for service in scenario.models}
    kept = (each for each in problem.llm_points if each.service not in replaced)
    return (*kept, *scenario.llm_points)


def _model(
    model: LlmDemand,
    scenario: WhatIfScenario,
) -> LlmDemand:
    return replace(model, arrival_rate_rps=_rate_rps(model, scenario))


def _rate_rps(
    service: ServiceDemand | LlmDemand,
    scenario: WhatIfScenario,
) -> float:
    factor = scenario.demand_factor.get(
        # A service's own factor replaces that of all, and is not multiplied with it.
        service.name,
        scenario.demand_factor.get(ALL, 1.0),
    )
    return factor * scenario.demand_rps.get(service.name, service.arrival_rate_rps)


def _service(service: ServiceDemand, scenario: WhatIfScenario) -> ServiceDemand:
    return replace(
        service,
        arrival_rate_rps=_rate_rps(service, scenario),
        slo_ms=scenario.slo_ms.get(service.name, service.slo_ms),
    )


def _gpu_type(gpu_type: GpuType, scenario: WhatIfScenario, where: str) -> GpuType:
    more = scenario.gpus.get(gpu_type.name, 0)
    # Without a limit there is nothing to add to.
    if more and gpu_type.count is None:
        raise InvalidInput(
            f"{where}gpus",
            f"the number of {gpu_type.name} is unlimited; more or fewer change nothing",
        )
    count = None if gpu_type.count is None else gpu_type.count + more
    if count is not None and count < 0:
        raise InvalidInput(
            f"{where}gpus",
            f"{gpu_type.count} {gpu_type.name} can be planned with; {more:+d} would leave {count}",
        )
    price = scenario.price_usd_per_hour.get(gpu_type.name, gpu_type.price_usd_per_hour)
    # What comes or goes does so by nodes; what is left of one holds no set.
    slots = tuple(
        (size, max(0, sets + math.floor(more / size)))
        for size, sets in gpu_type.free_slots
    )
    return replace(gpu_type, count=count, free_slots=slots, price_usd_per_hour=price)


def _check_names(
    names: Collection[str], known: Collection[str], what: str, at: str
) -> None:
    for name in names:
        if name not in known:
            raise InvalidInput(at, no_such(what, name, known))


def _check_figures(scenario: WhatIfScenario, where: str) -> None:
    for part, may_be_zero in (
        ("demand_factor", True),
        ("demand_rps", True),
        ("price_usd_per_hour", False),
        ("slo_ms", False),
    ):
        figures: Mapping[str, float] = getattr(scenario, part)
        for name, value in figures.items():
            is_large_enough = value >= 0.0 if may_be_zero else value > 0.0
            if not (math.isfinite(value) and is_large_enough):
                rule = "0 or more" if may_be_zero else "above 0"
                raise InvalidInput(
                    f"{where}{part}", f"{value:g} for {name} must be a number {rule}"
                )


def _costliest(
    problem: Problem, plan: Plan, prices: Prices | None
) -> list[ServiceDemand]:
    """Services by what their demand costs: at the prices of the relaxation, else by their SMs of GPUs."""
    cost = (
        _costs_by_share(problem, plan)
        if prices is None
        else _costs_by_price(problem, prices)
    )
    costly = [service for service in problem.services if cost[service.name] > 0.0]
    # A stable sort: services that cost the same stay in the problem's order.
    return sorted(costly, key=lambda service: -cost[service.name])


def _costs_by_price(problem: Problem, prices: Prices) -> dict[str, float]:
    per_rps = {price.service: price.per_rps for price in prices.services}
    return {
        service.name: per_rps.get(service.name, 0.0) * service.arrival_rate_rps
        for service in problem.services
    }


def _costs_by_share(problem: Problem, plan: Plan) -> dict[str, float]:
    """In USD per hour times 100, which ranks them just as well."""
    cost = dict.fromkeys((service.name for service in problem.services), 0.0)
    for gpu in plan.gpus:
        price = problem.gpu_type(gpu.gpu_type).price_usd_per_hour
        for replica in gpu.replicas:
            cost[replica.service] += gpu.count * price * replica.sm_percent
    return cost
