"""`plimsoll policy list` and `describe`: what a person reads, and what a program gets."""

import json

import pytest
import yaml

from solvers.policies.cards import card, cards
from solvers.policies.registry import policies
from tests.app.runner import cli


def test_the_list_has_every_policy_on_a_line_of_80_columns() -> None:
    result = cli("policy list")
    assert (result.code, result.err) == (0, "")
    main, others = (part.splitlines() for part in result.out.split("\n\n"))
    assert main[0].split("  ")[0] == others[1].split("  ")[0] == "NAME"
    assert [line.split()[0] for line in main[1:]] == [
        "joint",
        "hetsev",
        "inss",
        "morak",
        "mudi",
        "oltunes",
    ]
    # Baselines come under a heading of their own.
    listed = [line.split()[0] for line in (*main[1:], *others[2:])]
    assert listed == [each.name for each in cards()]
    assert max(map(len, result.out.splitlines())) <= 80


def test_the_list_comes_as_json_and_yaml() -> None:
    listed = json.loads(cli("policy list -o json").out)["items"]
    assert {entry["name"] for entry in listed} == set(policies())
    documents = list(yaml.safe_load_all(cli("policy list -o yaml").out))
    assert documents == listed
    assert documents[0]["techniques"] == [*card("joint").techniques]


@pytest.mark.parametrize("name", policies())
def test_a_description_has_everything_of_the_card_within_80_columns(name: str) -> None:
    result = cli("policy describe", name)
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0] == f"{name}: {card(name).title}"
    assert max(map(len, lines)) <= 80
    told = " ".join(" ".join(lines).split())
    for words in (card(name).source, card(name).good_for, *card(name).limits):
        assert words in told
    for technique in card(name).techniques:
        assert f"solvers.{technique}" in told


def test_an_unknown_policy_is_named_with_those_that_exist() -> None:
    result = cli("policy describe hetsef")
    assert result.code == 1
    assert result.err.startswith("Error: no policy is called 'hetsef'; there are ")
    assert "joint" in result.err
