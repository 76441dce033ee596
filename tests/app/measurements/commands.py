"""`plimsoll profile run` as a process of its own, on a node with the fake driver and the fake MPS."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.agents.fakes.nvml.fake_gpus import STATE_VARIABLE, FakeGpus
from tests.agents.gpu_nodes import environment
from tests.app.runner import interruptible
from tests.waiting import PATIENCE_S

PROFILING = Path(__file__).parents[2] / "agents" / "profiling"
ROOT = PROFILING.parents[2]

TEMPLATES = """\
default = "own"

[templates.own]
command = ["{python}", "{bench}", "-m", "agents.serving", "--service", "{{service}}", "--port", "{{port}}",
           "--batch", "{{batch}}", "--log-level", "error"]
environment = {{ FAKE_DIRECTORY = "{signs}" }}
"""

PATIENT = f"""\
import sys

if {{"profile", "agents.profiling.cleanup_process"}} & {{*sys.orig_argv}}:
    from agents.gpu.mps.daemon import MpsSettings

    MpsSettings.__init__.__kwdefaults__.update(answer_s={PATIENCE_S}, start_s={PATIENCE_S})
"""
"""As `sitecustomize`: who asks MPS waits for it as long as tests do."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A directory for the files of a profile, and the environment that holds the fakes."""

    directory: Path
    environment: dict[str, str]

    @property
    def samples(self) -> Path:
        return self.directory / "samples.csv"

    @property
    def signs(self) -> Path:
        """Where files make benches misbehave, see fake_bench."""
        return self.directory / "signs"

    def start(self, *words: str) -> "subprocess.Popen[str]":
        """The command, with its files in the directory."""
        command = (
            sys.executable,
            "-c",
            "from app.cli.main import main; main()",
            "profile",
            "run",
            "--gpu-type",
            "V100-32GB",
        )
        places = (
            "--templates",
            str(self.directory / "templates.toml"),
            "-o",
            str(self.samples),
        )
        with interruptible():
            return subprocess.Popen(
                [*command, *places, "--window-s", "0.2", *words],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=self.environment,
                cwd=ROOT,
            )

    def run(self, *words: str) -> tuple[int, str, str]:
        """Exit code and what it said."""
        process = self.start(*words)
        out, err = process.communicate(timeout=PATIENCE_S)
        return process.returncode, out, err

    def left(self) -> list[str]:
        """Processes whose environment names this machine's directories: its benches, its MPS, its cleanup process."""
        return processes_with(f"PROFILE_TEST={self.directory}")


def processes_with(variable: str) -> list[str]:
    """Command lines of the other processes that have `NAME=VALUE` in their environment."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and path.name != str(os.getpid()):
            try:
                environment = (path / "environ").read_bytes().split(b"\0")
                command = (path / "cmdline").read_bytes().replace(b"\0", b" ")
            except OSError:
                continue  # It ended meanwhile.
            if variable.encode() in environment and command:
                found.append(command.decode())
    return found


def machine(directory: Path, library: Path, fake: FakeGpus) -> Machine:
    """One with the fake driver's GPUs."""
    signs, temporary = directory / "signs", directory / "t"
    signs.mkdir()
    temporary.mkdir()
    text = TEMPLATES.format(
        python=sys.executable, bench=PROFILING / "fake_bench.py", signs=signs
    )
    (directory / "templates.toml").write_text(text, encoding="utf-8")
    (directory / "sitecustomize.py").write_text(PATIENT, encoding="utf-8")
    own = {
        **environment(),
        "LD_LIBRARY_PATH": str(library),
        STATE_VARIABLE: str(fake.path),
        "PROFILE_TEST": str(directory),
        "PYTHONPATH": str(directory),
        # Where a profile's own directory goes; what is left of it is then seen.
        "TMPDIR": str(temporary),
    }
    return Machine(directory=directory, environment=own)
