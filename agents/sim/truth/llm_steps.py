"""How long an engine's steps really take: the measured times of the kernels that a step runs, added up.

    step = 1.5 ms + 0.012 ms per sequence                                 what the host does between two steps
         + 0.93 · L · (four products of matrices + two all-reduces)       for all tokens of the step
         + L · (attention of decoding sequences + attention within chunks of prompts)
         + 0.93 · the product that makes the next tokens                  for every sequence

L layers. `python -m bench.llm.engine_truth` holds it against measured servers, to whose median the 0.93 is fitted. The
predictions (`solvers.llm`) know data sheets, efficiencies and servers, and none of these times: truth and law share no
formula. Of dense networks alone: experts' kernels add up to 40 to 90 % more than servers take.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from agents.llm.scheduler import BLOCK_TOKENS, Step
from agents.sim.truth.curves import FloatArray
from agents.sim.truth.kernels import Kernels, Surface, at, kernels_by_type
from agents.sim.truth.tables import read_types
from agents.sim.truth.truth import TruthError

_STEP_MS, _SEQUENCE_MS = 1.5, 0.012
"""Assumed: scheduling, sampling and sending."""
_RESERVED = 0.05
"""Assumed: the share of an engine's memory that activations, graphs and buffers take, besides weights and cache."""
_IN_GRAPHS = 0.93
"""Within a captured graph kernels follow each other without gaps: so much of what they take one by one."""
_REDUCES = 2
_HEAD_DIM = 128.0
"""That attention was measured with; it takes as many times as long as heads are larger."""
_WEIGHT_BYTES = {"bf16": 2.0, "fp8": 1.0}
_VALUE_BYTES = 2.0
_MIB = 2.0**20
_BUSY_SHARE = 0.73
"""While a step runs, the share of the board's limit: H100s were measured at 450 to 570 of 700 W (ML.ENERGY)."""
_SEQUENCES = np.array([1.0, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024])
_CACHED = np.array([1.0, 128, 512, 1024, 2048, 4096, 8192, 16384, 32768, 131072])
"""Where one engine's attention is tabulated, so that a step looks up one surface: the measured sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A dense language model: what its kernels are looked up by."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlace:
    """Where a replica runs, and in what it computes."""

    gpu_type: str
    gpus: int
    precision: str
    memory_mib: float
    """That it takes of each GPU."""


class EngineTimes(Protocol):
    """One replica's steps, cache and power, wherever they come from."""

    kv_blocks: int
    """Blocks of the cache; 0: the weights do not fit."""
    busy_w: float
    """That each of its GPUs draws above idle while a step runs."""

    def step_s(self, step: Step) -> float:
        """How long a step takes."""
        ...


MakeEngine: TypeAlias = Callable[[EnginePlace], EngineTimes]
"""The engine of a replica at a place. Raises TruthError where nothing is known of it."""


class EngineTruth:
    """One replica's steps, cache and power, by measured kernels: an `EngineTimes`."""

    def __init__(self, shape: ModelShape, place: EnginePlace) -> None:
        """Raises TruthError for a GPU type, a precision on it, or a number of GPUs, that was not measured."""
        kernels = measured_kernels(place)
        self._rows = kernels.rows
        self._prompts = kernels.prompts
        layer_ms = _layer_ms(kernels, shape, place)
        self._tokens_ms = _IN_GRAPHS * shape.layers * layer_ms
        # The output is kept in bf16, whatever the other weights are in.
        output_ms = kernels.product_ms("bf16", shape.vocab / place.gpus, shape.hidden)
        self._output_ms = _IN_GRAPHS * output_ms
        longer = shape.layers * shape.head_dim / _HEAD_DIM
        self._prompt_ms = longer * kernels.prompt_ms(shape.heads / place.gpus)
        kv_heads = _kv_heads(shape, place.gpus)
        self._decode = _decode_surface(kernels, kv_heads, longer)
        self.kv_blocks = _kv_blocks(shape, place)
        board = read_types()[place.gpu_type]
        self.busy_w = _BUSY_SHARE * board.tdp_w - board.idle_w

    def step_s(self, step: Step) -> float:
        decoding = len(step.decoding)
        sequences = decoding + len(step.chunks)
        ms = _STEP_MS + _SEQUENCE_MS * sequences
        ms += at(step.tokens, self._rows, self._tokens_ms)
        ms += at(sequences, self._rows, self._output_ms)
        if decoding:
            ms += self._decode.at(decoding, step.cached_tokens / decoding)
        if step.pairs > 0.0:
            # As one prompt with that number of pairs takes, which has half of its tokens' square.
            ms += at((2.0 * step.pairs) ** 0.5, self._prompts, self._prompt_ms)
        return ms / 1000.0


