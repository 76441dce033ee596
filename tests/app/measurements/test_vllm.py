"""vLLM's JSON results: mapping, Little's law, refusals with line and column."""

import json
from pathlib import Path

import pytest

from app.base.errors import InvalidRequest
from app.measurements.benchmarks import BenchmarkConditions, Latency
from app.measurements.vllm import read_vllm

DATA = Path(__file__).parents[2] / "data" / "measurements"
SERVE, OFFLINE = DATA / "vllm_serve.json", DATA / "vllm_latency.json"
H100 = BenchmarkConditions(gpu_type="H100")


def test_serving_results_become_a_sample_each_with_the_mean_batch() -> None:
    samples = read_vllm(SERVE, H100).samples
    assert samples.at.network == ("Llama-3.1-8B-Instruct",) * 2
    # Without mean_e2el_ms: first token, and 127 more of them; 128 = 25600 / 200.
    assert samples.latency_ms.tolist() == pytest.approx([118.2 + 127 * 12.4, 2201.5])
    assert samples.at.batch.tolist() == pytest.approx(
        [4.705882 * 1.693, 14.084507 * 2.2015]
    )
    rates = 1000 * samples.at.batch / samples.latency_ms
    assert rates.tolist() == pytest.approx([4.705882, 14.084507])
    tokens = read_vllm(SERVE, H100, latency=Latency.TOKEN).samples
    assert tokens.latency_ms.tolist() == [12.4, 15.3]
    assert tokens.at.batch.tolist() == samples.at.batch.tolist()


def test_an_offline_batch_is_given_in_seconds() -> None:
    samples = read_vllm(
        OFFLINE,
        BenchmarkConditions(gpu_type="H100", network="llama", batch=16, sm_percent=50),
    ).samples
    assert (samples.latency_ms[0], samples.at.batch[0]) == (pytest.approx(1642.3), 16)


def test_what_an_offline_file_does_not_say_must_be_given() -> None:
    with pytest.raises(InvalidRequest, match="say it with --network"):
        read_vllm(OFFLINE, BenchmarkConditions(gpu_type="H100", batch=16))
    with pytest.raises(InvalidRequest, match="say it with --batch"):
        read_vllm(OFFLINE, BenchmarkConditions(gpu_type="H100", network="llama"))
    with pytest.raises(
        InvalidRequest, match="vllm bench latency does not tell the token latency"
    ):
        read_vllm(
            OFFLINE,
            BenchmarkConditions(gpu_type="H100", network="llama", batch=1),
            latency=Latency.TOKEN,
        )


def test_a_request_of_one_token_ends_with_its_first(tmp_path: Path) -> None:
    single = {
        "total_output_tokens": 200,
        "output_throughput": 4.706,
        "mean_tpot_ms": 0.0,
    }
    path = tmp_path / "one.json"
    first, *_ = SERVE.read_text().splitlines()
    path.write_text(json.dumps(json.loads(first) | single))
    samples = read_vllm(path, H100).samples
    assert samples.latency_ms.tolist() == [118.2]
    # 0.56 under way on average; no batch is smaller than 1.
    assert samples.at.batch.tolist() == [1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "run.json: the file is empty"),
        ('{"model_id": "m",\n', "run.json:2:1: not JSON: Expecting property name"),
        ('{"avg_latency": 1}\n[1]', "run.json:2:1: document: must be an object, not"),
        ('{"tokens_per_second": 9}', "run.json:1:1: request_throughput: neither"),
        (
            '{\n "model_id": "m",\n "request_throughput": -2,\n "mean_e2el_ms": 5}',
            "run.json:3:2: request_throughput: must be",
        ),
        (
            '{"request_throughput": 2, "mean_e2el_ms": NaN, "model_id": "m"}',
            "run.json:1:27: mean_e2el_ms: must be abo",
        ),
        (
            '{"request_throughput": 2, "mean_e2el_ms": 5}',
            "run.json:1:1: model_id: must name the network",
        ),
        (
            '{"request_throughput": 2, "completed": 0, "total_output_tokens": 5, "model_id": "m"}',
            "completed: must be",
        ),
        (
            '{"request_throughput": 2, "mean_e2el_ms": "5", "model_id": "m"}',
            "must be a number above 0, not '5'",
        ),
        (
            '{"request_throughput": 2, "mean_e2el_ms": 5, "model_id": "/"}',
            "run.json:1:46: model_id: must name",
        ),
        ("[" * 100_000, "run.json: not JSON that can be read"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_line_and_column(
    tmp_path: Path, text: str, words: str
) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(InvalidRequest) as raised:
        read_vllm(path, BenchmarkConditions(gpu_type="H100", batch=1))
    assert words in str(raised.value)
