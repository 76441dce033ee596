"""Tensors as bytes: what requests carry, batches are joined from and engines take, without numpy.

A tensor is little-endian and row-major, as the binary extension of the Open Inference Protocol sends it and as the
hosts of NVIDIA GPUs (x86-64, aarch64) have it in memory. Its first dimension counts rows; requests are joined along it.

    join(requests)          one tuple of tensors for the whole batch
    split(outputs, rows)    each request's part of the outputs
"""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from struct import error as struct_error
from struct import pack, unpack
from typing import TypeAlias

from agents.serving.engines.errors import BadRequest, EngineFailed

TYPE_CODES = {
    "BOOL": "?",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "FP16": "e",
    "FP32": "f",
    "FP64": "d",
}
"""Datatypes of the protocol by their code in `struct`; BYTES (strings of any length) is not served."""

ITEM_BYTES = {name: len(pack(f"<{code}", 0)) for name, code in TYPE_CODES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One named tensor."""

    name: str
    datatype: str
    """A key of TYPE_CODES."""
    shape: tuple[int, ...]
    """At least one dimension; the first counts rows."""
    data: bytes

    @property
    def rows(self) -> int:
        return self.shape[0]

    @property
    def kind(self) -> "TensorType":
        """What must be alike in requests that share a batch."""
        return TensorType(
            name=self.name, datatype=self.datatype, row_shape=self.shape[1:]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorType:
    """A tensor without its rows."""

    name: str
    datatype: str
    row_shape: tuple[int, ...]
    """-1: any length."""

    def takes(self, other: "TensorType") -> bool:
        """Whether a tensor of that kind may be given where this one is asked for."""
        if (self.name, self.datatype, len(self.row_shape)) != (
            other.name,
            other.datatype,
            len(other.row_shape),
        ):
            return False
        return all(
            mine in (-1, theirs)
            for mine, theirs in zip(self.row_shape, other.row_shape, strict=True)
        )

    def __str__(self) -> str:
        return f"{self.name} {self.datatype} [{', '.join(map(str, ('rows', *self.row_shape)))}]"


Tensors: TypeAlias = tuple[Tensor, ...]


def pack_numbers(datatype: str, numbers: list[float]) -> bytes:
    """The numbers as bytes of that datatype; BadRequest where one does not fit."""
    code = TYPE_CODES[datatype]
    try:
        if code in "?e":  # `array` has neither.
            return pack(f"<{len(numbers)}{code}", *numbers)
        # `array` takes the list as it is, while `struct` takes each number as an argument.
        return array(code, numbers).tobytes()
    except (OverflowError, TypeError, struct_error) as error:
        raise BadRequest(f"the data is not {datatype}: {error}") from error


def unpack_numbers(tensor: Tensor) -> list[float]:
    """The tensor's values in row-major order (integers and booleans keep their type)."""
    return list(numbers_of(tensor))


def numbers_of(tensor: Tensor) -> Sequence[float]:
    """The same values, where possible without an object for each."""
    code = TYPE_CODES[tensor.datatype]
    if code in "?e":
        count = len(tensor.data) // ITEM_BYTES[tensor.datatype]
        return unpack(f"<{count}{code}", tensor.data)
    values: array[float] = array(code)
    values.frombytes(tensor.data)
    return values


def byte_count(datatype: str, shape: Sequence[int]) -> int:
    """How many bytes a tensor of that datatype and shape has."""
    return ITEM_BYTES[datatype] * math.prod(shape)


def join(requests: Sequence[Tensors]) -> Tensors:
    """One tuple of tensors with the rows of all requests in order; they must be of the same kinds."""
    # Most batches of an idle service have one request, whose bytes then need no copy.
    if len(requests) == 1:
        return requests[0]
    return tuple(
        Tensor(
            name=column[0].name,
            datatype=column[0].datatype,
            shape=(sum(each.rows for each in column), *column[0].shape[1:]),
            data=b"".join(each.data for each in column),
        )
        for column in zip(*requests, strict=True)
    )


def split(outputs: Tensors, rows: Sequence[int]) -> tuple[Tensors, ...]:
    """Each request's part of the outputs: `rows[i]` rows for request i. EngineFailed where outputs have other rows."""
    ends = [0]
    for count in rows:
        ends.append(ends[-1] + count)
    # A network that mixes rows would otherwise hand one caller's answer to another.
    for output in outputs:
        if not output.shape or output.rows != ends[-1]:
            raise EngineFailed(
                f"output {output.name} has shape {list(output.shape)} for a batch of {ends[-1]} rows; "
                "its first dimension must be the batch"
            )
    return tuple(
        tuple(_slice(each, start, end) for each in outputs)
        for start, end in pairwise(ends)
    )


def _slice(tensor: Tensor, start: int, end: int) -> Tensor:
    row_bytes = byte_count(tensor.datatype, tensor.shape[1:])
    return Tensor(
        name=tensor.name,
        datatype=tensor.datatype,
        shape=(end - start, *tensor.shape[1:]),
        data=tensor.data[start * row_bytes : end * row_bytes],
    )
