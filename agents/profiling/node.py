"""A profile on a real node: one GPU with NVML, MPS of its own, a cleanup process, and knobs where clocks are asked for.

    async with open_profile(ProfileSettings(...), driver) as opened:
        opened.profiler(journal, listener)   -> Profiler
        opened.header()                      -> what its journal must agree with

The MPS daemon is the profile's own, in a directory that lives as long as the profile. Before anything is measured the
first network is started with the whole GPU, to learn how many SMs that is: every other process must see its share of
them.
"""

import asyncio
import contextlib
import os
import secrets
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from agents.base.device import LaunchFailed, NotSupported, UnknownPart
from agents.base.durable_files import read_boot_id
from agents.gpu.knobs.journal import KnobJournal
from agents.gpu.knobs.knobs import KnobDriver, KnobWriter
from agents.gpu.mps.daemon import Mps
from agents.gpu.mps.gpu_sharing import ByTurns, Sharing, UnderMps
from agents.gpu.nvml.known_memory import memory_mib_of
from agents.gpu.nvml.types import GpuIdentity
from agents.processes.procfs import MARK
from agents.processes.templates import Templates
from agents.profiling.bench_processes import Site, find_template, open_benches
from agents.profiling.cells import BenchSettings, MeasurementCell
from agents.profiling.cleanup_process import Duties, daemon_mark, keeping
from agents.profiling.journal import Header, Journal
from agents.profiling.profiler import ProfileListener, Profiler, refuse_foreign
from agents.profiling.watch import GpuWatch, ProfileDriver
from agents.profiling.windows import Rules


class ReadDriver(ProfileDriver, Protocol):
    """The part of `agents.gpu.nvml.session.Nvml` that is needed; it turns nothing."""

    def gpus(self) -> tuple[GpuIdentity, ...]:
        """Every GPU."""
        ...

    def driver_version(self) -> str:
        """The version of the driver that is loaded."""
        ...


class NodeDriver(ReadDriver, KnobDriver, Protocol):
    """The part that is needed where clocks are locked, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSettings:
    """What is profiled, and how."""

    cells: tuple[MeasurementCell, ...]
    gpu_type: str
    """The catalogue's name of the GPU's type."""
    gpu_index: int = 0
    templates: Templates
    template: str = ""
    """The template of all networks; empty: each network's own."""
    rules: Rules = field(default_factory=Rules)
    seed: int = 0
    budget_s: float
    knobs_dir: Path | None = None
    """Journal of locked clocks; None: no clock is locked."""
    work_dir: Path | None = None
    """A directory of the profile is made in it; None = the system's for temporary files. MPS wants a short path."""
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenProfile:
    """A GPU that is ready to be profiled."""

    settings: ProfileSettings
    site: Site
    watch: GpuWatch
    driver_version: str
    clock: "KnobClock | None"

    def header(self) -> Header:
        """What the journal must agree with."""
        settings = self.settings
        return Header(
            gpu_type=settings.gpu_type,
            gpu_uuid=self.site.gpu.uuid,
            driver_version=self.driver_version,
            templates=tuple(
                (
                    each,
                    find_template(settings.templates, settings.template, each).digest,
                )
                for each in _networks(settings.cells)
            ),
            seed=settings.seed,
            window_s=settings.rules.window_s,
            spread_limit=settings.rules.spread_limit,
        )

    def profiler(self, journal: Journal, listener: ProfileListener) -> Profiler:
        """A run over the settings' cells."""
        return Profiler(
            site=self.site,
            watch=self.watch,
            journal=journal,
            rules=self.settings.rules,
            listener=listener,
            seed=self.settings.seed,
            budget_s=self.settings.budget_s,
            clock=self.clock,
        )


class KnobClock:
    """The clock of one GPU, locked through the journal of knobs."""

    def __init__(self, knobs: KnobWriter, gpu: GpuIdentity) -> None:
        self._knobs, self._gpu = knobs, gpu
        self._now_mhz: float | None = None

    async def lock_mhz(self, clock_mhz: float | None) -> None:
        """Lock it, or unlock it by None; nothing where it is so already. Raises DeviceError."""
        # Each call into the driver takes milliseconds, and most cells that follow each other have the same clock.
        if clock_mhz == self._now_mhz:
            return
        if clock_mhz is None:
            await asyncio.to_thread(self._knobs.unlock_clock, self._gpu)
        else:
            await asyncio.to_thread(
                self._knobs.lock_clock_mhz,
                self._gpu,
                low_mhz=clock_mhz,
                high_mhz=clock_mhz,
            )
        self._now_mhz = clock_mhz


