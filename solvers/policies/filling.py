"""Which technique gives tasks their places on what a policy's plan leaves over.

A technique is a module with a `fill` function: of `solvers.fill`, or of a policy that composes several. To add one,
write it and enter the policies that use it in `_MODULES`; all others use the greedy one.
"""

from importlib import import_module
from typing import Protocol, cast

from solvers.fill.problem import FillProblem
from solvers.plan import BoundGpu

# By policy; modules are imported when first asked for.
_DEFAULT = "solvers.fill.greedy"
_MODULES = {
    "gpulets": "solvers.policies.gpulets_fill",
    "gslice": "solvers.policies.gslice_fill",
    "joint": "solvers.fill.exact",
    "mudi": "solvers.policies.mudi",
    "muxflow": "solvers.policies.muxflow",
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
    return cast(Fill, import_module(_MODULES.get(policy, _DEFAULT)).fill)
