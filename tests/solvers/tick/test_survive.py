"""Survival: replicas many and small enough for a loss, and the limits that a plan keeps for it."""

from dataclasses import replace

import pytest

from solvers.joint import policy as joint
from solvers.tick.survive import (
    LossDomains,
    make_goal,
    survival_limits,
    with_limits,
)
from solvers.types.outcome import Budget
from solvers.types.plan import Plan
from solvers.types.problem import Problem
from solvers.types.state import Observed
from solvers.types.survival import LossKind, Survival, SurvivalGoal
from tests.solvers.tick.test_bind import PROBLEM


def domains_of(**counts: int) -> LossDomains:
    """`counts` things to lose of each kind, all of which have GPUs of the type big."""
    kinds: tuple[LossKind, ...] = ("gpu", "node", "zone")
    return {
        kind: {"big": {f"{kind}-{index}": 1 for index in range(counts.get(kind, 1))}}
        for kind in kinds
    }


DOMAINS = domains_of(gpu=8, node=4)


def a_goal(
    service: str = "a", *, share: float = 0.5, rate_rps: float = 100.0, **kinds: object
) -> SurvivalGoal:
    wanted = {"loss": "node", "is_asked": True, **kinds}
    return SurvivalGoal(
        service=service,
        share=share,
        needed_rps=share * rate_rps,
        **wanted,  # type: ignore[arg-type]
    )


def a_problem(rate_rps: float, *goals: SurvivalGoal) -> Problem:
    """Service a alone; a replica carries 1000 rps with batch 1 and 4000 with batch 4, on any share of a GPU."""
    service = replace(PROBLEM.services[0], arrival_rate_rps=rate_rps)
    return replace(PROBLEM, services=(service,), survival=goals)


@pytest.mark.parametrize(
    ("share", "domains", "smallest_rps", "replicas", "replica_rps"),
    [
        # Two halves: either is what must be left.
        (0.5, 4, 1.0, 2, 50.0),
        (0.2, 4, 1.0, 2, 80.0),
        # Four quarters: three of them are three quarters.
        (0.75, 8, 1.0, 4, 25.0),
        # Everything, after one of four: each of the other three has a third.
        (1.0, 8, 1.0, 4, 100.0 / 3.0),
        # Two nodes only, or replicas that are no smaller: each carries everything.
        (1.0, 2, 1.0, 2, 100.0),
        (1.0, 8, 60.0, 2, 100.0),
        # Nine tenths with four replicas: three carry 90.
        (0.9, 9, 1.0, 4, 30.0),
    ],
)
def test_enough_is_left_whichever_replica_is_lost(
    share: float, domains: int, smallest_rps: float, replicas: int, replica_rps: float
) -> None:
    limits = survival_limits(
        100.0, a_goal(share=share), domains, smallest_rps=smallest_rps
    )
    assert limits.min_replicas == replicas
    # The limit is rounded up to a power of 1.1.
    assert replica_rps * (1.0 - 1e-6) <= limits.max_replica_rps < 1.1 * replica_rps
    # The two constraints of the module's docstring.
    assert limits.rate_rps - limits.max_replica_rps >= 100.0 * share * (1.0 - 1e-9)
    assert replicas * limits.max_replica_rps >= limits.rate_rps * (1.0 - 1e-9)


def test_room_for_bursts_counts_as_what_is_left() -> None:
    # 150 rps are planned for, 100 of them forecast: a replica may take 100, since 50 are what must be left.
    limits = survival_limits(150.0, a_goal(share=0.5, rate_rps=100.0), 4)
    assert 100.0 <= limits.max_replica_rps < 110.0
    assert limits.rate_rps == 50.0 + limits.max_replica_rps


def test_a_default_asks_for_nothing_where_one_replica_could_do() -> None:
    goal = a_goal(is_asked=False)
    assert with_limits(a_problem(100.0, goal), DOMAINS).services == (
        a_problem(100.0).services
    )
    # 5000 rps are beyond the 4000 of the largest replica.
    (limited,) = with_limits(
        a_problem(5000.0, a_goal(is_asked=False, rate_rps=5000.0)), DOMAINS
    ).services
    assert (limited.min_replicas, limited.arrival_rate_rps) == (2, 5000.0)
    assert 2500.0 <= (limited.max_replica_rps or 0.0) < 2750.0


