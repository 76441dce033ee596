from pathlib import Path

import numpy as np
import pytest

from bench.measured_sets import load_rapp
from bench.predict_fm import one_pass
from solvers.predict.data.fit import TooFewSamples
from solvers.predict.data.samples import (
    Group,
    Indices,
    Reals,
    Samples,
    make_queries,
    make_samples,
)
from solvers.predict.latency import factorisation_machine as technique
from solvers.predict.latency.factorisation_features import ALL, ServedConditions
from solvers.predict.latency.factorisation_learner import (
    FactorisationLearner,
    LearningRates,
    evaluate,
)

SHARED = Path(__file__).parents[5] / "shared"
SHARES = tuple(range(5, 101, 5))
BATCHES = (1.0, 2.0, 4.0, 8.0)


def _hinge_samples(
    networks: int,
    *,
    noise: float = 0.0,
    seed: int = 0,
    gpu_factors: tuple[float, ...] = (1.0,),
) -> Samples:
    """Networks whose latency is max(host time, work · batch / share), on GPU types that differ by a factor."""
    random = np.random.default_rng(seed)
    host_ms, work_ms = (
        random.uniform(3.0, 50.0, networks),
        random.uniform(0.5, 30.0, networks),
    )
    network, gpu, batch, share = (
        axis.ravel()
        for axis in np.meshgrid(
            range(networks), range(len(gpu_factors)), BATCHES, SHARES, indexing="ij"
        )
    )
    latency_ms = (
        np.maximum(host_ms[network], work_ms[network] * batch / (share / 100.0))
        * np.array(gpu_factors)[gpu]
    )
    at = make_queries(
        [f"n{i:02}" for i in network],
        [f"g{i}" for i in gpu],
        batch=batch,
        sm_percent=share.astype(float),
    )
    return make_samples(
        at, latency_ms * np.exp(random.normal(0.0, noise, len(at)) if noise else 0.0)
    )


def _split(samples: Samples, count: int, *, seed: int = 0) -> tuple[Samples, Samples]:
    order: Indices = np.random.default_rng(seed).permutation(len(samples))
    return samples.take(order[:count]), samples.take(order[count:])


def _learned(samples: Samples, **settings: float) -> FactorisationLearner:
    learner = FactorisationLearner(settings=LearningRates(**settings))
    technique.learn_samples(learner, samples)
    return learner


def _predict(learner: FactorisationLearner, samples: Samples) -> Reals:
    latency_ms = np.empty(len(samples))
    for group, rows in samples.at.groups().items():
        latency_ms[rows] = technique.predict(
            learner.group_coefficients(group), samples.at.take(rows)
        )
    return latency_ms


def _mean_error(predicted: Reals, samples: Samples) -> float:
    return float(np.mean(np.abs(predicted / samples.latency_ms - 1.0)))


def test_slopes_are_the_finite_differences_of_the_outputs() -> None:
    learner = _learned(
        _split(_hinge_samples(3, gpu_factors=(1.0, 1.5)), 50)[0], start_spread=0.3
    )
    state = learner.state().arrays
    shared, own = state["values"], state["own_values"][0]
    columns = np.random.default_rng(3).uniform(0.0, 1.0, shared.shape[1])
    slopes = evaluate(shared, own, columns).slopes
    size = 1e-6
    for column in range(0, shared.shape[1], 7):
        for factor in range(shared.shape[2]):
            moved = shared.copy()
            moved[:, column, factor] += size
            difference = (
                evaluate(moved, own, columns).outputs
                - evaluate(shared, own, columns).outputs
            )
            assert difference / size == pytest.approx(
                slopes[:, column, factor], abs=1e-4
            )


def test_a_row_equals_the_sum_over_all_pairs_of_different_features() -> None:
    learner = _learned(_split(_hinge_samples(2), 30)[0], start_spread=0.3)
    state, labels = learner.state().arrays, learner.state().labels
    row = ServedConditions(labels["networks"][0], "g0", 3.0, 33.0)
    shared, own = state["values"][0], state["own_values"][0, 0]
    columns = learner._columns(row)
    # Every weight vector with the feature it belongs to; the network is a feature of its own.
    field = [*ALL.field.tolist(), "bias", "gpu", "network"]
    vectors, inputs = np.vstack([shared, own]), np.append(columns, 1.0)
    expected = float(vectors[:, 0] @ inputs)
    for j in range(len(inputs)):
        for k in range(j + 1, len(inputs)):
            if field[j] != field[k]:
                expected += (
                    float(vectors[j, 1:] @ vectors[k, 1:]) * inputs[j] * inputs[k]
                )
    latency_ms, _ = technique.predict_targets(
        learner.group_coefficients(Group(row.network, "g0")), [row]
    )
    assert np.log(latency_ms[0]) == pytest.approx(expected)


