"""Variants: services that have several networks are given one before they are planned (`solvers.tick.choose_network`).
Pure.

Only where `joint` plans them; other policies serve the network that the service names. The problem keeps the operating
points of all variants, so that its record tells what each would have cost.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from app.store.store import PolicySettings
from solvers.tick.choose_network import VariantCost, choose_variants, variant_costs
from solvers.types.plan import BoundPlan
from solvers.types.problem import Problem
from solvers.types.state import Service

CHOOSING = "joint"
"""The policy whose services may be served by variants."""


def networks_of(services: Sequence[Service]) -> set[str]:
    """That may serve them, and have operating points: language models have none."""
    return {
        name
        for each in services
        if each.llm is None
        for name in (each.network, *(one.network for one in each.variants))
    }


def with_choices(
    problem: Problem,
    services: Sequence[Service],
    settings: PolicySettings,
    target: BoundPlan | None,
) -> Problem:
    """The problem with the network that is to serve each service. It has the operating points of all variants."""
    chosen = choose_variants(
        problem, _choosing(problem, services, settings), running_networks(target)
    )
    network_of = {choice.service: choice.network for choice in chosen}
    return replace(
        problem,
        services=tuple(
            replace(each, network=network_of.get(each.name, each.network))
            for each in problem.services
        ),
    )


def running_networks(target: BoundPlan | None) -> Mapping[str, str]:
    """The network that carries most of each service's planned rate; the first by name among equals."""
    rates: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for gpu in target.gpus if target is not None else ():
        for replica in gpu.replicas:
            rates[replica.service][replica.network] += replica.arrival_rate_rps
    # Ties are broken by name, so that the same plan always gives the same answer.
    return {
        name: min(own, key=lambda network: (-own[network], network))
        for name, own in rates.items()
    }


def describe_variants(
    problem: Problem, services: Sequence[Service], settings: PolicySettings
) -> tuple[str, ...]:
    """For the report: which variant serves each service, and what the others would cost."""
    # By name, as everywhere in reports: two reports of one problem must be equal.
    choosing = sorted(
        _choosing(problem, services, settings), key=lambda each: each.name
    )
    return tuple(
        f"{each.name}: "
        + "; ".join(
            _describe_costs(
                variant_costs(problem, each), problem.service(each.name).network
            )
        )
        for each in choosing
    )


def _choosing(
    problem: Problem, services: Sequence[Service], settings: PolicySettings
) -> list[Service]:
    known = {service.name for service in problem.services}
    return [
        each
        for each in services
        if each.variants
        and each.name in known
        and _policy_of(each, settings) == CHOOSING
    ]


def _policy_of(service: Service, settings: PolicySettings) -> str:
    group = settings.group_of(service)
    return settings.policy if group is None else group.policy


def _describe_costs(costs: Sequence[VariantCost], chosen: str) -> Iterator[str]:
    """The one that serves first."""
    # The chosen network comes first: readers want to know what serves before what it was compared with.
    for each in sorted(costs, key=lambda cost: cost.variant.network != chosen):
        name, usd = (
            f"{each.variant.network} (accuracy {each.variant.accuracy:g})",
            each.usd_per_hour,
        )
        if each.variant.network == chosen:
            yield f"served by {name}" + (
                "" if usd is None else f", for about ${usd:.4f} per hour of GPUs"
            )
        else:
            yield (
                f"{name} cannot keep the SLO"
                if usd is None
                else f"{name} would cost ${usd:.4f}"
            )
