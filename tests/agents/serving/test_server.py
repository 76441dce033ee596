"""A replica's HTTP: readiness, states, refusals; in this process, with an engine that waits for the test."""

import asyncio
import struct

import msgspec
import pytest

from agents.serving.engines.engine import Signature
from agents.serving.engines.errors import EngineFailed, EngineLost
from agents.serving.engines.tensors import TensorType
from tests.agents.harness import FOR_EVER_MS, Client, GatedEngine, all_of, body, serving
from tests.waiting import eventually, in_loop


async def state(client: Client) -> object:
    return (await client.call("GET", "/status")).json["state"]


async def became(client: Client, wanted: str) -> None:
    async def is_so() -> bool:
        return await state(client) == wanted

    await eventually(is_so)


async def taken(client: Client, count: int) -> None:
    """Return when `count` requests wait or run."""

    async def is_so() -> bool:
        return await client.count("waiting") + await client.count("running") == count

    await eventually(is_so)


@in_loop
async def test_readiness_says_what_proves_the_limit() -> None:
    environment = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}
    engine = GatedEngine()
    async with serving(engine, batch=4, environment=environment) as client:
        found = (await client.call("GET", "/v2/health/ready")).json
        by_name = await client.call("GET", "/v2/models/chat/ready")
        by_version = await client.call("GET", "/v2/models/chat/versions/1/ready")
    facts = {"sm_count": 66, "sm_percent": 50.0, "batch": 4, "memory_mib": 10.0}
    assert found.items() >= {**facts, "device": "gated:0"}.items()
    # Callers of the service ask here: the worker's inside is not for them.
    assert by_name.json == by_version.json == {"name": "chat", "ready": True}
    assert engine.calls == ["load", "warm up 4"]


CHAT, OTHER = "/v2/models/chat", "/v2/models/other"
SERVES = "this worker serves chat, not other"


@pytest.mark.parametrize(
    ("method", "path", "sent", "status", "words"),
    [
        ("POST", f"{CHAT}/infer", b"{", 400, "not a v2 inference request"),
        ("POST", f"{CHAT}/infer", b'{"inputs": []}', 400, "$.inputs"),
        ("POST", f"{CHAT}/infer", b"\xff\xfe", 400, "not a v2 inference request"),
        ("POST", f"{OTHER}/infer", b"{}", 404, SERVES),
        ("GET", f"{OTHER}/ready", b"", 404, SERVES),
        ("GET", "/nothing", b"", 404, "GET /nothing: Not Found"),
        ("GET", f"{CHAT}/config", b"", 404, f"GET {CHAT}/config"),
        ("POST", "/batch", b"", 405, "POST /batch"),
        ("PUT", "/batch", b'{"batch": 0}', 400, "$.batch"),
        ("PUT", "/batch", b'{"batch": 17}', 400, "batch 17 is above 16"),
        ("PUT", "/batch", b'{"delay_ms": -1}', 400, "$.delay_ms"),
        ("PUT", "/batch", b'{"delay": 1}', 400, "unknown field"),
        ("DELETE", "/resume", b"", 405, "DELETE /resume"),
        ("PUT", "/resume", b"", 200, "ready"),
        ("DELETE", "/drain", b"", 200, "ready"),
    ],
)
@in_loop
async def test_refusals_are_problems_that_say_why(
    method: str, path: str, sent: bytes, status: int, words: str
) -> None:
    async with serving(GatedEngine(is_open=True)) as client:
        reply = await client.call(method, path, data=sent)
        assert reply.status == status
        if status == 200:
            assert reply.json["state"] == words
        else:
            assert reply.headers["Content-Type"] == "application/problem+json"
            assert reply.json["status"] == status
            assert words in str(reply.json["detail"])
            # Clients of the protocol show this member, and no other.
            assert reply.json["error"] == reply.json["detail"]
        # Whatever it was, the next request is served.
        assert (await client.infer(1.0)).status == 200


@in_loop
async def test_deadlines_that_are_none_and_too_many_rows_are_refused() -> None:
    async with serving(GatedEngine(is_open=True)) as client:
        for text in ("soon", "", "nan"):
            reply = await client.call(
                "POST",
                "/v2/models/chat/infer",
                body(1.0),
                headers={"Plimsoll-Deadline-Ms": text},
            )
            assert reply.status == 400
            assert "Plimsoll-Deadline-Ms" in str(reply.json["detail"])
        reply = await client.infer(*range(17))
    assert reply.status == 400
    assert "17 rows; a batch may have at most 16" in str(reply.json["detail"])


@in_loop
async def test_inputs_reach_the_engine_in_the_networks_order() -> None:
    kinds = tuple(
        TensorType(name=name, datatype="UINT8", row_shape=()) for name in "ba"
    )
    sent = {
        "inputs": [
            {"name": name, "shape": [1], "datatype": "UINT8", "data": [1]}
            for name in "ab"
        ]
    }
    async with serving(
        GatedEngine(is_open=True, signature=Signature(inputs=kinds))
    ) as client:
        reply = await client.call("POST", "/v2/models/chat/infer", sent)
    assert [each.name for each in reply.decoded.outputs] == [
        "b",
        "a",
    ]  # The engine gives back what it gets.


@in_loop
async def test_bodies_of_open_requests_are_bounded_together() -> None:
    engine = GatedEngine()
    sent = msgspec.json.encode(body(1.0))
    async with serving(
        engine, largest_held=2 * len(sent) - 1
    ) as client:  # Room for one of them.
        first = client.send(1.0)
        await eventually(lambda: engine.batches == [1])
        refused = await client.infer(1.0)
        engine.open()
        done = await first
        again = await client.infer(1.0)
    assert refused.status == 503
    assert "open requests already hold 0.0 MiB" in str(refused.json["detail"])
    assert (done.status, again.status) == (200, 200)


