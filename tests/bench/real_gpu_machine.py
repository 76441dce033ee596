"""A machine for the measuring scripts: fake driver, fake MPS, fake networks, and the command as a process."""

import csv
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from bench.real_gpu.probe import TABLE_COLUMNS, TABLE_FILE, TABLE_SHARES
from bench.real_gpu.tables import Table
from bench.report import Figures
from tests.agents.fakes.nvml.fake_gpus import KILL_BEFORE, STATE_VARIABLE, FakeGpus
from tests.agents.gpu_nodes import environment
from tests.app.measurements.commands import processes_with
from tests.waiting import PATIENCE_S

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
WRITERS = (
    "nvmlDeviceSetPowerManagementLimit",
    "nvmlDeviceSetGpuLockedClocks",
    "nvmlDeviceResetGpuLockedClocks",
)
QUICK = (
    "--fake",
    "--window-s",
    "0.2",
    "--networks",
    "resnet50",
    "--shares",
    "50,100",
    "--batches",
    "1",
)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """How a call ended."""

    code: int
    out: str
    err: str


@dataclass(kw_only=True)
class Machine:
    """One H100 at half load: 400 W, 1980 MHz. A caller of a writer of its driver is killed."""

    directory: Path
    library: Path
    gpus: FakeGpus = field(init=False)
    words: dict[str, str] = field(default_factory=dict)
    """Added to the environment."""
    has_mps: bool = True

    def __post_init__(self) -> None:
        self.gpus = FakeGpus(self.directory / "gpus")
        self.gpus.state.now_ns = 0  # The real clock.
        self.gpus.gpu(0).load_percent = 50
        # Of this machine alone: MPS of a test next to this one must not be taken for somebody else's on the GPU.
        self.gpus.gpu(0).uuid = f"GPU-{uuid4()}".encode()
        for name in WRITERS:
            self.gpus.fail(name, KILL_BEFORE)
        (self.directory / "t").mkdir()

    @property
    def set(self) -> Path:
        """The measured set."""
        return self.directory / "set"

    def rows(self, name: str) -> list[dict[str, str]]:
        """Of one of its files."""
        with (self.set / name).open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def knows_sms(self) -> None:
        """The table of SMs by share is there already, so that it need not be measured."""
        self.set.mkdir(exist_ok=True)
        for share in TABLE_SHARES:
            row: Figures = {"gpu_type": "seeded", "sm_percent": share}
            row = {**dict.fromkeys(TABLE_COLUMNS), **row}
            Table(self.set / TABLE_FILE, TABLE_COLUMNS).add(row)

    def start(self, *words: str) -> "subprocess.Popen[str]":
        """The command, which goes on; `words` have the last word over what is quick."""
        programs = environment()
        path = (
            programs["PATH"]
            if self.has_mps
            else os.pathsep.join((str(Path(sys.executable).parent), "/usr/bin"))
        )
        own = {
            "LD_LIBRARY_PATH": str(self.library),
            STATE_VARIABLE: str(self.gpus.path),
            "TMPDIR": str(self.directory / "t"),
            "PATH": f"{HERE / 'fakes'}:{path}",
            "NVIDIA_SMI_SAYS": "0, 320.00, 1980, [N/A]",
        }
        return subprocess.Popen(
            [
                sys.executable,
                str(HERE / "real_gpu_programs.py"),
                "run",
                words[0],
                *QUICK,
                "--out",
                str(self.set),
                *words[1:],
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**programs, **own, **self.words},
            cwd=ROOT,
        )

    def run(self, *words: str) -> Answer:
        """The command, to its end."""
        process = self.start(*words)
        try:
            # Measuring everything takes two minutes of windows alone.
            out, err = process.communicate(timeout=10.0 * PATIENCE_S)
        finally:
            process.kill()
        return Answer(code=process.returncode, out=out, err=err)

    def left(self) -> list[str]:
        """Processes of this machine that still run, by their place for temporary files."""
        return processes_with(f"TMPDIR={self.directory / 't'}")
