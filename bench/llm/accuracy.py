"""How near the laws of language models come to measured servers, and to themselves at length.

    python -m bench.llm.accuracy [--shared ../shared]

* networks: the mean time between tokens (TPOT) of each visible network from the law fitted to all others; then of the
  rows of vLLM alone. Per cent of the measured time: median, mean, ninth decile.
* gpu types: the same for each GPU type, from its data sheet and the law fitted to the other types.
* quarter: TPOT of a random quarter of the rows at a time, from the law corrected by the others; how many lie within the
  stated 90 % intervals; inner points: of those, the ones between others of their curve, next to interpolation.
* repeats: how far apart runs of one configuration on one load are, which the correction cannot predict closer; then
  those that agree in the version of the runtime and in the GPUs that experts are spread over, too.
* first tokens: the mean time to them (TTFT) of a random quarter at a time, corrected in the same way; all, and vLLM's.
* points: TPOT of each network, or GPU type, after some measured points per configuration: the least and the most
  clients with the shortest prompts, with the longest, then any.
* kv tokens: of a network on four H100, as an engine stated it (`llm_steps`).
* capacity: that of `REQUESTS` requests against 200,000; seconds of one.
* promise: the share that keeps each SLO at the planned rate, for requests that were not planned with, less what was
  promised, in points; the worst of both SLOs.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from time import perf_counter
from typing import NamedTuple

import numpy as np

from app.catalogue.language_models import find_architecture, load_hardware
from bench.llm.closed_loops import (
    ClosedLoop,
    apart_percent,
    load_closed_loops,
    run_conditions,
    with_software,
)
from bench.llm.fit_law import fit, predict
from bench.measured_sets import shared_folder
from bench.report import Figures, print_table, write_results
from solvers.llm.architecture import Precision
from solvers.llm.belief import INTERVAL
from solvers.llm.calendar import Draw, Replica, draw_requests
from solvers.llm.capacity import capacity_rps, shares_kept
from solvers.llm.correction import CorrectedTimes, correct, weigh
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
POINTS = (1, 2, 4, 8)
TTFT_NOISE = 0.08
"""The deviation of the logarithm of times to first tokens: they hold the way to the server too."""
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
PERCENTILES = (0.9, 0.95, 0.98, 0.99)


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


Predict = Callable[[Sequence[int], Sequence[int]], CorrectedTimes]


def corrected(rows: Sequence[ClosedLoop], law_ms: np.ndarray) -> Predict:
    """Says what rows that are known tell of others, by their places."""
    conditions = [run_conditions(row) for row in rows]
    log_ratio = np.log([row.tpot_ms for row in rows]) - np.log(law_ms)

    def predicted(known: Sequence[int], asked: Sequence[int]) -> CorrectedTimes:
        runs = weigh([conditions[at] for at in known], log_ratio[list(known)])
        return correct(runs, [conditions[at] for at in asked])

    return predicted


def quarters(rows: Sequence[ClosedLoop]) -> Iterator[Figures]:
    """Each random quarter from the other three."""
    law_ms = predict(rows, dict(RUNTIMES)).tpot_ms
    predicted = corrected(rows, law_ms)
    order = np.random.default_rng(1).permutation(len(rows))
    judged = _Judged(rows, law_ms)
    inner, between = _Judged(rows, law_ms), []
    for part in range(4):
        asked = [int(at) for at in order[part::4]]
        known = [int(at) for at in order if at not in set(asked)]
        found = predicted(known, asked)
        judged.add(asked, found)
        for place, at in enumerate(asked):
            ms = interpolated_ms(rows, known, at)
            if ms is not None:
                inner.add([at], _one(found, place))
                between.append(100.0 * abs(ms / rows[at].tpot_ms - 1.0))
    yield judged.stated("quarter")
    yield inner.stated("quarter, inner points")
    yield _percentiles("inner points by interpolation", np.array(between))


def first_tokens(rows: Sequence[ClosedLoop]) -> Iterator[Figures]:
    """TTFT of each random quarter from the other three."""
    law_ms = predict(rows, dict(RUNTIMES)).ttft_ms
    measured = np.array([row.ttft_ms for row in rows])
    conditions = [run_conditions(row) for row in rows]
    order = np.random.default_rng(1).permutation(len(rows))
    percent = np.empty(len(rows))
    for part in range(4):
        asked = order[part::4]
        known = np.setdiff1d(order, asked)
        runs = weigh(
            [conditions[at] for at in known],
            np.log(measured[known] / law_ms[known]),
            noise=TTFT_NOISE,
        )
        found = correct(runs, [conditions[at] for at in asked])
        ms = law_ms[asked] * np.exp(found.log_factor)
        percent[asked] = 100.0 * np.abs(ms / measured[asked] - 1.0)
    yield _percentiles("quarter, first tokens", percent)
    is_vllm = np.array([row.engine.runtime == "vllm" for row in rows])
    yield _percentiles("quarter, first tokens of vLLM", percent[is_vllm])


def interpolated_ms(
    rows: Sequence[ClosedLoop], known: Sequence[int], at: int
) -> float | None:
    """Between the nearest known rows of the same curve with fewer and with more clients; None without both."""
    own = rows[at]
    curve = [
        rows[each]
        for each in known
        if rows[each].configuration == own.configuration
        and (rows[each].asked_isl, rows[each].asked_osl)
        == (own.asked_isl, own.asked_osl)
    ]
    fewer = [row for row in curve if row.clients <= own.clients]
    more = [row for row in curve if row.clients >= own.clients]
    if not fewer or not more:
        return None
    low = max(fewer, key=lambda row: row.clients)
    high = min(more, key=lambda row: row.clients)
    clients = [low.clients, high.clients]
    return float(np.interp(own.clients, clients, [low.tpot_ms, high.tpot_ms]))


def points(rows: Sequence[ClosedLoop], attribute: str) -> Iterator[Figures]:
    """Each network, or GPU type, after some measured points of every configuration."""
    for count in POINTS:
        judged = None
        for name in sorted({getattr(row, attribute) for row in rows}):
            others = [row for row in rows if getattr(row, attribute) != name]
            law_ms = predict(rows, fit(others)).tpot_ms
            judged = judged or _Judged(rows, law_ms)
            own = [at for at, row in enumerate(rows) if getattr(row, attribute) == name]
            first = set(_first_points(rows, own, count))
            asked = [at for at in own if at not in first]
            known = [at for at in range(len(rows)) if at not in set(asked)]
            judged.law_ms = law_ms
            if asked:
                judged.add(asked, corrected(rows, law_ms)(known, asked))
        assert judged is not None
        yield judged.stated(f"{attribute}, after {count} points")


def _first_points(
    rows: Sequence[ClosedLoop], own: Sequence[int], count: int
) -> Iterator[int]:
    """The points of each configuration that are measured first."""
    groups = defaultdict(list)
    for at in own:
        groups[rows[at].configuration].append(at)
    corners = ((1, 1), (1, -1), (-1, -1), (-1, 1))
    generator = np.random.default_rng(0)
    for group in groups.values():
        chosen = [
            min(
                group,
                key=lambda at: (prompt * rows[at].isl, clients * rows[at].clients),
            )
            for prompt, clients in corners
        ]
        rest = [int(at) for at in generator.permutation(group)]
        yield from list(dict.fromkeys((*chosen, *rest)))[:count]


class _Judged:
    """Errors and coverage of rows that were predicted."""

    def __init__(self, rows: Sequence[ClosedLoop], law_ms: np.ndarray) -> None:
        self._rows = rows
        self.law_ms = law_ms
        self._percent: list[float] = []
        self._within: list[bool] = []

    def add(self, asked: Sequence[int], found: CorrectedTimes) -> None:
        """Count predictions of the rows at these places."""
        for place, at in enumerate(asked):
            measured = self._rows[at].tpot_ms
            log_factor = float(found.log_factor[place])
            ms = float(self.law_ms[at]) * np.exp(log_factor)
            self._percent.append(100.0 * abs(ms / measured - 1.0))
            apart = abs(np.log(measured / self.law_ms[at]) - log_factor)
            self._within.append(bool(apart <= INTERVAL * found.deviation[place]))

    def stated(self, name: str) -> Figures:
        """One line of the table."""
        figures = _percentiles(name, np.array(self._percent))
        within = 100.0 * float(np.mean(self._within))
        return {**figures, "within_percent": round(within, 1)}


def _one(found: CorrectedTimes, place: int) -> CorrectedTimes:
    return CorrectedTimes(
        log_factor=found.log_factor[place : place + 1],
        deviation=found.deviation[place : place + 1],
    )


def _percentiles(name: str, percent: np.ndarray) -> Figures:
    return {
        "corrected": name,
        "rows": len(percent),
        "median_percent": round(float(np.median(percent)), 1),
        "mean_percent": round(float(percent.mean()), 1),
        "p90_percent": round(float(np.quantile(percent, 0.9)), 1),
        "within_percent": None,
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
    return Draw(gaps=gaps, prompt=order.prompt, found=order.found, output=order.output)


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
    known = [
        *quarters(rows),
        _percentiles("repeats", apart_percent(rows, run_conditions)),
        _percentiles("repeats, same software", apart_percent(rows, with_software)),
        *first_tokens(rows),
    ]
    known += [*points(rows, "model"), *points(rows, "system")]
    print_table(known)
    kv = [kv_row()]
    print_table(kv)
    judged = [judge(case, each) for case in CASES for each in PERCENTILES]
    print_table(judged)
    write_results("llm_accuracy", [*held_out, *known, *kv, *judged])


if __name__ == "__main__":
    main()
