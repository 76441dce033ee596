"""The demo's baseline: Kubernetes' autoscaler, set up with hindsight for the demo's load: a fair opponent.

The settings are those that `bench.tune_kubernetes` finds for the demo's requests with seed 1: of all GPU types, equal
parts of GPUs (1, 2 or 4, as NVIDIA's device plugin makes them by MPS) and targets the cheapest that keep every SLO. A
test holds them to that; the search takes minutes, which the demo has not.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from app.demo.scenario import demo_cluster
from app.simulate.run.closed_loop import ClusterPlan
from app.solver.process import InlineSolver
from solvers.baselines.k8s_hpa import NAME, KubernetesHpa
from solvers.baselines.k8s_pods import PodOptions
from solvers.types.problem import OperatingPoint, OperatingPoints

_SCALE_DOWN_S = 90.0
"""The delay that the demo's services have under every policy."""


def _on_t4(parts: int, target: float) -> PodOptions:
    return PodOptions(
        gpu_type="T4", parts=parts, target=target, scale_down_s=_SCALE_DOWN_S
    )


TUNED_PODS: Mapping[str, PodOptions] = {
    "detection": _on_t4(4, 1.2),
    "inception": _on_t4(2, 1.0),
    "resnet50": _on_t4(2, 1.2),
    "translation": _on_t4(4, 1.2),
}


def baseline_cluster(seed: int) -> ClusterPlan:
    """The demo's cluster and requests, for a baseline that may have quarters of GPUs."""
    plan = demo_cluster(NAME, seed)
    return replace(plan, points=with_quarters(plan.points))


def baseline_solver(pods: Mapping[str, PodOptions] = TUNED_PODS) -> InlineSolver:
    """What decides for the baseline."""
    return InlineSolver({NAME: KubernetesHpa(pods=pods)})


def with_quarters(points: Sequence[OperatingPoints]) -> tuple[OperatingPoints, ...]:
    """The same with a row at 25 % of the SMs wherever there are rows at 20 and at 30 %, interpolated.

    Plimsoll's own policies do without; one of four equal parts would otherwise be 20 % wide.
    """
    return tuple(
        replace(each, rows=tuple(sorted({*each.rows, *_quarters(each.rows)})))
        for each in points
    )


def _quarters(rows: Sequence[OperatingPoint]) -> Iterator[OperatingPoint]:
    by_setting = {(row.sm_percent, row.batch, row.clock_mhz): row for row in rows}
    for row in rows:
        wider = by_setting.get((30.0, row.batch, row.clock_mhz))
        if row.sm_percent == 20.0 and wider is not None:
            # Times fall with 1 / share, of which 1/25 lies at 0.4 of the way from 1/30 to 1/20.
            mean = (
                0.4 * low + 0.6 * high for low, high in zip(row, wider, strict=True)
            )
            yield OperatingPoint._make(mean)._replace(
                sm_percent=25.0, batch=row.batch, clock_mhz=row.clock_mhz
            )
