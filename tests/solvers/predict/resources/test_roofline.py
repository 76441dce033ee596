"""Watts over clock, SM share and batch: known surfaces are found again, and nothing falls that cannot fall."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.predict.data.fit import Coefficients, TooFewSamples
from solvers.predict.data.samples import (
    Group,
    Queries,
    Reals,
    Samples,
    make_queries,
    make_samples,
)
from solvers.predict.resources import roofline
from tests.examples import examples
from tests.solvers.synthetic_samples import queries_at

MEASURED = (
    Path(__file__).parents[5] / "shared" / "data" / "igniter_v100" / "power_clock.csv"
)
BASE_W, FULL_SHARE_W, LIMIT_W = 50.0, 300.0, 280.0
PARALLEL_W = {"small": 40.0, "large": 400.0}
REFERENCE_MHZ = 1500.0


def _grid(network: str, *, clocks_mhz: tuple[float, ...] = (REFERENCE_MHZ,)) -> Queries:
    points = [
        (b, p, f) for b in (1, 4, 16, 64) for p in (10, 25, 50, 100) for f in clocks_mhz
    ]
    batch, sm_percent, clock_mhz = np.array(points, dtype=np.float64).T
    return queries_at(
        batch=batch,
        sm_percent=sm_percent,
        clock_mhz=clock_mhz,
        network=network,
        gpu_type="T4",
    )


def _true_dynamic_w(at: Queries) -> Reals:
    """An own statement of the formula, with a harmonic sum, exponents 0.6 over batch and 2.2 over clock."""
    parallel = np.array([PARALLEL_W[network] for network in at.network]) * at.batch**0.6
    dynamic: Reals = (at.clock_mhz / REFERENCE_MHZ) ** 2.2 / (
        100.0 / (FULL_SHARE_W * at.sm_percent) + 1.0 / parallel
    )
    return dynamic


def _true_w(at: Queries) -> Reals:
    return np.minimum(BASE_W + _true_dynamic_w(at), LIMIT_W)


def _truth(at: Queries) -> Samples:
    """Latency = a batch's energy over its dynamic watts, the same at every share."""
    return make_samples(
        at, 1000.0 * at.batch / _true_dynamic_w(at), power_w=_true_w(at)
    )


def _join(*parts: Samples) -> Samples:
    def columns(name: str) -> Reals:
        return np.concatenate([getattr(part.at, name) for part in parts])

    at = make_queries(
        [name for part in parts for name in part.at.network],
        [name for part in parts for name in part.at.gpu_type],
        batch=columns("batch"),
        sm_percent=columns("sm_percent"),
        clock_mhz=columns("clock_mhz"),
        power_limit_w=columns("power_limit_w"),
    )
    return make_samples(
        at,
        np.concatenate([part.latency_ms for part in parts]),
        power_w=np.concatenate([part.power_w for part in parts]),
    )


def _worst_error(coefficients: Coefficients, at: Queries) -> float:
    return float(np.max(np.abs(roofline.predict(coefficients, at) / _true_w(at) - 1.0)))


def _fit(samples: Samples, network: str = "large") -> Coefficients:
    return roofline.fit_groups(samples)[Group(network, "T4")]


CLOCKS = (600.0, 1000.0, REFERENCE_MHZ)


def test_a_known_surface_is_found_again_at_points_between_the_samples() -> None:
    coefficients = _fit(
        _join(
            _truth(_grid("small", clocks_mhz=CLOCKS)),
            _truth(_grid("large", clocks_mhz=CLOCKS)),
        )
    )
    between = queries_at(
        batch=[2, 8, 8, 32],
        sm_percent=[30, 75, 40, 15],
        clock_mhz=[800, 800, 1250, 1500],
        network="large",
        gpu_type="T4",
    )
    assert _worst_error(coefficients, between) < 0.04


def test_the_learned_limit_is_kept_and_nearly_reached_at_full_load() -> None:
    coefficients = _fit(_truth(_grid("large")))
    full = queries_at(batch=[10_000], sm_percent=[100], network="large", gpu_type="T4")
    assert roofline.predict(coefficients, full)[0] == pytest.approx(LIMIT_W, rel=0.05)


def test_a_stated_power_limit_is_never_exceeded_and_replaces_the_learned_one() -> None:
    coefficients = _fit(_truth(_grid("large")))
    limits = np.array([60.0, 120.0, 200.0, 279.0])
    at = queries_at(
        batch=[64] * 4,
        sm_percent=[100] * 4,
        power_limit_w=limits,
        network="large",
        gpu_type="T4",
    )
    watts = roofline.predict(coefficients, at)
    assert np.all(watts <= limits)
    assert np.all(watts > 0.85 * limits)
    assert np.all(np.diff(watts) > 0.0)


