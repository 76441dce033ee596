"""The simulated truth of training networks: what they do alone, and without SM limits to each other and to inference.

Made by bench/catalogue/make_training.py. Measured: steps of whole V100s (Gavel), T4s, A100s and 2080 Tis (Sia); what
training does to inference and inference to it (Tally), and to other training (Gavel), all without SM limits. Scaled:
steps of other whole GPUs. Synthetic: steps under an SM limit or at a lower clock.

Where SM limits hold, training is a partner like any other (agents/sim/truth/partners.py): on our H100 one sensitivity
per network and one pressure explain inference and training next to each other to 2 % (`python -m bench.partners`).
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from agents.sim.truth import tables as truth_data
from agents.sim.truth.curves import BatchCurve, MeasuredCurves
from agents.sim.truth.partners import draw
from agents.sim.truth.running import SimulatedNeighbour
from agents.sim.truth.tables import NetworkTruth, Row, SpeedTruth

INFERENCE = "inference"
"""Stands for every inference network in the table of slowdowns."""
STALLED = 0.02
"""Share of inference batches next to training that wait for one of its longest kernels."""
_CAPPED_STALL = 0.15
"""Under SM limits a stall is this times the SM fraction as long: on our H100 7 % next to half of the SMs
(`python -m bench.partners`)."""
_PAIR_SPREAD = 0.10
"""Standard deviation of ln excess between pairs with the same training network, as between Tally's two services."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTruth:
    """All training networks."""

    networks: Mapping[str, NetworkTruth]
    """By name; their curves are a V100's."""
    curves: Mapping[tuple[str, str], MeasuredCurves]
    """By network and GPU type, over the share of a V100: the V100's curve, so that the whole GPU's step is its own."""
    speeds: Mapping[tuple[str, str], SpeedTruth]
    """By network and GPU type."""
    provenance: Mapping[tuple[str, str, int], str]
    """Where the step times of a whole GPU alone come from, by network, GPU type and batch."""
    slowdowns: Mapping[tuple[str, str], float]
    """Without SM limits, by slowed and slowing network, at least one of them training."""
    busy_w: Mapping[str, float]
    """Watts above idle of a whole busy V100."""
    stalls_ms: Mapping[str, float]
    """Mean time by which an inference batch is held up, of those that are (`STALLED`), without SM limits."""

    def slowdown(self, network: str, neighbours: Sequence[SimulatedNeighbour]) -> float:
        """What training neighbours do to any network, and inference neighbours to a training one, without SM limits.

        One factor for each training network and one for all inference.
        """
        slowed = self._label(network)
        together: dict[str, list[float]] = defaultdict(list)
        for each in neighbours:
            unevenness = self._unevenness(network, each.network)
            together[self._label(each.network)].append(unevenness)
        factor = 1.0
        for label, uneven in together.items():
            # Inference next to inference is not in the table: the other partners' law has it.
            excess = self.slowdowns.get((slowed, label), 1.0) - 1.0
            factor *= 1.0 + excess * fmean(uneven)
        return factor

    def stall_ms(
        self, sm_percent: float, neighbours: Sequence[SimulatedNeighbour]
    ) -> float:
        """Mean stall of an inference batch that is stalled, next to these neighbours; 0 where none is training."""
        is_capped = sm_percent + sum(each.sm_percent for each in neighbours) <= 100.0
        return sum(
            self.stalls_ms[each.network]
            * (_CAPPED_STALL * each.sm_percent / 100.0 if is_capped else 1.0)
            for each in neighbours
            if each.network in self.networks
        )

    def _unevenness(self, network: str, neighbour: str) -> float:
        """Factor on the excess of one pair; 1 between training networks, whose pairs Gavel measured one by one."""
        if network in self.networks and neighbour in self.networks:
            return 1.0
        return math.exp(_PAIR_SPREAD * draw("training pair", network, neighbour))

    def _label(self, network: str) -> str:
        """A training network's own name; `INFERENCE` for any other."""
        return network if network in self.networks else INFERENCE

    def entire_gpu_provenance(self, network: str, gpu_type: str, batch: int) -> str:
        """How the step of a whole GPU is known; estimated for a batch between measured ones."""
        return self.provenance.get((network, gpu_type, batch), "estimated")


def read_training() -> TrainingTruth:
    """The shipped tables."""
    facts = {row["network"]: row for row in truth_data.read("training_networks.csv")}
    v100 = truth_data.read_curves("training_curves.csv", "step_ms")
    steps = list(truth_data.read("training_steps.csv"))
    return TrainingTruth(
        networks={
            name: truth_data.network_of(row, v100[name]) for name, row in facts.items()
        },
        curves=_levelled(v100, steps),
        speeds={
            _key(row): SpeedTruth(
                speed=float(row["speed"]), provenance=row["provenance"]
            )
            for row in steps
        },
        provenance={
            (*_key(row), int(row["batch"])): row["provenance"] for row in steps
        },
        slowdowns={
            (row["network"], row["neighbour"]): float(row["slowdown"])
            for row in truth_data.read("training_slowdown.csv")
        },
        busy_w={name: float(row["busy_w"]) for name, row in facts.items()},
        # P(stall > its 99th percentile) is 1 %, half of those that are stalled: an exponential of mean p99 / ln 2.
        stalls_ms={
            name: float(row["stall_p99_ms"]) / math.log(2.0)
            for name, row in facts.items()
        },
    )


def _key(row: Row) -> tuple[str, str]:
    return row["network"], row["gpu_type"]


def _levelled(
    v100: Mapping[str, MeasuredCurves], steps: Iterable[Row]
) -> dict[tuple[str, str], MeasuredCurves]:
    """Each V100 curve times what makes it pass through the step of the other whole GPU."""
    curves: dict[tuple[str, str], dict[int, BatchCurve]] = {}
    for row in steps:
        batch, curve = (
            int(row["batch"]),
            v100[row["network"]].by_batch[int(row["batch"])],
        )
        # One factor for the whole curve: its shape over the share stays the V100's.
        level = float(row["step_ms"]) / curve.at(100.0 * float(row["speed"]))
        curves.setdefault(_key(row), {})[batch] = BatchCurve(
            sm_percents=curve.sm_percents, latency_ms=curve.latency_ms * level
        )
    return {key: MeasuredCurves(by_batch=by_batch) for key, by_batch in curves.items()}
