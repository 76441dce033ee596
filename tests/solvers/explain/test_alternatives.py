"""What else a GPU could run: lawful, priced as claimed, and the best one step away, by trying all."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from solvers.check import violations
from solvers.explain.alternatives import Neighbourhood
from solvers.explain.types import Alternative
from solvers.joint.relaxation.dual_prices import relax
from solvers.joint.solve import solve
from solvers.laws.cost import cost_usd_per_hour
from solvers.types.outcome import Budget, Prices
from solvers.types.plan import GpuPlan, Plan, ReplicaPlan
from solvers.types.problem import Problem
from tests.examples import tried
from tests.solvers.instances import gpu_plan, random_problem, replica_on
from tests.solvers.problems import tiny_problem
from tests.solvers.small_plans import capacity_rps

SEEDS = range(tried(12))


def explained(problem: Problem) -> tuple[Plan, Prices] | None:
    """A plan and money prices; None where something is short."""
    found = relax(problem)
    if found is None or found.prices().unit != "usd_per_hour":
        return None
    return solve(problem, Budget(seconds=5.0, work=0.2))[0].plan, found.prices()


@cache
def cases() -> list[tuple[Problem, Plan, Prices]]:
    all_found = []
    for seed in SEEDS:
        for problem in (tiny_problem(seed), random_problem(seed, services=4)):
            found = explained(problem)
            if found is not None:
                all_found.append((problem, *found))
    return all_found


def loss(problem: Problem, gpu: GpuPlan, prices: Prices) -> float:
    """The reduced cost by the checker's laws."""
    earned = 0.0
    for index, replica in enumerate(gpu.replicas):
        price = prices.of_service(replica.service)
        assert price is not None
        rate = problem.service(replica.service).arrival_rate_rps
        earned += (
            price.per_rps * min(capacity_rps(problem, gpu, index), rate)
            + price.per_replica
        )
    cost = cost_usd_per_hour(problem, Plan(policy="test", gpus=(gpu,)))
    return cost + prices.of_gpu_type(gpu.gpu_type) - earned


def is_lawful(problem: Problem, gpu: GpuPlan) -> bool:
    broken = violations(problem, Plan(policy="test", gpus=(gpu,)))
    return all(entry.rule in ("demand", "stock") for entry in broken)


@pytest.mark.seeded
def test_alternatives_keep_every_rule_and_lose_what_is_claimed() -> None:
    seen = 0
    for problem, plan, prices in cases():
        search = Neighbourhood(problem, plan, prices)
        for gpu in plan.gpus:
            found = search.alternatives(gpu, 99)
            assert [one.loss for one in found] == sorted(one.loss for one in found)
            for one in found:
                assert is_lawful(problem, one.gpu)
                assert one.loss == pytest.approx(
                    loss(problem, one.gpu, prices), abs=1e-6
                )
                assert one.price - one.earns + prices.of_gpu_type(
                    one.gpu.gpu_type
                ) == pytest.approx(one.loss)
                # At the relaxation's optimum nothing is worth more than it costs, but for its tolerance.
                assert one.loss >= -2e-3 * one.price
                seen += 1
    assert seen > 4 * len(SEEDS)


@pytest.mark.seeded
def test_single_changes_are_the_best_of_their_kind() -> None:
    compared = 0
    for problem, plan, prices in cases():
        search = Neighbourhood(problem, plan, prices)
        for gpu in plan.gpus:
            by_kind: dict[str, Alternative] = {
                one.change: one for one in search.alternatives(gpu, 99)
            }
            for change, changed in (
                ("partner", partners),
                ("share", shares),
                ("more", additions),
                ("fewer", removals),
            ):
                losses = [
                    loss(problem, one, prices)
                    for one in changed(problem, gpu)
                    if is_useful(problem, one)
                ]
                if not losses:
                    continue
                found = by_kind.get(change)
                if found is None or found.loss > min(losses) + 1e-6:
                    # Rows that the replica's own row is never worse than are not looked at.
                    assert (
                        change == "share"
                        and min(losses) >= loss(problem, gpu, prices) - 1e-6
                    )
                else:
                    assert found.loss == pytest.approx(min(losses), abs=1e-6), change
                    compared += 1
    assert compared > 3 * len(SEEDS)


def is_useful(problem: Problem, gpu: GpuPlan) -> bool:
    """Lawful, and every replica carries something, or counts as one of the fewest of its service."""
    return is_lawful(problem, gpu) and all(
        problem.service(replica.service).min_replicas > 0
        or capacity_rps(problem, gpu, at) > 0.0
        for at, replica in enumerate(gpu.replicas)
    )


def choices(problem: Problem, gpu: GpuPlan, service: str) -> Iterator[ReplicaPlan]:
    points = problem.points_of(problem.service(service).network, gpu.gpu_type)
    for row in points.rows if points else ():
        if np.isclose(row.clock_mhz, gpu.clock_mhz):
            yield replica_on(service, row.sm_percent, batch=row.batch)


def running(gpu: GpuPlan, replicas: list[ReplicaPlan]) -> GpuPlan:
    """With these replicas, whatever rates they carried before."""
    unloaded = tuple(replace(replica, arrival_rate_rps=0.0) for replica in replicas)
    return gpu_plan(*unloaded, gpu_type=gpu.gpu_type, clock_mhz=gpu.clock_mhz)


def partners(problem: Problem, gpu: GpuPlan) -> Iterator[GpuPlan]:
    for leaving in gpu.replicas:
        rest = [replica for replica in gpu.replicas if replica is not leaving]
        here = {replica.service for replica in gpu.replicas}
        for service in problem.services:
            if service.name not in here:
                yield from (
                    running(gpu, [*rest, one])
                    for one in choices(problem, gpu, service.name)
                )


def shares(problem: Problem, gpu: GpuPlan) -> Iterator[GpuPlan]:
    for leaving in gpu.replicas:
        rest = [replica for replica in gpu.replicas if replica is not leaving]
        for one in choices(problem, gpu, leaving.service):
            if (one.sm_percent, one.batch) != (leaving.sm_percent, leaving.batch):
                yield running(gpu, [*rest, one])


def additions(problem: Problem, gpu: GpuPlan) -> Iterator[GpuPlan]:
    here = {replica.service for replica in gpu.replicas}
    for service in problem.services:
        if service.name not in here:
            yield from (
                running(gpu, [*gpu.replicas, one])
                for one in choices(problem, gpu, service.name)
            )


def removals(problem: Problem, gpu: GpuPlan) -> Iterator[GpuPlan]:
    if len(gpu.replicas) > 1:
        for leaving in gpu.replicas:
            yield running(
                gpu, [replica for replica in gpu.replicas if replica is not leaving]
            )
