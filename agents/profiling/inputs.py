"""Inputs to measure with: random, since some kernels take other times for zeros, and several sets in turn."""

from collections.abc import Sequence
from random import Random

from agents.serving.engine import Signature
from agents.serving.tensors import Kind, Tensor, Tensors, byte_count, pack_numbers

SETS = 4
"""Input sets that take turns, so that no cache holds the next one."""
MOST_BYTES = 512 * 1024 * 1024
"""Of all sets together."""
OPEN_LENGTH = 128
"""Taken where a network leaves the length of a dimension open: tokens of a short text."""
_BLOCK = 4096
"""Numbers that are drawn; larger tensors repeat them, as drawing millions would take seconds."""
_ANY = Kind(name="x", datatype="UINT8", row_shape=(16,))
"""For an engine that takes anything."""


def make_inputs(signature: Signature, rows: int, *, seed: int = 0) -> Sequence[Tensors]:
    """One to four sets of inputs with so many rows."""
    kinds = signature.inputs or (_ANY,)
    random = Random(f"{seed}/{rows}")
    whole = sum(byte_count(each.datatype, _shape(each, rows)) for each in kinds)
    sets = max(1, min(SETS, MOST_BYTES // max(1, whole)))
    return [tuple(_tensor(each, rows, random) for each in kinds) for _ in range(sets)]


def _shape(kind: Kind, rows: int) -> tuple[int, ...]:
    return rows, *(OPEN_LENGTH if length == -1 else length for length in kind.row_shape)


def _tensor(kind: Kind, rows: int, random: Random) -> Tensor:
    shape = _shape(kind, rows)
    length = byte_count(kind.datatype, shape)
    drawn = pack_numbers(kind.datatype, [_number(kind.datatype, random) for _ in range(_BLOCK)])
    data = (drawn * -(-length // len(drawn)))[:length]
    return Tensor(name=kind.name, datatype=kind.datatype, shape=shape, data=data)


def _number(datatype: str, random: Random) -> float:
    """Of a normal distribution; whole numbers from 0 to 99, as embeddings have so many rows at least."""
    if datatype.startswith("FP"):
        return random.gauss(0.0, 1.0)
    return bool(random.getrandbits(1)) if datatype == "BOOL" else random.randrange(100)
