"""Watts: a budget of the cluster and caps of nodes become power caps of GPUs, by what the next watt brings on each.

Without a governor a plan draws what it draws: every GPU gets that, and an equal part of what is left as head-room.
Where a governor holds power, a GPU may be given less than its plan would draw, and clocks follow the watts. Caps are
whole watts, so that the same plan gets the same caps although the figures that it was made from move a little.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from solvers.governors.registry import GOVERNORS
from solvers.laws.operating_rows import OperatingRows
from solvers.tick.water_filling import Taker, fill, throughput_curve
from solvers.types.plan import BoundGpu, BoundPlan, anonymous
from solvers.types.problem import OperatingPoint, Problem
from solvers.types.state import Node


def holds_power(governor: str | None) -> bool:
    """Whether a governor of that name keeps a GPU's cap by itself, whatever the plan draws."""
    return (
        governor is not None
        and governor in GOVERNORS
        and GOVERNORS[governor].holds_power
    )


def is_limited(problem: Problem, nodes: Sequence[Node]) -> bool:
    """Whether there is any limit on watts beyond those of the GPUs."""
    return problem.power_budget_w is not None or any(
        node.power_cap_w is not None for node in nodes
    )


def with_caps(
    problem: Problem, bound: BoundPlan, nodes: Sequence[Node]
) -> BoundPlan | None:
    """The plan with a power cap for every GPU, together within all limits; None where they leave too little for it.

    Where nothing is limited, the plan itself.
    """
    if not is_limited(problem, nodes):
        return bound
    takers = _takers(problem, bound)
    caps = {node.id: node.power_cap_w for node in nodes if node.power_cap_w is not None}
    budget_w = math.inf if problem.power_budget_w is None else problem.power_budget_w
    watts = fill(
        takers,
        budget_w=budget_w,
        node_caps_w={str(node): cap_w for node, cap_w in caps.items()},
    )
    if watts is None:
        return None
    min_w = {taker.id: taker.min_w for taker in takers}
    return replace(
        bound,
        gpus=tuple(
            replace(
                # Rounding down keeps the sum within the limit, but never below what the plan needs.
                gpu,
                power_cap_w=max(float(math.floor(watts[gpu.id])), min_w[gpu.id]),
            )
            for gpu in bound.gpus
        ),
    )


def too_little(problem: Problem, bound: BoundPlan, nodes: Sequence[Node]) -> str:
    """Why a plan has no caps, in words, with the remedy."""
    drawn_w = {taker.id: taker.min_w for taker in _takers(problem, bound)}
    remedy = (
        ""
        if holds_power(bound.governor)
        else ", or set the policy's governor to power_latency, which holds a share of it"
    )
    # The node that is too small is named: its owner can do something about it.
    for node in sorted(nodes, key=lambda node: node.id):
        on_node_w = sum(drawn_w[gpu.id] for gpu in bound.gpus if gpu.node == node.id)
        if node.power_cap_w is not None and on_node_w > node.power_cap_w:
            draw = f"the plan draws at least {on_node_w:.0f} W on node {node.id}; its power_cap_w is"
            return f"{draw} {node.power_cap_w:g}: raise it, cordon some of its GPUs{remedy}"
    draw = f"the plan draws at least {sum(drawn_w.values()):.0f} W; the policy's power_budget_w is"
    return f"{draw} {problem.power_budget_w or math.inf:g}: raise it, plan with policy joint, which fits it{remedy}"


def _takers(
    problem: Problem,
    bound: BoundPlan,
) -> list[Taker]:
    """What each GPU of the plan needs, and may be given."""
    rows = OperatingRows(problem)
    governed = holds_power(bound.governor)
    models_w = _drawn_by_models(problem, bound)
    return [
        _taker(problem, rows, gpu, governed=governed)
        if gpu.id not in models_w
        else _fixed(problem, gpu, models_w[gpu.id])
        for gpu in bound.gpus
    ]


def _drawn_by_models(
    problem: Problem,
    bound: BoundPlan,
) -> dict[str, float]:
    """Watts beyond the idle ones of every GPU that a language model has; those of no row draw nothing known."""
    drawn_w = {}
    for gpu in bound.gpus:
        for replica in gpu.replicas:
            if replica.llm is not None:
                alone = replace(bound, gpus=(gpu,))
                (alike,) = anonymous(alone).llm_replicas
                row = problem.llm_row(alike)
                watts = 0.0 if row is None else row.power_w_per_gpu
                drawn_w.update(dict.fromkeys(replica.llm.gpus, watts))
    return drawn_w


def _fixed(
    problem: Problem,
    gpu: BoundGpu,
    watts: float,
) -> Taker:
    # No governor turns the clock of a language model: its steps would all become longer.
    gpu_type = problem.gpu_type(gpu.gpu_type)
    min_w = gpu_type.idle_w + watts
    return Taker(
        id=gpu.id,
        node=gpu.node,
        min_w=min_w,
        max_w=max(min_w, gpu_type.power_cap_w),
    )


def _taker(
    problem: Problem, rows: OperatingRows, gpu: BoundGpu, *, governed: bool
) -> Taker:
    gpu_type = problem.gpu_type(gpu.gpu_type)
    planned = _rows_at(rows, gpu, gpu.clock_mhz)
    min_w = gpu_type.idle_w + sum(row.power_w for row in planned)
    if not governed:
        return Taker(
            id=gpu.id,
            node=gpu.node,
            min_w=min_w,
            max_w=max(min_w, gpu_type.power_cap_w),
        )
    # A governor may lower clocks, so the lowest clock's draw is what the GPU needs.
    points = list(_points(rows, gpu, gpu_type.clocks_mhz, idle_w=gpu_type.idle_w))
    min_w = min([min_w, gpu_type.power_cap_w, *(watts for watts, _ in points)])
    return Taker(
        id=gpu.id,
        node=gpu.node,
        min_w=min_w,
        max_w=gpu_type.power_cap_w,
        curve=throughput_curve(points),
    )


def _points(
    rows: OperatingRows, gpu: BoundGpu, clocks_mhz: Sequence[float], *, idle_w: float
) -> Iterator[tuple[float, float]]:
    """(watts, throughput) at every clock at which all its replicas have rows: the sum of their parts of their best."""
    by_clock = {clock: _rows_at(rows, gpu, clock) for clock in clocks_mhz}
    complete = {
        clock: at_clock
        for clock, at_clock in by_clock.items()
        if len(at_clock) == len(gpu.replicas)
    }
    # Relative to its best time each replica counts alike, whether its batches are short or long.
    best_ms = (
        [
            min(at_clock[place].solo_ms for at_clock in complete.values())
            for place in range(len(gpu.replicas))
        ]
        if complete
        else []
    )
    for at_clock in complete.values():
        throughput = sum(
            best / row.solo_ms for best, row in zip(best_ms, at_clock, strict=True)
        )
        yield idle_w + sum(row.power_w for row in at_clock), throughput


def _rows_at(
    rows: OperatingRows, gpu: BoundGpu, clock_mhz: float
) -> list[OperatingPoint]:
    at_clock = (
        rows.find(
            replica.network,
            gpu.gpu_type,
            (replica.sm_percent, replica.batch, clock_mhz),
        )
        for replica in gpu.replicas
    )
    return [row for row in at_clock if row is not None]
