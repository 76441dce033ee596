"""How long one step of an engine takes: a roofline over the architecture with a dozen factors per runtime.

    step = o_step + o_layer·L + o_moe·L_moe + o_seq·n + [a prompt is in it]·o_pre·L
         + (M³ + F³)^(1/3)                                weights against compute: the slower of the two, softened
           M = fixed_bytes/(BW·ε_w·w) + hit·expert_bytes/(BW·ε_x·x),    hit = 1 − (1 − k/E)^T
           F = T·dense_flop/(peak·ε_f·f) + (T + 32·hit·E/k)·expert_flop/(peak·ε_g·g)
         + K·kv_bytes/(BW·ε_a·a) + P·pair_flop/(peak_bf16·ε_b·b)
         + [d > 1]·2L·(lat·log2 d + T·2·hidden·2(d − 1)/d / (link·e_n))

    way = request_ms + prompt_token_ms·prompt + 2·step      of a request into the engine, and of its first token back

L layers (L_moe with experts), T tokens of the step, n decoding sequences, K tokens that they have cached, P attended
pairs of prompt chunks, d GPUs per replica; ε are the efficiencies of the GPU type's kernels, the small letters factors
of the runtime. `python -m bench.llm.fit_law` fits them to measured servers of four networks on three GPU types.

Rooflines: Williams, Waterman, Patterson 2009. Ours: the norm of 3 between both sides, and what a step costs besides.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal, TypeVar

import numpy as np

from solvers.llm.architecture import (
    Architecture,
    Precision,
    gpu_work,
    window_factor,
)
from solvers.llm.hardware import LlmHardware

Reals = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Runtime = Literal["vllm", "trtllm", "sglang"]

_NORM = 3.0
_HALF_TILE = 32.0
"""Rows of an expert's last tile of 64 that stay empty on average."""
_MS_PER_S = 1000.0
_GIGA = 1e9
_TERA = 1e12
_ACTIVATION_BYTES = 2.0
_FEW_TOKENS = 64.0
WAY_STEPS = 2.0
"""Steps that a request's way takes: it is handed over while one runs, and its token leaves while the next one does. Of
0 to 3 it fits measured times to first tokens best, of closed loops as of open ones (`bench.llm.open_loop`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeFactors:
    """The fitted figures of one runtime; times in ms, factors of efficiencies near 1."""

    step_ms: float
    layer_ms: float
    expert_layer_ms: float
    sequence_ms: float
    prompt_layer_ms: float
    """Per layer, in a step that has a part of a prompt."""
    weights: float
    expert_weights: float
    flops: float
    expert_flops: float
    cache: float
    pairs: float
    hop_ms: float
    """Latency of one all-reduce, per doubling of the GPUs that take part."""
    link: float
    """Share of the link's bandwidth."""
    request_ms: float
    """On a request's way into the engine and back."""
    prompt_token_ms: float
    """The same, per token of its prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmEngine:
    """One way to run a network: where, on how many GPUs, in which precision and by which runtime."""

    network: Architecture
    hardware: LlmHardware
    precision: Precision
    tp: int
    runtime: Runtime = "vllm"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepTable:
    """A step law as numbers: what the planner, its simulators and audits need, without the architecture."""

    tokens: Reals
    """(K,) tokens of a step, ascending from 1."""
    step_ms: Reals
    """(K,) what a step of k tokens takes, without what follows."""
    sequence_ms: float
    cached_token_ms: float
    pair_ms: float
    prompt_step_ms: float
    """What every step with a part of a prompt takes besides."""
    request_ms: float
    prompt_token_ms: float

    def times(self, factor: float, *, sequence_ms: float = 0.0) -> "StepTable":
        """The table where steps take `factor` times as long, and so much more per sequence."""
        return StepTable(
            tokens=self.tokens,
            step_ms=self.step_ms * factor,
            sequence_ms=self.sequence_ms * factor + sequence_ms,
            cached_token_ms=self.cached_token_ms * factor,
            pair_ms=self.pair_ms * factor,
            prompt_step_ms=self.prompt_step_ms * factor,
            # The way in and out is no part of a step.
            request_ms=self.request_ms,
            prompt_token_ms=self.prompt_token_ms,
        )

    def decode_ms(self, sequences: float, cached: float) -> float:
        """A step of `sequences` decoding sequences that have `cached` tokens in the cache together."""
        base = float(np.interp(sequences, self.tokens, self.step_ms))
        return base + self.sequence_ms * sequences + self.cached_token_ms * cached


GRID = np.array(
    [
        *(1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 65, 96, 128, 192, 256, 384, 512, 768),
        *(1024, 2048, 4096, 8192, 16384),
    ],
    dtype=np.float64,
)
"""Tokens at which tables are kept. 64 and 65 have places of their own: tiles of experts begin to count there."""


def step_table(engine: LlmEngine, factors: RuntimeFactors) -> StepTable:
    """The law of one way to run a network."""
    work = engine_work(engine)
    return StepTable(
        tokens=GRID,
        step_ms=base_ms(work, factors, GRID),
        sequence_ms=factors.sequence_ms,
        cached_token_ms=float(work.cached_token_ms) / factors.cache,
        pair_ms=float(work.pair_ms) / factors.pairs,
        prompt_step_ms=factors.prompt_layer_ms * float(work.layers),
        request_ms=factors.request_ms,
        prompt_token_ms=factors.prompt_token_ms,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EngineWork:
    """What a step's parts take at the efficiencies of the GPU type, before any factor of a runtime.

    Each field is one engine's number, or (N,) of N engines.
    """

    layers: Reals
    expert_layers: Reals
    read_ms: Reals
    """Weights that every step reads."""
    expert_read_ms: Reals
    """All experts' weights."""
    token_ms: Reals
    """Computing one token, without experts."""
    expert_token_ms: Reals
    used_share: Reals
    """The share of experts that one token uses; 0 without experts."""
    cached_token_ms: Reals
    pair_ms: Reals
    doublings: Reals
    """log2 of the GPUs that take part in an all-reduce; 0: there is none."""
    sent_ms: Reals
    """Per token and all-reduce, at the link's full bandwidth."""


