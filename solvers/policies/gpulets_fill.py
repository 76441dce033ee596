"""What `gpulets` does with tasks: one takes the free gpu-let of a split GPU, by best fit on the knee of its speed."""

from dataclasses import replace

from solvers.fill.left_over import best_fit, fill_left_over
from solvers.fill.problem import FillProblem
from solvers.plan import BoundGpu


def fill(wanted: FillProblem) -> tuple[BoundGpu, ...]:
    """The bound plan's GPUs, with a task where only one gpu-let is taken.

    Raises InvalidInput for a replica without a service or row.
    """
    halves = tuple(gpu for gpu in wanted.bound.gpus if len(gpu.replicas) == 1)
    whole = tuple(gpu for gpu in wanted.bound.gpus if len(gpu.replicas) > 1)
    taken = {gpu.id for gpu in whole}
    free = [gpu for gpu in wanted.gpus if gpu.id not in taken]
    filled = fill_left_over(replace(wanted, bound=replace(wanted.bound, gpus=halves), gpus=free), best_fit)
    return tuple(sorted((*filled, *(replace(gpu, tasks=()) for gpu in whole)), key=lambda gpu: gpu.id))
