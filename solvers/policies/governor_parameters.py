"""Parameters of governors, which operators set as they set policies'; the governor itself knows a plain tuning."""

from collections.abc import Mapping
from dataclasses import dataclass

from solvers.governors.types import GovernorTuning
from solvers.types.parameters import PolicyParameters, parameter

_DEFAULT = GovernorTuning()


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerLatencyParameters(PolicyParameters):
    """Parameters of the governor `power_latency`; the paper has no figures."""

    steady_power_share: float = parameter(
        _DEFAULT.steady_power_share,
        "α of Morak's algorithm 1: from this share of the power cap on, power is as high as it should be",
        at_least=0.5,
        at_most=1.0,
    )
    steady_latency_share: float = parameter(
        _DEFAULT.steady_latency_share,
        "β of Morak's algorithm 1: from this share of its limit on, a latency is as high as it should be",
        at_least=0.1,
        at_most=0.99,
    )
    largest_clock_step: int = parameter(
        _DEFAULT.largest_clock_step,
        "grid points of one step of the clock at most; failing periods double a step downwards",
        at_least=1,
        at_most=100,
    )


GOVERNOR_PARAMETERS: Mapping[str, type[PolicyParameters]] = {
    "power_latency": PowerLatencyParameters
}
"""By governor; the others have none."""
