"""Foresight: it learns from what is done, and retrains when its error passes θ."""

import numpy as np
import pytest

from app.dispatch.foresight import (
    LATEST,
    MAX_FACTOR,
    REFRESH_ROWS,
    Foresight,
    JobForesight,
)
from solvers.predict.latency.factorisation_features import ServedConditions
from solvers.types.jobs import JobOption
from solvers.types.plan import BoundPlan, BoundTask
from tests.app.job_places import Place, a_job, bound_gpu, points


def a_row(batch: float, sm_percent: float, network: str = "net") -> ServedConditions:
    return ServedConditions(network, "fast", batch, sm_percent)


def true_ms(row: ServedConditions, factor: float = 1.0) -> float:
    """A host floor of 5 ms, and work of 1 ms for each input on the whole GPU."""
    return factor * max(5.0, row.batch * 100.0 / row.sm_percent)


def rows_of(count: int, seed: int = 0) -> list[ServedConditions]:
    draw = np.random.default_rng(seed)
    return [
        a_row(float(2 ** draw.integers(0, 4)), float(5 * draw.integers(1, 21)))
        for _ in range(count)
    ]


def mean_error(foresight: Foresight, factor: float) -> float:
    rows = rows_of(100, seed=1)
    predicted = foresight.predict_ms(rows)
    return float(
        np.mean(np.abs(np.log(predicted / [true_ms(row, factor) for row in rows])))
    )


def test_it_learns_a_network_from_its_history() -> None:
    foresight = Foresight()
    foresight.learn((row, true_ms(row)) for row in rows_of(200))
    assert mean_error(foresight, 1.0) < 0.15
    assert foresight.revision == 200
    assert foresight.trainings == 0


def test_it_keeps_quiet_while_its_error_is_below_theta() -> None:
    foresight = Foresight()
    foresight.learn((row, true_ms(row)) for row in rows_of(200))
    assert not any(foresight.observe(row, true_ms(row)) for row in rows_of(300, seed=2))
    assert foresight.error < foresight.theta


def test_it_trains_anew_on_the_latest_rows_when_the_world_has_changed() -> None:
    # Everything takes three times as long from now on, an error of ln 3 = 1.1.
    foresight, fixed = Foresight(), Foresight(theta=float("inf"))
    for each in (foresight, fixed):
        each.learn((row, true_ms(row)) for row in rows_of(LATEST))
        for row in rows_of(400, seed=3):
            each.observe(row, true_ms(row, 3.0))
    assert foresight.trainings >= 1
    assert fixed.trainings == 0
    assert mean_error(foresight, 3.0) < 0.1


def test_impossible_measurements_are_refused() -> None:
    with pytest.raises(ValueError, match="latency_ms"):
        Foresight().observe(a_row(1.0, 100.0), float("nan"))


PLAN = BoundPlan(
    generation=1,
    parent=0,
    policy="oltunes",
    gpus=(
        bound_gpu(
            BoundTask(
                name="a",
                kind="offline",
                network="photo",
                batch=8,
                sm_percent=100.0,
                memory_mib=2000.0,
                iterations=50,
            )
        ),
    ),
)


def an_option(network: str = "photo", *, iteration_ms: float = 7.5) -> JobOption:
    """A batch of eight with all SMs; 7.5 ms by the profile."""
    return JobOption(
        network, 1.0, "fast", 100.0, 8, 1000.0, 2000.0, iteration_ms=iteration_ms
    )


def seen(foresight: JobForesight, factor: float, rows: int = REFRESH_ROWS) -> None:
    """Rows of a job that takes `factor` times as long as its profile says; as submitted, in batches of four."""
    for at in range(rows):
        pace_ms = factor * 7.5 / 2.0 * (1.0 + 1e-6 * at)
        foresight.observe([a_job("a", iteration_ms=pace_ms)], PLAN, [points("photo")])


def test_profiles_are_believed_until_enough_jobs_have_run() -> None:
    foresight = JobForesight()
    seen(foresight, 2.0, REFRESH_ROWS - 1)
    assert not foresight.catch_up()
    assert foresight.foretold([an_option()]) == [an_option()]
    seen(foresight, 2.0, 2)
    assert foresight.catch_up() and not foresight.catch_up()
    (told,) = foresight.foretold([an_option()])
    assert told.iteration_ms == pytest.approx(15.0, rel=0.1)


def test_jobs_that_wait_or_have_no_profile_teach_nothing() -> None:
    foresight = JobForesight()
    foresight.observe([a_job("a")], PLAN, [points("photo")])
    foresight.observe([a_job("b", iteration_ms=9.0)], PLAN, [points("photo")])
    foresight.observe([a_job("a", iteration_ms=9.0)], PLAN, [points("light")])
    assert foresight.foresight.revision == 0


@pytest.mark.parametrize(
    ("factor", "bound"), [(1e6, MAX_FACTOR), (0.0, 1 / MAX_FACTOR)]
)
def test_nonsense_is_foreseen_within_bounds_of_the_profile(
    factor: float, bound: float
) -> None:
    foresight = JobForesight()
    # The smallest number that there is may be reported as a pace, and is 0 once it is divided.
    step = 1.0 if factor else 5e-324
    for at in range(1, REFRESH_ROWS + 1):
        job = a_job("a", iteration_ms=factor + at * step)
        foresight.observe([job], PLAN, [points("photo")])
    assert foresight.catch_up()
    (told,) = foresight.foretold([an_option()])
    assert told.iteration_ms == pytest.approx(bound * 7.5, rel=0.1)


def test_a_waiting_job_is_tuned_by_what_others_took() -> None:
    place = Place()
    place.submit(a_job("a", iterations=10_000))
    assert place.round()
    _, task = place.tasks["a"]
    profile_ms = next(
        row.run_ms
        for row in points("photo").rows
        if row[:2] == (task.sm_percent, task.batch)
    )
    for at in range(REFRESH_ROWS + 1):
        pace_ms = 2.0 * profile_ms + 1e-3 * at
        place.report("a", "running", float(at), iteration_ms=pace_ms)
        place.round()
    # It waits for the whole GPU, and takes what the first one took.
    place.submit(a_job("b"))
    place.round()
    found = place.dispatcher.memory.settings["b"].settings
    same = next(
        each
        for each in found
        if (each.sm_percent, each.batch) == (task.sm_percent, task.batch)
    )
    batches = 400 / task.batch
    assert same.latency_s == pytest.approx(batches * 2e-3 * profile_ms, rel=0.15)
