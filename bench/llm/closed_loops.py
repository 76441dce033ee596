"""Measured servers of language models in closed loops: the rows that one replica's law can be held against."""

import csv
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import cast

import numpy as np

from app.catalogue.language_models import load_architectures, load_hardware
from solvers.llm.architecture import Architecture, Precision
from solvers.llm.hardware import LlmHardware
from solvers.llm.measured import RunConditions
from solvers.llm.step_law import LlmEngine, Runtime

_SYSTEMS = {
    "a100_sxm": "A100-80GB",
    "h100_sxm": "H100",
    "h200_sxm": "H200",
    "b200_sxm": "B200",
    "b300_sxm": "B300",
    "gb200": "GB200",
    "gb300": "GB300",
    "l40s": "L40S",
    "rtx_pro_6000_server": "RTX-PRO-6000",
}
_NETWORKS = {
    "nvidia/Llama-3.1-8B-Instruct-FP8": "meta-llama/Llama-3.1-8B-Instruct",
    "nvidia/DeepSeek-R1-NVFP4": "deepseek-ai/DeepSeek-R1",
}
"""The same networks under other names."""
_DEGREES = (1, 2, 4, 8)
_MEMORY_SHARE = 0.93
"""Of a GPU's memory that weights may take, so that a row can be one replica's."""
_MEAN_SHARE = 0.9
"""Lengths are drawn evenly between 0.8 and 1 of what was asked for in suite `inferencex`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """One measured row."""

    engine: LlmEngine
    model: str
    system: str
    suite: str
    isl: float
    osl: float
    """Mean tokens of prompts and answers."""
    asked_isl: int
    asked_osl: int
    clients: int
    software: tuple[str, str]
    """Version of the runtime, empty = not stated, and GPUs that the experts are spread over; no laws know of them."""
    ttft_ms: float
    tpot_ms: float

    @property
    def configuration(self) -> tuple[str, ...]:
        """What rows of one curve have in common."""
        engine = self.engine
        return (
            engine.runtime,
            self.model,
            self.system,
            engine.precision,
            str(engine.tp),
        )


def run_conditions(row: ClosedLoop) -> RunConditions:
    """What the row was measured under."""
    engine = row.engine
    return RunConditions(
        network=row.model,
        runtime=engine.runtime,
        gpu_type=row.system,
        precision=engine.precision,
        tp=engine.tp,
        clients=float(row.clients),
        prompt=row.isl,
        output=row.osl,
    )


def with_software(row: ClosedLoop) -> tuple[RunConditions, tuple[str, str]]:
    """The same, and what software it was measured with, as far as the source states it."""
    return run_conditions(row), row.software


def apart_percent(
    rows: Sequence[ClosedLoop], key: Callable[[ClosedLoop], Hashable]
) -> np.ndarray:
    """(P,) how much longer one TPOT is than the other, for each of P pairs of rows with the same key."""
    alike = defaultdict[Hashable, list[float]](list)
    for row in rows:
        alike[key(row)].append(row.tpot_ms)
    pairs = (pair for times in alike.values() for pair in combinations(times, 2))
    return np.array([100.0 * (max(pair) / min(pair) - 1.0) for pair in pairs])


def load_closed_loops(path: Path) -> list[ClosedLoop]:
    """The rows of a file in the order of the file that are runs of one replica whose clients alone limit its batch."""
    networks, hardware = load_architectures(), load_hardware()
    seen = set()
    found = []
    for row in _rows(path):
        loop = _loop(row, networks, hardware)
        key = tuple(sorted(row.items()))
        if loop is not None and key not in seen and _is_in_scope(row, loop):
            seen.add(key)
            found.append(loop)
    return found


def _rows(path: Path) -> Iterator[Mapping[str, str]]:
    with path.open(newline="") as file:
        yield from csv.DictReader(file)


def _loop(
    row: Mapping[str, str],
    networks: Mapping[str, Architecture],
    hardware: Mapping[str, LlmHardware],
) -> ClosedLoop | None:
    model = _NETWORKS.get(row["model"], row["model"])
    system = _SYSTEMS.get(row["system"], "")
    if row["mode"] != "agg" or model not in networks or system not in hardware:
        return None
    if not row["tp_size"] or float(row["tp_size"]) not in _DEGREES:
        return None
    share = _MEAN_SHARE if row["suite"] == "inferencex" else 1.0
    return ClosedLoop(
        engine=LlmEngine(
            network=networks[model],
            hardware=hardware[system],
            precision=cast(Precision, row["precision"] or "bf16"),
            tp=int(float(row["tp_size"])),
            runtime=cast(Runtime, row["backend"]),
        ),
        model=model,
        system=system,
        suite=row["suite"],
        isl=share * float(row["isl"]),
        osl=share * float(row["osl"]),
        asked_isl=int(row["isl"]),
        asked_osl=int(row["osl"]),
        clients=int(row["concurrency"]),
        software=(row["backend_version"], row["moe_ep_size"]),
        ttft_ms=float(row["ttft_ms_mean"]),
        tpot_ms=float(row["tpot_ms_mean"]),
    )


def _is_in_scope(row: Mapping[str, str], loop: ClosedLoop) -> bool:
    for name in ("attention_dp_size", "pp_size"):
        if row[name] and float(row[name]) > 1.0:
            return False
    if row["per_rank_batch"]:
        return False
    engine = loop.engine
    # Weights that do not fit hide data parallelism.
    weights_gib = engine.network.weight_bytes(engine.precision) / engine.tp / 2**30
    if weights_gib > _MEMORY_SHARE * engine.hardware.memory_gib:
        return False
    # The engine's limit on sequences held these clients back: the batch is not their number.
    if loop.ttft_ms > loop.osl * loop.tpot_ms:
        return False
    return not _is_from_prefix_cache(row)


def _is_from_prefix_cache(row: Mapping[str, str]) -> bool:
    """One sweep took its prompts from a prefix cache: it computes more than 70 % of the peak otherwise."""
    is_network = row["model"] == "nvidia/Llama-3.1-8B-Instruct-FP8"
    return is_network and row["backend"] == "vllm" and row["system"] == "h200_sxm"
