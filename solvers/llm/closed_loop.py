"""Means of a server whose clients each send one request after the other, as benchmarks measure it.

    n = c / (1 + TTFT / ((o − 1)·τ))                decoding sequences of c clients, o tokens per answer
    q = max(prompt part, n·i/(o − 1))               prompt tokens of a step that has any; i tokens per prompt
    τ = step(n) + [step(n, q) − step(n)]·share      mean step, which is the mean time between tokens

A fixed point over n and τ, found by damped iteration for many rows at once.
"""

from dataclasses import dataclass

import numpy as np

from solvers.llm.step_law import WAY_STEPS, EngineWork, Reals, RuntimeFactors, base_ms

DEFAULT_BUDGET = 8192.0
"""Tokens of a step where a server's own limit is not known: the default of vLLM for large GPUs."""
_ROUNDS = 30
_DAMPING = 0.5


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClosedClients:
    """(N,) closed loops."""

    count: Reals
    prompt: Reals
    """Mean tokens."""
    output: Reals
    """Mean tokens, ≥ 2."""
    budget: Reals
    """Tokens of one step at most."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClosedLoopMeans:
    """(N,) what clients see on average."""

    ttft_ms: Reals
    tpot_ms: Reals


def closed_loop_means(
    work: EngineWork, factors: RuntimeFactors, clients: ClosedClients
) -> ClosedLoopMeans:
    """The means of N closed loops; `work` and `factors` are one engine's, or (N,)."""
    per_answer = clients.output - 1.0
    sequences = clients.count * per_answer / clients.output
    tpot_ms = ttft_ms = np.ones_like(sequences)
    for _ in range(_ROUNDS):
        decode_ms, with_prompt_ms, share = _steps(work, factors, clients, sequences)
        tpot_ms = decode_ms + share * (with_prompt_ms - decode_ms)
        parts = np.maximum(1.0, np.ceil(clients.prompt / clients.budget))
        # A request comes in the middle of a step, on average, and then its parts are read.
        ttft_ms = 0.5 * tpot_ms + parts * with_prompt_ms
        wanted = clients.count / (1.0 + ttft_ms / (per_answer * tpot_ms))
        sequences = _DAMPING * sequences + (1.0 - _DAMPING) * wanted
    way_ms = factors.request_ms + factors.prompt_token_ms * clients.prompt
    way_ms = way_ms + WAY_STEPS * tpot_ms
    return ClosedLoopMeans(ttft_ms=ttft_ms + way_ms, tpot_ms=tpot_ms)


def _steps(
    work: EngineWork, factors: RuntimeFactors, clients: ClosedClients, sequences: Reals
) -> tuple[Reals, Reals, Reals]:
    """(N,) ms of a step without and with a part of a prompt, and the share of steps with one."""
    parts = np.maximum(1.0, np.ceil(clients.prompt / clients.budget))
    # Tokens of prompts per step, were they spread evenly over all steps.
    spread = sequences * clients.prompt / (clients.output - 1.0)
    chunk = np.minimum(np.maximum(clients.prompt / parts, spread), clients.budget)
    share = np.minimum(1.0, spread / chunk)
    cached = sequences * (clients.prompt + 0.5 * clients.output)
    # A token of a prompt attends to half of its prompt on average.
    pairs = (
        chunk
        * 0.5
        * np.maximum(clients.prompt, chunk / np.ceil(chunk / clients.prompt))
    )
    own_ms = factors.sequence_ms * sequences
    own_ms = own_ms + cached * work.cached_token_ms / factors.cache
    decode_ms = own_ms + base_ms(work, factors, sequences)
    with_prompt_ms = own_ms + base_ms(work, factors, sequences + chunk)
    with_prompt_ms = with_prompt_ms + pairs * work.pair_ms / factors.pairs
    with_prompt_ms = with_prompt_ms + factors.prompt_layer_ms * work.layers
    return decode_ms, with_prompt_ms, share
