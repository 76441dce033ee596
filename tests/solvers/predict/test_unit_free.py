"""No fit depends on the unit of its samples nor on the machine: milliseconds in are milliseconds out everywhere.

The rounding of linear algebra differs from machine to machine: OpenBLAS has kernels of its own for every kind of CPU,
of which `OPENBLAS_CORETYPE` takes another. A search that does not settle ends where rounding sends it.
"""

import os
import platform
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest

from solvers.predict.data.fit import Coefficients
from solvers.predict.data.samples import (
    LayerCounts,
    Neighbour,
    Reals,
    Samples,
    make_queries,
    make_samples,
)
from solvers.predict.data.techniques import (
    INTERFERENCE,
    LEARNERS,
    UNKNOWN_NEIGHBOURS,
    TechniqueEntry,
    find_interference,
)
from solvers.predict.interference import layer_counts, pressure, response_surface
from solvers.predict.latency.decomposition import TYPICAL_LINK, LinkFacts
from tests.examples import IS_THOROUGH
from tests.solvers.synthetic_samples import joined, queries_at

THOUSAND = 1000.0
"""Microseconds in a millisecond."""
RTOL = 1e-6
GPU_TYPE = "V100-16GB"
NETWORKS = tuple(f"n{index:02d}" for index in range(8))
POWER_LIMITS_W = (100.0, 150.0, 200.0, 250.0)


def noisy(values: Reals, *, sigma: float) -> Reals:
    """The values with log-normal noise, the same on every machine."""
    shares = np.random.default_rng(3).random(len(values))
    return values * np.exp(
        sigma * np.array([NormalDist().inv_cdf(share) for share in shares])
    )


def grid(*axes: tuple[float, ...]) -> tuple[Reals, ...]:
    """Columns of every combination."""
    return tuple(axis.ravel() for axis in np.meshgrid(*axes, indexing="ij"))


def served(
    *, quotas: tuple[float, ...] = (100.0,), clocks_mhz: tuple[float, ...] = (1530.0,)
) -> Samples:
    """Inference: a host's part, and one of the GPU that shrinks with share and clock; watts and memory with it."""
    index, batch, share, quota, clock = grid(
        tuple(map(float, range(len(NETWORKS)))),
        (1.0, 2.0, 4.0, 8.0),
        (5.0, 10.0, 20.0, 50.0, 100.0),
        quotas,
        clocks_mhz,
    )
    which = index.astype(np.intp)
    work, host = (
        10.0 ** np.linspace(1.0, 2.5, len(NETWORKS)),
        np.linspace(20.0, 2.0, len(NETWORKS)),
    )
    gpu_ms = work[which] * batch**0.9 / share * (1530.0 / clock) ** 0.6
    dynamic_w = (clock / 1530.0) ** 1.5 * np.minimum(2.0 * share, 40.0 * batch**0.7)
    at = make_queries(
        [NETWORKS[each] for each in which],
        [GPU_TYPE] * len(which),
        batch=batch,
        sm_percent=share,
        time_quota_percent=quota,
        clock_mhz=clock,
    )
    return make_samples(
        at,
        noisy(np.maximum(gpu_ms, host[which] * 100.0 / quota), sigma=0.02),
        power_w=noisy(40.0 + dynamic_w, sigma=0.01),
        memory_mib=noisy(900.0 + 35.0 * batch, sigma=0.01),
    )


def trained() -> Samples:
    """Training under power limits."""
    batch, limit_w = grid((8.0, 16.0, 32.0, 64.0, 128.0), POWER_LIMITS_W)
    at = queries_at(
        batch=batch,
        sm_percent=np.full(len(batch), 100.0),
        power_limit_w=limit_w,
        network="trained",
        gpu_type=GPU_TYPE,
    )
    slowdown = 0.3 + 0.7 * np.maximum(1.0, 220.0 / limit_w) ** 0.5
    busy_w = np.minimum(180.0 + 15.0 * np.log2(batch / 8.0), limit_w)
    return make_samples(
        at,
        noisy(30.0 * batch**0.8 * slowdown, sigma=0.02),
        power_w=noisy(40.0 + 0.8 * (busy_w - 40.0), sigma=0.01),
        memory_mib=noisy(2000.0 + 80.0 * batch, sigma=0.01),
    )


def sparse() -> Samples:
    """Scattered rows of the networks, of the first ones very few."""
    whole = served()
    kept = [
        rows[np.random.default_rng(number).permutation(len(rows))[: 3 + 2 * number]]
        for number, rows in enumerate(whole.at.groups().values())
    ]
    return whole.take(np.sort(np.concatenate(kept)))


@cache
def sets() -> dict[str, Samples]:
    """Samples by what varies among them."""
    return {
        "quotas": served(quotas=(25.0, 50.0, 100.0)),
        "clocks": served(clocks_mhz=(800.0, 1200.0, 1530.0)),
        "sparse": sparse(),
        "limits": trained(),
        **({"all": joined(sparse(), trained())} if IS_THOROUGH else {}),
    }


CASES = [
    pytest.param(quantity, learner, id=f"{quantity}-{learner.name}")
    for quantity, learners in LEARNERS.items()
    for learner in learners
]


def in_microseconds(samples: Samples) -> Samples:
    """The same samples, latencies in microseconds."""
    return replace(samples, latency_ms=THOUSAND * samples.latency_ms)


def predicted(learner: TechniqueEntry, samples: Samples, asked: Samples) -> Reals:
    """What the learner says of all rows, NaN of groups that it cannot learn."""
    learned = learner.fit_groups(samples)
    found = np.full(len(asked), np.nan)
    for group, rows in asked.at.groups().items():
        if group in learned:
            found[rows] = learner.predict(learned[group], asked.at.take(rows))
    return found


