"""Room: how much more than what forecasts expect a service's plans carry, by what its SLO still forgives.

An SLO forgives that a share of the requests is late, and does not say when. So plans follow medians, and the room
beyond them is as large as the error budget asks for. In window t plans carry

    planned(t)  = max(factor(t) · followed(t), floor)
    factor(t)   = factor; in a burst, where followed(t) is BURST times the usual rate and noise beyond, 1 at least
    followed(t) = the highest rate that was expected within the hold, as of a reaction before t

    sets         windows t of the last hour that were heard, of equal length
    parameters   rate(t)   arrivals per second
                 spent     of what the SLO forgives of the requests of the last hour, the part that was late; a service
                           that was hardly heard is taken to have spent SPENT_AT_FIRST of PRIOR_S
                 usual     the median rate of the newest USUAL_S
    variables    factor, floor ≥ 0

1. *The factor* is for noise and for what plans believe wrongly. It rises with what is spent, from MIN_FACTOR, at which
   some windows are late, to MAX_FACTOR, which gains lost budget back: proportional control with an hour's memory. It
   saves in a burst nothing worth having, for what starts late there is late for as long as the burst lasts.
2. *The floor* is for what comes too suddenly to be followed: the smallest one under which no more requests would have
   been late, of those that came and of those to come, than may be spent from now on:

    Σ_t late(t) + prior(floor) ≤ (1 − percentile) · ε(spent) · (requests heard + prior's requests)
    late(t) = max(0, rate(t) − SLACK · planned(t))

   The prior are PRIOR_BURSTS bursts within PRIOR_S, jumps to between 1.5 and 4 times the usual rate that last for a
   reaction. It counts as soon as any service of the project has shown a burst: load that has never burst pays nothing
   for bursts, and load that does gets room before each service has learned it by itself.

Measured: learned from one's own last hour alone, factor and floor are large when a burst is over and small before the
next one. A level that the bursts of all services set, and that moves with the budget of an hour, costs less on every
kind of load.
Source of the budget: Beyer et al., The Site Reliability Workbook (2018), chapter 5.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from solvers.forecast.seasons import coarsen
from solvers.forecast.spread import SURPRISE_DEVIATIONS
from solvers.forecast.types import PLANNING_LEVEL, Reals, RequestSeries, normal_quantile

Flags = npt.NDArray[np.bool_]

MIN_FACTOR, MAX_FACTOR = 0.85, 1.2
SPENDING = 0.3, 0.9
"""Where less is spent the factor is the smallest, where more is the largest; between them it is linear."""
SPENT_AT_FIRST = 0.75
"""The factor is then a little above 1.1. At 0.6 the demo costs 2 % less, and runs of twelve minutes (`bench.loads`)
miss SLOs more often: what is lost in the first minutes takes longer than that to gain back."""
PRIOR_S = 600.0
PRIOR_BURSTS = 1.5
"""A burst every 400 s, once the project's services have shown that they burst; after an hour that counts a seventh."""
SLACK = 1.2
"""What is carried over what is planned, as a rule: GPUs are whole, and what is left on them is given away. After a
tolerance (`app.loop.planning.tolerance`) it is less, until what is late raises the factor."""
MIN_SPENDING, MAX_SPENDING = 0.4, 2.0
"""ε: a service that has spent nothing may spend twice as fast as its SLO forgives, one that has spent all 0.4 times."""
MIN_GRAIN_S = 5.0
"""In shorter windows rare requests look like bursts."""
MIN_MISSES = 1.0
"""Where less than one request may be late, too few came to say anything."""
BURST = 1.5
"""A burst is a rate of that multiple of what was followed, and SURPRISE_DEVIATIONS of Poisson's noise beyond."""
USUAL_S = 300.0
"""Longer than most bursts, shorter than the time of day takes to change the rate."""
_PRIOR_JUMPS: Reals = np.linspace(1.5, 4.0, 26)
_HALVINGS = 20
"""A millionth of the highest rate."""


class Room(NamedTuple):
    """What a service's plans carry of what they follow."""

    factor: float
    floor_rps: float = 0.0

    burst_rps: float = math.inf
    """Beyond it what is followed is a burst, in which nothing is saved."""

    def factor_at(self, followed_rps: float) -> float:
        """The factor on that rate."""
        return max(1.0, self.factor) if followed_rps > self.burst_rps else self.factor


class Outcomes(NamedTuple):
    """What became of a service's requests in the last hour, or in so much of it as was heard since it first served."""

    finished: float = 0.0
    late: float = 0.0
    """Those of them that missed the SLO; rejected ones are late."""
    heard_s: float = 0.0


class Reaction(NamedTuple):
    """How plans follow load, in seconds."""

    hold_s: float
    """How long they keep to the highest rate that was expected."""
    reaction_s: float
    """From the window in which more comes until what starts for it serves."""


def spent_share(percentile: float, outcomes: Outcomes) -> float:
    """The part that is spent of what the SLO forgives: 0 to 1, and more where the SLO is missed.

    percentile: of the SLO, 0 to 1; 1 forgives nothing, so that all is spent.
    """
    forgiven = 1.0 - percentile
    if forgiven <= 0.0:
        return 1.0
    # As many more as come in PRIOR_S.
    unknown = (
        outcomes.finished * PRIOR_S / outcomes.heard_s if outcomes.heard_s > 0 else 1.0
    )
    late = outcomes.late / forgiven + SPENT_AT_FIRST * unknown
    # A service without requests has spent as much as at first.
    return late / (outcomes.finished + unknown) if unknown else SPENT_AT_FIRST


