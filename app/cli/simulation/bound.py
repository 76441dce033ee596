"""`plimsoll bound`: how near a scenario's policies come to plans that know the load beforehand; no server, no GPU."""

import typer

from app.cli.simulation.simulate import Jobs, ScenarioFile


def bound(
    scenario: ScenarioFile,
    jobs: Jobs = None,
) -> None:
    """Compare a scenario's policies with plans that know its load beforehand.

    The perfect system is `joint` that is told the true rates until what it starts is ready, and the true times. It
    carries all of them, or 0.9, 0.8 or 0.7 of them for all services alike; the cheapest of these runs that keeps
    every SLO on every seed counts. The last lines say how many times as much each policy of the scenario costs.
    """
    # Only now: help need not wait for numba, scipy and the catalogue.
    from app.cli.simulation.runs import run_bound

    if not run_bound(scenario, jobs=jobs):
        raise typer.Exit(1)
