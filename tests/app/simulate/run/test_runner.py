"""Many runs: in order, in processes of their own, and no results are lost when one of them fails."""

import os
import signal
from functools import partial
from pathlib import Path

import pytest

from app.simulate.report.report import make_report, report_to_json
from app.simulate.run.build import Catalogue
from app.simulate.run.results import FailedRun, RunResult
from app.simulate.run.run import SimulationRun
from app.simulate.run.runner import (
    Outcome,
    attempt_run,
    run_in_processes,
    simulate_all,
)
from tests.app.runner import interruptible
from tests.app.runs import SERVICE, a_run, a_scenario, report_from_json
from tests.app.simulate.run.attempts import done, endless, identified


class Seen:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.times: list[tuple[int, float]] = []
        self.places: list[int] = []

    def passed(self, place: int, simulated_s: float) -> None:
        self.times.append((place, simulated_s))

    def ended(self, place: int, outcome: Outcome) -> None:
        self.places.append(place)


def jobs(*seeds: int) -> list[SimulationRun]:
    scenario = a_scenario(seeds=list(seeds))
    empty = Catalogue(gpu_types=(), points=())
    return [
        SimulationRun(
            scenario=scenario,
            run=scenario.spec.policies[0],
            seed=seed,
            catalogue=empty,
            folder=Path(),
        )
        for seed in seeds
    ]


def test_a_process_that_dies_fails_its_own_run_only_and_all_come_in_the_order_of_the_jobs() -> (
    None
):
    seen = Seen()
    good, killed, left = simulate_all(
        jobs(1, 2, 3), partial(run_in_processes, processes=2, attempt=done), seen
    )
    assert isinstance(good, RunResult) and good.seed == 1
    assert isinstance(killed, FailedRun) and isinstance(left, FailedRun)
    assert str(killed).startswith(
        "hetsev_greedy, seed 2: its process was killed; perhaps there was too little memory"
    )
    assert left.reason == "its process ended by itself with exit code 7"
    assert sorted(seen.places) == [0, 1, 2]
    assert sorted(seen.times) == [(0, 60.0), (1, 60.0), (2, 60.0)]


def wait_for_death(process: int) -> None:
    """Until a child of this process is dead; its exit code is left for others."""
    os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)


@pytest.mark.thorough
def test_a_process_that_dies_in_the_middle_of_its_result_fails_its_own_run_only() -> (
    None
):
    def passed(place: int, told: float) -> None:
        if place == 0:
            wait_for_death(
                int(told)
            )  # Nothing reads meanwhile, so that not all of the result can have been sent.

    found = dict(run_in_processes(jobs(2, 3), passed, processes=1, attempt=identified))
    assert isinstance(found[0], FailedRun) and isinstance(found[1], RunResult)
    assert found[0].reason == "its process was ended by SIGALRM"


@interruptible()
def test_an_interrupt_ends_processes_that_ignore_it_from_their_first_moment_on() -> (
    None
):
    before, heard = signal.getsignal(signal.SIGINT), []

    def interrupt(place: int, told: float) -> None:
        heard.append(told)
        if len(heard) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(run_in_processes(jobs(1, 2), interrupt, processes=1, attempt=endless))
    ignores_interrupts, process = heard
    assert ignores_interrupts == 1.0
    assert signal.getsignal(signal.SIGINT) is before is not signal.SIG_IGN
    with pytest.raises(ProcessLookupError):
        os.kill(int(process), 0)


def test_what_fails_is_put_into_words_and_the_others_are_reported() -> None:
    load = {"trace": {"file": "gone.csv", "column": "a"}}
    scenario = a_scenario(services=[{**SERVICE, "load": load}])
    (job,) = jobs(1)
    here = SimulationRun(
        scenario=scenario,
        run=job.run,
        seed=1,
        catalogue=job.catalogue,
        folder=Path("nowhere"),
    )
    failed = attempt_run(here, lambda _: None)
    assert isinstance(failed, FailedRun)
    report = make_report(scenario, [failed, a_run()])
    assert [run.policy for run in report.runs] == ["one"]
    assert report_from_json(report_to_json(report)).failed == (failed,)
