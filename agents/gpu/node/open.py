"""A node's GPUs opened: driver, knobs, sharing, workers and router put together into one device.

    device = await open_gpu_device(GpuNodeSettings(state_dir=..., mps_dir=..., ...), clock)
    device = await put_together(Basis(...), clock)     the same of other parts, perhaps without knobs

What an earlier agent left is seen to first: turned knobs are put back, workers that still run are adopted.
"""

import asyncio
import contextlib
import ctypes
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from agents.base.clock import Clock
from agents.base.device import NotSupported
from agents.base.durable_files import read_boot_id
from agents.gpu.knobs.applied_knobs import Turnable
from agents.gpu.knobs.journal import KnobJournal
from agents.gpu.knobs.knobs import KnobWriter
from agents.gpu.mps.daemon import Mps, MpsSettings
from agents.gpu.mps.gpu_sharing import (
    ByTurns,
    Sharing,
    make_sharing,
    make_slice_sharing,
    prove,
    terminate_clients,
    why_no_checkpoint,
)
from agents.gpu.node import use as gpu_use
from agents.gpu.node.device import GpuDevice
from agents.gpu.node.devices import (
    Devices,
    GpuErrors,
    SliceChanges,
    SliceErrors,
    Slices,
    parent_of,
    type_of,
)
from agents.gpu.node.foreign_memory import ForeignMemory
from agents.gpu.node.inventory import load_inventory, save_inventory
from agents.gpu.node.parts import DEFAULT_LOOKS, GpuParts, Looks
from agents.gpu.node.readonly_device import ReadOnlyDevice
from agents.gpu.node.starts import GpuStarts, StartedGpu
from agents.gpu.node.use import GpuUse, shared_gpus
from agents.gpu.nvml.capabilities import probe
from agents.gpu.nvml.power_watch import PowerWatch
from agents.gpu.nvml.session import Nvml
from agents.gpu.nvml.types import Capability, GpuCapabilities, GpuIdentity
from agents.gpu.nvml.xid_watch import XidWatch
from agents.kubernetes.api import ApiAddress, KubernetesApi
from agents.kubernetes.launcher import PodLauncher
from agents.kubernetes.manifest import PodSettings
from agents.processes.launcher import PROCESSES, Launcher
from agents.processes.records import REPLICAS_FOLDER, TASKS_FOLDER
from agents.processes.template_file import load_templates
from agents.processes.templates import Templates, without_passed_on
from agents.processes.user import WorkerUsers, make_folder, require_reach, uid_of
from agents.replicas.replica import Hooks
from agents.replicas.replicas import Workers, WorkersSettings
from agents.router.access import RouterAccess
from agents.router.haproxy.config import HaProxySettings, find_proxy_user
from agents.router.haproxy.router import open_haproxy
from agents.router.haproxy.supervised import end_earlier
from agents.router.request_router import RequestRouter
from agents.router.router import Router
from agents.tasks.task import TaskHooks
from agents.tasks.tasks import Tasks, TasksSettings

_PR_CAP_AMBIENT, _CLEAR_ALL = 47, 4
"""linux/prctl.h"""
ROUTER_MARK = "plimsoll-router"
"""In the environment of HAProxy where DaemonSet plimsoll-router runs it (deploy/kubernetes)."""
BY_TURNS = "the agent was started with --sharing turns"


NOT_TURNED = "clocks and limits of this GPU are not to be changed"


class NoKnobs:
    """Knobs of GPUs whose clocks and limits are not ours to change."""

    def lock_clock_mhz(
        self,
        gpu: GpuIdentity,  # noqa: ARG002
        *,
        low_mhz: float,  # noqa: ARG002
        high_mhz: float,  # noqa: ARG002
    ) -> None:
        raise NotSupported(NOT_TURNED)

    def unlock_clock(self, gpu: GpuIdentity) -> None:  # noqa: ARG002
        raise NotSupported(NOT_TURNED)

    def limit_power_w(self, gpu: GpuIdentity, limit_w: float | None) -> None:  # noqa: ARG002
        raise NotSupported(NOT_TURNED)

    def close(self) -> None:
        """Nothing was turned."""


NO_KNOBS = NoKnobs()
WITHOUT_KNOBS = GpuCapabilities(
    why_not=((Capability.LOCK_CLOCK, NOT_TURNED), (Capability.LIMIT_POWER, NOT_TURNED)),
)
"""What a GPU can do whose knobs are not turned."""


class FixedSlices:
    """GPUs whose layout does not change meanwhile."""

    def look(self) -> SliceChanges:
        """Nothing became of any slice."""
        return SliceChanges()


