"""`plimsoll explain --problem`: the same answer as a control plane's, made from files."""

import json
from pathlib import Path

import pytest

from solvers.types.documents.problem_json import problem_to_json
from tests.app.cli.start.test_plan import EXAMPLE, changed_example
from tests.app.runner import cli
from tests.solvers.sliced import tiny_sliced_problem

PLAN = EXAMPLE.parent / "example_plan.json"


@pytest.fixture(scope="module")
def told() -> list[str]:
    result = cli("explain --problem", EXAMPLE, "--plan", PLAN, "--time-limit", "60")
    assert (result.code, result.err) == (0, "")
    return result.out.splitlines()


def test_every_service_has_its_price_and_what_holds_it_back(told: list[str]) -> None:
    chat = told[told.index(next(line for line in told if line.startswith("chat  "))) :]
    assert (
        chat[0]
        == "chat  demand 130.0 rps, planned 130.0 rps, capacity 155.8 rps (slack 25.8)"
    )
    assert (
        chat[1]
        == "  price: a request per second is worth $0.00507/h; one more costs $0.00241/h"
    )
    assert "held back by SM percent: no SM percent is left" in "\n".join(chat[:8])


def test_one_more_gpu_of_a_type_saves_nothing_while_some_are_unused(
    told: list[str],
) -> None:
    at = told.index("GPU types")
    assert [line.split() for line in told[at + 2 : at + 4]] == [
        ["small", "1", "2", "$0.500", "nothing"],
        ["big", "1", "any", "$1.200", "nothing"],
    ]


def test_each_gpu_says_what_it_earns_and_what_else_it_could_run(
    told: list[str],
) -> None:
    at = told.index("1 × big at 1400 MHz  each costs $1.2530/h, earns $1.2530/h")
    assert told[at + 1 : at + 3] == [
        "  uses 100 % of the SMs, 9.4 of 39.1 GiB, 265 of 300 W, 2 of 2 replicas",
        "  full: SM percent, power cap, replicas per GPU",
    ]
    alternatives = [line for line in told[at:] if line.startswith("  other neighbour")]
    assert alternatives[0].split() == [
        *("other", "neighbour", "$0.0018/h", "big", "1400", "MHz:"),
        *("photo", "50", "%", "b1", "+", "chat", "50", "%", "b4"),
    ]


def test_without_a_plan_one_is_made_and_shortages_are_told_in_requests(
    tmp_path: Path,
) -> None:
    problem = changed_example(tmp_path, arrival_rate_rps=1e5, max_replicas=1)
    result = cli(
        "explain --problem", problem, "--policy", "hetsev_greedy", "--time-limit", "2"
    )
    assert result.code == 0
    assert "weighted rps" in result.out
    assert "  unserved: " in result.out


def test_a_plan_is_compared_with_what_runs_where_something_does(tmp_path: Path) -> None:
    document = json.loads(EXAMPLE.read_text())
    assert (
        "Compared with the previous plan"
        not in cli("explain --problem", EXAMPLE, "--plan", PLAN).out
    )
    running = tmp_path / "running.json"
    running.write_text(
        json.dumps({**document, "current": json.loads(PLAN.read_text())})
    )
    assert (
        "Compared with the previous plan\nNo replica differs."
        in cli("explain --problem", running, "--plan", PLAN).out
    )


def test_a_plan_of_another_problem_is_told_as_far_as_it_goes(tmp_path: Path) -> None:
    problem = changed_example(tmp_path, name="other")
    result = cli("explain --problem", problem, "--plan", PLAN)
    assert (result.code, result.err) == (0, "")
    assert "limit: unknown: the problem has no such service" in result.out
    assert "limit: none: the plan leaves it out" in result.out
    assert "  breaks demand at service other: " in result.out


def test_gpus_in_slices_are_refused_in_plain_words(tmp_path: Path) -> None:
    path = tmp_path / "problem.json"
    path.write_text(problem_to_json(tiny_sliced_problem(1, is_beside=False)))
    for command in (("explain", "--problem"), ("what-if", "--suggest")):
        refused = cli(*command, path)
        assert refused.code == 1
        assert "big may be cut into slices" in refused.err
        assert "`plimsoll plan`" in refused.err


def test_where_nothing_is_asked_nothing_holds_back(tmp_path: Path) -> None:
    problem = changed_example(tmp_path, arrival_rate_rps=0.0, min_replicas=1)
    out = cli(
        "explain camera --problem",
        problem,
        "--policy",
        "hetsev_greedy",
        "--time-limit",
        "2",
    ).out
    assert "is worth nothing; one more costs nothing: there is room" in out
    assert "held back" not in out
