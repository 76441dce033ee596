"""Operating points of training that was never profiled, from its layers: what it will do to its neighbours.

    pressure     at LEVEL_PERCENT that which explains the interference factor that its layers foretell
                 (`interference.layer_counts`) beside every service that was profiled: the largest, times MARGIN; at
                 other shares the shape of its relatives' (the largest part of their own there)
    times        the shape of its relatives' curves (geometric mean), at their mean level: where it may run is decided
                 by shares of its own speed, and its level is learned once it runs
    memory       as its owner states it
    watts, sensitivity     the most that any relative has

The factors are learned from what the points of its relatives (training that was profiled, with known layers) say of
all pairs with services: an offline profile of pairs, computed by the laws. Layers count cumulated over all neighbours.

Source: Mudi (EuroSys 2025), "Predicting interference using underlying network architectures", by which a never seen
training task can be judged. Limits: with a handful of relatives the layers say little; the estimate is meant to be too
high rather than too low.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from solvers.laws.colocation import Neighbours, execution_ms, launch_factor
from solvers.predict.data.fit import TooFewSamples
from solvers.predict.data.samples import (
    LayerCounts,
    Neighbour,
    Reals,
    make_queries,
    make_samples,
)
from solvers.predict.interference import layer_counts
from solvers.types.problem import OperatingPoint, OperatingPoints
from solvers.types.state import GpuType

MARGIN = 2.0
"""Times the pressure that the layers foretell: left out, the heaviest of seven networks press about twice as much."""
LEVEL_PERCENT = 60.0
"""Where factors are large enough to be told apart, and shares were profiled on both sides."""
MIN_RELATIVES = 2
"""With fewer the layers tell nothing: then it presses as the worst of all that were profiled."""
_SHARES = (20.0, 60.0, 80.0)
"""SM percents at which pairs are looked at; as near as rows come."""
_MIN_PRESSURE = 1e-9
"""A relative that presses less has no shape."""
_MIN_SENSITIVITY = 1e-3
"""A service that hardly feels neighbours says nothing of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnprofiledNetwork:
    """What is known of a network that was never profiled."""

    layers: LayerCounts
    batch: int
    memory_mib: float
    """At that batch."""


