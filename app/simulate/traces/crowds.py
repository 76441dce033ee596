"""Load with flash crowds: the rate jumps at once, decays slowly, and most services jump together.

    crowds = FlashCrowds(seed=7)
    CrowdedLoad(mean_rps=40.0, crowds=crowds).rates(1800, random)

Crowds and half of the noise belong to a `FlashCrowds`, so that loads which share one jump and sway together; the rest
is each load's own. Ari et al. (*Managing flash crowds on the Internet*, MASCOTS 2003) model a flash crowd by a ramp
up, a plateau and a ramp down. Here the first two take no time: no replica can be started before the load is there.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from agents.sim.load.rates import ArrivalRates, FloatArray, stepped

_NOISE_S = 30.0
"""Time in which noise forgets itself: longer than a window of the loop, shorter than a crowd."""
_CROWD_STREAM, _NOISE_STREAM = 0, 1
MAX_CROWDS = 50_000
"""In a run, on average: three times what the longest trace, of two months, has with the default gap.

Each is added to every series by itself: with the default decays, this number takes 4 s for a series of two months.
"""
_FORGOTTEN = 40.0
"""Decays after which a crowd adds 4e-18 of the rate, which no float near 1 can show: half its last digit is 1e-16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """One jump of the rate."""

    start_s: float
    factor: float
    """The rate's multiple at the start, at least 1."""
    decay_s: float
    """After so long, what is above 1 has fallen to 1/e = 37 %."""

    def lift(self, t_s: FloatArray) -> FloatArray:
        """What it adds to the rate at each time, as a multiple of it; 0 before the start."""
        ages_s = t_s - self.start_s
        decay = np.exp(-np.maximum(ages_s, 0.0) / self.decay_s)
        return np.where(ages_s >= 0.0, (self.factor - 1.0) * decay, 0.0)

    def add_to(self, crowded: FloatArray, t_s: FloatArray) -> None:
        """Add its lift to multiples of at least 1, in place: (T,) at (T,) rising times."""
        # Only where it matters, for a long run has many crowds. A higher one takes longer to be forgotten.
        end_s = self.start_s + self.decay_s * (_FORGOTTEN + np.log(self.factor))
        steps = slice(*np.searchsorted(t_s, [self.start_s, end_s]))
        crowded[steps] += self.lift(t_s[steps])


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashCrowds:
    """Crowds and noise that several loads share, drawn by seed."""

    seed: int
    mean_gap_s: float = 360.0
    """Crowds come as a Poisson stream, this number of seconds apart on average."""
    factors: tuple[float, float] = (1.5, 5.0)
    """(lowest, highest), at least 1: each crowd's is drawn evenly between them."""
    decays_s: tuple[float, float] = (20.0, 120.0)
    """(shortest, longest): the same."""
    noise: float = 0.1
    """Standard deviation of the logarithm of the rate; the loads' own noise is as large again."""

    def draw(self, duration_s: int) -> tuple[Crowd, ...]:
        """The crowds of a run; those of a longer run begin with the same ones."""
        random = np.random.default_rng([self.seed, _CROWD_STREAM])
        crowds: list[Crowd] = []
        start_s = random.exponential(self.mean_gap_s)
        while start_s < duration_s:
            crowd = Crowd(
                start_s=start_s,
                factor=random.uniform(*self.factors),
                decay_s=random.uniform(*self.decays_s),
            )
            crowds.append(crowd)
            start_s += random.exponential(self.mean_gap_s)
        return tuple(crowds)

    def draw_noise(self, duration_s: int) -> FloatArray:
        """(duration_s,) the part of the logarithm of the rate that all loads share."""
        random = np.random.default_rng([self.seed, _NOISE_STREAM])
        return _correlated(self.noise, duration_s, random)


@dataclass(frozen=True, slots=True, kw_only=True)
class CrowdedLoad:
    """A slow wave with noise on it, and crowds that this load joins or not."""

    mean_rps: float
    """Without crowds and noise."""
    crowds: FlashCrowds
    joined: float = 0.75
    """0 to 1: the chance that a crowd comes to this load, too."""
    amplitude: float = 0.3
    """0 to 1: the wave swings between mean * (1 - amplitude) and mean * (1 + amplitude)."""
    period_s: float = 1500.0

    def rates(self, duration_s: int, random: np.random.Generator) -> ArrivalRates:
        """Rates of one second each; where in its wave the load begins is drawn, too."""
        # Streams of their own: a longer run then draws the same crowds after more noise.
        phases, own, joins = random.spawn(3)
        t_s = np.arange(0.5, duration_s, dtype=np.float64)
        turns = t_s / self.period_s + phases.random()
        wave = 1.0 + self.amplitude * np.sin(2.0 * np.pi * turns)
        shared = _draw_shared(self.crowds, duration_s)
        own_noise = _correlated(self.crowds.noise, duration_s, own)
        # Crowds add up: who comes with one does not make the other larger.
        crowded = np.ones_like(t_s)
        for crowd in shared.crowds:
            if joins.random() < self.joined:
                crowd.add_to(crowded, t_s)
        calm_rps = self.mean_rps * wave * np.exp(shared.noise + own_noise)
        return stepped(calm_rps * crowded)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _SharedDraws:
    """What the loads of one run have in common."""

    crowds: tuple[Crowd, ...]
    noise: FloatArray
    """(T,) read-only."""


# Loads are drawn one after the other, each without knowing of the others: the last draws serve all of a run. No more
# are kept, because noise of two months is 40 MB.
@lru_cache(maxsize=1)
def _draw_shared(crowds: FlashCrowds, duration_s: int) -> _SharedDraws:
    noise = crowds.draw_noise(duration_s)
    noise.flags.writeable = False
    return _SharedDraws(crowds=crowds.draw(duration_s), noise=noise)


def _correlated(
    deviation: float, count: int, random: np.random.Generator
) -> FloatArray:
    """(count,) an Ornstein-Uhlenbeck process, second by second, that was under way before the first one."""
    # Eight times the memory: what is older weighs exp(-8) = 0.0003.
    weights = np.exp(-np.arange(8.0 * _NOISE_S) / _NOISE_S)
    weights *= deviation / np.sqrt(weights @ weights)
    draws = random.standard_normal(count + len(weights) - 1)
    return np.convolve(draws, weights, mode="valid")
