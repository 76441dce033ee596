"""The trainer of policy `inss`: from a fleet and its services to the bytes of an actor. Needs PyTorch (extra `rl`)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from solvers.greedy.configure import planning_clock_mhz
from solvers.papers.inss.training.actor import (
    actor_of,
    actor_to_bytes,
    setting_to_train,
)
from solvers.papers.inss.training.world import ProvisioningWorld
from solvers.papers.inss.training.world_rows import ActorSetting
from solvers.types.policy_spec import EpisodeMeans
from solvers.types.problem import Problem

if TYPE_CHECKING:
    from solvers.papers.inss.training.actor_critic import Training


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorTraining:
    """One training, with what it is for."""

    training: "Training"
    setting: ActorSetting
    problem: Problem

    @property
    def episode(self) -> int:
        """How many it has behind it."""
        return self.training.episode

    def run(self, episodes: int) -> Iterator[EpisodeMeans]:
        """Train for `episodes` more; a point of the curve after every few of them."""
        return self.training.run(episodes)

    def save(self) -> bytes:
        """Everything that the next run needs."""
        return self.training.save()

    def resume(self, state: bytes) -> None:
        """Go on from what `save` gave. Raises RuntimeError where the world has other sizes."""
        self.training.resume(state)

    def encode(self, notes: str) -> tuple[bytes, str]:
        """The actor as it is now, with these notes, and the name of the fleet that it is valid for."""
        layers = self.training.layers()
        actor = actor_of(layers, self.setting, self.problem, notes=notes)
        return actor_to_bytes(actor), actor.fingerprint


def begin(problem: Problem, seed: int) -> ActorTraining:
    """A training for the problem's fleet and services.

    Raises ImportError without PyTorch, ValueError where a GPU type has no limit, or nothing can be served.
    """
    # Imported here, since only a training needs PyTorch.
    from solvers.papers.inss.training.actor_critic import Training

    clocks = [planning_clock_mhz(problem, gpu_type) for gpu_type in problem.gpu_types]
    setting = setting_to_train(problem, clocks_mhz=clocks)
    world = ProvisioningWorld(problem, setting, clocks_mhz=clocks)
    return ActorTraining(
        training=Training(world, seed), setting=setting, problem=problem
    )
