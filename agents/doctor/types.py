"""What the node's doctor looks at and says: what it is asked, facts of each kind, findings. Nothing here does anything.

Asked ─┐
Here  ─┴─ agents.doctor.facts, agents.doctor.driver ──▶ …Facts ── agents.doctor.checks_* ──▶ Finding
"""

import os
import platform
import resource
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from agents.base.version import agent_version
from agents.gpu.mps.lacks import MpsLack
from agents.gpu.nvml.lacks import Lack
from agents.gpu.nvml.types import Capability

Level: TypeAlias = Literal["pass", "warn", "fail", "skip"]
"""warn: the agent works, less well; fail: something that was asked for does not work; skip: it was not asked for."""

CAP_SYS_ADMIN = 1 << 21
"""Bit of a process's capability sets, by the kernel's number 21."""
INSTALL = "docs/install-agent.md"
"""Where remedies point to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFinding:
    """One check's outcome."""

    check: str
    level: Level
    words: str
    remedy: str = ""
    """What to do; empty = nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the agent would be started with; None or empty = not said."""

    state_dir: Path | None = None
    mps_dir: Path | None = None
    templates: Path | None = None
    uses_mps: bool = True
    gpu_type: str = ""
    url: str = ""
    token: str = ""
    node: str = ""
    worker_user: str = ""
    project_users: tuple[tuple[str, str], ...] = ()
    """(project, user)"""
    router_port: int = 0
    tries_writes: bool = False
    """Each power limit in force is written once more, since nothing else tells whether it may be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """The machine and the process as the doctor sees them."""

    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    dev: Path = Path("/dev")
    proc: Path = Path("/proc")
    run: Path = Path("/run")
    units: tuple[Path, ...] = (
        Path("/etc/systemd/system"),
        Path("/usr/local/lib/systemd/system"),
        Path("/usr/lib/systemd/system"),
    )
    """Where unit files lie, the strongest first."""
    python: str = field(default_factory=platform.python_version)
    package: str = field(default_factory=agent_version)
    """Version of plimsoll; empty = it runs from its source."""
    open_files: int = field(
        default_factory=lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    )
    """The soft limit, which replicas and MPS daemons inherit."""
    free_mib: Callable[[Path], float] = lambda path: (
        shutil.disk_usage(path).free / 2.0**20
    )
    """What is free on the file system of a path."""
    first_port: int = 21000
    """As in `agents.replicas.replicas.WorkersSettings`."""
    port_count: int = 2000
    limit_s: float = 10.0
    """The time limit of each check."""
    driver_limit_s: float = 45.0
    """A driver without persistence mode wakes each GPU first, for seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFacts:
    """Who runs this."""

    uid: int
    user: str
    effective: int
    """Capabilities, as bits."""
    ambient: int
    """Those that every program inherits which this process starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigFacts:
    """A GPU in MIG mode."""

    slices: tuple[str, ...]
    """Each in words: profile and index."""
    can_have: str
    """Which slices, in words."""
    room: str
    """For which others, in words; empty = this user may not ask, and so not change them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """One GPU, as the driver tells."""

    index: int
    uuid: str
    name: str
    memory_mib: float
    lost: str = ""
    """Why it does not answer."""
    lacks: tuple[Lack, ...] = ()
    """What it does not let this process do."""
    untried: tuple[Capability, ...] = ()
    """Knobs that were not tried."""
    mig: MigFacts | None = None
    """None: MIG mode is off."""
    ability_count: int = 0
    """How many abilities there are, of which `lacks` and `untried` are some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFacts:
    """What the driver says."""

    problem: str = ""
    version: str = ""
    gpus: tuple[GpuFacts, ...] = ()
    silent: tuple[tuple[int, str], ...] = ()
    """GPUs that the driver lists and that do not answer, each with the reason."""
    why_untried: str = ""
    """Why knobs were not tried although that was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeFacts:
    """What nvidia-smi says of the GPUs' modes."""

    problem: str = ""
    by_uuid: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Compute mode and persistence mode, in nvidia-smi's words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsFacts:
    """MPS on one GPU."""

    pipe: Path
    lack: MpsLack | None = None
    """Why the GPU cannot be shared by it; None: it can."""
    is_running: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """The driver's files in /dev."""

    missing: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()
    """Those that this user may not read and write."""
    count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalledKnob:
    """A knob that the journal names."""

    gpu_uuid: str
    knob: str
    is_of_this_boot: bool
    """Else the restart of the machine has cleared it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFacts:
    """The state directory."""

    path: Path
    problem: str = ""
    """Why it cannot be written."""
    exists: bool = True
    is_closed: bool = False
    """This user may not read it: nothing below is known."""
    owner_uid: int = 0
    free_mib: float = 0.0
    is_held: bool = False
    """An agent runs with it."""
    turned: tuple[JournalledKnob, ...] = ()
    damaged: tuple[str, ...] = ()
    """Lines of the journal and files of records that cannot be read, in words."""
    running: tuple[str, ...] = ()
    """Replicas by id whose recorded process runs."""
    ended: tuple[str, ...] = ()
    """Replicas by id whose recorded process has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateFacts:
    """The node's allow-list of programs."""

    problem: str = ""
    programs: tuple[tuple[str, str, bool], ...] = ()
    """Template, its program, whether that is found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortFacts:
    """Ports for workers and for requests."""

    free: int
    first: int
    count: int
    router_port: int = 0
    is_router_port_free: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedMemoryFacts:
    """/dev/shm."""

    problem: str = ""
    free_mib: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlaneFacts:
    """What the control plane answered."""

    problem: str = ""
    """Why there was no answer."""
    ready_status: int = 0
    ready_words: str = ""
    """What it says it cannot reach."""
    skew_s: float | None = None
    """How far this machine's clock is ahead; None = its answer had no date."""
    sync_status: int = 0
    """The status of a report without content; 0 = none was sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemdFacts:
    """Who would start the agent again."""

    is_booted: bool
    unit: Path | None = None
    """The agent's unit file."""
    restores: bool = False
    """Whether the unit puts knobs back after any end."""
