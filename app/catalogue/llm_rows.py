"""How a language model's service may run on GPU types, by what ships: architectures, data sheets, measured servers."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, lru_cache

from app.catalogue.catalogue import CatalogueError
from app.catalogue.language_models import (
    find_architecture,
    full_name,
    load_hardware,
    load_runs,
)
from app.solver.llm_rows import RowInterval, RowsAnswer, RowsRequest
from solvers.llm.architecture import Architecture, Precision
from solvers.llm.config_json import architecture_from_config, precision_from_config
from solvers.llm.correction import StepBeliefs
from solvers.llm.hardware import LlmHardware
from solvers.llm.lengths import LengthTable, MeanLengths, length_table
from solvers.llm.measured import RunConditions
from solvers.llm.sizing import DEGREES, Sized, SizeLimit, SizeRequest, size
from solvers.types.errors import InvalidInput
from solvers.types.llm import LlmPoints, LlmRow
from solvers.types.plan import WHOLE_GPU
from solvers.types.state import GpuType

CLIENTS = 32.0
"""A batch at which engines are often run: measured servers speak of other batches, too, but less surely."""
_POWER_SHARE = 0.73
"""Of its limit a GPU draws while it serves a language model, in the middle of what H100s were measured at: 450 to 570
of 700 W (ML.ENERGY's benchmark of vLLM)."""
_READ_BYTES_PER_S = 2e9
"""Weights come from a local disk about so fast."""
_ENGINE_START_S = 40.0
"""For processes, graph capture and warm-up, on top of that."""
_MIB_PER_GIB = 1024.0
_WHY = {
    SizeLimit.WEIGHTS: "its weights do not fit",
    SizeLimit.CONTEXT: "its cache does not hold the longest request: lower max_model_len",
    SizeLimit.TTFT: "even a request alone waits longer than ttft_ms for its first token: raise it",
    SizeLimit.ITL: "one step takes longer than itl_ms: raise it",
}


@lru_cache(maxsize=1024)
def make_rows(request: RowsRequest) -> RowsAnswer:
    """All ways to run the service: what each carries, how surely, and why others carry nothing."""
    try:
        network, published = _network(request)
        lengths = _lengths(request)
    except (CatalogueError, InvalidInput, ValueError) as error:
        return RowsAnswer(lacks=(str(error),))
    precision = request.terms.precision or published
    hardware, lacks = _hardware(request.gpu_types)
    asked = SizeRequest(
        network=network,
        precision=precision,
        lengths=lengths,
        slo=request.slo,
        beliefs={
            (name, tp): _beliefs().of(
                _conditions(request.network, precision, lengths, name, tp)
            )
            for name in hardware
            for tp in DEGREES
        },
    )
    sized = [
        each for each in size(asked, hardware) if request.terms.tp in (None, each.tp)
    ]
    start_s = _ENGINE_START_S + network.weight_bytes(precision) / _READ_BYTES_PER_S
    points = tuple(
        found
        for gpu_type in request.gpu_types
        if (found := _points(request, gpu_type, sized, start_s)).rows
    )
    return RowsAnswer(
        points=points,
        intervals=tuple(
            RowInterval(each.gpu_type, each.tp, *each.interval_rps)
            for each in sized
            if each.limit is None
        ),
        lacks=(*lacks, *_lacking(hardware, sized)),
    )


def _network(request: RowsRequest) -> tuple[Architecture, Precision]:
    """The network and the precision of its published weights."""
    if not request.config:
        return find_architecture(request.network), "bf16"
    document = json.loads(request.config)
    return architecture_from_config(document), precision_from_config(document)


def _lengths(request: RowsRequest) -> LengthTable:
    terms = request.terms
    means = MeanLengths(
        prompt=terms.prompt_tokens, output=terms.output_tokens, spread=terms.spread
    )
    return length_table(means, longest=terms.max_model_len)


def _hardware(
    gpu_types: Sequence[GpuType],
) -> tuple[dict[str, LlmHardware], tuple[str, ...]]:
    """What each type offers, and what is not known of others, in words."""
    shipped = load_hardware()
    found, lacks = {}, []
    for each in gpu_types:
        known = shipped.get(each.name)
        if each.llm is not None:
            known = LlmHardware(
                memory_gib=each.memory_mib / _MIB_PER_GIB,
                memory_gb_per_s=each.llm.memory_gb_per_s,
                bf16_tflops=each.llm.bf16_tflops,
                fp8_tflops=each.llm.fp8_tflops,
                fp4_tflops=each.llm.fp4_tflops,
                link_gb_per_s=each.llm.link_gb_per_s,
                # Its kernels are those that were measured, whatever its owner states of its links.
                efficiency=None if known is None else known.efficiency,
            )
        if known is None:
            lacks.append(
                f"nothing is known of {each.name} for language models: state llm in its GpuType"
            )
            continue
        if each.gpus_per_node > 1 and known.link_gb_per_s is None:
            lacks.append(
                f"no link between {each.name}s is known, so that replicas span one: state llm.link_gb_per_s in its "
                "GpuType"
            )
        found[each.name] = replace(
            known,
            memory_gib=each.memory_mib / _MIB_PER_GIB,
            gpus_per_node=each.gpus_per_node,
        )
    return found, tuple(lacks)


def _conditions(
    network: str,
    precision: Precision,
    lengths: LengthTable,
    gpu_type: str,
    tp: int,
) -> RunConditions:
    return RunConditions(
        network=full_name(network),
        runtime="vllm",
        gpu_type=gpu_type,
        precision=precision,
        tp=tp,
        clients=CLIENTS,
        prompt=lengths.mean_prompt,
        output=lengths.mean_output,
    )


@cache
def _beliefs() -> StepBeliefs:
    """What measured servers say; a second, once."""
    return StepBeliefs(load_runs())


def _points(
    request: RowsRequest, gpu_type: GpuType, sized: Sequence[Sized], start_s: float
) -> LlmPoints:
    of_type = [
        each
        for each in sized
        if each.gpu_type == gpu_type.name and each.capacity_rps > 0.0
    ]
    watts = max(0.0, _POWER_SHARE * gpu_type.power_cap_w - gpu_type.idle_w)
    rows = tuple(
        LlmRow(
            tp=each.tp,
            max_num_batched_tokens=each.limits.max_num_batched_tokens,
            max_num_seqs=each.limits.max_num_seqs,
            sm_percent=WHOLE_GPU,
            clock_mhz=gpu_type.clocks_mhz[-1],
            capacity_rps=each.capacity_rps,
            memory_mib_per_gpu=each.memory_mib_per_gpu,
            power_w_per_gpu=watts,
            start_s=start_s,
        )
        for each in of_type
    )
    is_calibrated = bool(of_type) and all(
        each.provenance == "calibrated" for each in of_type
    )
    return LlmPoints(
        service=request.service,
        gpu_type=gpu_type.name,
        network=request.network,
        provenance="calibrated" if is_calibrated else "predicted",
        rows=rows,
    )


def _lacking(hardware: dict[str, LlmHardware], sized: Sequence[Sized]) -> Iterator[str]:
    """Why GPU types carry nothing: what stops the largest replica, which is the last to fail."""
    for name in hardware:
        of_type = [each for each in sized if each.gpu_type == name]
        if not of_type or any(each.capacity_rps > 0.0 for each in of_type):
            continue
        largest = of_type[-1]
        if largest.limit is not None:
            yield f"on {largest.tp} × {name} {_WHY[largest.limit]}"
