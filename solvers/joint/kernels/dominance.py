"""Which candidates are never needed, since another one of their service is no worse in any company."""

import numpy as np
import numpy.typing as npt

from solvers.joint.kernels.compiled import compiled

Reals = npt.NDArray[np.float64]


@compiled
def find_dominated(first: npt.NDArray[np.int64], needs: Reals, least: Reals, most: Reals) -> npt.NDArray[np.bool_]:
    """(C,) whether another candidate of the service needs no more of anything and its least is no less than the most.

    first: (S + 1,) where each service begins; needs: (C, L), within a service ascending in the first of them;
    least, most: (C, M) what a candidate carries at the worse and at the better end of M intervals of company.
    Of candidates that dominate each other the first stays.
    """
    dominated = np.zeros(needs.shape[0], np.bool_)
    for service in range(first.shape[0] - 1):
        for at in range(first[service], first[service + 1]):
            for other in range(first[service], first[service + 1]):
                if needs[other, 0] > needs[at, 0]:
                    break
                if other != at and not dominated[other] and _dominates(needs, least, most, other, at):
                    dominated[at] = True
                    break
    return dominated


@compiled
def _dominates(needs: Reals, least: Reals, most: Reals, better: int, worse: int) -> bool:
    for kind in range(1, needs.shape[1]):
        if needs[better, kind] > needs[worse, kind]:
            return False
    for interval in range(least.shape[1]):  # noqa: SIM110 (numba compiles no generator)
        if least[better, interval] < most[worse, interval]:
            return False
    return True
