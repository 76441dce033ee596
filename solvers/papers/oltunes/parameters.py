"""OLTunes' parameters: those of the paper, and what is ours in its policy."""

from dataclasses import dataclass
from typing import Literal

from solvers.papers.oltunes.affinity import FULL_THRESHOLD, THRESHOLD
from solvers.types.parameters import PolicyParameters, parameter

ALPHA = 0.5
"""Weight of the time that is left after the job; not in the paper."""
BETA = 0.5
"""Weight of power in a full fleet; not in the paper. With 1, jobs get so few SMs that four of them leave a GPU half
idle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OltunesParameters(PolicyParameters):
    """Parameters of `oltunes`. Of the weights the paper has λ of jobs only (Table 4)."""

    latency_weight: float = parameter(
        0.75,
        "λ of equation 4 for a service: weight of latency, the rest is throughput's",
        at_least=0.0,
        at_most=1.0,
    )
    alpha: float = parameter(
        ALPHA,
        "weight of the time that is left until the SLO, or the deadline of a job",
        at_least=0.0,
        at_most=10.0,
    )
    beta: float = parameter(
        BETA, "weight of power in a full fleet", at_least=0.0, at_most=10.0
    )
    affinity: Literal["as printed", "pressure"] = parameter(
        "as printed",
        "of services: `as printed`: by classes of networks (equations 9 to 11); `pressure`: by what two replicas take"
        " of each other",
        choices=("as printed", "pressure"),
    )
    dispatch: Literal["as printed", "least cost"] = parameter(
        "as printed",
        "of jobs: `as printed`: batches by windows, affinity and the two best GPU types (Algorithms 2 and 3); `least"
        " cost`: each job where it meets its deadline at least cost, without windows; ours",
        choices=("as printed", "least cost"),
    )
    threshold: float = parameter(
        THRESHOLD,
        "affinity, 0 to 100, that is enough for services in an idle fleet",
        at_least=0.0,
        at_most=100.0,
    )
    full_threshold: float = parameter(
        FULL_THRESHOLD, "the same in a full fleet", at_least=0.0, at_most=100.0
    )
    spare: float = parameter(
        1.2,
        "a replica goes where the others carry this many times the rate; ours",
        at_least=1.0,
        at_most=10.0,
    )
