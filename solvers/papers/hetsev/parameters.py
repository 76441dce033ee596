"""HetSev's parameters: those of the paper, and what is ours in its policy."""

from dataclasses import dataclass
from typing import Literal

from solvers.greedy.scaling_rules import LAUNCH_WEIGHT_PER_S
from solvers.types.parameters import PolicyParameters, parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class HetsevParameters(PolicyParameters):
    """Parameters of `hetsev`. To k, β and the weight of a launch the paper gives no figures."""

    queues: int = parameter(
        4, "fair queues at most, k of Algorithm 1", at_least=1, at_most=64
    )
    picks_per_round: int = parameter(
        4, "replicas placed per round, β of Algorithm 1", at_least=1, at_most=1024
    )
    placement: Literal["proven", "as printed"] = parameter(
        "proven",
        "`as printed`: worst fit over all GPUs, empty ones first, in the order of the fair queues (Algorithm 1, lines"
        " 5 to 14); `proven`: the fewest GPUs, by CP-SAT where worst fit does not reach a bound",
        choices=("proven", "as printed"),
    )
    launch_weight_per_s: float = parameter(
        LAUNCH_WEIGHT_PER_S,
        "κ of section 4.1: part of a replica's price that each second of its launch adds",
        at_least=0.0,
        at_most=10.0,
    )
    consolidation_gain: float = parameter(
        0.10,
        "part of the cost that a fresh arrangement must save; ours",
        at_least=0.0,
        at_most=1.0,
    )
    consolidation_hold_s: float = parameter(
        60.0,
        "seconds for which it must save that; ours",
        at_least=0.0,
        at_most=86_400.0,
    )
