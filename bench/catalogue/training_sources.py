"""What was measured of training: steps, pairs, slowdown of inference, watts and noise, by network.

Networks that a source lacks read its most alike job; `SOURCES` says which, and app/catalogue/SOURCES.md why.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import geometric_mean, median

import numpy as np

from bench.catalogue.measured import NetworkFacts, read_networks, rows
from bench.catalogue.watts import V100_IDLE_W, V100_LIMIT_W

SAME_BATCH = 0.04
"""Relative difference up to which a source's batch counts as ours: Sia measured 129, 257 and 33 for 128, 256 and 32."""
SIA_CLUSTERS = {
    "T4": "aws",
    "RTX-2080-Ti": "rtx",
    "V100-16GB": "azure",
    "V100-32GB": "azure",
    "A100-40GB": "dgx-ext",
}
ANY = "any"
# MISO's A100 40 GB: 400 W, 52 W when idle with a context loaded (gpu_types.csv).
_A100_IDLE_W, _A100_LIMIT_W = 52.0, 400.0
# 5th to 95th percentile of a normal distribution spans 2 * 1.645 standard deviations.
_SPAN_IN_DEVIATIONS = 3.29


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSource:
    """Where the figures of one training network are read, as each source calls it; "" = it has nothing alike."""

    batches: tuple[int, ...]
    gavel: str = ""
    sia: str = ""
    sia_ratios_only: bool = False
    """Sia ran the job otherwise (mixed precision): its times count only relative to its own V100's."""
    tally: str
    tally_is_same: bool = False
    """Tally trained this very network, no substitute."""
    miso: str = ""
    zeus: str = ""
    bytes_per_item: float
    share_exponent: float
    """How work shrinks with more SMs: 1 in proportion, less where memory bandwidth binds (MISO's slices: 0.75 to 1)."""


_IMAGE = 602112.0  # 3 x 224 x 224 float32
_SMALL_IMAGE = 12288.0  # 3 x 32 x 32 float32

