"""One simulated GPU and the replicas and tasks on it.

All times are seconds of trace time.
"""

import math
from collections.abc import Iterator

from agents.base.device import Part
from agents.base.protocol import ReplicaCommand, ReplicaState
from agents.sim.pace import (
    LOWEST_CLOCK_SHARE,
    GpuUnderLoad,
    PaceMaker,
    SimulatedPart,
    clocks_mhz,
)
from agents.sim.queues.engine_queue import EngineQueue
from agents.sim.queues.replica_queue import ExecutionPace, ReplicaQueue
from agents.sim.spec import GpuSpec
from agents.sim.tasks import SimTask


class SimReplica:
    """One simulated replica."""

    def __init__(
        self,
        command: ReplicaCommand,
        *,
        ready_at_s: float,
        queue: ReplicaQueue | EngineQueue,
    ) -> None:
        self.command = command
        self.state: ReplicaState = "starting"
        self.ready_at_s = ready_at_s
        self.draining_since_s = math.inf
        self.queue = queue
        self.pace: ExecutionPace | None = None

    @property
    def is_model(self) -> bool:
        """Whether it is a language model's, whose steps take as long as they do whatever GPU they stand on says."""
        return isinstance(self.queue, EngineQueue)

    @property
    def executes(self) -> bool:
        """Whether it may run batches."""
        return self.state in ("ready", "draining")


class SimGpu:
    """One simulated GPU."""

    def __init__(self, spec: GpuSpec, index: int, paces: PaceMaker) -> None:
        self.spec = spec
        self.index = index
        self.clock_mhz: float | None = None
        self.power_limit_w: float | None = None
        self.is_healthy = True
        self.slowdown = 1.0
        self.launch_fails = False
        self.replicas: dict[str, SimReplica] = {}
        self.spanned: dict[str, SimReplica] = {}
        """Replicas that stand on another GPU of the node and span this one."""
        self.tasks: dict[str, SimTask] = {}
        self.departed_energy_j = 0.0
        """The energy that replicas and tasks which are gone took in the window."""
        self.used_energy_j = 0.0
        """The energy of all windows in which it carried replicas or tasks, with idle power; grows with each reading."""
        self.busy_s = 0.0
        """Seconds in which anything ran on it; grows with each reading."""
        self.effective_clock_mhz = spec.max_clock_mhz
        self.clocks_mhz = clocks_mhz(spec.max_clock_mhz)
        self._paces = paces
        self._paced_for: (
            tuple[GpuUnderLoad, list[tuple[Part, SimulatedPart]]] | None
        ) = None
        """What the paces were looked up for."""

    @property
    def carried(self) -> Iterator[SimReplica]:
        """Every replica that uses it, whichever GPU it stands on."""
        yield from self.replicas.values()
        yield from self.spanned.values()

    @property
    def memory_used_mib(self) -> float:
        """Memory of every replica that is alive and every task that holds some."""
        replicas_mib = sum(
            each.command.memory_mib for each in self.carried if each.state != "failed"
        )
        return replicas_mib + sum(
            each.command.memory_mib for each in self.tasks.values() if each.holds_memory
        )

    def set_paces(self, slos_s: dict[str, float]) -> None:
        """Look all execution times up again, after anything on this GPU has changed."""
        board = GpuUnderLoad(
            gpu_type=self.spec.gpu_type,
            clock_mhz=self.clock_mhz or self.spec.max_clock_mhz,
            lowest_mhz=self.spec.max_clock_mhz * LOWEST_CLOCK_SHARE,
            power_limit_w=math.inf
            if self.power_limit_w is None
            else self.power_limit_w,
            slowdown=self.slowdown,
        )
        tenants: dict[Part, SimulatedPart] = {
            ("replica", replica_id): SimulatedPart(
                network=each.command.network,
                sm_percent=each.command.sm_percent,
                batch=each.command.batch,
                slo_s=slos_s.get(each.command.service, math.inf),
            )
            for replica_id, each in self.replicas.items()
            if each.executes and not each.is_model
        }
        tenants |= {
            ("task", name): each.tenant
            for name, each in self.tasks.items()
            if each.state == "running"
        }
        # As a list: the order of the tenants is a part of what was looked up.
        wanted = board, list(tenants.items())
        # Routes change often without changing any execution time.
        if self._paced_for == wanted:
            return
        self._paced_for = wanted
        clock_mhz = self.effective_clock_mhz = self._paces.clock_mhz(
            board, tuple(tenants.values())
        )
        for (_, replica_id), pace in self._paces.paces(
            board, tenants, clock_mhz
        ).items():
            self.replicas[replica_id].pace = pace
        for (_, name), pace_of_task in self._paces.task_paces(
            board, tenants, clock_mhz
        ).items():
            self.tasks[name].set_pace(pace_of_task)
