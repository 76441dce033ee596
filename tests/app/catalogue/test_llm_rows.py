"""How a service may run, by what ships and by what its own replicas say."""

from dataclasses import replace

from app.catalogue.catalogue import load_gpu_types
from app.catalogue.llm_rows import make_rows
from app.solver.llm_rows import RowsRequest
from solvers.llm.sizing import BUDGETS
from solvers.types.llm import LlmRow, LlmTerms, ServedSpeed, TokenSlo

(H100,) = load_gpu_types(["H100"])
REQUEST = RowsRequest(
    service="chat",
    network="Llama-3.1-8B-Instruct",
    slo=TokenSlo(ttft_ms=2000.0, itl_ms=50.0, percentile=0.95),
    terms=LlmTerms(itl_ms=50.0, prompt_tokens=400.0, output_tokens=100.0, tp=1),
    gpu_types=(H100,),
)


def the_row(*served: ServedSpeed) -> LlmRow:
    """That of one H100, sized with these speeds."""
    (points,) = make_rows(replace(REQUEST, served=served)).points
    (row,) = points.rows
    return row


def speed(itl_ms: float, budget: int) -> ServedSpeed:
    return ServedSpeed("chat", "H100", 1, budget, 20.0, itl_ms)


def test_slow_replicas_carry_less_and_fast_ones_more_than_predicted() -> None:
    predicted = the_row()
    budget = predicted.max_num_batched_tokens
    slow, fast = the_row(speed(14.0, budget)), the_row(speed(6.0, budget))
    assert slow.capacity_rps < 0.9 * predicted.capacity_rps
    assert fast.capacity_rps > 1.2 * predicted.capacity_rps
    (points,) = make_rows(replace(REQUEST, served=(speed(6.0, budget),))).points
    assert points.provenance == "calibrated"


def test_what_is_slower_than_can_be_is_a_fault_and_stops_nothing() -> None:
    predicted = the_row()
    assert the_row(speed(100.0, predicted.max_num_batched_tokens)) == predicted


def test_a_token_budget_that_runs_stays_unless_another_one_is_worth_a_start() -> None:
    kept = [the_row(speed(6.0, budget)).max_num_batched_tokens for budget in BUDGETS]
    assert kept[:3] == [512, 1024, 2048]
    # Steps of so many tokens keep answers waiting for longer than these are to.
    assert kept[-1] != 8192
