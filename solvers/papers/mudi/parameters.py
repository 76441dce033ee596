"""Mudi's parameters: what the paper's tuning leaves open, and what a restart must be worth."""

from dataclasses import dataclass

from solvers.types.parameters import PolicyParameters, parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class MudiParameters(PolicyParameters):
    """Parameters of `mudi`; the paper has no figures."""

    retune_s: float = parameter(
        20.0,
        "seconds swapped out after which a task is no longer the victim of a burst, and its GPU is divided again",
        at_least=0.0,
        at_most=86_400.0,
    )
    worth: float = parameter(
        0.25,
        "part of the present times by which a division must be better to be worth a restart",
        at_least=0.0,
        at_most=1.0,
    )
    calm: float = parameter(
        2.0,
        "times the present rate that a replica must bear where shares are divided again without need",
        at_least=1.0,
        at_most=10.0,
    )
    left_s: float = parameter(
        60.0,
        "seconds of work left below which a task is not started again elsewhere",
        at_least=0.0,
        at_most=86_400.0,
    )
