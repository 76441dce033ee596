"""How near the laws of language models come to measured servers, and to themselves at length.

    python -m bench.llm.accuracy [--shared ../shared]

* networks: the mean time between tokens (TPOT) of each visible network from the law fitted to all others; then of the
  rows of vLLM alone. Per cent of the measured time: median, mean, ninth decile.
* gpu types: the same for each GPU type, from its data sheet and the law fitted to the other types.
* kv tokens: of a network on four H100, as an engine stated it (`llm_steps`).
* capacity: that of `REQUESTS` requests against 200,000; seconds of one.
* promise: the share that keeps each SLO at the planned rate, for requests that were not planned with, less what was
  promised, in points; the worst of both SLOs.
"""

from collections.abc import Iterable, Iterator, Sequence
from time import perf_counter
from typing import NamedTuple

import numpy as np

from app.catalogue.language_models import find_architecture, load_hardware
from bench.llm.closed_loops import ClosedLoop, load_closed_loops
from bench.llm.fit_law import fit, predict
from bench.measured_sets import shared_folder
from bench.report import Figures, print_table, write_results
from solvers.llm.architecture import Precision
from solvers.llm.calendar import Draw, Replica, draw_requests
from solvers.llm.capacity import capacity_rps, shares_kept
from solvers.llm.kv_cache import PLANNED_SHARE, EngineLimits, kv_tokens
from solvers.llm.lengths import LengthTable, MeanLengths, length_table, named_lengths
from solvers.llm.runtimes import RUNTIMES
from solvers.llm.sizing import BUDGETS
from solvers.llm.step_law import LlmEngine, step_table
from solvers.types.llm import TokenSlo

STATED_KV_TOKENS = 501_696
"""Llama-2-70B in bf16 on four H100 with 80 GB, as vLLM stated it in `llm_steps`."""
MANY = 200_000
CONTEXT = 16_384
OTHER_SEED = 12
OTHER_REQUESTS = 500_000


class Case(NamedTuple):
    """One replica with its load and SLO, of which capacities are judged."""

    network: str
    precision: Precision
    gpu_type: str
    tp: int
    lengths: str
    ttft_ms: float
    itl_ms: float


CASES = (
    Case("Llama-3.1-8B-Instruct", "bf16", "H100", 1, "conversation", 500.0, 50.0),
    Case("Llama-3.1-8B-Instruct", "fp8", "L40S", 1, "conversation", 2000.0, 80.0),
    Case("Qwen3-14B", "bf16", "A100-80GB", 2, "code", 2000.0, 100.0),
    Case("Qwen3-32B", "bf16", "H100", 2, "conversation", 3000.0, 100.0),
    Case("Llama-3.1-70B", "fp8", "H100", 4, "conversation", 1000.0, 100.0),
    Case("Qwen3-30B-A3B-Instruct-2507", "fp8", "H200", 1, "conversation", 2000.0, 60.0),
)
PERCENTILES = (0.9, 0.99)


def errors(rows: Sequence[ClosedLoop], predicted_ms: Iterable[float]) -> np.ndarray:
    """(N,) per cent of the measured TPOT, absolute."""
    measured = np.array([row.tpot_ms for row in rows])
    percent = np.abs(np.array(list(predicted_ms)) / measured - 1.0) * 100.0
    return np.asarray(percent)


def left_out(rows: Sequence[ClosedLoop], attribute: str) -> Iterator[Figures]:
    """The errors of each network, or GPU type, from the law fitted to all others; then of all, and of vLLM's rows."""
    found: list[tuple[ClosedLoop, float]] = []
    for name in sorted({getattr(row, attribute) for row in rows}):
        own = [row for row in rows if getattr(row, attribute) == name]
        others = [row for row in rows if getattr(row, attribute) != name]
        ms = predict(own, fit(others)).tpot_ms
        found.extend(zip(own, map(float, ms), strict=True))
        yield _stated(attribute, str(name), found[-len(own) :])
    yield _stated(attribute, "all", found)
    vllm = [each for each in found if each[0].engine.runtime == "vllm"]
    yield _stated(attribute, "all of vLLM", vllm)


