"""Make what is true and what is believed of training networks from the shared measurements.

    python -m bench.catalogue.make_training [--shared ../shared/data] [--truth DIR] [--out app/catalogue/data]

Truth: training_networks.csv, training_steps.csv (whole GPUs), training_curves.csv (SM percent of a V100) and
training_slowdown.csv (neighbours without SM limits). Belief, from readings of the truth as shipped:
training_sensitivity.csv and profiles/<network>.csv. A re-run gives the same bytes.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agents.sim.truth.truth import Truth, load_truth
from bench.catalogue.make_catalogue import (
    BYTES_PER_ITEM,
    MEMORY_BASE_MIB,
    PROFILE_HEADER,
)
from bench.catalogue.make_truth import TRUTH_DATA, speed_line
from bench.catalogue.measured import (
    CATALOGUE_DATA,
    DEFAULT_SHARED,
    CatalogueType,
    NetworkFacts,
    read_networks,
    read_types,
    write_rows,
)
from bench.catalogue.partner_belief import profile
from bench.catalogue.relative_speed import RelativeSpeed, relative_speeds
from bench.catalogue.training_belief import (
    PROFILED_NEIGHBOURS,
    Believed,
    fit_stall,
    fit_step,
    profile_lines,
    read_stall_ms,
)
from bench.catalogue.training_shape import (
    StepShape,
    step_shapes,
    uneven_steps,
)
from bench.catalogue.training_sources import SIA_CLUSTERS, SOURCES, TrainingSources

INFERENCE = "inference"
"""Stands for every inference network."""
V100, A100 = "V100-16GB", "A100-40GB"
# Weights, their gradients and Adam's two moments; feature maps and their gradients. ResNet-50 with batch 128 comes to
# 1623 + 4 * 97.5 + 128 * 2 * 42.4 = 12863 MiB; Tally measured 12685.
_PARAMETER_COPIES = 4.0
_ACTIVATION_COPIES = 2.0

Line = tuple[str | float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """One training network as it truly is."""

    network: NetworkFacts
    whole_ms: dict[int, float]
    """Step on a whole V100 by batch."""
    shapes: dict[int, StepShape]
    curves: dict[int, list[tuple[float, float]]]
    """(SM percent of a V100, step) by batch."""
    slowdowns: dict[str, tuple[float, str]]
    """By neighbour, without SM limits, and how each is known."""

    @property
    def work_ms_per_item(self) -> float:
        """Time of a whole V100 that one item needs at best."""
        return min(step_ms / batch for batch, step_ms in self.whole_ms.items())

    def memory_mib(self, batch: float) -> float:
        """Runtime, parameters with their gradients and moments, feature maps with their gradients."""
        resident_mib = MEMORY_BASE_MIB + _PARAMETER_COPIES * self.network.parameters_mib
        return resident_mib + batch * _ACTIVATION_COPIES * self.network.activations_mib


def make(shared: Path, truth: Path, out: Path) -> None:
    """Write every file below `truth` and `out`."""
    sources = TrainingSources(shared=shared)
    speeds = {speed.gpu_type: speed for speed in relative_speeds(shared, read_types())}
    trained = [_trained(sources, network) for network in sources.networks()]
    _write_truth(sources, trained, speeds, truth)
    _write_belief(sources, trained, speeds, out)


def _trained(sources: TrainingSources, network: NetworkFacts) -> Trained:
    source, name = SOURCES[network.name], network.name
    whole_ms = {batch: sources.v100_ms(name, batch) for batch in source.batches}
    shapes = step_shapes(whole_ms, source.share_exponent)
    return Trained(
        network=network,
        whole_ms=whole_ms,
        shapes=shapes,
        curves={
            batch: uneven_steps(shapes[batch], whole_ms[batch], f"{name}/{batch}")
            for batch in source.batches
        },
        slowdowns={
            INFERENCE: (sources.slowed_by_inference(name), _tally_provenance(name)),
            **{other: sources.slowed_by_training(name, other) for other in SOURCES},
        },
    )


def _tally_provenance(network: str) -> str:
    return "measured" if SOURCES[network].tally_is_same else "estimated"


def _write_truth(
    sources: TrainingSources,
    trained: list[Trained],
    speeds: dict[str, RelativeSpeed],
    out: Path,
) -> None:
    write_rows(
        out / "training_networks.csv",
        (
            "network",
            "kernels",
            "work_ms_per_item",
            "busy_w",
            "noise_cv",
            "memory_base_mib",
            "memory_per_item_mib",
            "stall_p99_ms",
        ),
        [_network_line(sources, each) for each in trained],
    )
    write_rows(
        out / "training_curves.csv",
        ("network", "batch", "sm_percent", "step_ms"),
        [
            (each.network.name, batch, share, step_ms)
            for each in trained
            for batch, curve in each.curves.items()
            for share, step_ms in curve
        ],
    )
    write_rows(
        out / "training_steps.csv",
        ("network", "gpu_type", "batch", "step_ms", "speed", "provenance"),
        [line for each in trained for line in _step_lines(sources, each, speeds)],
    )
    write_rows(
        out / "training_slowdown.csv",
        ("network", "neighbour", "slowdown", "provenance"),
        [
            *(
                (
                    INFERENCE,
                    name,
                    sources.slows_inference(name),
                    _tally_provenance(name),
                )
                for name in SOURCES
            ),
            *(
                (each.network.name, neighbour, factor, known)
                for each in trained
                for neighbour, (factor, known) in each.slowdowns.items()
            ),
        ],
    )


def _network_line(sources: TrainingSources, each: Trained) -> Line:
    name, base_mib = each.network.name, each.memory_mib(0)
    return (
        name,
        each.network.kernels,
        each.work_ms_per_item,
        sources.busy_w(name),
        sources.noise_cv(name),
        base_mib,
        each.memory_mib(1) - base_mib,
        sources.stall_p99_ms(name),
    )


def _step_lines(
    sources: TrainingSources, each: Trained, speeds: dict[str, RelativeSpeed]
) -> Iterator[Line]:
    true_speeds = {
        name: float(speed_line(each.network, speed)[2])
        for name, speed in speeds.items()
    }
    for gpu_type, speed in true_speeds.items():
        min_ms = 0.0  # scaled apart, a larger batch could come out below a smaller one
        for batch in each.whole_ms:
            step_ms, known = _whole_step(sources, each, batch, gpu_type, true_speeds)
            provenance = speeds[gpu_type].provenance if known == "scaled" else known
            min_ms = max(min_ms, step_ms)
            yield each.network.name, gpu_type, batch, min_ms, speed, provenance


def _whole_step(
    sources: TrainingSources,
    each: Trained,
    batch: int,
    gpu_type: str,
    speeds: dict[str, float],
) -> tuple[float, str]:
    """Step on a whole GPU: measured, or by Sia's ratio, or moved along the curve from the V100 or A100."""
    name = each.network.name
    if gpu_type.startswith("V100"):
        return each.whole_ms[batch], "measured"
    if (measured_ms := sources.measured_ms(name, gpu_type, batch)) is not None:
        return measured_ms, "measured"
    if (ratio := sources.slower_than_v100(name, gpu_type, batch)) is not None:
        return each.whole_ms[batch] * ratio, "scaled"
    anchor = V100 if gpu_type in SIA_CLUSTERS else A100
    anchor_ms, _ = _whole_step(sources, each, batch, anchor, speeds)
    shape = each.shapes[batch]
    return anchor_ms * shape.over(100.0 * speeds[gpu_type]) / shape.over(
        100.0 * speeds[anchor]
    ), "scaled"


