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
from dataclasses import dataclass

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
    return next((rungs for most, rungs in NEAR if distance <= most), FAR_RUNGS)


def look(
    memory: Mapping[str, float], *, rung: int, power_w: float, cap_w: float
) -> Climb:
    """The climb after a period on `rung`, from the notes of the one before."""
    base, base_w = int(memory.get("base", -1)), memory.get("base_w", 0.0)
    breach, breach_w = int(memory.get("breach", -1)), memory.get("breach_w", 0.0)
    calm = 0
    if power_w > cap_w:
        breach, breach_w = rung, power_w
        if base >= rung:  # the load has grown: what was kept then says nothing now
            base, base_w = -1, 0.0
    else:
        if rung >= breach:
            breach, breach_w = -1, 0.0
        if rung != base or breach < 0:
            base, base_w = rung, power_w
        elif power_w * breach_w <= STEADY_SHARE * cap_w * base_w:
            calm = int(memory.get("calm", 0)) + 1
    return Climb(
        rung=rung,
        power_w=power_w,
        cap_w=cap_w,
        base=base,
        base_w=base_w,
        breach=breach,
        breach_w=breach_w,
        calm=calm,
    )


def stride_to(climb: Climb, *, lowest: int, top: int) -> int:
    """The next rung, between `lowest` and `top`: down when over the cap, up where there is room, else the same."""
    if climb.is_over:
        return max(lowest, climb.rung - climb.stride)
    if climb.has_room:
        return max(climb.rung, min(climb.rung + climb.stride, climb.highest(top)))
    return climb.rung
