"""HetSev's tables: every claim of the bench as a row, `joint` beside it, read from runs made by hand."""

from dataclasses import replace

import pytest

from app.simulate.report.report import make_report
from bench.compare import Claim
from bench.papers.hetsev import rows
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


def test_a_claim_of_joint_alone_takes_the_place_of_the_row_beside_hetsev_s() -> None:
    demanded = replace(a_claim("joint", is_papers=False), figure="cost ratio, joint")
    own, joint = rows([a_claim(), demanded], REPORT, truth="scaled")
    assert (own.policy, joint.policy, joint.demanded) == ("hetsev", "joint", 2.5)
