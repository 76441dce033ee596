"""Language models in the production loop, on engines whose steps are sums of measured kernels."""

from pathlib import Path
from typing import Any

import pytest

from app.simulate.run.build import shipped_catalogue
from app.simulate.run.results import RunResult
from app.simulate.run.run import jobs_of, simulate
from tests.app.runs import MODEL, a_scenario

NODES = {
    "name": "h100",
    "gpu_type": "H100",
    "nodes": 2,
    "gpus_per_node": 2,
    "launch_s": 20,
}
LARGE = {
    **MODEL,
    "name": "writer",
    "network": "Qwen3-32B",
    "slo": {"ttft_ms": 3000, "itl_ms": 80, "percentile": 0.9},
    "llm": {
        "lengths": {"prompt": 600, "output": 100, "spread": 0.3},
        "max_model_len": 4096,
        "tp": 2,
    },
    "load": {"rate_rps": 1},
}
SMALL = {
    **MODEL,
    "llm": {"lengths": {"prompt": 400, "output": 60}, "max_model_len": 4096},
}


def run(**changes: Any) -> RunResult:
    """Three minutes after one of warm-up, under `joint`."""
    scenario = a_scenario(
        **{
            "duration_s": 240,
            "warm_up_s": 60,
            "step_s": 30,
            "policies": ["joint"],
            "fleet": [NODES],
            "services": [LARGE],
            **changes,
        }
    )
    (job,) = jobs_of(scenario, shipped_catalogue(scenario), Path())
    return simulate(job)


def test_a_replica_over_two_gpus_serves_and_both_are_paid_and_draw_power() -> None:
    done = run(duration_s=150)
    (service,) = done.services
    assert service.attainment is not None
    assert service.attainment >= 0.9
    # Every answer that finished has its tokens, a hundred on average.
    assert 70 < service.output_tokens / service.served < 130
    price = 6.88
    hours = done.gpu_hours["H100"]
    assert hours == pytest.approx(2 * done.counted_s / 3600.0)
    assert done.cost_usd == pytest.approx(price * hours)
    assert service.cost_usd == pytest.approx(done.cost_usd)
    # Each of both draws between idle and its limit.
    mean_w = 1000.0 * done.energy_kwh / hours
    assert 70.0 < mean_w < 700.0


def test_a_lost_node_is_replaced() -> None:
    done = run(
        duration_s=330,
        faults=[{"kind": "node_lost", "node": "busiest", "start_s": 150}],
    )
    (service,) = done.services
    assert service.judged > service.in_slo
    series = done.series.services["writer"].replicas
    assert series[2:] != [1] * len(series[2:])
    # The other node takes over when it has loaded the weights.
    assert series[-1] == 1
    assert done.series.services["writer"].attainment[-1] == 1.0


@pytest.mark.thorough
def test_enough_is_left_of_a_model_that_survives_the_loss_of_a_node() -> None:
    done = run(
        services=[{**LARGE, "survive": "node"}],
        faults=[{"kind": "node_lost", "node": "busiest", "start_s": 150}],
    )
    (service,) = done.services
    assert done.series.services["writer"].replicas[0] == 2
    assert service.attainment is not None
    assert service.attainment >= 0.95


@pytest.mark.thorough
def test_both_kinds_of_services_share_a_fleet() -> None:
    classify = {
        "name": "classify",
        "network": "resnet50",
        "slo": {"latency_ms": 300, "percentile": 0.98},
        "load": {"rate_rps": 60},
    }
    done = run(services=[SMALL, classify])
    assert [each.service for each in done.services] == ["chat", "classify"]
    assert all((each.attainment or 0.0) >= each.percentile for each in done.services)


@pytest.mark.thorough
def test_slow_gpus_make_late_tokens_and_stop_nothing() -> None:
    slow = {"kind": "straggler", "node": "busiest", "start_s": 60, "factor": 6.0}
    done = run(faults=[slow]).series.services["writer"]
    assert done.attainment[0] == 0.0
    # So slow is a fault and no model: it says nothing of what replicas elsewhere would carry.
    assert min(done.replicas) >= 1
    assert done.served_rps[-1] > 0.5


@pytest.mark.thorough
def test_lengths_that_nobody_stated_are_learned() -> None:
    short = {"rate_rps": 18, "lengths": {"prompt": 200, "output": 40}}
    stated = {"prompt": 1155, "output": 211}
    learning, believing = (
        run(
            services=[{**MODEL, "llm": {**llm, "max_model_len": 8192}, "load": short}],
            duration_s=300,
        )
        for llm in ({}, {"lengths": stated})
    )
    # Conversations, which a service is taken for until its replicas have counted, would need another GPU.
    assert learning.series.services["chat"].replicas[-1] == 1
    assert believing.series.services["chat"].replicas[-1] == 2
    assert learning.services[0].attainment == 1.0


@pytest.mark.thorough
def test_longer_requests_than_thought_get_more_gpus() -> None:
    long = {"rate_rps": 8, "lengths": {"prompt": 2400, "output": 500, "spread": 0.8}}
    done = run(
        services=[{**MODEL, "llm": {"max_model_len": 8192}, "load": long}],
        duration_s=330,
    ).series.services["chat"]
    assert done.attainment[0] < 0.8
    assert done.attainment[-1] == 1.0


@pytest.mark.thorough
def test_experts_are_simulated_by_what_plans_count_on() -> None:
    mixed = {
        **MODEL,
        "network": "Qwen3-30B-A3B-Instruct-2507",
        "llm": {"lengths": {"prompt": 600, "output": 100}, "max_model_len": 4096},
        "load": {"rate_rps": 6},
    }
    done = run(services=[mixed], truth="planned")
    (service,) = done.services
    assert service.attainment is not None
    # Steps take what the plan was made with: it keeps what it promises.
    assert service.attainment >= service.percentile
    assert done.energy_kwh > 0.0
