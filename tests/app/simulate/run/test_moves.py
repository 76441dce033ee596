"""What plans changed, counted by hand."""

from app.simulate.run.record import count_moves
from solvers.types.plan import BoundGpu, BoundPlan, BoundReplica
from solvers.types.state import GpuId, NodeId, ReplicaId


def bound(*replicas: tuple[str, int], clock_mhz: float = 1000.0) -> BoundPlan:
    gpu = BoundGpu(
        id=GpuId("n1/gpu-0"),
        node=NodeId("n1"),
        gpu_type="T4",
        clock_mhz=clock_mhz,
        power_cap_w=70.0,
        replicas=tuple(
            BoundReplica(
                id=ReplicaId(name),
                service="a",
                network="resnet50",
                sm_percent=50.0,
                batch=batch,
                arrival_rate_rps=1.0,
                memory_mib=100.0,
            )
            for name, batch in replicas
        ),
    )
    return BoundPlan(generation=1, parent=0, policy="joint", gpus=(gpu,))


def test_moves_are_counted_from_target_to_target() -> None:
    moves = count_moves(
        [
            bound(("a", 1), ("b", 2)),
            bound(("a", 4), ("c", 2)),
            bound(("a", 4), clock_mhz=900.0),
        ]
    )
    assert (moves.plans, moves.replicas_started, moves.replicas_stopped) == (2, 1, 2)
    assert (moves.batches_changed, moves.clocks_changed) == (1, 1)
