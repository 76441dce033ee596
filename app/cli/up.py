"""`plimsoll up`: everything on this machine; with --demo, at work on a simulated fleet."""

from pathlib import Path
from typing import Annotated

import typer


def up(
    demo: Annotated[
        bool, typer.Option("--demo", help="Run the demo: 8 simulated nodes, 4 services, a real load.")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="With --demo: keep running when its load is over.")] = False,
    speed: Annotated[float, typer.Option(help="With --demo: trace seconds per second.", min=1.0, max=50.0)] = 20.0,
    seed: Annotated[int, typer.Option(help="With --demo: seed of load, noise and the baseline.", min=0)] = 1,
    data_dir: Annotated[Path | None, typer.Option(help="Folder of the embedded database.")] = None,
) -> None:
    """Start everything on this machine; --demo shows it at work."""
    from rich.console import Console

    from app.settings import Settings

    settings = Settings() if data_dir is None else Settings(data_dir=data_dir)
    if demo:
        from app.demo.run import DemoOptions, run_demo

        run_demo(DemoOptions(settings=settings, speed=speed, seed=seed, keep=keep), Console())
        return
    from app.up import run_everything

    run_everything(settings, Console())
