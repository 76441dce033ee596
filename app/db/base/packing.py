"""JSON as it is stored where it is long and no query looks into it: compressed."""

import zlib
from typing import TypeVar

import msgspec

# Fast rather than small: a tick waits for it.
_LEVEL = 1

Kind = TypeVar("Kind")


def packed(value: object) -> bytes:
    """What `unpacked` reads."""
    return zlib.compress(msgspec.json.encode(value), _LEVEL)


def unpacked(body: bytes, kind: type[Kind]) -> Kind:
    """What was packed, as the type that it had."""
    return msgspec.json.decode(zlib.decompress(body), type=kind)
