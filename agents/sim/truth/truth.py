"""What a simulated GPU really does: execution times, watts and memory, read off measured curves.

Measured: latency alone on a V100 (RaPP for the PyTorch networks, iGniter for those named `-trt`), the slowdown of
some pairs (`agents.sim.truth.partners`), the launch delay with 1 to 5 replicas, watts of the `-trt` networks. Scaled:
every other GPU type and lower clocks. Synthetic: more than 5 replicas on a GPU, and watts of the PyTorch networks.
`Truth.provenance` says which.
Training networks, of which `agents.sim.truth.training` knows more, may stand wherever a network or a neighbour does;
their batch's time is the time of one step.
This package never imports `solvers`: prediction and truth share no code, only the measurements.
"""

from dataclasses import replace

from agents.sim.truth import tables as truth_data
from agents.sim.truth.curves import FloatArray, MeasuredCurves
from agents.sim.truth.partners import (
    PROVENANCES,
    Partner,
    PartnerTruth,
    is_uncapped,
)
from agents.sim.truth.running import RunningPart
from agents.sim.truth.tables import (
    MeasuredRelation,
    NetworkTruth,
    SpeedTruth,
    TypeTruth,
    WattsTable,
)
from agents.sim.truth.training import TrainingTruth, read_training

REFERENCE_WATTS = "resnet50-trt"
"""Whose measured watts stand in, at equal duty, for networks without readings."""
_V100 = "V100-16GB"
# Watts above idle go with clock^2.5 and the board's own range; see bench/catalogue/watts.py for the source.
_CLOCK_EXPONENT = 2.5


class TruthError(LookupError):
    """The measured tables hold no such network, GPU type or batch."""


