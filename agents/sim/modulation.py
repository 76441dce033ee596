"""Markov-modulated Poisson arrivals (MMPP): Poisson at a rate that jumps between levels at random times.

The load stays in state i for an exponential time of mean m_i at rate λ_i, then goes to any other state with equal
probability. The jumps being symmetric, state i holds for the share π_i = m_i / Σ m of the time, and the mean rate is
Σ π_i λ_i. For two states with leaving rates r_i = 1 / m_i the variance of the counts over their mean tends to

    1 + 2 r_1 r_2 (λ_1 − λ_2)² / ((r_1 + r_2)² (λ_1 r_2 + λ_2 r_1))

in long windows; a Poisson stream has 1. Source: W. Fischer and K. Meier-Hellstern, "The Markov-modulated Poisson
process (MMPP) cookbook", Performance Evaluation 18 (1993).

Good for bursts of known height and length, such as an upstream that retries. Stays have no memory, so nothing ramps and
nothing comes back every day: that is what curves and traces are for.
"""

from dataclasses import dataclass

import numpy as np

from agents.sim.rates import Rates

_CHUNK = 1024
"""Stays are drawn so many at a time, whatever the run's length: a longer run begins like a shorter one."""


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

    def rates(self, duration_s: int, random: np.random.Generator) -> Rates:
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
        return Rates(edges_s=times_s, rates_rps=np.asarray(self.levels_rps)[states]).until(duration_s)
