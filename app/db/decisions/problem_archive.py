"""Problems in the database: what many plans share (capacity law, operating points) is stored once, by its hash."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, repeat
from typing import Any, TypeVar

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.base.packing import packed, unpacked
from solvers.types.documents.problem_json import problem_document, problem_from_document
from solvers.types.llm import LlmDemand
from solvers.types.problem import (
    CapacityLaw,
    OperatingPoints,
    Problem,
    ServiceDemand,
)
from solvers.types.survival import SurvivalGoal

_BUDGET = "power_budget_w"
_PAID = "paid_count"
_SURVIVAL, _LIMITS = "survival", "max_replica_rps"
"""What a Problem has beyond the contract's document."""
_Service = TypeVar("_Service", ServiceDemand, LlmDemand)


@dataclass(slots=True)
class PartCache:
    """Hashes of the parts of the last problem, by identity, and those that are known to be in the database."""

    hashes: dict[int, tuple[object, bytes]] = field(default_factory=dict)
    stored: set[bytes] = field(default_factory=set)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedProblem:
    """A problem ready to be written."""

    body: bytes
    parts: Mapping[bytes, bytes]
    """New parts by hash."""


def pack(problem: Problem, cache: PartCache) -> PackedProblem:
    """The problem with its shared parts taken out, and those parts that `cache` does not know to be stored."""
    document = problem_document(problem)
    packing = _Packing(cache=cache)
    law = document["capacity_law"]
    document["capacity_law"] = packing.reference(problem.capacity_law, law)
    contents = document["points"]
    assert isinstance(contents, list)
    document["points"] = [
        packing.reference(part, content)
        for part, content in zip(problem.points, contents, strict=True)
    ]
    if problem.power_budget_w is not None:
        document[_BUDGET] = problem.power_budget_w
    if any(each.paid_count for each in problem.gpu_types):
        document[_PAID] = [each.paid_count for each in problem.gpu_types]
    if problem.survival:
        document[_SURVIVAL] = [asdict(goal) for goal in problem.survival]
        document[_LIMITS] = [each.max_replica_rps for each in problem.all_services]
    # Only the parts of this problem: the cache must not keep every catalogue that ever was alive.
    cache.hashes = packing.kept
    return PackedProblem(body=packed(document), parts=packing.new)


@dataclass(slots=True, kw_only=True)
class _Packing:
    """The parts that one problem is made of, as they are taken out of its document."""

    cache: PartCache
    kept: dict[int, tuple[object, bytes]] = field(default_factory=dict)
    """As `PartCache.hashes`."""
    new: dict[bytes, bytes] = field(default_factory=dict)
    """As `PackedProblem.parts`."""

    def reference(self, part: CapacityLaw | OperatingPoints, content: object) -> str:
        """What stands for the part in the document: its hash."""
        known = self.cache.hashes.get(id(part))
        # An id is given again once its object is gone, so the object itself is compared, too.
        if known is None or known[0] is not part:
            body = msgspec.json.encode(content)
            known = (part, hashlib.sha256(body).digest())
        self.kept[id(part)] = known
        sha256 = known[1]
        if sha256 not in self.cache.stored:
            self.new[sha256] = packed(content)
        return sha256.hex()


async def save_parts(connection: AsyncConnection, parts: Mapping[bytes, bytes]) -> None:
    """Write shared parts; those that are there already stay."""
    if parts:
        await connection.execute(
            text(
                "INSERT INTO archive (sha256, body) VALUES (:sha256, :body) ON CONFLICT DO NOTHING"
            ),
            # Sorted: two processes that store the same parts lock them in one order.
            [{"sha256": sha256, "body": parts[sha256]} for sha256 in sorted(parts)],
        )


async def unpack(connection: AsyncConnection, body: bytes) -> Problem:
    """The problem that was packed."""
    document = unpacked(body, dict[str, Any])
    parts = await _load_parts(
        connection, [document["capacity_law"], *document["points"]]
    )
    document["capacity_law"] = parts[document["capacity_law"]]
    document["points"] = [parts[name] for name in document["points"]]
    budget_w = document.pop(_BUDGET, None)
    goals = tuple(SurvivalGoal(**goal) for goal in document.pop(_SURVIVAL, ()))
    # Problems that were stored before there were limits have none.
    limits = chain(document.pop(_LIMITS, ()), repeat(None))
    counts = document.pop(_PAID, None)
    problem = problem_from_document(document)
    paid = zip(problem.gpu_types, counts or repeat(0), strict=False)
    return replace(
        problem,
        power_budget_w=budget_w,
        survival=goals,
        gpu_types=tuple(replace(one, paid_count=count) for one, count in paid),
        services=tuple(_limited(problem.services, limits)),
        llm_services=tuple(_limited(problem.llm_services, limits)),
    )


def _limited(
    services: Iterable[_Service],
    limits: Iterator[float | None],
) -> Iterator[_Service]:
    """The services with the limits that come next."""
    for service in services:
        yield replace(
            service,
            max_replica_rps=next(limits),
        )


async def _load_parts(
    connection: AsyncConnection, names: Iterable[str]
) -> dict[str, object]:
    found = await connection.execute(
        text("SELECT sha256, body FROM archive WHERE sha256 = ANY(:wanted)"),
        {"wanted": [bytes.fromhex(name) for name in names]},
    )
    return {
        bytes(row.sha256).hex(): unpacked(row.body, dict[str, object]) for row in found
    }
