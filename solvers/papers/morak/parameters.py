"""Morak's parameters that are the policy's; those of its governor go by its name (`solvers.policies`)."""

from dataclasses import dataclass
from typing import Literal

from solvers.types.parameters import PolicyParameters, parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class MorakParameters(PolicyParameters):
    """Parameters of `morak`; the paper has no figures."""

    division: Literal["by worth", "by knees"] = parameter(
        "by worth",
        "how a GPU is divided: in proportion to the knees, as the paper; `by worth`: where that leaves something"
        " unserved, also for the most that its services serve together, which is ours",
        choices=("by worth", "by knees"),
    )
    step_percent: float = parameter(
        10.0,
        "SM percent by which a service counts as wider after its governor asked for another partition",
        at_least=1.0,
        at_most=100.0,
    )
    settling_s: float = parameter(
        30.0,
        "seconds after that for which no reading counts: nodes change over, and governors begin again",
        at_least=0.0,
        at_most=86_400.0,
    )
