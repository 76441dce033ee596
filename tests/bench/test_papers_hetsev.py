"""HetSev's tables: every claim of the bench as a row, `joint` next to it, read from runs made by hand."""

from dataclasses import replace

import pytest

from app.simulate.report.report import make_report
from bench.compare import EXPERIMENTS, Claim
from bench.papers.hetsev import QUICK_S, SYSTEM, rows
from bench.papers.systems import SYSTEMS
from tests.app.runs import a_run, a_scenario

pytestmark = pytest.mark.thorough


def a_claim(policy: str = "hetsev", *, is_papers: bool = True) -> Claim:
    return Claim(
        figure="cost ratio",
        stated=2.5,
        unit="x",
        is_at_least=True,
        policy=policy,
        baseline="k8s_hpa",
        read=lambda ours, rival: (
            rival.cost_usd / ours.cost_usd,
            ours.cost_usd,
            rival.cost_usd,
        ),
        is_papers=is_papers,
    )


RUNS = [
    a_run(policy, seed=seed, cost_usd=cost * seed)
    for seed in (1, 2)
    for policy, cost in (
        ("k8s_hpa", 6.0),
        ("hetsev", 3.0 if seed == 1 else 2.0),
        ("joint", 1.5),
    )
]
REPORT = make_report(a_scenario(), RUNS)


def test_a_claim_of_hetsev_has_a_row_of_joint_beside_it_by_seed() -> None:
    own, joint = rows([a_claim()], REPORT, truth="scaled")
    assert (own.policy, own.values, own.paper, own.demanded, own.holds) == (
        "hetsev",
        (2.0, 3.0),
        2.5,
        2.5,
        True,
    )
    assert (joint.policy, joint.values, joint.paper, joint.holds) == (
        "joint",
        (4.0, 4.0),
        None,
        None,
    )
    assert own.figure == joint.figure == "cost ratio, x (over k8s_hpa)"
    assert own.truth == "scaled"


def test_what_we_ask_of_ourselves_is_no_figure_of_the_paper() -> None:
    own, _ = rows([a_claim(is_papers=False)], REPORT, truth="scaled")
    assert (own.paper, own.demanded) == (None, 2.5)


def test_a_claim_of_joint_alone_takes_the_place_of_the_row_beside_hetsev_s() -> None:
    demanded = replace(a_claim("joint", is_papers=False), figure="cost ratio, joint")
    own, joint = rows([a_claim(), demanded], REPORT, truth="scaled")
    assert (own.policy, joint.policy, joint.demanded) == ("hetsev", "joint", 2.5)


def test_without_runs_of_joint_there_are_no_rows_of_it() -> None:
    report = make_report(a_scenario(), [run for run in RUNS if run.policy != "joint"])
    assert [row.policy for row in rows([a_claim()], report, truth="scaled")] == [
        "hetsev"
    ]


def test_quick_scenarios_are_hetsev_s_own_and_last_beyond_their_warm_up() -> None:
    mine = {
        name
        for each in EXPERIMENTS
        if each.title.startswith(SYSTEM)
        for name in each.scenarios
    }
    assert set(QUICK_S) <= mine
    assert {
        claim.stated
        for each in EXPERIMENTS
        for claim in each.claims
        if claim.is_papers and claim.unit == "x"
    } == {
        2.21,
        2.56,
        2.3,
        2.15,
        1.79,
    }
    (system,) = (each for each in SYSTEMS if each.name == SYSTEM)
    assert any(
        system.aim(claim.figure) for each in EXPERIMENTS for claim in each.claims
    )
