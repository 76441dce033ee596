"""Strict JSON bodies and observations."""

import json
import math
import threading

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from pydantic import BaseModel, field_validator

from app.api.fleet.observations import decode_observation
from app.api.http.body import (
    READ_ASIDE_BYTES,
    LargeBodyRoute,
    pointer_to_constant,
    read_json,
    resource_router,
)
from app.api.http.errors import MalformedBody, pointer_of
from app.base.errors import InvalidRequest

READING = {
    "service": "chat",
    "arrivals": 1,
    "served": 1,
    "in_slo": 1,
    "latency_buckets": [[79, 1]],
}
OBSERVATION = {
    "node": "n1",
    "boot": "b",
    "sequence": 1,
    "window_start_s": 1.0,
    "window_s": 2.0,
    "generation": 0,
    "services": [READING],
}


@pytest.mark.parametrize(
    ("text", "pointer"),
    [
        (b'{"a": {"b": [1, NaN]}}', "/a/b/1"),
        (b"[-Infinity]", "/0"),
        (b'{"\\ud800a": NaN}', "/\\ud800a"),
        (b'{"a": 1e400}', "/a"),
        (b'{"a": 1%s.5}' % (b"0" * 400), "/a"),
        (b'{"a": "x\\u0000"}', "/a"),
        (b'{"a": ["\\ud800"]}', "/a/0"),
        (b'{"a": {"\\u0000": 1}}', "/a"),
    ],
)
def test_values_that_cannot_be_kept_are_refused_with_their_place(
    text: bytes, pointer: str
) -> None:
    with pytest.raises(MalformedBody) as refused:
        read_json(text)
    assert (refused.value.pointer, refused.value.status_code) == (pointer, 422)


@pytest.mark.parametrize(
    "text", [b"", b"{", b"{'a': 1}", b"\xff", b'{"a": 1, "a": 2}', b"[" * 100_000]
)
def test_what_is_not_json_is_refused(text: bytes) -> None:
    with pytest.raises(MalformedBody) as refused:
        read_json(text)
    assert (refused.value.pointer, refused.value.status_code) == ("", 400)


def test_the_repeated_one_of_many_fields_is_named() -> None:
    # Looked for field by field among all the others, it would take minutes.
    fields = ",".join(f'"field-{number}": 1' for number in (*range(60_000), 59_999))
    with pytest.raises(MalformedBody, match="field-59999"):
        read_json(f"{{{fields}}}".encode())


def test_depth_is_bounded_before_anything_is_walked() -> None:
    # Each of 40,000 texts stood below 900 lists, and its path was written for each list: seconds for 400 KB.
    leaves = b",".join([b'"\\u00e9"'] * 40_000)
    with pytest.raises(MalformedBody, match="more than 32 deep") as refused:
        read_json(b"[" * 900 + leaves + b"]" * 900)
    assert refused.value.status_code == 400


def test_levels_are_counted_outside_of_texts() -> None:
    in_text = b'["' + b"[" * 50 + b'\\"' + b"{" * 50 + b'"]'
    for begin, end in ((b"[", b"]"), (b'{"a":', b"}")):
        for text in (begin * 32 + b"1" + end * 32, in_text):
            assert read_json(text) == json.loads(text)
        with pytest.raises(MalformedBody):
            read_json(begin * 33 + b"1" + end * 33)


def test_a_constant_is_not_looked_for_in_long_bodies() -> None:
    # Looking took a second of the event loop, and hundreds of megabytes, for a body of the largest size.
    body = b'{"node":"n1","repartition":[%s,NaN]}' % b",".join(
        [b"0"] * READ_ASIDE_BYTES
    )
    assert pointer_to_constant(body) is None
    with pytest.raises(MalformedBody) as refused:
        decode_observation(body, "n1")
    assert (refused.value.pointer, refused.value.status_code) == ("", 400)


@pytest.mark.parametrize(
    ("field", "pointer"),
    [
        ("gpus[0].power_w", "/gpus/0/power_w"),
        ("spec.rows[3][8]", "/spec/rows/3/8"),
        ("a/b", "/a~1b"),
        ("", ""),
    ],
)
def test_paths_become_json_pointers(field: str, pointer: str) -> None:
    assert pointer_of(field) == pointer


class Noting(BaseModel):
    """Notes in which thread it is validated."""

    text: str

    @field_validator("text")
    @classmethod
    def _noted(cls, text: str) -> str:
        VALIDATED_IN.append(threading.get_ident())
        return text


VALIDATED_IN: list[int] = []


def test_a_long_body_is_validated_once_and_beside_the_event_loop() -> None:
    router = resource_router("notes", route_class=LargeBodyRoute)

    @router.post("/notes")
    async def note(sent: Noting) -> tuple[int, int]:
        return len(sent.text), threading.get_ident()

    app = FastAPI()
    app.include_router(router)
    for length, is_beside in ((1, False), (READ_ASIDE_BYTES, True)):
        VALIDATED_IN.clear()
        answer = TestClient(app).post("/notes", json={"text": "a" * length})
        taken, event_loop = answer.json()
        (validated_in,) = VALIDATED_IN
        assert (taken, validated_in != event_loop) == (length, is_beside)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"window_s": 0}, "window_s"),
        ({"window_s": math.nan}, "window_s"),
        ({"node": "n2"}, "node"),
        (
            {"services": [{"service": "chat", "arrivals": 1, "served": 1}]},
            "services[0]",
        ),
        (
            {"services": [{**READING, "latency_buckets": [[80, 1]]}]},
            "services[0].latency_buckets[0][0]",
        ),
        ({"problems": ["\x00"]}, ""),
        ({"more": 1}, ""),
    ],
)
def test_an_odd_observation_names_its_field(
    change: dict[str, object], field: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        decode_observation(json.dumps({**OBSERVATION, **change}).encode(), "n1")
    assert refused.value.field == field


def test_an_observation_is_decoded() -> None:
    assert decode_observation(json.dumps(OBSERVATION).encode(), "n1").services[
        0
    ].latency_buckets == ((79, 1),)
