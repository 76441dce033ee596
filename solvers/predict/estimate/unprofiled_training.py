"""Operating points of training that was never profiled, from its layers: what it will do to its neighbours.

    pressure     at LEVEL_PERCENT that which explains the interference factor that its layers foretell
                 (`interference.layer_counts`) next to every service that was profiled: the largest, times MARGIN; at
                 other shares the shape of its relatives' (the largest part of their own there)
    times        the shape of its relatives' curves (geometric mean), at their mean level: where it may run is decided
                 by shares of its own speed, and its level is learned once it runs
    memory       as its owner states it
    watts, sensitivity, stall     the most that any relative has

The factors are learned from what the points of its relatives (training that was profiled, with known layers) say of
all pairs with services: an offline profile of pairs, computed by the laws. Layers count cumulated over all neighbours.

Source: Mudi (EuroSys 2025), "Predicting interference using underlying network architectures", by which a never seen
training task can be judged. Limits: with a handful of relatives the layers say little; the estimate is meant to be too
high rather than too low.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from solvers.laws.colocation import execution_ms, launch_factor, neighbours_with
from solvers.predict.data.fit import Coefficients, TooFewSamples
from solvers.predict.data.samples import (
    LayerCounts,
    Neighbour,
    Queries,
    Reals,
    make_queries,
    make_samples,
)
from solvers.predict.interference import layer_counts
from solvers.types.problem import OperatingPoint, OperatingPoints
from solvers.types.state import GpuType

MARGIN = 1.1
"""Times the pressure that the layers foretell: left out, no network of seven presses more than 1.02 times that."""
LEVEL_PERCENT = 60.0
"""Where factors are large enough to be told apart, and shares were profiled on both sides."""
MIN_KNOWN_LAYERS = 2
"""With fewer the layers tell nothing: then it presses as the worst of all that were profiled."""
_SHARES = (20.0, 60.0, 80.0)
"""SM percents at which pairs are looked at; as near as rows come."""
_MIN_SENSITIVITY = 0.05
"""A service that feels less tells nothing of what presses on it."""
_MIN_PRESSURE = 1e-9
"""A relative that presses less has no shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnprofiledNetwork:
    """What is known of a network that was never profiled."""

    layers: LayerCounts
    batch: int
    memory_mib: float
    """What it takes at that batch."""


