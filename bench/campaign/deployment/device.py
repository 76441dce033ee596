"""A node's device with real processes: replicas as the agent starts them, and HAProxy; only its GPUs are on paper."""

import os
import sys
from functools import partial
from pathlib import Path

from agents.base.clock import Clock
from agents.gpu.mps.gpu_sharing import ByTurns
from agents.gpu.node.device import GpuDevice
from agents.gpu.node.foreign_memory import ForeignMemory
from agents.gpu.node.open import WITHOUT_KNOBS, Basis, put_together
from agents.gpu.node.readonly_device import ReadOnlyDevice
from agents.gpu.nvml.power_watch import PowerWatch
from agents.gpu.nvml.types import GpuIdentity, GpuProcess, GpuSample, ProcessUse
from agents.processes.templates import Template, Templates
from agents.replicas.replicas import Workers, WorkersSettings
from agents.router.haproxy.config import HaProxySettings
from agents.router.haproxy.router import open_haproxy
from agents.router.request_router import RequestRouter
from agents.router.router import Router
from agents.tasks.tasks import TasksSettings

STATE, WORKER = "state", Path(__file__).with_name("worker.py")
PORTS_PER_NODE = 50
START_LIMIT_S = 60.0
POWER_W = 80.0


class PaperGpus:
    """What a driver would say of GPUs that are there, draw power, and hold no memory but their replicas'."""

    def __init__(self, node: str, gpu_type: str, memory_mib: float, count: int) -> None:
        self._gpus = tuple(
            GpuIdentity(
                index=index,
                uuid=f"GPU-{node}-{index}-of-{os.getppid()}",
                name=gpu_type,
                memory_mib=memory_mib,
            )
            for index in range(count)
        )

    def gpus(self) -> tuple[GpuIdentity, ...]:
        return self._gpus

    def sample(self, gpu: GpuIdentity) -> GpuSample:  # noqa: ARG002  all are alike
        return GpuSample(
            memory_used_mib=0.0,
            power_w=POWER_W,
            energy_j=None,
            clock_mhz=1000.0,
            busy_percent=10.0,
        )

    def power_w(self, gpu: GpuIdentity) -> float:  # noqa: ARG002
        return POWER_W

    def processes(self, gpu: GpuIdentity) -> tuple[GpuProcess, ...]:  # noqa: ARG002
        return ()

    def process_use(
        self,
        gpu: GpuIdentity,  # noqa: ARG002
        since_us: int = 0,  # noqa: ARG002
    ) -> tuple[ProcessUse, ...]:
        return ()

    def close(self) -> None:
        """Nothing was opened."""


class NoErrors:
    """GPUs that never fail."""

    problem = ""

    def condemned(self) -> dict[str, str]:
        return {}

    def acquit(self, uuid: str) -> None:
        """Nothing is remembered."""

    def close(self) -> None:
        """Nothing is watched."""


async def open_device(
    directory: Path, gpus: PaperGpus, clock: Clock, *, ports: tuple[int, int]
) -> GpuDevice:
    """The device of the node whose files lie in `directory`, with what an earlier agent left adopted.

    `ports`: HAProxy's, 0 for none, and the first of PORTS_PER_NODE for replicas.
    """
    state = directory / STATE
    template = Template(
        name="own",
        command=(sys.executable, "-I", str(WORKER), "{port}", str(directory)),
        start_limit_s=START_LIMIT_S,
        drain_limit_s=5.0,
    )
    basis = Basis(
        telemetry=ReadOnlyDevice(gpus, clock, type_of=lambda gpu: gpu.name),
        gpus=gpus.gpus(),
        capabilities=dict.fromkeys((gpu.index for gpu in gpus.gpus()), WITHOUT_KNOBS),
        sharings={
            gpu.index: ByTurns(gpu, "these GPUs are on paper") for gpu in gpus.gpus()
        },
        errors=NoErrors(),
        peaks=partial(PowerWatch, gpus.power_w, period_s=1.0),
        memory=ForeignMemory(gpus),
        uses=gpus,
        templates=Templates(by_name={"own": template}, default="own"),
        workers=WorkersSettings(
            directory=state / "workers",
            first_port=ports[1],
            port_count=PORTS_PER_NODE,
        ),
        tasks=TasksSettings(directory=state / "tasks"),
        make_router=partial(_router, state / "haproxy", ports[0]),
        keeps_replicas=True,
    )
    return await put_together(basis, clock)


async def _router(folder: Path, port: int, workers: Workers) -> RequestRouter:
    """As `agents.gpu.node.open` makes it."""
    if not port:
        return Router()
    await workers.until_known()
    return await open_haproxy(HaProxySettings(port=port, folder=folder))
