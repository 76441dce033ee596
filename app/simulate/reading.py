"""From a document to a scenario, or to all that is wrong with it: the field, and what to write there instead."""

from collections.abc import Callable, Iterator
from typing import TypeAlias

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from app.remedies import remedy
from app.simulate.amounts import counted
from app.simulate.names import unknown_names
from app.simulate.scenario import NodePool, Scenario
from app.simulate.scenario_checks import Complaint
from app.yaml_lines import FieldPath

Complaints: TypeAlias = tuple[tuple[FieldPath, str], ...]
"""Path of each field that is wrong, from the document's top, and why."""

_SHAPES = {
    "model_type": "an object with fields of its own",
    "dict_type": "an object with fields of its own",
    "list_type": "a list",
    "path_type": "the name of a file",
    "float_parsing": "a number",
    "float_type": "a number",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "string_type": "text",
}
"""What is wanted, where pydantic says it as only programmers do."""


def scenario_of(value: object, check: Callable[[Scenario], Iterator[Complaint]]) -> Scenario | Complaints:
    """The scenario that a document is. `check`: what else may be wrong with it, e.g. files that it names."""
    try:
        scenario = Scenario.model_validate(value)
    except ValidationError as error:
        return tuple((entry["loc"], _remedy(entry)) for entry in error.errors())
    found = (*unknown_names(scenario), *check(scenario))
    return tuple((("spec", *path), words) for path, words in found) or scenario


def pool_of(value: object) -> NodePool | None:
    """The node pool that a part of a document is; None: it is none."""
    try:
        return NodePool.model_validate(value)
    except ValidationError:
        return None


def _remedy(error: ErrorDetails) -> str:
    if error["type"] in ("too_short", "too_long"):
        return _length(error)
    words = remedy(Scenario, error["loc"], error)
    shape = _SHAPES.get(error["type"])
    return words if shape is None else f"must be {shape}, not {words.rpartition(', not ')[2]}"


def _length(error: ErrorDetails) -> str:
    """Of a list, or of an object whose names are the user's own, as labels."""
    least, most = (error["ctx"].get(name) for name in ("min_length", "max_length"))
    entries = f"at most {most:,} entries" if least is None else f"at least {counted(least, 'entry')}"
    shape = "a list" if isinstance(error["input"], list) else "an object"
    return f"must be {shape} of {entries}, not of {len(error['input']):,}"
