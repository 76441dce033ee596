"""`plimsoll worker`: the same as `python -m agents.serving`, which needs no server packages."""

import typer

from agents.serving.arguments import main

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(
    context_settings={
        "ignore_unknown_options": True,
        "allow_extra_args": True,
        "help_option_names": [],
    },
)
def worker(context: typer.Context) -> None:
    """Serve one replica by the Open Inference Protocol v2."""
    raise typer.Exit(main(context.args))