FIXED_SLICES = FixedSlices()


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """What differs between a node's device, one that measures, and one of a test."""

    telemetry: ReadOnlyDevice
    gpus: tuple[GpuIdentity, ...]
    capabilities: Mapping[int, GpuCapabilities]
    """By index, as are `sharings`."""
    sharings: Mapping[int, Sharing]
    errors: GpuErrors
    peaks: Callable[[], PowerWatch]
    """Opened when everything else is."""
    memory: ForeignMemory
    uses: gpu_use.UseReader
    templates: Templates
    workers: WorkersSettings
    tasks: TasksSettings
    launcher: Launcher = PROCESSES
    knobs: Turnable = NO_KNOBS
    slices: Slices = FIXED_SLICES
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    """The agent's own; some of it is passed on to replicas and tasks."""
    make_router: Callable[[Workers], Awaitable[RequestRouter]]
    keeps_replicas: bool = False
    looks: Looks = DEFAULT_LOOKS
    uids: Mapping[str, int] = field(default_factory=dict)
    """As in `NodeState`."""


async def put_together(basis: Basis, clock: Clock) -> GpuDevice:
    """The device. Raises DeviceError or OSError, and then what was adopted goes on without it."""
    sharing = Hooks(
        terminate=partial(terminate_clients, basis.sharings),
        prove=partial(prove, basis.sharings),
    )
    hooks = TaskHooks(
        sharing=sharing, why_no_checkpoint=partial(why_no_checkpoint, basis.sharings)
    )
    workers = Workers(
        basis.workers,
        templates=basis.templates,
        hooks=sharing,
        launcher=basis.launcher,
        environment=basis.environment,
    )
    tasks = Tasks(
        basis.tasks,
        templates=basis.templates,
        hooks=hooks,
        launcher=basis.launcher,
        environment=basis.environment,
    )
    async with contextlib.AsyncExitStack() as opened:
        opened.push_async_callback(basis.launcher.close)
        await basis.launcher.open()
        # Kept, because a device that cannot be opened must not cost the replicas that serve without it.
        opened.push_async_callback(workers.close, keep=True)
        await workers.open()
        opened.push_async_callback(tasks.close, keep=True)
        await tasks.open()
        router = await basis.make_router(workers)
        opened.pop_all()
    parts = GpuParts(
        telemetry=basis.telemetry,
        gpus=basis.gpus,
        capabilities=basis.capabilities,
        knobs=basis.knobs,
        errors=basis.errors,
        power=basis.peaks(),
        memory=basis.memory,
        use=GpuUse(
            basis.uses,
            shared_gpus(basis.gpus, basis.capabilities, basis.sharings),
            clock,
        ),
        sharings=basis.sharings,
        launcher=basis.launcher,
        workers=workers,
        tasks=tasks,
        slices=basis.slices,
        router=router,
    )
    return GpuDevice(
        parts,
        clock,
        keeps_replicas=basis.keeps_replicas,
        looks=basis.looks,
        uids=basis.uids,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNodeSettings:
    """How a node runs its GPUs."""

    state_dir: Path
    """Journal of the knobs, records and logs of the workers."""
    mps_dir: Path
    """One short directory per GPU is made in it."""
    users: WorkerUsers = field(default_factory=WorkerUsers)
    """Who replicas and tasks run as."""
    templates: Path | None = None
    """Runtime templates of this node; None = the built-in one alone."""
    type_of: Callable[[GpuIdentity], str] = lambda gpu: gpu.name
    """The catalogue's name of a whole GPU's type; `agents.gpu.nvml.mig_types` has that of its slices."""
    memory_mib: Callable[[GpuIdentity], float] | None = None
    """Memory of a whole GPU whose driver does not tell it; raises DeviceError where it is not known."""
    uses_mps: bool = True
    """False: GPUs are shared by turns, without limits."""
    pods: PodSettings | None = None
    """How replicas and tasks run as Pods; None: they are processes."""
    keeps_replicas: bool = False
    """Whether replicas go on when the agent ends."""
    haproxy_port: int | None = None
    """Where HAProxy takes requests; None: this process does."""
    access: RouterAccess = field(default_factory=RouterAccess)
    """Who may send requests to HAProxy."""

    @property
    def uids(self) -> dict[str, int]:
        """Who replicas and tasks must run as, as in `NodeState`."""
        # MPS serves one user per GPU: who runs there changes only when all have ended.
        return {} if self.uses_mps else self.users.uids()


async def open_gpu_device(settings: GpuNodeSettings, clock: Clock) -> GpuDevice:
    """The node's device. Raises DeviceError or OSError, and then leaves nothing open."""
    with contextlib.ExitStack() as opened:
        templates = load_templates(settings.templates)
        for user in settings.users.all:
            make_folder(user.folders, user)
            require_reach(user.folders, user)
        drop_ambient_rights()
        nvml = opened.enter_context(Nvml())
        devices = Devices(
            nvml,
            known=load_inventory(settings.state_dir),
            memory_mib=settings.memory_mib,
        )
        gpus = devices.gpus()
        save_inventory(settings.state_dir, gpus)
        journal = KnobJournal(settings.state_dir)
        # Entering puts back what a dead agent left, before anything reads clocks and limits as the board's own.
        knobs = opened.enter_context(KnobWriter(nvml, journal, boot_id=read_boot_id()))
        xids = XidWatch(nvml, devices.entire_gpus)
        starts = GpuStarts(
            SliceErrors(xids, gpus),
            partial(_start, settings, nvml),
            # Of a GPU that did not answer no errors were asked for yet.
            on_late=xids.renew,
        )
        opened.callback(starts.close)
        # Each GPU is tried once before the device exists, so that its first state knows what the GPUs can do.
        await starts.begin(gpus)
        basis = Basis(
            telemetry=ReadOnlyDevice(
                devices, clock, type_of=lambda gpu: type_of(gpu, settings.type_of)
            ),
            gpus=gpus,
            capabilities=starts.capabilities,
            sharings=starts.sharings,
            errors=starts,
            peaks=partial(PowerWatch, devices.power_w),
            memory=ForeignMemory(devices),
            uses=nvml,
            templates=templates,
            workers=WorkersSettings(
                directory=settings.state_dir / REPLICAS_FOLDER, users=settings.users
            ),
            tasks=TasksSettings(
                directory=settings.state_dir / TASKS_FOLDER, users=settings.users
            ),
            launcher=_launcher(settings.pods),
            knobs=knobs,
            slices=devices,
            # What the agent's own container has is not there in others.
            environment=without_passed_on(os.environ) if settings.pods else os.environ,
            make_router=partial(_router, settings),
            keeps_replicas=settings.keeps_replicas,
            uids=settings.uids,
        )
        device = await put_together(basis, clock)
        opened.pop_all()
        return device


def _launcher(settings: PodSettings | None) -> Launcher:
    """Raises DeviceError where Pods are asked for, and this is none."""
    if settings is None:
        return PROCESSES
    return PodLauncher(KubernetesApi(ApiAddress.in_cluster(os.environ)), settings)


async def _router(settings: GpuNodeSettings, workers: Workers) -> RequestRouter:
    """The agent's own, or HAProxy, which an earlier agent may have left running, with requests for adopted replicas."""
    folder = settings.state_dir / "haproxy"
    if settings.haproxy_port is None:
        # An HAProxy that an earlier agent left running would go on routing next to this process.
        await end_earlier(folder)
        # Enforcement ends what is neither wanted nor asleep, and must not look before that is known.
        await workers.until_known(sleepers_only=True)
        return Router()
    # Enforcement routes to no replica that is not ready, and so must not look before those that are have said so.
    await workers.until_known()
    return await open_haproxy(
        HaProxySettings(
            port=settings.haproxy_port,
            folder=folder,
            access=settings.access,
            # A Pod's container holds one program: HAProxy has its own, which stays when the agent's is replaced.
            mark="" if settings.pods is None else ROUTER_MARK,
            user=find_proxy_user(settings.users.all),
        )
    )


async def _start(settings: GpuNodeSettings, nvml: Nvml, gpu: GpuIdentity) -> StartedGpu:
    # First, since a GPU that answers no question would seem to lack everything.
    await asyncio.to_thread(nvml.sample, parent_of(gpu))
    return StartedGpu(
        sharing=await _sharing(settings, gpu),
        capabilities=probe(nvml, gpu, try_writes=True),
    )


async def _sharing(settings: GpuNodeSettings, gpu: GpuIdentity) -> Sharing:
    if not settings.uses_mps:
        return ByTurns(gpu, BY_TURNS)
    user = settings.users.default
    if user is not None:
        # A client that does not reach its daemon's socket would silently run without limits.
        settings.mps_dir.mkdir(parents=True, exist_ok=True)
        require_reach(settings.mps_dir, user)
    make_mps = partial(
        Mps,
        settings=MpsSettings(
            client_uid=uid_of(user), keeps_daemon=settings.pods is None
        ),
    )
    if gpu.part is not None:
        return await make_slice_sharing(gpu, settings.mps_dir, make_mps=make_mps)
    return await make_sharing(
        gpu, settings.mps_dir, total_sms=gpu.sm_count, make_mps=make_mps
    )


def drop_ambient_rights() -> None:
    """Let no process that is started from now on inherit CAP_SYS_ADMIN, which a unit may give for clocks and power.

    The agent itself keeps it. Where the kernel knows no ambient capabilities there is nothing to inherit.
    """
    ctypes.CDLL(None).prctl(_PR_CAP_AMBIENT, _CLEAR_ALL, 0, 0, 0)
