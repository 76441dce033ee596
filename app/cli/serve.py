"""`plimsoll serve`: the API here, the control loop in a process beside it."""

import asyncio
from typing import Annotated

import structlog
import typer

from app.cli.errors import CliError
from app.cli.local import load_settings, open_database
from app.db import migrate
from app.logs import configure_logs
from app.main import make_plane, open_socket, serve_plane


def serve(
    host: Annotated[
        str | None, typer.Option(help="Address to listen on [default: $PLIMSOLL_HOST or 127.0.0.1]")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port to listen on [default: $PLIMSOLL_PORT or 8080]")
    ] = None,
    upgrade: Annotated[
        bool, typer.Option("--upgrade", help="First bring the database to this program's schema")
    ] = False,
) -> None:
    """Run the API and the control loop.

    Until SIGTERM or SIGINT. The database is the one that PLIMSOLL_DATABASE_URL names; without it, an embedded one under
    PLIMSOLL_DATA_DIR is started for as long as this runs. Several may run at once: one of them leads.
    """
    settings = load_settings(host=host, port=port)
    configure_logs(settings)
    structlog.get_logger(__name__).info("starting", **settings.printable())
    # A port that is taken is found out before a database is started.
    listening = open_socket(settings)
    with listening, open_database(settings, create=upgrade) as url:
        if upgrade:
            migrate.upgrade(url)
        problem = migrate.check(url)
        if problem is not None:
            raise CliError(problem, hint="`plimsoll serve --upgrade` does both")
        asyncio.run(serve_plane(make_plane(settings, url), listening))
