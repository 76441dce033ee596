"""The tuning score by hand."""

import math

import pytest

from solvers.papers.oltunes.tuning_score import (
    ALPHA,
    BETA,
    GAMMA,
    best_types,
    latency_of,
    mean_latency_s,
    tune,
)
from solvers.types.jobs import JobDemand, JobOption, PowerFacts

BOARDS = {"big": PowerFacts(16384.0, 300.0), "small": PowerFacts(12288.0, 200.0)}


def an_option(
    gpu_type: str = "big",
    *,
    network: str = "net",
    accuracy: float = 0.7,
    sm_percent: float = 100.0,
    batch: int = 4,
    memory_mib: float = 4096.0,
    iteration_ms: float = 100.0,
) -> JobOption:
    return JobOption(
        network=network,
        accuracy=accuracy,
        gpu_type=gpu_type,
        sm_percent=sm_percent,
        batch=batch,
        clock_mhz=1000.0,
        memory_mib=memory_mib,
        iteration_ms=iteration_ms,
    )


def a_wish(
    *,
    weight: float = 0.75,
    inputs: int = 4,
    left_s: float = math.inf,
    load: float = 0.0,
) -> JobDemand:
    return JobDemand(weight=weight, inputs=inputs, left_s=left_s, load=load)


@pytest.mark.parametrize(
    ("big_ms", "small_ms", "sm_percent", "winner"),
    [(12e3, 19e3, 70.0, "small"), (2e3, 3.8e3, 20.0, "big")],
)
def test_under_load_the_papers_examples_come_out_as_its_text_says(
    big_ms: float, small_ms: float, sm_percent: float, winner: str
) -> None:
    # Half of each memory is used. Latency alone would choose `big` both times: λ = 0 and equal throughput per GPU
    # leave EPC to decide, so each option stands for one whole GPU's rate.
    options = [
        an_option("big", sm_percent=sm_percent, memory_mib=8192.0, iteration_ms=big_ms),
        an_option(
            "small", sm_percent=sm_percent, memory_mib=6144.0, iteration_ms=small_ms
        ),
    ]
    wish = a_wish(weight=0.5, load=1.0)
    by_type = {setting.gpu_type: setting for setting in tune(options, BOARDS, wish)}
    # n(1 / ŷ) and n(throughput) are 1 for `big` and 0 for `small`; n(EPC) is 1 for the higher one.
    assert by_type["big"].score == pytest.approx(
        1.0 - (BETA if winner == "small" else 0.0)
    )
    assert by_type["small"].score == pytest.approx(
        0.0 - (BETA if winner == "big" else 0.0)
    )


def test_the_score_by_hand() -> None:
    # 8 inputs. wide: 2 batches of 100 ms = 0.2 s; narrow: 2 of 250 ms = 0.5 s; middle: 0.25 s.
    # 1 / ŷ: 5, 2, 4 → n = 1, 0, 2/3. Jobs per GPU: 1, 4, 2; inputs/s per GPU: 40, 64, 64 → n = 0, 1, 1.
    # Slack of 1 s: 0.8, 0.5, 0.75.
    options = [
        an_option(sm_percent=100.0, iteration_ms=100.0),
        an_option(sm_percent=20.0, iteration_ms=250.0),
        an_option(sm_percent=50.0, iteration_ms=125.0),
    ]
    settings = {
        one.sm_percent: one
        for one in tune(options, BOARDS, a_wish(weight=0.75, inputs=8, left_s=1.0))
    }
    assert settings[100.0].score == pytest.approx(0.75 + 0.8 * ALPHA)
    assert settings[20.0].score == pytest.approx(0.25 + 0.5 * ALPHA)
    assert settings[50.0].score == pytest.approx(0.75 * 2 / 3 + 0.25 + 0.75 * ALPHA)
    assert settings[50.0].gpu_throughput_rps == pytest.approx(64.0)


def test_a_latency_critical_job_gets_speed_another_one_efficiency() -> None:
    options = [
        an_option(sm_percent=100.0, iteration_ms=100.0),
        an_option(sm_percent=25.0, iteration_ms=150.0),
    ]
    assert tune(options, BOARDS, a_wish(weight=0.9))[0].sm_percent == 100.0
    assert tune(options, BOARDS, a_wish(weight=0.1))[0].sm_percent == 25.0


def test_an_idle_fleet_takes_the_accurate_variant_a_full_one_the_light_one() -> None:
    options = [
        an_option(network="large", accuracy=0.80, iteration_ms=100.0),
        an_option(network="light", accuracy=0.78, iteration_ms=90.0),
    ]
    idle = tune(options, BOARDS, a_wish(weight=0.0, load=0.0))
    # Of `light` n(throughput) is 1 and its loss 1: 1 − γ. Of `large` both are 0.
    assert {one.network: one.score for one in idle} == {
        "light": pytest.approx(1.0 - GAMMA),
        "large": 0.0,
    }
    full = tune(options, BOARDS, a_wish(weight=0.0, load=1.0))
    # No loss counts any more; the higher EPC is that of `large`.
    assert {one.network: one.score for one in full} == {
        "light": pytest.approx(1.0),
        "large": pytest.approx(-BETA),
    }


def test_batches_beyond_the_inputs_are_left_out() -> None:
    options = [an_option(batch=batch) for batch in (1, 2, 4, 8)]
    assert {one.batch for one in tune(options, BOARDS, a_wish(inputs=3))} == {1, 2, 4}
    assert {one.batch for one in tune(options, BOARDS, a_wish(inputs=100))} == {
        1,
        2,
        4,
        8,
    }
    assert {one.batch for one in tune(options[3:], BOARDS, a_wish(inputs=1))} == {8}


def test_what_fits_no_memory_or_unknown_boards_is_left_out() -> None:
    assert (
        tune([an_option(memory_mib=20000.0), an_option("other")], BOARDS, a_wish())
        == ()
    )
    assert tune([], BOARDS, a_wish()) == ()


def test_latency_counts_whole_batches() -> None:
    assert latency_of(an_option(batch=4, iteration_ms=100.0), 9) == pytest.approx(0.3)


def test_two_gpu_types_are_kept_and_their_latencies_averaged() -> None:
    boards = {**BOARDS, "third": PowerFacts(16384.0, 300.0)}
    options = [
        an_option("big", iteration_ms=100.0),
        an_option("small", iteration_ms=200.0),
        an_option("third", iteration_ms=900.0),
    ]
    settings = tune(options, boards, a_wish(weight=1.0))
    assert best_types(settings) == ("big", "small")
    assert mean_latency_s(settings, best_types(settings)) == pytest.approx(0.15)
