"""Runs the command as a user does: arguments and environment in, exit code and streams out; HTTP is a fake."""

import io
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import httpx2

from app.cli.common.context import CliContext
from app.cli.main import run

NOWHERE = Path("/nonexistent")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a command line did."""

    code: int
    out: str
    err: str


@contextmanager
def interruptible() -> Iterator[None]:
    """As in a terminal: a shell leaves what it starts in the background, and the processes of that, deaf to SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def refuse_connections(request: httpx2.Request) -> httpx2.Response:
    """A network without any control plane."""
    raise httpx2.ConnectError("[Errno 111] Connection refused", request=request)


def cli(
    *arguments: str | Path,
    api: Callable[[httpx2.Request], httpx2.Response] | None = refuse_connections,
    stdin: str = "",
    environment: Mapping[str, str] | None = None,
    home: Path = NOWHERE,
    sleep: Callable[[float], None] = lambda _seconds: None,
    monotonic_s: Callable[[], float] = time.monotonic,
) -> Result:
    """Run one command line against a fake API (None = real HTTP); the streams are no terminals.

    The first argument may be several words, quoted as in a shell.
    """
    cli = CliContext(
        environment={"PLIMSOLL_TOKEN": "plim_admin_secret"}
        if environment is None
        else environment,
        home=home,
        transport=None if api is None else httpx2.MockTransport(api),
        sleep=sleep,
        monotonic_s=monotonic_s,
    )
    first, *others = arguments
    words = [*shlex.split(str(first)), *map(str, others)]
    out, err = io.StringIO(), io.StringIO()
    typed, sys.stdin = (
        sys.stdin,
        io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8"),
    )
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = run(words, cli)
    finally:
        sys.stdin = typed
    return Result(code=code, out=out.getvalue(), err=err.getvalue())
