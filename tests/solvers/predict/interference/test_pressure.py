"""The pressure law: recovery, monotonicity, few and unknown samples, and the contract's own law."""

from dataclasses import replace

import numpy as np
import pytest

from solvers.laws.colocation import Neighbours, execution_ms
from solvers.predict.data.fit import TooFewSamples
from solvers.predict.data.samples import Neighbour, Samples
from solvers.predict.interference import constant, pressure
from solvers.predict.latency.decomposition import LinkFacts, NetworkFacts
from solvers.types.problem import OperatingPoint
from solvers.types.state import GpuType
from tests.solvers.predict.neighbour_sets import (
    MEASURED,
    Law,
    colocated,
    measured_pairs,
    random_neighbours,
    samples_by,
)

NETWORKS = ("a", "b", "c", "d")
TRUTH = Law(
    sensitivity={"a": 0.6, "b": 0.9, "c": 1.2, "d": 1.6},
    weight={"a": 1.5, "b": 1.1, "c": 0.8, "d": 0.7},
)
NOTHING_BUT_RUN = {
    network: NetworkFacts(kernels=0.0, input_bytes=0.0, output_bytes=0.0)
    for network in NETWORKS
}


def learned(
    rows: int = 200, *, max_neighbours: int = 3, seed: int = 1
) -> tuple[Samples, np.ndarray]:
    queries = random_neighbours(
        NETWORKS, rows=rows, max_neighbours=max_neighbours, seed=seed
    )
    alone_ms = np.random.default_rng(seed).uniform(2.0, 50.0, rows)
    return samples_by(TRUTH, queries, alone_ms), alone_ms


def test_a_known_law_is_recovered_from_its_samples() -> None:
    samples, alone_ms = learned()
    fit = pressure.fit(samples, alone_ms, NOTHING_BUT_RUN)
    unseen, unseen_ms = learned(seed=2)
    predicted = pressure.predict(fit, unseen.at, unseen_ms) * unseen_ms
    assert predicted == pytest.approx(unseen.latency_ms, rel=0.01)
    ratio = pressure.sensitivity(fit, "d") / pressure.sensitivity(fit, "a")
    assert ratio == pytest.approx(1.6 / 0.6, rel=0.05)


def test_a_launch_delay_that_grows_with_the_replicas_is_recovered() -> None:
    # 1000 kernels · 2 µs = 2 ms of 10 ms alone; each launch is delayed by 0.5 · n: factor 1 + 0.2 · 0.5 · n.
    facts = {"a": NetworkFacts(kernels=1000.0, input_bytes=0.0, output_bytes=0.0)}
    link = LinkFacts(pcie_bytes_per_ms=1e7, launch_ms_per_kernel=0.002)
    other = [Neighbour("z", 1.0, 10.0)]
    queries = colocated(
        [("a", 1.0, 20.0, other * count) for count in (1, 2, 3, 4) * 10]
    )
    replicas = np.array([2.0, 3.0, 4.0, 5.0] * 10)
    no_pressure = Law(sensitivity={"a": 0.0}, weight={"z": 0.0})
    samples = samples_by(no_pressure, queries, 10.0 + 2.0 * 0.5 * replicas)
    fit = pressure.fit(samples, np.full(40, 10.0), facts, link)
    predicted = pressure.predict(fit, queries, np.full(40, 10.0))
    assert predicted == pytest.approx(1.0 + 0.1 * replicas, rel=0.02)


def test_latencies_are_those_of_the_contract() -> None:
    samples, alone_ms = learned(40)
    fit = pressure.fit(samples, alone_ms)
    delay = pressure.launch_delay(fit)
    gpu_type = GpuType(
        name="A100",
        price_usd_per_hour=1.0,
        memory_mib=40960.0,
        sm_percent_step=1.0,
        idle_w=50.0,
        power_cap_w=300.0,
        clocks_mhz=(1410.0,),
        launch_per_neighbour=delay.per_neighbour,
        launch_base=delay.base,
    )
    times = pressure.times(fit, samples.at, alone_ms)
    expected = []
    for i, neighbours in enumerate(samples.at.neighbours):
        row = OperatingPoint(
            20.0,
            1,
            1410.0,
            times.transfer_ms[i],
            times.launch_ms[i],
            times.run_ms[i],
            1000.0,
            50.0,
            0.0,
        )
        heavy = [
            pressure.pressures(
                fit,
                n.network,
                batch=np.array([n.batch]),
                sm_percent=np.array([n.sm_percent]),
            )[0]
            for n in neighbours
        ]
        others = Neighbours(count=len(neighbours), pressure=sum(heavy))
        sensitivity = pressure.sensitivity(fit, samples.at.network[i])
        expected.append(
            execution_ms(row, others, sensitivity=sensitivity, gpu_type=gpu_type)
        )
    assert pressure.predict(fit, samples.at, alone_ms) * alone_ms == pytest.approx(
        expected, rel=1e-12
    )