@contextlib.asynccontextmanager
async def open_profile(
    settings: ProfileSettings, driver: ReadDriver, *, knobs: KnobDriver | None = None
) -> AsyncIterator[OpenProfile]:
    """A GPU with MPS, and nothing left of it afterwards; `knobs`: by whom clocks are locked.

    Raises DeviceError or OSError.
    """
    gpu = _gpu(driver, settings)
    # Settings are checked before anything is made that would have to be removed.
    _refuse_impossible(settings, has_knobs=knobs is not None)
    duties = _make_duties(settings, gpu)
    watch = GpuWatch(driver, gpu, is_ours=lambda pid: _is_ours(pid, duties.mark))
    site = _make_site(settings, gpu, duties)
    # The stack closes in reverse: clocks are unlocked first, and the cleanup process sees to the rest last.
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(keeping(duties, settings.environment))
        # After the cleanup process has started, which removes the directory, and before any process that uses the GPU.
        await refuse_foreign(watch, site)
        clock = _clock(stack, settings, knobs, gpu)
        sharing = await _sharing(settings, site, duties)
        yield OpenProfile(
            settings=settings,
            site=replace(site, sharing=sharing),
            watch=watch,
            driver_version=driver.driver_version(),
            clock=clock,
        )


def _refuse_impossible(settings: ProfileSettings, *, has_knobs: bool) -> None:
    """Raises LaunchFailed where a cell asks for what this profile cannot do."""
    can_lock = has_knobs and settings.knobs_dir is not None
    if not can_lock and any(cell.clock_mhz is not None for cell in settings.cells):
        raise LaunchFailed("cells ask for a clock, and this profile may not lock any")
    for network in _networks(settings.cells):
        find_template(settings.templates, settings.template, network)


def _make_duties(settings: ProfileSettings, gpu: GpuIdentity) -> Duties:
    """Make the profile's directory; what the cleanup process has to remove afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="plimsoll-", dir=settings.work_dir))
    return Duties(
        mark=secrets.token_hex(8),
        directory=str(directory),
        gpu_uuid=gpu.uuid,
        # One letter: MPS makes Unix sockets below it, whose paths must be short.
        mps_dir=str(directory / "m"),
        knobs_dir="" if settings.knobs_dir is None else str(settings.knobs_dir),
    )


def _make_site(settings: ProfileSettings, gpu: GpuIdentity, duties: Duties) -> Site:
    """Where benches run, without MPS as yet."""
    return Site(
        gpu=gpu,
        templates=settings.templates,
        template=settings.template,
        sharing=ByTurns(gpu, ""),
        directory=Path(duties.directory),
        mark=duties.mark,
        environment=settings.environment,
        # One process runs many cells, so it is launched for the largest batch among them.
        largest_batch=max(
            member.batch for cell in settings.cells for member in cell.members
        ),
    )


def _gpu(driver: ReadDriver, settings: ProfileSettings) -> GpuIdentity:
    gpus = {gpu.index: gpu for gpu in driver.gpus()}
    if settings.gpu_index not in gpus:
        raise UnknownPart(f"no GPU {settings.gpu_index}; this node has {sorted(gpus)}")
    gpu = gpus[settings.gpu_index]
    # Some drivers do not tell it.
    memory_mib = gpu.memory_mib or memory_mib_of(settings.gpu_type)
    return replace(gpu, memory_mib=memory_mib)


def _clock(
    stack: contextlib.AsyncExitStack,
    settings: ProfileSettings,
    driver: KnobDriver | None,
    gpu: GpuIdentity,
) -> KnobClock | None:
    if settings.knobs_dir is None or driver is None:
        return None
    knobs = KnobWriter(driver, KnobJournal(settings.knobs_dir), boot_id=read_boot_id())
    return KnobClock(stack.enter_context(knobs), gpu)


async def _sharing(settings: ProfileSettings, site: Site, duties: Duties) -> Sharing:
    """MPS that knows the GPU's SMs. Without it only a whole GPU can be measured."""
    environment = {**settings.environment, MARK: daemon_mark(duties.mark)}
    mps = Mps(site.gpu.uuid, Path(duties.mps_dir), environment=environment)
    if why := await mps.why_not():
        # One network on the whole GPU runs the same without MPS, so a node without it can be profiled in part.
        if needs_mps(settings.cells):
            raise NotSupported(
                f"shares below 100 % and networks side by side need MPS, which cannot be used here: {why}. "
                "--shares 100 without --pairs needs none"
            )
        return ByTurns(site.gpu, why)
    # Without a total no share can be proven, and a process with the whole GPU is the only one that can say the total.
    shared = UnderMps(site.gpu, mps, total_sms=None)
    first = _networks(settings.cells)[0]
    async with open_benches(
        (BenchSettings(network=first, sm_percent=100.0),), replace(site, sharing=shared)
    ) as benches:
        ready = benches[0].ready
        total_sms = None if ready is None else ready.sm_count
    return UnderMps(site.gpu, mps, total_sms=total_sms)


def _networks(cells: Sequence[MeasurementCell]) -> list[str]:
    return sorted({member.network for cell in cells for member in cell.members})


def needs_mps(cells: Sequence[MeasurementCell]) -> bool:
    """Whether a cell is anything but one network on the whole GPU."""
    return any(
        len(cell.members) > 1 or cell.members[0].sm_percent < 100.0 for cell in cells
    )


def _is_ours(pid: int, mark: str) -> bool:
    """Whether a process carries a mark of this profile. NVML numbers processes as the host does: in a container with
    numbers of its own ours are not known again, and no window would count."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(entry.startswith(f"{MARK}={mark}.".encode()) for entry in entries)
