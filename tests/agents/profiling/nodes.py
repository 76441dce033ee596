"""A node with a fake GPU and MPS, and benches of known times, to be profiled by the real profiler."""

import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from agents.gpu.nvml.types import GpuIdentity, GpuProcess, GpuSample
from agents.processes.templates import Template, Templates
from agents.profiling.cells import MeasurementCell
from agents.profiling.journal import Journal, Measurement
from agents.profiling.node import ProfileSettings, open_profile
from agents.profiling.profiler import ProfileReport
from agents.profiling.windows import Rules
from tests.agents.gpu_nodes import environment
from tests.waiting import run

HERE = Path(__file__).parent
GPU = GpuIdentity(
    index=0,
    uuid=f"GPU-{os.getpid()}p-profiled",
    name="V100-32GB",
    memory_mib=16384.0,
)
"""Of this process alone: MPS daemons of tests that run elsewhere are somebody else's."""
QUICK = Rules(window_s=0.05, warm_up=2, min_batches=2, max_windows=1000, pause_s=0.0)
Result = TypeVar("Result")


@dataclass
class FakeGpu:
    """What NVML would say: 100 W, no one else; a test sets what it needs."""

    power_w: float = 100.0
    memory_used_mib: float = 0.0
    clock_mhz: float = 1380.0
    reasons: tuple[str, ...] = ()
    foreign: tuple[int, ...] = ()
    samples: int = 0
    locked: list[float | None] = field(default_factory=list)

    def gpus(self) -> tuple[GpuIdentity, ...]:
        return (GPU,)

    def driver_version(self) -> str:
        return "580.65.06"

    def sample(self, gpu: GpuIdentity) -> GpuSample:
        self.samples += 1
        return GpuSample(
            memory_used_mib=self.memory_used_mib,
            power_w=self.power_w,
            energy_j=None,
            clock_mhz=self.clock_mhz,
            busy_percent=50.0,
            event_reasons=self.reasons,
        )

    def processes(self, gpu: GpuIdentity) -> tuple[GpuProcess, ...]:
        return tuple(
            GpuProcess(pid=pid, memory_mib=None, is_mps=False) for pid in self.foreign
        )

    def power_limit_w(self, gpu: GpuIdentity) -> float:
        return 300.0

    def limit_power_w(self, gpu: GpuIdentity, limit_w: float | None) -> None:
        raise AssertionError("a profile never limits power")

    def lock_clock_mhz(
        self, gpu: GpuIdentity, *, low_mhz: float, high_mhz: float
    ) -> None:
        self.locked.append(high_mhz)
        self.clock_mhz = high_mhz

    def unlock_clock(self, gpu: GpuIdentity) -> None:
        self.locked.append(None)
        self.clock_mhz = 1380.0


@dataclass
class Heard:
    """A listener that remembers."""

    cells: int = 0
    done: int = 0
    measurements: list[Measurement] = field(default_factory=list)
    failures: list[tuple[MeasurementCell, str]] = field(default_factory=list)
    then: Callable[[], None] = lambda: None
    """Done after each measurement."""

    def begun(self, *, cells: int, done: int) -> None:
        self.cells, self.done = cells, done

    def measured(self, measurement: Measurement) -> None:
        self.measurements.append(measurement)
        self.then()

    def failed(self, cell: MeasurementCell, why: str) -> None:
        self.failures.append((cell, why))


def templates(directory: Path) -> Templates:
    """The fake bench, written as an operator writes a worker."""
    directory.mkdir(exist_ok=True)
    template = Template(
        name="own",
        command=(
            sys.executable,
            str(HERE / "fake_bench.py"),
            "-m",
            "agents.serving",
            *OPTIONS.split(),
        ),
        environment={"FAKE_DIRECTORY": str(directory)},
        start_limit_s=60.0,
    )
    return Templates(by_name={"own": template}, default="own")


OPTIONS = "--service {service} --port {port} --batch {batch} --log-level error"


@dataclass(kw_only=True)
class Node:
    """One fake node of a test."""

    directory: Path
    gpu: FakeGpu = field(default_factory=FakeGpu)
    rules: Rules = QUICK
    budget_s: float = float("inf")
    knobs_dir: Path | None = None
    has_mps: bool = True

    @property
    def signs(self) -> Path:
        """Where files make benches misbehave."""
        return self.directory / "signs"

    def sign(self, name: str) -> None:
        """Put such a file there."""
        self.signs.mkdir()
        (self.signs / name).touch()

    async def profile(
        self, cells: Sequence[MeasurementCell], heard: Heard, *, resumes: bool = False
    ) -> ProfileReport:
        """One run, with its journal in the directory."""
        settings = ProfileSettings(
            cells=tuple(cells),
            gpu_type="V100-32GB",
            templates=templates(self.signs),
            rules=self.rules,
            seed=1,
            budget_s=self.budget_s,
            knobs_dir=self.knobs_dir,
            environment=environment()
            if self.has_mps
            else {**environment(), "PATH": str(Path(sys.executable).parent)},
        )
        async with open_profile(settings, self.gpu, knobs=self.gpu) as opened:
            journal = Journal(
                self.directory / "journal", opened.header(), resumes=resumes
            )
            try:
                return await opened.profiler(journal, heard).run(settings.cells)
            finally:
                journal.close()


def play(scenario: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """Run it."""
    return run(scenario())
