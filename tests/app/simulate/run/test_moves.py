"""What plans changed, counted by hand."""

from dataclasses import replace

from app.simulate.run.record import count_moves
from solvers.types.plan import BoundPlan
from tests.app.snapshots import a_bound_plan, a_replica


def bound(*replicas: tuple[str, int], clock_mhz: float = 1000.0) -> BoundPlan:
    plan = a_bound_plan([a_replica(name, batch=batch) for name, batch in replicas])
    return replace(plan, gpus=(replace(plan.gpus[0], clock_mhz=clock_mhz),))


def test_moves_are_counted_from_target_to_target() -> None:
    first, second = bound(("a", 1), ("b", 2)), bound(("a", 4), ("c", 2))
    moves = count_moves([first, second, bound(("a", 4), clock_mhz=900.0)])
    assert (moves.plans, moves.replicas_started, moves.replicas_stopped) == (2, 1, 2)
    assert (moves.batches_changed, moves.clocks_changed) == (1, 1)
