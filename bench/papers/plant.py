"""A world whose clocks can be turned far: time and watts over batch × clock × SM percent, read off one table.

`agents.sim.truth.truth` has a measured level and scaled clocks; what a governor does between 300 MHz and the highest
clock, with batches up to 128, needs more. The three were never published together, so the table is synthetic: measured
levels, a shape over the clock that others have fitted, small deviations that no formula knows
(bench/catalogue/make_plant.py, which says where each part comes from). Idle watts are those at the lowest clock; that a
board draws more at a higher one counts as the replicas' own, by their SM percent.

Neighbours slow each other as the measured pairs on a V100 do (`Truth`), in the same proportion.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from agents.sim.truth.curves import FloatArray
from agents.sim.truth.running import RunningPart
from agents.sim.truth.truth import Truth, TruthError, load_truth

_SLOWED_LIKE = "V100-16GB"
_SLOWED_CLOCK_MHZ = 1530.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """One network on one board: (B, P, F) milliseconds and watts over ascending batches, SM percents and clocks."""

    batches: FloatArray
    sm_percents: FloatArray
    clocks_mhz: FloatArray
    time_ms: FloatArray
    watts: FloatArray

    def batch_ms(self, sm_percent: float, clock_mhz: float) -> FloatArray:
        """Time of batches 0 to the largest: linear in batch, in 1 / SM percent and in the clock; entry 0 is 0."""
        inverse = -1.0 / self.sm_percents
        at_share = _between(
            inverse,
            self.time_ms,
            -1.0 / max(sm_percent, float(self.sm_percents[0])),
            axis=1,
        )
        # Below the least share of the table the work-bound law holds, as in `curves`.
        at_share = at_share * max(1.0, float(self.sm_percents[0]) / sm_percent)
        line = _between(self.clocks_mhz, at_share, clock_mhz, axis=1)
        table = np.zeros(int(self.batches[-1]) + 1)
        table[1:] = np.interp(np.arange(1, len(table)), self.batches, line)
        return table

    def busy_w(self, sm_percent: float, batch: float, clock_mhz: float) -> float:
        """Watts above idle: linear in batch, SM percent and clock; no SMs draw nothing."""
        at_share = _between(
            np.array([0.0, *self.sm_percents]),
            np.pad(self.watts, ((0, 0), (1, 0), (0, 0))),
            sm_percent,
            axis=1,
        )
        line = _between(self.clocks_mhz, at_share, clock_mhz, axis=1)
        return float(np.interp(batch, self.batches, line))


class TableWorld:
    """An `agents.sim.pace.World` made of the table. Load it once with `load_plant`; it never changes."""

    def __init__(
        self,
        surfaces: Mapping[tuple[str, str], Surface],
        *,
        idle_w: Mapping[str, float],
        tdp_w: Mapping[str, float],
        truth: Truth,
    ) -> None:
        """`surfaces`: by (network, GPU type)."""
        self._surfaces = surfaces
        self._idle_w = idle_w
        self._tdp_w = tdp_w
        self._truth = truth

    @property
    def networks(self) -> tuple[str, ...]:
        """Every network of the table."""
        return tuple(sorted({network for network, _ in self._surfaces}))

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """Every board of the table."""
        return tuple(self._idle_w)

    def surface(self, network: str, gpu_type: str) -> Surface:
        """The surface of a network on a board. Raises TruthError for one that the table lacks."""
        if (network, gpu_type) not in self._surfaces:
            known = f"{', '.join(self.networks)} on {', '.join(self.gpu_types)}"
            raise TruthError(
                f"the plant has no {network!r} on {gpu_type!r}; known: {known}"
            )
        return self._surfaces[network, gpu_type]

    def max_batch(self, network: str) -> int:
        """Largest batch of the table."""
        return int(self.surface(network, self.gpu_types[0]).batches[-1])

    def noise_cv(self, network: str) -> float:
        """Standard deviation of one batch's time over its mean, as measured on a V100."""
        return self._truth.noise_cv(network)

    def batch_ms(self, placed: RunningPart) -> FloatArray:
        """Mean time of batches 0 to `max_batch` next to the neighbours: (max_batch + 1,), entry 0 is 0."""
        alone_ms = self.surface(placed.network, placed.gpu_type).batch_ms(
            placed.sm_percent, placed.clock_mhz
        )
        return alone_ms * self._slowdown(placed)

    def stall_ms(self, placed: RunningPart) -> float:  # noqa: ARG002
        """No batch stalls."""
        return 0.0

    def busy_w(self, placed: RunningPart, batch: int) -> float:
        """Watts above idle while such a batch runs."""
        return self.surface(placed.network, placed.gpu_type).busy_w(
            placed.sm_percent, batch, placed.clock_mhz
        )

    def idle_w(self, gpu_type: str) -> float:
        """Watts of an idle board at its lowest clock. Raises TruthError for one that the table lacks."""
        if gpu_type not in self._idle_w:
            raise TruthError(
                f"no board {gpu_type!r} in the plant; known: {', '.join(self.gpu_types)}"
            )
        return self._idle_w[gpu_type]

    def tdp_w(self, gpu_type: str) -> float:
        """Watts that the board's own limit never lets it pass."""
        self.idle_w(gpu_type)
        return self._tdp_w[gpu_type]

    def memory_mib(self, network: str, batch: int) -> float:
        """Memory of one replica that takes batches up to `batch` (estimated)."""
        return self._truth.memory_mib(network, batch)

    def _slowdown(self, placed: RunningPart) -> float:
        """Of its largest measured batch, next to these neighbours, on a V100."""
        if not placed.neighbours:
            return 1.0
        batch = min(placed.batch, self._truth.max_batch(placed.network))
        beside = RunningPart(
            network=placed.network,
            gpu_type=_SLOWED_LIKE,
            sm_percent=placed.sm_percent,
            batch=batch,
            clock_mhz=_SLOWED_CLOCK_MHZ,
            neighbours=placed.neighbours,
        )
        alone = RunningPart(
            network=placed.network,
            gpu_type=_SLOWED_LIKE,
            sm_percent=placed.sm_percent,
            batch=batch,
            clock_mhz=_SLOWED_CLOCK_MHZ,
        )
        return float(
            self._truth.batch_ms(beside)[batch] / self._truth.batch_ms(alone)[batch]
        )


