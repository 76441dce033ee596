"""How near the law comes to servers under requests that wait for no answers, which `llm_open_loop` measured.

    python -m bench.llm.open_loop [--shared ../shared]

The lowest stage of each network tells two things of its deployment: how much longer its steps take than the law says,
by one factor, and the way into the runtime, in ms. The other stages of the same server are predicted with both: means
of the time per output token (TPOT) and of the time to the first token (TTFT), and the 99th percentile of the latter.
Stages that were overloaded (requests failed) are left out: what their queues came to depends on their length alone.

The generator of the load, inference-perf, draws exponential gaps and stretches them to the stage's length, whatever it
calls constant; predictions are means of several draws. All repeat a few prompts, which the engine has cached, but for
their last block, once each was sent. Errors in per cent, median and mean over stages.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from app.catalogue.language_models import find_architecture, load_hardware
from bench.measured_sets import read_rows, shared_folder
from bench.report import Figures, print_table, write_results
from solvers.llm.calendar import Draw, Replica, seen_ttft_ms, serve
from solvers.llm.kv_cache import EngineLimits, kv_tokens
from solvers.llm.runtimes import RUNTIMES
from solvers.llm.step_law import LlmEngine, step_table

BLOCK = 16
"""Tokens of the cache's blocks: the last one of a prompt is computed each time, whole or in part."""
DRAWS = 4
ROUNDS = 6
"""Of fitting the factor: each takes the rest of the error away, and steps are nearly proportional to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage of a run."""

    model: str
    run: str
    tp: int
    limits: EngineLimits
    prompt: int
    output: int
    rate_rps: float
    requests: int
    cold: int
    """Requests whose prompts came for the first time."""
    ttft_ms: float
    ttft_p99_ms: float
    tpot_ms: float

    @property
    def server(self) -> tuple[str, int]:
        """Which deployment it is of."""
        return self.model, self.tp


class Seen(NamedTuple):
    """What clients saw, or would see."""

    tpot_ms: float
    ttft_ms: float
    ttft_p99_ms: float


def load_stages(rows: Sequence[Mapping[str, str]]) -> Iterator[Stage]:
    """Stages in the order of the file, without those that were overloaded."""
    for row in rows:
        if int(row["failed"]):
            continue
        output = int(row["output_tokens_asked"])
        ttft_ms = float(row["ttft_ms_mean"])
        yield Stage(
            model=row["model"],
            run=row["run"],
            tp=int(row["tp"]),
            limits=EngineLimits(
                max_num_batched_tokens=int(row["max_num_batched_tokens"]),
                max_num_seqs=int(row["max_num_seqs"]),
            ),
            prompt=round(float(row["prompt_tokens_mean"])),
            output=output,
            rate_rps=float(row["achieved_rate_rps"]),
            requests=int(row["ok"]),
            # The stages of a run follow each other on one server.
            cold=int(row["unique_prompts"]) if row["stage"] == "0" else 0,
            ttft_ms=ttft_ms,
            ttft_p99_ms=float(row["ttft_ms_p99"]),
            # Each token came as two events, so that what was counted per event is half of it.
            tpot_ms=(float(row["e2e_ms_mean"]) - ttft_ms) / (output - 1),
        )


def replica_of(stage: Stage) -> Replica:
    """The server by the law; the way into the runtime is not a part of it."""
    network = find_architecture(stage.model)
    hardware = load_hardware()["H100"]
    engine = LlmEngine(
        network=network, hardware=hardware, precision="bf16", tp=stage.tp
    )
    table = step_table(engine, RUNTIMES["vllm"])
    return Replica(
        table=replace(table, request_ms=0.0),
        limits=stage.limits,
        kv_tokens=kv_tokens(
            network,
            "bf16",
            stage.tp,
            memory_gib=hardware.memory_gib,
            limits=stage.limits,
        ),
    )


