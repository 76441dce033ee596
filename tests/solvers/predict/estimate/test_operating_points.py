"""Operating points from fits: monotone, in the contract's units, and unsure where nothing was sampled."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from solvers.predict.data.fit import Fits, TooFewSamples
from solvers.predict.data.sampled_range import EXTRAPOLATION
from solvers.predict.data.samples import (
    Group,
    Samples,
    make_samples,
)
from solvers.predict.estimate.operating_points import (
    TYPICAL_PRESSURE,
    TYPICAL_SENSITIVITY,
    ConditionGrid,
    FitFacts,
    Performance,
    make_grid,
    make_performance,
)
from solvers.predict.interference import pressure
from solvers.predict.learn.fit_samples import make_fits
from solvers.types.problem import OperatingPoint, OperatingPoints
from solvers.types.state import GpuType
from tests.solvers.synthetic_samples import queries_at

GROUP = Group("resnet50", "V100")
GPU_TYPE = GpuType(
    name="V100",
    price_usd_per_hour=3.0,
    memory_mib=16_384.0,
    sm_percent_step=10.0,
    idle_w=50.0,
    power_cap_w=300.0,
    clocks_mhz=(1000.0, 1500.0),
)
PRESENT = OperatingPoints(
    network="resnet50",
    gpu_type="V100",
    sensitivity=0.6,
    rows=tuple(
        OperatingPoint(
            share,
            batch,
            clock,
            0.1 * batch,
            0.2,
            30.0 * 1500.0 / clock,
            900.0 + batch,
            share,
            0.01 * share,
        )
        for share in (50.0, 100.0)
        for batch in (1, 4)
        for clock in (1000.0, 1500.0)
    ),
)


def true_ms(batch: float, share: float) -> float:
    return (2.0 + 3.0 * batch) * float((100.0 / (share + 5.0)) ** 0.8)


def samples(*, memory: bool = True, noise: float = 0.0) -> Samples:
    """Batches 1 to 8 at 20 to 100 % of the SMs, with watts and memory."""
    draw = np.random.default_rng(7)
    conditions = [
        (batch, share)
        for batch in (1.0, 2.0, 4.0, 8.0)
        for share in (20.0, 40.0, 60.0, 80.0, 100.0)
    ]
    at = queries_at(
        batch=[batch for batch, _ in conditions],
        sm_percent=[share for _, share in conditions],
        network=GROUP.network,
        gpu_type=GROUP.gpu_type,
    )
    latency_ms = [
        true_ms(*each) * float(np.exp(noise * draw.normal())) for each in conditions
    ]
    return make_samples(
        at,
        latency_ms,
        power_w=[50.0 + 2.0 * share for _, share in conditions] if memory else None,
        memory_mib=[1000.0 + 100.0 * batch for batch, _ in conditions]
        if memory
        else None,
    )


def _fits(of: Samples) -> Fits:
    return make_fits(of, technique="linear_fractional")


def performance(
    of: Samples, *, grid: ConditionGrid | None = None, **known: object
) -> Performance:
    facts = FitFacts(gpu_type=GPU_TYPE, sampled=of.at, **known)  # type: ignore[arg-type]
    return make_performance(_fits(of), GROUP, grid or make_grid(facts), facts)


def rows_by_key(made: Performance) -> dict[tuple[float, int, float], OperatingPoint]:
    return {(row.sm_percent, row.batch, row.clock_mhz): row for row in made.points.rows}


def test_the_points_are_what_was_measured() -> None:
    rows = rows_by_key(performance(samples()))
    assert {key[0] for key in rows} == {float(share) for share in range(10, 101, 10)}
    assert {key[1:] for key in rows} == {(batch, 1500.0) for batch in (1, 2, 4, 8)}
    for (share, batch, _), row in rows.items():
        if share >= 20.0:
            assert row.solo_ms == pytest.approx(true_ms(batch, share), rel=0.05)
            assert row.memory_mib == pytest.approx(1000.0 + 100.0 * batch, rel=0.05)
        assert min(row.transfer_ms, row.launch_ms, row.run_ms, row.power_w) >= 0.0
        assert row.power_w <= GPU_TYPE.power_cap_w - GPU_TYPE.idle_w


def test_times_never_rise_with_the_share_nor_fall_with_the_batch() -> None:
    rows = rows_by_key(performance(samples(noise=0.15)))
    shares, batches = sorted({key[0] for key in rows}), sorted({key[1] for key in rows})
    for batch in batches:
        line = [rows[share, batch, 1500.0].solo_ms for share in shares]
        assert all(more <= less + 1e-9 for less, more in pairwise(line))
    for share in shares:
        line = [rows[share, batch, 1500.0].solo_ms for batch in batches]
        assert all(small <= large + 1e-9 for small, large in pairwise(line))


def test_noise_and_extrapolation_widen_the_uncertainty() -> None:
    grid = ConditionGrid(
        sm_percents=(10.0, 20.0, 50.0), batches=(8, 16), clocks_mhz=(1500.0,)
    )
    calm, noisy = (
        performance(samples(noise=noise), grid=grid).latency_sigma
        for noise in (0.01, 0.15)
    )
    assert calm[4] < 0.05 < noisy[4]
    # Half the least share, twice the largest batch, and both.
    assert calm[0] == pytest.approx(calm[4] * np.hypot(1.0, EXTRAPOLATION))
    assert calm[5] == pytest.approx(calm[0])
    assert calm[1] == pytest.approx(calm[4] * np.hypot(1.0, 2.0 * EXTRAPOLATION))


def test_what_no_fit_says_comes_from_the_present_profile() -> None:
    made = performance(samples(memory=False), present=PRESENT)
    rows = rows_by_key(made)
    assert (
        rows.keys()
        == rows_by_key(Performance(points=PRESENT, latency_sigma=(0.0,) * 8)).keys()
    )
    row = rows[50.0, 4, 1500.0]
    assert (
        row.transfer_ms,
        row.launch_ms,
        row.memory_mib,
        row.power_w,
        row.pressure,
    ) == (0.4, 0.2, 904.0, 50.0, 0.5)
    assert row.solo_ms == pytest.approx(true_ms(4.0, 50.0), rel=0.05)
    # The present profile takes 1.5 times as long for the run term at 1000 MHz: (45 + 0.6) / (30 + 0.6).
    assert rows[50.0, 4, 1000.0].solo_ms / row.solo_ms == pytest.approx(45.6 / 30.6)
    assert made.points.sensitivity == PRESENT.sensitivity


def test_memory_is_never_guessed_and_other_figures_are_bounded() -> None:
    with pytest.raises(TooFewSamples, match="memory_mib"):
        performance(samples(memory=False))
    rows = rows_by_key(performance(samples()))
    assert rows[50.0, 1, 1500.0].pressure == pytest.approx(0.5 * TYPICAL_PRESSURE)
    assert performance(samples()).points.sensitivity == TYPICAL_SENSITIVITY


def test_memory_at_a_batch_that_was_not_measured_has_the_margin_of_its_fit() -> None:
    grid = ConditionGrid(sm_percents=(50.0,), batches=(8, 16), clocks_mhz=(1500.0,))
    scattered = (
        np.exp(0.1 * np.random.default_rng(0).normal(size=20)) * samples().memory_mib
    )
    of = replace(samples(), memory_mib=scattered)
    measured, beyond = (
        row.memory_mib for row in performance(of, grid=grid).points.rows
    )
    assert measured == pytest.approx(scattered[of.at.batch <= 8.0].max())
    # 1000 + 100 · 16 with 10 % of scatter: the line is a tenth off at most, and the 95 % quantile 17 % above it.
    assert 1.05 * 2600.0 < beyond < 1.3 * 2600.0


def test_the_pressure_law_gives_pressures_that_keep_its_product() -> None:
    law = pressure.prior((GROUP.network,))
    made = performance(samples(), neighbours=law)
    row = rows_by_key(made)[50.0, 4, 1500.0]
    raw = pressure.pressures(
        law, GROUP.network, batch=np.array([4.0]), sm_percent=np.array([50.0])
    )[0]
    assert made.points.sensitivity * row.pressure == pytest.approx(
        raw * pressure.sensitivity(law, GROUP.network)
    )


def test_a_network_that_nothing_is_known_of_is_refused() -> None:
    facts = FitFacts(gpu_type=GPU_TYPE, present=PRESENT)
    with pytest.raises(Exception, match="resnet50"):
        make_performance(Fits(fits=()), GROUP, make_grid(facts), facts)


def test_shares_keep_to_the_gpu_types_step() -> None:
    coarse = GpuType(
        **{name: getattr(GPU_TYPE, name) for name in GpuType.__slots__}
        | {"sm_percent_step": 25.0}
    )
    assert make_grid(FitFacts(gpu_type=coarse)).sm_percents == (50.0, 100.0)


def test_a_stall_stays_as_stated_and_unknown_training_stalls_as_the_worst() -> None:
    stalling = tuple(row._replace(stall_ms=row.sm_percent) for row in PRESENT.rows)
    present = replace(PRESENT, rows=stalling)
    for row in performance(samples(), present=present).points.rows:
        assert row.stall_ms == row.sm_percent
    # Others are known at 50 and 100 %, where they stall 50 and 100 ms; one that stalls less changes nothing.
    others = (replace(present, network="other"), replace(PRESENT, network="third"))
    for is_training in (False, True):
        made = performance(samples(), is_training=is_training, other_profiles=others)
        for row in made.points.rows:
            expected_ms = max(50.0, row.sm_percent) if is_training else 0.0
            assert row.stall_ms == pytest.approx(expected_ms)
