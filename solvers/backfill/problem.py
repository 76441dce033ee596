"""Fill: tasks on what the replicas of a bound plan leave over. Replicas never give way; tasks wait, or are swapped out.

    sets        tasks; hosts: GPUs that carry replicas or tasks, and idle ones
    parameters  a task's rows on the host's GPU type, at its batch and the host's clock; the replicas' rates and SLOs
    variables   for each task its host and SM percent, or none
    objective   task by task, the shortest iteration by the contract's laws; ENOUGH of the highest speed is reached with
                the smallest SM percent that does, the rest is left to the next task
    constraints sm, memory and power of each host; no replica's capacity below its rate, with tasks counted among the
                neighbours; at most `max_tasks_per_gpu`

Greedy, in four steps: (1) what runs stays as it is, or is swapped out where it fits no more, and then what is swapped
out comes back; (2) what has no place, or was swapped out for `move_s`, gets the best left-over, the most urgent first;
(3) what must begin now to meet its deadline, or has waited `wait_s`, gets an idle GPU, the cheapest per iteration;
(4) what runs too slowly for its deadline moves to an idle GPU on which it meets it. So nothing starves while there are
idle GPUs, and none is paid for a task that can wait.

Source: Mudi (EuroSys 2025) for training with inference, at most three tasks on a GPU, and swapping out. Changed: it
looks at the slope of one service's latency, this at the promises of all replicas on the GPU.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from solvers.types.parameters import AS_BY_DEFAULT, PolicyParameters
from solvers.types.plan import BoundGpu, BoundPlan
from solvers.types.problem import OperatingPoints, Problem
from solvers.types.state import Gpu, GpuId, Task

ENOUGH = 0.9
"""A share of this part of the highest speed on a host is enough: beyond it SMs are worth more to another task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FillProblem:
    """What is to be filled, and with what."""

    problem: Problem
    """That the bound plan solves."""
    bound: BoundPlan
    """Its replicas count, its tasks do not."""
    tasks: Sequence[Task]
    points: Sequence[OperatingPoints]
    """Operating points of the tasks' networks."""
    gpus: Sequence[Gpu]
    """Those that may carry something."""
    cordoned: Collection[GpuId] = ()
    """Where what runs stays and nothing starts."""
    running: BoundPlan | None = None
    """The plan in force, whose tasks go on."""
    parameters: PolicyParameters = AS_BY_DEFAULT
    """The policy's own, as its operator set them."""

    @property
    def running_gpus(self) -> tuple[BoundGpu, ...]:
        """The GPUs of the plan in force."""
        return self.running.gpus if self.running else ()

    @property
    def hosting_gpus(self) -> list[BoundGpu]:
        """The plan's GPUs with replicas, and those on which tasks run alone, if they are still there and unused."""
        hosting = [gpu for gpu in self.bound.gpus if gpu.replicas]
        used = {gpu.id for gpu in hosting}
        unused = {gpu.id: gpu.gpu_type for gpu in self.gpus if gpu.id not in used}
        hosting += (
            gpu
            for gpu in self.running_gpus
            # An id may stand for another GPU by now, on which the task's row says nothing.
            if gpu.tasks and not gpu.replicas and unused.get(gpu.id) == gpu.gpu_type
        )
        return hosting


@dataclass(frozen=True, slots=True, kw_only=True)
class FillLimits:
    """How far tasks may go."""

    max_tasks_per_gpu: int = 3
    move_s: float = 60.0
    """After so long swapped out a task looks for another place: there it must be started again."""
    wait_s: float = 600.0
    """After so long without running a task may take an idle GPU."""