@settings(max_examples=examples(25))
@given(
    seed=st.integers(0, 10_000),
    count=st.integers(4, 16),
    noise=st.sampled_from((0.0, 0.05, 0.5)),
)
def test_watts_never_fall_with_clock_share_or_batch_however_few_and_scattered_the_samples(
    seed: int, count: int, noise: float
) -> None:
    rng = np.random.default_rng(seed)
    everything = _join(
        _truth(_grid("small", clocks_mhz=CLOCKS)),
        _truth(_grid("large", clocks_mhz=CLOCKS)),
    )
    few = everything.take(rng.permutation(len(everything))[:count])
    scattered = replace(
        few, power_w=few.power_w * np.exp(noise * rng.standard_normal(count))
    )
    steps = np.linspace(0.0, 1.0, 20)
    fixed = {
        "batch": np.full(20, 8.0),
        "sm_percent": np.full(20, 40.0),
        "clock_mhz": np.full(20, 1000.0),
    }
    rising = {
        "batch": 1.0 + 255.0 * steps,
        "sm_percent": 1.0 + 99.0 * steps,
        "clock_mhz": 200.0 + 2000.0 * steps,
    }
    for coefficients in roofline.fit_groups(scattered).values():
        for name, column in rising.items():
            columns = {**fixed, name: column}
            at = queries_at(
                batch=columns["batch"],
                sm_percent=columns["sm_percent"],
                clock_mhz=columns["clock_mhz"],
                network="any",
                gpu_type="T4",
            )
            watts = roofline.predict(coefficients, at)
            assert np.all(np.isfinite(watts)), (seed, name)
            assert np.all(watts > 0.0), (seed, name)
            assert np.all(np.diff(watts) >= -1e-9 * watts[1:]), (seed, name)


def test_a_network_without_measured_watts_is_learned_from_its_latencies() -> None:
    small = _truth(_grid("small"))
    unmeasured = replace(small, power_w=np.full(len(small), np.nan))
    coefficients = _fit(_join(_truth(_grid("large")), unmeasured), network="small")
    assert _worst_error(coefficients, small.at) < 0.12


def test_too_few_samples_say_what_is_missing() -> None:
    samples = _truth(_grid("large"))
    same = samples.take(np.zeros(20, dtype=np.intp))
    with pytest.raises(
        TooFewSamples, match="4 different conditions on a GPU type; 20 of 20 samples"
    ):
        roofline.fit_groups(same)
    with pytest.raises(TooFewSamples, match="0 of 16 samples have power_w"):
        roofline.fit_groups(replace(samples, power_w=np.full(len(samples), np.nan)))


def test_samples_without_clocks_give_watts_that_do_not_depend_on_the_clock() -> None:
    samples = _truth(_grid("large"))
    unclocked = replace(
        samples, at=replace(samples.at, clock_mhz=np.full(len(samples), np.nan))
    )
    at = queries_at(
        batch=[8, 8],
        sm_percent=[50, 50],
        clock_mhz=[600, 1500],
        network="large",
        gpu_type="T4",
    )
    slow, fast = roofline.predict(_fit(unclocked), at)
    assert slow == fast


@pytest.mark.skipif(not MEASURED.exists(), reason="the measurements are not here")
def test_each_measured_row_of_a_v100_is_foreseen_within_five_percent() -> None:
    with MEASURED.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    batch, sm_percent, latency_ms, power_w = (
        np.array([float(row[name]) for row in rows])
        for name in ("batch", "sm_pct", "gpu_latency_ms", "gpu_power_w")
    )
    at = make_queries(
        [row["model"] for row in rows],
        ["V100"] * len(rows),
        batch=batch,
        sm_percent=sm_percent,
    )
    samples = make_samples(at, latency_ms, power_w=power_w)
    errors = []
    for row in range(len(rows)):
        learned = roofline.fit_groups(
            samples.take(np.delete(np.arange(len(rows)), row))
        )
        held = samples.take(np.array([row], dtype=np.intp))
        watts = roofline.predict(learned[Group(rows[row]["model"], "V100")], held.at)
        errors.append(float(np.abs(watts / held.power_w - 1.0)[0]))
    assert np.mean(errors) < 0.03
