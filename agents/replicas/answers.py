"""Reading what a replica's server answers: a value that can be true, or one exception, whatever it says.

with reading(url): …              whatever goes wrong within becomes ServerUnanswered
read_object(body, url)            a JSON object
read_count(value), read_amount(value)      None for what cannot be true
"""

import contextlib
import json
from collections.abc import Iterator
from typing import TypeAlias

from agents.base.device import DeviceError
from agents.processes.logs import error_text

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"

MAX_COUNT = 10**12
"""A server that finishes 10,000 requests a second gets there in three years; what is beyond overflows others' sums."""


class ServerUnanswered(DeviceError):
    """The server did not answer, or not as documented."""


class ServerRefused(ServerUnanswered):
    """The server answered with an error."""


@contextlib.contextmanager
def reading(where: str) -> Iterator[None]:
    """Make whatever goes wrong while an answer is read a ServerUnanswered."""
    try:
        yield
    except ServerUnanswered:
        raise
    # So broad because the server is not our code: an answer may break a parser in ways that were not foreseen, and
    # the caller expects DeviceErrors alone.
    except Exception as error:
        said = f"{type(error).__name__}: {error_text(error)}"
        raise ServerUnanswered(f"{where} cannot be read: {said}") from error


def read_object(body: bytes, where: str) -> dict[str, Json]:
    """The JSON object in an answer or a file. Raises ServerUnanswered."""
    try:
        read = json.loads(body)
    # Brackets in brackets go as deep as their writer likes, and a RecursionError is no ValueError.
    except (ValueError, RecursionError) as error:
        raise ServerUnanswered(f"{where} is not JSON: {error}") from error
    if not isinstance(read, dict):
        raise ServerUnanswered(f"{where} is no JSON object")
    return read


def read_count(value: Json) -> int | None:
    """A number of things, rounded; None for what cannot be one."""
    amount = read_amount(value)
    return None if amount is None else round(amount)


def read_amount(value: Json) -> float | None:
    """A number from 0 to MAX_COUNT; None for all else, NaN included."""
    # True is an int in Python. Compared before it is converted: an integer of 400 digits makes no float.
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= MAX_COUNT else None
