"""Servers that answer so as to harm the caller: every answer is a number that can be true, or ServerUnanswered."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from agents.processes.templates import Server
from agents.replicas import adapters
from agents.replicas.adapters import Adapter, Endpoint, ReplicaCounts, make_adapters
from agents.replicas.answers import ServerUnanswered
from agents.replicas.server_metrics import Page, read_page
from tests.agents.fakes.answers import always
from tests.waiting import PATIENCE_S, eventually, in_loop

pytestmark = pytest.mark.integration

NESTED = "[" * 20_000
DIGITS = "1" + "0" * 400
HISTOGRAM = "vllm:e2e_request_latency_seconds_bucket"


@asynccontextmanager
async def answering(
    body: str, server: Server, *, status: int = 200
) -> AsyncIterator[tuple[Adapter, Endpoint]]:
    """A replica's server that answers everything alike."""
    async with always(body.encode(), status) as url, aiohttp.ClientSession() as session:
        endpoint = Endpoint(url=url, served_as="chat", metrics_url=f"{url}/metrics")
        yield make_adapters(session)[server], endpoint


@pytest.mark.parametrize("number", [DIGITS, "-1", "1e300", "NaN", "Infinity", "true"])
@in_loop
async def test_a_number_that_cannot_be_true_is_not_told(number: str) -> None:
    body = (
        f'{{"requests": {number}, "batches": 1, "execution_s": {number}, '
        f'"waiting": 3, "sm_count": {number}}}'
    )
    async with answering(body, "worker") as (adapter, endpoint):
        assert await adapter.metrics(endpoint) == ReplicaCounts(batches=1, queued=3)
        assert await adapter.sm_count(endpoint) is None


@pytest.mark.parametrize(
    ("server", "body", "said"),
    [
        ("worker", NESTED, "is not JSON"),
        ("worker", f'{{"requests": {NESTED}', "is not JSON"),
        # Python reads no integer of more than 4300 digits.
        ("worker", f'{{"requests": {"9" * 5000}}}', "is not JSON"),
        ("vllm", f'{HISTOGRAM}{{model_name="chat"}} 5\n', "cannot be read: KeyError"),
        ("vllm", f'{HISTOGRAM}{{model_name="chat",le="x"}} 5\n', "ValueError"),
        ("vllm", f'{HISTOGRAM}{{model_name="chat",le="1"}} NaN\n', "ValueError"),
        ("vllm", f'{HISTOGRAM}{{model_name="chat",le="1"}} +Inf\n', "OverflowError"),
    ],
)
@in_loop
async def test_an_answer_that_breaks_its_reader_is_no_answer(
    server: Server, body: str, said: str
) -> None:
    async with answering(body, server) as (adapter, endpoint):
        with pytest.raises(ServerUnanswered, match=said):
            await adapter.metrics(endpoint)


@pytest.mark.parametrize("number", ["NaN", "+Inf", "-5", "1e300"])
@in_loop
async def test_a_metric_that_cannot_be_true_is_not_told(number: str) -> None:
    page = (
        f'nv_inference_request_success{{model="chat"}} {number}\n'
        f'nv_inference_compute_infer_duration_us{{model="chat"}} {number}\n'
        'nv_inference_exec_count{model="chat"} 10\n'
    )
    async with answering(page, "triton") as (adapter, endpoint):
        found = await adapter.metrics(endpoint)
    assert (found.requests, found.batches) == (None, 10)
    assert found.busy_s is None or found.busy_s <= 1e12


@in_loop
async def test_a_long_page_holds_up_no_other_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_read, goes_on = threading.Event(), threading.Event()

    def slow(text: str) -> Page:
        is_read.set()
        assert goes_on.wait(PATIENCE_S), "the loop did nothing else meanwhile"
        return read_page(text)

    monkeypatch.setattr(adapters, "read_page", slow)
    async with answering('nv_inference_exec_count{model="chat"} 10\n', "triton") as (
        adapter,
        endpoint,
    ):
        asked = asyncio.create_task(adapter.metrics(endpoint))
        await eventually(is_read.is_set)
        goes_on.set()
        assert (await asked).batches == 10


@pytest.mark.parametrize("depth", [400, 900, 990, 20_000])
@in_loop
async def test_a_configuration_too_deep_to_be_changed(depth: int) -> None:
    body = f'{{"max_batch_size": 8, "x": {"[" * depth}{"]" * depth}}}'
    async with answering(body, "triton") as (adapter, endpoint):
        try:
            assert await adapter.apply_batch(endpoint, 4) == "reloading"
        except ServerUnanswered:
            assert depth > 400


@in_loop
async def test_an_answer_forges_no_line_of_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    said = "no\n2026-01-01 ERROR the disk is full\x1b[2J\r"
    async with answering(said, "worker", status=500) as (adapter, endpoint):
        with pytest.raises(ServerUnanswered) as refused:
            await adapter.metrics(endpoint)
    logging.getLogger("agents").error("%s", refused.value)
    (record,) = caplog.records
    assert record.getMessage().isprintable()
    assert "answers 500: no 2026-01-01 ERROR" in record.getMessage()
