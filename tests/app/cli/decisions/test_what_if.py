"""`plimsoll what-if`: on files, and what a control plane is asked."""

import json
from pathlib import Path

import pytest
import yaml

from app.catalogue.catalogue import load_gpu_types
from tests.app.cli.fake_api import FakeApi
from tests.app.cli.start.test_plan import EXAMPLE
from tests.app.runner import cli

ASK = f"what-if {EXAMPLE}"
LIMIT = "--time-limit 60"
"""What a busy machine needs, too; these problems are solved in far less."""
SERVICE = """
apiVersion: plimsoll/v1
kind: Service
metadata: {name: new}
spec: {network: resnet, slo: {latency_ms: 90}}
"""


def an_answer(
    question: str, cost: float, difference: float, **changes: object
) -> dict[str, object]:
    facts = {
        "question": question,
        "cost_usd_per_hour": cost,
        "difference_usd_per_hour": difference,
        "gpus": {"T4": 2, "A100": 0},
        "mix": [
            {"service": "chat", "gpu_type": "T4", "replicas": 2, "sm_percent": 160.0}
        ],
        "unserved_percent": 0.0,
        "unserved": [],
        "lower_bound_usd_per_hour": cost,
        "gap_percent": 0.0,
        "solution": "optimal",
        "planned_for": question,
        "added_usd_per_hour": None,
        "saving_per_usd": None,
        "unmeasured": [],
    }
    return facts | changes


ANSWER: dict[str, object] = {
    "today": an_answer("as it is", 2.0, 0.0),
    "answers": [
        an_answer("-1 T4", 1.5, -0.5, planned_for="as it is"),
        an_answer("+1 T4", 2.5, 0.5, gap_percent=60.0),
        an_answer("all demand × 9", 3.0, 1.0, unserved_percent=12.5),
    ],
}


def fake() -> FakeApi:
    return FakeApi(answers={"POST plans/preview": ANSWER})


def test_questions_about_a_file_are_planned_and_ranked() -> None:
    result = cli(f"{ASK} --without photo --demand all=1.1 --gpus small=+1 {LIMIT}")
    assert (result.code, result.err) == (0, "")
    lines = [line.split("  ")[0] for line in result.out.splitlines()]
    assert lines[:5] == [
        "WHAT IF",
        "as it is",
        "without photo",
        "+1 small",
        "all demand × 1.1",
    ]
    # The contract's optimum, and the same without what its small GPU runs.
    assert (
        "$1.7642" in result.out.splitlines()[1]
        and "1 small, 1 big" in result.out.splitlines()[1]
    )
    assert "$1.2530    −$0.5112" in result.out.splitlines()[2]
    assert max(map(len, result.out.splitlines())) <= 100


def test_options_together_are_one_question() -> None:
    result = cli(
        f"{ASK} --demand chat=2 --demand photo=1.1 --gpus small=+1 --together {LIMIT}"
    )
    assert [line.startswith("demand of") for line in result.out.splitlines()].count(
        True
    ) == 1
    assert "demand of chat × 2, demand of photo × 1.1, +1 small" in result.out
    refused = cli(f"{ASK} --demand chat=2 --demand chat=3 --together")
    assert (refused.code, "chat is given twice" in refused.err) == (2, True)


def test_a_new_service_is_an_entry_of_the_contract(tmp_path: Path) -> None:
    first = json.loads(EXAMPLE.read_text())["services"][0]
    network, percentile = first["network"], first["percentile"]
    file = tmp_path / "new.yaml"
    file.write_text(
        f"{{name: new, network: {network}, slo_ms: 100, percentile: {percentile}, arrival_rate_rps: 10, priority: 1}}"
    )
    result = cli(f"{ASK} --rate new=20 {LIMIT} --service", file)
    assert (result.code, "demand of new 20 rps, with new" in result.out) == (0, True)
    file.write_text(f"{{name: new, network: {network}, slo: 100}}")
    refused = cli("what-if", EXAMPLE, "--service", file)
    assert refused.err.startswith(f"Error: {file}: slo_ms: this field is missing")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--demand", "cht=2"], 1, "Error: --demand: no service is called 'cht'; did"),
        (["--price", "smal=2"], 1, "Error: --price: no GPU type is called 'smal'; did"),
        (["--gpus", "small=-9"], 1, "Error: --gpus: 2 small can be planned with; -9"),
        (["--gpus", "small=3"], 2, "'3' must be a change in number, such as +2 or -1"),
        (["--demand", "chat=-1"], 2, "-1 must be a factor of 0 or more"),
        (["--demand", "chat"], 2, "'chat' is not NAME=VALUE, such as chat=2"),
        (["--slo", "chat=fast"], 2, "'fast' is not a number"),
        (["--slo", "chat=1,chat=2"], 2, "names chat twice"),
        ([], 2, "ask something: --demand, "),
    ],
)
def test_wrong_questions_name_the_option_and_the_remedy(
    arguments: list[str], code: int, words: str
) -> None:
    result = cli("what-if", EXAMPLE, *arguments)
    assert (result.code, words in result.err) == (code, True), result.err


def test_a_control_plane_is_asked_the_same_questions() -> None:
    api = fake()
    result = cli(
        "what-if --demand chat=2 --gpus T4=-1 --slo chat=80 --suggest --policy joint",
        api=api,
    )
    assert result.code == 0
    assert api.sent("POST") == [
        {
            "scenarios": [
                {"demand_factor": {"chat": 2.0}},
                {"gpus": {"T4": -1}},
                {"slo_ms": {"chat": 80.0}},
            ],
            "suggest": True,
            "time_limit_s": 30.0,
            "policy": "joint",
        }
    ]


def test_a_manifest_with_its_rate_goes_to_the_control_plane(tmp_path: Path) -> None:
    file, api = tmp_path / "new.yaml", fake()
    file.write_text(SERVICE)
    assert cli("what-if --service", file, "--rate", "new=30,chat=5", api=api).code == 0
    (body,) = api.sent("POST")
    assert body["scenarios"] == [
        {"demand_rps": {"chat": 5.0}},
        {"services": [yaml.safe_load(SERVICE)], "demand_rps": {"new": 30.0}},
    ]


def test_gpus_that_the_file_lacks_come_from_the_catalogue_at_its_price() -> None:
    result = cli(f"{ASK} --gpus L4=+1 --gpus small=+1 {LIMIT}")
    assert (result.code, result.err) == (0, "")
    heading, today, *rows = result.out.splitlines()
    assert heading.split("  ")[-1] == "GPUS"
    assert "SAVES PER $" in heading
    assert "$" not in today.split("  ", 2)[2]
    (l4,) = (row for row in rows if row.startswith("+1 L4"))
    assert f"${load_gpu_types(['L4'])[0].price_usd_per_hour:.4f}" in l4
    # The example's networks were never measured: without operating points nothing is pretended.
    unmeasured = [
        row for row in rows if row.startswith("L4: ") and "was never measured" in row
    ]
    assert unmeasured
    assert "plimsoll profile run --network" in unmeasured[0]


def test_a_control_plane_s_refusal_names_the_option() -> None:
    api = fake()
    detail = "no service is called 'cht'; did you mean chat? There are chat"
    api.problems["POST plans/preview"] = {
        "status": 422,
        "detail": f"scenarios[0].demand_factor: {detail}",
        "errors": [{"pointer": "/scenarios/0/demand_factor", "detail": detail}],
    }
    assert cli("what-if --demand cht=2", api=api).err == f"Error: --demand: {detail}\n"
