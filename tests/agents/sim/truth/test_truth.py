"""The simulated truth: the measurements themselves at measured points, and sane in between."""

import csv
from importlib import resources
from itertools import pairwise

import numpy as np
import pytest

from agents.sim.truth.curves import BatchCurve, MeasuredCurves
from agents.sim.truth.running import RunningPart, SimulatedNeighbour
from agents.sim.truth.truth import Truth, TruthError, load_truth
from tests.shared import SHARED, needs

SOURCES = (
    ("data/rapp_v100/latency_sm_quota.csv", "", "100"),
    ("data/igniter_v100/solo_latency.csv", "-trt", None),
)
"""File of `../shared`, ending of our names of its networks, time quota of the rows that ship."""


@pytest.fixture(scope="module")
def truth() -> Truth:
    return load_truth()


def placed(
    network: str = "resnet50",
    sm_percent: float = 30.0,
    *,
    gpu_type: str = "V100-16GB",
    clock_mhz: float | None = None,
    neighbours: tuple[float, ...] = (),
) -> RunningPart:
    clocks = {"V100-16GB": 1530.0, "V100-32GB": 1530.0, "T4": 1590.0, "H100": 1980.0}
    return RunningPart(
        network=network,
        gpu_type=gpu_type,
        sm_percent=sm_percent,
        batch=1,
        clock_mhz=clock_mhz or clocks[gpu_type],
        neighbours=tuple(
            SimulatedNeighbour(network, percent, 1) for percent in neighbours
        ),
    )


def shipped(name: str) -> list[dict[str, str]]:
    return list(
        csv.DictReader(
            (resources.files("agents.sim") / "data" / name).read_text().splitlines()
        )
    )


def test_a_measured_point_is_returned_as_measured(truth: Truth) -> None:
    for row in shipped("curves.csv"):
        where = placed(row["network"], float(row["sm_percent"]))
        assert truth.execution_ms(where, int(row["batch"])) == pytest.approx(
            float(row["latency_ms"]), rel=1e-12
        )


@pytest.mark.parametrize(
    ("file", "suffix", "quota"),
    [pytest.param(*source, marks=needs(source[0])) for source in SOURCES],
)
def test_the_truth_equals_the_raw_source_rows(
    truth: Truth, file: str, suffix: str, quota: str | None
) -> None:
    compared = 0
    for row in csv.DictReader((SHARED / file).read_text().splitlines()):
        network = row["model"] + suffix
        if network in truth.networks and row.get("time_quota_pct") == quota:
            time_ms = truth.execution_ms(
                placed(network, float(row["sm_pct"])), int(row["batch"])
            )
            assert time_ms == pytest.approx(float(row["latency_ms"]), rel=1e-12)
            compared += 1
    assert compared > 350


def test_measured_watts_are_returned_as_measured(truth: Truth) -> None:
    rows = shipped("watts.csv")
    assert len(rows) == 27
    for row in rows:
        where = placed(row["network"], float(row["sm_percent"]))
        assert truth.busy_w(where, int(row["batch"])) == pytest.approx(
            float(row["watts"]), rel=1e-12
        )


def curves(points: dict[int, dict[float, float]]) -> MeasuredCurves:
    return MeasuredCurves(
        by_batch={
            batch: BatchCurve(
                sm_percents=np.array(list(line)),
                latency_ms=np.array(list(line.values())),
            )
            for batch, line in points.items()
        }
    )


@pytest.mark.parametrize(
    ("line", "share", "ms"),
    [
        # 40 ms at 10 %, 20 ms at 30 %: at 15 %, 1/15 is halfway between 1/30 and 1/10.
        ({10.0: 40.0, 30.0: 20.0}, 15.0, 30.0),
        # Below the measured range time grows as one over the share.
        ({10.0: 40.0, 30.0: 20.0}, 5.0, 80.0),
        # Above it the last octave goes on. Work-bound, so a GPU twice as fast needs half of it.
        ({50.0: 16.0, 100.0: 8.0}, 200.0, 4.0),
        # Flat: host-bound, so no GPU helps; rising by noise must not go on rising.
        ({50.0: 8.0, 100.0: 8.0}, 200.0, 8.0),
        ({50.0: 7.0, 100.0: 8.0}, 200.0, 8.0),
    ],
)
def test_times_between_and_beyond_measured_shares(
    line: dict[float, float], share: float, ms: float
) -> None:
    assert curves({1: line}).batch_ms(share)[1] == pytest.approx(ms)


def test_a_partial_batch_takes_the_time_of_its_own_size() -> None:
    line = curves({1: {100.0: 10.0}, 4: {100.0: 16.0}})
    assert line.batch_ms(100.0).tolist() == pytest.approx([0.0, 10.0, 12.0, 14.0, 16.0])


def test_from_the_third_replica_on_launches_wait_longer(truth: Truth) -> None:
    times = [
        truth.execution_ms(placed("vgg16", 10.0, neighbours=(10.0,) * count), 4)
        for count in range(1, 10)
    ]
    assert all(later > earlier for earlier, later in pairwise(times))
    # 51 kernels; the measured delay is 0.00676404 ms with three replicas and 0.00167469 ms with two. Two neighbours on
    # the SMs of one are busier, too.
    one = truth.execution_ms(placed("vgg16", 10.0, neighbours=(20.0,)), 4)
    assert times[1] - one > 51 * (0.00676404 - 0.00167469)


def test_provenance_says_how_a_time_is_known(truth: Truth) -> None:
    assert truth.provenance(placed()) == "measured"
    assert truth.provenance(placed(clock_mhz=1230.0)) == "scaled"
    assert truth.provenance(placed(gpu_type="T4")) == "scaled"
    assert (
        truth.provenance(placed(sm_percent=10.0, neighbours=(10.0,) * 5)) == "synthetic"
    )


def test_only_work_bound_time_shrinks_on_a_faster_gpu(truth: Truth) -> None:
    host_bound, work_bound = placed("googlenet", 100.0), placed("vgg19-trt", 100.0)
    faster = [
        placed(where.network, 100.0, gpu_type="H100")
        for where in (host_bound, work_bound)
    ]
    assert truth.execution_ms(faster[0], 1) > 0.85 * truth.execution_ms(host_bound, 1)
    assert truth.execution_ms(faster[1], 32) < 0.5 * truth.execution_ms(work_bound, 32)


def test_unknown_names_and_unmeasured_batches_are_refused(truth: Truth) -> None:
    with pytest.raises(TruthError, match="no measured curves for network 'yolo'"):
        truth.batch_ms(placed("yolo"))
    with pytest.raises(TruthError, match="no GPU type 'P100'"):
        truth.idle_w("P100")
    for batch in (0, 9):
        with pytest.raises(TruthError, match=f"batches 1 to 8, not {batch}"):
            truth.execution_ms(placed(), batch)
