"""The single losses that a plan does not survive, as an explanation states them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from app.loop.planning.language_models import without_models
from solvers.explain.survivors import Loss, Shortfall, Survivors, survivors
from solvers.types.errors import InvalidInput
from solvers.types.plan import BoundPlan, GpuPlan, Plan
from solvers.types.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class LossExplanation:
    """One GPU or node whose loss would leave something unserved."""

    kind: Literal["gpu", "node"]
    words: str
    """Its id; of a plan without ids what it runs, e.g. `one of 19 L4 at 2040 MHz with chat, photo`."""
    gpus: int
    shortfalls: tuple[Shortfall, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """What single losses would do."""

    gpus: int
    harmful_gpus: int
    """GPUs whose loss alone would do harm."""
    nodes: int
    """0 where the plan has no ids."""
    harmful_nodes: int
    worst: tuple[LossExplanation, ...]
    """GPUs first, then nodes; the worst of each kind first."""


MAX_LOSSES = 5
"""The number of GPUs, and of nodes, that are named: the worst ones."""


def explain_losses(
    problem: Problem, plan: Plan, bound: BoundPlan | None
) -> Losses | None:
    """The single losses that a plan, with ids where it is bound, does not survive; None for another problem's plan.

    Of services that share GPUs: what a language model loses with one of its replicas is plain to see.
    """
    shared: Plan | BoundPlan = replace(plan, llm_replicas=())
    if bound is not None:
        shared = without_models(bound)
    try:
        found = survivors(problem, shared)
    except InvalidInput:
        # A plan of another time may name what this problem no longer has.
        return None
    entries = {}
    # Without ids an entry of the plan stands for several GPUs that are alike: the loss of any one counts for all.
    if bound is None:
        entries = {f"gpus[{at}]": gpu for at, gpu in enumerate(plan.gpus)}
    alike = (entries.get(loss.name) for loss in found.gpu_losses)
    return Losses(
        gpus=found.gpus,
        harmful_gpus=sum(1 if gpu is None else gpu.count for gpu in alike),
        nodes=found.nodes,
        harmful_nodes=len(found.node_losses),
        worst=tuple(_worst(found, entries)),
    )


def _worst(
    found: Survivors, entries: Mapping[str, GpuPlan]
) -> Iterator[LossExplanation]:
    for loss in found.gpu_losses[:MAX_LOSSES]:
        yield _gpu_loss(loss, entries.get(loss.name))
    for loss in found.node_losses[:MAX_LOSSES]:
        yield _explained("node", loss.name, loss)


def _gpu_loss(loss: Loss, gpu: GpuPlan | None) -> LossExplanation:
    if gpu is None:
        return _explained("gpu", loss.name, loss)
    services = ", ".join(sorted(replica.service for replica in gpu.replicas))
    number = "the" if gpu.count == 1 else f"one of {gpu.count}"
    name = f"{number} {gpu.gpu_type} at {gpu.clock_mhz:g} MHz with {services}"
    return _explained("gpu", name, loss)


def _explained(kind: Literal["gpu", "node"], name: str, loss: Loss) -> LossExplanation:
    return LossExplanation(
        kind=kind, words=name, gpus=loss.gpus, shortfalls=loss.shortfalls
    )
