"""Fits as JSON: exact there and back, strict in reading."""

import json
from collections.abc import Callable
from functools import cache
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers.predict.data.fit import LEVELS, Coefficients, Fit, Fits, Quality, Quantity
from solvers.predict.data.fit_json import (
    fit_from_document,
    fit_to_document,
    fits_from_json,
    fits_to_json,
)
from solvers.predict.data.sampled_range import (
    ANYWHERE,
    CONDITIONS,
    SampledRange,
    SampledSpan,
)
from solvers.predict.data.samples import Group, Reals
from solvers.predict.data.techniques import technique_names
from solvers.predict.estimate.predict import predict_latency
from solvers.predict.learn.fit_samples import make_fits
from solvers.types.errors import InvalidInput
from tests.solvers.synthetic_samples import beside, grid_samples, joined

NAMES = st.text(st.characters(categories=("L", "N", "P")), min_size=1, max_size=20)
ERRORS = st.floats(0.0, 1e300) | st.just(float("inf"))


SPANS = st.none() | st.tuples(st.floats(1e-6, 1e12), st.floats(1e-6, 1e12)).map(
    lambda ends: SampledSpan(*sorted(ends))
)


@st.composite
def arrays(draw: st.DrawFn) -> Reals:
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    size = int(np.prod(shape, dtype=int))
    # NaN stands for a fact that is not known; only its bits are not kept.
    numbers = st.floats(allow_nan=False, allow_infinity=False) | st.just(float("nan"))
    values = draw(st.lists(numbers, min_size=size, max_size=size))
    return np.array(values, dtype=np.float64).reshape(shape)


@st.composite
def some_fits(draw: st.DrawFn) -> Fit:
    quantity: Quantity = draw(st.sampled_from(get_args(Quantity)))
    techniques = st.sampled_from(technique_names(quantity))
    quantiles = st.lists(
        st.floats(1e-6, 1e6), min_size=len(LEVELS), max_size=len(LEVELS)
    )
    return Fit(
        quantity=quantity,
        group=Group(draw(NAMES | st.just("")), draw(NAMES)),
        technique=draw(techniques),
        coefficients=Coefficients(
            arrays=draw(st.dictionaries(NAMES, arrays(), max_size=3)),
            labels=draw(
                st.dictionaries(
                    NAMES, st.lists(NAMES, max_size=3).map(tuple), max_size=2
                )
            ),
        ),
        quality=Quality(
            training_error=draw(ERRORS),
            cross_validated_error=draw(ERRORS),
            cross_validated_error_p90=draw(ERRORS),
            sample_count=draw(st.integers(0, 10**6)),
            ratio_quantiles=tuple(sorted(draw(quantiles))),
        ),
        sampled=SampledRange(**{name: draw(SPANS) for name in CONDITIONS}),
        source=draw(st.text(max_size=400)),
        rejected=tuple(draw(st.lists(st.tuples(NAMES, ERRORS), max_size=3))),
    )


@given(some_fits())
def test_a_fit_comes_back_as_it_was(fit: Fit) -> None:
    (back,) = fits_from_json(fits_to_json(Fits(fits=(fit,)))).fits
    for name in (
        "quantity",
        "group",
        "technique",
        "quality",
        "sampled",
        "source",
        "rejected",
    ):
        assert getattr(back, name) == getattr(fit, name)
    assert back.coefficients.labels == fit.coefficients.labels
    assert list(back.coefficients.arrays) == list(fit.coefficients.arrays)
    for name, array in fit.coefficients.arrays.items():
        read = back.coefficients.arrays[name]
        assert (read.shape, read.dtype, read.tobytes()) == (
            array.shape,
            array.dtype,
            array.tobytes(),
        )


@pytest.fixture(scope="module")
def learned() -> Fits:
    """A fit of each kind: latency by the best technique, interference, power and memory."""
    samples = joined(
        grid_samples(("a", "b"), noise=0.02),
        beside("a", "b", factor=1.1),
        beside("b", "a", factor=1.2),
    )
    at = samples.at
    alone = np.array([not neighbours for neighbours in at.neighbours])
    measured = type(samples)(
        at=at,
        latency_ms=samples.latency_ms,
        power_w=np.where(alone, 60.0 + 1.5 * at.sm_percent, np.nan),
        memory_mib=np.where(alone, 900.0 + 30.0 * at.batch, np.nan),
        l2_util_percent=samples.l2_util_percent,
    )
    return make_fits(measured, source="bench.csv")


def test_what_was_learned_predicts_the_same_to_the_last_bit_after_reading(
    learned: Fits,
) -> None:
    assert {fit.quantity for fit in learned.fits} == set(get_args(Quantity))
    back = fits_from_json(fits_to_json(learned).encode())
    queries = joined(
        grid_samples(("a", "b")),
        beside("a", "b", factor=1.0),
        beside("a", "z", factor=1.0),
    ).at
    before, after = predict_latency(learned, queries), predict_latency(back, queries)
    for name in ("latency_ms", "latency_ms_low", "latency_ms_high"):
        assert getattr(before, name).tobytes() == getattr(after, name).tobytes()
    assert before.technique == after.technique
    assert fits_to_json(back) == fits_to_json(learned)


@pytest.mark.thorough
@pytest.mark.parametrize("technique", technique_names("latency_ms"))
def test_every_latency_technique_can_be_written_and_read(technique: str) -> None:
    fits = make_fits(grid_samples(("a", "b"), noise=0.02), technique=technique)
    assert fits_to_json(fits_from_json(fits_to_json(fits))) == fits_to_json(fits)


