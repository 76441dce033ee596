"""After the warm-up no plan waits for a compiler."""

import importlib
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import solvers.joint.kernels
from solvers.explain.alternatives import Neighbourhood
from solvers.explain.neighbours import NeighbourReader
from solvers.explain.solve_relaxed import solved_reliefs
from solvers.joint.relaxation.dual_prices import relax as relax_prices
from solvers.policies.registry import policies, policy
from solvers.policies.warm_up import tiny_problem, uneven_problem, warm_up
from solvers.types.outcome import Budget, Stability
from solvers.types.plan import Plan
from solvers.types.problem import Problem
from solvers.types.state import Json, Observed
from tests.solvers.instances import (
    a_problem,
    a_row,
    a_service,
    a_type,
    random_problem,
    with_rates,
)
from tests.solvers.problems import tiny_problem as limited_problem

NOT_PLANNED_WITH = ("slices",)
"""GPUs that are cut into slices: the contract has no place for them, so that no policy gets there."""


def signatures() -> set[tuple[str, str]]:
    """Of every kernel that policies may call, the types that it was compiled for."""
    return {
        (f"{module}.{name}", str(types))
        for module, name, kernel in kernels()
        for types in getattr(kernel, "signatures", ())
        if module not in NOT_PLANNED_WITH
    }


def kernels() -> Iterator[tuple[str, str, object]]:
    for found in pkgutil.iter_modules(solvers.joint.kernels.__path__):
        module = importlib.import_module(
            f"{solvers.joint.kernels.__name__}.{found.name}"
        )
        for name, value in vars(module).items():
            if (
                hasattr(value, "py_func")
                and value.py_func.__module__ == module.__name__
            ):
                yield found.name, name, value


def in_whole_numbers(problem: Problem) -> Problem:
    """Equal but for the types of numbers."""
    types = (
        replace(
            one,
            memory_mib=int(one.memory_mib),
            clocks_mhz=tuple(int(mhz) for mhz in one.clocks_mhz),
            idle_w=20,
        )
        for one in problem.gpu_types
    )
    return replace(problem, gpu_types=tuple(types), energy_price_usd_per_kwh=0)


def many_gpus() -> Problem:
    """A problem with enough GPUs that some are eliminated from plans."""
    problem = random_problem(3, gpus=400)
    rates = (
        replace(one, arrival_rate_rps=10.0 * one.arrival_rate_rps)
        for one in problem.services
    )
    return replace(problem, services=tuple(rates))


def many_parts() -> Problem:
    """Services that each need a part of a GPU, which are packed."""
    services = (a_service(f"s{number}", rate_rps=3.0 + number) for number in range(20))
    return a_problem(
        *services,
        types=(a_type(),),
        rows=(a_row(25.0, 20.0), a_row(50.0, 10.0), a_row(100.0, 5.0)),
    )


def plan_all_kinds() -> None:
    """Plans of every kind, from nothing and from what runs, and what explains them."""
    for problem in (
        *(
            random_problem(1),
            random_problem(2),
            in_whole_numbers(uneven_problem()),
            many_gpus(),
            many_parts(),
        ),
        *(limited_problem(seed) for seed in range(4)),
        replace(random_problem(4), objective="max_goodput"),
    ):
        plan, _, _ = policy("joint").make_plan(
            problem, Observed(at_s=0.0), None, Budget(work=0.2)
        )
        follow(problem, plan)
        relaxed = relax_prices(problem, start=plan)
        if relaxed is not None and plan.gpus:
            Neighbourhood(problem, plan, relaxed.prices()).alternatives(plan.gpus[0], 3)
            solved_reliefs(NeighbourReader(problem), plan, relaxed.prices(), relaxed)


def follow(problem: Problem, plan: Plan) -> None:
    """Plans from a plan, with warm state, after more and less is asked."""
    memory: Json = None
    for at, factor in enumerate((1.0, 1.1, 0.8)):
        now = replace(with_rates(problem, factor), current=plan)
        stability = Stability(start_price=0.1, min_dwell_s=0.0)
        budget = Budget(seconds=60.0, work=0.1, stability=stability)
        plan, _, memory = policy("joint").make_plan(
            now, Observed(at_s=60.0 * at), memory, budget
        )


def plan_by_every_policy() -> None:
    """What the others plan on what is common to them."""
    for name in policies():
        if name == "joint":
            continue
        plan, _, memory = policy(name).make_plan(
            random_problem(1), Observed(at_s=0.0), None, Budget(work=0.1)
        )
        now = replace(with_rates(random_problem(1), 1.1), current=plan)
        policy(name).make_plan(now, Observed(at_s=60.0), memory, Budget(work=0.1))


def check() -> None:
    """Runs in a process of its own: what other tests compile would hide what the warm-up leaves out."""
    warm_up()
    before = signatures()
    plan_all_kinds()
    plan_by_every_policy()
    assert signatures() == before, sorted(signatures() - before)


def in_a_process_of_its_own(
    statement: str, **more: str
) -> "subprocess.CompletedProcess[str]":
    module = f"import sys; from {__name__} import *; "
    return subprocess.run(
        [sys.executable, "-c", module + statement],
        cwd=Path(solvers.__file__).parents[1] if solvers.__file__ else None,
        env={**os.environ, **more},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.thorough
def test_no_kernel_is_compiled_after_it() -> None:
    done = in_a_process_of_its_own("check()")
    assert done.returncode == 0, done.stderr


def test_it_tells_of_kernels_that_must_be_compiled_first(tmp_path: Path) -> None:
    # As after a fresh installation: nothing is compiled yet.
    done = in_a_process_of_its_own(
        "warm_up('joint', on_compile=lambda: sys.exit(7))",
        NUMBA_CACHE_DIR=str(tmp_path),
    )
    assert done.returncode == 7, done.stderr


def test_its_problems_can_be_served() -> None:
    for problem in (tiny_problem(), uneven_problem()):
        plan, _, _ = policy("joint").make_plan(
            problem, Observed(at_s=0.0), None, Budget(work=0.1)
        )
        assert plan.unserved == ()