def test_measured_counters_stand_in_for_the_shape() -> None:
    # b loads the cache five times as much as c at every share: that is known from counters alone, before any pair of c.
    alone = [(name, 4.0, share, []) for name in "bc" for share in (10.0, 20.0, 40.0)]
    pairs = [
        ("a", 4.0, own, [Neighbour("b", 4.0, share)])
        for own in (20.0, 40.0)
        for share in (10.0, 40.0)
    ]
    law = Law(
        sensitivity=dict.fromkeys("abc", 1.0),
        weight={"b": 1.0},
        per_share=1.0,
        constant=0.0,
        per_log_batch=0.0,
    )
    alone_ms = np.full(10, 10.0)
    samples = samples_by(law, colocated([*alone, *pairs]), alone_ms)
    counted = np.array([10.0, 20.0, 40.0, 2.0, 4.0, 8.0, *[np.nan] * 4])
    fit = pressure.fit(replace(samples, l2_util_percent=counted), alone_ms)
    of_b, of_c = (
        pressure.pressures(
            fit, name, batch=np.array([4.0]), sm_percent=np.array([40.0])
        )
        for name in "bc"
    )
    assert of_b[0] > 1.5 * of_c[0]


def test_more_wider_and_larger_neighbours_never_help() -> None:
    samples, alone_ms = learned(60)
    noisy = replace(
        samples,
        latency_ms=samples.latency_ms * np.random.default_rng(3).normal(1.0, 0.1, 60),
    )
    fit = pressure.fit(noisy, alone_ms)
    grid = [
        [Neighbour("a", 1.0, 10.0)],
        [Neighbour("a", 1.0, 30.0)],
        [Neighbour("a", 8.0, 30.0)],
        [Neighbour("a", 8.0, 30.0), Neighbour("b", 1.0, 10.0)],
        [
            Neighbour("a", 8.0, 30.0),
            Neighbour("b", 1.0, 10.0),
            Neighbour("new", 1.0, 10.0),
        ],
    ]
    factors = pressure.predict(
        fit,
        colocated([("c", 4.0, 20.0, neighbours) for neighbours in grid]),
        np.full(5, 9.0),
    )
    assert np.all(np.diff(factors) >= 0.0) and factors[0] >= 1.0


def test_an_unknown_network_is_the_pooled_mean() -> None:
    samples, alone_ms = learned()
    fit = pressure.fit(samples, alone_ms)
    assert pressure.sensitivity(fit, "new") == 1.0
    neighbours = [[Neighbour(network, 4.0, 20.0)] for network in (*NETWORKS, "new")]
    *known, new = pressure.predict(
        fit, colocated([("new", 4.0, 20.0, c) for c in neighbours]), np.full(5, 9.0)
    )
    assert min(known) < new < max(known)


def test_no_samples_are_too_few() -> None:
    with pytest.raises(TooFewSamples):
        pressure.fit(samples_by(TRUTH, colocated([]), np.empty(0)), np.empty(0))


@pytest.mark.skipif(
    not MEASURED.exists(), reason="needs the shared folder next to the repository"
)
def test_measured_pairs_are_foretold_better_than_by_a_constant() -> None:
    samples, alone_ms = measured_pairs()
    held = np.arange(len(samples)) // 2 % 4 == 0
    train, test = np.flatnonzero(~held), np.flatnonzero(held)
    truth = samples.latency_ms[test] / alone_ms[test]
    errors = [
        np.mean(
            np.abs(
                technique.predict(fit, samples.at.take(test), alone_ms[test]) / truth
                - 1.0
            )
        )
        for technique in (pressure, constant)
        for fit in [technique.fit(samples.take(train), alone_ms[train])]
    ]
    assert errors[0] < 0.02 < 0.03 < errors[1]
