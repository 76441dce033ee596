"""What must be true after any faults: nothing acknowledged is lost, no command is obeyed twice, one target history."""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from bench.campaign.journal import Entry
from bench.campaign.node import ARRIVALS
from tests.integration.fault_harness import rows, scalar

Journals: TypeAlias = Mapping[str, Sequence[Entry]]
"""By node."""

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
_HALF_PLANS = """
SELECT id FROM plan p WHERE p.state NOT IN ('target', 'superseded')
AND EXISTS (SELECT FROM plan_replica r WHERE r.plan_id = p.id)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """How much was looked at, and what was wrong with it."""

    acknowledged: int
    """Observations that agents were told to be durable."""
    obeyed: int
    """Commands that agents put in force."""
    targets: int
    violations: tuple[str, ...]
    """In words."""


def look(url: str, journals: Journals, services: int) -> Seen:
    """Judge what the agents were told against the database; `services` are reported with each observation."""
    entries = [entry for each in journals.values() for entry in each]
    return Seen(
        acknowledged=sum(_acknowledged(journals).values()),
        obeyed=sum(entry.kind == "obeyed" for entry in entries),
        targets=int(scalar(url, "SELECT count(*) FROM target")),
        violations=(
            *_lost(url, journals),
            *_counted_twice(url, services),
            *_disobedience(url, journals),
            *_broken_history(url),
        ),
    )


def _acknowledged(journals: Journals) -> dict[tuple[str, str], int]:
    """By node and boot up to which sequence agents were told that their observations are durable."""
    told: dict[tuple[str, str], int] = defaultdict(int)
    for node, entries in journals.items():
        for entry in entries:
            if entry.kind == "acknowledged":
                key = (node, entry.boot)
                told[key] = max(told[key], entry.sequence)
    return told


def _lost(url: str, journals: Journals) -> Iterator[str]:
    """Acknowledged observations that are not in the database, or more than once."""
    kept: dict[tuple[str, str], list[int]] = defaultdict(list)
    for node, boot, sequence in rows(
        url, "SELECT node, boot, sequence FROM observation"
    ):
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


def _counted_twice(url: str, services: int) -> Iterator[str]:
    """Sums are made when observations are written: they tell whether one was added again."""
    kept = int(scalar(url, "SELECT count(*) FROM observation"))
    counted, expected = int(scalar(url, _COUNTED)), kept * services * ARRIVALS
    if counted != expected:
        yield f"hourly sums have {counted} arrivals, the {kept} observations {expected}"


def _disobedience(url: str, journals: Journals) -> Iterator[str]:
    """Commands that nobody gave, that were old, or that were carried out twice."""
    given = {
        (node, generation): hashlib.sha256(body).hexdigest()
        for node, generation, body in rows(
            url, "SELECT node, generation, body FROM command"
        )
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


def _broken_history(url: str) -> Iterator[str]:
    """One target after the other, each planned from the one before, and the last one in force with its plan."""
    current, before = scalar(url, "SELECT target_generation FROM cluster"), 0
    for generation, parent, planned, state, is_open in rows(url, _HISTORY):
        if (parent, planned) != (before, generation):
            yield f"target {generation} follows {before}; its plan is {planned} and was made from {parent}"
        before = generation
        in_force = generation == current
        if (state == "target", is_open) != (in_force, in_force):
            yield f"target {generation} is open: {is_open}, in force: {in_force}, and its plan is {state}"
    if before != current:
        yield f"the newest target is {before}, generation {current} is in force"
    for node, generation in rows(url, _COMMANDS_OF_NO_TARGET):
        yield f"{node} has a command of generation {generation}, which never was a target"
    for (plan,) in rows(url, _HALF_PLANS):
        yield f"plan {plan} was never in force and has an allocation"
    # The load never ends: once it was heard, no outage may make the loop believe that it did.
    for (generation,) in rows(url, _EMPTY_TARGETS):
        yield f"target {generation} has no replica, the one before it had some"
