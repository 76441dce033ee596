"""How sure step times are: what is known of them relative to the law, and how much of that plans count on."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBelief:
    """What is known of step times relative to the law: ln of their factor is about normal."""

    log_factor: float = 0.0
    deviation: float
    is_measured: bool = False
    """Whether that network was measured on that GPU type, in that precision and on as many GPUs."""

    def factor(self, deviations: float) -> float:
        """The factor that lies `deviations` above the middle."""
        return math.exp(self.log_factor + deviations * self.deviation)


UNMEASURED = StepBelief(deviation=0.16)
"""What is known without any measurement: half of the rows of networks left out of the fit are off by 11 % or more."""
PLANNED = 1.2816
"""Deviations that plans count on: nine in ten step times are below."""
INTERVAL = 1.6449
"""Deviations to either side that hold nine in ten."""
