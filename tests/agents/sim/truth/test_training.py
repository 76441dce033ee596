"""The simulated truth of training: what was measured of whole GPUs, and sane under SM limits and next to others."""

import csv
from itertools import pairwise, permutations, product
from math import log
from statistics import geometric_mean, median
from typing import Any

import pytest

from agents.sim.truth.running import RunningPart, SimulatedNeighbour
from agents.sim.truth.tables import read, read_types
from agents.sim.truth.truth import Truth, load_truth
from tests.shared import SHARED, needs

CLOCKS_MHZ = {name: kind.max_clock_mhz for name, kind in read_types().items()}
GAVEL = {
    "resnet18-training": "ResNet-18",
    "resnet50-training": "ResNet-50",
    "lm-training": "LM",
    "transformer-training": "Transformer",
    "recommendation-training": "Recommendation",
    "cyclegan-training": "CycleGAN",
}
SHARES = tuple(float(share) for share in range(5, 101, 5))
# Geometric means of Tally's MPS averages over its two inference services, in the order of its training jobs; the
# networks that it did not train stand where their fakes do.
TALLY = {
    "resnet50-training": (1.291 * 1.470) ** 0.5,
    "recommendation-training": (1.450 * 1.761) ** 0.5,
    "lm-training": (1.693 * 1.783) ** 0.5,
    "cyclegan-training": (2.134 * 2.558) ** 0.5,
    "transformer-training": (2.232 * 2.689) ** 0.5,
    "bert-training": (3.533 * 4.097) ** 0.5,
}


@pytest.fixture(scope="module")
def truth() -> Truth:
    return load_truth()


def batches(network: str) -> list[int]:
    return sorted(
        {
            int(row["batch"])
            for row in read("training_steps.csv")
            if row["network"] == network
        }
    )


def placed(
    network: str,
    batch: int,
    sm_percent: float = 100.0,
    *,
    gpu_type: str = "V100-16GB",
    clock: float = 1.0,
    beside: tuple[tuple[str, float], ...] = (),
) -> RunningPart:
    return RunningPart(
        network=network,
        gpu_type=gpu_type,
        sm_percent=sm_percent,
        batch=batch,
        clock_mhz=CLOCKS_MHZ[gpu_type] * clock,
        neighbours=tuple(
            SimulatedNeighbour(name, percent, max([8, *batches(name)]))
            for name, percent in beside
        ),
    )


def step_ms(truth: Truth, where: RunningPart) -> float:
    return float(truth.batch_ms(where)[where.batch])


def slowdown(
    truth: Truth,
    network: str,
    sm_percent: float,
    *beside: tuple[str, float],
    gpu_type: str = "V100-16GB",
) -> float:
    batch = truth.max_batch(network)
    alone_ms, together_ms = (
        step_ms(
            truth,
            placed(network, batch, sm_percent, gpu_type=gpu_type, beside=neighbours),
        )
        for neighbours in ((), beside)
    )
    return together_ms / alone_ms


def test_a_whole_gpu_takes_the_step_of_the_table(truth: Truth) -> None:
    for row in read("training_steps.csv"):
        where = placed(row["network"], int(row["batch"]), gpu_type=row["gpu_type"])
        assert step_ms(truth, where) == pytest.approx(float(row["step_ms"]), rel=1e-9)
        assert truth.provenance(where) == row["provenance"]


def test_with_less_of_any_gpu_every_step_takes_longer(truth: Truth) -> None:
    for network, gpu_type in product(truth.training_networks, CLOCKS_MHZ):
        for batch in batches(network):
            times = [
                step_ms(truth, placed(network, batch, share, gpu_type=gpu_type))
                for share in SHARES
            ]
            # A GPU faster than a V100 may gain less than the fourth digit from its last SMs.
            is_so = all(more >= less for more, less in pairwise(times))
            assert is_so, (network, gpu_type, batch)
            if gpu_type.startswith("V100"):
                assert all(more > less for more, less in pairwise(times))
            assert times[0] > 1.1 * times[-1]
            slow, less = (
                placed(network, batch, share, gpu_type=gpu_type, clock=clock)
                for share, clock in ((50.0, 0.6), (30.0, 1.0))
            )
            assert step_ms(truth, slow) == pytest.approx(step_ms(truth, less))


def mean_slowdown(
    truth: Truth, sm_percent: float, task: str, task_percent: float
) -> float:
    """Geometric mean over all services: pairs differ around it."""
    return geometric_mean(
        [
            slowdown(truth, service, sm_percent, (task, task_percent))
            for service in truth.networks
        ]
    )


@pytest.mark.parametrize("network", TALLY)
def test_unlimited_training_slows_inference_as_tally_measured(
    truth: Truth, network: str
) -> None:
    assert mean_slowdown(truth, 100.0, network, 100.0) == pytest.approx(
        TALLY[network], rel=0.05
    )


