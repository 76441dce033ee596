"""What partners on a GPU do to each other: as was measured where it was, and different for each pair elsewhere."""

import csv
from itertools import product
from statistics import mean, median

import pytest

from agents.sim.truth.partners import fair_factors
from agents.sim.truth.running import RunningPart, SimulatedNeighbour
from agents.sim.truth.tables import read_types
from agents.sim.truth.truth import Truth, load_truth
from tests.shared import SHARED, needs

CLOCKS_MHZ = {name: kind.max_clock_mhz for name, kind in read_types().items()}


@pytest.fixture(scope="module")
def truth() -> Truth:
    return load_truth()


def placed(
    network: str,
    sm_percent: float,
    *beside: tuple[str, float, int],
    batch: int = 8,
    gpu_type: str = "V100-16GB",
) -> RunningPart:
    return RunningPart(
        network=network,
        gpu_type=gpu_type,
        sm_percent=sm_percent,
        batch=batch,
        clock_mhz=CLOCKS_MHZ[gpu_type],
        neighbours=tuple(SimulatedNeighbour(*each) for each in beside),
    )


def factor(
    truth: Truth,
    network: str,
    sm_percent: float,
    *beside: tuple[str, float, int],
    batch: int = 8,
    gpu_type: str = "V100-16GB",
) -> float:
    together = placed(network, sm_percent, *beside, batch=batch, gpu_type=gpu_type)
    alone = placed(network, sm_percent, batch=batch, gpu_type=gpu_type)
    return truth.execution_ms(together, batch) / truth.execution_ms(alone, batch)


@needs("data/igniter_v100")
def test_measured_pairs_are_slowed_as_measured(truth: Truth) -> None:
    rows = list(
        csv.DictReader(
            (SHARED / "data/igniter_v100/pair_interference.csv")
            .read_text()
            .splitlines()
        )
    )
    errors = []
    for row in rows:
        for ours, other in (("a", "b"), ("b", "a")):
            measured = float(row[f"latency_{ours}_ms"]) / float(
                row[f"solo_latency_{ours}_ms"]
            )
            neighbour = (
                f"{row[f'model_{other}']}-trt",
                float(row[f"sm_pct_{other}"]),
                int(row[f"batch_{other}"]),
            )
            found = factor(
                truth,
                f"{row[f'model_{ours}']}-trt",
                float(row[f"sm_pct_{ours}"]),
                neighbour,
                batch=int(row[f"batch_{ours}"]),
            )
            errors.append(abs(found / measured - 1.0))
    assert len(errors) == 2 * len(rows)
    # A constant factor errs by 3.3 % on these rows.
    assert mean(errors) < 0.005


@pytest.mark.parametrize(
    ("duties", "sm_percents", "factors"),
    [
        ((1.0, 1.0), (100.0, 100.0), (2.0, 2.0)),
        ((1.0,) * 4, (100.0,) * 4, (4.0,) * 4),
        # None loses while there are SMs for all.
        ((0.3, 0.6), (100.0, 100.0), (1.0, 1.0)),
        ((1.0, 1.0), (40.0, 60.0), (1.0, 1.0)),
        ((1.0,), (100.0,), (1.0,)),
    ],
)
def test_who_is_always_busy_shares_evenly(
    duties: tuple[float, ...],
    sm_percents: tuple[float, ...],
    factors: tuple[float, ...],
) -> None:
    assert fair_factors(duties, sm_percents) == pytest.approx(factors)


@pytest.mark.parametrize(
    ("duties", "sm_percents"),
    [
        ((0.9, 0.5), (100.0, 100.0)),
        ((1.0, 0.9), (60.0, 80.0)),
        ((0.4, 0.4, 0.4), (100.0,) * 3),
        ((0.7, 0.7, 0.2, 1.0), (50.0, 100.0, 100.0, 30.0)),
    ],
)
def test_fair_sharing_fills_the_gpu_and_stretches_the_busiest_most(
    duties: tuple[float, ...], sm_percents: tuple[float, ...]
) -> None:
    factors = fair_factors(duties, sm_percents)
    # Each holds its SMs for duty of every factor's time.
    assert sum(
        percent / 100.0 * duty / stretched
        for duty, percent, stretched in zip(duties, sm_percents, factors, strict=True)
    ) == pytest.approx(1.0)
    assert sorted(range(len(duties)), key=lambda at: factors[at]) == sorted(
        range(len(duties)), key=lambda at: duties[at]
    )


def test_a_neighbours_share_counts_on_new_boards_alone(truth: Truth) -> None:
    def growth(gpu_type: str) -> float:
        few, many = (
            median(
                factor(truth, own, 20.0, (other, share, 8), gpu_type=gpu_type) - 1.0
                for own, other in product(
                    ("vgg16", "resnet18"), ("alexnet", "googlenet")
                )
            )
            for share in (20.0, 80.0)
        )
        return many / few

    assert growth("A100-40GB") > 2.0
    assert growth("V100-16GB") < 1.3


def test_the_order_of_neighbours_changes_nothing(truth: Truth) -> None:
    first, second = ("vgg16", 30.0, 8), ("googlenet", 20.0, 4)
    assert factor(truth, "resnet50", 50.0, first, second) == pytest.approx(
        factor(truth, "resnet50", 50.0, second, first), rel=1e-12
    )


@pytest.mark.parametrize(
    ("network", "neighbour", "gpu_type", "known"),
    [
        ("resnet50-trt", "vgg19-trt", "V100-16GB", "measured"),
        ("resnet50-trt", "vgg19-trt", "A100-40GB", "scaled"),
        ("resnet50", "resnet50", "V100-16GB", "scaled"),
        ("resnet50", "vgg16", "V100-16GB", "estimated"),
        ("vgg16", "vgg16", "V100-16GB", "synthetic"),
        ("vgg16", "bert-training", "V100-16GB", "estimated"),
    ],
)
def test_a_time_is_known_as_well_as_its_weakest_pair(
    truth: Truth, network: str, neighbour: str, gpu_type: str, known: str
) -> None:
    assert (
        truth.provenance(placed(network, 50.0, (neighbour, 50.0, 8), gpu_type=gpu_type))
        == known
    )
