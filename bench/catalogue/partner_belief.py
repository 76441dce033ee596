"""What the planner believes of partners: a law of one sensitivity and one pressure per network, through noisy samples.

As somebody would know it who had run half of all pairs of networks side by side for a minute, on every GPU type at
three splits of the SMs, and some fours and eights, and had let the product's own technique `pressure` learn from that.
It shares no formula with the truth, and cannot follow what is particular to a pair.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from statistics import geometric_mean

import numpy as np

from agents.sim.truth.running import RunningPart, SimulatedNeighbour
from agents.sim.truth.truth import Truth
from bench.catalogue.measured import CatalogueType, NetworkFacts
from solvers.predict.data.fit import Coefficients
from solvers.predict.data.samples import (
    Neighbour,
    make_queries,
    make_samples,
)
from solvers.predict.interference import pressure
from solvers.predict.latency import decomposition

BATCH = 8
PAIRS = ((50.0, 50.0), (70.0, 30.0), (30.0, 70.0))
"""Own SM percent and the neighbour's."""
UNCAPPED = ((100.0, 100.0),)
CROWDS = (3, 7)
"""Neighbours in the larger sets, one of each size for every network, with equal shares of the SMs."""
NOISE = 0.02
"""Relative standard deviation of one sample."""
TYPICAL_SENSITIVITY = 0.398
"""Geometric mean of inference's sensitivities on each GPU type: only their product with a pressure means anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartnerBelief:
    """The law on one GPU type."""

    fitted: Coefficients
    inference: tuple[str, ...]
    """The networks of inference that it was fitted to."""
    mean_factor: float
    """Over all profiled sets: what a belief that tells no networks apart would say."""

    @property
    def launch(self) -> pressure.LaunchDelay:
        """The contract's growth of the launch term."""
        return pressure.launch_delay(self.fitted)

    def sensitivity(self, network: str) -> float:
        """The contract's sensitivity."""
        return pressure.sensitivity(self.fitted, network) * self._scale

    def pressure(self, network: str, *, sm_percent: float, batch: int) -> float:
        """The contract's pressure of one row."""
        found = pressure.pressures(
            self.fitted,
            network,
            batch=np.array([float(batch)]),
            sm_percent=np.array([sm_percent]),
        )
        return float(found[0]) / self._scale

    @property
    def _scale(self) -> float:
        known = (pressure.sensitivity(self.fitted, each) for each in self.inference)
        return TYPICAL_SENSITIVITY / geometric_mean(known)


def profile(
    truth: Truth,
    networks: Sequence[NetworkFacts],
    gpu_type: CatalogueType,
    bytes_per_item: float,
    *,
    is_capped: bool = True,
) -> PartnerBelief:
    """Run the sets side by side in the simulator and fit the law to what was read; `is_capped`: with SM limits.

    Training runs at its largest batch; the law, which is of one batch, is told the same for all.
    """
    random = np.random.default_rng(list(gpu_type.name.encode()))
    placed = list(
        profiled_sets([each.name for each in networks], random, is_capped=is_capped)
    )

    def at_its_batch(member: Neighbour) -> Neighbour:
        is_training = member.network in truth.training_networks
        batch = truth.max_batch(member.network) if is_training else member.batch
        return member._replace(batch=batch)

    def execution_ms(own: Neighbour, others: Sequence[Neighbour]) -> float:
        own = at_its_batch(own)
        part = running(gpu_type, own, tuple(map(at_its_batch, others)))
        return truth.execution_ms(part, int(own.batch))

    alone_ms, together_ms = (
        np.array([execution_ms(own, others) for own, others in sets])
        for sets in ([(own, ()) for own, _ in placed], placed)
    )
    samples = make_samples(
        make_queries(
            [own.network for own, _ in placed],
            [gpu_type.name] * len(placed),
            batch=[own.batch for own, _ in placed],
            sm_percent=[own.sm_percent for own, _ in placed],
            neighbours=[others for _, others in placed],
        ),
        together_ms * (1.0 + NOISE * random.standard_normal(len(placed))),
    )
    facts = {
        each.name: decomposition.NetworkFacts(
            kernels=each.kernels, input_bytes=bytes_per_item, output_bytes=0.0
        )
        for each in networks
    }
    return PartnerBelief(
        fitted=pressure.fit(samples, alone_ms, facts),
        inference=tuple(name for name in facts if name in truth.networks),
        mean_factor=float(np.mean(samples.latency_ms / alone_ms)),
    )


def profiled_sets(
    networks: Sequence[str], random: np.random.Generator, *, is_capped: bool = True
) -> Iterator[tuple[Neighbour, tuple[Neighbour, ...]]]:
    """Each network and those that it is sampled with: half of all ordered pairs, and some larger sets."""
    for own, other in permutations(networks, 2):
        if random.random() < 0.5:
            for own_percent, percent in PAIRS if is_capped else UNCAPPED:
                yield (
                    Neighbour(own, BATCH, own_percent),
                    (Neighbour(other, BATCH, percent),),
                )
    for own, size in product(networks, CROWDS):
        present = [each for each in networks if each != own]
        others = random.choice(present, size, replace=False)
        percent = 100.0 / (size + 1) if is_capped else 100.0
        yield (
            Neighbour(own, BATCH, percent),
            tuple(Neighbour(str(each), BATCH, percent) for each in others),
        )


def running(
    gpu_type: CatalogueType, own: Neighbour, others: Sequence[Neighbour] = ()
) -> RunningPart:
    """A replica next to others, at the highest clock."""
    return RunningPart(
        network=own.network,
        gpu_type=gpu_type.name,
        sm_percent=own.sm_percent,
        batch=int(own.batch),
        clock_mhz=gpu_type.clocks_mhz[-1],
        neighbours=tuple(
            SimulatedNeighbour(each.network, each.sm_percent, int(each.batch))
            for each in others
        ),
    )
