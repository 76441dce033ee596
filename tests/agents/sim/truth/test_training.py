"""The simulated truth of training: what was measured of whole GPUs, and sane under SM limits and beside neighbours."""

import csv
from collections.abc import Sequence
from itertools import pairwise, permutations, product
from math import log
from statistics import geometric_mean, mean, median, stdev
from typing import Any

import pytest

from agents.sim.truth.running import RunningPart, SimulatedNeighbour
from agents.sim.truth.tables import read, read_types
from agents.sim.truth.truth import Truth, TruthError, load_truth
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


def test_training_and_inference_networks_are_told_apart(truth: Truth) -> None:
    assert len(truth.training_networks) == 7
    assert all(network.endswith("-training") for network in truth.training_networks)
    assert not set(truth.training_networks) & set(truth.networks)


def test_a_whole_gpu_takes_the_step_of_the_table(truth: Truth) -> None:
    for row in read("training_steps.csv"):
        where = placed(row["network"], int(row["batch"]), gpu_type=row["gpu_type"])
        assert step_ms(truth, where) == pytest.approx(float(row["step_ms"]), rel=1e-9)
        assert truth.provenance(where) == row["provenance"]


@needs("data/gavel_training")
def test_a_whole_v100_takes_the_step_that_gavel_measured(truth: Truth) -> None:
    compared = 0
    for row in csv.DictReader(
        (SHARED / "data/gavel_training/solo_throughput.csv").read_text().splitlines()
    ):
        for network, name in GAVEL.items():
            batch = int(row["batch"] or 1)
            one_v100 = (row["gpu"], row["consolidated"], row["num_gpus"]) == (
                "v100",
                "1",
                "1",
            )
            if one_v100 and row["model"] == name and batch in batches(network):
                measured_ms = 1000.0 / float(row["steps_per_s"])
                # The table keeps four digits.
                assert step_ms(truth, placed(network, batch)) == pytest.approx(
                    measured_ms, rel=6e-4
                )
                compared += 1
    assert compared == 23


@needs("data/sia_training")
@pytest.mark.parametrize(
    ("gpu_type", "cluster"),
    [("T4", "aws"), ("A100-40GB", "dgx-ext"), ("RTX-2080-Ti", "rtx")],
)
@pytest.mark.parametrize(
    ("network", "name"), [("resnet18-training", "cifar10"), ("bert-training", "bert")]
)
def test_other_whole_gpus_take_the_steps_that_sia_measured(
    truth: Truth, gpu_type: str, cluster: str, network: str, name: str
) -> None:
    steps_ms: dict[int, list[float]] = {}
    for row in csv.DictReader(
        (SHARED / "data/sia_training/step_time.csv").read_text().splitlines()
    ):
        if (row["gpu_cluster"], row["model"]) == (cluster, name):
            steps_ms.setdefault(int(row["local_batch"]), []).append(
                1000.0 * (float(row["step_s"]) - float(row["sync_s"]))
            )
    for batch in batches(network):
        # Sia's batches are 129 for 128, 257 for 256, 33 for 32.
        near = [
            median(times)
            for theirs, times in steps_ms.items()
            if batch <= theirs <= batch + 1
        ]
        if near:
            assert step_ms(
                truth, placed(network, batch, gpu_type=gpu_type)
            ) == pytest.approx(near[0], rel=6e-4)
    assert (
        sum(batch in steps_ms or batch + 1 in steps_ms for batch in batches(network))
        >= 2
    )


def test_a_step_is_linear_between_measured_batches(truth: Truth) -> None:
    # ResNet-18 with 64 and 128: 41.51 and 44.70 ms, so 43.105 ms halfway.
    assert step_ms(truth, placed("resnet18-training", 96)) == pytest.approx(
        43.105, rel=1e-3
    )
    table = truth.batch_ms(placed("resnet18-training", 32))
    assert table.shape == (257,)
    assert table[0] == 0.0
    assert table[1] == table[32]
    assert truth.provenance(placed("resnet18-training", 96)) == "estimated"


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


def test_a_larger_batch_never_takes_a_shorter_step(truth: Truth) -> None:
    for network, gpu_type, share in product(
        truth.training_networks, CLOCKS_MHZ, SHARES
    ):
        times = truth.batch_ms(placed(network, 1, share, gpu_type=gpu_type))[1:]
        # Unevenness of 5 % is drawn for every batch apart.
        is_so = all(large >= 0.9 * small for small, large in pairwise(times))
        assert is_so, (network, gpu_type, share)


def test_only_host_bound_training_has_a_knee(truth: Truth) -> None:
    def of_half(network: str, batch: int) -> float:
        return step_ms(truth, placed(network, batch, 50.0)) / step_ms(
            truth, placed(network, batch)
        )

    # ResNet-18 with 32 small images leaves a V100 idle for two thirds of its step; ResNet-50 with 128 large ones
    # fills it.
    assert of_half("resnet18-training", 32) < 1.15
    assert 1.8 < of_half("resnet50-training", 128) < 2.0


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


def test_each_service_is_slowed_by_a_task_in_its_own_way(truth: Truth) -> None:
    excesses = [
        slowdown(truth, service, 100.0, ("bert-training", 100.0)) - 1.0
        for service in truth.networks
    ]
    # Tally's two services differ by 3.1 to 2.5.
    assert 0.05 < stdev(excesses) / mean(excesses) < 0.2


