"""The plant: its table at and between its points, its shape, and what neighbours cost."""

import numpy as np
import pytest

from agents.sim.truth.running import RunningPart, SimulatedNeighbour
from agents.sim.truth.truth import TruthError, load_truth
from bench.papers.plant import Surface, TableWorld, load_plant

PLANT = load_plant()
EVERYWHERE = [
    (network, board) for network in PLANT.networks for board in PLANT.gpu_types
]
MAX_MHZ = {"A100-40GB": 1410.0, "RTX-3080-Ti": 1800.0, "RTX-2080-Ti": 1545.0}


def placed(network: str, board: str, **changes: object) -> RunningPart:
    facts = {"sm_percent": 100.0, "batch": 128, "clock_mhz": MAX_MHZ[board], **changes}
    return RunningPart(network=network, gpu_type=board, **facts)  # type: ignore[arg-type]


def a_plant() -> TableWorld:
    surface = Surface(
        batches=np.array([1.0, 4.0]),
        sm_percents=np.array([20.0, 40.0]),
        clocks_mhz=np.array([500.0, 1000.0]),
        # (batch, SM percent, clock)
        time_ms=np.array([[[40.0, 20.0], [24.0, 12.0]], [[160.0, 80.0], [96.0, 48.0]]]),
        watts=np.array([[[10.0, 20.0], [16.0, 30.0]], [[20.0, 40.0], [32.0, 60.0]]]),
    )
    return TableWorld(
        {("net", "gpu"): surface},
        idle_w={"gpu": 30.0},
        tdp_w={"gpu": 200.0},
        truth=load_truth(),
    )


def test_times_at_the_tables_points_and_between_them() -> None:
    plant = a_plant()

    def times(sm_percent: float, clock_mhz: float) -> list[float]:
        where = RunningPart(
            network="net",
            gpu_type="gpu",
            sm_percent=sm_percent,
            batch=4,
            clock_mhz=clock_mhz,
        )
        return [float(each) for each in plant.batch_ms(where)]

    assert times(20.0, 1000.0) == pytest.approx([0.0, 20.0, 40.0, 60.0, 80.0])
    assert times(40.0, 750.0) == pytest.approx([0.0, 18.0, 36.0, 54.0, 72.0])
    # 1 / 30 is two thirds of the way from 1 / 20 to 1 / 40: 20 - 8 · 2 / 3.
    assert times(30.0, 1000.0)[1] == pytest.approx(20.0 - 16.0 / 3.0)
    assert times(10.0, 1000.0)[1] == pytest.approx(40.0)
    assert times(40.0, 2000.0)[1] == pytest.approx(12.0)


def test_watts_between_points_fall_to_nothing_without_sms() -> None:
    surface = a_plant().surface("net", "gpu")
    assert surface.busy_w(40.0, 4.0, 1000.0) == 60.0
    assert surface.busy_w(40.0, 2.5, 750.0) == pytest.approx(
        (16.0 + 30.0 + 32.0 + 60.0) / 4.0
    )
    assert surface.busy_w(10.0, 1.0, 1000.0) == pytest.approx(10.0)


@pytest.mark.parametrize(("network", "board"), EVERYWHERE)
def test_a_higher_clock_is_faster_and_draws_more(network: str, board: str) -> None:
    at = [0.4, 0.6, 0.8, 1.0]
    times_ms = [
        PLANT.batch_ms(placed(network, board, clock_mhz=x * MAX_MHZ[board]))[64]
        for x in at
    ]
    watts = [
        PLANT.busy_w(placed(network, board, clock_mhz=x * MAX_MHZ[board]), 64)
        for x in at
    ]
    assert times_ms == sorted(times_ms, reverse=True)
    assert watts == sorted(watts)


def test_neighbours_slow_as_the_measured_pairs_do() -> None:
    neighbour = SimulatedNeighbour("mobilenet_v2", 50.0, 8)
    alone = PLANT.batch_ms(placed("resnet50", "A100-40GB", sm_percent=50.0))
    beside = PLANT.batch_ms(
        placed("resnet50", "A100-40GB", sm_percent=50.0, neighbours=(neighbour,))
    )
    factors = beside[1:] / alone[1:]
    assert factors == pytest.approx(factors[0])
    assert 1.0 < factors[0] < 1.3


def test_what_the_table_lacks_is_named() -> None:
    with pytest.raises(TruthError, match="no 'gpt' on 'A100-40GB'; known: densenet121"):
        PLANT.surface("gpt", "A100-40GB")
    with pytest.raises(TruthError, match="no board 'H100'"):
        PLANT.idle_w("H100")
