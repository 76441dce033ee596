"""Invocations of Azure's functions by the minute of a day, as rates: the busiest functions, each a series.

Form as published: HashOwner,HashApp,HashFunction,Trigger,1,...,1440, a row per function. A series is called by the
first eight signs of its function's hash. Source: AzurePublicDataset, AzureFunctionsDataset2019.md.
"""

import heapq
from collections.abc import Iterator, Sequence

import numpy as np

from app.measurements.rows import Rows, refusal
from app.measurements.tables import NOT_NEGATIVE, Reals, parse_number
from app.simulate.traces.trace import RateTrace

MINUTES = 1440
MINUTE_S = 60.0
_FUNCTION, _TRIGGER = "HashFunction", "Trigger"
_NAME_LENGTH = 8

_Function = tuple[float, int, str, Reals]
"""Invocations of the day; minus the line, so that the first of equals is kept; name; invocations by minute."""


def read_azure_functions(rows: Rows, *, top: int, trigger: str = "") -> RateTrace:
    """The `top` busiest functions, the busiest first. trigger: take functions of this one only, such as http.

    Raises InvalidRequest.
    """
    _check_header(rows.header_place, rows.names)
    # Tens of thousands of functions with 1,440 numbers each: only the busiest are held in memory.
    kept = heapq.nlargest(
        top, _functions(rows, trigger), key=lambda function: function[:2]
    )
    if not kept:
        raise rows.refusal(
            f"there is no function with the trigger {trigger!r}",
            column=_TRIGGER,
        )
    rates_rps = np.column_stack([by_minute for *_, by_minute in kept]) / MINUTE_S
    names = short_names([name for _, _, name, _ in kept])
    return RateTrace(
        names=names,
        rates_rps=rates_rps,
        step_s=MINUTE_S,
        notes=rows.notes,
    )


def _functions(rows: Rows, trigger: str) -> Iterator[_Function]:
    columns = [rows.names.index(str(minute)) for minute in range(1, MINUTES + 1)]
    name_place = rows.names.index(_FUNCTION)
    trigger_place = rows.names.index(_TRIGGER)
    for line, cells in rows.rows:
        if trigger and cells[trigger_place] != trigger:
            continue
        by_minute = _numbers(rows, line, [cells[place] for place in columns])
        yield float(by_minute.sum()), -line, cells[name_place], by_minute


def _numbers(rows: Rows, line: int, cells: Sequence[str]) -> Reals:
    for minute, cell in enumerate(cells, start=1):
        # Digits need no closer look, and nearly every cell is digits; the slow parser words the complaint.
        if not cell.isdecimal():
            try:
                parse_number(cell, NOT_NEGATIVE)
            except ValueError as error:
                raise rows.refusal(
                    str(error),
                    line=line,
                    column=str(minute),
                ) from error
    return np.array([float(cell) for cell in cells])


def short_names(hashes: Sequence[str]) -> tuple[str, ...]:
    """The hashes' beginnings; those that are alike get a number."""
    shorts = [each[:_NAME_LENGTH] for each in hashes]
    # Eight signs of a hash are rarely alike, but columns of a trace must have names of their own.
    earlier = [shorts[:place].count(short) for place, short in enumerate(shorts)]
    return tuple(
        f"{short}-{same + 1}" if same else short
        for short, same in zip(shorts, earlier, strict=True)
    )


def _check_header(place: str, names: Sequence[str]) -> None:
    needed = [_FUNCTION, _TRIGGER, *map(str, range(1, MINUTES + 1))]
    if missing := next((name for name in needed if name not in names), None):
        problem = f"the header lacks {missing}; it must have {_FUNCTION}, {_TRIGGER} and the minutes 1 to {MINUTES}"
        raise refusal(problem, file=place)