def measured_kernels(place: EnginePlace) -> Kernels:
    """The kernels that an engine runs there. Raises TruthError where they were not measured."""
    known = kernels_by_type()
    if place.gpu_type not in known:
        raise TruthError(
            f"no kernels of language models were measured on {place.gpu_type}; on {', '.join(known)} they were"
        )
    kernels = known[place.gpu_type]
    if place.precision not in kernels.products:
        raise TruthError(
            f"weights in {place.precision} were not measured on {place.gpu_type}; "
            f"{' and '.join(kernels.products)} were"
        )
    if place.gpus > 1 and place.gpus not in kernels.all_reduces:
        raise TruthError(f"{place.gpus} {place.gpu_type} were not measured together")
    return kernels


def _layer_ms(kernels: Kernels, shape: ModelShape, place: EnginePlace) -> FloatArray:
    """(R,) a layer's matrices, and what GPUs tell each other of their results."""
    layer_ms = np.zeros(len(kernels.rows))
    for outputs, inputs in _matrices(shape, place.gpus):
        layer_ms += kernels.product_ms(place.precision, outputs, inputs)
    if place.gpus == 1:
        return layer_ms
    sent = _VALUE_BYTES * shape.hidden * kernels.rows
    reduce_ms = [kernels.all_reduce_ms(place.gpus, each) for each in sent]
    return np.asarray(layer_ms + _REDUCES * np.array(reduce_ms))


def _decode_surface(kernels: Kernels, kv_heads: float, longer: float) -> Surface:
    """Attention of all layers, `longer` times as long as that of one which was measured."""
    ms = [
        [kernels.decode_ms(kv_heads, sequences, cached) for cached in _CACHED]
        for sequences in _SEQUENCES
    ]
    return Surface(_SEQUENCES, _CACHED, longer * np.array(ms))


def _kv_blocks(shape: ModelShape, place: EnginePlace) -> int:
    """What the weights leave of the memory, in blocks."""
    matrices = _matrices(shape, place.gpus)
    weights = sum(outputs * inputs for outputs, inputs in matrices)
    weights *= shape.layers * _WEIGHT_BYTES[place.precision]
    embedding = shape.vocab * shape.hidden / place.gpus * _VALUE_BYTES
    # The output has as many weights as the embedding.
    room = place.memory_mib * _MIB * (1.0 - _RESERVED) - weights - 2.0 * embedding
    values = 2.0 * _kv_heads(shape, place.gpus) * shape.head_dim
    per_token = shape.layers * values * _VALUE_BYTES
    return max(0, int(room / per_token / BLOCK_TOKENS))


def _kv_heads(shape: ModelShape, gpus: int) -> float:
    """The heads of keys that each GPU has; where there are more GPUs than heads, they have the same ones."""
    return max(1.0, shape.kv_heads / gpus)


def _matrices(shape: ModelShape, gpus: int) -> tuple[tuple[float, float], ...]:
    """(outputs, inputs) of a layer's four matrices on each GPU: for attention, its result, and twice forward."""
    heads = shape.heads / gpus
    kv_heads = _kv_heads(shape, gpus)
    intermediate = shape.intermediate / gpus
    return (
        ((heads + 2.0 * kv_heads) * shape.head_dim, shape.hidden),
        (shape.hidden, heads * shape.head_dim),
        # Gate and up are one product.
        (2.0 * intermediate, shape.hidden),
        (shape.hidden, intermediate),
    )
