"""Parameters of policies: what may be set, and what is said of what may not."""

from dataclasses import dataclass, fields
from typing import Literal

import pytest

from solvers.policies.registry import parameters_of, policies, spec_of
from solvers.types.errors import InvalidInput, UnknownPolicy
from solvers.types.outcome import Budget
from solvers.types.parameters import (
    PolicyParameters,
    Setting,
    facts_of,
    parameter,
    read_parameters,
)

WITH_PARAMETERS = [name for name in policies() if fields(spec_of(name).parameters)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SomeParameters(PolicyParameters):
    """One of each kind."""

    rounds: int = parameter(4, "rounds", at_least=1, at_most=9)
    share: float = parameter(0.5, "share", at_least=0.0)
    order: Literal["first", "last"] = parameter(
        "first", "order", choices=("first", "last")
    )


def test_what_is_not_stated_is_as_by_default() -> None:
    read = read_parameters(SomeParameters, {"share": 1, "order": "last"})
    assert (read.rounds, read.share, read.order) == (4, 1.0, "last")
    assert read.changed == {"share": 1.0, "order": "last"}
    assert SomeParameters().changed == {}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("rounds", 0, "must be a whole number from 1 to 9, not 0"),
        ("rounds", 10, "must be a whole number from 1 to 9, not 10"),
        ("rounds", 2.0, "must be a whole number from 1 to 9, not 2.0"),
        ("rounds", True, "must be a whole number from 1 to 9, not True"),
        ("rounds", "4", "must be a whole number from 1 to 9, not '4'"),
        ("share", -0.1, "must be a number of at least 0, not -0.1"),
        ("share", float("nan"), "must be a number of at least 0, not nan"),
        ("share", float("inf"), "must be a number of at least 0, not inf"),
        ("order", "middle", "must be first or last, not 'middle'"),
        ("order", 1, "must be first or last, not 1"),
        (
            "other",
            1,
            "unknown parameter; this policy has rounds, share, order",
        ),
    ],
)
def test_what_may_not_be_set_is_refused_by_name(
    name: str, value: Setting, message: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_parameters(SomeParameters, {name: value})
    assert (caught.value.field, caught.value.problem) == (name, message)


def test_a_policy_without_parameters_says_so() -> None:
    with pytest.raises(InvalidInput, match="this policy has none"):
        parameters_of("joint", {"rounds": 4})
    with pytest.raises(UnknownPolicy):
        parameters_of("nobody", {})


def test_a_budget_gives_each_policy_its_own() -> None:
    budget = Budget(parameters=SomeParameters(rounds=7))
    assert budget.parameters_as(SomeParameters).rounds == 7
    # What was set of another policy says nothing.
    other = type(parameters_of("hetsev", {}))
    assert budget.parameters_as(other) == other()


@pytest.mark.parametrize("name", WITH_PARAMETERS)
def test_each_parameter_is_documented_and_its_default_is_allowed(name: str) -> None:
    facts = facts_of(spec_of(name).parameters)
    assert all(each.about and each.allowed for each in facts)
    stated = {each.name: each.default for each in facts}
    assert parameters_of(name, stated).changed == {}


def test_the_papers_policies_have_parameters() -> None:
    assert {"hetsev", "hetsev_greedy", "inss", "morak", "mudi", "oltunes"} <= set(
        WITH_PARAMETERS
    )
