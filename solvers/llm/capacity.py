"""The highest rate of one replica at which a percentile of requests keeps both SLOs.

    capacity = max rate with Q_p(TTFT) ≤ ttft_ms, Q_p(ITL) ≤ itl_ms, and rate ≤ 0.8 · saturation

Near saturation no stationary law holds: where answers get a little longer, the queue grows without end. So plans stay
below `MAX_LOAD` of it, whatever the SLO.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from solvers.llm.calendar import (
    Draw,
    Replica,
    draw_requests,
    seen_ttft_ms,
    serve,
    share_of_tokens,
)
from solvers.llm.kv_cache import PLANNED_SHARE, places
from solvers.llm.lengths import LengthTable
from solvers.types.llm import MAX_LOAD, TokenSlo

REQUESTS = 40_000
"""Drawn for one capacity: 1 % off 200,000 at the median."""
_FEW_REQUESTS = 2_000
"""They tell roughly where the capacity lies; all are served only near it."""
_USUAL_TOKENS, _MIN_SHARE = 15_000.0, 0.05
"""Fewer of longer requests are drawn, down to that share: else a million tokens each would take minutes."""
_HALVINGS = 8
_NEAR = 0.015
"""The excess of a capacity is above minus this. Draws differ more: of 400 late requests in 40,000 by a twentieth."""
_PRECISION = 0.006
"""How near its interval is drawn around a capacity at most, as a share of it: about what `_NEAR` is elsewhere."""
_USUAL_SLOPE = 3.0
"""By how much the excess grows with the logarithm of the rate: 3 to 10 in most cases."""
_MAX_STEP = 0.35
"""The logarithm of the rate changes by that much at once."""
_MAX_ROUNDS = 12
_LONELY = 1e-3
"""The share of the saturation rate at which a request is alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptShares:
    """Shares, 0 to 1, of requests within the time to the first token, and of tokens or requests within the other."""

    ttft: float
    itl: float


def shares_kept(
    replica: Replica, draw: Draw, slo: TokenSlo, rate_rps: float
) -> KeptShares:
    """What is in time at a rate."""
    passed = serve(replica, draw, rate_rps)
    ttft_ms = seen_ttft_ms(passed, draw, replica.table)
    if slo.itl == "token":
        itl = share_of_tokens(passed, slo.itl_ms)
    else:
        # An answer of one token has no time between tokens.
        gaps = np.maximum(1, draw.output - 1)
        itl = float(np.mean(passed.decode_ms <= slo.itl_ms * gaps))
    return KeptShares(ttft=float(np.mean(ttft_ms <= slo.ttft_ms)), itl=itl)


def kept_alone(replica: Replica, lengths: LengthTable, slo: TokenSlo) -> KeptShares:
    """What is in time where requests hardly ever meet: what no lower rate improves."""
    draw = draw_requests(lengths, drawn_requests(lengths, _FEW_REQUESTS))
    return shares_kept(replica, draw, slo, _LONELY * saturation_rps(replica, lengths))


def drawn_requests(lengths: LengthTable, usual: int) -> int:
    """How many requests of these lengths are drawn where `usual` ones of usual lengths are."""
    share = _USUAL_TOKENS / (lengths.mean_prompt + lengths.mean_output)
    return round(usual * min(1.0, max(_MIN_SHARE, share)))


def saturation_rps(replica: Replica, lengths: LengthTable) -> float:
    """Requests per second at which all places of a replica are always taken; 0 where no request fits."""
    table = replica.table
    sequences = places(
        replica.kv_tokens,
        max_num_seqs=replica.limits.max_num_seqs,
        mean_prompt=lengths.mean_prompt,
        mean_cached=lengths.mean_cached,
    )
    if sequences < 1.0:
        return 0.0
    # All places taken: each step makes one token per place, and reads prompts as fast as requests end.
    decode_ms = table.decode_ms(sequences, sequences * lengths.mean_cached)
    per_request_ms = lengths.mean_output * decode_ms / sequences
    computed = (1.0 - lengths.found_share) * lengths.mean_prompt
    per_request_ms += computed * _prompt_token_ms(replica, lengths)
    return 1000.0 / per_request_ms


def _prompt_token_ms(replica: Replica, lengths: LengthTable) -> float:
    """What one more token of a prompt costs in a step that is filled up with them."""
    table = replica.table
    budget = float(replica.limits.max_num_batched_tokens)
    full, none = np.interp([budget, 1.0], table.tokens, table.step_ms)
    prompt = lengths.prompt.astype(np.float64)
    # Long prompts attend to themselves: the mean of squares, not the square of the mean. What is computed comes after
    # what is found, and attends to that as well.
    pairs_per_token = float((prompt**2).mean() / (2.0 * prompt.mean()))
    pairs_per_token *= 1.0 + lengths.found_share
    marginal = (full - none + table.prompt_step_ms) / budget
    return float(marginal + table.pair_ms * pairs_per_token)


