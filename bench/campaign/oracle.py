"""What must be true after any faults: nothing acknowledged is lost, no command is obeyed twice, one target history."""

import hashlib
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import psycopg

from app.db.base.listen import conninfo
from bench.campaign.deployment.journal import Entry, JournalReader
from bench.campaign.deployment.node import ARRIVALS

Ask: TypeAlias = Callable[[str], list[tuple[Any, ...]]]
"""The rows of a query."""
Journals: TypeAlias = Mapping[str, Sequence[Entry]]
"""By node."""

KEPT = {
    "observation": "SELECT concat_ws(' ', node, boot, sequence) FROM observation",
    "service_hour": "SELECT concat_ws(' ', service, hour) FROM service_hour",
    # Decisions that changed nothing are kept for a day.
    "plan": "SELECT id::text FROM plan WHERE id IN (SELECT plan_id FROM target)",
    "target": "SELECT generation::text FROM target",
    "event": "SELECT id::text FROM event",
    "node": "SELECT id FROM node",
    "service": "SELECT name FROM service",
}
"""Which row is which, of the tables of which nothing may be deleted."""
_COUNTED = "SELECT coalesce(sum(arrivals), 0) FROM service_hour"
_HISTORY = """
SELECT t.generation, p.parent, p.generation, p.state, upper_inf(t.valid)
FROM target t JOIN plan p ON p.id = t.plan_id ORDER BY lower(t.valid)
"""
_COMMANDS_OF_NO_TARGET = """
SELECT node, generation FROM command c WHERE NOT EXISTS (SELECT FROM target t WHERE t.generation = c.generation)
"""
_EMPTY_TARGETS = """
SELECT generation FROM (
    SELECT t.generation, count(r.replica) AS replicas,
           lag(count(r.replica)) OVER (ORDER BY t.generation) AS before
    FROM target t LEFT JOIN plan_replica r ON r.plan_id = t.plan_id GROUP BY t.generation) AS sizes
WHERE replicas = 0 AND before > 0
"""
_ALLOCATIONS_OF_NO_TARGET = """
SELECT id FROM allocation
WHERE NOT EXISTS (SELECT FROM target WHERE generation = lower(generations))
OR NOT upper_inf(generations) AND NOT EXISTS (SELECT FROM target WHERE generation = upper(generations))
"""
_MARKS_AHEAD = """
SELECT id, greatest(last_seen_at, last_window_end) FROM node
WHERE greatest(last_seen_at, last_window_end) > now() + interval '1 minute' ORDER BY id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """How much was looked at, and what was wrong with it."""

    acknowledged: int
    """Observations that agents were told to be durable."""
    obeyed: int
    """Commands that agents put in force."""
    targets: int
    kept: Mapping[str, frozenset[str]]
    """The rows of each table of which nothing may be deleted: numbers of them would hide it while others are added."""
    violations: tuple[str, ...]
    """In words."""


def look(url: str, journals: Mapping[str, JournalReader], services: int) -> Seen:
    """Judge what the agents were told against the database; `services` are reported with each observation.

    It may be asked while everything runs: the journals are read first, and the database as it is at one moment.
    """
    told = {node: tuple(each.read()) for node, each in journals.items()}
    with psycopg.connect(conninfo(url)) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        return _look(
            lambda query: connection.execute(query.encode()).fetchall(), told, services
        )


def behind(url: str, journals: Mapping[str, JournalReader]) -> dict[str, str]:
    """Nodes whose newest command is not the newest that was given to them, with words that say so."""
    with psycopg.connect(conninfo(url)) as connection:
        query = "SELECT node, max(generation) FROM command GROUP BY node"
        given: dict[str, int] = dict(connection.execute(query).fetchall())
    # Read after the question: a node that has followed meanwhile is not behind.
    told = {node: tuple(each.read()) for node, each in journals.items()}
    return _behind(given, told)


def _behind(given: Mapping[str, int], told: Journals) -> dict[str, str]:
    newest = {
        node: max((entry.generation for entry in entries), default=0)
        for node, entries in told.items()
    }
    return {
        node: f"{node} stopped at generation {newest.get(node, 0)} and was given {generation}"
        for node, generation in sorted(given.items())
        if newest.get(node, 0) < generation
    }


def _look(ask: Ask, journals: Journals, services: int) -> Seen:
    entries = [entry for each in journals.values() for entry in each]
    return Seen(
        acknowledged=sum(_acknowledged(journals).values()),
        obeyed=sum(entry.kind == "obeyed" for entry in entries),
        targets=int(_one(ask, "SELECT count(*) FROM target")),
        kept={
            table: frozenset(key for (key,) in ask(query))
            for table, query in KEPT.items()
        },
        violations=(
            *_lost(ask, journals),
            *_counted_twice(ask, services),
            *_disobedience(ask, journals),
            *_broken_history(ask),
            *_ahead(ask),
        ),
    )


def _one(ask: Ask, query: str) -> Any:
    ((value,),) = ask(query)
    return value


def _acknowledged(journals: Journals) -> dict[tuple[str, str], int]:
    """By node and boot up to which sequence agents were told that their observations are durable."""
    told: dict[tuple[str, str], int] = defaultdict(int)
    for node, entries in journals.items():
        for entry in entries:
            if entry.kind == "acknowledged":
                key = (node, entry.boot)
                told[key] = max(told[key], entry.sequence)
    return told


def _lost(ask: Ask, journals: Journals) -> Iterator[str]:
    """Acknowledged observations that are not in the database, or more than once."""
    kept: dict[tuple[str, str], list[int]] = defaultdict(list)
    for node, boot, sequence in ask("SELECT node, boot, sequence FROM observation"):
        kept[node, boot].append(sequence)
    for (node, boot), last in sorted(_acknowledged(journals).items()):
        found = sorted(kept[node, boot])
        missing = set(range(1, last + 1)) - set(found)
        if missing:
            yield (
                f"{node}, boot {boot}: {len(missing)} of {last} acknowledged observations are lost, the first is "
                f"{min(missing)}"
            )
        if len(found) != len(set(found)):
            yield f"{node}, boot {boot}: an observation is kept twice"


def _counted_twice(ask: Ask, services: int) -> Iterator[str]:
    """Sums are made when observations are written: they tell whether one was added again."""
    kept = int(_one(ask, "SELECT count(*) FROM observation"))
    counted, expected = int(_one(ask, _COUNTED)), kept * services * ARRIVALS
    if counted != expected:
        yield f"hourly sums have {counted} arrivals, the {kept} observations {expected}"


def _disobedience(ask: Ask, journals: Journals) -> Iterator[str]:
    """Commands that were not given, that were old, or that were carried out twice."""
    given = {
        (node, generation): hashlib.sha256(zlib.decompress(body)).hexdigest()
        for node, generation, body in ask("SELECT node, generation, body FROM command")
    }
    for node, entries in journals.items():
        yield from _stale(node, entries)
        for entry in entries:
            if entry.kind == "doubled":
                yield f"{node} was told to start {entry.detail}, which ran"
            known = given.get((node, entry.generation))
            if entry.kind == "obeyed" and entry.sha256 != known:
                yield f"{node} obeyed another generation {entry.generation} than the one kept"


def _stale(node: str, entries: Iterable[Entry]) -> Iterator[str]:
    """Generations only grow, from start to start as well."""
    newest = 0
    for entry in entries:
        if entry.kind == "obeyed" and entry.generation <= newest:
            yield f"{node} obeyed generation {entry.generation} after {newest}"
        # An agent may die between the ledger's write and the journal's, so that it starts with a newer command.
        if entry.kind == "started" and entry.generation < newest:
            yield f"{node} came back with generation {entry.generation} after {newest}"
        if entry.kind in ("obeyed", "started"):
            newest = max(newest, entry.generation)


def _broken_history(ask: Ask) -> Iterator[str]:
    """One target after the other, each planned from the one before, and the last one in force with its plan."""
    current, before = _one(ask, "SELECT target_generation FROM cluster"), 0
    for generation, parent, planned, state, is_open in ask(_HISTORY):
        if (parent, planned) != (before, generation):
            yield f"target {generation} follows {before}; its plan is {planned} and was made from {parent}"
        before = generation
        in_force = generation == current
        if (state == "target", is_open) != (in_force, in_force):
            yield f"target {generation} is open: {is_open}, in force: {in_force}, and its plan is {state}"
    if before != current:
        yield f"the newest target is {before}, generation {current} is in force"
    for node, generation in ask(_COMMANDS_OF_NO_TARGET):
        yield f"{node} has a command of generation {generation}, which never was a target"
    for (allocation,) in ask(_ALLOCATIONS_OF_NO_TARGET):
        yield f"allocation {allocation} is of no target"
    # The load never ends: once it was heard, no outage may make the loop believe that it did.
    for (generation,) in ask(_EMPTY_TARGETS):
        yield f"target {generation} has no replica, the one before it had some"


def _ahead(ask: Ask) -> Iterator[str]:
    """Nodes that were heard in the future: once the clocks are right and every node has reported, there is none."""
    for node, at in ask(_MARKS_AHEAD):
        yield f"{node} was heard, or its last window ended, at {at}, which is still to come"
