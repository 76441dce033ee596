"""Errors of the command, and how those that run for days bear what passes.

CliError              something that the user should read: what went wrong, and what to do
├── ManifestErrors    manifests that cannot be used, each with file, line, field and remedy
                      (app.cli.common.manifest_files)
├── ControlPlaneUnreachable       no control plane answers
└── ApiProblem        the control plane answered with a problem (RFC 9457)

Wrong usage is `typer.BadParameter`, which ends with exit code 2.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import NamedTuple, TypeVar

MAX_WAIT_S = 30.0

Answer = TypeVar("Answer")


class CliError(Exception):
    """Ends the command with exit code 1; its text is shown as it is, the hint on a line of its own."""

    may_pass = False
    """Whether the same may work a moment later."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class ControlPlaneUnreachable(CliError):
    """No control plane answers."""

    may_pass = True


class FieldFault(NamedTuple):
    """One field that the control plane does not take."""

    place: str
    """JSON pointer into the body, or the name of a parameter."""
    detail: str
    may_force: bool = False
    """Whether it takes it all the same where one insists."""


class ApiProblem(CliError):
    """The control plane answered with a problem."""

    def __init__(
        self, status: int, detail: str, fields: tuple[FieldFault, ...], request_id: str
    ) -> None:
        lines = [
            f"{field.place}: {field.detail}"
            for field in fields
            # With one fault the detail is that fault already.
            if field.detail not in detail
        ]
        # By it the server's log can be searched; a caller's own mistake needs no search.
        suffix = f" (request {request_id})" if request_id and status >= 500 else ""
        super().__init__(
            "\n  ".join([detail + suffix, *lines]), hint=HINTS.get(status, "")
        )
        self.status = status
        busy = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
        self.may_pass = status in busy or status >= HTTPStatus.INTERNAL_SERVER_ERROR
        self.detail = detail
        self.fields = fields
        self.request_id = request_id


HINTS = {
    401: "set PLIMSOLL_TOKEN, or create a token with `plimsoll token create --local --save`",
    403: "an admin's `plimsoll token create` creates a token of another scope or project",
    412: "somebody else changed it in the meantime; run the command again",
    429: "the control plane is busy; try again in a moment",
    503: "the control plane is not ready; try again in a moment, or see `plimsoll doctor`",
}


def show_error(error: Exception) -> None:
    """Print an error for people, on stderr."""
    # stdout is buffered in a pipe: without it the error would come before the lines that led to it.
    sys.stdout.flush()
    sys.stderr.write(f"Error: {error}\n")
    if isinstance(error, CliError) and error.hint:
        sys.stderr.write(f"Hint: {error.hint}\n")


@dataclass(slots=True, kw_only=True)
class Patience:
    """How long to wait before the next question to one server: it is asked less often while it does not answer."""

    period_s: float
    """Between two questions while it answers."""
    takes_all: bool = False
    """Whether every error may pass, as of a server that answered well before."""
    _failures: int = field(default=0, init=False)
    """In a row."""

    @property
    def wait_s(self) -> float:
        """Twice as long after each failure, up to MAX_WAIT_S."""
        longest_s = max(MAX_WAIT_S, self.period_s)
        # As `agents.base.backoff`, which no `--help` should load; without a bound the exponent would overflow in a day.
        return min(longest_s, self.period_s * 2.0 ** min(self._failures, 16))

    def ask(
        self, sleep: Callable[[float], None], question: Callable[[], Answer]
    ) -> Answer:
        """The answer after the next wait, or after as many as it takes. Raises CliError for what will not pass."""
        while True:
            sleep(self.wait_s)
            try:
                answer = question()
            except CliError as error:
                self.failed(error)
            else:
                self.answered()
                return answer

    def failed(self, error: CliError) -> None:
        """Say the first of several in a row. Raises the error where it will not pass."""
        is_first = not self._failures
        self.bear(error)
        if is_first:
            show_error(CliError(f"{error}; asked again until it answers"))

    def bear(self, error: CliError) -> None:
        """The same without a word."""
        if not (self.takes_all or error.may_pass):
            raise error
        self._failures += 1

    def answered(self) -> None:
        """It does again."""
        self._failures = 0