def _stated(what: str, name: str, found: Sequence[tuple[ClosedLoop, float]]) -> Figures:
    percent = errors([row for row, _ in found], (ms for _, ms in found))
    return {
        "left out": what,
        "name": name,
        "rows": len(found),
        "median_percent": round(float(np.median(percent)), 1),
        "mean_percent": round(float(percent.mean()), 1),
        "p90_percent": round(float(np.quantile(percent, 0.9)), 1),
    }


def replicas(case: Case) -> Iterator[Replica]:
    """One per token budget."""
    network, hardware = find_architecture(case.network), load_hardware()[case.gpu_type]
    engine = LlmEngine(
        network=network, hardware=hardware, precision=case.precision, tp=case.tp
    )
    table = step_table(engine, RUNTIMES["vllm"])
    for budget in BUDGETS:
        limits = EngineLimits(max_num_batched_tokens=budget)
        kv = kv_tokens(
            network,
            case.precision,
            case.tp,
            memory_gib=hardware.memory_gib,
            limits=limits,
        )
        yield Replica(table=table, limits=limits, kv_tokens=kv)


def judge(case: Case, percentile: float) -> Figures:
    """Capacity and promise of a case at its best budget."""
    lengths = length_table(named_lengths(case.lengths), longest=CONTEXT)
    slo = TokenSlo(ttft_ms=case.ttft_ms, itl_ms=case.itl_ms, percentile=percentile)
    best = max(replicas(case), key=lambda each: capacity_rps(each, lengths, slo))
    began = perf_counter()
    planned = capacity_rps(best, lengths, slo)
    seconds = perf_counter() - began
    many = capacity_rps(best, lengths, slo, requests=MANY)
    whole = Replica(
        table=best.table,
        limits=best.limits,
        kv_tokens=PLANNED_SHARE * best.kv_tokens,
    )
    kept = shares_kept(whole, _others(case), slo, planned)
    worst = min(kept.ttft, kept.itl) - percentile
    return {
        "network": case.network,
        "gpu_type": case.gpu_type,
        "tp": case.tp,
        "percentile": percentile,
        "budget": best.limits.max_num_batched_tokens,
        "capacity_rps": round(planned, 2),
        "against_many_percent": round(100.0 * (planned / many - 1.0), 2),
        "seconds": round(seconds, 2),
        "promise_points": round(100.0 * worst, 2),
    }


def _others(case: Case) -> Draw:
    """Requests of the same distribution that no plan was made with, of lengths and gaps drawn at random."""
    means = named_lengths(case.lengths)
    generator = np.random.default_rng(OTHER_SEED)
    prompt = _drawn(means.prompt, means, generator)
    output = _drawn(means.output, means, generator)
    prompt = np.minimum(prompt, CONTEXT - 1)
    table = LengthTable(prompt=prompt, output=np.minimum(output, CONTEXT - prompt))
    order = draw_requests(table, OTHER_REQUESTS)
    gaps = generator.exponential(size=OTHER_REQUESTS)
    return Draw(gaps=gaps, prompt=order.prompt, output=order.output)


def _drawn(
    mean: float, means: MeanLengths, generator: np.random.Generator
) -> np.ndarray:
    middle = np.log(mean) - means.spread**2 / 2.0
    drawn = np.exp(generator.normal(middle, means.spread, size=OTHER_REQUESTS))
    return np.maximum(1, np.rint(drawn)).astype(np.int64)


def kv_row() -> Figures:
    """What the cache of a 70B network holds."""
    found = kv_tokens(
        find_architecture("Llama-2-70b-hf"),
        "bf16",
        4,
        memory_gib=load_hardware()["H100"].memory_gib,
        limits=EngineLimits(max_num_batched_tokens=8192),
    )
    return {
        "stated_kv_tokens": STATED_KV_TOKENS,
        "predicted": round(found),
        "off_percent": round(100.0 * (found / STATED_KV_TOKENS - 1.0), 2),
    }


def main() -> None:
    """Print the tables and write them."""
    shared = shared_folder(__doc__)
    if shared is None:
        return
    rows = load_closed_loops(shared / "data" / "llm_closed_loop" / "runs.csv")
    held_out = [*left_out(rows, "model"), *left_out(rows, "system")]
    print_table(held_out)
    kv = [kv_row()]
    print_table(kv)
    judged = [judge(case, each) for case in CASES for each in PERCENTILES]
    print_table(judged)
    write_results("llm_accuracy", [*held_out, *kv, *judged])


if __name__ == "__main__":
    main()
