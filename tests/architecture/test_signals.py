"""Signals belong to the process: no solver's library may catch them, or leave them otherwise than it found them."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
FOLDERS = ("solvers", "app", "agents", "bench", "tools")

EACH_SOLVER_THEN_CTRL_C = """
import os, signal
from solvers.autoscale.problem import AutoscaleProblem, ScalingOption, ServiceTarget, TypeTotals
from solvers.autoscale.solve import solve
from solvers.types.outcome import Budget

signal.signal(signal.SIGINT, signal.SIG_IGN)
problem = AutoscaleProblem(
    services=(ServiceTarget(name="chat", arrival_rate_rps=110.0),),
    options=(ScalingOption(service="chat", gpu_type="gpu", capacity_rps=20.0, cost_usd_per_hour=1.0),),
    totals=(TypeTotals(gpu_type="gpu"),),
)
for method in ("greedy", "cbc", "highs", "cp_sat"):
    solve(problem, Budget(seconds=20.0), method=method)
    os.kill(os.getpid(), signal.SIGINT)
    print(method)
"""


def makers(source: str) -> Iterator[ast.FunctionDef]:
    """The functions that make a CP-SAT solver."""
    # To parse all of the program takes long.
    if "CpSolver(" not in source:
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and "CpSolver(" in ast.unparse(node):
            yield node


def test_every_cp_sat_solver_leaves_signals_alone() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {function.name}": ast.unparse(function)
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for function in makers(path.read_text(encoding="utf-8"))
    }
    assert len(found) >= 2
    setting = "parameters.catch_sigint_signal = False"
    assert [name for name, text in found.items() if setting not in text] == []


@pytest.mark.integration
def test_ctrl_c_stays_ignored_after_each_solver() -> None:
    done = subprocess.run(
        [sys.executable, "-c", EACH_SOLVER_THEN_CTRL_C],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.stdout.split() == ["greedy", "cbc", "highs", "cp_sat"], done.stderr
    assert done.returncode == 0
