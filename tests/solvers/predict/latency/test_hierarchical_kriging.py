import json
from itertools import product

import numpy as np
import pytest

from solvers.predict.data.fit import TooFewSamples
from solvers.predict.data.samples import (
    Group,
    Queries,
    Reals,
    Samples,
    make_queries,
    make_samples,
)
from solvers.predict.latency import hierarchical_kriging
from tests.solvers.predict.latency.measured_sets import igniter_solo, rapp_full_quota
from tests.solvers.synthetic_samples import (
    grid_samples,
    known_latency_ms,
    queries_at,
    samples_at,
)

BATCHES, SHARES = (1.0, 2.0, 4.0, 8.0), (5.0, 10.0, 20.0, 35.0, 50.0, 75.0, 100.0)
FAMILY = tuple(f"n{index:02d}" for index in range(12))


def family(*, noise: float = 0.0, quotas: tuple[float, ...] = (100.0,)) -> Samples:
    """Networks whose GPU and host parts differ in size only: latency = max(work · b^0.9 / share, host / quota)."""
    axes = np.meshgrid(np.arange(len(FAMILY)), BATCHES, SHARES, quotas, indexing="ij")
    which, batch, share, quota = (axis.ravel() for axis in axes)
    random = np.random.default_rng(11)
    work, host = (
        10.0 ** random.uniform(1.0, 2.5, len(FAMILY)),
        random.uniform(2.0, 20.0, len(FAMILY)),
    )
    names = [FAMILY[int(index)] for index in which]
    at = make_queries(
        names,
        ["V100-16GB"] * len(names),
        batch=batch,
        sm_percent=share,
        time_quota_percent=quota,
    )
    index = which.astype(np.intp)
    latency_ms = np.maximum(
        work[index] * batch**0.9 / share, host[index] * 100.0 / quota
    )
    return make_samples(
        at, latency_ms * np.exp(random.normal(0.0, noise, len(names)) if noise else 0.0)
    )


def predict_all(samples: Samples, queries: Queries) -> Reals:
    learned = hierarchical_kriging.fit_groups(samples)
    found = np.full(len(queries), np.nan)
    for group, rows in queries.groups().items():
        found[rows] = hierarchical_kriging.predict(learned[group], queries.take(rows))
    return found


def hold_out_quarter(samples: Samples) -> Reals:
    """Relative errors of a random quarter."""
    is_held = np.random.default_rng(0).random(len(samples)) < 0.25
    held = samples.take(np.flatnonzero(is_held))
    return np.abs(
        predict_all(samples.take(np.flatnonzero(~is_held)), held.at) / held.latency_ms
        - 1.0
    )


def keep_few(
    samples: Samples, network: str, count: int, seed: int = 0
) -> tuple[Samples, Samples]:
    """All samples of the others and a few of this network; the rest of this network."""
    rows = samples.at.groups()[Group(network, samples.at.gpu_type[0])]
    kept = np.random.default_rng(seed).permutation(rows)[:count]
    rest = np.setdiff1d(rows, kept)
    return samples.take(np.setdiff1d(np.arange(len(samples)), rest)), samples.take(rest)


def test_held_out_rows_of_a_family_are_foreseen_within_the_noise() -> None:
    assert hold_out_quarter(family(noise=0.03)).mean() < 0.04


def test_time_quotas_stretch_the_host_part() -> None:
    assert (
        hold_out_quarter(family(noise=0.02, quotas=(20.0, 50.0, 100.0))).mean() < 0.035
    )


def test_six_samples_of_a_new_network_are_worth_more_with_the_others() -> None:
    together, apart = [], []
    for seed, network in product(range(6), (FAMILY[1], FAMILY[4])):
        known, rest = keep_few(family(noise=0.02), network, 6, seed)
        alone = known.take(known.at.groups()[Group(network, "V100-16GB")])
        together.append(
            np.abs(predict_all(known, rest.at) / rest.latency_ms - 1.0).mean()
        )
        apart.append(np.abs(predict_all(alone, rest.at) / rest.latency_ms - 1.0).mean())
    assert np.mean(together) < 0.06
    assert np.mean(together) < 0.7 * np.mean(apart)


def test_beyond_what_was_measured_only_the_part_of_that_condition_grows() -> None:
    samples = family(noise=0.02, quotas=(20.0, 50.0, 100.0))
    at = samples.at
    for is_known in (at.batch < 8.0, at.sm_percent > 5.0, at.time_quota_percent > 20.0):
        known, outside = (
            samples.take(np.flatnonzero(is_known)),
            samples.take(np.flatnonzero(~is_known)),
        )
        assert (
            np.abs(predict_all(known, outside.at) / outside.latency_ms - 1.0).mean()
            < 0.08
        )


def test_two_conditions_are_enough_and_one_is_not_however_often_measured() -> None:
    learned = hierarchical_kriging.fit_groups(
        samples_at([1.0, 4.0], [50.0, 50.0], [3.0, 9.0])
    )
    at = queries_at(batch=[1.0, 2.0, 4.0], sm_percent=[50.0] * 3)
    found = hierarchical_kriging.predict(learned[Group("a", "V100-16GB")], at)
    assert np.all(np.diff(found) > 0.0)
    np.testing.assert_allclose(found[[0, 2]], [3.0, 9.0], rtol=0.1)
    for times in (1, 20):
        with pytest.raises(TooFewSamples, match="2 conditions"):
            hierarchical_kriging.fit_groups(
                samples_at([1.0] * times, [50.0] * times, [3.0] * times)
            )


