"""What it takes to train a policy: a run that goes on for episodes, and the weights that come of it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from solvers.types.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeMeans:
    """One point of the learning curve: means over the courses that the actor played, side by side."""

    episode: int
    """Episodes so far."""
    reward: float
    """Per step."""
    late_percent: float
    """Share of the requests that missed their SLO."""
    carried_rps: float
    """Rate that the plans could carry."""
    served_rps: float
    temperature: float


class TrainingRun(Protocol):
    """One training; its state can be saved and taken up again."""

    @property
    def episode(self) -> int:
        """How many it has behind it."""

    def run(self, episodes: int) -> Iterator[EpisodeMeans]:
        """Train for so many episodes more; a point of the curve after every few of them."""

    def save(self) -> bytes:
        """Everything that the next run needs."""

    def resume(self, state: bytes) -> None:
        """Go on from what `save` gave. Raises whatever its format raises where it is something else's."""

    def encode(self, notes: str) -> tuple[bytes, str]:
        """The actor as it is now, with these notes, and the name of the fleet that it is valid for."""


class PolicyTrainer(Protocol):
    """What the module of a trainer offers."""

    def begin(self, problem: Problem, seed: int) -> TrainingRun:
        """A training for the problem's fleet and services.

        Raises ImportError where an extra is not installed, ValueError for a fleet that it cannot train for.
        """
