"""What commands refuse before they ask anybody: the code, and the words that say what to do instead."""

import json
from pathlib import Path

import pytest

from tests.app.cli.fake_api import FakeApi
from tests.app.cli.prediction.test_fit import SAMPLES
from tests.app.cli.start.test_plan import EXAMPLE
from tests.app.runner import cli

LAW = "capacity-law --percentile 0.98"
TRAIN = "policy train inss --fleet none.yaml"
PLAN = EXAMPLE.with_name("example_plan.json")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("--url gpu:8080 get nodes", 1, "'gpu:8080' (flag --url) is not an http:// or"),
        ("--url ftp://gpu get nodes", 1, "is not an http:// or https:// address"),
        ("--token-file /none get nodes", 1, "cannot read the token file /none"),
        ("get services -o 'jsonpath={.a'", 2, "a brace is not closed, or not opened"),
        ("get services -o jason", 2, "'jason' is not a format; use table, wide"),
        ("get nodes -p vision", 2, "--project and --selector are for services and"),
        ("get services -A -p x", 2, "give either --project or --all-projects"),
        ("diff", 2, "give either -f FILE, or the ids of two plans"),
        ("diff 1", 2, "give either -f FILE"),
        ("diff 1 2 3", 2, "give either -f FILE"),
        ("diff 1 2 -f x", 2, "give either -f FILE"),
        ("rollout status node/n1", 2, "name one service, such as service/chat"),
        ("rollout status service/a service/b", 2, "name one service, such as"),
        ("logs task/teach --all", 2, "a task has no replicas; leave out --replica"),
        ("up --keep", 2, "--keep is for --demo"),
        ("what-if --suggest --time-limit 90", 2, "plans for at most 60 s"),
        (f"explain --plan {PLAN}", 2, "add --problem FILE"),
        (
            f"explain x --problem {EXAMPLE} --plan {PLAN}",
            1,
            "the plan has no service 'x'",
        ),
        (f"fit {SAMPLES} -o - --plot -", 2, "only one of the fits and the plot can go"),
        (f"fit {SAMPLES} --seed -1", 2, "--seed"),
        ("predict - -", 2, "only one of FIT and QUERIES can come from stdin"),
        (
            "capacity-law --percentile 98 --batch 1 --ratio 2",
            2,
            "between 0 and 1, such",
        ),
        (
            "capacity-law --percentile nan --batch 1 --ratio 2",
            2,
            "between 0 and 1, such",
        ),
        (f"{LAW} --batch 0 --ratio 2", 2, "'--batch': Input should be greater than or"),
        (f"{LAW} --batch 1 --ratio 0", 2, "'--ratio': 0 must be a number above 0"),
        (f"{LAW} --batch 1 --ratio inf", 2, "'--ratio': inf must be a number above 0"),
        (f"{LAW} --batch 1 --ratio nan", 2, "'--ratio': nan must be a number above 0"),
        (TRAIN, 1, "the trained actor would be lost Hint: give -o FILE, or --save"),
        (f"{TRAIN} -o a.npz --resume", 1, "there is nothing to resume"),
        (f"{TRAIN} -o a.npz", 1, "cannot read none.yaml"),
        ("policy train mudi --fleet x -o a.npz", 1, "policy mudi cannot be trained"),
    ],
)
def test_it_is_refused_with_a_remedy(words: str, code: int, said: str) -> None:
    api = FakeApi()
    refused = cli(words, api=api)
    assert (refused.code, refused.out, api.requests) == (code, "", [])
    assert said in " ".join(refused.err.replace("│", " ").split())


@pytest.mark.parametrize(
    ("field", "said"),
    [("headroom", "set target_attainment"), ("move_budget", "or set start_price")],
)
def test_a_field_that_is_gone_says_what_is_there_in_its_place(
    tmp_path: Path, field: str, said: str
) -> None:
    policy = {"kind": "Policy", "metadata": {"name": "cluster"}, "spec": {field: 0.1}}
    file = tmp_path / "policy.json"
    file.write_text(json.dumps(policy))
    api = FakeApi()
    refused = cli("apply", "-f", file, api=api)
    assert refused.code == 1
    assert f"{field} is gone" in refused.err
    assert said in " ".join(refused.err.split())


@pytest.mark.parametrize("token", ["t\u00e4ken", "two\nlines"])
def test_a_token_that_no_header_can_carry_is_named_and_not_shown(token: str) -> None:
    refused = cli("get nodes", environment={"PLIMSOLL_TOKEN": token})
    assert (refused.code, token in refused.err) == (1, False)
    assert "has invalid characters (token: environment PLIMSOLL_TOKEN)" in refused.err
