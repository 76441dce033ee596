"""`plimsoll profile run`: measure networks on a GPU of this node, and write what was measured as samples."""

import math
import sys
from pathlib import Path
from typing import Annotated

import typer

from app.cli.common.durations import parse_duration
from app.cli.common.files import STDIO, check_place
from app.cli.common.options import command_group

app = command_group("Measure networks on a GPU of this node.")

GpuType = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="GPU type of the catalogue, written into the samples"
    ),
]
Network = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="What is measured; may be repeated"),
]
Template = Annotated[
    str,
    typer.Option(metavar="NAME", help="Runtime template [default: each network's own]"),
]
Templates = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="The node's runtime templates, see docs/runtimes.md"
    ),
]
Gpu = Annotated[int, typer.Option(min=0, metavar="INDEX", help="Which GPU of the node")]
Shares = Annotated[str, typer.Option(metavar="PERCENT,...", help="SM percents")]
Batches = Annotated[str, typer.Option(metavar="ROWS,...", help="Batch sizes")]
Plan = Annotated[
    Path | None,
    typer.Option(
        metavar="POINTS",
        help="Measure the points of `plimsoll samples plan` instead; - = stdin",
    ),
]
Pairs = Annotated[
    bool, typer.Option("--pairs", help="Also measure pairs of networks side by side")
]
PairShares = Annotated[
    str,
    typer.Option(
        metavar="PERCENT:PERCENT,...", help="SM percents of the two networks of a pair"
    ),
]
MaxPairs = Annotated[
    int, typer.Option(min=1, help="Measure at most this many pairs, drawn by the seed")
]
Clocks = Annotated[
    str,
    typer.Option(
        metavar="MHZ,...",
        help="Lock the graphics clock at each of these [default: touch no clock]",
    ),
]
WindowS = Annotated[
    float, typer.Option(min=0.1, max=60.0, help="Minimum length of a window in seconds")
]
MaxWindows = Annotated[
    int, typer.Option(min=3, max=100, help="Maximum number of windows of a cell")
]
Spread = Annotated[
    float,
    typer.Option(
        min=0.1,
        max=100.0,
        metavar="PERCENT",
        help="Allowed spread of the medians of three windows",
    ),
]
Budget = Annotated[
    str,
    typer.Option(
        metavar="DURATION",
        help="Start no new cell after this time, e.g. 45m [default: no limit]",
    ),
]
Seed = Annotated[
    int, typer.Option(min=0, max=2**31 - 1, help="Seed of the order of cells")
]
Samples = Annotated[
    Path,
    typer.Option(
        "-o", "--output", metavar="SAMPLES", help="Where to write the samples"
    ),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue after what SAMPLES.journal holds")
]
Send = Annotated[
    bool,
    typer.Option("--send", help="Send the samples to the control plane at the end"),
]
Source = Annotated[
    str, typer.Option(metavar="TEXT", help="With --send: who measured, and with what")
]


@app.callback()
def _group() -> None:
    """Keeps `run` a word of its own, as the only command of a group is not."""


@app.command()
def run(
    context: typer.Context,
    gpu_type: GpuType,
    *,
    network: Network = None,
    template: Template = "",
    templates: Templates = None,
    gpu: Gpu = 0,
    shares: Shares = "10,20,30,40,50,60,80,100",
    batches: Batches = "1,4,16,64",
    plan: Plan = None,
    pairs: Pairs = False,
    pair_shares: PairShares = "25:75,50:50,75:25",
    max_pairs: MaxPairs = 60,
    clocks: Clocks = "",
    window_s: WindowS = 2.0,
    max_windows: MaxWindows = 12,
    spread: Spread = 3.0,
    budget: Budget = "",
    seed: Seed = 0,
    output: Samples = Path("samples.csv"),
    resume: Resume = False,
    send: Send = False,
    source: Source = "",
) -> None:
    """Measure latency, memory and power of networks over SM percents and batches.

    Runs on a node with a free GPU. Every network is started by its runtime template with its share under MPS, proves
    the share, and runs batches in windows that are repeated until they agree. docs/measure.md says how. Interrupt it
    at any time: what was measured is written, and --resume continues.
    """
    # The device library and numpy load here, not for --help.
    from agents.profiling.windows import Rules
    from app.cli.prediction.profile_cells import ProfileOptions, make_cells
    from app.cli.prediction.profile_run import ProfileTarget, run_profile

    # A profile takes an hour; its journal shows only at the end that it has no place.
    _check_output(output)
    wanted = ProfileOptions(
        networks=tuple(network or ()),
        gpu_type=gpu_type,
        shares=shares,
        batches=batches,
        clocks=clocks,
        plan=plan,
        splits=pair_shares if pairs else "",
        max_pairs=max_pairs,
        seed=seed,
    )
    cells, notes = make_cells(wanted)
    sys.stderr.writelines(f"Note: {note}\n" for note in notes)
    rules = Rules(
        window_s=window_s, max_windows=max_windows, spread_limit=spread / 100.0
    )
    place = ProfileTarget(
        gpu=gpu,
        templates=templates,
        template=template,
        rules=rules,
        budget_s=_seconds(budget),
    )
    is_complete = run_profile(wanted, cells, place, output, resumes=resume)
    # Also after an interruption: what was measured is worth as much. Where nothing was there is no file.
    if send and output.exists():
        _send(context, output, source)
    if not is_complete:
        # 128 + SIGINT, as a shell reports it of any interrupted program.
        raise typer.Exit(130)


def _check_output(output: Path) -> None:
    """Before long work. Raises BadParameter or CliError."""
    if output == STDIO:
        raise typer.BadParameter(
            "a profile needs a file, as its journal is kept next to it",
            param_hint="'--output'",
        )
    check_place(output)


def _seconds(budget: str) -> float:
    return parse_duration(budget).total_seconds() if budget else math.inf


def _send(context: typer.Context, output: Path, source: str) -> None:
    """As `plimsoll samples send` does."""
    from app.cli.common.output import Format

    # Only with --send: a node that measures need not have the API's packages.
    from app.cli.prediction.samples_send import send

    send(context, [output], source=source, output=Format.TABLE)
