"""`plimsoll policy compare`: on files, in simulations, and what a control plane is asked."""

import json
from pathlib import Path
from typing import Any

import pytest

from solvers.policies.cards import cards
from solvers.policies.registry import main_policies
from tests.app.cli.fake_api import FakeApi
from tests.app.cli.start.test_plan import EXAMPLE
from tests.app.runner import cli
from tests.app.runs import a_document
from tests.waiting import PATIENCE_S

UNHURRIED = ("--time-limit", str(PATIENCE_S))
"""No policy takes so long for the example: each ends with its plan, and not with its time."""


def a_line(policy: str, **changes: object) -> dict[str, object]:
    line: dict[str, object] = {
        "policy": policy,
        "solution": "optimal",
        "reason": "",
        "cost_usd_per_hour": 1.7642,
        "lower_bound_usd_per_hour": None,
        "gpus": 2,
        "gpus_by_type": {"T4": 2},
        "replicas": 3,
        "starts": 0,
        "unserved_percent": 0.0,
        "worst_slack_percent": 5.0,
        "worst_service": "chat",
        "violations": 0,
        "first_violation": "",
        "seconds": 0.02,
    }
    return line | changes


ANSWER: dict[str, object] = {
    "in_force": "joint",
    "policies": [
        a_line("joint"),
        a_line(
            "gslice",
            violations=1,
            first_violation="capacity at gpus[0]: 9 > 8",
            worst_slack_percent=-11.1,
        ),
        a_line(
            "mudi",
            solution=None,
            reason="policy mudi failed: no weights",
            cost_usd_per_hour=None,
        ),
        a_line("k8s_hpa", unserved_percent=12.5, worst_slack_percent=None),
    ],
}


def fake() -> FakeApi:
    return FakeApi(answers={"POST plans/compare": ANSWER})


def test_policies_plan_a_file_side_by_side_within_80_columns() -> None:
    result = cli("policy compare joint k8s_hpa gslice --problem", EXAMPLE, *UNHURRIED)
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    rows = {line.split()[0]: line.split() for line in lines[1:4]}
    # The contract's optimum, and whole GPUs for each of the three services.
    assert rows["joint"][1:5] == ["$1.7642", "2", "3", "3"]
    assert rows["k8s_hpa"][1:5] == ["$3.7700", "3", "3", "3"]
    assert lines[4].startswith("gslice breaks capacity at ")
    assert max(map(len, lines[:4])) <= 80


ALL = [each.name for each in cards()]
MAIN = [name for name in ALL if name in main_policies()]


@pytest.mark.parametrize(("switches", "asked"), [((), MAIN), (("--all",), ALL)])
def test_without_names_the_main_policies_plan_and_all_on_request(
    switches: tuple[str, ...], asked: list[str]
) -> None:
    of_file = ("--problem", EXAMPLE, "--time-limit", "14", "-o", "json")
    found = json.loads(cli("policy compare", *switches, *of_file).out)
    assert [each["policy"] for each in found["policies"]] == asked
    assert set(found["policies"][0]) == set(a_line(""))
    # A control plane is asked for the same ones in the same order.
    api = fake()
    cli("policy compare", *switches, "--time-limit", "4", api=api)
    assert api.sent("POST") == [{"policies": asked, "time_limit_s": 4.0}]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["joint", "--all"], 2, "name policies or give --all, not both"),
        (["hetsef"], 1, "no policy is called 'hetsef'; there are "),
        (["--problem", "a", "--scenario", "b"], 2, "give --problem or --scenario, not"),
        (["--time-limit", "90"], 2, "a control plane plans for at most 60 s"),
        (["--problem", "nowhere.json"], 1, "nowhere.json"),
    ],
)
def test_wrong_usage_says_what_is_wrong(
    arguments: list[str], code: int, words: str
) -> None:
    result = cli("policy compare", *arguments, api=fake())
    assert (result.code, words in result.err) == (code, True), result.err


def a_file(folder: Path, **spec: Any) -> Path:
    file = folder / "scenario.yaml"
    file.write_text(json.dumps(a_document(**spec)))
    return file


def test_policies_are_compared_in_a_simulation_under_the_same_requests(
    tmp_path: Path,
) -> None:
    own = ["k8s_hpa", "hetsev_greedy"]
    file = a_file(tmp_path, duration_s=60, step_s=30, policies=own)
    result = cli("policy compare hetsev_greedy k8s_hpa --scenario", file, "-j", "1")
    assert result.code == 0, result.err
    assert [line.split()[0] for line in result.out.splitlines()[1:3]] == [
        "hetsev_greedy",
        "k8s_hpa",
    ]
    whole = json.loads(
        cli("policy compare --scenario", file, "-j", "1", "-o", "json").out
    )
    # Without names its own, in the order of every other list of policies.
    assert [each["policy"] for each in whole["policies"]] == [*reversed(own)]
