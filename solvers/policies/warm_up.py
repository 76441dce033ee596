"""Warm-up: load every solver and compile every formulation once, so that the first real tick is as fast as the next."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import cache

import numpy as np
from numba.core import event

from solvers.joint import policy as joint
from solvers.joint.heuristics.annealing import Annealer, advance
from solvers.joint.heuristics.diving import DiveContext, complete_greedily
from solvers.joint.heuristics.gpu_elimination import eliminate_gpus
from solvers.joint.patterns.deadline import never
from solvers.joint.relaxation.column_generation import generate
from solvers.joint.replan.warm_start import WarmStart
from solvers.laws.capacity_law import make_capacity_law
from solvers.llm.calendar import Replica
from solvers.llm.capacity import rough_capacity_rps
from solvers.llm.kv_cache import EngineLimits
from solvers.llm.lengths import MeanLengths, length_table
from solvers.llm.planner.fleet import plan_llms
from solvers.llm.step_law import StepTable
from solvers.policies.registry import policies, policy
from solvers.types.llm import LlmDemand, LlmPoints, LlmRow, TokenSlo
from solvers.types.outcome import Budget
from solvers.types.problem import (
    OperatingPoint,
    OperatingPoints,
    Problem,
    ServiceDemand,
)
from solvers.types.state import GpuType, Observed

BUDGET = Budget(seconds=60.0, work=0.1)
"""Little work does: what takes long is to load and to compile."""
_MORE = 1.4
"""Times as much is asked of running plans, so that they must be changed."""


def warm_up(*names: str, on_compile: Callable[[], None] | None = None) -> None:
    """Get these policies ready, each once per process; all of them where none is named. Raises UnknownPolicy.

    `on_compile` is called before each kernel that must be compiled since no earlier process has left it.
    What explains plans is ready with policy `joint`: it solves the same relaxations.
    """
    listening = (
        event.install_listener("numba:compile", _CompileListener(on_compile))
        if on_compile
        else nullcontext()
    )
    with listening:
        for name in names or policies():
            _warm_up(name)


class _CompileListener(event.Listener):  # type: ignore[misc]  # numba has no types
    """Hears of kernels that are compiled; those that are loaded from disk make no such event."""

    def __init__(self, on_compile: Callable[[], None]) -> None:
        self._on_compile = on_compile

    def on_start(self, _: event.Event) -> None:
        self._on_compile()

    def on_end(self, _: event.Event) -> None:
        pass


@cache
def _warm_up(name: str) -> None:
    """Run the policy on tiny problems, from nothing and from its own plan, and what only many GPUs need."""
    # Kernels are compiled for the types of their arguments, so each path through a solve must be run once.
    for problem in (tiny_problem(), uneven_problem()):
        plan, _, memory = policy(name).make_plan(
            problem, Observed(at_s=0.0), None, BUDGET
        )
        for number, factor in enumerate((1.0, _MORE), start=1):
            now = replace(_times(problem, factor), current=plan)
            _, _, memory = policy(name).make_plan(
                now, Observed(at_s=15.0 * number), memory, BUDGET
            )
    if name == joint.NAME:
        _eliminate(uneven_problem())
        _anneal(uneven_problem())
        _plan_models(tiny_problem())


def _times(problem: Problem, factor: float) -> Problem:
    services = (
        replace(one, arrival_rate_rps=factor * one.arrival_rate_rps)
        for one in problem.services
    )
    return replace(problem, services=tuple(services))


def _eliminate(problem: Problem) -> None:
    """What plans of many GPUs go through, on one of few."""
    warm = WarmStart(problem)
    tools = warm.tools(problem, None)
    demand = warm.demand(problem)
    relaxation = generate(tools.tables, demand, tools.pricer, tools.columns)
    # The relaxation made columns that the pool does not hold yet.
    tools.pool.sync()
    duals = relaxation.solution.duals
    eliminate_gpus(
        DiveContext(tools, demand, duals, np.random.default_rng(0), never),
        complete_greedily(tools, demand, duals, {}),
    )


def _anneal(problem: Problem) -> None:
    """What plans of a dozen GPUs go through, on one of few."""
    warm = WarmStart(problem)
    tools = warm.tools(problem, None)
    demand = warm.demand(problem)
    advance(
        [Annealer(tools.tables, demand).chain((1, 1), moves=1, seed=0)], None, never
    )


def _plan_models(problem: Problem) -> None:
    """What language models are sized and planned with."""
    row = LlmRow(1, 512, 8, 100.0, 1000.0, 5.0, 1000.0, 100.0, 60.0)
    service = LlmDemand(
        name="model",
        network="net",
        slo=TokenSlo(ttft_ms=1000.0, itl_ms=100.0, percentile=0.95),
        arrival_rate_rps=3.0,
    )
    points = LlmPoints(
        service="model",
        gpu_type="any",
        network="net",
        provenance="predicted",
        rows=(row,),
    )
    models = replace(problem, llm_services=(service,), llm_points=(points,))
    plan_llms(models, BUDGET)

    lengths = length_table(MeanLengths(prompt=20.0, output=5.0), longest=1000)
    rough_capacity_rps(_replica(), lengths, service.slo)


def _replica() -> Replica:
    """One that serves anything."""
    table = StepTable(
        tokens=np.array([1.0, 512.0]),
        step_ms=np.array([5.0, 20.0]),
        sequence_ms=0.01,
        cached_token_ms=1e-4,
        pair_ms=1e-6,
        prompt_step_ms=1.0,
        request_ms=5.0,
        prompt_token_ms=0.01,
    )
    limits = EngineLimits(max_num_batched_tokens=512, max_num_seqs=8)
    return Replica(table=table, limits=limits, kv_tokens=1e5)


def tiny_problem() -> Problem:
    """Two services on one GPU type; large enough that every technique has something to do."""
    gpu_type = GpuType(
        name="any",
        price_usd_per_hour=1.0,
        memory_mib=16_000.0,
        count=3,
        sm_percent_step=20.0,
        idle_w=20.0,
        power_cap_w=250.0,
        clocks_mhz=(1000.0,),
    )
    return Problem(
        max_replicas_per_gpu=4,
        capacity_law=make_capacity_law([0.98], [1, 4]),
        gpu_types=(gpu_type,),
        services=(_service("one", 60.0), _service("two", 35.0)),
        points=(
            OperatingPoints(
                network="net", gpu_type="any", sensitivity=0.4, rows=_rows()
            ),
        ),
    )


def _service(name: str, rate_rps: float) -> ServiceDemand:
    return ServiceDemand(
        name=name,
        network="net",
        slo_ms=200.0,
        percentile=0.98,
        arrival_rate_rps=rate_rps,
    )


def _rows() -> tuple[OperatingPoint, ...]:
    return tuple(
        OperatingPoint(
            sm_percent=share,
            batch=batch,
            clock_mhz=1000.0,
            transfer_ms=0.1,
            launch_ms=0.5,
            run_ms=4.0 * batch * 100.0 / share,
            memory_mib=1000.0,
            power_w=share,
            # Above 0, so that neighbours are felt and pressure is priced.
            pressure=share / 1000.0,
        )
        for share in (20.0, 40.0, 60.0, 80.0, 100.0)
        for batch in (1, 4)
    )


def uneven_problem() -> Problem:
    """The tiny problem with a second GPU type and rates that no whole GPUs fit: a plan must be searched for."""
    problem = tiny_problem()
    (gpu_type,), (points,) = problem.gpu_types, problem.points
    faster = tuple(row._replace(run_ms=0.6 * row.run_ms) for row in points.rows)
    return replace(
        problem,
        gpu_types=(gpu_type, replace(gpu_type, name="other", price_usd_per_hour=1.7)),
        services=tuple(
            replace(service, arrival_rate_rps=rate)
            for service, rate in zip(problem.services, (150.0, 40.0), strict=True)
        ),
        points=(points, replace(points, gpu_type="other", rows=faster)),
    )
