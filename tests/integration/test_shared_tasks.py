"""What several wait for ends with the application, though all who asked have given up."""

import asyncio
from typing import cast

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import QueuePool

from app.api.caches import shared_tasks
from app.base.settings import Settings
from app.serve.api_process import create_app
from app.serve.plane import make_plane
from tests.waiting import eventually, run

pytestmark = pytest.mark.integration


def test_no_connection_of_it_outlives_the_application(database: str) -> None:
    async def hold(engine: AsyncEngine) -> None:
        async with engine.connect():
            await asyncio.Event().wait()

    async def play() -> None:
        app = create_app(make_plane(Settings(), database))
        async with app.router.lifespan_context(app):
            engine = app.state.parts.engine
            pool = cast(QueuePool, engine.pool)
            holding = shared_tasks.begin(hold(engine), "test")
            await eventually(lambda: pool.checkedout() == 1)
        assert holding.done()
        assert pool.checkedout() == 0

    run(play())
