"""How a policy is registered: what people are told of it, and which modules do its work.

Each folder with policies has a `spec.py` that states its `POLICIES`; `solvers.policies.registry` collects them. Modules
are named, not imported: a policy may load solvers, and is imported when it is first asked for.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from solvers.types.outcome import Budget, PlanReport
from solvers.types.parameters import PolicyParameters
from solvers.types.plan import Plan
from solvers.types.problem import Problem
from solvers.types.state import Json, Observed

Decides = Literal[
    "GPU types", "replicas", "placement", "SM percent", "batch", "clock", "tasks"
]
# All but "tasks", in the order of `Decides`.
ALL_OF_SERVICES: tuple[Decides, ...] = (
    "GPU types",
    "replicas",
    "placement",
    "SM percent",
    "batch",
    "clock",
)
"""What a policy decides that leaves nothing of a service open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What a policy is, where it comes from, what it needs and when to choose it, as people are told.

    Its docstring says how it decides; its card says the same in a few lines that can be laid next to another's.
    """

    name: str
    """As it is registered."""
    title: str
    """What it does, in at most 45 characters."""
    source: str
    """Paper, venue and year; `ours`."""
    techniques: tuple[str, ...]
    """Modules below `solvers` that do its work."""
    decides: tuple[Decides, ...]
    promises: bool
    """Whether its plans keep the promise of a percentile; else the loop of a real cluster may refuse them."""
    needs: tuple[str, ...] = ()
    """What must be there besides what ships: extras, trained weights."""
    limits: tuple[str, ...]
    """What it does not know or cannot do."""
    good_for: str
    """When to choose it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySpec:
    """One policy: its card, and its modules by their full names."""

    card: Card
    module: str
    """It has `make_plan` (`PolicyModule`)."""
    is_main: bool = False
    """Whether it is a whole system to choose; the others are baselines and variants, to compare with."""
    parameters: type[PolicyParameters] = PolicyParameters
    """The type of its parameters (`Budget.parameters`); the base: it has none."""
    fill: str | None = None
    """It has `fill`, which places tasks next to the policy's services; None = the default of all policies."""
    needs_actor: bool = False
    """Whether it asks for an actor that was trained for the fleet."""
    dispatches_jobs: str | None = None
    """It has `scheduler`, which gives that of its offline jobs (`solvers.types.jobs.JobScheduler`) with the policy's
    parameters; None = the tick fills GPUs with them."""
    trainer: str | None = None
    """It trains what the policy has to learn (`PolicyTrainer`); None = there is nothing."""
    exporter: str | None = None
    """It has `export` (`ProgramExporter`): its integer program may be written out, and solved by `Budget.solver`."""
    plans_slices: bool = False
    """Whether it decides on GPUs that are cut into slices."""

    @property
    def name(self) -> str:
        """That of its card."""
        return self.card.name


class ProgramExporter(Protocol):
    """What the module offers that writes a policy's integer program out."""

    def export(self, problem: Problem, path: Path, budget: Budget) -> None:
        """Write it as .lp or .mps, by the path's suffix. Raises InvalidInput for another one."""


class PolicyModule(Protocol):
    """What a policy's module offers."""

    def make_plan(
        self, problem: Problem, observed: Observed, memory: Json, budget: Budget
    ) -> tuple[Plan, PlanReport, Json]:
        """A plan for the problem, how it came about, and what the policy wants to remember for the next tick.

        `memory` is what the last call returned, None on the first. The same arguments give the same answer.
        """


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
        """Train for `episodes` more; a point of the curve after every few of them."""

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
