"""Numbers of a tensor in JSON: flat in row-major order, or nested as deep as the shape.

The decoder is made for the datatype, so that integers stay exact and a wrong element is named by its place.
"""

from functools import cache
from itertools import chain
from typing import Literal, TypeAlias, cast

import msgspec

from agents.serving.errors import BadRequest

Element: TypeAlias = Literal["bool", "int", "float"]
_ELEMENTS: dict[Element, type] = {"bool": bool, "int": int, "float": float}


def decode_numbers(text: bytes, *, datatype: str, shape: list[int]) -> list[float]:
    """The numbers in row-major order (integers and booleans keep their type). BadRequest: other than the shape says.

    How many flat ones there are is not compared with the shape here.
    """
    text = text.strip()
    is_nested = text[:1] == b"[" and text[1:].lstrip()[:1] == b"["
    element: Element = "bool" if datatype == "BOOL" else "float" if datatype.startswith("FP") else "int"
    try:
        values = _decoder(element, len(shape) if is_nested else 1).decode(text)
    except msgspec.MsgspecError as error:
        raise BadRequest(f"the data is not {datatype}: {error}") from error
    return _flattened(cast(list[list[float]], values), shape) if is_nested else cast(list[float], values)


def _flattened(nested: list[list[float]], shape: list[int]) -> list[float]:
    """The innermost values; every list must be as long as the shape says."""
    level: list[list[float]] = [cast(list[float], nested)]
    for length in shape:
        if any(len(each) != length for each in level):
            raise BadRequest(f"the nested data has not the shape {shape}")
        level = cast(list[list[float]], list(chain.from_iterable(level)))
    return cast(list[float], level)


@cache
def _decoder(element: Element, depth: int) -> "msgspec.json.Decoder[object]":
    """At most one for each element and number of dimensions."""
    kind = _ELEMENTS[element]
    for _ in range(depth):
        kind = list[kind]  # type: ignore[valid-type]
    return msgspec.json.Decoder(kind)
