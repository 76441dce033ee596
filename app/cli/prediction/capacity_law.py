"""`plimsoll capacity-law`: how far a replica may be loaded under an SLO."""

import math
import sys
from typing import Annotated

import typer


def capacity_law(
    percentile: Annotated[
        float,
        typer.Option(
            help="Fraction of requests that must be on time, between 0 and 1: 0.98"
        ),
    ],
    batch: Annotated[
        int,
        typer.Option(
            min=1, max=1_000_000, help="Maximum number of requests per execution"
        ),
    ],
    ratio: Annotated[
        float,
        typer.Option(help="SLO latency divided by the execution time of one batch"),
    ],
    times: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            max=100.0,
            help="Print instead what share is late or refused at these multiples of the figure",
        ),
    ] = None,
) -> None:
    """Print the highest utilisation at which a percentile of requests is on time.

    Requests arrive at random (Poisson); the replica takes whatever waits, at most a batch, as soon as it is free.
    1000 · batch / execution_ms · this figure = the requests per second that a replica can promise.

    With --times, requests that cannot be on time any more are refused.
    """
    # typer's min and max include their ends, at which the law has no value.
    if not 0.0 < percentile < 1.0:
        raise typer.BadParameter(
            f"{percentile:g} must lie between 0 and 1, such as 0.98",
            param_hint="'--percentile'",
        )
    if not 0.0 < ratio < math.inf:
        raise typer.BadParameter(
            f"{ratio:g} must be a number above 0, such as 2.5", param_hint="'--ratio'"
        )
    sys.stdout.write(f"{_figure(percentile, batch, ratio, times):.6f}\n")


def _figure(percentile: float, batch: int, ratio: float, times: float | None) -> float:
    # Here: the law takes SciPy, and --help does not.
    from solvers.laws.bulk_queue import refused_share
    from solvers.laws.capacity_law import max_utilisation

    promised = max_utilisation(batch, percentile=percentile, slo_ratio=ratio)
    if times is None:
        return promised
    load = times * promised
    # A replica that can promise nothing refuses all.
    return refused_share(batch, utilisation=load, slo_ratio=ratio) if load else 1.0