def test_hinges_are_recovered_from_a_third_of_their_points_in_one_pass() -> None:
    seen, unseen = _split(_hinge_samples(12), 320)
    assert _mean_error(_predict(_learned(seen), unseen), unseen) < 0.05


def test_a_stream_of_updates_learns_what_one_pass_over_the_rows_learns() -> None:
    samples, _ = _split(_hinge_samples(5), 120)
    streamed = FactorisationLearner()
    at = samples.at
    for row in range(len(samples)):
        conditions = ServedConditions(
            at.network[row], at.gpu_type[row], at.batch[row], at.sm_percent[row]
        )
        latency_ms = float(samples.latency_ms[row])
        streamed.update(
            conditions,
            latency_ms=latency_ms,
            throughput_rps=1000.0 * conditions.batch / latency_ms,
        )
    for name, array in _learned(samples).state().arrays.items():
        np.testing.assert_array_equal(streamed.state().arrays[name], array)


def test_a_state_that_is_written_out_and_read_back_goes_on_alike() -> None:
    first, second = _split(_hinge_samples(5, gpu_factors=(1.0, 2.0)), 150)
    learner = _learned(first)
    restored = FactorisationLearner.from_state(learner.state())
    technique.learn_samples(learner, second)
    technique.learn_samples(restored, second)
    assert restored.settings == learner.settings
    assert restored.state().labels == learner.state().labels
    for name, array in learner.state().arrays.items():
        np.testing.assert_array_equal(restored.state().arrays[name], array)


def test_the_fit_does_not_depend_on_the_order_of_the_rows() -> None:
    samples, _ = _split(_hinge_samples(4, noise=0.05), 100)
    backwards = samples.take(np.arange(len(samples))[::-1])
    fits, others = technique.fit_groups(samples), technique.fit_groups(backwards)
    assert set(fits) == set(samples.at.groups())
    for group, coefficients in fits.items():
        for name, array in coefficients.arrays.items():
            np.testing.assert_array_equal(others[group].arrays[name], array)


def test_one_row_in_thirty_that_is_ten_times_too_long_does_little_harm() -> None:
    seen, unseen = _split(_hinge_samples(12, noise=0.02), 480)
    latency_ms = seen.latency_ms.copy()
    latency_ms[np.random.default_rng(4).choice(len(seen), 16, replace=False)] *= 10.0
    spoilt = make_samples(seen.at, latency_ms)
    clipped = _mean_error(_predict(_learned(spoilt), unseen), unseen)
    believed = _mean_error(_predict(_learned(spoilt, clip=1e9), unseen), unseen)
    assert clipped < 0.07
    assert clipped < 0.5 * believed


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(TooFewSamples, match="8 samples, not 7"):
        technique.fit_groups(_hinge_samples(1).take(np.arange(7)))


@pytest.mark.parametrize(
    ("change", "latency_ms", "message"),
    [
        ({}, 0.0, "latency_ms"),
        ({}, float("nan"), "latency_ms"),
        ({}, float("inf"), "latency_ms"),
        ({"batch": 0.0}, 5.0, "batch"),
        ({"sm_percent": float("nan")}, 5.0, "sm_percent"),
        ({"memory_used_mib": -1.0}, 5.0, "memory_used_mib"),
    ],
)
def test_rows_that_no_measurement_can_be_are_refused_and_change_nothing(
    change: dict[str, float], latency_ms: float, message: str
) -> None:
    learner = _learned(_hinge_samples(1).take(np.arange(10)))
    before = learner.state()
    row = ServedConditions("new", "new", 4.0, 50.0)._replace(**change)
    with pytest.raises(ValueError, match=message):
        learner.update(row, latency_ms=latency_ms, throughput_rps=100.0)
    assert learner.state().labels == before.labels
    np.testing.assert_array_equal(
        learner.state().arrays["values"], before.arrays["values"]
    )


@pytest.mark.skipif(
    not (SHARED / "data" / "rapp_v100").exists(), reason="the measured set is not here"
)
@pytest.mark.parametrize(
    ("rows", "rmse", "r2"), [(500, 1.3, 0.5), (1400, 0.5681, 0.8772)]
)
def test_one_pass_over_measured_rows_reaches_the_papers_figures(
    rows: int, rmse: float, r2: float
) -> None:
    samples = load_rapp(SHARED, full_quota=True)
    seen, unseen = _split(samples, rows, seed=7)
    median_ms = float(np.median(samples.latency_ms))
    error = (one_pass(seen, unseen.at) - unseen.latency_ms) / median_ms
    assert np.sqrt(np.mean(error**2)) < rmse
    assert 1.0 - np.mean(error**2) / np.var(unseen.latency_ms / median_ms) > r2
