"""`plimsoll trainer`: the same as `python -m agents.trainer.trainer`, which needs no server packages."""

import typer

from agents.trainer.trainer import main

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(
    context_settings={
        "ignore_unknown_options": True,
        "allow_extra_args": True,
        "help_option_names": [],
    },
)
def trainer(context: typer.Context) -> None:
    """Run one training or offline task, which can give its GPU's memory back."""
    raise typer.Exit(main(context.args))
