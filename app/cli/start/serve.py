"""`plimsoll serve` and `plimsoll controller`: the control plane's processes on this machine."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import structlog
import typer

from app.base.logs import configure_logs
from app.base.settings import Settings
from app.cli.common.errors import CliError
from app.cli.common.local import load_settings, open_database
from app.db.base import migrate
from app.serve.connections import open_socket
from app.serve.plane import make_plane
from app.solver.process import NICENESS, SolverWorker

Upgrade = Annotated[
    bool,
    typer.Option("--upgrade", help="First bring the database to this program's schema"),
]


def serve(
    host: Annotated[
        str | None,
        typer.Option(
            help="Address to listen on [default: $PLIMSOLL_HOST or 127.0.0.1]"
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Port to listen on [default: $PLIMSOLL_PORT or 8080]"
        ),
    ] = None,
    upgrade: Upgrade = False,
) -> None:
    """Run the API and the control loop.

    Runs until SIGTERM or SIGINT. The database is the one that PLIMSOLL_DATABASE_URL names; without it, an embedded one
    under PLIMSOLL_DATA_DIR is started for as long as this runs. Several may run at once: one of them leads.
    """
    settings = load_settings(host=host, port=port)
    _begin(settings)
    # Not at the top: the controller needs no web framework, which takes long to import.
    from app.serve.api_process import serve_plane

    # A port that is taken is found out before a database is started.
    listening = open_socket(settings)
    with listening, _database(settings, "serve", upgrade=upgrade) as url:
        asyncio.run(serve_plane(make_plane(settings, url), listening))


def controller(
    metrics_host: Annotated[
        str | None,
        typer.Option(
            help="Address of --metrics-port [default: $PLIMSOLL_CONTROLLER_METRICS_HOST or 127.0.0.1]"
        ),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Port of GET /metrics, without a token [default: $PLIMSOLL_CONTROLLER_METRICS_PORT or 0: none]",
        ),
    ] = None,
    upgrade: Upgrade = False,
) -> None:
    """Run the control loop without the API.

    Runs until SIGTERM or SIGINT. The database is that of `plimsoll serve`, which has a control loop of its own: run
    this on machines that plan and do not serve. Several may run at once: one of them leads.

    Example: plimsoll controller --metrics-port 9411
    """
    settings = load_settings(
        controller_metrics_host=metrics_host, controller_metrics_port=metrics_port
    )
    _begin(settings)
    solver = SolverWorker(threads=settings.solver_threads, niceness=NICENESS)
    # Both import for seconds, and whoever takes the lead over should not do so one after the other.
    solver.begin()
    from app.serve.controller_process import run_controller

    with _database(settings, "controller", upgrade=upgrade) as url:
        asyncio.run(run_controller(make_plane(settings, url), solver))


def _begin(settings: Settings) -> None:
    configure_logs(settings)
    # Settings in force are the first question of every report of a fault; secrets are masked.
    structlog.get_logger(__name__).info("starting", **settings.printable())


@contextmanager
def _database(settings: Settings, command: str, *, upgrade: bool) -> Iterator[str]:
    """The URL of the database, which has this program's schema. Raises CliError."""
    # Without --upgrade an empty database would fail the check anyway, and leave its files behind.
    with open_database(settings, create=upgrade) as url:
        if upgrade:
            migrate.upgrade(url)
        # Also after an upgrade: the database may be newer than this program.
        problem = migrate.check(url)
        if problem is not None:
            raise CliError(problem, hint=f"`plimsoll {command} --upgrade` does both")
        yield url
