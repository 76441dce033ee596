"""GPUs on which tasks run beside replicas at the highest clock that these can have there, instead of the cheapest one.

A plan for replicas chooses the clock at which they draw least. A task beside them goes with the clock, though: lower
by a seventh, it is done so much later, on a GPU whose rent is many times what the watts cost. At a higher clock
replicas are faster too, which lets tasks take more SMs before some promise is in danger.
"""

from dataclasses import replace

from solvers.errors import InvalidInput
from solvers.fill.hosts import make_host
from solvers.fill.problem import FillProblem
from solvers.plan import BoundGpu
from solvers.problem import Problem
from solvers.rows import OperatingRows


def with_top_clocks(wanted: FillProblem) -> FillProblem:
    """The problem with every GPU that carries replicas at its top clock.

    Under a power budget, and without tasks, as it is. Raises InvalidInput for a replica without a service or row.
    """
    if wanted.problem.power_budget_w is not None or not wanted.tasks:
        return wanted
    rows = OperatingRows(wanted.problem)
    gpus = tuple(_at_top_clock(wanted.problem, rows, gpu) if gpu.replicas else gpu for gpu in wanted.bound.gpus)
    return replace(wanted, bound=replace(wanted.bound, gpus=gpus))


def _at_top_clock(problem: Problem, rows: OperatingRows, gpu: BoundGpu) -> BoundGpu:
    """The GPU at the highest clock at which its replicas keep every limit; as it is where no higher one is known."""
    make_host(problem, rows, gpu)  # What is wrong with it as it is, is said of that.
    for clock_mhz in sorted(problem.gpu_type(gpu.gpu_type).clocks_mhz, reverse=True):
        if clock_mhz <= gpu.clock_mhz:
            break
        raised = replace(gpu, clock_mhz=clock_mhz)
        try:
            holds = make_host(problem, rows, raised).holds()
        except InvalidInput:
            continue  # Nobody measured its rows at that clock.
        if holds:
            return raised
    return gpu