class Truth:
    """The measured world. Load it once with `load_truth`; it never changes."""

    def __init__(
        self,
        *,
        networks: dict[str, NetworkTruth],
        types: dict[str, TypeTruth],
        speeds: dict[tuple[str, str], SpeedTruth],
        partners: PartnerTruth,
        launch_delay: MeasuredRelation,
        watts: dict[str, WattsTable],
        training: TrainingTruth,
    ) -> None:
        self._inference = networks
        self._training = training
        self._networks = {**networks, **training.networks}
        self._types = types
        self._speeds = {**speeds, **training.speeds}
        self._partners = partners
        self._launch_delay = launch_delay
        self._watts = watts

    @property
    def networks(self) -> tuple[str, ...]:
        """Every inference network with measured curves."""
        return tuple(self._inference)

    @property
    def training_networks(self) -> tuple[str, ...]:
        """Every training network."""
        return tuple(self._training.networks)

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """Every GPU type that can be simulated."""
        return tuple(self._types)

    def max_batch(self, network: str) -> int:
        """Largest batch that was measured."""
        return self._network(network).curves.max_batch

    def noise_cv(self, network: str) -> float:
        """Standard deviation of one batch's time over its mean (iGniter's co-located runs)."""
        return self._network(network).noise_cv

    def provenance(self, placed: RunningPart) -> str:
        """How the mean execution time is known: measured, scaled, estimated or synthetic."""
        # More replicas than were ever measured together: whatever else is known, this is extrapolated.
        if 1 + len(placed.neighbours) > self._launch_delay.x[-1]:
            return "synthetic"
        if placed.network in self._training.networks:
            return self._training_provenance(placed)
        own, others = self._as_partners(placed)
        if is_uncapped((own, *others)) and not all(map(self._is_inference, others)):
            return "synthetic"
        speed = self._speed(placed)
        is_slowed = placed.clock_mhz < self._type(placed.gpu_type).max_clock_mhz
        known = (
            "scaled" if is_slowed else "measured",
            speed.provenance,
            self._partners.provenance(own, others, gpu_type=placed.gpu_type),
        )
        return max(known, key=PROVENANCES.index)

    def execution_ms(self, placed: RunningPart, batch: int) -> float:
        """Mean time of one batch of `batch` items, 1 to `max_batch`.

        Raises `TruthError` for an unknown network or GPU type, or a batch outside that range.
        """
        largest = self.max_batch(placed.network)
        if not 1 <= batch <= largest:
            raise TruthError(
                f"{placed.network} was measured with batches 1 to {largest}, not {batch}"
            )
        return float(self.batch_ms(placed)[batch])

    def batch_ms(self, placed: RunningPart) -> FloatArray:
        """Mean execution time of batches 0 to `max_batch`: (max_batch + 1,), entry 0 is 0.

        A GPU that is r times as fast as a V100 acts, at p percent of its SMs and c of its clock, as r * p * c percent
        of a V100 do: work shrinks, the host's part stays. Neighbours add the factor of partners at their batches
        (`agents.sim.truth.partners`); without SM limits every network of training among them, and inference next to
        training, adds a factor of its own; and from the third replica or task on comes the measured growth of the
        launch delay per kernel over a pair's.
        """
        network = self._network(placed.network)
        solo_ms = self._curves(placed, network).batch_ms(self._v100_share(placed))
        if not placed.neighbours:
            return solo_ms
        delay_ms = network.kernels * self._extra_delay_ms(1 + len(placed.neighbours))
        busy_ms = solo_ms * self._slowdown(placed) + delay_ms
        # An empty batch takes no time, whatever the neighbours do.
        busy_ms[0] = 0.0
        return busy_ms

    def stall_ms(self, placed: RunningPart) -> float:
        """Mean stall of the batches that training neighbours stall (`STALLED` of all): their longest kernels."""
        if placed.network in self._training.networks:
            return 0.0
        return self._training.stall_ms(placed.sm_percent, placed.neighbours)

    def busy_w(self, placed: RunningPart, batch: int) -> float:
        """Watts above idle that the replica or task adds while it executes such a batch."""
        kind, reference_watts = (
            self._type(placed.gpu_type),
            self._watts[REFERENCE_WATTS],
        )
        if placed.network in self._watts:
            v100_w = self._watts[placed.network].at_batch(placed.sm_percent, batch)
        else:
            v100_w = reference_watts.at_duty(
                placed.sm_percent, self.duty(placed, batch)
            )
        if placed.network in self._training.busy_w:
            # The reference's curve gives the shape, the network's own measurement the height.
            v100_w *= self._training.busy_w[placed.network] / reference_watts.at_duty(
                100.0, 1.0
            )
        reference = self._types[_V100]
        board_scale = (kind.tdp_w - kind.idle_w) / (reference.tdp_w - reference.idle_w)
        return (
            v100_w
            * board_scale
            * float((placed.clock_mhz / kind.max_clock_mhz) ** _CLOCK_EXPONENT)
        )

    def idle_w(self, gpu_type: str) -> float:
        """Watts of a GPU on which nothing executes."""
        return self._type(gpu_type).idle_w

    def tdp_w(self, gpu_type: str) -> float:
        """Watts that the board's own limit never lets it pass."""
        return self._type(gpu_type).tdp_w

    def memory_mib(self, network: str, batch: int) -> float:
        """Memory of one replica that takes batches up to `batch`, or of training at it (estimated)."""
        facts = self._network(network)
        return facts.memory_base_mib + batch * facts.memory_per_item_mib

    def _training_provenance(self, placed: RunningPart) -> str:
        is_entire = (
            placed.sm_percent == 100.0
            and placed.clock_mhz >= self._type(placed.gpu_type).max_clock_mhz
        )
        if placed.neighbours or not is_entire:
            return "synthetic"
        return self._training.entire_gpu_provenance(
            placed.network, placed.gpu_type, placed.batch
        )

    def _curves(self, placed: RunningPart, network: NetworkTruth) -> MeasuredCurves:
        return self._training.curves.get(
            (placed.network, placed.gpu_type), network.curves
        )

    def _slowdown(self, placed: RunningPart) -> float:
        own, others = self._as_partners(placed)
        if not is_uncapped((own, *others)):
            return self._partners.factor(own, others, gpu_type=placed.gpu_type)
        factor = self._training.slowdown(placed.network, placed.neighbours)
        if self._is_inference(own):
            present = tuple(filter(self._is_inference, others))
            factor *= self._partners.factor(own, present, gpu_type=placed.gpu_type)
        return factor

    def _is_inference(self, partner: Partner) -> bool:
        return partner.network in self._inference

    def _as_partners(self, placed: RunningPart) -> tuple[Partner, tuple[Partner, ...]]:
        """A replica or task, and its neighbours."""
        others = (
            replace(
                placed,
                network=each.network,
                sm_percent=each.sm_percent,
                batch=each.batch,
            )
            for each in placed.neighbours
        )
        return self._partner(placed), tuple(map(self._partner, others))

    def _partner(self, placed: RunningPart) -> Partner:
        network = self._network(placed.network)
        batch = min(placed.batch, network.curves.max_batch)
        return Partner(
            network=placed.network,
            sm_percent=placed.sm_percent,
            batch=batch,
            duty=self.duty(placed, batch),
            memory_bound=network.memory_bound,
        )

    def duty(self, placed: RunningPart, batch: int) -> float:
        """Share of a batch's time alone in which its kernels fill the SMs that they may use, 0 to 1."""
        network, share = self._network(placed.network), self._v100_share(placed)
        kernels_ms = batch * network.work_ms_per_item * 100 / share
        # The rest of a batch is the host's, during which the GPU draws idle power.
        return min(1.0, kernels_ms / float(network.curves.batch_ms(share)[batch]))

    def _extra_delay_ms(self, replicas: int) -> float:
        """Launch delay per kernel beyond a pair's; linear beyond the measured five."""
        counts, delays = self._launch_delay.x, self._launch_delay.y
        slope = (delays[-1] - delays[-2]) / (counts[-1] - counts[-2])
        beyond = max(0.0, replicas - counts[-1]) * slope
        return float(
            self._launch_delay.at(replicas) + beyond - self._launch_delay.at(2)
        )

    def _v100_share(self, placed: RunningPart) -> float:
        clock_share = placed.clock_mhz / self._type(placed.gpu_type).max_clock_mhz
        return placed.sm_percent * clock_share * self._speed(placed).speed

    def _network(self, name: str) -> NetworkTruth:
        if name not in self._networks:
            raise TruthError(
                f"no measured curves for network {name!r}; known: {', '.join(self._networks)}"
            )
        return self._networks[name]

    def _type(self, name: str) -> TypeTruth:
        if name not in self._types:
            raise TruthError(
                f"no GPU type {name!r} to simulate; known: {', '.join(self._types)}"
            )
        return self._types[name]

    def _speed(self, placed: RunningPart) -> SpeedTruth:
        self._network(placed.network)
        self._type(placed.gpu_type)
        return self._speeds[placed.network, placed.gpu_type]


def load_truth() -> Truth:
    """Read the shipped tables."""
    return Truth(
        networks=truth_data.read_networks(),
        types=truth_data.read_types(),
        speeds=truth_data.read_speeds(),
        partners=truth_data.read_partners(),
        launch_delay=truth_data.read_launch_delay(),
        watts=truth_data.read_watts(),
        training=read_training(),
    )
