"""The bench of Morak's experiments: its arithmetic by hand, and its quick tables."""

from dataclasses import replace

import pytest

from bench.papers.morak import measured
from bench.papers.morak_stage import (
    SETTLING,
    Gpu,
    Period,
    Setting,
    Tenant,
    play,
    plenty_rps,
    stages,
)

STAGE = stages()[0]
GOOD = Period(
    power_w=100.0,
    rates_rps={"googlenet": 300.0, "vgg16": 100.0},
    kept={"googlenet": 300.0},
    keeps=True,
    keeps_cap=True,
    longest_ms=80.0,
)
BAD = replace(GOOD, power_w=200.0, kept={}, keeps=False, keeps_cap=False)


def test_what_comes_before_settling_does_not_count() -> None:
    # One GPU, SETTLING bad periods, then three good ones and a bad one: 4 · 400 requests, 3 · 300 within both limits.
    found = measured(STAGE, [[[BAD] * SETTLING + [GOOD, GOOD, GOOD, BAD]]])
    assert found.rate_rps == (400.0,)
    assert found.kept_rps == (225.0,)
    assert found.over_percent == (25.0,)
    assert found.joule_per_request == (500.0 / 1600.0,)
    assert found.max_w == (200.0,)
    assert found.batch_ms == (80.0,)
    assert found.kept_by_network[0] == {"googlenet": 225.0}


def test_a_full_gpu_without_a_governor_takes_its_worlds_time_and_watts() -> None:
    # Eight at once on the whole GPU: the rate that `plenty_rps` has four times of.
    gpu = Gpu(
        tenants=(Tenant(network="googlenet", sm_percent=100.0, largest_batch=8),),
        clock_mhz=1530.0,
    )
    ((period, *_),) = play(
        STAGE, [gpu], None, [Setting(cap_w=150.0, latency_ms=100.0)], 1
    )
    assert period.rate_rps == pytest.approx(
        plenty_rps(STAGE)["googlenet"] / 4.0, rel=0.01
    )
    assert period.power_w > STAGE.world.idle_w(STAGE.board)
    tight = Setting(cap_w=period.power_w - 1.0, latency_ms=100.0)
    ((broken, *_),) = play(STAGE, [gpu], None, [tight], 1)
    assert (broken.keeps_cap, broken.kept_rps) == (False, 0.0)
    late = Setting(cap_w=150.0, latency_ms=period.longest_ms / 2.0)
    ((broken, *_),) = play(STAGE, [gpu], None, [late], 1)
    assert (broken.keeps_cap, broken.keeps, broken.kept_rps) == (True, False, 0.0)
