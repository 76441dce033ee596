"""`plimsoll samples convert`: other tools' results to what `plimsoll fit` reads."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis.strategies import floats, integers, sampled_from

from app.cli.common.manifest_files import read_manifests
from app.manifests.objects import Network
from app.measurements.csv_files import read_samples
from tests.app.runner import cli
from tests.examples import examples

DATA = Path(__file__).parents[3] / "data" / "measurements"
PERF = (
    *("--format", "perf-analyzer", "--gpu-type", "V100"),
    *("--network", "resnet50", "--batch", "8"),
)


def test_a_converted_file_is_read_by_fit(tmp_path: Path) -> None:
    out = tmp_path / "samples.csv"
    knobs = (
        "--sm-percent",
        "40",
        "--clock-mhz",
        "1380",
        "--time-quota-percent",
        "50",
        "--power-limit-w",
        "200",
    )
    result = cli(
        "samples convert", DATA / "perf_analyzer.csv", *PERF, *knobs, "-o", out
    )
    assert (result.code, result.out, result.err) == (0, f"Wrote {out}\n", "3 samples\n")
    assert out.read_text().splitlines()[:2] == [
        "network,gpu_type,batch,sm_percent,time_quota_percent,clock_mhz,power_limit_w,latency_ms,power_w,memory_mib",
        "resnet50,V100,8,40,50,1380,200,8.179,181.4,1704",
    ]
    assert read_samples([out]).samples.latency_ms.tolist() == [8.179, 8.221, 8.226]


def test_every_tool_has_its_format() -> None:
    model_analyzer = cli(
        *(
            "samples",
            "convert",
            DATA / "metrics-model-inference.csv",
            "--format",
            "model-analyzer",
        ),
        *("--gpu-type", "T4", "--gpu-metrics", DATA / "metrics-model-gpu.csv"),
    )
    assert model_analyzer.out.splitlines()[1].startswith(
        "resnet50_onnx,T4,1,100,4.2,121,1704."
    )
    vllm = cli(
        "samples convert - --format vllm --gpu-type H100",
        stdin=(DATA / "vllm_serve.json").read_text(),
    )
    assert vllm.out.splitlines()[1] == "Llama-3.1-8B-Instruct,H100,7.96705823,100,1693"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (
            ("--format", "perf-analyzer", "--gpu-type", "V100"),
            1,
            "say it with --network",
        ),
        (("--format", "vllm", "--gpu-type", "V100"), 1, "csv:1:1: not JSON"),
        (("--format", "csv", "--gpu-type", "V100"), 2, "--format"),
        (("--format", "vllm"), 2, "--gpu-type"),
        ((*PERF, "--gpu-metrics", "x.csv"), 2, "perf-analyzer has no such file"),
        ((*PERF, "--sm-percent", "101"), 2, "--sm-percent"),
    ],
)
def test_what_is_missing_or_wrong_is_named(
    arguments: tuple[str, ...], code: int, words: str
) -> None:
    result = cli("samples convert", DATA / "perf_analyzer.csv", *arguments)
    assert (result.code, result.out) == (code, "")
    assert words in result.err


def test_benchmarks_of_a_language_model_become_a_network(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    run = {
        "max_concurrency": 32,
        "completed": 100,
        "total_input_tokens": 100_000,
        "total_output_tokens": 20_000,
        "mean_tpot_ms": 25.0,
    }
    path.write_text(json.dumps(run))
    words = ("--network", "Llama-3.1-70B", "--gpu-type", "H100", "--tp", "2")

    made = cli("samples runs", path, path, *words, "--dtype", "fp8")

    assert made.code == 0, made.err
    manifest = Network.model_validate(yaml.safe_load(made.out))
    assert [each.model_dump() for each in manifest.spec.runs] == [
        {
            "gpu_type": "H100",
            "tp": 2,
            "dtype": "fp8",
            "clients": 32.0,
            "prompt_tokens": 1000.0,
            "output_tokens": 200.0,
            "tpot_ms": 25.0,
        }
    ] * 2
    assert "must be 1, 2, 4 or 8" in cli("samples runs", path, *words[:-1], "3").err
    path.write_text("{}")
    assert "is no result of" in cli("samples runs", path, *words).err


@given(
    clients=floats(0.01, 1e6),
    completed=integers(1, 1000),
    prompt=floats(0.1, 3e6),
    output=floats(0.1, 3e6),
    tpot_ms=floats(1e-7, 1e8),
    name=sampled_from(["llama", "Llama-3.1-70B", "a b", "", "x" * 300]),
)
@example(clients=8.0, completed=100, prompt=8e2, output=1e2, tpot_ms=20.0, name="llama")
@settings(max_examples=examples(40), deadline=None)
def test_a_manifest_is_printed_only_if_it_would_be_applied(
    clients: float,
    completed: int,
    prompt: float,
    output: float,
    tpot_ms: float,
    name: str,
) -> None:
    run = {
        "max_concurrency": clients,
        "completed": completed,
        "total_input_tokens": prompt * completed,
        "total_output_tokens": output * completed,
        "mean_tpot_ms": tpot_ms,
    }
    words = ("--network", name, "--gpu-type", "H100")

    made = cli("samples runs -", *words, stdin=json.dumps(run))

    if made.code == 0:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "network.yaml"
            path.write_text(made.out)
            # As `plimsoll apply` reads it.
            assert len(read_manifests([path])) == 1
    else:
        assert (made.code, made.out) == (1, "")
        assert made.err.startswith("Error: ")


def test_failures_are_said_on_stderr(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    run = {
        "max_concurrency": 32,
        "completed": 100,
        "failed": 3,
        "total_input_tokens": 100_000,
        "total_output_tokens": 20_000,
        "mean_tpot_ms": 25.0,
    }
    path.write_text(json.dumps(run))
    made = cli("samples runs", path, "--network", "n", "--gpu-type", "H100")
    assert yaml.safe_load(made.out)["spec"]["runs"][0]["clients"] == 32.0
    assert "Note: " in made.err
    assert "3 of 103 requests failed, and are left out" in made.err
