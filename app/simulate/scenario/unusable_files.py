"""Files of a scenario that cannot be used, each with the path of the field below `spec`."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from app.base.errors import InvalidRequest
from app.simulate.scenario.carbon import read_grid_intensity
from app.simulate.scenario.checks import Complaint
from app.simulate.scenario.checks import Path as FieldPath
from app.simulate.scenario.scenario import SimulationScenario
from app.simulate.scenario.tasks import jobs_in
from app.simulate.scenario.trace_shapes import request_lengths, trace_shape


def unusable_files(scenario: SimulationScenario, folder: Path) -> Iterator[Complaint]:
    """All of them, and why; what was read is kept for the runs."""
    # All files are tried, so that one look tells of everything that is missing.
    for path, read in _readings(scenario, folder):
        try:
            read()
        except InvalidRequest as error:
            yield path, str(error)


def _readings(
    scenario: SimulationScenario, folder: Path
) -> Iterator[tuple[FieldPath, Callable[[], object]]]:
    for place, service in enumerate(scenario.spec.services):
        if service.load.trace is not None:
            yield (
                ("services", place, "load", "trace"),
                partial(trace_shape, service.load.trace, folder),
            )
        if service.load.requests is not None:
            yield (
                ("services", place, "load", "requests"),
                partial(request_lengths, service.load.requests, folder),
            )
    if scenario.spec.grid_intensity is not None:
        yield (
            ("grid_intensity",),
            partial(read_grid_intensity, folder / scenario.spec.grid_intensity),
        )
    for place, entry in enumerate(scenario.spec.task_lists):
        yield ("task_lists", place, "file"), partial(jobs_in, entry, folder)
