"""A simple world and simple loads for tests of the simulated cluster."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from agents.base.clock import ManualClock
from agents.sim.cluster import ClusterScript, SimulatedCluster
from agents.sim.load.clients import ClientLoad
from agents.sim.queues.tally import Floats
from agents.sim.spec import Fault, GpuSpec, SimulatedNodeSpec
from agents.sim.truth.running import RunningPart
from agents.sim.truth.truth import TruthError

MAX_CLOCK_MHZ = 1500.0
MAX_BATCH = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainWorld:
    """10 ms a batch, 10 ms more per neighbour; 50 W idle, 100 W more a busy replica; both linear in the clock."""

    deviation: float = 0.0

    def max_batch(self, network: str) -> int:
        if network == "unknown":
            raise TruthError("no network unknown")
        return MAX_BATCH

    def noise_cv(self, network: str) -> float:
        return self.deviation

    def batch_ms(self, placed: RunningPart) -> Floats:
        times = np.full(MAX_BATCH + 1, 10.0 * (1 + len(placed.neighbours)))
        return times * (MAX_CLOCK_MHZ / placed.clock_mhz)

    def stall_ms(self, placed: RunningPart) -> float:
        """No batch stalls."""
        return 0.0

    def busy_w(self, placed: RunningPart, batch: int) -> float:
        return 100.0 * placed.clock_mhz / MAX_CLOCK_MHZ

    def idle_w(self, gpu_type: str) -> float:
        return 50.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EvenLoad:
    """A request every 1 / rate seconds from 0 on."""

    rate_rps: float

    def arrivals(self, start_s: float, end_s: float) -> Floats:
        first, last = np.ceil(start_s * self.rate_rps), np.ceil(end_s * self.rate_rps)
        return np.arange(first, last) / self.rate_rps


def a_node(
    name: str = "n1", *, gpus: int = 1, launch_s: float = 5.0
) -> SimulatedNodeSpec:
    gpu = GpuSpec(gpu_type="V100-32GB", memory_mib=4000.0, max_clock_mhz=MAX_CLOCK_MHZ)
    return SimulatedNodeSpec(name=name, gpus=(gpu,) * gpus, launch_s=launch_s)


def a_cluster(
    *nodes: SimulatedNodeSpec,
    rates_rps: Mapping[str, float] | None = None,
    clients: Mapping[str, ClientLoad] | None = None,
    faults: tuple[Fault, ...] = (),
    world: PlainWorld | None = None,
) -> tuple[SimulatedCluster, ManualClock]:
    """A cluster whose trace begins at 1000 s of its clock."""
    clock = ManualClock(1000.0)
    rates = rates_rps if rates_rps is not None else {} if clients else {"chat": 100.0}
    loads = {service: EvenLoad(rate_rps=rate) for service, rate in rates.items()}
    scenario = ClusterScript(loads=loads, clients=clients or {}, seed=1, faults=faults)
    return SimulatedCluster(
        nodes or (a_node(),), scenario, world=world or PlainWorld(), clock=clock
    ), clock
