"""Whether plans by learned lengths keep what they promise when requests come as they did in real traces.

    python -m bench.llm.traces [--shared ../shared]

Each trace is cut into windows. What a replica carries in a window is planned from the windows before it alone, as the
loop does it: the worst of their means, with the spread that services have by default. Then it is given that rate of
the window's own requests, in their order and with their true lengths, at random gaps; steps are as planned. Kept:
windows in which at least the percentile of requests, and of tokens, was in time. Points: what was kept in all windows,
and in the worst one, beyond what was promised. `clairvoyant`: the same where each window's own means are known.
"""

import csv
import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from app.store.observation_book import served_lengths
from app.store.windows import EngineTokens
from bench.llm.accuracy import Case, replicas
from bench.measured_sets import shared_folder
from bench.report import Figures, print_table, write_results
from solvers.llm.calendar import Draw, Replica
from solvers.llm.capacity import capacity_rps, shares_kept
from solvers.llm.kv_cache import PLANNED_SHARE
from solvers.llm.lengths import MeanLengths, length_table
from solvers.types.llm import LlmTerms, TokenSlo

PERCENTILES = (0.9, 0.95, 0.99)
WINDOWS = 12
CONTEXT = 131_072
SEED = 5


class Lengths(NamedTuple):
    """(R,) tokens of requests in their order."""

    prompt: np.ndarray
    output: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A trace and the replica that it is given to."""

    name: str
    path: str
    columns: tuple[str, str]
    """Those of prompts and of answers."""
    case: Case


TRACES = (
    Trace(
        name="Azure 2023, conversations",
        path="azure_llm_2023/requests_conv.csv",
        columns=("context_tokens", "generated_tokens"),
        case=Case("Llama-3.1-8B-Instruct", "bf16", "H100", 1, "", 1000.0, 50.0),
    ),
    Trace(
        name="Azure 2023, code",
        path="azure_llm_2023/requests_code.csv",
        columns=("context_tokens", "generated_tokens"),
        case=Case("Qwen3-14B", "bf16", "A100-80GB", 2, "", 2000.0, 100.0),
    ),
    Trace(
        name="Mooncake, conversations",
        path="llm_traces/mooncake_conversation.csv.gz",
        columns=("input_tokens", "output_tokens"),
        case=Case("Llama-3.1-8B-Instruct", "bf16", "H200", 1, "", 10_000.0, 150.0),
    ),
)


def load(path: Path, columns: tuple[str, str]) -> Lengths:
    """All requests of a file."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", newline="") as file:
        rows = [[int(row[name]) for name in columns] for row in csv.DictReader(file)]
    prompt, output = np.maximum(1, np.array(rows, dtype=np.int64)).T
    prompt = np.minimum(prompt, CONTEXT - 1)
    return Lengths(prompt, np.minimum(output, CONTEXT - prompt))


def windows(lengths: Lengths) -> list[Lengths]:
    """Parts of as many requests each."""
    parts = (np.array_split(each, WINDOWS) for each in lengths)
    return [Lengths(*pair) for pair in zip(*parts, strict=True)]


def learned(before: Sequence[Lengths]) -> MeanLengths:
    """The worst of these windows' means, as the loop learns them."""
    counted = (
        EngineTokens(
            len(each.prompt), int(each.prompt.sum()), 0, int(each.output.sum())
        )
        for each in before
    )
    (found,) = served_lengths(("trace", each) for each in counted)
    spread = LlmTerms(itl_ms=1.0).spread
    return MeanLengths(prompt=found.prompt, output=found.output, spread=spread)


def kept_points(
    means: MeanLengths, own: Lengths, engines: Sequence[Replica], slo: TokenSlo
) -> float:
    """What a window keeps at the rate that is planned by those means, less what was promised, in points."""
    table = length_table(means, longest=CONTEXT)
    # The best token budget first, by fewer requests than count.
    best = max(engines, key=lambda each: capacity_rps(each, table, slo, requests=4_000))
    rate_rps = capacity_rps(best, table, slo)
    whole = replace(best, kv_tokens=PLANNED_SHARE * best.kv_tokens)
    gaps = np.random.default_rng(SEED).exponential(size=len(own.prompt))
    draw = Draw(
        gaps=gaps / gaps.mean(),
        prompt=own.prompt,
        found=np.zeros_like(own.prompt),
        output=own.output,
    )
    kept = shares_kept(whole, draw, slo, rate_rps)
    return 100.0 * (min(kept.ttft, kept.itl) - slo.percentile)


def judge(trace: Trace, lengths: Lengths) -> Iterator[Figures]:
    """A row per percentile and kind of plan."""
    parts = windows(lengths)
    engines = list(replicas(trace.case))
    for percentile in PERCENTILES:
        slo = TokenSlo(
            ttft_ms=trace.case.ttft_ms,
            itl_ms=trace.case.itl_ms,
            percentile=percentile,
        )
        for how in ("learned", "clairvoyant"):
            points = [
                kept_points(
                    learned(parts[:at] if how == "learned" else [parts[at]]),
                    parts[at],
                    engines,
                    slo,
                )
                for at in range(2, WINDOWS)
            ]
            yield {
                "trace": trace.name,
                "percentile": percentile,
                "planned by": how,
                "windows": len(points),
                "kept": sum(each >= 0.0 for each in points),
                "all points": round(float(np.mean(points)), 2),
                "worst points": round(min(points), 2),
            }


def main() -> None:
    """Print the table and write it."""
    shared = shared_folder(__doc__)
    if shared is None:
        return
    rows: list[Figures] = []
    for trace in TRACES:
        lengths = load(shared / "data" / trace.path, trace.columns)
        rows += judge(trace, lengths)
    print_table(rows)
    write_results("llm_traces", rows)


if __name__ == "__main__":
    main()