def load_plant() -> TableWorld:
    """Read the shipped tables."""
    found: dict[
        tuple[str, str], dict[tuple[float, float, float], tuple[float, float]]
    ] = {}
    for row in _rows("plant.csv"):
        at = float(row["batch"]), float(row["sm_percent"]), float(row["clock_mhz"])
        cell = float(row["latency_ms"]), float(row["watts"])
        found.setdefault((row["network"], row["gpu_type"]), {})[at] = cell
    types = {row["gpu_type"]: row for row in _rows("plant_types.csv")}
    return TableWorld(
        {key: _surface(cells) for key, cells in found.items()},
        idle_w={name: float(row["idle_w"]) for name, row in types.items()},
        tdp_w={name: float(row["tdp_w"]) for name, row in types.items()},
        truth=load_truth(),
    )


def _surface(
    cells: Mapping[tuple[float, float, float], tuple[float, float]],
) -> Surface:
    axes = [sorted({at[axis] for at in cells}) for axis in range(3)]
    values = np.array(
        [[[cells[b, p, f] for f in axes[2]] for p in axes[1]] for b in axes[0]]
    )
    return Surface(
        batches=np.array(axes[0]),
        sm_percents=np.array(axes[1]),
        clocks_mhz=np.array(axes[2]),
        time_ms=values[..., 0],
        watts=values[..., 1],
    )


def _between(
    grid: FloatArray, values: FloatArray, at: float, *, axis: int
) -> FloatArray:
    """The values at one point of an ascending grid along that axis, linear in between, constant beyond the ends."""
    at = float(np.clip(at, grid[0], grid[-1]))
    right = int(np.clip(np.searchsorted(grid, at), 1, len(grid) - 1))
    part = (at - grid[right - 1]) / (grid[right] - grid[right - 1])
    low, high = values.take(right - 1, axis=axis), values.take(right, axis=axis)
    between: FloatArray = low + (high - low) * part
    return between


def _rows(name: str) -> list[dict[str, str]]:
    """Each line of one table next to this file as column -> text."""
    text = (Path(__file__).with_name("data") / name).read_text()
    return list(csv.DictReader(text.splitlines()))