def predicted(stage: Stage, replica: Replica) -> Seen:
    """What clients of the replica would see at the stage's rate, on average over draws."""
    seen = [_drawn(stage, replica, seed) for seed in range(DRAWS)]
    return Seen(*np.mean(seen, axis=0))


def _drawn(stage: Stage, replica: Replica, seed: int) -> Seen:
    gaps = np.random.default_rng(seed).exponential(size=stage.requests)
    prompt = np.full(stage.requests, stage.prompt)
    found = np.full(stage.requests, (stage.prompt - 1) // BLOCK * BLOCK)
    found[: stage.cold] = 0
    draw = Draw(
        gaps=gaps / gaps.mean(),
        prompt=prompt,
        found=found,
        output=np.full(stage.requests, stage.output),
    )
    passed = serve(replica, draw, stage.rate_rps)
    ttft_ms = seen_ttft_ms(passed, draw, replica.table)
    return Seen(
        tpot_ms=float(np.mean(passed.decode_ms)) / (stage.output - 1),
        ttft_ms=float(np.mean(ttft_ms)),
        ttft_p99_ms=float(np.quantile(ttft_ms, 0.99)),
    )


def fitted(stage: Stage) -> tuple[float, float]:
    """The factor of steps and the way in ms with which the law says what a stage measured."""
    replica = replica_of(stage)
    factor = 1.0
    for _ in range(ROUNDS):
        found = predicted(stage, _with(replica, factor))
        factor *= stage.tpot_ms / found.tpot_ms
    found = predicted(stage, _with(replica, factor))
    return factor, stage.ttft_ms - found.ttft_ms


def _with(replica: Replica, factor: float, way_ms: float = 0.0) -> Replica:
    table = replace(replica.table.times(factor), request_ms=way_ms)
    return replace(replica, table=table)


def judge(stages: Sequence[Stage]) -> Iterator[Figures]:
    """Every stage of a server but its lowest one, which says how it differs from the law."""
    lowest = min(stages, key=lambda each: (each.rate_rps, each.run))
    factor, way_ms = fitted(lowest)
    for stage in stages:
        if stage is lowest:
            continue
        found = predicted(stage, _with(replica_of(stage), factor, way_ms))
        yield {
            "run": stage.run,
            "rps": stage.rate_rps,
            "factor": round(factor, 3),
            "way_ms": round(way_ms, 1),
            "tpot_ms": round(stage.tpot_ms, 2),
            "tpot_percent": _percent(found.tpot_ms, stage.tpot_ms),
            "ttft_ms": round(stage.ttft_ms, 1),
            "ttft_percent": _percent(found.ttft_ms, stage.ttft_ms),
            "p99_ms": round(stage.ttft_p99_ms, 1),
            "p99_percent": _percent(found.ttft_p99_ms, stage.ttft_p99_ms),
        }


def _percent(found: float, measured: float) -> float:
    return round(100.0 * (found / measured - 1.0), 1)


def summary(rows: Sequence[Figures]) -> Iterator[Figures]:
    """Median and mean over stages of the absolute errors."""
    for name in ("tpot", "ttft", "p99"):
        errors = np.abs([float(str(row[f"{name}_percent"])) for row in rows])
        yield {
            "figure": name,
            "stages": len(errors),
            "median_percent": round(float(np.median(errors)), 1),
            "mean_percent": round(float(np.mean(errors)), 1),
        }


def main() -> None:
    """Print both tables and write them."""
    shared = shared_folder(__doc__)
    if shared is None:
        return
    rows = read_rows(shared / "data" / "llm_open_loop" / "blis_stages.csv")
    servers = defaultdict(list)
    for stage in load_stages(rows):
        servers[stage.server].append(stage)
    table = [row for _, stages in sorted(servers.items()) for row in judge(stages)]
    print_table(table)
    totals = list(summary(table))
    print_table(totals)
    write_results("llm_open_loop", [*table, *totals])


if __name__ == "__main__":
    main()
