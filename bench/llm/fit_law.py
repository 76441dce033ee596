"""The factors of the step law, fitted to measured servers.

    python -m bench.llm.fit_law [--shared ../shared]

Least squares on the logarithms of TPOT of all rows and of TTFT of rows with few clients, with a soft L1 loss. Common
factors have log-normal priors; each runtime deviates from them by a tighter one. Prints the block of `runtimes.py`.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares

from bench.llm.closed_loops import ClosedLoop, load_closed_loops
from bench.measured_sets import shared_folder
from solvers.llm.closed_loop import (
    DEFAULT_BUDGET,
    ClosedClients,
    ClosedLoopMeans,
    closed_loop_means,
)
from solvers.llm.step_law import (
    EngineWork,
    Reals,
    Runtime,
    RuntimeFactors,
    engine_work,
    stack_works,
)

RUNTIMES: tuple[Runtime, ...] = ("vllm", "trtllm", "sglang")
FEW_CLIENTS = 16
_TTFT_WEIGHT = 0.5
"""Of a row's TTFT next to its TPOT: it holds the way to the server too."""
_PRIOR_WEIGHT = 1.0
"""Of a deviation from a prior next to one row's misfit: rows of a network err together, so that priors must weigh more
than their deviations say. Chosen by leaving out one network after the other."""
_SOFT = 0.1
"""Residuals of logarithms from which on they count linearly."""


class _Prior(NamedTuple):
    """What is supposed of a factor: its value, and the deviations of its logarithm, common and of a runtime."""

    value: float
    common: float
    own: float


PRIORS = {
    "step_ms": _Prior(1.5, 0.7, 0.3),
    "layer_ms": _Prior(0.015, 0.7, 0.3),
    "expert_layer_ms": _Prior(0.03, 0.7, 0.3),
    "sequence_ms": _Prior(0.01, 0.7, 0.3),
    "prompt_layer_ms": _Prior(0.05, 0.7, 0.3),
    "weights": _Prior(1.0, 0.25, 0.1),
    "expert_weights": _Prior(1.0, 0.25, 0.1),
    "flops": _Prior(1.0, 0.25, 0.15),
    "expert_flops": _Prior(0.8, 0.4, 0.2),
    "cache": _Prior(1.0, 0.4, 0.2),
    "pairs": _Prior(1.0, 0.25, 0.15),
    "hop_ms": _Prior(0.005, 0.7, 0.3),
    "link": _Prior(0.7, 0.3, 0.15),
    "request_ms": _Prior(60.0, 1.0, 1.0),
    "prompt_token_ms": _Prior(0.01, 0.7, 0.7),
}
NAMES = tuple(each.name for each in fields(RuntimeFactors))


def stack(rows: Sequence[ClosedLoop]) -> tuple[EngineWork, ClosedClients]:
    """The rows' engines and clients as arrays."""
    clients = ClosedClients(
        count=np.array([float(row.clients) for row in rows]),
        prompt=np.array([row.isl for row in rows]),
        output=np.array([row.osl for row in rows]),
        budget=np.full(len(rows), DEFAULT_BUDGET),
    )
    return stack_works([engine_work(row.engine) for row in rows]), clients


def fit(rows: Sequence[ClosedLoop]) -> dict[Runtime, RuntimeFactors]:
    """The factors of every runtime; of one without rows the common ones."""
    work, clients = stack(rows)
    own = np.array([RUNTIMES.index(row.engine.runtime) for row in rows])
    tpot = np.log([row.tpot_ms for row in rows])
    ttft = np.log([row.ttft_ms for row in rows])
    has_ttft = clients.count <= FEW_CLIENTS
    priors = [PRIORS[name] for name in NAMES]
    scale = np.array([prior.common for prior in priors])
    own_scale = np.array([prior.own for prior in priors])

    def residuals(unknown: Reals) -> Reals:
        table = unknown.reshape(len(RUNTIMES) + 1, len(NAMES))
        logs = table[0] * scale + table[1:] * own_scale
        means = closed_loop_means(work, factors_of(logs[own].T), clients)
        misfit = np.concatenate(
            [
                np.log(means.tpot_ms) - tpot,
                _TTFT_WEIGHT * (np.log(means.ttft_ms) - ttft)[has_ttft],
            ]
        )
        softened = 2.0 * _SOFT**2 * (np.sqrt(1.0 + (misfit / _SOFT) ** 2) - 1.0)
        return np.concatenate(
            [np.sign(misfit) * np.sqrt(softened), _PRIOR_WEIGHT * unknown]
        )

    start = np.zeros((len(RUNTIMES) + 1) * len(NAMES))
    found = least_squares(residuals, start, method="trf", max_nfev=40).x
    table = found.reshape(len(RUNTIMES) + 1, len(NAMES))
    logs = table[0] * scale + table[1:] * own_scale
    return {
        runtime: RuntimeFactors(
            **{
                name: float(value)
                for name, value in zip(NAMES, _values(logs[at]), strict=True)
            }
        )
        for at, runtime in enumerate(RUNTIMES)
    }


def factors_of(logs: Reals) -> RuntimeFactors:
    """Factors from (15, …) logarithms relative to the priors' values; each field is an array."""
    return RuntimeFactors(**dict(zip(NAMES, _values(logs), strict=True)))


def _values(logs: Reals) -> Reals:
    values = np.array([PRIORS[name].value for name in NAMES])
    return np.asarray(np.exp(logs) * values.reshape(-1, *[1] * (logs.ndim - 1)))


def predict(
    rows: Sequence[ClosedLoop], factors: dict[Runtime, RuntimeFactors]
) -> ClosedLoopMeans:
    """The law's means of measured rows."""
    work, clients = stack(rows)
    table = np.array(
        [[getattr(factors[row.engine.runtime], name) for row in rows] for name in NAMES]
    )
    return closed_loop_means(
        work, RuntimeFactors(**dict(zip(NAMES, table, strict=True))), clients
    )


def main() -> None:
    shared = shared_folder(__doc__)
    if shared is None:
        return
    rows = load_closed_loops(shared / "data" / "llm_closed_loop" / "runs.csv")
    for runtime, factors in fit(rows).items():
        print(f'    "{runtime}": RuntimeFactors(')
        for name in NAMES:
            print(f"        {name}={getattr(factors, name):.4g},")
        print("    ),")


if __name__ == "__main__":
    main()