SOURCES = {
    "resnet18-training": TrainingSource(
        batches=(32, 64, 128, 256),
        gavel="ResNet-18",
        sia="cifar10",
        tally="resnet50",
        miso="resnet",
        bytes_per_item=_SMALL_IMAGE,
        share_exponent=0.93,
    ),
    "resnet50-training": TrainingSource(
        batches=(16, 32, 64, 128),
        gavel="ResNet-50",
        sia="imagenet",
        sia_ratios_only=True,
        tally="resnet50",
        tally_is_same=True,
        miso="resnet",
        zeus="resnet50",
        bytes_per_item=_IMAGE,
        share_exponent=0.95,
    ),
    "lm-training": TrainingSource(
        batches=(5, 10, 20, 40, 80),
        gavel="LM",
        tally="whisper-large-v3",
        zeus="deepspeech2",
        bytes_per_item=280.0,  # 35 tokens of 8 bytes
        share_exponent=0.82,
    ),
    "transformer-training": TrainingSource(
        # Gavel's 256 takes 3.5 times as long as 128: out of memory's easy reach, left out.
        batches=(16, 32, 64, 128),
        gavel="Transformer",
        tally="pegasus-x-base",
        miso="transformer",
        bytes_per_item=480.0,  # 2 x 30 tokens of 8 bytes
        share_exponent=0.97,
    ),
    "recommendation-training": TrainingSource(
        batches=(512, 1024, 2048, 4096, 8192),
        gavel="Recommendation",
        tally="pointnet",
        miso="embedding",
        bytes_per_item=1200.0,  # some 150 item numbers of 8 bytes
        share_exponent=0.78,
    ),
    "cyclegan-training": TrainingSource(
        batches=(1,),
        gavel="CycleGAN",
        tally="gpt2-large",
        miso="cyclegan",
        bytes_per_item=1572864.0,  # two of 3 x 256 x 256 float32
        share_exponent=0.95,
    ),
    "bert-training": TrainingSource(
        batches=(4, 8, 16, 32),
        sia="bert",
        tally="bert",
        tally_is_same=True,
        miso="bert",
        zeus="bert_base_uncased",
        bytes_per_item=3072.0,  # 384 tokens of 8 bytes
        share_exponent=0.97,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSources:
    """The shared data folder, read by training network."""

    shared: Path

    def networks(self) -> tuple[NetworkFacts, ...]:
        """The training networks of networks.csv, each with a source above."""
        found = read_networks("training")
        assert {network.name for network in found} == set(SOURCES)
        return found

    def v100_ms(self, network: str, batch: int) -> float:
        """Measured step on a whole V100: Gavel's where it has the network, else Sia's."""
        source = SOURCES[network]
        if not source.gavel:
            return self._sia_at(source, "V100-16GB")[batch]
        for row in _cached(self.shared / "gavel_training" / "solo_throughput.csv"):
            one_gpu = (
                row["gpu"] == "v100"
                and row["consolidated"] == "1"
                and row["num_gpus"] == "1"
            )
            if (
                one_gpu
                and row["model"] == source.gavel
                and row["batch"] in ("", str(batch))
            ):
                return 1000.0 / float(row["steps_per_s"])
        raise LookupError(f"Gavel has no {network} with batch {batch}")

    def measured_ms(self, network: str, gpu_type: str, batch: int) -> float | None:
        """Measured step on another whole GPU, where Sia ran the same job with that batch."""
        source = SOURCES[network]
        if not source.sia or source.sia_ratios_only or gpu_type not in SIA_CLUSTERS:
            return None
        return self._sia_at(source, gpu_type).get(batch)

    def slower_than_v100(self, network: str, gpu_type: str, batch: int) -> float | None:
        """Sia's step on that type over its step on a V100, at the batch in question, where Sia has both."""
        source = SOURCES[network]
        if not source.sia or gpu_type not in SIA_CLUSTERS:
            return None
        ours, v100 = self._sia(source.sia, gpu_type), self._sia(source.sia, "V100-16GB")
        common = sorted(set(ours) & set(v100))
        return float(
            np.interp(batch, common, [ours[each] / v100[each] for each in common])
        )

    def _sia_at(self, source: TrainingSource, gpu_type: str) -> dict[int, float]:
        steps = self._sia(source.sia, gpu_type)
        near = {
            ours: min(steps, key=lambda theirs: abs(theirs - ours))
            for ours in source.batches
        }
        return {
            ours: steps[theirs]
            for ours, theirs in near.items()
            if abs(theirs - ours) <= SAME_BATCH * ours
        }

    def _sia(self, name: str, gpu_type: str) -> dict[int, float]:
        """Median over scales of the step without its synchronisation, in ms by batch."""
        steps: dict[int, list[float]] = {}
        for row in _cached(self.shared / "sia_training" / "step_time.csv"):
            if row["gpu_cluster"] == SIA_CLUSTERS[gpu_type] and row["model"] == name:
                steps.setdefault(int(row["local_batch"]), []).append(
                    float(row["step_s"]) - float(row["sync_s"])
                )
        return {
            batch: 1000.0 * median(seconds) for batch, seconds in sorted(steps.items())
        }

    def slows_inference(self, network: str) -> float:
        """By how much training without an SM limit slows inference: Tally's MPS averages over both its services."""
        return geometric_mean(
            [float(row["slowdown_avg"]) for row in self._tally(network)]
        )

    def stall_p99_ms(self, network: str) -> float:
        """What the 99th percentile of a short service gains beyond its mean slowdown (Tally's BERT, no SM limit).

        Services whose batches take seconds do not feel it: it is the time of the training network's longest kernels.
        """
        short = min(self._tally(network), key=lambda row: float(row["alone_avg_ms"]))
        slowed_ms = float(short["slowdown_avg"]) * float(short["alone_p99_ms"])
        return float(short["shared_p99_ms"]) - slowed_ms

    def slowed_by_inference(self, network: str) -> float:
        """By how much inference at half load slows training: one over Tally's relative throughput."""
        return geometric_mean(
            [
                1.0 / float(row["training_rel_throughput"])
                for row in self._tally(network)
            ]
        )

    def _tally(self, network: str) -> list[dict[str, str]]:
        pairs = _cached(self.shared / "tally_infer_train" / "pairs_a100.csv")
        name = SOURCES[network].tally
        return [
            row
            for row in pairs
            if row["sharing"] == "mps" and row["training_model"] == name
        ]

    def slowed_by_training(self, network: str, neighbour: str) -> tuple[float, str]:
        """By how much another training job on the GPU slows one (Gavel, V100, both unlimited), and how that is known.

        Median over all batches of the pair; estimated from all neighbours of the network, or from all pairs, where
        the pair was not measured. Jobs that seem to gain are counted as unchanged.
        """
        rates = self._pair_rates()
        ours, other = SOURCES[network].gavel or ANY, SOURCES[neighbour].gavel or ANY
        if (ours, other) in rates and ANY not in (ours, other):
            return 1.0 / median(rates[ours, other]), "measured"
        return 1.0 / median(rates.get((ours, ANY), rates[ANY, ANY])), "estimated"

    def _pair_rates(self) -> dict[tuple[str, str], list[float]]:
        rates: dict[tuple[str, str], list[float]] = {}
        for row in _cached(self.shared / "gavel_training" / "pair_throughput.csv"):
            is_one_v100 = (
                row["gpu"] == "v100" and row["num_gpus_a"] == row["num_gpus_b"] == "1"
            )
            if not is_one_v100 or row["both_zero"] == "1":
                continue
            for ours, other in (("a", "b"), ("b", "a")):
                rate = min(
                    1.0,
                    float(row[f"steps_per_s_{ours}"])
                    / float(row[f"solo_steps_per_s_{ours}"]),
                )
                name, neighbour = row[f"model_{ours}"], row[f"model_{other}"]
                for key in ((name, neighbour), (name, ANY), (ANY, ANY)):
                    rates.setdefault(key, []).append(rate)
        return rates

    def busy_w(self, network: str) -> float:
        """Watts above idle of a whole busy V100: Zeus' at 250 W, else MISO's A100 moved to a V100's range."""
        source = SOURCES[network]
        if source.zeus:
            readings = _cached(self.shared / "zeus_power" / "epoch_time_power.csv")
            watts = [
                float(row["avg_power_w"])
                for row in readings
                if row["gpu"] == "v100"
                and row["network"] == source.zeus
                and row["power_limit_w"] == "250"
            ]
            return median(watts) - V100_IDLE_W
        utilisation = _cached(self.shared / "miso_mig" / "full_gpu_utilisation.csv")
        watts = [
            float(row["power_w"]) for row in utilisation if row["model"] == source.miso
        ]
        return (
            (max(watts) - _A100_IDLE_W)
            * (V100_LIMIT_W - V100_IDLE_W)
            / (_A100_LIMIT_W - _A100_IDLE_W)
        )

    def noise_cv(self, network: str) -> float:
        """Standard deviation over the mean of one step, from MISO's percentiles on the whole A100 (pooled for LM)."""
        name = SOURCES[network].miso
        spread = [
            (float(row["p95_step_s"]) - float(row["p5_step_s"]))
            / _SPAN_IN_DEVIATIONS
            / float(row["median_step_s"])
            for row in _cached(
                self.shared / "miso_mig" / "train_step_time_by_slice.csv"
            )
            if row["mig_slice"] == "7g.40gb" and name in ("", row["model"])
        ]
        return median(spread)


@cache
def _cached(path: Path) -> list[dict[str, str]]:
    return [dict(row) for row in rows(path)]
