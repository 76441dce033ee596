"""Arrival rates that are constant in pieces: what every load is before its requests are drawn.

A day curve has one piece per second, a trace one per step, a Markov-modulated load one per stay in a state. Before the
first piece and after the last one nothing arrives.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArrivalRates:
    """Expected arrivals per second over trace time. Raises ValueError for what cannot be rates."""

    edges_s: FloatArray
    """(K + 1,) where pieces begin and the last one ends: 0 and rising."""
    rates_rps: FloatArray
    """(K,) rate in each piece."""

    def __post_init__(self) -> None:
        edges_s, rates_rps = (
            np.array(self.edges_s, dtype=float),
            np.array(self.rates_rps, dtype=float),
        )
        if rates_rps.ndim != 1 or edges_s.shape != (len(rates_rps) + 1,):
            raise ValueError(
                f"{edges_s.shape} edges and {rates_rps.shape} rates; K rates need K + 1 edges"
            )
        if (
            edges_s[0] != 0.0
            or not np.isfinite(edges_s).all()
            or (np.diff(edges_s) <= 0.0).any()
        ):
            raise ValueError("edges must begin at 0 and rise")
        if not np.isfinite(rates_rps).all() or (rates_rps < 0.0).any():
            raise ValueError("rates must be finite and at least 0")
        for name, values in (("edges_s", edges_s), ("rates_rps", rates_rps)):
            # Checked here alone, so they must not change afterwards.
            values.flags.writeable = False
            object.__setattr__(self, name, values)

    def at(self, t_s: float) -> float:
        """Rate at a time."""
        # A time on an edge belongs to the piece that begins there.
        piece = int(np.searchsorted(self.edges_s, t_s, side="right")) - 1
        return float(self.rates_rps[piece]) if 0 <= piece < len(self.rates_rps) else 0.0

    def pieces(
        self,
        start_s: float,
        end_s: float,
    ) -> tuple[FloatArray, FloatArray]:
        """(k + 1,) edges and (k,) rates of what lies in [start, end), cut there; one edge and no rate for nothing."""
        start_s, end_s = max(start_s, 0.0), min(end_s, float(self.edges_s[-1]))
        if start_s >= end_s:
            return np.array([start_s]), np.empty(0)
        first, last = (
            np.searchsorted(self.edges_s, start_s, side="right"),
            np.searchsorted(self.edges_s, end_s),
        )
        return np.concatenate(
            [[start_s], self.edges_s[first:last], [end_s]]
        ), self.rates_rps[first - 1 : last]

    def until(self, end_s: float) -> "ArrivalRates":
        """These rates up to a time after the beginning."""
        edges_s, rates_rps = self.pieces(0.0, end_s)
        return ArrivalRates(edges_s=edges_s, rates_rps=rates_rps)

    def means_rps(self, duration_s: int) -> FloatArray:
        """(duration_s,) mean rate in each second from 0 on."""
        seconds = np.arange(duration_s + 1, dtype=float)
        inner_s = self.edges_s[self.edges_s < duration_s]
        edges_s = np.union1d(seconds, inner_s)
        piece = np.searchsorted(self.edges_s, edges_s[:-1], side="right") - 1
        rates_rps = np.append(self.rates_rps, 0.0)[piece]
        return np.add.reduceat(
            rates_rps * np.diff(edges_s), np.searchsorted(edges_s, seconds[:-1])
        )


class Shape(Protocol):
    """How a load's rate goes over time."""

    def rates(
        self,
        duration_s: int,
        random: np.random.Generator,
    ) -> ArrivalRates:
        """Rates of at least a run's duration, or of all there is. A longer run begins with the same ones."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TraceShape:
    """Rates as they were counted or made: even steps from 0 on. A run that goes on after the last one gets nothing.

    The draw adds the noise of a Poisson stream. Counts that were measured hold such noise already: at a scale of one
    step their variance over their mean grows by one. Over longer windows, with real bursts, that is lost in them.
    """

    rates_rps: FloatArray
    """(T,) mean rate in each step."""
    step_s: float = 1.0

    def rates(self, duration_s: int, random: np.random.Generator) -> ArrivalRates:  # noqa: ARG002
        """The steps, each one piece."""
        edges_s = np.arange(len(self.rates_rps) + 1, dtype=np.float64) * self.step_s
        return ArrivalRates(edges_s=edges_s, rates_rps=self.rates_rps).until(duration_s)


def stepped(rates_rps: ArrayLike) -> ArrivalRates:
    """Rates of one second each."""
    values = np.asarray(rates_rps, dtype=float)
    return ArrivalRates(
        edges_s=np.arange(len(values) + 1, dtype=float), rates_rps=values
    )
