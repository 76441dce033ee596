"""What the next observation of an agent must tell beside the readings of its device."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from agents.base.protocol import MAX_PROBLEMS, MAX_TEXT, Ack


@dataclass(slots=True)
class AgentNotes:
    """What the next observation must tell beside the readings."""

    refusals: "deque[Ack]" = field(default_factory=lambda: deque(maxlen=16))
    sync_problem: str = ""
    device_problem: str = ""
    governor_problems: tuple[str, ...] = ()
    power_problems: tuple[str, ...] = ()

    def problems(self, *others: str, lost: int) -> tuple[str, ...]:
        """What an operator should know, with what `others` of the agent say; `lost`: observations."""
        # The device and the connection to the control plane come first: the others may be their consequence.
        found = (
            self.device_problem,
            self.sync_problem,
            *others,
            *self.governor_problems,
            *self.power_problems,
            f"{lost} observations were lost: the outbox was full or they were refused"
            if lost
            else "",
        )
        return tuple(problem for problem in found if problem)


def within_limits(problems: Iterable[str]) -> tuple[str, ...]:
    """The problems as an observation may have them: a longer one would be refused with the counts beside it."""
    return tuple(problem[:MAX_TEXT] for problem in islice(problems, MAX_PROBLEMS))
