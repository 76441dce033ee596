"""The simulated truth of training networks: what they do alone, and what they and their neighbours do to each other.

Made by bench/catalogue/make_training.py. Measured: steps of whole V100s (Gavel), T4s, A100s and 2080 Tis (Sia); what
unlimited training does to inference and inference to it (Tally), and to other training (Gavel). Scaled: steps of other
whole GPUs. Synthetic: everything under an SM limit or a lower clock.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from agents.sim.truth import tables as truth_data
from agents.sim.truth.curves import BatchCurve, MeasuredCurves
from agents.sim.truth.partners import draw
from agents.sim.truth.running import SimulatedNeighbour
from agents.sim.truth.tables import MeasuredRelation, NetworkTruth, Row, SpeedTruth

INFERENCE = "inference"
"""Stands for every inference network in the table of slowdowns."""
STALLED = 0.02
"""Share of inference batches beside training that wait for one of its longest kernels."""
STALL_EXPONENT = 2.0
"""Synthetic: under an SM limit of half, kernels that hold a neighbour up are as rare as they are short."""
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
    slowdowns: Mapping[tuple[str, str], MeasuredRelation]
    """By slowed and slowing network, at least one of them training, over the slowing one's SM percent."""
    busy_w: Mapping[str, float]
    """Watts above idle of a whole busy V100."""
    stalls_ms: Mapping[str, float]
    """Mean time by which an inference batch is held up, of those that are (`STALLED`), without SM limits."""

    def slowdown(self, network: str, neighbours: Sequence[SimulatedNeighbour]) -> float:
        """What training neighbours do to any network, and inference neighbours to a training one.

        One factor for each training network and one for all inference, by their summed SM percents.
        """
        slowed = self._label(network)
        together: dict[str, list[SimulatedNeighbour]] = {}
        for each in neighbours:
            together.setdefault(self._label(each.network), []).append(each)
        factor = 1.0
        for label, group in together.items():
            table = self.slowdowns.get((slowed, label))
            if table is not None:
                percent = sum(each.sm_percent for each in group)
                uneven = sum(
                    each.sm_percent * self._unevenness(network, each.network)
                    for each in group
                )
                factor *= 1.0 + (table.at(percent) - 1.0) * uneven / percent
        return factor

    def stall_ms(
        self, sm_percent: float, neighbours: Sequence[SimulatedNeighbour]
    ) -> float:
        """Mean stall of an inference batch that is stalled, beside these neighbours; 0 where none is training."""
        is_capped = sm_percent + sum(each.sm_percent for each in neighbours) <= 100.0
        return sum(
            self.stalls_ms[each.network]
            * ((each.sm_percent / 100.0) ** STALL_EXPONENT if is_capped else 1.0)
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
        slowdowns=_slowdowns(),
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


def _slowdowns() -> dict[tuple[str, str], MeasuredRelation]:
    points: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in truth_data.read("training_slowdown.csv"):
        point = (float(row["neighbour_sm_percent"]), float(row["slowdown"]))
        points.setdefault((row["network"], row["neighbour"]), []).append(point)
    return {pair: truth_data.table(line) for pair, line in points.items()}
