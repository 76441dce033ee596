"""`plimsoll predict`: fits and queries in, latencies with intervals out; no database, no network."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from agents.base.plurals import counted
from app.catalogue.catalogue import load_layers
from app.cli.common.errors import CliError
from app.cli.common.files import STDIO, write_csv
from app.measurements.csv_files import (
    QueryFile,
    find_row,
    prediction_rows,
    read_queries,
)
from app.measurements.rows import file_name, read_bytes
from app.measurements.tables import Reals
from solvers.predict.data.fit import Fits, Predictions, Quantity
from solvers.predict.data.fit_json import fits_from_json
from solvers.predict.estimate.fit_checks import check_fits
from solvers.types.errors import InvalidInput

_EXTRA: dict[str, Quantity] = {"power": "power_w", "memory": "memory_mib"}
_LATENCY = "latency"


def predict(
    fits: Annotated[
        Path, typer.Argument(metavar="FIT", help="What `plimsoll fit` wrote; - = stdin")
    ],
    queries: Annotated[
        Path,
        typer.Argument(metavar="QUERIES", help="CSV file of conditions; - = stdin"),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            metavar="OUT",
            help="Where to write the predictions; - = stdout",
        ),
    ] = STDIO,
    quantities: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            help="latency, and power or memory as well, joined by commas",
        ),
    ] = _LATENCY,
) -> None:
    """Predict latencies under the conditions of a file, row by row.

    Needs no database and no network. The output has the columns of the queries, then latency_ms, latency_ms_low,
    latency_ms_high and technique; 90 % of true latencies lie between low and high. Measured columns are dropped,
    but latency_ms, if there, is compared with the predictions. A network that was not measured on the GPU
    type is estimated from another type (technique gpu_type_ratio) or from its layers (layer_counts), if possible.
    """
    if fits == queries == STDIO:
        raise typer.BadParameter("only one of FIT and QUERIES can come from stdin")
    extra_quantities = _extra_quantities(quantities)
    known = _read_fits(fits)
    asked = read_queries(queries)
    predictions = _predict(known, asked)
    extra: dict[str, Reals] = {
        quantity: _quantity(known, quantity, asked) for quantity in extra_quantities
    }
    write_csv(output, prediction_rows(asked, predictions, extra))
    # After the rows are out: notes on stderr must not come in the way of the data.
    _report_estimated(asked, predictions)
    _show_error(asked, predictions)


def _extra_quantities(text: str) -> list[Quantity]:
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name != _LATENCY and name not in _EXTRA]:
        known = ", ".join((_LATENCY, *_EXTRA))
        raise typer.BadParameter(
            f"{unknown[0]!r} is none of {known}", param_hint="'--quantities'"
        )
    # In our order, whatever the user's: columns stay where other programs look for them.
    return [quantity for name, quantity in _EXTRA.items() if name in names]


def _read_fits(path: Path) -> Fits:
    try:
        fits = fits_from_json(read_bytes(path))
        # A file that parses may still hold coefficients that no fit has.
        check_fits(fits)
    except InvalidInput as error:
        raise CliError(
            f"{file_name(path)}: {error}",
            hint="make the file with `plimsoll fit SAMPLES -o FIT`",
        ) from error
    return fits


def _predict(fits: Fits, asked: QueryFile) -> Predictions:
    # Here, as below: predictions take SciPy, and --help does not.
    from solvers.predict.estimate.predict import predict_latency

    try:
        return predict_latency(fits, asked.queries, layers=load_layers())
    except InvalidInput as error:
        if place := find_row(error):
            raise asked.table.refusal(
                error.problem, row=place[0], column=place[1]
            ) from error
        raise


def _quantity(fits: Fits, quantity: Quantity, asked: QueryFile) -> Reals:
    from solvers.predict.estimate.predict import predict_quantity

    if not fits.of(quantity):
        raise CliError(
            f"the fits have no {quantity}",
            hint=f"fit samples that have the column {quantity}",
        )
    return predict_quantity(fits, quantity, asked.queries)


def _report_estimated(asked: QueryFile, predictions: Predictions) -> None:
    """On stderr: which rows are of networks that were not measured on their GPU type."""
    from solvers.predict.estimate.predict_alone import ESTIMATES

    rows = [
        row
        for row, name in enumerate(predictions.technique)
        # `gpu_type_ratio+interference`: what comes after the plus says how neighbours were added.
        if name.split("+")[0] in ESTIMATES
    ]
    if rows:
        groups = sorted(
            {(asked.queries.network[row], asked.queries.gpu_type[row]) for row in rows}
        )
        names = ", ".join(f"{network} on {gpu_type}" for network, gpu_type in groups)
        total = counted(len(asked.queries), "row")
        sys.stderr.write(
            f"Estimated, as not measured there: {len(rows)} of {total}: {names}\n"
        )


def _show_error(asked: QueryFile, predictions: Predictions) -> None:
    """On stderr: how far the predictions are from the latencies that the file holds, if it does."""
    comparison = asked.compare(predictions)
    if comparison is not None:
        sys.stderr.write(
            f"Compared with {counted(comparison.size, 'measured latency')}: "
            f"mean error {100 * comparison.mean:.2f} %, p90 {100 * comparison.p90:.2f} %; "
            f"{100 * comparison.within:.1f} % lie within the interval\n"
        )
