"""Small language models' problems, engines and loads for tests."""

import numpy as np

from solvers.llm.architecture import Architecture
from solvers.llm.calendar import Replica
from solvers.llm.hardware import LlmHardware
from solvers.llm.kv_cache import EngineLimits
from solvers.llm.step_law import WAY_STEPS, StepTable
from solvers.types.llm import LlmDemand, LlmPoints, LlmRow, StepLaw, TokenSlo
from solvers.types.problem import CapacityLaw, Problem
from solvers.types.state import GpuType

CLOCK_MHZ = 1980.0


def make_network(**changes: object) -> Architecture:
    """Two layers: 4 heads of 8, 2 of keys, 64 wide between."""
    fields: dict[str, object] = {
        "layers": 2,
        "hidden": 32,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 8,
        "vocab": 100,
        "dense_layers": 2,
        "dense_intermediate": 64,
    }
    return Architecture(**{**fields, **changes})  # type: ignore[arg-type]


def make_hardware(**changes: object) -> LlmHardware:
    """80 GiB, 1,000 GB/s, 100 TFLOP/s, eight per node with 100 GB/s between them."""
    fields: dict[str, object] = {
        "memory_gib": 80.0,
        "memory_gb_per_s": 1000.0,
        "bf16_tflops": 100.0,
        "link_gb_per_s": 100.0,
        "gpus_per_node": 8,
    }
    return LlmHardware(**{**fields, **changes})  # type: ignore[arg-type]


def make_table(**changes: object) -> StepTable:
    """Steps of 10 ms and a hundredth of a millisecond per token."""
    tokens = np.array([1.0, 10_001.0])
    fields: dict[str, object] = {
        "tokens": tokens,
        "step_ms": 10.0 + 0.01 * (tokens - 1.0),
        "sequence_ms": 0.0,
        "cached_token_ms": 0.0,
        "pair_ms": 0.0,
        "prompt_step_ms": 0.0,
        "request_ms": 0.0,
        "prompt_token_ms": 0.0,
    }
    return StepTable(**{**fields, **changes})  # type: ignore[arg-type]


def make_replica(
    table: StepTable | None = None,
    *,
    budget: int = 1024,
    seqs: int = 64,
    kv_tokens: float = 1e6,
) -> Replica:
    """A replica of that law and these limits."""
    limits = EngineLimits(max_num_batched_tokens=budget, max_num_seqs=seqs)
    return Replica(table=table or make_table(), limits=limits, kv_tokens=kv_tokens)


def make_step_law(replica: Replica, **changes: object) -> StepLaw:
    """What the contract states of a replica's steps."""
    table = replica.table
    fields: dict[str, object] = {
        "network": "llama-3.1-70b-fp8",
        "gpu_type": "H100",
        "tp": 2,
        "tokens": tuple(table.tokens),
        "step_ms": tuple(table.step_ms),
        "per_sequence_ms": table.sequence_ms,
        "per_cached_token_ms": table.cached_token_ms,
        "per_attended_pair_ms": table.pair_ms,
        "prompt_step_ms": table.prompt_step_ms,
        "request_ms": table.request_ms,
        "per_1000_prompt_tokens_ms": 1000.0 * table.prompt_token_ms,
        "kv_tokens": replica.kv_tokens,
        "request_steps": WAY_STEPS,
    }
    return StepLaw(**{**fields, **changes})  # type: ignore[arg-type]


def make_type(name: str = "H100", **changes: object) -> GpuType:
    """A type of 16 GPUs on nodes of eight, at 4.50 USD."""
    fields: dict[str, object] = {
        "name": name,
        "price_usd_per_hour": 4.5,
        "memory_mib": 81_920.0,
        "count": 16,
        "sm_percent_step": 10.0,
        "idle_w": 70.0,
        "power_cap_w": 700.0,
        "clocks_mhz": (CLOCK_MHZ,),
        "gpus_per_node": 8,
    }
    return GpuType(**{**fields, **changes})  # type: ignore[arg-type]


def make_row(tp: int, capacity_rps: float, **changes: object) -> LlmRow:
    """A row with a token budget of 1,024 that takes 90 s to start."""
    row = LlmRow(tp, 1024, 256, 100.0, CLOCK_MHZ, capacity_rps, 73_400.0, 400.0, 90.0)
    return row._replace(**changes)  # type: ignore[arg-type]


def make_service(
    name: str = "chat", rate_rps: float = 17.0, **changes: object
) -> LlmDemand:
    """A service of a 70B network."""
    fields: dict[str, object] = {
        "name": name,
        "network": "llama-3.1-70b-fp8",
        "slo": TokenSlo(ttft_ms=1000.0, itl_ms=100.0, percentile=0.99),
        "arrival_rate_rps": rate_rps,
    }
    return LlmDemand(**{**fields, **changes})  # type: ignore[arg-type]


def make_points(
    service: str = "chat", gpu_type: str = "H100", rows: tuple[LlmRow, ...] = ()
) -> LlmPoints:
    """The rows of the contract's example where none are given: 6, 13.5 and 25 rps on 2, 4 and 8 GPUs."""
    example = (make_row(2, 6.0), make_row(4, 13.5), make_row(8, 25.0))
    return LlmPoints(
        service=service,
        gpu_type=gpu_type,
        network="llama-3.1-70b-fp8",
        provenance="predicted",
        rows=rows or example,
    )


def make_problem(**changes: object) -> Problem:
    """The contract's example: one service, one GPU type."""
    fields: dict[str, object] = {
        "max_replicas_per_gpu": 4,
        "capacity_law": CapacityLaw(
            percentiles=(0.99,),
            batches=(1,),
            slo_ratios=(1.0, 2.0),
            max_utilisation=(((0.0, 0.5),),),
        ),
        "gpu_types": (make_type(),),
        "services": (),
        "points": (),
        "llm_services": (make_service(),),
        "llm_points": (make_points(),),
    }
    return Problem(**{**fields, **changes})  # type: ignore[arg-type]