@pytest.mark.parametrize(
    "gpu_type",
    ["V100-16GB", "H100", pytest.param("A100-40GB", marks=pytest.mark.thorough)],
)
def test_under_sm_limits_training_is_a_neighbour_like_any_other(
    truth: Truth, gpu_type: str
) -> None:
    def median_excess(networks: Sequence[str], percent: float) -> float:
        return median(
            slowdown(truth, service, 20.0, (network, percent), gpu_type=gpu_type) - 1.0
            for service in truth.networks[::2]
            for network in networks
            if service != network
        )

    training = {
        percent: median_excess(truth.training_networks, percent)
        for percent in (20.0, 50.0, 80.0)
    }
    for percent, excess in training.items():
        # Inference with a batch of 8 leaves its SMs idle between kernels, training at its largest batch hardly.
        assert 1.0 < excess / median_excess(truth.networks[1::2], percent) < 2.0
    growth = training[80.0] / training[20.0]
    # About in proportion to its SM percent on new boards, as on our H100; not at all on a V100.
    min_growth, max_growth = (0.95, 1.05) if gpu_type == "V100-16GB" else (3.0, 4.1)
    assert min_growth < growth < max_growth


def test_under_sm_limits_training_costs_what_it_does_on_our_h100(truth: Truth) -> None:
    excesses = [
        slowdown(truth, service, 50.0, (network, 50.0), gpu_type="H100") - 1.0
        for service in truth.networks
        for network in truth.training_networks
    ]
    # 24 to 42 % of three networks beside three kinds of training, each with half of the SMs.
    assert 0.15 < median(excesses) < 0.35
    # Mudi: at most 1.67 where SM limits hold.
    assert max(excesses) < 0.67


@pytest.mark.parametrize(
    ("network", "throughputs"),
    [("resnet50-training", (0.74, 0.78)), ("bert-training", (0.92, 0.94))],
)
def test_inference_slows_training_as_tally_measured(
    truth: Truth, network: str, throughputs: tuple[float, float]
) -> None:
    expected = (throughputs[0] * throughputs[1]) ** -0.5
    factors = [
        slowdown(truth, network, 100.0, (service, 100.0)) for service in truth.networks
    ]
    assert geometric_mean(factors) == pytest.approx(expected, rel=0.03)
    assert slowdown(truth, network, 50.0, ("resnet50", 50.0)) > 1.0


def test_batches_stall_beside_training_by_its_longest_kernels(truth: Truth) -> None:
    def stall_ms(own_percent: float, *beside: tuple[str, float]) -> float:
        return truth.stall_ms(placed("resnet50", 8, own_percent, beside=beside))

    # Tally, 99th percentile: 27.376 ms beside BERT, of which the mean slowdown explains 4.097 * 4.098 ms. Half of what
    # stalls exceeds that: an exponential's mean is its median over ln 2.
    bert_ms = (27.376 - 4.097 * 4.098) / log(2)
    assert stall_ms(100.0, ("bert-training", 100.0)) == pytest.approx(bert_ms, rel=1e-3)
    # On our H100 7 % of that beside half of the SMs.
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


def test_no_neighbour_ever_speeds_anything_up(truth: Truth) -> None:
    everything = (*truth.training_networks, "resnet50", "vgg19-trt")
    for network in everything:
        for other in everything:
            factors = [
                slowdown(truth, network, 30.0, (other, share), gpu_type="A100-40GB")
                for share in (10.0, 40.0, 70.0)
            ]
            assert factors[0] >= 1.0
            assert factors == sorted(factors)


def test_unlimited_neighbours_of_one_network_count_once(truth: Truth) -> None:
    network, lm, bert = (
        "resnet50-training",
        ("lm-training", 100.0),
        ("bert-training", 100.0),
    )
    apart = slowdown(truth, network, 100.0, lm) * slowdown(truth, network, 100.0, bert)
    # The third task adds launch delay: 525 kernels that each wait 0.00676404 - 0.00167469 ms longer.
    solo_ms = step_ms(truth, placed(network, 128))
    delay = 525 * (0.00676404 - 0.00167469) / solo_ms
    assert slowdown(truth, network, 100.0, lm, bert) == pytest.approx(apart + delay)
    assert slowdown(truth, network, 100.0, bert, lm) == slowdown(
        truth, network, 100.0, lm, bert
    )
    twice = slowdown(truth, network, 100.0, lm, lm)
    assert twice == pytest.approx(slowdown(truth, network, 100.0, lm) + delay)


def test_a_service_feels_training_on_top_of_other_services(truth: Truth) -> None:
    service, task = ("vgg16", 30.0), ("bert-training", 30.0)
    both = slowdown(truth, "resnet50", 30.0, service, task, gpu_type="A100-40GB")
    for one in (service, task):
        assert both > slowdown(truth, "resnet50", 30.0, one, gpu_type="A100-40GB")


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


def test_training_takes_the_memory_that_tally_saw(truth: Truth) -> None:
    # 12685 MiB for ResNet-50 with 128 images, 9615 MiB for BERT with 32 sequences.
    assert truth.memory_mib("resnet50-training", 128) == pytest.approx(12685, rel=0.02)
    assert truth.memory_mib("bert-training", 32) == pytest.approx(9615, rel=0.02)


def test_unmeasured_batches_of_training_are_refused(truth: Truth) -> None:
    with pytest.raises(
        TruthError, match="cyclegan-training was measured with batches 1 to 1, not 2"
    ):
        truth.execution_ms(placed("cyclegan-training", 1), 2)
