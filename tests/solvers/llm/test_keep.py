"""Language models between rearrangements: what runs goes on, and only what is missing is started."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest

from solvers.check import violations
from solvers.llm.planner.fleet import LlmFleet
from solvers.llm.planner.keep import keep_llms
from solvers.policies.beside import plan_beside
from solvers.types.llm import LlmDemand, LlmReplicaPlan
from solvers.types.outcome import TICK, Budget, PlanReport, Stability
from solvers.types.plan import Plan
from solvers.types.problem import Problem
from solvers.types.state import Json, Observed
from tests.solvers.llm.models import (
    CLOCK_MHZ,
    make_points,
    make_problem,
    make_row,
    make_service,
    make_type,
)

ROWS = (make_row(1, 2.0), make_row(2, 5.0))


def replica(tp: int, count: int = 1, gpu_type: str = "H100") -> LlmReplicaPlan:
    """Of `chat`."""
    return LlmReplicaPlan(
        service="chat",
        gpu_type=gpu_type,
        tp=tp,
        count=count,
        clock_mhz=CLOCK_MHZ,
        max_num_batched_tokens=1024,
        max_num_seqs=256,
        arrival_rate_rps=1.0,
    )


def problem(service: LlmDemand, *running: LlmReplicaPlan, count: int = 16) -> Problem:
    """One service, with what runs of it; 2 rps on one GPU, 5 rps on two."""
    return make_problem(
        gpu_types=(make_type(count=count),),
        llm_services=(service,),
        llm_points=(make_points(rows=ROWS),),
        current=Plan(policy="joint", llm_replicas=running) if running else None,
    )


def kept(given: Problem) -> LlmFleet:
    found = keep_llms(given, Budget())
    assert found is not None
    return found


def counts(replicas: Iterable[LlmReplicaPlan]) -> Counter[int]:
    """How many there are of each degree."""
    found = Counter[int]()
    for each in replicas:
        found[each.tp] += each.count
    return found


def test_what_runs_goes_on_though_other_replicas_would_cost_less() -> None:
    given = problem(make_service(rate_rps=3.9), replica(1, 2))
    found = kept(given)
    assert counts(found.replicas) == {1: 2}
    # Together they carry all of it, each its part.
    assert math.isclose(sum(e.count * e.arrival_rate_rps for e in found.replicas), 3.9)
    plan = Plan(policy="joint", llm_replicas=found.replicas)
    assert violations(given, plan) == ()


def test_what_is_missing_is_started_beside() -> None:
    found = kept(problem(make_service(rate_rps=8.5), replica(1, 2)))
    assert counts(found.replicas) == {1: 2, 2: 1}


def test_what_is_not_needed_is_given_up_the_dearest_first() -> None:
    # 5 rps for 9 USD are cheaper per request than 2 rps for 4.50.
    found = kept(problem(make_service(rate_rps=4.5), replica(1, 2), replica(2)))
    assert counts(found.replicas) == {2: 1}
    service = make_service(rate_rps=0.0, min_replicas=2)
    found = kept(problem(service, replica(1, 2), replica(2)))
    assert counts(found.replicas) == {1: 1, 2: 1}


@pytest.mark.parametrize(
    ("service", "count"),
    [
        # No more than that number of replicas: small ones must make room for large ones.
        (make_service(rate_rps=9.0, max_replicas=2), 16),
        # Too few GPUs besides those that run.
        (make_service(rate_rps=9.5), 4),
    ],
)
def test_where_something_would_be_left_over_everything_is_planned_anew(
    service: LlmDemand, count: int
) -> None:
    assert keep_llms(problem(service, replica(1, 2), count=count), Budget()) is None


def test_nothing_runs_or_nothing_that_is_allowed() -> None:
    assert keep_llms(problem(make_service(rate_rps=1.0)), Budget()) is None
    other = make_service(rate_rps=1.0, allowed_gpu_types=("L40S",))
    assert keep_llms(problem(other, replica(1)), Budget()) is None


def decided(
    given: Problem, at_s: float, memory: Json, stability: Stability
) -> tuple[Counter[int], Json]:
    """The replicas that a policy's plan has besides its own, by degree; and what is remembered."""

    def nothing(*_: object) -> tuple[Plan, PlanReport, Json]:
        return (
            Plan(policy="x"),
            PlanReport(status="feasible", cost_usd_per_hour=0.0),
            "own",
        )

    plan, _, remembered = plan_beside(
        nothing,
        given,
        Observed(at_s=at_s),
        memory,
        replace(TICK, stability=stability),
    )
    return counts(plan.llm_replicas), remembered


def test_rearrangements_are_looked_for_when_some_starts_have_passed() -> None:
    # Three small ones cost 13.50 USD, a large one 9.
    given = problem(make_service(rate_rps=4.5), replica(1, 3))
    steady = Stability(min_dwell_s=60.0)
    first, memory = decided(given, 1000.0, None, steady)
    assert first == {2: 1}
    # For five times what a start takes nothing is replaced to save.
    dwell_s = 5.0 * max(row.start_s for row in ROWS)
    assert dwell_s > steady.min_dwell_s
    soon, memory = decided(given, 999.0 + dwell_s, memory, steady)
    assert soon == {1: 3}
    later, memory = decided(given, 1001.0 + dwell_s, memory, steady)
    assert later == {2: 1}
    # A clock that was set back, and plans that are asked for without any past.
    back, _ = decided(given, 10.0, memory, steady)
    assert back == {2: 1}
    alone, _ = decided(given, 11.0, memory, Stability())
    assert alone == {2: 1}
