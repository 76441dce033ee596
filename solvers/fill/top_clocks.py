"""GPUs on which tasks run beside replicas at the highest clock that these can have there, instead of the cheapest one.

A plan for replicas chooses the clock at which they draw least. A task beside them goes with the clock, though: lower
by a seventh, it is done so much later, on a GPU whose rent is many times what the watts cost. At a higher clock
replicas are faster too, which lets tasks take more SMs before some promise is in danger.
"""

from dataclasses import replace

from solvers.fill.places import Places
from solvers.fill.problem import FillProblem
from solvers.plan import BoundGpu
from solvers.problem import Problem


def with_top_clocks(wanted: FillProblem) -> FillProblem:
    """The problem with every GPU that carries replicas at the highest clock at which no task loses a place (`places`).

    Under a power budget, and without tasks, as it is. Raises InvalidInput for a replica without a service or row.
    """
    if wanted.problem.power_budget_w is not None or not wanted.tasks:
        return wanted
    places = Places(wanted)
    gpus = tuple(_at_top_clock(wanted.problem, places, gpu) if gpu.replicas else gpu for gpu in wanted.bound.gpus)
    return replace(wanted, bound=replace(wanted.bound, gpus=gpus))


def _at_top_clock(problem: Problem, places: Places, gpu: BoundGpu) -> BoundGpu:
    for clock_mhz in sorted(problem.gpu_type(gpu.gpu_type).clocks_mhz, reverse=True):
        raised = replace(gpu, clock_mhz=max(clock_mhz, gpu.clock_mhz))
        if clock_mhz <= gpu.clock_mhz or places.are_kept(gpu, raised):
            return raised
    return gpu