def factor_of(spent: float) -> float:
    """The factor on what is followed, by the share of the budget that is spent."""
    low, high = SPENDING
    part = min(1.0, max(0.0, (spent - low) / (high - low)))
    return MIN_FACTOR + part * (MAX_FACTOR - MIN_FACTOR)


UNKNOWN_ROOM = Room(factor_of(SPENT_AT_FIRST))
"""The room of a service before it is judged."""


def has_burst(series: RequestSeries, reaction: Reaction) -> bool:
    """Whether more came, at any time, than plans that followed the load would have carried, by far."""
    past = _past(series, reaction)
    return bool(np.any(past.rates > _burst_rps(past.followed, past.window_s)))


def learn_room(
    series: RequestSeries,
    reaction: Reaction,
    *,
    percentile: float,
    spent: float,
    bursts: bool,
) -> Room:
    """The room that a service needs.

    series: of the last hour or so; windows that were not heard, or follow such, are left out. percentile: of the SLO.
    spent: `spent_share`. bursts: whether the load of its project bursts. O(windows · hold / window).
    """
    factor = factor_of(spent)
    past = _past(series, reaction)
    bursts_s = PRIOR_BURSTS * reaction.reaction_s if bursts else 0.0
    prior_s = PRIOR_S if bursts else 0.0
    requests = past.window_s * float(past.rates.sum()) + prior_s * past.usual
    # A service that has spent half goes on as fast as its SLO forgives.
    pace = min(MAX_SPENDING, max(MIN_SPENDING, MAX_SPENDING * (1.0 - spent)))
    forgiven = (1.0 - percentile) * pace * requests
    # Where nothing at all is forgiven, what few requests say counts as well.
    says_little = percentile < 1.0 and forgiven < MIN_MISSES
    if not len(past.rates):
        return Room(factor)
    burst_rps = float(_burst_rps(np.array([past.usual]), past.window_s)[0])
    room = Room(factor, burst_rps=burst_rps)
    if says_little or _late(past, room, bursts_s) <= forgiven:
        return room
    low, high = 0.0, max(float(past.rates.max()), float(_PRIOR_JUMPS[-1]) * past.usual)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        # What is returned must be enough: `high` always is, `low` never.
        if _late(past, room._replace(floor_rps=middle), bursts_s) <= forgiven:
            high = middle
        else:
            low = middle
    return room._replace(floor_rps=high)


class _Past(NamedTuple):
    """What the past says; rates in requests per second."""

    window_s: float
    rates: Reals
    """(T,) of the windows in which it is known what plans would have followed."""
    followed: Reals
    """(T,)."""
    usual: float


def _late(past: _Past, room: Room, bursts_s: float) -> float:
    """Requests that come beyond what a room carries, in the past and in `bursts_s` of the prior's bursts."""
    bursts = past.followed > room.burst_rps
    factors = np.where(bursts, max(1.0, room.factor), room.factor)
    carried = SLACK * np.maximum(factors * past.followed, room.floor_rps)
    seen = past.window_s * float(np.maximum(0.0, past.rates - carried).sum())
    # In a burst plans still carry what they follow.
    carried_rps = SLACK * max(room.factor * past.usual, room.floor_rps)
    beyond = np.maximum(0.0, _PRIOR_JUMPS * past.usual - carried_rps)
    return seen + bursts_s * float(beyond.mean())


def _past(series: RequestSeries, reaction: Reaction) -> _Past:
    coarse = coarsen(series, MIN_GRAIN_S)
    window_s = coarse.window_s

    def windows(delay_s: float) -> int:
        return max(1, round(delay_s / window_s))

    held, lag = windows(reaction.hold_s), windows(reaction.reaction_s)
    rates = np.nan_to_num(coarse.rates_rps)
    # Where plans looked back at windows that were not heard, what they would have followed is unknown.
    known = _known(~np.isnan(coarse.rates_rps), held, lag)
    newest = rates[known][-windows(USUAL_S) :]
    return _Past(
        window_s=window_s,
        rates=rates[known],
        followed=_followed(rates, held, lag, window_s)[known],
        usual=float(np.median(newest)) if len(newest) else 0.0,
    )


def _burst_rps(usual: Reals, window_s: float) -> Reals:
    """(T,) the rates from which windows show a burst, noise apart."""
    noise = np.sqrt(np.maximum(usual, 1.0 / window_s) / window_s)
    burst: Reals = BURST * usual + SURPRISE_DEVIATIONS * noise
    return burst


def _followed(rates: Reals, held: int, lag: int, window_s: float) -> Reals:
    """(T,) what plans followed in each window by what was seen until `lag` windows before: its highest, with noise."""
    padded = np.concatenate([np.zeros(held + lag), rates])
    highest: Reals = sliding_window_view(padded, held + 1).max(axis=1)[: len(rates)]
    noise = np.sqrt(highest / window_s)
    carried: Reals = highest + normal_quantile(PLANNING_LEVEL) * noise
    return carried


def _known(heard: Flags, held: int, lag: int) -> Flags:
    """(T,) windows that were heard, and all that plans then looked back at."""
    padded = np.concatenate([np.zeros(held + lag, dtype=np.bool_), heard])
    looked_back: Flags = sliding_window_view(padded, held + 1).min(axis=1)
    return looked_back[: len(heard)] & heard
