"""Whether the figures of one measurement can all be true, and whether it measured what was asked for.

Tools print what they computed, however wrong: counters that ran below 0, times in another unit, runs in which nearly
every request failed. Such figures refute each other, and none of them is taken.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from agents.base.plurals import counted
from solvers.types.documents.strict_json import MAX_NUMBER

MAX_FAILED_SHARE = 0.1
"""From this share of failed requests on the others were measured on a server in trouble, or with fewer under way."""
_ROUNDING = 1.01
"""Figures are printed with few digits, and means of rounded parts."""
_SAME = 1.1
"""Two ways to one figure, such as requests by time and the rate, may differ so: tools leave out warm-ups."""
_LITTLE = 1.2
"""Requests under way are at most the clients; windows that cut requests off make them look more."""
_SERVER = 1.05
"""Parts of a server's time are means over other requests than the clients', each rounded."""
_PACE = 2.0
"""A mean over requests and one over tokens differ where long answers are faster."""
_MS_PER_S = 1000.0

Quantiles = Mapping[float, float]
"""Level from 0 (the minimum) to 1 (the maximum) → value."""


def known_number(value: object, *, at_most: float = MAX_NUMBER) -> float:
    """A number of at least 0; NaN where there is none."""
    # In Python a bool is an int, and an integer of 400 digits is too large for a float.
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    return float(value) if 0.0 <= value <= at_most else math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """What a run says of itself; NaN where it says nothing."""

    clients: float = math.nan
    completed: float = math.nan
    failed: float = math.nan
    duration_s: float = math.nan
    rate_rps: float = math.nan
    output_tokens: float = math.nan
    """Mean length of an answer."""
    output_tokens_per_s: float = math.nan
    request_ms: float = math.nan
    ttft_ms: float = math.nan
    tpot_ms: float = math.nan

    @property
    def failed_share(self) -> float:
        """Share of the requests that failed; NaN where it is not known."""
        sent = self.completed + self.failed
        return self.failed / sent if sent > 0.0 else math.nan

    @property
    def under_way(self) -> float:
        """Requests under way by Little's law; NaN where it is not known."""
        request_ms = self.request_ms
        if math.isnan(request_ms):
            request_ms = (
                self.ttft_ms + max(0.0, self.output_tokens - 1.0) * self.tpot_ms
            )
        return self.rate_rps * request_ms / _MS_PER_S


def failure_problem(figures: RunFigures) -> str:
    """Why a run has too many failures to be used; nothing where it has not."""
    if not figures.failed_share >= MAX_FAILED_SHARE:
        return ""
    share = f"from {MAX_FAILED_SHARE:.0%} on the others say little"
    return f"{_failures(figures)}; {share}: find out why, and measure again"


def failure_note(figures: RunFigures) -> str:
    """What is to be said of the failures of a run that is used; nothing where there are none."""
    return f"{_failures(figures)}, and are left out" if figures.failed > 0.0 else ""


def _failures(figures: RunFigures) -> str:
    sent = round(figures.completed + figures.failed)
    return f"{round(figures.failed):,} of {counted(sent, 'request')} failed"


def order_problem(name: str, quantiles: Quantiles, *, mean: float = math.nan) -> str:
    """Which quantiles of one quantity contradict each other; nothing where they rise."""
    known = sorted(
        (level, value) for level, value in quantiles.items() if not math.isnan(value)
    )
    for (low, below), (high, above) in pairwise(known):
        if below > above * _ROUNDING:
            return f"{name}: {_level(low)} is {below:g}, above {_level(high)}, which is {above:g}"
    limits = quantiles.get(0.0, math.nan), quantiles.get(1.0, math.nan)
    if mean * _ROUNDING < limits[0] or mean > limits[1] * _ROUNDING:
        return f"{name}: the mean is {mean:g}, outside of minimum and maximum"
    return ""


def _level(level: float) -> str:
    names = {0.0: "the minimum", 0.5: "the median", 1.0: "the maximum"}
    return names.get(level, f"p{100.0 * level:g}")


def server_problem(
    parts: Iterable[float], client: float, quantiles: Quantiles, *, unit: str
) -> str:
    """Why a server's own time cannot be true given its clients'; nothing where it can.

    parts: of the server's mean time, NaN where one is not known. client: their mean, NaN where it is not known.
    """
    server = math.fsum(part for part in parts if part > 0.0)
    # Without a mean, nearly all requests ended before the 99th percentile, and half of them before the median.
    limits = (
        client * _SERVER,
        quantiles.get(0.99, math.nan) * _SERVER,
        quantiles.get(0.5, math.nan) * _PACE,
    )
    limit = next((each for each in limits if each > 0.0), math.nan)
    if not server > limit:
        return ""
    return f"the server took {server:g} {unit} of its own, but its clients waited for at most {limit:g} {unit}"


def find_contradiction(figures: RunFigures) -> str:
    """The first two figures that cannot both be true; nothing where there are none."""
    return next(_contradictions(figures), "")


def _contradictions(run: RunFigures) -> Iterator[str]:
    # A comparison with NaN is false: of what is not known nothing is said.
    if run.ttft_ms > run.request_ms * _ROUNDING:
        yield f"the first token comes after {run.ttft_ms:g} ms, but an answer ends after {run.request_ms:g} ms"
    # Of an answer of one token there is no time between tokens.
    if run.output_tokens >= 2.0 and run.tpot_ms > run.request_ms * _ROUNDING:
        yield f"a token takes {run.tpot_ms:g} ms, an answer of several only {run.request_ms:g} ms"
    by_time_rps = run.completed / run.duration_s if run.duration_s > 0.0 else math.nan
    if _differ(by_time_rps, run.rate_rps):
        yield (
            f"{run.completed:g} requests in {run.duration_s:g} s are {by_time_rps:.3g} per second, "
            f"not {run.rate_rps:.3g}"
        )
    # Tools that give no rate give the time, and the other way round.
    rate_rps = by_time_rps if math.isnan(run.rate_rps) else run.rate_rps
    tokens_per_s = rate_rps * run.output_tokens
    if _differ(tokens_per_s, run.output_tokens_per_s):
        yield (
            f"{rate_rps:.3g} requests per second of {run.output_tokens:.4g} tokens are {tokens_per_s:.4g} tokens per "
            f"second, not {run.output_tokens_per_s:.4g}"
        )
    under_way = rate_rps * run.request_ms / _MS_PER_S
    if under_way > run.clients * _LITTLE:
        yield (
            f"{rate_rps:.3g} requests per second of {run.request_ms:.4g} ms each are {under_way:.3g} at a time, more "
            f"than the {run.clients:g} of the clients"
        )
    at_a_time = run.output_tokens_per_s * run.tpot_ms / _MS_PER_S
    if at_a_time > run.clients * _PACE:
        yield (
            f"{run.output_tokens_per_s:.4g} tokens per second at {run.tpot_ms:g} ms per token are {at_a_time:.3g} "
            f"answers at a time, more than the {run.clients:g} of the clients"
        )


def _differ(one: float, other: float) -> bool:
    return one > other * _SAME or other > one * _SAME
