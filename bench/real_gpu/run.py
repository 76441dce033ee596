"""What every step gets: options, GPU, the time that is left; and an MPS daemon for steps without the profiler."""

import contextlib
import os
import secrets
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agents.base.device import NotSupported, UnknownPart
from agents.gpu.mps.daemon import Mps
from agents.gpu.nvml.types import GpuIdentity
from agents.processes.procfs import MARK
from agents.profiling.cleanup_process import Duties, daemon_mark, keeping
from bench.real_gpu.reading import ReadNvml

ROOT = Path(__file__).resolve().parents[2]
FAKE_TYPE = "fake-"
"""Before the GPU type of rows that no GPU gave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """The processes that are started, as the first words of their commands."""

    client: tuple[str, ...] = (sys.executable, "-m", "bench.real_gpu.client")
    bench: tuple[str, ...] = (sys.executable, "-m", "bench.real_gpu.bench")
    worker: tuple[str, ...] = (sys.executable, "-m", "agents.serving")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is measured, and how long."""

    out: Path
    budget_s: float
    gpu: int = 0
    gpu_type: str = ""
    """Empty: after the driver's name of the GPU."""
    is_fake: bool = False
    networks: tuple[str, ...]
    shares: tuple[float, ...]
    """In percent, ascending."""
    batches: tuple[int, ...]
    window_s: float
    command: str
    """As it was called, for SOURCE.md."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One call of the command."""

    options: Options
    nvml: ReadNvml
    gpu: GpuIdentity
    say: Callable[[str], None] = print
    programs: Programs = field(default_factory=Programs)
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    begun_s: float = field(default_factory=time.monotonic)

    @property
    def gpu_type(self) -> str:
        """As it stands in the rows."""
        name = self.options.gpu_type or _plain(self.gpu.name)
        return f"{FAKE_TYPE}{name}" if self.options.is_fake else name

    @property
    def left_s(self) -> float:
        """Of the budget."""
        return max(0.0, self.begun_s + self.options.budget_s - time.monotonic())

    @property
    def mode(self) -> tuple[str, ...]:
        """The word that a bench of the fake gets."""
        return ("--fake",) if self.options.is_fake else ()

    def path(self, name: str) -> Path:
        """A file of the measured set."""
        return self.options.out / name


def open_run(
    options: Options,
    nvml: ReadNvml,
    *,
    programs: Programs | None = None,
    say: Callable[[str], None] = print,
) -> Run:
    """A run on one of the GPUs. Raises UnknownPart."""
    gpus = {gpu.index: gpu for gpu in nvml.gpus()}
    if options.gpu not in gpus:
        raise UnknownPart(
            f"no GPU {options.gpu}; this machine has {sorted(gpus) or 'none'}"
        )
    return Run(
        options=options,
        nvml=nvml,
        gpu=gpus[options.gpu],
        programs=programs or Programs(),
        say=say,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """An MPS daemon of this run."""

    mps: Mps
    directory: Path
    """Goes with it."""
    mark: str
    """In the environment of a process that shall end with it, as `agents.processes.procfs.MARK`."""


@contextlib.asynccontextmanager
async def under_mps(run: Run) -> AsyncIterator[Session]:
    """An MPS daemon with its server up; it and what carries its mark are gone afterwards, however this ends.

    Raises NotSupported where there is no MPS.
    """
    mark = secrets.token_hex(8)
    directory = Path(tempfile.mkdtemp(prefix="plimsoll-"))
    duties = Duties(
        mark=mark,
        directory=str(directory),
        gpu_uuid=run.gpu.uuid,
        mps_dir=str(directory / "m"),
    )
    mps = Mps(
        run.gpu.uuid,
        directory / "m",
        environment={**run.environment, MARK: daemon_mark(mark)},
    )
    async with keeping(duties, run.environment):
        if why := await mps.why_not():
            raise NotSupported(f"this step needs MPS, which cannot be used here: {why}")
        await mps.start()
        await mps.start_server()
        yield Session(mps=mps, directory=directory, mark=f"{mark}.client")


async def why_no_mps(run: Run) -> str:
    """Why MPS cannot be used here; empty = it can."""
    with tempfile.TemporaryDirectory(prefix="plimsoll-") as directory:
        return await Mps(
            run.gpu.uuid, Path(directory) / "m", environment=run.environment
        ).why_not()


def python_path(run: Run) -> str:
    """PYTHONPATH of what is started elsewhere: this repository, and what the caller had (packages carried along)."""
    return os.pathsep.join(
        filter(None, (str(ROOT), run.environment.get("PYTHONPATH", "")))
    )


def _plain(name: str) -> str:
    """`NVIDIA H200` as H200, `Tesla V100-SXM2-32GB` as V100-SXM2-32GB."""
    return "-".join(
        word for word in name.split() if word not in ("NVIDIA", "Tesla", "GeForce")
    )