@dataclass(frozen=True, kw_only=True)
class ProfiledNetworks:
    """What was profiled on one GPU type."""

    gpu_type: GpuType
    training: Sequence[OperatingPoints]
    services: Sequence[OperatingPoints]
    layers: Sequence[LayerCounts]
    """Of the training networks, and of any others."""

    def estimate(self, newcomer: UnprofiledNetwork) -> OperatingPoints | None:
        """Operating points at the newcomer's batch and the GPU type's highest clock; None without any relative."""
        rows_by_share = self._rows_by_share
        if not rows_by_share:
            return None
        pressures = self._pressures(newcomer, tuple(rows_by_share))
        rows = tuple(
            _joined(alike, newcomer, float(pressure))
            for alike, pressure in zip(rows_by_share.values(), pressures, strict=True)
        )
        return OperatingPoints(
            network=newcomer.layers.network,
            gpu_type=self.gpu_type.name,
            sensitivity=max(entry.sensitivity for entry in self.training),
            rows=rows,
        )

    @cached_property
    def _rows_by_share(self) -> dict[float, list[OperatingPoint]]:
        """One row per relative, at its middle batch, by the shares that all of them have, ascending."""
        middle = [
            rows
            for entry in self.training
            if (rows := _at_middle_batch(entry, self.gpu_type))
        ]
        shares = (
            sorted(
                set.intersection(*({row.sm_percent for row in rows} for rows in middle))
            )
            if middle
            else []
        )
        return {
            share: [row for rows in middle for row in rows if row.sm_percent == share]
            for share in shares
        }

    def _pressures(self, newcomer: UnprofiledNetwork, shares: Sequence[float]) -> Reals:
        """(N,) by ascending share; never falls."""
        by_share = np.array(
            [[row.pressure for row in self._rows_by_share[share]] for share in shares]
        )
        at_level = min(
            range(len(shares)), key=lambda at: abs(shares[at] - LEVEL_PERCENT)
        )
        foretold = self._foretold(newcomer, shares[at_level])
        if foretold is None:
            worst: Reals = by_share.max(axis=1)
            return worst
        shape: Reals = (by_share / np.maximum(by_share[at_level], _MIN_PRESSURE)).max(
            axis=1
        )
        return np.maximum.accumulate(MARGIN * foretold * shape)

    def _foretold(self, newcomer: UnprofiledNetwork, share: float) -> float | None:
        """The largest pressure that explains the factor of any service; None where the layers tell nothing."""
        known = {each.network: each for each in self.layers}
        if sum(entry.network in known for entry in self.training) < MIN_RELATIVES:
            return None
        pairs = list(self._pairs())
        at = make_queries(
            [service.network for service, *_ in pairs],
            [self.gpu_type.name] * len(pairs),
            batch=[float(row.batch) for _, row, *_ in pairs],
            sm_percent=[row.sm_percent for _, row, *_ in pairs],
            neighbours=[
                (_neighbour(training, beside),) for _, _, training, beside in pairs
            ],
        )
        together_ms = [
            self._beside_ms(service, row, beside.pressure)
            for service, row, _, beside in pairs
        ]
        alone_ms = np.array([row.solo_ms for _, row, *_ in pairs])
        try:
            learned = layer_counts.fit(
                make_samples(at, together_ms),
                alone_ms,
                {**known, newcomer.layers.network: newcomer.layers},
            )
        except TooFewSamples:
            return None
        asked = [
            (service, row)
            for service in self.services
            for row in _spread(service, self.gpu_type)[:1]
        ]
        queries = make_queries(
            [service.network for service, _ in asked],
            [self.gpu_type.name] * len(asked),
            batch=[float(row.batch) for _, row in asked],
            sm_percent=[row.sm_percent for _, row in asked],
            neighbours=[
                (Neighbour(newcomer.layers.network, float(newcomer.batch), share),)
            ]
            * len(asked),
        )
        factors = layer_counts.predict(
            learned, queries, np.array([row.solo_ms for _, row in asked])
        )
        explained = zip(asked, factors, strict=True)
        return max(
            self._explaining(service, row, float(factor))
            for (service, row), factor in explained
        )

    def _pairs(
        self,
    ) -> Iterator[
        tuple[OperatingPoints, OperatingPoint, OperatingPoints, OperatingPoint]
    ]:
        """Every service row beside every training row that leaves it its share."""
        for service, training in itertools.product(self.services, self.training):
            rows = itertools.product(
                _spread(service, self.gpu_type), _spread(training, self.gpu_type)
            )
            for row, beside in rows:
                if (
                    row.sm_percent + beside.sm_percent <= 100.0
                    and service.sensitivity > _MIN_SENSITIVITY
                ):
                    yield service, row, training, beside

    def _beside_ms(
        self, service: OperatingPoints, row: OperatingPoint, pressure: float
    ) -> float:
        neighbours = Neighbours(count=1, pressure=pressure)
        return execution_ms(
            row, neighbours, sensitivity=service.sensitivity, gpu_type=self.gpu_type
        )

    def _explaining(
        self, service: OperatingPoints, row: OperatingPoint, factor: float
    ) -> float:
        """The pressure with which the laws give that factor; 0 where they give more without any."""
        launch_ms = row.launch_ms * launch_factor(self.gpu_type, 2)
        grown = (factor * row.solo_ms - row.transfer_ms - launch_ms) / row.run_ms - 1.0
        return max(0.0, grown / max(service.sensitivity, _MIN_SENSITIVITY))


def _spread(points: OperatingPoints, gpu_type: GpuType) -> list[OperatingPoint]:
    """Rows at the middle batch and about _SHARES, ascending."""
    rows = _at_middle_batch(points, gpu_type)
    nearest = (
        {min(rows, key=lambda row: abs(row.sm_percent - share)) for share in _SHARES}
        if rows
        else set()
    )
    return sorted(nearest)


def _at_middle_batch(
    points: OperatingPoints, gpu_type: GpuType
) -> list[OperatingPoint]:
    rows = [row for row in points.rows if row.clock_mhz == gpu_type.clocks_mhz[-1]]
    batches = sorted({row.batch for row in rows})
    return sorted(row for row in rows if row.batch == batches[len(batches) // 2])


def _neighbour(training: OperatingPoints, row: OperatingPoint) -> Neighbour:
    return Neighbour(training.network, float(row.batch), row.sm_percent)


def _joined(
    alike: Sequence[OperatingPoint], newcomer: UnprofiledNetwork, pressure: float
) -> OperatingPoint:
    """The newcomer's row from those of its relatives at the same share."""
    return OperatingPoint(
        sm_percent=alike[0].sm_percent,
        batch=newcomer.batch,
        clock_mhz=alike[0].clock_mhz,
        transfer_ms=0.0,
        launch_ms=0.0,
        run_ms=float(np.exp(np.mean([np.log(row.solo_ms) for row in alike]))),
        memory_mib=newcomer.memory_mib,
        power_w=max(row.power_w for row in alike),
        pressure=pressure,
    )
