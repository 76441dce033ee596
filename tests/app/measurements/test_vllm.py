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
            "run.json:1:27: mean_e2el_ms: must be a number abo",
        ),
        (
            '{"request_throughput": 2, "model_id": "m", "mean_e2el_ms": 1'
            + "0" * 400
            + "}",
            "run.json:1:44: mean_e2el_ms: must be a number abo",
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


SERVED = {
    "model_id": "m",
    "completed": 100,
    "max_concurrency": 16,
    "request_throughput": 4.0,
    "total_output_tokens": 20_000,
    "mean_e2el_ms": 3000.0,
    "mean_tpot_ms": 14.0,
}


def test_the_network_of_an_offline_file_is_known_since_it_says_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "latency.json"
    path.write_text(json.dumps({"avg_latency": 1.5, "model_id": "meta/Llama-3"}))
    samples = read_vllm(path, BenchmarkConditions(gpu_type="H100", batch=8)).samples
    assert (samples.at.network, samples.latency_ms.tolist()) == (("Llama-3",), [1500.0])


@pytest.mark.parametrize(
    "others",
    [
        {"latencies": [0.1, 0.2]},
        {"percentiles": {"10": 0.1, "99": 0.05}},
    ],
)
def test_times_of_an_offline_file_that_contradict_each_other_are_refused(
    tmp_path: Path, others: dict[str, object]
) -> None:
    path = tmp_path / "latency.json"
    path.write_text(json.dumps({"avg_latency": 1.5, "model_id": "a/b", **others}))
    with pytest.raises(InvalidRequest, match="such figures cannot be used"):
        read_vllm(path, BenchmarkConditions(gpu_type="H100", batch=8))


def test_sglang_s_name_of_a_request_s_time_is_known(tmp_path: Path) -> None:
    path = tmp_path / "sglang.jsonl"
    line = {
        **SERVED,
        "mean_e2el_ms": None,
        "mean_e2e_latency_ms": 3000.0,
        "request_rate": float("inf"),
    }
    path.write_text(f"{json.dumps(line)}\n{json.dumps(line)}\n")
    samples = read_vllm(path, H100).samples
    assert samples.latency_ms.tolist() == [3000.0, 3000.0]
    assert samples.at.batch.tolist() == [12.0, 12.0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"completed": 12, "failed": 188}, "completed: 188 of 200 requests failed"),
        ({"completed": 12, "num_prompts": 200}, "188 of 200 requests failed"),
        (
            {"mean_e2el_ms": 30_000.0},
            "are 120 at a time, more than the 16 of the clients",
        ),
        (
            {"median_e2el_ms": 9000.0, "p99_e2el_ms": 3000.0},
            "the median is 9000, above p99",
        ),
        ({"output_throughput": 80.0}, "are 800 tokens per second, not 80"),
    ],
)
def test_a_result_that_says_nothing_true_of_its_server_is_refused(
    tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(SERVED | changes))
    with pytest.raises(InvalidRequest) as raised:
        read_vllm(path, H100)
    assert words in str(raised.value)


def test_failures_are_noted_by_the_sample(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(f"{json.dumps(SERVED)}\n{json.dumps({**SERVED, 'failed': 2})}")
    assert read_vllm(path, H100).notes == (
        "sample 2: 2 of 102 requests failed, and are left out",
    )
