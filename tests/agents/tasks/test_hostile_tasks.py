"""Programs of tasks whose hook or progress file says what harms its reader."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agents.tasks.hook import HookClient, HookFailed
from agents.tasks.task import read_progress
from tests.agents.fakes.answers import always
from tests.agents.fakes.replicas import in_loop

NESTED = b"[" * 20_000


@asynccontextmanager
async def answering(
    body: bytes, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[HookClient, str]]:
    """A hook that answers everything alike."""
    hook = HookClient()
    async with always(body, status, headers) as url:
        try:
            yield hook, url
        finally:
            await hook.close()


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (b'{"done_iterations": 12.5}', 12.5),
        (b'{"done_iterations": 1e300}', None),
        (b'{"done_iterations": -1}', None),
        (b'{"done_iterations": 1, "x": ' + NESTED, None),
        (NESTED, None),
    ],
)
def test_a_progress_file_says_what_can_be_true_or_nothing(
    tmp_path: Path, said: bytes, expected: float | None
) -> None:
    (tmp_path / "kept").write_bytes(said)
    assert read_progress(str(tmp_path / "kept")) == expected


@pytest.mark.integration
@pytest.mark.parametrize(
    "said",
    [
        b'{"state": "running", "steps": 1, "kept_iterations": -1}',
        b'{"state": "running", "steps": 1, "kept_iterations": 1' + b"0" * 400 + b"}",
        b'{"state": "running", "steps": 1, "busy_s": 1e300}',
        b'{"state": "running", "steps": 1, "x": ' + NESTED,
        b'{"state": "\xff", "steps": 1}',
    ],
)
@in_loop
async def test_a_status_that_cannot_be_true_is_no_answer(said: bytes) -> None:
    async with answering(said) as (hook, url):
        with pytest.raises(HookFailed, match="does not answer as a swap hook does"):
            await hook.status(url)


@pytest.mark.integration
@in_loop
async def test_a_refusal_writes_no_line_of_its_own_into_the_log() -> None:
    async with answering(b"no\nERROR forged\x1b[2J", status=409) as (hook, url):
        with pytest.raises(HookFailed) as refused:
            await hook.move(url, "offloaded")
    assert str(refused.value) == "PUT /offload answers 409: no ERROR forged [2J"


@pytest.mark.integration
@in_loop
async def test_a_hook_does_not_send_the_agent_to_another_server() -> None:
    said = b'{"state": "offloaded", "steps": 1}'
    async with (
        always(said) as other,
        answering(b"", status=307, headers={"Location": other}) as (hook, url),
    ):
        with pytest.raises(HookFailed, match="answers 307"):
            await hook.status(url)
        with pytest.raises(HookFailed, match="answers 307"):
            await hook.move(url, "offloaded")
