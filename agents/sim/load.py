"""Seeded request load in trace time: day curve, spike, and bursts resampled from a real trace.

Every service has its own stream, so that adding a service changes nothing for the others, and any cut of the time
axis into windows gives the same arrivals.
"""

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from agents.sim.truth_data import read

FloatArray = NDArray[np.float64]

BLOCK_S = 10
"""Arrivals are drawn in blocks of this many seconds, each from its own random stream."""
BURST_BLOCK_S = 30
"""Length of the pieces in which the measured bursts are resampled: long enough to keep a burst whole."""
_SMOOTHING_S = 15
_TREND_S = 301
_BURST_STREAM, _ARRIVAL_STREAM = 0, 1


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
        day = 1 + self.day_amplitude * np.sin(2 * np.pi * (t_s - self.day_phase_s) / self.day_period_s)
        spikes = [spike.at(t_s) for spike in self.spikes]
        return np.asarray(self.mean_rps * day * np.prod([np.ones_like(t_s), *spikes], axis=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Arrivals of one service: Poisson inside each second at that second's rate.

    `stream` is the service's own number; two loads with the same seed and different streams are independent.
    """

    shape: LoadShape
    duration_s: int
    seed: int
    stream: int
    rates_rps: FloatArray = field(init=False, repr=False, compare=False)
    """(duration_s,) expected arrivals in each second."""

    def __post_init__(self) -> None:
        seconds = np.arange(0.5, self.duration_s, dtype=np.float64)
        rates = self.shape.curve_rps(seconds) * self._bursts()
        rates.flags.writeable = False
        object.__setattr__(self, "rates_rps", rates)

    def arrival_rate_rps(self, t_s: float) -> float:
        """Expected rate in the second that holds `t_s`; 0 before the start and after the end."""
        return float(self.rates_rps[int(t_s)]) if 0 <= t_s < self.duration_s else 0.0

    def arrivals(self, start_s: float, end_s: float) -> FloatArray:
        """Arrival times in [start_s, end_s), ascending."""
        first, last = int(max(start_s, 0.0) // BLOCK_S), int(min(end_s, self.duration_s) // BLOCK_S)
        blocks = [self._block(block) for block in range(first, last + 1)]
        times = np.concatenate(blocks) if blocks else np.empty(0)
        return times[np.searchsorted(times, start_s) : np.searchsorted(times, end_s)]

    def _block(self, block: int) -> FloatArray:
        start = block * BLOCK_S
        rates = self.rates_rps[start : start + BLOCK_S]
        random = np.random.default_rng([self.seed, self.stream, _ARRIVAL_STREAM, block])
        seconds = np.repeat(np.arange(start, start + len(rates)), random.poisson(rates))
        return np.sort(seconds + random.random(len(seconds)))

    def _bursts(self) -> FloatArray:
        """Factor around 1 for each second: random pieces of the measured burst factors, end to end."""
        if self.shape.burst_weight == 0.0:
            return np.ones(self.duration_s)
        measured = burst_factors(self.shape.burst_service)
        random = np.random.default_rng([self.seed, self.stream, _BURST_STREAM])
        starts = random.integers(0, len(measured), size=self.duration_s // BURST_BLOCK_S + 1)
        positions = (starts[:, None] + np.arange(BURST_BLOCK_S)).ravel()[: self.duration_s]
        return np.asarray(1 + self.shape.burst_weight * (measured[positions % len(measured)] - 1))


@lru_cache(maxsize=2)
def burst_factors(service: str) -> FloatArray:
    """Measured rate over its own trend, per second, mean 1: (T,).

    The Azure counts are only 3 to 6 per second, so a 15 s mean takes out their Poisson noise (which `Load` adds anew);
    a 301 s mean is the trend (which the day curve stands for). Raises ValueError for an unknown service.
    """
    counts = np.array([float(row["requests"]) for row in read("azure_llm_per_second.csv") if row["service"] == service])
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
