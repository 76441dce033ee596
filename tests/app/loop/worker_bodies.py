"""What a solver worker's child may do in tests; importable by name, because the child is a new process."""

import os
from collections.abc import Callable
from pathlib import Path

from app.solver.process import PlanAnswer, PlanRequest
from solvers.types.outcome import PlanReport
from solvers.types.plan import Plan


def nothing(policy: str, on_compile: Callable[[], None]) -> None:
    """No preparation."""


def die_at_once(policy: str, on_compile: Callable[[], None]) -> None:
    """A preparation that ends the process, as a broken native library would."""
    os._exit(3)


def compile_three(policy: str, on_compile: Callable[[], None]) -> None:
    """A preparation that compiles kernels."""
    for _ in range(3):
        on_compile()


def spin_at_once(policy: str, on_compile: Callable[[], None]) -> None:
    """A preparation that never ends."""
    while True:
        pass


def obey(request: PlanRequest) -> PlanAnswer:
    """Do what the request's policy name says."""
    match request.policy:
        case "spin":
            Path(str(request.memory)).touch()
            while True:
                pass
        case "die":
            os._exit(1)
        case "raise":
            raise ValueError("no such luck")
    report = PlanReport(
        status="greedy", cost_usd_per_hour=0.0, method=f"pid {os.getpid()}"
    )
    return PlanAnswer(
        plan=Plan(policy=request.policy), report=report, memory=request.memory
    )