def stack_works(works: Sequence[EngineWork]) -> EngineWork:
    """(N,) those of N engines as one."""
    names = [each.name for each in fields(EngineWork)]
    return EngineWork(
        **{
            name: np.array([float(getattr(work, name)) for work in works])
            for name in names
        }
    )


def engine_work(engine: LlmEngine) -> EngineWork:
    """One engine's numbers, each an array without dimensions."""
    network, hardware, tp = engine.network, engine.hardware, engine.tp
    efficiency = hardware.efficiency_of(engine.precision)
    work = gpu_work(network, engine.precision, tp)
    per_ms = 1.0 / _MS_PER_S
    bandwidth = hardware.memory_gb_per_s * _GIGA * per_ms
    flops = hardware.tflops(engine.precision) * _TERA * per_ms
    # Attention is computed in bf16, whatever the weights are in.
    pair_flops = hardware.bf16_tflops * _TERA * per_ms
    pair_flops *= efficiency.prompt_attention_flops
    experts = network.experts
    # A ring passes every activation on twice, but for the part that each GPU has already.
    sent_bytes = _ACTIVATION_BYTES * network.hidden * 2.0 * (tp - 1) / tp
    link = (hardware.link_gb_per_s or np.inf) * _GIGA * per_ms
    cache = bandwidth * efficiency.decode_attention_bandwidth
    figures = {
        "layers": network.layers,
        "expert_layers": network.expert_layers,
        "read_ms": work.fixed_bytes / (bandwidth * efficiency.gemm_bandwidth),
        "expert_read_ms": work.expert_bytes / (bandwidth * efficiency.expert_bandwidth),
        "token_ms": work.dense_flop / (flops * efficiency.gemm_flops),
        "expert_token_ms": work.expert_flop / (flops * efficiency.expert_flops),
        "used_share": experts.per_token / experts.count if experts else 0.0,
        "cached_token_ms": work.kv_bytes / cache,
        "pair_ms": work.pair_flop / pair_flops,
        "doublings": math.log2(tp),
        "sent_ms": sent_bytes / link,
    }
    return EngineWork(**{name: np.asarray(value) for name, value in figures.items()})


def base_ms(work: EngineWork, factors: RuntimeFactors, tokens: Reals) -> Reals:
    """What steps of `tokens` tokens take but for sequences, caches and prompts; `tokens` and `work` broadcast."""
    hit = 1.0 - (1.0 - work.used_share) ** tokens
    padding = _HALF_TILE * hit / np.maximum(work.used_share, 1e-9)
    # Few tokens are computed by other kernels, which have no tiles to fill.
    rows = tokens + np.where((tokens > _FEW_TOKENS) & (hit > 0.0), padding, 0.0)
    read_ms = work.read_ms / factors.weights
    read_ms = read_ms + hit * work.expert_read_ms / factors.expert_weights
    compute_ms = tokens * work.token_ms / factors.flops
    compute_ms = compute_ms + rows * work.expert_token_ms / factors.expert_flops
    # The slower of reading and computing decides; where both take alike, neither hides the other wholly.
    both_ms = (read_ms**_NORM + compute_ms**_NORM) ** (1.0 / _NORM)
    # Two all-reduces per layer, each as long as its hops and what goes over the link.
    reduce_ms = factors.hop_ms * work.doublings + tokens * work.sent_ms / factors.link
    # What the host does in a step does not depend on how many tokens it has.
    host_ms = factors.step_ms + factors.layer_ms * work.layers
    host_ms = host_ms + factors.expert_layer_ms * work.expert_layers
    spans = np.where(work.doublings > 0.0, 2.0 * work.layers, 0.0)
    return np.asarray(host_ms + both_ms + spans * reduce_ms)


_Law = TypeVar("_Law", EngineWork, StepTable)


def with_windows(law: _Law, engine: LlmEngine, *, cached: float, prompt: float) -> _Law:
    """The engine's law for requests of that many cached tokens in the mean, and of such a prompt.

    Layers with a window are read and computed with, too; how much they hold is known with the lengths alone.
    """
    read, paired = (
        window_factor(engine.network, engine.tp, tokens) for tokens in (cached, prompt)
    )
    return replace(
        law,
        cached_token_ms=law.cached_token_ms * read,
        pair_ms=law.pair_ms * paired,
    )
