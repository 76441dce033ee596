"""What the capacities of language models' rows were found with, from the contract's JSON, version 2."""

import itertools
from collections.abc import Sequence

from solvers.types.documents.strict_json import (
    RESERVED,
    Fields,
    read_integer,
    read_number,
    refuse_repeats,
)
from solvers.types.errors import InvalidInput
from solvers.types.llm import MAX_CONTEXT, MAX_LENGTH_PAIRS, LengthPairs, StepLaw
from solvers.types.problem import Problem


def read_step_law(document: object, path: str) -> StepLaw:
    """One entry of `step_laws`. Raises InvalidInput."""
    fields = Fields(document, path, RESERVED)
    law = StepLaw(
        network=fields.text("network"),
        gpu_type=fields.text("gpu_type"),
        tp=fields.integer("tp", at_least=1),
        tokens=fields.each(
            "tokens", lambda v, p: read_number(v, p, above=0.0), at_least=2
        ),
        step_ms=fields.each("step_ms", read_number, at_least=2),
        per_sequence_ms=fields.number("per_sequence_ms"),
        per_cached_token_ms=fields.number("per_cached_token_ms"),
        per_attended_pair_ms=fields.number("per_attended_pair_ms"),
        prompt_step_ms=fields.number("prompt_step_ms"),
        request_ms=fields.number("request_ms"),
        per_1000_prompt_tokens_ms=fields.number("per_1000_prompt_tokens_ms"),
        kv_tokens=fields.number("kv_tokens"),
        request_steps=_request_steps(fields),
    )
    fields.done()
    _refuse_other_length(fields.at("step_ms"), law.step_ms, law.tokens, "tokens")
    # Times between two numbers of tokens are interpolated.
    if any(right <= left for left, right in itertools.pairwise(law.tokens)):
        raise InvalidInput(fields.at("tokens"), "must ascend strictly")
    return law


def read_length_pairs(document: object, path: str) -> LengthPairs:
    """One entry of `length_tables`. Raises InvalidInput."""
    fields = Fields(document, path, RESERVED)
    pairs = LengthPairs(
        name=fields.text("name"),
        input_tokens=fields.each("input_tokens", _tokens, at_least=1),
        output_tokens=fields.each("output_tokens", _tokens, at_least=1),
    )
    fields.done()
    # A file that is a million requests long says no more, and is drawn from for seconds.
    if len(pairs.input_tokens) > MAX_LENGTH_PAIRS:
        message = f"must have at most {MAX_LENGTH_PAIRS} values, not {len(pairs.input_tokens)}"
        raise InvalidInput(fields.at("input_tokens"), message)
    _refuse_other_length(
        fields.at("output_tokens"),
        pairs.output_tokens,
        pairs.input_tokens,
        "input_tokens",
    )
    return pairs


def check_step_laws(problem: Problem) -> None:
    """Refuse names that are there twice. Raises InvalidInput."""
    laws = ((each.network, each.gpu_type, each.tp) for each in problem.step_laws)
    refuse_repeats("step_laws", tuple(laws))
    refuse_repeats("length_tables", tuple(each.name for each in problem.length_tables))


def _request_steps(fields: Fields) -> float:
    return fields.number("request_steps") if fields.given("request_steps") else 0.0


def _tokens(value: object, path: str) -> int:
    tokens = read_integer(value, path, at_least=1)
    if tokens > MAX_CONTEXT:
        raise InvalidInput(path, f"must be at most {MAX_CONTEXT}, not {tokens}")
    return tokens


def _refuse_other_length(
    path: str, values: Sequence[float], others: Sequence[float], name: str
) -> None:
    if len(values) != len(others):
        message = f"must have {len(others)} values, as {name} has, not {len(values)}"
        raise InvalidInput(path, message)
