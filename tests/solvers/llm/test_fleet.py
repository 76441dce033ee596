"""Plans of language models: the contract's example, all covers by brute force, nodes by explicit packing."""

import itertools
import random
from collections import Counter
from dataclasses import replace
from operator import itemgetter

import pytest

from solvers.check import violations
from solvers.laws.cost import cost_usd_per_hour
from solvers.llm.planner.covers import kinds_of
from solvers.llm.planner.fleet import LlmFleet, plan_llms
from solvers.types.llm import LlmReplicaPlan
from solvers.types.outcome import Budget
from solvers.types.plan import Plan
from solvers.types.problem import Problem
from tests.examples import seeds
from tests.solvers.llm.models import (
    make_points,
    make_problem,
    make_row,
    make_service,
    make_type,
)


def plan_of(found: LlmFleet) -> Plan:
    return Plan(policy="joint", llm_replicas=found.replicas, unserved=found.unserved)


def cost_of(problem: Problem, found: LlmFleet) -> float:
    return cost_usd_per_hour(problem, plan_of(found))


def test_the_contracts_example_takes_six_gpus() -> None:
    problem = make_problem()

    found = plan_llms(problem, Budget())

    # 17 rps: one on four GPUs (13.5) and one on two (6), or three on two: 27 USD either way.
    assert cost_of(problem, found) == pytest.approx(27.0)
    assert found.cost_bound == pytest.approx(27.0)
    assert sum(each.count * each.arrival_rate_rps for each in found.replicas) == (
        pytest.approx(17.0)
    )
    assert violations(problem, plan_of(found)) == ()


def test_where_nodes_are_in_pieces_replicas_are_small() -> None:
    in_pieces = make_type(free_slots=((2, 8), (4, 0), (8, 0)))
    problem = make_problem(gpu_types=(in_pieces,))

    found = plan_llms(problem, Budget())

    assert {each.tp for each in found.replicas} == {2}
    assert violations(problem, plan_of(found)) == ()


def test_what_has_no_slot_is_left_over_and_says_so() -> None:
    no_pairs = make_type(free_slots=((2, 1), (4, 0), (8, 0)))
    problem = make_problem(gpu_types=(no_pairs,))

    found = plan_llms(problem, Budget())

    assert [(each.reason, round(each.rate_rps, 3)) for each in found.unserved] == [
        ("slots", 11.0)
    ]
    assert violations(problem, plan_of(found)) == ()


def test_without_a_row_that_carries_anything_the_slo_is_the_reason() -> None:
    problem = make_problem(llm_points=(make_points(rows=(make_row(1, 0.0),)),))

    found = plan_llms(problem, Budget())

    assert [(each.reason, each.rate_rps) for each in found.unserved] == [("slo", 17.0)]


def test_what_runs_stays_unless_another_arrangement_saves_its_starts() -> None:
    running = LlmReplicaPlan(
        service="chat",
        gpu_type="H100",
        tp=2,
        count=3,
        clock_mhz=1980.0,
        max_num_batched_tokens=1024,
        max_num_seqs=256,
        arrival_rate_rps=5.0,
    )
    problem = make_problem(
        current=Plan(policy="joint", llm_replicas=(running,)),
        migration_cost_usd_per_hour=0.5,
    )

    found = plan_llms(problem, Budget())

    assert [(each.tp, each.count) for each in found.replicas] == [(2, 3)]


def test_limits_of_replicas_hold() -> None:
    service = make_service(rate_rps=40.0, max_replicas=2)
    problem = make_problem(llm_services=(service,))

    found = plan_llms(problem, Budget())

    # Two on eight GPUs carry 50.
    assert [(each.tp, each.count) for each in found.replicas] == [(8, 2)]
    at_rest = make_problem(llm_services=(make_service(rate_rps=0.0, min_replicas=2),))
    kept = plan_llms(at_rest, Budget())
    assert [(each.tp, each.count) for each in kept.replicas] == [(2, 2)]


def test_what_is_paid_for_anyway_is_used_first() -> None:
    cheap = make_type("L40S", price_usd_per_hour=2.0)
    paid = make_type("H100", paid_count=16)
    problem = make_problem(
        gpu_types=(paid, cheap),
        llm_points=(make_points(), make_points(gpu_type="L40S")),
    )

    found = plan_llms(problem, Budget())

    assert {each.gpu_type for each in found.replicas} == {"H100"}
    assert cost_of(problem, found) == pytest.approx(0.0)


