"""`plimsoll agent`, `gateway`, `worker` and `trainer`: other programs under one command's name.

They need no server packages.
"""

from collections.abc import Callable

import typer


def _program(command: Callable[[typer.Context], None]) -> typer.Typer:
    """A command that hands all its arguments over, --help too, since the program has its own."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    settings = {
        "ignore_unknown_options": True,
        "allow_extra_args": True,
        "help_option_names": [],
    }
    app.command(context_settings=settings)(command)
    return app


# Each program is imported when it is called: a node has the packages of its own one, not those of the others.
def _agent(context: typer.Context) -> None:
    """Run the agent of a node."""
    from agents.main import main

    raise typer.Exit(main(context.args))


def _gateway(context: typer.Context) -> None:
    """Serve the requests of all services at one fixed address."""
    from agents.gateway.command import main

    raise typer.Exit(main(context.args))


def _worker(context: typer.Context) -> None:
    """Serve one replica by the Open Inference Protocol v2."""
    from agents.serving.arguments import main

    raise typer.Exit(main(context.args))


def _trainer(context: typer.Context) -> None:
    """Run one training or offline task, which can give its GPU's memory back."""
    from agents.trainer.trainer import main

    raise typer.Exit(main(context.args))


agent, gateway = _program(_agent), _program(_gateway)
worker, trainer = _program(_worker), _program(_trainer)