def capacity_rps(
    replica: Replica,
    lengths: LengthTable,
    slo: TokenSlo,
    *,
    cv: float = 1.0,
    requests: int = REQUESTS,
) -> float:
    """Requests per second that one replica may be planned with; 0 where even one at a time is too slow.

    `replica.kv_tokens` is the whole cache; the law counts on `PLANNED_SHARE` of it. Deterministic; 0.03 to 0.25 s.
    """
    planned = _planned(replica)
    rough = rough_capacity_rps(replica, lengths, slo, cv=cv)
    if rough <= 0.0:
        return 0.0
    highest = MAX_LOAD * saturation_rps(planned, lengths)
    draw = draw_requests(lengths, drawn_requests(lengths, requests), cv=cv)
    return _located(_Excess(planned, draw, slo), rough, highest)


def rough_capacity_rps(
    replica: Replica, lengths: LengthTable, slo: TokenSlo, *, cv: float = 1.0
) -> float:
    """The same to some per cent, from few requests, in a twentieth of the time."""
    planned = _planned(replica)
    highest = MAX_LOAD * saturation_rps(planned, lengths)
    if planned.kv_tokens < lengths.longest or highest <= 0.0:
        return 0.0
    draw = draw_requests(lengths, drawn_requests(lengths, _FEW_REQUESTS), cv=cv)
    return _halved(_Excess(planned, draw, slo), highest)


def _planned(replica: Replica) -> Replica:
    """The replica with as much of its cache as plans count on."""
    return Replica(
        table=replica.table,
        limits=replica.limits,
        kv_tokens=PLANNED_SHARE * replica.kv_tokens,
    )


class _Excess(NamedTuple):
    """How much more of the requests are late than may be."""

    replica: Replica
    draw: Draw
    slo: TokenSlo

    def at(self, rate_rps: float) -> float:
        """ln of the share that is late over the share that may be: 0 at the capacity, and nearly linear around it."""
        kept = shares_kept(self.replica, self.draw, self.slo, rate_rps)
        late = max(1.0 - min(kept.ttft, kept.itl), 0.5 / len(self.draw.prompt))
        return math.log(late / (1.0 - self.slo.percentile))


def _halved(excess: _Excess, highest: float) -> float:
    """The capacity to within a 2 to the power of `_HALVINGS`-th of the highest rate."""
    if excess.at(highest) <= 0.0:
        return highest
    # Late shares grow with the rate, so that halving finds where they cross.
    low, high = 0.0, highest
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        if excess.at(middle) <= 0.0:
            low = middle
        else:
            high = middle
    # Below the first step nothing was in time: a capacity that small is none.
    return 0.5 * (low + high) if low > 0.0 else 0.0


def _located(excess: _Excess, rough: float, highest: float) -> float:
    """A rate whose excess is at most 0, and above −`_NEAR` or within `_PRECISION` of a rate with more than 0.

    False position with halved weights (Illinois; Dowell and Jarratt 1971), from the rough capacity on.
    """
    low, below = 0.0, -math.inf
    high, above = highest, math.inf
    rate, slope = rough, _USUAL_SLOPE
    was_late = None
    for _ in range(_MAX_ROUNDS):
        found = excess.at(rate)
        if -_NEAR <= found <= 0.0 or (found <= 0.0 and rate >= highest):
            return rate
        # An end that stays counts half, else it would stay for good where the excess is curved.
        is_late = found > 0.0
        weight = 0.5 if is_late == was_late else 1.0
        was_late = is_late
        if is_late:
            high, above, below = rate, found, weight * below
        else:
            low, below, above = rate, found, weight * above
        if high - low <= _PRECISION * high:
            break
        # What is looked for is the middle of what is near enough.
        missing = -0.5 * _NEAR - found
        if math.isinf(below) or math.isinf(above):
            step = max(-_MAX_STEP, min(_MAX_STEP, missing / slope))
            rate = min(highest, rate * math.exp(step))
            # Steps that do not reach the other side get longer.
            slope *= 0.5
        else:
            share = (-0.5 * _NEAR - below) / (above - below)
            # Off the ends, so that the interval shrinks whatever the excess looks like.
            rate = low + min(0.95, max(0.05, share)) * (high - low)
    return low
