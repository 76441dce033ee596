"""Seeded request load in trace time: Poisson arrivals at the rates of a curve, a trace or a Markov chain.

Every service has its own stream, so that adding a service changes nothing for the others, and any cut of the time
axis into windows gives the same arrivals. The curve of a day with spikes, and bursts resampled from a real trace, is
here, as are Markov-modulated rates; traces are in `agents.sim.load.rates`.

Arrivals are drawn by array functions, 30 to 100 million per second and core at 100 to 1000 rps: compiled loops would
gain nothing next to a simulated queue that takes some million per second.
"""

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from agents.sim.load.rates import ArrivalRates, FloatArray, Shape, stepped
from agents.sim.truth.tables import read

BLOCK_S = 10
"""Arrivals are drawn in blocks of this many seconds, each from its own random stream."""
BURST_BLOCK_S = 30
"""Length of the pieces in which the measured bursts are resampled: long enough to keep a burst whole."""
_SMOOTHING_S = 15
_TREND_S = 301
_SHAPE_STREAM, _ARRIVAL_STREAM = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Spike:
    """A load spike: the rate climbs to `factor` times the curve, stays, and falls back."""

    start_s: float
    length_s: float
    """Seconds at the full factor."""
    factor: float = 4.0
    ramp_s: float = 20.0
    """Seconds of the straight climb before `start_s` and of the fall after the end."""

    def at(self, t_s: FloatArray) -> FloatArray:
        """Factor at each time, 1 outside the spike."""
        end_s = self.start_s + self.length_s
        times = [self.start_s - self.ramp_s, self.start_s, end_s, end_s + self.ramp_s]
        return np.interp(t_s, times, [1.0, self.factor, self.factor, 1.0])


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadShape:
    """The expected arrival rate of one service over trace time."""

    mean_rps: float
    """Mean of the day curve, before spike and bursts."""
    day_amplitude: float = 0.0
    """0 to 1: the day curve swings between mean * (1 - amplitude) and mean * (1 + amplitude)."""
    day_period_s: float = 86400.0
    day_phase_s: float = 0.0
    """Time of the day curve's mean on its way up."""
    spikes: tuple[Spike, ...] = ()
    burst_service: str = "conv"
    """Azure LLM service whose bursts are resampled: `conv` (mild) or `code` (strong)."""
    burst_weight: float = 0.0
    """0 = no bursts, 1 = as strong as measured."""

    def curve_rps(self, t_s: FloatArray) -> FloatArray:
        """Rate without bursts at each time."""
        day = 1 + self.day_amplitude * np.sin(
            2 * np.pi * (t_s - self.day_phase_s) / self.day_period_s
        )
        spikes = [spike.at(t_s) for spike in self.spikes]
        return np.asarray(
            self.mean_rps * day * np.prod([np.ones_like(t_s), *spikes], axis=0)
        )

    def rates(self, duration_s: int, random: np.random.Generator) -> ArrivalRates:
        """The curve, second by second, with bursts drawn again."""
        seconds = np.arange(0.5, duration_s, dtype=np.float64)
        return stepped(self.curve_rps(seconds) * self._bursts(duration_s, random))

    def _bursts(self, duration_s: int, random: np.random.Generator) -> FloatArray:
        """Factor around 1 for each second: random pieces of the measured burst factors, end to end."""
        if self.burst_weight == 0.0:
            return np.ones(duration_s)
        measured = burst_factors(self.burst_service)
        starts = random.integers(0, len(measured), size=duration_s // BURST_BLOCK_S + 1)
        positions = (starts[:, None] + np.arange(BURST_BLOCK_S)).ravel()[:duration_s]
        return np.asarray(
            1 + self.burst_weight * (measured[positions % len(measured)] - 1)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalProcess:
    """Arrivals of one service at the rates of its shape: Poisson, or even.

    `stream` is the service's own number; two loads with the same seed and different streams are independent.
    """

    shape: Shape
    duration_s: int
    seed: int
    stream: int
    is_even: bool = False
    """Whether requests come at even distances, as load generators at a constant rate send them."""
    rates: ArrivalRates = field(init=False, repr=False, compare=False)
    """Expected arrivals over the run."""

    def __post_init__(self) -> None:
        # Streams of their own for shape and arrivals: a longer run then begins with the same arrivals.
        random = np.random.default_rng([self.seed, self.stream, _SHAPE_STREAM])
        object.__setattr__(self, "rates", self.shape.rates(self.duration_s, random))

    @property
    def rates_rps(self) -> FloatArray:
        """(duration_s,) expected arrivals in each second."""
        return self.rates.means_rps(self.duration_s)

    def arrival_rate_rps(self, t_s: float) -> float:
        """Expected rate at a time; 0 before the start and after the end."""
        return self.rates.at(t_s)

    def arrivals(self, start_s: float, end_s: float) -> FloatArray:
        """Arrival times in [start_s, end_s), ascending."""
        first = int(max(start_s, 0.0) // BLOCK_S)
        until = int(np.ceil(min(end_s, self.duration_s) / BLOCK_S))
        # Whole blocks are drawn, whatever is asked for: so no cut of the time axis changes the arrivals.
        blocks = [self._block(block) for block in range(first, until)]
        times = np.concatenate(blocks) if blocks else np.empty(0)
        return times[np.searchsorted(times, start_s) : np.searchsorted(times, end_s)]

    def _even_block(self, start_s: float, end_s: float) -> FloatArray:
        """When the sum of the rates passes whole numbers."""
        edges_s, lengths_s = self.rates.edges_s, np.diff(self.rates.edges_s)
        sums = np.concatenate([[0.0], np.cumsum(self.rates.rates_rps * lengths_s)])
        first, last = np.floor(np.interp([start_s, end_s], edges_s, sums))
        times: FloatArray = np.interp(np.arange(first + 1, last + 1), sums, edges_s)
        return np.minimum(times, np.nextafter(end_s, 0.0))

    def _block(self, block: int) -> FloatArray:
        end_s = float((block + 1) * BLOCK_S)
        if self.is_even:
            return self._even_block(end_s - BLOCK_S, end_s)
        edges_s, rates_rps = self.rates.pieces(block * BLOCK_S, end_s)
        lengths_s = np.diff(edges_s)
        random = np.random.default_rng([self.seed, self.stream, _ARRIVAL_STREAM, block])
        counts = random.poisson(rates_rps * lengths_s)
        times = np.repeat(edges_s[:-1], counts) + np.repeat(
            lengths_s, counts
        ) * random.random(counts.sum())
        # Rounding must not move an arrival into the next block, where it would not be looked for.
        return np.sort(np.minimum(times, np.nextafter(end_s, 0.0)))


@lru_cache(maxsize=2)
def burst_factors(service: str) -> FloatArray:
    """Measured rate over its own trend, per second, mean 1: (T,).

    The Azure counts are only 3 to 6 per second, so a 15 s mean takes out their Poisson noise (which `ArrivalProcess`
    adds again); a 301 s mean is the trend (which the day curve stands for). Raises ValueError for an unknown service.
    """
    counts = np.array(
        [
            float(row["requests"])
            for row in read("azure_llm_per_second.csv")
            if row["service"] == service
        ]
    )
    if not len(counts):
        raise ValueError(f"no Azure trace for service {service!r}; known: code, conv")
    factors = _moving_mean(counts, _SMOOTHING_S) / _moving_mean(counts, _TREND_S)
    factors /= factors.mean()
    factors.flags.writeable = False
    return factors


def _moving_mean(values: FloatArray, width: int) -> FloatArray:
    """Centred mean over an odd `width`; the ends wrap around, as the resampling does."""
    padded = np.pad(values, width // 2, mode="wrap")
    return np.convolve(padded, np.full(width, 1 / width), mode="valid")


_CHUNK = 1024
"""Stays are drawn this many at a time, whatever the run's length: a longer run begins like a shorter one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Modulation:
    """Levels of the arrival rate, and how long the load stays at each. Raises ValueError."""

    levels_rps: tuple[float, ...]
    """At least two."""
    mean_stays_s: tuple[float, ...]
    """Mean time in each state before it is left."""

    def __post_init__(self) -> None:
        if len(self.levels_rps) < 2 or len(self.levels_rps) != len(self.mean_stays_s):
            raise ValueError(
                f"{len(self.levels_rps)} levels and {len(self.mean_stays_s)} stays; there must be as many, at least two"
            )
        if not all(0.0 <= level < np.inf for level in self.levels_rps):
            raise ValueError("levels must be finite and at least 0")
        if not all(0.0 < stay < np.inf for stay in self.mean_stays_s):
            raise ValueError("mean stays must be finite and above 0")

    @property
    def mean_rps(self) -> float:
        """Mean rate over a long time."""
        return float(np.average(self.levels_rps, weights=self.mean_stays_s))

    def rates(self, duration_s: int, random: np.random.Generator) -> ArrivalRates:
        """One path of the states, from a state drawn as if the load had been on for ever."""
        count = len(self.levels_rps)
        stays_s = np.asarray(self.mean_stays_s)
        state = int(random.choice(count, p=stays_s / stays_s.sum()))
        states = np.empty(0, int)
        times_s = np.zeros(1)
        while times_s[-1] < duration_s:
            # One to count − 1 places on around the ring: each other state is equally likely.
            steps = np.cumsum(1 + random.integers(0, count - 1, size=_CHUNK))
            chunk = (state + np.concatenate([[0], steps])) % count
            state = int(chunk[-1])
            lengths_s = stays_s[chunk[:-1]] * random.exponential(size=_CHUNK)
            states = np.concatenate([states, chunk[:-1]])
            times_s = np.concatenate([times_s, times_s[-1] + np.cumsum(lengths_s)])
        return ArrivalRates(
            edges_s=times_s, rates_rps=np.asarray(self.levels_rps)[states]
        ).until(duration_s)
