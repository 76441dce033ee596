"""Auto-tune: fill what a batch leaves of its GPU by raising the setting of one of its jobs.

Source: OLTunes, section 3.4.3: throughput-oriented jobs first; a larger batch is taken where it raises the throughput
(of a latency-critical job: lowers its latency) and its memory fits into what is left; one job per batch, and none that
has a single setting. Wider: the SMs that are left may be used, too, since batch, memory and SM percent are all tuned.
What counts is the time until the job is done, which for given inputs is its throughput and its latency in one.
"""

from collections.abc import Sequence
from typing import NamedTuple

from solvers.dispatch.job import Placed, Setting

LEAST_GAIN = 1e-9
"""Of a latency: less is rounding."""


class Room(NamedTuple):
    """What is left of a GPU beside a batch."""

    sm_percent: float
    memory_mib: float


def auto_tune(members: Sequence[Placed], room: Room) -> tuple[tuple[Placed, ...], str | None]:
    """The members, one of them perhaps at a faster setting of the same network; and its name, or None.

    The first in the order (throughput-oriented, then latency-critical, each as given) that gains anything is raised.
    """
    order = sorted(range(len(members)), key=lambda at: members[at].job.is_latency_critical)
    for at in order:
        faster = _faster(members[at], room)
        if faster is not None:
            raised = members[at]._replace(setting=faster)
            return (*members[:at], raised, *members[at + 1 :]), raised.job.name
    return tuple(members), None


def _faster(member: Placed, room: Room) -> Setting | None:
    """The fastest setting, at no smaller a batch, for which there is room; None where none is faster."""
    job, now = member
    fitting = (
        one
        for one in job.settings
        if (one.network, one.gpu_type) == (now.network, now.gpu_type)
        and one.batch >= now.batch
        and one.sm_percent <= now.sm_percent + room.sm_percent
        and one.memory_mib <= now.memory_mib + room.memory_mib
        and one.latency_s < now.latency_s * (1.0 - LEAST_GAIN)
    )
    return min(fitting, key=lambda one: (one.latency_s, one.sm_percent, one.batch), default=None)
