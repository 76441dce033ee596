"""The Open Inference Protocol v2 on the wire: requests decoded and checked, answers encoded; binary data too.

JSON data may be flat or nested. With the binary extension the body is the JSON, `Inference-Header-Content-Length` bytes
long, and behind it the bytes of every input that names its `binary_data_size`; outputs come back so where the request
says `binary_data_output`, or the output `binary_data`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Annotated, Literal, TypeAlias, cast

import msgspec
from msgspec import Meta

from agents.serving.engines.errors import BadRequest
from agents.serving.engines.tensors import (
    TYPE_CODES,
    Tensor,
    Tensors,
    byte_count,
    pack_numbers,
    unpack_numbers,
)

JSON_LENGTH_HEADER = "Inference-Header-Content-Length"
VERSION = "1"
"""The only version of every service: clients that insist on one can name it."""
MAX_DIMENSIONS = 16
MAX_TENSORS = 64

Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=253)]
Parameters: TypeAlias = dict[str, str | int | float | bool]
Dimension: TypeAlias = Annotated[int, Meta(ge=1, le=2**31)]


class WireInput(msgspec.Struct):
    """One input as it is sent."""

    name: Name
    shape: Annotated[list[Dimension], Meta(min_length=1, max_length=MAX_DIMENSIONS)]
    datatype: str
    data: msgspec.Raw = msgspec.Raw(b"")
    parameters: Parameters = {}


class WireWanted(msgspec.Struct):
    """One output that is asked for."""

    name: Name
    parameters: Parameters = {}


class WireRequest(msgspec.Struct):
    """The JSON of a request."""

    inputs: Annotated[list[WireInput], Meta(min_length=1, max_length=MAX_TENSORS)]
    id: Annotated[str, Meta(max_length=253)] = ""
    outputs: Annotated[list[WireWanted], Meta(max_length=MAX_TENSORS)] = []
    parameters: Parameters = {}


class WireOutput(msgspec.Struct, omit_defaults=True):
    """One output of an answer."""

    name: str
    shape: tuple[int, ...]
    datatype: str
    data: list[float] | None = None
    parameters: Parameters = {}


class WireAnswer(msgspec.Struct, omit_defaults=True):
    """The JSON of an answer; `model_name` and `model_version` are the protocol's words."""

    model_name: str
    outputs: list[WireOutput]
    model_version: str
    id: str = ""
    parameters: Parameters = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class InferRequest:
    """A request that was decoded and checked."""

    inputs: Tensors
    id: str = ""
    wanted: tuple[str, ...] = ()
    """Names of the outputs asked for; empty = all."""
    binary: tuple[str, ...] = ()
    """Outputs that shall come back as bytes."""
    all_binary: bool = False

    @property
    def rows(self) -> int:
        return self.inputs[0].rows


_REQUEST = msgspec.json.Decoder(WireRequest)


def decode_request(body: bytes, json_length: str | None = None) -> InferRequest:
    """The request in a body; `json_length`: its header's text. BadRequest says what is wrong with it."""
    head, rest = _parts(body, json_length)
    try:
        asked = _REQUEST.decode(head)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadRequest(f"not a v2 inference request: {error}") from error
    inputs = _inputs(asked.inputs, rest)
    return InferRequest(
        inputs=inputs,
        id=asked.id,
        wanted=tuple(each.name for each in asked.outputs),
        binary=tuple(
            each.name
            for each in asked.outputs
            if each.parameters.get("binary_data") is True
        ),
        all_binary=asked.parameters.get("binary_data_output") is True,
    )


def encode_answer(
    service: str, request: InferRequest, outputs: Tensors, parameters: Mapping[str, int]
) -> tuple[bytes, int | None]:
    """The body of an answer, and the length of its JSON where bytes follow. BadRequest: an output that is not there."""
    if missing := set(request.wanted) - {each.name for each in outputs}:
        raise BadRequest(
            f"no output {', '.join(sorted(missing))}; there are {', '.join(each.name for each in outputs)}"
        )
    chosen = [
        each for each in outputs if not request.wanted or each.name in request.wanted
    ]
    binary = {
        each.name: each.data
        for each in chosen
        if request.all_binary or each.name in request.binary
    }
    answer = WireAnswer(
        model_name=service,
        model_version=VERSION,
        id=request.id,
        outputs=[_output(each, is_binary=each.name in binary) for each in chosen],
        parameters=dict(parameters),
    )
    head = msgspec.json.encode(answer)
    if not binary:
        return head, None
    # The bytes follow in the order of the outputs: their sizes in the JSON are the only marks between them.
    return b"".join((head, *binary.values())), len(head)


def _parts(body: bytes, json_length: str | None) -> tuple[bytes, bytes]:
    """The JSON and what follows it."""
    if json_length is None:
        return body, b""
    if (
        not json_length.isascii()
        or not json_length.isdigit()
        or int(json_length) > len(body)
    ):
        raise BadRequest(
            f"{JSON_LENGTH_HEADER} {json_length!r} must be 0 to {len(body)}, the length of the body"
        )
    return body[: int(json_length)], body[int(json_length) :]


