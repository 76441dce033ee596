"""What is told before the runs: what a reader would otherwise take for a policy's fault."""

from pathlib import Path
from typing import Any

from app.simulate.run.build import shipped_catalogue
from app.simulate.run.run import check, jobs_of
from tests.app.runs import SERVICE, a_scenario


def notes(folder: Path, **spec: Any) -> tuple[str, ...]:
    scenario = a_scenario(**{"warm_up_s": 60, **spec})
    return check(jobs_of(scenario, shipped_catalogue(scenario), folder)[0])


def test_of_an_ordinary_scenario_nothing_is_to_be_said(tmp_path: Path) -> None:
    assert notes(tmp_path) == ()


def test_who_counts_before_replicas_can_be_ready_is_told(tmp_path: Path) -> None:
    assert notes(tmp_path, warm_up_s=0) == (
        "warm_up_s, 0 s, is shorter than launch_s, 5 s: until the first replicas are ready, requests count that no "
        "policy can serve",
    )


def test_a_trace_that_ends_half_way_is_told(tmp_path: Path) -> None:
    (tmp_path / "two.csv").write_text("second,a\n0,5\n30,6\n")
    (tmp_path / "long.csv").write_text("second,a\n0,5\n60,6\n")
    services = [
        {
            **SERVICE,
            "name": name,
            "load": {"trace": {"file": f"{name}.csv", "column": "a"}},
        }
        for name in ("two", "long")
    ]
    assert notes(tmp_path, services=services) == (
        "service two: two.csv ends at 1 min of 2 min; nothing arrives after that",
    )


def test_a_list_of_which_only_some_jobs_are_submitted_is_told(tmp_path: Path) -> None:
    rows = "".join(f"{second},10,1,a\n" for second in (0, 10, 20, 30, 500))
    (tmp_path / "jobs.csv").write_text(f"submit_s,duration_s,gpus,name\n{rows}")
    work = {"network": "resnet18-training", "batch": 128}
    jobs = {"name": "team", "file": "jobs.csv", "kind": "training", "networks": [work]}
    # Two come before it, and the last one when the run is over.
    assert notes(tmp_path, task_lists=[{**jobs, "first": 3}]) == (
        "list team: 2 tasks of the 5 jobs in jobs.csv",
    )
