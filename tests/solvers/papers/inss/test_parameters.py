"""What InSS' parameters change: who proposes, how often the actor is asked, and what a move costs."""

from dataclasses import replace

from solvers.check import violations
from solvers.papers.inss.last_attempt import remembered_past
from solvers.papers.inss.parameters import InssParameters
from solvers.policies.registry import policy
from solvers.types.outcome import Budget, PlanReport
from solvers.types.plan import Plan
from solvers.types.problem import Problem
from solvers.types.state import Json
from tests.solvers.instances import with_rates
from tests.solvers.papers.inss.test_policy import actors_problem, with_actor


def decide(
    problem: Problem, memory: Json = None, at_s: float = 0.0, **parameters: object
) -> tuple[Plan, PlanReport, Json]:
    budget = Budget(parameters=InssParameters(**parameters))
    observed = replace(with_actor(actors_problem()), at_s=at_s)
    plan, report, memory = policy("inss").make_plan(problem, observed, memory, budget)
    assert violations(problem, plan) == ()
    return plan, report, memory


def load_since(memory: Json) -> float | None:
    return remembered_past(memory).short_since_s


def proposers(report: PlanReport) -> set[str]:
    """Who was asked, by the report."""
    told = " ".join(report.messages)
    return {
        who
        for who, words in (
            ("actor", "the actor provisioned"),
            ("search", "a local search provisioned"),
            ("greedy", "the greedy provisioner provisioned"),
        )
        if words in told
    }


def test_the_actor_alone_is_asked_even_where_it_falls_short() -> None:
    beyond = with_rates(actors_problem(), 100.0)
    _, report, _ = decide(beyond, proposals="actor")
    assert proposers(report) == {"actor"}


def test_the_search_alone_needs_no_actor() -> None:
    _, report, _ = decide(actors_problem(), proposals="search")
    assert proposers(report) & {"search", "greedy"}
    assert "no actor: the parameter `proposals` asks for none" in report.messages


def test_other_parameters_are_another_question() -> None:
    beyond = with_rates(actors_problem(), 100.0)
    _, _, memory = decide(beyond, proposals="actor")
    _, again, _ = decide(beyond, memory, proposals="actor")
    assert again.messages == (
        "no provision served clearly more when rates were last like these",
    )
    _, other, _ = decide(beyond, memory, proposals="search")
    assert other.messages[0].startswith("batches do not suffice")


def test_the_search_moves_nothing_before_the_actor_has_fallen_short_a_while() -> None:
    problem = actors_problem()
    _, _, memory = decide(problem)
    beyond = with_rates(problem, 6.0)
    asked, began = [], []
    for at_s in (100.0, 110.0, 219.0, 220.0, 230.0):
        _, report, memory = decide(beyond, memory, at_s)
        asked.append("search" in proposers(report) or len(report.messages) > 1)
        began.append(load_since(memory))
    # Asked at once; not again while nothing changes; once more, with the search, after two minutes; then all is served.
    assert asked == [True, False, False, True, False]
    assert began == [100.0, 100.0, 100.0, None, None]