def test_no_queries_get_no_latencies() -> None:
    samples = grid_samples()
    learned = hierarchical_kriging.fit_groups(samples)[Group("a", "V100-16GB")]
    assert hierarchical_kriging.predict(
        learned, samples.at.take(np.array([], dtype=np.intp))
    ).shape == (0,)


def test_a_group_of_one_sample_is_left_out_and_does_not_spoil_the_others() -> None:
    others = grid_samples(["a", "b"])
    known, _ = keep_few(grid_samples(["a", "b", "c"]), "c", 1)
    learned = hierarchical_kriging.fit_groups(known)
    assert set(learned) == set(others.at.groups())


@pytest.mark.parametrize("networks", [("a",), ("a", "b"), ("a", "b", "c")])
def test_with_one_to_three_networks_the_curve_is_still_found(
    networks: tuple[str, ...],
) -> None:
    scales = [1.0, 3.0, 0.4][: len(networks)]
    found = hold_out_quarter(grid_samples(networks, scales=scales, noise=0.01))
    assert found.mean() < 0.03


def test_the_order_of_samples_changes_nothing_and_a_second_fit_is_the_same() -> None:
    samples = family(noise=0.02)
    shuffled = samples.take(np.random.default_rng(1).permutation(len(samples)))
    first = hierarchical_kriging.fit_groups(samples)
    for other in (
        hierarchical_kriging.fit_groups(samples),
        hierarchical_kriging.fit_groups(shuffled),
    ):
        assert list(first) == list(other)
        for group, coefficients in first.items():
            for name, array in coefficients.arrays.items():
                np.testing.assert_array_equal(array, other[group].arrays[name])


def test_groups_of_several_gpu_types_are_learned_side_by_side() -> None:
    fast = grid_samples(["a", "b"], gpu_type="A100", scales=[0.5, 0.7])
    slow = grid_samples(["a", "b"])
    at = make_queries(
        slow.at.network + fast.at.network,
        slow.at.gpu_type + fast.at.gpu_type,
        batch=np.append(slow.at.batch, fast.at.batch),
        sm_percent=np.append(slow.at.sm_percent, fast.at.sm_percent),
    )
    samples = make_samples(at, np.append(slow.latency_ms, fast.latency_ms))
    assert np.abs(predict_all(samples, at) / samples.latency_ms - 1.0).mean() < 0.01


def test_beyond_the_batches_of_all_the_latency_grows_in_proportion() -> None:
    at = queries_at(batch=[8.0, 32.0], sm_percent=[50.0] * 2)
    eight, thirty_two = predict_all(grid_samples(), at)
    np.testing.assert_allclose(thirty_two / eight, 4.0)


def test_the_clock_stretches_what_the_gpu_does() -> None:
    grid = grid_samples(["a", "b"], scales=[1.0, 2.0])
    clock = np.where(np.arange(len(grid)) % 3 == 0, 800.0, 1530.0)
    at = make_queries(
        grid.at.network,
        grid.at.gpu_type,
        batch=grid.at.batch,
        sm_percent=grid.at.sm_percent,
        clock_mhz=clock,
    )
    samples = make_samples(at, grid.latency_ms * (1530.0 / clock) ** 0.6)
    assert np.abs(predict_all(samples, at) / samples.latency_ms - 1.0).mean() < 0.02


def test_scattered_conditions_leave_small_coefficients() -> None:
    random = np.random.default_rng(2)
    networks = [f"n{index % 4}" for index in range(480)]
    at = make_queries(
        networks,
        ["V100-16GB"] * 480,
        batch=random.uniform(1.0, 256.0, 480),
        sm_percent=random.uniform(2.0, 100.0, 480),
    )
    samples = make_samples(at, known_latency_ms(at.batch, at.sm_percent))
    learned = hierarchical_kriging.fit_groups(samples)
    written = {
        name: array.tolist()
        for name, array in learned[Group("n0", "V100-16GB")].arrays.items()
    }
    assert len(json.dumps(written)) < 50_000
    assert np.abs(predict_all(samples, at) / samples.latency_ms - 1.0).mean() < 0.04


def test_a_quarter_of_igniters_measurements_is_foreseen_within_two_percent() -> None:
    found = hold_out_quarter(igniter_solo())
    assert found.mean() < 0.02 and np.quantile(found, 0.9) < 0.05


MEASURED = (
    "alexnet",
    "densenet121",
    "densenet201",
    "efficientnet_b1",
    "efficientnet_b7",
    "inception_v3",
    "regnet_x_32gf",
    "regnet_y_800mf",
    "resnet18",
    "resnet50",
    "resnet152",
    "shufflenet_v2_x1_0",
    "vgg11_bn",
    "vgg16",
    "vgg19",
    "wide_resnet101_2",
)


def test_a_quarter_of_measured_networks_is_foreseen_within_five_percent() -> None:
    assert hold_out_quarter(rapp_full_quota(*MEASURED)).mean() < 0.05


def test_eight_samples_and_other_networks_foresee_one_within_ten_percent() -> None:
    samples = rapp_full_quota(*MEASURED)
    found = []
    for network in ("densenet201", "resnet50", "vgg16", "regnet_x_32gf"):
        known, rest = keep_few(samples, network, 8)
        found.append(np.abs(predict_all(known, rest.at) / rest.latency_ms - 1.0))
    assert np.concatenate(found).mean() < 0.10
