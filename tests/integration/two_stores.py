"""What stateful tests of both stores have in common: a database of their own, a loop, and a run."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from datetime import datetime
from typing import ClassVar, Concatenate, ParamSpec, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test
from sqlalchemy.ext.asyncio import AsyncConnection

from agents.base.protocol import Observation
from app.db.base.engine import make_engine
from app.db.postgres_store import PostgresStore
from app.postgres import server as postgres
from app.store.memory_store import MemoryStore
from tests.conftest import copied_database

Value = TypeVar("Value")
P = ParamSpec("P")


class TwoStores(RuleBasedStateMachine):
    """A memory store, and a PostgreSQL store on a copy of the template."""

    now: datetime
    server: ClassVar[postgres.Server]
    template: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.runner = self.stack.enter_context(asyncio.Runner())
        url = self.stack.enter_context(
            copied_database(self.server, template=self.template)
        )
        self.engine = make_engine(url, pool_size=2)
        self.stack.callback(lambda: self.runner.run(self.engine.dispose()))
        self.postgres, self.memory = PostgresStore(self.engine), MemoryStore()

    def teardown(self) -> None:
        self.stack.close()

    def run(self, work: Awaitable[Value]) -> Value:
        async def wait() -> Value:
            return await work

        return self.runner.run(wait())

    def ingest(self, batch: tuple[Observation, ...]) -> None:
        """Both take it, and answer alike."""
        answers = [
            self.run(store.ingest(batch, self.now))
            for store in (self.postgres, self.memory)
        ]
        assert answers[0] == answers[1]

    async def with_connection(
        self,
        act: Callable[Concatenate[AsyncConnection, P], Awaitable[Value]],
        *arguments: P.args,
        **named: P.kwargs,
    ) -> Value:
        async with self.engine.begin() as connection:
            return await act(connection, *arguments, **named)

    @classmethod
    def check(
        cls, server: postgres.Server, template: str, *, examples: int, steps: int
    ) -> None:
        """Let it run."""
        cls.server, cls.template = server, template
        run_state_machine_as_test(
            cls,
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                derandomize=True,
                suppress_health_check=list(HealthCheck),
            ),
        )
