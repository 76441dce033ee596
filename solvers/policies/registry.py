"""The registry of policies: named compositions of techniques that turn one Problem into one Plan.

To add a policy, write `solvers/policies/<name>.py` with a `make_plan` function and enter it in `_MODULES`.
"""

from importlib import import_module
from typing import Protocol, cast

from solvers.backfill.problem import FillProblem
from solvers.types.errors import UnknownPolicy
from solvers.types.outcome import Budget, PlanReport
from solvers.types.plan import BoundGpu, Plan
from solvers.types.problem import Problem
from solvers.types.state import Json, Observed

# Modules by name, imported when first asked for: a policy may load solvers.
_MODULES = {
    "gpulets": "solvers.baselines.gpulets",
    "gpulets_bda": "solvers.papers.inss.gpulets_bda",
    "gslice": "solvers.baselines.gslice",
    "hetsev": "solvers.papers.hetsev.policy",
    "hetsev_greedy": "solvers.greedy.policy",
    "igniter": "solvers.baselines.igniter",
    "inss": "solvers.papers.inss.policy",
    "inss_1e": "solvers.papers.inss.inss_1e",
    "inss_ni": "solvers.papers.inss.inss_ni",
    "joint": "solvers.joint.policy",
    "k8s_hpa": "solvers.baselines.k8s_hpa",
    "morak": "solvers.papers.morak.policy",
    "mudi": "solvers.papers.mudi.policy",
    "muxflow": "solvers.baselines.muxflow",
    "oltunes": "solvers.papers.oltunes.policy",
}

DISPATCHES_JOBS = "oltunes"
"""The policy under which offline jobs have a dispatcher of their own."""


class PolicyModule(Protocol):
    """What a policy's module offers."""

    def make_plan(
        self, problem: Problem, observed: Observed, memory: Json, budget: Budget
    ) -> tuple[Plan, PlanReport, Json]:
        """A plan for the problem, how it came about, and what the policy wants to remember for the next tick.

        `memory` is what the last call returned, None on the first. The same arguments give the same answer.
        """


def policies() -> tuple[str, ...]:
    """The names of all policies, sorted."""
    return tuple(sorted(_MODULES))


def policy(name: str) -> PolicyModule:
    """The policy of that name. Raises UnknownPolicy, which lists the names that exist."""
    if name not in _MODULES:
        raise UnknownPolicy(
            f"no policy is called {name!r}; there are {', '.join(policies())}"
        )
    return cast(PolicyModule, import_module(_MODULES[name]))


# By policy; modules are imported when first asked for.
_DEFAULT_FILL = "solvers.backfill.greedy"
_FILLS = {
    "gpulets": "solvers.baselines.gpulets",
    "gslice": "solvers.baselines.gslice",
    "joint": "solvers.backfill.exact",
    "mudi": "solvers.papers.mudi.policy",
    "muxflow": "solvers.baselines.muxflow",
}


class Fill(Protocol):
    """What such a module offers."""

    def __call__(self, wanted: FillProblem) -> tuple[BoundGpu, ...]:
        """The bound plan's GPUs with their tasks, and idle ones that tasks were given, by id; who is nowhere waits.

        It may give replicas another batch, clock or SM percent; one whose SM percent changes has an empty id, since it
        is a new process. Raises InvalidInput for a replica without a service or row.
        """


def fill_of(policy: str) -> Fill:
    """The technique of the policy of that name."""
    return cast(Fill, import_module(_FILLS.get(policy, _DEFAULT_FILL)).fill)
