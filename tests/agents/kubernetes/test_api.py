"""Following objects through silences and a server that hangs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agents.kubernetes import api as module
from agents.kubernetes.api import ApiAddress, Away, KubernetesApi, ListedObjects
from agents.kubernetes.pod import Pod
from tests.agents.fakes.replicas import in_loop, until
from tests.agents.kubernetes.fake_api import NAMESPACE, FakeApi
from tests.agents.router_harness import served

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


@asynccontextmanager
async def followed(url: str, directory: Path, seen: list[Any]) -> AsyncIterator[None]:
    token_file = directory / "token"
    token_file.write_text(FakeApi().token)
    api = KubernetesApi(ApiAddress(url=url, token_file=token_file))

    async def follow() -> None:
        async for each in api.follow(PODS, Pod):
            seen.append(each)

    task = asyncio.create_task(follow())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        await api.close()


@in_loop
async def test_a_kind_of_which_nothing_changes_is_no_server_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real server sends no bookmarks of such a kind."""
    monkeypatch.setattr(module, "SILENCE_S", 0.2)
    fake, seen = FakeApi(), []
    async with fake.running(), followed(fake.url, tmp_path, seen):
        # The list, and some watches after one another.
        await until(lambda: len(fake.requests) >= 5)
    assert seen == [ListedObjects(())]


@in_loop
async def test_a_server_that_takes_a_watch_and_does_not_answer_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.3)
    seen: list[Any] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            await asyncio.Event().wait()
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})

    app = web.Application()
    app.router.add_get(PODS, answer)
    async with (
        served(app) as url,
        followed(url.removesuffix("/"), tmp_path, seen),
    ):
        await until(lambda: any(isinstance(each, Away) for each in seen))
    # What was listed is known, and may be old from then on.
    assert isinstance(seen[0], ListedObjects)
