"""`plimsoll fit`: measurements in, fits out; no database, no network."""

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TextIO

import typer

from agents.base.plurals import counted
from app.catalogue.catalogue import load_layers
from app.cli.common.errors import CliError
from app.cli.common.files import STDIO, summary_stream, write_text
from app.cli.common.output import (
    BAD,
    GOOD,
    WARN,
    Cells,
    ColouredCell,
    show_line,
    show_table,
)
from app.measurements.csv_files import SampleFiles, find_row, read_samples
from app.measurements.rows import file_name
from solvers.predict.data.fit import Fit, Fits
from solvers.predict.data.fit_json import fits_to_json
from solvers.types.errors import InvalidInput

# Of a cross-validated error: what plans can rest on, and what they cannot.
_GOOD_ERROR, _BAD_ERROR = 0.05, 0.15


def fit(
    samples: Annotated[
        list[Path],
        typer.Argument(metavar="SAMPLES", help="CSV files of measurements; - = stdin"),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FIT", help="Where to write the fits; - = stdout"
        ),
    ] = None,
    technique: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Latency technique; auto = the one that predicts held-out samples best",
        ),
    ] = "auto",
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="SVG", help="Draw fits against measurements, a panel per network"
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(min=0, max=2**31 - 1, help="The same seed gives the same fits"),
    ] = 0,
) -> None:
    """Learn latency, power and memory from measurements.

    Needs no database and no network. docs/measure.md describes the columns; `plimsoll samples convert` makes
    such files from other tools' results. Errors are cross-validated: each sample is predicted by a fit without it.
    """
    if output == plot == STDIO:
        raise typer.BadParameter("only one of the fits and the plot can go to stdout")
    measured = read_samples(samples)
    fits = _fits(
        measured, technique, seed, ", ".join(file_name(path) for path in samples)
    )
    # What goes to stdout is a file for the next program: the tables then go to stderr.
    stream = summary_stream(output, plot)
    _report_unlearned(measured, fits)
    show_fits(fits, stream)
    if output is not None:
        write_text(output, fits_to_json(fits), stream=stream)
    if plot is not None:
        # Few people plot, and everybody waits for imports.
        from app.cli.prediction.plot_fit import plot_text

        write_text(plot, plot_text(measured.samples, fits), stream=stream)


def show_fits(fits: Fits, stream: TextIO) -> None:
    """Tables of the latency fits and of the others, if any."""
    latency = fits.of("latency_ms")
    headings = ["network", "GPU type", *_QUALITY_HEADINGS]
    show_table(
        headings,
        [
            (entry.group.network, entry.group.gpu_type, *_quality(entry))
            for entry in latency
        ],
        stream=stream,
    )
    others = [entry for entry in fits.fits if entry.quantity != "latency_ms"]
    if others:
        show_line(stream=stream)
        headings = ["quantity", "of", *_QUALITY_HEADINGS[:-1]]
        show_table(
            headings,
            [
                (entry.quantity, _subject(entry), *_quality(entry)[:-1])
                for entry in others
            ],
            stream=stream,
        )


def _report_unlearned(measured: SampleFiles, fits: Fits) -> None:
    """Names, on stderr, the networks of which no technique could learn. Raises CliError when there is no other."""
    groups = measured.samples.at.groups()
    unlearned = [group for group in groups if fits.find("latency_ms", group) is None]
    names = ", ".join(
        f"{group.network} on {group.gpu_type} ({counted(len(groups[group]), 'sample')})"
        for group in unlearned
    )
    # Nothing to write: an empty file of fits would fail later, and elsewhere.
    if len(unlearned) == len(groups):
        raise CliError(
            f"too little data for any technique: {names}",
            hint="measure more batches and SM percents",
        )
    if unlearned:
        sys.stderr.write(f"Left out, with too little data for any technique: {names}\n")


def _fits(measured: SampleFiles, technique: str, seed: int, source: str) -> Fits:
    try:
        # Here: fits take SciPy, and --help does not.
        from solvers.predict.learn.fit_samples import make_fits

        return make_fits(
            measured.samples,
            technique=technique,
            layers=load_layers(),
            seed=seed,
            source=source,
        )
    except InvalidInput as error:
        # With the row the user finds the line of the file; without one the complaint is about all samples.
        if place := find_row(error):
            raise measured.refusal(
                error.problem, row=place[0], column=place[1]
            ) from error
        raise


_QUALITY_HEADINGS: Sequence[str] = (
    ">samples",
    "technique",
    ">error",
    ">p90",
    "next best",
)


def _quality(entry: Fit) -> Cells:
    quality = entry.quality
    error = quality.cross_validated_error
    style = GOOD if error <= _GOOD_ERROR else WARN if error <= _BAD_ERROR else BAD
    return (
        str(quality.sample_count),
        entry.technique,
        ColouredCell(text=percent_text(error), style=style),
        percent_text(quality.cross_validated_error_p90),
        # Rejected techniques are sorted by their error: the first is the next best.
        entry.rejected[0][0] if entry.rejected else "-",
    )


def percent_text(share: float) -> str:
    """`2.3 %`, or a dash where nothing could be held out."""
    return f"{100.0 * share:.1f} %" if math.isfinite(share) else "-"


def _subject(entry: Fit) -> str:
    """`resnet50 on V100`; an interference fit is about a GPU type."""
    return (
        f"{entry.group.network} on {entry.group.gpu_type}"
        if entry.group.network
        else entry.group.gpu_type
    )
