"""Parts of the measuring scripts that need no processes of a node: figures, files, engines, the client's calls."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from agents.base.device import LaunchFailed
from agents.gpu.nvml.session import Nvml
from agents.gpu.nvml.types import GpuIdentity
from agents.profiling.bench import make_inputs
from agents.profiling.cells import Member, make_cell
from agents.profiling.journal import Measurement, Timing
from agents.serving.engines.engine import Signature
from bench.catalogue.measured import NetworkFacts, read_points
from bench.measured_sets import load_own, own_sets
from bench.real_gpu.networks import TorchNetwork
from bench.real_gpu.pairs import COLUMNS as PAIR_COLUMNS
from bench.real_gpu.pairs import pair_rows
from bench.real_gpu.reading import ReadNvml
from bench.real_gpu.run import Options, Run
from bench.real_gpu.share import differences_percent
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
    cell = make_cell(
        [
            Member(network=name, batch=batch, sm_percent=share)
            for name, batch, share, _ in members
        ]
    )
    by_member = {
        Member(network=name, batch=batch, sm_percent=share): ms
        for name, batch, share, ms in members
    }
    return Measurement(
        cell=cell,
        timings=tuple(
            Timing(
                member=member,
                latency_ms=by_member[member] + 0.5,
                latency_ms_p50=by_member[member],
                latency_ms_p99=2.0 * by_member[member],
                batches=199,
                spread=0.01,
                memory_mib=None,
                sm_count=66,
            )
            for member in cell.members
        ),
        power_w=300.0,
        clock_mhz=1980.0,
        windows=3,
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


def test_a_row_alone_says_the_condition_the_figures_and_that_its_p99_is_thin(
    tmp_path: Path,
) -> None:
    row = solo_row(a_run(tmp_path), a_measurement(("resnet50", 8, 50.0, 4.0)))
    assert tuple(row) == SOLO_COLUMNS
    assert (row["network"], row["gpu_type"], row["batch"], row["sm_percent"]) == (
        "resnet50",
        "H200",
        8,
        50.0,
    )
    assert (row["latency_ms_mean"], row["latency_ms_p50"], row["latency_ms_p99"]) == (
        4.5,
        4.0,
        8.0,
    )
    assert (row["p99_is_indicative"], row["spread_percent"], row["memory_mib"]) == (
        True,
        1.0,
        None,
    )


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


def test_the_reading_side_of_nvml_has_no_writer() -> None:
    own = {name for name in dir(ReadNvml) if not name.startswith("_")}
    writers = {"limit_power_w", "lock_clock_mhz", "unlock_clock"}
    assert writers <= set(dir(Nvml))
    assert not own & writers
    assert own == {
        *(
            "gpus",
            "driver_version",
            "sample",
            "power_w",
            "processes",
            "process_use",
            "check",
            "watched_xids",
            "close",
            "without_processes",
        )
    }


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


@pytest.fixture
def torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchvision.models with one small network, which must be asked for without weights."""
    torch = pytest.importorskip("torch")
    module = ModuleType("torchvision.models")

    def resnet18(*, weights: object) -> object:
        assert weights is None
        pool = torch.nn.AdaptiveAvgPool2d(1)
        return torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3, stride=8),
            torch.nn.BatchNorm2d(4),
            pool,
            torch.nn.Flatten(),
        )

    module.resnet18 = resnet18  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchvision", ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.models", module)


@pytest.mark.usefixtures("torchvision")
def test_a_network_runs_in_half_precision_and_its_batch_changes() -> None:
    network = TorchNetwork(name="resnet18", device="cpu")
    assert network.load() == Signature()
    for rows in (1, 3):
        inputs = make_inputs(Signature(), rows)[0]
        assert network.run(inputs) == inputs
        answer = network._step(0)  # type: ignore[misc]
        assert tuple(answer.shape) == (rows, 4)  # type: ignore[attr-defined]
        assert str(answer.dtype) == "torch.float16"  # type: ignore[attr-defined]
    network.offload()
    network.resume()
    network.warm_up(2)
    assert network.facts().device == "cpu"


def test_without_a_gpu_or_a_network_of_that_name_it_says_so(torchvision: None) -> None:
    with pytest.raises(
        LaunchFailed, match=r"torchvision.models has no network 'resnet99'"
    ):
        TorchNetwork(name="resnet99", device="cpu").load()
    if not sys.modules["torch"].cuda.is_available():
        with pytest.raises(LaunchFailed, match="PyTorch sees no GPU"):
            TorchNetwork(name="resnet18").load()


@pytest.fixture(scope="session")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the fake libcuda.so.1."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: the fake for libcuda.so.1 cannot be built")
    folder = tmp_path_factory.mktemp("cuda")
    flags = ["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
    source = Path(__file__).with_name("fakes") / "fake_cuda.c"
    subprocess.run(
        [compiler, *flags, "-o", str(folder / "libcuda.so.1"), str(source)], check=True
    )
    return folder


def ask_client(
    orders: list[dict[str, float]], **environment: str
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


def test_the_client_asks_cuda_for_sms_memory_and_work(cuda: Path) -> None:
    hello, taken, again, worked = ask_client(
        [{"take": 4096}, {"take": 512}, {"work": 0.01}], LD_LIBRARY_PATH=str(cuda)
    )
    assert hello["sm_count"] == 52
    # The library grants 1 GiB, and has it all back afterwards.
    assert (taken, again) == ({"taken_mib": 1024}, {"taken_mib": 512})
    assert int(str(worked["rounds"])) > 0


def test_a_client_without_cuda_says_so() -> None:
    if Path("/usr/lib/x86_64-linux-gnu/libcuda.so.1").exists():
        pytest.skip("this machine has a driver")
    (said,) = ask_client([])
    assert said["error"] == -1
    assert "loading libcuda.so.1" in str(said["doing"])
