"""Counts: how many replicas of each service run on each GPU type, by HetSev's integer program.

Source: HetSev (Electronics 2023, 12, 240), section 4.1; `solvers.autoscale` has the program.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from solvers.autoscale.problem import AutoscaleProblem, ScalingOption
from solvers.autoscale.solve import solve as solve_autoscale
from solvers.greedy.arrange import Key, replica_counts, running_carriers
from solvers.greedy.autoscale_inputs import (
    Taken,
    cut,
    option,
    positive_counts,
    service_target,
    type_totals,
)
from solvers.greedy.configure import Configuration, configure
from solvers.papers.hetsev.parameters import HetsevParameters
from solvers.types.outcome import Budget, SolveReport
from solvers.types.plan import UnservedReason
from solvers.types.problem import Problem

Configurations = Mapping[Key, Configuration]
"""The configuration that counts on each (service, GPU type)."""


def configurations_of(
    problem: Problem,
    *,
    keep_running: bool,
    sharers: int = 1,
) -> Configurations:
    """How each service would run on each GPU type, one of `sharers` of a GPU (`configure`)."""
    return {
        (one.service, one.gpu_type): one
        for one in configure(problem, keep_running=keep_running, sharers=sharers)
    }


def decide_counts(
    problem: Problem,
    configurations: Configurations,
    budget: Budget,
    *,
    launch_s: Mapping[str, float],
    lost: Mapping[Key, int] = MappingProxyType({}),
    running: Mapping[Key, int] = MappingProxyType({}),
) -> tuple[dict[Key, int], dict[str, UnservedReason], SolveReport]:
    """Replicas per (service, GPU type), why services fall short, and how it was found.

    `lost` counts the replicas per key that earlier counts could not place: that many fewer GPUs of the type count.
    `launch_s`: by GPU type, L of section 4.1.
    """
    parameters = budget.parameters_as(HetsevParameters)
    options = _options(configurations, running, launch_s)
    program = _program(
        problem, configurations, lost, options, parameters.launch_weight_per_s
    )
    solution, report = solve_autoscale(program, budget, method=budget.solver)
    reasons = {entry.service: entry.reason for entry in solution.unserved}
    return cut(problem, positive_counts(solution), reasons), reasons, report


def _options(
    configurations: Configurations,
    running: Mapping[Key, int],
    launch_s: Mapping[str, float],
) -> tuple[ScalingOption, ...]:
    return tuple(
        option(one, running.get(key, 0), launch_s)
        for key, one in sorted(configurations.items())
    )


def _program(
    problem: Problem,
    configurations: Configurations,
    lost: Mapping[Key, int],
    options: tuple[ScalingOption, ...],
    launch_weight_per_s: float,
) -> AutoscaleProblem:
    taken = (
        Taken(gpu_type=key[1], row=configurations[key].row, replicas=times)
        for key, times in sorted(lost.items())
    )
    # Section 4.1 solves its program for one service at a time. They share the totals of constraint 2, so that the
    # first would take what a more important one needs: here one program has all of them.
    return AutoscaleProblem(
        services=tuple(map(service_target, problem.services)),
        options=options,
        totals=type_totals(problem, taken),
        launch_weight_per_s=launch_weight_per_s,
    )


def export(problem: Problem, path: Path, budget: Budget) -> None:
    """Write the integer program of the counts, which follow from what runs, as .lp or .mps.

    Raises InvalidInput for another suffix.
    """
    # Imported here, so that no plan waits for PuLP to load.
    from solvers.autoscale.exact_pulp import export as export_autoscale

    running = running_carriers(problem)
    configurations = configurations_of(problem, keep_running=bool(running))
    weight = budget.parameters_as(HetsevParameters).launch_weight_per_s
    # A file says nothing of launches: all take as long.
    options = _options(configurations, replica_counts(running), {})
    program = _program(problem, configurations, {}, options, weight)
    export_autoscale(program, path, budget=budget)
