"""Requests to the LLM services of Azure, one row each, as rates by the second.

Forms: TIMESTAMP,ContextTokens,GeneratedTokens as published; t_s,context_tokens,generated_tokens; and, counted already,
second,requests with more columns. Tokens are not taken. Source: AzurePublicDataset, AzureLLMInferenceDataset2023.md.
"""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from app.base.errors import InvalidRequest
from app.measurements.rows import Rows, open_rows, refusal
from app.measurements.tables import parse_number
from app.measurements.traces import ANY_TIME, MAX_STEPS, moment_s
from app.simulate.traces.files import make_trace
from app.simulate.traces.trace import RateTrace

_MOMENT, _SECONDS, _COUNTED = "TIMESTAMP", "t_s", "requests"


def read_azure_llm(source: Path) -> RateTrace:
    """One series, `requests`, from the first whole second on. Raises InvalidRequest."""
    rows = open_rows(source, _check_header)
    # Counted files have a row for each second, so that a trace of any size is read as any other one.
    if _COUNTED in rows.names:
        return make_trace(rows, columns=[_COUNTED])
    counts = _counts(rows)
    rates_rps = np.array(
        [[float(counts[second])] for second in range(min(counts), max(counts) + 1)]
    )
    try:
        return RateTrace(
            names=(_COUNTED,),
            rates_rps=rates_rps,
            step_s=1.0,
            notes=rows.notes,
        )
    except InvalidRequest as error:
        raise refusal(str(error), file=rows.file) from error


def _counts(rows: Rows) -> Counter[int]:
    """Requests by whole second; rows need no order."""
    column = _MOMENT if _MOMENT in rows.names else _SECONDS
    place = rows.names.index(column)
    counts: Counter[int] = Counter()
    first, last = math.inf, -math.inf
    for line, cells in rows.rows:
        try:
            moment = (
                moment_s(cells[place])
                if column == _MOMENT
                else parse_number(cells[place], ANY_TIME)
            )
        except ValueError as error:
            raise refusal(
                str(error),
                file=rows.file,
                line=line,
                column=column,
            ) from error
        second = math.floor(moment)
        counts[second] += 1
        # Checked while reading: one wrong date would otherwise make a trace of years, second by second.
        first, last = min(first, second), max(last, second)
        if last - first >= MAX_STEPS:
            problem = (
                f"more than {MAX_STEPS:,} s from the earliest request to the latest"
            )
            raise refusal(
                problem,
                file=rows.file,
                line=line,
                column=column,
            )
    return counts


def _check_header(place: str, names: Sequence[str]) -> None:
    if not {_MOMENT, _SECONDS, _COUNTED} & set(names):
        problem = (
            f"the header must have {_MOMENT} or {_SECONDS}, or {_COUNTED} by the "
            f"second; it has {', '.join(names)}"
        )
        raise refusal(problem, file=place)
