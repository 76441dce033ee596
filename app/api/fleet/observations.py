"""The sync endpoint's body: an Observation, checked before it joins others in one commit.

Numbers and texts have their bounds in the protocol; here is what types cannot state. What passes can be written: one
observation that the database refused would hold its whole group up.
"""

import re
from itertools import pairwise
from typing import TypeVar

import msgspec

from agents.base.protocol import Observation
from app.api.http.body import pointer_to_constant
from app.api.http.errors import MalformedBody
from app.base.errors import InvalidRequest

MAX_CELLS = 40_000
"""Counts in one observation: a thousand services with 38 latency buckets each, half a second of PostgreSQL's time."""

MAX_OBSERVATION_BYTES = 2 * 1024 * 1024
"""With names of 63 letters MAX_CELLS counts have 0.5 MB; 1,024 replicas, as many services and tasks, and 1,280 uses
have 1.0 MB; 192 sentences of 2,000 letters have 0.4 MB."""

_decoder = msgspec.json.Decoder(Observation)
Message = TypeVar("Message")
_PATH = re.compile(r"(?P<problem>.*) - at `(?P<path>[^`]*)`$", re.DOTALL)
_NUL = b"\\u0000"


def decode_observation(body: bytes, node: str) -> Observation:
    """The observation of that node. Raises MalformedBody for what is not JSON, else InvalidRequest naming the field."""
    observation = decode(body, _decoder)
    # An agent with another node's configuration would overwrite what that one reports.
    if observation.node != node:
        raise InvalidRequest(
            f"is {observation.node!r}, but the path says {node!r}", field="node"
        )
    # Searched in the raw body, which is quicker than in every text of the observation.
    if _NUL in body:
        raise InvalidRequest(
            "a text has a NUL character, which the database cannot store"
        )
    _check(observation)
    return observation


def decode(body: bytes, decoder: msgspec.json.Decoder[Message]) -> Message:
    """What an agent sent. Raises MalformedBody for what is not JSON, else InvalidRequest naming the field."""
    try:
        return decoder.decode(body)
    # First: it is a kind of DecodeError, but its message has the field.
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        pointer = pointer_to_constant(body)
        if pointer is not None:
            raise InvalidRequest(
                "NaN and infinities are not JSON numbers", field=_field(pointer)
            ) from error
        raise MalformedBody(f"the body is not JSON: {error}") from error


def _check(observation: Observation) -> None:
    """Rules that types cannot state."""
    indices = [gpu.index for gpu in observation.gpus]
    if len(set(indices)) < len(indices):
        raise InvalidRequest("indices must differ", field="gpus")
    cells = len(observation.uses) + sum(len(use.over) for use in observation.uses)
    for number, service in enumerate(observation.services):
        cells += 1 + len(service.latency_buckets)
        # Of two counts of one bucket, one would be lost.
        if any(one[0] >= two[0] for one, two in pairwise(service.latency_buckets)):
            raise InvalidRequest(
                "buckets must ascend, each at most once",
                field=f"services[{number}].latency_buckets",
            )
    if cells > MAX_CELLS:
        raise InvalidRequest(
            f"{cells:,} counts of services, latency buckets, uses and overuses in one observation; at most "
            f"{MAX_CELLS:,}: spread the services over more nodes' routers",
            field="services",
        )


def _invalid(message: str) -> InvalidRequest:
    """msgspec's sentence, e.g. "Expected `int` >= 0 - at `$.gpus[0].index`", with the path taken out."""
    # Only the text of msgspec's errors has the path.
    found = _PATH.match(message)
    if found is None:
        return InvalidRequest(message)
    return InvalidRequest(
        found["problem"],
        field=found["path"].removeprefix("$").removeprefix(".").replace("[...]", ""),
    )


def _field(pointer: str) -> str:
    """`/gpus/0/power_w` as `gpus[0].power_w`."""
    return re.sub(
        r"\.(\d+)(?=\.|$)", r"[\1]", pointer.removeprefix("/").replace("/", ".")
    )
