"""Parts of the measuring scripts that need no processes of a node: figures, files, engines, the client's calls."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agents.base.device import DeviceError
from agents.gpu.nvml.session import Nvml
from agents.gpu.nvml.types import GpuIdentity
from agents.profiling.cells import Member, make_cell
from agents.profiling.journal import Measurement, Timing
from bench.catalogue.measured import NetworkFacts, read_points
from bench.measured_sets import load_own, own_sets
from bench.real_gpu.pairs import COLUMNS as PAIR_COLUMNS
from bench.real_gpu.pairs import cells, pair_rows
from bench.real_gpu.reading import ReadNvml
from bench.real_gpu.run import Options, Run
from bench.real_gpu.share import differences_percent, verdict
from bench.real_gpu.solo import COLUMNS as SOLO_COLUMNS
from bench.real_gpu.solo import solo_row
from bench.real_gpu.tables import Table
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
GPU = GpuIdentity(
    index=0, uuid="GPU-0", name="NVIDIA H200", memory_mib=144000.0, sm_count=132
)


def a_run(directory: Path, *, is_fake: bool = False) -> Run:
    options = Options(
        out=directory,
        budget_s=60.0,
        is_fake=is_fake,
        networks=("resnet50",),
        shares=(50.0,),
        batches=(1,),
        window_s=1.0,
        command="python -m bench.real_gpu solo",
    )
    # These parts do not ask the driver.
    return Run(options=options, nvml=ReadNvml(None), gpu=GPU)  # type: ignore[arg-type]


def a_measurement(*members: tuple[str, int, float, float]) -> Measurement:
    """Of (network, batch, share, p50 in ms)."""
    p50_ms = {
        Member(network=name, batch=batch, sm_percent=share): ms
        for name, batch, share, ms in members
    }
    cell = make_cell(list(p50_ms))
    timings = (
        Timing(
            member=member,
            latency_ms=p50_ms[member] + 0.5,
            latency_ms_p50=p50_ms[member],
            latency_ms_p99=2.0 * p50_ms[member],
            batches=199,
            spread=0.01,
            memory_mib=None,
            sm_count=66,
        )
        for member in cell.members
    )
    return Measurement(
        cell=cell, timings=tuple(timings), power_w=300.0, clock_mhz=1980.0, windows=3
    )


def test_rates_on_a_line_through_zero_are_no_different_and_those_beyond_the_knee_are_not_judged() -> (
    None
):
    # 2 per percent up to 50 %; from 50 to 75 % 0.4 per percent, which is less than half of 2: the knee is 50.
    assert differences_percent(
        [(10.0, 20.0), (25.0, 50.0), (50.0, 100.0), (75.0, 110.0), (100.0, 112.0)]
    ) == [
        pytest.approx(0.0),
        pytest.approx(0.0),
        pytest.approx(0.0),
        None,
        None,
    ]


def test_a_share_that_gives_too_much_shows_as_difference_from_the_line() -> None:
    # Slope = (10·15 + 50·50 + 100·100) / (100 + 2500 + 10000) = 12650 / 12600; at 10 %: 15 / 10.0397 = 1.494.
    found = differences_percent([(10.0, 15.0), (50.0, 50.0), (100.0, 100.0)])
    assert found[0] == pytest.approx(49.4, abs=0.05)
    assert found[1] == found[2] == pytest.approx(-0.395, abs=0.01)
    rows = [
        {"sm_percent": share, "difference_percent": f"{value:.3g}"}
        for share, value in zip(("10", "50", "100"), found, strict=True)
        if value is not None
    ]
    assert (
        verdict(rows)
        == "shares ARE NOT proportional within 10 % up to 100 %: the worst is 49.4 % at 10 %"
    )
    assert verdict(rows[1:]).startswith("shares are proportional within 10 %")
    assert (
        verdict(rows[:1])
        == "too few shares are measured to judge whether a share is what it says"
    )
    assert differences_percent([]) == []


def test_a_row_alone_says_the_condition_the_figures_and_that_its_p99_is_thin(
    tmp_path: Path,
) -> None:
    row = solo_row(a_run(tmp_path), a_measurement(("resnet50", 8, 50.0, 4.0)))
    assert tuple(row) == SOLO_COLUMNS
    expected = {
        "network": "resnet50",
        "gpu_type": "H200",
        "batch": 8,
        "sm_percent": 50.0,
        "latency_ms_mean": 4.5,
        "latency_ms_p50": 4.0,
        "latency_ms_p99": 8.0,
        "p99_is_indicative": True,
        "spread_percent": 1.0,
        "memory_mib": None,
    }
    assert row | expected == row


@pytest.mark.thorough
def test_rows_of_the_fake_name_no_gpu_type_that_exists(tmp_path: Path) -> None:
    assert a_run(tmp_path, is_fake=True).gpu_type == "fake-H200"


def test_a_pair_is_slower_by_its_p50_over_that_alone_at_the_same_share_and_batch(
    tmp_path: Path,
) -> None:
    alone = a_measurement(("resnet50", 8, 25.0, 4.0))
    other_share = a_measurement(("resnet50", 8, 75.0, 2.0))
    pair = a_measurement(("resnet50", 8, 25.0, 5.0), ("train-resnet18", 32, 75.0, 60.0))
    rows = pair_rows(a_run(tmp_path), [pair, other_share, alone])
    assert all(tuple(sorted(row)) == tuple(sorted(PAIR_COLUMNS)) for row in rows)
    assert [
        (row["network"], row["other_network"], row["slowdown"]) for row in rows
    ] == [
        ("resnet50", None, None),
        ("resnet50", None, None),
        ("resnet50", "train-resnet18", 1.25),  # 5 / 4
        ("train-resnet18", "resnet50", None),  # It was not measured alone.
    ]


@pytest.mark.thorough
def test_pairs_are_measured_with_everybody_alone_and_each_cell_once() -> None:
    found = cells(["a", "b"])
    assert len(found) == len(set(found))
    # a, b and three trainings at four shares alone; a and b next to each training and a+b at four splits, a+a and b+b
    # at three, since 25 with 75 is 75 with 25 there.
    assert [len(cell.members) for cell in found].count(1) == 20
    assert [len(cell.members) for cell in found].count(2) == 34
    sums = {
        sum(member.sm_percent for member in cell.members)
        for cell in found
        if len(cell.members) == 2
    }
    assert sums == {100.0, 200.0}


@pytest.mark.thorough
def test_a_table_keeps_its_rows_and_writes_units_and_empty_cells(
    tmp_path: Path,
) -> None:
    path = tmp_path / "x.csv"
    table = Table(path, ("sm_percent", "latency_ms", "is_sure", "note"))
    assert not path.exists()
    table.add(
        {"sm_percent": 50.0, "latency_ms": 1.2345678, "is_sure": True, "note": "a, b"}
    )
    table.add({"sm_percent": 100.0, "latency_ms": None, "is_sure": False, "note": None})
    assert (
        path.read_text()
        == 'sm_percent,latency_ms,is_sure,note\n50,1.2346,yes,"a, b"\n100,,no,\n'
    )
    again = Table(path, ("sm_percent", "latency_ms", "is_sure", "note"))
    assert again.has(sm_percent=50.0) and again.has(sm_percent=100.0, latency_ms=None)
    assert not again.has(sm_percent=50.0, is_sure=False)
    with pytest.raises(
        DeviceError,
        match="has the columns sm_percent, latency_ms, is_sure, note; these scripts write a",
    ):
        Table(path, ("a",))


def test_the_reading_side_of_nvml_has_no_writer() -> None:
    writers = {"limit_power_w", "lock_clock_mhz", "unlock_clock"}
    assert writers <= set(dir(Nvml))
    # Another writer of NVML would have another name: whatever is added is looked at here.
    readers = "gpus driver_version sample power_w processes process_use check recovery watched_xids"
    own = {name for name in dir(ReadNvml) if not name.startswith("_")}
    assert own == {*readers.split(), "close", "without_processes"}


def write_set(folder: Path) -> None:
    """A synthetic set, as the scripts lay it out."""
    folder.mkdir()
    run = a_run(folder)
    solo = Table(folder / "solo.csv", SOLO_COLUMNS)
    grid = [
        ("resnet50", batch, share, 1.0 + batch * 50.0 / share)
        for batch in (8, 1)
        for share in (100.0, 50.0)
    ]
    solo.replace([solo_row(run, a_measurement(point)) for point in grid])
    pair = a_measurement(("resnet50", 8, 25.0, 5.0), ("train-resnet18", 32, 75.0, 60.0))
    Table(folder / "pairs.csv", PAIR_COLUMNS).replace(pair_rows(run, [pair]))


def test_a_set_is_read_as_samples_alone_and_beside_training(tmp_path: Path) -> None:
    write_set(tmp_path / "h200")
    assert own_sets(tmp_path) == (tmp_path / "h200",)
    samples = load_own(tmp_path / "h200")
    assert set(samples.at.network) == {"resnet50"}
    assert set(samples.at.gpu_type) == {"H200"}
    assert samples.at.batch.tolist() == [8.0, 8.0, 1.0, 1.0, 8.0]
    # 1 + 8 · 50 / 100 + 0.5 for the mean.
    assert samples.latency_ms[0] == 5.5
    assert [len(each) for each in samples.at.neighbours] == [0, 0, 0, 0, 1]
    assert samples.at.neighbours[4][0] == ("train-resnet18", 32.0, 75.0)
    assert samples.memory_mib[0] != samples.memory_mib[0], "not known is NaN"


def test_the_catalogue_reads_a_network_whose_source_is_a_set_of_ours(
    tmp_path: Path,
) -> None:
    write_set(tmp_path / "h200")
    facts = NetworkFacts(
        name="photo",
        source="h200",
        source_name="resnet50",
        parameters_mib=1.0,
        activations_mib=1.0,
        kernels=1,
    )
    points = read_points(tmp_path / "nowhere", facts, measured=tmp_path)
    assert [(each.batch, each.sm_percent, each.latency_ms) for each in points] == [
        *((1, 50.0, 2.5), (1, 100.0, 2.0), (8, 50.0, 9.5), (8, 100.0, 5.5))
    ]


def ask_client(
    *orders: dict[str, float], **environment: str
) -> list[dict[str, object]]:
    done = subprocess.run(
        [sys.executable, "-m", "bench.real_gpu.client"],
        input="".join(json.dumps(order) + "\n" for order in orders),
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        cwd=ROOT,
        timeout=PATIENCE_S,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_client_without_cuda_says_so() -> None:
    if Path("/usr/lib/x86_64-linux-gnu/libcuda.so.1").exists():
        pytest.skip("this machine has a driver")
    (said,) = ask_client([])
    assert said["error"] == -1
    assert "loading libcuda.so.1" in str(said["doing"])


@pytest.mark.thorough
def test_the_client_asks_cuda_for_sms_memory_and_work_and_tells_its_errors(
    tmp_path: Path,
) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: the fake for libcuda.so.1 cannot be built")
    flags = ["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
    library = tmp_path / "libcuda.so.1"
    source = Path(__file__).with_name("fakes") / "fake_cuda.c"
    subprocess.run([compiler, *flags, "-o", str(library), str(source)], check=True)
    hello, taken, again, worked = ask_client(
        *({"take": 4096}, {"take": 512}, {"work": 0.01}), LD_LIBRARY_PATH=str(tmp_path)
    )
    assert hello["sm_count"] == 52
    # The library grants 1 GiB, and has it all back afterwards.
    assert (taken, again) == ({"taken_mib": 1024}, {"taken_mib": 512})
    assert int(str(worked["rounds"])) > 0
    said = ask_client(
        *({"work": 60.0}, {"work": 60.0}),
        LD_LIBRARY_PATH=str(tmp_path),
        FAKE_CUDA_FAILS_AFTER="3",
    )
    assert said[1:] == [{"error": 810, "doing": "cuCtxSynchronize"}]
