"""The sync endpoint's body: an Observation, checked before it joins others in one commit.

What the database would refuse must be refused here: one bad observation would take its whole batch down with it.
"""

import re

import msgspec

from agents.base.protocol import BUCKET_COUNT, Observation
from app.api.http.body import pointer_to_constant
from app.api.http.errors import MalformedBody
from app.base.errors import InvalidRequest

MAX_BATCH = 65_536
MAX_SEQUENCE = 2**53
MAX_GPU_INDEX = 64_999
"""A slice (MIG) of GPU 63 has at most this index: 1000 * 64 + 10 * instance + compute instance."""
MAX_GPUS = 128
"""Sixteen GPUs in seven or eight slices each."""

_decoder = msgspec.json.Decoder(Observation)
_PATH = re.compile(r"(?P<problem>.*) - at `(?P<path>[^`]*)`$", re.DOTALL)
_NUL = b"\\u0000"


def decode_observation(body: bytes, node: str) -> Observation:
    """The observation of that node. Raises MalformedBody for what is not JSON, else InvalidRequest naming the field."""
    try:
        observation = _decoder.decode(body)
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
    # An agent with another node's configuration would overwrite what that one reports.
    if observation.node != node:
        raise InvalidRequest(
            f"is {observation.node!r}, but the path says {node!r}", field="node"
        )
    # Searched in the raw body, which is quicker than in every text of the observation.
    if _NUL in body:
        raise InvalidRequest("a text has a NUL character, which no database keeps")
    _check(observation)
    return observation


def _check(observation: Observation) -> None:
    """Rules that types cannot state."""
    if observation.sequence > MAX_SEQUENCE:
        raise InvalidRequest(f"must be at most {MAX_SEQUENCE}", field="sequence")
    indices = [gpu.index for gpu in observation.gpus]
    # Two readings of one GPU would be two rows with the same key, and fail with the batch.
    if len(set(indices)) < len(indices) or max(indices, default=0) > MAX_GPU_INDEX:
        raise InvalidRequest(
            f"indices must differ and be at most {MAX_GPU_INDEX}", field="gpus"
        )
    if len(indices) > MAX_GPUS:
        raise InvalidRequest(
            f"a node has at most {MAX_GPUS} GPUs and slices", field="gpus"
        )
    for number, replica in enumerate(observation.replicas):
        if replica.batch > MAX_BATCH:
            raise InvalidRequest(
                f"must be at most {MAX_BATCH}", field=f"replicas[{number}].batch"
            )
    for number, service in enumerate(observation.services):
        if any(bucket >= BUCKET_COUNT for bucket, _ in service.latency_buckets):
            raise InvalidRequest(
                f"buckets are numbered from 0 to {BUCKET_COUNT - 1}",
                field=f"services[{number}].latency_buckets",
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
