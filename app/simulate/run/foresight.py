"""What a clairvoyant policy is told in place of forecasts and predictions: true rates to come and true times."""

import math
from collections.abc import Callable
from dataclasses import replace

from agents.sim.pace import SimulatedWorld
from agents.sim.truth.running import RunningPart
from app.simulate.run.build import true_rates
from app.simulate.run.closed_loop import ClusterPlan
from app.store.store import Snapshot
from solvers.types.problem import OperatingPoint, OperatingPoints
from solvers.types.state import Demand


def with_true_times(points: OperatingPoints, world: SimulatedWorld) -> OperatingPoints:
    """The same rows with the mean times that batches really take alone on a GPU.

    Powers and pressures stay as they are predicted; what neighbours really cost is learned, as by everybody.
    """

    def true_row(row: OperatingPoint) -> OperatingPoint:
        alone = RunningPart(
            network=points.network,
            gpu_type=points.gpu_type,
            sm_percent=row.sm_percent,
            batch=row.batch,
            clock_mhz=row.clock_mhz,
        )
        return row.slower(float(world.batch_ms(alone)[row.batch]) / row.solo_ms)

    return replace(points, rows=tuple(map(true_row, points.rows)))


def foreseen(
    plan: ClusterPlan,
    begun_s: float,
    foresight_s: float | None,
    *,
    room: float = 1.0,
) -> Callable[[Snapshot], tuple[Demand, ...]]:
    """Demands from the true rates: the highest second of the next `foresight_s`, times `room`.

    None: until what the next decision starts is ready.
    """
    loads = {name: load.rates_rps for name, load in true_rates(plan).items()}
    launch_s = max(node.launch_s for node in plan.nodes)
    # What is decided now serves from `launch_s` on, and the next decision comes a period later.
    ahead_s = plan.settings.period_s + launch_s if foresight_s is None else foresight_s

    def highest_rps(service: str, now: int, until: int) -> float:
        return float(loads[service][now:until].max(initial=0.0))

    def make_demands(snapshot: Snapshot) -> tuple[Demand, ...]:
        # Rates are those of seconds, so the second that has begun counts in full.
        now = int(snapshot.at.timestamp() - begun_s)
        until = math.ceil(now + ahead_s)
        return tuple(
            Demand(
                service=service.name,
                arrival_rate_rps=room * highest_rps(service.name, now, until),
                method="clairvoyant",
            )
            for service in sorted(
                snapshot.state.services, key=lambda service: service.name
            )
        )

    return make_demands
