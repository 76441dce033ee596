"""What passes the wire can be written: no observation that the decoder takes makes a group commit fail."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import inspect
from sqlalchemy.ext.asyncio import AsyncEngine

from agents.base.protocol import Observation
from app.api.fleet.observations import decode_observation
from app.base.errors import InvalidRequest
from app.db import maintenance
from app.db.base.engine import make_engine
from app.db.postgres_store import PostgresStore
from tests.examples import examples
from tests.integration.fleet import START, make_fleet, push
from tests.integration.wire_values import values

pytestmark = pytest.mark.integration

NAMES = st.sampled_from(["n1", "chat", "chat-0", "T4", "(idle)", "(others)"])
"""What is there, so that many readings are written and not left out."""


class Written:
    """A database with the fleet, for all examples; each is an observation with a number of its own."""

    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner()
        self._engine: AsyncEngine = make_engine(url, pool_size=2)
        self._store = self._runner.run(make_fleet(self._engine, {"default": ["chat"]}))
        self._runner.run(self._place())
        self._sequence = 0
        self.count = 0
        """Observations that were written."""

    async def _place(self) -> None:
        shares = [("chat", 60.0, 2048.0)]
        await push(self._store, START, {"n1/gpu-0": shares})

    @property
    def store(self) -> PostgresStore:
        return self._store

    def write(self, message: dict[str, Any]) -> None:
        """Commit it, where the decoder takes it; under a number that it has not had, or it would be a replay."""
        self._sequence += 1
        message = {**message, "node": "n1", "boot": "b1", "sequence": self._sequence}
        # What the decoder alone refuses would leave few to be written.
        for service in message.get("services", ()):
            service["latency_buckets"] = sorted(
                dict(service.get("latency_buckets", ())).items()
            )
        try:
            observation = decode_observation(msgspec.json.encode(message), "n1")
        except InvalidRequest:
            return
        taken = self._runner.run(self._store.ingest((observation,), START))
        assert taken.acknowledged == {("n1", "b1"): self._sequence}
        self.count += 1

    def sum_up(self) -> None:
        """What the leader makes of all of it by the hour."""
        later = START + timedelta(hours=2)
        self._runner.run(maintenance.roll_up(self._engine, later))

    def close(self) -> None:
        self._runner.run(self._engine.dispose())
        self._runner.close()


@pytest.fixture
def written(database: str) -> Iterator[Written]:
    with closing(Written(database)) as opened:
        yield opened


MESSAGES = values(inspect.type_info(Observation), NAMES)


@pytest.mark.seeded
def test_every_observation_that_the_decoder_takes_can_be_committed(
    written: Written,
) -> None:
    @settings(
        max_examples=examples(60),
        suppress_health_check=list(HealthCheck),
    )
    @given(message=MESSAGES)
    def tries(message: dict[str, Any]) -> None:
        written.write(message)

    tries()
    assert written.count > examples(60) // 4
    written.sum_up()
