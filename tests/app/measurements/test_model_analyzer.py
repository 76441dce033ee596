"""Triton Model Analyzer's CSV files: mapping, what is left out, refusals."""

from pathlib import Path

import numpy as np
import pytest

from app.base.errors import InvalidRequest
from app.measurements.benchmarks import BenchmarkConditions, Latency
from app.measurements.model_analyzer import read_model_analyzer

DATA = Path(__file__).parents[2] / "data" / "measurements"
INFERENCE, GPU = DATA / "metrics-model-inference.csv", DATA / "metrics-model-gpu.csv"
T4 = BenchmarkConditions(gpu_type="T4")


def test_rows_of_one_instance_and_known_batch_become_samples() -> None:
    imported = read_model_analyzer(INFERENCE, T4, gpu_metrics=GPU)
    samples = imported.samples
    assert samples.at.network == ("resnet50_onnx",) * 3
    assert samples.at.batch.tolist() == [
        1,
        8,
        8,
    ]  # the last one waited, but batches cannot grow beyond 8
    assert samples.latency_ms.tolist() == pytest.approx([4.2, 19.1, 19.4])
    assert samples.power_w[0] == 121
    assert np.isnan(
        samples.power_w[1:]
    ).all()  # 0 W is no measurement, and the last row has no figures
    assert samples.memory_mib[:2].tolist() == pytest.approx(
        [1786.8e6 / 2**20, 2210.4e6 / 2**20]
    )
    assert [note.partition(",")[0] for note in imported.notes] == [
        "left out 2 of 6 rows",
        "left out 1 of 6 rows",
    ]
    alone = read_model_analyzer(INFERENCE, T4, latency=Latency.CLIENT).samples
    assert alone.latency_ms.tolist() == [4.7, 19.8]


def edited(folder: Path, source: Path, old: str, new: str) -> Path:
    path = folder / source.name
    assert old in source.read_text()
    path.write_text(source.read_text().replace(old, new))
    return path


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "Server Compute Infer time (ms)",
            "RAM Usage (MB)",
            "column Server Compute Infer time (ms): the server's comp",
        ),
        ("Instance Group", "Preferred Batch Sizes", ":1: the header lacks the column"),
        (
            "resnet50_onnx,8,1,resnet50_onnx_config_0",
            '"a,b","8,8",1,x',
            ":3: column Batch: must be a number",
        ),
        (",Yes,212.4,", ",Yes,2124,", "at a time, more than the 1 of the clients"),
        (",0.1,4.1,0.0", ",0.0,0.0,0.0", ":2: column Server Compute Infer time (ms)"),
        ("1:GPU", "2:GPU", "no measurement can be used; left out 6 of 6 rows, without"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(
    tmp_path: Path, old: str, new: str, words: str
) -> None:
    with pytest.raises(InvalidRequest) as raised:
        read_model_analyzer(edited(tmp_path, INFERENCE, old, new), T4)
    assert words in str(raised.value)


def test_without_the_largest_batch_only_rows_without_waiting_are_taken(
    tmp_path: Path,
) -> None:
    path = edited(tmp_path, INFERENCE, "Max Batch Size", "Dynamic Batching")
    assert read_model_analyzer(path, T4).samples.at.batch.tolist() == [1, 8]


def test_a_measurement_on_two_gpus_is_refused(tmp_path: Path) -> None:
    path = edited(tmp_path, GPU, "config_0,1:GPU", "config_default,1:GPU")
    path = edited(tmp_path, path, ",8,1,", ",1,1,")
    with pytest.raises(InvalidRequest, match=r"gpu.csv:3: column GPU UUID: a second"):
        read_model_analyzer(INFERENCE, T4, gpu_metrics=path)
