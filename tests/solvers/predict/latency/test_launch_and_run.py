import numpy as np

from solvers.predict.data.samples import Reals
from solvers.predict.latency.launch_and_run import (
    Nodes,
    log_latency,
    make_readings,
    make_surface_nodes,
    run_weight,
    suppose,
    touch_from_below,
)
from solvers.predict.latency.surface_posterior import find_posterior


def logs_of_a_grid() -> Reals:
    batch, share, quota = np.meshgrid(
        [1.0, 2.0, 8.0], [10.0, 25.0, 50.0, 100.0], [50.0, 100.0], indexing="ij"
    )
    columns = [
        np.log(axis.ravel()) for axis in (batch, share, np.ones_like(batch), quota)
    ]
    return np.stack(columns, axis=1)


def draw(nodes: Nodes, seed: int) -> Reals:
    """Surfaces of a network as supposed, with launching at the height of running's middle."""
    supposed = suppose(nodes)
    random = np.random.default_rng(seed)
    z = random.multivariate_normal(supposed.mean, supposed.covariance)
    z[: nodes.run_count] -= z[: nodes.run_count].mean()
    launch = slice(nodes.run_count, nodes.run_count + nodes.launch_count)
    z[launch] -= z[launch].mean()
    return z


def test_the_latency_is_the_longer_of_the_two_and_a_little_more_if_equal() -> None:
    nodes = make_surface_nodes(logs_of_a_grid())
    readings = make_readings(nodes, logs_of_a_grid())
    z = np.zeros(len(suppose(nodes).mean))
    np.testing.assert_allclose(np.exp(log_latency(readings, z)), 2.0 ** (1 / 8))
    z[: nodes.run_count] = 3.0
    np.testing.assert_allclose(log_latency(readings, z), 3.0, atol=1e-6)
    np.testing.assert_allclose(run_weight(readings, z), 1.0, atol=1e-6)


def test_the_supposed_covariance_is_one() -> None:
    covariance = suppose(make_surface_nodes(logs_of_a_grid())).covariance
    np.testing.assert_allclose(covariance, covariance.T)
    assert np.linalg.eigvalsh(covariance).min() > 0.0


def test_clock_stretches_running_only() -> None:
    logs = logs_of_a_grid()
    nodes = make_surface_nodes(logs)
    z = draw(nodes, 0)
    slower = logs.copy()
    slower[:, 2] = np.log(0.5)
    fast, slow = make_readings(nodes, logs), make_readings(nodes, slower)
    np.testing.assert_allclose(slow.run @ z - fast.run @ z, z[-1] * np.log(2.0))
    np.testing.assert_allclose(slow.launch @ z, fast.launch @ z)


def test_surfaces_drawn_from_the_prior_are_found_from_their_maximum() -> None:
    logs = logs_of_a_grid()
    nodes = make_surface_nodes(logs)
    readings, supposed = make_readings(nodes, logs), suppose(nodes)
    for seed in range(5):
        truth = log_latency(readings, draw(nodes, seed))
        measured = truth + np.random.default_rng(seed).normal(0.0, 0.02, len(truth))
        start = touch_from_below(nodes, readings, measured, supposed)
        prior = supposed._replace(mean=start)
        found = find_posterior(
            readings, measured, prior, start=start, noise=0.02, is_near=False
        )
        assert np.abs(log_latency(readings, found.mode) - truth).mean() < 0.02, (
            f"seed {seed}"
        )


def test_samples_leave_less_uncertain_than_was_supposed() -> None:
    logs = logs_of_a_grid()
    nodes = make_surface_nodes(logs)
    readings, supposed = make_readings(nodes, logs), suppose(nodes)
    measured = log_latency(readings, draw(nodes, 1))
    prior = supposed._replace(
        mean=touch_from_below(nodes, readings, measured, supposed)
    )
    found = find_posterior(
        readings, measured, prior, start=prior.mean, noise=0.02, is_near=False
    )
    assert np.all(
        np.diag(found.covariance) <= np.diag(supposed.covariance) * (1.0 + 1e-9)
    )
    assert np.linalg.eigvalsh(found.covariance).min() > 0.0
