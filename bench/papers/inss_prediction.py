"""How near predicted execution times come to measured ones: on the paper's tables 2 and 3, and on iGniter's pairs.

The tables' 28 rows are fewer than the paper's formula is fitted to (16 points alone for each network and five with
others), so that in sample means: the fit has seen the row, as the paper's has seen points around it. The four rows of a
network of which no row is alone (E* & M1) cannot be predicted, and are left out.
"""

from pathlib import Path

import numpy as np

from app.catalogue.catalogue import load_layers
from bench.predict import igniter_pairs, inss

WORST_PERCENT = 3.861
"""The paper's worst case."""
SHARED = Path(__file__).resolve().parents[3] / "shared"


def errors_percent(*, quick: bool) -> tuple[tuple[str, float, float], ...]:
    """(figure, the paper's value, ours) for each data set; empty where the measurements are not by the checkout."""
    if not (SHARED / "data").is_dir():
        return ()
    results = [next(iter(inss(SHARED, load_layers())))]
    if not quick:
        results += igniter_pairs(SHARED, load_layers())
    found = []
    for result in results:
        errors = 100.0 * result.outcome.errors[np.isfinite(result.outcome.errors)]
        found.append((f"{result.task.name}, mean", WORST_PERCENT, float(errors.mean())))
        found.append((f"{result.task.name}, worst", WORST_PERCENT, float(errors.max())))
    return tuple(found)
