"""Triton perf_analyzer's CSV: mapping, units, refusals."""

from pathlib import Path

import numpy as np
import pytest

from app.base.errors import InvalidRequest
from app.measurements.benchmarks import BenchmarkConditions, Latency
from app.measurements.perf_analyzer import read_perf_analyzer

FILE = Path(__file__).parents[2] / "data" / "measurements" / "perf_analyzer.csv"
RESNET = BenchmarkConditions(
    gpu_type="V100", network="resnet50", batch=8, sm_percent=40, clock_mhz=1380
)
OLD = "Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,Server Compute,Client Recv"


def write(folder: Path, text: str) -> Path:
    path = folder / "perf.csv"
    path.write_text(text)
    return path


def test_the_server_s_compute_time_is_the_latency_in_ms() -> None:
    imported = read_perf_analyzer(FILE, RESNET)
    samples = imported.samples
    assert samples.latency_ms.tolist() == pytest.approx(
        [8.179, 8.221, 8.226]
    )  # (212 + 7948 + 19) µs and so on
    assert samples.power_w.tolist() == [181.4, 203.9, 204.2]
    assert samples.memory_mib.tolist() == [1704.0] * 3  # 1,786,773,504 bytes
    at = samples.at
    assert (
        at.network[0],
        at.gpu_type[0],
        at.batch[0],
        at.sm_percent[0],
        at.clock_mhz[0],
    ) == (
        *("resnet50", "V100"),
        *(8, 40, 1380),
    )
    assert imported.notes == ()
    alone = read_perf_analyzer(FILE, RESNET, latency=Latency.CLIENT)
    assert alone.samples.latency_ms.tolist() == [9.604]
    assert alone.notes[0].startswith("left out 2 of 3 rows, with more than one request")


def test_older_files_have_one_compute_column(tmp_path: Path) -> None:
    path = write(tmp_path, f"{OLD},p50 latency\n1,160.8,68,1291,38,4801,7,6212\n")
    assert read_perf_analyzer(path, RESNET).samples.latency_ms.tolist() == [4.801]
    assert read_perf_analyzer(
        path, RESNET, latency=Latency.CLIENT
    ).samples.latency_ms.tolist() == [6.212]


def test_figures_of_several_gpus_are_left_out(tmp_path: Path) -> None:
    header = f"{OLD},Avg GPU Power Usage,Max GPU Memory Usage"
    row = "1,160.8,68,1291,38,4801,7,GPU-a:80;GPU-b:20;,GPU-a:1048576;"
    imported = read_perf_analyzer(write(tmp_path, f"{header}\n{row}\n"), RESNET)
    assert np.isnan(imported.samples.power_w[0])
    assert imported.samples.memory_mib[0] == 1
    assert "they were measured on several GPUs" in imported.notes[0]


@pytest.mark.parametrize(
    ("text", "latency", "words"),
    [
        ("Model,Batch\nx,1\n", Latency.SERVER, "perf.csv:1: the header lacks the"),
        (
            f"{OLD}\n1,160.8,68,1291,38,fast,7\n",
            Latency.SERVER,
            "perf.csv:2: column Server Compute: must be a number",
        ),
        (
            f"{OLD}\n1,1,68,1291,38,5,7\n2,1,6,1,3,0,7\n",
            Latency.SERVER,
            "perf.csv:3: column Server Compute: the server",
        ),
        (
            "Concurrency,Inferences/Second\n1,9\n",
            Latency.CLIENT,
            "neither a column Avg latency nor p50 latency",
        ),
        (
            "Concurrency,Inferences/Second\n1,9\n",
            Latency.SERVER,
            "column Server Compute Infer: there is no column",
        ),
        (
            "Request Rate,Inferences/Second,p50 latency\n9,9,900\n",
            Latency.CLIENT,
            "perf.csv: no measurement can be used; left out 1 of 1 rows, measured at a request rate: how many requests",
        ),
        (
            f"{OLD},Avg GPU Power Usage\n1,1,6,1,3,5,7,GPU-a:much;\n",
            Latency.SERVER,
            "2: column Avg GPU Power Usage",
        ),
        (OLD, Latency.SERVER, "there are no rows"),
        (f"{OLD}\n1,1,6,1,3,5,7\n", Latency.TOKEN, "perf_analyzer does not tell the"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(
    tmp_path: Path, text: str, latency: Latency, words: str
) -> None:
    with pytest.raises(InvalidRequest) as raised:
        read_perf_analyzer(write(tmp_path, text), RESNET, latency=latency)
    assert words in str(raised.value)


NEW = (
    "Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,Server Compute Input,"
    "Server Compute Infer,Server Compute Output,Client Recv,p50 latency,p90 latency,p95 latency,p99 latency"
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        # A counter that ran below 0, as one user met it.
        (
            f"{NEW}\n1,8.8,1093,1,124,3725,776538442544,72,435,113176,123916,126632,155897\n",
            "perf.csv:2: column Server Compute Infer: the server took 7.76538e+11 µs",
        ),
        (
            f"{NEW}\n1,8.8,1093,1,18446744073709,3725,9000,72,435,113176,123916,126632,155897\n",
            "column Server Queue: the server took 1.84467e+13 µs",
        ),
        (
            f"{NEW},Avg latency\n1,8.8,10,1,12,30,90000,72,43,113176,123916,126632,155897,60000\n",
            "its clients waited for at most 63000 µs",
        ),
        (
            f"{NEW}\n1,8.8,10,1,12,30,900,72,43,113176,123916,9000,155897\n",
            "p90 is 123916, above p95",
        ),
        # 160 inferences in batches of 8 are 20 batches; one at a time they take at most 50 ms.
        (
            f"{OLD},p50 latency,Avg latency\n1,160,68,1291,38,4801,7,90000,90000\n",
            "is --batch the tool's -b?",
        ),
    ],
)
def test_a_row_that_contradicts_itself_is_refused(
    tmp_path: Path, text: str, words: str
) -> None:
    with pytest.raises(InvalidRequest) as raised:
        read_perf_analyzer(write(tmp_path, text), RESNET)
    assert words in str(raised.value)


def test_the_client_s_time_does_not_depend_on_the_server_s(tmp_path: Path) -> None:
    text = f"{NEW},Avg latency\n1,8.8,1,1,1,1,776538442544,1,1,113176,123916,126632,155897,112000\n"
    imported = read_perf_analyzer(write(tmp_path, text), RESNET, latency=Latency.CLIENT)
    assert imported.samples.latency_ms.tolist() == [112.0]
