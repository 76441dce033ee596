"""When what the campaign killed counts as back, and what its judge must tell of a fleet that looks well."""

import asyncio
import time
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from bench.campaign import oracle
from bench.campaign.deployment.journal import Entry, Journal, JournalReader
from bench.campaign.faults.victims import (
    Killed,
    Recovery,
    Victim,
    Victims,
    undisturbed,
)

pytestmark = pytest.mark.thorough


def _victims(plane: Any) -> Victims:
    session: Any = None
    return Victims(plane=plane, session=session, draw=Random(7))


def _answer(path: Path, at_s: float) -> None:
    Journal(path).write("acknowledged", at_s=at_s, sent_s=at_s, boot="b", sequence=1)


def test_a_solver_is_not_killed_while_nobody_knows_how_often_it_has_decided() -> None:
    async def ticks(_: object) -> int:
        return 0

    controller = SimpleNamespace(kill_child=lambda: True, pid=1)
    victims = _victims(SimpleNamespace(ticks=ticks, controller=controller))
    assert asyncio.run(victims.kill("solver")) is None


def test_a_solver_is_back_when_its_controller_has_decided_with_a_new_one_or_was_killed_too() -> (
    None
):
    decided = [1]

    async def ticks(_: object) -> int:
        return decided[0]

    controller = SimpleNamespace(kill_child=lambda: True, pid=1)
    victims = _victims(SimpleNamespace(ticks=ticks, controller=controller))
    killed = asyncio.run(victims.kill("solver"))
    assert killed is not None

    def is_back(count: int) -> bool:
        decided[0] = count
        return asyncio.run(victims.back_at_s(killed)) is not None

    # Of the same process the first one may be the tick that lost its solver.
    assert [is_back(count) for count in (1, 2, 3)] == [False, False, True]
    # What comes then is the recovery of the controller.
    controller.pid = 2
    assert is_back(0)


def test_the_api_is_back_when_all_nodes_that_lived_are_answered(tmp_path: Path) -> None:
    paths = {node: tmp_path / node for node in ("a", "b", "dead")}
    journals = {node: JournalReader(path=path) for node, path in paths.items()}
    victims = _victims(SimpleNamespace(journals=journals))
    victims._agent_killed_s["dead"] = 9.0
    killed = Killed(victim="api", at_s=10.0)
    _answer(paths["a"], 11.0)
    assert asyncio.run(victims.back_at_s(killed)) is None
    _answer(paths["b"], 12.0)
    assert asyncio.run(victims.back_at_s(killed)) == 12.0


def test_a_recovery_is_undisturbed_where_nothing_that_it_needs_was_dead_meanwhile() -> (
    None
):
    def of(victim: Victim, at_s: float, back_s: float, node: str = "") -> Recovery:
        return Recovery(victim=victim, node=node, at_s=at_s, back_s=back_s)

    controller = of("controller", 10.0, 5.0)
    # Down before and up again meanwhile; killed meanwhile; before; after.
    assert controller not in undisturbed([controller, of("postgresql", 8.0, 3.0)])
    assert controller not in undisturbed([controller, of("postgresql", 14.0, 1.0)])
    before, after = of("postgresql", 1.0, 2.0), of("postgresql", 20.0, 2.0)
    assert undisturbed([before, controller, after]) == [before, controller, after]
    router = of("router", 10.0, 5.0, "n1")
    elsewhere = of("agent", 11.0, 1.0, "n2")
    assert undisturbed([router, elsewhere]) == [router, elsewhere]
    assert router not in undisturbed([router, of("agent", 11.0, 1.0, "n1")])


def test_a_line_that_is_being_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    reader = JournalReader(path=path)
    assert reader.read() == []
    Journal(path).write("obeyed", generation=1, sha256="a")
    whole = path.read_bytes()
    with path.open("ab") as file:
        file.write(whole[:10])
    assert [entry.generation for entry in reader.read()] == [1]
    with path.open("ab") as file:
        file.write(whole[10:])
    assert [entry.generation for entry in reader.read()] == [1, 1]


def test_an_answer_to_what_was_sent_before_the_kill_does_not_say_that_it_is_back(
    tmp_path: Path,
) -> None:
    path = tmp_path / "journal"
    journal, reader = Journal(path), JournalReader(path=path)
    killed_s = time.monotonic()
    journal.write("acknowledged", boot="b", sequence=1, sent_s=killed_s - 1.0)
    assert reader.first_answer_s(asked_after_s=killed_s) is None
    for sequence in (2, 3):
        sent_s = time.monotonic()
        journal.write("acknowledged", boot="b", sequence=sequence, sent_s=sent_s)
    first = next(entry for entry in reader.read() if entry.sequence == 2)
    assert reader.first_answer_s(asked_after_s=killed_s) == first.at_s


def test_a_node_that_follows_no_more_is_told() -> None:
    told = {
        "follows": (
            Entry(kind="obeyed", at_s=1.0, generation=3),
            Entry(kind="started", at_s=2.0, generation=4),
        ),
        "stopped": (Entry(kind="obeyed", at_s=1.0, generation=3),),
        "nothing given": (),
    }
    given = {"follows": 4, "stopped": 4, "silent": 1}
    assert oracle._behind(given, told) == {
        "silent": "silent stopped at generation 0 and was given 1",
        "stopped": "stopped stopped at generation 3 and was given 4",
    }
