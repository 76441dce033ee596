"""Transfer, launch and run: by hand, and where the facts are missing or too large."""

import numpy as np
import pytest

from solvers.predict.data.samples import Queries, make_queries
from solvers.predict.latency.decomposition import (
    MIN_RUN_FRACTION,
    LinkFacts,
    NetworkFacts,
    decompose,
)

LINK = LinkFacts(pcie_bytes_per_ms=1e6, launch_ms_per_kernel=0.01)
FACTS = {"a": NetworkFacts(kernels=50.0, input_bytes=90_000.0, output_bytes=10_000.0)}


def queries(*networks: str, batch: float = 8.0) -> Queries:
    size = len(networks)
    return make_queries(
        networks,
        ["T4"] * size,
        batch=np.full(size, batch),
        sm_percent=np.full(size, 50.0),
    )


def test_the_parts_by_hand() -> None:
    times = decompose(queries("a"), np.array([10.0]), FACTS, LINK)
    # 8 · 100,000 bytes / 1e6 bytes per ms = 0.8 ms; 50 · 0.01 = 0.5 ms; 10 − 1.3 = 8.7 ms.
    assert (times.transfer_ms[0], times.launch_ms[0], times.run_ms[0]) == pytest.approx(
        (0.8, 0.5, 8.7)
    )


def test_the_parts_sum_to_the_latency_and_none_is_negative() -> None:
    alone_ms = np.array([0.001, 0.5, 1.3, 2.0, 1e4])
    times = decompose(queries("a", "a", "b", "b", "a"), alone_ms, FACTS, LINK)
    assert times.transfer_ms + times.launch_ms + times.run_ms == pytest.approx(
        alone_ms, rel=1e-12
    )
    assert min(times.transfer_ms.min(), times.launch_ms.min()) > 0.0
    assert np.all(times.run_ms >= MIN_RUN_FRACTION * alone_ms * (1.0 - 1e-12))


@pytest.mark.parametrize("alone_ms", [0.0, -1.0, np.nan, np.inf])
def test_a_latency_that_is_none_is_refused(alone_ms: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        decompose(queries("a"), np.array([alone_ms]), FACTS, LINK)
