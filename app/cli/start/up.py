"""`plimsoll up`: everything on this machine; with --demo, at work on a simulated fleet."""

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from app.base.logs import configure_logs
from app.cli.common.context import cli_context
from app.cli.common.local import load_settings, open_database

SEED = 1


def up(
    context: typer.Context,
    demo: Annotated[
        bool,
        typer.Option("--demo", help="Show it at work on 8 simulated nodes under load"),
    ] = False,
    *,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep", help="With --demo: go on after the report, at real time"
        ),
    ] = False,
    seed: Annotated[
        int, typer.Option(min=0, help="With --demo: seed of load, noise and baseline")
    ] = SEED,
    nodes: Annotated[
        int,
        typer.Option(min=0, max=16, help="Without --demo: simulated nodes to start"),
    ] = 2,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder of the embedded database")
    ] = None,
) -> None:
    """Start everything on this machine; --demo shows it at work.

    Database, API, control loop and simulated nodes, until Ctrl-C. The first start makes an admin's token, shows it
    once and keeps it where the other commands look for it.

    The demo has a database and a token of its own, and a clock that jumps. It ends
    with exit code 0 if every SLO was kept, else 1.
    """
    if keep and not demo:
        raise typer.BadParameter(
            "--keep is for --demo; without it everything runs until Ctrl-C"
        )
    # Defaults cannot be told from the same values that were typed: those do no harm.
    if not demo and seed != SEED:
        raise typer.BadParameter("--seed is for --demo")
    settings = load_settings(data_dir=data_dir)
    # As Ctrl-C from the very beginning: by itself SIGTERM would end this process alone, and leave PostgreSQL behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if demo:
        # Numba and the catalogue load in seconds, which only the demo needs.
        from app.demo.run import DemoOptions, run_demo

        options = DemoOptions(settings=settings, seed=seed, keep=keep)
        raise typer.Exit(run_demo(options, Console()))
    from app.serve.up import Terminal, run_everything

    configure_logs(settings)
    token_path = cli_context(context).saved_token_path()
    console = Console()

    def say(message: str) -> None:
        # A token that is broken into two lines cannot be copied.
        console.print(message, soft_wrap=True, highlight=False)

    with open_database(settings, create=True, needs_sessions=True) as url:
        # Not the console's own idea of a terminal: some environments make it write colours into logs.
        terminal = Terminal(say=say, is_seen=sys.stdout.isatty())
        run_everything(
            settings, url, nodes=nodes, token_path=token_path, terminal=terminal
        )
