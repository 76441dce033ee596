"""What the independent checker says to a fill: tasks that break a rule are left out, and replicas stay as planned."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeAlias

import structlog

from solvers.backfill.problem import FillProblem
from solvers.check import violations
from solvers.check_residents import task_violations
from solvers.types.outcome import Severity, Violation
from solvers.types.plan import BoundGpu, BoundPlan, anonymous
from solvers.types.problem import Problem
from solvers.types.state import GpuId

log = structlog.get_logger(__name__)

Severities: TypeAlias = tuple[Severity, ...]
"""A fill that breaks a rule of one of these severities is refused."""


def checker(
    offer: FillProblem, refused: Severities, left_out: dict[str, str]
) -> Callable[[BoundGpu], BoundGpu]:
    """Takes the tasks off a GPU on which they break a rule, and notes the rule under their names in `left_out`."""

    def checked(gpu: BoundGpu) -> BoundGpu:
        # GPU by GPU, so that one bad proposal does not cost the tasks of all others their places.
        broken = [
            entry
            for entry in task_violations(offer.problem, [gpu], offer.points)
            if entry.severity in refused
        ]
        if not broken:
            return gpu
        log.error(
            "tasks are left out: the checker refused them",
            where=broken[0].where,
            detail=broken[0].detail,
        )
        left_out.update(
            (task.name, f"{broken[0].rule} at {gpu.id}: {broken[0].detail}")
            for task in gpu.tasks
        )
        return replace(gpu, tasks=())

    return checked


def sound(
    filled: Mapping[GpuId, BoundGpu],
    bound: BoundPlan,
    problem: Problem,
    refused: Severities,
) -> Mapping[GpuId, BoundGpu]:
    """What was filled; without the GPUs whose replicas were retuned where the retuned plan breaks a rule."""
    changed = retuned(filled.values(), bound)
    # Only retuned replicas can break a rule here: tasks were checked GPU by GPU.
    if not changed:
        return filled

    # What the plan breaks without the fill is no reason against the fill.
    before = {_rule_at(entry) for entry in violations(problem, anonymous(bound))}
    after = replace(bound, gpus=tuple(filled.get(gpu.id, gpu) for gpu in bound.gpus))
    broken = [
        entry
        for entry in violations(problem, anonymous(after))
        if entry.severity in refused and _rule_at(entry) not in before
    ]
    if not broken:
        return filled
    log.error(
        "replicas stay as planned: the checker refused them",
        where=broken[0].where,
        detail=broken[0].detail,
    )
    return {key: gpu for key, gpu in filled.items() if key not in changed}


def _rule_at(entry: Violation) -> tuple[str, str]:
    """What is broken, and where."""
    return entry.rule, entry.where


def retuned(gpus: Iterable[BoundGpu], bound: BoundPlan) -> frozenset[GpuId]:
    """GPUs whose replicas are set otherwise than in the bound plan."""
    planned = {gpu.id: _settings(gpu) for gpu in bound.gpus}
    return frozenset(
        gpu.id for gpu in gpus if gpu.replicas and _settings(gpu) != planned.get(gpu.id)
    )


def _settings(gpu: BoundGpu) -> tuple[object, ...]:
    return gpu.clock_mhz, tuple(
        (each.service, each.sm_percent, each.batch) for each in gpu.replicas
    )