@pytest.mark.parametrize(("goal", "most"), [(a_goal(loss="zone"), None), (a_goal(), 1)])
def test_nothing_is_asked_for_that_could_not_help(
    goal: SurvivalGoal, most: int | None
) -> None:
    """There is one zone; or the team allows one replica."""
    problem = a_problem(100.0, goal)
    service = replace(problem.services[0], max_replicas=most)
    problem = replace(problem, services=(service,))
    assert with_limits(problem, DOMAINS).services == (service,)


def test_a_loss_of_all_that_a_service_may_use_is_not_planned_for() -> None:
    """Four nodes, one of them with the type that it may use, or that its network has points for."""
    nodes = {"big": {"n1"}, "small": {"n2", "n3", "n4"}}
    free = a_problem(100.0, a_goal())
    (service,) = free.services
    bound = replace(service, allowed_gpu_types=("big",))
    of_big = tuple(each for each in free.points if each.gpu_type == "big")
    for problem in (
        replace(free, services=(bound,)),
        replace(free, points=of_big),
    ):
        assert with_limits(problem, {"node": nodes}).services == problem.services
    (limited,) = with_limits(free, {"node": nodes}).services
    assert limited.min_replicas == 2


@pytest.mark.parametrize(
    ("most", "replica_rps"),
    [
        # Everything is to be left: of four replicas three carry a third each, of three two a half, and of two one all.
        (4, 100.0),
        (3, 150.0),
        (2, 300.0),
    ],
)
def test_as_many_replicas_share_a_loss_as_the_team_allows(
    most: int, replica_rps: float
) -> None:
    problem = a_problem(300.0, a_goal(share=1.0, rate_rps=300.0))
    # On the smallest share of a GPU a replica carries 4000 / 40 = 100 rps, so that four of them are of use.
    points = tuple(
        replace(
            each,
            rows=tuple(
                row.slower(40.0) if row.sm_percent == 25.0 else row for row in each.rows
            ),
        )
        for each in problem.points
    )
    service = replace(problem.services[0], max_replicas=most)
    problem = replace(problem, services=(service,), points=points)
    (limited,) = with_limits(problem, DOMAINS).services
    assert limited.min_replicas == most
    assert replica_rps <= (limited.max_replica_rps or 0.0) < 1.1 * replica_rps


def test_replicas_too_few_to_carry_the_load_after_a_loss_are_not_asked_for() -> None:
    # Two replicas of 4000 rps carry 6000, but one of them does not.
    problem = a_problem(6000.0, a_goal(share=1.0, rate_rps=6000.0))
    service = replace(problem.services[0], max_replicas=2)
    problem = replace(problem, services=(service,))
    assert with_limits(problem, DOMAINS).services == (service,)


def test_the_services_own_word_comes_before_the_policys() -> None:
    default = Survival(loss="node", share=0.5)
    own = make_goal(
        "a", 80.0, survival=Survival(loss="zone", share=0.25), default=default
    )
    assert own == a_goal(share=0.25, rate_rps=80.0, loss="zone")
    assert make_goal("a", 80.0, survival=Survival(loss="none"), default=default) is None
    assert make_goal("a", 80.0, survival=None, default=default) == a_goal(
        rate_rps=80.0, is_asked=False
    )
    assert make_goal("a", 0.0, survival=None, default=default) is None


@pytest.mark.parametrize("share", [0.5, 0.9, 1.0])
def test_joint_plans_replicas_of_which_any_may_be_lost(share: float) -> None:
    goal = a_goal(share=share, rate_rps=3000.0)
    asked = with_limits(a_problem(3000.0, goal), DOMAINS)
    plan, report, _ = joint.make_plan(asked, Observed(at_s=0.0), None, Budget())
    rates = [
        each.arrival_rate_rps
        for gpu in plan.gpus
        for each in gpu.replicas
        for _ in range(gpu.count)
    ]
    assert not plan.unserved and report.lower_bound_usd_per_hour is not None
    assert sum(rates) - max(rates) >= goal.needed_rps * (1.0 - 1e-6)
    free, *_ = joint.make_plan(a_problem(3000.0), Observed(at_s=0.0), None, Budget())
    assert _gpus(free) == 1 < _gpus(plan)


def _gpus(plan: Plan) -> int:
    return sum(gpu.count for gpu in plan.gpus)