def random_problem(seed: int, *, services: int) -> Problem:
    """Two GPU types of few GPUs on nodes of four."""
    chance = random.Random(seed)
    types = tuple(
        make_type(
            name,
            price_usd_per_hour=chance.choice([1.0, 2.5, 4.0]),
            count=chance.choice([4, 8]),
            gpus_per_node=4,
        )
        for name in ("A", "B")
    )
    names = [f"s{at}" for at in range(services)]
    return make_problem(
        gpu_types=types,
        llm_services=tuple(
            make_service(name, chance.uniform(2.0, 12.0)) for name in names
        ),
        llm_points=tuple(
            make_points(
                name,
                gpu_type.name,
                tuple(
                    make_row(tp, chance.uniform(1.0, 3.0) * tp**0.9) for tp in (1, 2, 4)
                ),
            )
            for name in names
            for gpu_type in types
        ),
    )


def covers_by_hand(
    problem: Problem, name: str
) -> list[tuple[float, Counter[tuple[str, int]]]]:
    """Every cover that serves a service in full and has no replica too many, with its cost."""
    service = next(each for each in problem.llm_services if each.name == name)
    kinds = kinds_of(problem, service, ())
    found = []
    for counts in itertools.product(range(5), repeat=len(kinds)):
        used = Counter(
            {
                (kind.gpu_type, kind.row.tp): number
                for kind, number in zip(kinds, counts, strict=True)
                if number
            }
        )
        carried = sum(
            number * kind.row.capacity_rps
            for kind, number in zip(kinds, counts, strict=True)
        )
        if carried >= service.arrival_rate_rps:
            usd = sum(
                number * kind.usd_per_hour
                for kind, number in zip(kinds, counts, strict=True)
            )
            found.append((usd, used))
    return sorted(found, key=lambda each: each[0])


def fits(problem: Problem, used: Counter[tuple[str, int]]) -> bool:
    """First fit of the largest replicas into nodes of four."""
    for gpu_type in problem.gpu_types:
        nodes = [4] * ((gpu_type.count or 0) // 4)
        wanted = sorted(
            (
                tp
                for (name, tp), count in used.items()
                for _ in range(count)
                if name == gpu_type.name
            ),
            reverse=True,
        )
        for tp in wanted:
            at = next((at for at, free in enumerate(nodes) if free >= tp), None)
            if at is None:
                return False
            nodes[at] -= tp
    return True


@pytest.mark.parametrize("seed", seeds(2))
def test_no_choice_of_covers_is_cheaper(seed: int) -> None:
    problem = random_problem(seed, services=2)
    found = plan_llms(problem, Budget())

    first, second = (
        covers_by_hand(problem, each.name)[:400] for each in problem.llm_services
    )
    pairs = [
        (one[0] + other[0], one[1] + other[1])
        for one, other in itertools.product(first, second)
    ]
    # The cheapest come first, so that few are asked whether they fit.
    pairs.sort(key=itemgetter(0))
    best = next((usd for usd, taken in pairs if fits(problem, taken)), None)

    assert violations(problem, plan_of(found)) == ()
    if best is not None and not found.unserved:
        cost = cost_of(problem, found)
        assert found.cost_bound <= best + 1e-6
        assert cost <= best * 1.03


@pytest.mark.parametrize("seed", seeds(10))
def test_the_rule_of_slots_is_that_replicas_fit_into_nodes(seed: int) -> None:
    chance = random.Random(seed)
    problem = random_problem(seed, services=1)
    counts = Counter({("A", tp): chance.randrange(3) for tp in (1, 2, 4)})
    replicas = tuple(
        LlmReplicaPlan(
            service="s0",
            gpu_type="A",
            tp=tp,
            count=count,
            clock_mhz=1980.0,
            max_num_batched_tokens=1024,
            max_num_seqs=256,
            arrival_rate_rps=0.0,
        )
        for (_, tp), count in counts.items()
        if count
    )
    broken = {
        each.rule
        for each in violations(problem, Plan(policy="x", llm_replicas=replicas))
    }

    assert fits(problem, counts) == broken.isdisjoint({"slots", "stock"})


def test_the_order_of_the_input_changes_nothing() -> None:
    problem = random_problem(3, services=4)
    turned = replace(
        problem,
        llm_services=problem.llm_services[::-1],
        llm_points=tuple(
            replace(each, rows=each.rows[::-1]) for each in problem.llm_points[::-1]
        ),
    )

    found, other = plan_llms(problem, Budget()), plan_llms(turned, Budget())

    assert Counter(found.replicas) == Counter(other.replicas)
