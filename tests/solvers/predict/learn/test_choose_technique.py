"""The choice between techniques: what does best over all groups stays, unless another is clearly better in one."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from solvers.predict.data.fit import LEVELS, Coefficients, Fit, Quality
from solvers.predict.data.samples import Group
from solvers.predict.learn.choose_technique import TechniqueCandidate, choose

NEVER = float("inf")
HERE, THERE = Group("a", "T4"), Group("b", "T4")


def candidate(
    technique: str, errors: Sequence[float], *, group: Group = HERE
) -> TechniqueCandidate:
    error = float(np.mean(errors))
    quality = Quality(
        training_error=0.0,
        cross_validated_error=error,
        cross_validated_error_p90=error,
        sample_count=len(errors),
        ratio_quantiles=(1.0,) * len(LEVELS),
    )
    fit = Fit(
        quantity="latency_ms",
        group=group,
        technique=technique,
        coefficients=Coefficients(arrays={}),
        quality=quality,
    )
    return TechniqueCandidate(fit=fit, errors=np.array(errors))


def chosen_of(errors: Mapping[str, Sequence[float]]) -> Fit:
    """The choice for a single group, from the errors of every technique on the same samples."""
    return choose({HERE: [candidate(name, values) for name, values in errors.items()]})[
        0
    ]


def steady(error: float) -> list[float]:
    return [error] * 9


@pytest.mark.parametrize(
    ("errors", "chosen", "rejected"),
    [
        ({"x": 0.3, "y": 0.1, "z": 0.2}, "y", ("z", "x")),
        ({"x": 0.1, "y": 0.1, "z": 0.1}, "x", ("y", "z")),
        ({"y": 0.1, "x": 0.1}, "y", ("x",)),
        ({"x": NEVER, "y": 0.9}, "y", ("x",)),
        ({"x": NEVER, "y": NEVER}, "x", ("y",)),
        ({"x": 0.5}, "x", ()),
    ],
    ids=[
        "least error",
        "first of equals",
        "equals in the order given",
        "judged before unjudged",
        "none judged",
        "one",
    ],
)
def test_of_a_single_group_the_least_held_out_error_wins(
    errors: dict[str, float], chosen: str, rejected: tuple[str, ...]
) -> None:
    fit = chosen_of({name: steady(error) for name, error in errors.items()})
    assert fit.technique == chosen
    assert [name for name, _ in fit.rejected] == list(rejected)
    assert [error for _, error in fit.rejected] == pytest.approx(
        [errors[name] for name in rejected]
    )


def test_what_does_best_over_all_groups_is_not_displaced_by_luck() -> None:
    # In the small group y is better by 0.01 ± 0.02 (0.04 / √4), x by far in the large one.
    small = [
        candidate("x", [0.10, 0.18, 0.10, 0.18]),
        candidate("y", [0.13, 0.13, 0.13, 0.13]),
    ]
    large = [
        candidate("x", [0.1] * 40, group=THERE),
        candidate("y", [0.3] * 40, group=THERE),
    ]
    assert [fit.technique for fit in choose({HERE: small, THERE: large})] == ["x", "x"]


def test_a_technique_that_is_clearly_better_in_a_group_wins_there() -> None:
    small = [
        candidate("x", [0.30, 0.31, 0.29, 0.30]),
        candidate("y", [0.10, 0.11, 0.12, 0.10]),
    ]
    large = [
        candidate("x", [0.1] * 40, group=THERE),
        candidate("y", [0.3] * 40, group=THERE),
    ]
    assert [fit.technique for fit in choose({HERE: small, THERE: large})] == ["y", "x"]


def test_a_technique_that_fails_elsewhere_stands_below_one_that_never_does() -> None:
    small = [
        candidate("brittle", [0.10, 0.20, 0.15]),
        candidate("sound", [0.12, 0.17, 0.17]),
    ]
    large = [
        candidate("brittle", [NEVER] * 9, group=THERE),
        candidate("sound", [0.2] * 9, group=THERE),
    ]
    assert [fit.technique for fit in choose({HERE: small, THERE: large})] == [
        "sound",
        "sound",
    ]
