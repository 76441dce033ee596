"""Problems in the database: what many plans share (capacity law, operating points) is stored once, by its hash."""

import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from solvers.types.problem import CapacityLaw, OperatingPoints, Problem
from solvers.types.problem_json import problem_document, problem_from_document

# Fast rather than small: a tick waits for it, and the shared parts are compressed once only.
COMPRESSION = 1
_BUDGET = "power_budget_w"
"""What a Problem has beyond the contract's document."""


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
    kept: dict[int, tuple[object, bytes]] = {}
    new: dict[bytes, bytes] = {}

    def reference(part: CapacityLaw | OperatingPoints, content: object) -> str:
        known = cache.hashes.get(id(part))
        body = None
        if known is None or known[0] is not part:
            body = _to_bytes(content)
            known = (part, hashlib.sha256(body).digest())
        kept[id(part)] = known
        if known[1] not in cache.stored:
            new[known[1]] = zlib.compress(body or _to_bytes(content), COMPRESSION)
        return known[1].hex()

    document["capacity_law"] = reference(problem.capacity_law, document["capacity_law"])
    contents = document["points"]
    assert isinstance(contents, list)
    document["points"] = [
        reference(part, content)
        for part, content in zip(problem.points, contents, strict=True)
    ]
    if problem.power_budget_w is not None:
        document[_BUDGET] = problem.power_budget_w
    cache.hashes = kept
    return PackedProblem(
        body=zlib.compress(_to_bytes(document), COMPRESSION), parts=new
    )


async def save_parts(connection: AsyncConnection, parts: Mapping[bytes, bytes]) -> None:
    """Write shared parts; those that are there already stay."""
    if parts:
        await connection.execute(
            text(
                "INSERT INTO archive (sha256, body) VALUES (:sha256, :body) ON CONFLICT DO NOTHING"
            ),
            [{"sha256": sha256, "body": parts[sha256]} for sha256 in sorted(parts)],
        )


async def unpack(connection: AsyncConnection, body: bytes) -> Problem:
    """The problem that was packed."""
    document = json.loads(zlib.decompress(body))
    parts = await _load_parts(
        connection, [document["capacity_law"], *document["points"]]
    )
    document["capacity_law"] = parts[document["capacity_law"]]
    document["points"] = [parts[name] for name in document["points"]]
    budget_w = document.pop(_BUDGET, None)
    return replace(problem_from_document(document), power_budget_w=budget_w)


async def _load_parts(
    connection: AsyncConnection, names: Iterable[str]
) -> dict[str, object]:
    found = await connection.execute(
        text("SELECT sha256, body FROM archive WHERE sha256 = ANY(:wanted)"),
        {"wanted": [bytes.fromhex(name) for name in names]},
    )
    return {
        bytes(row.sha256).hex(): json.loads(zlib.decompress(row.body)) for row in found
    }


def _to_bytes(document: object) -> bytes:
    return json.dumps(document, allow_nan=False, separators=(",", ":")).encode()