@dataclass(frozen=True, kw_only=True)
class ProfiledNetworks:
    """What was profiled on one GPU type."""

    gpu_type: GpuType
    training: Sequence[OperatingPoints]
    services: Sequence[OperatingPoints]
    layers: Sequence[LayerCounts]
    """Layers of the training networks, and of any others."""

    def estimate(self, unprofiled: UnprofiledNetwork) -> OperatingPoints | None:
        """Operating points at the network's batch and the GPU type's highest clock; None without profiled training."""
        rows_by_share = self._rows_by_share
        if not rows_by_share:
            return None
        pressures = self._pressures(unprofiled, tuple(rows_by_share))
        rows = tuple(
            _joined(alike, unprofiled, float(pressure))
            for alike, pressure in zip(rows_by_share.values(), pressures, strict=True)
        )
        return OperatingPoints(
            network=unprofiled.layers.network,
            gpu_type=self.gpu_type.name,
            sensitivity=max(entry.sensitivity for entry in self.training),
            rows=rows,
        )

    @cached_property
    def _rows_by_share(self) -> dict[float, list[OperatingPoint]]:
        """One row per training network, at its middle batch, by the shares that all of them have, ascending."""
        middle = [_at_middle_batch(entry, self.gpu_type) for entry in self.training]
        middle = [rows for rows in middle if rows]
        if not middle:
            return {}
        # Only where every network has a row can their shapes be compared.
        shares = set.intersection(
            *({row.sm_percent for row in rows} for rows in middle)
        )
        return {
            share: [row for rows in middle for row in rows if row.sm_percent == share]
            for share in sorted(shares)
        }

    def _pressures(
        self, unprofiled: UnprofiledNetwork, shares: Sequence[float]
    ) -> Reals:
        """(N,) by ascending share; never falls."""
        by_share = np.array(
            [[row.pressure for row in self._rows_by_share[share]] for share in shares]
        )
        at_level = min(
            range(len(shares)), key=lambda at: abs(shares[at] - LEVEL_PERCENT)
        )
        predicted = self._predict_pressure(unprofiled, shares[at_level])
        if predicted is None:
            return np.asarray(by_share.max(axis=1))
        shape = by_share / np.maximum(by_share[at_level], _MIN_PRESSURE)
        return np.maximum.accumulate(MARGIN * predicted * shape.max(axis=1))

    def _predict_pressure(
        self, unprofiled: UnprofiledNetwork, share: float
    ) -> float | None:
        """The largest that explains the factor of any service; None where the layers tell nothing."""
        known = {each.network: each for each in self.layers}
        if sum(entry.network in known for entry in self.training) < MIN_KNOWN_LAYERS:
            return None
        own = unprofiled.layers
        try:
            learned = self._learn_factors({**known, own.network: own})
        except TooFewSamples:
            return None
        neighbour = Neighbour(own.network, float(unprofiled.batch), share)
        return self._explained_by(learned, neighbour)

    def _explained_by(
        self, learned: Coefficients, neighbour: Neighbour
    ) -> float | None:
        # At its smallest share, where what neighbours are made of weighs most (w in `layer_counts`).
        victims = [
            _Victim(service, row)
            for service in self.services
            for row in _spread(service, self.gpu_type)[:1]
            if service.sensitivity >= _MIN_SENSITIVITY
        ]
        if not victims:
            return None
        queries = self._queries(victims, [neighbour] * len(victims))
        alone_ms = np.array([each.row.solo_ms for each in victims])
        factors = layer_counts.predict(learned, queries, alone_ms)
        return max(
            self._explaining(victim, float(factor))
            for victim, factor in zip(victims, factors, strict=True)
        )

    def _learn_factors(self, layers: Mapping[str, LayerCounts]) -> Coefficients:
        """What layers tell of factors, from the pairs whose times the laws give; raises TooFewSamples."""
        pairs = list(self._pairs())
        neighbours = [
            Neighbour(training.network, float(beside.batch), beside.sm_percent)
            for _, training, beside in pairs
        ]
        together_ms = [
            execution_ms(
                victim.row,
                neighbours_with([beside]),
                sensitivity=victim.service.sensitivity,
                gpu_type=self.gpu_type,
            )
            for victim, _, beside in pairs
        ]
        at = self._queries([victim for victim, *_ in pairs], neighbours)
        alone_ms = np.array([victim.row.solo_ms for victim, *_ in pairs])
        return layer_counts.fit(make_samples(at, together_ms), alone_ms, layers)

    def _queries(
        self, victims: Sequence["_Victim"], neighbours: Sequence[Neighbour]
    ) -> Queries:
        return make_queries(
            [each.service.network for each in victims],
            [self.gpu_type.name] * len(victims),
            batch=[float(each.row.batch) for each in victims],
            sm_percent=[each.row.sm_percent for each in victims],
            neighbours=[(neighbour,) for neighbour in neighbours],
        )

    def _pairs(self) -> Iterator[tuple["_Victim", OperatingPoints, OperatingPoint]]:
        """Every service row with every training row that leaves it its share."""
        for service, training in itertools.product(self.services, self.training):
            for row, beside in itertools.product(
                _spread(service, self.gpu_type), _spread(training, self.gpu_type)
            ):
                if row.sm_percent + beside.sm_percent <= 100.0:
                    yield _Victim(service, row), training, beside

    def _explaining(self, victim: "_Victim", factor: float) -> float:
        """The pressure with which the laws give that factor; 0 where they give more without any."""
        row = victim.row
        launch_ms = row.launch_ms * launch_factor(self.gpu_type, 2)
        grown = (factor * row.solo_ms - row.transfer_ms - launch_ms) / row.run_ms - 1.0
        return max(0.0, grown / victim.service.sensitivity)


class _Victim(NamedTuple):
    """A service that is slowed down, at one of its operating points."""

    service: OperatingPoints
    row: OperatingPoint


def _spread(points: OperatingPoints, gpu_type: GpuType) -> list[OperatingPoint]:
    """Rows at the middle batch and about _SHARES, ascending."""
    rows = _at_middle_batch(points, gpu_type)
    if not rows:
        return []
    # A set, since few rows may be the nearest to several of the shares.
    nearest = {
        min(rows, key=lambda row: abs(row.sm_percent - share)) for share in _SHARES
    }
    return sorted(nearest)


def _at_middle_batch(
    points: OperatingPoints, gpu_type: GpuType
) -> list[OperatingPoint]:
    # At the highest clock alone, since a shape over shares must be one at the same clock.
    rows = [row for row in points.rows if row.clock_mhz == gpu_type.clocks_mhz[-1]]
    batches = sorted({row.batch for row in rows})
    return sorted(row for row in rows if row.batch == batches[len(batches) // 2])


def _joined(
    alike: Sequence[OperatingPoint], unprofiled: UnprofiledNetwork, pressure: float
) -> OperatingPoint:
    """The row of the unprofiled network from those of profiled training at the same share."""
    return OperatingPoint(
        sm_percent=alike[0].sm_percent,
        batch=unprofiled.batch,
        clock_mhz=alike[0].clock_mhz,
        transfer_ms=0.0,
        launch_ms=0.0,
        run_ms=float(np.exp(np.mean([np.log(row.solo_ms) for row in alike]))),
        memory_mib=unprofiled.memory_mib,
        power_w=max(row.power_w for row in alike),
        pressure=pressure,
        stall_ms=max(row.stall_ms for row in alike),
    )
