"""`plimsoll simulate`: a scenario in, every policy with every seed, a report out; no server, no GPU."""

from pathlib import Path
from typing import Annotated

import typer

ScenarioFile = Annotated[
    Path,
    typer.Argument(metavar="SCENARIO", help="Scenario file (YAML or JSON; - = stdin)"),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        "-j",
        "--jobs",
        min=1,
        max=256,
        help="Runs at a time, each in its own process [default: one per core]",
    ),
]


def simulate(
    scenario: ScenarioFile,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="REPORT",
            help="Where to write the report as JSON; - = stdout",
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html",
            metavar="PAGE",
            help="Where to write the report as a page with charts; - = stdout",
        ),
    ] = None,
    jobs: Jobs = None,
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray",
            metavar="ADDRESS",
            help="Do the runs on the Ray cluster there (auto = this machine's)",
        ),
    ] = None,
) -> None:
    """Simulate a fleet under load, and compare policies.

    The production loop decides, on a virtual clock, for simulated GPUs that replay measured curves. Every policy of the
    scenario runs with every seed, under the same requests. docs/simulate.md describes scenarios and reports.
    """
    # Only now: help need not wait for numba, scipy and the catalogue.
    from app.cli.simulation.runs import SimulateOptions, run_scenario

    if not run_scenario(
        SimulateOptions(scenario=scenario, output=output, html=html, jobs=jobs, ray=ray)
    ):
        raise typer.Exit(1)
