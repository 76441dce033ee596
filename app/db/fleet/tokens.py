"""What engines of language models count of their requests, in steps of five minutes: how long requests were lately."""

from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.base.observation_rows import WindowedObservation
from app.store.observation_book import TOKEN_STEP_S
from app.store.windows import EngineTokens, add_all, engine_sums_of


async def add_token_steps(
    connection: AsyncConnection, fresh: Sequence[WindowedObservation]
) -> None:
    """Add what engines counted; rows are locked by key."""
    sums = add_all(
        ((service, int(entry.start.timestamp() // TOKEN_STEP_S)), counts)
        for entry in fresh
        for service, counts in engine_sums_of(entry.observation)
    )
    # Most fleets have no language models, and need no statement.
    if not sums:
        return
    rows = [
        {"service": service, "start": _start(step), **each.engine_tokens._asdict()}
        for (service, step), each in sorted(sums.items())
    ]
    columns = {
        "services": [row["service"] for row in rows],
        "starts": [row["start"] for row in rows],
        **{name: [row[name] for row in rows] for name in EngineTokens._fields},
    }
    await connection.execute(text(_ADD), columns)


def _start(step: int) -> datetime:
    return datetime.fromtimestamp(step * TOKEN_STEP_S, UTC)


async def load_token_steps(
    connection: AsyncConnection, since: datetime
) -> list[tuple[str, EngineTokens]]:
    """Every service's steps from a moment on, by service and time."""
    found = await connection.execute(text(_LOAD), {"since": since})
    return [(service, EngineTokens(*counts)) for service, *counts in found]


# Added, not replaced: every observation comes here once, since replayed ones were left out before.
_ADD = """
INSERT INTO token_step AS s (service, start, requests, prompt_tokens, found_tokens, answer_tokens)
SELECT * FROM unnest(CAST(:services AS text[]), CAST(:starts AS timestamptz[]), CAST(:requests AS bigint[]),
                     CAST(:prompts AS bigint[]), CAST(:found AS bigint[]), CAST(:answers AS bigint[]))
ON CONFLICT (service, start) DO UPDATE SET
    requests = s.requests + excluded.requests, prompt_tokens = s.prompt_tokens + excluded.prompt_tokens,
    found_tokens = s.found_tokens + excluded.found_tokens, answer_tokens = s.answer_tokens + excluded.answer_tokens
"""

_LOAD = """
SELECT service, requests, prompt_tokens, found_tokens, answer_tokens FROM token_step WHERE start >= :since
ORDER BY service COLLATE "C", start
"""
