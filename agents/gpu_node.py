"""A node's GPUs opened: driver, knobs, sharing, workers and router put together into one device.

    device = await open_gpu_device(GpuNodeSettings(state_dir=..., mps_dir=..., ...), clock)

What an earlier agent left is seen to first: turned knobs are put back, workers that still run are adopted.
"""

import contextlib
import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from agents.capabilities import probe
from agents.clock import Clock
from agents.foreign_memory import ForeignMemory
from agents.gpu_device import GpuDevice, GpuParts
from agents.gpu_starts import GpuStarts, StartedGpu
from agents.gpu_use import GpuUse, shared_gpus
from agents.haproxy_config import HaProxySettings
from agents.haproxy_router import end_earlier, open_haproxy
from agents.knob_journal import KnobJournal
from agents.knobs import Knobs, read_boot_id
from agents.mig_devices import Devices, SliceErrors, type_of
from agents.mig_sharing import make_slice_sharing
from agents.nvml import Nvml
from agents.nvml_nouns import GpuIdentity
from agents.power_watch import PowerWatch
from agents.readonly_device import ReadOnlyDevice
from agents.request_router import RequestRouter
from agents.router import Router
from agents.sharing import ByTurns, Sharing, let_go, make_sharing, prove, why_no_checkpoint
from agents.task_process import TaskHooks
from agents.tasks import Tasks, TasksSettings
from agents.templates import load_templates
from agents.worker_replica import Hooks
from agents.workers import Workers, WorkersSettings
from agents.xid_watch import XidWatch

_PR_CAP_AMBIENT, _CLEAR_ALL = 47, 4
"""linux/prctl.h"""
BY_TURNS = "the agent was started with --sharing turns"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNodeSettings:
    """How a node runs its GPUs."""

    state_dir: Path
    """Journal of the knobs, records and logs of the workers."""
    mps_dir: Path
    """One short directory per GPU is made in it."""
    templates: Path | None = None
    """Runtime templates of this node; None = the built-in one alone."""
    type_of: Callable[[GpuIdentity], str] = lambda gpu: gpu.name
    """The catalogue's name of a whole GPU's type; `agents.mig_nouns` has that of its slices."""
    uses_mps: bool = True
    """False: GPUs are shared by turns, without limits."""
    keeps_replicas: bool = False
    """Whether replicas go on when the agent ends."""
    haproxy_port: int | None = None
    """Where HAProxy takes requests; None: this process does."""


async def open_gpu_device(settings: GpuNodeSettings, clock: Clock) -> GpuDevice:
    """The node's device. Raises DeviceError or OSError, and then leaves nothing open."""
    with contextlib.ExitStack() as opened:
        templates = load_templates(settings.templates)
        drop_ambient_rights()
        nvml = opened.enter_context(Nvml())
        devices = Devices(nvml)
        gpus = devices.gpus()
        journal = KnobJournal(settings.state_dir)
        knobs = opened.enter_context(Knobs(nvml, journal, boot_id=read_boot_id()))
        starts = GpuStarts(SliceErrors(XidWatch(nvml, devices.wholes), gpus), partial(_start, settings, nvml))
        opened.callback(starts.close)
        await starts.begin(gpus)
        sharings, capabilities = starts.sharings, starts.capabilities
        workers = Workers(
            WorkersSettings(directory=settings.state_dir / "workers"),
            templates=templates,
            hooks=Hooks(terminate=partial(let_go, sharings), prove=partial(prove, sharings)),
        )
        await workers.open()
        tasks = Tasks(
            TasksSettings(directory=settings.state_dir / "tasks"),
            templates=templates,
            hooks=TaskHooks(
                sharing=Hooks(terminate=partial(let_go, sharings), prove=partial(prove, sharings)),
                why_no_checkpoint=partial(why_no_checkpoint, sharings),
            ),
        )
        await tasks.open()
        parts = GpuParts(
            telemetry=ReadOnlyDevice(devices, clock, type_of=lambda gpu: type_of(gpu, settings.type_of)),
            gpus=gpus,
            capabilities=capabilities,
            knobs=knobs,
            errors=starts,
            power=PowerWatch(devices.sample),
            memory=ForeignMemory(devices),
            use=GpuUse(nvml, shared_gpus(gpus, capabilities, sharings), clock),
            sharings=sharings,
            workers=workers,
            tasks=tasks,
            slices=devices,
            router=await _router(settings, workers),
        )
        opened.pop_all()
        return GpuDevice(parts, clock, keeps_replicas=settings.keeps_replicas)


async def _router(settings: GpuNodeSettings, workers: Workers) -> RequestRouter:
    """The agent's own, or HAProxy, which an earlier agent may have left running, with requests for adopted replicas."""
    folder = settings.state_dir / "haproxy"
    if settings.haproxy_port is None:
        await end_earlier(folder)
        return Router()
    # Enforcement routes to no replica that is not ready, and so must not look before those that are have said so.
    await workers.until_known()
    return await open_haproxy(HaProxySettings(port=settings.haproxy_port, folder=folder))


async def _start(settings: GpuNodeSettings, nvml: Nvml, gpu: GpuIdentity) -> StartedGpu:
    return StartedGpu(sharing=await _sharing(settings, gpu), capabilities=probe(nvml, gpu, try_writes=True))


async def _sharing(settings: GpuNodeSettings, gpu: GpuIdentity) -> Sharing:
    if not settings.uses_mps:
        return ByTurns(gpu, BY_TURNS)
    if gpu.part is not None:
        return await make_slice_sharing(gpu, settings.mps_dir)
    return await make_sharing(gpu, settings.mps_dir, total_sms=gpu.sm_count)


def drop_ambient_rights() -> None:
    """Let no process that is started from now on inherit CAP_SYS_ADMIN, which a unit may give for clocks and power.

    The agent itself keeps it. Where the kernel knows no ambient capabilities there is nothing to inherit.
    """
    ctypes.CDLL(None).prctl(_PR_CAP_AMBIENT, _CLEAR_ALL, 0, 0, 0)
