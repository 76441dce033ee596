"""What clairvoyant policies are told: the highest rate to come, and times as they are."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from agents.sim.truth.running import RunningPart
from agents.sim.truth.truth import load_truth
from app.simulate.run.build import shipped_catalogue
from app.simulate.run.foresight import with_true_times
from app.simulate.run.results import RunResult
from app.simulate.run.run import jobs_of, simulate
from tests.app.runs import SERVICE, a_scenario

STEP = {
    "rate_rps": 50,
    "spikes": [{"start_s": 150, "length_s": 60, "factor": 4, "ramp_s": 0}],
}


def knowing(**foresight: float) -> RunResult:
    given = a_scenario(
        duration_s=240,
        policies=[{"policy": "joint", "clairvoyant": True, "launch_s": 0, **foresight}],
        services=[{**SERVICE, "load": STEP}],
    )
    (job,) = jobs_of(given, shipped_catalogue(given), Path())
    return simulate(job)


def test_more_foresight_plans_for_the_peak_sooner() -> None:
    # The spike is at 150 s. 120 s ahead it is planned for from 30 s on; until the next decision, from 140 s on.
    planned = [
        found.series.services["resnet50"].planned_rps[1]
        for found in (knowing(), knowing(foresight_s=120.0))
    ]
    assert planned == [pytest.approx(50.0), pytest.approx(200.0)]


def test_what_is_known_is_carried_as_far_as_the_room_goes() -> None:
    half = knowing(room=0.5)
    assert half.series.services["resnet50"].planned_rps[1] == pytest.approx(25.0)


def test_true_times_are_those_that_batches_take() -> None:
    given = a_scenario(truth="measured")
    catalogue, world = shipped_catalogue(given), load_truth()
    (points,) = (with_true_times(entry, world) for entry in catalogue.points)
    for row in points.rows[::50]:
        alone = RunningPart(
            network=points.network,
            gpu_type=points.gpu_type,
            sm_percent=row.sm_percent,
            batch=row.batch,
            clock_mhz=row.clock_mhz,
        )
        assert row.transfer_ms + row.launch_ms + row.run_ms == pytest.approx(
            world.batch_ms(alone)[row.batch]
        )
    assert points.rows != catalogue.points[0].rows


def test_foresight_without_clairvoyance_is_refused() -> None:
    with pytest.raises(ValidationError, match="foresight_s"):
        a_scenario(policies=[{"policy": "joint", "foresight_s": 3600}])
