"""What is wrong with a manifest, in the user's words, with what to write instead."""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from types import UnionType
from typing import Annotated, Union, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic_core import ErrorDetails

from app.base.errors import nearest
from app.base.yaml_lines import FieldPath
from app.manifests.parts import PATTERN_RULES

# What other systems call our fields.
FOREIGN_NAMES = {
    "model": "network",
    "modelName": "network",
    "resources": "gpu_types",
    "accelerators": "gpu_types",
}

CLUSTER_KINDS = ("PlimsollPolicy", "PlimsollPool", "PlimsollService")
"""Our own kinds in Kubernetes, which `app.kubernetes` follows."""

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


def remedy(kind: type[BaseModel], path: FieldPath, error: ErrorDetails) -> str:
    """What one of pydantic's complaints about a manifest of that kind means."""
    if error["type"] == "extra_forbidden":
        return unknown_field(str(path[-1]), _fields_at(kind, path[:-1]))
    if error["type"] == "missing":
        return "this field is missing"
    # Our own text, which states the values already.
    if error["type"] == "value_error":
        return error["msg"].removeprefix("Value error, ")
    if error["type"] == "string_pattern_mismatch":
        message = f"must be {PATTERN_RULES[error['ctx']['pattern']]}"
    elif error["type"] in _SHAPES:
        message = f"must be {_SHAPES[error['type']]}"
    else:
        message = (
            error["msg"]
            .replace("Input should be", "must be", 1)
            .replace("String should have", "must have", 1)
        )
    return f"{message[:1].lower()}{message[1:]}, not {_shown(error['input'])}"


def unknown_field(name: str, known: Sequence[str]) -> str:
    """A field that is not there, and the one that was probably meant."""
    names = f"he fields here are {', '.join(known)}"
    # Spelling cannot lead from `model` to `network`.
    meant = nearest(FOREIGN_NAMES.get(name, name), known)
    return (
        f"unknown field; did you mean {meant}? T{names}"
        if meant
        else f"unknown field; t{names}"
    )


def unknown_kind(kind: object, known: Sequence[str]) -> str:
    """A kind that is not there, and the one that was probably meant."""
    if kind is None:
        return f"this field is missing; write one of {', '.join(known)}"
    if kind in CLUSTER_KINDS:
        return f"{kind} is an object of a Kubernetes cluster: write it there by `kubectl apply`"
    close = get_close_matches(str(kind), known, n=1, cutoff=0.6)
    guess = f"did you mean {close[0]}? The" if close else "the"
    return f"unknown kind {_shown(kind)}; {guess} kinds are {', '.join(known)}"


def _fields_at(kind: type[BaseModel], path: FieldPath) -> list[str]:
    """The fields of the object at a path below a kind."""
    here = kind
    for part in path:
        if isinstance(part, str):
            # Numbers in the path are places in a list, whose entries share a class.
            here = next(_classes(here.model_fields[part].annotation), here)
    return list(here.model_fields)


def _classes(annotation: object) -> Iterator[type[BaseModel]]:
    """The pydantic classes inside an annotation such as `list[NodeGpu]` or `Slo | None`."""
    if get_origin(annotation) in (Union, UnionType, Annotated, list, tuple):
        for inner in get_args(annotation):
            yield from _classes(inner)
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation


def _shown(value: object) -> str:
    text = (
        yaml.safe_dump(value, default_flow_style=True, width=1000)
        .removesuffix("...\n")
        .strip()
    )
    # A wrong list may be a whole profile: the beginning shows which one is meant.
    return text if len(text) <= 60 else text[:57] + "…"
