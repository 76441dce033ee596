"""The board of newest commands: who waits is woken, who asks is answered from memory, nothing stale is kept."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TypeVar

import pytest

from agents.base.protocol import NodeCommand
from app.api.caches import listening
from app.api.caches.commands import CommandBoard
from app.base.errors import Unavailable
from app.db.base.listen import STILL_HERE
from app.db.decisions.commands import NODE_GONE

T = TypeVar("T")


class Source:
    """Commands of one node, and how often they were asked for."""

    def __init__(self) -> None:
        self.generation = 0
        self.asked = 0
        self.nodes: tuple[str, ...] = ("n1",)
        self.answers = True
        self.before_answer: Callable[[], None] = lambda: None

    async def commands_of(self, generation: int) -> tuple[NodeCommand, ...]:
        self.asked += 1
        if not self.answers:
            raise Unavailable("the database does not answer")
        return tuple(
            NodeCommand(node=node, generation=generation) for node in self.nodes
        )

    async def command_for(self, node: str, after_generation: int) -> NodeCommand | None:
        self.asked += 1
        found = (
            NodeCommand(node=node, generation=self.generation)
            if self.generation > after_generation
            else None
        )
        self.before_answer()
        await asyncio.sleep(0)
        return found


class Announcements:
    """Announcements that a test makes; one is there from the start, as after every connection."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[str] = asyncio.Queue()
        self.queue.put_nowait("reconnected")

    async def listen(self) -> AsyncIterator[str]:
        while True:
            yield await self.queue.get()


class World:
    """A board with its surroundings, heard and running."""

    def __init__(self) -> None:
        self.source, self.announcements = Source(), Announcements()
        self.board = CommandBoard(self.source, self.announcements)

    async def push(self, generation: int) -> None:
        self.source.generation = generation
        self.announcements.queue.put_nowait(str(generation))
        await _settle()


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def _never() -> None:
    await asyncio.Event().wait()


async def _at_once() -> None:
    return


def _in_world(scenario: Callable[[World], Coroutine[None, None, T]]) -> T:
    async def run() -> T:
        world = World()
        world.board.start()
        await _settle()
        try:
            return await scenario(world)
        finally:
            await world.board.stop()

    return asyncio.run(run())


def test_many_questions_cost_one_look() -> None:
    async def scenario(world: World) -> int:
        await world.push(3)
        for _ in range(10):
            command = await world.board.command_for("n1", 2)
            assert command is not None and command.generation == 3
            assert await world.board.command_for("n1", 3) is None
        return world.source.asked

    assert _in_world(scenario) == 1


def test_commands_of_a_node_that_is_gone_are_forgotten() -> None:
    async def scenario(world: World) -> NodeCommand | None:
        await world.push(3)
        # Deleted with its node; an agent of the same name registers again.
        world.source.generation = 0
        world.announcements.queue.put_nowait(NODE_GONE)
        await _settle()
        return await world.board.command_for("n1", 0)

    assert _in_world(scenario) is None


def test_where_the_look_fails_each_node_asks_for_itself() -> None:
    async def scenario(world: World) -> NodeCommand | None:
        world.source.answers = False
        waiting = asyncio.create_task(world.board.wait_for("n1", 0, _never))
        await _settle()
        await world.push(4)
        return await waiting

    command = _in_world(scenario)
    assert command is not None and command.generation == 4


def test_what_is_remembered_holds_as_long_as_the_listener_hears(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> list[int]:
        asked = []
        for what in (None, STILL_HERE, None):
            if what is not None:
                world.announcements.queue.put_nowait(what)
                await _settle()
            else:
                # As if the connection had said nothing for so long.
                monkeypatch.setattr(listening, "UNHEARD_S", -1.0)
            await world.board.command_for("n1", 0)
            asked.append(world.source.asked)
            monkeypatch.setattr(listening, "UNHEARD_S", 5.0)
        return asked

    first, heard, unheard = _in_world(scenario)
    assert (heard - first, unheard - heard) == (0, 1)


def test_who_waits_gets_the_next_command() -> None:
    async def scenario(world: World) -> NodeCommand | None:
        waiting = asyncio.create_task(world.board.wait_for("n1", 0, _never))
        await _settle()
        assert not waiting.done()
        await world.push(1)
        return await waiting

    command = _in_world(scenario)
    assert command is not None and command.generation == 1


def test_a_wait_ends_at_its_deadline() -> None:
    assert _in_world(lambda world: world.board.wait_for("n1", 0, _at_once)) is None


def test_a_command_that_comes_while_the_database_answers_is_not_missed() -> None:
    async def scenario(world: World) -> NodeCommand | None:
        def overtaken() -> None:
            world.source.before_answer = lambda: None
            world.source.generation = 1
            world.board.forget()

        world.source.before_answer = overtaken
        assert await world.board.command_for("n1", 0) is None
        return await world.board.command_for("n1", 0)

    command = _in_world(scenario)
    assert command is not None and command.generation == 1


def test_without_a_listener_nothing_is_remembered() -> None:
    async def scenario() -> int:
        world = World()
        assert not world.board.is_listening
        await world.board.command_for("n1", 0)
        await world.board.command_for("n1", 0)
        return world.source.asked

    assert asyncio.run(scenario()) == 2


def test_one_announcement_wakes_everybody_with_one_look_for_each_node() -> None:
    waiters = 100

    async def scenario(world: World) -> int:
        tasks = [
            asyncio.create_task(world.board.wait_for("n1", 0, _never))
            for _ in range(waiters)
        ]
        await _settle()
        before = world.source.asked
        await world.push(1)
        await asyncio.gather(*tasks)
        return world.source.asked - before

    assert _in_world(scenario) <= waiters
