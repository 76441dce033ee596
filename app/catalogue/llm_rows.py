"""How a language model's service may run on GPU types, by what ships: architectures, data sheets, measured servers."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache

from app.catalogue.catalogue import CatalogueError
from app.catalogue.known_networks import shipped_network
from app.catalogue.language_models import (
    SLICE_MARK,
    find_hardware,
    load_runs,
    stated_runs,
    usual_conditions,
)
from app.solver.llm_rows import RowInterval, RowsAnswer, RowsRequest
from solvers.llm.architecture import Architecture, Precision
from solvers.llm.belief import StepBelief
from solvers.llm.config_json import StatedNetwork, read_config
from solvers.llm.configs.context import refuse_longer
from solvers.llm.correction import StepBeliefs
from solvers.llm.hardware import LlmHardware
from solvers.llm.lengths import LengthTable, MeanLengths, length_table
from solvers.llm.measured import MeasuredRun, RunConditions
from solvers.llm.sizing import DEGREES, Sized, SizeLimit, SizeRequest, size
from solvers.llm.step_law import LlmEngine
from solvers.types.errors import InvalidInput
from solvers.types.llm import LlmPoints, LlmRow, Provenance, ServedSpeed
from solvers.types.plan import ALL_SMS
from solvers.types.state import GpuType

POWER_SHARE = 0.73
"""The share of its limit that a GPU draws while it serves a language model: H100s were measured at 450 to 570 of 700 W
(ML.ENERGY's benchmark of vLLM)."""
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
        stated = _network(request)
        refuse_longer(stated.context, request.terms.max_model_len)
        lengths = _lengths(request)
    except (CatalogueError, InvalidInput, ValueError) as error:
        return RowsAnswer(lacks=(str(error),))
    network = stated.architecture
    precision = request.terms.precision or stated.precision
    hardware = _hardware(request.gpu_types)
    asked = SizeRequest(
        network=network,
        precision=precision,
        lengths=lengths,
        slo=request.slo,
        beliefs=_known(request, network, precision, lengths, hardware),
        running={
            (each.gpu_type, each.tp): each.max_num_batched_tokens
            for each in request.served
        },
    )
    start_s = usual_start_s(network, precision)
    return _answer(request, size(asked, hardware), start_s)


def usual_start_s(network: Architecture, precision: Precision) -> float:
    """Seconds until a replica serves, where no start was observed."""
    return _ENGINE_START_S + network.weight_bytes(precision) / _READ_BYTES_PER_S


def _answer(
    request: RowsRequest,
    all_sized: Sequence[Sized],
    start_s: float,
) -> RowsAnswer:
    tp = request.terms.tp
    # Where one degree is asked for the others are no choice.
    sized = [each for each in all_sized if tp in (None, each.tp)]
    rows = (_points(request, each, sized, start_s) for each in request.gpu_types)
    intervals = (
        RowInterval(each.gpu_type, each.tp, *each.interval_rps)
        for each in sized
        if each.limit is None
    )
    return RowsAnswer(
        points=tuple(points for points in rows if points.rows),
        intervals=tuple(intervals),
        lacks=(*_unknown(request.gpu_types), *_lacking(sized)),
        lengths=request.lengths,
    )


def _known(
    request: RowsRequest,
    network: Architecture,
    precision: Precision,
    lengths: LengthTable,
    hardware: Mapping[str, LlmHardware],
) -> dict[tuple[str, int], StepBelief]:
    """What measured servers say of steps, and the service's own replicas, by GPU type and degree."""

    def conditions(gpu_type: str, tp: int) -> RunConditions:
        return usual_conditions(request.network, precision, lengths, gpu_type, tp)

    served = [
        _served_run(
            each, network, hardware[each.gpu_type], conditions(each.gpu_type, each.tp)
        )
        for each in request.served
        if each.gpu_type in hardware
    ]
    stated = list(stated_runs(request.stated.runs, request.network, network, lengths))
    beliefs = _beliefs().with_stated(stated).with_served(served)
    places = [(name, tp) for name in hardware for tp in DEGREES]
    known = beliefs.of_each([conditions(*place) for place in places])
    return dict(zip(places, known, strict=True))


def _served_run(
    speed: ServedSpeed,
    network: Architecture,
    hardware: LlmHardware,
    usual: RunConditions,
) -> MeasuredRun:
    """What a service's own replicas were measured at, as if by that number of clients."""
    conditions = replace(
        usual,
        clients=speed.sequences,
        budget=float(speed.max_num_batched_tokens),
    )
    engine = LlmEngine(
        network=network, hardware=hardware, precision=usual.precision, tp=speed.tp
    )
    return MeasuredRun(engine=engine, conditions=conditions, tpot_ms=speed.itl_ms)


def _network(request: RowsRequest) -> StatedNetwork:
    """By its own configuration, else the one that ships."""
    config = request.stated.config
    return (
        read_config(json.loads(config)) if config else shipped_network(request.network)
    )


def _lengths(request: RowsRequest) -> LengthTable:
    """As counted, where that is known and wanted, else as stated."""
    terms, served = request.terms, request.lengths
    if served is None:
        means = MeanLengths(
            prompt=terms.prompt_tokens, output=terms.output_tokens, spread=terms.spread
        )
        return length_table(means, longest=terms.max_model_len)
    # Counted over hours in which max_model_len may have been another one: what exceeds it now is refused.
    output = min(served.output, terms.max_model_len / 2)
    prompt = min(served.prompt, terms.max_model_len - output)
    means = MeanLengths(prompt=prompt, output=output, spread=terms.spread)
    table = length_table(means, longest=terms.max_model_len)
    return replace(table, found_share=served.found_share)


def _hardware(gpu_types: Sequence[GpuType]) -> dict[str, LlmHardware]:
    """What each type offers of which anything is known."""
    found = {}
    for each in gpu_types:
        known = _of_type(each)
        if known is not None:
            found[each.name] = replace(
                known,
                memory_gib=each.memory_mib / _MIB_PER_GIB,
                gpus_per_node=each.gpus_per_node,
            )
    return found


def _of_type(gpu_type: GpuType) -> LlmHardware | None:
    """As its owner states it, else as shipped for a type of that name."""
    shipped = find_hardware(gpu_type.name)
    stated = gpu_type.llm
    if stated is None:
        return shipped
    return LlmHardware(
        memory_gib=gpu_type.memory_mib / _MIB_PER_GIB,
        memory_gb_per_s=stated.memory_gb_per_s,
        bf16_tflops=stated.bf16_tflops,
        fp8_tflops=stated.fp8_tflops,
        fp4_tflops=stated.fp4_tflops,
        link_gb_per_s=stated.link_gb_per_s,
        # Its kernels are those that were measured, whatever its owner states of its links.
        efficiency=None if shipped is None else shipped.efficiency,
    )


def _unknown(gpu_types: Sequence[GpuType]) -> Iterator[str]:
    """What is not known of GPU types, in words."""
    for each in gpu_types:
        known = _of_type(each)
        if known is None:
            yield f"nothing is known of {each.name} for language models: state llm in its GpuType"
        elif (
            each.gpus_per_node > 1
            and known.link_gb_per_s is None
            and SLICE_MARK not in each.name
        ):
            yield (
                f"no link between {each.name}s is known, so that a replica spans one alone: state "
                "llm.link_gb_per_s in its GpuType"
            )


@cache
def _beliefs() -> StepBeliefs:
    """What measured servers say; a second, once."""
    return StepBeliefs(load_runs())


def _points(
    request: RowsRequest,
    gpu_type: GpuType,
    sized: Sequence[Sized],
    start_s: float,
) -> LlmPoints:
    of_type = [
        each
        for each in sized
        if each.gpu_type == gpu_type.name and each.capacity_rps > 0.0
    ]
    return LlmPoints(
        service=request.service,
        gpu_type=gpu_type.name,
        network=request.network,
        provenance=provenance_of(gpu_type.name, of_type),
        rows=tuple(row_of(each, gpu_type, start_s) for each in of_type),
    )


def provenance_of(gpu_type: str, sized: Iterable[Sized]) -> Provenance:
    """That of all ways to run on a GPU type: the least certain one counts."""
    kinds = {each.provenance for each in sized}
    if kinds == {"calibrated"}:
        return "calibrated"
    # A language model was never measured in a slice, whatever its network and type.
    if SLICE_MARK in gpu_type:
        return "unmeasured"
    return "predicted"


def row_of(
    sized: Sized,
    gpu_type: GpuType,
    start_s: float,
) -> LlmRow:
    """The contract's row of one way to run a replica."""
    watts = POWER_SHARE * gpu_type.power_cap_w - gpu_type.idle_w
    return LlmRow(
        tp=sized.tp,
        max_num_batched_tokens=sized.limits.max_num_batched_tokens,
        max_num_seqs=sized.limits.max_num_seqs,
        sm_percent=ALL_SMS,
        clock_mhz=gpu_type.clocks_mhz[-1],
        capacity_rps=sized.capacity_rps,
        memory_mib_per_gpu=sized.memory_mib_per_gpu,
        power_w_per_gpu=max(0.0, watts),
        start_s=start_s,
    )


def _lacking(sized: Sequence[Sized]) -> Iterator[str]:
    """Why GPU types carry nothing: what stops the largest replica, which is the last to fail."""
    for name in dict.fromkeys(each.gpu_type for each in sized):
        of_type = [each for each in sized if each.gpu_type == name]
        if any(each.capacity_rps > 0.0 for each in of_type):
            continue
        # A degree that engines refuse says nothing of larger replicas: where others were tried, theirs is the reason.
        tried = [each for each in of_type if each.undivided is None]
        largest = (tried or of_type)[-1]
        if largest.limit is not None:
            yield f"on {largest.tp} × {name} {_why(largest)}"


def _why(sized: Sized) -> str:
    """Why a way to run it carries nothing, in words."""
    if sized.undivided is not None:
        return f"an engine does not start: {sized.undivided.reason}"
    return "" if sized.limit is None else _WHY[sized.limit]
