"""Results made by hand, and the smallest scenario."""

from typing import Any

import msgspec

from app.simulate.report.report import SimulationReport
from app.simulate.run.results import (
    PlanChanges,
    RunResult,
    RunSeries,
    ServiceResult,
    ServiceSeries,
    TaskPhase,
    TaskResult,
)
from app.simulate.scenario.scenario import SimulationScenario

SERVICE = {
    "name": "resnet50",
    "network": "resnet50",
    "slo": {"latency_ms": 300, "percentile": 0.98},
    "scaling": {"min_replicas": 1},
    "load": {"rate_rps": 100},
}
MODEL = {
    "name": "chat",
    "kind": "llm",
    "network": "Llama-3.1-8B-Instruct",
    "slo": {"ttft_ms": 2000, "itl_ms": 100, "percentile": 0.95},
    "load": {"rate_rps": 2},
}
POOL = {"name": "v100", "gpu_type": "V100-32GB", "nodes": 2, "launch_s": 5}


def a_document(**spec: Any) -> dict[str, Any]:
    """A scenario as it stands in a file: one service on two V100s, for two minutes."""
    written = {
        "duration_s": 120,
        "policies": ["hetsev_greedy"],
        "loop": {"period_s": 10, "window_s": 5, "stale_after_s": 30},
        "fleet": [POOL],
        "services": [SERVICE],
        **spec,
    }
    return {"kind": "Scenario", "metadata": {"name": "small"}, "spec": written}


def a_scenario(**spec: Any) -> SimulationScenario:
    return SimulationScenario.model_validate(a_document(**spec))


def a_service_result(
    service: str = "a",
    *,
    served: int = 100,
    in_slo: int | None = None,
    rejected: int = 0,
    queued: int = 0,
    overdue: int = 0,
) -> ServiceResult:
    return ServiceResult(
        service=service,
        network="resnet50",
        slo_ms=300.0,
        percentile=0.98,
        arrived=served + rejected + queued,
        served=served,
        in_slo=served if in_slo is None else in_slo,
        rejected=rejected,
        queued_before=0,
        queued_after=queued,
        overdue=overdue,
        latency_ms={
            "p50": 10.0,
            "p95": 20.0,
            "p98": 25.0,
            "p99": 30.0 if served else None,
        },
        worst_step=1.0,
        cost_usd=1.0,
        memory_usd=0.1,
        present_s=5.0,
        sojourn_s=5.0,
    )


def a_task_result(
    task: str = "t",
    *,
    course: list[tuple[float, TaskPhase]] | None = None,
    finished_s: float | None = None,
    deadline_s: float | None = None,
) -> TaskResult:
    """Half done after 40 s of the first 100, or done."""
    known = course or [(10.0, "waiting"), (60.0, "running")]
    if finished_s is not None and known[-1][1] != "finished":
        known = [*known, (finished_s, "finished")]
    return TaskResult(
        task=task,
        kind="training",
        network="resnet18-training",
        batch=128,
        iterations=200,
        done_iterations=100.0 if finished_s is None else 200.0,
        done_before=20.0,
        reference_ms=36_000.0,
        submitted_s=10.0,
        first_ran_s=20.0,
        finished_s=finished_s,
        deadline_s=deadline_s,
        until_s=finished_s or 100.0,
        ran_s=40.0,
        starts=1,
        swaps=0,
        course=known,
    )


def a_run(
    policy: str = "one",
    *,
    seed: int = 1,
    cost_usd: float = 1.0,
    services: tuple[ServiceResult, ...] = (),
    decision_seconds: tuple[float, ...] = (),
    tasks: tuple[TaskResult, ...] = (),
) -> RunResult:
    known = services or (a_service_result(),)
    return RunResult(
        policy=policy,
        seed=seed,
        counted_s=60.0,
        services=known,
        cost_usd=cost_usd,
        handover_usd=0.0,
        tasks_usd=0.0,
        memory_usd=0.1,
        gpu_hours={"T4": 0.5},
        energy_kwh=0.01,
        moves=PlanChanges(
            plans=1,
            replicas_started=2,
            replicas_stopped=0,
            batches_changed=0,
            clocks_changed=0,
        ),
        holds=0,
        refused=0,
        series=RunSeries(
            step_s=60.0,
            cost_usd_per_hour=[cost_usd],
            power_w=[100.0],
            gpus={"T4": [1]},
            services={
                each.service: ServiceSeries(
                    arrival_rate_rps=[2.0],
                    planned_rps=[2.2],
                    attainment=[each.attainment],
                    p99_ms=[each.latency_ms["p99"]],
                    replicas=[1],
                    missed=[each.judged - each.in_slo],
                )
                for each in known
            },
        ),
        decision_seconds=decision_seconds,
        tasks=tasks,
    )


def report_from_json(text: bytes) -> SimulationReport:
    """A report from its file."""
    document = msgspec.json.decode(text)
    seconds = document.pop("seconds", [])
    for run, times in zip(document.get("runs", []), seconds, strict=False):
        run["decision_seconds"] = times["decisions"]
    return msgspec.convert(document, SimulationReport)