def test_under_sm_limits_training_costs_what_it_does_on_our_h100(truth: Truth) -> None:
    excesses = [
        slowdown(truth, service, 50.0, (network, 50.0), gpu_type="H100") - 1.0
        for service in truth.networks
        for network in truth.training_networks
    ]
    # 24 to 42 % of three networks next to three kinds of training, each with half of the SMs.
    assert 0.15 < median(excesses) < 0.35
    # Mudi: at most 1.67 where SM limits hold.
    assert max(excesses) < 0.67


def test_batches_stall_beside_training_by_its_longest_kernels(truth: Truth) -> None:
    def stall_ms(own_percent: float, *beside: tuple[str, float]) -> float:
        return truth.stall_ms(placed("resnet50", 8, own_percent, beside=beside))

    # Tally, 99th percentile: 27.376 ms with BERT, of which the mean slowdown explains 4.097 * 4.098 ms. Half of what
    # stalls exceeds that: an exponential's mean is its median over ln 2.
    bert_ms = (27.376 - 4.097 * 4.098) / log(2)
    assert stall_ms(100.0, ("bert-training", 100.0)) == pytest.approx(bert_ms, rel=1e-3)
    # On our H100 7 % of that next to half of the SMs.
    assert stall_ms(50.0, ("bert-training", 50.0)) == pytest.approx(
        0.075 * bert_ms, rel=1e-3
    )
    assert stall_ms(100.0, ("lm-training", 100.0)) > 3.0 * bert_ms
    assert stall_ms(50.0, ("vgg16", 50.0)) == 0.0
    training = placed("lm-training", 20, 50.0, beside=(("bert-training", 50.0),))
    assert truth.stall_ms(training) == 0.0


@needs("data/gavel_training")
def test_unlimited_training_slows_training_as_gavel_measured(truth: Truth) -> None:
    rates: dict[tuple[str, str], list[float]] = {}
    for row in csv.DictReader(
        (SHARED / "data/gavel_training/pair_throughput.csv").read_text().splitlines()
    ):
        if (row["gpu"], row["num_gpus_a"], row["num_gpus_b"], row["both_zero"]) != (
            "v100",
            "1",
            "1",
            "0",
        ):
            continue
        for ours, other in (("a", "b"), ("b", "a")):
            rate = float(row[f"steps_per_s_{ours}"]) / float(
                row[f"solo_steps_per_s_{ours}"]
            )
            rates.setdefault((row[f"model_{ours}"], row[f"model_{other}"]), []).append(
                min(1.0, rate)
            )
    compared = 0
    for network, other in permutations(GAVEL, 2):
        if measured := rates.get((GAVEL[network], GAVEL[other])):
            together = slowdown(truth, network, 100.0, (other, 100.0))
            assert 1.0 / together == pytest.approx(median(measured), rel=2e-3)
            compared += 1
    assert compared == 20


@pytest.mark.parametrize(
    ("network", "sm_percent", "where", "known"),
    [
        ("lm-training", 100.0, {}, "measured"),
        ("lm-training", 100.0, {"gpu_type": "H100"}, "scaled"),
        ("lm-training", 100.0, {"gpu_type": "RTX-4090"}, "estimated"),
        ("lm-training", 90.0, {}, "synthetic"),
        ("lm-training", 100.0, {"clock": 0.9}, "synthetic"),
        ("lm-training", 100.0, {"beside": (("resnet50", 10.0),)}, "synthetic"),
        ("resnet50", 50.0, {"beside": (("lm-training", 50.0),)}, "estimated"),
        ("resnet50", 50.0, {"beside": (("lm-training", 100.0),)}, "synthetic"),
    ],
)
def test_only_a_whole_gpu_alone_is_better_known_than_synthetic(
    truth: Truth, network: str, sm_percent: float, where: dict[str, Any], known: str
) -> None:
    batch = 20 if network == "lm-training" else 8
    assert truth.provenance(placed(network, batch, sm_percent, **where)) == known


def test_a_busy_v100_draws_what_zeus_measured(truth: Truth) -> None:
    # Zeus, V100 at 250 W: 222 W with ResNet-50 and 226 W with BERT (medians), of which 53.5 W are idle.
    assert truth.busy_w(placed("resnet50-training", 128), 128) == pytest.approx(
        221.6 - 53.5, rel=0.01
    )
    assert truth.busy_w(placed("bert-training", 32), 32) == pytest.approx(
        226.3 - 53.5, rel=0.01
    )
    for network in truth.training_networks:
        for gpu_type in CLOCKS_MHZ:
            batch = truth.max_batch(network)
            watts = [
                truth.busy_w(placed(network, batch, share, gpu_type=gpu_type), batch)
                for share in SHARES
            ]
            assert watts == sorted(watts)
            assert (
                0.0
                < watts[0]
                < watts[-1]
                <= truth.tdp_w(gpu_type) - truth.idle_w(gpu_type)
            )