def _write_belief(
    sources: TrainingSources,
    trained: list[Trained],
    speeds: dict[str, RelativeSpeed],
    out: Path,
) -> None:
    types, truth = read_types(), load_truth()
    believed = [_believed(sources, each, truth, types) for each in trained]
    networks = [*read_networks("inference"), *(each.network for each in trained)]
    partners = {
        each.name: profile(truth, networks, each, BYTES_PER_ITEM) for each in types
    }
    write_rows(
        out / "training_sensitivity.csv",
        ("network", "gpu_type", "sensitivity", "provenance"),
        [
            (
                each.network.name,
                gpu_type.name,
                partners[gpu_type.name].sensitivity(each.network.name),
                "estimated",
            )
            for each in trained
            for gpu_type in types
        ],
    )
    for each in believed:
        lines = [
            line
            for gpu_type in types
            for line in profile_lines(
                each,
                gpu_type,
                speeds[gpu_type.name],
                anchor=speeds[gpu_type.name if gpu_type.name in SIA_CLUSTERS else A100],
                partners=partners[gpu_type.name],
            )
        ]
        header = (*PROFILE_HEADER[:-1], "stall_ms", PROFILE_HEADER[-1])
        write_rows(out / "profiles" / f"{each.network.name}.csv", header, lines)


def _believed(
    sources: TrainingSources,
    each: Trained,
    truth: Truth,
    types: Sequence[CatalogueType],
) -> Believed:
    name, noise_cv = each.network.name, sources.noise_cv(each.network.name)
    return Believed(
        network=each.network,
        bytes_per_item=SOURCES[name].bytes_per_item,
        memory_mib={batch: each.memory_mib(batch) for batch in each.whole_ms},
        steps={
            batch: fit_step(dict(curve), noise_cv, f"{name}/{batch}")
            for batch, curve in each.curves.items()
        },
        work_ms_per_item=each.work_ms_per_item,
        busy_w=sources.busy_w(name),
        stall_ms=fit_stall(
            {
                percent: read_stall_ms(truth, name, percent, types[0])
                for percent in PROFILED_NEIGHBOURS
            },
            name,
        ),
        levels={
            (gpu_type, batch): ratio
            for gpu_type in SIA_CLUSTERS
            for batch in each.whole_ms
            if (ratio := _ratio(sources, each, gpu_type, batch)) is not None
        },
    )


def _ratio(
    sources: TrainingSources, each: Trained, gpu_type: str, batch: int
) -> float | None:
    """Published step on a whole GPU over the V100's; None where nothing was."""
    if gpu_type.startswith("V100"):
        return 1.0
    measured_ms = sources.measured_ms(each.network.name, gpu_type, batch)
    if measured_ms is not None:
        return measured_ms / each.whole_ms[batch]
    return sources.slower_than_v100(each.network.name, gpu_type, batch)


def main() -> None:
    """Read the three folders from the command line and make the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", type=Path, default=DEFAULT_SHARED)
    parser.add_argument("--truth", type=Path, default=TRUTH_DATA)
    parser.add_argument("--out", type=Path, default=CATALOGUE_DATA)
    arguments = parser.parse_args()
    make(arguments.shared, arguments.truth, arguments.out)


if __name__ == "__main__":
    main()
