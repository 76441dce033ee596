"""A ladder of settings whose power rises from rung to rung, climbed under a cap and not beyond a rung that broke it.

Between α · cap and the cap the rung stays. A rung that exceeded the cap is remembered with its watts; it is tried again
only when the rung below has drawn so little, ten periods in a row, that the same growth would keep the cap:

    P · P_breach / P_base <= α · cap

with P the power of the period, P_base that of the present rung when it was first seen after (or last before) the
breach. So under a steady load a governor settles and never breaks the cap again, and under a falling one it climbs.

Sources: the steady band α · cap .. cap is Morak's (Algorithm 1); α = 0.98 and steps of 1, 2, 5 or 10 grid points by the
distance from the cap are those of a public re-implementation (PctoDL); the memory of the breach is ours.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from solvers.governors.types import GpuPeriod

STEADY_SHARE = 0.98
"""α: from this share of the cap on, power is as high as it should be."""

CALM_PERIODS = 10
"""One low second says little of a load whose batches vary: trying again after it breaks the cap every few seconds."""

NEAR = ((0.05, 1), (0.10, 2), (0.20, 5))
FAR_RUNGS = 10
"""Rungs of one step by the distance from the cap, as a share of the cap: (up to, rungs), and beyond the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Climb:
    """Where a governor stands on its ladder, and what it knows of the rungs around."""

    rung: int
    power_w: float
    """Peak power of the last period on this rung."""
    cap_w: float
    base: int = -1
    """The last rung that kept the cap; -1 = none is known."""
    base_w: float = 0.0
    breach: int = -1
    """The last rung that broke the cap; -1 = none is known."""
    breach_w: float = 0.0
    calm: int = 0
    """Periods in a row, up to this one, after which the breach would not come again."""

    @property
    def is_over(self) -> bool:
        """Whether the period broke the cap."""
        return self.power_w > self.cap_w

    @property
    def has_room(self) -> bool:
        """Whether power is so low that a climb is worth its risk."""
        return self.power_w < STEADY_SHARE * self.cap_w

    @property
    def stride(self) -> int:
        """Rungs of one step, up or down."""
        return clock_stride(self.power_w, self.cap_w)

    def highest(self, top: int) -> int:
        """The highest rung that may be tried now."""
        if self.breach < 0:
            return top
        # After enough calm periods the breach itself is tried again, but nothing beyond it.
        return min(top, self.breach if self.calm >= CALM_PERIODS else self.breach - 1)

    @property
    def memory(self) -> Mapping[str, float]:
        """What must be known at the next step."""
        return {
            "base": float(self.base),
            "base_w": self.base_w,
            "breach": float(self.breach),
            "breach_w": self.breach_w,
            "calm": float(self.calm),
        }


def clock_stride(power_w: float, cap_w: float) -> int:
    """Grid points of one step by the distance from the cap."""
    distance = abs(power_w - cap_w) / cap_w
    return next((rungs for up_to, rungs in NEAR if distance <= up_to), FAR_RUNGS)


def climb_after(
    reading: GpuPeriod, memory: Mapping[str, float], *, rung: int, cap_w: float
) -> Climb:
    """The climb after a period on `rung`, from the notes of the one before."""
    climb = Climb(
        rung=rung,
        power_w=reading.peak_power_w,
        cap_w=cap_w,
        base=int(memory.get("base", -1)),
        base_w=memory.get("base_w", 0.0),
        breach=int(memory.get("breach", -1)),
        breach_w=memory.get("breach_w", 0.0),
    )
    if not climb.is_over:
        return _keep_cap(climb, calm=int(memory.get("calm", 0)))
    # Where this rung or a higher one has kept the cap before, the load has grown: that says nothing now.
    if climb.base >= rung:
        climb = replace(climb, base=-1, base_w=0.0)
    return replace(climb, breach=rung, breach_w=climb.power_w)


def _keep_cap(climb: Climb, *, calm: int) -> Climb:
    """The climb after a period that kept the cap; calm: such periods before it."""
    # A breach at or below a rung that now keeps the cap is disproved.
    if climb.rung >= climb.breach:
        climb = replace(climb, breach=-1, breach_w=0.0)
    if climb.rung != climb.base or climb.breach < 0:
        return replace(climb, base=climb.rung, base_w=climb.power_w)
    # Products instead of the quotient of the module docstring, since base_w may be 0.
    if climb.power_w * climb.breach_w <= STEADY_SHARE * climb.cap_w * climb.base_w:
        return replace(climb, calm=calm + 1)
    return climb


def stride_to(climb: Climb, *, lowest: int, top: int) -> int:
    """The next rung, between `lowest` and `top`: down when over the cap, up where there is room, else the same."""
    if climb.is_over:
        return max(lowest, climb.rung - climb.stride)
    if climb.has_room:
        return max(climb.rung, min(climb.rung + climb.stride, climb.highest(top)))
    return climb.rung
