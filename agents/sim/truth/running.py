"""What the truth is asked about: a replica or task where it runs, and what runs next to it."""

from dataclasses import dataclass
from typing import NamedTuple


class SimulatedNeighbour(NamedTuple):
    """Another replica or task on the same GPU."""

    network: str
    sm_percent: float
    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningPart:
    """One replica or task where it runs."""

    network: str
    gpu_type: str
    sm_percent: float
    """0 < sm_percent <= 100."""
    batch: int
    """The largest that it takes; of training every step's."""
    clock_mhz: float
    neighbours: tuple[SimulatedNeighbour, ...] = ()
    """Every other replica and task on the same GPU."""
