"""Decomposition of a batch's alone latency into transfer, launch and run time (InSS, section 4.1).

    transfer_ms = (input_bytes + output_bytes) · batch / pcie_bytes_per_ms
    launch_ms   = kernels · launch_ms_per_kernel
    run_ms      = alone latency − transfer_ms − launch_ms

InSS fits run_ms by locally weighted regression; here the alone latency may come from any solo fit and run_ms is what
remains, so that the three always sum to it. The split matters next to neighbours only: they stretch launch and run,
never transfer.

InSS writes the launch delay next to n replicas as kernels · (o + α·n + β), additive per kernel; the contract as
launch_ms · (1 + launch_per_neighbour · n + launch_base). With launch_ms = kernels · o they are one law:
launch_per_neighbour = α / o and launch_base = β / o.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from solvers.predict.data.samples import Queries, Reals

MIN_RUN_FRACTION = 0.1
"""Facts that would leave less run time than this fraction of the latency are too large; they are scaled down to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkFacts:
    """What one request of a network moves over PCIe and one batch launches."""

    kernels: float
    """Kernels launched per batch, ≥ 0."""
    input_bytes: float
    """Per request, ≥ 0."""
    output_bytes: float
    """Per request, ≥ 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFacts:
    """What the host's side of a GPU type costs."""

    pcie_bytes_per_ms: float
    launch_ms_per_kernel: float
    """Time of one launch by a replica alone on the GPU: InSS's o."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LatencyParts:
    """An alone latency split in three, each (N,) ms and ≥ 0."""

    transfer_ms: Reals
    launch_ms: Reals
    run_ms: Reals


# Where nothing is known of a network: one 224×224 RGB image in float32 (3·224·224·4 bytes) in, scores of 1000 classes
# (1000·4 bytes) out, and 80 kernels, what TensorRT launches for resnet50 (iGniter's profile of a V100).
TYPICAL_NETWORK = NetworkFacts(
    kernels=80.0, input_bytes=602_112.0, output_bytes=4_000.0
)
# iGniter's profile of a V100 on PCIe 3: 10 GB/s = 1e7 bytes/ms, 1.37 µs per kernel.
TYPICAL_LINK = LinkFacts(pcie_bytes_per_ms=1e7, launch_ms_per_kernel=0.00137)

NO_FACTS: Mapping[str, NetworkFacts] = {}


def decompose(
    queries: Queries,
    alone_ms: Reals,
    networks: Mapping[str, NetworkFacts] = NO_FACTS,
    link: LinkFacts = TYPICAL_LINK,
) -> LatencyParts:
    """The parts of these alone latencies (N,), all of one GPU type; they sum to `alone_ms`.

    A network without facts is taken as TYPICAL_NETWORK. Where transfer and launch would leave less than
    MIN_RUN_FRACTION of the latency to run, both are scaled down alike. Raises ValueError for a latency that is not
    a positive number.
    """
    facts = [networks.get(network, TYPICAL_NETWORK) for network in queries.network]
    request_bytes = np.array([fact.input_bytes + fact.output_bytes for fact in facts])
    kernels = np.array([fact.kernels for fact in facts])
    return split(
        alone_ms,
        transfer_ms=request_bytes * queries.batch / link.pcie_bytes_per_ms,
        launch_ms=kernels * link.launch_ms_per_kernel,
    )


def split(alone_ms: Reals, *, transfer_ms: Reals, launch_ms: Reals) -> LatencyParts:
    """The parts of alone latencies (N,) of which transfer and launch are known; the same rules as `decompose`."""
    if not np.all(np.isfinite(alone_ms) & (alone_ms > 0.0)):
        raise ValueError(
            "an alone latency to decompose must be a positive number of milliseconds"
        )
    overhead_ms = transfer_ms + launch_ms
    allowed_ms = (1.0 - MIN_RUN_FRACTION) * alone_ms
    # The maximum avoids dividing by 0 in rows without overhead: `where` computes both branches.
    reduced = allowed_ms / np.maximum(overhead_ms, allowed_ms)
    scale = np.where(overhead_ms > allowed_ms, reduced, 1.0)
    return LatencyParts(
        transfer_ms=transfer_ms * scale,
        launch_ms=launch_ms * scale,
        run_ms=alone_ms - overhead_ms * scale,
    )
