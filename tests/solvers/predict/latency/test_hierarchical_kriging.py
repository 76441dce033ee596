from itertools import product

import numpy as np

from solvers.predict.data.samples import (
    Group,
    Queries,
    Reals,
    Samples,
    make_queries,
    make_samples,
)
from solvers.predict.latency import hierarchical_kriging
from tests.solvers.predict.latency.measured_sets import igniter_solo
from tests.solvers.synthetic_samples import (
    grid_samples,
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


def test_a_group_of_one_sample_is_left_out_and_does_not_spoil_the_others() -> None:
    others = grid_samples(["a", "b"])
    known, _ = keep_few(grid_samples(["a", "b", "c"]), "c", 1)
    learned = hierarchical_kriging.fit_groups(known)
    assert set(learned) == set(others.at.groups())


def test_a_quarter_of_igniters_measurements_is_foreseen_within_two_percent() -> None:
    found = hold_out_quarter(igniter_solo())
    assert found.mean() < 0.02 and np.quantile(found, 0.9) < 0.05