@in_loop
async def test_draining_answers_what_was_taken_and_takes_no_more() -> None:
    engine = GatedEngine()
    async with serving(engine, batch=2, delay_ms=FOR_EVER_MS) as client:
        sent = [client.send(float(number)) for number in range(5)]

        await taken(client, 5)
        drained = await client.call("PUT", "/drain")
        refused, unready = (
            await client.infer(9.0),
            await client.call("GET", "/v2/health/ready"),
        )
        live = await client.call("GET", "/v2/health/live")
        engine.open()
        replies = await all_of(sent)
        await became(client, "drained")
        await client.call("DELETE", "/drain")
        engine_again = await client.call("PUT", "/batch", {"delay_ms": 0})
        again = await client.infer(7.0)
    assert (drained.status, drained.json["state"]) == (202, "draining")
    assert refused.status == 503
    assert refused.headers["Retry-After"] == "1"
    assert unready.status == 503
    assert live.status == 200
    assert [reply.status for reply in replies] == [200] * 5
    assert engine.batches == [2, 2, 1, 1]  # The fifth did not wait for a sixth.
    assert (engine_again.status, again.numbers) == (200, [7.0])


@in_loop
async def test_offloading_waits_for_what_was_taken_and_resuming_serves_again() -> None:
    engine = GatedEngine()
    async with serving(engine, batch=1) as client:
        sent = [client.send(1.0), client.send(2.0)]

        await taken(client, 2)
        offloading = asyncio.create_task(client.call("PUT", "/offload"))
        await became(client, "offloading")
        twice = await client.call("PUT", "/offload")
        engine.open()
        offloaded = await offloading
        replies = await all_of(sent)
        refused, draining = (
            await client.infer(3.0),
            await client.call("PUT", "/drain"),
        )
        resumed = await client.call("PUT", "/resume")
        again = await client.infer(4.0)
    assert [reply.status for reply in replies] == [200, 200]
    assert (twice.status, draining.status) == (409, 409)
    assert (offloaded.json["state"], refused.status) == ("offloaded", 503)
    assert (resumed.json["state"], again.numbers) == ("ready", [4.0])
    assert engine.calls == ["load", "warm up 1", "offload", "resume"]


@in_loop
async def test_an_offload_that_fails_makes_the_worker_dead() -> None:
    engine = GatedEngine(is_open=True, failure=EngineFailed("no host memory"))
    async with serving(engine) as client:
        failed = await client.call("PUT", "/offload")
        live, refused = (
            await client.call("GET", "/v2/health/live"),
            await client.infer(1.0),
        )
    assert (failed.status, failed.json["detail"]) == (500, "no host memory")
    assert (live.status, refused.status) == (503, 503)


@in_loop
async def test_a_lost_engine_answers_all_and_fails() -> None:
    engine = GatedEngine(failure=EngineLost("CUDA error: unspecified launch failure"))
    async with serving(engine, batch=1) as client:
        running, waiting = client.send(1.0), client.send(2.0)

        await taken(client, 2)
        engine.release()
        replies = sorted(reply.status for reply in await all_of([running, waiting]))
        await became(client, "failed")
    assert replies == [
        500,
        503,
    ]  # The one that waited was not run and may go elsewhere.
    assert engine.batches == [1]


@in_loop
async def test_binary_inputs_and_outputs() -> None:
    x = {"name": "x", "shape": [2, 2], "datatype": "FP32"}
    data = struct.pack("<4f", 1.0, 2.0, 3.0, 4.0)
    binary = {**x, "parameters": {"binary_data_size": len(data)}}
    asked = {"id": "7", "inputs": [binary], "parameters": {"binary_data_output": True}}
    head = msgspec.json.encode(asked)
    headers = {"Inference-Header-Content-Length": str(len(head))}
    async with serving(GatedEngine(is_open=True)) as client:
        reply = await client.call(
            "POST", "/v2/models/chat/infer", data=head + data, headers=headers
        )
    end = int(reply.headers["Inference-Header-Content-Length"])
    answer = msgspec.json.decode(reply.raw[:end], type=dict[str, object])
    assert reply.headers["Content-Type"] == "application/octet-stream"
    assert reply.raw[end:] == data
    assert (answer["id"], answer["outputs"]) == ("7", [binary])


@in_loop
async def test_metrics_are_there_from_the_start_and_bounded_whatever_is_sent() -> None:
    async with serving(GatedEngine(is_open=True), batch=2) as client:
        before = await client.series()
        for number in range(3):
            await client.infer(float(number))
            await client.call("POST", f"/v2/models/unknown-{number}/infer", body(1.0))
            await client.call("POST", "/v2/models/chat/infer", data=b"{")
        after = await client.series()
    assert before.keys() == after.keys()
    assert before["plimsoll_worker_requests_total", (("outcome", "ok"),)] == 0.0
    for reason in ("queue_full", "not_ready", "deadline", "abandoned", "stopped"):
        assert before["plimsoll_worker_drops_total", (("reason", reason),)] == 0.0
    assert after["plimsoll_worker_requests_total", (("outcome", "ok"),)] == 3.0
    assert after["plimsoll_worker_requests_total", (("outcome", "bad"),)] == 6.0
    assert after["plimsoll_worker_batch_size_rows_bucket", (("le", "1.0"),)] == 3.0
    assert after["plimsoll_worker_latency_seconds_count", ()] == 3.0
    assert after["plimsoll_worker_execution_seconds_count", ()] == 3.0
    assert after["plimsoll_worker_queue_length", ()] == 0.0
    assert after["plimsoll_worker_batch_limit_rows", ()] == 2.0
    assert after["plimsoll_worker_sm_count", ()] == 66.0
