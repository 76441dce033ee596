"""Start the processes of the control plane: their log, their database, and what runs until a signal ends it."""

from collections.abc import Iterator
from contextlib import contextmanager

import structlog
import uvloop

from app.base.logs import configure_logs
from app.base.settings import Settings
from app.catalogue.make_rows import make_rows
from app.cli.common.errors import CliError
from app.cli.common.local import load_settings, open_database
from app.db.base import migrate
from app.serve.connections import open_socket
from app.serve.plane import make_plane
from app.solver.process import NICENESS, SolverWorker


def serve(*, host: str | None, port: int | None, upgrade: bool) -> None:
    """The API and the control loop, until SIGTERM or SIGINT."""
    settings = load_settings(host=host, port=port)
    _begin(settings)
    # Not at the top: the controller needs no web framework, which takes long to import.
    from app.serve.api_process import serve_plane

    # A port that is taken is found out before a database is started.
    listening = open_socket(settings)
    with listening, _database(settings, "serve", upgrade=upgrade) as url:
        uvloop.run(serve_plane(make_plane(settings, url), listening))


def control(
    *, metrics_host: str | None, metrics_port: int | None, upgrade: bool
) -> None:
    """The control loop alone, until SIGTERM or SIGINT."""
    settings = load_settings(
        controller_metrics_host=metrics_host, controller_metrics_port=metrics_port
    )
    _begin(settings)
    solver = SolverWorker(
        make_rows=make_rows, threads=settings.solver_threads, niceness=NICENESS
    )
    # Both import for seconds, and a process that takes the lead should not do so one after the other.
    solver.begin()
    from app.serve.controller_process import run_controller

    with _database(settings, "controller", upgrade=upgrade) as url:
        uvloop.run(run_controller(make_plane(settings, url), solver))


def _begin(settings: Settings) -> None:
    configure_logs(settings)
    # Settings in force are the first question of every report of a fault; secrets are masked.
    structlog.get_logger(__name__).info("starting", **settings.printable())


@contextmanager
def _database(settings: Settings, command: str, *, upgrade: bool) -> Iterator[str]:
    """The URL of the database, which has this program's schema. Raises CliError."""
    # Without --upgrade an empty database would fail the check anyway, and leave its files behind.
    with open_database(settings, create=upgrade, needs_sessions=True) as url:
        if upgrade:
            migrate.upgrade(url)
        # Also after an upgrade: the database may be newer than this program.
        problem = migrate.check(url)
        if problem is not None:
            # No upgrade helps where the database is newer, or older than any that can be upgraded.
            can_upgrade = migrate.why_unknown(migrate.current(url)) is None
            hint = f"`plimsoll {command} --upgrade` does both" if can_upgrade else ""
            raise CliError(problem, hint=hint)
        yield url
