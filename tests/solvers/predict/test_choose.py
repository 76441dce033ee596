"""The choice between techniques: least held-out error, earlier of equals, and what is told of the others."""

import pytest

from solvers.predict.choose import choose
from solvers.predict.fit import LEVELS, Coefficients, Fit, Quality
from solvers.predict.samples import Group

NEVER = float("inf")


def candidate(technique: str, error: float) -> Fit:
    return Fit(
        quantity="latency_ms",
        group=Group("a", "T4"),
        technique=technique,
        coefficients=Coefficients(arrays={}),
        quality=Quality(
            training_error=0.0,
            cross_validated_error=error,
            cross_validated_error_p90=error,
            sample_count=9,
            ratio_quantiles=(1.0,) * len(LEVELS),
        ),
    )


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
    ids=["least error", "first of equals", "equals in the order given", "judged before unjudged", "none judged", "one"],
)
def test_the_least_held_out_error_wins(errors: dict[str, float], chosen: str, rejected: tuple[str, ...]) -> None:
    fit = choose([candidate(name, error) for name, error in errors.items()])
    assert fit.technique == chosen
    assert fit.rejected == tuple((name, errors[name]) for name in rejected)


def test_a_small_training_error_does_not_count() -> None:
    memorises, foresees = candidate("memorises", 0.2), candidate("foresees", 0.1)
    assert memorises.quality.training_error == foresees.quality.training_error == 0.0
    assert choose([memorises, foresees]).technique == "foresees"
