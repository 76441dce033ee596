"""When language models are rearranged: their starts take minutes, so that it pays only now and then.

In between what runs goes on (`solvers.llm.planner.keep`). When they were rearranged last is remembered with what the
policy itself remembers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from solvers.llm.planner.fleet import LlmFleet, plan_llms
from solvers.llm.planner.keep import keep_llms
from solvers.types.outcome import Budget
from solvers.types.problem import Problem
from solvers.types.state import Json

_DWELL_STARTS = 5.0
"""Times what the slowest replica takes to start, from one rearrangement to the next at the earliest."""
_REARRANGED, _POLICY = "models_rearranged_s", "policy"
"""Fields of what is remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsPast:
    """What is remembered from plan to plan."""

    rearranged_s: float | None = None
    """When language models were last rearranged; None = never."""
    policy: Json = None
    """The policy's own memory."""

    def document(self) -> Json:
        """As it is stored."""
        return {_REARRANGED: self.rearranged_s, _POLICY: self.policy}


def remembered(memory: Json) -> ModelsPast:
    """What was kept; a policy's alone where there were no language models."""
    if not isinstance(memory, Mapping) or _REARRANGED not in memory:
        return ModelsPast(policy=memory)
    rearranged_s = memory[_REARRANGED]
    # JSON may have been written by hand, or by another version.
    is_known = isinstance(rearranged_s, int | float)
    return ModelsPast(
        rearranged_s=float(rearranged_s) if is_known else None,  # type: ignore[arg-type]
        policy=memory.get(_POLICY),
    )


def plan_models(
    problem: Problem, at_s: float, past: ModelsPast, budget: Budget
) -> tuple[LlmFleet, ModelsPast]:
    """The language models on all GPUs: with what runs, or again where that is due or nothing else serves all."""
    if _is_too_soon(problem, at_s, past, budget):
        kept = keep_llms(problem, budget)
        if kept is not None:
            return kept, past
    return plan_llms(problem, budget), replace(past, rearranged_s=at_s)


def _is_too_soon(
    problem: Problem, at_s: float, past: ModelsPast, budget: Budget
) -> bool:
    dwell_s = budget.stability.min_dwell_s
    # A caller that asks for one plan alone wants the cheapest.
    if dwell_s == 0.0 or past.rearranged_s is None:
        return False
    starts = (row.start_s for points in problem.llm_points for row in points.rows)
    dwell_s = max(dwell_s, _DWELL_STARTS * max(starts, default=0.0))
    # A clock that was set back gives a negative age; then the time counts as over.
    return 0.0 <= at_s - past.rearranged_s < dwell_s
