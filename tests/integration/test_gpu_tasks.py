"""A task through the whole path: `plimsoll serve`, and an agent with fake GPUs that starts real processes."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.base.token_file import write_token
from tests.agents.fakes.nvml.fake_gpus import FakeGpus
from tests.agents.fakes.nvml.fixtures import library
from tests.agents.gpu_nodes import FAKES, OWN_USER, environment
from tests.integration.fault_harness import rows
from tests.integration.test_task_agents import (
    Plane,
    has_done_something,
    plane,
    submit,
)
from tests.ports import a_free_port, own_environment
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.integration

__all__ = ("library", "plane")

ROOT = Path(__file__).parents[2]
TEMPLATES = """
default = "own"
[tasks]
"offline" = "batch"
[templates.own]
command = ["{python}", "{fakes}/mps_worker.py", "--engine", "timed", "--times-ms", "1:2,64:2",
           "--service", "{{service}}", "--port", "{{port}}", "--batch", "{{batch}}", "--drain-s", "5"]
environment = {{ PYTHONPATH = "{root}" }}
[templates.batch]
server = "task"
command = ["{python}", "{fakes}/mps_trainer.py", "--task", "{{task}}", "--kind", "{{kind}}", "--network", "{{network}}",
           "--batch", "{{batch}}", "--iterations", "{{iterations}}", "--port", "{{port}}", "--times-ms", "1:20",
           "--checkpoint", "{{directory}}/kept", "--checkpoint-s", "0.2"]
progress_file = "{{directory}}/kept"
environment = {{ PYTHONPATH = "{root}" }}
"""


@contextmanager
def gpu_agent(plane: Plane, folder: Path, library: Path) -> Iterator[None]:
    """Node n1 with a fake GPU that counts as a T4."""
    gpus = FakeGpus(folder / "gpus", count=1)
    templates = folder / "templates.toml"
    templates.write_text(
        TEMPLATES.format(python=sys.executable, fakes=FAKES, root=ROOT)
    )
    write_token(folder / "agent.token", plane.secrets["agent"])
    words = f"--url http://127.0.0.1:{plane.port} --node n1 --device gpu --gpu-type T4 --period-s 0.5"
    words += f" --worker-user {OWN_USER} --router-port {a_free_port()}"
    paths = [
        "--token-file",
        str(folder / "agent.token"),
        "--state-dir",
        str(folder / "s"),
    ]
    paths += ["--templates", str(templates)]
    process = subprocess.Popen(
        [sys.executable, "-m", "agents.main", *words.split(), *paths],
        env={
            **own_environment(),
            **environment(),
            **gpus.environment(library),
            "PATH": environment()["PATH"],
        }
        | {"PYTHONPATH": str(ROOT)},
        cwd=os.fspath(ROOT),
    )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)


@pytest.mark.thorough
def test_a_task_that_was_submitted_runs_on_the_gpu_shows_progress_and_finishes(
    plane: Plane, tmp_path: Path, library: Path
) -> None:
    with gpu_agent(plane, tmp_path, library):
        submit(plane, "nightly", 400)
        until(lambda: has_done_something(plane, "nightly"))
        # Its progress may be known a moment before the agent's next report says that it runs.
        until(lambda: plane.status("nightly")["state"] in ("running", "finished"))
        until(lambda: plane.status("nightly")["state"] == "finished")
        done = plane.status("nightly")
        assert (done["done_iterations"], done["starts"]) == (400.0, 1)
        # A fake's iteration takes 20 ms, and on a busy machine more.
        measured = (
            "SELECT count(*) FROM task WHERE name = 'nightly' AND iteration_ms >= 20.0"
        )
        assert rows(plane.url, measured) == [(1,)]
