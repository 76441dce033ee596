"""How batches form, over real HTTP with an engine that waits for the test."""

import asyncio

from agents.serving.engines.errors import EngineFailed
from tests.agents.harness import (
    FOR_EVER_MS,
    Client,
    GatedEngine,
    Reply,
    all_of,
    serving,
)
from tests.waiting import eventually, in_loop


async def busy(client: Client, engine: GatedEngine) -> "asyncio.Task[Reply]":
    """One request that runs and stays in the engine; those that come after it wait."""
    begun = len(engine.batches)
    task = client.send(-1.0)
    await eventually(lambda: len(engine.batches) == begun + 1)
    return task


async def queued(client: Client, count: int) -> None:
    """Return when `count` requests wait."""

    async def is_so() -> bool:
        return await client.count("waiting") == count

    await eventually(is_so)


@in_loop
async def test_rows_count_not_requests_and_order_is_kept() -> None:
    engine = GatedEngine()
    async with serving(engine, batch=4) as client:
        first = await busy(client, engine)
        sent = []
        for place, rows in enumerate((2, 1, 3, 1), start=1):
            sent.append(client.send(*(10.0 * place + row for row in range(rows))))
            await queued(client, place)
        engine.open()
        replies = await all_of(sent)
        await first
    # 2 + 1 rows, since 3 more do not fit; then 3 + 1.
    assert engine.batches == [1, 3, 4]
    assert [reply.numbers for reply in replies] == [
        [10.0, 11.0],
        [20.0],
        [30.0, 31.0, 32.0],
        [40.0],
    ]


@in_loop
async def test_with_a_delay_a_batch_waits_until_it_is_full_or_the_delay_is_over() -> (
    None
):
    engine = GatedEngine(is_open=True)
    async with serving(engine, batch=3, delay_ms=FOR_EVER_MS) as client:
        replies = await all_of([client.send(float(number)) for number in range(3)])
        fourth = client.send(3.0)
        await queued(client, 1)  # Alone it does not go.
        replies += await all_of([fourth, client.send(4.0), client.send(5.0)])
    assert engine.batches == [3, 3]
    assert {reply.status for reply in replies} == {200}
    async with serving(GatedEngine(is_open=True), batch=16, delay_ms=20.0) as client:
        assert (await client.infer(1.0)).batch == 1


@in_loop
async def test_a_changed_batch_holds_for_every_batch_that_begins_after_it() -> None:
    engine = GatedEngine()
    async with serving(engine, batch=8) as client:
        first = await busy(client, engine)
        sent = [client.send(float(number)) for number in range(7)]
        await queued(client, 7)
        changed = await client.call("PUT", "/batch", {"batch": 3})
        engine.open()
        await all_of(sent)
        await first
    assert (changed.json["batch"], changed.json["batches_begun"]) == (3, 1)
    assert engine.batches == [1, 3, 3, 1]


@in_loop
async def test_a_request_that_is_larger_than_the_batch_became_runs_alone() -> None:
    engine = GatedEngine()
    async with serving(engine, batch=4) as client:
        first = await busy(client, engine)
        large = client.send(1.0, 2.0, 3.0)
        await queued(client, 1)
        small = client.send(4.0)
        await queued(client, 2)
        await client.call("PUT", "/batch", {"batch": 2})
        engine.open()
        replies = await all_of([large, small])
        await first
    assert engine.batches == [1, 3, 1]
    assert [reply.numbers for reply in replies] == [[1.0, 2.0, 3.0], [4.0]]


@in_loop
async def test_requests_of_other_kinds_do_not_share_a_batch() -> None:
    engine = GatedEngine()
    wide = {
        "inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [7, 8]}]
    }
    async with serving(engine, batch=4) as client:
        first = await busy(client, engine)
        sent = [client.send(1.0)]
        await queued(client, 1)
        sent.append(
            asyncio.create_task(client.call("POST", "/v2/models/chat/infer", wide))
        )
        await queued(client, 2)
        engine.open()
        replies = await all_of(sent)
        await first
    assert engine.batches == [1, 1, 1]
    assert [reply.numbers for reply in replies] == [[1.0], [7.0, 8.0]]


@in_loop
async def test_a_full_queue_turns_away_and_says_when_to_come_again() -> None:
    engine = GatedEngine()
    async with serving(engine, batch=1, queue=2) as client:
        first = await busy(client, engine)
        waiting = [client.send(1.0), client.send(2.0)]
        await queued(client, 2)
        refused = await client.infer(3.0)
        engine.open()
        replies = await all_of(waiting)
        await first
        series = await client.series()
    assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
    assert refused.json["detail"] == "2 requests are already waiting"
    assert [reply.status for reply in replies] == [200, 200]
    assert series["plimsoll_worker_drops_total", (("reason", "queue_full"),)] == 1.0
    assert 3.0 not in engine.batches


@in_loop
async def test_a_request_that_waits_past_its_deadline_is_never_run() -> None:
    engine = GatedEngine()
    async with serving(engine) as client:
        first = await busy(client, engine)
        late = await client.infer(
            1.0, deadline_ms=5
        )  # Answered although the engine is still busy.
        engine.open()
        await first
        done = await client.infer(2.0, deadline_ms=50_000)
        series = await client.series()
    assert late.status == 504
    assert late.headers["Content-Type"] == "application/problem+json"
    assert done.numbers == [2.0]
    assert engine.batches == [1, 1]
    assert series["plimsoll_worker_drops_total", (("reason", "deadline"),)] == 1.0
    assert series["plimsoll_worker_requests_total", (("outcome", "late"),)] == 1.0


@in_loop
async def test_a_client_that_left_is_not_run() -> None:
    engine = GatedEngine()
    async with serving(engine) as client:
        first = await busy(client, engine)
        leaving, staying = client.send(1.0), client.send(2.0)
        await queued(client, 2)
        leaving.cancel()
        await asyncio.wait({leaving})
        await client.call("GET", "/status")
        engine.release()
        await first

        async def is_dropped() -> bool:
            return (await client.series())[
                "plimsoll_worker_drops_total", (("reason", "abandoned"),)
            ] == 1.0

        await eventually(is_dropped)
        engine.open()
        assert (await staying).batch == 1
    assert engine.batches == [1, 1]


@in_loop
async def test_a_batch_that_fails_fails_its_requests_and_no_others() -> None:
    engine = GatedEngine(is_open=True, failure=EngineFailed("no memory for 1 rows"))
    async with serving(engine) as client:
        failed = await client.infer(1.0)
        engine.failure = ZeroDivisionError("division by zero")
        raised = await client.infer(1.0)
        engine.failure, engine.outputs_rows = None, 3
        wrong = await client.infer(1.0, 2.0)
        engine.outputs_rows = None
        done = await client.infer(2.0)
        live = await client.call("GET", "/v2/health/live")
        series = await client.series()
    assert {reply.status for reply in (failed, raised, wrong)} == {500}
    assert failed.json["detail"] == "no memory for 1 rows"
    said = "the network raised ZeroDivisionError: division by zero"
    assert raised.json["detail"] == said
    assert "shape [3] for a batch of 2 rows" in str(wrong.json["detail"])
    assert (done.status, live.status) == (200, 200)
    assert series["plimsoll_worker_batches_total", (("outcome", "failed"),)] == 3.0
    assert series["plimsoll_worker_execution_seconds_count", ()] == 1.0
