"""Health goes through JSON unchanged, and wrong documents are refused."""

import json

import numpy as np
import pytest

from solvers.predict.learn.online import (
    ExecutionReading,
    FitState,
    RowKey,
    learn,
    new_fit_state,
)
from solvers.predict.learn.online_json import (
    fit_state_from_document,
    fit_state_to_document,
)
from solvers.types.errors import InvalidInput

ROWS = {RowKey(50.0, 8, 1500.0): 0.1, RowKey(20.0, 4, 1500.0): 0.25}


def a_health(log_ratio: float, periods: int) -> FitState:
    health = new_fit_state(np.array([0.1, 0.25]), 0.0)
    for period in range(1, periods + 1):
        readings = [
            ExecutionReading(
                replica=str(row), row=row, log_ratio=log_ratio, variance=1e-3
            )
            for row in ROWS
        ]
        health = learn(health, readings, ROWS, 10.0 * period)
    return health


@pytest.mark.parametrize(
    "health",
    [a_health(0.0, 0), a_health(0.01, 5), a_health(1.0, 3)],
    ids=["new", "calm", "off"],
)
def test_what_is_written_is_read_again(health: FitState) -> None:
    assert (
        fit_state_from_document(json.loads(json.dumps(fit_state_to_document(health))))
        == health
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mean": [0.0]}, "of size 3"),
        ({"covariance": [[1.0]]}, "of size 3"),
        ({"band": 0.0}, "band"),
        ({"rows": [[50.0, 0, 1500.0], [20.0, 4, 1500.0]]}, "rows"),
        (
            {"rows": [[50.0, 8], [20.0, 4, 1500.0]]},
            r"rows\[0\]: must be sm_percent, batch, clock_mhz, not 2 items",
        ),
        ({"extra": 1}, "unknown field"),
    ],
)
def test_a_wrong_document_is_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        fit_state_from_document({**fit_state_to_document(a_health(0.01, 2)), **change})
