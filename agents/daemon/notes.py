"""What the next observation of an agent must tell besides the readings of its device."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

import msgspec
from msgspec import structs

from agents.base.protocol import MAX_PROBLEMS, MAX_TEXT, Ack, Observation, Wire
from agents.processes.logs import plain

MAX_WINDOW_S = 3600.0
"""What the wire contract allows; a longer gap (a suspended machine) is reported as its last hour."""
READINGS = (
    "gpus",
    "replicas",
    "services",
    "tasks",
    "uses",
    "failures",
    "launches",
    "acks",
)
"""Fields of an observation of which it can do without single items, and without all of them."""


@dataclass(slots=True)
class AgentNotes:
    """What the next observation must tell besides the readings."""

    refusals: "deque[Ack]" = field(default_factory=lambda: deque(maxlen=16))
    sync_problem: str = ""
    governor_problems: tuple[str, ...] = ()
    power_problems: tuple[str, ...] = ()

    def refuse(self, generation: int, detail: str) -> None:
        """Note a command that is not carried out."""
        self.refusals.append(
            Ack(generation=generation, status="refused", detail=detail)
        )

    def problems(
        self, steps: Iterable[str], *others: str, lost: int
    ) -> tuple[str, ...]:
        """What an operator should know, with what `others` of the agent say; `lost`: observations."""
        # The device and the connection to the control plane come first: the others may be their consequence.
        found = (
            *steps,
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
    """The problems as an observation may have them: a longer one would be refused with the counts next to it."""
    return tuple(
        plain(problem)[:MAX_TEXT] for problem in islice(problems, MAX_PROBLEMS)
    )


def sendable(observation: Observation) -> Observation:
    """The observation, without what the control plane's decoder refuses; its problems say what that was.

    A node whose observations are refused gets no commands either: one worker that tells a number out of its bounds
    could not even be ordered to stop.
    """
    if not _objection(observation):
        return observation
    kept: dict[str, tuple[Wire, ...]] = {}
    refused = []
    for field_name in READINGS:
        items: tuple[Wire, ...] = getattr(observation, field_name)
        objections = [_objection(each) for each in items]
        kept[field_name] = tuple(
            each for each, why in zip(items, objections, strict=True) if not why
        )
        refused += [
            f"one of {field_name} was left out of this observation: {why}"
            for why in objections
            if why
        ]
    problems = within_limits((*refused, *observation.problems))
    cut = structs.replace(observation, **kept, problems=problems)
    if not (why := _objection(cut)):
        return cut
    bare = (f"all readings were left out of this observation: {why}",)
    nothing = dict.fromkeys(READINGS, ())
    return structs.replace(observation, **nothing, problems=within_limits(bare))


def _objection(message: Wire) -> str:
    """Why the control plane would not take it, by the decoder that it uses; empty = it would."""
    try:
        msgspec.json.decode(msgspec.json.encode(message), type=type(message))
    # Half a character cannot be encoded (UnicodeError is a ValueError), nor can an integer of more than 64 bits.
    except (msgspec.MsgspecError, ValueError, OverflowError) as error:
        return plain(str(error))
    return ""
