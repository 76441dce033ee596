"""Times of single kernels of language models by GPU type, as they were measured with vLLM (`SOURCES.md`).

    kernels = kernels_of("H100")
    kernels.product_ms("bf16", outputs, inputs)      (R,) by `kernels.rows`
    kernels.all_reduce_ms(gpus, bytes)
    kernels.decode_surface(kv_heads).at(sequences, cached tokens of each)
    kernels.prompt_ms(heads)                         (P,) by `kernels.prompts`

Between measured sizes times are interpolated in the logarithms; beyond the largest they grow in proportion, as kernels
do that fill a GPU.
"""

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from agents.sim.truth.curves import FloatArray
from agents.sim.truth.tables import Row, read


def at(x: float, places: FloatArray, values: FloatArray) -> float:
    """Linear between places, constant before the first one, and in proportion beyond the last one."""
    if x > places[-1]:
        return float(values[-1] * x / places[-1])
    return float(np.interp(x, places, values))


class Surface:
    """Times over two sizes."""

    def __init__(self, first: FloatArray, second: FloatArray, ms: FloatArray) -> None:
        """`ms`: (first, second)."""
        # Plain lists: a step looks up one point, for which arrays take ten times as long.
        self._first: list[float] = np.log(first).tolist()
        self._second: list[float] = np.log(second).tolist()
        self._log_ms: list[list[float]] = np.log(ms).tolist()

    def at(self, first: float, second: float) -> float:
        """The time of such sizes."""
        row, down, over_first = _place(self._first, first)
        column, right, over_second = _place(self._second, second)
        above, below = self._log_ms[row], self._log_ms[row + 1]
        upper = above[column] + right * (above[column + 1] - above[column])
        lower = below[column] + right * (below[column + 1] - below[column])
        return math.exp(upper + down * (lower - upper) + over_first + over_second)


def _place(logs: list[float], size: float) -> tuple[int, float, float]:
    """Where a size lies: after which entry, how far towards the next one, and by how much beyond the last one."""
    log = math.log(max(size, 1.0))
    over = max(0.0, log - logs[-1])
    log = min(max(log, logs[0]), logs[-1])
    place = min(bisect_right(logs, log) - 1, len(logs) - 2)
    return place, (log - logs[place]) / (logs[place + 1] - logs[place]), over


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """One GPU type's."""

    rows: FloatArray
    """(R,) rows of products: tokens of a step."""
    products: Mapping[str, tuple[Surface, ...]]
    """By precision: over outputs and inputs, for each number of rows."""
    all_reduces: Mapping[int, tuple[FloatArray, FloatArray]]
    """By GPUs: (M,) bytes and (M,) ms."""
    decode: Mapping[float, Surface]
    """By heads of keys: over sequences and the cached tokens of each."""
    prompts: FloatArray
    """(P,) tokens of prompts."""
    attention: Mapping[float, FloatArray]
    """By heads: (P,) ms."""

    def product_ms(self, precision: str, outputs: float, inputs: float) -> FloatArray:
        """(R,) rows times a matrix."""
        surfaces = self.products[precision]
        return np.array([each.at(outputs, inputs) for each in surfaces])

    def all_reduce_ms(self, gpus: int, bytes_: float) -> float:
        """One all-reduce of a message."""
        return at(bytes_, *self.all_reduces[gpus])

    def decode_ms(self, kv_heads: float, sequences: float, cached: float) -> float:
        """Attention of `sequences` sequences' newest tokens to those that each has cached."""
        return _between(
            kv_heads,
            {heads: each.at(sequences, cached) for heads, each in self.decode.items()},
        )

    def prompt_ms(self, heads: float) -> FloatArray:
        """(P,) attention within one prompt."""
        columns = zip(*self.attention.values(), strict=True)
        return np.array(
            [
                _between(heads, dict(zip(self.attention, each, strict=True)))
                for each in columns
            ]
        )


def _between(x: float, values: Mapping[float, float]) -> float:
    return at(x, np.array(list(values)), np.array(list(values.values())))


@cache
def kernels_by_type() -> Mapping[str, Kernels]:
    """All that were measured, by GPU type."""
    reduces = _by_type("llm_all_reduce.csv")
    decodes = _by_type("llm_decode_attention.csv")
    attentions = _by_type("llm_prompt_attention.csv")
    return {
        gpu_type: Kernels(
            rows=_distinct(products, "rows"),
            products=_products(products),
            all_reduces=_all_reduces(reduces[gpu_type]),
            decode=_decode(decodes[gpu_type]),
            prompts=_sizes(attentions[gpu_type][0]),
            attention=_attention(attentions[gpu_type]),
        )
        for gpu_type, products in _by_type("llm_gemm.csv").items()
    }


def _all_reduces(lines: list[Row]) -> dict[int, tuple[FloatArray, FloatArray]]:
    return {
        int(gpus): (_column(group, "bytes"), _column(group, "ms"))
        for gpus, group in _grouped(lines, "gpus").items()
    }


def _decode(lines: list[Row]) -> dict[float, Surface]:
    return {
        float(heads): _decode_surface(group)
        for heads, group in _grouped(lines, "kv_heads").items()
    }


def _attention(lines: list[Row]) -> dict[float, FloatArray]:
    return {float(row["heads"]): _times(row) for row in lines}


def _products(lines: list[Row]) -> dict[str, tuple[Surface, ...]]:
    """By precision, a surface for each number of rows."""
    found = {}
    for precision, of_precision in _grouped(lines, "precision").items():
        by_rows = _grouped(of_precision, "rows").values()
        found[precision] = tuple(map(_product_surface, by_rows))
    return found


def _product_surface(group: list[Row]) -> Surface:
    ms = np.array([_times(row) for row in group])
    return Surface(_column(group, "outputs"), _sizes(group[0]), ms)


def _decode_surface(group: list[Row]) -> Surface:
    sizes = _sizes(group[0])
    ms = np.array([_times(row) for row in group])
    # Where memory had no room for that number of tokens: as long per token as with the next fewer.
    for place in range(1, len(sizes)):
        missing = np.isnan(ms[:, place])
        longer = sizes[place] / sizes[place - 1]
        ms[missing, place] = ms[missing, place - 1] * longer
    return Surface(_column(group, "sequences"), sizes, ms)


def _by_type(name: str) -> dict[str, list[Row]]:
    return _grouped(list(read(name)), "gpu_type")


def _grouped(lines: Iterable[Row], column: str) -> dict[str, list[Row]]:
    found: defaultdict[str, list[Row]] = defaultdict(list)
    for row in lines:
        found[row[column]].append(row)
    return dict(found)


def _column(lines: Iterable[Row], name: str) -> FloatArray:
    return np.array([float(row[name]) for row in lines])


def _distinct(lines: Iterable[Row], name: str) -> FloatArray:
    """A column's values, each once, in their order."""
    return np.array(list(dict.fromkeys(float(row[name]) for row in lines)))


def _sizes(row: Row) -> FloatArray:
    """The sizes that columns are named by."""
    return np.array([float(name) for name in row if name.isdigit()])


def _times(row: Row) -> FloatArray:
    """The times in those columns; NaN where there is none."""
    cells = (value for name, value in row.items() if name.isdigit())
    return np.array([float(cell) if cell else math.nan for cell in cells])
