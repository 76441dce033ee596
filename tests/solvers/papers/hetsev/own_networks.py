"""Problems in which every service has a network of its own, so that nothing keeps services apart."""

from dataclasses import replace
from typing import Any

from solvers.types.problem import Problem, ServiceDemand
from tests.solvers import instances


def a_problem(*services: ServiceDemand, **facts: Any) -> Problem:
    """Services with a network each."""
    return with_own_networks(instances.a_problem(*services, **facts))


def with_own_networks(problem: Problem) -> Problem:
    """The same times, though no one else runs a service's network: it shares GPUs with anybody."""
    services = tuple(
        replace(each, network=f"{each.name} on {each.network}")
        for each in problem.services
    )
    points = {(each.network, each.gpu_type): each for each in problem.points}
    return replace(
        problem,
        services=services,
        points=tuple(
            replace(points[was.network, gpu_type.name], network=now.network)
            for was, now in zip(problem.services, services, strict=True)
            for gpu_type in problem.gpu_types
            if (was.network, gpu_type.name) in points
        ),
    )
