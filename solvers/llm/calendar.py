"""The law of percentiles: what an engine's requests experience at a rate, from its steps one after the other.

Same rules as the engine's (first come, first served; chunked prefill within the token budget; a prompt is admitted when
the cache has room for all of it) without preemption, in O(steps + requests). It takes the place of closed formulas, as
means alone say nothing of the long prompts that make others wait.
"""

from dataclasses import dataclass

import numpy as np

from solvers.llm.calendar_kernel import (
    BINS_PER_E,
    LOWEST_MS,
    EngineNumbers,
    Load,
    Passed,
    run_calendar,
)
from solvers.llm.kv_cache import EngineLimits
from solvers.llm.lengths import Counts, LengthTable
from solvers.llm.step_law import WAY_STEPS, Reals, StepTable

_SEED = 751
"""The draw, among twelve, whose capacities come nearest to those of 300,000 requests in ten cases: 2 % off at most."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replica:
    """One replica as the law sees it."""

    table: StepTable
    limits: EngineLimits
    kv_tokens: float
    """Tokens that its cache may hold by the plan."""

    def numbers(self) -> EngineNumbers:
        """The same for compiled code."""
        table, limits = self.table, self.limits
        # More sequences than the budget has tokens would starve: a step has at most the larger of both.
        largest = max(limits.max_num_batched_tokens, limits.max_num_seqs)
        tokens = np.arange(largest + 1, dtype=np.float64)
        return EngineNumbers(
            limits.max_num_batched_tokens,
            limits.max_num_seqs,
            self.kv_tokens,
            np.interp(tokens, table.tokens, table.step_ms),
            table.sequence_ms,
            table.cached_token_ms,
            table.pair_ms,
            table.prompt_step_ms,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Draw:
    """Requests without a rate: gaps around 1 and lengths, the same for every rate that is tried."""

    gaps: Reals
    """(R,) mean 1."""
    prompt: Counts
    found: Counts
    """(R,) tokens of the prompt that the engine's cache has already."""
    output: Counts


def draw_requests(lengths: LengthTable, count: int, *, cv: float = 1.0) -> Draw:
    """`count` requests; `cv`: the coefficient of variation of the gaps between them, 1 for a Poisson process."""
    from scipy.special import gammaincinv

    # One seed for all draws: capacities of different replicas are compared on the same requests.
    generator = np.random.default_rng(_SEED)
    # Quantiles in a random order: their mean is exact, so that results move smoothly with the rate.
    ranks = (np.arange(count) + 0.5) / count
    shape = 1.0 / cv**2
    # Those of the gamma distribution. `scipy.stats` has them, too, and takes a second to load.
    gaps = generator.permutation(gammaincinv(shape, ranks) / shape)
    rows = _shuffled(len(lengths.prompt), count, generator)
    prompt = lengths.prompt[rows]
    return Draw(
        gaps=gaps / gaps.mean(),
        prompt=prompt,
        found=lengths.found(prompt),
        output=lengths.output[rows],
    )


def _shuffled(size: int, count: int, generator: np.random.Generator) -> Counts:
    """(count,) places of a table, each as often as any other, whatever their number."""
    rounds = -(-count // size)
    return np.concatenate([generator.permutation(size) for _ in range(rounds)])[:count]


def serve(replica: Replica, draw: Draw, rate_rps: float) -> Passed:
    """What the requests of a draw experience at a rate."""
    arrival_ms = np.cumsum(draw.gaps) * (1000.0 / rate_rps)
    load = Load(arrival_ms, draw.prompt, draw.found, draw.output)
    return run_calendar(replica.numbers(), load)


def seen_ttft_ms(passed: Passed, draw: Draw, table: StepTable) -> Reals:
    """(R,) times to the first token as clients see them, with the way into the engine and back."""
    way_ms = table.request_ms + table.prompt_token_ms * draw.prompt
    # Answers of one token alone tell of no steps, and meet none.
    steps = max(1, int((draw.output - 1).sum()))
    mean_step_ms = float(passed.decode_ms.sum()) / steps
    return np.asarray(passed.ttft_ms + way_ms + WAY_STEPS * mean_step_ms)


def share_of_tokens(passed: Passed, limit_ms: float) -> float:
    """The share of tokens that came within a limit after the one before; 1 where answers have one token."""
    total = passed.token_ms.sum()
    if total == 0.0:
        return 1.0
    # A bin counts as far as the limit reaches into it.
    place = np.log(limit_ms / LOWEST_MS) * BINS_PER_E
    below = int(max(0.0, place))
    within = passed.token_ms[:below].sum()
    if below < len(passed.token_ms):
        within += (place - below) * passed.token_ms[below]
    return float(within / total)
