"""Language models and what GPU types offer them, as shipped: architectures, data sheets, kernel efficiencies."""

import csv
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from importlib import resources
from typing import cast

from app.catalogue.catalogue import CatalogueError
from solvers.llm.architecture import (
    Architecture,
    CompressedKeys,
    Experts,
    Precision,
)
from solvers.llm.hardware import KernelEfficiency, LlmHardware
from solvers.llm.lengths import LengthTable
from solvers.llm.measured import MeasuredRun, RunConditions
from solvers.llm.step_law import LlmEngine, Runtime
from solvers.types.llm import StatedRun

Row = Mapping[str, str]
SLICE_MARK = "-MIG-"
"""Between a GPU type and the profile of a slice of it, in the names of slices' types."""
_SLICE = re.compile(r"([1-9])g\.([0-9]{1,3})gb.*")
_MEMORY_PARTS = 8
_USUAL_COMPUTE_PARTS = 7
_COMPUTE_PARTS = {"RTX-PRO-6000": 4}
_CLIENTS = 32.0
"""A batch at which engines are often run: measured servers speak of other batches, too, but less surely."""
_EFFICIENCIES = (
    "gemm_bandwidth",
    "gemm_flops",
    "expert_bandwidth",
    "expert_flops",
    "prompt_attention_flops",
    "decode_attention_bandwidth",
)


def load_architectures() -> Mapping[str, Architecture]:
    """Every shipped network's architecture, by the network's name at its publisher."""
    return {row["model"]: _architecture(row) for row in _rows("llm_networks.csv")}


def load_hardware() -> Mapping[str, LlmHardware]:
    """What language models find on each shipped GPU type, by the type's name."""
    # A type whose kernels were not measured borrows those of its generation, or has none.
    kernels = _efficiencies()
    return {
        row["name"]: _hardware(row, kernels.get(row["kernels"]))
        for row in _rows("llm_gpu_types.csv")
    }


def find_hardware(name: str) -> LlmHardware | None:
    """What a shipped GPU type of that name offers, or a slice of one (MIG), such as `H100-MIG-3g.40gb`; None: no such.

    Language models were not measured in slices: they are taken for as many parts of the GPU as their names say.
    """
    gpu_type, _, profile = name.partition(SLICE_MARK)
    gpu = load_hardware().get(gpu_type)
    if gpu is None or not profile:
        return gpu
    parts = _SLICE.fullmatch(profile)
    # A profile that NVIDIA has no such name for is none.
    if parts is None:
        return None
    compute_parts = _COMPUTE_PARTS.get(gpu_type, _USUAL_COMPUTE_PARTS)
    compute = min(1.0, int(parts[1]) / compute_parts)
    memory_gb = float(parts[2])
    return _slice(gpu, compute, memory_gb)


def _slice(gpu: LlmHardware, compute: float, memory_gb: float) -> LlmHardware:
    """A part of the GPU's SMs, and so much of its memory."""
    # NVIDIA cuts memory, with its bandwidth, into eight parts, whatever the gigabytes are rounded to.
    parts = round(_MEMORY_PARTS * memory_gb / gpu.memory_gib)
    memory = min(max(1, parts), _MEMORY_PARTS) / _MEMORY_PARTS
    return replace(
        gpu,
        memory_gib=gpu.memory_gib * memory,
        memory_gb_per_s=gpu.memory_gb_per_s * memory,
        bf16_tflops=gpu.bf16_tflops * compute,
        fp8_tflops=gpu.fp8_tflops and gpu.fp8_tflops * compute,
        fp4_tflops=gpu.fp4_tflops and gpu.fp4_tflops * compute,
        # No program spans slices.
        link_gb_per_s=None,
        gpus_per_node=1,
    )


def load_runs() -> tuple[MeasuredRun, ...]:
    """The measured servers that ship with the catalogue."""
    # Once for all rows: each names one of few networks and GPU types.
    networks, hardware = load_architectures(), load_hardware()
    return tuple(_run(row, networks, hardware) for row in _rows("llm_runs.csv"))


def _run(
    row: Row,
    networks: Mapping[str, Architecture],
    hardware: Mapping[str, LlmHardware],
) -> MeasuredRun:
    conditions = RunConditions(
        network=row["network"],
        runtime=cast(Runtime, row["runtime"]),
        gpu_type=row["gpu_type"],
        precision=cast(Precision, row["precision"]),
        tp=int(row["tp"]),
        clients=float(row["clients"]),
        prompt=float(row["prompt"]),
        output=float(row["output"]),
    )
    engine = LlmEngine(
        network=networks[row["network"]],
        hardware=hardware[row["gpu_type"]],
        precision=conditions.precision,
        tp=conditions.tp,
        runtime=conditions.runtime,
    )
    return MeasuredRun(
        engine=engine, conditions=conditions, tpot_ms=float(row["tpot_ms"])
    )


def full_name(name: str) -> str:
    """The shipped network's name at its publisher; the same for one that is not shipped."""
    # People leave the publisher out, and no two shipped networks differ in it alone.
    short = {full.partition("/")[2].lower(): full for full in load_architectures()}
    return short.get(name.lower(), name)


