"""The audit of language models' capacities: what it finds, what it cannot say, and what the contract says of it."""

from dataclasses import replace

import pytest

from solvers.check_laws import audit
from solvers.llm.capacity import capacity_rps
from solvers.llm.lengths import MeanLengths, length_table
from solvers.types.documents.problem_json import (
    problem_document,
    problem_from_document,
    problem_from_json,
    problem_to_json,
)
from solvers.types.errors import InvalidInput
from solvers.types.llm import LengthPairs, LlmReplicaPlan, TokenSlo
from solvers.types.plan import Plan
from solvers.types.problem import Problem
from tests.solvers.llm.models import (
    CLOCK_MHZ,
    make_points,
    make_problem,
    make_replica,
    make_row,
    make_service,
    make_step_law,
    make_table,
)

SLO = TokenSlo(ttft_ms=400.0, itl_ms=60.0, percentile=0.95)
TABLE = length_table(MeanLengths(prompt=300.0, output=40.0), longest=8192)
REPLICA = make_replica(
    make_table(sequence_ms=0.05, cached_token_ms=1e-4, prompt_step_ms=2.0), budget=256
)
PAIRS = LengthPairs(
    name="short",
    input_tokens=tuple(map(int, TABLE.prompt)),
    output_tokens=tuple(map(int, TABLE.output)),
)


def problem_of(factor: float, **changes: object) -> Problem:
    """One service, whose only row states `factor` times what the calendar says."""
    stated = factor * capacity_rps(REPLICA, TABLE, SLO)
    row = make_row(2, stated, max_num_batched_tokens=256, max_num_seqs=64)
    fields: dict[str, object] = {
        "llm_services": (make_service(slo=SLO, lengths="short", rate_rps=1.0),),
        "llm_points": (make_points(rows=(row,)),),
        "step_laws": (make_step_law(REPLICA),),
        "length_tables": (PAIRS,),
    }
    return make_problem(**{**fields, **changes})


PLAN = Plan(
    policy="joint",
    gpus=(),
    llm_replicas=(
        LlmReplicaPlan(
            service="chat",
            gpu_type="H100",
            tp=2,
            clock_mhz=CLOCK_MHZ,
            max_num_batched_tokens=256,
            max_num_seqs=64,
            arrival_rate_rps=1.0,
        ),
    ),
)


def test_what_the_law_says_passes() -> None:
    found = audit(problem_of(1.0), PLAN)

    assert (found.audited, found.unknown, found.violations) == (1, (), ())


def test_a_capacity_that_is_overstated_is_found() -> None:
    found = audit(problem_of(1.3), PLAN)

    assert {each.rule for each in found.violations} == {"law"}
    assert "rps are stated" in found.violations[0].detail


def test_requests_that_never_have_room_are_late() -> None:
    law = make_step_law(REPLICA, kv_tokens=50.0)

    found = audit(problem_of(1.0, step_laws=(law,)), PLAN)

    assert [each.rule for each in found.violations] == ["law"]
    assert "keep ttft" in found.violations[0].detail


def test_steps_on_a_requests_way_make_it_late() -> None:
    law = make_step_law(REPLICA, request_steps=20.0)

    found = audit(problem_of(1.0, step_laws=(law,)), PLAN)

    assert ["keep ttft" in each.detail for each in found.violations] == [True]


def test_rows_without_a_law_or_lengths_are_named() -> None:
    without = audit(problem_of(1.0, step_laws=()), PLAN)
    nameless = audit(problem_of(1.0, length_tables=()), PLAN)

    assert without.unknown == ("chat on 2 × H100: nothing in step_laws",)
    assert nameless.unknown == ("chat on 2 × H100: nothing in length_tables",)
    assert without.audited == nameless.audited == 0


def test_the_contract_carries_what_an_audit_needs() -> None:
    problem = problem_of(1.0)

    assert problem_from_json(problem_to_json(problem)) == problem


@pytest.mark.parametrize(
    ("where", "change", "message"),
    [
        ("step_laws", {"tokens": [5, 1], "step_ms": [1, 2]}, "must ascend strictly"),
        ("step_laws", {"step_ms": [1.0, 2.0, 3.0]}, "must have 2 values, as tokens"),
        ("length_tables", {"output_tokens": [1]}, "as input_tokens has"),
        ("length_tables", {"input_tokens": [0], "output_tokens": [1]}, "input_tokens"),
        (
            "length_tables",
            {"input_tokens": [1] * 4097, "output_tokens": [1] * 4097},
            "at most 4096 values",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(
    where: str, change: dict[str, object], message: str
) -> None:
    document = problem_document(problem_of(1.0))
    entry = document[where][0]  # type: ignore[index]
    document[where] = [{**entry, **change}]

    with pytest.raises(InvalidInput, match=message):
        problem_from_document(document)


def test_names_that_are_there_twice_are_refused() -> None:
    problem = problem_of(1.0)
    twice = replace(problem, length_tables=(PAIRS, PAIRS))

    with pytest.raises(InvalidInput, match="length_tables"):
        problem_from_json(problem_to_json(twice))
