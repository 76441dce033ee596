"""What HetSev's policy remembers from one plan to the next."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from solvers.types.plan import WANT_OF_GPUS, Plan
from solvers.types.state import Json

MEMORY_VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class HetsevPast:
    """Times are those of the control loop's clock."""

    since_s: float | None = None
    """Since when a consolidation has looked worthwhile; None: it does not."""
    waiting_since_s: Mapping[str, float] = field(default_factory=dict)
    """By service: since when it has wanted GPUs that there are not."""

    def waited_s(self, now_s: float) -> dict[str, float]:
        """By service; a clock that was set back makes no service wait for less than no time."""
        return {
            name: max(0.0, now_s - since_s)
            for name, since_s in self.waiting_since_s.items()
        }

    def after(self, plan: Plan, since_s: float | None, now_s: float) -> "HetsevPast":
        """What is remembered once this plan is made."""
        # What its own limits keep unserved would gain nothing by coming first.
        waiting = (
            entry.service for entry in plan.unserved if entry.reason in WANT_OF_GPUS
        )
        return HetsevPast(
            since_s=since_s,
            waiting_since_s={
                name: min(now_s, self.waiting_since_s.get(name, now_s))
                for name in waiting
            },
        )


def load_past(memory: Json) -> HetsevPast:
    """What `dump_past` wrote; nothing where it is something else."""
    if not isinstance(memory, Mapping) or memory.get("version") != MEMORY_VERSION:
        return HetsevPast()
    since, waiting = memory.get("consolidation_since_s"), memory.get("waiting_since_s")
    return HetsevPast(
        since_s=float(since) if isinstance(since, int | float) else None,
        waiting_since_s={
            name: float(value)
            for name, value in (waiting.items() if isinstance(waiting, Mapping) else ())
            if isinstance(value, int | float)
        },
    )


def dump_past(past: HetsevPast) -> Json:
    """The same as JSON."""
    return {
        "version": MEMORY_VERSION,
        "consolidation_since_s": past.since_s,
        "waiting_since_s": dict(past.waiting_since_s),
    }
