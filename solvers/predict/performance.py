"""Performance: operating points with how sure they are, whatever fit they come from."""

from dataclasses import dataclass

from solvers.problem import OperatingPoints


@dataclass(frozen=True, slots=True, kw_only=True)
class Performance:
    """The operating points of one network on one GPU type, each with the uncertainty of its times."""

    points: OperatingPoints
    latency_sigma: tuple[float, ...]
    """Per row: standard deviation of ln(true / stated execution time), ≥ 0; 0 = taken as exact."""

    def __post_init__(self) -> None:
        if len(self.latency_sigma) != len(self.points.rows):
            raise ValueError(f"{len(self.latency_sigma)} uncertainties for {len(self.points.rows)} rows")
