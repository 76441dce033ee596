"""What processes that send a flood are told, and what they give back: one file of JSON each.

A flood runs at lower priority than what it floods: on two cores a sender that took the server's time would measure
itself.
"""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import msgspec

FLOOD_NICENESS = 10
MAX_BROKEN = 20
"""Answers that must not be are told so often; all are counted."""
LOOK_S = 0.1
GRACE_S = 180.0
"""For a flood's start and its last requests, beyond its seconds; on an idle machine they take ten."""


class FloodSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Whom to flood, and for how long."""

    url: str
    secrets: dict[str, str]
    """By what they are for."""
    seconds: float
    count: int
    """Requests, at most."""
    seed: int
    kept: tuple[str, ...] = ()
    """Names and ids that no request may have in its path: what the run itself stands on."""


class FloodResult(msgspec.Struct, kw_only=True):
    """What was answered."""

    statuses: dict[str, int] = {}
    """Answers by status; "none": there was no answer."""
    sequences: int = 0
    """Of calls that use what earlier ones were answered."""
    broken: list[str] = []
    """The first answers that must not be, in words."""
    broken_count: int = 0
    taken_by: dict[str, int] = {}
    """2xx by kind of request, where there are few kinds."""
    sent_by: dict[str, int] = {}
    """Requests by the kind of token that they came with, where there are several."""
    wrong_queries_taken: int = 0
    """Requests that were taken although their query is not as the document says."""
    right_refused: int = 0
    """Requests that were refused although they are as the document says, which may be right."""

    @property
    def sent(self) -> int:
        return sum(self.statuses.values())

    @property
    def taken(self) -> int:
        """Requests that were answered 2xx."""
        return sum(n for status, n in self.statuses.items() if status[0] == "2")

    def note(self, status: int | None, what: str, retry_after: str | None) -> None:
        """Count one answer; None: there was none."""
        name = "none" if status is None else str(status)
        self.statuses[name] = self.statuses.get(name, 0) + 1
        if not is_allowed(status, retry_after):
            self.note_broken(f"{what}: {name}, Retry-After: {retry_after}")

    def note_broken(self, words: str) -> None:
        self.broken_count += 1
        if len(self.broken) < MAX_BROKEN:
            self.broken.append(words)


def is_allowed(status: int | None, retry_after: str | None) -> bool:
    """Whatever is asked: an answer, and none from 500 on but a 503 that says when to come again."""
    if status is None:
        return False
    return status < 500 or (status == 503 and retry_after is not None)


def read_spec() -> FloodSpec:
    """Of this process, which is a flood from now on and leaves its files next to the spec."""
    os.nice(FLOOD_NICENESS)
    spec = Path(sys.argv[1])
    # Schemathesis and Hypothesis keep caches in the directory that they run in.
    os.chdir(spec.parent)
    return msgspec.json.decode(spec.read_bytes(), type=FloodSpec)


def write_result(result: FloodResult) -> None:
    """What this process gives back."""
    Path(sys.argv[2]).write_bytes(msgspec.json.encode(result))


async def run_flood(module: str, spec: FloodSpec, directory: Path) -> FloodResult:
    """Run that module as a process, which reads the spec. Raises RuntimeError with what it said where it failed."""
    given, log = directory / "result", directory / "log"
    process = await asyncio.to_thread(_start, module, spec, directory)
    try:
        async with asyncio.timeout(spec.seconds + GRACE_S):
            while (code := process.poll()) is None:  # noqa: ASYNC110  no process says so
                await asyncio.sleep(LOOK_S)
    finally:
        process.kill()
        process.wait()
    if code != 0:
        raise RuntimeError(f"{module} ended with {code}: {log.read_text()[-2000:]}")
    return msgspec.json.decode(given.read_bytes(), type=FloodResult)


def _start(module: str, spec: FloodSpec, directory: Path) -> subprocess.Popen[bytes]:
    directory.mkdir()
    asked = directory / "spec"
    asked.write_bytes(msgspec.json.encode(spec))
    with (directory / "log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", module, str(asked), str(directory / "result")],
            stdout=log,
            stderr=log,
        )
