"""How a service may run, by what ships and by what its own replicas say."""

import json
from dataclasses import replace
from functools import cache

from app.catalogue.catalogue import load_gpu_types
from app.catalogue.llm_rows import make_rows
from app.solver.llm_rows import RowsRequest
from solvers.types.llm import (
    LlmNetwork,
    LlmRow,
    LlmTerms,
    ServedLengths,
    ServedSpeed,
    StatedRun,
    TokenSlo,
)

(H100,) = load_gpu_types(["H100"])
REQUEST = RowsRequest(
    service="chat",
    network="Llama-3.1-8B-Instruct",
    slo=TokenSlo(ttft_ms=2000.0, itl_ms=50.0, percentile=0.95),
    terms=LlmTerms(itl_ms=50.0, prompt_tokens=400.0, output_tokens=100.0, tp=1),
    gpu_types=(H100,),
)


@cache
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


def test_small_models_have_slices_of_a_gpu_that_nobody_has_measured() -> None:
    small = replace(H100, name="H100-MIG-2g.20gb", memory_mib=20_000.0, gpus_per_node=2)
    answer = make_rows(replace(REQUEST, gpu_types=(small,)))
    (points,) = answer.points
    # No program spans slices, whose link need not be stated.
    assert [row.tp for row in points.rows] == [1]
    assert points.provenance == "unmeasured"
    assert answer.lacks == ()
    whole = the_row()
    assert points.rows[0].capacity_rps < 0.5 * whole.capacity_rps
    # Its replicas say how fast they are, as those on whole GPUs do.
    seen = ServedSpeed(
        "chat", small.name, 1, points.rows[0].max_num_batched_tokens, 10.0, 20.0
    )
    (known,) = make_rows(replace(REQUEST, gpu_types=(small,), served=(seen,))).points
    assert known.provenance == "calibrated"


def test_lengths_that_were_counted_take_the_place_of_the_usual_ones() -> None:
    def capacity(lengths: ServedLengths | None) -> float:
        (points,) = make_rows(replace(REQUEST, lengths=lengths)).points
        return points.rows[0].capacity_rps

    usual = capacity(None)
    long = ServedLengths("chat", 3000.0, 400.0, 0.0)
    assert capacity(long) < 0.5 * usual
    # What is cached already needs no time.
    assert capacity(long._replace(found_share=0.8)) > 1.1 * capacity(long)
    # Counted before the context was cut: what exceeds it is refused now.
    assert capacity(long._replace(prompt=900_000.0, output=90_000.0)) > 0.0


def test_benchmarks_that_its_owner_states_correct_a_network_before_it_is_served() -> (
    None
):
    def row(*gpu_types: str) -> tuple[float, str]:
        lengths = {"prompt_tokens": 400.0, "output_tokens": 100.0}
        runs = tuple(
            StatedRun(gpu_type=name, clients=32.0, tpot_ms=16.0, **lengths)
            for name in gpu_types
        )
        (points,) = make_rows(replace(REQUEST, stated=LlmNetwork(runs=runs))).points
        return points.rows[0].capacity_rps, points.provenance

    predicted, _ = row()
    slow, provenance = row("H100")
    assert (slow < predicted, provenance) == (True, "calibrated")
    # Of a GPU type of which nothing is known nothing can be said.
    assert row("T4")[0] == predicted


QWEN2_7B = {
    "num_hidden_layers": 28,
    "hidden_size": 3584,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 152064,
    "max_position_embeddings": 8192,
}


def test_a_degree_that_engines_refuse_is_no_way_to_run_a_service() -> None:
    stated = LlmNetwork(config=json.dumps(QWEN2_7B))
    terms = replace(REQUEST.terms, tp=None, max_model_len=8192)
    request = replace(REQUEST, network="own", stated=stated, terms=terms)
    wide = replace(H100, gpus_per_node=8)

    (points,) = make_rows(replace(request, gpu_types=(wide,))).points
    assert [row.tp for row in points.rows] == [1, 2, 4]

    eight = replace(request, terms=replace(terms, tp=8), gpu_types=(wide,))
    answer = make_rows(eight)
    assert answer.points == ()
    (words,) = answer.lacks
    assert words.endswith("an engine does not start: 28 heads cannot be divided by 8")


def test_a_context_beyond_the_networks_is_said_to_be_too_long() -> None:
    stated = LlmNetwork(config=json.dumps(QWEN2_7B))
    terms = replace(REQUEST.terms, max_model_len=16384)

    answer = make_rows(replace(REQUEST, network="own", stated=stated, terms=terms))

    assert answer.points == ()
    assert "16384 is more than 8192" in answer.lacks[0]
