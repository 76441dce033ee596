"""After the warm-up no plan waits for a compiler."""

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import replace

import solvers.joint.kernels
from solvers.outcome import Budget
from solvers.policies import policy
from solvers.policies.warm_up import tiny_problem, uneven_problem, warm_up
from solvers.problem import Problem
from solvers.state import Observed
from tests.solvers.policies.instances import random_problem


def signatures() -> set[tuple[str, str]]:
    """Of every kernel, the types that it was compiled for."""
    return {
        (f"{module}.{name}", str(types))
        for module, name, kernel in kernels()
        for types in getattr(kernel, "signatures", ())
    }


def kernels() -> Iterator[tuple[str, str, object]]:
    for found in pkgutil.iter_modules(solvers.joint.kernels.__path__):
        module = importlib.import_module(f"{solvers.joint.kernels.__name__}.{found.name}")
        for name, value in vars(module).items():
            if hasattr(value, "py_func") and value.py_func.__module__ == module.__name__:
                yield found.name, name, value


def in_whole_numbers(problem: Problem) -> Problem:
    """Equal but for the types of numbers."""
    types = (
        replace(one, memory_mib=int(one.memory_mib), clocks_mhz=tuple(int(mhz) for mhz in one.clocks_mhz), idle_w=20)
        for one in problem.gpu_types
    )
    return replace(problem, gpu_types=tuple(types), energy_price_usd_per_kwh=0)


def test_no_kernel_is_compiled_after_it() -> None:
    warm_up()
    before = signatures()
    assert any(name.startswith("cover.") for name, _ in before), "the search for the last GPUs is part of it"
    for problem in (random_problem(1), random_problem(2), in_whole_numbers(uneven_problem())):
        policy("joint").make_plan(problem, Observed(at_s=0.0), None, Budget(work=0.1))
    assert signatures() == before


def test_its_problems_can_be_served() -> None:
    for problem in (tiny_problem(), uneven_problem()):
        plan, _, _ = policy("joint").make_plan(problem, Observed(at_s=0.0), None, Budget(work=0.1))
        assert plan.unserved == ()
