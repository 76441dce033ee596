"""Runs of scenarios: the loop at work, counted by hand where that can be done, and always the same."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agents.sim.queues.tally import ServiceTotals
from app.simulate.report.report import make_report, report_to_json
from app.simulate.run.build import shipped_catalogue
from app.simulate.run.record import LawBroken, check_laws
from app.simulate.run.results import RunResult
from app.simulate.run.run import jobs_of, simulate
from app.simulate.run.runner import make_runner, simulate_all
from tests.app.runs import POOL, SERVICE, a_scenario


def run(**spec: Any) -> RunResult:
    scenario = a_scenario(**spec)
    (job, *_) = jobs_of(scenario, shipped_catalogue(scenario), Path())
    return simulate(job)


@pytest.fixture(scope="module")
def steady() -> RunResult:
    return run(duration_s=180, warm_up_s=60)


def test_a_steady_load_is_served_within_its_slo_and_every_request_is_counted(
    steady: RunResult,
) -> None:
    (service,) = steady.services
    assert service.arrived == pytest.approx(100 * 120, rel=0.05)
    assert (
        service.arrived + service.queued_before
        == service.served + service.rejected + service.queued_after
    )
    assert service.attainment is not None and service.attainment >= 0.98
    assert service.present_s == pytest.approx(service.sojourn_s)
    assert steady.counted_s == 120.0


def test_cost_is_price_times_time_of_the_used_gpus(steady: RunResult) -> None:
    (gpu_type,) = shipped_catalogue(a_scenario()).gpu_types
    hours = steady.gpu_hours["V100-32GB"]
    assert steady.cost_usd == pytest.approx(hours * gpu_type.price_usd_per_hour)
    assert hours == pytest.approx(sum(steady.series.gpus["V100-32GB"]) * 60 / 3600)
    assert (
        steady.memory_usd
        < steady.cost_usd
        == pytest.approx(steady.services[0].cost_usd)
    )


def test_a_jump_of_the_load_is_answered_at_once_and_not_with_the_next_period() -> None:
    # Agents report every 5 s, ticks of the period are at 5 s and 205 s; 20 rps, and 400 rps from 72 s on.
    jump = {"start_s": 72, "length_s": 100, "factor": 20, "ramp_s": 0}
    found = run(
        duration_s=120,
        step_s=5,
        policies=["joint"],
        loop={"period_s": 200, "window_s": 5, "stale_after_s": 30},
        services=[{**SERVICE, "load": {"rate_rps": 20, "spikes": [jump]}}],
    )
    planned_rps = found.series.services["resnet50"].planned_rps
    # The report of 75 s shows three seconds of the jump, that of 80 s an entire window of it.
    assert max(planned_rps[:15]) < 40.0 < planned_rps[15] < planned_rps[16]
    assert planned_rps[16] > 400.0


def test_a_gpu_that_a_plan_has_left_is_paid_while_it_serves_on() -> None:
    rates = {"day": {"amplitude": 1, "period_s": 240}, "rate_rps": 400}
    found = [
        run(
            duration_s=480,
            handover_s=each,
            policies=[{"policy": "hetsev_greedy", "room": 1.3}],
            services=[{**SERVICE, "load": rates}],
        )
        for each in (0.0, 40.0)
    ]
    short, long = found
    assert 0.0 < short.handover_usd < long.handover_usd < long.cost_usd
    assert sum(each.cost_usd for each in long.services) == pytest.approx(long.cost_usd)
    assert sum(long.series.cost_usd_per_hour) * 60 / 3600 == pytest.approx(
        long.cost_usd
    )


def test_nobody_waits_overdue_where_all_is_served_and_everybody_where_nothing_is(
    steady: RunResult,
) -> None:
    assert steady.services[0].overdue == 0
    lost = {"kind": "gpu_lost", "node": "v100-1", "start_s": 61}
    found = run(
        fleet=[POOL | {"nodes": 1}],
        faults=[lost],
        services=[SERVICE | {"load": {"rate_rps": 4}}],
    )
    (service,) = found.services
    # Some 240 requests in the last minute, of which those of the last 0.3 s may yet be in time: none is rejected.
    assert service.queued_after - 6 <= service.overdue <= service.queued_after
    assert service.attainment is not None and service.attainment < 0.6


def test_the_series_add_up_to_the_sums(steady: RunResult) -> None:
    mine = steady.series.services["resnet50"]
    assert sum(mine.arrival_rate_rps) * 60 == pytest.approx(steady.services[0].arrived)
    assert sum(mine.served_rps) * 60 == pytest.approx(steady.services[0].served)
    assert sum(steady.series.power_w) * 60 / 3.6e6 == pytest.approx(steady.energy_kwh)
    worst = min(share for share in mine.attainment if share is not None)
    assert worst == steady.services[0].worst_step
    assert len(steady.decision_seconds) == 12


def test_a_gpu_is_busy_while_something_runs_on_it_and_only_then(
    steady: RunResult,
) -> None:
    for busy, gpus in zip(
        steady.series.busy_gpus, steady.series.gpus["V100-32GB"], strict=True
    ):
        assert 0.0 < busy <= gpus
    idle = run(
        duration_s=180, warm_up_s=60, services=[SERVICE | {"load": {"rate_rps": 0}}]
    )
    assert idle.series.busy_gpus == [0.0, 0.0]


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_the_same_scenario_gives_the_same_report_in_other_processes_too(
    processes: int,
) -> None:
    scenario = a_scenario(seeds=[3, 4], policies=["hetsev_greedy", "k8s_hpa"])
    jobs = jobs_of(scenario, shipped_catalogue(scenario), Path())
    assert [(job.run.label, job.seed) for job in jobs] == [
        ("hetsev_greedy", 3),
        ("k8s_hpa", 3),
        ("hetsev_greedy", 4),
        ("k8s_hpa", 4),
    ]
    here = simulate_all(jobs, make_runner(1))
    there = simulate_all(jobs[:2], make_runner(processes))
    texts = [
        report_to_json(make_report(scenario, runs)).split(b'"seconds"')[0]
        for runs in (here[:2], there)
    ]
    assert texts[0] == texts[1]
    assert report_to_json(make_report(scenario, here[:2])) != report_to_json(
        make_report(scenario, here[2:])
    )
    # Every policy sees the same requests.
    one, other = (
        run.series.services["resnet50"].arrival_rate_rps
        for run in here[:2]
        if isinstance(run, RunResult)
    )
    assert one == other


def test_who_knows_the_rates_plans_for_them() -> None:
    step = {
        "rate_rps": 50,
        "spikes": [{"start_s": 90, "length_s": 60, "factor": 12, "ramp_s": 0}],
    }
    found = [
        run(
            duration_s=240,
            policies=[{"policy": "joint", "clairvoyant": knows, "launch_s": 0}],
            services=[{**SERVICE, "load": step}],
        )
        for knows in (False, True)
    ]
    guessing, knowing = (each.services[0].attainment or 0.0 for each in found)
    assert knowing > guessing
    assert knowing >= 0.98


@pytest.mark.parametrize(("launch_s", "period_s"), [(0.0, 10.0), (3.3, 7.7)])
def test_whatever_starts_take_time_goes_on(launch_s: float, period_s: float) -> None:
    found = run(
        policies=["hetsev_greedy"],
        fleet=[{**POOL, "launch_s": launch_s}],
        loop={"period_s": period_s, "window_s": 5, "stale_after_s": 30},
    )
    assert found.services[0].served > 5000


def test_no_step_is_lost_to_rounding() -> None:
    step_s, duration_s = 0.7, 70.0
    found = run(
        step_s=step_s,
        duration_s=duration_s,
        policies=["hetsev_greedy"],
        agent_period_s=step_s,
    )
    assert len(found.series.power_w) == round(duration_s / step_s)
    assert found.counted_s == pytest.approx(duration_s)


def test_clients_who_wait_are_served_at_the_rate_that_latency_allows() -> None:
    found = run(
        duration_s=120, warm_up_s=60, services=[{**SERVICE, "load": {"clients": 3}}]
    )
    (service,) = found.services
    assert service.served > 300
    # Three clients, each always with one request in the 60 s that count: Little's law.
    assert 3 * 60 * 0.9 <= service.present_s <= 3 * 60
    assert service.present_s == pytest.approx(service.sojourn_s)


def test_totals_that_do_not_add_up_are_the_simulators_fault() -> None:
    good = ServiceTotals(
        service="a",
        arrivals=5,
        served=3,
        in_slo=3,
        rejected=1,
        queued=1,
        replicas=1,
        latency_buckets=(),
        present_s=2.0,
        sojourn_s=2.0,
    )
    check_laws(good)

    with pytest.raises(LawBroken, match="5 requests arrived"):
        check_laws(replace(good, queued=0))
    with pytest.raises(LawBroken, match="request-seconds"):
        check_laws(replace(good, sojourn_s=2.1))
