"""The operating rows of a Problem, found by what a plan says of a replica."""

from solvers.types.errors import InvalidInput
from solvers.types.plan import GpuPlan, ReplicaPlan
from solvers.types.problem import OperatingPoint, Problem
from solvers.types.slices import SliceUse

SM_PERCENT_TOLERANCE = 1e-6
CLOCK_TOLERANCE_MHZ = 1e-3
"""How far a plan's figures may lie from the row that they mean (contract, "Hard rules")."""
SM_PERCENT_DIGITS = 6
"""Decimals to which two SM percents are the same (1e-6)."""


class OperatingRows:
    """Finds rows of one Problem; indexes each (network, GPU type) when it is first asked for."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._index: dict[
            tuple[str, str], dict[tuple[float, int, float], OperatingPoint]
        ] = {}

    def row_of(self, gpu: GpuPlan, replica: ReplicaPlan) -> OperatingPoint:
        """The row at which `replica` runs on `gpu`.

        Raises InvalidInput when the problem has no such service or row: a plan without `point` violations has one.
        """
        try:
            network = self._problem.service(replica.service).network
        except KeyError:
            raise InvalidInput(
                "service", f"the problem has no service called {replica.service!r}"
            ) from None
        row = (
            self.find(
                network,
                gpu.gpu_type,
                (replica.sm_percent, replica.batch, gpu.clock_mhz),
            )
            if replica.slice is None
            else self._slice_row(network, gpu, replica, replica.slice)
        )
        if row is None:
            raise InvalidInput(
                "replicas",
                f"{network} on {gpu.gpu_type} has no row for {replica.sm_percent:g} % of the SMs, "
                f"batch {replica.batch}, {gpu.clock_mhz:g} MHz",
            )
        return row

    def _slice_row(
        self, network: str, gpu: GpuPlan, replica: ReplicaPlan, use: SliceUse
    ) -> OperatingPoint | None:
        """The row of a slice, as one whose batch is all run term: in a slice nothing else slows it."""
        wanted = (replica.batch, use.processes, gpu.clock_mhz)
        rows = self._problem.slice_rows(network, gpu.gpu_type, use.profile)
        found = next((row for row in rows if row[:3] == wanted), None)
        return found and OperatingPoint(
            sm_percent=replica.sm_percent,
            batch=found.batch,
            clock_mhz=found.clock_mhz,
            transfer_ms=0.0,
            launch_ms=0.0,
            run_ms=found.execution_ms,
            memory_mib=found.memory_mib,
            power_w=found.power_w,
            pressure=0.0,
        )

    def find(
        self, network: str, gpu_type: str, wanted: tuple[float, int, float]
    ) -> OperatingPoint | None:
        """The row for (sm_percent, batch, clock_mhz), to the contract's tolerances; None when there is none."""
        rows = self._rows(network, gpu_type)
        # Plans take their figures from rows, so that nearly every one is found without the scan below.
        if wanted in rows:
            return rows[wanted]
        sm_percent, batch, clock_mhz = wanted
        near = (
            row
            for row in rows.values()
            if row.batch == batch
            and abs(row.sm_percent - sm_percent) <= SM_PERCENT_TOLERANCE
            and abs(row.clock_mhz - clock_mhz) <= CLOCK_TOLERANCE_MHZ
        )
        return min(near, key=lambda row: abs(row.sm_percent - sm_percent), default=None)

    def _rows(
        self, network: str, gpu_type: str
    ) -> dict[tuple[float, int, float], OperatingPoint]:
        key = (network, gpu_type)
        if key not in self._index:
            points = self._problem.points_of(network, gpu_type)
            self._index[key] = {row[:3]: row for row in points.rows} if points else {}
        return self._index[key]
