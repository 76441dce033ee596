"""Cards of policies: complete, short enough for a terminal, and true of the code as far as it can be read."""

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest

from solvers.check import violations
from solvers.policies.cards import card, cards
from solvers.policies.registry import policies, policy
from solvers.policies.warm_up import tiny_problem
from solvers.types.errors import UnknownPolicy
from solvers.types.outcome import Budget
from solvers.types.policy_spec import Card
from solvers.types.state import Observed

REGISTERED = policies()
CARDS = cards()


def imported_by(module: str, found: set[str]) -> set[str]:
    """Modules below `solvers` that a module imports, directly or not."""
    spec = find_spec(module)
    if module in found or spec is None or spec.origin is None:
        return found
    found.add(module)
    for node in ast.walk(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))):
        if (
            isinstance(node, ast.ImportFrom)
            and node.module
            and node.module.startswith("solvers")
        ):
            imported_by(node.module, found)
            for alias in node.names:
                if find_spec(node.module) and is_package(node.module):
                    imported_by(f"{node.module}.{alias.name}", found)
    return found


def is_package(module: str) -> bool:
    spec = find_spec(module)
    return spec is not None and spec.submodule_search_locations is not None


@pytest.mark.parametrize("name", REGISTERED)
def test_every_registered_policy_has_a_card(name: str) -> None:
    assert card(name).name == name


def test_cards_begin_with_ours_and_go_on_by_name_with_baselines_last() -> None:
    names = [each.name for each in CARDS]
    assert names[0] == "joint"
    main = ["hetsev", "inss", "morak", "mudi", "oltunes"]
    assert names[1:] == [*main, *sorted(set(REGISTERED) - {"joint", *main})]


def test_an_unknown_policy_is_named_with_those_that_exist() -> None:
    with pytest.raises(UnknownPolicy, match=r"'hetsef'; there are .*hetsev"):
        card("hetsef")


@pytest.mark.parametrize("each", CARDS, ids=lambda each: each.name)
def test_a_policy_uses_the_techniques_of_its_card(each: Card) -> None:
    used = imported_by(str(policy(each.name).__name__), set())  # type: ignore[attr-defined]
    for technique in each.techniques:
        module = f"solvers.{technique}"
        assert find_spec(module) is not None, module
        assert any(name == module or name.startswith(f"{module}.") for name in used), (
            f"{each.name} lacks {module}"
        )


@pytest.mark.parametrize("each", CARDS, ids=lambda each: each.name)
def test_a_card_fits_its_place_and_is_whole(each: Card) -> None:
    assert 10 <= len(each.title) <= 45 and not each.title.endswith(".")
    assert each.source and each.good_for and not each.good_for.endswith(".")
    assert each.techniques and each.limits and each.decides
    assert all(limit.endswith(".") for limit in each.limits)


@pytest.mark.parametrize(
    "each",
    [one for one in CARDS if one.promises and not one.needs],
    ids=lambda each: each.name,
)
def test_a_policy_that_promises_percentiles_breaks_no_rule_of_the_tiny_problem(
    each: Card,
) -> None:
    problem = tiny_problem()
    plan, _, _ = policy(each.name).make_plan(
        problem, Observed(at_s=0.0), None, Budget(seconds=20.0, work=0.5)
    )
    assert violations(problem, plan) == ()


def test_cards_say_of_the_half_slo_baselines_that_they_may_break_promises() -> None:
    # docs/policies.md: these take a replica to serve all that it executes within half its SLO.
    assert {each.name for each in CARDS if "baselines.half_slo" in each.techniques} <= {
        each.name for each in CARDS if not each.promises
    }
