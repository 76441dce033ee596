"""The V100 problems with more services than those in `../shared/problems`.

`v100_3models_n{services}_{rule}` of `../shared/problems` was made of `provisioning_3models_n*.csv`, of the folder
`../shared/data/peer_inputs`, and of measured V100s. Only its services differ from size to size, so that a larger one is
a smaller one with the services of another file; tests make the problem of 12 services out of that of 100.
"""

import csv
from dataclasses import replace
from pathlib import Path

from solvers.types.problem import Problem, ServiceDemand

SERVICES = Path(__file__).resolve().parents[2] / "shared" / "data" / "peer_inputs"


def with_services(problem: Problem, count: int) -> Problem:
    """The problem for the services of `provisioning_3models_n{count}.csv`. Raises FileNotFoundError."""
    (percentile,) = {service.percentile for service in problem.services}
    path = SERVICES / f"provisioning_3models_n{count}.csv"
    with path.open(encoding="utf-8", newline="") as lines:
        services = tuple(_service(row, percentile) for row in csv.DictReader(lines))
    return replace(problem, services=services)


def _service(row: dict[str, str], percentile: float) -> ServiceDemand:
    return ServiceDemand(
        name=f"{row['model']}-{row['service']}",
        network=row["model"],
        slo_ms=float(row["slo_ms"]),
        percentile=percentile,
        arrival_rate_rps=float(row["rate_rps"]),
    )
