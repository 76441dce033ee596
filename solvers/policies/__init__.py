"""The registry of policies: named compositions of techniques that turn one Problem into one Plan.

To add a policy, write `solvers/policies/<name>.py` with a `make_plan` function and enter it in `_MODULES`.
"""

from importlib import import_module
from typing import Protocol, cast

from solvers.errors import UnknownPolicy
from solvers.outcome import Budget, PlanReport
from solvers.plan import Plan
from solvers.problem import Problem
from solvers.state import Json, Observed

# Modules by name, imported when first asked for: a policy may load solvers.
_MODULES = {
    "gpulets": "solvers.policies.gpulets",
    "gpulets_bda": "solvers.policies.gpulets_bda",
    "gslice": "solvers.policies.gslice",
    "hetsev": "solvers.policies.hetsev",
    "hetsev_greedy": "solvers.policies.hetsev_greedy",
    "igniter": "solvers.policies.igniter",
    "inss": "solvers.policies.inss",
    "inss_1e": "solvers.policies.inss_1e",
    "inss_ni": "solvers.policies.inss_ni",
    "joint": "solvers.policies.joint",
    "k8s_hpa": "solvers.policies.k8s_hpa",
    "morak": "solvers.policies.morak",
    "mudi": "solvers.policies.mudi",
    "muxflow": "solvers.policies.muxflow",
    "oltunes": "solvers.policies.oltunes",
}


class Policy(Protocol):
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


def policy(name: str) -> Policy:
    """The policy of that name. Raises UnknownPolicy, which lists the names that exist."""
    if name not in _MODULES:
        raise UnknownPolicy(f"no policy is called {name!r}; there are {', '.join(policies())}")
    return cast(Policy, import_module(_MODULES[name]))
