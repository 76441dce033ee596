"""What `gslice` does with tasks: one beside the replicas of a GPU, in all that they leave over, where that is most."""

from solvers.fill.left_over import fill_left_over, widest
from solvers.fill.problem import FillProblem
from solvers.plan import BoundGpu


def fill(wanted: FillProblem) -> tuple[BoundGpu, ...]:
    """The bound plan's GPUs with at most one task each. Raises InvalidInput for a replica without a service or row."""
    return fill_left_over(wanted, widest)
