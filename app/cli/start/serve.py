"""`plimsoll serve` and `plimsoll controller`: the control plane's processes on this machine.

This file has the options alone: what the processes load takes a second, and `--help` needs none of it.
"""

from typing import Annotated

import typer

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
    from app.cli.start import control_plane

    control_plane.serve(host=host, port=port, upgrade=upgrade)


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
    from app.cli.start import control_plane

    control_plane.control(
        metrics_host=metrics_host, metrics_port=metrics_port, upgrade=upgrade
    )
