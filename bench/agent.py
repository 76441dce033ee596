"""What an agent costs its node: memory and processor time at one observation per second, 8 GPUs with 8 replicas each.

    python -m bench.agent

The agent runs as a process with the real NVML binding on a fake driver; replicas are tiny servers that answer as
ours do. With `mps` the control program is a fake in Python, so that its own time says little of the real one's.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from agents.base.protocol import GpuCommand, NodeCommand, Route
from bench.report import Figures, print_table, write_results
from tests.agents.factories import a_replica
from tests.agents.fakes.nvml.fake_gpus import FakeGpus, build_library
from tests.agents.gpu_nodes import FAKES, environment
from tests.integration.test_gpu_agent import (
    GPU_TYPE,
    ControlPlane,
    Machine,
    machine,
    until,
)

GPUS, REPLICAS = 8, 8
SETTLE_S, MEASURED_S = 5.0, 30.0
SMS = 12
"""Of 132 at 10 %, in steps of 2: what the fake servers report."""


def a_full_node() -> NodeCommand:
    """Every GPU with replicas of 10 % of its SMs."""
    gpus = tuple(
        GpuCommand(
            index=index,
            gpu_type=GPU_TYPE,
            clock_mhz=1200.0,
            power_cap_w=400.0,
            replicas=tuple(
                a_replica(f"r{index}-{at}", service=f"s{at}", sm_percent=10.0)
                for at in range(REPLICAS)
            ),
        )
        for index in range(GPUS)
    )
    routes = tuple(
        Route(service=f"s{at}", slo_ms=500.0, percentile=0.99, arrival_rate_rps=10.0)
        for at in range(REPLICAS)
    )
    return NodeCommand(node="n1", generation=1, gpus=gpus, routes=routes)


async def measure(sharing: str) -> Figures:
    """One run."""
    with tempfile.TemporaryDirectory(prefix="agent") as name:
        directory = Path(name)
        library = build_library(directory / "library")
        async with machine(directory, library) as (node, plane):
            node.gpus = FakeGpus(directory / "gpus", count=GPUS)
            node.gpus.state.now_ns = 0
            words = [
                sys.executable,
                "-I",
                "-S",
                str(FAKES / "http_worker.py"),
                "--port",
                "{port}",
                "--sm-count",
                SMS,
            ]
            quoted = ", ".join(f'"{word}"' for word in words)
            (directory / "templates.toml").write_text(
                f'default = "own"\n[templates.own]\ncommand = [{quoted}]\n'
            )
            plane.command = a_full_node()
            _start(node, sharing)
            return await _measured(node, plane, sharing)


def _start(node: Machine, sharing: str) -> None:
    arguments = [
        "--url",
        node.url,
        "--token-file",
        str(node.token_file),
        "--node",
        "n1",
        "--device",
        "gpu",
        "--gpu-type",
        GPU_TYPE,
        "--sharing",
        sharing,
        *node.options,
    ]
    paths = [
        "--state-dir",
        str(node.state),
        "--templates",
        str(node.directory / "templates.toml"),
    ]
    root = str(Path(__file__).parents[1])
    own = {"PATH": environment()["PATH"], "PYTHONPATH": root}
    with (node.directory / "agent.log").open("a") as log:
        node.process = subprocess.Popen(
            [sys.executable, "-m", "agents.main", *arguments, *paths],
            env={**os.environ, **node.gpus.environment(node.library), **own},
            stderr=log,
            text=True,
        )


async def _measured(node: Machine, plane: ControlPlane, sharing: str) -> Figures:
    await until(lambda: plane.has_applied(1), "the command is not applied")
    await asyncio.sleep(SETTLE_S)
    assert node.process is not None
    process = psutil.Process(node.process.pid)
    before, begun_s = process.cpu_times(), time.perf_counter()
    await asyncio.sleep(MEASURED_S)
    after, seconds = process.cpu_times(), time.perf_counter() - begun_s
    own_s = after.user + after.system - before.user - before.system
    programs_s = (
        after.children_user
        + after.children_system
        - before.children_user
        - before.children_system
    )
    return {
        "sharing": sharing,
        "replicas": len(plane.told[-1].replicas),
        "memory_mib": process.memory_info().rss / 2**20,
        "core_percent": 100.0 * own_s / seconds,
        "control_programs_percent": 100.0 * programs_s / seconds,
    }


def main() -> None:
    """Print the table, write the JSON."""
    rows = [asyncio.run(measure(sharing)) for sharing in ("turns", "mps")]
    print_table(rows)
    write_results("agent", rows, settings={"gpus": GPUS, "replicas_per_gpu": REPLICAS})


if __name__ == "__main__":
    main()
