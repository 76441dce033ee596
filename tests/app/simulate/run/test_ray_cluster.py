"""Runs somewhere else: whatever submits jobs like an executor; on a real Ray cluster where ray is installed."""

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.base.errors import InvalidRequest
from app.simulate.run.build import Catalogue, shipped_catalogue
from app.simulate.run.ray_cluster import on_ray, run_with
from app.simulate.run.results import FailedRun, RunResult
from app.simulate.run.run import SimulationRun, jobs_of, simulate
from app.simulate.run.runner import Outcome, simulate_all
from tests.app.runs import a_run, a_scenario
from tests.ports import own_environment
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[4]
NEEDS_RAY = find_spec("ray") is None


def jobs(*seeds: int) -> tuple[SimulationRun, ...]:
    return jobs_of(
        a_scenario(seeds=list(seeds)), Catalogue(gpu_types=(), points=()), Path()
    )


class LosesOne:
    """An executor whose process for seed 2 dies; notes the folders of its jobs."""

    def __init__(self) -> None:
        self.folders: list[Path] = []

    def submit(
        self, attempt: Callable[[SimulationRun], Outcome], job: SimulationRun, /
    ) -> "Future[Outcome]":
        self.folders.append(job.folder)
        future: Future[Outcome] = Future()
        if job.seed == 2:
            future.set_exception(OSError("the worker died\nand this is where"))
        else:
            future.set_result(a_run(job.run.label, seed=job.seed))
        return future


def test_a_run_whose_worker_dies_has_failed_and_the_others_have_not() -> None:
    executor = LosesOne()
    found = simulate_all(
        jobs(1, 2, 3), lambda todo, passed: run_with(todo, passed, executor=executor)
    )
    assert [isinstance(each, RunResult) for each in found] == [True, False, True]
    assert str(found[1]) == "hetsev_greedy, seed 2: OSError: the worker died"
    assert executor.folders == [Path.cwd()] * 3


def test_what_fails_there_comes_back_in_words() -> None:
    with ThreadPoolExecutor(1) as executor:
        (place, failed), *_ = run_with(
            jobs(1), lambda _place, _simulated_s: None, executor=executor
        )
    assert place == 0 and isinstance(failed, FailedRun)
    assert failed.reason.startswith("KeyError")


@pytest.mark.skipif(not NEEDS_RAY, reason="ray is installed")
def test_without_ray_the_extra_is_named() -> None:
    with pytest.raises(InvalidRequest, match=r"plimsoll\[server,ray\]"), on_ray("auto"):
        pass


def test_a_cluster_that_does_not_start_in_time_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(**_: object) -> None:
        raise Exception("the node timed out")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=start))  # type: ignore[arg-type]
    with (
        pytest.raises(InvalidRequest, match="at local: the node timed"),
        on_ray("local"),
    ):
        pass


ON_RAY = """
from pathlib import Path
from app.simulate.run.build import shipped_catalogue
from app.simulate.run.ray_cluster import on_ray
from app.simulate.run.run import jobs_of
from app.simulate.run.runner import simulate_all
from tests.app.runs import a_scenario

scenario = a_scenario(seeds=[1, 2])
with on_ray("local") as runner:
    for each in simulate_all(jobs_of(scenario, shipped_catalogue(scenario), Path()), runner):
        print(each.services)
"""


@pytest.mark.skipif(NEEDS_RAY, reason="ray is not installed")
@pytest.mark.integration
def test_a_ray_cluster_gives_the_same_results_as_this_process() -> None:
    # In a process of its own, with which all that Ray starts ends. Ray gives up its own start after 30 s, however busy
    # the machine is: then once more.
    for _ in range(5):
        ended = subprocess.run(
            [sys.executable, "-c", ON_RAY],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            cwd=ROOT,
            env=own_environment(),
        )
        if "timed out during startup" not in ended.stderr:
            break
    assert ended.returncode == 0, ended.stderr
    scenario = a_scenario(seeds=[1, 2])
    here = [
        simulate(job) for job in jobs_of(scenario, shipped_catalogue(scenario), Path())
    ]
    assert ended.stdout.splitlines() == [str(each.services) for each in here]