def test_an_older_fit_without_its_sampled_range_is_read() -> None:
    values = document()
    del values["sampled"]
    assert fit_from_document(values).sampled == ANYWHERE


@pytest.mark.parametrize("span", [[2.0, 1.0], [1.0], [0.0, 1.0], "1-2", [1.0, None]])
def test_a_span_that_is_none_is_refused(span: object) -> None:
    values = document()
    values["sampled"]["batch"] = span
    with pytest.raises(InvalidInput, match=r"fit\.sampled\.batch"):
        fit_from_document(values)


@cache
def written() -> str:
    (fit,) = make_fits(grid_samples(), technique="linear_fractional").fits
    return json.dumps(fit_to_document(fit))


def document() -> dict[str, Any]:
    """A fit as JSON values, to be spoilt."""
    values: dict[str, Any] = json.loads(written())
    values["rejected"] = [{"technique": "x", "cross_validated_error": None}]
    values["coefficients"]["labels"] = {"networks": ["a"]}
    return values


def fields(
    value: object, path: str = "fit"
) -> list[tuple[str, Callable[[dict[str, Any]], dict[str, Any]]]]:
    """(path, how to find its object) of every named field; names of arrays and labels are free."""
    found: list[tuple[str, Callable[[dict[str, Any]], dict[str, Any]]]] = []

    def walk(node: object, path: str, find: Callable[[dict[str, Any]], Any]) -> None:
        if isinstance(node, dict):
            for name, inner in node.items():
                if not path.endswith(("arrays", "labels")):
                    found.append((f"{path}.{name}", find))
                walk(inner, f"{path}.{name}", lambda root, name=name: find(root)[name])
        elif isinstance(node, list) and node and isinstance(node[0], dict):
            walk(node[0], f"{path}[0]", lambda root: find(root)[0])

    walk(value, path, lambda root: root)
    return found


def test_each_field_of_a_fit_is_checked_and_named() -> None:
    every = fields(document())
    paths = {path for path, _ in every}
    assert {
        "fit.quantity",
        "fit.quality.sample_count",
        "fit.rejected[0].technique",
        "fit.coefficients.labels",
    } <= paths
    assert sum(path.endswith(".shape") for path in paths) >= 2
    for path, find in every:
        holder, name = path.rsplit(".", 1)
        if path != "fit.sampled":  # Older fits do not have their sampled range.
            spoilt = document()
            del find(spoilt)[name]
            refused = refusal(spoilt)
            assert (refused.field, refused.problem) == (path, "this field is missing")
        spoilt = document()
        find(spoilt)[name] = True
        assert refusal(spoilt).field.startswith(path)
        spoilt = document()
        find(spoilt)["colour"] = 1
        assert refusal(spoilt).field == f"{holder}.colour"


def refusal(spoilt: dict[str, Any]) -> InvalidInput:
    with pytest.raises(InvalidInput) as refused:
        fit_from_document(spoilt)
    return refused.value


@pytest.mark.parametrize(
    ("keys", "value", "field"),
    [
        (("quantity",), "speed", "fit.quantity"),
        (("technique",), "magic", "fit.technique"),
        (("gpu_type",), "", "fit.gpu_type"),
        (("quality", "training_error"), -0.1, "fit.quality.training_error"),
        (("quality", "sample_count"), 1.5, "fit.quality.sample_count"),
        (("quality", "ratio_quantiles"), [1.0] * 6, "fit.quality.ratio_quantiles"),
        (
            ("quality", "ratio_quantiles"),
            [1.1, 1.0, 1.2, 1.3, 1.4, 1.5, 1.6],
            "fit.quality.ratio_quantiles",
        ),
        (("quality", "ratio_quantiles"), [0.0] * 7, "fit.quality.ratio_quantiles[0]"),
        (
            ("coefficients", "arrays"),
            {"x": {"shape": [2], "values": [1.0]}},
            "fit.coefficients.arrays.x.values",
        ),
        (
            ("coefficients", "arrays"),
            {"x": {"shape": [-1], "values": []}},
            "fit.coefficients.arrays.x.shape[0]",
        ),
        (
            ("coefficients", "arrays"),
            {"x": {"shape": [], "values": ["1"]}},
            "fit.coefficients.arrays.x.values[0]",
        ),
        (
            ("coefficients", "labels"),
            {"networks": [""]},
            "fit.coefficients.labels.networks[0]",
        ),
    ],
)
def test_a_value_that_cannot_be_is_named(
    keys: tuple[str, ...], value: object, field: str
) -> None:
    spoilt = document()
    holder = spoilt
    for key in keys[:-1]:
        holder = holder[key]
    holder[keys[-1]] = value
    assert refusal(spoilt).field == field


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('{"version": 2, "fits": []}', "version"),
        ('{"version": true, "fits": []}', "version"),
        ('{"fits": []}', "version"),
        ('{"version": 1}', "fits"),
        ('{"version": 1, "fits": {}}', "fits"),
        ('{"version": 1, "fits": [], "more": 1}', "more"),
        ('{"version": 1, "fits": [3]}', "fits[0]"),
        ('{"version": 1, "fits": [NaN]}', ""),
        ("[]", "document"),
        ("latency", ""),
    ],
)
def test_a_file_that_is_not_of_fits_is_refused(text: str, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        fits_from_json(text)
    assert refused.value.field == field


def test_two_fits_of_one_thing_are_refused() -> None:
    fits = make_fits(grid_samples(), technique="linear_fractional").fits
    with pytest.raises(
        InvalidInput,
        match=r"fits\[1\]: a second fit of latency_ms for a on V100-16GB; keep one",
    ):
        fits_from_json(fits_to_json(Fits(fits=(*fits, *fits))))