def usual_conditions(
    network: str, precision: Precision, lengths: LengthTable, gpu_type: str, tp: int
) -> RunConditions:
    """How a replica is run of which nothing more is known."""
    return RunConditions(
        network=full_name(network),
        runtime="vllm",
        gpu_type=gpu_type,
        precision=precision,
        tp=tp,
        clients=_CLIENTS,
        prompt=lengths.mean_prompt,
        output=lengths.mean_output,
    )


def stated_runs(
    runs: Iterable[StatedRun],
    name: str,
    network: Architecture,
    lengths: LengthTable,
) -> Iterator[MeasuredRun]:
    """Benchmarks of the network's servers, of GPU types of which anything is known."""
    for run in runs:
        hardware = find_hardware(run.gpu_type)
        if hardware is None:
            continue
        # Whatever its owner's server is called, the network is the one that is asked for.
        usual = usual_conditions(name, run.precision, lengths, run.gpu_type, run.tp)
        yield MeasuredRun(
            engine=LlmEngine(
                network=network,
                hardware=hardware,
                precision=run.precision,
                tp=run.tp,
            ),
            conditions=replace(
                usual,
                clients=run.clients,
                prompt=run.prompt_tokens,
                output=run.output_tokens,
            ),
            tpot_ms=run.tpot_ms,
        )


def shipped_names() -> tuple[str, ...]:
    """Names of the shipped networks without their publishers', as services name them."""
    names = (full.partition("/")[2] for full in load_architectures())
    return tuple(sorted(names))


def is_shipped(name: str) -> bool:
    """Whether a network of that name ships."""
    return full_name(name) in load_architectures()


def find_architecture(name: str) -> Architecture:
    """The shipped network of that name, with or without its publisher's. Raises CatalogueError."""
    known = load_architectures()
    full = full_name(name)
    if full not in known:
        raise CatalogueError(
            f"the catalogue has no language model {name!r}; give its config.json, or one of {', '.join(sorted(known))}"
        )
    return known[full]


def _architecture(row: Row) -> Architecture:
    has_experts = row["experts"] != "0"
    is_compressed = row["attention"] == "mla"
    return Architecture(
        layers=int(row["layers"]),
        hidden=int(row["hidden"]),
        heads=int(row["heads"]),
        kv_heads=int(row["kv_heads"]),
        head_dim=int(row["head_dim"]),
        vocab=int(row["vocab"]),
        dense_layers=int(row["dense_layers"]),
        dense_intermediate=int(row["dense_intermediate"]),
        full_attention_layers=int(row["full_attention_layers"]),
        experts=_experts(row) if has_experts else None,
        compressed_keys=_compressed_keys(row) if is_compressed else None,
        # As published: hybrid layers have parts that the shape does not tell.
        total_parameters=float(row["total_b"]) * 1e9,
    )


def _experts(row: Row) -> Experts:
    return Experts(
        count=int(row["experts"]),
        per_token=int(row["experts_per_token"]),
        intermediate=int(row["expert_intermediate"]),
        shared=int(row["shared_experts"]),
    )


def _compressed_keys(row: Row) -> CompressedKeys:
    return CompressedKeys(
        kv_rank=int(row["mla_kv_rank"]),
        rope_dim=int(row["mla_rope_dim"]),
        q_rank=int(row["mla_q_rank"]),
        nope_dim=int(row["mla_nope_dim"]),
        v_dim=int(row["mla_v_dim"]),
    )


def _hardware(
    row: Row, kernels: Mapping[Precision, KernelEfficiency] | None
) -> LlmHardware:
    return LlmHardware(
        memory_gib=float(row["memory_gib"]),
        memory_gb_per_s=float(row["memory_gb_per_s"]),
        bf16_tflops=float(row["bf16_tflops"]),
        fp8_tflops=_number(row["fp8_tflops"]),
        fp4_tflops=_number(row["fp4_tflops"]),
        link_gb_per_s=_number(row["link_gb_per_s"]),
        gpus_per_node=int(row["gpus_per_node"]),
        efficiency=kernels,
    )


def _number(text: str) -> float | None:
    return float(text) if text else None


def _efficiencies() -> Mapping[str, Mapping[Precision, KernelEfficiency]]:
    """By the name of the measured system and by precision."""
    found: defaultdict[str, dict[Precision, KernelEfficiency]] = defaultdict(dict)
    for row in _rows("llm_efficiency.csv"):
        precision = cast(Precision, row["precision"])
        # Experts of one precision were not measured on one type: they are as those of its other precisions.
        plain = found[row["system"]].get("bf16")
        figures = {
            name: float(row[name]) if row[name] else getattr(plain, name)
            for name in _EFFICIENCIES
        }
        found[row["system"]][precision] = KernelEfficiency(**figures)
    return found


def _rows(name: str) -> Iterator[Row]:
    text = (resources.files("app.catalogue") / "data" / name).read_text()
    yield from csv.DictReader(text.splitlines())
