"""`plimsoll agent`: the same as `plimsoll-agent`, which needs no server packages."""

import typer

from agents.main import main

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(
    context_settings={
        "ignore_unknown_options": True,
        "allow_extra_args": True,
        "help_option_names": [],
    },
)
def agent(context: typer.Context) -> None:
    """Run the agent of a node."""
    raise typer.Exit(main(context.args))
