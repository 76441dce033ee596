"""How long prompts and answers are: pairs of tokens that stand for all requests of a service."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from solvers.types.errors import InvalidInput

Counts = np.ndarray[tuple[int, ...], np.dtype[np.int64]]

TABLE_SIZE = 4096
"""Pairs that a distribution is kept as."""
DEFAULT_SPREAD = 1.0
"""Standard deviation of the logarithm of lengths: about that of conversations (Azure 2023: 1.1 and 0.9)."""
_SEED = 2025


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LengthTable:
    """Paired token counts of prompts and answers."""

    prompt: Counts
    """(R,) ≥ 1."""
    output: Counts
    """(R,) ≥ 1."""
    found_share: float = 0.0
    """The part of prompts that engines find in their caches of prefixes, 0 to 1: it takes room, and no time."""

    def found(self, prompt: Counts) -> Counts:
        """(R,) tokens of these prompts that caches have already; the last token of each is always computed."""
        found = (self.found_share * prompt).astype(np.int64)
        return np.asarray(np.minimum(found, prompt - 1))

    @property
    def mean_prompt(self) -> float:
        """Tokens of a prompt."""
        return float(self.prompt.mean())

    @property
    def mean_output(self) -> float:
        """Tokens of an answer."""
        return float(self.output.mean())

    @property
    def mean_cached(self) -> float:
        """Tokens that a decoding sequence has cached, on average over its steps."""
        output = self.output.astype(np.float64)
        sums = self.prompt * output + output**2 / 2.0
        return float(sums.mean() / output.mean())

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with its answer."""
        return int((self.prompt + self.output).max())


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanLengths:
    """Lengths by their means; around them they are log-normal and independent."""

    prompt: float
    output: float
    spread: float = DEFAULT_SPREAD
    """Standard deviation of the logarithm; 0: all are alike."""


NAMED: Mapping[str, MeanLengths] = {
    # Means of the two services of Azure's hour of 2023 (azure_llm_2023), and of Mooncake's long conversations.
    "conversation": MeanLengths(prompt=1155.0, output=211.0),
    "code": MeanLengths(prompt=2048.0, output=28.0),
    "long": MeanLengths(prompt=12035.0, output=343.0),
}
"""Distributions that users may name instead of stating means."""


def named_lengths(name: str) -> MeanLengths:
    """The distribution of that name. Raises InvalidInput."""
    if name not in NAMED:
        known = ", ".join(NAMED)
        raise InvalidInput(
            "lengths", f"no distribution is called {name!r}; there are {known}"
        )
    return NAMED[name]


def length_table(means: MeanLengths, *, longest: int) -> LengthTable:
    """The pairs that stand for these means, none longer than `longest` together.

    Raises InvalidInput where the means themselves are longer.
    """
    if means.prompt + means.output > longest:
        raise InvalidInput(
            "lengths",
            f"prompts of {means.prompt:g} tokens with answers of {means.output:g} exceed max_model_len, {longest}: "
            f"raise it or state shorter lengths",
        )
    generator = np.random.default_rng(_SEED)
    prompt = _lognormal(means.prompt, means.spread, generator)
    output = _lognormal(means.output, means.spread, generator)
    # An engine refuses what exceeds the context: such prompts are as long as they may be, and answers are cut.
    prompt = np.minimum(prompt, longest - 1)
    return LengthTable(prompt=prompt, output=np.minimum(output, longest - prompt))


def _lognormal(mean: float, spread: float, generator: np.random.Generator) -> Counts:
    from scipy.special import ndtri

    # Quantiles in a random order: the mean of so few draws would be off by some per cent.
    ranks = (np.arange(TABLE_SIZE) + 0.5) / TABLE_SIZE
    lengths = np.exp(spread * ndtri(ranks))
    # Cut tails lower the mean of a log-normal distribution: it is put right by a factor.
    lengths *= mean / lengths.mean()
    rounded = np.maximum(1, np.rint(lengths)).astype(np.int64)
    return np.asarray(generator.permutation(rounded), dtype=np.int64)
