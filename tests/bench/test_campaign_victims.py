"""When what the campaign killed counts as back."""

import asyncio
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from bench.campaign.deployment.journal import Journal, JournalReader
from bench.campaign.faults.victims import Killed, Victims


def _victims(plane: Any) -> Victims:
    session: Any = None
    return Victims(plane=plane, session=session, draw=Random(7))


def _answer(path: Path, at_s: float) -> None:
    Journal(path).write("acknowledged", at_s=at_s, sent_s=at_s, boot="b", sequence=1)


def test_a_solver_is_not_killed_while_nobody_knows_how_often_it_has_decided() -> None:
    async def ticks(_: object) -> int:
        return 0

    controller = SimpleNamespace(kill_child=lambda: True)
    victims = _victims(SimpleNamespace(ticks=ticks, controller=controller))
    assert asyncio.run(victims.kill("solver")) is None


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
