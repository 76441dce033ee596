"""What passing answers of language models tell of their tokens, in all the APIs by which they come."""

import json

import msgspec
import pytest

from agents.base.device import ServiceRoute
from agents.base.protocol import ServiceReading
from agents.router.service_queue import ServiceQueue
from agents.router.streams import (
    EVENT_LIMIT,
    MAX_TOKENS,
    AnswerTail,
    TokenMeter,
    answered_tokens,
)
from tests.agents.router.api_streams import (
    FAILED,
    STREAMS,
    UNKNOWN,
    WHOLE,
    ApiStream,
    chunk,
    data,
    usage,
)

streams = pytest.mark.parametrize("api", STREAMS.values(), ids=STREAMS.keys())


@streams
def test_first_token_gaps_and_counts_are_those_of_the_api(api: ApiStream) -> None:
    meter, now_s = TokenMeter(10.0), 10.005
    for event in api.before:
        meter.feed(event, now_s)
    assert meter.ttft_ms is None
    now_s = 12.0
    for event in api.tokens:
        meter.feed(event, now_s)
        now_s += 0.1
    for event in api.after:
        meter.feed(event, now_s + 5.0)
    assert meter.is_known and not meter.has_failed
    assert meter.ttft_ms == pytest.approx(2000.0)
    assert meter.tokens == api.count
    spent_ms = 100.0 * (len(api.tokens) - 1)
    assert meter.itl_ms == pytest.approx(spent_ms / (api.count - 1))


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
@pytest.mark.parametrize("cut", [1, 2, 3, 7, 50, 10_000])
@streams
def test_events_are_found_wherever_they_are_cut(
    api: ApiStream, cut: int, end: bytes
) -> None:
    meter = TokenMeter(0.0)
    text = b"".join((*api.before, *api.tokens, *api.after)).replace(b"\n", end)
    for start in range(0, len(text), cut):
        meter.feed(text[start : start + cut], 1.0)
    assert meter.tokens == api.count


@pytest.mark.parametrize("events", UNKNOWN.values(), ids=UNKNOWN.keys())
def test_of_an_unknown_api_nothing_is_measured(events: tuple[bytes, ...]) -> None:
    meter = TokenMeter(0.0)
    for event in events:
        meter.feed(event, 1.0)
    assert (meter.is_known, meter.ttft_ms, meter.tokens) == (False, None, 0)


@pytest.mark.parametrize("events", FAILED.values(), ids=FAILED.keys())
def test_an_error_within_a_stream_is_seen(events: tuple[bytes, ...]) -> None:
    meter = TokenMeter(0.0)
    for event in events:
        meter.feed(event, 1.0)
    assert meter.has_failed


@pytest.mark.parametrize(("document", "tokens"), WHOLE.values(), ids=WHOLE.keys())
def test_an_answer_in_one_piece_has_the_tokens_of_its_usage(
    document: object, tokens: int
) -> None:
    body = json.dumps(document).encode()
    assert answered_tokens(body) == tokens
    tail = AnswerTail()
    for start in range(0, len(body), 100):
        tail.feed(body[start : start + 100])
    assert tail.tokens == tokens


def test_several_answers_to_one_request_have_their_own_gaps() -> None:
    meter = TokenMeter(0.0)
    for now_s in (1.0, 1.1, 1.2):
        for index in (0, 1):
            meter.feed(chunk({"content": "a"}, index=index), now_s)
    meter.feed(usage(6), 1.2)
    assert meter.tokens == 6
    assert meter.itl_ms == pytest.approx(100.0)


def test_one_event_may_have_tokens_of_several_answers() -> None:
    meter = TokenMeter(0.0)
    for now_s in (1.0, 1.1, 1.2):
        both = [{"index": index, "delta": {"content": "a"}} for index in (0, 1)]
        meter.feed(data({"choices": both}), now_s)
    assert meter.tokens == 6
    assert meter.itl_ms == pytest.approx(100.0)


def test_a_hundred_mebibytes_pass_in_linear_time_and_bounded_memory() -> None:
    """Without an event's end, as a long page of embeddings has none; then another event is understood again."""
    meter, tail, piece = TokenMeter(0.0), AnswerTail(), b"[0.123, " * 8192
    meter.feed(b"data: {", 1.0)
    for _ in range(100 * 2**20 // len(piece)):
        meter.feed(piece, 1.0)
        tail.feed(piece)
    assert len(meter._rest) <= 2 * EVENT_LIMIT
    # By the rest of that event alone its usage is still told.
    meter.feed(b'"usage":{"output_tokens":12}}\n\n' + chunk({"content": "a"}), 2.0)
    assert (meter.ttft_ms, meter.tokens) == (2000.0, 12)


@pytest.mark.parametrize(
    "document",
    [
        {"choices": 1},
        {"choices": [1, None, {"delta": 3}, {"text": None, "index": "a"}]},
        {"choices": [{"delta": {"content": "a"}, "index": 10**30}], "usage": 5},
        {"type": 3, "choices": None},
        {"type": "response.completed", "response": [1]},
        {"type": "content_block_delta", "delta": "x"},
        {"choices": [], "usage": {"completion_tokens": -4}},
    ],
)
def test_no_replica_can_upset_the_meter(document: object) -> None:
    meter = TokenMeter(0.0)
    for event in (
        data(document),
        b"data: " + b"[" * 100_000 + b"\n\n",
        b"data: {\xff}\n\n",
    ):
        meter.feed(event, 1.0)
    assert 0 <= meter.tokens <= 1
    assert meter.itl_ms is None


def test_whole_answers_tell_their_tokens() -> None:
    assert answered_tokens(b'{"error":{}}') == answered_tokens(b"no JSON") == 1
    # A stream is whole where its first and last events were read together.
    api = STREAMS["chat"]
    assert answered_tokens(b"".join((*api.before, *api.tokens, *api.after))) == 2


def test_no_replica_can_state_more_tokens_than_a_report_may_hold() -> None:
    lie = b'{"usage":{"completion_tokens":999999999}}'
    assert answered_tokens(lie) == MAX_TOKENS
    meter = TokenMeter(0.0)
    meter.feed(chunk({"content": "a"}) + b"data: " + lie + b"\n\n", 1.0)
    assert meter.tokens == MAX_TOKENS
    route = ServiceRoute(service="chat", slo_ms=60_000.0, slo_itl_ms=60_000.0)
    queue = ServiceQueue(route, queue_limit=1, replica_limit=1)
    for _ in range(1001):
        queue.finish(1.0, tokens=MAX_TOKENS)
    # What the control plane does not take is lost with all that was reported with it.
    told = msgspec.json.encode(queue.read())
    assert msgspec.json.decode(told, type=ServiceReading).output_tokens == 10**9