@pytest.mark.seeded
@pytest.mark.parametrize(("quantity", "learner"), CASES)
def test_every_registered_technique_is_unit_free(
    quantity: str, learner: TechniqueEntry
) -> None:
    unit = THOUSAND if quantity == "latency_ms" else 1.0
    learned = 0
    for name, samples in sets().items():
        small = predicted(learner, samples, samples)
        large = predicted(learner, in_microseconds(samples), samples)
        np.testing.assert_allclose(large, unit * small, rtol=RTOL, err_msg=name)
        learned += bool(np.isfinite(small).any())
    assert learned, "none of the sets is one that this technique can learn"


def colocated() -> tuple[Samples, Reals]:
    """Pairs of networks, and the latency of every row alone."""
    draw = np.random.default_rng(5)
    count = 150
    own, other = draw.integers(0, 5, count), draw.integers(0, 5, count)
    batch, share = 2.0 ** draw.integers(0, 5, count), 10.0 * draw.integers(1, 6, count)
    near_batch, near_share = (
        2.0 ** draw.integers(0, 5, count),
        10.0 * draw.integers(1, 6, count),
    )
    neighbour_sets = [
        (Neighbour(NETWORKS[int(which)], float(size), float(percent)),)
        for which, size, percent in zip(other, near_batch, near_share, strict=True)
    ]
    at = make_queries(
        [NETWORKS[int(which)] for which in own],
        [GPU_TYPE] * count,
        batch=batch,
        sm_percent=share,
        neighbours=neighbour_sets,
    )
    alone_ms = (5.0 + own) * batch**0.8 * (100.0 / share) ** 0.7
    pressing = (0.5 + 0.2 * other) * (
        0.05 + 0.1 * near_share / 100.0 + 0.02 * np.log2(near_batch)
    )
    together_ms = noisy(alone_ms * (1.0 + (0.6 + 0.15 * own) * pressing), sigma=0.01)
    # Of one row in ten it is not known how fast it was alone.
    return make_samples(at, together_ms), np.where(
        np.arange(count) % 10 == 0, np.nan, alone_ms
    )


LAYERS = {
    name: LayerCounts(
        network=name,
        counts={
            "convolution": 10 + 7 * number,
            "activation": 9 + 5 * number,
            "dense": 1 + number % 3,
        },
        parameters_millions=5.0 + 11.0 * number,
        gmacs=1.0 + 0.8 * number,
    )
    for number, name in enumerate(NETWORKS)
}


def learn_factors(
    name: str, samples: Samples, alone_ms: Reals, link: LinkFacts
) -> Coefficients:
    """What an interference technique learns; the host's link is in the samples' unit where it counts."""
    if name == "layer_counts":
        return layer_counts.fit(samples, alone_ms, LAYERS)
    if name == "pressure":
        return pressure.fit(samples, alone_ms, link=link)
    if name == "response_surface":
        return response_surface.fit(samples, alone_ms, link=link)
    return find_interference(name).fit(samples, alone_ms)


@pytest.mark.parametrize("name", sorted({*INTERFERENCE, *UNKNOWN_NEIGHBOURS}))
def test_every_registered_interference_technique_is_unit_free(name: str) -> None:
    samples, alone_ms = colocated()
    asked_ms = np.where(np.isnan(alone_ms), samples.latency_ms, alone_ms)
    small = learn_factors(name, samples, alone_ms, TYPICAL_LINK)
    in_us = LinkFacts(
        pcie_bytes_per_ms=TYPICAL_LINK.pcie_bytes_per_ms / THOUSAND,
        launch_ms_per_kernel=THOUSAND * TYPICAL_LINK.launch_ms_per_kernel,
    )
    large = learn_factors(name, in_microseconds(samples), THOUSAND * alone_ms, in_us)
    technique = find_interference(name)
    np.testing.assert_allclose(
        technique.predict(large, samples.at, THOUSAND * asked_ms),
        technique.predict(small, samples.at, asked_ms),
        rtol=RTOL,
    )


def write_predictions(path: str) -> None:
    """What every technique says of all sets, for a comparison of machines."""
    samples, alone_ms = colocated()
    known = np.isfinite(alone_ms)
    found = {
        f"{learner.name} {name}": predicted(learner, rows, rows)
        for learners in LEARNERS.values()
        for learner in learners
        for name, rows in sets().items()
    }
    for name in {*INTERFERENCE, *UNKNOWN_NEIGHBOURS}:
        learned = learn_factors(name, samples, alone_ms, TYPICAL_LINK)
        asked = samples.take(np.flatnonzero(known))
        found[name] = find_interference(name).predict(
            learned, asked.at, alone_ms[known]
        )
    np.savez(path, allow_pickle=False, **found)


@pytest.mark.thorough
@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"),
    reason="the kernels are those of x86-64",
)
def test_two_kinds_of_cpu_predict_the_same(tmp_path: Path) -> None:
    script = "import sys; from tests.solvers.predict.test_unit_free import write_predictions as w; w(sys.argv[1])"
    paths = [tmp_path / f"{core}.npz" for core in ("Nehalem", "Haswell")]
    for path in paths:
        # Paths as they are here: the package need not be installed.
        env = {
            **os.environ,
            "OPENBLAS_CORETYPE": path.stem,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        subprocess.run(
            [sys.executable, "-c", script, str(path)], env=env, check=True, timeout=300
        )
    one, other = (np.load(path) for path in paths)
    assert sorted(one) == sorted(other)
    for name in one:
        np.testing.assert_allclose(one[name], other[name], rtol=RTOL, err_msg=name)