def _inputs(asked: list[WireInput], rest: bytes) -> Tensors:
    names = [each.name for each in asked]
    # Inputs are matched by name, so two of one name could not be told apart.
    if len(set(names)) < len(names):
        raise BadRequest(
            f"inputs must have different names, but these are {', '.join(names)}"
        )
    inputs, start = [], 0
    for each in asked:
        size = _binary_size(each)
        # One request may have both kinds, so each input advances only by what is its own.
        data = _json_data(each) if size is None else rest[start : start + size]
        start += size or 0
        inputs.append(_tensor(each, data))
    # Bytes that belong to no input show that sender and receiver disagree on where each one lies.
    if start != len(rest):
        raise BadRequest(f"{len(rest)} bytes follow the JSON, the inputs name {start}")
    rows = {each.rows for each in inputs}
    if len(rows) > 1:
        raise BadRequest(
            f"the first dimension is the batch: it must be the same in all inputs, but is {sorted(rows)}"
        )
    return tuple(inputs)


def _tensor(asked: WireInput, data: bytes) -> Tensor:
    wanted = byte_count(_known(asked.datatype), asked.shape)
    if len(data) != wanted:
        raise BadRequest(
            f"input {asked.name} has {len(data)} bytes, shape {asked.shape} of {asked.datatype} needs {wanted}"
        )
    return Tensor(
        name=asked.name, datatype=asked.datatype, shape=tuple(asked.shape), data=data
    )


def _known(datatype: str) -> str:
    if datatype not in TYPE_CODES:
        raise BadRequest(
            f"datatype {datatype!r} is not served; there are {', '.join(TYPE_CODES)}"
        )
    return datatype


def _binary_size(asked: WireInput) -> int | None:
    size = asked.parameters.get("binary_data_size")
    if size is None:
        return None
    # True is an int in Python, and JSON's true no size.
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise BadRequest(
            f"input {asked.name}: binary_data_size {size!r} must be a count of bytes"
        )
    if bytes(asked.data):
        raise BadRequest(
            f"input {asked.name} has data both in the JSON and after it; send one of the two"
        )
    return size


def _json_data(asked: WireInput) -> bytes:
    try:
        numbers = decode_numbers(
            bytes(asked.data), datatype=_known(asked.datatype), shape=asked.shape
        )
        return pack_numbers(asked.datatype, numbers)
    except BadRequest as error:
        raise BadRequest(f"input {asked.name}: {error}") from error


def _output(tensor: Tensor, *, is_binary: bool) -> WireOutput:
    if is_binary:
        return WireOutput(
            name=tensor.name,
            shape=tensor.shape,
            datatype=tensor.datatype,
            parameters={"binary_data_size": len(tensor.data)},
        )
    return WireOutput(
        name=tensor.name,
        shape=tensor.shape,
        datatype=tensor.datatype,
        data=unpack_numbers(tensor),
    )


Element: TypeAlias = Literal["bool", "int", "float"]
_ELEMENTS: dict[Element, type] = {"bool": bool, "int": int, "float": float}


def decode_numbers(text: bytes, *, datatype: str, shape: list[int]) -> list[float]:
    """The numbers in row-major order (integers and booleans keep their type). BadRequest: other than the shape says.

    How many flat ones there are is not compared with the shape here.
    """
    text = text.strip()
    is_nested = text[:1] == b"[" and text[1:].lstrip()[:1] == b"["
    element: Element = (
        "bool"
        if datatype == "BOOL"
        else "float"
        if datatype.startswith("FP")
        else "int"
    )
    try:
        # A decoder of the exact type checks millions of numbers in compiled code.
        values = _decoder(element, len(shape) if is_nested else 1).decode(text)
    except msgspec.MsgspecError as error:
        raise BadRequest(f"the data is not {datatype}: {error}") from error
    return (
        _flattened(cast(list[list[float]], values), shape)
        if is_nested
        else cast(list[float], values)
    )


def _flattened(nested: list[list[float]], shape: list[int]) -> list[float]:
    """The innermost values; every list must be as long as the shape says."""
    level: list[list[float]] = [cast(list[float], nested)]
    for length in shape:
        # Ragged lists could have the right count of numbers in the wrong places.
        if any(len(each) != length for each in level):
            raise BadRequest(f"the nested data does not have the shape {shape}")
        level = cast(list[list[float]], list(chain.from_iterable(level)))
    return cast(list[float], level)


@cache
def _decoder(element: Element, depth: int) -> "msgspec.json.Decoder[object]":
    """At most one for each element and number of dimensions."""
    kind = _ELEMENTS[element]
    for _ in range(depth):
        kind = list[kind]  # type: ignore[valid-type]
    return msgspec.json.Decoder(kind)
